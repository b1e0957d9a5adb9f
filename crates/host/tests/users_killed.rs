//! Users of the C face on the host and in two VMs, killed at random; at the end one of the VMs is killed. Run by
//! `tests/api/kills`, which compiles the program for it; tests/api/kills.c says what must hold.
//!
//! This program is also the guests' first process, with the agent.

mod machine;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use isthmus_guest::agent;
use isthmus_guest::boot::{self, Booted};
use isthmus_host::{Config, Service, Vm as Member};
use machine::{Outcome, PORT};

/// The program and its arguments.
const COMMAND: &str = "ISTHMUS_TEST_KILLS";
const NAMES: [&str; 2] = ["vm0", "vm1"];
const REGION: u64 = 128 << 20;
/// Longer than anything takes under emulation.
const LIMIT: Duration = Duration::from_secs(400);

fn main() -> ExitCode {
    if boot::is_init() {
        boot::run(guest);
    }
    let Ok(command) = std::env::var(COMMAND) else {
        println!("skipped: users_killed: tests/api/kills runs it");
        return ExitCode::SUCCESS;
    };
    let words: Vec<_> = command.split_whitespace().map(str::to_owned).collect();
    match host(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("kills: FAILED: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The guest's side: starts the agent, runs the command as the user that the config names, with its output to the port.
fn guest(booted: Booted) {
    let _agent = agent::of_boot(&booted).unwrap();
    let mut port = std::fs::File::options().read(true).write(true).open(&booted.ports[PORT]).unwrap();
    assert!(boot::wait_for_host(&port, Duration::from_secs(60)));
    let mut start = String::new();
    BufReader::new(port.try_clone().unwrap()).read_line(&mut start).unwrap();
    let extra = &booted.config.extra;
    let words: Vec<String> = serde_json::from_value(extra["command"].clone()).unwrap();
    let [user, group] = ["user", "group"].map(|id| u32::try_from(extra[id].as_u64().unwrap()).unwrap());
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).uid(user).gid(group).stdin(Stdio::null());
    command.stdout(port.try_clone().unwrap()).stderr(port.try_clone().unwrap());
    let mut child = command.spawn().unwrap();
    let ended = child.wait();
    let _ = writeln!(port, "ended: {ended:?}");
    // The host ends this VM once it has read that.
    loop {
        std::thread::park();
    }
}

/// Sends each line to `to`, with the name of its `source`, and `ended` after the last.
fn listen(
    source: &'static str,
    from: impl std::io::Read + Send + 'static,
    to: mpsc::Sender<(&'static str, String)>,
) {
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines() {
            let Ok(line) = line else { break };
            if to.send((source, line.trim().to_owned())).is_err() {
                break;
            }
        }
        let _ = to.send((source, "ended".into()));
    });
}

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn host(words: &[String]) -> Outcome {
    let dir = tempfile::tempdir()?;
    let guests = machine::Guests::find()?;
    let mut config = Config { host_name: "host".into(), ..Config::new(dir.path(), REGION) };
    config.vms = NAMES.iter().map(|n| Member { name: (*n).into(), ranks: 4 }).collect();
    config.host_ranks = 4;
    let service = Service::start(config, Arc::new(|_| ()))?;
    let [user, group] = [rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw()];
    let extra = [
        ("command".to_owned(), serde_json::json!(words)),
        ("user".to_owned(), serde_json::json!(user)),
        ("group".to_owned(), serde_json::json!(group)),
        ("agent".to_owned(), serde_json::json!({ "users": [user] })),
    ];
    let mut vms = Vec::new();
    for name in NAMES {
        vms.push(guests.start(&service, dir.path(), name, 1, extra.clone().into())?);
    }
    let (to, said) = mpsc::channel();
    let mut ports = Vec::new();
    for (vm, name) in vms.iter().zip(NAMES) {
        let port = machine::port(vm, dir.path())?;
        port.set_read_timeout(None)?;
        listen(name, port.try_clone()?, to.clone());
        ports.push(port);
    }
    // The first place is the host: it must not die.
    let mut first = Ended(
        Command::new(&words[0])
            .args(&words[1..])
            .env("ISTHMUS_SOCKET", service.attach_socket())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?,
    );
    // The second VM, member 2 of the region, is killed last.
    let mut input = first.0.stdin.take().ok_or("no standard input")?;
    writeln!(input, "vm {} 2", vms[1].pid())?;
    listen("host", first.0.stdout.take().ok_or("no standard output")?, to);
    let mut well = BTreeSet::new();
    loop {
        let (source, line) = said.recv_timeout(LIMIT).map_err(|_| "no output came in time")?;
        println!("{source}: {line}");
        if line.starts_with("first place") {
            for port in &mut ports {
                writeln!(port, "start")?;
            }
        }
        if line.ends_with("all as it should be") {
            well.insert(source);
            if well.len() == 2 {
                break;
            }
        }
        // Once the second VM is killed, its port ends.
        let is_over = line.starts_with("ended: ") || line == "ended" && source != NAMES[1];
        if is_over && !well.contains(source) {
            for vm in &vms {
                println!("{}: {}", vm.name(), vm.console_tail(30).join("\n"));
            }
            return Err(format!("{source} ended before all was done").into());
        }
    }
    if !first.0.wait()?.success() {
        return Err("the first place failed".into());
    }
    Ok(())
}
