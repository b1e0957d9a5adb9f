//! Real processes attach natively, work, and die.
//!
//! A test starts this program again as its other process: the test `child`, which does what `ROLE` says.

#![allow(clippy::disallowed_types)] // orderings of the test's own threads

#[path = "processes/objects.rs"]
mod objects;
#[path = "processes/separate.rs"]
mod separate;

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use isthmus_attach::protocol::{Code, Reply, Request, VERSION};
use isthmus_attach::server::{Allowed, Ending, Event as Process};
use isthmus_attach::socket::{receive, send};
use isthmus_host::{Config, Event, Service};
use isthmus_region::Error as RegionError;
use isthmus_region::counters::Counter;
use isthmus_region::format::GlobalSlot;
use isthmus_region::member::Member;
use rustix::fs::OFlags;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, Signal};

use self::objects::segment;

const REGION: u64 = 16 << 20;
const SOON: Duration = Duration::from_secs(1);

fn start(config: Config) -> (Service, Receiver<Event>) {
    let (send, events) = channel();
    let send = Mutex::new(send);
    let service = Service::start(config, Arc::new(move |e| drop(send.lock().unwrap().send(e.clone()))));
    (service.unwrap(), events)
}

fn config(dir: &Path) -> Config {
    Config { host_name: "host".into(), ..Config::new(dir, REGION) }
}

/// Waits for an event that fits.
fn await_event<T>(events: &Receiver<Event>, fits: impl Fn(&Process) -> Option<T>) -> T {
    let deadline = Instant::now() + SOON;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match events.recv_timeout(left).expect("the event comes in time") {
            Event::Process(p) => {
                if let Some(found) = fits(&p) {
                    return found;
                }
            }
            other => panic!("unexpected {other:?}"),
        }
    }
}

fn gone(event: &Process) -> Option<(Ending, u32, Vec<u32>)> {
    match event {
        Process::Gone { ending, who, endpoints, .. } => Some((*ending, who.pid, endpoints.clone())),
        _ => None,
    }
}

fn refused(event: &Process) -> Option<String> {
    match event {
        Process::Refused { reason, .. } => Some(reason.clone()),
        _ => None,
    }
}

/// The other process of a test.
struct Other {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Other {
    fn start(role: &str, socket: &Path) -> Self {
        Self::start_as(role, socket, Command::new(std::env::current_exe().unwrap()))
    }

    fn start_as(role: &str, socket: &Path, mut command: Command) -> Self {
        let mut child = command
            .args(["--exact", "child", "--nocapture", "--include-ignored"])
            .env("ROLE", role)
            .env("ISTHMUS_SOCKET", socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut other = Self { child, input, output: BufReader::new(output) };
        other.await_line("ready");
        other
    }

    /// The rest of the first line that has `wanted` in it.
    fn await_line(&mut self, wanted: &str) -> String {
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            if let Some(at) = line.find(wanted) {
                return line[at + wanted.len()..].trim().to_owned();
            }
            line.clear();
        }
        panic!("the other process ended before it said {wanted}");
    }

    fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn open_endpoint(member: &Member) -> u32 {
    let block = member.take(64).unwrap();
    member.service().open_endpoint(block).unwrap().0
}

fn read_line() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().to_owned()
}

/// A copy of this process's connection to the service, as a forked child has one.
fn copy_of_socket() -> OwnedFd {
    let me = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap();
    let sockets = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let is_socket =
        |path: &Path| std::fs::read_link(path).is_ok_and(|l| l.to_string_lossy().starts_with("socket:"));
    let socket = sockets.map(|e| e.path()).find(|p| is_socket(p)).unwrap();
    let number = socket.file_name().unwrap().to_str().unwrap().parse().unwrap();
    rustix::process::pidfd_getfd(me, number, PidfdGetfdFlags::empty()).unwrap()
}

#[test]
#[ignore = "the other process of the tests here"]
fn child() {
    let Ok(role) = std::env::var("ROLE") else { return };
    if role == "service" {
        let path = std::env::var_os("ISTHMUS_SOCKET").unwrap();
        let _service = Service::start(config(Path::new(&path).parent().unwrap()), Arc::new(|_| ())).unwrap();
        println!("ready");
        read_line();
        return;
    }
    if role == "stranger" {
        println!("ready");
        println!("answer {}", isthmus_attach::connect().unwrap_err());
        return;
    }
    if role == "flood" {
        let member = isthmus_attach::connect().unwrap();
        println!("ready");
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    loop {
                        // At a line without a waiter, and an endpoint slot that is free.
                        member.service().ring(u64::MAX, 4096);
                        member.service().wake(GlobalSlot(0));
                    }
                });
            }
        });
    }
    if role == "holder" {
        let member = isthmus_attach::connect().unwrap();
        let kept = segment(&member, "kept", 4096, false).unwrap();
        kept.section().word("test", 0).unwrap().set(1);
        let own = segment(&member, "own", 4096, true).unwrap();
        own.section().word("test", 0).unwrap().set(2);
        println!("ready");
        // Killed here, or ended.
        read_line();
        return;
    }
    if role == "remover" {
        objects::make_and_remove_segments(&isthmus_attach::connect().unwrap());
        println!("ready");
        // At once, with what was said last still on its way.
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
    }
    let member = isthmus_attach::connect().unwrap();
    member.counters().add(Counter::TxBytes, 1000);
    open_endpoint(&member);
    println!("ready");
    // No wait for the holder: it is to outlive this process.
    #[allow(clippy::zombie_processes)]
    if role == "forked" {
        let mut sleep = Command::new("sleep");
        let held = sleep.arg("20").stdin(copy_of_socket()).stdout(Stdio::null()).spawn().unwrap();
        println!("holder {}", held.id());
    }
    match read_line().as_str() {
        "detach" => drop(member),
        "close" => rustix::net::shutdown(copy_of_socket(), rustix::net::Shutdown::Both).unwrap(),
        "exec" => {
            use std::os::unix::process::CommandExt;
            let _ = Command::new("sleep").arg("20").exec();
        }
        _ => std::process::exit(0),
    }
    read_line();
}

#[test]
fn a_process_that_floods_its_service_does_not_block_others() {
    let dir = tempfile::tempdir().unwrap();
    let (service, _events) = start(config(dir.path()));
    let _floods = [(); 2].map(|()| Other::start("flood", service.attach_socket()));
    // Each of these fails if it is not answered within ten seconds.
    let member = isthmus_attach::connect_at(service.attach_socket()).unwrap();
    for i in 0..20 {
        open_endpoint(&member);
        segment(&member, &format!("s{i}"), 64, true).unwrap();
    }
}

#[test]
fn clients_are_served_in_turn_however_many_frames_one_sends() {
    let dir = tempfile::tempdir().unwrap();
    let (tell, gone) = channel();
    let (stop, stopped) = channel::<()>();
    let (tell, stopped) = (Mutex::new(tell), Mutex::new(stopped));
    let attached = AtomicU32::new(0);
    let observe = move |event: &Event| match event {
        // The third one stops the server's thread.
        Event::Process(Process::Attached { .. }) if attached.fetch_add(1, Ordering::SeqCst) == 2 => {
            let _ = stopped.lock().unwrap().recv();
        }
        Event::Process(Process::Gone { area, .. }) => drop(tell.lock().unwrap().send(*area)),
        _ => {}
    };
    let service = Service::start(config(dir.path()), Arc::new(observe)).unwrap();
    let [much, little, _third] =
        [(); 3].map(|()| isthmus_attach::connect_at(service.attach_socket()).unwrap());
    let areas = [&much, &little].map(|member| member.party().area());
    for _ in 0..100 {
        much.service().ring(u64::MAX, 4096);
    }
    drop(much);
    drop(little);
    stop.send(()).unwrap();
    let order = [(); 2].map(|()| gone.recv_timeout(Duration::from_secs(60)).unwrap());
    assert_eq!(order, [areas[1], areas[0]], "the client with one frame is served first");
}

#[test]
fn two_processes_meet_in_the_region() {
    let dir = tempfile::tempdir().unwrap();
    let (service, events) = start(config(dir.path()));
    let mut other = Other::start("plain", service.attach_socket());
    let member = isthmus_attach::connect_at(service.attach_socket()).unwrap();
    open_endpoint(&member);
    let (_, directory) = member.directory(0).unwrap();
    let found = directory.endpoints();
    assert_eq!(found.len(), 2);
    assert!(found.iter().any(|(_, e)| e.pid == u64::from(other.child.id())));
    assert_eq!(service.stats().totals().get(Counter::TxBytes), 1000);
    other.say("detach");
    assert_eq!(await_event(&events, gone).0, Ending::Detached);
    assert_eq!(directory.endpoints().len(), 1);
    assert_eq!(service.stats().totals().get(Counter::TxBytes), 1000, "what it counted stays");
}

