//! A producer and a consumer with a channel between them, without a buffer on either side: the producer computes its numbers into
//! the channel's ring, and the consumer takes them from there. Prints the rate.
//!
//! ```sh
//! isthmus run --vms 2 -n 2 -- target/release/stream 100000000
//! ```
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Parser;
use isthmus::Attachment;
use isthmus::ivc::Channel;

const GROUP: u64 = 0x7374_7265_616d;
const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));
/// Bytes written or read at once: less than a ring, so that the other process need not wait for a whole ring.
const MOST: usize = 16 << 10;

/// Streams numbers from one process to another.
#[derive(Parser)]
struct Options {
    /// How many bytes: a multiple of eight.
    #[arg(default_value_t = 100_000_000, value_parser = eights)]
    bytes: u64,
}

fn eights(text: &str) -> Result<u64> {
    let bytes: u64 = text.parse()?;
    ensure!(bytes > 0 && bytes.is_multiple_of(8), "it must be a multiple of 8, and not 0");
    Ok(bytes)
}

/// The number at a place of the stream.
fn number(place: u64) -> u64 {
    (place + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn produce(channel: &Channel, total: u64) -> Result<()> {
    let mut place = 0;
    while place < total {
        channel.wait_writable(8, PATIENCE)?;
        let left = usize::try_from((total - place) * 8)?;
        let mut len = 0;
        // Two pieces where the ring's end lies between them. All that is written is whole numbers, and so are the pieces.
        for piece in channel.reserve(left.min(MOST))? {
            for at in (0..piece.len()).step_by(8) {
                len += if piece.set(at, number(place)) { 8 } else { 0 };
                place += 1;
            }
        }
        channel.commit(len)?;
    }
    Ok(channel.flush(PATIENCE)?)
}

fn consume(channel: &Channel, total: u64) -> Result<()> {
    let mut place = 0;
    while place < total {
        channel.wait_readable(PATIENCE)?;
        let (mut len, mut wrong) = (0, 0);
        for piece in channel.peek(MOST)? {
            for at in (0..piece.len()).step_by(8) {
                wrong += u32::from(piece.get(at) != Some(number(place)));
                place += 1;
            }
            len += piece.len();
        }
        // The bytes were the producer's only if this succeeds.
        channel.release(len)?;
        ensure!(wrong == 0, "{wrong} numbers are wrong before number {place}");
    }
    Ok(())
}

fn main() -> Result<()> {
    let Options { bytes } = Options::parse();
    let here = Attachment::open()?;
    let group = here.register(GROUP, 0)?;
    let others = group.wait_peers(1, PATIENCE)?;
    ensure!(others.len() == 1, "there is room for two");

    // The process with the lower address connects and produces.
    let is_producer = group.address() < others[0].address;
    let channel =
        if is_producer { group.connect(others[0].address, PATIENCE)? } else { group.accept(PATIENCE)? };
    let start = Instant::now();
    match is_producer {
        true => produce(&channel, bytes / 8)?,
        false => consume(&channel, bytes / 8)?,
    }
    let rate = bytes as f64 / start.elapsed().as_secs_f64() / 1e6;
    let did = if is_producer { "produced" } else { "consumed" };
    println!("{did} {bytes} bytes in place on {}: {rate:.0} MB/s", here.member()?.name);
    Ok(())
}
