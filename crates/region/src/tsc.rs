//! How fast this processor's time-stamp counter counts. A guest that is emulated reads the same counter, but measures its rate
//! while it boots beside timers that are emulated, too: on a busy host it comes out wrong by a factor of 2 to 20.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Time between two readings.
const WINDOW: Duration = Duration::from_millis(5);

/// Counts in a millisecond, to about 1 in 10,000; none where there is no such counter. Takes 15 ms the first time.
pub fn khz() -> Option<u32> {
    static KHZ: OnceLock<Option<u32>> = OnceLock::new();
    *KHZ.get_or_init(|| {
        let mut rates = [measure()?, measure()?, measure()?];
        rates.sort_unstable();
        // What no processor has is no measurement.
        Some(rates[1]).filter(|khz| (100_000..20_000_000).contains(khz))
    })
}

fn measure() -> Option<u32> {
    let (begin, first) = reading()?;
    std::thread::sleep(WINDOW);
    let (end, last) = reading()?;
    let nanoseconds = end.duration_since(begin).as_nanos();
    let counts = u128::from(last.checked_sub(first)?);
    u32::try_from(counts * 1_000_000 / nanoseconds.max(1)).ok()
}

/// The counter, and the time at which it was read: of some tries the one that took the least time.
fn reading() -> Option<(Instant, u64)> {
    let tries = (0..16).filter_map(|_| {
        let before = Instant::now();
        let count = count()?;
        Some((before.elapsed(), before, count))
    });
    tries.min_by_key(|(took, ..)| *took).map(|(took, before, count)| (before + took / 2, count))
}

#[cfg(target_arch = "x86_64")]
fn count() -> Option<u64> {
    // SAFETY: every x86-64 processor has this instruction, which reads a register.
    Some(unsafe { std::arch::x86_64::_rdtsc() })
}

#[cfg(not(target_arch = "x86_64"))]
fn count() -> Option<u64> {
    None
}

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests {
    use super::*;

    #[test]
    fn the_rate_holds_for_longer_times() {
        let rate = f64::from(khz().unwrap());
        let (begin, first) = reading().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let (end, last) = reading().unwrap();
        #[allow(clippy::cast_precision_loss)] // a few hundred million
        let counted = (last - first) as f64 / rate / 1000.0;
        let passed = end.duration_since(begin).as_secs_f64();
        assert!((counted / passed - 1.0).abs() < 0.005, "{counted} s counted in {passed} s");
    }
}
