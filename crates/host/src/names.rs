//! Named objects: which processes may make and open them, and where they are. The one writer of the object table.
//!
//! ```text
//!          Create               Unlink                          closed by all, or all are dead
//! (nothing) ─────► named, open ───────► nameless, open ──────────────────────────────────────► memory given back
//!                      │  closed by all: stays, unless it ends with its creator and that is dead
//! ```
//! A process of the host asks through its attach server. A VM's agent asks for its processes through its section
//! ([`isthmus_region::objects::call`]), and is believed which process asks, as all members of a region trust each other
//! (`docs/threat-model.md`). Memory is given back only once no process can write there any more, and zeroed before it
//! becomes another object.

mod rules;
mod sharing;
mod sysv;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use isthmus_attach::protocol::{Code, Reply, Request};
use isthmus_attach::server::{Answer, Asker, Names};
use isthmus_region::extent::Extent;
use isthmus_region::life::{Life, State};
use isthmus_region::membership::Region;
use isthmus_region::objects::{
    self, Access, ENDS_WITH_CREATOR, Kind, MAX_NAME, NewObject, ObjectGrant, ObjectInfo, UNLINKED, call,
};
use isthmus_region::party::Party;
use isthmus_region::pool::Pool;
use isthmus_region::text::cut;

pub use self::rules::{Makers, Rules};
use crate::wakes::Router;

/// Memory of objects is aligned to this, so that each object can be mapped by itself.
const PAGE: u64 = 4096;
/// Requests check for dead holders at most this often.
const SWEEP: Duration = Duration::from_millis(50);
/// Longest text of a refusal, so that it fits into a reply through the region.
const MOST_TEXT: usize = 400;

/// All named objects of a region.
#[derive(Debug)]
pub struct Registry {
    region: Region,
    free: Pool,
    entries: Vec<Entry>,
    /// Objects lie before this entry.
    high: usize,
    rules: Rules,
    /// The names of the VMs that were announced.
    announced: Vec<String>,
    /// The members that there are, and those that were in places which nobody has taken since.
    members: Vec<sharing::Known>,
    /// The number of each peer's last request.
    heard: HashMap<u32, u64>,
    /// The incarnation with which each VM was connected. Its agent may have begun other lives since; processes of
    /// earlier ones may live on, and write, as long as the VM does.
    since: HashMap<u32, u64>,
    swept: Option<Instant>,
    /// Whether anything was undone for the dead since [`Registry::take_undone`].
    undone: bool,
}

#[derive(Debug, Default)]
struct Entry {
    lives: u64,
    object: Option<Object>,
}

#[derive(Debug)]
struct Object {
    info: ObjectInfo,
    extent: Extent,
    /// The processes that have it open, and how often.
    holders: HashMap<Party, u32>,
    /// The host or VM where it was made.
    home: Home,
    /// The names of the systems to which it is limited, its own not among them.
    shared_with: Option<Vec<String>>,
    /// Names that come with the next list, and who has said so last.
    next: Option<(Party, Vec<String>)>,
    /// Processes that were about to attach it when it was limited, and are still to say so.
    entering: Vec<Party>,
    /// Whether the VM where it was made is gone.
    is_orphan: bool,
}

/// A system, by its name: a VM that comes again may have another place.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Home {
    Host,
    Vm(String),
}

impl Home {
    fn vm(&self) -> Option<&str> {
        if let Self::Vm(name) = self { Some(name) } else { None }
    }
}

impl Object {
    /// Counts anew how many have it open. A process that was dropped, since it executes another program, attaches no memory of
    /// System V IPC any more, though it may live.
    fn count(&mut self, region: &Region) {
        self.info.opens = match Kind::of(self.info.kind).is_some_and(Kind::is_sysv) {
            true => self.holders.iter().filter(|(p, _)| p.is_alive(region)).map(|(_, n)| u64::from(*n)).sum(),
            false => self.holders.len() as u64,
        };
    }
}

/// Why a request is refused.
struct Refusal(Code, String);

type Answered = std::result::Result<Reply, Refusal>;

