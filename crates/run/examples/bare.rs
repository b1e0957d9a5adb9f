//! `isthmus run` without a region, and with stand-ins for VMs: what the tests of this crate start.
//!
//! A stand-in is a process in user, network, process and host name spaces of its own, which serves the three
//! ports as the agent of a VM does. The ranks use whatever transport their MPI has itself.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use isthmus_guest::control::{self, Changes, ToHost};
use isthmus_guest::exec::{self, exec_as};
use isthmus_guest::relay;
use isthmus_run::machines::{Machine, Network, Plan, StartMachines, Started};
use isthmus_run::service::{Config, Note, Service, StartService};
use isthmus_run::visit::{self, Visit};
use isthmus_run::{Error, Net, RunSpec, front, guardian, hydra, job, launch, leash, pass, rsh, session};
use rustix::process::Pid;

struct NoService;

impl StartService for NoService {
    fn start(&self, _: &Config, _: bool, _: Note) -> isthmus_run::Result<Option<Box<dyn Service>>> {
        Ok(None)
    }
}

/// Name and address of a stand-in; with it come its three ports.
type Identity = (String, Ipv4Addr);

struct StandIns;

struct StandIn(Child);

impl Drop for StandIn {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl StartMachines for StandIns {
    fn start(&self, plan: &Plan<'_>) -> isthmus_run::Result<Started> {
        let failed = |e| Error::io("cannot start a stand-in", e);
        let mut machines = Vec::new();
        for (name, last) in plan.names.iter().zip(10..) {
            let address = Ipv4Addr::new(10, 73, 0, last);
            let (ours, theirs) = UnixStream::pair().map_err(failed)?;
            let child = leash::command(Path::new("/usr/bin/unshare"))
                .args([
                    "--user",
                    "--map-root-user",
                    "--net",
                    "--uts",
                    "--pid",
                    "--fork",
                    "--kill-child",
                    "--mount-proc",
                ])
                .arg(std::env::current_exe().map_err(failed)?)
                .arg("stand-in")
                .stdin(Stdio::from(OwnedFd::from(theirs)))
                .process_group(0)
                .spawn()
                .map_err(failed)?;
            let ports = [(); 3].map(|()| UnixStream::pair().expect("descriptors"));
            let fds = [ports[0].1.as_fd(), ports[1].1.as_fd(), ports[2].1.as_fd()];
            pass::send(&ours, &(name, address), &fds).map_err(failed)?;
            let pid = Pid::from_child(&child);
            let [exec, relay, control] = ports.map(|(ours, _)| ours);
            machines.push(Machine {
                name: name.clone(),
                address,
                exec,
                relay,
                control,
                pid,
                console: Box::new(|| vec!["the last line".into()]),
                keep: Box::new(StandIn(child)),
            });
        }
        // Stand-ins are not on it, but a program can see whether it runs there.
        let network = (plan.spec.vm.net == Net::Tap).then(|| Network {
            prefix: ["unshare", "--net", "sh", "-c", "ip link set lo up; exec \"$@\"", "sh"]
                .map(Into::into)
                .into(),
            host: Ipv4Addr::LOCALHOST,
        });
        Ok(Started { machines, network })
    }
}

fn stand_in() -> i32 {
    let socket = pass::take_stdin_socket().expect("a socket");
    let ((name, address), fds) =
        pass::receive::<Identity>(&socket).expect("an identity").expect("an identity");
    // A stand-in must not find what another left in /tmp: Open MPI names files by process numbers, which are the same.
    // A source tree that is itself in /tmp must stay where it is, since the ranks work there.
    let top = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let set_up = format!(
        "top=$(realpath {top}); \
         case $top in /tmp/*) mount --bind \"$top\" /mnt;; esac; \
         mount -t tmpfs none /tmp; \
         case $top in /tmp/*) mkdir -p \"$top\"; mount --bind /mnt \"$top\"; umount /mnt;; esac; \
         mount -t tmpfs none /dev/shm; hostname {name}; ip link set lo up; \
         ip link add isthmus0 type bridge; ip addr add {address}/16 dev isthmus0; ip link set isthmus0 up"
    );
    let status = Command::new("sh").args(["-ec", &set_up]).status().expect("a shell");
    let [exec, relay, control] = <[OwnedFd; 3]>::try_from(fds).expect("three ports");
    if std::env::var_os("ISTHMUS_TEST_SLOW").is_some() {
        std::thread::sleep(std::time::Duration::from_secs(30));
    }
    let (mut serve_control, teller) = control::new().expect("descriptors");
    if status.success() {
        teller.tell(ToHost::Ready);
    } else {
        teller.tell(ToHost::Broken { why: "it has no network".into() });
    }
    std::thread::spawn(move || exec::serve(exec, &exec::Options::default()));
    std::thread::spawn(move || relay::serve(relay, address));
    let lost = Changes { files: vec![("/srv/result".into(), 5), ("/tmp/x".into(), 1)], ..Changes::default() };
    let _ = serve_control.serve(control, || lost.clone());
    0
}

/// `bare exec RUN VM COMMAND...`, `bare shell RUN VM`, with a terminal where standard input is one.
fn visit_one(args: &[OsString]) -> i32 {
    let text = |at: usize| args[at].to_str().map(str::to_owned);
    let terminal = session::window().is_some();
    let visit = Visit { run: text(2), vm: text(3), command: args[4..].to_vec(), terminal };
    visit::run(&visit).unwrap_or_else(|e| {
        eprintln!("isthmus: {}", e.line());
        e.exit_code()
    })
}

fn main() {
    let args: Vec<OsString> = std::env::args_os().collect();
    let platform = || job::Platform { machines: Box::new(StandIns), service: Box::new(NoService) };
    let status = match args[1].to_str().unwrap_or_default() {
        _ if Path::new(&args[0]).ends_with(rsh::REMOTE_SHELL_NAME) => rsh::main(&args),
        _ if hydra::is_proxy(&args[0]) => hydra::proxy_main(&args),
        guardian::GUARDIAN_COMMAND => guardian::main(),
        guardian::JOB_COMMAND => job::main(&platform()),
        leash::LEASH_COMMAND => leash::main(&args[2..]),
        launch::LAUNCH_COMMAND => launch::main(&args[2..]),
        rsh::ON_COMMAND => rsh::on_main(&args[2..]),
        exec_as::EXEC_AS_COMMAND => exec_as::main(&args[2..]),
        "stand-in" => stand_in(),
        "exec" | "shell" => visit_one(&args),
        // The run as JSON, then its command.
        json => match serde_json::from_str::<RunSpec>(json) {
            Ok(spec) => front::run(&RunSpec { command: args[2..].to_vec(), ..spec }),
            Err(e) => {
                eprintln!("bare: {e}");
                2
            }
        },
    };
    std::process::exit(status);
}
