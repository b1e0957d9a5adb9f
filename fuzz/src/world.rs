// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An endpoint between an honest peer and a hostile one.
//!
//! The hostile one is honest code too, so that lanes open and operations are under way; besides that the input writes
//! any word of its section, and any message into its lanes. What the victim and the honest peer say to each other must
//! arrive whole, whatever happens; nothing may panic, loop, or touch memory that is not its business.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

use isthmus_region::address::{Address, Naming, SystemId};
use isthmus_region::directory::Writer;
use isthmus_region::extent::Extent;
use isthmus_region::local::LocalBuf;
use isthmus_region::mapping::{Mapping, Section};
use isthmus_region::member::{LocalService, Member};
use isthmus_region::membership::{self, NewPeer, Shape};
use isthmus_region::registrations::{ATOMIC, READ, Range, Table, WRITE};
use isthmus_transport::types::{Access, Memory, RemoteAtomic};
use isthmus_transport::{
    Atomic, AtomicKind, Config, Endpoint, Op, PeerId, PostError, Receive, Rma, Selector, Send, Status, Ticket,
};

use crate::input::Input;

/// Where a section's endpoint table begins.
const TABLES: u64 = 4096;
const SECTION: u64 = 1 << 20;
const REGION: u64 = 4 << 20;
/// Bytes of each buffer that operations use: more than goes through a lane's data ring.
const LONG: usize = 100_000;

thread_local! {
    static MAP: Arc<Mapping> = {
        let fd = isthmus_region::create::memory(REGION).expect("memory for a small region");
        Mapping::map(fd.as_fd(), REGION).expect("the memory can be mapped")
    };
    /// Memory that operations use; it must outlive them, so it is made once and never freed.
    static BUFFERS: [LocalBuf; 6] = std::array::from_fn(|_| LocalBuf::leaked(vec![0x5a; LONG + 64]));
}

struct Stub {
    writer: Arc<Mutex<Writer>>,
    area: u32,
}

impl LocalService for Stub {
    fn grow(&self, bytes: u64) -> isthmus_region::Result<Extent> {
        self.writer.lock().expect("nobody panicked").grow_area(self.area, bytes)
    }

    fn open_endpoint(&self, block: u64) -> isthmus_region::Result<(u32, u64)> {
        self.writer.lock().expect("nobody panicked").open_endpoint(self.area, block, 1)
    }

    fn close_endpoint(&self, slot: u32) -> isthmus_region::Result<()> {
        self.writer.lock().expect("nobody panicked").close_endpoint(self.area, slot)
    }
}

/// One registration, under key 1, of the first half of a buffer; and a table of what is reached without messages.
struct Window(Mutex<LocalBuf>, u64);

impl Memory for Window {
    fn published(&self) -> Option<u64> {
        Some(self.1)
    }

    fn is_atomic_here(&self, element_bytes: u64) -> bool {
        element_bytes <= 8
    }

    fn atomic_there(
        &self,
        section: &Section,
        offset: u64,
        len: u64,
        what: &RemoteAtomic<'_>,
        before: &mut Vec<u8>,
    ) -> Result<(), Status> {
        let bytes = section.bytes("any", offset, len).and_then(|b| b.to_vec(0, len));
        *before = bytes.map_err(|_| Status::NoAccess)?;
        section.fill_bytes("any", offset, what.operand).map_err(|_| Status::NoAccess)
    }

    fn find(&self, key: u64, addr: u64, len: u64, _: Access) -> Result<LocalBuf, Status> {
        let end = addr.checked_add(len).ok_or(Status::NoAccess)?;
        if key != 1 {
            return Err(Status::NoKey);
        }
        let (Ok(at), Ok(count)) = (usize::try_from(addr), usize::try_from(len)) else {
            return Err(Status::NoAccess);
        };
        if end > LONG as u64 {
            Err(Status::NoAccess)
        } else {
            Ok(self.0.lock().expect("nobody panicked").part(at, count))
        }
    }

    fn atomic(&self, target: LocalBuf, what: &RemoteAtomic<'_>, before: &mut Vec<u8>) -> Result<(), Status> {
        if what.kind == AtomicKind::Plain {
            target.write(what.operand)
        } else {
            0
        };
        *before = target.to_vec();
        Ok(())
    }
}

/// A region of three members, each a peer of its own.
pub(crate) struct World {
    pub(crate) sections: Vec<Section>,
    _host: membership::Writer,
    services: Vec<(Arc<Mutex<Writer>>, u32)>,
    pub(crate) members: Vec<Arc<Member>>,
}

/// Of memory that was made once for the calling thread.
pub(crate) fn fresh() -> World {
    MAP.with(world)
}

