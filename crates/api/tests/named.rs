//! Barriers, locks and the like, by name, between attachments to a service of this process.

use std::sync::Arc;
use std::time::Duration;

use isthmus::{Attachment, Error, Kind, Parameters, Waiting, sync};
use isthmus_host::{Config, Service};

fn attached(dir: &std::path::Path) -> (Service, [Attachment; 2]) {
    let config = Config { host_name: "host".into(), ..Config::new(dir, 16 << 20) };
    let service = Service::start(config, Arc::new(|_| ())).unwrap();
    let both = [(); 2].map(|()| Attachment::at(service.attach_socket()).unwrap());
    (service, both)
}

#[test]
fn two_participants_meet_at_a_barrier_by_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let (_service, [one, two]) = attached(dir.path());
    for waiting in [Waiting::Spin, Waiting::Block, Waiting::Hybrid] {
        let parameters = Parameters::new(2, waiting);
        let name = format!("{waiting:?}");
        let rounds = |here: &Attachment| {
            let mut seat = here.named(&name).barrier(parameters).unwrap().participate().unwrap();
            (0..200).filter(|_| seat.wait().unwrap()).count()
        };
        let serial = std::thread::scope(|scope| {
            let other = scope.spawn(|| rounds(&two));
            rounds(&one) + other.join().unwrap()
        });
        assert_eq!(serial, 200, "one of the two, each time");
    }
    let other = one.named("Spin").barrier(Parameters::new(3, Waiting::Spin));
    assert!(matches!(other, Err(Error::Exists(_))), "it was made for two");
    let none = one.named("none").barrier(Parameters::new(0, Waiting::Spin));
    assert!(matches!(none, Err(Error::Sync(sync::Error::BadParameter { .. }))));
}

#[test]
fn the_next_owner_learns_of_a_death() {
    let dir = tempfile::tempdir().unwrap();
    let (_service, [one, two]) = attached(dir.path());
    let mutex = one.named("m").mutex().unwrap();
    let gone = two.named("m").mutex().unwrap();
    // Taken by an attachment that ends meanwhile.
    gone.lock().unwrap().keep();
    drop((gone, two));
    let mut guard = mutex.lock_within(Duration::from_secs(5)).unwrap();
    assert!(guard.owner_died());
    guard.mend();
    drop(guard);
    assert!(!mutex.lock().unwrap().owner_died());
}

#[test]
fn each_kind_has_names_of_its_own_and_they_can_be_taken_away() {
    let dir = tempfile::tempdir().unwrap();
    let (_service, [one, two]) = attached(dir.path());
    let (mutex, condvar) = (one.named("x").mutex().unwrap(), one.named("x").condvar().unwrap());
    let semaphore = one.named("x").semaphore(2).unwrap();
    let once = one.named("x").once().unwrap();
    let rwlock = one.named("x").rwlock(8).unwrap();
    assert!(mutex.is_new() && condvar.is_new() && semaphore.is_new() && once.is_new() && rwlock.is_new());
    let other = two.named("x").semaphore(2).unwrap();
    assert!(!other.is_new());
    other.wait().unwrap();
    assert_eq!(semaphore.value().unwrap(), 1);
    assert!(matches!(two.named("x").semaphore(3), Err(Error::Exists(_))));
    let mut made = 0;
    once.call(|_| made += 1);
    two.named("x").once().unwrap().call(|_| made += 1);
    assert_eq!(made, 1);
    let reads = two.named("x").rwlock(8).unwrap();
    let guard = reads.read().unwrap();
    assert!(matches!(rwlock.try_write(), Err(sync::Error::WouldBlock)));
    drop(guard);
    drop(rwlock.try_write().unwrap());
    // A notification through the name.
    std::thread::scope(|scope| {
        let guard = mutex.lock().unwrap();
        scope.spawn(|| {
            let same = two.named("x").mutex().unwrap();
            let _guard = same.lock().unwrap();
            two.named("x").condvar().unwrap().notify_all();
        });
        let (_guard, notified) = condvar.wait_within(guard, Duration::from_secs(20)).unwrap();
        assert!(notified);
    });
    two.unlink(Kind::Semaphore, "x").unwrap();
    assert!(two.named("x").semaphore(7).unwrap().is_new(), "a new one, with another value");
}

