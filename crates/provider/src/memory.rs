//! Memory of the region that a program uses itself: `fi_open_ops(domain, "isthmus_memory", ...)`, as
//! `include/isthmus_fi.h` declares it, and the table of what is registered within.
//!
//! A registration that lies in such memory is published, so that initiators reach it without this process. All other
//! memory is reached by messages ([`crate::mr`]), unless its pages can be granted ([`crate::windows`]).

use std::collections::{BTreeMap, HashMap, hash_map};
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use isthmus_fabric_sys::*;
use isthmus_region::Listed;
use isthmus_region::grants::Own;
use isthmus_region::holds::Former;
use isthmus_region::local::LocalBuf;
use isthmus_region::member::Member;
use isthmus_region::registrations::{self, Range, Table};

use crate::domain::Domain;
use crate::windows::{Registered, Window};
use crate::{arithmetic, errno, heap, object};

/// The name for `fi_open_ops`.
const NAME: &[u8] = b"isthmus_memory";
/// How long a close waits for operations that initiators have begun.
const PATIENCE: Duration = Duration::from_secs(1);

/// `struct isthmus_memory_ops`.
#[repr(C)]
struct Ops {
    size: usize,
    alloc: unsafe extern "C" fn(*mut fid_domain, usize, usize, *mut *mut c_void) -> c_int,
    free: unsafe extern "C" fn(*mut fid_domain, *mut c_void) -> c_int,
}

static OPS: Ops = Ops { size: size_of::<Ops>(), alloc, free };

/// The memory of the region that a domain's program uses, and the table of what it lets initiators reach.
#[derive(Default)]
pub(crate) struct Store {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Allocations by address.
    live: BTreeMap<u64, Block>,
    /// Registrations of the program's own memory that have been reached by messages, by key.
    windows: HashMap<u64, Window>,
    /// The pages that this process may grant; the inner one is none where it cannot.
    own: Option<Option<Own>>,
    table: Option<Table>,
}

/// What initiators may do with a registration, as its entry says it.
fn allowed(access: u64) -> u64 {
    let reads = if access & FI_REMOTE_READ == 0 { 0 } else { registrations::READ };
    let atomic = if arithmetic::is_shared() { registrations::ATOMIC } else { 0 };
    reads | if access & FI_REMOTE_WRITE == 0 { 0 } else { registrations::WRITE | atomic }
}

/// An allocation.
#[derive(Debug)]
struct Block {
    offset: u64,
    bytes: u64,
    /// Registrations that lie within it.
    registered: u32,
    _listed: Listed,
}

/// A published registration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    number: u32,
    /// Address of the allocation that it lies in; none if malloc(3) made that ([`heap`]), which has these bytes.
    block: Option<u64>,
    bytes: (u64, u64),
    /// No longer in the table; operations that initiators have begun may still be under way.
    withdrawn: bool,
}

impl Store {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The table's offset. It is made for the first endpoint, whose block names it. None if the region has no room.
    pub(crate) fn table(&self, member: &Arc<Member>) -> Option<u64> {
        let mut state = self.state();
        if state.table.is_none() {
            state.table = Table::create(member).ok();
        }
        state.table.as_ref().map(Table::offset)
    }

    /// Whether the program still has memory of the region.
    pub(crate) fn is_in_use(&self) -> bool {
        !self.state().live.is_empty()
    }

    fn alloc(&self, member: &Member, bytes: usize, align: usize) -> Result<u64, c_int> {
        let region = |e| errno::of_region(&e);
        if bytes == 0 || bytes > crate::info::MAX_MESSAGE_BYTES {
            return Err(FI_EINVAL);
        }
        let align = if align == 0 { 64 } else { align as u64 };
        if !align.is_power_of_two() || align > 4096 {
            return Err(FI_EINVAL);
        }
        let bytes = bytes as u64;
        let offset = member.allocate(bytes, align).map_err(region)?;
        let section = member.section();
        let made = || Ok((section.address(offset, bytes)?, section.list("isthmus_memory", offset, bytes)?));
        let made: isthmus_region::Result<_> = made();
        let (address, listed) = made.map_err(|e| {
            member.release(offset, bytes);
            region(e)
        })?;
        self.state().live.insert(address, Block { offset, bytes, registered: 0, _listed: listed });
        Ok(address)
    }

