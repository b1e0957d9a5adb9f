//! Minitransactions.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::{Mutex, PoisonError};

use isthmus::sync::minitransaction::{
    Exchange, Minitransaction, Node, Outcome, Place, Read, SegmentId, Shape,
};
use isthmus::{Attachment, Kind, Segment, Space};
use isthmus_cabi::{object, put, slice};

use crate::Handle;
use crate::attachment::hand_over;
use crate::errno::Failure;
use crate::sync::{name, unlink};

/// Longest item.
const MOST_BYTES: usize = 1 << 20;

/// As `struct isthmus_space_shape`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CShape {
    slots: u32,
    locks: u32,
    log_bytes: u32,
}

/// Where to put the bytes of a read item.
#[derive(Debug)]
struct Into {
    read: Read,
    at: *mut u8,
    len: usize,
}

/// A minitransaction, as C holds it.
#[derive(Debug)]
pub struct Transaction {
    space: Space,
    items: Mutex<(Minitransaction, Vec<Into>)>,
}

/// A word that was found once, and its space.
#[derive(Debug)]
pub struct Word {
    space: Space,
    place: Place,
}

const COMMITTED: c_int = 0;
const COMPARE_FAILED: c_int = 1;
const LOCK_FAILED: c_int = 2;

/// A log's length is a multiple of this.
const LINE: u32 = 64;

/// Opens or makes a space.
///
/// # Safety
/// `here` is null or an attachment; `called` is null or a string; `shape` is null or good for reading; `space` is null or
/// good for writing a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_space_open(
    here: *const Handle<Attachment>,
    called: *const c_char,
    mode: c_uint,
    shape: *const CShape,
    space: *mut *mut Handle<Space>,
) -> c_int {
    let body = |attached: &Attachment| {
        let usual = Shape::default();
        let given = |value: u32, usual: u32| if value == 0 { usual } else { value };
        // SAFETY: by this function's contract, `shape` is null or a shape, which no thread writes during the call.
        let shape = unsafe { object(shape) }.map_or(usual, |s| Shape {
            slots: given(s.slots, usual.slots),
            locks: given(s.locks, usual.locks),
            // The sum that the header names is rounded up here, before anybody compares it: all processes agree, and a shape that is too
            // large stays so.
            log_bytes: given(s.log_bytes, usual.log_bytes).checked_next_multiple_of(LINE).unwrap_or(u32::MAX),
        });
        // SAFETY: by this function's contract, `called` is null or a string that ends in a zero.
        let opened = unsafe { name(attached, called, mode) }?.space(shape)?;
        // SAFETY: by this function's contract, `space` is null or a place for a pointer.
        unsafe { hand_over(space, opened) }
    };
    // SAFETY: by this function's contract, `here` is null or an open handle.
    unsafe { Handle::run(here, body) }
}

/// Adds a segment.
///
/// # Safety
/// `space` and `segment` are null, or were not closed; `id` is null or good for writing a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_space_add(
    space: *const Handle<Space>,
    segment: *const Handle<Segment>,
    id: *mut u32,
) -> c_int {
    let body = |space: &Space| {
        // SAFETY: by this function's contract, `segment` is null or an open handle.
        let segment = unsafe { object(segment) }.ok_or_else(|| Failure::invalid("the segment is NULL"))?;
        let number = space.add(segment.object())?;
        // SAFETY: by this function's contract, `id` is null or a place for a number.
        let there = unsafe { put(id, number.0) };
        if there { Ok(()) } else { Err(Failure::invalid("there is no place for the number")) }
    };
    // SAFETY: by this function's contract, `space` is null or an open handle.
    unsafe { Handle::run(space, body) }
}

/// Closes a space.
///
/// # Safety
/// `space` is null, or came from `isthmus_space_open` and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_space_close(space: *mut Handle<Space>) {
    // SAFETY: by this function's contract, `space` is null or an open handle, and this call is its last use.
    unsafe { Handle::close(space) };
}

/// Removes a space's name.
///
/// # Safety
/// `here` is null or an attachment; `called` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_space_unlink(
    here: *const Handle<Attachment>,
    called: *const c_char,
) -> c_int {
    // SAFETY: by this function's contract, `here` is null or an open handle, `called` null or a string that ends in a zero.
    unsafe { unlink(here, Kind::Space, called) }
}