#[test]
fn a_minitransaction_over_segments_is_made_by_all_or_none() {
    use sync::minitransaction::{Minitransaction, Node, Outcome, SegmentId, Shape};
    let dir = tempfile::tempdir().unwrap();
    let (_service, both) = attached(dir.path());
    let open = |here: &Attachment| {
        let accounts = here.segment("accounts").or_create(1004).unwrap();
        let space = here.named("bank").space(Shape::default()).unwrap();
        let id = space.add(&accounts).unwrap();
        assert_eq!(space.add(&accounts).unwrap(), id);
        (accounts, space, id)
    };
    let [one, two] = both.each_ref().map(open);
    assert_eq!(one.2, two.2, "one number for all");
    one.0.set(0, [1000_u64, 0]).unwrap();
    let committed: u64 = std::thread::scope(|scope| {
        let both = [&one, &two].map(|(_, space, id)| {
            scope.spawn(move || {
                let mut committed = 0;
                for _ in 0..500 {
                    let mut t = Minitransaction::new();
                    let (from, to) = (t.read(Node::LOCAL, *id, 0, 8), t.read(Node::LOCAL, *id, 8, 8));
                    assert_eq!(space.commit(&mut t).unwrap(), Outcome::Committed);
                    let (from, to) = (t.number(from).unwrap(), t.number(to).unwrap());
                    t.clear();
                    t.compare(Node::LOCAL, *id, 0, &from.to_le_bytes());
                    t.write(Node::LOCAL, *id, 0, &(from - 1).to_le_bytes());
                    t.compare(Node::LOCAL, *id, 8, &to.to_le_bytes());
                    t.write(Node::LOCAL, *id, 8, &(to + 1).to_le_bytes());
                    match space.commit(&mut t).unwrap() {
                        Outcome::Committed => committed += 1,
                        // The other thread was quicker.
                        Outcome::CompareFailed => (),
                        outcome => panic!("{outcome:?}"),
                    }
                }
                committed
            })
        });
        both.map(|thread| thread.join().unwrap()).iter().sum()
    });
    assert!(committed > 0);
    assert_eq!(
        two.0.get::<[u64; 2]>(0).unwrap(),
        [1000 - committed, committed],
        "each commit once, and no other"
    );
    // One of two comparisons fails: neither word is written, and no other commit interferes.
    let mut t = Minitransaction::new();
    t.compare(Node::LOCAL, one.2, 0, &(1000 - committed).to_le_bytes());
    t.compare(Node::LOCAL, one.2, 8, &(committed + 1).to_le_bytes());
    t.write(Node::LOCAL, one.2, 0, &7_u64.to_le_bytes());
    t.write(Node::LOCAL, one.2, 8, &7_u64.to_le_bytes());
    assert!(matches!(one.1.commit(&mut t).unwrap(), Outcome::CompareFailed));
    assert_eq!(two.0.get::<[u64; 2]>(0).unwrap(), [1000 - committed, committed]);
    let mut t = Minitransaction::new();
    t.read(Node(7), one.2, 0, 8);
    let refused = one.1.commit(&mut t);
    assert!(matches!(refused, Err(Error::Transaction(sync::minitransaction::Error::NotReachable { .. }))));
    t.clear();
    t.read(Node::LOCAL, SegmentId(0xffff), 0, 8);
    assert!(one.1.commit(&mut t).is_err(), "no such segment");
    let read = both[0].segment("accounts").open_to_read().unwrap();
    assert!(matches!(one.1.add(&read), Err(Error::ReadOnly { .. })));
    let bad = Shape { locks: 3, ..Shape::default() };
    assert!(matches!(both[0].named("x").space(bad), Err(Error::Transaction(_))));
    assert!(matches!(
        both[0].named("bank").space(Shape { slots: 7, ..Shape::default() }),
        Err(Error::Exists(_))
    ));
}

#[test]
fn a_segment_that_has_no_whole_word_left_is_not_part_of_a_space() {
    use sync::minitransaction::{Error as Mini, Minitransaction, Node, Shape};
    let dir = tempfile::tempdir().unwrap();
    let (_service, [one, two]) = attached(dir.path());
    let segment = one.segment("short").create(64).unwrap();
    let id = one.named("bank").space(Shape::default()).unwrap().add(&segment).unwrap();
    segment.shrink(7).unwrap();
    // So a log that names it is complete without it, and the rest of the log is carried out.
    let space = two.named("bank").space(Shape::default()).unwrap();
    let mut t = Minitransaction::new();
    t.write(Node::LOCAL, id, 0, &[1; 8]);
    let refused = space.commit(&mut t);
    assert!(matches!(refused, Err(Error::Transaction(Mini::NoSegment { .. }))), "{refused:?}");
}
