//! `isthmus guest`.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use isthmus_guest::agent::Config;
use isthmus_guest::foreground;
use isthmus_guest::install::Plan;
use isthmus_host::Allowed;
use isthmus_run::{libraries, mpi};

use crate::run::DriverArg;
use crate::size;
use crate::{report, user};

/// Let the processes of this VM attach to the region behind its ivshmem device
///
/// Needs root, for the device; the processes do not. Runs until it is told to end (INT, TERM or HUP) or the VM's
/// membership ends. The VM's QEMU is connected to `isthmus host`, which prints how.
///
/// Users that may attach are trusted with the whole region.
///
/// `isthmus guest install` has systemd start it whenever the device is there.
#[derive(clap::Args)]
#[command(verbatim_doc_comment, args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: Option<What>,
    /// Where processes attach
    #[arg(long, value_name = "PATH", default_value = "/run/isthmus/socket", overrides_with = "socket")]
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
    /// Use the guest driver: auto where its module is loaded, else sysfs. Beside a memory device (isthmus host --source dax) it wakes only
    #[arg(long, value_enum, default_value_t = DriverArg::Auto, overrides_with = "driver")]
    driver: DriverArg,
    /// Memory that each process may grant to others, which then copy long messages once, and read and write its windows of RMA
    /// themselves; without SIZE 48M. Needs the driver, and a region that is as much larger; not with a memory device
    #[arg(long, value_name = "SIZE", default_value = "0", num_args = 0..=1, default_missing_value = "48M", value_parser = size::parse_or_none, overrides_with = "grant")]
    grant: u64,
    /// How long to wait for the device and the host service
    #[arg(long, value_name = "SECONDS", default_value_t = 30, overrides_with = "wait")]
    wait: u64,
}

#[derive(Subcommand)]
enum What {
    /// Have systemd start the agent in this VM whenever the region's device is there
    ///
    /// Copies this program and its provider to where they stay, adds the agent's unit, the rule that starts it, and the
    /// group isthmus, whose members may attach; a device that is there already starts the agent at once. The Debian
    /// package isthmus-guest does the same, and is better where it can be had.
    #[command(verbatim_doc_comment)]
    Install(InstallArgs),
    /// Undo `isthmus guest install`; what was there before stays
    Uninstall(InstallArgs),
}

#[derive(clap::Args)]
struct InstallArgs {
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Where the program goes
    #[arg(long, value_name = "DIR", default_value = "/usr/local")]
    prefix: PathBuf,
    /// The root of the VM's file system, where that is mounted on another machine
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

impl Args {
    pub(crate) fn run(self) -> i32 {
        match &self.what {
            None => self.serve(),
            Some(What::Install(args)) => args.carry_out(Plan::install),
            Some(What::Uninstall(args)) => args.carry_out(Plan::uninstall),
        }
    }

    fn serve(self) -> i32 {
        let mut config = Config {
            socket: self.socket,
            allowed: Allowed::Users(self.users),
            device: self.device,
            driver: self.driver.into(),
            grant_each: self.grant,
            patience: Duration::from_secs(self.wait),
            ..Config::default()
        };
        if self.group.is_some() {
            // The kernel checks the group at every connection, so no other check is needed.
            (config.group, config.mode, config.allowed) = (self.group, 0o660, Allowed::Everybody);
        }
        report::status(foreground::run(&config))
    }
}

impl InstallArgs {
    fn carry_out(
        &self,
        action: impl Fn(&Plan, &mut dyn FnMut(String)) -> Result<(), isthmus_guest::install::Error>,
    ) -> i32 {
        let program = match std::env::current_exe() {
            Ok(program) => program,
            Err(e) => return report::status(Err::<(), _>(e)),
        };
        let provider = mpi::provider_directory().ok();
        let provider = provider.map(|dir| dir.join("libisthmus-fi.so")).filter(|file| file.is_file());
        // By the name that it has when installed.
        let sysv = libraries::sysv().ok().filter(|file| file.ends_with("libisthmus-sysv.so"));
        let alloc = libraries::alloc().ok().filter(|file| file.ends_with("libisthmus-alloc.so"));
        let has_provider = provider.is_some();
        let plan = Plan {
            root: self.root.clone(),
            prefix: self.prefix.clone(),
            program,
            libraries: provider.into_iter().chain(sysv).chain(alloc).collect(),
            dry_run: self.dry_run,
        };
        if !has_provider {
            isthmus_region::tell!(
                "isthmus: no libisthmus-fi.so beside this program; MPIs need one in PREFIX/lib/isthmus"
            );
        }
        // If standard output is closed, the installation goes on: half of one would be worse.
        let say = &mut |line: String| drop(writeln!(std::io::stdout(), "{line}"));
        report::status(action(&plan, say))
    }
}
