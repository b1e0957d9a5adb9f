//! Address vectors, as in fi_av(3).
//!
//! Addresses are numbered 0, 1, 2, … in the order of their insertion, for both kinds of vector. The same address
//! inserted twice gets two numbers, and a removed number is not given again: MPICH counts on consecutive numbers.
//! Inserting only looks whether the region has the address's host or VM. Endpoints resolve an address at its first use, and
//! keep what they found ([`Remotes`], [`Numbers`]). Removing tells them to forget the number.
//!
//! A name of an endpoint ([`crate::names`]) may be inserted before an endpoint has it. It stands for the endpoint that
//! had it when it was used first, until it is removed.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, PoisonError, RwLock, Weak};

use isthmus_cabi::Poison;
use isthmus_fabric_sys::*;
use isthmus_transport::address::ADDRESS_BYTES;
use isthmus_transport::{Address, Destination, PeerId};

use crate::core::{Core, log};
use crate::domain::Domain;
use crate::ep::Ep;
use crate::lock::Lock;
use crate::object::{self, Object};
use crate::{names, unsupported};

/// An address vector.
#[repr(C)]
pub(crate) struct Av {
    head: fid_av,
    poison: Poison,
    pub(crate) domain: Arc<Domain>,
    table: RwLock<Table>,
    /// The endpoints that are bound to it; those that were closed leave at the next [`Av::enlist`].
    endpoints: Lock<Vec<Weak<Ep>>>,
}

#[derive(Default)]
struct Table {
    entries: Vec<Option<Entry>>,
    /// The lowest number of each address in the table.
    numbers: HashMap<Address, u64>,
    /// How many entries are names for which no endpoint was found yet.
    unknown: usize,
}

#[derive(Clone, Copy)]
struct Entry {
    /// What was inserted.
    dest: Destination,
    /// The endpoint that it stands for, once that is known.
    address: Option<Address>,
}

// SAFETY: the head is not written after `open`; its pointers are to static tables, and the program's own context, which
// is not followed.
unsafe impl Send for Av {}
// SAFETY: what changes is behind locks; the head as for Send.
unsafe impl Sync for Av {}

// SAFETY: `repr(C)`, and the head is the first field.
unsafe impl Object for Av {
    type Head = fid_av;
    fn poison(&self) -> &Poison {
        &self.poison
    }
    fn core(&self) -> Option<&'static Core> {
        self.domain.core()
    }
}

static FID_OPS: fi_ops = object::ops(close, unsupported::bind, unsupported::control);
static OPS: fi_ops_av = fi_ops_av {
    size: size_of::<fi_ops_av>(),
    insert,
    insertsvc,
    insertsym: unsupported::insertsym,
    remove,
    lookup,
    straddr,
    av_set: None,
    insert_auth_key: None,
    lookup_auth_key: None,
    set_user_id: None,
};

impl Av {
    pub(crate) fn open(
        domain: Arc<Domain>,
        attr: *mut fi_av_attr,
        context: *mut c_void,
    ) -> Result<Arc<Self>, c_int> {
        // SAFETY: null, or attributes that the program lends for this call.
        let attr: Option<&fi_av_attr> = unsafe { isthmus_cabi::object(attr) };
        if let Some(attr) = attr {
            // Not supported: insertion that reports to an event queue, and vectors that processes share.
            if attr.flags & FI_COMPLETION != 0 || !attr.name.is_null() {
                return Err(FI_ENOSYS);
            }
            if attr.av_type > FI_AV_TABLE || attr.rx_ctx_bits != 0 {
                return Err(FI_EINVAL);
            }
        }
        let fid = object::head(FI_CLASS_AV, context, &FID_OPS);
        let head = fid_av { fid, ops: &OPS };
        let endpoints = Lock::new(domain.locks, Vec::new());
        Ok(Arc::new(Self { head, poison: Poison::new(), domain, table: RwLock::default(), endpoints }))
    }

    /// Adds an endpoint that was bound.
    pub(crate) fn enlist(&self, endpoint: &Arc<Ep>) {
        let mut endpoints = self.endpoints.lock();
        endpoints.retain(|e| e.strong_count() > 0);
        endpoints.push(Arc::downgrade(endpoint));
    }

