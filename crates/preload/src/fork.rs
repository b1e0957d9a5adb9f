//! fork(2): a child inherits the segments that its parent has attached, and nothing else of the region.
//!
//! The parent's fork returns once the child has attached for itself, and has told the service what it inherited: from then on they are
//! counted twice, as the kernel counts them. The child says so by closing its end of a pipe, which its death does, too; so nothing
//! has to be taken back from a child that never came that far. While the parent waits it has its segments attached, so none of them
//! can go; if it is killed in its wait, the child finds out by asking whether they are still there.
//!
//! A program that forks may have as many descriptors as it may. So two are kept for the pipe; the child closes them, or the end of the pipe
//! that it has no use for, and its parent's connection, before it attaches, for which it needs two at a time.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Once;
use std::time::{Duration, Instant};

use isthmus_cabi::Poison;
use isthmus_region::signals::Uncancelled;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pipe::PipeFlags;

use crate::here::{self, About, Locked};
use crate::{credentials, sem, shm, sleep};

/// How long a parent waits for its child, which has as long to reach its service.
const PATIENCE: Duration = Duration::from_secs(10);

struct Fork {
    /// With it all signals are blocked, so no handler comes between.
    state: Locked,
    ends: Option<(OwnedFd, OwnedFd)>,
}

thread_local! {
    // Without a destructor: exit(3) runs those before handlers that may fork.
    static FORK: RefCell<ManuallyDrop<Option<Fork>>> = const { RefCell::new(ManuallyDrop::new(None)) };
}

/// Has the functions here called at each fork. Called when this library is loaded, and so before the program watches forks: `before`
/// comes last, since the program's own handlers may make calls, and `in_child` first, since they may use what is inherited. (Libraries
/// that the program is linked to come before a library that is loaded by LD_PRELOAD.)
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // The allocator's, which are to have its memory in the child before anything is mapped there, and whose lock comes behind the
        // one here. Which of the two libraries is loaded first is up to the order of their names.
        // SAFETY: a name that ends with a zero.
        let start = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"isthmus_alloc_start".as_ptr()) };
        if !start.is_null() {
            // SAFETY: that name is a function of ours, without arguments.
            let start: extern "C" fn() =
                unsafe { std::mem::transmute::<*mut libc::c_void, extern "C" fn()>(start) };
            start();
        }
        // SAFETY: three functions that stay, since this library is never unloaded.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}

extern "C" fn start() {
    crate::keep_quiet();
    crate::msg::find_own();
    watch();
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// Runs the body of a handler, whose panic the C library could not carry on. One that has panicked does not keep others from giving
/// back what they have.
fn guarded(body: impl FnOnce()) {
    let _uncancelled = Uncancelled::new();
    crate::keep_quiet();
    let report = |said: &str| here::say(About::Fault, &format!("a fork failed inside the library: {said}"));
    isthmus_cabi::guard(&Poison::new(), (), report, body);
}

extern "C" fn before() {
    guarded(prepare);
}

extern "C" fn in_parent() {
    guarded(wait_for_child);
}

extern "C" fn in_child() {
    sleep::count_fork();
    here::forget();
    credentials::forget();
    guarded(inherit);
}

fn take() -> Option<Fork> {
    FORK.with(|fork| fork.borrow_mut().take())
}

fn prepare() {
    let mut state = here::lock();
    let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC).ok();
    let ends = state.as_mut().filter(|state| !state.mapped.is_empty()).and_then(|state| {
        pipe().or_else(|| {
            state.give_spare();
            pipe()
        })
    });
    FORK.with(|fork| *fork.borrow_mut() = ManuallyDrop::new(Some(Fork { state, ends })));
}

/// Keeps descriptors for the next fork.
fn keep_spare(state: &mut Locked) {
    if let Some(state) = state.as_mut().filter(|state| !state.mapped.is_empty()) {
        state.keep_spare();
    }
}

fn wait_for_child() {
    let Some(fork) = take() else { return };
    let Fork { mut state, ends } = fork;
    if let Some((read, write)) = ends {
        drop(write);
        wait_for_end(&read);
    }
    keep_spare(&mut state);
}

/// Waits until nobody has the other end any more. Nothing is ever written to that.
fn wait_for_end(read: &OwnedFd) {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).unwrap_or_default();
        let mut poll = [PollFd::from_borrowed_fd(read.as_fd(), PollFlags::IN)];
        match rustix::event::poll(&mut poll, Some(&left)) {
            Err(rustix::io::Errno::INTR) => {}
            _ => break,
        }
    }
}

fn inherit() {
    sem::forget();
    let Some(fork) = take() else { return };
    let Fork { mut state, ends } = fork;
    let write = ends.map(|(_read, write)| write);
    if let Some(state) = state.as_mut().filter(|s| !s.mapped.is_empty()) {
        state.give_spare();
        // Else the region itself could come to lie where the program has a segment.
        let kept = shm::reserve(state);
        match here::attach(state) {
            Ok(ipc) => shm::inherit(state, &kept, ipc),
            Err(_) => shm::lose_all(state),
        }
    }
    // The end is closed here, which lets the parent go on.
    drop(write);
    keep_spare(&mut state);
}
