//! The parts of isthmus that it starts as processes itself.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use isthmus_doctor::mpis;
use isthmus_guest::boot;
use isthmus_guest::exec::exec_as;
use isthmus_region::create;
use isthmus_run::{guardian, hydra, job, launch, leash, machines, rsh, service};

fn platform() -> job::Platform {
    job::Platform { machines: Box::new(machines::Qemu), service: Box::new(service::Embedded) }
}

/// Runs as one of the parts that isthmus starts itself; `None` if this is a user's command.
pub(crate) fn dispatch() -> Option<i32> {
    if boot::is_init() {
        isthmus_guest::init_main();
    }
    let args: Vec<OsString> = std::env::args_os().collect();
    let name = args.first().map(Path::new).and_then(Path::file_name);
    if name == Some(OsStr::new(rsh::REMOTE_SHELL_NAME)) {
        return Some(rsh::main(&args));
    }
    if args.first().is_some_and(|called| hydra::is_proxy(called)) {
        return Some(hydra::proxy_main(&args));
    }
    match args.get(1)?.to_str()? {
        guardian::GUARDIAN_COMMAND => Some(guardian::main()),
        guardian::JOB_COMMAND => Some(job::main(&platform())),
        create::FILL_ARG => Some(create::fill_main(args.get(2)?.to_str()?).into()),
        exec_as::EXEC_AS_COMMAND => Some(exec_as::main(&args[2..])),
        leash::LEASH_COMMAND => Some(leash::main(&args[2..])),
        launch::LAUNCH_COMMAND => Some(launch::main(&args[2..])),
        rsh::ON_COMMAND => Some(rsh::on_main(&args[2..])),
        rsh::RSH_COMMAND => Some(rsh::main(&args[1..])),
        mpis::PROBE_COMMAND => Some(mpis::probe_main(&args[2..])),
        isthmus_bench::turns::TURNS_COMMAND => Some(isthmus_bench::turns::main(&args[2..])),
        isthmus_bench::lane::RANK_COMMAND => Some(isthmus_bench::lane::rank_command(&args[2..])),
        isthmus_bench::doorbell::RANK_COMMAND => Some(isthmus_bench::doorbell::rank_command(&args[2..])),
        isthmus_bench::onecopy::pages::RANK_COMMAND => {
            Some(isthmus_bench::onecopy::pages::rank_command(&args[2..]))
        }
        isthmus_bench::rank::RANK_COMMAND => Some(isthmus_bench::rank::main(&args[2..])),
        _ => None,
    }
}
