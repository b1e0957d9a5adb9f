// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Minitransactions whose machinery anybody may have written at any moment: locks, logs, flight words, slots.

use std::time::Duration;

use isthmus_lockfree::commit;
use isthmus_sync::minitransaction::{
    Committer, Exchange, Minitransaction, Node, Outcome, Place, SegmentId, Shape, Space,
};

use crate::input::Input;
use crate::sync::{Guarded, word};
use crate::world::{World, fresh};

const SHAPE: Shape = Shape { slots: 4, locks: 8, log_bytes: 256 };
const N: Node = Node::LOCAL;
/// Two segments, behind the machinery.
const SEGMENTS: [(SegmentId, u64, u64); 2] = [(SegmentId(1), 3072, 1024), (SegmentId(2), 4096, 64)];
const SOON: Duration = Duration::from_micros(50);

fn space(world: &World, index: usize, page: &Guarded) -> Option<Space> {
    let space = Space::open(&world.members[index], &page.part(0, SHAPE.bytes()), SHAPE).ok()?;
    for (segment, at, bytes) in SEGMENTS {
        space.register(N, segment, &page.part(at, bytes)).expect("whole words");
    }
    space.set_patience(SOON);
    Some(space)
}

/// One process: its space, and what it commits with.
struct User {
    space: Space,
    committer: Option<Committer>,
    place: Place,
}

impl User {
    fn new(world: &World, index: usize, page: &Guarded) -> Option<Self> {
        let space = space(world, index, page)?;
        let place = space.place(N, SegmentId(1), 64).expect("an aligned word inside");
        Some(Self { committer: None, place, space })
    }

    /// Something; every answer is allowed that is one.
    fn act(&mut self, input: &mut Input<'_>) {
        let committer = match &mut self.committer {
            Some(committer) => committer,
            empty => match self.space.committer() {
                Ok(committer) => empty.insert(committer),
                Err(_) => return,
            },
        };
        match input.below(8) {
            0 => self.committer = None,
            1 => drop(self.space.recover()),
            2 => drop(committer.load(&self.place)),
            3 => drop(committer.exchange(&self.place, input.number(), input.number())),
            _ => {
                let mut t = Minitransaction::new();
                let mut reads = Vec::new();
                for _ in 0..=input.below(4) {
                    let segment = SegmentId(1 + u32::from(input.below(3)));
                    let (offset, bytes) = (u64::from(input.short() % 1100), input.bytes(40));
                    match input.below(4) {
                        0 => reads.push(t.read(N, segment, offset, bytes.len())),
                        1 => t.compare(N, segment, offset, &[0, 0, 0, 0, 0, 0, 0, 0][..bytes.len().min(8)]),
                        _ => t.write(N, segment, offset, bytes),
                    }
                }
                if let Ok(Outcome::Committed) = committer.commit(&mut t) {
                    assert!(reads.iter().all(|read| t.bytes(*read).is_some()), "a read was not filled");
                }
            }
        }
    }
}

/// Two processes that commit, while somebody overwrites any word of what they commit with.
pub fn minitransaction(data: &[u8]) {
    let world = fresh();
    let mut input = Input(data);
    let page = Guarded::new(&world, 4096 + 64);
    let mut users = [0, 1].map(|index| User::new(&world, index, &page));
    let slot_bytes = 128 + u64::from(SHAPE.log_bytes);
    let slots = 128 + u64::from(SHAPE.locks) * 64;
    let mut steps = 0;
    while !input.is_empty() && steps < 48 {
        steps += 1;
        match input.below(8) {
            0..=2 => {
                let slot = slots + u64::from(input.below(4)) * slot_bytes;
                // The head, locks, owners and states, flights, logs, segments.
                let at = match input.below(8) {
                    0 => u64::from(input.below(16)) * 8,
                    1 => 128 + u64::from(input.below(8)) * 64,
                    2 | 3 => slot + u64::from(input.below(2)) * 8,
                    4 => slot + 64,
                    5 | 6 => slot + 128 + u64::from(input.below(32)) * 8,
                    _ => 3072 + u64::from(input.below(128)) * 8,
                };
                let value = match input.below(3) {
                    0 => commit::token(u64::from(input.below(6)), u64::from(input.byte())),
                    1 => word(&world, &mut input),
                    // Names, offsets and lengths of a log.
                    _ => u64::from(input.byte()) << [0, 32, 3, 16][usize::from(input.below(4))],
                };
                page.set(at, value);
            }
            3 if input.below(8) == 0 => {
                let which = usize::from(input.below(2));
                users[which] = User::new(&world, which, &page);
            }
            _ => {
                let which = usize::from(input.below(2));
                if let Some(user) = &mut users[which] {
                    user.act(&mut input);
                }
            }
        }
    }
    drop(users);
    page.assert_untouched();
    page.zero();
    for index in 0..2 {
        let mut user = User::new(&world, index, &page).expect("fresh memory");
        let mut committer = user.space.committer().expect("a free slot");
        let before = index as u64;
        assert_eq!(committer.exchange(&user.place, before, before + 1).ok(), Some(Exchange::Committed));
        user.committer = Some(committer);
    }
}
