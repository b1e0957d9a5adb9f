//! The agent as a program of its own, in VMs that people already have: `isthmus guest`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use isthmus_attach::notify;
use isthmus_region::source::Ivshmem;

use crate::agent::{Agent, Config, Error, Result};
use crate::wakes;

/// How long to wait for the wake-up port, which a VM need not have.
const PORT_PATIENCE: Duration = Duration::from_secs(2);
/// Between two checks that the VM is still a member.
const CHECK: Duration = Duration::from_millis(200);

/// The wake-up port. While a VM boots, it may appear a moment after the region's device, which starts this program.
fn wake_port() -> Option<PathBuf> {
    let deadline = Instant::now() + PORT_PATIENCE;
    loop {
        let found = wakes::Port::find();
        if found.is_some() || Instant::now() >= deadline {
            return found;
        }
        std::thread::sleep(CHECK / 4);
    }
}

/// Serves until the process gets INT, TERM or HUP, with a line on standard error for each event.
///
/// # Errors
/// Any of the agent's; [`Error::Ended`] if the membership ends.
pub fn run(config: &Config) -> Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    if Ivshmem::find().is_empty() {
        isthmus_region::tell!(
            "isthmus: no ivshmem device yet; waiting up to {} s for one",
            config.patience.as_secs()
        );
    }
    let mut config = config.clone();
    if config.wake_port.is_none() {
        config.wake_port = wake_port();
    }
    let agent = Agent::start(&config, Box::new(|event| isthmus_region::tell!("isthmus: {event}")))?;
    // Only now: until here there is nothing to clean up, and a signal is to end the process at once.
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|source| Error::Signals { source })?;
    let peer = agent.peer();
    isthmus_region::tell!(
        "isthmus: this VM is member {} ('{}') of the region; processes attach at {}",
        peer.index,
        peer.name,
        agent.socket().display()
    );
    notify::ready(&format!("member {} ('{}') of the region", peer.index, peer.name));
    while signals.pending().next().is_none() {
        std::thread::sleep(CHECK);
        agent.check()?;
    }
    notify::stopping();
    Ok(())
}
