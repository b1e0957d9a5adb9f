//! What every doorbell must do, whichever kind it is: the same tests run for a futex and for a service's pipe.

#![allow(clippy::disallowed_types)] // orderings of the test's own threads

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use isthmus_region::address::Naming;
use isthmus_region::directory::Writer;
use isthmus_region::doorbell::{self, Doorbell, Pollable, Sleeper};
use isthmus_region::extent::Extent;
use isthmus_region::format::GlobalSlot;
use isthmus_region::gate::Gate;
use isthmus_region::kept::Kept;
use isthmus_region::member::{LocalService, Member};
use isthmus_region::membership::{self, NewPeer, Shape};
use isthmus_region::{Mapping, Result};
use rustix::event::{PollFd, PollFlags, Timespec};

const KINDS: [Doorbell; 2] = [Doorbell::Futex, Doorbell::Service];
/// Far longer than any sleep, and than a busy machine delays a thread.
const LONG: Duration = Duration::from_secs(20);

/// A local service that rings as the real ones do.
struct Service {
    writer: Mutex<Writer>,
    bells: Mutex<HashMap<u32, Vec<OwnedFd>>>,
    places: Mutex<HashMap<u64, Vec<OwnedFd>>>,
    gives_bells: bool,
    woken: AtomicUsize,
}

struct Handle(Arc<Service>);

impl LocalService for Handle {
    fn grow(&self, bytes: u64) -> Result<Extent> {
        self.0.writer.lock().unwrap().grow_area(0, bytes)
    }

    fn open_endpoint(&self, block: u64) -> Result<(u32, u64)> {
        self.0.writer.lock().unwrap().open_endpoint(0, block, 1)
    }

    fn close_endpoint(&self, slot: u32) -> Result<()> {
        self.0.writer.lock().unwrap().close_endpoint(0, slot)
    }

    fn wake(&self, slot: GlobalSlot) {
        self.0.woken.fetch_add(1, Ordering::Relaxed);
        let writer = self.0.writer.lock().unwrap();
        writer.directory().wake_line(slot.0).unwrap().words[0].add(1);
        self.0.bells.lock().unwrap().get(&slot.0).into_iter().flatten().for_each(doorbell::ring);
    }

    fn bell(&self, slot: u32) -> Result<OwnedFd> {
        if !self.0.gives_bells {
            return Err(isthmus_region::Error::Service {
                action: "give a bell",
                reason: "none is left".into(),
            });
        }
        let (bell, own) = doorbell::bell().unwrap();
        self.0.bells.lock().unwrap().entry(slot).or_default().push(own);
        Ok(bell)
    }

    fn watch(&self, place: u64, _: Duration) -> Result<Kept> {
        let (bell, own) = doorbell::bell().unwrap();
        self.0.places.lock().unwrap().entry(place).or_default().push(own);
        Ok(Kept::new(bell))
    }

    fn ring(&self, _: u64, place: u64) {
        self.0.places.lock().unwrap().get(&place).into_iter().flatten().for_each(doorbell::ring);
    }
}

fn world(kind: Doorbell, gives_bells: bool) -> (Arc<Member>, Arc<Service>) {
    world_of(Some(kind), gives_bells, false, 0)
}

