//! The guest: the first process of a VM that isthmus boots, and the agent in any VM.
//!
//! - [`boot`]: from the kernel to a guest that looks like the host; process 1.
//! - [`agent`]: joins the region and serves the VM's processes; [`wakes`] and `names` are its ways to the host service.
//! - [`channels`]: what a booted VM serves: [`exec`] (processes), [`relay`] (TCP), [`control`] (the rest).
//! - [`wire`]: the frames of these three, also used by the host's side.
//! - [`foreground`], [`install`]: the agent as a program of its own, and as a service of systemd.
//! - [`processes`], [`shortage`]: what `/proc` and the kernel's log say.

#![forbid(unsafe_code)]

pub mod agent;
pub mod boot;
pub mod channels;
pub mod control;
pub mod exec;
pub mod foreground;
mod identity;
pub mod install;
mod names;
pub mod processes;
pub mod relay;
pub mod shortage;
pub mod wakes;
pub mod wire;

/// Runs process 1: boots the VM, serves until the launcher's side closes a port, and powers off.
///
/// The `isthmus` program calls this before anything else if [`boot::is_init`] is true.
pub fn init_main() -> ! {
    boot::run(|booted| channels::serve(&booted))
}
