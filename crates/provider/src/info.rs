//! `fi_getinfo`: what the provider supports, compared with what the program wants.
//!
//! Every refusal is a plain `-FI_ENODATA`, never a warning: libfabric asks each provider for everything, and programs
//! ask several times with hints that they expect to be refused. `FI_LOG_LEVEL=info` shows the attribute that did not
//! fit.
//!
//! Members of hints that did not exist in libfabric 1.17 are not read. The answer is allocated with libc, since the core
//! frees it with libc, and has the newest size, which every core takes.

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::null_mut;

use isthmus_cabi::{Poison, guard, object, put, text};
use isthmus_fabric_sys as fi;
use isthmus_fabric_sys::*;
use isthmus_transport::address::ADDRESS_BYTES;
use isthmus_transport::{Destination, Name};

use crate::core::{Core, VERSION, any, log};
use crate::{attachment, domain, fabric, names};

/// Length of the longest message that may be injected; each endpoint's lanes have room for it.
pub(crate) const INJECT_BYTES: usize = 4096;
/// Most parts of a message.
pub(crate) const IOV_LIMIT: usize = 16;
/// Length of the longest message: far more than any machine's memory, and sums of it do not overflow.
pub(crate) const MAX_MESSAGE_BYTES: usize = 1 << 46;
/// How many operations may be outstanding, as attributes say. There is no such limit; programs size their tables by it.
const DEPTH: usize = 1024;
const DEPTH_MAX: usize = 1 << 20;
/// How many objects of a kind a domain may have, as attributes say.
const OBJECTS: usize = 1 << 16;
/// The format of addresses: the provider's own, 64 bytes ([`Destination`]).
const ADDR_FORMAT: u32 = FI_PROV_SPECIFIC | 0x1547;
const PROTOCOL: u32 = FI_PROV_SPECIFIC | 0x1547;
const PROTOCOL_VERSION: u32 = 1;
/// All 64 bits of a tag may be used; this pattern is libfabric's way to say so.
const TAG_FORMAT: u64 = 0xaaaa_aaaa_aaaa_aaaa;

const MESSAGE_CAPS: u64 = FI_MSG | FI_TAGGED;
const RMA_CAPS: u64 = FI_RMA | FI_ATOMIC;
/// Given if a hint names it, or if hints name none of these.
const PRIMARY_CAPS: u64 = MESSAGE_CAPS | RMA_CAPS | FI_DIRECTED_RECV;
/// Always given.
const SECONDARY_CAPS: u64 = FI_MULTI_RECV | FI_LOCAL_COMM | FI_REMOTE_COMM;
const TX_MODIFIERS: u64 = FI_SEND | FI_READ | FI_WRITE;
const RX_MODIFIERS: u64 = FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE;
const MODIFIERS: u64 = TX_MODIFIERS | RX_MODIFIERS;
/// Given only if a hint names it, since it costs.
const COSTLY_CAPS: u64 = FI_SOURCE;
const ALL_CAPS: u64 = PRIMARY_CAPS | SECONDARY_CAPS | MODIFIERS | COSTLY_CAPS;
const DOMAIN_CAPS: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM;

const MSG_ORDER: u64 =
    FI_ORDER_SAS | FI_ORDER_ATOMIC_RAR | FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAR | FI_ORDER_ATOMIC_WAW;
const TX_OP_FLAGS: u64 = FI_COMPLETION
    | FI_INJECT
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE
    | FI_MATCH_COMPLETE;
const RX_OP_FLAGS: u64 = FI_COMPLETION | FI_MULTI_RECV;
/// A flag that is internal to libfabric, the same in all versions: the core asks for the lower layer of a layered provider.
const CORE_PROV_ONLY: u64 = 1 << 59;

static POISON: Poison = Poison::new();

