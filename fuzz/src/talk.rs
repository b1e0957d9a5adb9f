#![allow(clippy::disallowed_types)] // orderings of the test's own threads
// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the launcher's side and the agents in VMs say to each other.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use isthmus_guest::control::{ToGuest, ToHost};
use isthmus_guest::wire::mux::Mux;
use isthmus_guest::wire::{Decoder, Exit, Frame, Kind, Request};
use isthmus_run::machines::Machine;
use isthmus_run::switch::{AGENT_SOCKET, Announce, Announced, News, Ports, Switch};
use rustix::event::Timespec;

use crate::input::Input;

/// Frames, requests, exits and control messages: read at once or in pieces, the same comes out.
pub fn wire(data: &[u8]) {
    let mut input = Input(data);
    let piece = 1 + usize::from(input.byte());
    let bytes = input.0;
    let mut at_once = Vec::new();
    let mut rest = bytes;
    let mut clean = true;
    loop {
        match Frame::read_from(&mut rest) {
            Ok(frame) => at_once.push(frame),
            Err(isthmus_guest::wire::WireError::BadFrame { .. }) => {
                clean = false;
                break;
            }
            Err(_) => break,
        }
    }
    let mut in_pieces = Vec::new();
    let mut decoder = Decoder::default();
    let mut good = true;
    'pieces: for part in bytes.chunks(piece) {
        decoder.push(part);
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => in_pieces.push(frame),
                Ok(None) => break,
                Err(_) => {
                    good = false;
                    break 'pieces;
                }
            }
        }
    }
    assert_eq!(at_once, in_pieces, "frames depend on how they are read");
    assert!(clean == good || bytes.len() < 12, "only one of two readers saw a bad frame");
    for frame in &at_once {
        assert!(bytes.windows(frame.bytes().len()).any(|w| w == frame.bytes()), "a frame is not what it was");
        let _ = (frame.number(), frame.port(), frame.text(), frame.check_hello());
        payload(&frame.payload);
    }
    payload(bytes);
}

fn payload(bytes: &[u8]) {
    if let Ok(request) = Request::decode(bytes) {
        assert_eq!(request.encode(), bytes, "a request is not what it was");
    }
    if let Ok(exit) = Exit::decode(bytes) {
        assert_eq!(exit.encode().as_slice(), bytes, "an exit is not what it was");
    }
    let _: Result<ToGuest, _> = serde_json::from_slice(bytes);
    let _: Result<ToHost, _> = serde_json::from_slice(bytes);
    let _: Result<Announce, _> = serde_json::from_slice(bytes);
    let _: Result<Announced, _> = serde_json::from_slice(bytes);
}

/// A frame of the input's choice, often one that makes sense.
fn frame(input: &mut Input<'_>) -> Vec<u8> {
    let stream = u32::from(input.below(4));
    let channel = input.below(3);
    let (kind, payload): (Kind, Vec<u8>) = match input.below(14) {
        0 | 1 => (Kind::Data, vec![7; 1 + usize::from(input.short()) % 16_000]),
        2 => (Kind::Credit, u32::try_from(input.number() & 0xffff_ffff).unwrap_or(0).to_le_bytes().to_vec()),
        3 => (Kind::End, Vec::new()),
        4 => (Kind::Stop, Vec::new()),
        5 => (Kind::Open, input.short().to_le_bytes().to_vec()),
        6 => (Kind::Listening, vec![input.byte(), input.byte(), input.byte(), input.byte()]),
        7 => (Kind::Close, Vec::new()),
        8 => (Kind::Refused, b"no".to_vec()),
        9 => (Kind::Exited, vec![input.byte(), input.byte(), 0, 0, 0]),
        10 => (Kind::Control, input.bytes(200).to_vec()),
        11 => (Kind::Start, input.bytes(200).to_vec()),
        12 => return input.bytes(64).to_vec(),
        _ => return Frame::hello().bytes(),
    };
    if Frame::fits(kind, payload.len()) {
        Frame::of_channel(kind, stream, channel, payload).bytes()
    } else {
        Vec::new()
    }
}

const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// What a mux may keep of what the other side sends without reading, and some more.
const MOST_KEPT: usize = 4 << 20;

/// A connection with streams, whose other side says anything: it goes on or ends with an error, and keeps no more than
/// it granted.
pub fn mux(data: &[u8]) {
    without_sigpipe();
    let mut input = Input(data);
    let (mut other, own) = UnixStream::pair().expect("a pair of sockets");
    other.set_nonblocking(true).expect("a socket can be");
    let mut mux = Mux::new(own.into()).expect("a mux");
    if input.below(8) != 0 {
        other.write_all(&Frame::hello().bytes()).expect("there is room");
    }
    let (source, mut feed) = std::io::pipe().expect("a pipe");
    let (_drain, sink) = std::io::pipe().expect("a pipe");
    mux.add_source((1, 0), source.into());
    mux.add_sink((1, 1), sink.into());
    feed.write_all(&[1; 4096]).expect("a pipe has room");
    let mut sent = 0;
    while !input.is_empty() && sent < MOST_KEPT {
        let bytes = frame(&mut input);
        sent += bytes.len();
        if other.write_all(&bytes).is_err() {
            break;
        }
        if input.below(3) == 0 {
            let _ = other.read(&mut [0; 4096]);
        }
        match mux.wait(&[], Some(&AT_ONCE)) {
            Ok(turn) => {
                if let Some(asked) = turn.frame {
                    match asked.kind {
                        Kind::Close | Kind::Refused => mux.drop_stream(asked.stream),
                        Kind::Open => mux.send(&Frame::new(Kind::Close, asked.stream, [])),
                        _ => {}
                    }
                }
            }
            Err(_) => break,
        }
    }
}

