//! A private network for VMs: a bridge and one tap device per VM in a network namespace of their own.
//!
//! ```text
//!   network namespace, alive as long as its holder process (and what entered it)
//!   ┌──────────────────────────────────────────┐
//!   │  bridge, the host's address              │
//!   │   ├── tap0 ── QEMU ── virtio-net of vm0  │
//!   │   └── tap1 ── QEMU ── virtio-net of vm1  │
//!   └──────────────────────────────────────────┘
//! ```
//! No device of the machine is changed and nothing is left behind: the kernel removes the namespace with its last
//! process. Root makes only the network namespace. Any other user makes it inside a user namespace that maps the user's
//! uid to itself, so no privilege is needed.
//!
//! Programs that must see the network (QEMU, an MPI's launcher, ranks on the host) are started by [`Netns::command`], or
//! by putting [`Netns::prefix`] before their words. In a user namespace, files of other owners appear to belong to user
//! `nobody`, also to guests whose QEMU is inside, and all supplementary groups appear as 65534: the kernel lets a user map
//! the user's own group only. [`Netns::keeps_groups`] says whether that changes anything for the caller. A process can
//! enter the network namespace only together with the user namespace that owns it. Without a tap network none of this
//! applies.

use crate::error::{Error, Result};
use crate::programs;
use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};

/// The addresses and devices of the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The host's address on the bridge; the guests choose others with the same prefix.
    pub host: Ipv4Addr,
    /// The prefix length.
    pub prefix: u8,
    /// Names of the tap devices, at most 15 letters and digits each.
    pub taps: Vec<String>,
}

impl Plan {
    /// `count` devices `tap0`, `tap1`, ... on 10.77.0.0/16, where the host is 10.77.255.254.
    pub fn new(count: usize) -> Plan {
        Plan {
            host: Ipv4Addr::new(10, 77, 255, 254),
            prefix: 16,
            taps: (0..count).map(|index| format!("tap{index}")).collect(),
        }
    }
}

/// The namespace. Dropping it ends the holder; the namespace goes with the last process in it.
pub struct Netns {
    holder: Child,
    own_users: bool,
}

impl Netns {
    /// Makes the namespace with its devices.
    ///
    /// # Errors
    /// [`Error::NoProgram`] if util-linux or iproute2 is missing, [`Error::Network`] with what `unshare` or `ip` said.
    pub fn create(plan: &Plan) -> Result<Netns> {
        let unshare = programs::need("unshare", "util-linux")?;
        programs::need("nsenter", "util-linux")?;
        let ip = programs::need("ip", "iproute2")?;
        tun_is_open()?;
        let root = rustix::process::geteuid().is_root();
        let script = script(plan, &ip.to_string_lossy(), rustix::process::geteuid().as_raw());
        let start = |own_users: bool| {
            let mut command = Command::new(&unshare);
            if own_users {
                command.args(["--user", "--map-current-user", "--keep-caps"]);
            }
            command.args(["--net", "--", "/bin/sh", "-c", &script]);
            hold(command, own_users)
        };
        // In a container, root may lack the right to make a network namespace alone, but have the right to make both.
        match start(!root) {
            Err(_) if root => start(true),
            result => result,
        }
    }

    /// Whether programs inside see the same groups as outside.
    pub fn keeps_groups(&self) -> bool {
        let own = rustix::process::getegid();
        !self.own_users || rustix::process::getgroups().is_ok_and(|groups| groups.iter().all(|g| *g == own))
    }

    /// A process in the namespace, for `/proc/PID/ns` and the like.
    pub fn pid(&self) -> u32 {
        self.holder.id()
    }

    /// The words that start a program inside: put them before its own. Working directory, environment, user and
    /// process id stay what they are.
    pub fn prefix(&self) -> Vec<OsString> {
        let nsenter = programs::find("nsenter").unwrap_or_else(|| "nsenter".into());
        let mut words = vec![nsenter.into_os_string()];
        if self.own_users {
            words.extend(["--user", "--preserve-credentials"].map(OsString::from));
        }
        words.push("--net".into());
        words.push(format!("--target={}", self.pid()).into());
        words.push("--".into());
        words
    }