/// `fi_getinfo`.
///
/// # Safety
/// `node` and `service` are null or C strings; `hints` is null, or its members are null or valid, too; `answer` is null or
/// may be written.
pub(crate) unsafe fn getinfo(
    core: Option<&Core>,
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    answer: *mut *mut fi_info,
) -> c_int {
    let report = |said: &str| log!(any(), WARN, CORE, "internal error, getinfo is off from now on: {said}");
    guard(&POISON, -FI_ENODATA, report, || {
        if flags & CORE_PROV_ONLY != 0 {
            return -FI_ENODATA;
        }
        // SAFETY: the caller vouches for the hints and their members.
        let mut wanted = match unsafe { Wanted::read(hints) } {
            Some(wanted) => wanted,
            None => return -FI_EINVAL,
        };
        // SAFETY: null or a C string, for which the caller vouches.
        let node = unsafe { text(node) }.filter(|n| !n.is_empty());
        // SAFETY: null or a C string, for which the caller vouches.
        let service = unsafe { text(service) }.filter(|s| !s.is_empty());
        let named = (node.is_some() || service.is_some()) && flags & FI_PROV_ATTR_ONLY == 0;
        wanted.leave_out(flags & FI_SOURCE != 0, named);
        let offer = match Offer::new(version, &wanted) {
            Ok(offer) => offer,
            Err(what) => {
                log!(core, INFO, CORE, "refused for its {what}");
                return -FI_ENODATA;
            }
        };
        let is_there = |here| wanted.is_in(here);
        let system = wanted.dest.map(|dest| dest.system());
        let sought = attachment::Sought { is_there: &is_there, system };
        let sought = wanted.names_region().then_some(sought);
        let Some(here) = attachment::probe(core, sought) else { return -FI_ENODATA };
        let region = here.region;
        if wanted.fabric_name.is_some_and(|n| n != fabric_name(region)) {
            log!(core, INFO, CORE, "refused for its fabric name");
            return -FI_ENODATA;
        }
        if system.is_some_and(|system| !attachment::has(region, system)) {
            log!(
                core,
                INFO,
                CORE,
                "refused for its destination address, whose host or VM is not in the region"
            );
            return -FI_ENODATA;
        }
        if named && let Err(what) = wanted.resolve(region, node, service, flags) {
            log!(core, INFO, CORE, "refused for its {what}");
            return -FI_ENODATA;
        }
        // An address without a service gives an endpoint no name, but programs expect that there is one.
        let source = wanted.source.or_else(|| Name::new(here.system, ""));
        if source.is_some_and(|source| source.system != here.system) {
            log!(core, INFO, CORE, "refused for its source address, which is not this host's or VM's");
            return -FI_ENODATA;
        }
        wanted.source = source;
        let made = offer.allocate(version, &wanted, region);
        if made.is_null() {
            return -FI_ENOMEM;
        }
        // SAFETY: null or may be written, for which the caller vouches.
        if unsafe { put(answer, made) } { 0 } else { -FI_EINVAL }
    })
}

/// The name of a fabric. A fabric is whatever endpoints can reach each other: a region.
pub(crate) fn fabric_name(region: [u64; 2]) -> String {
    format!("isthmus-{:08x}", region[0] >> 32)
}

const DOMAIN_NAME: &str = "region";

/// The hints, as references and copies; `None` where there is no hint.
#[derive(Default)]
struct Wanted<'a> {
    caps: u64,
    addr_format: u32,
    ep: Option<&'a fi_ep_attr>,
    tx: Option<&'a fi_tx_attr>,
    rx: Option<&'a fi_rx_attr>,
    domain: Option<&'a DomainHints>,
    fabric: *mut fid_fabric,
    fabric_name: Option<&'a str>,
    domain_name: Option<&'a str>,
    dest: Option<Destination>,
    source: Option<Name>,
    bad_dest: bool,
    bad_source: bool,
}

