// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The attach protocol, and the ivshmem server.

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use isthmus_attach::protocol::{self, MAX_FRAME, Reply, Request, VERSION};
use isthmus_attach::{ring, socket};
use isthmus_host::{Config, Service, Vm};
use isthmus_region::mapping::Mapping;
use isthmus_region::objects::{Access, Kind, NewObject};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::PidfdFlags;

use crate::input::Input;

/// Frames of the attach protocol, both ways: what is understood means the same when it is said again.
pub fn attach(data: &[u8]) {
    let _ = protocol::sequence_of(data);
    if let Ok((sequence, request)) = Request::decode(data) {
        assert!(data.len() <= MAX_FRAME);
        let again = request.encode(sequence);
        // A greeting in another version is only looked at, and names need not be UTF-8.
        if !matches!(request, Request::Hello { .. }) {
            assert_eq!(
                Request::decode(&again).ok(),
                Some((sequence, request)),
                "a request is not what it was"
            );
        }
    }
    if let Ok((sequence, reply)) = Reply::decode(data) {
        let again = reply.encode(sequence);
        assert!(again.len() <= MAX_FRAME);
        assert!(Reply::decode(&again).is_ok(), "a reply cannot be repeated");
    }
}

/// A service with a place for one VM.
struct Served {
    service: Service,
    _dir: tempfile::TempDir,
    map: Arc<Mapping>,
    events: Arc<Mutex<u64>>,
}

/// One for the life of the process.
static SERVED: LazyLock<Served> = LazyLock::new(serve);

/// Clients of one service that may end without a word. What was granted to them comes back at the end of their process,
/// which is this one.
const RUDE: u32 = 8;

/// One for [`RUDE`] clients, and how many there were.
static SERVED_FOR_A_WHILE: LazyLock<Mutex<(Served, u32)>> = LazyLock::new(|| Mutex::new((serve(), 0)));

fn serve() -> Served {
    // As in any program of Rust's; a main function in C leaves it to end the process.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGPIPE, Arc::default());
    let dir = tempfile::tempdir().expect("a place for sockets");
    let mut config = Config::new(dir.path(), 8 << 20);
    config.vms = vec![Vm { name: "vm1".into(), ranks: 1 }];
    config.endpoints = 16;
    config.area_bytes = 32 << 10;
    let events = Arc::new(Mutex::new(0));
    let count = Arc::clone(&events);
    let observer = Arc::new(move |_: &isthmus_host::Event| *count.lock().expect("nobody panicked") += 1);
    let service = Service::start(config, observer).expect("a service");
    let map = Mapping::map(service.region_fd().as_fd(), service.region_bytes()).expect("its region");
    Served { service, _dir: dir, map, events }
}

fn connect(path: &Path) -> OwnedFd {
    let address = SocketAddrUnix::new(path).expect("a short path");
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).expect("a socket");
    rustix::net::connect(&socket, &address).expect("the service listens");
    rustix::net::sockopt::set_socket_timeout(
        &socket,
        rustix::net::sockopt::Timeout::Recv,
        Some(Duration::from_secs(10)),
    )
    .expect("a socket has timeouts");
    socket
}

fn pidfd() -> OwnedFd {
    rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).expect("a pidfd")
}

