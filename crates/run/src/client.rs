//! The side of the switch's clients to which frames are sent.
//!
//! A VM's threads pass frames on to many clients, so they wait for none of them: what a client's socket does not take at once waits,
//! and a thread of its own writes it. A client that was stopped is no worse than one that is slow. Its credit bounds what waits, and
//! [`MOST_WAITING`] what a VM sends that minds no credit.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use isthmus_guest::wire::{Frame, HEADER_BYTES, WINDOW};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

/// Most bytes that wait for a client: it has given credit for a window of each of two channels, and each byte may come in a frame of
/// its own. More is a VM's that minds no credit.
const MOST_WAITING: usize = 2 * WINDOW * (HEADER_BYTES + 1);

/// A client that has a process in a VM.
pub(crate) struct Client {
    socket: UnixStream,
    queue: Mutex<Queue>,
    /// It stands for a user's command, and not for a daemon of an MPI.
    pub(crate) visitor: bool,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<u8>,
    /// A thread writes what waits.
    has_writer: bool,
    /// Nothing is passed on any more, and the connection ends behind what waits.
    is_ending: bool,
}

impl Client {
    pub(crate) fn new(socket: UnixStream, visitor: bool) -> Self {
        Self { socket, queue: Mutex::default(), visitor }
    }

    /// Passes a frame on, without waiting for the client.
    ///
    /// # Errors
    /// Those of send(2) and of starting a thread; `WouldBlock` where too much waits.
    pub(crate) fn pass(self: &Arc<Self>, frame: &Frame) -> io::Result<()> {
        let bytes = frame.bytes();
        let mut queue = self.queue();
        let mut sent = 0;
        while !queue.has_writer && sent < bytes.len() {
            match send(&self.socket, &bytes[sent..], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(more) => sent += more,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let own = Arc::clone(self);
                    thread::Builder::new().name("slow client".into()).spawn(move || own.write())?;
                    queue.has_writer = true;
                }
                Err(e) => return Err(e.into()),
            }
        }
        if queue.waiting.len() + bytes.len() - sent > MOST_WAITING {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        queue.waiting.extend(&bytes[sent..]);
        Ok(())
    }

    /// Ends the connection once the client has all that was passed on; with the run, what it has not taken by then is lost.
    pub(crate) fn end(&self) {
        let mut queue = self.queue();
        queue.is_ending = true;
        if !queue.has_writer {
            self.cut();
        }
    }

    /// Ends the connection at once.
    pub(crate) fn cut(&self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Writes what waits until nothing does. The first bytes are there when the lock is free.
    fn write(&self) {
        loop {
            let bytes = {
                let mut queue = self.queue();
                if queue.waiting.is_empty() {
                    queue.has_writer = false;
                    if queue.is_ending {
                        self.cut();
                    }
                    return;
                }
                std::mem::take(&mut queue.waiting)
            };
            let mut sent = 0;
            while sent < bytes.len() {
                match send(&self.socket, &bytes[sent..], SendFlags::NOSIGNAL) {
                    Ok(more) => sent += more,
                    // The socket has a limit of time, for those that wait for an announcement. A stopped client has none.
                    Err(Errno::INTR | Errno::AGAIN) => {}
                    // Its other thread sees that, too.
                    Err(_) => return self.cut(),
                }
            }
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // It is consistent between any two statements.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    use isthmus_guest::wire::{CHANNEL_OUT, Kind};

    fn line(number: u32) -> Frame {
        Frame::of_channel(Kind::Data, 1, CHANNEL_OUT, number.to_le_bytes())
    }

    fn client() -> (Arc<Client>, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_write_timeout(Some(Duration::from_millis(50))).unwrap();
        (Arc::new(Client::new(ours, true)), theirs)
    }

    #[test]
    fn a_client_that_does_not_read_holds_nobody_up_and_gets_all_of_it_later() {
        let (client, mut theirs) = client();
        let start = Instant::now();
        for number in 0..20_000 {
            client.pass(&line(number)).unwrap();
        }
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        assert!(!client.queue().waiting.is_empty() || client.queue().has_writer, "its socket took it all");
        // Longer than the limit of a write.
        thread::sleep(Duration::from_millis(200));
        client.end();
        for number in 0..20_000 {
            assert_eq!(Frame::read_from(&mut theirs).unwrap(), line(number));
        }
        assert!(Frame::read_from(&mut theirs).is_err(), "the end comes behind it");
    }

    #[test]
    fn what_waits_is_bounded_and_a_client_that_is_gone_is_told_of() {
        let (client, theirs) = client();
        let most = 2 * MOST_WAITING / line(0).bytes().len();
        assert!((0..).take(most).any(|number| client.pass(&line(number)).is_err()));
        assert!(client.queue().waiting.len() <= MOST_WAITING);
        drop(theirs);
        let start = Instant::now();
        while client.pass(&line(0)).is_ok() || Arc::strong_count(&client) > 1 {
            assert!(start.elapsed() < Duration::from_secs(20), "its writer goes on");
            thread::sleep(Duration::from_millis(5));
        }
    }
}
