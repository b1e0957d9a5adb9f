//! This process's attachment to the local service, from the first `fi_getinfo` to the last domain.
//!
//! `fi_getinfo` is called up to a dozen times and must be cheap: the first call attaches, which shows that there is a
//! service and a usable region, and the answer is kept for the process. The attachment itself is held until a domain
//! takes it over, or until libfabric is unloaded. A forked child is another process, and attaches itself.

use std::sync::{Arc, Mutex, PoisonError};

use isthmus_fabric_sys::{FI_LOG_CORE, FI_LOG_WARN};
use isthmus_region::error::with_causes;
use isthmus_region::member::Member;

use crate::core::{Core, log};

struct Probe {
    pid: u32,
    here: Result<Here, ()>,
    held: Option<Arc<Member>>,
}

/// Where this process is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Here {
    /// The region's identity.
    pub(crate) region: [u64; 2],
    /// The peer that this process belongs to.
    pub(crate) peer: u32,
}

static PROBE: Mutex<Option<Probe>> = Mutex::new(None);

/// Where this process is, if there is a service that lets it attach. The reason if not is a warning only where the user
/// asked for this provider.
pub(crate) fn probe(core: Option<&Core>) -> Option<Here> {
    let mut probe = PROBE.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = std::process::id();
    if let Some(known) = probe.as_mut() {
        if known.pid == pid {
            return known.here.ok();
        }
        // The parent's: its memory is not mapped in a forked child, and must not be unmapped either.
        std::mem::forget(known.held.take());
    }
    let answer = shared();
    if let Err(e) = &answer {
        let text = with_causes(e);
        if !asked_for(core) {
            log!(core, INFO, CORE, "{text}");
        } else if core.is_some_and(|c| c.logs(FI_LOG_WARN, FI_LOG_CORE)) {
            log!(core, WARN, CORE, "{text}");
        } else {
            // A user who names this provider must learn why it is missing; older cores log nothing by default.
            eprintln!("isthmus: {text}");
        }
    }
    let here =
        answer.as_ref().map(|m| Here { region: m.region().shape().uuid, peer: m.peer() }).map_err(|_| ());
    *probe = Some(Probe { pid, here, held: answer.ok() });
    here.ok()
}

/// The attachment for a domain, which holds it from now on.
pub(crate) fn take() -> Result<Arc<Member>, isthmus_attach::Error> {
    let mut probe = PROBE.lock().unwrap_or_else(PoisonError::into_inner);
    let own = probe.as_mut().filter(|p| p.pid == std::process::id());
    if let Some(member) = own.and_then(|p| p.held.take()) {
        return Ok(member);
    }
    shared()
}

/// This process's attachment.
pub(crate) fn shared() -> Result<Arc<Member>, isthmus_attach::Error> {
    isthmus_attach::shared_at(crate::core::socket().as_deref())
}

/// Drops an attachment that no domain took over.
pub(crate) fn forget() {
    let mut probe = PROBE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = probe.take().filter(|p| p.pid != std::process::id()) {
        std::mem::forget(known.held);
    }
}

/// Whether the user asked for this provider: by `FI_PROVIDER`, or by naming a service.
fn asked_for(core: Option<&Core>) -> bool {
    let named = |filter: String| !filter.starts_with('^') && filter.split(',').any(|n| n.trim() == "isthmus");
    std::env::var_os("ISTHMUS_SOCKET").is_some_and(|v| !v.is_empty())
        || crate::core::socket().is_some()
        || core.and_then(Core::filter).is_some_and(named)
}
