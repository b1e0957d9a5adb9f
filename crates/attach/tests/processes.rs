//! A process learns from its service which process has an endpoint, if that is one of its own user.

mod common;
use common::serve;

use std::os::fd::AsRawFd;
use std::sync::Arc;

use isthmus_attach::client;
use isthmus_attach::server::Allowed;
use isthmus_region::format::block;
use isthmus_region::member::Member;
use rustix::process::{Uid, getuid};

/// A user that no test runs as.
const OTHER: u32 = 65533;

/// An endpoint of a process: slot and incarnation.
fn open(member: &Member) -> (u32, u64) {
    let at = member.take(block::BYTES).unwrap();
    member.service().open_endpoint(at).unwrap()
}

/// The process that a member is told to have an endpoint, by its number.
fn told(member: &Member, (slot, incarnation): (u32, u64)) -> Option<u32> {
    let pidfd = member.service().process(slot, incarnation).unwrap()?;
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).unwrap();
    info.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse().ok()
}

#[test]
fn the_process_of_an_endpoint_is_the_one_that_opened_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let _server = serve(&path, Allowed::Users(vec![getuid().as_raw()]), |_| ());
    let [one, two] = [(); 2].map(|()| client::connect_at(&path).unwrap());
    let end = open(&one);
    let me = Some(std::process::id());
    assert_eq!(told(&two, end), me);
    assert_eq!(told(&one, end), me, "of its own, too");
    for nobodys in [(end.0 + 1, end.1), (end.0, end.1 + 1), (u32::MAX, end.1)] {
        assert_eq!(told(&two, nobodys), None);
    }
    // What members write over the tables changes nothing.
    let at = member_table(&one, end.0);
    one.section().word("endpoint", at + 8).unwrap().put(1);
    assert_eq!(told(&two, end), me);
    // Both hold one descriptor for as long as they need it.
    let held = two.process_of(end.0, end.1).unwrap().unwrap();
    assert!(!held.has_ended() && Arc::ptr_eq(&held, &two.process_of(end.0, end.1).unwrap().unwrap()));
    one.service().close_endpoint(end.0).unwrap();
    assert_eq!(told(&two, end), None, "it is closed");
    let end = open(&one);
    drop(one);
    // The service hears of that a moment later.
    for _ in 0..1000 {
        if told(&two, end).is_none() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("its process has detached");
}

/// Where an endpoint's record is in the section.
fn member_table(member: &Member, slot: u32) -> u64 {
    let table = member.section().word("directory", isthmus_region::format::directory::ENDPOINT_TABLE);
    table.unwrap().get() + u64::from(slot) * isthmus_region::format::endpoint::BYTES
}

#[test]
fn processes_of_several_users_are_not_told_of_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let open_to_all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(dir.path(), open_to_all).unwrap();
    let own = getuid().as_raw();
    for allowed in [Allowed::Everybody, Allowed::Users(vec![own, OTHER]), Allowed::Users(vec![own, 0])] {
        let path = dir.path().join("socket");
        let is_one = allowed == Allowed::Users(vec![own, 0]);
        let server = serve(&path, allowed.clone(), |_| ());
        let [one, two] = [(); 2].map(|()| client::connect_at(&path).unwrap());
        let end = open(&one);
        assert_eq!(told(&two, end).is_some(), is_one, "{allowed:?}");
        // Only root can be somebody else, too.
        if getuid().is_root() && !is_one {
            let socket = path.clone();
            let other = std::thread::spawn(move || {
                // Of this thread alone; the kernel states it for the connection.
                rustix::thread::set_thread_uid(Uid::from_raw(OTHER)).unwrap();
                client::connect_at(&socket).unwrap()
            });
            let other = other.join().unwrap();
            assert_eq!(told(&other, end), None);
            let theirs = open(&other);
            assert_eq!(told(&two, theirs), None, "not even root");
            // Beside root it is the only user here, and root could read its memory anyway.
            assert_eq!(told(&other, theirs).is_some(), allowed != Allowed::Everybody);
        }
        drop(server);
    }
}
