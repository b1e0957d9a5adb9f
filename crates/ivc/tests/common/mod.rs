//! A service, and attachments to it.

// Each test program uses a part of this module.
#![allow(dead_code, unreachable_pub)]

use std::io::IoSliceMut;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_host::{Config as HostConfig, Service};
use isthmus_ivc::{Channel, Config, Context, Error};
use isthmus_region::member::Member;

pub const REGION: u64 = 16 << 20;
/// A time limit for what happens at once, on a machine that is busy with other things.
pub const SOON: Option<Duration> = Some(Duration::from_secs(30));
pub const MAGIC: u64 = 0x1234;

pub struct World {
    pub service: Service,
    pub dir: tempfile::TempDir,
}

impl World {
    pub fn new() -> Self {
        Self::with(REGION, |config| config)
    }

    pub fn with(bytes: u64, change: impl FnOnce(HostConfig) -> HostConfig) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = HostConfig { host_name: "host".into(), ..HostConfig::new(dir.path(), bytes) };
        let service = Service::start(change(config), Arc::new(|_| ())).unwrap();
        Self { service, dir }
    }

    pub fn member(&self) -> Arc<Member> {
        isthmus_attach::connect_at(self.service.attach_socket()).unwrap()
    }

    pub fn context(&self, client: u64) -> Context {
        self.context_with(client, Config::default())
    }

    pub fn context_with(&self, client: u64, config: Config) -> Context {
        Context::register_with(&self.member(), MAGIC, client, config).unwrap()
    }

    pub fn heap_used(&self) -> u64 {
        self.member().directory(0).unwrap().1.heap_used()
    }
}

/// A channel between two contexts: the connecting side first.
pub fn pair(from: &Context, to: &Context) -> (Channel, Channel) {
    let mut connecting = from.begin_connect(to.address()).unwrap();
    let there = to.accept(SOON).unwrap();
    (connecting.wait(SOON).unwrap(), there)
}

/// Waits until `holds` returns true.
pub fn await_that(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what} does not come about");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Bytes that depend on their place in a stream.
pub fn byte_at(position: u64, seed: u64) -> u8 {
    let x = (position ^ seed.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x >> 56) as u8
}

pub fn fill(bytes: &mut [u8], from: u64, seed: u64) {
    for (i, b) in (from..).zip(bytes) {
        *b = byte_at(i, seed);
    }
}

pub fn check(bytes: &[u8], from: u64, seed: u64) {
    for (i, b) in (from..).zip(bytes) {
        assert_eq!(*b, byte_at(i, seed), "byte {i}");
    }
}

/// Reads until the end of the stream and checks every byte; returns their count.
pub fn receive_all(channel: &Channel, most: u64, seed: u64) -> u64 {
    let mut random = Random(seed.wrapping_mul(31) | 1);
    let mut got = 0;
    let mut bytes = vec![0; usize::try_from(most).unwrap()];
    loop {
        let len = usize::try_from(1 + random.below(most)).unwrap();
        let bytes = &mut bytes[..len];
        let count = match random.below(3) {
            0 => channel.read_some(bytes, SOON),
            1 => {
                let (first, second) = bytes.split_at_mut(len / 2);
                let mut slices = [IoSliceMut::new(first), IoSliceMut::new(second)];
                channel.read_vectored(&mut slices)
            }
            _ => channel.peek(len).and_then(|pieces| {
                let mut count = 0;
                for piece in &pieces {
                    count += piece.copy_to(0, &mut bytes[count..]);
                }
                channel.release(count).map(|()| count)
            }),
        };
        match count {
            Ok(0) => channel.wait_readable(SOON).unwrap(),
            Ok(count) => {
                check(&bytes[..count], got, seed);
                got += count as u64;
            }
            Err(Error::End { .. }) => return got,
            Err(e) => panic!("{e} after {got} bytes"),
        }
    }
}

/// A generator of numbers.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
