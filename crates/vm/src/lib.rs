//! QEMU: accelerator probe, kernel and initramfs, command line, QMP.
//!
//! Turns "two VMs, please" into running QEMU processes, and nothing else: what a region holds, how an MPI is started
//! and how a run ends are other crates' business. A launcher goes through the modules in this order:
//!
//! 1. [`kernel::find`] yields an uncompressed kernel and the few modules a guest needs, downloading them once;
//! 2. [`accel::choose`] says whether KVM really works here;
//! 3. [`initramfs::base`] packs this program as the guest's first process, and [`initramfs::for_vm`] adds the one
//!    VM's [`boot_config::BootConfig`], which `isthmus-guest` reads on the other side;
//! 4. [`driver::find`] builds the guest driver for that kernel, where it can;
//! 5. [`qemu::VmConfig`] and [`qemu::Vm::start`] run it, [`qmp::Qmp`] talks to it;
//! 6. [`ivshmem::Ivshmem`] is the device by which it joins a region; [`tap::Netns`] is a private network, if one is asked for.
//!
//! [`places::Place`] is where a file goes that VMs might replace. [`slow::Slow`] reports steps that take longer than a moment.
#![forbid(unsafe_code)]

pub mod accel;
pub mod boot_config;
pub mod cache;
pub mod cpio;
mod download;
pub mod driver;
pub mod elf;
mod error;
pub mod initramfs;
pub mod ivshmem;
pub mod kernel;
pub mod places;
pub mod programs;
pub mod qemu;
pub mod qmp;
#[cfg(test)]
mod skipped;
pub mod slow;
pub mod tap;

pub use error::{Error, Result};
