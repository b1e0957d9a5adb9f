//! This process's attachments, from the first `fi_getinfo` to the last domain: one for each service that it asked for.
//!
//! `fi_getinfo` is called up to a dozen times and must be cheap: the first call attaches, which shows that there is a
//! service and a usable region, and the answer is kept for as long as the same service's socket is there; a refusal, whose reason
//! may pass, for a second. The attachment itself is held until a domain takes it over, or until libfabric is unloaded. A forked
//! child is another process, and attaches itself.
//!
//! A program that changes the name of the socket between two calls gets a fabric of the other region beside its own. A
//! fabric stands for a region, so later calls need no socket: what names the fabric names the service.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use isthmus_fabric_sys::{FI_LOG_CORE, FI_LOG_WARN};
use isthmus_region::address::SystemId;
use isthmus_region::error::with_causes;
use isthmus_region::member::Member;

use crate::core::{Core, log};

/// A socket as one service made it: device, inode, and the time of its last change.
type Stamp = (u64, u64, i64, i64);

/// How long a refusal is kept, from the service's answer on.
const REFUSED: Duration = Duration::from_secs(1);

/// What is known of one service.
struct Probe {
    pid: u32,
    /// Its socket; none where there is none at the places at which a service usually listens.
    socket: Option<PathBuf>,
    stamp: Option<Stamp>,
    answered: Instant,
    here: Option<Here>,
    /// Why not.
    refusal: Option<String>,
    held: Option<Arc<Member>>,
    /// The attachment, whoever holds it.
    member: Weak<Member>,
}

impl Probe {
    /// Whether this process made it, of the service that is there now, as far as can be told without asking it.
    fn is_fresh(&self) -> bool {
        // In this order: a parent's attachment is nothing to ask.
        self.pid == std::process::id()
            && (self.here.is_some() || self.answered.elapsed() < REFUSED)
            && self.member.upgrade().is_none_or(|member| !member.service().has_ended())
            && self.stamp == stamp(self.socket.as_deref())
    }

    /// Whether the service's region has a system, or had it last at some place.
    fn has(&mut self, system: SystemId) -> bool {
        let held = self.member.upgrade().filter(|_| self.pid == std::process::id());
        // Not held by anything: long enough to look.
        let member = held.map_or_else(|| self.attach(), Ok);
        member.is_ok_and(|member| member.region().find(system).is_some())
    }

    /// The attachment, anew if there is none any more.
    fn attach(&mut self) -> Result<Arc<Member>, isthmus_attach::Error> {
        let member = attach(self.socket.as_deref())?;
        if self.pid == std::process::id() {
            self.member = Arc::downgrade(&member);
        }
        Ok(member)
    }

    /// Lets go of an attachment that no domain took over.
    fn let_go(&mut self) {
        let held = self.held.take();
        if self.pid != std::process::id() {
            // The parent's: its memory is not mapped in a forked child, and must not be unmapped either.
            std::mem::forget(held);
        }
    }
}

/// Where this process is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Here {
    /// The region's identity.
    pub(crate) region: [u64; 2],
    /// The host or VM that this process is in, as addresses name it.
    pub(crate) system: SystemId,
}

impl Here {
    fn of(member: &Member) -> Self {
        Self { region: member.region().shape().uuid, system: member.system() }
    }
}

static PROBES: Mutex<Vec<Probe>> = Mutex::new(Vec::new());

fn probes() -> MutexGuard<'static, Vec<Probe>> {
    PROBES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The socket that the user names, or that is found where a service usually listens.
fn socket() -> Option<PathBuf> {
    crate::core::socket().or_else(|| isthmus_attach::find_socket().ok())
}

fn stamp(socket: Option<&Path>) -> Option<Stamp> {
    let data = std::fs::metadata(socket?).ok()?;
    Some((data.dev(), data.ino(), data.ctime(), data.ctime_nsec()))
}

fn attach(socket: Option<&Path>) -> Result<Arc<Member>, isthmus_attach::Error> {
    // Without a socket, the error says where it was looked for.
    socket.map_or_else(isthmus_attach::shared, isthmus_attach::shared_at)
}

/// What the program asks for and is in one region only.
#[derive(Clone, Copy)]
pub(crate) struct Sought<'a> {
    /// Whether it is at this place.
    pub(crate) is_there: &'a dyn Fn(Here) -> bool,
    /// A host or VM that must be in the same region.
    pub(crate) system: Option<SystemId>,
}

/// Where this process is: by the service that the user names now, if that lets it attach. If what the program asks for is in
/// one region only, a service that it has asked before is as good; the one that the user names comes first, since a VM of another
/// region may claim to be any.
pub(crate) fn probe(core: Option<&Core>, sought: Option<Sought<'_>>) -> Option<Here> {
    let socket = socket();
    if let Some(Sought { is_there, system }) = sought {
        let mut probes = probes();
        probes.sort_by_key(|p| p.socket != socket);
        for known in probes.iter_mut().filter(|p| p.here.is_some_and(is_there)) {
            if known.is_fresh() && system.is_none_or(|system| known.has(system)) {
                return known.here;
            }
        }
    }
    ask(core, socket)
}