/// A client that says anything, in any order, with any descriptors. The server answers or ends the connection; others
/// attach as before, and get memory that is zeroed.
pub fn attach_server(data: &[u8]) {
    let mut state = SERVED_FOR_A_WHILE.lock().expect("nobody panicked");
    if state.1 == RUDE {
        *state = (serve(), 0);
    }
    state.1 += 1;
    let served = &state.0;
    let path = served.service.attach_socket();
    let mut input = Input(data);
    let client = connect(path);
    let mut sequence = 1;
    let mut steps = 0;
    while !input.is_empty() && steps < 16 {
        steps += 1;
        sequence += 1;
        let fds: Vec<OwnedFd> = match input.below(6) {
            0..=2 => vec![pidfd()],
            3 => vec![],
            4 => (0..input.below(4)).map(|_| pidfd()).collect(),
            _ => rustix::pipe::pipe().map(|(a, b)| vec![a, b]).expect("a pipe"),
        };
        let frame = match input.below(14) {
            0 | 1 => {
                let image = input.byte().into();
                Request::Hello { version: VERSION, pid: 1, name: "x".into(), image }.encode(sequence)
            }
            2 => Request::Grow { bytes: input.number() }.encode(sequence),
            3 => Request::OpenEndpoint { block: input.number() }.encode(sequence),
            4 => Request::CloseEndpoint { slot: input.byte().into() }.encode(sequence),
            5 => {
                let version = input.byte().into();
                Request::Hello { version, pid: 1, name: String::new(), image: 0 }.encode(sequence)
            }
            6 if input.byte() == 0 => Request::Detach.encode(sequence),
            7 => object(&mut input).encode(sequence),
            8 => Request::Open { kind: kind(&mut input), name: name(&mut input), access: Access::Write }
                .encode(sequence),
            9 => Request::Close { index: input.byte().into(), incarnation: input.byte().into() }
                .encode(sequence),
            10 => {
                let (index, incarnation) = (input.byte().into(), input.byte().into());
                Request::Shrink { index, incarnation, len: input.number() }.encode(sequence)
            }
            11 => Request::Unlink { kind: kind(&mut input), name: name(&mut input) }.encode(sequence),
            12 => Request::Watch { place: input.number() }.encode(sequence),
            13 => Request::Ring { peers: input.number(), place: input.number() }.encode(sequence),
            _ => input.bytes(MAX_FRAME + 64).to_vec(),
        };
        let borrowed: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        if socket::send(&client, &frame, &borrowed, SendFlags::empty()).is_err() {
            break;
        }
        if input.below(4) != 0 && !has_no_reply(&frame) {
            // It answers, or closes; it is never silent.
            match socket::receive(&client, RecvFlags::empty()) {
                Ok(packet) if packet.frame.is_empty() => break,
                Ok(packet) => drop(Reply::decode(&packet.frame).expect("a reply that cannot be read")),
                Err(rustix::io::Errno::CONNRESET) => break,
                Err(e) => assert!(frame.is_empty(), "the server is silent: {e}"),
            }
        }
    }
    drop(client);
    // The next one gets in, and gets a place.
    for _ in 0..2000 {
        let good = connect(path);
        let hello = Request::Hello { version: VERSION, pid: 1, name: "good".into(), image: 0 }.encode(1);
        let mine = pidfd();
        socket::send(&good, &hello, &[mine.as_fd()], SendFlags::empty()).expect("the server hears");
        let packet = socket::receive(&good, RecvFlags::empty()).expect("the server answers");
        match Reply::decode(&packet.frame).expect("a reply").1 {
            Reply::Welcome(welcome) => {
                // What it is given is zeroed.
                let region = isthmus_region::membership::Region::open(&served.map).expect("a region");
                let peer = region.peer(welcome.peer).expect("in the table").expect("active");
                let section = region.section(&peer).expect("in the region");
                let first = welcome.grant.first;
                let bytes = section.bytes("area", first.offset, first.bytes).expect("inside");
                assert!(bytes.to_vec(0, first.bytes).expect("inside").iter().all(|b| *b == 0), "not zeroed");
                socket::send(&good, &Request::Detach.encode(2), &[], SendFlags::empty()).expect("it hears");
                return;
            }
            // The former one's end may not have been noticed yet.
            Reply::Refused { code: protocol::Code::Full, .. } => std::thread::sleep(Duration::from_millis(1)),
            other => panic!("a good process is not let in: {other:?}"),
        }
    }
    panic!("the region is full for good");
}

fn has_no_reply(frame: &[u8]) -> bool {
    matches!(Request::decode(frame), Ok((_, Request::Detach | Request::Wake { .. } | Request::Ring { .. })))
}

/// One of few names, so that they meet.
fn name(input: &mut Input<'_>) -> String {
    ["a", "b", "", "long"][usize::from(input.byte()) % 4].repeat(1 + usize::from(input.byte()) % 40)
}

