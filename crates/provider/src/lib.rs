//! libisthmus-fi.so: the libfabric provider.
//!
//! The entry, and what the objects need:
//! - `entry`: `fi_prov_ini`; `core`: the libfabric that called it, its log and parameters.
//! - `info`: `fi_getinfo`; `attachment`: this process's attachment to the local service.
//! - `names`: nodes and services.
//! - `object`: what all objects have in common; `lock`: a lock that is left out where the program keeps threads apart;
//!   `errno`: our errors as libfabric's; `bufs`: the program's buffers; `unsupported`: operations that we do not have;
//!   `wait`: what happens while there is nothing to read.
//!
//! One module for each of libfabric's objects and operations, named like its manual page: `fabric`, `domain`, `av`,
//! `cq`, `cntr`, `eq`, `mr`, `ep` (with `post`, `progress`, `completion`, `close`), `msg`, `tagged`, `rma`, `atomic`.
//! `memory` is memory of the region that a program uses itself, `heap` what malloc(3) takes of it (`libisthmus-alloc.so`), `arithmetic` what atomics do at the target, and `probe`
//! has functions for benchmarks.
//!
//! The data path is `msg` or `tagged`, `ep::post`, [`isthmus_transport::Endpoint`], and back through `ep::completion` and
//! `cq`: no allocation, no system call, no log, and under `FI_THREAD_DOMAIN` no lock.

// libfabric decides how many arguments its calls have.
#![allow(clippy::too_many_arguments)]

mod arithmetic;
mod atomic;
mod attachment;
mod av;
mod bufs;
mod cntr;
mod core;
mod cq;
mod domain;
mod entry;
mod ep;
mod eq;
mod errno;
mod fabric;
mod heap;
mod info;
mod lock;
mod memory;
mod mr;
mod msg;
mod names;
mod object;
mod probe;
mod rma;
mod tagged;
mod unsupported;
mod wait;
mod windows;