    fn free(&self, member: &Member, address: u64) -> Result<(), c_int> {
        let mut state = self.state();
        if state.live.get(&address).ok_or(FI_EINVAL)?.registered > 0 {
            return Err(FI_EBUSY);
        }
        let block = state.live.remove(&address).ok_or(FI_EINVAL)?;
        drop(state);
        member.release(block.offset, block.bytes);
        Ok(())
    }

    /// Publishes a registration, if it lies in memory of the region and allows initiators anything. Its first byte has the
    /// address `base`.
    pub(crate) fn publish(
        &self,
        member: &Arc<Member>,
        start: u64,
        len: u64,
        access: u64,
        key: u64,
        base: u64,
    ) -> Result<Option<Entry>, c_int> {
        let mut state = self.state();
        let own = within(&state.live, start, len).map(|(block, offset)| (Some(block), offset));
        let found = own.or_else(|| heap::find(member, start, len).map(|offset| (None, offset)));
        let Some((block, offset)) = found else { return Ok(None) };
        let allowed = allowed(access);
        if allowed == 0 {
            return Ok(None);
        }
        if state.table.is_none() {
            state.table = match Table::create(member) {
                Ok(table) => Some(table),
                Err(_) if block.is_none() => return Ok(None),
                Err(e) => return Err(errno::of_region(&e)),
            };
        }
        let table = state.table.as_mut().ok_or(FI_ENOMEM)?;
        let range = Range { key, offset, len, access: allowed, base, skip: 0 };
        let number = match table.publish(&range) {
            Ok(number) => number,
            // Messages reach it as well.
            Err(_) if block.is_none() => return Ok(None),
            Err(e) => return Err(errno::of_region(&e)),
        };
        if let Some(block) = block.and_then(|block| state.live.get_mut(&block)) {
            block.registered += 1;
        }
        Ok(Some(Entry { number, block, bytes: (start, len), withdrawn: false }))
    }

    /// Where in the section of `member` these bytes lie; none if they are not all in one allocation here, or in blocks of [`heap`], or if that
    /// cannot be said at once.
    pub(crate) fn offset_of(&self, member: &Arc<Member>, start: u64, len: u64) -> Option<u64> {
        let own = within(&heap::at_once(self.state.try_lock())?.live, start, len).map(|(_, offset)| offset);
        own.or_else(|| heap::find_now(member, start, len))
    }

    /// An initiator on another system has reached these bytes of a registration of the program's own memory by a message.
    pub(crate) fn reached(&self, member: &Arc<Member>, of: Registered, access: u64, found: LocalBuf) {
        // In a block of `--alloc`, which is published, and has no pages to grant.
        if heap::find_now(member, of.start, 1).is_some() {
            return;
        }
        let of = Registered { access: allowed(access), ..of };
        let mut state = self.state();
        let State { windows, own, table: Some(table), live } = &mut *state else { return };
        let Some(own) = own.get_or_insert_with(|| Own::of(member)) else { return };
        if of.access == 0 || within(live, of.start, 1).is_some() {
            return;
        }
        let window = match windows.entry(of.key) {
            hash_map::Entry::Occupied(known) => known.into_mut(),
            hash_map::Entry::Vacant(place) => match Window::new(of) {
                Some(window) => place.insert(window),
                None => return,
            },
        };
        window.reached(member, own, table, found.address(), found.len() as u64);
    }

    /// The same as [`Store::withdraw`] for what [`Store::reached`] has published of a registration.
    pub(crate) fn withdraw_pages(&self, member: &Member, key: u64) -> Result<(), c_int> {
        let mut state = self.state();
        let State { windows, table: Some(table), .. } = &mut *state else { return Ok(()) };
        let Some(window) = windows.get_mut(&key) else { return Ok(()) };
        window.withdraw(table).map_err(|e| errno::of_region(&e))?;
        drop(state);
        wait_for_holds(member)?;
        // Nobody else is held up by what follows.
        let window = self.state().windows.remove(&key);
        match window {
            // The words that were looked at may have been our own by then. The pages are kept until the agent has seen who holds them.
            Some(_) if member.region().is_retired() => {}
            Some(window) => window.end(member),
            None => {}
        }
        Ok(())
    }

