//! How fast a region is read, beside memory of the process's own: a VM's mapping may be uncached.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use isthmus_attach::client::View;
use isthmus_region::Mapping;
use isthmus_region::dax;
use isthmus_region::driver;
use rustix::fs::MemfdFlags;

use crate::finding::{Finding, Level};

/// What is read: more than fits into most processors' own caches.
const BYTES: u64 = 16 << 20;
/// A piece, copied at once.
const PIECE: usize = 64 << 10;
/// The best of so many rounds counts, as others may be using the memory; one has begun within this time.
const ROUNDS: usize = 5;
const MOST_SECONDS: f64 = 1.0;
/// Below this share of the rate of local memory the region is slow.
const SLOW: f64 = 0.5;

/// Measures how fast a service's region is read.
pub(crate) fn examine(view: &View) -> Finding {
    examine_file(&view.region, view.said.region_bytes)
}

fn examine_file(region: &OwnedFd, region_bytes: u64) -> Finding {
    let check = "memory";
    match rates(region, region_bytes) {
        Ok((region_rate, local_rate)) => judged(check, way(region), region_rate, local_rate),
        Err(e) => Finding::bad(
            check,
            Level::Hint,
            format!("how fast the region is read could not be measured: {e}"),
            "isthmus region check says whether it is sound",
        ),
    }
}

/// How the memory behind a descriptor comes to be this system's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Sysfs,
    Driver,
    Dax,
    /// Memory of this host.
    Memory,
}

fn way(region: &OwnedFd) -> Way {
    let is_memory = || rustix::fs::fcntl_get_seals(region).is_ok();
    match region.as_fd() {
        fd if driver::bytes(fd).is_some() => Way::Driver,
        fd if dax::bytes(fd).is_some() => Way::Dax,
        _ if is_memory() => Way::Memory,
        _ => Way::Sysfs,
    }
}

fn judged(check: &'static str, way: Way, region: f64, local: f64) -> Finding {
    let by = match way {
        Way::Sysfs => "mapped by sysfs",
        Way::Driver => "mapped by the guest driver",
        Way::Dax => "a memory device (DAX)",
        Way::Memory => "memory of this host",
    };
    let gb = |rate: f64| format!("{:.1} GB/s", rate / 1e9);
    let found = format!("the region, {by}, is read at {}, local memory at {}", gb(region), gb(local));
    if region >= local * SLOW {
        return Finding::fine(check, found);
    }
    let fix = match way {
        Way::Sysfs => {
            "the guest driver maps it write-back (isthmus(4); load the module and restart the agent); so does a memory device, without a driver: isthmus host --source dax"
        }
        Way::Driver => {
            "give the VM's PCI port a larger window (pref64-reserve), as isthmus vm device prints it, so that the memory lies above 4 GiB; or take isthmus host --source dax"
        }
        Way::Dax | Way::Memory => {
            "other programs may be using the memory, or it lies at another NUMA node: measure again on an idle machine"
        }
    };
    Finding::bad(check, Level::Slow, found, fix)
}

/// Bytes a second that are read of the region, and of memory that is as new and as large.
fn rates(region: &OwnedFd, region_bytes: u64) -> isthmus_region::Result<(f64, f64)> {
    let region = Mapping::as_opened(region.as_fd(), region_bytes)?;
    let bytes = BYTES.min(region_bytes);
    let failed = |action| move |source| isthmus_region::Error::Memory { action, bytes, source };
    let local = rustix::fs::memfd_create("isthmus-doctor", MemfdFlags::CLOEXEC).map_err(failed("create"))?;
    rustix::fs::ftruncate(&local, bytes).map_err(failed("size"))?;
    let local = Mapping::map(local.as_fd(), bytes)?;
    // Its pages are made by the first store.
    let whole = local.whole()?;
    let page = [1_u8; 4096];
    for at in (0..bytes).step_by(page.len()) {
        whole.bytes("local memory", at, page.len() as u64)?.put(0, &page)?;
    }
    let begun = Instant::now();
    let (mut of_region, mut of_local) = (0.0_f64, 0.0_f64);
    for _ in 0..ROUNDS {
        of_local = of_local.max(rate(&local, bytes)?);
        of_region = of_region.max(rate(&region, bytes)?);
        if begun.elapsed().as_secs_f64() > MOST_SECONDS {
            break;
        }
    }
    Ok((of_region, of_local))
}

fn rate(map: &Arc<Mapping>, bytes: u64) -> isthmus_region::Result<f64> {
    let whole = map.whole_for_reading();
    let mut piece = vec![0; PIECE];
    let begun = Instant::now();
    let mut at = 0;
    while at < bytes && (at == 0 || begun.elapsed().as_secs_f64() < MOST_SECONDS / 3.0) {
        let len = (bytes - at).min(piece.len() as u64);
        let into = &mut piece[..usize::try_from(len).unwrap_or(0)];
        whole.bytes("region", at, len)?.get(0, into)?;
        std::hint::black_box(&piece);
        at += len;
    }
    Ok(at as f64 / begun.elapsed().as_secs_f64().max(1e-9))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_that_is_slow_to_read_is_named_with_what_helps() {
        let of = |way, region| judged("memory", way, region, 10e9);
        assert_eq!(of(Way::Sysfs, 9e9).level, Level::Fine);
        let uncached = of(Way::Sysfs, 0.05e9);
        assert_eq!(uncached.level, Level::Slow);
        assert!(
            uncached.found.contains("0.1 GB/s") && uncached.found.contains("10.0 GB/s"),
            "{}",
            uncached.found
        );
        let fix = |way| of(way, 1e9).fix.unwrap();
        assert!(fix(Way::Sysfs).contains("--source dax") && fix(Way::Sysfs).contains("isthmus(4)"));
        assert!(fix(Way::Driver).contains("pref64-reserve"));
        assert!(!fix(Way::Dax).contains("--source"));
    }

    #[test]
    fn what_is_measured_is_the_region() {
        let region = isthmus_region::create::memory(32 << 20).unwrap();
        let finding = examine_file(&region, 32 << 20);
        assert!(finding.found.contains("memory of this host, is read at"), "{}", finding.found);
        let (of_region, of_local) = rates(&region, 32 << 20).unwrap();
        assert!(of_region > 0.0 && of_local > 0.0);
        let short = examine_file(&region, 64 << 20);
        assert_eq!(short.level, Level::Hint, "{}", short.found);
    }
}
