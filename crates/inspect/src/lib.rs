//! Looking at a region from outside: who is there, what goes through it, what is wrong with it.
//!
//! - [`target`]: which region: a service that is found or named, a descriptor, a dump.
//! - [`model`]: what a look at a region gives, as plain data.
//! - [`survey`]: the look itself; [`fault`]: what it found to be wrong; [`claims`]: which bytes belong to whom.
//! - [`check`]: looks until what is wrong is told from what is only changing.
//! - [`ps`], [`top`], [`explain`], [`dump`]: what people and programs are shown.
//! - [`openmetrics`], [`http`]: the same for Prometheus.
//!
//! Nothing that is read is trusted: the region may have been written by anybody, and a dump may be any file. Every
//! number is read once, compared with what it may be, and only then used; every walk is bounded by the bytes there are.

#![forbid(unsafe_code)]

pub mod check;
pub mod claims;
pub mod dump;
pub mod error;
pub mod explain;
pub mod fault;
pub mod http;
pub mod model;
pub mod openmetrics;
pub mod ps;
pub mod survey;
pub mod table;
pub mod target;
pub mod top;

pub use error::{Error, Result};
