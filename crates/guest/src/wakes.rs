//! The agent's end of the relay of wake-ups: a virtio-serial port over which the host service rings this VM's
//! sleepers, and the agent those of other peers. Nothing depends on it: without the port, sleepers wake by their
//! timeouts.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use isthmus_attach::ring;
use isthmus_attach::server::{self, Relay, Waker, Wakeup};
use isthmus_region::gate_bits;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

/// The port's name.
pub const WAKE_PORT: &str = "isthmus.wake";
/// Between two polls of a port whose other side is closed, since its opening is no event to wait for.
const PAUSE: Duration = Duration::from_millis(100);

/// The port, opened.
#[derive(Debug, Clone)]
pub struct Port(Arc<OwnedFd>);

impl Port {
    /// Opens the port behind this device.
    ///
    /// # Errors
    /// The system's.
    pub fn open(device: &Path) -> std::io::Result<Self> {
        let nonblock = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
        let port = File::options().read(true).write(true).custom_flags(nonblock).open(device)?;
        Ok(Self(Arc::new(port.into())))
    }

    /// The port of this VM, if it has one.
    pub fn find() -> Option<PathBuf> {
        let entries = std::fs::read_dir("/sys/class/virtio-ports").into_iter().flatten().flatten();
        let named = |folder: &Path| {
            std::fs::read_to_string(folder.join("name")).is_ok_and(|name| name.trim() == WAKE_PORT)
        };
        let found = entries.map(|e| e.path()).find(|folder| named(folder))?;
        Some(Path::new("/dev").join(found.file_name()?))
    }

    /// Passes on wake-ups for other peers.
    pub fn relay(&self, peer: u32) -> Relay {
        let port = self.clone();
        Relay::new(move |wakeup| match wakeup {
            Wakeup::Endpoint(slot) => port.write(&ring::wake(slot.0)),
            Wakeup::Gate { peers, place } => {
                for peer in (0..64).filter(|peer| peers & gate_bits::bit(*peer) != 0) {
                    port.write(&ring::ring(peer, place));
                }
            }
            Wakeup::Death => port.write(&ring::death(peer)),
        })
    }

    /// Tells the host service that there is a request in this VM's section.
    pub(crate) fn call(&self, number: u64) {
        self.write(&ring::call(u32::try_from(number & 0xffff_ffff).unwrap_or(0)));
    }

    /// Writes a frame, or drops it if the port is full: a port takes a buffer as a whole.
    fn write(&self, frame: &[u8]) {
        let _ = rustix::io::write(&*self.0, frame);
    }

    /// Rings this VM's endpoints and gates when the host service says so, on a thread of its own, until the program
    /// ends. `id` is the VM's ivshmem id, `endpoints` the region's number of endpoint slots of each peer. `answered`
    /// is called when the host service has answered a request.
    pub fn serve(
        self,
        id: u32,
        peer: u32,
        endpoints: u32,
        waker: Waker,
        answered: impl Fn() + Send + 'static,
    ) {
        let body = move || {
            server::be_urgent();
            let mut stream = Vec::new();
            let mut greeted = false;
            loop {
                let mut poll = [PollFd::new(&*self.0, PollFlags::IN)];
                let at_once = Timespec::default();
                let ready = match rustix::event::poll(&mut poll, (!greeted).then_some(&at_once)) {
                    Ok(_) => poll[0].revents(),
                    Err(Errno::INTR) => continue,
                    Err(_) => return,
                };
                if ready.contains(PollFlags::HUP) {
                    // The host's side is closed: once it opens, it needs a new Hello.
                    greeted = false;
                    stream.clear();
                    std::thread::sleep(PAUSE);
                    continue;
                }
                if !greeted {
                    greeted = true;
                    self.write(&ring::hello(id));
                    continue;
                }
                let mut bytes = [0_u8; 512];
                match rustix::io::read(&*self.0, &mut bytes[..]) {
                    Ok(0) => std::thread::sleep(PAUSE),
                    Ok(count) => stream.extend_from_slice(&bytes[..count.min(512)]),
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    Err(_) => return,
                }
                match ring::take(&mut stream) {
                    Ok(frames) => {
                        for frame in frames {
                            match frame {
                                ring::Frame::Wake { slot } if slot / endpoints == peer => {
                                    waker.wake(slot % endpoints);
                                }
                                ring::Frame::Ring { place, .. } => waker.ring(place),
                                ring::Frame::Death { .. } => waker.death(),
                                ring::Frame::Call { .. } => answered(),
                                _ => {}
                            }
                        }
                    }
                    // Out of step: drop what came, and hope for a frame's start next.
                    Err(_) => stream.clear(),
                }
            }
        };
        let _ = std::thread::Builder::new().name("isthmus-wakes".into()).spawn(body);
    }
}
