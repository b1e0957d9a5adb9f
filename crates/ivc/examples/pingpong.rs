//! Round trips of 64 bytes between two processes, and streams: through a channel, and through a Unix-domain socket. For a quick
//! check only: `isthmus bench` measures.
//!
//! `cargo run --release -p isthmus-ivc --example pingpong [ROUNDS]`

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_host::{Config, Service};
use isthmus_ivc::{Channel, Context};

const LEN: usize = 64;
const WARM: u32 = 2000;
const MAGIC: u64 = 1;
/// Bytes of each stream, and of a write.
const TOTAL: usize = 64 << 20;
const STREAMED: [usize; 3] = [64, 4096, 256 << 10];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let first = args.next();
    if first.as_deref() == Some("echo") {
        let dir = args.next().unwrap_or_default();
        let rounds = args.next().and_then(|r| r.parse().ok()).unwrap_or(0);
        return echo(Path::new(&dir), rounds);
    }
    let rounds: u32 = first.and_then(|r| r.parse().ok()).unwrap_or(200_000);
    let dir = tempfile::tempdir()?;
    let config = Config { host_name: "host".into(), ..Config::new(dir.path(), 16 << 20) };
    let service = Service::start(config, Arc::new(|_| ()))?;
    let listener = UnixListener::bind(dir.path().join("uds"))?;
    let member = isthmus_attach::connect_at(service.attach_socket())?;
    let context = Context::register(&member, MAGIC, 1)?;
    let mut other = Command::new(std::env::current_exe()?)
        .args(["echo", &dir.path().to_string_lossy(), &rounds.to_string()])
        .env("ISTHMUS_SOCKET", service.attach_socket())
        .spawn()?;
    let channel = context.accept(Some(Duration::from_secs(30)))?;
    let (mut socket, _) = listener.accept()?;
    let polled = time(rounds, || poll_round(&channel, true));
    let waited = time(rounds, || wait_round(&channel, true));
    let through_socket = time(rounds, || socket_round(&mut socket, true));
    println!("channel, polled      {:8.0} ns a round", polled);
    println!("channel, read_exact  {:8.0} ns a round", waited);
    println!("Unix-domain socket   {:8.0} ns a round", through_socket);
    println!(
        "ratio                {:8.1} polled, {:.1} waiting",
        through_socket / polled,
        through_socket / waited
    );
    for len in STREAMED {
        let bytes = vec![7; len];
        let begun = Instant::now();
        let mut sent = 0;
        while sent < TOTAL {
            channel.write_all(&bytes, None)?;
            sent += len;
        }
        channel.read_exact(&mut [0], None)?;
        let through_channel = begun.elapsed();
        let begun = Instant::now();
        let mut sent = 0;
        while sent < TOTAL {
            socket.write_all(&bytes)?;
            sent += len;
        }
        socket.read_exact(&mut [0])?;
        let rate = |time: Duration| TOTAL as f64 / 1e6 / time.as_secs_f64();
        let (here, there) = (rate(through_channel), rate(begun.elapsed()));
        println!("stream of {len:6} bytes {here:8.0} MB/s, Unix-domain socket {there:.0} MB/s");
    }
    drop(channel);
    other.wait()?;
    Ok(())
}

fn echo(dir: &Path, rounds: u32) -> Result<(), Box<dyn std::error::Error>> {
    let member = isthmus_attach::connect()?;
    let context = Context::register(&member, MAGIC, 2)?;
    let channel = context.connect(context.peers()[0].address, Some(Duration::from_secs(30)))?;
    let mut socket = UnixStream::connect(dir.join("uds"))?;
    time(rounds, || poll_round(&channel, false));
    time(rounds, || wait_round(&channel, false));
    time(rounds, || socket_round(&mut socket, false));
    let mut bytes = vec![0; 1 << 20];
    for len in STREAMED {
        let total = TOTAL.next_multiple_of(len);
        let mut got = 0;
        while got < total {
            got += channel.read_some(&mut bytes, None)?;
        }
        channel.write_all(&[1], None)?;
        let mut got = 0;
        while got < total {
            got += socket.read(&mut bytes)?;
        }
        socket.write_all(&[1])?;
    }
    Ok(())
}

/// Nanoseconds per round: the tenth percentile of many short stretches, which on a busy machine is an undisturbed one.
fn time(rounds: u32, mut round: impl FnMut()) -> f64 {
    const STRETCH: u32 = 200;
    (0..WARM).for_each(|_| round());
    let mut times: Vec<f64> = (0..(rounds / STRETCH).max(1))
        .map(|_| {
            let begun = Instant::now();
            (0..STRETCH).for_each(|_| round());
            begun.elapsed().as_secs_f64() * 1e9 / f64::from(STRETCH)
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 10]
}

fn poll_round(channel: &Channel, first: bool) {
    let mut bytes = [7; LEN];
    if first {
        assert_eq!(channel.write(&bytes).expect("the other side lives"), LEN);
    }
    let mut empty = 0;
    while channel.read(&mut bytes).expect("the other side lives") == 0 {
        empty += 1;
        if empty % 10_000 == 0 {
            std::thread::yield_now();
        }
    }
    if !first {
        assert_eq!(channel.write(&bytes).expect("the other side lives"), LEN);
    }
}

fn wait_round(channel: &Channel, first: bool) {
    let mut bytes = [7; LEN];
    if first {
        channel.write_all(&bytes, None).expect("the other side lives");
    }
    channel.read_exact(&mut bytes, None).expect("the other side lives");
    if !first {
        channel.write_all(&bytes, None).expect("the other side lives");
    }
}

fn socket_round(socket: &mut UnixStream, first: bool) {
    let mut bytes = [7; LEN];
    if first {
        socket.write_all(&bytes).expect("the other side lives");
    }
    socket.read_exact(&mut bytes).expect("the other side lives");
    if !first {
        socket.write_all(&bytes).expect("the other side lives");
    }
}
