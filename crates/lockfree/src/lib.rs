//! Lock-free cells that live in shared memory: the only crate that names a memory ordering.
//!
//! - [`sync`]: the atomics, from `core` or, under `cfg(loom)`, from the model checker.
//! - [`slot`]: one cache line that carries a message and its own arrival flag (P1).
//! - [`ring`]: positions of a one-way ring of slots, and its back-pressure (P2).
//! - [`activity`]: words that only count up and tell a receiver where to look (P3).
//! - [`heat`]: the handshake by which a ring leaves and joins the set that is polled directly (P4).
//! - [`life`]: a state and an incarnation in one word, and the check after a copy (P5).
//! - [`hold`]: memory that another process is about to change is not given away (P7).
//! - [`sleep`]: how a receiver that sleeps and a sender that rings cannot miss each other (P6).
//! - [`gate`]: the same for a word that many change and many wait at (P8).
//! - [`barrier`]: words from which it follows that all have arrived (P9, P10).
//! - [`lock`]: locks that know their owner, and are taken over when it dies (P11).
//! - [`readers`]: readers that each process counts apart, and a writer that finds them (P12).
//! - [`commit`]: minitransactions: locks that outlive their holders, and changes of one word beside them (P13 to P16).
//! - [`mcas`]: changes of several words that anyone completes or calls off (P22 to P24).
//! - [`stream`]: positions of a one-way ring of bytes, and whether it may still be read (P17 to P19).
//! - [`at_work`]: which threads of a process are at something, for one of them that seldom wants to know (P25).
//! - [`local`]: flags and counts of one process, for code that names no memory ordering.
//! - [`hint`]: what the processor is told between two looks.
//!
//! The labels P1, P2 and so on name pairs of accesses; `docs/memory-ordering.md` lists them with their models. Nothing
//! here makes a system call or knows what a message is. Every cell consists of atomics only, so any bytes that
//! another party leaves in it are a valid value.

#![allow(clippy::disallowed_types)] // here, and nowhere else, are memory orderings named

pub mod activity;
pub mod at_work;
pub mod barrier;
pub mod commit;
pub mod gate;
pub mod heat;
pub mod hint;
pub mod hold;
pub mod life;
pub mod local;
pub mod lock;
pub mod mcas;
pub mod readers;
pub mod ring;
pub mod sleep;
pub mod slot;
pub mod stream;
pub mod sync;

/// Bytes of a cache line, the unit that two writers never share.
pub const LINE_BYTES: usize = 64;
/// 64-bit words of a cache line.
pub const LINE_WORDS: usize = 8;
