//! The agent as a program of its own, in VMs that people already have: `isthmus guest`.

use std::sync::Arc;
use std::time::Duration;

use isthmus_attach::daemon::not_ignored;
use isthmus_attach::notify;
use isthmus_region::print::Aside;
use isthmus_region::shared_by_threads::Flag;
use isthmus_region::source::Ivshmem;

use crate::agent::{Agent, Config, Error, Result};

/// Between two checks that the VM is still a member, in case the word of a change is lost.
const CHECK: Duration = Duration::from_secs(1);

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
    // On a thread of its own: processes that attach must not wait for a reader of standard error.
    let lines = Aside::start().map_err(|source| Error::Signals { source })?;
    let agent = Agent::start(config, Box::new(move |event| lines.tell(&format!("isthmus: {event}"))))?;
    // Only now: until here there is nothing to clean up, and a signal is to end the process at once.
    let mut signals = signal_hook::iterator::Signals::new(not_ignored(&[SIGINT, SIGTERM, SIGHUP]))
        .map_err(|source| Error::Signals { source })?;
    let peer = agent.peer();
    isthmus_region::tell!(
        "isthmus: this VM is member {} ('{}') of the region; processes attach at {}",
        peer.index,
        peer.name,
        agent.socket().display()
    );
    notify::ready(&format!("member {} ('{}') of the region", peer.index, peer.name));
    let (ended, news) = (Arc::new(Flag::default()), Arc::clone(agent.news()));
    let told = Arc::clone(&ended);
    let body = move || {
        let _: Option<i32> = signals.forever().next();
        told.set();
        news.tell();
    };
    std::thread::Builder::new()
        .name("isthmus-signals".into())
        .spawn(body)
        .map_err(|source| Error::Signals { source })?;
    while !ended.is_set() {
        agent.news().wait(CHECK);
        agent.check()?;
    }
    notify::stopping();
    Ok(())
}
