// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every kept input through its target, and then seeded mutations of them for a while: no sanitizer, no libFuzzer, any
//! toolchain. FUZZ_SECONDS (default 2) is the time for the mutations of each target, FUZZ_SEED their seed, FUZZ_ONLY
//! one target's name. An input that fails is printed, so that it can be kept.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit.max(1) as u64).unwrap()
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }
}

fn mutate(seed: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=random.below(6) {
        let at = random.below(bytes.len() + 1);
        match random.below(6) {
            0 => (0..random.below(16)).for_each(|_| {
                let byte = random.byte();
                bytes.insert(at.min(bytes.len()), byte);
            }),
            1 if !bytes.is_empty() => {
                bytes.remove(at.min(bytes.len() - 1));
            }
            2 => bytes.truncate(at),
            3 => bytes.extend_from_slice(&other[random.below(other.len() + 1)..]),
            4 => bytes.extend((0..random.below(200)).map(|_| random.byte())),
            _ if !bytes.is_empty() => {
                let at = at % bytes.len();
                bytes[at] = random.byte();
            }
            _ => {}
        }
    }
    bytes.truncate(4096);
    bytes
}

fn run(name: &str, target: fn(&[u8]), input: &[u8], from: &str) {
    let begin = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(|| target(input)));
    assert!(outcome.is_ok(), "{name} fails ({from}) for {input:?}");
    assert!(begin.elapsed() < Duration::from_secs(5), "{name} takes too long ({from}) for {input:?}");
}

#[test]
fn every_kept_input_and_its_mutations_pass() {
    let number = |name: &str, default| std::env::var(name).ok().map_or(default, |v| v.parse().unwrap());
    let (seconds, first) = (number("FUZZ_SECONDS", 1), number("FUZZ_SEED", 1));
    let only = std::env::var("FUZZ_ONLY").ok();
    for (name, target) in isthmus_fuzz::TARGETS {
        if only.as_deref().is_some_and(|o| o != *name) {
            continue;
        }
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpora").join(name);
        let mut files: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|f| f.unwrap().path()).collect();
        files.sort();
        assert!(!files.is_empty(), "{name} has no corpus");
        let corpus: Vec<Vec<u8>> = files.iter().map(|f| std::fs::read(f).unwrap()).collect();
        for (file, input) in files.iter().zip(&corpus) {
            run(name, *target, input, &file.display().to_string());
        }
        let mut random = Random(first);
        let end = Instant::now() + Duration::from_secs(seconds);
        let mut count = 0;
        while Instant::now() < end {
            let (a, b) = (random.below(corpus.len()), random.below(corpus.len()));
            let input = mutate(&corpus[a], &corpus[b], &mut random);
            run(name, *target, &input, &format!("mutation {count} of seed {first}"));
            count += 1;
        }
        println!("{name}: {} kept inputs, {count} mutations", corpus.len());
    }
}
