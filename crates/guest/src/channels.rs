//! Serves the three ports of a VM that isthmus booted, until the launcher's side closes one.

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use crate::boot::{self, Booted};
use crate::control::{self, Changes, ToHost};
use crate::wire::{CONTROL_PORT, EXEC_PORT, RELAY_PORT, WireError};
use crate::{agent, exec, relay, shortage};

/// How long the launcher's side may take to open a port.
const HOST_LIMIT: Duration = Duration::from_secs(120);

/// Opens a port and waits for the other side of it.
fn open(path: &Path) -> Result<OwnedFd, WireError> {
    let port = File::options().read(true).write(true).open(path)?;
    if !boot::wait_for_host(&port, HOST_LIMIT) {
        boot::step(&format!("no process opened {} on the host", path.display()));
        return Err(WireError::Closed);
    }
    Ok(port.into())
}

/// Serves until the launcher's side closes any port.
pub fn serve(booted: &Booted) {
    let missing =
        [EXEC_PORT, RELAY_PORT, CONTROL_PORT].iter().find(|name| !booted.ports.contains_key(**name));
    if let Some(name) = missing {
        return boot::console(&format!("isthmus: this VM has no port {name}, so it cannot be used"));
    }
    let (control, teller) = match control::new() {
        Ok(both) => both,
        Err(e) => return boot::console(&format!("isthmus: no control: {e}")),
    };
    let cgroup =
        exec::cgroup().inspect_err(|e| boot::console(&format!("isthmus: no control groups: {e}"))).ok();
    let options = exec::Options { cgroup };
    let address = booted.config.interfaces.first().map_or(Ipv4Addr::LOCALHOST, |interface| interface.address);
    std::thread::scope(|scope| {
        // The end of any port is the end of the VM: `end` powers off.
        let _ends = EndsOnPanic;
        scope.spawn(|| {
            let _ends = EndsOnPanic;
            end(EXEC_PORT, open(&booted.ports[EXEC_PORT]).and_then(|port| exec::serve(port, &options)))
        });
        scope.spawn(|| {
            let _ends = EndsOnPanic;
            end(RELAY_PORT, open(&booted.ports[RELAY_PORT]).and_then(|port| relay::serve(port, address)))
        });
        let mut control = control;
        scope.spawn(move || {
            let _ends = EndsOnPanic;
            let port = open(&booted.ports[CONTROL_PORT]);
            end(
                CONTROL_PORT,
                port.and_then(|port| {
                    boot::step("the host listens");
                    control.serve(port, || Changes::of(booted.overlay_changes()))
                }),
            );
        });
        let notes = teller.clone();
        if let Err(e) = shortage::watch(move |text| notes.tell(ToHost::Note { text })) {
            boot::console(&format!("isthmus: a lack of memory will not be reported: {e}"));
        }
        let notes = teller.clone();
        match agent::of_boot_telling(booted, move |text| notes.tell(ToHost::Note { text })) {
            Ok(agent) => {
                boot::step("the region, if any");
                teller.tell(ToHost::Ready);
                // Dropping it would end it.
                std::mem::forget(agent);
            }
            Err(error) => {
                let why =
                    format!("it cannot join the region: {}", isthmus_region::error::with_causes(&error));
                boot::console(&format!("isthmus: {why}"));
                teller.tell(ToHost::Broken { why });
            }
        }
    });
}

/// Powers off when the thread that has it panics: a scope hands a panic on only after all its threads have ended, which they never do.
struct EndsOnPanic;

impl Drop for EndsOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            boot::console("isthmus: the guest agent panicked; this VM ends");
            boot::power_off()
        }
    }
}

/// A port has ended: the launcher's side is gone, or has broken the protocol. Either way this VM is of no more use.
fn end(port: &str, outcome: Result<(), WireError>) {
    match outcome {
        Ok(()) | Err(WireError::Closed) => {}
        Err(e) => boot::console(&format!("isthmus: the port {port} failed: {e}")),
    }
    boot::power_off()
}