/// The part of `fi_domain_attr` that exists in every version.
#[repr(C)]
pub(crate) struct DomainHints {
    domain: *mut fid_domain,
    name: *mut c_char,
    pub(crate) threading: u32,
    control_progress: u32,
    data_progress: u32,
    resource_mgmt: u32,
    av_type: u32,
    pub(crate) mr_mode: c_int,
    mr_key_size: usize,
    cq_data_size: usize,
    cq_cnt: usize,
    ep_cnt: usize,
    tx_ctx_cnt: usize,
    rx_ctx_cnt: usize,
    max_ep_tx_ctx: usize,
    max_ep_rx_ctx: usize,
    max_ep_stx_ctx: usize,
    max_ep_srx_ctx: usize,
    cntr_cnt: usize,
    mr_iov_limit: usize,
    caps: u64,
    mode: u64,
    auth_key: *mut u8,
    auth_key_size: usize,
    max_err_data: usize,
    mr_cnt: usize,
    tclass: u32,
}

const _: () = assert!(size_of::<DomainHints>() == 192);
const _: () =
    assert!(std::mem::offset_of!(DomainHints, tclass) == std::mem::offset_of!(fi_domain_attr, tclass));

impl<'a> Wanted<'a> {
    /// Reads the hints; none if they are misaligned.
    ///
    /// # Safety
    /// `hints` is null, or its members are null or valid, too, for `'a`.
    unsafe fn read(hints: *const fi_info) -> Option<Self> {
        if hints.is_null() {
            return Some(Self::default());
        }
        // SAFETY: not null, so the caller vouches for it.
        let info: &'a fi_info = unsafe { object(hints) }?;
        // SAFETY: null or valid, as all members, for which the caller vouches.
        let fabric_attr: Option<&fi_fabric_attr> = unsafe { object(info.fabric_attr) };
        // SAFETY: null or valid, as all members; `DomainHints` is what every version has.
        let domain: Option<&'a DomainHints> = unsafe { object(info.domain_attr.cast::<DomainHints>()) };
        let (mut dest, mut source) = (None, None);
        if !info.dest_addr.is_null() {
            // SAFETY: not null, so `dest_addrlen` bytes, for which the caller vouches.
            let bytes = unsafe { isthmus_cabi::slice(info.dest_addr.cast::<u8>(), info.dest_addrlen, 4096) };
            dest = bytes.and_then(|bytes| Destination::from_bytes(bytes).ok());
        }
        if !info.src_addr.is_null() {
            // SAFETY: not null, so `src_addrlen` bytes, for which the caller vouches.
            let bytes = unsafe { isthmus_cabi::slice(info.src_addr.cast::<u8>(), info.src_addrlen, 4096) };
            source = bytes.and_then(|bytes| Name::from_bytes(bytes).ok());
        }
        let name = |at: *mut c_char| -> Option<&'a str> {
            // SAFETY: null or a C string, as all names among the members.
            unsafe { text(at) }
        };
        Some(Self {
            caps: info.caps,
            addr_format: info.addr_format,
            // SAFETY: null or valid, as all members.
            ep: unsafe { object(info.ep_attr) },
            // SAFETY: null or valid, as all members.
            tx: unsafe { object(info.tx_attr) },
            // SAFETY: null or valid, as all members.
            rx: unsafe { object(info.rx_attr) },
            domain,
            fabric: fabric_attr.map_or(null_mut(), |f| f.fabric),
            fabric_name: fabric_attr.and_then(|f| name(f.name)),
            domain_name: domain.and_then(|d| name(d.name)),
            bad_dest: !info.dest_addr.is_null() && dest.is_none(),
            bad_source: !info.src_addr.is_null() && source.is_none(),
            dest,
            source,
        })
    }

    /// Whether a hint names what is in one region only.
    fn names_region(&self) -> bool {
        let addresses = self.dest.is_some() || self.source.is_some();
        addresses || self.fabric_name.is_some() || fabric::region_of(self.fabric).is_some()
    }

    /// Whether the fabric and the source that the hints name are here.
    fn is_in(&self, here: attachment::Here) -> bool {
        self.fabric_name.is_none_or(|name| name == fabric_name(here.region))
            && fabric::region_of(self.fabric).is_none_or(|region| region == here.region)
            && self.source.is_none_or(|source| source.system == here.system)
    }

    /// Drops the address among the hints that fi_getinfo(3) says is ignored: the source's where node and service name the
    /// source, the destination's where they name the destination.
    fn leave_out(&mut self, is_source: bool, named: bool) {
        if is_source {
            (self.source, self.bad_source) = (None, false);
        } else if named {
            (self.dest, self.bad_dest) = (None, false);
        }
    }

    /// Takes the address that node and service stand for, or says what is wrong with them.
    fn resolve(
        &mut self,
        region: [u64; 2],
        node: Option<&str>,
        service: Option<&str>,
        flags: u64,
    ) -> Result<(), String> {
        let member = attachment::of(region).map_err(|e| format!("node and service: {e}"))?;
        let name = names::name(&member, node, service, flags & FI_NUMERICHOST != 0)?;
        if flags & FI_SOURCE != 0 {
            self.source = Some(name);
        } else {
            self.dest = Some(Destination::Name(name));
        }
        Ok(())
    }
}

