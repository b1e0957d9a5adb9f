// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Segments of System V shared memory: processes that make, attach, detach and remove them with the help of a service, while the
//! pages before the segments, and the table's entries, hold anything.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

use isthmus_attach::protocol::{Reply, Request};
use isthmus_attach::server::Asker;
use isthmus_host::names::{Registry, Rules};
use isthmus_region::address::Naming;
use isthmus_region::directory::Writer;
use isthmus_region::extent::Extent;
use isthmus_region::format::object;
use isthmus_region::mapping::Mapping;
use isthmus_region::member::{LocalService, Member};
use isthmus_region::membership::{self, NewPeer, Region, Shape};
use isthmus_region::objects::sysv::Change;
use isthmus_region::objects::{Kind, NewObject, ObjectGrant};
use isthmus_region::party::Party;
use isthmus_region::{Error, Result};
use isthmus_sysv::ipc::CREAT;
use isthmus_sysv::shm::Attached;
use isthmus_sysv::{Caller, Ipc};

use crate::input::Input;

const BYTES: u64 = 2 << 20;
const SECTION: u64 = 512 << 10;
const SHARED: u64 = 256 << 10;
const PLACES: u32 = 6;
const PAGE: u64 = 4096;
/// How often a segment is attached at once, at most.
const MOST: usize = 12;

thread_local! {
    static MEMORY: Arc<Mapping> = {
        let fd = isthmus_region::create::memory(BYTES).expect("memory for a small region");
        Mapping::map(fd.as_fd(), BYTES).expect("the memory can be mapped")
    };
}

/// The service of a process.
struct Stub {
    registry: Arc<Mutex<Registry>>,
    asker: Asker,
}

impl Stub {
    fn ask(&self, request: &Request) -> Result<Reply> {
        match self.registry.lock().expect("nobody panicked").answer(self.asker, request) {
            Reply::Refused { .. } => Err(Error::Invalid { what: "request", value: 0 }),
            reply => Ok(reply),
        }
    }

    fn object(&self, request: &Request) -> Result<ObjectGrant> {
        match self.ask(request)? {
            Reply::Object(grant) => Ok(grant),
            _ => Err(Error::Invalid { what: "reply", value: 0 }),
        }
    }
}

impl LocalService for Stub {
    fn grow(&self, _: u64) -> Result<Extent> {
        Err(Error::Invalid { what: "request", value: 0 })
    }

    fn open_endpoint(&self, _: u64) -> Result<(u32, u64)> {
        Err(Error::Invalid { what: "request", value: 0 })
    }

    fn close_endpoint(&self, _: u32) -> Result<()> {
        Ok(())
    }

    fn create_object(&self, new: &NewObject) -> Result<ObjectGrant> {
        self.object(&Request::Create(new.clone()))
    }

    fn close_object(&self, index: u32, incarnation: u64) -> Result<()> {
        self.ask(&Request::Close { index, incarnation }).map(|_| ())
    }

    fn hold_object(&self, index: u32, incarnation: u64) -> Result<ObjectGrant> {
        self.object(&Request::Hold { index, incarnation })
    }

    fn release_object(&self, index: u32, incarnation: u64) {
        let _ = self.ask(&Request::Release { index, incarnation });
    }

    fn enter_object(&self, index: u32, incarnation: u64) -> bool {
        let _ = self.ask(&Request::Enter { index, incarnation });
        true
    }

    fn removed_object(&self, index: u32, incarnation: u64) {
        let _ = self.ask(&Request::Removed { index, incarnation });
    }

    fn change_object(&self, index: u32, incarnation: u64, change: &Change) -> Result<()> {
        self.ask(&Request::Change { index, incarnation, change: *change }).map(|_| ())
    }

    fn remove_object(&self, index: u32, incarnation: u64) -> Result<()> {
        self.ask(&Request::Remove { index, incarnation }).map(|_| ())
    }

    fn settle(&self) -> Result<()> {
        self.ask(&Request::Settle).map(|_| ())
    }
}

