//! Error numbers and texts.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};

use isthmus::Error;
use isthmus_cabi::{Poison, guard, keep_quiet};

pub(crate) const EINVAL: c_int = -1;
pub(crate) const ENOSERVICE: c_int = -2;
pub(crate) const ENOTFOUND: c_int = -3;
pub(crate) const EEXIST: c_int = -4;
pub(crate) const EACCESS: c_int = -5;
pub(crate) const EFULL: c_int = -6;
pub(crate) const EREGION: c_int = -7;
pub(crate) const EFAULT: c_int = -8;
pub(crate) const ETIMEDOUT: c_int = -9;
pub(crate) const EBUSY: c_int = -10;
pub(crate) const EBROKEN: c_int = -11;
pub(crate) const EDEADLOCK: c_int = -12;
pub(crate) const ENOTOWNER: c_int = -13;
pub(crate) const ELOST: c_int = -14;
pub(crate) const EOWNERDIED: c_int = -15;
pub(crate) const EOVERFLOW: c_int = -16;
pub(crate) const EREFUSED: c_int = -17;
pub(crate) const EEND: c_int = -18;
pub(crate) const ECLOSED: c_int = -19;
pub(crate) const EPEERDIED: c_int = -20;
pub(crate) const EFAULTY: c_int = -21;
pub(crate) const ESUSPENDED: c_int = -22;
pub(crate) const ENOTREACHABLE: c_int = -23;

/// An error number and its text.
#[derive(Debug)]
pub(crate) struct Failure {
    number: c_int,
    text: String,
}

impl Failure {
    pub(crate) fn invalid(text: &str) -> Self {
        Self { number: EINVAL, text: text.into() }
    }

    pub(crate) fn new(number: c_int, text: impl Into<String>) -> Self {
        Self { number, text: text.into() }
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(e) = cause {
        text = format!("{text}: {e}");
        cause = e.source();
    }
    text
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        let number = match &e {
            Error::Attach(_) => ENOSERVICE,
            Error::NotFound(_) => ENOTFOUND,
            Error::Exists(_) => EEXIST,
            Error::Denied(_) | Error::ReadOnly { .. } => EACCESS,
            Error::Full(_) => EFULL,
            Error::Invalid(_) | Error::OutOfBounds { .. } => EINVAL,
            Error::Service(_) => ENOSERVICE,
            Error::Sync(e) => of_sync(e),
            Error::Ivc(e) => of_ivc(e),
            Error::Transaction(e) => of_transaction(e),
            Error::Region(_) => EREGION,
        };
        Self { number, text: with_causes(&e) }
    }
}

fn of_sync(e: &isthmus::sync::Error) -> c_int {
    use isthmus::sync::Error;
    match e {
        Error::Memory { .. } | Error::Corrupt { .. } => EREGION,
        Error::BadParameter { .. } => EINVAL,
        Error::Mismatch { .. } => EEXIST,
        Error::Full { .. } => EFULL,
        Error::Broken { .. } => EBROKEN,
        Error::InUse { .. } | Error::WouldBlock => EBUSY,
        Error::TimedOut => ETIMEDOUT,
        Error::Deadlock => EDEADLOCK,
        Error::NotOwner => ENOTOWNER,
        Error::OwnerDied => EOWNERDIED,
        Error::NotRecoverable => ELOST,
        Error::Overflow { .. } => EOVERFLOW,
    }
}

fn of_transaction(e: &isthmus::sync::minitransaction::Error) -> c_int {
    use isthmus::sync::minitransaction::Error;
    match e {
        Error::NotReachable { .. } => ENOTREACHABLE,
        Error::NoSegment { .. } => ENOTFOUND,
        Error::Registered { .. } | Error::OtherShape { .. } => EEXIST,
        Error::OutOfBounds { .. }
        | Error::BadSegment { .. }
        | Error::TooLarge { .. }
        | Error::BadShape { .. } => EINVAL,
        Error::NoSlot { .. } => EFULL,
        Error::TooSmall { .. } | Error::Corrupt { .. } | Error::Region(_) => EREGION,
    }
}

impl From<isthmus::sync::minitransaction::Error> for Failure {
    fn from(e: isthmus::sync::minitransaction::Error) -> Self {
        Error::from(e).into()
    }
}