/// The part of the answer that depends on the hints.
struct Offer {
    caps: u64,
    tx_caps: u64,
    rx_caps: u64,
    mr_mode: c_int,
    threading: u32,
    control_progress: u32,
    data_progress: u32,
    resource_mgmt: u32,
    av_type: u32,
    tx_op_flags: u64,
    rx_op_flags: u64,
    inject_size: usize,
    tx_size: usize,
    rx_size: usize,
    tx_iov_limit: usize,
    rx_iov_limit: usize,
    max_msg_size: usize,
}

type Refused = &'static str;

fn check(fits: bool, what: Refused) -> Result<(), Refused> {
    if fits { Ok(()) } else { Err(what) }
}

/// The hint where there is one, else the provider's value.
fn or(hint: usize, own: usize) -> usize {
    if hint == 0 { own } else { hint }
}

impl Offer {
    fn new(version: u32, wanted: &Wanted<'_>) -> Result<Self, Refused> {
        check(!wanted.bad_dest, "destination address")?;
        check(!wanted.bad_source, "source address, which is no service's name")?;
        check(wanted.addr_format == FI_FORMAT_UNSPEC || wanted.addr_format == ADDR_FORMAT, "address format")?;
        check(wanted.caps & !ALL_CAPS == 0, "capabilities")?;
        let caps = caps(wanted.caps);
        let mut offer = Self {
            caps,
            tx_caps: caps & (MESSAGE_CAPS | RMA_CAPS | TX_MODIFIERS),
            rx_caps: caps
                & (MESSAGE_CAPS | RMA_CAPS | RX_MODIFIERS | FI_MULTI_RECV | FI_DIRECTED_RECV | FI_SOURCE),
            mr_mode: mr_mode(version, FI_MR_UNSPEC),
            threading: FI_THREAD_SAFE,
            control_progress: FI_PROGRESS_MANUAL,
            data_progress: FI_PROGRESS_MANUAL,
            resource_mgmt: FI_RM_ENABLED,
            av_type: FI_AV_UNSPEC,
            tx_op_flags: 0,
            rx_op_flags: 0,
            inject_size: INJECT_BYTES,
            tx_size: DEPTH,
            rx_size: DEPTH,
            tx_iov_limit: IOV_LIMIT,
            rx_iov_limit: IOV_LIMIT,
            max_msg_size: MAX_MESSAGE_BYTES,
        };
        if let Some(ep) = wanted.ep {
            offer.endpoint(ep)?;
        }
        if let Some(tx) = wanted.tx {
            offer.transmit(tx)?;
        }
        if let Some(rx) = wanted.rx {
            offer.receive(rx)?;
        }
        if let Some(domain) = wanted.domain {
            offer.domain(version, domain, wanted.domain_name)?;
        }
        check(
            wanted.fabric.is_null() || fabric::is_ours(wanted.fabric),
            "fabric, which is another provider's",
        )?;
        Ok(offer)
    }

