//! Benchmarks: subjects and peers side by side, placement, JSON records, report.
//!
//! A figure means something only beside another one of the same minute and the same processors. So every
//! benchmark here runs its *subjects* (isthmus, TCP, the MPI's own shared memory) in turn, in rounds, and
//! compares round by round; and each names the way that its bytes went from what counters say, never from
//! what was asked for.
//!
//! Nor do figures mean anything without the place where they were measured: a virtual machine's host moves its processors
//! between cores that share a cache and cores that share none. Each block has a bare cache line before and after it, and its round counts for the placement that both
//! tell, *near* or *far* ([`placement`]). A promise holds, or is short, where the whole 95 % interval of the median of its rounds'
//! ratios ([`stats::interval`]) is on one side of its bound, and is undecided otherwise ([`promise::Verdict`]).
//!
//! With `--json` every benchmark writes one array of [`Record`]s, whose keys are that struct's fields. What is promised of a record
//! stands in its `promise`; a promise without a measurement is a record of the benchmark `promise` with a `value` of null.
//!
//! | Module | Holds |
//! |---|---|
//! | [`cli`] | the arguments of `isthmus bench`, and its exit status |
//! | [`mpi`] | `bench mpi`, `matching`, `collectives`: rounds of subjects, and what is made of them |
//! | [`subject`] | which subjects there are for an MPI, and how each is launched |
//! | [`program`] | the MPI program in `programs/`: compiled, and its output read |
//! | [`job`] | one launch: started, watched, ended |
//! | [`path`] | which way the bytes went |
//! | [`objects`] | `bench barrier`, `counter`, `ivc`, `wait`, `sysv`: what programs use, and what they use today |
//! | [`rank`] | what the processes of the first three do |
//! | [`waits`] | `bench wait`: what sleeps for completions, of the provider itself |
//! | [`sysv`] | `bench sysv`: System V IPC of a region beside the kernel's |
//! | [`doorbell`] | `bench doorbell`: what it takes to wake a process that sleeps |
//! | [`onecopy`] | `bench onecopy`: long messages in one copy beside two, from buffers that come back and that do not |
//! | [`fluid`] | `bench sph`: the fluid simulator of the examples |
//! | [`placement`] | where the processors were: rounds sorted by a bare cache line beside each block, and how long they are waited for |
//! | [`promise`] | what is promised of a figure, and what became of it |
//! | [`peers`], [`memory`] | `bench peers`: what is promised beside what was measured; what ranks take of a region |
//! | [`record`], [`table`], [`show`] | what is written: JSON, the table for people, and what stands around it |
//! | [`page`], [`chart`] | `--report`: one HTML file with curves |
//! | [`stats`] | medians, ratios, and the intervals that these lie in |

#![deny(unsafe_code)]

#[cfg(test)]
mod bounds;
pub mod chart;
pub mod cli;
pub mod doorbell;
pub mod error;
pub mod fluid;
pub mod job;
pub mod lane;
pub mod memory;
pub mod modes;
pub mod mpi;
pub mod objects;
pub mod onecopy;
pub mod page;
pub mod path;
pub mod peers;
pub mod placement;
pub mod program;
pub mod promise;
pub mod rank;
pub mod record;
pub mod show;
pub mod stats;
pub mod subject;
pub mod sysv;
pub mod table;
pub mod turns;
pub mod waits;

pub use error::{Error, Result};
pub use record::Record;
