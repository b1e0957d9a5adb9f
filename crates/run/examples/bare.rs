//! `isthmus run` without a region and with stand-ins for VMs: what the tests of this crate start.
//!
//! The ranks use whatever transport their MPI has itself.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use isthmus_run::service::{Config, Service, StartService};
use isthmus_run::{RunSpec, front, guardian, job, leash, machines, rsh};

struct NoService;

impl StartService for NoService {
    fn start(&self, _: &Config) -> isthmus_run::Result<Option<Box<dyn Service>>> {
        Ok(None)
    }
}

fn main() {
    let args: Vec<OsString> = std::env::args_os().collect();
    let platform = || job::Platform { machines: Box::new(machines::Qemu), service: Box::new(NoService) };
    let status = match args[1].to_str().unwrap_or_default() {
        _ if args[0].clone().into_vec().ends_with(rsh::AGENT_NAME.as_bytes()) => rsh::main(&args),
        guardian::GUARDIAN_COMMAND => guardian::main(),
        guardian::JOB_COMMAND => job::main(&platform()),
        leash::LEASH_COMMAND => leash::main(&args[2..]),
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
