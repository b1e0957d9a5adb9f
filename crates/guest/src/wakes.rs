//! The agent's end of the wake port: a virtio-serial port over which the host service rings this VM's sleepers, and
//! the agent those of other peers. By the same port the two tell each other of each step of joining.
//!
//! What a frame says is never the truth but an occasion to look at the region, so a lost one costs time and nothing
//! else: sleepers wake by their time limits, and an agent that waits for the host service rings again
//! ([`RECHECK`]).

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_attach::ring;
use isthmus_attach::server::{self, Relay, Waker, Wakeup};
use isthmus_region::driver::{Driver, vectors_of};
use isthmus_region::gate_bits;
use isthmus_region::membership::Region;
use isthmus_region::shared_by_threads::Flag;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

/// The port's name.
pub const WAKE_PORT: &str = ring::PORT;
/// How long an agent waits for an answer until it rings again, and looks at the region as if it had been rung.
pub const RECHECK: Duration = Duration::from_millis(250);
/// Between two tries to write what must be written, and how many.
const INSISTENCE: (Duration, u32) = (Duration::from_millis(5), 12_000);
/// How often an agent asks for the ids of members until it hears one, and after that: what it was told may have been lost.
const ASK_AGAIN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));
/// Between two polls of a port whose other side is closed, since its opening is no event to wait for: at first, since
/// a VM that boots sees its ports closed for a moment, and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));

/// The port, opened.
#[derive(Debug, Clone)]
pub struct Port(Arc<OwnedFd>, Arc<Flag>);

impl From<OwnedFd> for Port {
    /// A port that is open already, not blocking; or a socket in its place.
    fn from(fd: OwnedFd) -> Self {
        Self(Arc::new(fd), Arc::default())
    }
}