/// An empty minitransaction.
///
/// # Safety
/// `space` is null, or was not closed; `transaction` is null or good for writing a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_transaction_new(
    space: *const Handle<Space>,
    transaction: *mut *mut Handle<Transaction>,
) -> c_int {
    let body = |space: &Space| {
        let items = Mutex::new((Minitransaction::new(), Vec::new()));
        // SAFETY: by this function's contract, `transaction` is null or a place for a pointer.
        unsafe { hand_over(transaction, Transaction { space: space.clone(), items }) }
    };
    // SAFETY: by this function's contract, `space` is null or an open handle.
    unsafe { Handle::run(space, body) }
}

/// Runs `body` on a minitransaction's items.
///
/// # Safety
/// As [`Handle::run`].
unsafe fn with(
    transaction: *const Handle<Transaction>,
    body: impl FnOnce(&Space, &mut Minitransaction, &mut Vec<Into>) -> Result<(), Failure>,
) -> c_int {
    let body = |transaction: &Transaction| {
        let mut items = transaction.items.lock().unwrap_or_else(PoisonError::into_inner);
        let (items, reads) = &mut *items;
        body(&transaction.space, items, reads)
    };
    // SAFETY: by this function's contract, `transaction` is null or an open handle.
    unsafe { Handle::run_fast(transaction, body) }
}

/// Removes all items.
///
/// # Safety
/// `transaction` is null, or was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_transaction_clear(transaction: *mut Handle<Transaction>) -> c_int {
    let body = |_: &Space, items: &mut Minitransaction, reads: &mut Vec<Into>| {
        items.clear();
        reads.clear();
        Ok(())
    };
    // SAFETY: by this function's contract, `transaction` is null or an open handle.
    unsafe { with(transaction, body) }
}

/// Adds a read item.
///
/// # Safety
/// `transaction` is null, or was not freed; `into` is null or good for writing `len` bytes until the last commit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_transaction_read(
    transaction: *mut Handle<Transaction>,
    node: u32,
    segment: u32,
    offset: u64,
    into: *mut c_void,
    len: usize,
) -> c_int {
    let body = |_: &Space, items: &mut Minitransaction, reads: &mut Vec<Into>| {
        if into.is_null() || len > MOST_BYTES {
            return Err(Failure::invalid(
                "there is no place for the bytes, or they are more than any item has",
            ));
        }
        let read = items.read(Node(node), SegmentId(segment), offset, len);
        reads.push(Into { read, at: into.cast(), len });
        Ok(())
    };
    // SAFETY: by this function's contract, `transaction` is null or an open handle.
    unsafe { with(transaction, body) }
}

/// The bytes of an item that C gave.
///
/// # Safety
/// `bytes` is null or good for reading `len` bytes.
unsafe fn item<'a>(bytes: *const c_void, len: usize) -> Result<&'a [u8], Failure> {
    // SAFETY: by this function's contract, `bytes` is null or `len` bytes, which no thread writes while they are in use.
    unsafe { slice(bytes.cast::<u8>(), len, MOST_BYTES) }
        .ok_or_else(|| Failure::invalid("the bytes are NULL, or more than any item has"))
}

/// Adds a compare item.
///
/// # Safety
/// `transaction` is null, or was not freed; `bytes` is null or good for reading `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_transaction_compare(
    transaction: *mut Handle<Transaction>,
    node: u32,
    segment: u32,
    offset: u64,
    bytes: *const c_void,
    len: usize,
) -> c_int {
    let body = |_: &Space, items: &mut Minitransaction, _: &mut Vec<Into>| {
        // SAFETY: by this function's contract, `bytes` is null or `len` bytes, which no thread writes during the call.
        items.compare(Node(node), SegmentId(segment), offset, unsafe { item(bytes, len) }?);
        Ok(())
    };
    // SAFETY: by this function's contract, `transaction` is null or an open handle.
    unsafe { with(transaction, body) }
}

/// Adds a write item.
///
/// # Safety
/// `transaction` is null, or was not freed; `bytes` is null or good for reading `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_transaction_write(
    transaction: *mut Handle<Transaction>,
    node: u32,
    segment: u32,
    offset: u64,
    bytes: *const c_void,
    len: usize,
) -> c_int {
    let body = |_: &Space, items: &mut Minitransaction, _: &mut Vec<Into>| {
        // SAFETY: by this function's contract, `bytes` is null or `len` bytes, which no thread writes during the call.
        items.write(Node(node), SegmentId(segment), offset, unsafe { item(bytes, len) }?);
        Ok(())
    };
    // SAFETY: by this function's contract, `transaction` is null or an open handle.
    unsafe { with(transaction, body) }
}

