//! `isthmus guest`.

use std::path::PathBuf;
use std::time::Duration;

use isthmus_guest::agent::Config;
use isthmus_guest::foreground;
use isthmus_host::Allowed;

use crate::{report, user};

/// Let the processes of this VM attach to the region behind its ivshmem device
///
/// Needs root, for the device; the processes do not. Runs until it is told to end (INT, TERM or HUP) or the VM's
/// membership ends. The VM's QEMU is connected to `isthmus host`, which prints how.
///
/// Users that may attach are trusted with the whole region.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// Where processes attach
    #[arg(long, value_name = "PATH", default_value = "/run/isthmus/socket")]
    socket: PathBuf,
    /// A user that may attach besides root, by name or number; may be repeated
    #[arg(long = "allow", value_name = "USER", value_parser = user::parse)]
    users: Vec<u32>,
    /// A group whose members may attach, by name or number: the socket is the group's
    #[arg(long, value_name = "GROUP", value_parser = user::parse_group, conflicts_with = "users", overrides_with = "group")]
    group: Option<u32>,
    /// The device's folder in sysfs, where there are several
    #[arg(long, value_name = "DIR")]
    device: Option<PathBuf>,
    /// How long to wait for the device and the host service
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    wait: u64,
}

impl Args {
    pub(crate) fn run(self) -> i32 {
        let mut config = Config {
            socket: self.socket,
            allowed: Allowed::Users(self.users),
            device: self.device,
            patience: Duration::from_secs(self.wait),
            ..Config::default()
        };
        if self.group.is_some() {
            // The kernel asks for the group at every connection, so that is all there is to ask.
            (config.group, config.mode, config.allowed) = (self.group, 0o660, Allowed::Everybody);
        }
        report::status(foreground::run(&config))
    }
}
