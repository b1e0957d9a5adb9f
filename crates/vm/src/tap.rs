//! A private network for VMs.
#![allow(missing_docs)]