impl Registry {
    /// A registry of a fresh region.
    pub fn new(region: Region, rules: Rules) -> Self {
        let members = sharing::Known::all(&region);
        let shape = *region.shape();
        let mut free = Pool::default();
        if shape.shared_bytes > 0 {
            free.give(Extent { offset: 0, bytes: shape.shared_bytes });
        }
        let entries = (0..shape.objects).map(|_| Entry::default()).collect();
        Self {
            region,
            free,
            entries,
            high: 0,
            rules,
            announced: Vec::new(),
            members,
            heard: HashMap::new(),
            since: HashMap::new(),
            swept: None,
            undone: false,
        }
    }

    /// These VMs may join.
    pub fn announce(&mut self, vms: Vec<String>) {
        self.announced = vms;
    }

    /// Answers one request.
    pub fn answer(&mut self, asker: Asker, request: &Request) -> Reply {
        let answered = match request {
            Request::Create(new) => self.create(asker, new),
            Request::Open { kind, name, access } => self.open(asker, *kind, name, *access),
            Request::Close { index, incarnation } => self.close(asker, *index, *incarnation),
            Request::Shrink { index, incarnation, len } => self.shrink(asker, *index, *incarnation, *len),
            Request::Unlink { kind, name } => self.unlink(asker, *kind, name),
            Request::Hold { index, incarnation } => self.hold(asker, *index, *incarnation),
            Request::Release { index, incarnation } => self.close(asker, *index, *incarnation),
            Request::Enter { index, incarnation } => self.enter(asker, *index, *incarnation),
            Request::Removed { index, incarnation } => self.remove(asker, *index, *incarnation),
            Request::Change { index, incarnation, change } => {
                self.change(asker, *index, *incarnation, change)
            }
            Request::Remove { index, incarnation } => self.remove(asker, *index, *incarnation),
            Request::Share { index, incarnation, sharing } => {
                self.share(asker, *index, *incarnation, sharing)
            }
            Request::Settle => {
                self.sweep();
                Ok(Reply::Done)
            }
            _ => Err(Refusal(Code::Invalid, "this is no request about a named object".into())),
        };
        answered.unwrap_or_else(|Refusal(code, mut text)| {
            text.truncate(cut(&text, MOST_TEXT).len());
            Reply::Refused { code, text }
        })
    }

    fn find(&self, kind: Kind, name: &str) -> Option<usize> {
        self.entries[..self.high].iter().position(|e| {
            let named = |o: &Object| {
                o.info.kind == kind as u32 && o.info.name == name && o.info.flags & UNLINKED == 0
            };
            e.object.as_ref().is_some_and(named)
        })
    }

