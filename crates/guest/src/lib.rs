//! The guest: first process of a VM that isthmus boots, and the agent inside any VM.
#![forbid(unsafe_code)]

pub mod agent;
pub mod boot;
pub mod channels;
pub mod control;
pub mod exec;
pub mod foreground;
pub mod install;
mod names;
pub mod processes;
pub mod relay;
pub mod shortage;
pub mod wakes;
pub mod wire;

/// The whole life of process 1: boots the VM, serves until the launcher is done with it, powers off.
///
/// The `isthmus` program calls this before anything else when [`boot::is_init`] says so.
pub fn init_main() -> ! {
    boot::run(|booted| channels::serve(&booted))
}