    fn endpoint(&mut self, ep: &fi_ep_attr) -> Result<(), Refused> {
        check(ep.ep_type == FI_EP_UNSPEC || ep.ep_type == FI_EP_RDM, "endpoint type")?;
        check(ep.protocol == FI_PROTO_UNSPEC || ep.protocol == PROTOCOL, "protocol")?;
        check(ep.protocol_version <= PROTOCOL_VERSION, "protocol version")?;
        check(ep.max_msg_size <= MAX_MESSAGE_BYTES, "maximum message size")?;
        check(ep.msg_prefix_size == 0, "message prefix")?;
        check(ep.tx_ctx_cnt <= 1 && ep.rx_ctx_cnt <= 1, "context counts")?;
        check(ep.auth_key_size == 0, "authorization key")?;
        self.max_msg_size = or(ep.max_msg_size, MAX_MESSAGE_BYTES);
        Ok(())
    }

    fn transmit(&mut self, tx: &fi_tx_attr) -> Result<(), Refused> {
        let side = MESSAGE_CAPS | RMA_CAPS | TX_MODIFIERS;
        check(tx.caps & !(ALL_CAPS | side) == 0, "transmit capabilities")?;
        check(tx.op_flags & !TX_OP_FLAGS == 0, "transmit operation flags")?;
        check(tx.msg_order & !MSG_ORDER == 0, "transmit message order")?;
        check(tx.comp_order == 0, "transmit completion order")?;
        check(tx.inject_size <= INJECT_BYTES, "inject size")?;
        check(tx.size <= DEPTH_MAX, "transmit size")?;
        check(tx.iov_limit <= IOV_LIMIT, "transmit iov limit")?;
        check(tx.rma_iov_limit <= 1, "remote iov limit")?;
        if tx.caps != 0 {
            self.tx_caps &= caps(tx.caps);
        }
        self.tx_op_flags = tx.op_flags;
        self.tx_size = or(tx.size, DEPTH);
        self.tx_iov_limit = or(tx.iov_limit, IOV_LIMIT);
        Ok(())
    }

    fn receive(&mut self, rx: &fi_rx_attr) -> Result<(), Refused> {
        check(rx.caps & !ALL_CAPS == 0, "receive capabilities")?;
        check(rx.op_flags & !RX_OP_FLAGS == 0, "receive operation flags")?;
        check(rx.msg_order & !MSG_ORDER == 0, "receive message order")?;
        check(rx.comp_order == 0, "receive completion order")?;
        check(rx.size <= DEPTH_MAX, "receive size")?;
        check(rx.iov_limit <= IOV_LIMIT, "receive iov limit")?;
        if rx.caps != 0 {
            self.rx_caps &= caps(rx.caps) | (rx.caps & COSTLY_CAPS);
        }
        self.rx_op_flags = rx.op_flags;
        self.rx_size = or(rx.size, DEPTH);
        self.rx_iov_limit = or(rx.iov_limit, IOV_LIMIT);
        Ok(())
    }

