//! Contexts of IVC beside endpoints with lanes: what `ps` shows and a check finds.

mod common;

use std::os::fd::AsFd;
use std::time::Duration;

use common::{REGION, job};
use isthmus_inspect::check::check;
use isthmus_inspect::explain;
use isthmus_inspect::survey::{Depth, look};
use isthmus_ivc::{Config, Context};
use isthmus_region::format::{block, channel, endpoint};
use isthmus_region::mapping::Mapping;
use isthmus_region::membership::Region;
use isthmus_region::reader::Reader;

const SOON: Option<Duration> = Some(Duration::from_secs(20));

#[test]
fn channels_are_shown_and_every_field_that_is_wrong_is_named() {
    let mut job = job(2);
    job.send(0, 1, 10, 8);
    let member = || isthmus_attach::connect_at(job.service.attach_socket()).unwrap();
    let config = Config { ring_bytes: 4096, ..Config::default() };
    let a = Context::register_with(&member(), 77, 1, config).unwrap();
    let b = Context::register_with(&member(), 77, 2, config).unwrap();
    let mut connecting = a.begin_connect(b.address()).unwrap();
    let there = b.accept(SOON).unwrap();
    let here = connecting.wait(SOON).unwrap();
    let _offer = b.begin_connect(a.address()).unwrap();
    here.write_all(&[1; 1000], SOON).unwrap();
    there.read_exact(&mut [0; 600], SOON).unwrap();
    there.shutdown_write();

    let found = check(&job.reader()).unwrap();
    assert!(found.faults.is_empty(), "{:?}", found.faults);
    let survey = found.survey.unwrap();
    let ends = &survey.members[0].endpoints;
    assert_eq!(ends.len(), 4);
    assert!(ends[..2].iter().all(|e| e.group.is_none() && e.channels.is_empty() && e.lanes.len() <= 1));
    let groups: Vec<_> = ends[2..].iter().map(|e| e.group.unwrap()).collect();
    assert_eq!((groups[0].magic, groups[0].client, groups[1].client, groups[1].backlog), (77, 1, 2, 64));
    let [first, second] = [&ends[2].channels, &ends[3].channels];
    assert_eq!((first.len(), second.len()), (1, 2));
    assert_eq!((first[0].state, first[0].written, first[0].ring_bytes), ("open", 1000, 4096));
    assert_eq!(first[0].unread, Some(400));
    assert_eq!((second[0].state, second[0].unread), ("ended", Some(0)));
    assert_eq!((second[1].state, second[1].unread), ("offered", None));
    assert!(explain::pairs(&survey, true).len() <= 4, "nothing of contexts is explained as lanes");

    // All rings are claimed, so none may lie over another.
    let bytes = job.bytes();
    let fd = isthmus_region::create::memory(REGION).unwrap();
    let whole = Mapping::map(fd.as_fd(), REGION).unwrap().whole().unwrap();
    whole.fill_bytes("all", 0, &bytes).unwrap();
    let reader = Reader::new(fd).unwrap();
    let word = |at: u64| whole.word("t", at).unwrap();
    let region = Region::open(&Mapping::map(job.service.region_fd().as_fd(), REGION).unwrap()).unwrap();
    let section = region.peer(0).unwrap().unwrap().section;
    let table = section + isthmus_region::directory::places(region.shape()).endpoints;
    let block_of = |slot: u64| section + word(table + slot * endpoint::BYTES + endpoint::BLOCK).get();
    let chunk_of = |slot: u64| section + word(block_of(slot) + block::CHANNELS).get();
    let (first, second) = (chunk_of(2) + 64, chunk_of(3) + 64);
    let cases: &[(u64, u64, &str)] = &[
        (block_of(2) + block::KIND, 7, "block.KIND"),
        (block_of(2) + block::KIND, 0, "block.CHANNELS"),
        (block_of(2) + block::CHANNELS, 12345, "block.CHANNELS"),
        (block_of(2) + block::CHANNELS, chunk_of(3) - section, "block.CHANNELS"),
        (chunk_of(2), chunk_of(2) - section, "chunk.NEXT"),
        (first + channel::LIFE, 0x1ff, "channel.LIFE"),
        (first + channel::TO, region.shape().slots().into(), "channel.TO"),
        (first + channel::RING, 64, "channel.RING"),
        (first + channel::RING, REGION, "channel.RING"),
        (first + channel::RING, word(second + channel::RING).get(), "channel.RING"),
        (first + channel::RING_BYTES, 4095 | (64 << 32), "channel.RING_BYTES"),
        (first + channel::RING_BYTES, 4096 | (4096 << 32), "channel.SEGMENT_BYTES"),
        (first + channel::STATUS, 9, "channel.STATUS"),
        (first + channel::END, 17, "channel.END"),
        (first + channel::PAUSED, 17, "channel.PAUSED"),
        (first + channel::ROOM, 3, "channel.ROOM"),
        (first + channel::SLEEP, 3, "channel.SLEEP"),
        (first + channel::STOPPED, 3, "channel.STOPPED"),
    ];
    assert!(check(&reader).unwrap().faults.is_empty());
    for (at, value, field) in cases {
        let before = word(*at).get();
        word(*at).set(*value);
        // Nobody changes anything meanwhile: one look is enough.
        let found = look(&reader, Depth::Slots).unwrap().faults;
        word(*at).set(before);
        assert!(found.list.iter().any(|f| f.field == *field), "{field} set to {value:#x}: {found:?}");
    }
    assert!(check(&reader).unwrap().faults.is_empty(), "all is as before");
}
