//! Changes of several words at once, by nobody's leave: multi-word compare-and-swap (MCAS).
//!
//! Every word has bit [`LOCKED`] clear while it has a value. A thread that changes several of them puts a *mark* into each, which
//! names its *slot* and which of the slot's changes this is; decides, by one compare-and-swap of the slot's state; and replaces the
//! marks by the new values, or by the old ones. What it is about to do stands in the slot first, so that a thread that meets a mark
//! need not wait for the other:
//!
//! ```text
//! change:   slot: entries, state := locking    each word: old -> mark    state: locking -> committed    each word: mark -> new
//!           state := idle
//! meeting:  mark?  state: locking (for too long) -> aborted     the word: mark -> new if committed, old if aborted
//! ```
//! - No mark is in a word but from `locking` to `idle` of the very change that it names, so no two changes have the same mark, and a
//!   mark is replaced once (P22).
//! - A thread that replaces a mark takes the value from the slot. The owner has seen all marks replaced before it writes its next change
//!   over that, so if the mark is still there, it was the right one (P23).
//! - A thread that dies, is stopped, or is interrupted by a signal whose handler makes another change, is called off by the next
//!   thread that meets a mark of it; or it had decided, and is completed. Nobody asks whether it lives. Its slot stays taken until it
//!   goes on, or until a thread that knows that it is dead claims the slot (P24).
//! - A word can be changed alone, by a compare-and-swap from one value to another: it fails where there is a mark.
//!
//! Words, slots and entries lie in memory that anyone may write. What is found there is believed only as far as any value may stand
//! in any word; a mark that names nothing is [`Met::Damage`].
//!
//! # Source
//! Harris, Fraser and Pratt, "A Practical Multi-Word Compare-and-Swap Operation" (2002). There those that meet a change complete it
//! from any of its steps, for which each step is a change of two words; here they call it off if it is not decided, as in
//! Herlihy, Luchangco and Moir, "Obstruction-Free Synchronization" (2003).

use crate::sync::{Word, acquire_fence, release_fence};

/// The bit that marks have, and values have not.
pub const LOCKED: u64 = 1 << 16;

const SLOT_MASK: u64 = LOCKED - 1;
const GENERATION_SHIFT: u32 = 17;
const PHASE_BITS: u32 = 2;

/// How far a slot's change is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// There is none, and no mark of it.
    Idle = 0,
    /// It puts its marks, or looks at the old values.
    Locking = 1,
    /// Marks stand for the new values.
    Committed = 2,
    /// Marks stand for the old values.
    Aborted = 3,
}

/// A phase and the change it belongs to, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// Which of the slot's changes; 47 bits count.
    pub generation: u64,
    /// How far it is.
    pub phase: Phase,
}

impl State {
    /// Packs both into the slot's word.
    #[inline]
    pub fn pack(self) -> u64 {
        (clip(self.generation) << PHASE_BITS) | self.phase as u64
    }

    /// Unpacks a word that any process may have written.
    #[inline]
    pub fn unpack(word: u64) -> Self {
        let phase = match word % (1 << PHASE_BITS) {
            0 => Phase::Idle,
            1 => Phase::Locking,
            2 => Phase::Committed,
            _ => Phase::Aborted,
        };
        Self { generation: clip(word >> PHASE_BITS), phase }
    }

    fn with(self, phase: Phase) -> u64 {
        Self { phase, ..self }.pack()
    }
}

#[inline]
fn clip(generation: u64) -> u64 {
    generation & (u64::MAX >> GENERATION_SHIFT)
}

/// What a change puts into its words.
#[inline]
fn mark(slot: u64, generation: u64) -> u64 {
    (clip(generation) << GENERATION_SHIFT) | LOCKED | (slot & SLOT_MASK)
}

/// Whether a word is a mark.
#[inline]
pub fn is_mark(word: u64) -> bool {
    word & LOCKED != 0
}

/// Slot and generation that a mark names.
#[inline]
fn named(mark: u64) -> (u64, u64) {
    (mark & SLOT_MASK, mark >> GENERATION_SHIFT)
}

/// A slot's own words.
#[derive(Debug, Clone, Copy)]
pub struct Slot<'a> {
    /// The party that has it; 0 if it is free.
    pub owner: &'a Word,
    /// A [`State`].
    pub state: &'a Word,
    /// Number of entries.
    pub count: &'a Word,
}

/// A word of a change.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// Its place.
    pub place: &'a Word,
    /// Its value before.
    pub old: &'a Word,
    /// Its value after.
    pub new: &'a Word,
}

