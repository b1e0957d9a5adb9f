//! A region whose sections lie in files of their own.

mod common;

use common::{Job, separate_job};
use isthmus_inspect::check::check;
use isthmus_inspect::dump;
use isthmus_inspect::explain::pairs;
use isthmus_inspect::model::Survey;
use isthmus_inspect::target::{Target, Wanted};
use isthmus_region::counters::Counter;

const PEERS: u32 = 3;

/// A job in which each peer has sent to each other.
fn job() -> Job {
    let mut job = separate_job(PEERS);
    for (from, to) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
        job.send(from, to, 10, 8);
        job.send(from, to, 1, 300_000);
    }
    job
}

fn target(job: &Job) -> Target {
    Target::find(&Wanted { socket: Some(job.service.attach_socket().into()), run: None }).unwrap()
}

fn assert_whole(survey: &Survey) {
    assert_eq!((survey.region.files, survey.members.len()), (2 + PEERS, PEERS as usize));
    for member in &survey.members {
        let [process] = &member.processes[..] else { panic!("{:?}", member.processes) };
        assert_eq!(process.counters.get(Counter::TxMessages), 22, "peer {}", member.index);
        assert_eq!(process.counters.get(Counter::RxMessages), 22, "peer {}", member.index);
        // A lane to each of the others, which has accepted it.
        let [endpoint] = &member.endpoints[..] else { panic!("{:?}", member.endpoints) };
        assert_eq!(endpoint.lanes.iter().filter(|lane| lane.accepted).count(), PEERS as usize - 1);
    }
}

#[test]
fn all_members_are_seen_whichever_file_they_lie_in() {
    let job = job();
    let target = target(&job);
    assert!(target.reader.is_memory());
    let (survey, faults) = target.survey().unwrap();
    assert!(faults.is_empty(), "{faults:?}");
    assert_whole(&survey);
    let found = check(&target.reader).unwrap();
    assert!(found.faults.is_empty(), "{:?}", found.faults);
    // All targets have published memory, which no other peer can write.
    for pair in pairs(&survey, false) {
        assert!(
            pair.rma.what.starts_with("by messages") && pair.rma.why.contains("--separate-sections"),
            "{pair:?}"
        );
    }
}

#[test]
fn a_dump_has_all_files() {
    let job = job();
    let target = target(&job);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dump");
    let written = dump::write(&target.reader, "it", &path, false).unwrap();
    assert!(written.consistent && written.bytes == target.reader.len());
    let dumped = Target::file(&path).unwrap();
    let (survey, faults) = dumped.survey().unwrap();
    assert!(faults.is_empty(), "{faults:?}");
    assert_whole(&survey);
    assert!(check(&dumped.reader).unwrap().faults.is_empty());
    // Of a file that was cut between two of the region's files it is said.
    let first = job.service.region_bytes();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(first).unwrap();
    let cut = Target::file(&path).unwrap();
    let found = check(&cut.reader).unwrap();
    assert_eq!(found.faults.list.len(), 1, "{:?}", found.faults);
    assert_eq!(found.faults.list[0].field, "header.FILES");
    let members = found.survey.unwrap().members;
    assert!(members.len() == PEERS as usize && members.iter().all(|member| member.processes.is_empty()));
}
