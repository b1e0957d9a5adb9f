// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Named objects: a registry that processes of the host and a VM ask anything, and a table that anybody may have written.

use std::os::fd::AsFd;
use std::sync::Arc;

use isthmus_attach::protocol::{Reply, Request};
use isthmus_attach::server::Asker;
use isthmus_host::names::{Registry, Rules};
use isthmus_inspect::survey::{Depth, look};
use isthmus_region::address::Naming;
use isthmus_region::directory::Writer;
use isthmus_region::format::directory;
use isthmus_region::mapping::{Mapping, Section};
use isthmus_region::membership::{self, NewPeer, Region, Shape};
use isthmus_region::objects::{self, Access, Kind, NewObject, ObjectGrant, call};
use isthmus_region::party::Party;
use isthmus_region::reader::Reader;

use crate::input::Input;

const BYTES: u64 = 2 << 20;
const SECTION: u64 = 512 << 10;
const SHARED: u64 = 64 << 10;
const PLACES: u32 = 6;

thread_local! {
    static MEMORY: (Arc<Mapping>, Reader) = {
        let fd = isthmus_region::create::memory(BYTES).expect("memory for a small region");
        let map = Mapping::map(fd.as_fd(), BYTES).expect("the memory can be mapped");
        (map, Reader::new(fd).expect("the memory can be read"))
    };
}

fn question(input: &mut Input<'_>) -> Request {
    let kind = Kind::ALL[usize::from(input.below(8))];
    let name = match input.below(4) {
        0 => String::from_utf8_lossy(input.bytes(160)).into_owned(),
        _ => ["a", "b", "c"][usize::from(input.below(3))].to_owned(),
    };
    let (index, incarnation) = (u32::from(input.below(8)), u64::from(input.below(6)));
    match input.below(8) {
        0..=2 => Request::Create(NewObject {
            kind,
            name,
            len: if input.below(2) == 0 { input.number() } else { u64::from(input.short()) },
            mode: u32::from(input.short()),
            ends_with_creator: input.below(2) == 0,
            params: [u64::from(input.below(2)), 0, 0, 0],
            or_open: input.below(4) != 0,
        }),
        3 => Request::Open {
            kind,
            name,
            access: if input.below(2) == 0 { Access::Read } else { Access::Write },
        },
        4 => Request::Shrink { index, incarnation, len: input.number() },
        5 => Request::Unlink { kind, name },
        _ => Request::Close { index, incarnation },
    }
}

/// What processes were told that they have open.
#[derive(Default)]
struct Open(Vec<(Party, ObjectGrant)>);

impl Open {
    fn note(&mut self, party: Party, question: &Request, reply: &Reply) {
        match (question, reply) {
            (_, Reply::Object(grant)) => {
                let end = grant.offset.checked_add(grant.len).expect("an object's end");
                assert!(end <= SHARED && grant.len > 0, "an object outside of the shared section: {grant:?}");
                for (_, other) in &self.0 {
                    let same = (other.index, other.incarnation) == (grant.index, grant.incarnation);
                    let apart = other.offset + other.len <= grant.offset || end <= other.offset;
                    assert!(same || apart, "{grant:?} lies over {other:?}");
                }
                self.0.push((party, *grant));
            }
            (Request::Close { index, incarnation }, Reply::Done) => {
                let is_it = |(by, grant): &(Party, ObjectGrant)| {
                    (*by, grant.index, grant.incarnation) == (party, *index, *incarnation)
                };
                let at = self.0.iter().position(is_it).expect("what is closed was open");
                self.0.swap_remove(at);
            }
            _ => {}
        }
    }
}

