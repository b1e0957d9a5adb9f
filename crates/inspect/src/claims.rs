//! Which bytes of a section belong to which structure: no byte belongs to two.
//!
//! This also bounds a walk over chains, whose links any process may have written: each structure is claimed before it is
//! visited, so all of them together are no larger than the section.

use std::collections::BTreeMap;

/// Ranges that are claimed: start and end.
#[derive(Debug, Default)]
pub struct Claims {
    taken: BTreeMap<u64, u64>,
}

impl Claims {
    /// Claims a range of at least one byte, whose end the caller has compared with the section's.
    ///
    /// # Errors
    /// The start and end of a claimed range that overlaps.
    pub fn take(&mut self, start: u64, bytes: u64) -> Result<(), (u64, u64)> {
        if let Some(other) = self.in_the_way(start, bytes) {
            return Err(other);
        }
        self.taken.insert(start, start.saturating_add(bytes));
        Ok(())
    }

    /// The last claimed range that overlaps a range, if any does.
    pub fn in_the_way(&self, start: u64, bytes: u64) -> Option<(u64, u64)> {
        let (s, e) = self.taken.range(..start.saturating_add(bytes)).next_back()?;
        (*e > start).then_some((*s, *e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_byte_is_claimed_twice() {
        let mut claims = Claims::default();
        assert_eq!(claims.take(100, 10), Ok(()));
        assert_eq!(claims.take(110, 10), Ok(()));
        assert_eq!(claims.take(90, 10), Ok(()));
        for (start, bytes) in [(100, 1), (95, 6), (119, 1), (0, 1000), (105, 10)] {
            assert!(claims.take(start, bytes).is_err(), "{start} {bytes}");
        }
        assert_eq!(claims.take(120, 1), Ok(()));
    }
}
