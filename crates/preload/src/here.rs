//! This process's attachment.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

use isthmus_attach::client::Place;
use isthmus_attach::error::Error;
use isthmus_attach::protocol::Code;
use isthmus_region::error::with_causes;
use isthmus_region::kept::Kept;
use isthmus_region::member::Member;
use isthmus_region::shared_by_threads::Count;
use isthmus_region::signals::{self, Guarded, Uncancelled};
use isthmus_sysv::Ipc;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::shm::Mapped;
use crate::{Result, credentials};

/// What the library keeps under its lock, which a fork holds.
pub(crate) struct State {
    /// Segments that are attached here.
    pub(crate) mapped: Vec<Mapped>,
    /// Descriptors of the region's files, for mapping segments: for reading and writing, and for reading alone.
    files: HashMap<(u32, For), Arc<Kept>>,
    /// The region that all this is of. A service that comes where another one has ended has another one.
    region: Option<Uuid>,
    /// Where the service was found; a forked child looks nowhere else.
    place: Option<Place>,
    /// Descriptors that a fork may take the numbers of.
    spare: Vec<Kept>,
    /// The user and group by which objects are made, as the service knows them.
    user: (u32, u32),
}

/// What tells a region from all others.
type Uuid = [u64; 2];

static STATE: Mutex<Option<State>> = Mutex::new(None);
/// The address of the attachment, once there is one. It stays until the process ends; a forked child gets another one.
static CURRENT: Count = Count::new(0);
/// The version of the user and groups by which objects are made.
static USERS: Count = Count::new(0);

/// The lock on the library's state.
pub(crate) type Locked = Guarded<'static, Option<State>>;

/// Locks the library's state.
pub(crate) fn lock() -> Locked {
    let mut state = signals::lock(&STATE);
    state.get_or_insert_with(|| State {
        mapped: Vec::new(),
        files: HashMap::new(),
        region: None,
        place: None,
        spare: Vec::new(),
        user: (0, 0),
    });
    state
}

/// System V IPC of the region; attaches this process if it is not attached yet.
///
/// # Errors
/// `ENOSYS` where no service answers; a line on standard error says why.
pub(crate) fn ipc() -> Result<&'static Ipc> {
    if let Some(ipc) = current() {
        return Ok(ipc);
    }
    // A library that is linked to the program may be here before this one's constructor has run.
    crate::fork::watch();
    let mut state = lock();
    let _uncancelled = Uncancelled::new();
    let state = state.as_mut().ok_or(Errno::IO)?;
    current().map_or_else(|| attach(state), Ok)
}

/// As [`ipc`], to make, change or remove objects in the name of the user that this process is now: the service knows users by their
/// connections, so after a change of that there has to be another one.
///
/// # Errors
/// As [`ipc`]; `EACCES` for a user who may not attach; `EIO` where another region's service answers now.
pub(crate) fn ruler() -> Result<&'static Ipc> {
    let ipc = ipc()?;
    if USERS.peek() == credentials::version() {
        return Ok(ipc);
    }
    let mut state = lock();
    let _uncancelled = Uncancelled::new();
    let state = state.as_mut().ok_or(Errno::IO)?;
    let now = credentials::version();
    if USERS.get() != now {
        let user = user();
        if state.user != user {
            attach_anew(state, ipc)?;
            state.user = user;
        }
        USERS.set(now);
    }
    Ok(ipc)
}

/// The user and group that the service would know this process by.
fn user() -> (u32, u32) {
    let caller = credentials::caller();
    (caller.uid, caller.gid)
}

/// Has objects be made, changed and removed by the user that this process is now.
fn attach_anew(state: &State, ipc: &Ipc) -> Result<()> {
    let member = state.place.as_ref().ok_or(Errno::IO)?.connect().map_err(|e| {
        say(About::Service, &format!("System V IPC by another user than before: {}", with_causes(&e)));
        match e {
            Error::Refused { code: Code::NotAllowed, .. }
            | Error::Connect { source: Errno::ACCESS | Errno::PERM, .. } => Errno::ACCESS,
            _ => Errno::NOSYS,
        }
    })?;
    // The same numbers are other objects there.
    if uuid(&member) != uuid(ipc.member()) {
        say(
            About::Service,
            "System V IPC by another user than before: the service that this process uses has ended, and the one that answers now \
             has another region; start the program anew to use that one",
        );
        return Err(Errno::IO);
    }
    ipc.rule_by(member);
    Ok(())
}

/// [`ruler`] for a command that changes or removes an object, else [`ipc`].
///
/// # Errors
/// Theirs.
pub(crate) fn for_command(command: std::ffi::c_int) -> Result<&'static Ipc> {
    if matches!(command, libc::IPC_SET | libc::IPC_RMID) { ruler() } else { ipc() }
}