    fn create(&mut self, asker: Asker, new: &NewObject) -> Answered {
        let what = || format!("{} '{}'", new.kind.name(), new.name);
        if new.name.is_empty() || new.name.len() > MAX_NAME || new.name.contains('\0') {
            let text = format!(
                "an object's name has 1 to {MAX_NAME} bytes, and '{}' has {}",
                new.name,
                new.name.len()
            );
            return Err(Refusal(Code::Invalid, text));
        }
        if new.kind == Kind::Endpoint && !objects::endpoint::may_make(&self.region, asker.party.peer(), new) {
            let text = format!(
                "no {}: it must name an endpoint of its maker's own host or VM, and a service there",
                what()
            );
            return Err(Refusal(Code::Denied, text));
        }
        let is_sysv = || objects::sysv::is_name(&new.name, new.params[objects::sysv::KEY]);
        if new.kind.is_sysv() && (new.ends_with_creator || new.or_open || !is_sysv()) {
            return Err(Refusal(Code::Invalid, format!("{} is no object of System V IPC", what())));
        }
        self.sweep_now_and_then();
        if new.kind == Kind::Endpoint
            && let Some(at) = self.find(new.kind, &new.name)
        {
            // So that a program that is restarted at once is not refused for its former process's endpoint.
            self.sweep_at(at);
        }
        self.take_removed_name(new);
        if let Some(at) = self.find(new.kind, &new.name) {
            if !new.or_open {
                return Err(Refusal(
                    Code::Exists,
                    format!("there is {} {} already", article(new.kind), what()),
                ));
            }
            let same = self.entries[at].object.as_ref().is_some_and(|o| o.info.params == new.params);
            if !same {
                let text =
                    format!("there is {} {} already, made with other parameters", article(new.kind), what());
                return Err(Refusal(Code::Exists, text));
            }
            return self.open(asker, new.kind, &new.name, Access::Write);
        }
        if new.len == 0 {
            return Err(Refusal(Code::Invalid, format!("{} must have at least one byte", what())));
        }
        let home = self.home_of(asker.party.peer());
        // The name of an endpoint is a process's own, and goes with it.
        if new.kind != Kind::Endpoint && !self.rules.makers.are(asker.user, home.vm()) {
            let place = home.vm().map_or_else(|| "on the host".to_owned(), |vm| format!("in VM '{vm}'"));
            let text = format!(
                "no {}: the service lets user {} make no objects {place} (--create)",
                what(),
                asker.user.0
            );
            return Err(Refusal(Code::Denied, text));
        }
        let bytes = new.len.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
        if let Some((vm, quota)) = home.vm().zip(self.rules.quota_vm) {
            let used: u64 = self.bytes(|o| o.home == home);
            if used.saturating_add(bytes) > quota {
                let text = format!(
                    "no {} of {bytes} bytes: VM '{vm}' has made {used} of the {quota} bytes that the service allows each VM (--shared-quota-vm)",
                    what()
                );
                return Err(Refusal(Code::Full, text));
            }
        }
        let used: u64 = self.bytes(|o| Self::maker(&o.info) == asker.user.0);
        if let Some(quota) = self.rules.quota.filter(|q| asker.user.0 != 0 && used.saturating_add(bytes) > *q)
        {
            let text = format!(
                "no {} of {bytes} bytes: user {} has {used} of the {quota} bytes that the service allows each user (--shared-quota)",
                what(),
                asker.user.0
            );
            return Err(Refusal(Code::Full, text));
        }
        // Beyond the high mark there is none.
        let before = self.entries[..self.high].iter().position(|e| e.object.is_none());
        let Some(place) = before.or((self.high < self.entries.len()).then_some(self.high)) else {
            let text = match self.entries.len() {
                0 => format!(
                    "no {}: this region has no memory for named objects (start the service with --shared SIZE)",
                    what()
                ),
                all => format!("no {}: all {all} places for named objects are taken", what()),
            };
            return Err(Refusal(Code::Full, text));
        };
        let Some(offset) = self.free.take(bytes, PAGE) else {
            let all = self.region.shape().shared_bytes;
            let text = format!(
                "no {} of {bytes} bytes: the shared section's {all} bytes have no such piece left; the service can be started with more (--shared)",
                what()
            );
            return Err(Refusal(Code::Full, text));
        };
        let extent = Extent { offset, bytes };
        let failed = |e: isthmus_region::Error| Refusal(Code::Failed, e.to_string());
        let begun = self.region.shared().and_then(|s| s.zero("object", offset, bytes)).map_err(failed);
        let index = u32::try_from(place).unwrap_or(u32::MAX);
        self.set_high(self.high.max(place + 1));
        let entry = &mut self.entries[place];
        entry.lives += 1;
        let life = Life { incarnation: entry.lives, state: State::Active };
        let info = ObjectInfo {
            index,
            life,
            offset,
            len: new.len,
            kind: new.kind as u32,
            mode: new.mode & if new.kind.is_sysv() { 0o777 } else { 0o666 },
            owner: asker.user,
            creator: Some(asker.party),
            flags: if new.ends_with_creator { ENDS_WITH_CREATOR } else { 0 },
            opens: u64::from(!new.kind.is_sysv()),
            params: new.params,
            allowed: [0; 4],
            name: new.name.clone(),
        };
        let info = match new.kind.is_sysv() {
            true => sysv::made(info, asker.user),
            false => info,
        };
        if let Err(no) = begun.and_then(|()| objects::publish(&self.region, &info).map_err(failed)) {
            self.free.give(extent);
            return Err(no);
        }
        // An object of System V IPC stays although nobody has it open.
        let holders = if new.kind.is_sysv() { HashMap::new() } else { HashMap::from([(asker.party, 1)]) };
        let grant = grant(&info, true);
        entry.object = Some(Object {
            info,
            extent,
            holders,
            home,
            shared_with: None,
            next: None,
            entering: Vec::new(),
            is_orphan: false,
        });
        Ok(Reply::Object(grant))
    }