/// Where something has just changed: for tests that stop a thread there for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A slot is taken.
    Claimed,
    /// The state says that marks may come.
    Begun,
    /// An entry is written.
    Entered,
    /// A mark is put.
    Marked,
    /// The change is decided.
    Decided,
    /// A mark is replaced by the owner.
    Replaced,
    /// The slot is idle.
    Idle,
    /// The slot is free.
    Freed,
    /// Another thread's change was called off.
    CalledOff,
    /// Another thread's mark was replaced.
    Helped,
}

impl Step {
    /// All steps.
    pub const ALL: [Self; 10] = [
        Self::Claimed,
        Self::Begun,
        Self::Entered,
        Self::Marked,
        Self::Decided,
        Self::Replaced,
        Self::Idle,
        Self::Freed,
        Self::CalledOff,
        Self::Helped,
    ];
}

/// The words and slots.
pub trait Memory {
    /// The word at a place that changes may name; none if there is none.
    fn word(&self, place: u64) -> Option<&Word>;

    /// A slot; none if there is none.
    fn slot(&self, slot: u64) -> Option<Slot<'_>>;

    /// An entry of a slot; none if there is none.
    fn entry(&self, slot: u64, index: u64) -> Option<Entry<'_>>;

    /// How many looks at a mark of that slot there may be before its change is called off.
    fn patience(&self, slot: u64) -> u32;

    /// Whether there may be one more look at a mark, or one more try after one that failed. For callers that others must not hold up for
    /// ever, by words that they keep changing: after that all counts as damaged.
    #[inline(always)] // nothing
    fn may_go_on(&self) -> bool {
        true
    }

    /// Called at each step.
    #[inline(always)] // nothing
    fn step(&self, step: Step) {
        let _ = step;
    }
}

/// What became of a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Met {
    /// It is no longer there.
    Gone,
    /// It is there, and its change goes on.
    Waits,
    /// No change puts it there.
    Damage,
}

/// Looks once at a mark that was found in a word. One whose change is decided is replaced by the value that it stands for; one whose
/// change is not is called off first, if `call_off`.
///
/// # Ordering
/// The mark was read with acquire, so the slot's entry is visible (P22). What the change's thread did before is visible to those that
/// read the value, by way of this thread.
#[cold]
pub fn meet<M: Memory>(memory: &M, place: u64, found: u64, call_off: bool) -> Met {
    let (Some(word), (slot, generation)) = (memory.word(place), named(found)) else { return Met::Damage };
    let Some(state) = memory.slot(slot).map(|s| s.state) else { return Met::Damage };
    let mut now = State::unpack(state.get());
    if now == (State { generation, phase: Phase::Locking }) {
        if !call_off {
            return Met::Waits;
        }
        if state.replace(now.pack(), now.with(Phase::Aborted)).is_ok() {
            memory.step(Step::CalledOff);
        }
        now = State::unpack(state.get());
    }
    // A change that was over by now had left no mark (P22).
    let gone_or_damage = || if word.get() == found { Met::Damage } else { Met::Gone };
    if now.generation != generation || now.phase == Phase::Idle {
        return gone_or_damage();
    }
    let value = value_of(memory, slot, place, now.phase);
    // If the slot was at its next change by then, the mark was gone before (P23).
    acquire_fence();
    let Some(value) = value else { return gone_or_damage() };
    // If this fails, another thread has done it.
    if word.replace(found, value & !LOCKED).is_ok() {
        memory.step(Step::Helped);
    }
    Met::Gone
}

/// What a mark in a word stands for; nothing of it is checked.
fn value_of<M: Memory>(memory: &M, slot: u64, place: u64, phase: Phase) -> Option<u64> {
    let count = memory.slot(slot)?.count.peek();
    for index in 0..count {
        // So many take about as long as a look.
        if index % ENTRIES == ENTRIES - 1 && !memory.may_go_on() {
            return None;
        }
        let entry = memory.entry(slot, index)?;
        if entry.place.peek() == place {
            return Some(if phase == Phase::Committed { entry.new.peek() } else { entry.old.peek() });
        }
    }
    None
}

/// Nothing that is right explains what was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damage;

/// Most marks of one word, one after the other, before it counts as damaged: far more than any use of it leads to.
const MOST_MARKS: u32 = 1 << 16;
/// Entries that are looked through between two questions whether that may go on.
const ENTRIES: u64 = 256;

/// The value of a word: waits for changes that are not decided, and calls them off after a while.
///
/// # Ordering
/// Acquire.
///
/// # Errors
/// [`Damage`].
#[inline]
pub fn read<M: Memory>(memory: &M, place: u64) -> Result<u64, Damage> {
    let value = memory.word(place).ok_or(Damage)?.get();
    if is_mark(value) { read_on(memory, place, value) } else { Ok(value) }
}

