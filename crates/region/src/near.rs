//! Bells of near sleepers: threads that wait at a [`crate::gate::Gate`], and that the processes of their own system ring without their
//! service. Such a bell is a datagram socket with a name in the system's abstract name space (unix(7)), which the gate's line gives in
//! one word. A datagram has no contents; whoever sends one to a bell that it should not ring makes its sleeper look once more.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, OnceLock};

use isthmus_lockfree::local::Count;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use crate::kept::Kept;
use crate::party::Party;
use crate::signals::lock_soon;

/// Bells of a process, at most: threads that sleep at once.
const MOST: u64 = 255;

/// A bell, and the word by which gates name it.
#[derive(Debug)]
pub(crate) struct Bell {
    pub(crate) socket: Kept,
    pub(crate) word: u64,
}

/// The bells of a process, and the socket by which it rings others'.
#[derive(Debug)]
pub(crate) struct Bells {
    party: Party,
    uuid: [u64; 2],
    made: Count,
    free: Mutex<Vec<Bell>>,
    ringer: OnceLock<Option<Kept>>,
}

/// Peer, area and the lower 32 bits of the area's life, and which of the process's bells.
fn word_of(party: Party, number: u64) -> u64 {
    let life = party.word() & 0xffff_ffff;
    (u64::from(party.peer()) << 54) | (u64::from(party.area()) << 40) | (life << 8) | (number & 0xff)
}

/// Whether a word names a bell of this peer.
pub(crate) fn is_of(word: u64, peer: u32) -> bool {
    word >> 54 == u64::from(peer)
}

impl Bells {
    pub(crate) fn new(party: Party, uuid: [u64; 2]) -> Self {
        Self { party, uuid, made: Count::new(0), free: Mutex::default(), ringer: OnceLock::new() }
    }

    fn address(&self, word: u64) -> Result<SocketAddrUnix, Errno> {
        let [one, two] = self.uuid;
        // A handler of signals may ring, so nothing is allocated.
        let mut name = [0; 57];
        let _ = write!(&mut name[..], "isthmus-{one:016x}{two:016x}-{word:016x}");
        SocketAddrUnix::new_abstract_name(&name)
    }

    /// A bell for one sleep; none if the process has no descriptor for it, or has as many as it may.
    pub(crate) fn take(&self) -> Option<Bell> {
        let free = lock_soon(&self.free).and_then(|mut free| free.pop());
        free.or_else(|| self.make())
    }

    fn make(&self) -> Option<Bell> {
        // First what fails where descriptors are short: the number of a bell that came to nothing serves no other.
        let socket = socket().ok()?;
        let number = self.made.add(1) + 1;
        if number > MOST {
            self.made.sub(1);
            return None;
        }
        let word = word_of(self.party, number);
        rustix::net::bind(&socket, &self.address(word).ok()?).ok()?;
        Some(Bell { socket: Kept::new(socket), word })
    }

    /// Gives back a bell of which the word stands in no gate any more.
    pub(crate) fn leave(&self, bell: Bell) {
        if let Some(mut free) = lock_soon(&self.free) {
            free.push(bell);
        }
    }

    /// Closes all of them, in a forked child, which uses none.
    pub(crate) fn abandon(&self) {
        // A thread of the parent may have had it locked.
        if let Ok(mut free) = self.free.try_lock() {
            free.clear();
        }
        if let Some(Some(ringer)) = self.ringer.get() {
            ringer.abandon();
        }
    }

    /// Rings the bell with this name; gives whether there is one.
    pub(crate) fn ring(&self, word: u64) -> bool {
        let Some(ringer) = self.ringer.get_or_init(|| socket().ok().map(Kept::new)) else { return false };
        let Ok(address) = self.address(word) else { return false };
        match rustix::net::sendto(ringer, &[], SendFlags::DONTWAIT | SendFlags::NOSIGNAL, &address) {
            // It was rung already, and so often that there is no more room.
            Ok(_) | Err(Errno::AGAIN | Errno::NOBUFS) => true,
            Err(_) => false,
        }
    }
}

fn socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)
}

/// Takes what a ring has left, and gives whether there was anything. What more rings left ends the next sleep at once.
pub(crate) fn drain(bell: &Bell) -> bool {
    let mut none = [0_u8; 1];
    rustix::net::recv(&bell.socket, &mut none, RecvFlags::DONTWAIT).is_ok()
}
