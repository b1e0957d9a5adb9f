//! Real VMs join a region, and an ordinary user's processes in them attach: run with `ISTHMUS_TEST_VM=1`, and QEMU
//! installed.
//!
//! This program is also the guests' first process, with the agent and a port for questions, and the ordinary user's
//! process. So it has a `main` of its own and no test harness.

mod machine;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_guest::agent;
use isthmus_guest::boot::{self, Booted};
use isthmus_host::{Config, Event, Service, Vm as Member};
use isthmus_region::life::State;
use isthmus_vm::qemu::Vm;

use machine::{Outcome, PORT};

const REGION: u64 = 64 << 20;
const USER: u32 = 1000;
/// Set for the ordinary user's process: the microseconds that the agent took to join.
const RANK: &str = "ISTHMUS_TEST_RANK";

fn main() {
    if boot::is_init() {
        boot::run(answer);
    }
    let outcome = if std::env::var_os(RANK).is_some() {
        rank()
    } else if std::env::var_os("ISTHMUS_TEST_VM").is_none() {
        println!("skipped: guests: set ISTHMUS_TEST_VM=1 to boot guests");
        Ok(())
    } else {
        host()
    };
    if let Err(error) = outcome {
        println!("guests: FAILED: {error}");
        std::process::exit(1);
    }
}

/// The guest's side: starts the agent, passes each line to an ordinary user's process, and its answer back.
fn answer(booted: Booted) {
    let begin = Instant::now();
    let _agent = agent::of_boot(&booted).unwrap();
    let joined = begin.elapsed().as_micros().to_string();
    let port = fs::File::options().read(true).write(true).open(&booted.ports[PORT]).unwrap();
    assert!(boot::wait_for_host(&port, Duration::from_secs(30)));
    let program = booted.config.extra["program"].as_str().unwrap().to_owned();
    let mut command = Command::new(program);
    command.env(RANK, joined).uid(USER).gid(USER).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut rank: Child = command.spawn().unwrap();
    let mut to = rank.stdin.take().unwrap();
    let mut from = BufReader::new(rank.stdout.take().unwrap());
    let mut out = port.try_clone().unwrap();
    for line in BufReader::new(port).lines() {
        writeln!(to, "{}", line.unwrap()).unwrap();
        let mut reply = String::new();
        from.read_line(&mut reply).unwrap();
        out.write_all(reply.as_bytes()).unwrap();
    }
    let _ = rank.wait();
}

/// The ordinary user's process: attaches, and answers questions.
fn rank() -> Outcome {
    let joined = std::env::var(RANK)?;
    let begin = Instant::now();
    let member = isthmus_attach::connect()?;
    let attached = begin.elapsed();
    let block = member.take(64)?;
    member.section().word("block", block)?.set(4711 + u64::from(member.peer()));
    let (slot, _) = member.service().open_endpoint(block)?;
    for line in std::io::stdin().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["who"] => println!(
                "{} {slot} {} {joined} {}",
                member.peer(),
                rustix::process::getuid().as_raw(),
                attached.as_micros()
            ),
            ["see", peer] => match member.directory(peer.parse()?) {
                Ok((_, directory)) => {
                    let (_, info) = directory.endpoints()[0];
                    println!("{}", directory.section().word("block", info.block)?.get());
                }
                Err(e) => println!("{e}"),
            },
            _ => println!("what?"),
        }
    }
    Ok(())
}

struct Guest {
    vm: Vm,
    port: BufReader<UnixStream>,
}

impl Guest {
    fn ask(&mut self, question: &str) -> Outcome<String> {
        writeln!(self.port.get_mut(), "{question}")?;
        let mut answer = String::new();
        self.port.read_line(&mut answer)?;
        if answer.is_empty() {
            return Err(format!("no answer to {question}: {:?}", self.vm.console_tail(30)).into());
        }
        Ok(answer.trim_end().to_owned())
    }
}

fn host() -> Outcome {
    let dir = tempfile::tempdir()?;
    let guests = machine::Guests::find()?;
    let names = ["vm0", "vm1"];
    let mut config = Config { host_name: "host".into(), ..Config::new(dir.path(), REGION) };
    config.vms = names.iter().map(|n| Member { name: (*n).into(), ranks: 1 }).collect();
    let begin = Instant::now();
    let observer = move |event: &Event| println!("guests: {:.2} s: {event}", begin.elapsed().as_secs_f64());
    let service = Service::start(config, Arc::new(observer))?;
    let extra = [
        ("program".to_owned(), serde_json::json!(std::env::current_exe()?)),
        ("agent".to_owned(), serde_json::json!({ "users": [USER] })),
    ];
    let start = |name| guests.start(&service, dir.path(), name, 1, extra.clone().into());
    let vms: Vec<Vm> = names.iter().map(|name| start(name)).collect::<Outcome<_>>()?;
    let mut guests = Vec::new();
    for vm in vms {
        let socket = machine::port(&vm, dir.path())?;
        guests.push(Guest { vm, port: BufReader::new(socket) });
    }
    for (guest, peer) in guests.iter_mut().zip(["1", "2"]) {
        let who = guest.ask("who")?;
        let words: Vec<&str> = who.split(' ').collect();
        let [is_peer, "0", "1000", joined, attached] = words[..] else {
            return Err(format!("who: {who}").into());
        };
        if is_peer != peer {
            return Err(format!("peer {is_peer} instead of {peer}").into());
        }
        println!(
            "guests: {}'s agent joined in {joined} us, a process attached in {attached} us",
            guest.vm.name()
        );
    }
    // Each sees the other's memory, and the host both.
    let seen = (guests[0].ask("see 2")?, guests[1].ask("see 1")?);
    if seen != ("4713".into(), "4712".into()) {
        return Err(format!("they see {seen:?}").into());
    }
    let here = isthmus_attach::connect_at(service.attach_socket())?;
    for peer in [1, 2] {
        let (_, directory) = here.directory(peer)?;
        if directory.endpoints().len() != 1 {
            return Err(format!("the host sees {:?} of peer {peer}", directory.endpoints()).into());
        }
    }
    // One dies.
    let killed = Instant::now();
    guests[1].vm.kill();
    while service.members()[2].life.state != State::Dead {
        if killed.elapsed() > Duration::from_secs(1) {
            return Err("the death of a VM is not noticed".into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("guests: a VM's death is published after {:.1} ms", killed.elapsed().as_secs_f64() * 1e3);
    let answer = guests[0].ask("see 2")?;
    if !answer.contains("peer 2 is not an active member") {
        return Err(format!("the survivor sees {answer}").into());
    }
    Ok(())
}
