//! Deciding whether KVM is usable. `/dev/kvm` alone proves nothing: on hosts whose KVM module emulates in software, a
//! guest of QEMU's never reaches its first instruction.

use crate::cache;
use crate::error::{Error, Result};
use crate::qemu;
use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// How VMs are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accel {
    /// On the processor itself.
    Kvm,
    /// By QEMU's translator: slow, but available everywhere.
    Tcg,
}

impl std::fmt::Display for Accel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Kvm => "KVM",
            Self::Tcg => "TCG",
        })
    }
}

/// What the user asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// KVM where it works.
    #[default]
    Auto,
    /// KVM or an error.
    Kvm,
    /// Emulation.
    Tcg,
}

/// The outcome, with its reason for `--verbose`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What to use.
    pub accel: Accel,
    /// Why, in a few words.
    pub reason: String,
    /// Something that the user should know about it.
    pub warning: Option<String>,
}

/// How long a guest under KVM may take to its first console byte; a real one needs some tenths of a second.
const TRIAL_LIMIT: Duration = Duration::from_secs(10);

/// Decides. `kernel` is the uncompressed kernel for the trial boot, which happens once per host kernel and QEMU
/// version; its verdict is cached.
///
/// # Errors
/// [`Error::NoKvm`] if KVM was asked for by name and does not work.
pub fn choose(choice: Choice, kernel: &Path) -> Result<Decision> {
    if choice == Choice::Tcg {
        return Ok(tcg("asked for".to_owned()));
    }
    match (probe(kernel), choice) {
        (Ok(reason), _) => Ok(Decision { accel: Accel::Kvm, reason, warning: warning_for(&cpuinfo()) }),
        (Err(reason), Choice::Auto) => Ok(tcg(reason)),
        (Err(reason), _) => Err(Error::NoKvm { reason }),
    }
}

/// What is known of KVM here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kvm {
    /// A trial guest ran.
    Works,
    /// It does not work, for this reason.
    Fails(String),
    /// The cheap tests passed, but there is no kernel for the trial guest.
    Untried,
}

/// Whether KVM works here. `kernel` is for the trial boot, if that was not done yet.
pub fn examine(kernel: Option<&Path>) -> Kvm {
    match (presume(), cached_verdict(), kernel) {
        (Err(reason), ..) => Kvm::Fails(reason),
        (Ok(()), Some(true), _) => Kvm::Works,
        (Ok(()), None, None) => Kvm::Untried,
        (Ok(()), Some(false), None) => Kvm::Fails(SILENT.to_owned()),
        (Ok(()), _, Some(kernel)) => probe(kernel).map_or_else(Kvm::Fails, |_| Kvm::Works),
    }
}

/// Whether guests under KVM see the region uncached.
pub fn is_uncached_under_kvm() -> bool {
    warning_for(&cpuinfo()).is_some()
}

fn tcg(reason: String) -> Decision {
    Decision { accel: Accel::Tcg, reason, warning: None }
}

fn cpuinfo() -> String {
    fs::read_to_string("/proc/cpuinfo").unwrap_or_default()
}

fn warning_for(cpuinfo: &str) -> Option<String> {
    // AMD's nested paging honours the guest's memory type, which is "uncached" without a driver of isthmus's own.
    cpuinfo.contains("AuthenticAMD").then(|| {
        "on AMD processors with KVM, guests see the region uncached without the guest driver: expect it slow where that cannot be built"
            .to_owned()
    })
}

/// Why KVM is not usable if the trial guest did not run.
const SILENT: &str = "a trial guest under KVM printed nothing in 10 s";

/// The cheap tests, which can show only that KVM does not work.
fn presume() -> std::result::Result<(), String> {
    if !has_virtualization(&cpuinfo()) {
        return Err("the processor shows neither vmx nor svm".to_owned());
    }
    if let Err(error) = OpenOptions::new().read(true).write(true).open("/dev/kvm") {
        return Err(format!("/dev/kvm cannot be opened: {error}"));
    }
    Ok(())
}