/// Whether a port is one by which an agent joins. QEMU takes each name once in a VM, so the port of a second region has a suffix:
/// `isthmus.wake.2`.
fn is_wake_port(name: &str) -> bool {
    name.strip_prefix(WAKE_PORT).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

impl Port {
    /// Opens the port behind this device.
    ///
    /// # Errors
    /// The system's.
    pub fn open(device: &Path) -> std::io::Result<Self> {
        let nonblock = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
        let port = File::options().read(true).write(true).custom_flags(nonblock).open(device)?;
        Ok(Self(Arc::new(port.into()), Arc::default()))
    }

    /// The ports of this VM by which agents join: one for each region that it is in.
    pub fn find() -> Vec<PathBuf> {
        let entries = std::fs::read_dir("/sys/class/virtio-ports").into_iter().flatten().flatten();
        let named = |folder: &Path| {
            std::fs::read_to_string(folder.join("name")).is_ok_and(|name| is_wake_port(name.trim()))
        };
        let found = entries.map(|e| e.path()).filter(|folder| named(folder));
        let mut found: Vec<PathBuf> =
            found.filter_map(|folder| Some(Path::new("/dev").join(folder.file_name()?))).collect();
        found.sort();
        found
    }

    /// Reads what the host service says.
    pub fn reader(&self) -> Reader {
        Reader {
            port: self.clone(),
            part: Vec::new(),
            is_open: false,
            pause: PAUSES.0,
            bell: None,
            driver: None,
        }
    }

    /// Has the host service look at the section of this VM, and say which member it is; if this VM rings by its device, also which
    /// member has which id there.
    pub(crate) fn hello(&self, rings: bool) {
        self.write(&ring::hello(rings));
    }

    /// Passes on wake-ups for other peers.
    pub fn relay(&self, region: &Region, peer: u32) -> Relay {
        let (port, region) = (self.clone(), region.clone());
        // Sleepers of a VM that is rung by interrupts look by themselves after 5 s only. So what the port does not take becomes a
        // death, for which all look once it does.
        let endpoints = region.shape().endpoints;
        let has_driver = move |to: u32| vectors_of(&region, to) > 0;
        Relay::new(move |wakeup| {
            let mut is_owed = false;
            match wakeup {
                Wakeup::Endpoint(slot) => {
                    is_owed = !port.write(&ring::wake(slot.0)) && has_driver(slot.peer(endpoints));
                }
                Wakeup::Gate { peers, place } => {
                    for to in (0..64).filter(|to| peers & gate_bits::bit(*to) != 0) {
                        is_owed |= !port.write(&ring::ring(to, place)) && has_driver(to);
                    }
                }
                Wakeup::Death => is_owed = true,
            }
            if is_owed {
                port.insist(ring::death(peer));
            }
        })
    }

    /// Tells the host service that there is a request in this VM's section.
    pub(crate) fn call(&self, number: u64) {
        self.write(&ring::call(u32::try_from(number & 0xffff_ffff).unwrap_or(0)));
    }

    /// Has all services look at their processes.
    pub(crate) fn settle(&self, number: u32) {
        self.write(&ring::settle(number));
    }

    /// Tells the host service that this VM's agent has done so.
    pub(crate) fn settled(&self, number: u32) {
        self.write(&ring::settled(number));
    }

    /// Writes a frame, or drops it if the port is full: a port takes a buffer as a whole. Gives whether it was written.
    fn write(&self, frame: &[u8]) -> bool {
        rustix::io::write(&*self.0, frame).is_ok()
    }

    /// Writes a frame that tells of deaths, later if the port is full: nobody says it again, and one tells of all deaths before it.
    fn insist(&self, frame: [u8; ring::BYTES]) {
        // One thread at a time tries again.
        if self.write(&frame) || self.1.set() {
            return;
        }
        let port = self.clone();
        let again = move || {
            for _ in 0..INSISTENCE.1 {
                std::thread::sleep(INSISTENCE.0);
                // First, so that whoever comes after this frame has one of its own.
                port.1.clear();
                if port.write(&frame) || port.1.set() {
                    return;
                }
            }
            port.1.clear();
        };
        if std::thread::Builder::new().name("isthmus-insists".into()).spawn(again).is_err() {
            self.1.clear();
        }
    }
}

/// What a [`Reader`] has heard.
#[derive(Debug)]
pub enum Heard {
    /// The host's side is open, so the host service can be told something.
    Opened,
    /// The host's side is closed.
    Closed,
    /// Frames.
    Frames(Vec<ring::Frame>),
    /// Nothing in time.
    Nothing,
    /// The host's service has rung this VM for a death.
    Rung,
    /// The device is gone.
    Unplugged,
}

/// Reads frames from the port.
#[derive(Debug)]
pub struct Reader {
    port: Port,
    /// Received bytes that are not a whole frame yet.
    part: Vec<u8>,
    /// Whether the host's side was open when it was last looked at.
    is_open: bool,
    /// Until the next look at a closed port.
    pause: Duration,
    /// The driver's descriptor of the vector for deaths.
    bell: Option<OwnedFd>,
    /// The driver that is told by which ids the device knows other members.
    driver: Option<Arc<Driver>>,
}

impl Reader {
    /// Rings, and is rung, by the driver.
    pub(crate) fn with_driver(self, driver: Option<Arc<Driver>>) -> Self {
        Self { driver, ..self }
    }

    /// Whether the host's side is open, as far as was heard.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Sleeps until something is heard, or until `until`.
    ///
    /// # Errors
    /// The system's; then the port is of no more use.
    pub fn next(&mut self, until: Option<Instant>) -> rustix::io::Result<Heard> {
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let limit = if self.is_open { left } else { Some(Duration::ZERO) };
            let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
            let port = &*self.port.0;
            let bell = self.bell.as_ref().map(|bell| PollFd::new(bell, PollFlags::IN));
            let mut poll: Vec<_> = [PollFd::new(port, PollFlags::IN)].into_iter().chain(bell).collect();
            match rustix::event::poll(&mut poll, limit.as_ref()) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(e) => return Err(e),
            }
            let ready = poll[0].revents();
            let is_rung = poll.get(1).is_some_and(|bell| !bell.revents().is_empty());
            drop(poll);
            if is_rung && let Some(bell) = &self.bell {
                match rustix::io::read(bell, &mut [0_u8; 8]) {
                    Ok(0) => {
                        self.bell = None;
                        return Ok(Heard::Unplugged);
                    }
                    Ok(_) => return Ok(Heard::Rung),
                    Err(_) => {}
                }
            }
            if ready.contains(PollFlags::HUP) {
                // Half a frame has no other half.
                self.part.clear();
                if std::mem::take(&mut self.is_open) {
                    self.pause = PAUSES.0;
                    return Ok(Heard::Closed);
                }
                if left.is_some_and(|left| left.is_zero()) {
                    return Ok(Heard::Nothing);
                }
                std::thread::sleep(self.pause.min(left.unwrap_or(self.pause)));
                self.pause = (self.pause * 2).min(PAUSES.1);
                continue;
            }
            if !self.is_open {
                self.is_open = true;
                return Ok(Heard::Opened);
            }
            if ready.is_empty() {
                return Ok(Heard::Nothing);
            }
            let mut bytes = [0_u8; 512];
            match rustix::io::read(&*self.port.0, &mut bytes[..]) {
                // The end, which HUP tells at the next look.
                Ok(0) => std::thread::sleep(PAUSES.0),
                Ok(count) => self.part.extend_from_slice(&bytes[..count.min(512)]),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(e) => return Err(e),
            }
            match ring::take(&mut self.part) {
                Ok(frames) if frames.is_empty() => {}
                Ok(frames) => return Ok(Heard::Frames(frames)),
                // Out of step: drop what came, and hope for a frame's start next.
                Err(_) => self.part.clear(),
            }
        }
    }

    /// Rings this VM's endpoints and gates when the host service says so, on a thread of its own, until the program
    /// ends. `endpoints` is the region's number of endpoint slots of each peer. `answered` is called when the host service has
    /// answered a request, or has done what the number asked for; `settle` when it asks for that with a number; `changed` when this VM's
    /// entry in the membership table may have changed, or the service has ended.
    pub fn serve(
        mut self,
        peer: u32,
        endpoints: u32,
        waker: Waker,
        answered: impl Fn(Option<u32>) + Send + 'static,
        settle: impl Fn(u32) + Send + 'static,
        changed: impl Fn() + Send + 'static,
    ) {
        // Whoever rings is told of deaths by the first vector.
        self.bell = self.driver.as_ref().filter(|driver| driver.vectors() > 0).and_then(|d| d.bell(0).ok());
        let rings = self.bell.is_some();
        let body = move || {
            server::be_urgent();
            // The answers of joining were heard by another, who does not ring.
            let mut due = rings.then(Instant::now);
            let mut has_heard = false;
            loop {
                let now = Instant::now();
                if due.is_some_and(|due| due <= now) {
                    self.port.hello(true);
                    due = Some(now + if has_heard { ASK_AGAIN.1 } else { ASK_AGAIN.0 });
                }
                let frames = match self.next(due) {
                    Ok(Heard::Frames(frames)) => frames,
                    Ok(Heard::Opened) => {
                        self.port.hello(rings);
                        // What was said to a port that was closed is lost.
                        self.port.insist(ring::death(peer));
                        continue;
                    }
                    Ok(Heard::Closed | Heard::Unplugged) => {
                        changed();
                        continue;
                    }
                    Ok(Heard::Rung) => {
                        waker.death();
                        continue;
                    }
                    Ok(Heard::Nothing) => continue,
                    Err(_) => return,
                };
                for frame in frames {
                    match frame {
                        ring::Frame::Wake { slot } if slot / endpoints == peer => {
                            waker.wake(slot % endpoints);
                        }
                        ring::Frame::Ring { place, .. } => waker.ring(place),
                        ring::Frame::Death { .. } => waker.death(),
                        ring::Frame::Call { .. } => answered(None),
                        ring::Frame::Settled { number } => answered(Some(number)),
                        ring::Frame::Settle { number } => settle(number),
                        ring::Frame::Peer { .. } => changed(),
                        ring::Frame::Known { member, id } => {
                            has_heard = true;
                            // It fails for a member that no region has.
                            let _ = self.driver.as_ref().map(|driver| driver.set_member(member, id));
                        }
                        _ => {}
                    }
                }
            }
        };
        let _ = std::thread::Builder::new().name("isthmus-wakes".into()).spawn(body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_further_regions_have_a_suffix() {
        assert!(is_wake_port("isthmus.wake") && is_wake_port("isthmus.wake.2"));
        assert!(!is_wake_port("isthmus.wakes") && !is_wake_port("isthmus.exec") && !is_wake_port(""));
    }
}