fn world(map: &Arc<Mapping>) -> World {
    let shape = Shape::new(REGION, [7, 8], 3, 4).expect("a good shape");
    let mut host = membership::Writer::create(map, &shape, 1).expect("large enough");
    let mut world = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..3 {
        let at = (u64::from(i) + 1) * SECTION;
        map.whole().expect("mapped to be written").zero("section", at, SECTION).expect("inside");
        let new = NewPeer { file: 0, section: at, section_bytes: SECTION, is_vm: false, name: "peer" };
        host.add(i, &new).expect("there is a place");
        let info = host.region().peer(i).expect("in the table").expect("just added");
        let section = host.region().own_section(&info).expect("in the region");
        let mut writer = Writer::create(host.region(), i, Naming::of_test(i)).expect("large enough");
        host.activate(i, Naming::of_test(i).system).expect("in the table");
        let grant = writer.open_area(128 << 10, 1, "fuzz").expect("there is room");
        let writer = Arc::new(Mutex::new(writer));
        let stub = Stub { writer: Arc::clone(&writer), area: grant.area };
        world.0.push(section);
        world.1.push((writer, grant.area));
        world.2.push(Member::new(map, i, grant, Box::new(stub)).expect("the region is good"));
    }
    World { sections: world.0, services: world.1, members: world.2, _host: host }
}

/// Where the interesting words of the hostile section are, found as a reader finds them.
fn interesting(section: &Section, which: u8, input: &mut Input<'_>) -> u64 {
    let get = |at: u64| section.read("any", at).map_or(0, isthmus_region::sync::ReadWord::get);
    // The directory, and the endpoint table behind it.
    let block = get(TABLES + 16);
    let chunk = |first: u64| get(block.wrapping_add(first));
    let (base, word) = match which {
        0 => (0, u64::from(input.below(64))),
        1 => (TABLES, u64::from(input.below(64))),
        2 => (block, u64::from(input.below(16))),
        // Lane descriptors; accept entries; the first lane's ring; the first registrations.
        3 => (chunk(0), u64::from(input.byte())),
        4 => (chunk(16), u64::from(input.byte())),
        5 => (get(chunk(0).wrapping_add(64 + 24)), u64::from(input.short() % 512)),
        6 => (get(chunk(40)), u64::from(input.below(40))),
        _ => (0, u64::from(input.short()) * u64::from(input.byte())),
    };
    base.wrapping_add(word * 8)
}

fn ticket(context: u64) -> Ticket {
    Ticket { context, flags: 0 }
}

/// Something that an endpoint does with another.
fn act(end: &mut Endpoint, to: PeerId, buf: LocalBuf, other: LocalBuf, input: &mut Input<'_>) {
    let len = match input.below(4) {
        0 => usize::from(input.below(41)),
        1 => usize::from(input.short()) % 9000,
        2 => LONG,
        _ => 0,
    };
    let bufs = [buf.part(0, len)];
    let tag = u64::from(input.below(4));
    let tagged = input.below(2) == 0;
    let select = Selector {
        tagged,
        from: (input.below(2) == 0).then_some(to),
        tag: if tagged { tag } else { 0 },
        ignore: if input.below(4) == 0 { u64::MAX } else { 0 },
    };
    // Without data a write may go directly; key 2 is published, and key 1 is not.
    let data = (input.below(2) == 0).then_some(1);
    let key = 1 + u64::from(input.below(2));
    let rma = Rma { to, key, addr: 0, bufs: &bufs, data, inject: false, ticket: ticket(4) };
    let _ = match input.below(10) {
        0 | 1 => end
            .send(&Send {
                to,
                tagged,
                tag: select.tag,
                data: Some(tag),
                bufs: &bufs,
                inject: false,
                delivered: input.below(2) == 0,
                ticket: ticket(1),
            })
            .map(drop),
        2 | 3 => end.receive(&Receive { select, bufs: &bufs, multi: None, ticket: ticket(2) }),
        4 => end.receive(&Receive { select, bufs: &bufs, multi: Some(64), ticket: ticket(3) }),
        5 => end.read(&rma).map(drop),
        6 => end.write(&rma).map(drop),
        7 => {
            let word = [buf.part(0, 8)];
            let result = [other.part(0, 8)];
            let kind =
                [AtomicKind::Plain, AtomicKind::Fetch, AtomicKind::Compare][usize::from(input.below(3))];
            let compare: &[LocalBuf] = if kind == AtomicKind::Compare { &word } else { &[] };
            end.atomic(&Atomic {
                to,
                key,
                addr: 8,
                kind,
                datatype: input.byte(),
                op: input.byte(),
                count: 1,
                size: 8,
                operand: &word,
                compare,
                result: &result,
                inject: false,
                ticket: ticket(5),
            })
            .map(drop)
        }
        8 => {
            end.peek(&select, input.below(2) == 0, input.below(2) == 0, ticket(6));
            Ok(())
        }
        _ => {
            let _ = end.cancel(ticket(2).context);
            let _ = end.receive_claimed(6, &bufs, ticket(7));
            Ok(())
        }
    };
}

/// A table with some memory of the region under key 2.
fn published(member: &Arc<Member>) -> Table {
    let mut table = Table::create(member).expect("there is room for a table");
    let len = LONG as u64;
    let offset = member.allocate(len, 64).expect("there is room for a window");
    let range = Range { key: 2, offset, len, access: READ | WRITE | ATOMIC, base: 0, skip: 0 };
    table.publish(&range).expect("there is room for a registration");
    table
}

