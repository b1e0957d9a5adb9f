//! Reports when the kernel has killed a process of this VM because memory was used up. Launchers name the signal and
//! not the cause, which is only in the kernel's log, and that is gone with the VM.

use std::fs::{self, File};
use std::io::Read;
use std::thread;

/// Longest record of the kernel's log (`CONSOLE_EXT_LOG_MAX`).
const RECORD_BYTES: usize = 8192;
/// Most deaths that are reported, since they go on while memory is short.
const MOST_REPORTED: usize = 8;

/// Watches the kernel's log from now on, in a thread that ends with this process.
///
/// # Errors
/// If there is no log to read, or no thread for it.
pub fn watch(tell: impl Fn(String) + Send + 'static) -> std::io::Result<()> {
    let log = File::open("/dev/kmsg")?;
    thread::Builder::new().name("shortage".into()).spawn(move || {
        deaths(&log).take(MOST_REPORTED).for_each(|death| tell(death.text(memory_kib())));
    })?;
    Ok(())
}

/// A process that was killed.
#[derive(Debug, PartialEq, Eq)]
struct Death {
    pid: u32,
    name: String,
    /// Memory of its own that it held.
    held_kib: Option<u64>,
}

impl Death {
    /// The death in a record of the kernel's log, if it is one: `3,812,4711,-;Out of memory: Killed process 90 (name)
    /// total-vm:..., anon-rss:...kB, ...`. A name may hold anything, brackets included.
    fn of(record: &str) -> Option<Self> {
        let (_, rest) = record.split_once(";Out of memory: Killed process ")?;
        let (pid, rest) = rest.split_once(" (")?;
        let (name, figures) = rest.rsplit_once(") total-vm:")?;
        let held = figures.split_once("anon-rss:").and_then(|(_, held)| held.split_once("kB"));
        Some(Self {
            pid: pid.parse().ok()?,
            name: name.to_owned(),
            held_kib: held.and_then(|(held, _)| held.parse().ok()),
        })
    }

    fn text(&self, memory_kib: Option<u64>) -> String {
        let mib = |kib: u64| format!("{} MiB", kib >> 10);
        let all = memory_kib.map(|kib| format!(" ({})", mib(kib))).unwrap_or_default();
        let held = self.held_kib.map(|kib| format!(", which held {}", mib(kib))).unwrap_or_default();
        format!(
            "its memory{all} is used up, so its kernel killed process {} ({}){held}: give each VM more with --memory, or fewer ranks",
            self.pid, self.name
        )
    }
}

/// All deaths in the log; waits for more at its end.
fn deaths(mut log: impl Read) -> impl Iterator<Item = Death> {
    let mut record = [0; RECORD_BYTES];
    std::iter::from_fn(move || {
        loop {
            // One read gives one record. It fails with EPIPE if records were overwritten; the next read goes on
            // behind them.
            match log.read(&mut record) {
                Ok(0) => return None,
                Ok(len) => {
                    if let Some(death) = Death::of(&String::from_utf8_lossy(&record[..len])) {
                        return Some(death);
                    }
                }
                Err(e)
                    if matches!(
                        e.kind(),
                        std::io::ErrorKind::BrokenPipe | std::io::ErrorKind::Interrupted
                    ) => {}
                Err(_) => return None,
            }
        }
    })
}

/// The memory that this VM has for programs.
fn memory_kib() -> Option<u64> {
    let table = fs::read_to_string("/proc/meminfo").ok()?;
    table.lines().find_map(|line| line.strip_prefix("MemTotal:"))?.trim().strip_suffix(" kB")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = "3,812,24711000,-;Out of memory: Killed process 90 (a) (b) total-vm:336948kB, \
                          anon-rss:195072kB, file-rss:4kB, shmem-rss:0kB, UID:0 pgtables:456kB oom_score_adj:0\n";

    #[test]
    fn a_death_is_reported_with_its_cause_and_remedy() {
        let death = Death::of(RECORD).unwrap();
        assert_eq!(death, Death { pid: 90, name: "a) (b".into(), held_kib: Some(195_072) });
        assert_eq!(
            death.text(Some(253_092)),
            "its memory (247 MiB) is used up, so its kernel killed process 90 (a) (b), which held 190 MiB: give each VM \
             more with --memory, or fewer ranks"
        );
        assert!(Death { held_kib: None, ..death }.text(None).starts_with("its memory is used up, so"));
    }

    #[test]
    fn other_records_are_no_deaths() {
        for record in [
            "6,1,2,-;Linux version 6.1\n",
            "4,1,2,-;rank invoked oom-killer: gfp_mask=0x140cca\n",
            "3,1,2,-;Out of memory: Killed process x (a) total-vm:1kB",
            "3,1,2,-;Out of memory: Killed process 1",
        ] {
            assert_eq!(Death::of(record), None, "{record}");
        }
    }

    #[test]
    fn the_log_is_read_to_its_end() {
        struct Log(Vec<std::io::Result<&'static str>>);
        impl Read for Log {
            fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
                if self.0.is_empty() {
                    return Ok(0);
                }
                let record = self.0.remove(0)?;
                to[..record.len()].copy_from_slice(record.as_bytes());
                Ok(record.len())
            }
        }
        let lost = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        let log = Log(vec![Ok("6,1,2,-;hello\n"), Err(lost), Ok(RECORD), Ok("6,1,3,-;more\n"), Ok(RECORD)]);
        assert_eq!(deaths(log).count(), 2);
    }
}