    /// Bytes of all objects that fit.
    fn bytes(&self, fits: impl Fn(&Object) -> bool) -> u64 {
        let objects = self.entries[..self.high].iter().filter_map(|e| e.object.as_ref());
        objects.filter(|o| fits(o)).map(|o| o.extent.bytes).sum()
    }

    /// Who made an object, also if another user owns it now.
    fn maker(info: &ObjectInfo) -> u32 {
        match Kind::of(info.kind).is_some_and(Kind::is_sysv) {
            true => objects::sysv::creator(info).0,
            false => info.owner.0,
        }
    }

    fn open(&mut self, asker: Asker, kind: Kind, name: &str, access: Access) -> Answered {
        not_by_name(kind, name)?;
        self.sweep_now_and_then();
        let what = || format!("{} '{name}'", kind.name());
        let at = self
            .find(kind, name)
            .ok_or_else(|| Refusal(Code::NotFound, format!("there is no {}", what())))?;
        let Some(object) = self.entries[at].object.as_mut() else {
            return Err(Refusal(Code::NotFound, format!("there is no {}", what())));
        };
        let info = &mut object.info;
        if !access.is_granted(info.mode, info.owner, asker.user) {
            let text = format!(
                "user {} may not {} {}: it belongs to user {}, mode {:03o}",
                asker.user.0,
                if access == Access::Read { "read" } else { "write to" },
                what(),
                info.owner.0,
                info.mode
            );
            return Err(Refusal(Code::Denied, text));
        }
        let count = object.holders.entry(asker.party).or_default();
        *count = count.saturating_add(1);
        info.opens = object.holders.len() as u64;
        let reply = Reply::Object(grant(info, false));
        self.publish(at);
        Ok(reply)
    }

    /// The place of an object that the asker has open.
    fn held(&self, asker: Asker, index: u32, incarnation: u64) -> std::result::Result<usize, Refusal> {
        let at = usize::try_from(index).unwrap_or(usize::MAX);
        let object = self.entries.get(at).and_then(|e| e.object.as_ref());
        let object = object.filter(|o| o.info.life.incarnation == incarnation);
        let held = object.is_some_and(|o| o.holders.contains_key(&asker.party));
        held.then_some(at).ok_or_else(|| Refusal(Code::NotFound, format!("object {index} is not open here")))
    }

    fn close(&mut self, asker: Asker, index: u32, incarnation: u64) -> Answered {
        let at = self.held(asker, index, incarnation)?;
        if let Some(object) = self.entries[at].object.as_mut() {
            if let Some(count) = object.holders.get_mut(&asker.party) {
                *count -= 1;
                if *count == 0 {
                    object.holders.remove(&asker.party);
                }
            }
            object.count(&self.region);
        }
        self.publish(at);
        self.end_if_over(at);
        Ok(Reply::Done)
    }

    fn shrink(&mut self, asker: Asker, index: u32, incarnation: u64, len: u64) -> Answered {
        let at = self.held(asker, index, incarnation)?;
        let Some(object) = self.entries[at].object.as_mut() else {
            return Err(Refusal(Code::NotFound, format!("object {index} is not open here")));
        };
        let info = &mut object.info;
        let refused = |code, text: String| Err(Refusal(code, text));
        if info.kind != Kind::Segment as u32 {
            return refused(
                Code::Invalid,
                format!("'{}' is no segment: only these have a size of their own", info.name),
            );
        }
        if !Access::Write.is_granted(info.mode, info.owner, asker.user) {
            return refused(
                Code::Denied,
                format!("user {} may not write to segment '{}'", asker.user.0, info.name),
            );
        }
        if len == 0 || len > info.len {
            let text = format!(
                "segment '{}' has {} bytes: it can be made smaller, to 1 byte, and not larger",
                info.name, info.len
            );
            return refused(Code::Invalid, text);
        }
        // Others may have what was cut off mapped, so its memory is given back with the rest.
        info.len = len;
        self.publish(at);
        Ok(Reply::Len(len))
    }