#[inline]
fn current() -> Option<&'static Ipc> {
    let at: *const Ipc = std::ptr::with_exposed_provenance(usize::try_from(CURRENT.get()).unwrap_or(0));
    // SAFETY: null, or a box that `attach` leaked, which nobody changes.
    unsafe { at.as_ref() }
}

fn uuid(member: &Member) -> Uuid {
    member.region().shape().uuid
}

/// Attaches this process; the state is locked. Of a forked child's, what is of another region than this one's service has is lost.
pub(crate) fn attach(state: &mut State) -> Result<&'static Ipc> {
    // Before the service sees who this is: whoever changes that meanwhile is heard of later.
    let (version, user) = (credentials::version(), user());
    let connected = match &state.place {
        Some(place) => place.connect(),
        None => Place::find().map(|(place, member)| {
            state.place = Some(place);
            member
        }),
    };
    match connected {
        Ok(member) => {
            let uuid = uuid(&member);
            if state.region.replace(uuid).is_some_and(|before| before != uuid) {
                state.files.clear();
                crate::shm::lose_all(state);
            }
            let ipc: &'static Ipc = Box::leak(Box::new(Ipc::new(&member)));
            let service = member.service();
            // What it had before it executed this program is kept until then.
            if service.has_former() && ipc.take_over(credentials::caller().pid) {
                let _ = service.forget_former();
            }
            USERS.set(version);
            state.user = user;
            CURRENT.set(std::ptr::from_ref(ipc).expose_provenance() as u64);
            Ok(ipc)
        }
        Err(e) => {
            say(About::Service, &format!("System V IPC has no service to ask: {}", with_causes(&e)));
            Err(Errno::NOSYS)
        }
    }
}

/// In a forked child: its parent's attachment is not its own.
pub(crate) fn forget() {
    if let Some(ipc) = current() {
        ipc.abandon();
    }
    CURRENT.set(0);
}

/// Whether this process is attached.
pub(crate) fn is_attached() -> bool {
    current().is_some()
}

/// Descriptors that a fork needs which hands segments on: those of a pipe. The child attaches with those that it can close.
const SPARE: usize = 2;

impl State {
    /// Keeps descriptors for the next fork, at which the program may be at its limit.
    pub(crate) fn keep_spare(&mut self) {
        self.spare.retain(Kept::is_there);
        while self.spare.len() < SPARE
            && let Some(spare) = self.place.as_ref().and_then(Place::spare)
        {
            self.spare.push(Kept::new(spare));
        }
    }

    /// Closes them.
    pub(crate) fn give_spare(&mut self) {
        self.spare.clear();
    }

    /// A descriptor of a file of the region. What is mapped by one for reading stays so, whatever the program asks of mprotect(2).
    pub(crate) fn file(&mut self, ipc: &Ipc, index: u32, how: For) -> Result<Arc<Kept>> {
        if let Some(file) = self.files.get(&(index, how)).filter(|file| file.is_there()) {
            return Ok(Arc::clone(file));
        }
        let file = match how {
            For::Writing => ipc.member().service().file(index).map_err(|_| Errno::NOMEM)?,
            For::Reading => {
                let writing = self.file(ipc, index, For::Writing)?;
                match for_reading(&writing) {
                    Some(file) => file,
                    None => return Ok(writing),
                }
            }
        };
        let file = Arc::new(Kept::new(file));
        self.files.insert((index, how), Arc::clone(&file));
        Ok(file)
    }
}

/// What a file of the region is mapped for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum For {
    Reading,
    Writing,
}

/// Opens a file once more, for reading alone. None for a device, which may not be opened, and each of whose open files is another one; nor
/// where there is no `/proc`.
fn for_reading(file: &Kept) -> Option<OwnedFd> {
    let stat = rustix::fs::fstat(file).ok()?;
    if !FileType::from_raw_mode(stat.st_mode).is_file() {
        return None;
    }
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// Says why nothing could be made: there was no room, or else this process may make nothing.
pub(crate) fn say_why(errno: Errno) {
    if let Some(why) = current().and_then(Ipc::take_refusal) {
        say(if errno == Errno::NOSPC { About::Room } else { About::Makers }, &why);
    }
}

/// What is said once in the life of the process, each.
#[derive(Clone, Copy)]
#[repr(u64)]
pub(crate) enum About {
    Settings = 1,
    Service = 2,
    Room = 4,
    Fault = 8,
    Segment = 16,
    Makers = 32,
}

/// Says something on standard error, unless something about the same was said before.
pub(crate) fn say(about: About, text: &str) {
    static SAID: Count = Count::new(0);
    if SAID.insert(about as u64) & about as u64 == 0 {
        // Past the lock on standard error, which a forked child may find held.
        let _ = rustix::io::write(rustix::stdio::stderr(), format!("isthmus: {text}\n").as_bytes());
    }
}
