// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Channels of IVC between honest contexts, beside one whose section anybody may have written at any moment.
//!
//! The hostile context is honest code too, so that channels are offered, answered, full and half closed; besides that the
//! input writes any word of its block, its ends and its rings. What the honest two say to each other must arrive whole.

use std::time::Duration;

use isthmus_ivc::{Channel, Config, Context, Interest};
use isthmus_region::Section;
use isthmus_region::format::{block, channel as end, chunk};

use crate::input::Input;
use crate::world::{World, fresh};

const GROUP: u64 = 0x1234;
const SOON: Option<Duration> = Some(Duration::from_micros(50));
/// For what comes at once.
const SURELY: Option<Duration> = Some(Duration::from_secs(60));
const RING: u64 = 1024;

fn context(world: &World, index: usize) -> Context {
    let config = Config { ring_bytes: RING, linger: Duration::ZERO, backlog: 4, ..Config::default() };
    Context::register_with(&world.members[index], GROUP, index as u64, config).expect("there is room")
}

/// The block of the one endpoint of a member.
fn block_of(world: &World, index: u32) -> u64 {
    let (_, directory) = world.members[0].directory(index).expect("a member");
    directory.endpoints().first().expect("a context").1.block
}

/// A word of the hostile section that others look at: its place.
fn interesting(section: &Section, at: u64, input: &mut Input<'_>) -> u64 {
    let get = |at: u64| section.read("any", at).map_or(0, isthmus_region::sync::ReadWord::get);
    let chunk = get(at.wrapping_add(block::CHANNELS));
    let entry = chunk.wrapping_add(chunk::BYTES + u64::from(input.below(4)) * end::BYTES);
    match input.below(8) {
        0 => at.wrapping_add(8 * u64::from(input.below(24))),
        1 => chunk.wrapping_add(8 * u64::from(input.below(8))),
        2..=5 => entry.wrapping_add(8 * u64::from(input.below(32))),
        6 => get(entry.wrapping_add(end::RING)).wrapping_add(8 * u64::from(input.byte())),
        _ => 8 * u64::from(input.short()),
    }
}

/// What the honest two say: a stream in each direction.
struct Stream {
    ends: [Channel; 2],
    at: u64,
}

impl Stream {
    fn go_on(&mut self, len: usize) {
        let bytes: Vec<u8> = (self.at..).take(len).map(|i| i.to_le_bytes()[0] ^ 0x5c).collect();
        for (from, to) in [(0, 1), (1, 0)] {
            self.ends[from].write_all(&bytes, SURELY).expect("the honest peer reads");
            let mut got = vec![0; len];
            self.ends[to].read_exact(&mut got, SURELY).expect("the honest peer writes");
            assert_eq!(got, bytes, "a stream is not what was written");
        }
        self.at += len as u64;
    }
}

/// One of the honest uses what it has of the hostile one; every answer is allowed that is one.
fn act(context: &Context, hostile: &Context, channels: &mut Vec<Channel>, input: &mut Input<'_>) {
    let which = usize::from(input.byte()) % channels.len().max(1);
    let (one, mut bytes) = (channels.get(which), [0; 300]);
    match (input.below(14), one) {
        (0, _) if channels.len() < 6 => {
            channels.extend(context.begin_connect(hostile.address()).and_then(|mut c| c.wait(SOON)).ok());
        }
        (1, _) if channels.len() < 6 => channels.extend(context.try_accept().ok().flatten()),
        (2, Some(one)) => drop(one.read(&mut bytes)),
        (3, Some(one)) => drop(one.write(&bytes)),
        (4, Some(one)) => {
            if let Ok(pieces) = one.peek(300) {
                let len: usize = pieces.iter().map(|piece| piece.copy_to(0, &mut bytes)).sum();
                drop(one.release(len));
            }
        }
        (5, Some(one)) => {
            if let Ok(pieces) = one.reserve(300) {
                let len: usize = pieces.iter().map(|piece| piece.copy_from(0, &bytes)).sum();
                drop(one.commit(len));
            }
        }
        (6, Some(one)) => drop(one.flush(SOON)),
        (7, Some(one)) => one.shutdown_write(),
        (8, Some(one)) => one.watch(Interest { read: true, write: input.below(2) == 0 }),
        (9, Some(_)) => drop(channels.swap_remove(which)),
        // That of the hostile one alone: it ends all streams of a context.
        (10, _) if context.client() == 2 => {
            context.suspend(Duration::ZERO);
            context.resume();
        }
        (11, Some(one)) => drop(one.wait_writable(1, SOON)),
        (12, Some(one)) => drop(one.read_some(&mut bytes, SOON)),
        _ => {
            drop(context.events());
            drop(context.peers());
        }
    }
}

/// Two honest contexts, and one that writes anything into its own section.
pub fn channel(data: &[u8]) {
    let world = fresh();
    let mut input = Input(data);
    let contexts: Vec<_> = (0..3).map(|index| context(&world, index)).collect();
    let [honest, other, hostile] = contexts.as_slice() else { return };
    let block = block_of(&world, 2);
    let connect = || {
        let mut connecting = honest.begin_connect(other.address()).expect("a member of the group");
        let there = other.accept(SURELY).expect("it was asked");
        Stream { ends: [connecting.wait(SURELY).expect("it was accepted"), there], at: 0 }
    };
    let mut stream = connect();
    let (mut of_honest, mut of_hostile) = (Vec::new(), Vec::new());
    let mut steps = 0;
    while !input.is_empty() && steps < 48 {
        steps += 1;
        match input.below(8) {
            0..=2 => {
                let at = interesting(&world.sections[2], block, &mut input) & !7;
                if let Ok(word) = world.sections[2].word("any", at) {
                    word.set(input.number());
                }
                if input.below(2) == 0
                    && let Ok(version) = world.sections[2].word("any", block + block::CHANNELS_VERSION)
                {
                    version.add(1);
                }
            }
            3 | 4 => act(hostile, honest, &mut of_hostile, &mut input),
            5 => {
                stream.go_on(1 + usize::from(input.short() % 900));
            }
            6 if input.below(6) == 0 => {
                // Suspended channels end, also between the honest.
                honest.suspend(Duration::ZERO);
                honest.resume();
                drop((honest.events(), other.events()));
                stream = connect();
            }
            _ => act(honest, hostile, &mut of_honest, &mut input),
        }
    }
    stream.go_on(500);
    // A new connection between the honest comes about as well.
    let mut fresh = connect();
    fresh.go_on(100);
}