fn kind(input: &mut Input<'_>) -> Kind {
    Kind::ALL[usize::from(input.byte()) % 2]
}

fn object(input: &mut Input<'_>) -> Request {
    let flags = input.byte();
    Request::Create(NewObject {
        kind: kind(input),
        name: name(input),
        len: input.number(),
        mode: input.byte().into(),
        ends_with_creator: flags & 1 != 0,
        params: [u64::from(flags & 4); 4],
        or_open: flags & 2 != 0,
    })
}

/// A VM that says anything to the ivshmem server and at a wake port, reads its greeting or not, and writes anything into its section.
/// The host's own processes are none the worse.
pub fn ivshmem(data: &[u8]) {
    crate::talk::without_sigpipe();
    let served = &*SERVED;
    let mut input = Input(data);
    // Each with whether its greeting was looked at; what follows comes when others come and go, or never.
    let mut vms: Vec<(UnixStream, bool)> = Vec::new();
    let mut ports: Vec<UnixStream> = Vec::new();
    let mut steps = 0;
    while !input.is_empty() && steps < 16 {
        steps += 1;
        match input.below(9) {
            0 if vms.len() < 4 => {
                let vm = UnixStream::connect(served.service.ivshmem_socket()).expect("the server listens");
                vm.set_read_timeout(Some(Duration::from_secs(10))).expect("a socket has timeouts");
                vms.push((vm, false));
            }
            1 => {
                vms.pop();
            }
            2 => {
                // QEMU says nothing; who does is not heard.
                if let Some((vm, _)) = vms.last_mut() {
                    let _ = std::io::Write::write(vm, input.bytes(256));
                }
            }
            3 => {
                if let Some((vm, looked @ false)) = vms.last_mut() {
                    *looked = true;
                    let mut first = [0; 8];
                    let got = loop {
                        match vm.read(&mut first) {
                            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                            other => break other,
                        }
                    };
                    match got {
                        Ok(got) => assert!(got == 0 || got == 8, "half a message"),
                        // Who spoke was turned away.
                        Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset),
                    }
                }
            }
            6 if ports.len() < 4 => {
                let port = UnixStream::connect(served.service.wake_socket()).expect("it listens");
                ports.push(port);
            }
            6 => drop(ports.remove(0)),
            7 => {
                let number = u32::from(input.byte());
                let frame = match input.below(6) {
                    0 => ring::hello(false).to_vec(),
                    1 => ring::hello(true).to_vec(),
                    2 if number < 128 => ring::death(number).to_vec(),
                    2 => ring::settled(number - 128).to_vec(),
                    3 if number < 128 => ring::call(number).to_vec(),
                    3 => ring::settle(number).to_vec(),
                    4 => ring::peer(number, input.number()).to_vec(),
                    _ => input.bytes(40).to_vec(),
                };
                if let Some(port) = ports.last_mut() {
                    // It may be closed already, for what it said before.
                    let _ = std::io::Write::write(port, &frame);
                }
            }
            _ => {
                let region = isthmus_region::membership::Region::open(&served.map).expect("a region");
                if let Ok(Some(peer)) = region.peer(1) {
                    let section = region.own_section(&peer).expect("in the region");
                    let at = u64::from(input.short()) * 8 * (1 + u64::from(input.below(2)) * 7);
                    let magic = isthmus_region::format::DIRECTORY_MAGIC;
                    let value = if input.below(3) == 0 { magic } else { input.number() };
                    if let Ok(word) = section.word("any", at % section.len()) {
                        word.set(value);
                    }
                }
            }
        }
    }
    let _ = served.service.stats();
    drop((vms, ports));
    let member = isthmus_attach::connect_at(served.service.attach_socket()).expect("a process attaches");
    assert!(member.region().peers().iter().any(|p| p.index == 0));
    // That it did is told, a moment later perhaps.
    let told = || *served.events.lock().expect("nobody panicked") > 0;
    assert!(
        (0..2000).any(|_| told() || {
            std::thread::sleep(Duration::from_millis(1));
            false
        }),
        "no word of it"
    );
}