#[cold]
fn read_on<M: Memory>(memory: &M, place: u64, found: u64) -> Result<u64, Damage> {
    let word = memory.word(place).ok_or(Damage)?;
    let (mut value, mut of, mut looks, mut marks) = (found, found, 0, 0);
    while is_mark(value) {
        if !memory.may_go_on() {
            return Err(Damage);
        }
        if value != of {
            (of, looks, marks) = (value, 0, marks + 1);
        }
        looks += 1;
        let call_off = looks > memory.patience(named(value).0);
        match meet(memory, place, value, call_off) {
            Met::Damage => return Err(Damage),
            _ if marks > MOST_MARKS => return Err(Damage),
            Met::Waits => pause(looks),
            Met::Gone => {}
        }
        value = word.get();
    }
    Ok(value)
}

/// Lets some time pass before the next look.
#[cfg(not(loom))]
fn pause(looks: u32) {
    match looks {
        // The other thread has been stopped in the middle, perhaps for want of this very processor.
        256.. if looks.is_multiple_of(64) => std::thread::yield_now(),
        _ => crate::hint::spin(20),
    }
}

#[cfg(loom)]
fn pause(_: u32) {
    loom::thread::yield_now();
}

/// Claims a slot that is free, or (with `dead`) whose owner is dead; clears what that one left. One of those that try succeeds (P24).
#[inline]
pub fn claim<M: Memory>(memory: &M, slot: u64, dead: u64, me: u64) -> bool {
    let Some(words) = memory.slot(slot) else { return false };
    if words.owner.peek() != dead || words.owner.replace(dead, me).is_err() {
        return false;
    }
    memory.step(Step::Claimed);
    if State::unpack(words.state.get()).phase != Phase::Idle {
        clear(memory, slot, words);
    }
    true
}

/// Completes what a slot's last owner has decided, or calls it off, and leaves the slot idle.
#[cold]
fn clear<M: Memory>(memory: &M, slot: u64, words: Slot<'_>) {
    let mut now = State::unpack(words.state.get());
    if now.phase == Phase::Locking {
        let _ = words.state.replace(now.pack(), now.with(Phase::Aborted));
        now = State::unpack(words.state.get());
    }
    let mark = mark(slot, now.generation);
    for index in 0..words.count.peek() {
        let Some(entry) = memory.entry(slot, index) else { break };
        let place = entry.place.peek();
        if memory.word(place).is_some_and(|word| word.get() == mark) {
            meet(memory, place, mark, true);
        }
    }
    words.state.set(now.with(Phase::Idle));
}

/// A change that goes on, in a slot that its thread has claimed. Dropped, it has changed nothing, and the slot is free.
#[derive(Debug)]
pub struct Change<'a, M: Memory> {
    memory: &'a M,
    words: Slot<'a>,
    slot: u64,
    state: State,
    mark: u64,
    count: u64,
}

impl<'a, M: Memory> Change<'a, M> {
    /// Begins a change in a slot that the caller has claimed.
    ///
    /// # Errors
    /// [`Damage`] if there is no such slot.
    #[inline]
    pub fn begin(memory: &'a M, slot: u64) -> Result<Self, Damage> {
        let words = memory.slot(slot).ok_or(Damage)?;
        let generation = clip(State::unpack(words.state.peek()).generation + 1);
        // What follows is not seen before the last change's marks are gone (P23).
        release_fence();
        words.count.put(0);
        let state = State { generation, phase: Phase::Locking };
        // The first mark publishes it.
        words.state.put(state.pack());
        memory.step(Step::Begun);
        Ok(Self { memory, words, slot, state, mark: mark(slot, generation), count: 0 })
    }

    /// Takes a word into the change, once; gives its value, which stays until the change is decided or called off. Words are best
    /// taken in the order of their places.
    ///
    /// # Errors
    /// [`Damage`]; or the slot has no entry left.
    #[inline]
    pub fn take(&mut self, place: u64) -> Result<u64, Damage> {
        let word = self.memory.word(place).ok_or(Damage)?;
        let entry = self.memory.entry(self.slot, self.count).ok_or(Damage)?;
        entry.place.put(place);
        let mut seen = word.get();
        loop {
            if is_mark(seen) {
                seen = read_on(self.memory, place, seen)?;
            }
            entry.old.put(seen);
            self.words.count.put(self.count + 1);
            self.memory.step(Step::Entered);
            match word.replace(seen, self.mark) {
                Ok(()) => break,
                Err(_) if !self.memory.may_go_on() => return Err(Damage),
                Err(other) => seen = other,
            }
        }
        self.memory.step(Step::Marked);
        self.count += 1;
        Ok(seen)
    }

