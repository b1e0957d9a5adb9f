//! Synchronisation between the processes of a region, in VMs and on the host.
//!
//! Everything here lives in a piece of a shared section that all members may write: a `Section`, zeroed when it was made,
//! which whoever hands out names has given to all who opened the same name. Nothing in it is believed without a check, and
//! any of its users may be killed at any instruction.
#![forbid(unsafe_code)]
