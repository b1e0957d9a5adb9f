//! Objects of System V IPC (svipc(7)). They stay until they are removed, and are known by their place, of which programs see an id;
//! a key is their name. What they may be used for stands in the table, where only the host service writes.

use super::{
    Kind, LIMITED, Life, ObjectInfo, Party, Patience, PeerSection, ReadWord, Region, Result, State, UNLINKED,
    entry, is_among,
};
use crate::format::object;

/// Index of the parameter with the key and the number of the process that made it: the lower and the upper half.
pub const KEY: usize = 0;
/// Index of the parameter with user (lower half) and group of the process that made it.
pub const CREATOR: usize = 1;
/// Index of the parameter with the time of the last change of owner or mode, in seconds since 1970.
pub const CHANGED: usize = 2;
/// Index of the parameter with the size: bytes of shared memory, semaphores of a set, most bytes of a queue.
pub const SIZE: usize = 3;

/// The name of the object with a key.
pub fn name_of(key: i32) -> String {
    format!("{key:08x}")
}

/// The name of the `count`th object without a key that a process makes.
pub fn private_name(maker: Party, count: u64) -> String {
    format!("private {:x}.{count}", maker.word())
}

/// Whether an object with this in [`KEY`] may have this name: processes find it by its key, and the service by its name.
pub fn is_name(name: &str, with: u64) -> bool {
    let key = halves(with).0.cast_signed();
    let is_hex = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit());
    match name.strip_prefix("private ").and_then(|rest| rest.split_once('.')) {
        Some((maker, count)) => key == 0 && is_hex(maker) && count.parse::<u64>().is_ok(),
        None => key != 0 && name == name_of(key),
    }
}

/// The page before a segment of shared memory, which all members write like the segment itself.
pub mod segment {
    use isthmus_lockfree::hold;

    use super::super::{Party, Region, Result, Section};

    /// Bytes of the page.
    pub const BYTES: u64 = 4096;
    /// Offset of the time of the last attach.
    pub const ATTACHED: u64 = 0;
    /// Offset of the time of the last detach.
    pub const DETACHED: u64 = 8;
    /// Offset of the word with number and peer of the last process that did either.
    pub const LAST: u64 = 16;
    /// Offset of the word that is not 0 once the segment is removed. The service has that in its table a little later.
    const REMOVED: u64 = 24;
    /// Offsets of words that name processes which attach the segment, until the service knows.
    const ENTERING: [u64; 4] = [64, 72, 80, 88];

    /// The page at an offset of the shared section.
    ///
    /// # Errors
    /// [`crate::Error::OutOfBounds`].
    pub fn page(region: &Region, offset: u64) -> Result<Section> {
        region.shared()?.part("segment", offset, BYTES)
    }

    /// Whether the segment is removed.
    pub fn is_removed(page: &Section) -> bool {
        page.word("segment", REMOVED).is_ok_and(|word| word.get() != 0)
    }

    /// Removes the segment; the service is to be told. Gives whether it was not removed before. Only who has said that it enters may
    /// do that: the page could be another segment's by now.
    pub fn remove(page: &Section) -> bool {
        page.word("segment", REMOVED).is_ok_and(|word| word.replace(0, 1).is_ok())
    }

    /// Says that a process attaches the segment, before it looks whether that is still there and tells the service (P7). Fails if
    /// there is no place to say so; then the service is to be asked.
    pub fn enter(page: &Section, party: Party) -> bool {
        let word = |at: u64| page.word("segment", at).ok();
        ENTERING.into_iter().filter_map(word).any(|word| hold::take_shared(word, party.word()))
    }

    /// Takes that back, once: the service knows, or the process does not attach it after all.
    pub fn entered(page: &Section, party: Party) {
        let word = |at: u64| page.word("segment", at).ok();
        let _ = ENTERING.into_iter().filter_map(word).any(|word| word.replace(party.word(), 0).is_ok());
    }

    /// Takes back all that a dead process has said of it.
    pub fn left(page: &Section, dead: Party) {
        for word in ENTERING.into_iter().filter_map(|at| page.word("segment", at).ok()) {
            let _ = word.replace(dead.word(), 0);
        }
    }

    /// The processes that are about to attach the segment, whose end or limit was published: those that have not seen it are among
    /// them (P7).
    pub fn entering(page: &Section) -> Vec<Party> {
        hold::after_death();
        let word = |at: u64| page.word("segment", at).ok();
        ENTERING.into_iter().filter_map(word).filter_map(|word| Party::named(word.get())).collect()
    }

    /// Whether a process for which `may_live` holds is about to attach the segment, whose end was published.
    pub fn is_entered(page: &Section, may_live: impl FnMut(Party) -> bool) -> bool {
        entering(page).into_iter().any(may_live)
    }
}

