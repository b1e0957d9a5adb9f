//! Channels: ping-pong and streams, beside sockets between the same two processes.
//!
//! Our channel looks for a while before it sleeps. So each socket is measured in both ways: `unix` and `tcp` block in the
//! kernel, as most programs do, and `unix-spin` and `tcp-spin` never do: they are read again and again until something is there.
//! TCP goes without Nagle's algorithm, and its buffers are the kernel's to grow; those of Unix-domain sockets do not grow, and
//! are asked to be as large as may be.
//!
//! What is streamed is written before it is sent and read after it has arrived, a word of each cache line.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use isthmus::ivc::Channel;

use super::{Meeting, PORT, Plan, Sample, real};
use crate::error::{Error, Result};

const MAGIC: u64 = 0x0062_656e_6368;
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of a message.
const SIZES: [usize; 3] = [64, 1024, 8192];
/// Bytes of a write of a stream, and how many of them are answered by one byte.
const WRITE: usize = 65536;
const WRITES: u64 = 16;
/// Bytes that a Unix-domain socket shall hold: all writes up to an answer.
const UNIX_BUFFER: usize = 1 << 20;
/// Bytes of a cache line.
const LINE: usize = 64;

/// Something that bytes go through, both ways.
trait Way {
    fn send(&mut self, bytes: &[u8]) -> Result<()>;
    fn receive(&mut self, bytes: &mut [u8]) -> Result<()>;
}

impl Way for Channel {
    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.write_all(bytes, None).map_err(broken("write to the channel"))
    }

    fn receive(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.read_exact(bytes, None).map_err(broken("read from the channel"))
    }
}

/// A socket, of whichever kind.
struct Socket<T>(T);

impl<T: Read + Write> Way for Socket<T> {
    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.write_all(bytes).map_err(Error::io("write to the socket"))
    }

    fn receive(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.0.read_exact(bytes).map_err(Error::io("read from the socket"))
    }
}

/// A socket that never sleeps.
struct Spinning<T>(T);

impl<T: Read + Write> Way for Spinning<T> {
    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let mut left = bytes;
        while !left.is_empty() {
            match self.0.write(left) {
                Ok(count) => left = &left[count..],
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(Error::io("write to the socket")(error)),
            }
        }
        Ok(())
    }

    fn receive(&mut self, bytes: &mut [u8]) -> Result<()> {
        let mut have = 0;
        while have < bytes.len() {
            match self.0.read(&mut bytes[have..]) {
                Ok(0) => {
                    return Err(Error::io("read from the socket")(ErrorKind::UnexpectedEof.into()));
                }
                Ok(count) => have += count,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(Error::io("read from the socket")(error)),
            }
        }
        Ok(())
    }
}

fn broken(what: &str) -> impl FnOnce(isthmus::ivc::Error) -> Error {
    let what = what.to_owned();
    move |e| Error::Rank { what: format!("{what}: {e}") }
}

/// Bytes that the network interfaces of this kernel have seen.
fn network() -> u64 {
    let text = std::fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let of_line = |line: &str| -> Option<u64> {
        let fields: Vec<&str> = line.split_once(':')?.1.split_whitespace().collect();
        Some(fields.first()?.parse::<u64>().ok()? + fields.get(8)?.parse::<u64>().ok()?)
    };
    text.lines().filter_map(of_line).sum()
}