/// With a kind, or that of a process of the host or of a VM, which has so many vectors.
fn world_of(
    kind: Option<Doorbell>,
    gives_bells: bool,
    is_vm: bool,
    vectors: u32,
) -> (Arc<Member>, Arc<Service>) {
    let bytes = 4 << 20;
    let fd = isthmus_region::create::memory(bytes).unwrap();
    let map = Mapping::map(fd.as_fd(), bytes).unwrap();
    let shape = Shape::new(bytes, [1, 2], 1, 16).unwrap();
    let mut host = membership::Writer::create(&map, &shape, 1).unwrap();
    let new = NewPeer { file: 0, section: shape.first_section(), section_bytes: 2 << 20, is_vm, name: "one" };
    host.add(0, &new).unwrap();
    host.activate(0, Naming::of_test(0).system).unwrap();
    let mut writer = Writer::create(host.region(), 0, Naming::of_test(0)).unwrap();
    writer.set_vectors(vectors).unwrap();
    let grant = writer.open_area(256 << 10, 1, "test").unwrap();
    let service = Arc::new(Service {
        writer: Mutex::new(writer),
        bells: Mutex::default(),
        places: Mutex::default(),
        gives_bells,
        woken: AtomicUsize::new(0),
    });
    let handle = Box::new(Handle(Arc::clone(&service)));
    (Member::with_doorbell(&map, 0, grant, handle, kind).unwrap(), service)
}

/// Rings now and then until all of `sleepers` are awake; a sleep that ended by its own limit fails the test.
fn rings_until_awake(kind: Doorbell, sleepers: usize, sleep: impl Fn() + Sync, ring: impl Fn()) {
    let awake = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..sleepers {
            scope.spawn(|| {
                sleep();
                awake.fetch_add(1, Ordering::Relaxed);
            });
        }
        let begun = Instant::now();
        while awake.load(Ordering::Relaxed) < sleepers {
            std::thread::sleep(Duration::from_millis(2));
            ring();
            assert!(begun.elapsed() < LONG, "{kind:?}: asleep in spite of the rings");
        }
    });
}

#[test]
fn memory_has_futexes() {
    let (member, _) = world(Doorbell::Futex, true);
    assert_eq!(Doorbell::of(member.section().read("test", 0).unwrap()), Doorbell::Futex);
}

#[test]
fn in_a_vm_nobody_sleeps_at_a_futex() {
    // The memory has futexes, as that of a memory device in a VM.
    for (is_vm, vectors, kind) in
        [(true, 8, Doorbell::Interrupt), (true, 0, Doorbell::Service), (false, 8, Doorbell::Futex)]
    {
        let (member, _) = world_of(None, true, is_vm, vectors);
        assert_eq!(member.doorbell(), kind, "{is_vm} {vectors}");
    }
}

#[test]
fn a_sleeper_is_woken_before_its_time() {
    for kind in KINDS {
        let (member, service) = world(kind, true);
        let sleeper = Sleeper::new(&member, 0, kind == Doorbell::Service).unwrap();
        assert_eq!(sleeper.doorbell(), kind);
        // Rounds, of which most must end early: one by one they may lose to a slow machine.
        let early = (0..20)
            .filter(|_| {
                let (seen, begun) = (sleeper.seen(), Instant::now());
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        std::thread::sleep(Duration::from_millis(2));
                        member.ring(GlobalSlot(0), kind.bell());
                    });
                    while sleeper.seen() == seen {
                        sleeper.sleep(seen, LONG);
                    }
                });
                begun.elapsed() < kind.longest() / 2
            })
            .count();
        assert!(early > 10, "{kind:?}: {early} of 20 sleeps ended early");
        let by_service = service.woken.load(Ordering::Relaxed) > 0;
        assert_eq!(by_service, kind == Doorbell::Service, "{kind:?} rings its own way");
    }
}

#[test]
fn a_ring_before_the_sleep_ends_it_at_once() {
    for kind in KINDS {
        let (member, _) = world(kind, true);
        let sleeper = Sleeper::new(&member, 0, kind == Doorbell::Service).unwrap();
        let _ = sleeper.bell();
        let quick = (0..20)
            .filter(|_| {
                let seen = sleeper.seen();
                member.ring(GlobalSlot(0), kind.bell());
                let begun = Instant::now();
                sleeper.sleep(seen, LONG);
                begun.elapsed() < kind.longest() / 2
            })
            .count();
        assert!(quick > 10, "{kind:?}: {quick} of 20");
    }
}