    fn entry(&self, number: u64) -> Option<Entry> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        *table.entries.get(usize::try_from(number).ok()?)?
    }

    /// The address with a number. `FI_EAGAIN`: it is a name that no endpoint has yet.
    pub(crate) fn address(&self, number: u64) -> Result<Address, c_int> {
        let entry = self.entry(number).ok_or(FI_EINVAL)?;
        match (entry.address, entry.dest) {
            (Some(address), _) | (None, Destination::Endpoint(address)) => Ok(address),
            (None, Destination::Name(name)) => {
                let found = names::find(self.core(), &self.domain.member, &name);
                let Some(address) = found else {
                    log!(self.core(), INFO, AV, "no endpoint has the name {name} yet");
                    return Err(FI_EAGAIN);
                };
                // If another thread was first, what it found stands.
                Ok(self.table.write().unwrap_or_else(PoisonError::into_inner).settle(number, address))
            }
        }
    }

    /// The number of an address.
    pub(crate) fn number(&self, address: &Address) -> Option<u64> {
        let unknown: Vec<u64> = {
            let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
            match table.numbers.get(address) {
                Some(number) => return Some(*number),
                None if table.unknown == 0 => return None,
                None => table.unknown().collect(),
            }
        };
        // It may be known by a name that was not used yet. Names of other endpoints stay unresolved.
        let stands_for = |number: &u64| match self.entry(*number)?.dest {
            Destination::Name(name) => names::find(self.core(), &self.domain.member, &name),
            Destination::Endpoint(_) => None,
        };
        let number = unknown.into_iter().find(|number| stands_for(number).as_ref() == Some(address))?;
        self.table.write().unwrap_or_else(PoisonError::into_inner).settle(number, *address);
        Some(number)
    }

    fn add(&self, bytes: &[u8]) -> Result<u64, c_int> {
        let dest = Destination::from_bytes(bytes).map_err(|_| FI_EINVAL)?;
        self.add_destination(dest)
    }

    fn add_destination(&self, dest: Destination) -> Result<u64, c_int> {
        if self.domain.member.region().find(dest.system()).is_none() {
            log!(self.core(), WARN, AV, "{dest} is at a host or VM that this process's region does not have");
            return Err(FI_EHOSTUNREACH);
        }
        if matches!(dest, Destination::Name(name) if name.service().is_empty()) {
            log!(self.core(), WARN, AV, "{dest} is a node without a service, and no endpoint");
            return Err(FI_EINVAL);
        }
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let number = table.entries.len() as u64;
        table.entries.push(Some(Entry { dest, address: None }));
        table.unknown += 1;
        if let Destination::Endpoint(address) = dest {
            table.settle(number, address);
        }
        Ok(number)
    }

    fn drop_number(&self, number: u64) -> bool {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let Some(place) = usize::try_from(number).ok().and_then(|n| table.entries.get_mut(n)) else {
            return false;
        };
        let Some(entry) = place.take() else { return false };
        match entry.address {
            None => table.unknown -= 1,
            Some(address) if table.numbers.get(&address) == Some(&number) => {
                // If the address was inserted more than once, its next number takes over.
                let next = table.entries.iter().position(|e| e.is_some_and(|e| e.address == Some(address)));
                match next {
                    Some(next) => table.numbers.insert(address, next as u64),
                    None => table.numbers.remove(&address),
                };
            }
            Some(_) => {}
        }
        drop(table);
        let endpoints: Vec<_> = self.endpoints.lock().iter().filter_map(Weak::upgrade).collect();
        endpoints.iter().for_each(|endpoint| endpoint.forget(number));
        true
    }
}

impl Table {
    /// Sets which endpoint a number stands for, unless that is known already; gives what it stands for.
    fn settle(&mut self, number: u64, address: Address) -> Address {
        let entry =
            usize::try_from(number).ok().and_then(|n| self.entries.get_mut(n)).and_then(Option::as_mut);
        let Some(entry) = entry else { return address };
        if entry.address.is_none() {
            entry.address = Some(address);
            self.unknown -= 1;
            self.numbers.entry(address).or_insert(number);
        }
        entry.address.unwrap_or(address)
    }

    /// The numbers of names for which no endpoint was found yet.
    fn unknown(&self) -> impl Iterator<Item = u64> {
        let of = |(i, e): (usize, &Option<Entry>)| e.is_some_and(|e| e.address.is_none()).then_some(i as u64);
        self.entries.iter().enumerate().filter_map(of)
    }
}

/// Most numbers that an endpoint uses, as a bound on its tables.
pub(crate) const MOST_ADDRESSES: u64 = 1 << 26;
/// A number that was not used yet.
const UNKNOWN: u32 = u32::MAX;

/// The remote endpoints that an endpoint's numbers stand for, by number.
///
/// Each is entered when it is used first, as are [`Numbers`], so that a message costs neither a lock nor a look into the
/// vector's own table.
#[derive(Default)]
pub(crate) struct Remotes(Vec<u32>);

impl Remotes {
    /// The remote endpoint with a number that was used before.
    #[inline]
    pub(crate) fn known(&self, number: fi_addr_t) -> Option<PeerId> {
        self.likely(number).filter(|remote| remote.0 != UNKNOWN)
    }

