//! Counters of lanes: each equals what was sent that way, even if lanes were closed and opened again.

mod common;

use std::collections::HashMap;

use common::{Job, job};
use isthmus_inspect::check::check;
use isthmus_inspect::explain::text;
use isthmus_inspect::openmetrics::Exporter;
use isthmus_region::counters::{Counter, LaneCounter, LaneTotals};
use isthmus_region::local::LocalBuf;
use isthmus_transport::types::{Rma, Status};
use isthmus_transport::{PostError, Posted, Receive, Selector, Send, Ticket};

/// Counters of all lanes, by the places of sender and receiver in the job.
fn lanes(job: &Job) -> HashMap<(usize, usize), LaneTotals> {
    let survey = check(&job.reader()).unwrap().survey.unwrap();
    let place = |slot: u32| job.ends.iter().position(|e| e.address().number == slot).unwrap();
    survey.lanes().map(|(_, e, l)| ((place(e.slot), place(l.to)), l.counters)).collect()
}

fn select() -> Selector {
    Selector { tagged: true, from: None, tag: 1, ignore: 0 }
}

fn send_once(job: &mut Job, from: usize, to: usize, buf: LocalBuf) -> Result<Posted, PostError> {
    let address = job.ends[to].address();
    let to = job.ends[from].resolve(&address).unwrap();
    let (bufs, ticket) = ([buf], Ticket::default());
    let send =
        Send { to, tagged: true, tag: 1, data: None, bufs: &bufs, inject: false, delivered: false, ticket };
    job.ends[from].send(&send)
}

fn progress(job: &mut Job) {
    for end in &mut job.ends {
        end.progress();
    }
}

/// Lets every endpoint do its periodic work.
fn settle(job: &mut Job) {
    for _ in 0..600 {
        progress(job);
    }
}

/// A message of `len` bytes, received, while all make progress.
fn pass(job: &mut Job, from: usize, to: usize, len: usize) {
    let (out, into) = (LocalBuf::leaked(vec![0; len]), LocalBuf::leaked(vec![0; len]));
    let receive = Receive { select: select(), bufs: &[into], multi: None, ticket: Ticket::default() };
    job.ends[to].receive(&receive).unwrap();
    for _ in 0..100_000 {
        match send_once(job, from, to, out) {
            Ok(_) => break,
            Err(e) => assert_eq!(e, PostError::Again),
        }
        progress(job);
    }
    for _ in 0..100_000 {
        progress(job);
        let _ = job.ends[from].pop();
        if job.ends[to].pop().is_some() {
            return;
        }
    }
    panic!("{len} bytes from {from} to {to} never came");
}

#[test]
fn what_an_endpoint_sends_to_itself_is_told_apart() {
    let mut job = job(2);
    for _ in 0..3 {
        pass(&mut job, 0, 0, 300_000);
    }
    pass(&mut job, 0, 1, 300_000);
    settle(&mut job);
    let survey = check(&job.reader()).unwrap().survey.unwrap();
    let totals = survey.totals();
    let all = [Counter::Rendezvous, Counter::TxBytes, Counter::RxBytes].map(|counter| totals.get(counter));
    assert_eq!(all, [4, 1_200_000, 1_200_000]);
    assert!(totals.get(Counter::Attached) <= 1, "none of these: {}", totals.get(Counter::Attached));
    let explained = text(&survey, false);
    assert_eq!(
        explained.matches("this is the endpoint itself, which copies it from buffer to buffer").count(),
        1
    );
    assert_eq!(explained.matches("of the 4 long messages").count(), 1, "{explained}");
    assert!(explained.contains("to whatever receivers, itself among them"), "{explained}");
}

