//! TCP without a network: connections that a guest's processes make to their launcher, carried as streams.
//!
//! The launcher's side names a port ([`Kind::Listen`]). From then on, connections to it at this guest's own address are
//! accepted and carried, and the launcher's side connects them to the launcher. Only named ports are listened at, so
//! a process can reach nothing else.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::wire::mux::{Mux, set_nonblocking};
use crate::wire::{CHANNEL_IN, CHANNEL_OUT, Frame, Kind, WireError};

/// Most connections at a time.
pub const MAX_STREAMS: usize = 1024;
/// After a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(20);
/// Most ports at a time.
const MAX_PORTS: usize = 256;

/// What belongs to the ports that were named last: a launcher may name another for each of its daemons, as long as it runs.
#[derive(Debug, Default)]
pub struct Ports<T> {
    by_number: BTreeMap<u16, (u64, T)>,
    named: u64,
}

impl<T> Ports<T> {
    /// None at all.
    pub fn new() -> Self {
        Self { by_number: BTreeMap::new(), named: 0 }
    }

    /// What belongs to a port.
    pub fn get(&self, port: u16) -> Option<&T> {
        self.by_number.get(&port).map(|(_, what)| what)
    }

    /// The same for a port that is named once more.
    fn named_again(&mut self, port: u16) -> Option<&T> {
        let (last, what) = self.by_number.get_mut(&port)?;
        self.named += 1;
        *last = self.named;
        Some(what)
    }

    /// Enters what belongs to a port that is named now; the one that was named longest ago goes where there are too many.
    pub fn insert(&mut self, port: u16, what: T) {
        self.named += 1;
        self.by_number.insert(port, (self.named, what));
        if self.by_number.len() > MAX_PORTS
            && let Some((oldest, _)) = self.by_number.iter().min_by_key(|(_, (last, _))| *last)
        {
            let oldest = *oldest;
            self.by_number.remove(&oldest);
        }
    }
}

struct Relay {
    mux: Mux,
    address: Ipv4Addr,
    /// By the port that was named.
    listeners: Ports<TcpListener>,
    streams: Vec<u32>,
    next_stream: u32,
}

/// Serves one connection until it ends, listening at `address`. Then everything that it carried is closed.
///
/// # Errors
/// [`WireError::Closed`] when the other side is gone, which is the normal end; otherwise what is wrong with it.
pub fn serve(port: OwnedFd, address: Ipv4Addr) -> Result<(), WireError> {
    let mut relay =
        Relay { mux: Mux::new(port)?, address, listeners: Ports::new(), streams: Vec::new(), next_stream: 1 };
    loop {
        relay.turn()?;
    }
}

impl Relay {
    fn turn(&mut self) -> Result<(), WireError> {
        let ports: Vec<u16> = self.listeners.by_number.keys().copied().collect();
        let fds: Vec<BorrowedFd<'_>> =
            self.listeners.by_number.values().map(|(_, listener)| listener.as_fd()).collect();
        let turn = self.mux.wait(&fds, None)?;
        if let Some(frame) = turn.frame {
            match frame.kind {
                Kind::Listen => self.listen(frame.port()?),
                Kind::Close | Kind::Refused => self.mux.drop_stream(frame.stream),
                _ => self.mux.send(&Frame::new(
                    Kind::Refused,
                    frame.stream,
                    *b"not a frame for the relay port",
                )),
            }
        }
        for index in turn.ready {
            self.accept(ports[index]);
        }
        self.streams.retain(|stream| [CHANNEL_IN, CHANNEL_OUT].iter().any(|c| self.mux.has((*stream, *c))));
        Ok(())
    }

    fn listen(&mut self, port: u16) {
        let bound = match self.listeners.named_again(port) {
            Some(listener) => listener.local_addr(),
            // If a process of the guest listens at that number, take any other; the answer says which.
            None => TcpListener::bind(SocketAddrV4::new(self.address, port))
                .or_else(|_| TcpListener::bind(SocketAddrV4::new(self.address, 0)))
                .and_then(|listener| {
                    listener.set_nonblocking(true)?;
                    let address = listener.local_addr()?;
                    self.listeners.insert(port, listener);
                    Ok(address)
                }),
        };
        let answer = match bound {
            Ok(address) => {
                let payload = [port.to_le_bytes(), address.port().to_le_bytes()].concat();
                Frame::new(Kind::Listening, 0, payload)
            }
            Err(e) => Frame::new(Kind::Refused, 0, format!("cannot listen at {}: {e}", self.address)),
        };
        self.mux.send(&answer);
    }