    fn domain(&mut self, version: u32, hint: &DomainHints, name: Option<&str>) -> Result<(), Refused> {
        check(name.is_none_or(|n| n == DOMAIN_NAME), "domain name")?;
        check(hint.threading <= FI_THREAD_ENDPOINT, "threading level")?;
        check(hint.control_progress != FI_PROGRESS_AUTO, "automatic control progress")?;
        check(hint.data_progress != FI_PROGRESS_AUTO, "automatic data progress")?;
        check(hint.control_progress <= FI_PROGRESS_CONTROL_UNIFIED, "control progress")?;
        check(hint.data_progress <= FI_PROGRESS_CONTROL_UNIFIED, "data progress")?;
        check(hint.resource_mgmt <= FI_RM_ENABLED, "resource management")?;
        check(hint.av_type <= FI_AV_TABLE, "address vector type")?;
        // The two old modes are values, not bits: a program asks for one alone, and old programs know no other.
        let knows_bits =
            version >= fi::fi_version(1, 5) && hint.mr_mode & (FI_MR_BASIC | FI_MR_SCALABLE) == 0;
        let old = matches!(hint.mr_mode, FI_MR_UNSPEC | FI_MR_BASIC | FI_MR_SCALABLE);
        check(knows_bits || old, "memory registration mode")?;
        check(hint.mr_key_size <= 8, "key size")?;
        check(hint.cq_data_size <= 8, "completion data size")?;
        check(hint.cq_cnt <= OBJECTS && hint.ep_cnt <= OBJECTS && hint.cntr_cnt <= OBJECTS, "object counts")?;
        check(hint.mr_cnt <= OBJECTS, "registration count")?;
        check(hint.max_err_data == 0, "error data")?;
        check(hint.tx_ctx_cnt <= OBJECTS && hint.rx_ctx_cnt <= OBJECTS, "context counts")?;
        check(hint.max_ep_tx_ctx <= 1 && hint.max_ep_rx_ctx <= 1, "contexts per endpoint")?;
        check(hint.max_ep_stx_ctx == 0 && hint.max_ep_srx_ctx == 0, "shared contexts")?;
        check(hint.mr_iov_limit <= 1, "memory region iov limit")?;
        check(hint.caps & !DOMAIN_CAPS == 0, "domain capabilities")?;
        check(hint.auth_key_size == 0, "authorization key")?;
        self.mr_mode = mr_mode(version, hint.mr_mode);
        let mut threading = FI_THREAD_SAFE;
        if !hint.domain.is_null() {
            let open = domain::terms(hint.domain).ok_or("domain, which is another provider's")?;
            if !open.locks {
                threading = FI_THREAD_DOMAIN;
                check(
                    matches!(hint.threading, FI_THREAD_UNSPEC | FI_THREAD_DOMAIN),
                    "threading level, which the open domain does not have",
                )?;
            }
            check(
                [open.plain_addresses, open.own_keys] == [self.mr_mode == FI_MR_BASIC; 2],
                "memory registration mode, which is not the open domain's",
            )?;
        }
        let echo = |hint: u32, own: u32| if hint == 0 { own } else { hint };
        // Whatever the level, ours is at least as safe; programs compare for equality.
        self.threading = echo(hint.threading, threading);
        // In libfabric 2 the second is named `progress`, and stands for both.
        self.control_progress = echo(hint.control_progress, echo(hint.data_progress, FI_PROGRESS_MANUAL));
        self.data_progress = echo(hint.data_progress, FI_PROGRESS_MANUAL);
        // Resources are managed whatever the hint says.
        self.resource_mgmt = echo(hint.resource_mgmt, FI_RM_ENABLED);
        self.av_type = hint.av_type;
        Ok(())
    }

