//! Memory registration, as in fi_mr(3): which memory remote endpoints may reach, under which key.
//!
//! Registering costs an entry in a table: nothing is pinned or copied. The program chooses keys, and addresses count from
//! the start of the registration, unless it asked for `FI_MR_BASIC`: then the provider chooses keys, and addresses are the
//! target's own.
//!
//! A registration that lies in memory of the region ([`crate::memory`]) is also published there, where initiators reach
//! it without this process.
//!
//! A registration of null with length `SIZE_MAX` stands for the whole address space; MPICH makes one for dynamic windows.
//! Each access through it is validated: a wrong address must be an error for its initiator, and no crash here.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use isthmus_cabi::Poison;
use isthmus_fabric_sys::*;
use isthmus_region::Section;
use isthmus_region::local::LocalBuf;
use isthmus_region::member::Member;
use isthmus_transport::types::RemoteAtomic;
use isthmus_transport::{Access, Memory, Status};

use crate::arithmetic;
use crate::core::{Core, log};
use crate::domain::Domain;
use crate::memory::Entry as Published;
use crate::object::{self, Object};
use crate::windows::Registered;

/// The memory that is registered in a domain.
pub(crate) struct Registrations {
    /// Addresses are the target's own, not offsets.
    plain_addresses: bool,
    /// The provider chooses the keys.
    own_keys: bool,
    table: RwLock<Table>,
}

#[derive(Default)]
struct Table {
    regions: HashMap<u64, Region>,
    next_key: u64,
}

#[derive(Clone, Copy)]
struct Region {
    start: u64,
    len: u64,
    access: u64,
    /// Nobody may reach it any more; its key is not free yet.
    is_closed: bool,
}

impl Registrations {
    pub(crate) fn new(mr_mode: c_int) -> Self {
        let basic = mr_mode == FI_MR_BASIC;
        let bit = |bit: c_int| basic || (mr_mode != FI_MR_SCALABLE && mr_mode & bit != 0);
        let table = RwLock::default();
        Self { plain_addresses: bit(FI_MR_VIRT_ADDR), own_keys: bit(FI_MR_PROV_KEY), table }
    }

    /// Whether addresses are the target's own, and whether the provider chooses the keys.
    pub(crate) fn modes(&self) -> (bool, bool) {
        (self.plain_addresses, self.own_keys)
    }

    fn add(&self, region: Region, requested_key: u64) -> Result<u64, c_int> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let key = if self.own_keys {
            table.next_key += 1;
            table.next_key
        } else {
            requested_key
        };
        match table.regions.entry(key) {
            Entry::Occupied(_) => Err(FI_ENOKEY),
            Entry::Vacant(place) => {
                place.insert(region);
                Ok(key)
            }
        }
    }

    /// Nobody finds it from now on.
    fn close(&self, key: u64) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(region) = table.regions.get_mut(&key) {
            region.is_closed = true;
        }
    }

    fn remove(&self, key: u64) {
        self.table.write().unwrap_or_else(PoisonError::into_inner).regions.remove(&key);
    }
}

/// A domain's registrations as the transport sees them.
pub(crate) struct Reach {
    pub(crate) core: Option<&'static Core>,
    pub(crate) registrations: Arc<Registrations>,
    /// The offset of the table of published registrations, if there is one.
    pub(crate) table: Option<u64>,
    /// Whose they are.
    pub(crate) domain: Weak<Domain>,
}

impl Memory for Reach {
    fn published(&self) -> Option<u64> {
        self.table
    }

    fn is_atomic_here(&self, element_bytes: u64) -> bool {
        element_bytes <= arithmetic::WORD_BYTES && arithmetic::is_shared()
    }

    fn atomic_there(
        &self,
        section: &Section,
        offset: u64,
        len: u64,
        what: &RemoteAtomic<'_>,
        before: &mut Vec<u8>,
    ) -> Result<(), Status> {
        // SAFETY: not used after this returns; all accesses to what is registered for atomics are atomic, and of one size.
        let target = unsafe { section.lend("registration", offset, len) };
        arithmetic::apply(target.map_err(|_| Status::NoAccess)?, what, before)
    }