    /// A command that runs `program` inside.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let words = self.prefix();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(program);
        command
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        // Either it has ended already, or it ends now.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Taps are made through a device that every user may open on most systems, but not in all containers.
fn tun_is_open() -> Result<()> {
    const TUN: &str = "/dev/net/tun";
    match OpenOptions::new().read(true).write(true).open(TUN) {
        Ok(_) => Ok(()),
        Err(error) => Err(Error::Network {
            reason: format!(
                "this user cannot open {TUN} ({error}); root can load the module tun and set the usual mode \
                 (chmod 0666 {TUN}), or take --net none, which needs no network"
            ),
        }),
    }
}

/// Starts the holder and waits until its devices are up.
fn hold(mut command: Command, own_users: bool) -> Result<Netns> {
    // It ends when its standard input does, so with this process, even if that is killed.
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).env("LC_ALL", "C");
    let mut holder = command.spawn().map_err(Error::io("run unshare"))?;
    let mut line = String::new();
    if let Some(stdout) = holder.stdout.take() {
        // After an error the line is empty, which is reported below.
        let _ = BufReader::new(stdout).read_line(&mut line);
    }
    if line.trim() == "ready" {
        return Ok(Netns { holder, own_users });
    }
    let mut said = String::new();
    if let Some(mut stderr) = holder.stderr.take() {
        // A part of the explanation is better than none.
        let _ = stderr.read_to_string(&mut said);
    }
    let mut failed = Netns { holder, own_users };
    // Reaped here, so that it has ended before the error is reported.
    let _ = failed.holder.wait();
    let said = said.trim();
    let hint = if said.contains("unshare") {
        "; may this user make user namespaces (sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces)? \
         --net none needs none"
    } else {
        ""
    };
    Err(Error::Network { reason: format!("{said}{hint}") })
}

/// The holder's script: makes the devices, prints a line, and waits for its standard input to end.
fn script(plan: &Plan, ip: &str, uid: u32) -> String {
    let mut lines = vec![
        // Whoever ends or warns a whole job sends these to all its processes, and without this one VMs would lose their network.
        "trap '' HUP INT TERM QUIT USR1 USR2".to_owned(),
        "set -e".to_owned(),
        format!("{ip} link set lo up"),
        // No spanning tree: it would hold back the first packets for seconds.
        format!("{ip} link add bridge type bridge stp_state 0 forward_delay 0"),
        format!("{ip} addr add {}/{} dev bridge", plan.host, plan.prefix),
        format!("{ip} link set bridge up"),
    ];
    for tap in &plan.taps {
        // Owned by the user: QEMU has no privilege when it attaches to it.
        lines.push(format!("{ip} tuntap add dev {tap} mode tap user {uid}"));
        lines.push(format!("{ip} link set {tap} master bridge up"));
    }
    lines.push("echo ready".to_owned());
    lines.push("exec cat > /dev/null".to_owned());
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_makes_every_device() {
        let text = script(&Plan::new(2), "ip", 1000);
        assert!(text.contains("ip tuntap add dev tap1 mode tap user 1000"));
        assert!(text.contains("ip addr add 10.77.255.254/16 dev bridge"));
    }

    #[test]
    fn programs_inside_are_the_same_user_and_see_only_the_bridge() {
        let netns = match Netns::create(&Plan::new(2)) {
            Ok(netns) => netns,
            // Containers often forbid it; whether this one does is tested without this module.
            Err(error) => {
                let has_all = ["unshare", "nsenter", "ip"].iter().all(|name| programs::find(name).is_some());
                let makes = |args: &[&str]| {
                    Command::new("unshare").args(args).output().is_ok_and(|output| output.status.success())
                };
                let could = match has_all {
                    // A device that may not be opened is reason enough.
                    true => {
                        tun_is_open().is_ok()
                            && (makes(&["--net", "true"]) || makes(&["--user", "--net", "true"]))
                    }
                    false => crate::skipped::must_be_installed(),
                };
                return crate::skipped::skipped(&format!("a network of its own: {error}"), could);
            }
        };
        let output =
            netns.command("/bin/sh").args(["-c", "id -u; id -G; cat /proc/net/dev"]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let uid = rustix::process::geteuid().as_raw().to_string();
        assert_eq!(text.lines().next(), Some(uid.as_str()), "{output:?}");
        let groups = Command::new("id").arg("-G").output().unwrap();
        let groups = String::from_utf8_lossy(&groups.stdout).trim().to_owned();
        assert_eq!(text.lines().nth(1) == Some(groups.as_str()), netns.keeps_groups(), "{output:?}");
        for device in ["bridge:", "tap0:", "tap1:"] {
            assert!(text.contains(device), "{text}");
        }
        assert!(!text.contains("eth0"));
        // What is sent to all processes of a job takes no network away.
        use rustix::process::Signal;
        let holder = i32::try_from(netns.pid()).ok().and_then(rustix::process::Pid::from_raw).unwrap();
        for signal in [Signal::HUP, Signal::INT, Signal::TERM, Signal::QUIT, Signal::USR1, Signal::USR2] {
            rustix::process::kill_process(holder, signal).unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert!(netns.command("/bin/true").status().unwrap().success(), "the holder has ended");
    }
}
