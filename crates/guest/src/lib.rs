//! The guest: first process of a VM that isthmus boots, and the agent inside any VM.
#![forbid(unsafe_code)]

pub mod agent;
pub mod boot;
pub mod control;
pub mod exec;
pub mod processes;
pub mod relay;
pub mod wire;
pub mod foreground;

/// The whole life of process 1: boots the VM, serves until the launcher is done with it, powers off.
///
/// The `isthmus` program calls this before anything else when [`boot::is_init`] says so.
pub fn init_main() -> ! {
    boot::run(|booted| {
        let _agent = match agent::of_boot(&booted) {
            Ok(agent) => agent,
            Err(error) => return boot::console(&format!("isthmus: this VM cannot join the region: {error}")),
        };
        // The parts of the agent are started here, each with what `booted` says; process 1 then waits for the end.
        loop {
            std::thread::park();
        }
    })
}