    fn find(&self, key: u64, addr: u64, len: u64, access: Access) -> Result<LocalBuf, Status> {
        let table = self.registrations.table.read().unwrap_or_else(PoisonError::into_inner);
        let region = table.regions.get(&key).copied().filter(|region| !region.is_closed);
        drop(table);
        let Some(region) = region else {
            self.refused(key, addr, len, access, "no registration has this key");
            return Err(Status::NoKey);
        };
        let refused = |why: &str| {
            let Region { start, len: has, access: allows, .. } = region;
            let why = format!("{why} of the registration of {has} bytes at {start:#x}, access {allows:#x}");
            self.refused(key, addr, len, access, &why);
            Status::NoAccess
        };
        let needed = match access {
            Access::Read => FI_REMOTE_READ,
            Access::Write | Access::Atomic => FI_REMOTE_WRITE,
        };
        let offset = if self.registrations.plain_addresses { addr.wrapping_sub(region.start) } else { addr };
        let within = offset.checked_add(len).is_some_and(|end| end <= region.len);
        let start = region.start.checked_add(offset).filter(|_| within);
        let start = start.and_then(|start| usize::try_from(start).ok());
        let (Some(start), Ok(count)) = (start, usize::try_from(len)) else {
            return Err(refused("these bytes are outside"));
        };
        if region.access & needed == 0 {
            return Err(refused("it is no part of the rights"));
        }
        if region.len == u64::MAX && !is_mapped(start as u64, count, access) {
            return Err(refused("no memory for this is mapped there, in spite"));
        }
        let at = std::ptr::with_exposed_provenance_mut::<u8>(start);
        // SAFETY: the program registered these bytes for this access, and keeps them until it closes the registration.
        // Bounds were checked above, and for a registration of everything, that memory is mapped there.
        Ok(unsafe { LocalBuf::new(at, count) })
    }

    fn offset_of(&self, member: &Arc<Member>, bytes: LocalBuf) -> Option<u64> {
        let domain = self.domain.upgrade()?;
        // An attachment that was made anew has another section.
        let is_same = Arc::ptr_eq(&domain.member, member);
        is_same.then(|| domain.store.offset_of(member, bytes.address(), bytes.len() as u64))?
    }

    fn reached(&self, key: u64, found: LocalBuf) {
        let table = self.registrations.table.read().unwrap_or_else(PoisonError::into_inner);
        let region = table.regions.get(&key).copied();
        drop(table);
        // A registration of everything has no pages of its own.
        let region = region.filter(|region| region.len != u64::MAX && !region.is_closed);
        let Some(Region { start, len, access, .. }) = region else { return };
        let base = if self.registrations.plain_addresses { start } else { 0 };
        if let Some(domain) = self.domain.upgrade() {
            let of = Registered { key, start, len, access: 0, base };
            domain.store.reached(&domain.member, of, access, found);
        }
    }

    fn atomic(&self, target: LocalBuf, what: &RemoteAtomic<'_>, before: &mut Vec<u8>) -> Result<(), Status> {
        arithmetic::apply(target, what, before)
    }
}

impl Reach {
    /// Logs what a remote endpoint asked for and does not get.
    #[cold]
    fn refused(&self, key: u64, addr: u64, len: u64, access: Access, why: &str) {
        let what = match access {
            Access::Read => "read of",
            Access::Write => "write to",
            Access::Atomic => "atomic operation on",
        };
        let how = if self.registrations.plain_addresses { "address" } else { "offset" };
        log!(
            self.core,
            INFO,
            MR,
            "refused a peer's {what} {len} bytes at {how} {addr:#x}, key {key:#x}: {why}"
        );
    }
}

/// Whether memory is mapped there for this access. Asking the kernel to fault it in answers that, without a signal.
#[cold]
fn is_mapped(start: u64, len: usize, access: Access) -> bool {
    const PAGE: u64 = 4096;
    if len == 0 {
        return true;
    }
    let first = start / PAGE * PAGE;
    let Some(end) = start.checked_add(len as u64) else { return false };
    let Some(last) = end.checked_next_multiple_of(PAGE) else { return false };
    let (Ok(at), Ok(bytes)) = (usize::try_from(first), usize::try_from(last - first)) else { return false };
    let advice = match access {
        Access::Read => libc::MADV_POPULATE_READ,
        Access::Write | Access::Atomic => libc::MADV_POPULATE_WRITE,
    };
    let at = std::ptr::with_exposed_provenance_mut::<c_void>(at);
    // SAFETY: the advice changes no contents, and for an address without memory the call fails.
    if unsafe { libc::madvise(at, bytes, advice) } == 0 {
        return true;
    }
    // EINVAL is the answer for a wrong permission, for device memory, and of kernels before 5.14.
    std::io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL)
        && std::fs::read_to_string("/proc/self/maps").is_ok_and(|maps| covers(&maps, start, end, access))
}

/// Whether the mappings of a process, as in proc_pid_maps(5), allow an access to all of `start..end`.
fn covers(maps: &str, mut start: u64, end: u64, access: Access) -> bool {
    for line in maps.lines() {
        let mut words = line.split(' ');
        let range = words.next().and_then(|w| w.split_once('-'));
        let Some((low, high)) = range else { return false };
        let (Ok(low), Ok(high)) = (u64::from_str_radix(low, 16), u64::from_str_radix(high, 16)) else {
            return false;
        };
        let allowed = words.next().is_some_and(|rights| match access {
            Access::Read => rights.starts_with('r'),
            Access::Write | Access::Atomic => rights.starts_with("rw"),
        });
        if high <= start {
            continue;
        }
        if low > start || !allowed {
            return false;
        }
        if high >= end {
            return true;
        }
        start = high;
    }
    false
}