    /// As [`Remotes::known`], but for one of the numbers that were not used it may give a remote endpoint that there is not.
    #[inline]
    pub(crate) fn likely(&self, number: fi_addr_t) -> Option<PeerId> {
        usize::try_from(number).ok().and_then(|n| self.0.get(n)).copied().map(PeerId)
    }

    /// Enters what a number stands for.
    pub(crate) fn set(&mut self, number: fi_addr_t, remote: PeerId) {
        set(&mut self.0, number, UNKNOWN, remote.0);
    }

    /// Forgets a number.
    pub(crate) fn forget(&mut self, number: fi_addr_t) {
        if let Some(place) = usize::try_from(number).ok().and_then(|n| self.0.get_mut(n)) {
            *place = UNKNOWN;
        }
    }
}

/// The numbers that an endpoint's remote endpoints have, by remote endpoint.
#[derive(Default)]
pub(crate) struct Numbers(Vec<fi_addr_t>);

impl Numbers {
    /// The number of a remote endpoint; none or `FI_ADDR_NOTAVAIL` if it was not used before.
    #[inline]
    pub(crate) fn get(&self, remote: PeerId) -> Option<&fi_addr_t> {
        self.0.get(remote.0 as usize)
    }

    /// Enters the number of a remote endpoint.
    pub(crate) fn set(&mut self, remote: PeerId, number: fi_addr_t) {
        set(&mut self.0, u64::from(remote.0), FI_ADDR_NOTAVAIL, number);
    }

    /// Forgets a number, whichever remote endpoint has it: one that only sent something is in no [`Remotes`].
    pub(crate) fn forget(&mut self, number: fi_addr_t) {
        self.0.iter_mut().filter(|n| **n == number).for_each(|n| *n = FI_ADDR_NOTAVAIL);
    }
}

/// Writes into a table that grows.
fn set<T: Copy>(table: &mut Vec<T>, at: u64, empty: T, value: T) {
    let Ok(at) = usize::try_from(at) else { return };
    if table.len() <= at {
        table.resize(at + 1, empty);
    }
    table[at] = value;
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: fi_av_open gave `fid` out, and this is the one fi_close of it.
    unsafe { object::close::<Av>(fid.cast(), object::unless_busy) }
}

unsafe extern "C" fn insert(
    av: *mut fid_av,
    addr: *const c_void,
    count: usize,
    numbers: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    let body = |av: &Av| {
        let Some(bytes) = count.checked_mul(ADDRESS_BYTES) else { return -FI_EINVAL };
        // SAFETY: null, or `count` addresses of our size, by fi_av(3).
        let Some(all) = (unsafe { isthmus_cabi::slice(addr.cast::<u8>(), bytes, isize::MAX as usize) })
        else {
            return -FI_EINVAL;
        };
        let errors = if flags & FI_SYNC_ERR == 0 { std::ptr::null_mut() } else { context.cast::<c_int>() };
        let mut inserted = 0;
        for (i, one) in all.chunks_exact(ADDRESS_BYTES).enumerate() {
            let (number, error) = match av.add(one) {
                Ok(number) => {
                    inserted += 1;
                    (number, 0)
                }
                Err(error) => (FI_ADDR_NOTAVAIL, error),
            };
            if !numbers.is_null() {
                // SAFETY: not null, so the program's array of `count` places, of which this is one.
                unsafe { numbers.wrapping_add(i).write(number) };
            }
            if !errors.is_null() {
                // SAFETY: with FI_SYNC_ERR the context is an array of `count` places, of which this is one.
                unsafe { errors.wrapping_add(i).write(error) };
            }
        }
        inserted
    };
    // SAFETY: fi_av_open gave `av` out, and the program has not closed it.
    unsafe { object::call::<Av, _>(av, -FI_EIO, body) }
}

/// Inserts a service by its name; gives 1, the number of addresses, or an error.
unsafe extern "C" fn insertsvc(
    av: *mut fid_av,
    node: *const c_char,
    service: *const c_char,
    numbers: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    let body = |av: &Av| {
        // SAFETY: null, or a C string that the program lends for this call.
        let node = unsafe { isthmus_cabi::text(node) };
        // SAFETY: null, or a C string that the program lends for this call.
        let service = unsafe { isthmus_cabi::text(service) };
        let added = names::name(&av.domain.member, node, service, flags & FI_NUMERICHOST != 0)
            .map_err(|what| {
                log!(av.core(), WARN, AV, "refused for its {what}");
                FI_ENODATA
            })
            .and_then(|name| av.add_destination(Destination::Name(name)));
        let (number, error) = added.map_or_else(|e| (FI_ADDR_NOTAVAIL, e), |number| (number, 0));
        if !numbers.is_null() {
            // SAFETY: not null, so the program's place for one number.
            unsafe { numbers.write(number) };
        }
        if flags & FI_SYNC_ERR != 0 && !context.is_null() {
            // SAFETY: with FI_SYNC_ERR the context is an array of one place.
            unsafe { context.cast::<c_int>().write(error) };
        }
        if error == 0 { 1 } else { -error }
    };
    // SAFETY: fi_av_open gave `av` out, and the program has not closed it.
    unsafe { object::call::<Av, _>(av, -FI_EIO, body) }
}

