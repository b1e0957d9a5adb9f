//! What the control groups of a process allow of memory.

/// A group's limit on memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The file that states it.
    pub file: String,
    /// Bytes that the processes of the group may have together.
    pub most: u64,
    /// Bytes that they have.
    pub used: u64,
}

impl Limit {
    /// Bytes that they may have yet.
    pub fn left(&self) -> u64 {
        self.most.saturating_sub(self.used)
    }
}

/// The limits that hold for this process: of its own group and of all above it, of both versions of control groups.
/// `read` reads a file by its whole path, if it can.
pub fn limits(read: impl Fn(&str) -> Option<String>) -> Vec<Limit> {
    let number = |file: &str| read(file)?.trim().parse::<u64>().ok();
    let mut found = Vec::new();
    for line in read("/proc/self/cgroup").unwrap_or_default().lines() {
        let Some((controllers, path)) = line.split_once(':').and_then(|(_, rest)| rest.split_once(':'))
        else {
            continue;
        };
        let (base, most, used) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max", "memory.current"),
            c if c.split(',').any(|c| c == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
            }
            _ => continue,
        };
        // In a container the path may not exist, but its root does.
        let mut path = path.trim_end_matches('/');
        loop {
            let file = format!("{base}{path}/{most}");
            // Version 1 writes a number near 2^63 for none, version 2 the word `max`.
            if let Some(most) = number(&file).filter(|most| *most < 1 << 60) {
                let used = number(&format!("{base}{path}/{used}")).unwrap_or(0);
                found.push(Limit { file, most, used });
            }
            match path.rfind('/') {
                Some(at) => path = &path[..at],
                None => break,
            }
        }
    }
    found
}

/// The most memory that this process can ever have: the machine's, or what the tightest control group allows.
pub fn memory() -> u64 {
    let info = rustix::system::sysinfo();
    #[allow(clippy::useless_conversion, reason = "no u64 on 32-bit machines")]
    let machine = u64::from(info.totalram).saturating_mul(info.mem_unit.into());
    let groups = limits(|file| std::fs::read_to_string(file).ok());
    groups.iter().map(|limit| limit.most).min().unwrap_or(u64::MAX).min(machine)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[(&str, &str)]) -> Vec<Limit> {
        limits(|asked| files.iter().find(|(name, _)| *name == asked).map(|(_, text)| (*text).to_owned()))
    }

    fn limit(file: &str, most: u64, used: u64) -> Limit {
        Limit { file: file.to_owned(), most, used }
    }

    #[test]
    fn groups_above_limit_too() {
        let found = of(&[
            ("/proc/self/cgroup", "0::/a/b\n"),
            ("/sys/fs/cgroup/a/memory.max", "200\n"),
            ("/sys/fs/cgroup/a/memory.current", "50\n"),
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/memory.max", "1000\n"),
        ]);
        let expected =
            [limit("/sys/fs/cgroup/a/memory.max", 200, 50), limit("/sys/fs/cgroup/memory.max", 1000, 0)];
        assert_eq!(found, expected);
        assert_eq!(found[0].left(), 150);
    }

    #[test]
    fn version_1_has_a_controller_and_a_great_number_for_none() {
        let groups = ("/proc/self/cgroup", "5:cpu:/z\n4:memory,x:/y\nrubbish\n");
        let own = "/sys/fs/cgroup/memory/y/memory.limit_in_bytes";
        assert_eq!(of(&[groups, (own, "9223372036854771712\n")]), []);
        assert_eq!(of(&[groups, (own, "7\n")]), [limit(own, 7, 0)]);
        assert_eq!(of(&[]), []);
    }

    #[test]
    fn memory_is_no_more_than_the_machines() {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap();
        let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap();
        let kib: u64 = total.trim().trim_end_matches(" kB").parse().unwrap();
        assert!((1..=kib << 10).contains(&memory()), "{} of {kib} KiB", memory());
    }
}