    /// Withdraws a registration. On success, operations that initiators had begun have ended. After an error one of them
    /// stands still: the memory stays registered, which [`Store::free`] respects, and this must be called again.
    pub(crate) fn withdraw(&self, member: &Member, entry: &mut Entry) -> Result<(), c_int> {
        if !entry.withdrawn {
            if let Some(table) = self.state().table.as_mut() {
                table.withdraw(entry.number).map_err(|e| errno::of_region(&e))?;
            }
            entry.withdrawn = true;
            if entry.block.is_none() {
                heap::disturb(entry.bytes.0, entry.bytes.1);
            }
        }
        wait_for_holds(member)?;
        if entry.block.is_none() {
            heap::settle(entry.bytes.0, entry.bytes.1);
        }
        if let Some(at) = entry.block
            && let Some(block) = self.state().live.get_mut(&at)
        {
            block.registered -= 1;
        }
        Ok(())
    }
}

/// The allocation in which `len` bytes at `start` lie, and their offset in the section.
fn within(live: &BTreeMap<u64, Block>, start: u64, len: u64) -> Option<(u64, u64)> {
    let (at, block) = live.range(..=start).next_back()?;
    let skip = start - at;
    (skip <= block.bytes && len <= block.bytes - skip).then(|| (*at, block.offset + skip))
}

/// Waits until no initiator is at work any more in what it had found before the entry was withdrawn.
fn wait_for_holds(member: &Member) -> Result<(), c_int> {
    let until = Instant::now() + PATIENCE;
    let (region, peer, area) = (member.region(), member.peer(), member.grant().area);
    let mut former = Former::of(region, peer, area);
    while !former.are_gone(region, peer, area) {
        if Instant::now() >= until {
            return Err(FI_EBUSY);
        }
        std::thread::yield_now();
    }
    Ok(())
}

/// `fi_open_ops` on a domain.
///
/// # Safety
/// `name` is null or a C string, and `ops` is null or may be written.
pub(crate) unsafe extern "C" fn open_ops(
    _fid: *mut fid,
    name: *const c_char,
    flags: u64,
    ops: *mut *mut c_void,
    _context: *mut c_void,
) -> c_int {
    // SAFETY: null or a C string, for which the caller vouches.
    let asked = unsafe { isthmus_cabi::text(name) }.map(str::as_bytes);
    if asked != Some(NAME) {
        return -FI_ENOSYS;
    }
    if flags != 0 {
        return -FI_EBADFLAGS;
    }
    // C must not write to it, but its type there has no const.
    let table = (&raw const OPS).cast_mut().cast::<c_void>();
    // SAFETY: null or may be written, for which the caller vouches.
    if unsafe { isthmus_cabi::put(ops, table) } { 0 } else { -FI_EINVAL }
}

unsafe extern "C" fn alloc(
    domain: *mut fid_domain,
    bytes: usize,
    align: usize,
    address: *mut *mut c_void,
) -> c_int {
    let body = |domain: &Domain| {
        if address.is_null() || !domain.is_own() {
            return -FI_EINVAL;
        }
        match domain.store.alloc(&domain.member, bytes, align) {
            // SAFETY: not null, so the program's place for the address.
            Ok(at) => match unsafe { isthmus_cabi::put(address, crate::cq::pointer(at)) } {
                true => 0,
                false => -FI_EINVAL,
            },
            Err(error) => -error,
        }
    };
    // SAFETY: fi_domain gave `domain` out, and the program has not closed it.
    unsafe { object::call::<Domain, _>(domain, -FI_EIO, body) }
}

