//! Frames between the switch's clients and VMs, and the host side of the relay.
//!
//! ```text
//!  isthmus-rsh ──socket "agents"──► one thread per client ─┐ streams get numbers of their own
//!  isthmus exec ─────────────────►                         ├──► exec port of a VM
//!  mpirun ◄──TCP── relay thread of a VM ◄─────────────────────── relay port of a VM
//!  job    ◄──news── control thread of a VM ◄──────────────────── control port of a VM
//! ```
//!
//! A *client* stands for one process in a VM: a remote shell for a daemon of the MPI, or a visitor for a command of a user.
//!
//! A VM's threads end with its ports, and then all of its streams are closed at once, so that a launcher
//! notices. Whatever a VM sends, the switch keeps no more of it than its clients' credit allows; a VM that breaks the
//! protocol is lost to the run.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use isthmus_guest::control::{self, Changes, ToGuest, ToHost};
use isthmus_guest::relay::{MAX_STREAMS, Ports as Relayed, carry};
use isthmus_guest::wire::mux::{Mux, set_nonblocking};
use isthmus_guest::wire::{CHANNEL_IN, CHANNEL_OUT, Exit, Frame, Kind, Request, WireError, line};
use isthmus_region::room::limit_told;
use isthmus_region::shared_by_threads::{Count, Flag};
use serde::{Deserialize, Serialize};

use crate::client::Client;
use crate::error::{Error, Result, tell};
use crate::machines::Machine;

/// The socket in the run's directory at which clients connect.
pub const AGENT_SOCKET: &str = "agents";
/// How long the launcher may take to accept a relayed connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// How long a guest may take to listen at a port, at least: as long as it may take to boot, if that is longer.
const LISTEN_LIMIT: Duration = Duration::from_secs(10);
/// How long a visitor waits for the run to have started its job.
const JOB_LIMIT: Duration = Duration::from_secs(120);
/// How long to leave clients waiting when there are no descriptors for them.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long a client may take to read the answer to its announcement.
const CLIENT_LIMIT: Duration = Duration::from_secs(10);
/// So many messages of a VM are heard at once, and one more for each pause: the job keeps all that it has not come to yet.
const HEARD_AT_ONCE: u32 = 256;
const HEARD_PAUSE: Duration = Duration::from_secs(1);
/// So many connections of a VM may be refused before it is lost.
const MOST_REFUSED: usize = 1000;

/// What a client says first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Announce {
    /// The host name that it was given.
    pub host: String,
    /// The ports that its command will connect to, and where they really are.
    pub ports: Vec<(u16, Vec<SocketAddr>)>,
    /// A user's command rather than a remote shell of the MPI: it is started as the job itself was, and its processes do
    /// not affect the run's exit status.
    #[serde(default)]
    pub visitor: bool,
}

/// The answer to [`Announce`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Announced {
    /// The address to use in the VM: its own, where the relay listens, or the launcher's.
    pub address: Ipv4Addr,
    /// Each announced port, and where it is at that address.
    pub ports: BTreeMap<u16, u16>,
}

/// What the job hears.
#[derive(Debug)]
pub enum News {
    /// All three ports of a VM have answered, and its agent says that it is ready.
    Up {
        /// Which.
        vm: usize,
    },
    /// A VM is gone, or of no use any more.
    Lost {
        /// Which.
        vm: usize,
        /// Why.
        why: String,
    },
    /// Which files vanish with a VM.
    Changes {
        /// Which.
        vm: usize,
        /// The files.
        changes: Changes,
    },
    /// A VM says something worth a line.
    Note {
        /// The line, with the VM's name.
        text: String,
    },
    /// A process that a remote shell asked for, that is, a daemon of the MPI, is to be started.
    Started {
        /// In which VM.
        vm: usize,
        /// Its stream there.
        stream: u32,
    },
    /// It has ended, or could not be started.
    Ended {
        /// In which VM.
        vm: usize,
        /// Its stream there.
        stream: u32,
        /// How it ended if not with status 0, to be read after "its daemon in VMx".
        bad: Option<String>,
    },
    /// A remote shell was turned away.
    TurnedAway {
        /// Why.
        why: String,
    },
}