#[test]
fn each_lane_says_what_went_through_it() {
    let mut job = job(3);
    for _ in 0..200 {
        pass(&mut job, 0, 1, 8);
    }
    for _ in 0..5 {
        pass(&mut job, 0, 1, 5000);
    }
    // So many that both ways are tried.
    const LONG: u64 = 60;
    for _ in 0..LONG {
        pass(&mut job, 1, 0, 300_000);
    }
    pass(&mut job, 0, 2, 0);
    settle(&mut job);
    let lanes = lanes(&job);
    let of = |from, to| {
        let l: &LaneTotals = &lanes[&(from, to)];
        (l.get(LaneCounter::Messages), l.get(LaneCounter::BytesSent))
    };
    assert_eq!((of(0, 1), of(1, 0), of(0, 2)), ((205, 200 * 8 + 5 * 5000), (LONG, LONG * 300_000), (1, 0)));
    assert_eq!(lanes[&(0, 1)].get(LaneCounter::Chunks), 0);
    assert!(lanes[&(0, 1)].get(LaneCounter::Announced) > 0, "the first message at least");
    assert!(lanes.values().all(|l| l.get(LaneCounter::Rma) == 0));
    // The same as the processes say.
    let live = check(&job.reader()).unwrap();
    assert!(live.faults.is_empty(), "{:?}", live.faults);
    let totals = live.survey.as_ref().unwrap().totals();
    assert_eq!(
        (totals.get(Counter::TxMessages), totals.get(Counter::TxBytes)),
        (206 + LONG, 26_600 + LONG * 300_000)
    );
    let ways = [Counter::Inline, Counter::Eager, Counter::Rendezvous].map(|c| totals.get(c));
    assert_eq!(ways, [201, 5, LONG]);
    // Some of the long ones were copied by their receiver, the others went in pieces.
    let attached = totals.get(Counter::Attached);
    assert!((1..LONG).contains(&attached), "{attached}");
    assert_eq!(totals.get(Counter::AttachedBytes), attached * 300_000);
    let copied = LONG - attached;
    assert!(lanes[&(1, 0)].get(LaneCounter::Chunks) >= copied * 300_000 / (32 << 10));
    let explained = text(live.survey.as_ref().unwrap(), false);
    assert!(explained.contains(&format!("went {attached} of the {LONG} long messages")), "{explained}");
    // Each took some time.
    let took = [Counter::CopyBytes, Counter::AttachBytes].map(|c| totals.get(c));
    assert_eq!(took, [copied * 300_000, attached * 300_000]);
    let took = [Counter::CopyNs, Counter::AttachNs].map(|c| totals.get(c));
    assert!(took.iter().all(|ns| (1000..10_000_000_000).contains(ns)), "{took:?}");
    let speeds = [(copied, took[0]), (attached, took[1])].map(|(count, ns)| count as f64 * 3e5 / ns as f64);
    let measured = format!("{:.1} GB/s in two copies, {:.1} GB/s in one", speeds[0], speeds[1]);
    assert!(explained.contains(&measured), "{measured} in {explained}");
    // And as Prometheus gets them.
    let text = Exporter::default().text(&live.survey.unwrap(), &live.faults);
    let slots = [0, 1].map(|i| job.ends[i].address().number);
    let labels = format!("from=\"{}\",from_member=\"host\",to=\"{}\",to_member=\"host\"", slots[0], slots[1]);
    for sample in
        [format!("sent_messages_total{{{labels}}} 205"), format!("sent_bytes_total{{{labels}}} 26600")]
    {
        assert!(text.contains(&format!("\nisthmus_lane_{sample}\n")), "{sample} in {text}");
    }
}

#[test]
fn a_lane_counts_how_often_it_was_full_the_wakes_and_the_rma_that_it_carried() {
    let mut job = job(2);
    let word = LocalBuf::leaked(vec![0; 8]);
    // Posts that find no room are queued, and sent as soon as there is some.
    let queued = (0..500).filter(|_| send_once(&mut job, 0, 1, word) == Ok(Posted::Pending)).count();
    assert!(queued > 400, "{queued}");
    settle(&mut job);
    let gone = std::iter::from_fn(|| job.ends[0].pop()).filter(|end| end.status == Status::Ok).count();
    assert_eq!(gone, queued);
    let seen = lanes(&job)[&(0, 1)];
    assert_eq!((seen.get(LaneCounter::Stalls), seen.get(LaneCounter::Messages)), (queued as u64, 500));
    assert_eq!(seen.get(LaneCounter::Wakeups), 0);
    while job.ends[1].fall_asleep(false).is_none() {
        settle(&mut job);
    }
    assert!(send_once(&mut job, 0, 1, word).is_ok());
    job.ends[1].wake_up();
    settle(&mut job);
    assert_eq!(lanes(&job)[&(0, 1)].get(LaneCounter::Wakeups), 1);
    // Nothing is registered at the target: the operation is refused there, by messages.
    let address = job.ends[1].address();
    let to = job.ends[0].resolve(&address).unwrap();
    let rma =
        Rma { to, key: 1, addr: 0, bufs: &[word], data: None, inject: false, ticket: Ticket::default() };
    assert_eq!(job.ends[0].write(&rma), Ok(Posted::Pending));
    settle(&mut job);
    assert_ne!(job.ends[0].pop().unwrap().status, Status::Ok);
    let seen = lanes(&job)[&(0, 1)];
    assert_eq!((seen.get(LaneCounter::Rma), seen.get(LaneCounter::RmaBytes)), (1, 8));
    assert_eq!(seen.get(LaneCounter::Messages), 501);
}

#[test]
fn counters_outlast_the_lanes_that_a_full_region_closes() {
    const ENDS: usize = 10;
    let mut job = job(ENDS);
    let mut rounds = 0;
    let closed = |job: &Job| {
        let survey = check(&job.reader()).unwrap().survey.unwrap();
        survey.totals().get(Counter::LanesClosed)
    };
    while rounds < 2 || (rounds < 10 && closed(&job) < 10) {
        rounds += 1;
        for from in 0..ENDS {
            for to in (0..ENDS).filter(|to| *to != from) {
                pass(&mut job, from, to, 100);
            }
        }
        settle(&mut job);
    }
    assert!(closed(&job) >= 10, "the region is too large for this test");
    let lanes = lanes(&job);
    assert!(lanes.len() > ENDS, "{}", lanes.len());
    for (pair, seen) in lanes {
        let found = (seen.get(LaneCounter::Messages), seen.get(LaneCounter::BytesSent));
        assert_eq!(found, (rounds, rounds * 100), "{pair:?}");
    }
}
