//! Which wake port is whose. What a VM's agent says is believed only of the VM whose port it came by.
//!
//! A VM connects twice: with its device, and with its port. At sockets of its own, both are known by the socket. At the sockets
//! that all VMs share, the two connections of one QEMU are known by its process, which the kernel states (`SO_PEERCRED`).
//! Where the service cannot see that process (a container with its own process numbers), nothing is guessed: such a VM needs
//! sockets of its own.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};

/// A process that has connected.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    pid: Pid,
    /// Tells whether the number is still that process's.
    pidfd: Arc<OwnedFd>,
}

impl Process {
    /// The process with this number, unless it has ended.
    pub(crate) fn with(pid: Pid) -> Option<Self> {
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()?;
        Some(Self { pid, pidfd: Arc::new(pidfd) })
    }

    /// Whether both are the same process, which has not ended.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.pid == other.pid && !self.has_ended() && !other.has_ended()
    }

    /// Whether it has ended, so that its number may be another's.
    pub(crate) fn has_ended(&self) -> bool {
        let mut poll = [PollFd::new(&*self.pidfd, PollFlags::IN)];
        rustix::event::poll(&mut poll, Some(&Timespec::default())) != Ok(0)
    }

    /// Its number.
    pub(crate) fn number(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }
}

/// How a VM has connected.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// At its own socket: the number of that VM.
    pub(crate) vm: Option<u32>,
    /// Its QEMU, where that can be seen.
    pub(crate) process: Option<Process>,
}

impl Caller {
    /// Whether this wake port belongs to the VM whose device is `device`.
    fn belongs_to(&self, device: &Self) -> bool {
        match (self.vm, &self.process, &device.process) {
            (Some(vm), _, _) => device.vm == Some(vm),
            (None, Some(port), Some(device)) => device.is(port),
            (None, _, _) => false,
        }
    }
}

/// A device that is connected.
#[derive(Debug)]
struct Device {
    caller: Caller,
    /// Its VM's wake port, once that has spoken: a number that no other connection has, and the socket.
    port: Option<(u64, Arc<OwnedFd>)>,
}

/// The devices that are connected, by member, with their wake ports.
#[derive(Debug, Default)]
pub(crate) struct Ports(BTreeMap<u32, Device>);

impl Ports {
    /// A VM's device has connected.
    pub(crate) fn plugged(&mut self, member: u32, caller: Caller) {
        self.0.insert(member, Device { caller, port: None });
    }

    /// A VM's device is gone, and its wake port is nobody's.
    pub(crate) fn unplugged(&mut self, member: u32) {
        self.0.remove(&member);
    }

    /// The member whose wake port `key` is. Where a VM has its device twice, its ports get its members in order; where it has
    /// more ports than devices, the latest is the one that is connected.
    pub(crate) fn claim(&mut self, key: u64, caller: &Caller, socket: &Arc<OwnedFd>) -> Option<u32> {
        if let Some(member) = self.member(key) {
            return Some(member);
        }
        let fits = || self.0.iter().filter(|(_, device)| caller.belongs_to(&device.caller));
        let member =
            fits().find(|(_, device)| device.port.is_none()).or_else(|| fits().next()).map(|(m, _)| *m)?;
        self.0.get_mut(&member)?.port = Some((key, Arc::clone(socket)));
        Some(member)
    }

    /// The member whose wake port `key` is, if it has spoken before and the device is still there.
    pub(crate) fn member(&self, key: u64) -> Option<u32> {
        let is = |device: &Device| device.port.as_ref().is_some_and(|(of, _)| *of == key);
        self.0.iter().find(|(_, device)| is(device)).map(|(member, _)| *member)
    }

    /// A wake port is closed.
    pub(crate) fn closed(&mut self, key: u64) {
        for device in self.0.values_mut() {
            device.port.take_if(|(of, _)| *of == key);
        }
    }

    /// The port of a member.
    pub(crate) fn of(&self, member: u32) -> Option<Arc<OwnedFd>> {
        self.0.get(&member)?.port.as_ref().map(|(_, socket)| Arc::clone(socket))
    }

    /// The members that have one.
    pub(crate) fn members(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().filter(|(_, device)| device.port.is_some()).map(|(member, _)| *member)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(vm: u32) -> Caller {
        Caller { vm: Some(vm), process: None }
    }

    fn of(process: Option<Process>) -> Caller {
        Caller { vm: None, process }
    }

    fn this() -> Process {
        Process::with(rustix::process::getpid()).unwrap()
    }

    fn socket() -> Arc<OwnedFd> {
        Arc::new(std::fs::File::open("/dev/null").unwrap().into())
    }

    #[test]
    fn a_port_at_its_own_socket_is_that_vms_and_no_others() {
        let mut ports = Ports::default();
        ports.plugged(4, own(1));
        ports.plugged(5, of(Some(this())));
        assert_eq!(ports.claim(10, &own(2), &socket()), None);
        assert_eq!(ports.claim(11, &own(1), &socket()), Some(4));
        assert_eq!(ports.claim(12, &own(1), &socket()), Some(4), "the port was plugged in anew");
        assert_eq!((ports.member(11), ports.member(12)), (None, Some(4)));
        assert_eq!(ports.members().collect::<Vec<_>>(), [4]);
    }

    #[test]
    fn connections_at_common_sockets_are_paired_by_the_process_alone() {
        let mut other = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let process = Process::with(Pid::from_child(&other)).unwrap();
        let mut ports = Ports::default();
        ports.plugged(1, of(Some(this())));
        ports.plugged(2, of(Some(process.clone())));
        ports.plugged(3, of(None));
        assert_eq!(ports.claim(9, &of(None), &socket()), None, "what cannot be seen is not guessed");
        assert_eq!(ports.claim(10, &of(Some(process.clone())), &socket()), Some(2));
        assert_eq!(
            ports.claim(11, &of(Some(process.clone())), &socket()),
            Some(2),
            "the port was plugged in anew"
        );
        assert_eq!((ports.member(10), ports.member(11)), (None, Some(2)));
        // Its number may be another process's from now on.
        ports.closed(11);
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(ports.claim(12, &of(Some(process)), &socket()), None);
        assert_eq!(ports.claim(13, &of(Some(this())), &socket()), Some(1));
    }

    #[test]
    fn a_port_is_nobodys_once_its_device_is_gone() {
        let mut ports = Ports::default();
        ports.plugged(1, of(Some(this())));
        assert_eq!(ports.claim(7, &of(Some(this())), &socket()), Some(1));
        ports.unplugged(1);
        // Another VM has that place now.
        ports.plugged(1, own(3));
        assert_eq!((ports.member(7), ports.claim(7, &of(Some(this())), &socket())), (None, None));
        assert!(ports.of(1).is_none());
    }
}
