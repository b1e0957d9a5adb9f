// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A set of System V semaphores, any word of which anybody may have written at any moment.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use isthmus_sysv::Errno;
use isthmus_sysv::sem::{Awaited, MOST, Op, Set, apply_undo, bytes};
use isthmus_sysv::waiting::{Heard, Sleep};

use crate::input::Input;
use crate::sync::{Guarded, word};
use crate::world::fresh;

const SEMAPHORES: u32 = 3;
/// Where semaphores, undo cells, waiters and slots are, and the slots' lengths; the last ones are longer.
const PARTS: [u64; 4] = [64, 256, 256 + 864 * 16, 256 + 864 * 16 + 4096];
const SLOT: u64 = 448;
const SLOTS: u64 = 33;

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

fn op(input: &mut Input<'_>) -> Op {
    const NOWAIT: i16 = 0o4000;
    let flags = [0, NOWAIT, 0x1000, 0x1000 | NOWAIT][usize::from(input.below(4))];
    let by = match input.below(8) {
        0 => input.short().cast_signed(),
        _ => i16::from(input.below(7)) - 3,
    };
    Op {
        num: u16::from(input.below(4)),
        op: by,
        flags: if input.below(16) == 0 { 0 } else { flags | NOWAIT },
    }
}

/// A call of one of the two processes; every answer is allowed that is one.
fn act(set: &Set, input: &mut Input<'_>) {
    let num = u32::from(input.below(4));
    match input.below(8) {
        0 => _ = set.set_value(num, input.short().into()),
        1 => _ = set.set_all(&[0; 3].map(|_: i32| input.short() & 0x7fff)),
        2 => assert!(
            set.all().is_ok_and(|all| all.iter().all(|v| i32::from(*v) <= MOST)) || set.all().is_err()
        ),
        3 => assert!(set.waiting(num, Awaited::More).is_ok_and(|n| n <= 256) || num == 3),
        4 => assert!(set.value(num).map_or(true, |value| (0..=MOST).contains(&value))),
        _ => {
            let count = [1, 1, 2, 3, 12][usize::from(input.below(5))];
            let ops: Vec<_> = (0..count).map(|_| op(input)).collect();
            let limit = Some(Duration::from_micros(50));
            let made = set.operate(&ops, &mut Signalled, limit);
            let is_there = ops.iter().all(|op| u32::from(op.num) < SEMAPHORES);
            assert_eq!(made == Err(Errno::FBIG), !is_there, "{made:?}");
        }
    }
}

/// Two processes that use a set of which somebody overwrites any word, and the service, to which it seems that one has died.
pub fn sysv_sem(data: &[u8]) {
    let world = fresh();
    let mut input = Input(data);
    let len = bytes(SEMAPHORES);
    let page = Guarded::new(&world, len);
    let memory = page.part(0, len);
    let open = |i: usize| Set::over(&world.members[i], &memory, SEMAPHORES, 7).expect("large enough");
    let sets = [0, 1].map(open);
    let mut steps = 0;
    while !input.is_empty() && steps < 96 {
        steps += 1;
        match input.below(8) {
            0..3 => {
                let slot = PARTS[3] + u64::from(input.below(36)) % SLOTS * SLOT;
                let at = match input.below(8) {
                    0..2 => PARTS[0] + 64 * u64::from(input.below(3)) + 8 * u64::from(input.below(2)),
                    2 => 8 * u64::from(input.below(3)),
                    3..5 => PARTS[1] + 8 * u64::from(input.below(16)),
                    5 => slot + 8 * u64::from(input.below(16)),
                    6 => PARTS[3] + SLOTS * SLOT + 8 * u64::from(input.below(32)),
                    _ => 8 * u64::from(input.short()),
                };
                let value = match input.below(4) {
                    // A mark, or a state.
                    0 => u64::from(input.below(4)) << 17 | 1 << 16 | u64::from(input.below(36)),
                    1 => u64::from(input.below(4)) << 2 | u64::from(input.below(4)),
                    2 => word(&world, &mut input),
                    // The place of a semaphore or a cell, or some adjustment.
                    _ => [64, 128, 264, 5, 1 << 17 | 3, 2 << 17 | 0xffff][usize::from(input.below(6))],
                };
                page.set(at % (len / 8 * 8), value);
            }
            3 if input.below(4) == 0 => {
                let _ = apply_undo(&memory, SEMAPHORES.into(), world.members[0].party());
            }
            _ => act(&sets[usize::from(input.below(2))], &mut input),
        }
    }
    drop(sets);
    page.assert_untouched();
    // Whatever it was, its memory serves again once it is zeroed.
    page.zero();
    let [one, other] = [0, 1].map(open);
    let ops = |by| [Op { num: 0, op: by, flags: 0 }, Op { num: 2, op: 2 * by, flags: 0x1000 }];
    assert_eq!(one.operate(&ops(2), &mut Signalled, None), Ok(()));
    assert_eq!(other.operate(&ops(1), &mut Signalled, None), Ok(()));
    assert_eq!(other.all(), Ok(vec![3, 0, 6]));
    assert_eq!(apply_undo(&memory, SEMAPHORES.into(), world.members[0].party()), Ok(true));
    assert_eq!(other.all(), Ok(vec![3, 0, 2]));
}
