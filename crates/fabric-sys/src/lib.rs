//! libfabric's declarations, for a provider that is loaded by any of its versions.
//!
//! One module per public header, with libfabric's own names, which are those of the manual pages. Only what the provider
//! uses is declared. Nothing here is linked: a provider must not have an undefined symbol of libfabric (it would bind to
//! the oldest compatible version, or to none at all), so the few functions of the core that ours calls are types of
//! function pointers in [`prov`]. [`load`] is for tools that ask a libfabric what it offers.
//!
//! **Versions.** Structures that grew over time are declared at their newest size, 2.5, which is right for what we
//! allocate; what a caller allocated may be shorter, and each such field says since when it exists. Structures are
//! those of 64-bit Linux. `tests/layout.rs` compares sizes, offsets and constants with the installed headers.
#![allow(non_camel_case_types)]

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("these layouts were written down for 64-bit Linux only");

pub mod atomic;
pub mod cm;
pub mod domain;
pub mod endpoint;
pub mod eq;
pub mod errno;
pub mod fabric;
pub mod load;
pub mod prov;
pub mod rma;
pub mod tagged;

pub use atomic::*;
pub use cm::*;
pub use domain::*;
pub use endpoint::*;
pub use eq::*;
pub use errno::*;
pub use fabric::*;
pub use prov::*;
pub use rma::*;
pub use tagged::*;