/// VMs of one switch; each input takes the next, as an end of a VM is for good.
const VMS: usize = 64;

struct Switched {
    _dir: tempfile::TempDir,
    _switch: Switch,
    vms: Vec<Option<Machine>>,
    ends: Vec<[UnixStream; 3]>,
    path: std::path::PathBuf,
    news: Arc<Mutex<BTreeMap<usize, bool>>>,
}

fn switched() -> Switched {
    let dir = tempfile::tempdir().expect("a place for a socket");
    let news = Arc::new(Mutex::new(BTreeMap::new()));
    let (mut vms, mut ports, mut ends) = (Vec::new(), Vec::new(), Vec::new());
    for index in 0..VMS {
        let pairs: [_; 3] = std::array::from_fn(|_| UnixStream::pair().expect("a pair of sockets"));
        let [(exec, e), (relay, r), (control, c)] = pairs;
        let machine = Machine {
            name: format!("vm{index}"),
            address: Ipv4Addr::LOCALHOST,
            exec,
            relay,
            control,
            pid: rustix::process::getpid(),
            console: Box::new(Vec::new),
            keep: Box::new(()),
        };
        ports.push(Ports::of(&machine).expect("descriptors"));
        ends.push([e, r, c]);
        vms.push(Some(machine));
    }
    let told = Arc::clone(&news);
    let switch = Switch::start(dir.path(), ports, None, Duration::ZERO, move |n| {
        if let News::Lost { vm, .. } = n {
            told.lock().expect("nobody panicked").insert(vm, true);
        }
    })
    .expect("a switch");
    let path = dir.path().join(AGENT_SOCKET);
    Switched { _dir: dir, _switch: switch, vms, ends, path, news }
}

/// Without Rust's own start of a program, as under libFuzzer, a write to who is gone would end the process. The handler
/// does nothing, and the write fails instead.
pub(crate) fn without_sigpipe() {
    static DONE: LazyLock<()> = LazyLock::new(|| {
        let nobody = Arc::new(std::sync::atomic::AtomicBool::new(false));
        signal_hook::flag::register(signal_hook::consts::SIGPIPE, nobody).expect("a handler");
    });
    LazyLock::force(&DONE);
}

static SWITCHED: LazyLock<Mutex<Switched>> = LazyLock::new(|| Mutex::new(switched()));
static NEXT: AtomicUsize = AtomicUsize::new(0);
/// Somebody of the host whom no launcher announced: nothing may ever connect here.
static FORBIDDEN: LazyLock<TcpListener> = LazyLock::new(|| {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    listener.set_nonblocking(true).expect("a socket can be");
    listener
});

/// The launcher's switch between a VM and an agent, both of which say anything. The VM is lost or goes on; others are
/// not touched, and no connection is made that was not announced.
pub fn relay(data: &[u8]) {
    without_sigpipe();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut guard = SWITCHED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // The last VM of a switch is the one that nobody touches.
    let index = number % (VMS - 1);
    if index == 0 && number > 0 {
        *guard = switched();
    }
    let world = &mut *guard;
    let forbidden = FORBIDDEN.local_addr().expect("a port").port();
    let mut input = Input(data);
    for end in &world.ends[index] {
        end.set_nonblocking(true).expect("a socket can be");
    }
    let mut agent = UnixStream::connect(&world.path).expect("the switch listens");
    agent.set_nonblocking(true).expect("a socket can be");
    let mut steps = 0;
    let mut scratch = [0; 4096];
    while !input.is_empty() && steps < 32 {
        steps += 1;
        let which = usize::from(input.below(4));
        let bytes = match input.below(4) {
            0 if which == 3 => {
                let ports = vec![(1, vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 1))])];
                let announce = Announce { host: format!("vm{index}"), ports, visitor: input.below(2) == 0 };
                let text = serde_json::to_vec(&announce).expect("it has only strings and numbers");
                Frame::new(Kind::Announce, 0, text).bytes()
            }
            0 if which == 1 => Frame::new(Kind::Open, 1, forbidden.to_le_bytes()).bytes(),
            0 | 1 => Frame::hello().bytes(),
            _ => frame(&mut input),
        };
        let mut to: &UnixStream = if which == 3 { &agent } else { &world.ends[index][which] };
        let _ = to.write(&bytes);
        if input.below(2) == 0 {
            let _ = to.read(&mut scratch);
        }
    }
    // The end of one port ends the VM; every agent of it is let go.
    world.vms[index] = None;
    for end in &world.ends[index] {
        let _ = end.shutdown(std::net::Shutdown::Both);
    }
    let _ = agent.shutdown(std::net::Shutdown::Write);
    for _ in 0..5000 {
        if world.news.lock().expect("nobody panicked").contains_key(&index) {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let lost = world.news.lock().expect("nobody panicked").clone();
    assert!(lost.contains_key(&index), "a VM whose ports ended is not lost");
    assert!(!lost.contains_key(&(VMS - 1)), "another VM was lost with it");
    assert!(FORBIDDEN.accept().is_err(), "a connection that no launcher announced");
    let _ = agent.read(&mut scratch);
}