unsafe extern "C" fn remove(av: *mut fid_av, numbers: *mut fi_addr_t, count: usize, _flags: u64) -> c_int {
    let body = |av: &Av| {
        // SAFETY: null, or `count` numbers of the program's.
        let Some(all) =
            (unsafe { isthmus_cabi::slice(numbers.cast_const(), count, isize::MAX as usize / 8) })
        else {
            return -FI_EINVAL;
        };
        let known = all.iter().filter(|n| av.drop_number(**n)).count();
        if known == count { 0 } else { -FI_EINVAL }
    };
    // SAFETY: fi_av_open gave `av` out, and the program has not closed it.
    unsafe { object::call::<Av, _>(av, -FI_EIO, body) }
}

unsafe extern "C" fn lookup(av: *mut fid_av, number: fi_addr_t, addr: *mut c_void, len: *mut usize) -> c_int {
    let body = |av: &Av| {
        let Some(entry) = av.entry(number) else { return -FI_EINVAL };
        // SAFETY: the program's buffer, and null or the place of its length.
        unsafe { copy_name(&entry.dest, addr, len) };
        0
    };
    // SAFETY: fi_av_open gave `av` out, and the program has not closed it.
    unsafe { object::call::<Av, _>(av, -FI_EIO, body) }
}

/// Copies as much of an address as fits, and writes its length to `len`; gives whether all of it fitted.
///
/// # Safety
/// `len` is null, or the place of a length; `at` is null, or has room for as many bytes.
pub(crate) unsafe fn copy_name(dest: &Destination, at: *mut c_void, len: *mut usize) -> bool {
    if len.is_null() || !len.is_aligned() {
        return false;
    }
    // SAFETY: not null and aligned (checked above); the caller vouches for a length there.
    let room = if at.is_null() { 0 } else { unsafe { len.read() } };
    let bytes = dest.to_bytes();
    let count = room.min(bytes.len());
    if count > 0 {
        // SAFETY: not null, or `room` would be 0; `count` is at most `room`, and at most the address's length.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at.cast::<u8>(), count) };
    }
    // SAFETY: not null and aligned (checked above); the caller wants the length there.
    unsafe { len.write(bytes.len()) };
    count == bytes.len()
}

unsafe extern "C" fn straddr(
    _av: *mut fid_av,
    addr: *const c_void,
    buf: *mut c_char,
    len: *mut usize,
) -> *const c_char {
    let made = std::panic::catch_unwind(|| {
        // SAFETY: null, or an address of our size, by fi_av(3).
        let bytes = unsafe { isthmus_cabi::slice(addr.cast::<u8>(), ADDRESS_BYTES, ADDRESS_BYTES) };
        match bytes.map(Destination::from_bytes) {
            Some(Ok(dest)) => dest.to_string(),
            _ => "not an isthmus address".to_owned(),
        }
    });
    // SAFETY: the program's buffer, and null or the place of its length.
    unsafe { write_text(&made.unwrap_or_default(), buf, len) };
    buf
}

/// Writes as much of a text and its terminating zero as fits, and how long both are.
///
/// # Safety
/// `len` is null, or the place of a length; `buf` is null, or has room for as many bytes.
unsafe fn write_text(text: &str, buf: *mut c_char, len: *mut usize) {
    if len.is_null() || !len.is_aligned() {
        return;
    }
    // SAFETY: not null and aligned (checked above); the caller vouches for a length there.
    let room = if buf.is_null() { 0 } else { unsafe { len.read() } };
    if room > 0 {
        let count = text.len().min(room - 1);
        // SAFETY: `buf` is not null, or `room` would be 0; it has room for `count` bytes and one more.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), buf.cast::<u8>(), count) };
        // SAFETY: the byte behind the `count`, for which there is room.
        unsafe { buf.wrapping_add(count).write(0) };
    }
    // SAFETY: not null and aligned (checked above); the caller wants the length there.
    unsafe { len.write(text.len() + 1) };
}
