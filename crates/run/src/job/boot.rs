//! Before the launcher: what the VMs may write, the service, the VMs, the switch, and the wait for their agents.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use isthmus_region::room;
use isthmus_vm::initramfs;
use isthmus_vm::places::Place;
use isthmus_vm::slow::Slow;

use super::{Event, Run, ends, with_console};
use crate::error::{Error, Result, tell};
use crate::machines::{IMAGE, Machine, Network, Plan};
use crate::runs::Description;
use crate::service::{self, Service};
use crate::spec::{BOOT_LIMIT_S, RunSpec};
use crate::stats;
use crate::switch::{self, Switch};

/// Everything of a run that lives while its launcher does. Fields are dropped in this order: VMs before the
/// service that they are connected to.
pub(super) struct Parts {
    pub(super) switch: Option<Switch>,
    pub(super) machines: Vec<Machine>,
    /// Where the launcher runs, if not in the caller's network.
    pub(super) network: Option<Network>,
    pub(super) service: Option<Box<dyn Service>>,
    /// The directories that the VMs may write.
    pub(super) writable: Vec<PathBuf>,
    /// Virtual CPUs of each VM.
    pub(super) cpus: u32,
}

impl Run<'_> {
    /// Writes the description by which other commands find this run.
    pub(super) fn describe(&self, machines: &[Machine]) -> Result<()> {
        let words: Vec<_> = self.spec.command.iter().map(|word| word.to_string_lossy()).collect();
        let description = Description {
            pid: self.start.front,
            vms: machines.iter().map(|machine| machine.name.clone()).collect(),
            directory: std::env::current_dir()
                .map_err(|e| Error::io("cannot tell the working directory", e))?,
            command: words.join(" "),
        };
        let dir = self.dir();
        description
            .write(dir)
            .map_err(|e| Error::io(format!("cannot write into {}", dir.display()), room::told(e, dir)))
    }

    pub(super) fn start_parts(&self, writable: Vec<PathBuf>) -> Result<Parts> {
        let (spec, dir) = (&self.spec, self.dir());
        let names: Vec<String> = (0..spec.vms).map(|vm| format!("vm{vm}")).collect();
        let guest_ranks = spec.guest_ranks();
        let ranks = spec.ranks.or(guest_ranks);
        tell_of_idle(spec, &names);
        let slots = spec.slots(guest_ranks);
        // At least one, also if all ranks are on the host.
        let cpus = spec.vm.cpus.unwrap_or_else(|| slots.iter().copied().fold(1, u32::max));
        let places = spec.host_ranks.saturating_add(slots.iter().fold(0, |sum, n| sum.saturating_add(*n)));
        let region_ranks = service::region_ranks(ranks, places);
        let config = service::Config {
            dir: dir.to_owned(),
            region: spec.region,
            region_ranks,
            host_ranks: match spec.vms {
                // A peer for each, where their number is not known, too.
                0 if spec.region.separate_sections => region_ranks,
                0 => ranks.unwrap_or(1),
                _ => spec.host_ranks,
            },
            vms: names.iter().cloned().zip(slots).collect(),
        };
        let slow = Slow::start("isthmus: making the region");
        let notes = self.sender.clone();
        let note = move |text| {
            let _ = notes.send(Event::Switch(switch::News::Note { text }));
        };
        let service = self.platform.service.start(&config, spec.verbose, Box::new(note))?;
        drop(slow);
        let mut parts = Parts { switch: None, machines: Vec::new(), network: None, service, writable, cpus };
        if spec.vms == 0 {
            return Ok(parts);
        }
        let (writable, service) = (&parts.writable[..], parts.service.as_deref());
        let plan = Plan { spec, dir, names: &names, cpus, writable, service };
        let started = self.platform.machines.start(&plan)?;
        (parts.machines, parts.network) = (started.machines, started.network);
        let ports = parts
            .machines
            .iter()
            .map(|machine| {
                switch::Ports::of(machine).map_err(|e| Error::io("cannot use the ports of a VM", e))
            })
            .collect::<Result<Vec<_>>>()?;
        let events = self.sender.clone();
        let report = move |news| {
            let _ = events.send(Event::Switch(news));
        };
        let direct = parts.network.as_ref().map(|n| n.host);
        parts.switch = Some(Switch::start(dir, ports, direct, boot_limit(spec), report)?);
        Ok(parts)
    }

    /// Waits until every VM's agent has said hello.
    pub(super) fn wait_for_agents(&self, machines: &[Machine]) -> Result<()> {
        let start = Instant::now();
        let how = match stats::accelerator(machines) {
            Some("tcg") => " under emulation (no KVM)",
            _ => "",
        };
        let line = |waiting: &[usize]| {
            let names: Vec<&str> = waiting.iter().map(|vm| machines[*vm].name.as_str()).collect();
            format!("isthmus: waiting for {} to boot{how}", names.join(", "))
        };
        let mut waiting: Vec<usize> = (0..machines.len()).collect();
        let slow = Slow::start(line(&waiting));
        let limit = self.spec.vm.boot_timeout_s.unwrap_or(BOOT_LIMIT_S);
        let up_by = start + boot_limit(&self.spec);
        while let Some(first) = waiting.first().map(|vm| &machines[*vm]) {
            match self.next(Some(self.deadline.map_or(up_by, |d| d.min(up_by)))) {
                Ok(Event::Switch(switch::News::Up { vm })) => {
                    waiting.retain(|other| *other != vm);
                    // Some 15 MB in a directory that is memory often. Nothing was lost where that fails.
                    let _ = initramfs::discard(&self.dir().join(&machines[vm].name).join(IMAGE));
                    slow.goes_on(line(&waiting));
                    let seconds = start.elapsed().as_secs_f64();
                    self.say(|| format!("{} is up after {seconds:.1} s", machines[vm].name));
                }
                Ok(Event::Switch(switch::News::Lost { vm, why })) if !waiting.contains(&vm) => {
                    let others: Vec<&str> = waiting.iter().map(|vm| machines[*vm].name.as_str()).collect();
                    return Err(Error::LostBefore {
                        vm: machines[vm].name.clone(),
                        others: others.join(", "),
                        why: with_console(&machines[vm], &why, false),
                    });
                }
                Ok(Event::Switch(switch::News::Lost { vm, why })) => {
                    return Err(Error::Boot {
                        vm: machines[vm].name.clone(),
                        why: with_console(&machines[vm], &why, true),
                    });
                }
                Ok(Event::Signal(signal)) if ends(signal) => return Err(Error::Interrupted { signal }),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) if self.deadline.is_none_or(|d| up_by < d) => {
                    let why = format!("it did not come up within {limit} s (--boot-timeout)");
                    return Err(Error::Boot { vm: first.name.clone(), why: with_console(first, &why, true) });
                }
                Err(RecvTimeoutError::Timeout) => {
                    let booting = waiting.iter().map(|vm| &machines[*vm]);
                    let each = booting
                        .map(|vm| with_console(vm, &format!("\n{} was still booting", vm.name), true))
                        .collect();
                    return Err(self.timed_out(each));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::Broken("the job's threads ended".into()));
                }
            }
        }
        Ok(())
    }
}