#[test]
fn an_observer_sees_the_region_writes_nothing_and_leaves_no_trace() {
    let dir = tempfile::tempdir().unwrap();
    let (service, events) = start(config(dir.path()));
    let patience = Duration::from_secs(2);
    let view = isthmus_attach::client::observe_at(service.attach_socket(), patience).unwrap();
    assert_eq!((view.said.region_bytes, view.said.peer, view.service), (REGION, 0, std::process::id()));
    let flags = rustix::fs::fcntl_getfl(&view.region).unwrap();
    assert_eq!(flags & rustix::fs::OFlags::ACCMODE, rustix::fs::OFlags::RDONLY);
    assert!(isthmus_region::Mapping::map(view.region.as_fd(), REGION).is_err(), "no mapping that writes");
    let reader = isthmus_region::reader::Reader::new(view.region).unwrap();
    let mut magic = [0; 8];
    reader.bytes("magic", 0, &mut magic).unwrap();
    assert_eq!((&magic, reader.is_memory()), (b"ISTHMUS1", true));
    // Another version is refused, and a client that goes without a Hello causes no event.
    let socket = raw(service.attach_socket());
    send(&socket, &Request::Observe { version: 99, file: 0 }.encode(1), &[], SendFlags::empty()).unwrap();
    let answer = Reply::decode(&receive(&socket, RecvFlags::empty()).unwrap().frame).unwrap();
    assert!(matches!(answer, (1, Reply::Refused { code: Code::Version, .. })), "{answer:?}");
    await_event(&events, refused);
    assert!(events.try_recv().is_err(), "nothing else happened");
}

#[test]
fn a_death_is_noticed_while_a_child_holds_the_socket() {
    let dir = tempfile::tempdir().unwrap();
    let (service, events) = start(config(dir.path()));
    let member = isthmus_attach::connect_at(service.attach_socket()).unwrap();
    let mut other = Other::start("forked", service.attach_socket());
    let holder: i32 = other.await_line("holder ").parse().unwrap();
    let (_, directory) = member.directory(0).unwrap();
    assert_eq!(directory.endpoints().len(), 1);
    let killed = Instant::now();
    other.child.kill().unwrap();
    let (ending, pid, endpoints) = await_event(&events, gone);
    let late = killed.elapsed();
    assert_eq!((ending, pid, endpoints.len()), (Ending::Died, other.child.id(), 1));
    assert!(late < Duration::from_millis(500), "{late:?}");
    assert!(directory.endpoints().is_empty());
    let holder = rustix::process::Pid::from_raw(holder).unwrap();
    rustix::process::kill_process(holder, Signal::KILL).expect("the holder outlived its parent");
}

#[test]
fn exec_and_exit_end_an_attachment() {
    let dir = tempfile::tempdir().unwrap();
    let (service, events) = start(config(dir.path()));
    for (word, ending) in [("exec", Ending::Closed), ("exit", Ending::Died)] {
        let mut other = Other::start("plain", service.attach_socket());
        other.say(word);
        assert_eq!(await_event(&events, gone).0, ending, "{word}");
    }
}

/// A service that waited for each, whether its process dies, would take half a second for these, and nobody else had a turn.
#[test]
fn connections_that_a_living_process_closes_hold_up_nobody() {
    const MANY: usize = 100;
    let dir = tempfile::tempdir().unwrap();
    let (service, events) = start(config(dir.path()));
    let member = isthmus_attach::connect_at(service.attach_socket()).unwrap();
    let pidfd = own_pidfd();
    let attach = |_| {
        let socket = raw(service.attach_socket());
        send(&socket, &hello(VERSION), &[pidfd.as_fd()], SendFlags::empty()).unwrap();
        assert!(!receive(&socket, RecvFlags::empty()).unwrap().fds.is_empty());
        socket
    };
    drop((0..MANY).map(attach).collect::<Vec<_>>());
    let begun = Instant::now();
    open_endpoint(&member);
    let took = begun.elapsed();
    assert!(took < Duration::from_millis(250), "another process waited for {took:?}");
    for _ in 0..MANY {
        assert_eq!(await_event(&events, gone).0, Ending::Closed);
    }
}

