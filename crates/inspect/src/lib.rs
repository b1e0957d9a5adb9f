//! Inspecting a region from outside: its members, its traffic, its faults.
//!
//! - [`target`]: which region: a service that is found or named, a descriptor, a dump.
//! - [`model`]: the outcome of a survey, as plain data.
//! - [`survey`]: one pass over a region; [`fault`]: what it found wrong; [`claims`]: which bytes belong to which structure.
//! - [`check`]: repeated surveys, which separate what is wrong from what is only changing.
//! - [`ps`], [`top`], [`explain`], [`ipcs`], [`dump`]: output for people and programs.
//! - [`openmetrics`], [`http`]: the same for Prometheus.
//!
//! Nothing that is read is trusted: any process may have written the region, and a dump may be any file. Every number is
//! read once, checked, and only then used; every walk is bounded by the size of the region.

#![forbid(unsafe_code)]

pub mod check;
pub mod claims;
pub mod dump;
pub mod error;
pub mod explain;
pub mod fault;
pub mod http;
pub mod ipcs;
pub mod model;
pub mod openmetrics;
pub mod ps;
pub mod survey;
pub mod table;
pub mod target;
pub mod top;

pub use error::{Error, Result};
