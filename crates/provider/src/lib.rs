//! libisthmus-fi.so: the libfabric provider.
//!
//! The way in, and what surrounds the objects:
//! - `entry`: `fi_prov_ini`; `core`: the libfabric that called it, its log and parameters.
//! - `info`: `fi_getinfo`; `attachment`: this process's attachment to the local service.
//! - `names`: nodes and services.
//! - `object`: what all objects share; `lock`: a lock that is left out where threads are kept apart; `errno`: our errors
//!   as libfabric's; `bufs`: the caller's buffers; `unsupported`: operations that we do not have.
//!
//! One module for each of libfabric's objects and operations, named like its manual page: `fabric`, `domain`, `av`,
//! `cq`, `cntr`, `eq`, `mr`, `ep`, `msg`, `tagged`, `rma`, `atomic`. `memory` is what a program has of the region,
//! `arithmetic` is what atomics do at the target, and
//! `probe` what benchmarks ask: a line of the region, and this process's counters.
//!
//! The data path is `msg` or `tagged`, `ep`, [`isthmus_transport::Endpoint`] and back through `ep` and `cq`: no
//! allocation, no system call, no log, and under `FI_THREAD_DOMAIN` no lock.

// The posting calls of libfabric have as many arguments as they have.
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
