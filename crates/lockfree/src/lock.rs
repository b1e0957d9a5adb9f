//! Locks that know their owner, so that an owner's death is noticed, and the process that finds it takes the lock over (P11).
//!
//! A lock is one line, laid out as a gate ([`crate::gate`]): its first word is 0 or names the process that owns the lock.
//! Taking it is one compare-and-swap from 0; giving it back is a store, after which the gate is looked at. Words that name
//! a dead process, or none at all, are taken over by a compare-and-swap from that very value: one of those that try
//! succeeds, and an owner that was taken over gives nothing back any more. (The services say which processes are dead: they
//! publish a death with release once the process can do nothing any more, and the process that takes over has read that with
//! acquire. So all that the dead owner did is visible.)
//!
//! What the owner leaves behind is said by the *state*, which only owners write: when a lock was taken over, what it
//! protects is suspect until an owner says that it is not, and lost for ever if an owner gives it back without. An owner may
//! have to wait before it changes anything. Of such locks the owners say when they begin ([`change`]), and one that dies
//! before leaves things as they were.
//!
//! A waiter that has been overtaken too often puts its name into *heir*. No other process takes a lock that has one.

use crate::sync::{Line, ReadLine, Word, full_fence};

/// Index of the word that names the owner: the one that is waited at.
pub const OWNER: usize = crate::gate::WORD;
/// Index of the word that says what is known of the protected data.
pub const STATE: usize = 3;
/// Index of the word that names the process for whose waiter the lock is kept.
pub const HEIR: usize = 4;
/// Index of the word by which the owner tells its threads apart.
pub const THREAD: usize = 5;
/// Index of the word that is not 0 once an owner has begun to change what is protected, where owners say that.
pub const CHANGING: usize = 6;

const SOUND: u64 = 0;
const SUSPECT: u64 = 1;
const LOST: u64 = 2;

/// What an owner finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// The last owner gave the lock back.
    Sound,
    /// An owner died; no owner has said since that the data is sound.
    Suspect,
    /// An owner gave it back without saying that what a dead owner left is sound.
    Lost,
}

/// Why a lock was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// This word names the owner.
    Held(u64),
    /// It is kept for this one.
    Kept(u64),
}

/// What is known of the protected data; to be relied on by the owner alone.
#[inline]
pub fn found(line: &ReadLine) -> Found {
    match line.words[STATE].peek() {
        SOUND => Found::Sound,
        SUSPECT => Found::Suspect,
        _ => Found::Lost,
    }
}

/// Takes a bare owned word, for `me`: no other process does until [`let_go`], or until `me` is known to be dead.
///
/// # Errors
/// The owner.
#[inline]
pub fn claim(word: &Word, me: u64) -> Result<(), u64> {
    word.replace(0, me)
}

/// Takes a bare owned word from `dead`; gives whether the caller was the one that did.
#[inline]
pub fn inherit(word: &Word, dead: u64, me: u64) -> bool {
    word.replace(dead, me).is_ok()
}

/// Gives a bare owned word back, if it is still that of `me`: others may have taken `me` for dead, and the word with it.
#[inline]
pub fn let_go(word: &Word, me: u64) {
    inherit(word, me, 0);
}

/// Takes the lock for `me` if it is free (P11). `thread` tells the caller from other threads of its process. With
/// `is_heir` it may be taken although it is kept.
///
/// # Errors
/// The owner.
#[inline]
pub fn take(line: &Line, me: u64, thread: u64, is_heir: bool) -> Result<Found, Refused> {
    // A waiter that an old hint has kept waiting polls again.
    let heir = line.words[HEIR].peek();
    if heir != 0 && !is_heir {
        return Err(match line.words[OWNER].peek() {
            0 => Refused::Kept(heir),
            owner => Refused::Held(owner),
        });
    }
    claim(&line.words[OWNER], me).map_err(Refused::Held)?;
    line.words[THREAD].put(thread);
    Ok(found(line))
}

/// When the owner of a lock may begin to change what it protects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changes {
    /// As soon as it has the lock.
    AtOnce,
    /// Once it has called [`change`].
    Later,
}

/// Says, as the owner, that it is about to change what the lock protects.
#[inline]
pub fn change(line: &Line) {
    line.words[CHANGING].put(1);
    // What is changed is changed after that: of a process that dies all is done up to one instruction. (A compiler may move a
    // relaxed store behind other ones.)
    full_fence();
}

