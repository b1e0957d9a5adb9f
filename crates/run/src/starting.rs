//! Ending a run whose VMs are still being started.
//!
//! The thread that starts VMs takes no events meanwhile: it may be downloading a kernel, and QEMU must be started from this
//! thread (see [`crate::leash`]). So the thread that receives a signal, or sees the time-out, ends the run in its place.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use crate::error::{Error, Result};
use crate::front::FromJob;
use crate::pass;

/// Shared by all threads that may end the run.
#[derive(Clone)]
pub(crate) struct Starting(Arc<Mutex<State>>);

struct State {
    front: UnixStream,
    guardian: UnixStream,
    busy: bool,
}

impl Starting {
    /// From now on the run is being made ready.
    pub(crate) fn new(front: UnixStream, guardian: UnixStream) -> Self {
        Self(Arc::new(Mutex::new(State { front, guardian, busy: true })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does `work`, the first thing that the run does. If [`Self::end`] is called meanwhile, or `deadline` passes, which ends the run with `late`, this never
    /// returns.
    pub(crate) fn busy<T>(
        &self,
        deadline: Option<Instant>,
        late: impl FnOnce() -> Error + Send + 'static,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        if let Some(deadline) = deadline {
            let other = self.clone();
            thread::Builder::new()
                .name("deadline".into())
                .spawn(move || {
                    thread::sleep(deadline.saturating_duration_since(Instant::now()));
                    other.end(&late());
                })
                .map_err(|e| Error::io("cannot start a thread", e))?;
        }
        let done = work();
        // Waits for ever if the run was ended meanwhile: `end` holds the lock.
        self.state().busy = false;
        done
    }

    /// Ends the run with `error`, and does not return, if it is still being made ready.
    pub(crate) fn end(&self, error: &Error) {
        let state = self.state();
        if !state.busy {
            return;
        }
        isthmus_vm::kernel::abandon();
        let done = FromJob::Done { code: error.exit_code(), line: Some(error.line()) };
        let _ = pass::send(&state.front, &done, &[]);
        // As at every end of a job, the guardian ends all processes, this one last. The lock is not released.
        let _ = state.guardian.shutdown(Shutdown::Write);
        loop {
            thread::park();
        }
    }
}