    /// Whether it was called off. Then what it has taken may be any other thread's again.
    #[inline]
    pub fn is_called_off(&self) -> bool {
        self.words.state.peek() != self.state.pack()
    }

    /// Sets what the `index`th word taken is to be. Every word must be set before [`Change::commit`].
    #[inline]
    pub fn set(&self, index: u64, value: u64) {
        if let Some(entry) = self.memory.entry(self.slot, index) {
            entry.new.put(value & !LOCKED);
        }
    }

    /// Makes the change, or finds that it was called off: then nothing is changed.
    ///
    /// # Ordering
    /// A thread that reads one of the new values with acquire sees all that this thread did before, and this thread sees all that
    /// those did which wrote the old ones (P22).
    #[inline]
    pub fn commit(self) -> bool {
        let is_made = self.words.state.replace(self.state.pack(), self.state.with(Phase::Committed)).is_ok();
        if is_made {
            self.memory.step(Step::Decided);
        }
        // The rest is the drop's.
        is_made
    }
}

impl<M: Memory> Drop for Change<'_, M> {
    #[inline]
    fn drop(&mut self) {
        let mut now = State::unpack(self.words.state.get());
        if now == self.state {
            let _ = self.words.state.replace(now.pack(), now.with(Phase::Aborted));
            now = State::unpack(self.words.state.get());
        }
        for index in 0..self.count {
            let Some(entry) = self.memory.entry(self.slot, index) else { break };
            let value = if now.phase == Phase::Committed { entry.new.peek() } else { entry.old.peek() };
            if let Some(word) = self.memory.word(entry.place.peek()) {
                // If this fails, another thread has done it.
                let _ = word.replace(self.mark, value & !LOCKED);
                self.memory.step(Step::Replaced);
            }
        }
        self.words.state.set(self.state.with(Phase::Idle));
        self.memory.step(Step::Idle);
        self.words.owner.set(0);
        self.memory.step(Step::Freed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn marks_and_states_keep_their_parts() {
        for (slot, generation) in [(0, 0), (0, 1), (511, 7), (SLOT_MASK, u64::MAX >> GENERATION_SHIFT)] {
            assert!(is_mark(mark(slot, generation)));
            assert_eq!(named(mark(slot, generation)), (slot, generation));
            for phase in [Phase::Idle, Phase::Locking, Phase::Committed, Phase::Aborted] {
                let state = State { generation, phase };
                assert_eq!(State::unpack(state.pack()), state);
            }
        }
        assert_eq!(State::unpack(0), State { generation: 0, phase: Phase::Idle });
    }

    /// A word and a slot, whose change goes on for ever; or the word is another one at each look.
    struct Busy {
        word: Word,
        slot: [Word; 6],
        changes: bool,
        left: std::cell::Cell<u32>,
    }

    impl Busy {
        fn new(word: u64, changes: bool) -> Self {
            let state = State { generation: 1, phase: Phase::Locking }.pack();
            let slot = [0, state, 0, 0, 0, 0].map(Word::new);
            Self { word: Word::new(word), slot, changes, left: std::cell::Cell::new(1000) }
        }
    }

    impl Memory for Busy {
        fn word(&self, _: u64) -> Option<&Word> {
            Some(&self.word)
        }

        fn slot(&self, _: u64) -> Option<Slot<'_>> {
            let [owner, state, count, ..] = &self.slot;
            Some(Slot { owner, state, count })
        }

        fn entry(&self, _: u64, _: u64) -> Option<Entry<'_>> {
            let [.., place, old, new] = &self.slot;
            Some(Entry { place, old, new })
        }

        fn patience(&self, _: u64) -> u32 {
            u32::MAX
        }

        fn may_go_on(&self) -> bool {
            self.left.replace(self.left.get().saturating_sub(1)) > 0
        }

        fn step(&self, step: Step) {
            if step == Step::Entered && self.changes {
                self.word.set((self.word.peek() + 1) % LOCKED);
            }
        }
    }

    #[test]
    fn who_may_not_go_on_for_ever_gives_up() {
        let memory = Busy::new(mark(0, 1), false);
        assert_eq!(read(&memory, 0), Err(Damage), "a change that goes on");
        assert_eq!(memory.left.get(), 0);
        let memory = Busy::new(7, true);
        let mut change = Change::begin(&memory, 0).unwrap();
        assert_eq!(change.take(0), Err(Damage), "a word that is another one each time");
        assert_eq!(memory.left.get(), 0);
    }
}
