//! Deciding whether KVM is usable. `/dev/kvm` alone proves nothing: on hosts whose KVM module emulates in software, a
//! guest of QEMU's never reaches its first instruction.

use crate::cache;
use crate::error::{Error, Result};
use crate::qemu;
use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions};
use std::io::Read;
use std::path::{Path, PathBuf};
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

/// Decides. `kernel` is the uncompressed kernel for the trial boot, which happens once per boot of the host and QEMU
/// version, and again if KVM is asked for by name and did not work; its verdict is cached.
///
/// # Errors
/// [`Error::NoKvm`] if KVM was asked for by name and does not work.
pub fn choose(choice: Choice, kernel: &Path) -> Result<Decision> {
    if choice == Choice::Tcg {
        return Ok(tcg("asked for".to_owned()));
    }
    match (probe(kernel, choice == Choice::Kvm), choice) {
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
        (Ok(()), Some(false), None) => Kvm::Fails(silent()),
        (Ok(()), _, Some(kernel)) => probe(kernel, false).map_or_else(Kvm::Fails, |_| Kvm::Works),
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
fn silent() -> String {
    let kept = verdict_file().map(|file| format!(" ({} keeps this until the next boot)", file.display()));
    format!("a trial guest under KVM printed nothing in 10 s{}", kept.unwrap_or_default())
}

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

/// Cheap tests first; the trial boot decides. `again` tries also what did not work before.
fn probe(kernel: &Path, again: bool) -> std::result::Result<String, String> {
    presume()?;
    let works = match cached_verdict().filter(|works| *works || !again) {
        Some(works) => works,
        None => {
            // A QEMU that ends may have lacked memory, or have found KVM in use: that is said, and not kept.
            let works = trial(kernel)?;
            store_verdict(works);
            works
        }
    };
    if works { Ok("a trial guest ran under KVM".to_owned()) } else { Err(silent()) }
}

fn has_virtualization(cpuinfo: &str) -> bool {
    cpuinfo
        .lines()
        .find(|line| line.starts_with("flags"))
        .is_some_and(|line| line.split_whitespace().any(|flag| matches!(flag, "vmx" | "svm")))
}

/// Boots the kernel without a root file system: one byte on its console is enough. An error if QEMU did not run for so long.
fn trial(kernel: &Path) -> std::result::Result<bool, String> {
    let program = qemu::program().map_err(|e| e.to_string())?;
    let child = Command::new(program)
        .args(["-machine", "q35", "-accel", "kvm", "-cpu", "host", "-m", "256"])
        .args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"])
        .args(["-serial", "stdio", "-append", "console=ttyS0 earlyprintk=serial panic=-1"])
        .arg("-kernel")
        .arg(kernel)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.map_err(|e| format!("QEMU cannot be started: {e}"))?;
    let spoke = child.stdout.take().map(|mut stdout| {
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            // The firmware writes nothing to the serial port, so the first byte is the kernel's.
            let count = stdout.read(&mut [0; 1]).unwrap_or(0);
            // After the limit, the receiver is gone.
            let _ = sender.send(count > 0);
        });
        receiver.recv_timeout(TRIAL_LIMIT)
    });
    let _ = child.kill();
    let said = child.wait_with_output().map(|output| output.stderr).unwrap_or_default();
    match spoke {
        Some(Ok(true)) => Ok(true),
        Some(Ok(false)) => {
            let said = String::from_utf8_lossy(&said);
            let why = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("without a word");
            Err(format!("QEMU with KVM ended at once: {why}"))
        }
        _ => Ok(false),
    }
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
    let boot = read("/proc/sys/kernel/random/boot_id")?;
    let output = Command::new(qemu::program().ok()?).arg("--version").output().ok()?;
    let version = String::from_utf8_lossy(&output.stdout);
    let cpu = cpuinfo();
    let model = cpu.lines().find(|line| line.starts_with("model name"));
    let model = model.unwrap_or_default().trim();
    Some(format!("{} | {} | {model} | {}", release.trim(), boot.trim(), version.lines().next()?))
}

fn verdict_file() -> Option<PathBuf> {
    Some(cache::dir().ok()?.join("kvm.json"))
}

fn cached_verdict() -> Option<bool> {
    let text = fs::read(verdict_file()?).ok()?;
    let verdict: Verdict = serde_json::from_slice(&text).ok()?;
    (verdict.host == host_key()?).then_some(verdict.works)
}

fn store_verdict(works: bool) {
    // Without a cache the trial is simply repeated next time.
    if let (Some(file), Some(host)) = (verdict_file(), host_key()) {
        let text = serde_json::to_vec(&Verdict { host, works }).unwrap_or_default();
        let _ = cache::write_atomically(&file, &text);
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