#[test]
fn memory_of_a_process_that_runs_on_is_given_to_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let (service, events) = start(config(dir.path()));
    let member = isthmus_attach::connect_at(service.attach_socket()).unwrap();
    let (_, directory) = member.directory(0).unwrap();
    let before = directory.heap_used();
    let mut other = Other::start("plain", service.attach_socket());
    let with = directory.heap_used();
    other.say("close");
    assert_eq!(await_event(&events, gone).0, Ending::Closed);
    assert!(directory.endpoints().is_empty(), "its death is published all the same");
    assert_eq!(directory.heap_used(), with, "it may still write there");
    other.child.kill().unwrap();
    let deadline = Instant::now() + SOON;
    while directory.heap_used() != before {
        assert!(Instant::now() < deadline, "its memory is free once it is dead");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_full_section_is_a_clear_error_and_others_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let (service, events) = start(config(dir.path()));
    let member = isthmus_attach::connect_at(service.attach_socket()).unwrap();
    let mut taken = 0;
    let error = loop {
        match member.take(1 << 20) {
            Ok(_) => taken += 1,
            Err(e) => break e,
        }
    };
    assert!(taken >= 12, "{taken} of 16 MiB could be had");
    assert!(matches!(error, RegionError::Full { .. }), "{error}");
    assert!(error.to_string().contains("--region-size"), "{error}");
    open_endpoint(&member);
    while member.take(64).is_ok() {}
    let refused_attach = isthmus_attach::connect_at(service.attach_socket()).unwrap_err();
    assert!(matches!(refused_attach, isthmus_attach::Error::Refused { code: Code::Full, .. }));
    drop(member);
    await_event(&events, gone);
    isthmus_attach::connect_at(service.attach_socket()).unwrap();
}

#[test]
fn members_outlive_their_service_and_say_that_it_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let mut server = Other::start("service", &socket);
    let member = isthmus_attach::connect_at(&socket).unwrap();
    open_endpoint(&member);
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let error = member.service().open_endpoint(member.grant().first.offset).unwrap_err().to_string();
    assert!(error.contains("has ended or was killed") && error.contains("socket"), "{error}");
    member.counters().add(Counter::TxBytes, 1);
    assert_eq!(member.directory(0).unwrap().1.endpoints().len(), 1);
    let error = isthmus_attach::connect_at(&socket).unwrap_err().to_string();
    assert!(error.contains(socket.to_str().unwrap()), "{error}");
    // A new service takes over the name that the dead one left.
    let (service, _events) = start(config(dir.path()));
    isthmus_attach::connect_at(service.attach_socket()).unwrap();
    let second = Service::start(config(dir.path()), Arc::new(|_| ())).unwrap_err().to_string();
    assert!(second.contains("another service is running"), "{second}");
    service.stop();
    assert!(!socket.exists() && !dir.path().join("ivshmem").exists());
}

fn raw(path: &Path) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

fn hello(version: u32) -> Vec<u8> {
    hello_of(version, 0)
}

fn hello_of(version: u32, image: u64) -> Vec<u8> {
    Request::Hello { version, pid: 1, name: "test".into(), image }.encode(7)
}

fn own_pidfd() -> OwnedFd {
    rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap()
}