    /// The answer in libc's memory, or null if that has no room.
    fn allocate(&self, version: u32, wanted: &Wanted<'_>, region: [u64; 2]) -> *mut fi_info {
        let info: *mut fi_info = calloc();
        let tx: *mut fi_tx_attr = calloc();
        let rx: *mut fi_rx_attr = calloc();
        let ep: *mut fi_ep_attr = calloc();
        let domain: *mut fi_domain_attr = calloc();
        let fabric: *mut fi_fabric_attr = calloc();
        let fabric_name = duplicate(&fabric_name(region));
        let domain_name = duplicate(DOMAIN_NAME);
        let dest = wanted.dest.map_or(null_mut(), |dest| duplicate_bytes(&dest.to_bytes()));
        let source = wanted.source.map_or(null_mut(), |name| duplicate_bytes(&name.to_bytes()));
        let parts: [*mut c_void; 8] = [
            info.cast(),
            tx.cast(),
            rx.cast(),
            ep.cast(),
            domain.cast(),
            fabric.cast(),
            fabric_name.cast(),
            domain_name.cast(),
        ];
        let lacks =
            (wanted.dest.is_some() && dest.is_null()) || (wanted.source.is_some() && source.is_null());
        if lacks || parts.iter().any(|p| p.is_null()) {
            for part in parts.into_iter().chain([dest, source]) {
                // SAFETY: null, or allocated by libc above and used nowhere else.
                unsafe { libc::free(part) };
            }
            return null_mut();
        }
        let fill = [
            // SAFETY: not null (checked above), so memory from `calloc` for this type.
            unsafe { put(tx, self.tx()) },
            // SAFETY: not null (checked above), so memory from `calloc` for this type.
            unsafe { put(rx, self.rx()) },
            // SAFETY: not null (checked above), so memory from `calloc` for this type.
            unsafe { put(ep, self.ep()) },
            // SAFETY: not null (checked above), so memory from `calloc` for this type.
            unsafe { put(domain, self.domain_attr(version, wanted, domain_name)) },
        ];
        debug_assert!(fill.iter().all(|f| *f));
        let fabric_attr = fi_fabric_attr {
            fabric: wanted.fabric,
            name: fabric_name,
            // The core sets it, and would put a prefix before a name that is there.
            prov_name: null_mut(),
            prov_version: VERSION,
            api_version: version,
        };
        // SAFETY: not null (checked above), so memory from `calloc` for this type.
        unsafe { put(fabric, fabric_attr) };
        let whole = fi_info {
            next: null_mut(),
            caps: self.caps,
            mode: 0,
            addr_format: ADDR_FORMAT,
            src_addrlen: if source.is_null() { 0 } else { ADDRESS_BYTES },
            dest_addrlen: if dest.is_null() { 0 } else { ADDRESS_BYTES },
            src_addr: source,
            dest_addr: dest,
            handle: null_mut(),
            tx_attr: tx,
            rx_attr: rx,
            ep_attr: ep,
            domain_attr: domain,
            fabric_attr: fabric,
            nic: null_mut(),
        };
        // SAFETY: not null (checked above), so memory from `calloc` for this type.
        unsafe { put(info, whole) };
        info
    }

    fn tx(&self) -> fi_tx_attr {
        fi_tx_attr {
            caps: self.tx_caps,
            mode: 0,
            op_flags: self.tx_op_flags,
            msg_order: MSG_ORDER,
            comp_order: 0,
            inject_size: self.inject_size,
            size: self.tx_size,
            iov_limit: self.tx_iov_limit,
            rma_iov_limit: if self.caps & RMA_CAPS == 0 { 0 } else { 1 },
            tclass: FI_TC_UNSPEC,
        }
    }

    fn rx(&self) -> fi_rx_attr {
        fi_rx_attr {
            caps: self.rx_caps,
            mode: 0,
            op_flags: self.rx_op_flags,
            msg_order: MSG_ORDER,
            comp_order: 0,
            total_buffered_recv: 0,
            size: self.rx_size,
            iov_limit: self.rx_iov_limit,
        }
    }

    fn ep(&self) -> fi_ep_attr {
        fi_ep_attr {
            ep_type: FI_EP_RDM,
            protocol: PROTOCOL,
            protocol_version: PROTOCOL_VERSION,
            max_msg_size: self.max_msg_size,
            msg_prefix_size: 0,
            max_order_raw_size: usize::MAX,
            max_order_war_size: usize::MAX,
            max_order_waw_size: usize::MAX,
            mem_tag_format: TAG_FORMAT,
            tx_ctx_cnt: 1,
            rx_ctx_cnt: 1,
            auth_key_size: 0,
            auth_key: null_mut(),
        }
    }

    fn domain_attr(&self, version: u32, wanted: &Wanted<'_>, name: *mut c_char) -> fi_domain_attr {
        // Members since 2.5, where all bits mean that there is no limit.
        let counters = if version >= fi::fi_version(2, 5) { u64::MAX } else { 0 };
        fi_domain_attr {
            domain: wanted.domain.map_or(null_mut(), |d| d.domain),
            name,
            threading: self.threading,
            control_progress: self.control_progress,
            data_progress: self.data_progress,
            resource_mgmt: self.resource_mgmt,
            av_type: self.av_type,
            mr_mode: self.mr_mode,
            mr_key_size: 8,
            cq_data_size: 8,
            cq_cnt: OBJECTS,
            ep_cnt: OBJECTS,
            tx_ctx_cnt: OBJECTS,
            rx_ctx_cnt: OBJECTS,
            max_ep_tx_ctx: 1,
            max_ep_rx_ctx: 1,
            max_ep_stx_ctx: 0,
            max_ep_srx_ctx: 0,
            cntr_cnt: OBJECTS,
            mr_iov_limit: 1,
            caps: DOMAIN_CAPS,
            mode: 0,
            auth_key: null_mut(),
            auth_key_size: 0,
            max_err_data: 0,
            mr_cnt: OBJECTS,
            tclass: FI_TC_UNSPEC,
            max_ep_auth_key: 0,
            max_group_id: 0,
            max_cntr_value: counters,
            max_err_cntr_value: counters,
        }
    }
}