/// How long a VM may take until it is up.
fn boot_limit(spec: &RunSpec) -> Duration {
    let limit = spec.vm.boot_timeout_s.unwrap_or(BOOT_LIMIT_S);
    Duration::try_from_secs_f64(limit).unwrap_or(Duration::MAX / 4)
}

/// The directories that the VMs may write.
pub(super) fn writable_directories(spec: &RunSpec) -> Result<Vec<PathBuf>> {
    if spec.vms == 0 {
        return Ok(Vec::new());
    }
    let may_write = |dir: &Path| rustix::fs::access(dir, rustix::fs::Access::WRITE_OK).is_ok();
    let mut writable = Vec::new();
    for dir in &spec.vm.writable {
        let failed = |why: String| Error::Writable { directory: dir.clone(), why };
        let real = fs::canonicalize(dir).map_err(|e| failed(e.to_string()))?;
        if !real.is_dir() {
            return Err(failed("not a directory".into()));
        }
        if real == Path::new("/") {
            return Err(failed("the whole file system cannot be shared writable".into()));
        }
        if !may_write(&real) {
            return Err(failed("you may not write there yourself".into()));
        }
        // A link with such a name leads here, whose own name is checked with all options.
        if real.to_str().is_none() {
            return Err(failed(format!(
                "it leads to {}, which is not UTF-8, and VMs could not be told of it: give that directory another name",
                real.display()
            )));
        }
        writable.push(real);
    }
    if !spec.vm.read_only {
        let directory =
            std::env::current_dir().map_err(|e| Error::io("cannot tell the working directory", e))?;
        let fault = if directory == Path::new("/") {
            Some("is the root of the file system and cannot be shared writable")
        } else if !may_write(&directory) {
            Some("is not writable by you, so what ranks write there would be lost")
        } else {
            None
        };
        match fault {
            None => writable.insert(0, directory),
            // With --writable, the user has chosen where results go.
            Some(_) if !writable.is_empty() => {}
            Some(why) => return Err(Error::WorkingDirectory { directory, why }),
        }
    }
    // Root in a VM of an earlier run may have put it there, to have the host's directory that it leads to shared with this one.
    for dir in &spec.vm.writable {
        if let Err(e @ isthmus_vm::Error::Link { .. }) = Place::find(dir, &writable, false) {
            return Err(Error::Writable { directory: dir.clone(), why: e.to_string() });
        }
    }
    // A directory inside another one is that one's already.
    writable.sort();
    writable.dedup_by(|inner, outer| inner.starts_with(outer));
    Ok(writable)
}