/// The service's last refusal, after which it closes the connection.
fn last_words(socket: &OwnedFd) -> (u64, Code, String) {
    let mut last = None;
    loop {
        let mut poll = [rustix::event::PollFd::new(socket, rustix::event::PollFlags::IN)];
        let patience = rustix::event::Timespec { tv_sec: 2, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut poll, Some(&patience)), Ok(1), "the service hangs");
        match receive(socket, RecvFlags::DONTWAIT) {
            Ok(packet) if packet.frame.is_empty() => return last.expect("a reason comes before the end"),
            Ok(packet) => match Reply::decode(&packet.frame).unwrap() {
                (sequence, Reply::Refused { code, text }) => last = Some((sequence, code, text)),
                other => panic!("{other:?}"),
            },
            Err(rustix::io::Errno::CONNRESET) => {}
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn garbage_gets_an_error_and_a_closed_connection() {
    let dir = tempfile::tempdir().unwrap();
    let (service, _events) = start(config(dir.path()));
    let path = service.attach_socket();
    let pidfd = own_pidfd();
    let other = Command::new("sleep").arg("20").spawn().unwrap();
    let other_pid = rustix::process::Pid::from_child(&other);
    let others = rustix::process::pidfd_open(other_pid, PidfdFlags::empty()).unwrap();
    let file: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let mut long = hello(VERSION);
    long.resize(5000, 0);
    let mut lying = hello(VERSION);
    lying[4] = 0xff;
    let cases: [(&[u8], Vec<&OwnedFd>, Code); 11] = [
        (b"x", vec![], Code::BadFrame),
        (&[0xff; 16], vec![], Code::BadFrame),
        (&[0; 1024], vec![], Code::BadFrame),
        (&long, vec![&pidfd], Code::BadFrame),
        (&lying, vec![&pidfd], Code::BadFrame),
        (&Request::Grow { bytes: 1 }.encode(7), vec![], Code::BadFrame),
        (&hello(VERSION + 1), vec![&pidfd], Code::Version),
        (&hello(VERSION), vec![], Code::Invalid),
        (&hello(VERSION), vec![&pidfd, &pidfd], Code::Invalid),
        (&hello(VERSION), vec![&file], Code::NotAllowed),
        (&hello(VERSION), vec![&others], Code::NotAllowed),
    ];
    for (i, (frame, fds, code)) in cases.iter().enumerate() {
        let socket = raw(path);
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        send(&socket, frame, &fds, SendFlags::empty()).unwrap();
        let (_, found, text) = last_words(&socket);
        assert_eq!(found, *code, "case {i}: {text}");
    }
    // The same after a Hello that was fine; the area is kept from others, since its process (this one) lives on.
    for frame in [b"junk".to_vec(), hello(VERSION), vec![0; 900]] {
        let socket = raw(path);
        send(&socket, &hello(VERSION), &[pidfd.as_fd()], SendFlags::empty()).unwrap();
        let packet = receive(&socket, RecvFlags::empty()).unwrap();
        assert!(matches!(Reply::decode(&packet.frame), Ok((7, Reply::Welcome(_)))));
        assert_eq!(packet.fds.len(), 1);
        send(&socket, &frame, &[], SendFlags::empty()).unwrap();
        assert_eq!(last_words(&socket).1, Code::BadFrame);
    }
    // Values that are wrong are refused, and the connection stays.
    let member = isthmus_attach::connect_at(path).unwrap();
    assert!(member.service().open_endpoint(u64::MAX).is_err());
    assert!(member.service().open_endpoint(3).is_err());
    assert!(member.service().close_endpoint(0).is_err());
    assert!(member.service().close_endpoint(u32::MAX).is_err());
    assert!(member.service().grow(u64::MAX).is_err());
    open_endpoint(&member);
    let heap = member.directory(0).unwrap().1.heap_used();
    assert_eq!(heap, 4 * isthmus_attach::server::AREA_BYTES, "nothing but this member's and those three");
    let _ = rustix::process::kill_process(other_pid, Signal::KILL);
    let _ = { other }.wait();
}

/// One process throughout: what an exec changes is the image alone, and that its descriptors are closed, or its children's left.
#[test]
fn the_memory_that_a_process_had_before_an_exec_is_taken_back_when_it_attaches_again() {
    let dir = tempfile::tempdir().unwrap();
    let (service, events) = start(config(dir.path()));
    let path = service.attach_socket();
    let pidfd = own_pidfd();
    let attach = |image| {
        let socket = raw(path);
        send(&socket, &hello_of(VERSION, image), &[pidfd.as_fd()], SendFlags::empty()).unwrap();
        let packet = receive(&socket, RecvFlags::empty()).unwrap();
        let (7, Reply::Welcome(welcome)) = Reply::decode(&packet.frame).unwrap() else { panic!() };
        (socket, welcome.former)
    };
    let forget = |socket: &OwnedFd| {
        send(socket, &Request::Forget.encode(8), &[], SendFlags::empty()).unwrap();
        let packet = receive(socket, RecvFlags::empty()).unwrap();
        assert_eq!(Reply::decode(&packet.frame).unwrap(), (8, Reply::Done));
    };
    // With the image of this program.
    let observer = isthmus_attach::connect_at(path).unwrap();
    assert!(!observer.service().has_former());
    let areas = || observer.directory(0).unwrap().1.heap_used() / isthmus_attach::server::AREA_BYTES - 1;
    let unknown = attach(0);
    drop(attach(0));
    assert_eq!(await_event(&events, gone).0, Ending::Closed);
    assert_eq!((areas(), unknown.1), (2, 0));
    // The observer's attachment is now that of another program, and so is each one that comes before the next.
    let (first, former) = attach(1);
    assert_eq!((await_event(&events, gone).0, former), (Ending::Executed, 1));
    assert!(observer.service().has_ended(), "its connection");
    assert_eq!(areas(), 3, "it may still be writing to all of them");
    // The observer's own is still counted, until it is forgotten.
    forget(&first);
    let areas = || areas() + 1;
    assert_eq!(areas(), 3);
    let mut lasting = vec![first];
    // 300 programs, one after the other, as a shell executes them; every second one has a child that holds its socket, and every third
    // does not say that it forgets.
    let mut kept = 1;
    for image in 2..302 {
        let (socket, former) = attach(image);
        assert_eq!(u64::from(former), kept);
        assert_eq!(areas(), 3 + kept);
        if image % 3 != 0 {
            forget(&socket);
            assert_eq!(areas(), 3, "two whose image is not known, and this one's");
            kept = 0;
        }
        kept += 1;
        if image % 2 == 0 {
            lasting.push(socket);
        }
    }
    service.stop();
}

#[test]
fn a_client_that_does_not_read_does_not_block_others() {
    let dir = tempfile::tempdir().unwrap();
    let (service, events) = start(config(dir.path()));
    let socket = raw(service.attach_socket());
    let pidfd = own_pidfd();
    send(&socket, &hello(VERSION), &[pidfd.as_fd()], SendFlags::empty()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    while send(&socket, &Request::CloseEndpoint { slot: 0 }.encode(1), &[], SendFlags::empty()).is_ok() {
        assert!(Instant::now() < deadline, "the service swallows everything");
    }
    assert_eq!(await_event(&events, gone).0, Ending::Dropped);
    isthmus_attach::connect_at(service.attach_socket()).unwrap();
}

#[test]
fn a_client_that_spoils_its_bell_does_not_block_others() {
    let dir = tempfile::tempdir().unwrap();
    let (service, _events) = start(config(dir.path()));
    let member = isthmus_attach::connect_at(service.attach_socket()).unwrap();
    let slot = open_endpoint(&member);
    let bell = member.service().bell(slot).unwrap();
    // Were it an eventfd, the service's next write to it would block now.
    rustix::fs::fcntl_setfl(&bell, OFlags::empty()).unwrap();
    let _ = rustix::io::write(&bell, &(u64::MAX - 1).to_ne_bytes());
    // More than a pipe holds, and a death.
    for _ in 0..20_000 {
        member.service().wake(GlobalSlot(slot));
    }
    drop(isthmus_attach::connect_at(service.attach_socket()).unwrap());
    isthmus_attach::connect_at(service.attach_socket()).unwrap();
    rustix::fs::fcntl_setfl(&bell, OFlags::NONBLOCK).unwrap();
    assert!(isthmus_region::doorbell::drain(bell.as_fd()), "it was rung");
}

#[test]
fn hundreds_attach_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let (service, events) = start(Config { area_bytes: 16 << 10, ..config(dir.path()) });
    let begun = Instant::now();
    let members: Vec<_> =
        (0..240).map(|_| isthmus_attach::connect_at(service.attach_socket()).unwrap()).collect();
    for member in &members {
        open_endpoint(member);
    }
    let directory = members[0].directory(0).unwrap().1;
    assert_eq!(directory.endpoints().len(), 240);
    drop(members);
    for _ in 0..240 {
        await_event(&events, gone);
    }
    assert_eq!((directory.endpoints().len(), directory.heap_used()), (0, 0));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[test]
fn strangers_are_turned_away() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    if !rustix::process::getuid().is_root() {
        // Not by println!, which the harness keeps to itself where a test passes.
        let _ =
            std::io::stderr().write_all(b"\nskipped: strangers are turned away: only root can become one\n");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    // A folder that a stranger may enter, and a program that it may read.
    let program = dir.path().join("program");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let sockets = dir.path().join("sockets");
    std::fs::create_dir(&sockets).unwrap();
    std::fs::set_permissions(&sockets, std::fs::Permissions::from_mode(0o755)).unwrap();
    let allowed = Allowed::Users(vec![]);
    let (service, events) = start(Config { mode: 0o666, allowed, ..config(&sockets) });
    let mut command = Command::new(program);
    command.uid(65534).gid(65534);
    let mut other = Other::start_as("stranger", service.attach_socket(), command);
    let answer = other.await_line("answer ");
    assert!(answer.contains("user 65534 may not attach here"), "{answer}");
    assert!(await_event(&events, refused).contains("65534"));
}