/// The three ports of a VM, and its name and address.
#[derive(Debug)]
pub struct Ports {
    name: String,
    address: Ipv4Addr,
    exec: UnixStream,
    relay: UnixStream,
    control: UnixStream,
}

impl Ports {
    /// Those of `machine`.
    ///
    /// # Errors
    /// If there are no more descriptors.
    pub fn of(machine: &Machine) -> io::Result<Self> {
        Ok(Self {
            name: machine.name.clone(),
            address: machine.address,
            exec: machine.exec.try_clone()?,
            relay: machine.relay.try_clone()?,
            control: machine.control.try_clone()?,
        })
    }
}

type Report = Arc<dyn Fn(News) + Send + Sync>;

/// A relayed port that a client asks for.
struct Wanted {
    port: u16,
    targets: Vec<SocketAddr>,
    answer: Sender<std::result::Result<u16, String>>,
}

/// What a visitor's process has in common with the job, as soon as there is a job.
#[derive(Default)]
struct Twin {
    request: Mutex<Option<Request>>,
    known: Condvar,
}

impl Twin {
    /// What to start for a visitor that asks for `asked`.
    fn of(&self, asked: Request) -> std::result::Result<Request, String> {
        let request = lock(&self.request);
        let wait = self.known.wait_timeout_while(request, JOB_LIMIT, |request| request.is_none());
        let (request, _) = wait.unwrap_or_else(|poisoned| poisoned.into_inner());
        let Some(job) = request.as_ref() else {
            return Err("the run is still starting its VMs; try again".into());
        };
        let mut twin = Request { argv: asked.argv, terminal: asked.terminal, ..job.clone() };
        for (name, value) in asked.env {
            twin.env.retain(|(known, _)| *known != name);
            twin.env.push((name, value));
        }
        Ok(twin)
    }
}

struct Vm {
    index: usize,
    name: String,
    address: Ipv4Addr,
    exec: Mutex<UnixStream>,
    control: Mutex<UnixStream>,
    /// The clients, by their stream in this VM.
    clients: Mutex<BTreeMap<u32, Arc<Client>>>,
    next_stream: Count,
    wanted: Mutex<Sender<Wanted>>,
    relay_waker: UnixStream,
    /// How many of the three ports have answered.
    up: Count,
    lost: Flag,
    report: Report,
    /// How long it may take to listen at a port.
    listen_limit: Duration,
}

/// The switch of a run. When it is dropped no more clients come in; the threads of a VM end with its ports.
pub struct Switch {
    vms: Vec<Arc<Vm>>,
    twin: Arc<Twin>,
    listener: UnixListener,
    stop: Arc<Flag>,
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.stop.set();
        // This wakes the thread that waits in `accept`.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
    }
}

