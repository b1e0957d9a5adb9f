//! Hashing of numbers, for tables that are looked into for each message: in a few instructions, where the standard library's takes some
//! hundred.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// Hashes keys of a few numbers. Other processes choose some, so the hash has a secret of this process in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spread(u64);

impl Default for Spread {
    fn default() -> Self {
        Self(RandomState::new().hash_one(0_u8) | 1)
    }
}

impl BuildHasher for Spread {
    type Hasher = Mix;
    fn build_hasher(&self) -> Mix {
        Mix { state: self.0, secret: self.0 }
    }
}

/// Multiplies and folds, once for each number.
#[derive(Debug)]
pub(crate) struct Mix {
    state: u64,
    secret: u64,
}

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u64((*b).into());
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }

    #[allow(clippy::cast_possible_truncation)] // both halves are used
    fn write_u64(&mut self, value: u64) {
        let wide = u128::from(self.state ^ value) * u128::from(self.secret);
        self.state = (wide as u64) ^ ((wide >> 64) as u64);
    }

    fn finish(&self) -> u64 {
        self.state
    }
}