/// A registry, asked by processes of the host and by a VM; table, objects and the VM's section hold anything.
pub fn objects(data: &[u8]) {
    let map = MEMORY.with(|(map, _)| Arc::clone(map));
    let mut input = Input(data);
    let shape =
        Shape::new(BYTES, [7, 8], 2, 16).and_then(|s| s.with_shared(SHARED, PLACES)).expect("a good shape");
    let mut host = membership::Writer::create(&map, &shape, 1).expect("the region is large enough");
    let (mut writers, mut parties, mut sections): (Vec<Writer>, Vec<Party>, Vec<Section>) =
        Default::default();
    for i in 0..2 {
        let at = (shape.host_bytes + shape.shared_bytes).next_multiple_of(SECTION) + u64::from(i) * SECTION;
        map.whole().expect("mapped to be written").zero("section", at, SECTION).expect("inside");
        let new = NewPeer { file: 0, section: at, section_bytes: SECTION, is_vm: i == 1, name: "peer" };
        host.add(i, &new).expect("there is a place");
        let info = host.region().peer(i).expect("in the table").expect("just added");
        let section = host.region().own_section(&info).expect("in the region");
        let mut writer = Writer::create(host.region(), i, Naming::of_test(i)).expect("large enough");
        host.activate(i, Naming::of_test(i).system).expect("in the table");
        for _ in 0..2 {
            let area = writer.open_area(16 << 10, 1, "fuzz").expect("there is room");
            parties.push(Party::new(i, area.area, area.incarnation));
        }
        writers.push(writer);
        sections.push(section);
    }
    let region = Region::open(&map).expect("a good region");
    let mut registry = Registry::new(region.clone(), Rules::default());
    let mut open = Open::default();
    let whole = map.whole().expect("mapped to be written");
    let (table, shared) = (shape.object_table(), shape.host_bytes);
    let mut steps = 0;
    let mut number = 0;
    while !input.is_empty() && steps < 64 {
        steps += 1;
        match input.below(8) {
            // The table; an object's bytes; the VM's question.
            0 => {
                let at = table + u64::from(input.short()) % (u64::from(PLACES) * 256) / 8 * 8;
                whole.word("any", at.min(shared - 8)).expect("inside").set(input.number());
            }
            1 => {
                let at = shared + u64::from(input.short()) / 8 * 8;
                whole.word("any", at).expect("inside").set(input.number());
            }
            2 => {
                let at = directory::CALL + 8 * u64::from(input.below(80));
                sections[1].word("any", at).expect("inside").set(input.number());
                let _ = registry.hear(1);
            }
            3 => {
                let asked = question(&mut input);
                number += 1;
                let party = parties[2 + usize::from(input.below(2))];
                let party = if input.below(8) == 0 { input.number() } else { party.word() };
                let frame = asked.encode(number);
                let user = (u32::from(input.below(2)), 0);
                if call::ask(&sections[1], &call::Call { number, party, user, frame }).is_ok()
                    && registry.hear(1) == Some(number)
                {
                    let info = region.peer(1).expect("in the table").expect("a member");
                    let answer =
                        call::answered(&region, &info, number).expect("a good answer").expect("there");
                    let (_, reply) = Reply::decode(&answer).expect("a good reply");
                    if let Some(party) = Party::named(party).filter(|party| parties.contains(party)) {
                        open.note(party, &asked, &reply);
                    }
                }
            }
            4 if input.below(8) == 0 => {
                // One of the host's processes ends.
                let party = parties[usize::from(input.below(2))];
                registry.gone(party);
                open.0.retain(|(by, _)| *by != party);
            }
            _ => {
                let asked = question(&mut input);
                let party = parties[usize::from(input.below(2))];
                let reply = registry.answer(Asker { party, user: (u32::from(input.below(2)), 0) }, &asked);
                open.note(party, &asked, &reply);
                assert!(reply.encode(1).len() <= call::MAX_FRAME, "a reply that fits nowhere");
            }
        }
    }
    // Readers: every answer is allowed that is one.
    for info in objects::objects(&region) {
        let _ = (objects::is_there(&region, info.index, info.life.incarnation), info.name.len());
        if let Ok(section) = objects::section(&region, &info) {
            assert!(section.len() <= SHARED);
        }
    }
    let found = MEMORY.with(|(_, reader)| look(reader, Depth::Slots).expect("memory can be read"));
    assert!(found.survey.is_some(), "it is no region any more: {:?}", found.faults);
    drop(writers);
}
