//! Channels between processes, and what is left of them when one is killed.
//!
//! A test starts this program again as the test `child`, which does what `ROLE` says.

mod common;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{MAGIC, Random, SOON, World, await_that, check, fill};
use isthmus_ivc::{Address, Channel, Config, Context, Error, Event};

/// What `include/isthmus.h` promises: a death is reported within this time.
const TOLD: Duration = Duration::from_secs(5);

fn start(role: &str, socket: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture", "--include-ignored"])
        .env("ROLE", role)
        .env("ISTHMUS_SOCKET", socket)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// How many times a process is killed: `KILLS`.
fn kills() -> u64 {
    std::env::var("KILLS").ok().and_then(|k| k.parse().ok()).unwrap_or(200)
}

fn seed_of(child: u32) -> u64 {
    u64::from(child) * 7919
}

#[test]
#[ignore = "the other process of the tests here"]
fn child() {
    let Ok(role) = std::env::var("ROLE") else { return };
    let member = isthmus_attach::connect().unwrap();
    let me = std::process::id();
    let config = Config { ring_bytes: 4096, ..Config::default() };
    let context = Context::register_with(&member, MAGIC, me.into(), config).unwrap();
    await_that("the other process", || !context.peers().is_empty());
    let to = context.peers().iter().find(|p| p.client == 0).unwrap().address;
    if role == "storm" {
        return storm(&context, to);
    }
    let channel = context.connect(to, SOON).unwrap();
    match role.as_str() {
        "writer" => write_for_ever(&channel, me),
        "reader" => {
            let mut bytes = [0; 3000];
            while channel.read_some(&mut bytes, None).is_ok() {}
        }
        // Writes everything, and ends as programs do.
        "leaver" => {
            let mut bytes = vec![0; 50_000];
            fill(&mut bytes, 0, seed_of(me));
            channel.write_all(&bytes, SOON).unwrap();
        }
        "echo" => {
            let mut bytes = [0; 64];
            while channel.read_exact(&mut bytes, None).is_ok() {
                channel.write_all(&bytes, None).unwrap();
            }
        }
        other => panic!("{other}"),
    }
}

/// Connects, asks, and closes, for ever; gives up some of its offers, and leaves some answers unread.
fn storm(context: &Context, to: Address) {
    let mut random = Random(seed_of(std::process::id()) | 1);
    loop {
        if random.below(4) == 0 {
            drop(context.begin_connect(to));
        }
        let channel = match context.connect(to, SOON) {
            Ok(channel) => channel,
            Err(Error::Refused { .. }) => continue,
            Err(e) => panic!("{e}"),
        };
        channel.write_all(&[9; 100], SOON).unwrap();
        if random.below(3) > 0 {
            channel.read_exact(&mut [0; 100], SOON).unwrap();
        }
    }
}

fn write_for_ever(channel: &Channel, me: u32) {
    let mut random = Random(seed_of(me) | 1);
    let (mut sent, mut bytes) = (0, [0; 6000]);
    loop {
        let len = usize::try_from(1 + random.below(6000)).unwrap();
        fill(&mut bytes[..len], sent, seed_of(me));
        if channel.write_all(&bytes[..len], None).is_err() {
            return;
        }
        sent += len as u64;
    }
}

fn context(world: &World) -> Context {
    world.context_with(0, Config { ring_bytes: 4096, ..Config::default() })
}

#[test]
fn two_processes_talk() {
    let world = World::new();
    let context = context(&world);
    let mut other = start("echo", world.service.attach_socket());
    let channel = context.accept(SOON).unwrap();
    assert_eq!(channel.peer().client, u64::from(other.id()));
    let mut bytes = [0; 64];
    for i in 0..2000 {
        fill(&mut bytes, i, 1);
        channel.write_all(&bytes, SOON).unwrap();
        bytes.fill(0);
        channel.read_exact(&mut bytes, SOON).unwrap();
        check(&bytes, i, 1);
    }
    drop(channel);
    assert!(other.wait().unwrap().success());
}

#[test]
fn what_a_process_wrote_before_it_ended_is_delivered() {
    let world = World::new();
    let context = context(&world);
    for i in 0..10 {
        let mut other = start("leaver", world.service.attach_socket());
        let channel = context.accept(SOON).unwrap();
        let (mut got, mut bytes) = (0, [0; 700]);
        loop {
            match channel.read_some(&mut bytes, SOON) {
                Ok(count) => {
                    check(&bytes[..count], got, seed_of(other.id()));
                    got += count as u64;
                }
                Err(Error::End { .. }) => break,
                Err(e) => panic!("{e} after {got}"),
            }
            if i % 2 == 0 {
                std::thread::sleep(Duration::from_micros(300));
            }
        }
        assert_eq!(got, 50_000);
        assert!(other.wait().unwrap().success());
    }
}

#[test]
fn a_writer_that_is_killed_leaves_an_exact_prefix() {
    let world = World::new();
    let before = world.heap_used();
    let context = context(&world);
    let mut random = Random(0x5eed);
    let mut latest = Duration::ZERO;
    for round in 0..kills() {
        let mut other = start("writer", world.service.attach_socket());
        let channel = context.accept(SOON).unwrap();
        let until = random.below(60_000);
        let (mut got, mut bytes) = (0, [0; 5000]);
        let mut killed: Option<Instant> = None;
        let error = loop {
            if got >= until && killed.is_none() {
                other.kill().unwrap();
                killed = Some(Instant::now());
            }
            let len = usize::try_from(1 + random.below(5000)).unwrap();
            match channel.read_some(&mut bytes[..len], SOON) {
                Ok(count) => {
                    check(&bytes[..count], got, seed_of(other.id()));
                    got += count as u64;
                }
                Err(e) => break e,
            }
        };
        assert!(matches!(error, Error::PeerDied { .. }), "round {round}: {error}");
        latest = latest.max(killed.expect("it was killed").elapsed());
        // Once and for ever.
        assert!(matches!(channel.read(&mut bytes), Err(Error::PeerDied { .. })));
        assert!(matches!(channel.write(&bytes), Err(Error::PeerDied { .. })));
        assert!(matches!(channel.peek(1), Err(Error::PeerDied { .. })));
        let id = channel.id();
        assert!(context.events().iter().any(|e| matches!(e, Event::Gone { channel, .. } if *channel == id)));
        other.wait().unwrap();
    }
    assert!(latest < TOLD, "the death was seen only after {latest:?}");
    assert!(context.peers().is_empty());
    drop(context);
    await_that("all memory back", || world.heap_used() <= before);
}

#[test]
fn a_process_that_is_killed_while_it_connects_leaves_nothing() {
    let world = World::new();
    let before = world.heap_used();
    let context = context(&world);
    let bystander = world.context(1);
    let mut random = Random(0xace);
    let mut served = 0;
    for _ in 0..kills() / 4 {
        let mut others = [(); 2].map(|()| start("storm", world.service.attach_socket()));
        let until = served + random.below(30);
        let mut killed = false;
        loop {
            if served >= until && !killed {
                killed = true;
                others.iter_mut().for_each(|o| o.kill().unwrap());
            }
            let channel = match context.accept(Some(Duration::from_millis(if killed { 30 } else { 30_000 })))
            {
                Ok(channel) => channel,
                Err(Error::TimedOut { .. }) if killed => break,
                Err(e) => panic!("{e}"),
            };
            let mut bytes = [0; 100];
            match channel.read_exact(&mut bytes, SOON) {
                Ok(()) => assert_eq!(bytes, [9; 100]),
                Err(Error::PeerDied { .. }) => continue,
                // The offer was given up while it was accepted.
                Err(Error::End { .. }) => continue,
                Err(e) => panic!("{e}"),
            }
            match channel.write_all(&bytes, SOON) {
                Ok(()) => served += 1,
                Err(Error::PeerDied { .. } | Error::Closed { .. }) => served += 1,
                Err(e) => panic!("{e}"),
            }
        }
        for other in &mut others {
            other.wait().unwrap();
        }
        await_that("their deaths", || context.peers().len() == 1);
        let (here, there) = common::pair(&context, &bystander);
        here.write_all(b"still", SOON).unwrap();
        there.read_exact(&mut [0; 5], SOON).unwrap();
    }
    drop((context, bystander));
    await_that("all memory back", || world.heap_used() <= before);
}

#[test]
fn a_reader_that_is_killed_ends_its_writer() {
    let world = World::new();
    let context = context(&world);
    let mut random = Random(0xbead);
    for round in 0..kills() / 4 {
        let mut other = start("reader", world.service.attach_socket());
        let channel = context.accept(SOON).unwrap();
        let until = random.below(60_000);
        let mut sent = 0;
        let mut killed: Option<Instant> = None;
        let error = loop {
            if sent >= until && killed.is_none() {
                other.kill().unwrap();
                killed = Some(Instant::now());
            }
            match channel.write_all(&[1; 900], SOON) {
                Ok(()) => sent += 900,
                Err(e) => break e,
            }
        };
        assert!(matches!(error, Error::PeerDied { .. }), "round {round}: {error}");
        let late = killed.expect("it was killed").elapsed();
        assert!(late < TOLD, "the death was seen only after {late:?}");
        other.wait().unwrap();
    }
}
