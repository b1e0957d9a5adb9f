//! Devices that ring, as a VM's agent with the guest driver and its QEMU use them.

use std::io::Write;
use std::os::unix::net::UnixStream;

use isthmus_attach::ring::{self, Frame};
use isthmus_region::directory::Writer;
use isthmus_region::format::GlobalSlot;

use super::*;

/// Whether an eventfd was signalled; it is not any more.
fn was_rung(bell: &OwnedFd) -> bool {
    let mut poll = [rustix::event::PollFd::new(bell, rustix::event::PollFlags::IN)];
    let patience = rustix::event::Timespec { tv_sec: 2, tv_nsec: 0 };
    let is_rung = rustix::event::poll(&mut poll, Some(&patience)) == Ok(1);
    is_rung && rustix::io::read(bell, &mut [0_u8; 8]).is_ok()
}

fn is_silent(bell: &OwnedFd) -> bool {
    std::thread::sleep(Duration::from_millis(50));
    rustix::io::read(bell, &mut [0_u8; 8]).is_err()
}

/// Hears until it has heard this, or for too long.
fn hears(port: &mut UnixStream, wanted: impl Fn(&Frame) -> bool) -> Option<Frame> {
    port.set_read_timeout(Some(SOON)).unwrap();
    let mut part = Vec::new();
    loop {
        let mut bytes = [0; 16];
        let count = port.read(&mut bytes).ok()?;
        part.extend_from_slice(&bytes[..count]);
        let frames = ring::take(&mut part).unwrap();
        if let Some(frame) = frames.into_iter().find(&wanted) {
            return Some(frame);
        }
    }
}

/// An agent that rings by its device: its wake port, once it is a member.
fn join(service: &Service, qemu: &Qemu, name: &str, vectors: u32) -> UnixStream {
    let mut port = UnixStream::connect(service.wake_socket_of(name).unwrap()).unwrap();
    port.write_all(&ring::hello(false)).unwrap();
    let said = hears(&mut port, |frame| matches!(frame, Frame::Peer { .. }));
    let Some(Frame::Peer { peer, .. }) = said else { panic!("nobody says which member it is") };
    let writer = Writer::create(&qemu.region(), peer, Naming::first(SystemId([7, peer.into()]))).unwrap();
    writer.set_vectors(vectors).unwrap();
    port.write_all(&ring::hello(true)).unwrap();
    let until = Instant::now() + LONG;
    while qemu.region().peer(peer).unwrap().unwrap().life.state != State::Active {
        assert!(Instant::now() < until, "it is not taken in");
        std::thread::sleep(Duration::from_millis(1));
    }
    port
}

#[test]
fn an_agent_that_rings_is_told_who_is_who_and_is_rung_by_its_device() {
    let dir = tempfile::tempdir().unwrap();
    let (service, _events) = start(dir.path(), &["red", "blue"]);
    let red = Qemu::connect(&service.ivshmem_socket_of("red").unwrap());
    let mut port = join(&service, &red, "red", 2);
    let known = |member, id| move |frame: &Frame| *frame == Frame::Known { member, id };
    assert!(hears(&mut port, known(0, Some(1))).is_some());
    let blue = Qemu::connect(&service.ivshmem_socket_of("blue").unwrap());
    assert!(hears(&mut port, known(2, Some(2))).is_some());

    // A process of the host wakes an endpoint of red's, the waiters at a place there, and tells of its own death.
    let endpoints = red.region().shape().endpoints;
    let member = isthmus_attach::connect_at(service.attach_socket()).unwrap();
    let (deaths, sleepers) = (&red.peers[&0][0], &red.peers[&0][1]);
    while !is_silent(deaths) || !is_silent(sleepers) {}
    member.service().wake(GlobalSlot(endpoints));
    assert!(was_rung(sleepers) && is_silent(deaths));
    member.service().ring(isthmus_region::gate_bits::bit(1), 64);
    assert!(was_rung(sleepers) && is_silent(deaths));
    let (slot, _) = open_endpoint(&member);
    let line = member.own().wake_line(slot).unwrap();
    let seen = line.words[0].get();

    // A VM rings the host, by the vector of that endpoint; its other vector is for nobody there.
    rustix::io::write(&red.peers[&1][0], &1_u64.to_ne_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(line.words[0].get(), seen);
    rustix::io::write(&red.peers[&1][1], &1_u64.to_ne_bytes()).unwrap();
    let until = Instant::now() + LONG;
    while line.words[0].get() == seen {
        assert!(Instant::now() < until, "the host's sleeper is not woken");
        std::thread::yield_now();
    }
    drop((line, member));
    assert!(was_rung(deaths));

    // Whoever is gone has no id any more.
    drop(blue);
    assert!(hears(&mut port, known(2, None)).is_some());
    assert!(was_rung(deaths));
    // One that does not ring any more is told by its port.
    port.write_all(&ring::hello(false)).unwrap();
    assert!(hears(&mut port, |frame| matches!(frame, Frame::Peer { .. })).is_some());
    let member = isthmus_attach::connect_at(service.attach_socket()).unwrap();
    member.service().wake(GlobalSlot(endpoints));
    assert!(hears(&mut port, |frame| *frame == Frame::Wake { slot: endpoints }).is_some());
    assert!(is_silent(sleepers));
}
