//! Bells of near sleepers: threads that wait at a [`crate::gate::Gate`], and that the processes of their own system ring without their
//! service. Such a bell is a datagram socket with a name in the system's abstract name space (unix(7)), which the gate's line gives in
//! one word. A member that sends one to a bell that it should not ring makes its sleeper look once more.
//!
//! All users of the system see such names and may send to them. So a ring says what only members know, from the half of the region's
//! identity that no name has, and the kernel drops what does not say it before it wakes anybody (socket(7), `SO_ATTACH_FILTER`). A ring
//! for one bell says nothing of another's: a stranger that takes the name of a bell whose process is dead learns nothing.

use std::hash::Hasher;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, OnceLock};

use isthmus_lockfree::local::{Count, Flag};
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
    /// The system lets no filter be set.
    refused: Flag,
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
        Self {
            party,
            uuid,
            made: Count::new(0),
            refused: Flag::new(false),
            free: Mutex::default(),
            ringer: OnceLock::new(),
        }
    }

    fn address(&self, word: u64) -> Result<SocketAddrUnix, Errno> {
        // A handler of signals may ring, so nothing is allocated.
        let mut name = [0; 41];
        let _ = write!(&mut name[..], "isthmus-{:016x}-{word:016x}", self.uuid[0]);
        SocketAddrUnix::new_abstract_name(&name)
    }

    /// What a ring for the bell with this name says. Other builds must say the same.
    fn token(&self, word: u64) -> [u8; 8] {
        // A known function of a key, SipHash-2-4. The standard library has no other one that stays as it is.
        #[allow(deprecated)]
        let mut keyed = std::hash::SipHasher::new_with_keys(self.uuid[0], self.uuid[1]);
        keyed.write(&word.to_le_bytes());
        keyed.finish().to_be_bytes()
    }

    /// A bell for one sleep; none if the process has no descriptor for it, has as many as it may, or cannot keep strangers from ringing.
    pub(crate) fn take(&self) -> Option<Bell> {
        let free = lock_soon(&self.free).and_then(|mut free| free.pop());
        free.or_else(|| self.make())
    }

    fn make(&self) -> Option<Bell> {
        // First what fails where descriptors are short: the number of a bell that came to nothing serves no other.
        if self.refused.is_set() {
            return None;
        }
        let socket = socket().ok()?;
        let number = self.made.add(1) + 1;
        if number > MOST {
            self.made.sub(1);
            return None;
        }
        let word = word_of(self.party, number);
        // Before others find it.
        if let Err(errno) = take_alone(&socket, self.token(word)) {
            // A sandbox that forbids it does so each time.
            if !matches!(errno, Errno::NOMEM | Errno::NOBUFS) {
                let _ = self.refused.set();
            }
            return None;
        }
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
        match rustix::net::sendto(
            ringer,
            &self.token(word),
            SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            &address,
        ) {
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

/// Has the kernel drop datagrams that do not begin with this.
fn take_alone(socket: &OwnedFd, token: [u8; 8]) -> rustix::io::Result<()> {
    let [high, low] = [0, 4].map(|at| u32::from_be_bytes(std::array::from_fn(|byte| token[at + byte])));
    let does = |code: u32, jt, jf, k| libc::sock_filter { code: u16::try_from(code).unwrap_or(0), jt, jf, k };
    let load = |at| does(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, at);
    // Otherwise to the last one, over so many.
    let is = |value, otherwise| does(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, otherwise, value);
    let give = |bytes| does(libc::BPF_RET | libc::BPF_K, 0, 0, bytes);
    // A load beyond the datagram's end drops it.
    let mut program = [load(0), is(high, 3), load(4), is(low, 1), give(u32::MAX), give(0)];
    let program =
        libc::sock_fprog { len: u16::try_from(program.len()).unwrap_or(0), filter: program.as_mut_ptr() };
    let bytes = libc::socklen_t::try_from(size_of_val(&program)).unwrap_or(0);
    // SAFETY: the kernel copies the program, which this has, and its instructions, which are behind its pointer.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            bytes,
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}

/// Takes what a ring has left, and gives whether there was anything. What more rings left ends the next sleep at once.
pub(crate) fn drain(bell: &Bell) -> bool {
    let mut none = [0_u8; 1];
    rustix::net::recv(&bell.socket, &mut none, RecvFlags::DONTWAIT).is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::event::{PollFd, PollFlags, Timespec};

    use super::*;

    fn is_rung(bell: &Bell) -> bool {
        let fd = bell.socket.as_fd();
        let mut poll = [PollFd::new(&fd, PollFlags::IN)];
        rustix::event::poll(&mut poll, Some(&Timespec::default())) == Ok(1)
    }

    #[test]
    fn members_alone_ring() {
        let uuid = [u64::from(std::process::id()), 0x1234_5678_9abc_def0];
        let bells = Bells::new(Party::new(0, 3, 1), uuid);
        let bell = bells.take().unwrap();
        let other = bells.take().unwrap();
        // Whoever sees the names, and what a ring for another bell says.
        let stranger = socket().unwrap();
        let mut turned = bells.token(bell.word);
        turned.reverse();
        let near_miss: [u8; 8] =
            std::array::from_fn(|byte| bells.token(bell.word)[byte] ^ u8::from(byte == 7));
        let said: [&[u8]; 6] =
            [&[], &[0; 8], &bells.token(other.word), &turned, &near_miss, &bells.token(bell.word)[..7]];
        for token in said {
            let to = bells.address(bell.word).unwrap();
            let _ = rustix::net::sendto(&stranger, token, SendFlags::DONTWAIT, &to);
            assert!(!is_rung(&bell), "{token:x?}");
        }
        // Another process of the region.
        let member = Bells::new(Party::new(0, 4, 1), uuid);
        assert!(member.ring(bell.word) && is_rung(&bell) && !is_rung(&other));
        assert!(drain(&bell) && !drain(&bell) && !is_rung(&bell));
        assert!(member.ring(other.word) && is_rung(&other));
        // One that knows only what the name says.
        let outside = Bells::new(Party::new(0, 4, 1), [uuid[0], 0]);
        outside.ring(bell.word);
        assert!(!is_rung(&bell));
    }

    #[test]
    fn a_ring_says_the_same_in_all_builds() {
        let bells = Bells::new(Party::new(0, 1, 1), [1, 2]);
        assert_eq!(u64::from_be_bytes(bells.token(3)), 0x4215_0b83_f052_1c35);
    }
}