/// Two processes and the service. As long as nobody has written into the table, what one has attached is nobody else's memory,
/// whatever the pages before the segments say; and never is anything beyond the shared section.
pub fn sysv_shm(data: &[u8]) {
    let map = MEMORY.with(Arc::clone);
    let mut input = Input(data);
    let shape =
        Shape::new(BYTES, [7, 9], 2, 16).and_then(|s| s.with_shared(SHARED, PLACES)).expect("a good shape");
    let mut host = membership::Writer::create(&map, &shape, 1).expect("the region is large enough");
    let whole = map.whole().expect("mapped to be written");
    let at = (shape.host_bytes + shape.shared_bytes).next_multiple_of(SECTION);
    whole.zero("section", at, SECTION).expect("inside");
    let new = NewPeer { file: 0, section: at, section_bytes: SECTION, is_vm: false, name: "peer" };
    host.add(0, &new).expect("there is a place");
    let mut writer = Writer::create(host.region(), 0, Naming::of_test(0)).expect("large enough");
    host.activate(0, Naming::of_test(0).system).expect("in the table");
    let region = Region::open(&map).expect("a good region");
    let registry = Arc::new(Mutex::new(Registry::new(region, Rules::default())));
    let ipcs: Vec<Ipc> = (0..2)
        .map(|_| {
            let area = writer.open_area(64 << 10, 1, "fuzz").expect("there is room");
            let asker = Asker { party: Party::new(0, area.area, area.incarnation), user: (0, 0) };
            let stub = Stub { registry: Arc::clone(&registry), asker };
            Ipc::new(&Member::new(&map, 0, area, Box::new(stub)).expect("the region is good"))
        })
        .collect();
    let me = Caller { uid: 0, gid: 0, groups: Vec::new(), pid: 1 };
    let mut attached: Vec<(usize, Attached)> = Vec::new();
    let mut ids: Vec<i32> = vec![0];
    let (table, shared) = (shape.object_table(), shape.host_bytes);
    let mut is_honest = true;
    let mut steps = 0;
    while !input.is_empty() && steps < 96 {
        steps += 1;
        let who = usize::from(input.below(2));
        let (ipc, id) = (&ipcs[who], ids[usize::from(input.byte()) % ids.len()]);
        match input.below(12) {
            0 => {
                let size = u64::from(input.short()) * if input.below(8) == 0 { 64 } else { 1 };
                if let Ok(id) = ipc.shmget(i32::from(input.below(3)), size, CREAT | 0o600, &me) {
                    ids.push(id);
                }
            }
            1 | 2 => {
                // The words of the page before a segment, which names processes, dead ones too, or anything.
                let page = shared + u64::from(input.byte()) % (SHARED / PAGE) * PAGE;
                let party = ipc.member().party();
                let value = match input.below(4) {
                    0 => 0,
                    1 => party.word(),
                    2 => Party::new(0, party.area(), (1 << 33) | u64::from(input.byte())).word(),
                    _ => input.number(),
                };
                whole.word("any", page + 8 * u64::from(input.below(16))).expect("inside").set(value);
            }
            3 if input.below(8) == 0 => {
                is_honest = false;
                let at = table + u64::from(input.short()) % (u64::from(PLACES) * object::BYTES) / 8 * 8;
                whole.word("any", at).expect("inside").set(input.number());
            }
            4 | 5 if !attached.is_empty() => {
                let (who, one) = attached.swap_remove(usize::from(input.byte()) % attached.len());
                ipcs[who].detach(&one, &me);
            }
            6 => {
                if let Ok(info) = ipc.look(Kind::SysvShm, id) {
                    let _ = ipc.remove(&info, &me);
                }
            }
            7 => {
                let _ = ipc.shmstat(id, &me, true).map(|stat| stat.size);
            }
            8 if input.below(8) == 0 => {
                // One of them ends.
                registry.lock().expect("nobody panicked").gone(ipc.member().party());
                attached.retain(|(by, _)| *by != who);
            }
            9 => registry.lock().expect("nobody panicked").sweep(),
            _ if attached.len() < MOST => {
                if let Ok(one) = ipc.attach(id, 0, &me) {
                    let end = one.offset.checked_add(one.mapped()).expect("an end");
                    assert!(
                        one.size > 0 && one.offset >= shared + PAGE && end <= shared + SHARED,
                        "outside of the shared section: {one:?}"
                    );
                    for (_, other) in &attached {
                        let same = (other.index, other.incarnation) == (one.index, one.incarnation);
                        let apart =
                            other.offset + other.mapped() <= one.offset - PAGE || end <= other.offset - PAGE;
                        assert!(!is_honest || same || apart, "{one:?} lies over {other:?}");
                    }
                    attached.push((who, one));
                }
            }
            _ => {}
        }
    }
}
