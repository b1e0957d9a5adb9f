//! A process in several regions: one attachment for each service, shared by all of its users.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use isthmus::Attachment;
use isthmus_attach::client::PATIENCE;
use isthmus_attach::server::{Ending, Event as Process};
use isthmus_attach::shared_at;
use isthmus_host::{Config, Event, Service};
use isthmus_ivc::Context;
use isthmus_region::member::Member;

const LIMIT: Option<Duration> = Some(Duration::from_secs(10));

/// A service, and the ends of its processes.
fn service(dir: &Path) -> (Service, Receiver<Ending>) {
    let config = Config { host_name: "host".into(), ..Config::new(dir, 16 << 20) };
    let (send, ends) = channel();
    let observe = move |event: &Event| {
        if let Event::Process(Process::Gone { ending, .. }) = event {
            let _ = send.send(*ending);
        }
    };
    (Service::start(config, Arc::new(observe)).unwrap(), ends)
}

fn uuid(member: &Member) -> [u64; 2] {
    member.region().shape().uuid
}

/// Two contexts of a group, with a channel between them.
fn exchange(member: &Arc<Member>, word: &[u8]) {
    let [one, two] = [1, 2].map(|client| Context::register(member, 77, client).unwrap());
    let found = one.wait_peers(1, LIMIT).unwrap();
    assert_eq!(found.len(), 1, "the contexts of another region are not seen");
    std::thread::scope(|scope| {
        let accepted = scope.spawn(|| two.accept(LIMIT).unwrap());
        let here = one.connect(found[0].address, LIMIT).unwrap();
        let there = accepted.join().unwrap();
        here.write_all(word, LIMIT).unwrap();
        let mut read = vec![0; word.len()];
        there.read_exact(&mut read, LIMIT).unwrap();
        assert_eq!(read, word);
    });
}

#[test]
fn all_users_of_a_service_share_one_attachment_and_the_last_one_ends_it() {
    let [dir, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let ((first, first_ends), (second, second_ends)) = (service(dir.path()), service(other.path()));
    let path = first.attach_socket();
    let one = shared_at(path).unwrap();
    let link = other.path().join("link");
    std::os::unix::fs::symlink(dir.path(), &link).unwrap();
    let by_link = shared_at(&link.join(path.file_name().unwrap())).unwrap();
    assert!(Arc::ptr_eq(&one, &by_link), "a link is the same path");
    let two = shared_at(second.attach_socket()).unwrap();
    assert!(uuid(&one) != uuid(&two) && uuid(&one) == first.region().shape().uuid);
    drop(one);
    assert!(Arc::ptr_eq(&by_link, &shared_at(path).unwrap()));
    exchange(&by_link, b"first");
    exchange(&two, b"second");
    assert!(first_ends.try_recv().is_err() && second_ends.try_recv().is_err());
    drop(by_link);
    assert_eq!(first_ends.recv_timeout(PATIENCE).unwrap(), Ending::Detached);
    exchange(&two, b"still there");
    drop(two);
    assert_eq!(second_ends.recv_timeout(PATIENCE).unwrap(), Ending::Detached);
}

#[test]
fn threads_that_ask_at_once_get_one_attachment() {
    let dir = tempfile::tempdir().unwrap();
    let (service, _ends) = service(dir.path());
    for _ in 0..20 {
        let start = std::sync::Barrier::new(4);
        let attach = || {
            start.wait();
            shared_at(service.attach_socket()).unwrap()
        };
        let all = std::thread::scope(|scope| {
            let threads = [(); 4].map(|()| scope.spawn(attach));
            threads.map(|thread| thread.join().unwrap())
        });
        assert!(all.iter().all(|member| Arc::ptr_eq(member, &all[0])));
    }
}

#[test]
fn a_service_that_does_not_answer_delays_nobody_who_asks_another() {
    let [dir, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let (service, _ends) = service(dir.path());
    let stopped = other.path().join("socket");
    let seqpacket = rustix::net::SocketType::SEQPACKET;
    let listener = isthmus_attach::socket::listen(&stopped, seqpacket, 0o600, None).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| shared_at(&stopped).is_err());
        // It has begun once there is its connection.
        let connection = loop {
            match rustix::net::accept(&listener) {
                Ok(connection) => break connection,
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        let begun = Instant::now();
        shared_at(service.attach_socket()).unwrap();
        assert!(begun.elapsed() < PATIENCE / 2 && !waits.is_finished());
        drop(connection);
        assert!(waits.join().unwrap());
    });
}

#[test]
fn a_service_that_comes_again_at_the_same_path_is_another_attachment() {
    let [dir, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let ((first, _ends), (second, _other_ends)) = (service(dir.path()), service(other.path()));
    let path = first.attach_socket().to_path_buf();
    let (old, beside) = (shared_at(&path).unwrap(), shared_at(second.attach_socket()).unwrap());
    let word = old.take(64).unwrap();
    old.section().word("test", word).unwrap().set(7);
    assert!(!old.service().has_ended());
    first.stop();
    assert!(old.service().has_ended() && !beside.service().has_ended());
    assert!(shared_at(&path).is_err(), "nothing can be asked of a service that has ended");
    let (again, _again_ends) = service(dir.path());
    let new = shared_at(&path).unwrap();
    assert!(
        !Arc::ptr_eq(&old, &new) && uuid(&new) == again.region().shape().uuid && uuid(&new) != uuid(&old)
    );
    exchange(&new, b"new");
    exchange(&beside, b"beside");
    assert_eq!(old.section().word("test", word).unwrap().get(), 7, "who has the old region keeps it");
    assert!(Arc::ptr_eq(&new, &shared_at(&path).unwrap()));
}

#[test]
fn what_the_program_itself_stores_to_is_listed_while_it_is_open() {
    let dir = tempfile::tempdir().unwrap();
    let (service, _ends) = service(dir.path());
    let here = Attachment::at(service.attach_socket()).unwrap();
    let listed = || -> Vec<_> { here.program_memory().iter().map(|memory| memory.what).collect() };
    assert!(listed().is_empty());
    let segment = here.segment("board").create(1000).unwrap();
    let again = segment.clone();
    let found = here.program_memory();
    assert_eq!((found.len(), found[0].len, found[0].address), (1, 1000, segment.address().unwrap()));
    let [one, two] = [1, 2].map(|client| here.register(77, client).unwrap());
    std::thread::scope(|scope| {
        let accepted = scope.spawn(|| two.accept(LIMIT).unwrap());
        let found = one.wait_peers(1, LIMIT).unwrap();
        let channel = one.connect(found[0].address, LIMIT).unwrap();
        let other = accepted.join().unwrap();
        assert_eq!(listed(), ["segment", "ring of a channel", "ring of a channel"]);
        drop((channel, other));
    });
    drop((one, two, segment));
    assert_eq!(listed(), ["segment"], "a clone is open");
    drop(again);
    assert!(listed().is_empty());
}
