//! Group chat of processes on the host and in any number of VMs: each says something to each other one, over channels that
//! are made as members of the group appear.
//!
//! ```sh
//! isthmus run --vms 3 -n 3 -- target/release/chat 3
//! ```
//!
//! The process with the lower number connects, so that each pair has one channel. A line is a byte with its length, and its
//! words; the C example uses the same lines, so both may be in one group.
#![forbid(unsafe_code)]

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Parser;
use isthmus::ivc::{Channel, Error};
use isthmus::{Attachment, Kind};

/// The magic id, which all processes of the chat know.
const GROUP: u64 = 0x6368_6174;
const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

/// Talks to all others of a group.
#[derive(Parser)]
struct Options {
    /// How many processes take part.
    #[arg(default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=64))]
    parties: u32,
}

/// Says a line, the only one.
fn say(channel: &Channel, line: &str) -> Result<()> {
    channel.write_all(&[u8::try_from(line.len())?], PATIENCE)?;
    channel.write_all(line.as_bytes(), PATIENCE)?;
    channel.shutdown_write();
    Ok(())
}

/// Hears a line, the only one.
fn hear(channel: &Channel) -> Result<String> {
    let mut len = [0];
    channel.read_exact(&mut len, PATIENCE)?;
    let mut line = vec![0; len[0].into()];
    channel.read_exact(&mut line, PATIENCE)?;
    let more = channel.read_some(&mut [0], PATIENCE);
    ensure!(matches!(more, Err(Error::End { .. })), "it said more than it should: {more:?}");
    Ok(String::from_utf8(line)?)
}

fn main() -> Result<()> {
    let parties = usize::try_from(Options::parse().parties)?;
    let here = Attachment::open()?;
    // A number for this process: how many have come before it.
    let me = here.segment("chat").or_create(64)?.word(0)?.fetch_add(1);
    let group = here.register(GROUP, me)?;

    // Each process waits until all are there, and then has one channel to each other one.
    let others = group.wait_peers(parties - 1, PATIENCE)?;
    if me == 0 {
        here.unlink(Kind::Segment, "chat")?;
    }
    let mut channels = Vec::new();
    for peer in others {
        if me < peer.client {
            channels.push(group.connect(peer.address, PATIENCE)?);
        }
    }
    while channels.len() < parties - 1 {
        channels.push(group.accept(PATIENCE)?);
    }
    let host = here.member()?.name;
    for channel in &channels {
        say(channel, &format!("greetings from {me} on {host}"))?;
    }
    for channel in &channels {
        let peer = channel.peer();
        println!("{me} hears {} on {}: {}", peer.client, peer.host, hear(channel)?);
    }
    Ok(())
}