/// Capabilities for a hint: the primary ones that it names, all secondary ones, and the modifiers that belong to them.
fn caps(hint: u64) -> u64 {
    let primary = if hint & PRIMARY_CAPS == 0 { PRIMARY_CAPS } else { hint & PRIMARY_CAPS };
    let mut belong = 0;
    if primary & MESSAGE_CAPS != 0 {
        belong |= FI_SEND | FI_RECV;
    }
    if primary & RMA_CAPS != 0 {
        belong |= FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    }
    let mut modifiers = 0;
    for group in [FI_SEND | FI_RECV, FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE] {
        let narrowed = hint & group & belong;
        modifiers |= if narrowed == 0 { group & belong } else { narrowed };
    }
    primary | SECONDARY_CAPS | modifiers | (hint & COSTLY_CAPS)
}

/// The mode of memory registration: no bit is needed. Programs that ask for an old API, or hint at one of the two old
/// modes, get an old mode.
fn mr_mode(version: u32, hint: c_int) -> c_int {
    match hint {
        FI_MR_BASIC => FI_MR_BASIC,
        FI_MR_SCALABLE => FI_MR_SCALABLE,
        _ if version < fi::fi_version(1, 5) => FI_MR_SCALABLE,
        _ => 0,
    }
}

fn calloc<T>() -> *mut T {
    // SAFETY: calloc takes any sizes.
    unsafe { libc::calloc(1, size_of::<T>()) }.cast()
}

fn duplicate(text: &str) -> *mut c_char {
    let text = CString::new(text).unwrap_or_default();
    // SAFETY: `text` is a C string.
    unsafe { libc::strdup(text.as_ptr()) }
}

fn duplicate_bytes(bytes: &[u8]) -> *mut c_void {
    // SAFETY: malloc takes any size.
    let copy = unsafe { libc::malloc(bytes.len()) };
    if !copy.is_null() {
        // SAFETY: not null, so fresh memory of this length.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), copy.cast(), bytes.len()) };
    }
    copy
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_follow_the_hint() {
        assert_eq!(caps(0), PRIMARY_CAPS | SECONDARY_CAPS | MODIFIERS, "no hint: all but what costs");
        assert_eq!(caps(caps(0)), caps(0), "an answer is accepted back");
        assert_eq!(caps(FI_TAGGED), FI_TAGGED | SECONDARY_CAPS | FI_SEND | FI_RECV);
        assert_eq!(caps(FI_TAGGED | FI_SEND), FI_TAGGED | SECONDARY_CAPS | FI_SEND);
        assert_eq!(caps(FI_MSG | FI_SOURCE) & FI_SOURCE, FI_SOURCE);
        assert_eq!(caps(FI_RMA) & (FI_SEND | FI_RECV), 0);
    }

    #[test]
    fn old_memory_modes_are_for_old_programs() {
        assert_eq!(mr_mode(0, FI_MR_UNSPEC), FI_MR_SCALABLE);
        assert_eq!(mr_mode(fi::fi_version(2, 5), FI_MR_UNSPEC), 0);
        assert_eq!(mr_mode(fi::fi_version(1, 5), FI_MR_BASIC), FI_MR_BASIC);
        assert_eq!(mr_mode(fi::fi_version(1, 5), FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY), 0);
    }
}
