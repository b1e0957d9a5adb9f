//! Huge pages for a region: which this machine has, how many are free, and why they cannot be had.
//!
//! The kernel keeps a pool for each size, which an administrator fills. All that a region takes is taken from it at once,
//! by `fallocate`: what was only promised would be a bus error for the process that touches a page that is not there.

use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::MemfdFlags;

use crate::error::{Error, Result};

/// Where the kernel tells of its pools.
pub const POOLS: &str = "/sys/kernel/mm/hugepages";
/// Where `memfd_create` looks for the logarithm of the page size (`MFD_HUGE_SHIFT`).
const SIZE_SHIFT: u32 = 26;

/// What `statfs` says of files of huge pages (linux/magic.h).
const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;

/// The size of a file's huge pages, of which mappings begin and end at multiples; none if it has ordinary ones.
pub fn page_bytes(file: BorrowedFd<'_>) -> Option<u64> {
    // The type of this field differs between architectures.
    #[allow(clippy::unnecessary_cast)]
    let of = rustix::fs::fstatfs(file).ok().filter(|fs| fs.f_type as i64 == HUGETLBFS_MAGIC)?;
    u64::try_from(of.f_bsize).ok()
}

/// The kernel's pool of huge pages of one size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Pages that the pool has.
    pub total: u64,
    /// Pages that can be had now: free and not promised to a mapping, or made when they are asked for.
    pub available: u64,
}

impl Pool {
    /// All pools, smallest pages first; `folder` is [`POOLS`], except in tests.
    pub fn all(folder: &Path) -> Vec<Self> {
        let mut pools: Vec<Self> = std::fs::read_dir(folder)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
                Self::read(&entry.path(), kib.checked_mul(1024)?)
            })
            .collect();
        pools.sort_unstable_by_key(|pool| pool.page_bytes);
        pools
    }

    fn read(folder: &Path, page_bytes: u64) -> Option<Self> {
        let number = |name: &str| {
            let text = std::fs::read_to_string(folder.join(name)).ok()?;
            text.trim().parse::<u64>().ok()
        };
        let free = number("free_hugepages")?.saturating_sub(number("resv_hugepages").unwrap_or(0));
        // Beyond the pool's size the kernel makes some on demand, where it was told so.
        let more = number("nr_overcommit_hugepages")
            .unwrap_or(0)
            .saturating_sub(number("surplus_hugepages").unwrap_or(0));
        Some(Self { page_bytes, total: number("nr_hugepages")?, available: free.saturating_add(more) })
    }
}

/// A size as it is written after `--huge-pages`.
pub fn name(bytes: u64) -> String {
    match bytes {
        b if b.is_multiple_of(1 << 30) => format!("{}G", b >> 30),
        b if b.is_multiple_of(1 << 20) => format!("{}M", b >> 20),
        b => format!("{}K", b >> 10),
    }
}

/// The file by which an administrator fills the pool of these pages.
pub fn setting(page_bytes: u64) -> String {
    format!("{POOLS}/hugepages-{}kB/nr_hugepages", page_bytes >> 10)
}

/// What to add to the flags of `memfd_create`.
pub(crate) fn flags(page_bytes: u64) -> MemfdFlags {
    MemfdFlags::HUGETLB | MemfdFlags::from_bits_retain(page_bytes.ilog2() << SIZE_SHIFT)
}

/// Whether a region of `bytes` can be had in such pages now.
///
/// # Errors
/// [`Error::NoSuchHugePages`], [`Error::NotHugePages`], [`Error::NoHugePages`].
pub fn check(bytes: u64, page_bytes: u64) -> Result<()> {
    check_among(&Pool::all(Path::new(POOLS)), bytes, page_bytes)
}

fn check_among(pools: &[Pool], bytes: u64, page_bytes: u64) -> Result<()> {
    let pool = pools.iter().find(|pool| pool.page_bytes == page_bytes);
    if pool.is_none() && !pools.is_empty() {
        return Err(unknown(pools, page_bytes));
    }
    if bytes == 0 || !bytes.is_multiple_of(page_bytes) {
        return Err(Error::NotHugePages { bytes, page: name(page_bytes) });
    }
    // Where nothing is told of pools, as in a container without /sys, the kernel's answer to the attempt decides.
    let Some(pool) = pool else { return Ok(()) };
    let needed = bytes / page_bytes;
    if pool.available < needed {
        return Err(Error::NoHugePages {
            bytes,
            page: name(page_bytes),
            needed,
            free: pool.available,
            total: pool.total,
            raise: pool.total.saturating_add(needed - pool.available),
            setting: setting(page_bytes),
        });
    }
    Ok(())
}

/// The error for a size that this machine does not have.
pub(crate) fn no_such(page_bytes: u64) -> Error {
    unknown(&Pool::all(Path::new(POOLS)), page_bytes)
}

fn unknown(pools: &[Pool], page_bytes: u64) -> Error {
    let sizes: Vec<String> = pools.iter().map(|pool| name(pool.page_bytes)).collect();
    let known =
        if sizes.is_empty() { "and says of none".into() } else { format!("only {}", sizes.join(", ")) };
    Error::NoSuchHugePages { page: name(page_bytes), known }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_named_as_they_are_asked_for() {
        assert_eq!([name(2 << 20), name(1 << 30), name(64 << 10)], ["2M", "1G", "64K"]);
        assert!(setting(2 << 20).ends_with("hugepages-2048kB/nr_hugepages"));
        assert_eq!(flags(2 << 20), MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB);
        assert_eq!(flags(1 << 30), MemfdFlags::HUGETLB | MemfdFlags::HUGE_1GB);
    }

    #[test]
    fn what_others_were_promised_is_not_ours() {
        let dir = std::env::temp_dir().join(format!("isthmus-pools-{}", std::process::id()));
        let pool = dir.join("hugepages-2048kB");
        std::fs::create_dir_all(&pool).unwrap();
        for (file, text) in
            [("nr_hugepages", "64\n"), ("free_hugepages", "40\n"), ("resv_hugepages", "10\n"), ("other", "x")]
        {
            std::fs::write(pool.join(file), text).unwrap();
        }
        std::fs::create_dir_all(dir.join("hugepages-1048576kB")).unwrap();
        let found = Pool::all(&dir);
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(found, [Pool { page_bytes: 2 << 20, total: 64, available: 30 }]);
    }

    #[test]
    fn what_is_missing_is_told_with_what_helps() {
        let pools = [Pool { page_bytes: 2 << 20, total: 10, available: 4 }];
        assert!(check_among(&pools, 8 << 20, 2 << 20).is_ok());
        let text = check_among(&pools, 64 << 20, 2 << 20).unwrap_err().to_string();
        for word in ["32 huge pages of 2M", "4 are free", "echo 38 >", "nr_hugepages"] {
            assert!(text.contains(word), "{word}: {text}");
        }
        let text = check_among(&pools, 1 << 20, 2 << 20).unwrap_err().to_string();
        assert!(text.contains("1048576") && text.contains("2M"), "{text}");
        let text = check_among(&pools, 1 << 30, 1 << 30).unwrap_err().to_string();
        assert!(text.contains("1G") && text.contains("only 2M"), "{text}");
        assert!(check_among(&[], 1 << 30, 1 << 30).is_ok(), "not known, so it is tried");
        assert!(unknown(&[], 1 << 30).to_string().contains("none"));
    }
}