/// Commits.
///
/// # Safety
/// `transaction` is null, or was not freed; places of its read items are good for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_transaction_commit(transaction: *mut Handle<Transaction>) -> c_int {
    let mut outcome = 0;
    let body = |space: &Space, items: &mut Minitransaction, reads: &mut Vec<Into>| {
        outcome = match space.commit(items)? {
            Outcome::Committed => COMMITTED,
            Outcome::CompareFailed => COMPARE_FAILED,
            Outcome::LockFailed => LOCK_FAILED,
        };
        for into in reads.iter() {
            if let Some(bytes) = items.bytes(into.read) {
                let len = bytes.len().min(into.len);
                // SAFETY: by the contract of `isthmus_transaction_read`, which checked it for null, `into.at` has room for
                // `into.len` bytes until the last commit; the bytes of an item are our own memory.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), into.at, len) };
            }
        }
        Ok(())
    };
    // SAFETY: by this function's contract, `transaction` is null or an open handle.
    match unsafe { with(transaction, body) } {
        0 => outcome,
        failed => failed,
    }
}

/// Frees a minitransaction.
///
/// # Safety
/// `transaction` is null, or came from `isthmus_transaction_new` and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_transaction_free(transaction: *mut Handle<Transaction>) {
    // SAFETY: by this function's contract, `transaction` is null or an open handle, and this call is its last use.
    unsafe { Handle::close(transaction) };
}

/// Finds a word.
///
/// # Safety
/// `space` is null, or was not closed; `word` is null or good for writing a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_word_find(
    space: *const Handle<Space>,
    node: u32,
    segment: u32,
    offset: u64,
    word: *mut *mut Handle<Word>,
) -> c_int {
    let body = |space: &Space| {
        let place = space.place(Node(node), SegmentId(segment), offset)?;
        // SAFETY: by this function's contract, `word` is null or a place for a pointer.
        unsafe { hand_over(word, Word { space: space.clone(), place }) }
    };
    // SAFETY: by this function's contract, `space` is null or an open handle.
    unsafe { Handle::run(space, body) }
}

/// Reads a word.
///
/// # Safety
/// `word` is null, or was not freed; `value` is null or good for writing a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_word_load(word: *const Handle<Word>, value: *mut u64) -> c_int {
    let mut outcome = COMMITTED;
    let body = |word: &Word| {
        if value.is_null() {
            return Err(Failure::invalid("there is no place for the value"));
        }
        match word.space.load(&word.place)? {
            Some(found) => {
                // SAFETY: checked for null; by this function's contract, `value` is a place for a number.
                unsafe { put(value, found) };
            }
            None => outcome = LOCK_FAILED,
        }
        Ok(())
    };
    // SAFETY: by this function's contract, `word` is null or an open handle.
    match unsafe { Handle::run_fast(word, body) } {
        0 => outcome,
        failed => failed,
    }
}

/// Changes a word.
///
/// # Safety
/// `word` is null, or was not freed; `old` is null or good for reading and writing a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_word_exchange(word: *mut Handle<Word>, old: *mut u64, value: u64) -> c_int {
    let mut outcome = COMMITTED;
    let body = |word: &Word| {
        // SAFETY: by this function's contract, `old` is null or a number, which no other thread writes during the call.
        let expected = *unsafe { object(old) }.ok_or_else(|| Failure::invalid("the old value is NULL"))?;
        match word.space.exchange(&word.place, expected, value)? {
            Exchange::Committed => {}
            Exchange::CompareFailed(found) => {
                outcome = COMPARE_FAILED;
                // SAFETY: by this function's contract, `old` is a place for a number, and the reference to it is not
                // used any more.
                unsafe { put(old, found) };
            }
            Exchange::LockFailed => outcome = LOCK_FAILED,
        }
        Ok(())
    };
    // SAFETY: by this function's contract, `word` is null or an open handle.
    match unsafe { Handle::run_fast(word, body) } {
        0 => outcome,
        failed => failed,
    }
}

/// Frees a word.
///
/// # Safety
/// `word` is null, or came from `isthmus_word_find` and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isthmus_word_free(word: *mut Handle<Word>) {
    // SAFETY: by this function's contract, `word` is null or an open handle, and this call is its last use.
    unsafe { Handle::close(word) };
}