/// A registration: libfabric's memory region.
#[repr(C)]
pub(crate) struct Mr {
    head: fid_mr,
    poison: Poison,
    domain: Arc<Domain>,
    /// Its published entry, until that is withdrawn.
    published: Mutex<Option<Published>>,
}

// SAFETY: the head is not written after `open`; its pointers are to static tables, and the program's own context, which
// is not followed.
unsafe impl Send for Mr {}
// SAFETY: what changes is behind locks; the head as for Send.
unsafe impl Sync for Mr {}

// SAFETY: `repr(C)`, and the head is the first field.
unsafe impl Object for Mr {
    type Head = fid_mr;
    fn poison(&self) -> &Poison {
        &self.poison
    }
    fn core(&self) -> Option<&'static Core> {
        self.domain.core()
    }
}

static FID_OPS: fi_ops = object::ops(close, bind, control);
pub(crate) static OPS: fi_ops_mr = fi_ops_mr { size: size_of::<fi_ops_mr>(), reg, regv, regattr };

impl Mr {
    fn open(
        domain: Arc<Domain>,
        part: iovec,
        access: u64,
        requested_key: u64,
        context: *mut c_void,
    ) -> Result<Arc<Self>, c_int> {
        let start = part.iov_base.expose_provenance() as u64;
        let region = Region { start, len: part.iov_len as u64, access, is_closed: false };
        if region.len != u64::MAX && start.checked_add(region.len).is_none() {
            return Err(FI_EINVAL);
        }
        let key = domain.registrations.add(region, requested_key).inspect_err(|_| {
            log!(domain.core(), INFO, MR, "key {requested_key:#x} is taken");
        })?;
        let base = if domain.registrations.plain_addresses { start } else { 0 };
        let published = domain.store.publish(&domain.member, start, region.len, access, key, base);
        let published = Mutex::new(published.inspect_err(|_| domain.registrations.remove(key))?);
        let len = region.len;
        log!(
            domain.core(),
            INFO,
            MR,
            "registered {len} bytes at {start:#x}, access {access:#x}, as key {key:#x}"
        );
        let fid = object::head(FI_CLASS_MR, context, &FID_OPS);
        let head = fid_mr { fid, mem_desc: std::ptr::null_mut(), key };
        Ok(Arc::new(Self { head, poison: Poison::new(), domain, published }))
    }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    let last = |mr: &Arc<Mr>| {
        if !mr.domain.is_own() {
            return 0;
        }
        mr.domain.registrations.close(mr.head.key);
        log!(mr.core(), INFO, MR, "closed key {:#x}", mr.head.key);
        // Progress in another thread may have found it just before, and may use it until it ends.
        mr.domain.await_progress();
        let mut published = mr.published.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = published.as_mut()
            && let Err(error) = mr.domain.store.withdraw(&mr.domain.member, entry)
        {
            return -error;
        }
        *published = None;
        if let Err(error) = mr.domain.store.withdraw_pages(&mr.domain.member, mr.head.key) {
            // This is called again, and the key is this registration's until then.
            return -error;
        }
        mr.domain.registrations.remove(mr.head.key);
        0
    };
    // SAFETY: fi_mr_reg gave `fid` out, and this is the one fi_close of it.
    unsafe { object::close::<Mr>(fid.cast(), last) }
}

unsafe extern "C" fn bind(_fid: *mut fid, other: *mut fid, _flags: u64) -> c_int {
    // SAFETY: null, or an open object of the program's; all begin with this head.
    match unsafe { isthmus_cabi::object(other) } {
        // A registration serves all endpoints of its domain without being bound.
        Some(other) if other.fclass == FI_CLASS_EP => 0,
        _ => -FI_ENOSYS,
    }
}

unsafe extern "C" fn control(_fid: *mut fid, command: c_int, _arg: *mut c_void) -> c_int {
    if command == FI_ENABLE { 0 } else { -FI_ENOSYS }
}

unsafe extern "C" fn reg(
    fid: *mut fid,
    buf: *const c_void,
    len: usize,
    access: u64,
    _offset: u64,
    requested_key: u64,
    flags: u64,
    answer: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    if flags != 0 {
        return -FI_EBADFLAGS;
    }
    let part = iovec { iov_base: buf.cast_mut(), iov_len: len };
    let body = |domain| Mr::open(domain, part, access, requested_key, context);
    // SAFETY: fi_domain gave `fid` out, and it is open; `answer` is null or the program's place for the object.
    unsafe { object::open::<Domain, Mr>(fid.cast(), answer, body) }
}