    fn unlink(&mut self, asker: Asker, kind: Kind, name: &str) -> Answered {
        not_by_name(kind, name)?;
        let what = || format!("{} '{name}'", kind.name());
        let at = self
            .find(kind, name)
            .ok_or_else(|| Refusal(Code::NotFound, format!("there is no {}", what())))?;
        if let Some(object) = self.entries[at].object.as_mut() {
            // By process, not by user: a VM's agent says which user asks, and root of a VM is not root of the host.
            if kind == Kind::Endpoint && object.info.creator != Some(asker.party) {
                return Err(Refusal(Code::Denied, format!("{} is another process's", what())));
            }
            let uid = asker.user.0;
            if uid != 0 && uid != object.info.owner.0 {
                let text = format!(
                    "{} belongs to user {}, and user {uid} may not unlink it",
                    what(),
                    object.info.owner.0
                );
                return Err(Refusal(Code::Denied, text));
            }
            object.info.flags |= UNLINKED;
        }
        self.publish(at);
        self.end_if_over(at);
        Ok(Reply::Done)
    }

    /// Writes an entry anew. Its incarnation stays, so processes that have it open go on.
    fn publish(&self, at: usize) {
        if let Some(object) = self.entries[at].object.as_ref() {
            // This cannot fail: the entry was written before.
            let _ = objects::publish(&self.region, &object.info);
        }
    }

    fn set_high(&mut self, high: usize) {
        if high != self.high {
            self.high = high;
            // This cannot fail: the host section is the service's own.
            let _ = objects::set_high(&self.region, u32::try_from(high).unwrap_or(u32::MAX));
        }
    }

    /// Takes an object's name away if it ends with its creator and that is dead, or with its VM and that is gone; ends an object
    /// without a name that no process has open.
    fn end_if_over(&mut self, at: usize) {
        let Some(object) = self.entries[at].object.as_mut() else { return };
        let info = &mut object.info;
        let orphan = info.flags & ENDS_WITH_CREATOR != 0
            && info.creator.is_none_or(|creator| !creator.is_alive(&self.region));
        let orphan = orphan || self.rules.remove_orphans && object.is_orphan && object.holders.is_empty();
        if orphan && info.flags & UNLINKED == 0 {
            info.flags |= UNLINKED;
            if Kind::of(info.kind).is_some_and(Kind::is_sysv) {
                sysv::take_key(info);
            }
            let _ = objects::publish(&self.region, info);
        }
        if info.flags & UNLINKED != 0 && object.holders.is_empty() {
            let (index, life, extent) = (info.index, info.life.incarnation, object.extent);
            let _ = objects::retire(&self.region, index, life);
            let (region, since) = (&self.region, &self.since);
            if sysv::is_entered(region, &object.info, |party| may_live(party, region, since)) {
                let _ = objects::publish(&self.region, &object.info);
                return;
            }
            self.entries[at].object = None;
            self.free.give(extent);
            let high =
                self.entries[..self.high].iter().rposition(|e| e.object.is_some()).map_or(0, |i| i + 1);
            self.set_high(high);
        }
    }

    /// A process is dead: closes what it had open.
    pub fn gone(&mut self, party: Party) {
        for at in 0..self.high {
            let Some(object) = self.entries[at].object.as_mut() else { continue };
            let held = object.holders.remove(&party).is_some();
            if held {
                self.undone |= sysv::undo(&self.region, &object.info, party);
                object.count(&self.region);
                self.publish(at);
            }
            // It may have died between removing a segment and saying so, or while it attached it.
            if let Some(object) = self.entries[at].object.as_mut() {
                sysv::left(&self.region, &object.info, party);
                sysv::note_removal(&self.region, &mut object.info);
            }
            self.end_if_over(at);
        }
    }

    /// A VM was connected, and its first life has this incarnation.
    pub fn connected(&mut self, peer: u32, incarnation: u64) {
        self.since.insert(peer, incarnation);
    }

    /// As [`Registry::sweep`], at most once per [`SWEEP`].
    fn sweep_now_and_then(&mut self) {
        if self.swept.is_none_or(|at| at.elapsed() >= SWEEP) {
            self.sweep();
        }
    }

    /// Closes what dead processes had open.
    pub fn sweep(&mut self) {
        self.swept = Some(Instant::now());
        (0..self.high).for_each(|at| self.sweep_at(at));
    }

