// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A System V message queue, any word of which anybody may have written at any moment.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use isthmus_region::local::LocalBuf;
use isthmus_sysv::Errno;
use isthmus_sysv::msg::queue::{Call, Queue, Room, Selection, bytes};
use isthmus_sysv::waiting::{Heard, Sleep};

use crate::input::Input;
use crate::sync::{Guarded, word};
use crate::world::fresh;

/// Most bytes of the queue, and of a message.
const MOST: u64 = 600;
const LONGEST: u32 = 400;
/// Where the locks are, and what lies before the bits of blocks; the blocks are behind 512 bits.
const LOCKS: [u64; 2] = [0, 256];
const BITS: u64 = 512;
const BLOCKS: u64 = BITS + 64;

thread_local! {
    static BUFFERS: [LocalBuf; 2] = std::array::from_fn(|i| LocalBuf::leaked(vec![u8::try_from(i).unwrap_or(0); 1000]));
}

/// A signal comes whenever the thread sleeps.
struct Signalled;

impl Sleep for Signalled {
    fn begin(&mut self) {}

    fn sleep(&mut self, _: &[BorrowedFd<'_>], _: Duration) -> Heard {
        Heard::Pending
    }

    fn is_here(&self) -> bool {
        true
    }

    fn is_told(&self) -> bool {
        true
    }

    fn handle(&mut self) -> bool {
        true
    }

    fn end(&mut self) {}
}

fn selection(input: &mut Input<'_>) -> Selection {
    let kind = i64::from(input.below(5));
    match input.below(4) {
        0 => Selection::Any,
        1 => Selection::Type(kind),
        2 => Selection::Except(kind),
        _ => Selection::UpTo(kind),
    }
}

/// A call of one of the two processes; every answer is allowed that is one.
fn act(queue: &Queue, input: &mut Input<'_>) {
    let [text, into] = BUFFERS.with(|b| *b);
    let no_wait = input.below(8) != 0;
    let most = if input.below(8) == 0 { u64::from(input.short()) } else { MOST };
    let call = Call { admit: &|| Ok(most), no_wait, sleep: &mut Signalled };
    match input.below(9) {
        0..4 => {
            let len = usize::from(input.short()) % (LONGEST as usize + 1);
            let _ = queue.send(i64::from(input.below(5)), text.part(0, len), call);
        }
        4..8 => {
            let size = usize::from(input.short()) % 1000;
            let room = Room {
                size,
                cut: input.below(2) == 0,
                place: &|len| if len > size { Err(Errno::FAULT) } else { Ok(into.part(0, len)) },
            };
            match queue.receive(selection(input), &room, call) {
                Ok((_, count)) => assert!(count <= size, "more than there is room for"),
                Err(errno) => assert_ne!(errno, Errno::FAULT, "more than there is room for"),
            }
        }
        _ => {
            let numbers = queue.numbers();
            assert!(numbers.messages <= 4096, "{numbers:?}");
        }
    }
}

/// Two processes that use a queue of which somebody overwrites any word.
pub fn sysv_msg(data: &[u8]) {
    let world = fresh();
    let mut input = Input(data);
    let len = bytes(MOST, LONGEST);
    let page = Guarded::new(&world, len);
    let open = |i: usize| {
        Queue::open(&world.members[i], &page.part(0, len), i as u64).expect("large enough").impatient()
    };
    let queues = [0, 1].map(open);
    let mut steps = 0;
    while !input.is_empty() && steps < 96 {
        steps += 1;
        match input.below(8) {
            0..2 => {
                let at = match input.below(8) {
                    // A lock that a living process seems to have costs a while.
                    0 => LOCKS[usize::from(input.below(2))] + 8 * u64::from(input.below(8)),
                    1..4 => 64 * u64::from(input.below(8)) + 8 * u64::from(input.below(8)),
                    4 => BITS + 8 * u64::from(input.below(8)),
                    5..7 => BLOCKS + 8 * u64::from(input.byte()),
                    _ => BLOCKS + 8 * u64::from(input.short()),
                };
                let value = match input.below(3) {
                    0 => word(&world, &mut input),
                    1 => u64::from(input.byte()) << 32 | u64::from(input.byte()),
                    _ => u64::from(input.byte()),
                };
                page.set(at % (len / 8 * 8), value);
            }
            2 if input.below(16) == 0 => queues[0].wake(),
            _ => act(&queues[usize::from(input.below(2))], &mut input),
        }
    }
    drop(queues);
    page.assert_untouched();
    // Whatever it was, its memory serves again once it is zeroed.
    page.zero();
    let queues = [0, 1].map(open);
    let text = BUFFERS.with(|b| b[0]);
    let send = || {
        queues[0].send(3, text.part(0, 1), Call { admit: &|| Ok(MOST), no_wait: true, sleep: &mut Signalled })
    };
    let sent = (0..).take_while(|_| send().is_ok()).count();
    assert_eq!(sent, 600, "a fresh queue takes as much as it may");
    let place = |len| Ok(BUFFERS.with(|b| b[1]).part(0, len));
    let room = Room { size: 1, cut: false, place: &place };
    let receive = || {
        let call = Call { admit: &|| Ok(MOST), no_wait: true, sleep: &mut Signalled };
        queues[1].receive(Selection::Any, &room, call)
    };
    assert_eq!((0..).take_while(|_| receive() == Ok((3, 1))).count(), 600, "and gives it back");
    assert_eq!(receive(), Err(Errno::NOMSG));
}
