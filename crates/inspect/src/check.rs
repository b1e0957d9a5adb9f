//! Repeated surveys, which separate what is wrong from what is only changing.
//!
//! In memory that other processes write, a survey can read a half-made change. What is really wrong is still wrong a little
//! later, so a fault counts only if several surveys find it at the same place.

use std::time::Duration;

use isthmus_region::reader::Reader;

use crate::survey::{Depth, Look, look};

/// Most surveys of memory: a process that has lost its processor in the middle of a change has a quarter of a second to come back to it.
const SURVEYS: u32 = 7;
/// The pause between two surveys; doubled each time.
const PAUSE: Duration = Duration::from_millis(4);

/// Checks a region as a whole.
///
/// # Errors
/// As [`look`].
pub fn check(reader: &Reader) -> isthmus_region::Result<Look> {
    survey(reader, Depth::Slots)
}

/// Surveys a region, again as long as there are faults.
pub(crate) fn survey(reader: &Reader, depth: Depth) -> isthmus_region::Result<Look> {
    let mut found = look(reader, depth)?;
    let mut pause = PAUSE;
    for _ in 1..SURVEYS {
        if found.faults.is_empty() || !reader.is_memory() {
            break;
        }
        std::thread::sleep(pause);
        pause *= 2;
        let again = look(reader, depth)?;
        found.faults.keep_common(&again.faults);
        found.survey = again.survey;
    }
    Ok(found)
}