/// Takes clients in until the switch is dropped.
fn take_clients(
    listener: &UnixListener,
    stop: &Flag,
    vms: &[Arc<Vm>],
    direct: Option<Ipv4Addr>,
    twin: &Arc<Twin>,
) {
    let mut is_told = false;
    while !stop.is_set() {
        match listener.accept() {
            Ok((client, _)) => {
                let (vms, twin) = (vms.to_vec(), Arc::clone(twin));
                // If no thread can be started, the client's connection is closed.
                let _ = spawn("client".into(), move || serve_client(client, &vms, direct, &twin));
            }
            // Out of descriptors, which lasts a while: let clients wait, without spinning.
            Err(e) => {
                if !stop.is_set() && !std::mem::replace(&mut is_told, true) {
                    tell!("cannot take in a process of a VM yet: {e}{}", limit_told(&e));
                }
                thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these locks protect is consistent between any two statements, so poison does not matter.
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> Result<()> {
    thread::Builder::new().name(name).spawn(body).map(drop).map_err(|e| Error::io("cannot start a thread", e))
}

impl Switch {
    /// Starts switching between the clients that connect in `dir` and the VMs behind `ports`. News of the VMs goes to
    /// `report`. If the VMs reach the launcher by themselves, at address `direct`, nothing is relayed. They may take `boot_limit` to boot.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn start(
        dir: &Path,
        ports: Vec<Ports>,
        direct: Option<Ipv4Addr>,
        boot_limit: Duration,
        report: impl Fn(News) + Send + Sync + 'static,
    ) -> Result<Self> {
        let limit = boot_limit.max(LISTEN_LIMIT);
        let report: Report = Arc::new(report);
        let socket: PathBuf = dir.join(AGENT_SOCKET);
        let listener = UnixListener::bind(&socket)
            .map_err(|e| Error::io(format!("cannot listen at {}", socket.display()), e))?;
        let vms = ports
            .into_iter()
            .enumerate()
            .map(|(index, ports)| Vm::start(index, ports, limit, &report))
            .collect::<Result<Vec<_>>>()?;
        let twin = Arc::new(Twin::default());
        let stop = Arc::new(Flag::default());
        let (known, stopped, own_twin) = (vms.clone(), Arc::clone(&stop), Arc::clone(&twin));
        let own = listener.try_clone().map_err(|e| Error::io("cannot copy a descriptor", e))?;
        spawn("clients".into(), move || take_clients(&own, &stopped, &known, direct, &own_twin))?;
        Ok(Self { vms, twin, listener, stop })
    }

    /// Admits visitors from now on; what they start is like `job` in all but its command.
    pub fn admit_visitors(&self, job: Request) {
        *lock(&self.twin.request) = Some(job);
        self.twin.known.notify_all();
    }

    /// Asks a VM which files vanish with it; the answer is news.
    pub fn ask_changes(&self, vm: usize) {
        if let Some(vm) = self.vms.get(vm) {
            let _ = control::encode(&ToGuest::Changes).write_to(&*lock(&vm.control));
        }
    }
}

impl Vm {
    fn start(index: usize, ports: Ports, listen_limit: Duration, report: &Report) -> Result<Arc<Self>> {
        let Ports { name, address, exec, relay, control } = ports;
        let failed = |e| Error::io("cannot use the ports of a VM", e);
        let (relay_waker, relay_woken) = UnixStream::pair().map_err(failed)?;
        let (wanted, wanted_out) = mpsc::channel();
        let vm = Arc::new(Self {
            index,
            name: name.clone(),
            address,
            exec: Mutex::new(exec.try_clone().map_err(failed)?),
            control: Mutex::new(control.try_clone().map_err(failed)?),
            clients: Mutex::new(BTreeMap::new()),
            next_stream: Count::new(1),
            wanted: Mutex::new(wanted),
            relay_waker,
            up: Count::new(0),
            lost: Flag::default(),
            report: Arc::clone(report),
            listen_limit,
        });
        let me = Arc::clone(&vm);
        spawn(format!("{name} exec"), move || me.ended("exec", &me.switch_exec(exec)))?;
        let me = Arc::clone(&vm);
        spawn(format!("{name} relay"), move || {
            me.ended("relay", &me.carry_connections(relay, &relay_woken, &wanted_out));
        })?;
        let me = Arc::clone(&vm);
        spawn(format!("{name} control"), move || me.ended("control", &me.hear(control)))?;
        Ok(vm)
    }

    fn answered(&self) {
        // Relaxed: only the count matters, and the channel behind `report` orders the rest.
        if self.up.add(1) == 2 {
            (self.report)(News::Up { vm: self.index });
        }
    }

    fn lose(&self, why: String) {
        // Relaxed: only which call was first matters.
        if !self.lost.set() {
            (self.report)(News::Lost { vm: self.index, why });
        }
    }

    /// A port has ended, so the VM is lost: its clients must not wait for it.
    fn ended(&self, port: &str, end: &std::result::Result<(), WireError>) {
        match end {
            Ok(()) | Err(WireError::Closed) => self.lose("its process ended".into()),
            Err(WireError::Io(e)) if is_end(e.kind()) => self.lose("its process ended".into()),
            Err(e) => self.lose(format!("its {port} port failed: {e}")),
        }
        for client in std::mem::take(&mut *lock(&self.clients)).into_values() {
            client.end();
        }
    }

    /// Passes frames from the VM's processes to their clients.
    fn switch_exec(&self, mut port: UnixStream) -> std::result::Result<(), WireError> {
        Frame::hello().write_to(&*lock(&self.exec))?;
        Frame::read_from(&mut port)?.check_hello()?;
        self.answered();
        loop {
            let mut frame = Frame::read_from(&mut port)?;
            let last = matches!(frame.kind, Kind::Exited | Kind::Refused);
            let client = {
                let mut clients = lock(&self.clients);
                if last { clients.remove(&frame.stream) } else { clients.get(&frame.stream).cloned() }
            };
            if last && client.as_ref().is_some_and(|client| !client.visitor) {
                (self.report)(News::Ended { vm: self.index, stream: frame.stream, bad: bad_end(&frame) });
            }
            // The client may have gone.
            let Some(client) = client else { continue };
            frame.stream = CLIENT_STREAM;
            if client.pass(&frame).is_err() {
                // Its own thread sees that, and has the VM end its process.
                client.cut();
            }
        }
    }

    /// Carries connections of the VM's processes to their launcher.
    fn carry_connections(
        &self,
        port: UnixStream,
        woken: &UnixStream,
        wanted: &Receiver<Wanted>,
    ) -> std::result::Result<(), WireError> {
        set_nonblocking(woken)?;
        let mut mux = Mux::new(port.into())?;
        let mut answered = false;
        let mut targets: Relayed<Vec<SocketAddr>> = Relayed::new();
        let mut waiting: Vec<Wanted> = Vec::new();
        let mut refusals = Refusals::new(Instant::now());
        loop {
            let turn = mux.wait(&[woken.as_fd()], None)?;
            if mux.greeted() && !answered {
                answered = true;
                self.answered();
            }
            if !turn.ready.is_empty() {
                let mut drained = [0; 64];
                while (&*woken).read(&mut drained).is_ok_and(|n| n > 0) {}
            }
            while let Ok(want) = wanted.try_recv() {
                targets.insert(want.port, want.targets.clone());
                mux.send(&Frame::new(Kind::Listen, 0, want.port.to_le_bytes()));
                waiting.push(want);
            }
            if let Some(frame) = turn.frame {
                match frame.kind {
                    Kind::Listening => {
                        let [port, at] =
                            [0, 2].map(|i| u16::from_le_bytes([frame.payload[i], frame.payload[i + 1]]));
                        for want in waiting.extract_if(.., |want| want.port == port) {
                            let _ = want.answer.send(Ok(at));
                        }
                    }
                    Kind::Refused if frame.stream == 0 => {
                        for want in waiting.drain(..) {
                            let _ = want.answer.send(Err(frame.text()));
                        }
                    }
                    Kind::Open if self.open(&mut mux, &frame, &targets, &mut refusals) => {}
                    Kind::Close | Kind::Refused => mux.drop_stream(frame.stream),
                    kind => return Err(WireError::BadFrame { kind: kind as u8, len: frame.payload.len() }),
                }
            }
        }
    }

    /// Takes on a connection, or refuses it; gives false if the VM has had too many refused.
    fn open(
        &self,
        mux: &mut Mux,
        frame: &Frame,
        targets: &Relayed<Vec<SocketAddr>>,
        refusals: &mut Refusals,
    ) -> bool {
        let stream = frame.stream;
        let mut of_launcher = None;
        let opened = match frame.port().ok().map(|port| (port, targets.get(port))) {
            Some((port, Some(targets))) => {
                let connected = connect(targets).map_err(|e| format!("to port {port}: {e}"));
                of_launcher = connected.is_err().then_some(port);
                connected
            }
            Some((port, None)) => Err(format!("to port {port}, which no launcher announced")),
            None => Err("to no port".into()),
        };
        let in_use = [CHANNEL_IN, CHANNEL_OUT].iter().any(|channel| mux.has((stream, *channel)));
        let carried = match opened {
            Ok(_) if in_use => Err("twice under one number".into()),
            Ok(_) if mux.channels() >= 2 * MAX_STREAMS => Err(format!("beyond {MAX_STREAMS}")),
            Ok(connection) => {
                carry(mux, stream, connection, CHANNEL_OUT, CHANNEL_IN).map_err(|e| e.to_string())
            }
            Err(why) => Err(why),
        };
        let Err(why) = carried else { return true };
        mux.send(&Frame::new(Kind::Close, stream, []));
        if refusals.is_news(of_launcher) {
            tell!("refused a connection of {} {why}", self.name);
        }
        refusals.bears(of_launcher, Instant::now())
    }

    /// Receives what the guest says of itself.
    fn hear(&self, mut port: UnixStream) -> std::result::Result<(), WireError> {
        Frame::hello().write_to(&*lock(&self.control))?;
        Frame::read_from(&mut port)?.check_hello()?;
        let (mut patience, mut has_listed) = (Patience::new(Instant::now()), false);
        loop {
            let frame = Frame::read_from(&mut port)?;
            if frame.kind != Kind::Control {
                return Err(WireError::BadFrame { kind: frame.kind as u8, len: frame.payload.len() });
            }
            if !patience.hears(Instant::now()) {
                thread::sleep(HEARD_PAUSE);
                patience.since = Instant::now();
            }
            match serde_json::from_slice(&frame.payload) {
                Ok(ToHost::Ready) => self.answered(),
                Ok(ToHost::Broken { why }) => self.lose(line(&why)),
                Ok(ToHost::Note { text }) => {
                    (self.report)(News::Note { text: format!("{}: {}", self.name, line(&text)) })
                }
                // It is asked once.
                Ok(ToHost::Changes(_)) if std::mem::replace(&mut has_listed, true) => {}
                Ok(ToHost::Changes(changes)) => (self.report)(News::Changes { vm: self.index, changes }),
                Err(_) => return Err(WireError::BadPayload { what: "control message" }),
            }
        }
    }

    /// Has the guest listen at `port` for connections to any of `targets`.
    fn listen(&self, port: u16, targets: Vec<SocketAddr>) -> std::result::Result<u16, String> {
        let (answer, answered) = mpsc::channel();
        let gone = || format!("{} is gone", self.name);
        lock(&self.wanted).send(Wanted { port, targets, answer }).map_err(|_| gone())?;
        (&self.relay_waker).write_all(&[1]).map_err(|_| gone())?;
        answered
            .recv_timeout(self.listen_limit)
            .unwrap_or_else(|_| Err(format!("{} does not answer", self.name)))
    }
}

/// The connections of a VM that were refused.
struct Refusals {
    /// So many more may be its own fault.
    left: usize,
    /// For those to a port where no launcher takes them, which may have ended: they are the VM's fault if they come faster than this.
    launchers: Patience,
    /// The ports of launchers of which that was said.
    told: BTreeSet<u16>,
}

impl Refusals {
    fn new(now: Instant) -> Self {
        Self { left: MOST_REFUSED, launchers: Patience::new(now), told: BTreeSet::new() }
    }

    /// Whether one more is worth a line; `of_launcher` is the port where no launcher took it, if that is why.
    fn is_news(&mut self, of_launcher: Option<u16>) -> bool {
        of_launcher.is_none_or(|port| self.told.insert(port))
    }

    /// Takes one more into account; gives false if that is one too many.
    fn bears(&mut self, of_launcher: Option<u16>, now: Instant) -> bool {
        if of_launcher.is_some() && self.launchers.hears(now) {
            return true;
        }
        let left = self.left.checked_sub(1);
        self.left = left.unwrap_or(0);
        left.is_some()
    }
}

/// With how many messages of a VM there is patience: one more for each pause that has gone by.
struct Patience {
    left: u32,
    /// Up to when the pauses have been counted.
    since: Instant,
}

impl Patience {
    fn new(now: Instant) -> Self {
        Self { left: HEARD_AT_ONCE, since: now }
    }

    /// Whether another message is heard without a pause.
    fn hears(&mut self, now: Instant) -> bool {
        let pauses = now.saturating_duration_since(self.since).as_secs() / HEARD_PAUSE.as_secs();
        let pauses = u32::try_from(pauses).unwrap_or(u32::MAX);
        self.since += HEARD_PAUSE * pauses;
        self.left = self.left.saturating_add(pauses).min(HEARD_AT_ONCE);
        let Some(left) = self.left.checked_sub(1) else { return false };
        self.left = left;
        true
    }
}

/// Whether an error at a port means that QEMU has ended: in a read, in a read while QEMU had data unread, in a write.
fn is_end(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(kind, UnexpectedEof | ConnectionReset | BrokenPipe)
}

/// How a daemon ends whose remote shell ended before it.
pub const LEFT_BEHIND: &str = "lost its remote shell, which ended before it";

/// The stream by which a client knows its only process.
pub const CLIENT_STREAM: u32 = 1;

fn connect(targets: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for target in targets {
        match TcpStream::connect_timeout(target, CONNECT_LIMIT) {
            Ok(connection) => return Ok(connection),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// Serves one client until it ends.
fn serve_client(client: UnixStream, vms: &[Arc<Vm>], direct: Option<Ipv4Addr>, twin: &Twin) {
    let refuse = |why: String| {
        let _ = Frame::new(Kind::Refused, CLIENT_STREAM, why).write_to(&client);
    };
    let announce = match announcement(&client) {
        Ok(announce) => announce,
        // A process that only checks whether the run is alive, or one of another version.
        Err(why) => return refuse(why),
    };
    let visitor = announce.visitor;
    match introduce(&client, announce, vms, direct) {
        Ok(vm) => {
            if let Err(e) = switch_client(&client, &vm, visitor.then_some(twin)) {
                refuse(e);
            }
        }
        Err(why) => {
            if let Some(vm) = vms.first().filter(|_| !visitor) {
                (vm.report)(News::TurnedAway { why: why.clone() });
            }
            refuse(why);
        }
    }
}

/// What is wrong with the end that `frame` reports, if anything.
fn bad_end(frame: &Frame) -> Option<String> {
    match (frame.kind, Exit::decode(&frame.payload)) {
        (Kind::Exited, Ok(Exit::Code(0))) => None,
        (Kind::Exited, Ok(Exit::Code(code))) => Some(format!("ended with status {code}")),
        (Kind::Exited, Ok(Exit::Signal(signal))) => Some(format!("was killed by signal {signal}")),
        (Kind::Exited, Err(e)) => Some(format!("ended, but not in a way that can be told: {e}")),
        _ => Some(format!("could not be started: {}", frame.text())),
    }
}

/// Receives the client's hello, and the VM that it wants.
fn announcement(client: &UnixStream) -> std::result::Result<Announce, String> {
    let text = |e: WireError| e.to_string();
    client.set_write_timeout(Some(CLIENT_LIMIT)).map_err(|e| e.to_string())?;
    Frame::hello().write_to(client).map_err(text)?;
    Frame::read_from(client).and_then(|frame| frame.check_hello()).map_err(text)?;
    let frame = Frame::read_from(client).map_err(text)?;
    match frame.kind {
        Kind::Announce => serde_json::from_slice(&frame.payload).map_err(|e| e.to_string()),
        _ => Err("a client begins with an announcement".into()),
    }
}

/// Tells the client where its ports are in the VM that it wants.
fn introduce(
    client: &UnixStream,
    announce: Announce,
    vms: &[Arc<Vm>],
    direct: Option<Ipv4Addr>,
) -> std::result::Result<Arc<Vm>, String> {
    let vm = vms.iter().find(|vm| vm.name == announce.host).ok_or_else(|| {
        let names: Vec<&str> = vms.iter().map(|vm| vm.name.as_str()).collect();
        format!("this run has no host called {}; its VMs are {}", announce.host, names.join(", "))
    })?;
    let ports = announce
        .ports
        .into_iter()
        .map(|(port, targets)| match direct {
            Some(_) => Ok((port, port)),
            None => vm.listen(port, targets).map(|at| (port, at)),
        })
        .collect::<std::result::Result<_, _>>()?;
    let answer = serde_json::to_vec(&Announced { address: direct.unwrap_or(vm.address), ports })
        .map_err(|e| e.to_string())?;
    Frame::new(Kind::Announced, 0, answer).write_to(client).map_err(|e| e.to_string())?;
    Ok(Arc::clone(vm))
}

/// Passes frames from a client to its process, until either is gone. `twin` is for visitors.
fn switch_client(mut client: &UnixStream, vm: &Vm, twin: Option<&Twin>) -> std::result::Result<(), String> {
    let writer = client.try_clone().map_err(|e| format!("{e}{}", limit_told(&e)))?;
    let stream = u32::try_from(vm.next_stream.add(1) & u64::from(u32::MAX)).unwrap_or(0);
    let visitor = twin.is_some();
    lock(&vm.clients).insert(stream, Arc::new(Client::new(writer, visitor)));
    // `lose` comes before the clients are let go.
    if vm.lost.is_set() {
        lock(&vm.clients).remove(&stream);
        return Err(format!("{} is gone", vm.name));
    }
    let mut refused = None;
    while let Ok(mut frame) = Frame::read_from(&mut client) {
        match (frame.kind, twin) {
            (Kind::Start, None) => (vm.report)(News::Started { vm: vm.index, stream }),
            (Kind::Start, Some(twin)) => match like_the_job(&frame, twin) {
                Ok(start) => frame = start,
                Err(why) => {
                    refused = Some(why);
                    break;
                }
            },
            (
                Kind::Data
                | Kind::Credit
                | Kind::End
                | Kind::Stop
                | Kind::Signal
                | Kind::Resize
                | Kind::Close,
                _,
            ) => {}
            _ => break,
        }
        frame.stream = stream;
        if frame.write_to(&*lock(&vm.exec)).is_err() {
            break;
        }
    }
    // Still there: the client ended before its process did.
    if lock(&vm.clients).remove(&stream).is_some() {
        if !visitor {
            let bad = Some(LEFT_BEHIND.to_owned());
            (vm.report)(News::Ended { vm: vm.index, stream, bad });
        }
        let _ = Frame::new(Kind::Close, stream, []).write_to(&*lock(&vm.exec));
    }
    refused.map_or(Ok(()), Err)
}

/// A visitor's request, completed with all that the job has but its command.
fn like_the_job(start: &Frame, twin: &Twin) -> std::result::Result<Frame, String> {
    let asked = Request::decode(&start.payload).map_err(|e| e.to_string())?;
    let request = twin.of(asked)?.encode();
    if !Frame::fits(Kind::Start, request.len()) {
        return Err("the command and the job's environment are too long".into());
    }
    Ok(Frame::new(Kind::Start, start.stream, request))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The other ends of a VM's ports, and what is reported of it.
    fn vm(limit: Duration) -> (Arc<Vm>, [UnixStream; 3], Receiver<News>) {
        let pairs = [(); 3].map(|()| UnixStream::pair().unwrap());
        let [(exec, exec_end), (relay, relay_end), (control, control_end)] = pairs;
        let ports = Ports { name: "vm0".into(), address: Ipv4Addr::LOCALHOST, exec, relay, control };
        let (send, news) = mpsc::channel();
        let report: Report = Arc::new(move |news| {
            let _ = send.send(news);
        });
        (Vm::start(0, ports, limit, &report).unwrap(), [exec_end, relay_end, control_end], news)
    }

    #[test]
    fn a_vm_that_calls_a_launcher_that_has_ended_without_end_is_lost() {
        let (vm, [_exec, mut guest, _control], news) = vm(LISTEN_LIMIT);
        let ended = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        Frame::hello().write_to(&guest).unwrap();
        Frame::read_from(&mut guest).unwrap().check_hello().unwrap();
        let (asking, port) = (Arc::clone(&vm), ended.port());
        let asked = thread::spawn(move || asking.listen(port, vec![ended]));
        assert_eq!(Frame::read_from(&mut guest).unwrap().kind, Kind::Listen);
        let [low, high] = port.to_le_bytes();
        Frame::new(Kind::Listening, 0, [low, high, low, high]).write_to(&guest).unwrap();
        assert_eq!(asked.join().unwrap(), Ok(port));
        let mut called = 0_u32;
        guest.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        for stream in 1..100_000 {
            if Frame::new(Kind::Open, stream, port.to_le_bytes()).write_to(&guest).is_err()
                || Frame::read_from(&mut guest).is_err()
            {
                break;
            }
            called += 1;
        }
        // Those that a launcher's end explains, more for each second that this took, and those that are its fault.
        assert!((1256..5000).contains(&called), "{called}");
        let lost = |news| matches!(news, News::Lost { .. });
        assert!(news.recv_timeout(Duration::from_secs(10)).is_ok_and(lost));
    }

    #[test]
    fn a_port_without_a_launcher_is_told_once_and_borne_for_a_while() {
        let begin = Instant::now();
        let mut refusals = Refusals::new(begin);
        assert!(refusals.is_news(Some(7)) && refusals.is_news(Some(8)) && !refusals.is_news(Some(7)));
        assert!(refusals.is_news(None) && refusals.is_news(None));
        // One in a second, for a day: no launcher is as slow as that, and nothing is amiss.
        assert!((0..86_400).all(|s| refusals.bears(Some(7), begin + Duration::from_secs(s))));
        let after = begin + Duration::from_secs(86_400);
        let borne = (0..100_000).take_while(|_| refusals.bears(Some(7), after)).count();
        assert!((MOST_REFUSED..MOST_REFUSED + 300).contains(&borne), "{borne}");
        let mut refusals = Refusals::new(begin);
        assert_eq!((0..100_000).take_while(|_| refusals.bears(None, begin)).count(), MOST_REFUSED);
    }

    #[test]
    fn a_vm_may_take_as_long_to_listen_as_it_may_to_boot() {
        let dir = tempfile::tempdir().unwrap();
        for (boot_s, limit) in [(1, LISTEN_LIMIT), (600, Duration::from_secs(600))] {
            let (one, _ends) = UnixStream::pair().unwrap();
            let [exec, relay, control] = [(); 3].map(|()| one.try_clone().unwrap());
            let ports = Ports { name: "vm0".into(), address: Ipv4Addr::LOCALHOST, exec, relay, control };
            let dir = dir.path().join(boot_s.to_string());
            std::fs::create_dir(&dir).unwrap();
            let switch = Switch::start(&dir, vec![ports], None, Duration::from_secs(boot_s), |_| ()).unwrap();
            assert_eq!(switch.vms[0].listen_limit, limit);
        }
    }

    #[test]
    fn a_vm_that_has_said_much_is_heard_at_once_again_after_a_while() {
        let begin = Instant::now();
        let mut patience = Patience::new(begin);
        let heard = |patience: &mut Patience, now| (0..1000).take_while(|_| patience.hears(now)).count();
        assert_eq!(heard(&mut patience, begin), 256);
        assert_eq!(heard(&mut patience, begin + HEARD_PAUSE / 2), 0);
        assert_eq!(heard(&mut patience, begin + HEARD_PAUSE), 1);
        assert_eq!(heard(&mut patience, begin + HEARD_PAUSE * 11), 10);
        assert_eq!(heard(&mut patience, begin + HEARD_PAUSE * 100_000), 256);
    }
}