pub(super) fn run(meeting: &mut Meeting, plan: &Plan) -> Result<()> {
    let first = meeting.is_first();
    let context = meeting.here.register(MAGIC, meeting.index.into()).map_err(super::failed("register"))?;
    meeting.sync()?;
    let mut channel = if first {
        context.accept(Some(PATIENCE)).map_err(broken("accept"))?
    } else {
        let begun = Instant::now();
        let peer = loop {
            if let Some(peer) = context.peers().into_iter().find(|peer| peer.client == 0) {
                break peer;
            }
            if begun.elapsed() > PATIENCE {
                return Err(Error::Rank { what: "find the other process in the group".into() });
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        context.connect(peer.address, Some(PATIENCE)).map_err(broken("connect"))?
    };
    let mut sockets: Vec<(&str, &str, Box<dyn Way>)> = Vec::new();
    if let Some(folder) = &plan.folder {
        // Nothing counts these.
        sockets.push(("unix", "unix", Box::new(Socket(unix(meeting, &folder.join("socket"))?))));
        let spinning = unix(meeting, &folder.join("spinning"))?;
        spinning.set_nonblocking(true).map_err(Error::io("make a socket that never sleeps"))?;
        sockets.push(("unix-spin", "unix", Box::new(Spinning(spinning))));
    }
    sockets.push(("tcp", "tcp", Box::new(Socket(tcp(meeting, plan)?))));
    let spinning = tcp(meeting, plan)?;
    spinning.set_nonblocking(true).map_err(Error::io("make a socket that never sleeps"))?;
    sockets.push(("tcp-spin", "tcp", Box::new(Spinning(spinning))));
    for _ in 0..plan.reps {
        let line = meeting.line("bare")?;
        meeting.tell(&Sample::new("latency", "pingpong", "latency_us", line.us / 2.0))?;
        for bytes in SIZES {
            let before = moved(&channel);
            let latency = latency(meeting, "isthmus", &mut channel, bytes)?;
            print(meeting, "latency", "isthmus", bytes, latency, ("region", moved(&channel) - before))?;
            for (name, path, socket) in &mut sockets {
                let before = network();
                let latency = self::latency(meeting, name, socket.as_mut(), bytes)?;
                let moved = if *path == "tcp" { network() - before } else { 0 };
                print(meeting, "latency", name, bytes, latency, (path, moved))?;
            }
        }
        let before = moved(&channel);
        let stream = stream(meeting, "isthmus", &mut channel)?;
        print(meeting, "stream", "isthmus", WRITE, stream, ("region", moved(&channel) - before))?;
        for (name, path, socket) in &mut sockets {
            let before = network();
            let stream = self::stream(meeting, name, socket.as_mut())?;
            let moved = if *path == "tcp" { network() - before } else { 0 };
            print(meeting, "stream", name, WRITE, stream, (path, moved))?;
        }
    }
    meeting.sync()
}

/// Bytes that both rings of the channel have carried, as their positions in the region say.
fn moved(channel: &Channel) -> u64 {
    let (read, written) = channel.moved();
    read + written
}

fn tcp(meeting: &mut Meeting, plan: &Plan) -> Result<TcpStream> {
    let failed = || Error::io("connect the two processes by TCP");
    let listener = if meeting.is_first() {
        let any = if plan.folder.is_some() { "127.0.0.1:0" } else { "0.0.0.0:0" };
        let listener = TcpListener::bind(any).map_err(failed())?;
        let port = listener.local_addr().map_err(failed())?.port();
        meeting.word(PORT)?.store(port.into());
        Some(listener)
    } else {
        None
    };
    meeting.sync()?;
    let socket = match listener {
        Some(listener) => listener.accept().map_err(failed())?.0,
        None => {
            let host = if plan.folder.is_some() { "127.0.0.1".into() } else { meeting.host_of(0)? };
            let port = u16::try_from(meeting.word(PORT)?.load()).unwrap_or(0);
            TcpStream::connect((host.as_str(), port)).map_err(failed())?
        }
    };
    socket.set_nodelay(true).map_err(failed())?;
    Ok(socket)
}

fn unix(meeting: &mut Meeting, path: &std::path::Path) -> Result<UnixStream> {
    let failed = || Error::io("connect the two processes by a Unix-domain socket");
    let listener = match meeting.is_first() {
        true => Some(UnixListener::bind(path).map_err(failed())?),
        false => None,
    };
    meeting.sync()?;
    let socket = match listener {
        Some(listener) => listener.accept().map_err(failed())?.0,
        None => UnixStream::connect(path).map_err(failed())?,
    };
    // The kernel cuts it down to what it allows.
    rustix::net::sockopt::set_socket_send_buffer_size(&socket, UNIX_BUFFER)
        .map_err(|error| failed()(error.into()))?;
    Ok(socket)
}

/// A figure, and how many bytes of messages it took.
struct Figure {
    value: f64,
    cpu_us: f64,
    payload: u64,
}

/// Writes a word of each cache line, another one for each line and each `number`.
fn touch(buffer: &mut [u8], number: u64) {
    for (at, line) in (number << 32..).zip(buffer.chunks_exact_mut(LINE)) {
        line[..8].copy_from_slice(&at.to_le_bytes());
    }
}

/// Reads what [`touch`] wrote.
fn check_touch(buffer: &[u8], number: u64) -> Result<()> {
    let (mut sum, mut lines) = (0_u64, 0_u64);
    for line in buffer.chunks_exact(LINE) {
        sum = sum.wrapping_add(line[..8].try_into().map_or(0, u64::from_le_bytes));
        lines += 1;
    }
    let wanted = (number << 32).wrapping_mul(lines).wrapping_add(lines * lines.saturating_sub(1) / 2);
    match sum == wanted {
        true => Ok(()),
        false => Err(Error::Rank { what: "find in a stream what was written into it".into() }),
    }
}

/// Half a round, in microseconds.
fn latency(meeting: &mut Meeting, name: &str, way: &mut dyn Way, bytes: usize) -> Result<Figure> {
    let first = meeting.is_first();
    let mut buffer = vec![7; bytes];
    let timed = meeting.timed(&format!("{name} {bytes}"), &mut |rounds| {
        for _ in 0..rounds {
            if first {
                way.send(&buffer)?;
            }
            way.receive(&mut buffer)?;
            if !first {
                way.send(&buffer)?;
            }
        }
        Ok(())
    })?;
    Ok(Figure { value: timed.us / 2.0, cpu_us: timed.cpu_us / 2.0, payload: timed.rounds * 2 * bytes as u64 })
}

/// One way, in megabytes a second.
fn stream(meeting: &mut Meeting, name: &str, way: &mut dyn Way) -> Result<Figure> {
    let first = meeting.is_first();
    let mut buffer = vec![7; WRITE];
    let timed = meeting.timed(&format!("{name} stream"), &mut |rounds| {
        for _ in 0..rounds {
            for number in 0..WRITES {
                if first {
                    touch(&mut buffer, number);
                    way.send(&buffer)?;
                } else {
                    way.receive(&mut buffer)?;
                    check_touch(&buffer, number)?;
                }
            }
            match first {
                true => way.receive(&mut buffer[..1])?,
                false => way.send(&buffer[..1])?,
            }
        }
        Ok(())
    })?;
    let bytes = WRITES * WRITE as u64;
    Ok(Figure {
        value: real(bytes) / timed.us,
        cpu_us: timed.cpu_us / real(WRITES),
        payload: timed.rounds * bytes,
    })
}

fn print(
    meeting: &Meeting,
    benchmark: &str,
    subject: &str,
    bytes: usize,
    figure: Figure,
    (path, moved): (&str, u64),
) -> Result<()> {
    let metric = if benchmark == "latency" { "latency_us" } else { "bandwidth_MBps" };
    meeting.tell(&Sample {
        bytes: Some(bytes as u64),
        cpu_us_per_op: Some(figure.cpu_us),
        path: (moved >= figure.payload).then(|| path.to_owned()),
        ..Sample::new(benchmark, subject, metric, figure.value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_did_not_arrive_is_noticed() {
        let mut buffer = vec![0; 1024];
        touch(&mut buffer, 3);
        assert!(check_touch(&buffer, 3).is_ok());
        assert!(check_touch(&buffer, 2).is_err());
        buffer[512] ^= 1;
        assert!(check_touch(&buffer, 3).is_err());
    }
}