/// An endpoint that talks to an honest peer and to one that writes anything into its own section.
pub fn endpoint(data: &[u8]) {
    let map = MAP.with(Arc::clone);
    let buffers = BUFFERS.with(|b| *b);
    let world = world(&map);
    let mut input = Input(data);
    let config = Config { chunk_bytes: 8 << 10, pipeline_depth: 2, ..Config::default() };
    // What each lets the others reach without messages.
    let tables: Vec<_> = world.members.iter().map(published).collect();
    let open = |i: usize| {
        let window = Box::new(Window(Mutex::new(buffers[i]), tables[i].offset()));
        Endpoint::open(&world.members[i], config, window).expect("there is room for an endpoint")
    };
    let (mut victim, mut honest, mut hostile) = (open(0), open(1), open(2));
    let meet = |a: &mut Endpoint, b: &Endpoint| a.resolve(&b.address()).expect("one region");
    let (to_honest, to_hostile) = (meet(&mut victim, &honest), meet(&mut victim, &hostile));
    let (from_honest, from_hostile) = (meet(&mut honest, &victim), meet(&mut hostile, &victim));
    let mut steps = 0;
    while !input.is_empty() && steps < 64 {
        steps += 1;
        match input.below(8) {
            0 => act(&mut victim, to_hostile, buffers[3], buffers[0], &mut input),
            1 | 2 => act(&mut hostile, from_hostile, buffers[4], buffers[2], &mut input),
            3 => {
                let kind = u64::from(input.byte() % 13);
                let head = (kind << 32) | (u64::from(input.byte()) << 40) | (u64::from(input.byte()) << 48);
                // The victim's operations have numbers that can be guessed.
                let mut message = [head, 0, 0, 0, 0, 0, 0, 0];
                for word in &mut message[1..] {
                    *word = input.number();
                }
                let _ = hostile.push_raw(from_hostile, &message);
            }
            4 | 5 => {
                let which = input.below(8);
                let at = interesting(&world.sections[2], which, &mut input) & !7;
                if let Ok(word) = world.sections[2].word("any", at) {
                    word.set(input.number());
                }
            }
            6 => {
                let (service, area) = &world.services[2];
                if input.byte() == 0 {
                    let _ = service.lock().expect("nobody panicked").close_area(*area);
                }
            }
            _ => {
                // An address that anybody may have made up. Its bytes are read again as what follows.
                let byte = |i: usize| data.get((steps + i) % data.len()).copied().unwrap_or(0);
                let there = world.members.get(usize::from(byte(0) % 4)).map(|member| member.system());
                let system = there.unwrap_or(SystemId([9, 9]));
                let address = Address { system, number: (byte(1) % 6).into(), birth: (byte(2) % 4).into() };
                let resolved = victim.resolve(&address);
                assert_eq!(resolved.is_ok(), there.is_some(), "of a system that is there, or not");
                if let Ok(to) = resolved {
                    act(&mut victim, to, buffers[3], buffers[0], &mut Input(&data[..data.len().min(8)]));
                }
            }
        }
        for _ in 0..input.below(4) {
            victim.progress();
        }
        hostile.progress();
        while hostile.pop().is_some() {}
    }
    // Whatever came of that: every message to and from the honest peer arrives.
    for round in 0_u8..3 {
        let len = [24, 5000, 60_000][usize::from(round)];
        let text = [buffers[3].part(0, len)];
        text[0].write(&vec![round + 1; len]);
        buffers[5].write(&vec![0; len]);
        let room = [buffers[5].part(0, len)];
        talk(&mut victim, &mut honest, to_honest, from_honest, &text, &room);
        assert!(room[0].to_vec().iter().all(|b| *b == round + 1), "a message is not what was sent");
    }
    // What was posted towards the hostile peer may still be on its way; closing would wait for that.
    for end in [victim, honest, hostile] {
        drop(end);
    }
}

/// Sends `text` from the victim to the honest peer, and waits until it is there.
fn talk(
    victim: &mut Endpoint,
    honest: &mut Endpoint,
    to: PeerId,
    from: PeerId,
    text: &[LocalBuf],
    room: &[LocalBuf],
) {
    let select = Selector { tagged: true, from: Some(from), tag: 77, ignore: 0 };
    honest.receive(&Receive { select, bufs: room, multi: None, ticket: ticket(77) }).expect("posted");
    let message = Send {
        to,
        tagged: true,
        tag: 77,
        data: None,
        bufs: text,
        inject: false,
        delivered: false,
        ticket: ticket(78),
    };
    let mut sent = false;
    for _ in 0..100_000 {
        if !sent {
            match victim.send(&message) {
                Ok(_) => sent = true,
                Err(PostError::Again) => {}
                Err(e) => panic!("the honest peer cannot be sent to: {e}"),
            }
        }
        victim.progress();
        honest.progress();
        while victim.pop().is_some() {}
        while let Some(completion) = honest.pop() {
            if completion.ticket.context == 77 && matches!(completion.op, Op::Receive { .. }) {
                assert_eq!(completion.status, Status::Ok);
                return;
            }
        }
    }
    panic!("a message to the honest peer never arrives");
}
