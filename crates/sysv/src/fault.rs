//! Steps at which tests stop a process for ever, to see what the others find.
//!
//! A step is a place at which an operation has just changed something; each of `sem`, `msg` and `shm` has its own. In a build with
//! the feature `fault`, a thread that has called `arm` with a step calls the given function when it comes there. In every other
//! build a step is no code at all.

/// Functions of a module whose steps are `Step`.
macro_rules! steps {
    () => {
        #[cfg(not(feature = "fault"))]
        #[inline(always)] // nothing
        pub(crate) fn step(_: Step) {}

        #[cfg(feature = "fault")]
        pub(crate) use armed::step;
        #[cfg(feature = "fault")]
        pub use armed::{arm, disarm};

        #[cfg(feature = "fault")]
        mod armed {
            use std::cell::Cell;

            use super::Step;

            /// A step, how many times to pass it, and the function to call there.
            type Armed = (Step, u32, fn(Step));

            thread_local! {
                static ARMED: Cell<Option<Armed>> = const { Cell::new(None) };
            }

            pub(crate) fn step(here: Step) {
                match ARMED.get() {
                    Some((at, 0, stop)) if at == here => {
                        ARMED.set(None);
                        stop(here);
                    }
                    Some((at, more, stop)) if at == here => ARMED.set(Some((at, more - 1, stop))),
                    _ => {}
                }
            }

            /// Makes this thread call `stop` when it comes to `at`, after it has passed it `passes` times.
            pub fn arm(at: Step, passes: u32, stop: fn(Step)) {
                ARMED.set(Some((at, passes, stop)));
            }

            /// Takes that back; returns whether it was still to come.
            pub fn disarm() -> bool {
                ARMED.take().is_some()
            }
        }
    };
}

pub(crate) use steps;
