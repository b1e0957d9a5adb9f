//! What a byte costs by one way, of many measurements.

/// Streaks of a class in which the ways alternate, however they fare.
pub(super) const TRIALS: u32 = 8;
/// Messages over which the mean goes once odd ones count.
const MEAN_OF: f64 = 256.0;

/// What a byte costs by one way.
#[derive(Debug, Clone, Copy, Default)]
pub(in super::super) struct Cost {
    /// Measurements.
    seen: u32,
    /// Nanoseconds; none before the second of them.
    ns: Option<f64>,
}

impl Cost {
    /// One that is known.
    pub(in super::super) fn of(ns: f64) -> Self {
        Self { seen: TRIALS, ns: Some(ns) }
    }

    /// Whether anything was measured.
    pub(super) fn is_seen(self) -> bool {
        self.seen > 0
    }

    /// What a byte costs, in nanoseconds; none before the second measurement.
    pub(in super::super) fn each(self) -> Option<f64> {
        self.ns
    }

    /// One more measurement. The first does not count.
    pub(in super::super) fn add(&mut self, ns: f64) {
        self.seen = self.seen.saturating_add(1);
        if self.seen == 1 {
            return;
        }
        // What disturbs a message makes it slower, and a process that has to wait for a processor a thousand times slower. So what is
        // faster counts at once, or nearly so, and what is slower counts little, however much slower it is.
        self.ns = Some(match self.ns {
            Some(old) if !old.is_finite() => ns,
            Some(old) if self.seen <= TRIALS / 2 => old.min(ns),
            Some(old) if ns < old => old + (ns - old) / 2.0,
            Some(old) => old + (ns - old).min(old) / 8.0,
            None => ns,
        });
    }

    /// One more measurement of many messages, of which more can be expected. One that has to wait for a processor counts little.
    pub(super) fn follow(&mut self, ns: f64) {
        self.seen = self.seen.saturating_add(1);
        self.ns = Some(match self.ns {
            Some(old) if old.is_finite() => old + (ns - old).min(old) / 4.0,
            _ => ns,
        });
    }

    /// The same of so many messages, where each counts as much as the others.
    pub(super) fn weigh(&mut self, ns: f64, messages: u64) {
        self.seen = self.seen.saturating_add(1);
        self.ns = Some(match self.ns {
            Some(old) if old.is_finite() => old + (ns - old) * (messages as f64 / MEAN_OF).min(0.5),
            _ => ns,
        });
    }
}

/// Bytes, and the nanoseconds that they took.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Took {
    pub(super) bytes: u64,
    pub(super) ns: f64,
}

impl Took {
    /// What a byte takes.
    pub(super) fn each(self) -> f64 {
        // Far below 2^53.
        self.ns / self.bytes.max(1) as f64
    }

    /// Both, of which a byte took `most` at most.
    pub(super) fn and(self, other: Self, most: f64) -> Self {
        let ns = other.ns.min(most * other.bytes as f64);
        Self { bytes: self.bytes.saturating_add(other.bytes), ns: self.ns + ns }
    }
}
