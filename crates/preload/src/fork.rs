//! fork(2): a child inherits the segments that its parent has attached, and nothing else of the region.
//!
//! The parent's fork returns once the child has attached for itself, and has told the service what it inherited: from then on they are
//! counted twice, as the kernel counts them. The child says so by closing its end of a pipe, which its death does, too; so nothing
//! has to be taken back from a child that never came that far. While the parent waits it has its segments attached, so none of them
//! can go; if it is killed in its wait, the child finds out by asking whether they are still there.

use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Once;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pipe::PipeFlags;

use crate::here::{self, Locked};
use crate::{credentials, shm};

/// How long a parent waits for its child, which has as long to reach its service.
const PATIENCE: Duration = Duration::from_secs(10);

struct Fork {
    /// With it all signals are blocked, so no handler comes between.
    state: Locked,
    ends: Option<(OwnedFd, OwnedFd)>,
}

thread_local! {
    static FORK: RefCell<Option<Fork>> = const { RefCell::new(None) };
}

/// Has the functions here called at each fork, once this process has something to inherit.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: three functions that stay, since this library is never unloaded.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}

extern "C" fn before() {
    let state = here::lock();
    let has_any = state.as_ref().is_some_and(|s| !s.mapped.is_empty());
    let ends = has_any.then(|| rustix::pipe::pipe_with(PipeFlags::CLOEXEC).ok()).flatten();
    FORK.with(|fork| *fork.borrow_mut() = Some(Fork { state, ends }));
}

extern "C" fn in_parent() {
    let Some(fork) = FORK.with(|fork| fork.borrow_mut().take()) else { return };
    let Fork { state: _state, ends } = fork;
    let Some((read, write)) = ends else { return };
    drop(write);
    let until = Instant::now() + PATIENCE;
    // Readable means closed: nothing is ever written.
    while Instant::now() < until {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).unwrap_or_default();
        let mut poll = [PollFd::from_borrowed_fd(read.as_fd(), PollFlags::IN)];
        match rustix::event::poll(&mut poll, Some(&left)) {
            Err(rustix::io::Errno::INTR) => {}
            _ => break,
        }
    }
}

extern "C" fn in_child() {
    here::forget();
    credentials::forget();
    let Some(mut fork) = FORK.with(|fork| fork.borrow_mut().take()) else { return };
    if let Some(state) = fork.state.as_mut().filter(|s| !s.mapped.is_empty()) {
        // Else the region itself could come to lie where the program has a segment.
        let kept = shm::reserve(state);
        match here::attach() {
            Ok(ipc) => shm::inherit(state, &kept, ipc),
            Err(_) => shm::lose_all(state),
        }
    }
    // The ends are closed here, which lets the parent go on.
    drop(fork.ends);
}