#[test]
fn a_ring_before_the_sleep_ends_it_also_beside_a_thread_that_sleeps_on() {
    let (member, service) = world(Doorbell::Service, true);
    let sleeper = Sleeper::new(&member, 0, true).unwrap().with_longest(LONG);
    let before = sleeper.seen();
    // The word alone changes, as when the ring's wake-up went to the other thread, which sleeps again.
    service.writer.lock().unwrap().directory().wake_line(0).unwrap().words[0].add(1);
    std::thread::scope(|scope| {
        scope.spawn(|| sleeper.sleep(sleeper.seen(), LONG));
        std::thread::sleep(Duration::from_millis(50));
        let begun = Instant::now();
        sleeper.sleep(before, LONG);
        let took = begun.elapsed();
        sleeper.wake_all();
        assert!(took < LONG / 2, "slept past a ring, for {took:?}");
    });
}

#[test]
fn no_sleep_outlasts_its_limit() {
    for (kind, gives_bells) in [(KINDS[0], true), (KINDS[1], true), (KINDS[1], false)] {
        let (member, _) = world(kind, gives_bells);
        let sleeper = Sleeper::new(&member, 0, kind == Doorbell::Service).unwrap();
        for (limit, most) in [(Duration::from_millis(1), LONG), (LONG * 9, LONG)] {
            let begun = Instant::now();
            sleeper.sleep(sleeper.seen(), limit);
            assert!(begun.elapsed() < most, "{kind:?}: {:?}", begun.elapsed());
        }
        assert_eq!(
            sleeper.longest() == Duration::from_millis(1),
            !gives_bells,
            "without a bell the clock has to do"
        );
    }
}

#[test]
fn all_threads_are_woken_also_by_their_own_process() {
    for kind in KINDS {
        let (member, _) = world(kind, true);
        let sleeper = Sleeper::new(&member, 0, kind == Doorbell::Service).unwrap();
        let seen = sleeper.seen();
        rings_until_awake(kind, 4, || sleeper.sleep(seen, LONG), || member.ring(GlobalSlot(0), kind.bell()));
        let (seen, begun) = (sleeper.seen(), Instant::now());
        rings_until_awake(kind, 4, || sleeper.sleep(seen, LONG), || sleeper.wake_all());
        assert!(begun.elapsed() < LONG);
    }
}

#[test]
fn a_program_that_polls_is_rung() {
    let (member, _) = world(Doorbell::Service, true);
    let sleeper = Sleeper::new(&member, 0, true).unwrap();
    let is_readable = |pollable: &Pollable| {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut [PollFd::new(pollable, PollFlags::IN)], Some(&at_once)).unwrap() == 1
    };
    let pollable = sleeper.pollable().unwrap();
    sleeper.clear();
    assert!(!is_readable(pollable));
    for by_service in [true, false] {
        match by_service {
            true => member.ring(GlobalSlot(0), Doorbell::Service.bell()),
            false => sleeper.wake_all(),
        }
        assert!(is_readable(pollable));
        sleeper.clear();
        assert!(!is_readable(pollable), "until the next ring");
    }
    pollable.set_timer(Duration::from_millis(1));
    pollable.wait(LONG);
    assert!(is_readable(pollable), "when it is time to check who lives");
    // A ring that another thread took was perhaps for the program.
    sleeper.clear();
    member.ring(GlobalSlot(0), Doorbell::Service.bell());
    sleeper.sleep(sleeper.seen(), LONG);
    assert!(is_readable(pollable));
    let (member, _) = world(Doorbell::Service, false);
    let deaf = Sleeper::new(&member, 0, true).unwrap();
    assert!(deaf.pollable().is_err() && deaf.ask_for_bell().is_err());
}