unsafe extern "C" fn free(domain: *mut fid_domain, address: *mut c_void) -> c_int {
    let body = |domain: &Domain| {
        if !domain.is_own() {
            return -FI_EINVAL;
        }
        match domain.store.free(&domain.member, address.expose_provenance() as u64) {
            Ok(()) => 0,
            Err(error) => -error,
        }
    };
    // SAFETY: fi_domain gave `domain` out, and the program has not closed it.
    unsafe { object::call::<Domain, _>(domain, -FI_EIO, body) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use isthmus_region::address::Naming;
    use isthmus_region::directory::{AreaGrant, Writer};
    use isthmus_region::extent::Extent;
    use isthmus_region::holds::{Hold, Owner};
    use isthmus_region::mapping::Mapping;
    use isthmus_region::member::LocalService;
    use isthmus_region::membership::{self, NewPeer, Shape};

    use super::*;

    struct Stub(Arc<Mutex<Writer>>, u32);

    impl LocalService for Stub {
        fn grow(&self, bytes: u64) -> isthmus_region::Result<Extent> {
            self.0.lock().unwrap().grow_area(self.1, bytes)
        }
        fn open_endpoint(&self, block: u64) -> isthmus_region::Result<(u32, u64)> {
            self.0.lock().unwrap().open_endpoint(self.1, block, 1)
        }
        fn close_endpoint(&self, slot: u32) -> isthmus_region::Result<()> {
            self.0.lock().unwrap().close_endpoint(self.1, slot)
        }
    }

    /// Two processes of one section.
    fn members() -> [Arc<Member>; 2] {
        let bytes = 4 << 20;
        let fd = isthmus_region::create::memory(bytes).unwrap();
        let map = Mapping::map(fd.as_fd(), bytes).unwrap();
        let shape = Shape::new(bytes, [1, 2], 1, 16).unwrap();
        let mut host = membership::Writer::create(&map, &shape, 1).unwrap();
        let new = NewPeer {
            file: 0,
            section: shape.host_bytes,
            section_bytes: 2 << 20,
            is_vm: false,
            name: "host",
        };
        host.add(0, &new).unwrap();
        host.activate(0, Naming::of_test(0).system).unwrap();
        let writer = Arc::new(Mutex::new(Writer::create(host.region(), 0, Naming::of_test(0)).unwrap()));
        [(); 2].map(|()| {
            let grant: AreaGrant = writer.lock().unwrap().open_area(64 << 10, 1, "test").unwrap();
            Member::new(&map, 0, grant, Box::new(Stub(Arc::clone(&writer), grant.area))).unwrap()
        })
    }

    #[test]
    fn who_begins_after_a_withdrawal_is_not_waited_for() {
        let [owner, other] = members();
        let (peer, area) = (owner.peer(), owner.grant().area);
        let hold = || {
            let block = other.take(128).unwrap();
            other.section().zero("block", block, 128).unwrap();
            other.service().open_endpoint(block).unwrap();
            Hold::of(other.section(), block).unwrap()
        };
        let (one, two) = (hold(), hold());
        one.take(Owner::new(peer, area));
        let mut former = Former::of(owner.region(), peer, area);
        two.take(Owner::new(peer, area));
        assert!(!former.are_gone(owner.region(), peer, area));
        one.release();
        assert!(former.are_gone(owner.region(), peer, area), "the other one began later");
        assert!(isthmus_region::holds::are_on(owner.region(), peer, Some(area)));
    }

    #[test]
    fn memory_that_another_process_is_changing_stays_registered_however_often_it_is_closed() {
        let [owner, other] = members();
        let store = Store::default();
        let at = store.alloc(&owner, 4096, 0).unwrap();
        for outside in [at - 64, at + 4096, at + 64] {
            let published = store.publish(&owner, outside, 4096, FI_REMOTE_WRITE, 2, 0);
            assert!(published.unwrap().is_none(), "it is not the program's memory of the region");
        }
        let mut entry = store.publish(&owner, at, 4096, FI_REMOTE_WRITE, 1, 0).unwrap().unwrap();
        let block = other.take(128).unwrap();
        other.section().zero("block", block, 128).unwrap();
        other.service().open_endpoint(block).unwrap();
        let hold = Hold::of(other.section(), block).unwrap();
        hold.take(Owner::new(0, owner.grant().area));
        for _ in 0..2 {
            assert_eq!(store.withdraw(&owner, &mut entry), Err(FI_EBUSY));
            assert_eq!(store.free(&owner, at), Err(FI_EBUSY));
        }
        hold.release();
        assert_eq!(store.withdraw(&owner, &mut entry), Ok(()));
        assert_eq!(store.free(&owner, at), Ok(()));
    }
}
