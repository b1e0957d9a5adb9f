//! The agent as a program of its own, in VMs that people already have: `isthmus guest`.

use std::time::Duration;

use isthmus_attach::notify;
use isthmus_region::source::Ivshmem;

use crate::agent::{Agent, Config, Error, Result};

/// Between two looks at whether the VM is still a member.
const LOOK: Duration = Duration::from_millis(200);

/// Serves until the process is told to end by INT, TERM or HUP, with one line on standard error for each thing that
/// happens.
///
/// # Errors
/// Any of the agent's; [`Error::Ended`] when the membership ended by itself.
pub fn run(config: &Config) -> Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|source| Error::Signals { source })?;
    if Ivshmem::find().is_empty() {
        eprintln!("isthmus: no ivshmem device yet; waiting up to {} s for one", config.patience.as_secs());
    }
    let agent = Agent::start(config, Box::new(|event| eprintln!("isthmus: {event}")))?;
    let peer = agent.peer();
    eprintln!(
        "isthmus: this VM is member {} ('{}') of the region; processes attach at {}",
        peer.index,
        peer.name,
        agent.socket().display()
    );
    notify::ready(&format!("member {} ('{}') of the region", peer.index, peer.name));
    while signals.pending().next().is_none() {
        std::thread::sleep(LOOK);
        agent.check()?;
    }
    notify::stopping();
    Ok(())
}