    /// Closes what dead processes had open of one object.
    fn sweep_at(&mut self, at: usize) {
        let Some(object) = self.entries[at].object.as_mut() else { return };
        let before = object.holders.len();
        let (region, since) = (&self.region, &self.since);
        let undone = &mut self.undone;
        let info = &object.info;
        object.holders.retain(|party, _| {
            let lives = may_live(*party, region, since);
            *undone |= !lives && sysv::undo(region, info, *party);
            lives
        });
        sysv::note_removal(&self.region, &mut object.info);
        let opens = object.info.opens;
        object.count(&self.region);
        if object.holders.len() != before || object.info.opens != opens {
            self.publish(at);
        }
        self.end_if_over(at);
    }

    /// Whether anything was undone for the dead since the last call: then sleepers are to be rung that the death itself may have rung
    /// before.
    pub fn take_undone(&mut self) -> bool {
        std::mem::take(&mut self.undone)
    }

    /// Answers the request in a VM's section, if it is a new one. Returns its number.
    pub fn hear(&mut self, peer: u32) -> Option<u64> {
        let info = self.region.peer(peer).ok()??;
        if !info.is_vm || info.life.state != State::Active {
            return None;
        }
        let section = self.region.section(&info).ok()?;
        let last = self.heard.get(&peer).copied().unwrap_or(0);
        let call = call::heard(&section, last).ok()??;
        self.heard.insert(peer, call.number);
        let refused = |text: &str| Reply::Refused { code: Code::Invalid, text: text.into() };
        // A process of this life of the VM: whether one of a former life lives cannot be known, so it would count until the VM is gone.
        let is_of_now = |p: &Party| p.peer() == peer && p.peer_life() == info.life.incarnation & 0xff;
        let party = Party::named(call.party).filter(|p| is_of_now(p) && p.is_alive(&self.region));
        let reply = match (party, Request::decode(&call.frame)) {
            // That is asked by the port, where it is paced.
            (Some(_), Ok((_, Request::Settle))) => refused("a VM's agent asks by its port who lives"),
            (Some(party), Ok((_, request))) => self.answer(Asker { party, user: call.user }, &request),
            (None, _) => refused("the process that asks is no member"),
            (_, Err(_)) => refused("the request cannot be read"),
        };
        // This cannot fail for its length: texts are cut to what fits.
        let _ = call::answer(&self.region, peer, call.number, &reply.encode(call.number));
        Some(call.number)
    }

    /// A peer begins a new life, and numbers its requests from the start.
    pub fn forget(&mut self, peer: u32) {
        self.heard.remove(&peer);
        let _ = call::answer(&self.region, peer, 0, &[]);
    }
}

/// Whether a process may still be at work in the region.
fn may_live(party: Party, region: &Region, since: &HashMap<u32, u64>) -> bool {
    party.may_write(region) || is_of_a_former_life(party, region, since)
}

/// Whether a process is attached to a former agent of its VM, or to its last one while the next one waits to begin. Whether it
/// lives cannot be known; it counts as alive until the VM is gone.
fn is_of_a_former_life(party: Party, region: &Region, since: &HashMap<u32, u64>) -> bool {
    let Some(since) = since.get(&party.peer()) else { return false };
    let Ok(Some(info)) = region.peer(party.peer()) else { return false };
    // Between two lives the VM's place is dead, and still has the incarnation of the one that is over.
    let is_over = info.life.state == State::Dead;
    let lives = is_over || matches!(info.life.state, State::Active | State::Joining);
    // Both keep the lower eight bits of an incarnation.
    let age = |of: u64| (info.life.incarnation.wrapping_sub(of)) & 0xff;
    let own = age(party.peer_life());
    lives && (own != 0 || is_over) && own <= age(*since)
}

fn article(kind: Kind) -> &'static str {
    if kind == Kind::Endpoint { "an" } else { "a" }
}

fn grant(info: &ObjectInfo, is_new: bool) -> ObjectGrant {
    ObjectGrant {
        index: info.index,
        incarnation: info.life.incarnation,
        offset: info.offset,
        len: info.len,
        params: info.params,
        is_new,
    }
}

/// The registry, shared by the attach server of the host's own processes and the relay of the VMs.
#[derive(Debug, Clone)]
pub struct Shared(Arc<Mutex<Registry>>);

impl Shared {
    /// Makes a registry shared.
    pub fn new(registry: Registry) -> Self {
        Self(Arc::new(Mutex::new(registry)))
    }