#[test]
fn a_program_that_polls_does_not_spin_once_the_service_has_ended() {
    let (member, service) = world(Doorbell::Service, true);
    let sleeper = Sleeper::new(&member, 0, true).unwrap();
    let readable_at_once = |pollable: &Pollable| {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut [PollFd::new(pollable, PollFlags::IN)], Some(&at_once)).unwrap() == 1
    };
    let own = sleeper.pollable().unwrap();
    let others = Pollable::new().unwrap();
    others.watch(sleeper.bell().unwrap()).unwrap();
    sleeper.clear();
    let before = sleeper.longest();
    assert!(!sleeper.is_over() && !readable_at_once(own) && !readable_at_once(&others));
    service.bells.lock().unwrap().clear();
    assert!(readable_at_once(own) && readable_at_once(&others));
    sleeper.clear();
    // What else would make it readable is the timer, for which the sleeper's own limit is short from now on.
    own.set_timer(LONG);
    assert!(sleeper.is_over() && sleeper.longest() < before);
    assert!(!readable_at_once(own) && readable_at_once(&others));
    others.leave(sleeper.bell().unwrap());
    assert!(!readable_at_once(&others));
    let begun = Instant::now();
    sleeper.sleep(sleeper.seen(), LONG);
    assert!(begun.elapsed() < LONG / 2);
}

#[test]
fn waiters_at_a_gate_are_woken_and_none_sleeps_past_a_change() {
    for kind in KINDS {
        let (member, _) = world(kind, true);
        let at = member.allocate(64, 64).unwrap();
        member.section().zero("gate", at, 64).unwrap();
        let gate = Gate::new(&member, member.section(), at).unwrap();
        rings_until_awake(kind, 3, || gate.sleep(0, &gate.deaths(), LONG), || gate.ring(u32::MAX));
        // Without a ring: the word is another one already.
        gate.word().set(7);
        let begun = Instant::now();
        (0..20).for_each(|_| gate.sleep(6, &gate.deaths(), LONG));
        assert!(begun.elapsed() < kind.longest() * 10, "{kind:?}: it slept at a word that had changed");
    }
}

#[test]
fn near_waiters_are_woken_without_the_service() {
    for kind in KINDS {
        // The service here rings nobody, so a ring that comes is a near one; more waiters than there are words for them look again.
        let (member, _) = world(kind, true);
        let at = member.allocate(64, 64).unwrap();
        member.section().zero("gate", at, 64).unwrap();
        let gate = Gate::with_near(&member, member.section(), at).unwrap();
        let sleep = || gate.sleep_by(0, &gate.deaths(), LONG, &mut isthmus_region::gate::poll);
        rings_until_awake(kind, 3, sleep, || gate.ring(u32::MAX));
        gate.word().set(7);
        let begun = Instant::now();
        (0..20).for_each(|_| gate.sleep_by(6, &gate.deaths(), LONG, &mut isthmus_region::gate::poll));
        assert!(begun.elapsed() < kind.longest() * 10, "{kind:?}: it slept at a word that had changed");
    }
}

#[test]
fn a_death_wakes_the_waiters_at_a_gate() {
    let (member, _) = world(Doorbell::Futex, true);
    let at = member.allocate(64, 64).unwrap();
    member.section().zero("gate", at, 64).unwrap();
    let gate = Gate::new(&member, member.section(), at).unwrap();
    let limit = Doorbell::Futex.longest();
    // A death that came after the callers had checked who lives: each of them learns of it.
    let known = [gate.deaths(), gate.deaths()];
    member.own().count_death();
    let begun = Instant::now();
    known.iter().for_each(|known| gate.sleep(0, known, LONG));
    let at_once = begun.elapsed();
    // One in the middle of the sleep, in most of 20 rounds: one by one they may lose to a slow machine.
    let early = (0..20)
        .filter(|_| {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(2));
                    member.own().count_death();
                });
                let begun = Instant::now();
                gate.sleep(0, &gate.deaths(), LONG);
                begun.elapsed() < limit / 2
            })
        })
        .count();
    assert!(early > 10, "{early} of 20 sleeps ended with a death");
    assert!(at_once < limit / 2 || early == 20, "{at_once:?}");
}
