//! Records of those that wait, for GETNCNT and GETZCNT. A thread for which there is no room waits all the same, and is not counted.

use isthmus_lockfree::sync::Word;
use isthmus_region::member::Member;
use isthmus_region::party::Party;

use super::number;
use super::space::Space;
use crate::Result;

/// What a thread waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    /// That the value grows.
    More,
    /// That the value is 0.
    Zero,
}

fn place(num: u32, awaited: Awaited) -> u64 {
    1 + 2 * u64::from(num) + u64::from(awaited == Awaited::Zero)
}

/// A thread's record, until it is dropped.
pub(super) struct Record<'a> {
    party: &'a Word,
    place: &'a Word,
}

impl<'a> Record<'a> {
    /// Takes a record for the calling thread, if there is one left.
    pub(super) fn new(space: &'a Space, member: &Member) -> Option<Self> {
        let me = member.party().word();
        let take = |dead: bool| {
            let count = space.waiters();
            (0..count).map(|i| (number() + i) % count).find_map(|index| {
                let (party, place) = space.waiter(index).ok()?;
                let there = party.get();
                if there != 0 && !(dead && is_dead(member, there)) {
                    return None;
                }
                party.replace(there, me).is_ok().then_some(Self { party, place })
            })
        };
        take(false).or_else(|| take(true))
    }

    /// Says what the thread waits for.
    pub(super) fn say(&self, num: u32, awaited: Awaited) {
        self.place.set(place(num, awaited));
    }
}

impl Drop for Record<'_> {
    fn drop(&mut self) {
        self.place.set(0);
        self.party.set(0);
    }
}

fn is_dead(member: &Member, party: u64) -> bool {
    Party::named(party).is_none_or(|party| !member.is_alive(party))
}

/// How many living threads wait for this.
pub(super) fn count(space: &Space, member: &Member, num: u32, awaited: Awaited) -> Result<u32> {
    let mut count = 0;
    for index in 0..space.waiters() {
        let (party, there) = space.waiter(index)?;
        let party = party.get();
        if party != 0 && there.get() == place(num, awaited) && !is_dead(member, party) {
            count += 1;
        }
    }
    Ok(count)
}