    /// Calls `call` with the registry locked.
    pub fn with<T>(&self, call: impl FnOnce(&mut Registry) -> T) -> T {
        call(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The registry as one of the host's own attach servers asks it.
#[derive(Debug)]
pub(crate) struct Local {
    shared: Shared,
    router: Router,
}

impl Local {
    pub(crate) fn new(shared: Shared, router: Router) -> Self {
        Self { shared, router }
    }
}

impl Names for Local {
    fn ask(&mut self, asker: Asker, request: Request, answer: Answer) -> Option<Reply> {
        if request == Request::Settle {
            self.router.settle(asker.party.peer(), None, Box::new(move || answer.give(&Reply::Done)));
            return None;
        }
        Some(self.shared.with(|r| r.answer(asker, &request)))
    }

    fn gone(&mut self, party: Party) {
        self.shared.with(|r| r.gone(party));
    }
}

/// Objects of System V IPC have requests of their own, which ask who may meet whom.
fn not_by_name(kind: Kind, name: &str) -> std::result::Result<(), Refusal> {
    let text = || {
        format!(
            "{} '{name}' is an object of System V IPC, which is not opened or unlinked by name",
            kind.name()
        )
    };
    if kind.is_sysv() { Err(Refusal(Code::Invalid, text())) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use isthmus_region::address::{Naming, SystemId};
    use isthmus_region::mapping::Mapping;
    use isthmus_region::membership::{NewPeer, Shape, Writer};
    use isthmus_region::objects::endpoint;

    use super::*;

    #[test]
    fn a_peers_processes_name_endpoints_of_their_own_peer_alone() {
        let fd = isthmus_region::create::memory(4 << 20).unwrap();
        let map = Mapping::map(fd.as_fd(), 4 << 20).unwrap();
        let shape = Shape::new(4 << 20, [1, 2], 2, 16).unwrap().with_shared(1 << 20, 8).unwrap();
        let mut writer = Writer::create(&map, &shape, 1).unwrap();
        let systems = [0, 1].map(|i| Naming::of_test(i).system);
        for (index, system) in (0_u32..).zip(systems) {
            let (section, section_bytes) = (shape.first_section(), 1 << 20);
            let new = NewPeer { file: 0, section, section_bytes, is_vm: index == 1, name: "peer" };
            writer.add(index, &new).unwrap();
            writer.activate(index, system).unwrap();
        }
        let mut registry = Registry::new(writer.region().clone(), Rules::default());
        let asker = Asker { party: Party::new(1, 3, 1), user: (1000, 1000) };
        let mut ask = |name: String, number: u64, or_open: bool| {
            let new = NewObject {
                kind: Kind::Endpoint,
                name,
                len: 1,
                mode: 0o600,
                ends_with_creator: true,
                params: [number, 1, 0, 0],
                or_open,
            };
            match registry.answer(asker, &Request::Create(new)) {
                Reply::Object(_) => None,
                Reply::Refused { code, .. } => Some(code),
                other => panic!("{other:?}"),
            }
        };
        let [host, vm] = systems;
        assert_eq!(ask(endpoint::name_of(vm, "9228"), 0, false), None);
        assert_eq!(ask(endpoint::name_of(vm, &"s".repeat(32)), 15, false), None);
        for (name, number, or_open) in [
            (endpoint::name_of(host, "9228"), 0, false),
            (endpoint::name_of(SystemId::NONE, "9228"), 0, false),
            (endpoint::name_of(vm, "9228"), 16, false),
            (endpoint::name_of(vm, "9228"), 1 << 32, false),
            (endpoint::name_of(vm, "9228"), 0, true),
            (endpoint::name_of(vm, ""), 0, false),
            (endpoint::name_of(vm, &"s".repeat(33)), 0, false),
            ("9228".into(), 0, false),
        ] {
            assert_eq!(ask(name.clone(), number, or_open), Some(Code::Denied), "{name} {number} {or_open}");
        }
        // A name ends with its process. Only that process may take it away, not one that claims to be root.
        let kept = NewObject {
            kind: Kind::Endpoint,
            name: endpoint::name_of(vm, "kept"),
            len: 1,
            mode: 0o600,
            ends_with_creator: false,
            params: [0, 1, 0, 0],
            or_open: false,
        };
        let wide = NewObject { len: 1 << 19, ends_with_creator: true, ..kept.clone() };
        let another = Asker { party: Party::new(0, 2, 1), user: (0, 0) };
        let unlink = Request::Unlink { kind: Kind::Endpoint, name: endpoint::name_of(vm, "9228") };
        for (asker, request) in
            [(asker, Request::Create(kept)), (asker, Request::Create(wide)), (another, unlink.clone())]
        {
            let answer = registry.answer(asker, &request);
            assert!(matches!(answer, Reply::Refused { code: Code::Denied, .. }), "{request:?}: {answer:?}");
        }
        assert!(matches!(registry.answer(asker, &unlink), Reply::Done));
    }

    /// A registry of a region whose table names no members.
    fn registry_with(rules: Rules) -> Registry {
        let fd = isthmus_region::create::memory(4 << 20).unwrap();
        let map = Mapping::map(fd.as_fd(), 4 << 20).unwrap();
        let shape = Shape::new(4 << 20, [1, 2], 2, 16).unwrap().with_shared(1 << 20, 8).unwrap();
        Registry::new(Writer::create(&map, &shape, 1).unwrap().region().clone(), rules)
    }

    fn made(key: i32) -> Request {
        Request::Create(NewObject {
            kind: Kind::SysvShm,
            name: objects::sysv::name_of(key),
            len: 8192,
            mode: 0o600,
            ends_with_creator: false,
            params: [objects::sysv::both(key.cast_unsigned(), 1), 0, 0, 0],
            or_open: false,
        })
    }

    /// Whatever stands in the region's table, which a VM may write.
    #[test]
    fn a_vm_is_the_one_that_the_service_has_let_in() {
        let mut registry = registry_with(Rules { quota_vm: Some(8192), ..Rules::default() });
        registry.joined(1, "red", true);
        let asker = |peer| Asker { party: Party::new(peer, 1, 1), user: (0, 0) };
        assert!(matches!(registry.answer(asker(1), &made(1)), Reply::Object(_)));
        let refused = registry.answer(asker(1), &made(2));
        assert!(
            matches!(&refused, Reply::Refused { code: Code::Full, text } if text.contains("'red'")),
            "{refused:?}"
        );
        // Nobody's place is not the host's.
        assert!(matches!(registry.answer(asker(5), &made(3)), Reply::Object(_)));
        assert!(matches!(registry.answer(asker(5), &made(4)), Reply::Refused { code: Code::Full, .. }));
    }

    #[test]
    fn the_name_of_an_object_of_system_v_ipc_is_that_of_its_key() {
        let mut registry = registry_with(Rules::default());
        let asker = Asker { party: Party::new(0, 1, 1), user: (0, 0) };
        let mut answer = |name: &str, key: u64| {
            let Request::Create(new) = made(1) else { panic!("another request") };
            registry.answer(
                asker,
                &Request::Create(NewObject { name: name.into(), params: [key, 0, 0, 0], ..new }),
            )
        };
        for (name, key) in
            [("00000042", 7), ("00000042", 0), ("private 1.1", 7), ("00000000", 0), ("0000004A", 0x4a)]
        {
            let answer = answer(name, key);
            assert!(
                matches!(answer, Reply::Refused { code: Code::Invalid, .. }),
                "{name}, {key}: {answer:?}"
            );
        }
        // The upper half is the maker's number.
        assert!(matches!(answer("00000042", 9 << 32 | 0x42), Reply::Object(_)));
        assert!(matches!(answer("private 1.1", 9 << 32), Reply::Object(_)));
    }

    #[test]
    fn who_made_an_object_is_charged_whoever_owns_it() {
        let mut registry = registry_with(Rules { quota: Some(8192), ..Rules::default() });
        let [maker, other] = [1000, 1001].map(|uid| Asker { party: Party::new(0, uid, 1), user: (uid, uid) });
        let Reply::Object(grant) = registry.answer(maker, &made(1)) else { panic!("not made") };
        let change = objects::sysv::Change { owner: other.user, mode: 0o600, size: 8192, now: 1 };
        let change = Request::Change { index: grant.index, incarnation: grant.incarnation, change };
        assert_eq!(registry.answer(maker, &change), Reply::Done);
        let refused = registry.answer(maker, &made(2));
        assert!(matches!(refused, Reply::Refused { code: Code::Full, .. }), "{refused:?}");
        assert!(matches!(registry.answer(other, &made(3)), Reply::Object(_)));
    }
}