    fn accept(&mut self, port: u16) {
        let connection = match self.listeners.get(port).map(TcpListener::accept) {
            Some(Ok((connection, _))) => connection,
            // It stays queued where no descriptor is left, and would be seen again at once.
            Some(Err(e)) if e.kind() != ErrorKind::WouldBlock => return std::thread::sleep(PAUSE),
            _ => return,
        };
        if self.streams.len() >= MAX_STREAMS {
            return;
        }
        let stream = self.next_stream;
        self.next_stream = self.next_stream.checked_add(1).unwrap_or(1);
        if carry(&mut self.mux, stream, connection, CHANNEL_IN, CHANNEL_OUT).is_ok() {
            self.streams.push(stream);
            self.mux.send(&Frame::new(Kind::Open, stream, port.to_le_bytes()));
        }
    }
}

/// Carries `connection` as `stream`: what is read from it goes to channel `from`, what comes on channel `to` is
/// written to it.
///
/// # Errors
/// If the connection cannot be prepared.
pub fn carry(mux: &mut Mux, stream: u32, connection: TcpStream, from: u8, to: u8) -> std::io::Result<()> {
    connection.set_nodelay(true)?;
    let sink = connection.try_clone()?;
    set_nonblocking(&sink)?;
    mux.add_source((stream, from), connection.into());
    mux.add_sink((stream, to), sink.into());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_port_that_was_not_named_for_long_makes_way() {
        let mut ports = Ports::new();
        ports.insert(1, 'a');
        ports.insert(2, 'b');
        (100..).take(MAX_PORTS - 2).for_each(|port| ports.insert(port, 'x'));
        assert_eq!(ports.named_again(1), Some(&'a'));
        ports.insert(3, 'c');
        assert_eq!([1, 2, 3].map(|port| ports.get(port).copied()), [Some('a'), None, Some('c')]);
        assert_eq!(ports.by_number.len(), MAX_PORTS);
        ports.insert(3, 'd');
        assert_eq!((ports.by_number.len(), ports.get(3)), (MAX_PORTS, Some(&'d')));
    }

    #[test]
    fn a_connection_to_a_named_port_is_announced_and_its_bytes_carried() {
        let (mut host, guest) = UnixStream::pair().unwrap();
        let server = std::thread::spawn(move || serve(guest.into(), Ipv4Addr::LOCALHOST));
        Frame::read_from(&mut host).unwrap().check_hello().unwrap();
        Frame::hello().write_to(&mut host).unwrap();
        Frame::new(Kind::Listen, 0, 0_u16.to_le_bytes()).write_to(&mut host).unwrap();
        let listening = Frame::read_from(&mut host).unwrap();
        assert_eq!(listening.kind, Kind::Listening);
        let port = u16::from_le_bytes([listening.payload[2], listening.payload[3]]);
        let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        connection.write_all(b"to the host").unwrap();
        let open = Frame::read_from(&mut host).unwrap();
        assert_eq!((open.kind, open.port().unwrap()), (Kind::Open, 0));
        let data = Frame::read_from(&mut host).unwrap();
        assert_eq!((data.kind, data.channel, data.text().as_str()), (Kind::Data, CHANNEL_IN, "to the host"));
        Frame::of_channel(Kind::Data, open.stream, CHANNEL_OUT, *b"back").write_to(&mut host).unwrap();
        let mut answer = [0; 4];
        connection.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"back");
        // The end of the port closes its connections at once.
        drop(host);
        assert!(matches!(connection.read(&mut answer), Ok(0) | Err(_)));
        assert!(matches!(server.join().unwrap(), Err(WireError::Closed)));
    }
}
