//! What `--stats` reports of a run: the service's counters, and what is known beside them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::machines::Machine;

/// What the VMs have sent over their network so far: bytes of Ethernet frames, the launcher's and the guests' own among
/// them. QEMU is in that network's name space, where each VM's tap device counts what the VM sends.
pub(crate) fn sent_over_network(machines: &[Machine]) -> Option<u64> {
    let pid = machines.first()?.pid.as_raw_nonzero();
    received_by_taps(&fs::read_to_string(format!("/proc/{pid}/net/dev")).ok()?)
}

/// The sum of the bytes that tap devices received, of a table as in `/proc/net/dev`; `None` without any.
fn received_by_taps(table: &str) -> Option<u64> {
    let taps = table.lines().filter_map(|line| line.trim_start().strip_prefix("tap")?.split_once(':'));
    taps.map(|(_, figures)| figures.split_whitespace().next()?.parse::<u64>().ok())
        .reduce(|sum, tap| Some(sum? + tap?))
        .flatten()
}

/// What is known of a run beside its service's counters.
pub(crate) struct Stats {
    /// The VMs' accelerator.
    pub(crate) accel: Option<&'static str>,
    /// Seconds from the start of the service until every VM's agent had answered.
    pub(crate) boot_s: f64,
    /// Bytes that the VMs sent over their network until the launcher's end.
    pub(crate) net_bytes: Option<u64>,
}

impl Stats {
    /// Writes them, with the service's counters, into `file`. VMs may write the directories `shares`.
    pub(crate) fn write(&self, file: &Path, shares: &[PathBuf], counters: &str) -> Result<()> {
        let broken = |e: serde_json::Error| Error::Broken(format!("the service's counters are no JSON: {e}"));
        let mut stats: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(counters).map_err(broken)?;
        stats.insert("accel".into(), self.accel.into());
        stats.insert("boot_s".into(), self.boot_s.into());
        stats.insert("net_bytes".into(), self.net_bytes.into());
        let text = serde_json::to_string(&stats).map_err(broken)?;
        crate::named::write_beside(file, shares, &format!("{text}\n"))
            .map_err(|e| Error::io(format!("cannot write {}", file.display()), e))
    }
}

/// The VMs' accelerator, as QEMU's command line says; `None` without any.
pub(crate) fn accelerator(machines: &[Machine]) -> Option<&'static str> {
    let pid = machines.first()?.pid.as_raw_nonzero();
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let mut words = line.split(|byte| *byte == 0);
    words.find(|word| *word == b"-accel")?;
    let name = words.next()?;
    Some(if name.starts_with(b"kvm") { "kvm" } else { "tcg" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_all_taps_are_added_and_no_others() {
        let head =
            "Inter-|   Receive                 |  Transmit\n face |bytes    packets errs |bytes    packets\n";
        let table =
            format!("{head}    lo: 7 1 0 7 1\nbridge: 9 1 0 9 1\n  tap0: 40 2 0 3 1\n  tap1:2000 5 0 3 1\n");
        assert_eq!(received_by_taps(&table), Some(2040));
        assert_eq!(received_by_taps(&format!("{head}    lo: 7 1 0 7 1\n")), None);
        assert_eq!(received_by_taps("tap0: many\ntap1: 1\n"), None);
    }
}