/// Whether an object is removed. One of shared memory may still be attached.
pub fn is_removed(region: &Region, info: &ObjectInfo) -> bool {
    let is_marked = || segment::page(region, info.offset).is_ok_and(|page| segment::is_removed(&page));
    info.flags & UNLINKED != 0 || is(info, Kind::SysvShm) && is_marked()
}

/// What a process wants to change of an object (`IPC_SET`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// New owner: user and group.
    pub owner: (u32, u32),
    /// New mode, of which the lower nine bits count.
    pub mode: u32,
    /// New size; only a queue's can change.
    pub size: u64,
    /// The time, in seconds since 1970.
    pub now: u64,
}

/// Which systems' processes are to use an object: the host or VM where it was made, and these.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sharing {
    /// All.
    All,
    /// No other.
    Own,
    /// This one, by its name, and those that the same process has named with [`Sharing::Next`] just before; no others.
    With(String),
    /// This one, too.
    Also(String),
    /// Nothing changes yet: this one is to come with the next [`Sharing::With`].
    Next(String),
}

/// User and group of the process that made it.
pub fn creator(info: &ObjectInfo) -> (u32, u32) {
    halves(info.params[CREATOR])
}

/// Its key, and the number of the process that made it in its system.
pub fn key_and_maker(info: &ObjectInfo) -> (i32, u32) {
    let (key, pid) = halves(info.params[KEY]);
    (key.cast_signed(), pid)
}

/// The object of a kind with a key, if there is one that is not removed.
pub fn find(region: &Region, kind: Kind, key: i32) -> Option<ObjectInfo> {
    let mut patience = Patience::default();
    (0..super::high(region)).find_map(|index| {
        let at = entry(region, index).ok()?;
        // A quick look, and then a whole one.
        let life = Life::unpack(at.word("object", object::LIFE).ok()?.get());
        let is_there = matches!(life.state, State::Active | State::Joining);
        if !is_there || at.half("object", object::KIND).ok()? != kind as u32 {
            return None;
        }
        let info = super::read(region, index, &mut patience).ok().flatten()?;
        let is_it = is(&info, kind) && key_and_maker(&info).0 == key && !is_removed(region, &info);
        is_it.then_some(info)
    })
}

/// The entry of an object that a process has open.
#[derive(Debug, Clone)]
pub struct Entry {
    at: PeerSection,
    incarnation: u64,
}

impl Entry {
    /// That of this object.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] beyond the table.
    pub fn of(region: &Region, info: &ObjectInfo) -> Result<Self> {
        Ok(Self { at: entry(region, info.index)?, incarnation: info.life.incarnation })
    }

    #[inline]
    fn word(&self, offset: u64) -> u64 {
        self.at.word("object", offset).map_or(0, ReadWord::get)
    }

    /// Whether the object is there, removed or not.
    #[inline]
    pub fn is_there(&self) -> bool {
        super::lives(&self.at, self.incarnation)
    }

    /// Whether the object is removed, or gone.
    #[inline]
    pub fn is_removed(&self) -> bool {
        !self.is_there() || self.word(object::FLAGS) & UNLINKED != 0
    }

    /// Whether processes of a peer may use the object, as [`ObjectInfo::is_shared_with`].
    #[inline]
    pub fn is_shared_with(&self, peer: u32) -> bool {
        let word = |at: usize| self.word(object::ALLOWED + 8 * at as u64);
        self.word(object::FLAGS) & LIMITED == 0 || is_among(peer, word)
    }

    /// Words that change whenever owner or mode do, or whether the object is for processes of this peer.
    #[inline]
    pub fn rights(&self, peer: u32) -> [u64; 2] {
        let denied = if self.is_shared_with(peer) { 0 } else { DENIED };
        [self.word(object::KIND) | denied, self.word(object::UID)]
    }

    /// The size, which changes of a queue alone.
    #[inline]
    pub fn size(&self) -> u64 {
        self.word(object::PARAMS + 8 * SIZE as u64)
    }
}

/// No mode has this bit.
const DENIED: u64 = 1 << 63;

/// [`Entry::rights`] as they were when the table said this.
pub fn rights(info: &ObjectInfo, peer: u32) -> [u64; 2] {
    let denied = if info.is_shared_with(peer) { 0 } else { DENIED };
    [both(info.kind, info.mode) | denied, both(info.owner.0, info.owner.1)]
}

/// Whether it is of that kind.
pub fn is(info: &ObjectInfo, kind: Kind) -> bool {
    info.kind == kind as u32
}

/// Two numbers in one word.
pub fn both(low: u32, high: u32) -> u64 {
    u64::from(low) | (u64::from(high) << 32)
}

#[allow(clippy::cast_possible_truncation)] // the two halves
fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}