fn of_ivc(e: &isthmus::ivc::Error) -> c_int {
    use isthmus::ivc::Error;
    match e {
        Error::Region { source: isthmus::RegionError::Full { .. }, .. } => EFULL,
        Error::Region { source: isthmus::RegionError::Service { .. }, .. } => ENOSERVICE,
        Error::Region { .. } | Error::System { .. } => EREGION,
        Error::Invalid { .. } | Error::Oneself => EINVAL,
        Error::NoPeer { .. } | Error::LoanOver { .. } => ENOTFOUND,
        Error::Refused { .. } => EREFUSED,
        Error::TimedOut { .. } => ETIMEDOUT,
        Error::End { .. } => EEND,
        Error::Closed { .. } => ECLOSED,
        Error::PeerDied { .. } => EPEERDIED,
        Error::Faulty { .. } => EFAULTY,
        Error::Suspended { .. } => ESUSPENDED,
    }
}

impl From<isthmus::ivc::Error> for Failure {
    fn from(e: isthmus::ivc::Error) -> Self {
        Error::from(e).into()
    }
}

impl From<isthmus::sync::Error> for Failure {
    fn from(e: isthmus::sync::Error) -> Self {
        Error::from(e).into()
    }
}

/// The failure of a call inside this one: its number, with the text that it left.
pub(crate) fn given(number: c_int) -> Result<(), Failure> {
    if number == 0 {
        return Ok(());
    }
    let text = LAST.try_with(|last| last.borrow().to_string_lossy().into_owned());
    Err(Failure { number, text: text.unwrap_or_default() })
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Keeps the text for `isthmus_error`, and returns the number.
pub(crate) fn fail(failure: Failure) -> c_int {
    let text = CString::new(failure.text.replace('\0', " ")).unwrap_or_default();
    // A thread that is ending cannot ask for it any more.
    let _ = LAST.try_with(|last| *last.borrow_mut() = text);
    failure.number
}

/// Runs a call's body and turns its outcome into a number.
pub(crate) fn answer(poison: &Poison, body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    keep_quiet();
    if poison.is_set() {
        return fail(Failure::new(EFAULT, "an earlier call on this object failed inside the library"));
    }
    let told = std::cell::Cell::new(false);
    let report = |said: &str| {
        told.set(true);
        fail(Failure::new(EFAULT, format!("an internal error of the isthmus library: {said}")));
    };
    match guard(poison, None, report, || Some(body())) {
        Some(Ok(())) => 0,
        Some(Err(failure)) => fail(failure),
        None if told.get() => EFAULT,
        // Another thread reported the panic on this object.
        None => fail(Failure::new(EFAULT, "an internal error of the isthmus library")),
    }
}

/// What a number means.
#[unsafe(no_mangle)]
pub extern "C" fn isthmus_strerror(error: c_int) -> *const c_char {
    let text: &CStr = match error {
        0 => c"success",
        EINVAL => c"an argument is not valid",
        ENOSERVICE => c"no isthmus service, or it refuses this process or has ended",
        ENOTFOUND => c"no object of that kind and name",
        EEXIST => c"such an object exists already, or with other parameters",
        EACCESS => c"the object's mode or owner does not allow it to this user",
        EFULL => c"no memory, no entry in a table, or no quota is left",
        EREGION => c"what lies in the region is not valid",
        EFAULT => c"an internal error of the isthmus library",
        ETIMEDOUT => c"the time ran out",
        EBUSY => c"not possible without waiting",
        EBROKEN => c"a participant of the barrier died or left in the middle of a round",
        EDEADLOCK => c"this thread owns the lock already",
        ENOTOWNER => c"this thread does not own the lock",
        ELOST => c"an owner died, and what the lock protects was not mended",
        EOWNERDIED => c"a writer died, and what the lock protects was not mended yet",
        EREFUSED => c"the member accepts no connections, or too many wait to be accepted",
        EEND => c"end of the stream",
        ECLOSED => c"the channel is closed in this direction",
        EPEERDIED => c"the process at the other end died without closing",
        EFAULTY => c"the other end broke the protocol",
        ESUSPENDED => c"the channel is suspended",
        ENOTREACHABLE => c"the memory node is on a host that this process cannot reach",
        EOVERFLOW => c"the semaphore would exceed its largest value",
        _ => c"not an error number of isthmus",
    };
    text.as_ptr()
}

/// The text of this thread's last failure.
#[unsafe(no_mangle)]
pub extern "C" fn isthmus_error() -> *const c_char {
    // Only this thread's next failure replaces it, so C may read it until then.
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_number_and_a_text() {
        let poison = Poison::new();
        assert_eq!(answer(&poison, || panic!("ouch")), EFAULT);
        // SAFETY: a text that ends in a zero, of this thread.
        let said = unsafe { CStr::from_ptr(isthmus_error()) }.to_str().unwrap().to_owned();
        assert!(said.contains("ouch"), "{said}");
        assert_eq!(answer(&poison, || Ok(())), EFAULT, "and no further call is let in");
    }
}