unsafe extern "C" fn regv(
    fid: *mut fid,
    iov: *const iovec,
    count: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    answer: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: null, or `count` parts that the program lends for this call.
    let part = match unsafe { isthmus_cabi::slice(iov, count, 1) } {
        Some([part]) => *part,
        _ => return -FI_EINVAL,
    };
    // SAFETY: `reg` asks for the same of these arguments.
    unsafe { reg(fid, part.iov_base, part.iov_len, access, offset, requested_key, flags, answer, context) }
}

unsafe extern "C" fn regattr(
    fid: *mut fid,
    attr: *const fi_mr_attr,
    flags: u64,
    answer: *mut *mut fid_mr,
) -> c_int {
    // SAFETY: null, or attributes that the program lends for this call; newer versions only add to their end.
    let Some(attr) = (unsafe { isthmus_cabi::object(attr) }) else { return -FI_EINVAL };
    // SAFETY: `regv` asks for the same of these arguments.
    unsafe {
        regv(
            fid,
            attr.mr_iov,
            attr.iov_count,
            attr.access,
            attr.offset,
            attr.requested_key,
            flags,
            answer,
            attr.context,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(mr_mode: c_int) -> Reach {
        let registrations = Arc::new(Registrations::new(mr_mode));
        Reach { core: None, registrations, table: None, domain: Weak::new() }
    }

    #[test]
    fn bounds_and_access_are_checked() {
        let reach = table(0);
        let memory = [7u8; 64];
        let start = memory.as_ptr().expose_provenance() as u64;
        let region = Region { start, len: 64, access: FI_REMOTE_READ, is_closed: false };
        assert_eq!(reach.registrations.add(region, 5), Ok(5));
        assert_eq!(reach.registrations.add(region, 5), Err(FI_ENOKEY));
        assert_eq!(reach.find(5, 60, 4, Access::Read).map(LocalBuf::to_vec), Ok(vec![7; 4]));
        assert_eq!(reach.find(5, 61, 4, Access::Read).err(), Some(Status::NoAccess));
        assert_eq!(reach.find(5, u64::MAX, 4, Access::Read).err(), Some(Status::NoAccess));
        assert_eq!(reach.find(5, 0, 4, Access::Write).err(), Some(Status::NoAccess));
        assert_eq!(reach.find(6, 0, 4, Access::Read).err(), Some(Status::NoKey));
        reach.registrations.remove(5);
        assert_eq!(reach.find(5, 0, 4, Access::Read).err(), Some(Status::NoKey));
    }

    #[test]
    fn with_fi_mr_basic_keys_are_ours_and_addresses_the_targets() {
        let reach = table(FI_MR_BASIC);
        let region = Region { start: 0x1000, len: 64, access: FI_REMOTE_WRITE, is_closed: false };
        let first = reach.registrations.add(region, 5).unwrap();
        assert_ne!(reach.registrations.add(region, 5).unwrap(), first);
        assert_eq!(reach.find(first, 0x1010, 4, Access::Write).map(LocalBuf::address), Ok(0x1010));
        assert_eq!(reach.find(first, 0xfff, 4, Access::Write).err(), Some(Status::NoAccess));
    }

    #[test]
    fn the_whole_address_space_is_validated_at_each_access() {
        let reach = table(0);
        let region =
            Region { start: 0, len: u64::MAX, access: FI_REMOTE_READ | FI_REMOTE_WRITE, is_closed: false };
        reach.registrations.add(region, 1).unwrap();
        let mut memory = vec![1u8; 10000];
        let at = memory.as_mut_ptr().expose_provenance() as u64;
        assert!(reach.find(1, at, 10000, Access::Write).is_ok());
        assert_eq!(reach.find(1, 64, 8, Access::Read).err(), Some(Status::NoAccess));
        let code = bounds_and_access_are_checked as *const () as u64;
        assert!(reach.find(1, code, 4, Access::Read).is_ok());
        assert_eq!(reach.find(1, code, 4, Access::Write).err(), Some(Status::NoAccess), "read-only memory");
    }

    #[test]
    fn mappings_are_read_with_their_holes_and_rights() {
        let maps = "1000-3000 rw-p 00000000 00:00 0\n3000-4000 rw-s 00000000 00:05 7  /dev/x\n\
                    4000-5000 r--p 00000000 00:00 0\n6000-7000 rw-p 00000000 00:00 0\n";
        assert!(covers(maps, 0x1800, 0x4000, Access::Write));
        assert!(covers(maps, 0x1800, 0x5000, Access::Read));
        assert!(!covers(maps, 0x1800, 0x4001, Access::Write));
        assert!(!covers(maps, 0x4800, 0x6001, Access::Read));
        assert!(!covers(maps, 0x800, 0x1001, Access::Read));
        assert!(!covers(maps, 0x6800, 0x7001, Access::Read));
    }
}