/// Prints the names of the VMs that will have no rank.
fn tell_of_idle(spec: &RunSpec, names: &[String]) {
    let Some(ranks @ 1..) = spec.guest_ranks() else { return };
    let slots = spec.slots(Some(ranks));
    let idle: Vec<&str> =
        names.iter().zip(slots).filter(|(_, n)| *n == 0).map(|(name, _)| name.as_str()).collect();
    if !idle.is_empty() {
        tell!("with {ranks} of the ranks for {} VMs, none runs in {}", spec.vms, idle.join(", "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_vms_may_have_made_is_not_shared_writable() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for folder in ["share/sub", "home/sub"] {
            fs::create_dir_all(at(folder)).unwrap();
        }
        std::os::unix::fs::symlink("../home", at("share/link")).unwrap();
        std::os::unix::fs::symlink("home", at("own")).unwrap();
        let shared = |names: &[&str]| {
            let writable = names.iter().map(|name| at(name)).collect();
            let vm = crate::VmOptions { writable, read_only: true, ..crate::VmOptions::default() };
            writable_directories(&RunSpec { vms: 1, vm, ..RunSpec::default() }).map_err(|e| e.line())
        };
        for bad in ["share/link", "share/link/sub"] {
            let line = shared(&["share", bad]).unwrap_err();
            assert!(line.contains("link is a symbolic link") && line.contains("(../home)"), "{line}");
        }
        // Where no VM writes it, a link is the user's.
        assert_eq!(shared(&["own"]).unwrap(), shared(&["home"]).unwrap());
        assert_eq!(shared(&["share", "own/sub"]).unwrap().len(), 2);
        assert_eq!(shared(&["share", "share/sub"]).unwrap().len(), 1);
    }

    #[test]
    fn a_link_to_a_directory_whose_name_is_not_utf_8_is_refused_with_the_way_out() {
        use std::os::unix::ffi::OsStrExt;
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().join(std::ffi::OsStr::from_bytes(b"caf\xe9"));
        let link = dir.path().join("link");
        fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let vm = crate::VmOptions { writable: vec![link], read_only: true, ..crate::VmOptions::default() };
        let line = writable_directories(&RunSpec { vms: 1, vm, ..RunSpec::default() }).unwrap_err().line();
        assert!(line.contains("link: it leads to ") && line.contains("another name"), "{line}");
    }
}