/// Cheap tests first; the trial boot decides.
fn probe(kernel: &Path) -> std::result::Result<String, String> {
    presume()?;
    let works = match cached_verdict() {
        Some(works) => works,
        None => {
            let works = trial(kernel);
            store_verdict(works);
            works
        }
    };
    if works { Ok("a trial guest ran under KVM".to_owned()) } else { Err(SILENT.to_owned()) }
}

fn has_virtualization(cpuinfo: &str) -> bool {
    cpuinfo
        .lines()
        .find(|line| line.starts_with("flags"))
        .is_some_and(|line| line.split_whitespace().any(|flag| matches!(flag, "vmx" | "svm")))
}

/// Boots the kernel without a root file system: one byte on its console is enough.
fn trial(kernel: &Path) -> bool {
    let Ok(program) = qemu::program() else {
        return false;
    };
    let child = Command::new(program)
        .args(["-machine", "q35", "-accel", "kvm", "-cpu", "host", "-m", "256"])
        .args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"])
        .args(["-serial", "stdio", "-append", "console=ttyS0 earlyprintk=serial panic=-1"])
        .arg("-kernel")
        .arg(kernel)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = child else { return false };
    let spoke = child.stdout.take().is_some_and(|mut stdout| {
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            // The firmware writes nothing to the serial port, so the first byte is the kernel's.
            let count = stdout.read(&mut [0; 1]).unwrap_or(0);
            // After the limit, the receiver is gone.
            let _ = sender.send(count > 0);
        });
        receiver.recv_timeout(TRIAL_LIMIT).unwrap_or(false)
    });
    let _ = child.kill();
    let _ = child.wait();
    spoke
}

#[derive(Serialize, Deserialize)]
struct Verdict {
    host: String,
    works: bool,
}

/// What the verdict depends on: the host's kernel, its boot (nested virtualization may have been switched on or off), QEMU.
fn host_key() -> Option<String> {
    let read = |path: &str| fs::read_to_string(path).ok();
    let release = read("/proc/sys/kernel/osrelease")?;
    let output = Command::new(qemu::program().ok()?).arg("--version").output().ok()?;
    let version = String::from_utf8_lossy(&output.stdout);
    let cpu = cpuinfo();
    let model = cpu.lines().find(|line| line.starts_with("model name"));
    Some(format!("{} | {} | {}", release.trim(), model.unwrap_or_default().trim(), version.lines().next()?))
}

fn cached_verdict() -> Option<bool> {
    let text = fs::read(cache::dir().ok()?.join("kvm.json")).ok()?;
    let verdict: Verdict = serde_json::from_slice(&text).ok()?;
    (verdict.host == host_key()?).then_some(verdict.works)
}

fn store_verdict(works: bool) {
    // Without a cache the trial is simply repeated next time.
    if let (Ok(dir), Some(host)) = (cache::dir(), host_key()) {
        let text = serde_json::to_vec(&Verdict { host, works }).unwrap_or_default();
        let _ = cache::write_atomically(&dir.join("kvm.json"), &text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_real_flags_count() {
        assert!(has_virtualization("flags\t\t: fpu vmx sse\n"));
        assert!(has_virtualization("flags\t\t: fpu svm\n"));
        assert!(!has_virtualization("flags\t\t: fpu svm_lock\nvmx flags: ept\n"));
        assert!(!has_virtualization(""));
    }

    #[test]
    fn emulation_on_request_probes_nothing() {
        let decision = choose(Choice::Tcg, Path::new("/nonexistent")).unwrap();
        assert_eq!(decision.accel, Accel::Tcg);
    }

    #[test]
    fn amd_is_warned_about() {
        assert!(warning_for("vendor_id : AuthenticAMD").is_some());
        assert!(warning_for("vendor_id : GenuineIntel").is_none());
    }
}
