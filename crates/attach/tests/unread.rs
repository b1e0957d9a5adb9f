//! Answers with descriptors that nobody reads: whoever lets them lie is refused more, and nobody else.

mod common;

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use isthmus_attach::protocol::{Code, Reply, Request, VERSION};
use isthmus_attach::server::{Allowed, Event, Server};
use isthmus_attach::{Error, client, socket};
use isthmus_region::format::block;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Resource, Rlimit, Uid, getuid, setrlimit};

/// Users that no test runs as.
const OTHERS: [u32; 2] = [65533, 65532];
const PATIENCE: Duration = Duration::from_secs(10);

fn serve(path: &Path) -> (Server, Receiver<Event>) {
    let (say, events) = channel();
    let tell = move |event: &Event| drop(say.send(event.clone()));
    (common::serve(path, Allowed::Everybody, tell), events)
}

/// A folder that all users may enter, and write to.
fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let open_to_all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(dir.path(), open_to_all).unwrap();
    dir
}

/// What `act` gives on a thread of another user.
fn as_user<T: Send>(user: u32, act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|threads| {
        let thread = threads.spawn(|| {
            rustix::thread::set_thread_uid(Uid::from_raw(user)).unwrap();
            act()
        });
        thread.join().unwrap()
    })
}

fn is_root() -> bool {
    let is = getuid().is_root();
    if !is {
        // Not by println!, which the harness keeps to itself where a test passes.
        let _ = std::io::Write::write_all(&mut std::io::stderr(), b"\nskipped: only root is several users\n");
    }
    is
}

/// An observer that has asked.
fn ask(path: &Path) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    let frame = Request::Observe { version: VERSION, file: 0 }.encode(1);
    socket::send(&socket, &frame, &[], SendFlags::empty()).unwrap();
    socket
}

/// Its answer; none if the connection ends without one.
fn answer(socket: &OwnedFd) -> Option<Reply> {
    let packet = match socket::receive(socket, RecvFlags::empty()) {
        // The service has closed with a frame of ours unread; that is told once.
        Err(rustix::io::Errno::CONNRESET) => socket::receive(socket, RecvFlags::empty()),
        received => received,
    };
    let packet = packet.unwrap();
    (!packet.frame.is_empty()).then(|| Reply::decode(&packet.frame).unwrap().1)
}

fn is_refused(reply: &Option<Reply>) -> bool {
    matches!(reply, Some(Reply::Refused { text, .. }) if text.contains("read"))
}

#[test]
fn an_observer_that_does_not_read_stops_its_own_user_and_no_other() {
    let dir = folder();
    let path = dir.path().join("socket");
    let (_server, _events) = serve(&path);
    // What it does to its own end changes nothing.
    let silent: Vec<OwnedFd> = (0..200)
        .map(|number| {
            let socket = ask(&path);
            // Until it was heard.
            let mut poll = [rustix::event::PollFd::new(&socket, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut poll, None).unwrap();
            if number % 2 == 0 {
                rustix::net::shutdown(&socket, Shutdown::Both).unwrap();
            }
            socket
        })
        .collect();
    let attempt = client::observe_at(&path, PATIENCE);
    let text = attempt.err().map(|e| e.to_string()).unwrap_or_default();
    assert!(text.contains("answers are not read"), "{text}");
    assert!(matches!(client::connect_at(&path), Err(Error::Refused { code: Code::Full, .. })));
    if is_root() {
        for user in OTHERS {
            as_user(user, || client::observe_at(&path, PATIENCE).map(drop)).unwrap();
        }
    }
    let given = silent.iter().filter(|socket| !is_refused(&answer(socket))).count();
    assert!((1..=64).contains(&given), "{given}");
    // They have read, and have not closed their ends.
    client::observe_at(&path, PATIENCE).unwrap();
}

#[test]
fn a_process_that_comes_and_goes_without_reading_is_refused() {
    let dir = folder();
    let path = dir.path().join("socket");
    let (_server, _events) = serve(&path);
    let mut kept = Vec::new();
    let comes = || {
        let flags = SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        let me = rustix::process::getpid();
        let pidfd = rustix::process::pidfd_open(me, rustix::process::PidfdFlags::empty()).unwrap();
        let pid = std::process::id();
        let hello = Request::Hello { version: VERSION, pid, name: "t".into(), image: 0 };
        socket::send(&socket, &hello.encode(1), &[pidfd.as_fd()], SendFlags::empty()).unwrap();
        // A service that has refused the first one has closed its end.
        let sent = socket::send(&socket, &Request::Detach.encode(0), &[], SendFlags::empty());
        assert!(
            matches!(sent, Ok(()) | Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET)),
            "{sent:?}"
        );
        socket
    };
    for _ in 0..80 {
        let socket = comes();
        let mut poll = [rustix::event::PollFd::new(&socket, rustix::event::PollFlags::RDHUP)];
        rustix::event::poll(&mut poll, None).unwrap();
        kept.push(socket);
    }
    assert!(is_refused(&answer(&kept.pop().unwrap())));
    drop(kept);
    client::observe_at(&path, PATIENCE).unwrap();
}

#[test]
fn where_no_descriptor_can_be_sent_processes_hear_why_and_stay() {
    if !is_root() {
        return;
    }
    // Of the whole process: other tests need fewer.
    let most = 1500;
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum }).unwrap();
    let dir = folder();
    let path = dir.path().join("socket");
    // A process of another user than the service's, which can send.
    let (come, coming) = channel::<()>();
    let (say, said) = channel();
    let newcomer = path.clone();
    let root = std::thread::spawn(move || {
        for () in coming {
            say.send(client::connect_at(&newcomer).map(drop)).unwrap();
        }
    });
    // Root may have any number.
    as_user(OTHERS[0], move || {
        let (server, events) = serve(&path);
        let member = client::connect_at(&path).unwrap();
        let at = member.take(block::BYTES).unwrap();
        let (slot, _) = member.service().open_endpoint(at).unwrap();
        let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        let mut full = Vec::new();
        let is_full = |full: &mut Vec<_>| {
            let pair =
                rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
            let (one, two) = pair.unwrap();
            let sent = loop {
                match socket::send(&one, b"x", &[null.as_fd(); 4], SendFlags::DONTWAIT) {
                    Ok(()) => {}
                    Err(e) => break e,
                }
            };
            full.push((one, two));
            sent == rustix::io::Errno::TOOMANYREFS
        };
        while !is_full(&mut full) {}
        let begun = Instant::now();
        for _ in 0..3 {
            assert!(is_refused(&answer(&ask(&path))), "an observer");
        }
        let why = member.service().bell(slot).unwrap_err().to_string();
        assert!(why.contains("do not read what they were sent"), "{why}");
        come.send(()).unwrap();
        let attempt = said.recv().unwrap();
        assert!(matches!(attempt, Err(Error::Refused { code: Code::Failed, .. })), "{attempt:?}");
        full.clear();
        client::observe_at(&path, PATIENCE).unwrap();
        member.service().bell(slot).expect("it is attached");
        assert!(begun.elapsed() < Duration::from_secs(50));
        drop((member, server));
        let told = |e: &Event| matches!(e, Event::Trouble { reason } if reason.contains("do not read"));
        assert_eq!(events.try_iter().filter(told).count(), 1);
        drop(come);
    });
    root.join().unwrap();
}
