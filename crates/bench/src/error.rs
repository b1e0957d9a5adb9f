//! What can go wrong in a benchmark.

use std::io;
use std::path::PathBuf;

/// The result of anything in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a benchmark. Its text names the cause and, where there is one, the remedy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line made no sense.
    #[error("{0}")]
    Usage(String),
    /// A signal asked for the end.
    #[error("ended by signal {signal}")]
    Interrupted {
        /// The signal.
        signal: i32,
    },
    /// No MPI to measure with.
    #[error("no MPI to measure with")]
    Mpi(#[source] isthmus_run::Error),
    /// The two processes of `bench lane` could not do their part.
    #[error("bench lane: cannot {what}")]
    Lane {
        /// What failed, and why.
        what: String,
    },
    /// A process of `bench barrier`, `counter` or `ivc` could not do its part.
    #[error("cannot {what}")]
    Rank {
        /// What failed, and why.
        what: String,
    },
    /// What the ranks take of a region could not be seen.
    #[error("memory of the ranks: cannot {what}")]
    Memory {
        /// What failed, and why.
        what: String,
    },
    /// Something that was asked for has no figure, or fewer rounds than it should.
    #[error("not all could be measured; the table says what, and why")]
    Incomplete,
    /// Curves could not be drawn.
    #[error("cannot draw the curves: {what}")]
    Chart {
        /// Why.
        what: String,
    },
    /// No place for the compiled program.
    #[error("no place for the compiled benchmark")]
    Cache(#[source] isthmus_vm::Error),
    /// The MPI has no compiler wrapper, or it failed.
    #[error("{} did not compile the benchmark program{}", .compiler.display(), after_colon(.said))]
    Compile {
        /// The compiler wrapper.
        compiler: PathBuf,
        /// The end of what it printed.
        said: String,
    },
    /// A launch ended badly.
    #[error("the launch of {subject} {how}{}\nthe line was: {line}", after_colon(.said))]
    Job {
        /// Whose launch it was.
        subject: String,
        /// The command line.
        line: String,
        /// What became of it.
        how: String,
        /// The end of what it printed on standard error.
        said: String,
    },
    /// A launch ended well, but what it printed is not what the program prints.
    #[error("{subject}: the benchmark program's output is not complete: {what}")]
    Output {
        /// Whose launch it was.
        subject: String,
        /// What is wrong with it.
        what: String,
    },
    /// A file or process could not be dealt with.
    #[error("cannot {what}")]
    Io {
        /// What was attempted.
        what: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// Why no more is measured, where `rounds` launches went well before: these are kept.
    ///
    /// # Errors
    /// This one where none did, and where a signal asked for the end.
    pub fn after(self, rounds: usize) -> Result<String> {
        match self {
            Self::Interrupted { .. } => Err(self),
            _ if rounds == 0 => Err(self),
            _ => Ok(format!("launch {} failed, and was the last: {}", rounds + 1, self.chain())),
        }
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    /// The text with all its causes, in one line or, where a program's output belongs to it, a few.
    pub fn chain(&self) -> String {
        isthmus_region::error::with_causes(self)
    }
}

fn after_colon(said: &str) -> String {
    if said.trim().is_empty() { String::new() } else { format!(":\n{}", said.trim_end()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_failure_after_something_went_well_is_outlived() {
        let bad = || Error::Output { subject: "isthmus".into(), what: "nothing".into() };
        assert!(matches!(bad().after(0), Err(Error::Output { .. })));
        let why = bad().after(2).unwrap();
        assert!(why.starts_with("launch 3 failed") && why.contains("nothing"), "{why}");
        assert!(matches!(Error::Interrupted { signal: 2 }.after(9), Err(Error::Interrupted { .. })));
    }
}
