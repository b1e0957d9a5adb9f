//! What the processor is told while a thread looks again and again. On processors it takes from 4 ns to 60 ns, keeps a
//! line that another one is about to write from being asked for all the time, and leaves the core to the other thread that runs
//! on it; under emulation it takes 300 ns and helps no thread. So it is measured, once per process.

use std::hint::spin_loop;
use std::sync::OnceLock;
use std::time::Instant;

/// Hints in 1,024 ns.
fn per_1024_ns() -> u32 {
    static HINTS: OnceLock<u32> = OnceLock::new();
    *HINTS.get_or_init(|| {
        const COUNT: u32 = 256;
        // The fastest of a few: any of them may be interrupted.
        let measure = |_| {
            let begun = Instant::now();
            (0..COUNT).for_each(|_| spin_loop());
            begun.elapsed().as_nanos()
        };
        let best = (0..4).map(measure).min().unwrap_or(1).clamp(64, 1 << 20);
        u32::try_from(u128::from(COUNT) * 1024 / best).unwrap_or(1).clamp(1, 1024)
    })
}

/// Whether a hint takes less time than a line takes from one processor to another.
#[must_use]
pub fn is_cheap() -> bool {
    per_1024_ns() >= 16
}

/// Hints that take about so long, one at least.
#[must_use]
pub fn within(nanoseconds: u32) -> u32 {
    let hints = u64::from(nanoseconds) * u64::from(per_1024_ns()) / 1024;
    u32::try_from(hints).unwrap_or(u32::MAX).saturating_add(1)
}

/// An instruction that asks for a line, for each of some lines from `at` on.
macro_rules! ask {
    ($x86:literal, $arm:literal, $at:expr, $($line:literal),*) => {{
        let at: *const u8 = $at;
        #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
        // SAFETY: a prefetch neither faults nor changes memory, registers or flags.
        unsafe {
            core::arch::asm!($(concat!($x86, " [{at} + ", $line, "]")),*, at = in(reg) at, options(nostack, preserves_flags, readonly));
        }
        #[cfg(all(target_arch = "aarch64", not(loom), not(miri)))]
        // SAFETY: as above.
        unsafe {
            core::arch::asm!($(concat!("prfm ", $arm, ", [{at}, #", $line, "]")),*, at = in(reg) at, options(nostack, preserves_flags, readonly));
        }
        let _ = at;
    }};
}

// `prefetchw` as a word of its own: the intrinsic compiles to a plain prefetch, which takes the line shared, where the baseline
// lacks the instruction. Processors without it take it for a no-op.

/// Asks for the line that `at` lies in, ahead of writes to it: a store to a line that another processor read last takes as long as a
/// transfer, and whatever waits for the store buffer after it (a locked instruction, a load that cannot be forwarded) waits as
/// long. A hint, for any address, which changes nothing that any model could see.
#[inline(always)] // one instruction
pub fn prepare(at: *const u8) {
    ask!("prefetchw", "pstl1keep", at, "0");
}

/// The same for the next three lines, too.
#[inline(always)] // four instructions
pub fn prepare_four(at: *const u8) {
    ask!("prefetchw", "pstl1keep", at, "0", "64", "128", "192");
}

/// Asks for the line that `at` lies in, ahead of reads. A hint, as [`prepare`].
#[inline(always)] // one instruction
pub fn expect(at: *const u8) {
    ask!("prefetcht0", "pldl1keep", at, "0");
}

/// The same for the next three lines, too.
#[inline(always)] // four instructions
pub fn expect_four(at: *const u8) {
    ask!("prefetcht0", "pldl1keep", at, "0", "64", "128", "192");
}

/// Stays on the processor for about so long, without a look at the clock.
pub fn spin(nanoseconds: u32) {
    (0..within(nanoseconds)).for_each(|_| spin_loop());
}