/// Whether a region that this process is in has a system, or had it last at some place.
pub(crate) fn has(region: [u64; 2], system: SystemId) -> bool {
    known(&mut probes(), Some(region)).is_some_and(|p| p.has(system))
}

/// What a service says, now or when it was asked first. The reason why this process may not attach is a warning only where the
/// user asked for this provider.
fn ask(core: Option<&Core>, socket: Option<PathBuf>) -> Option<Here> {
    let mut probes = probes();
    let at = probes.iter().position(|p| p.socket == socket);
    if let Some(known) = at.map(|at| &probes[at]).filter(|p| p.is_fresh()) {
        return known.here;
    }
    let stale = at.map(|at| probes.swap_remove(at));
    // Before it is asked: if another takes its place meanwhile, that is seen the next time.
    let stamp = stamp(socket.as_deref());
    let answer = attach(socket.as_deref());
    let before = stale.as_ref().and_then(|probe| probe.refusal.clone());
    // Only now, so that an attachment that is still good is not ended and made again.
    stale.into_iter().for_each(|mut probe| probe.let_go());
    let refusal = answer.as_ref().err().map(|e| with_causes(e));
    if let Some(text) = &refusal {
        if before == refusal {
            log!(core, INFO, CORE, "{text}");
        } else if !asked_for(core) {
            log!(core, INFO, CORE, "{text}");
        } else if core.is_some_and(|c| c.logs(FI_LOG_WARN, FI_LOG_CORE)) {
            log!(core, WARN, CORE, "{text}");
        } else {
            // A user who names this provider must learn why it is missing; older cores log nothing by default.
            eprintln!("isthmus: {text}");
        }
    }
    let held = answer.ok();
    let here = held.as_deref().map(Here::of);
    let member = held.as_ref().map(Arc::downgrade).unwrap_or_default();
    let answered = Instant::now();
    probes.push(Probe { pid: std::process::id(), socket, stamp, answered, here, refusal, held, member });
    here
}

/// The attachment for a domain of a fabric, which holds it from now on; to the service that is asked for now, if it is not
/// known which region the fabric is.
pub(crate) fn take(region: Option<[u64; 2]>) -> Result<Arc<Member>, isthmus_attach::Error> {
    let mut probes = probes();
    let Some(known) = known(&mut probes, region) else {
        drop(probes);
        return shared();
    };
    if known.pid == std::process::id()
        && let Some(member) = known.held.take_if(|member| !member.service().has_ended())
    {
        return Ok(member);
    }
    known.attach()
}

/// The attachment by which this process is in a region.
pub(crate) fn of(region: [u64; 2]) -> Result<Arc<Member>, isthmus_attach::Error> {
    let mut probes = probes();
    match known(&mut probes, Some(region)) {
        Some(known) => known.attach(),
        None => {
            drop(probes);
            shared()
        }
    }
}

/// What is known of the service of a region. In a forked child that may be what its parent knew: the socket is the same.
fn known(probes: &mut [Probe], region: Option<[u64; 2]>) -> Option<&mut Probe> {
    probes.iter_mut().find(|p| p.here.is_some_and(|here| Some(here.region) == region))
}

/// The region of a fabric, by its name.
pub(crate) fn region_of(fabric: &str) -> Option<[u64; 2]> {
    let probes = probes();
    let mut regions = probes.iter().filter_map(|p| p.here).map(|here| here.region);
    regions.find(|region| crate::info::fabric_name(*region) == fabric)
}

/// This process's attachment to the service that it asks for now.
pub(crate) fn shared() -> Result<Arc<Member>, isthmus_attach::Error> {
    attach(socket().as_deref())
}

/// Drops attachments that no domain took over.
pub(crate) fn forget() {
    for mut probe in std::mem::take(&mut *probes()) {
        probe.let_go();
    }
}

/// Whether the user asked for this provider: by `FI_PROVIDER`, or by naming a service.
fn asked_for(core: Option<&Core>) -> bool {
    let named = |filter: String| !filter.starts_with('^') && filter.split(',').any(|n| n.trim() == "isthmus");
    std::env::var_os("ISTHMUS_SOCKET").is_some_and(|v| !v.is_empty())
        || crate::core::socket().is_some()
        || core.and_then(Core::filter).is_some_and(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_asked_about_again_after_a_while_and_an_attachment_is_not() {
        let long_ago = Instant::now().checked_sub(REFUSED + Duration::from_millis(1)).unwrap();
        let probe = |here, answered| Probe {
            pid: std::process::id(),
            socket: None,
            stamp: None,
            answered,
            here,
            refusal: None,
            held: None,
            member: Weak::new(),
        };
        let here = Here { region: [1, 2], system: SystemId([3, 4]) };
        assert!(probe(None, Instant::now()).is_fresh());
        assert!(!probe(None, long_ago).is_fresh());
        assert!(probe(Some(here), long_ago).is_fresh());
    }
}