/// Takes the lock from `dead`, which the services say is dead; none if another process was faster.
pub fn take_over(line: &Line, dead: u64, me: u64, thread: u64, changes: Changes) -> Option<Found> {
    if !inherit(&line.words[OWNER], dead, me) {
        return None;
    }
    line.words[THREAD].put(thread);
    // A process that dies here is taken over in turn, and this is done again.
    if found(line) == Found::Sound && (changes == Changes::AtOnce || line.words[CHANGING].peek() != 0) {
        line.words[STATE].put(SUSPECT);
    }
    Some(found(line))
}

/// Says, as the owner, that what the lock protects is sound again. What is lost stays lost.
pub fn mend(line: &Line) {
    if found(line) == Found::Suspect {
        line.words[STATE].put(SOUND);
    }
}

/// Gives the lock back, as its owner (P11). The gate is to be rung after this.
#[inline]
pub fn give_back(line: &Line) {
    if line.words[STATE].peek() != SOUND {
        line.words[STATE].put(LOST);
    }
    pass_on(line);
}

/// Gives back what was taken over only to be inspected: what is suspect stays so.
#[inline]
pub fn pass_on(line: &Line) {
    // After all that was changed, and after the state.
    line.words[CHANGING].set(0);
    line.words[THREAD].put(0);
    line.words[OWNER].set(0);
}

/// Has the lock kept for the caller; gives whether it is.
pub fn keep(line: &Line, me: u64) -> bool {
    claim(&line.words[HEIR], me).is_ok()
}

/// Has it kept no longer, by `heir` itself or since it does not come. The gate is to be rung after this.
pub fn keep_no_more(line: &Line, heir: u64) {
    let _ = inherit(&line.words[HEIR], heir, 0);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_kept_is_for_its_heir_alone() {
        let line = Line::new();
        assert_eq!(take(&line, 1, 1, false), Ok(Found::Sound));
        assert!(keep(&line, 2));
        assert!(!keep(&line, 3), "for one at a time");
        assert_eq!(take(&line, 3, 3, false), Err(Refused::Held(1)));
        give_back(&line);
        assert_eq!(take(&line, 3, 3, false), Err(Refused::Kept(2)));
        keep_no_more(&line, 3);
        assert_eq!(take(&line, 3, 3, false), Err(Refused::Kept(2)), "not theirs to say");
        assert_eq!(take(&line, 2, 2, true), Ok(Found::Sound));
        keep_no_more(&line, 2);
        give_back(&line);
        assert_eq!(take(&line, 3, 3, false), Ok(Found::Sound));
    }

    #[test]
    fn what_the_dead_leave_is_suspect_until_it_is_mended_and_lost_if_it_is_not() {
        let line = Line::new();
        assert_eq!(take(&line, 1, 1, false), Ok(Found::Sound));
        assert_eq!(take_over(&line, 9, 2, 2, Changes::AtOnce), None, "of a process that does not own it");
        assert_eq!(take_over(&line, 1, 2, 2, Changes::AtOnce), Some(Found::Suspect));
        pass_on(&line);
        assert_eq!(take(&line, 3, 3, false), Ok(Found::Suspect), "still");
        mend(&line);
        give_back(&line);
        assert_eq!(take(&line, 1, 1, false), Ok(Found::Sound));
        assert_eq!(take_over(&line, 1, 2, 2, Changes::AtOnce), Some(Found::Suspect));
        give_back(&line);
        assert_eq!(take(&line, 3, 3, false), Ok(Found::Lost));
        mend(&line);
        give_back(&line);
        assert_eq!(take(&line, 1, 1, false), Ok(Found::Lost), "for good");
    }

    #[test]
    fn the_dead_leave_what_they_had_not_begun_to_change_as_it_was() {
        let line = Line::new();
        let later = |dead, me| take_over(&line, dead, me, me, Changes::Later);
        assert_eq!(take(&line, 1, 1, false), Ok(Found::Sound));
        assert_eq!(later(1, 2), Some(Found::Sound));
        change(&line);
        assert_eq!(later(2, 3), Some(Found::Suspect));
        assert_eq!(later(3, 4), Some(Found::Suspect), "still");
        mend(&line);
        assert_eq!(later(4, 5), Some(Found::Suspect), "changed since it was declared sound");
        pass_on(&line);
        assert_eq!(take(&line, 1, 1, false), Ok(Found::Suspect));
        mend(&line);
        assert_eq!(later(1, 2), Some(Found::Sound), "of the one before nothing is left");
        change(&line);
        give_back(&line);
        assert_eq!(take(&line, 1, 1, false), Ok(Found::Sound));
        assert_eq!(later(1, 2), Some(Found::Sound), "of the one before nothing is left");
    }
}
