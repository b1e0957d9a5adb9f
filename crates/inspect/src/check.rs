//! Repeated surveys, which separate what is wrong from what is only changing.
//!
//! In memory that other processes write, a survey can read a half-made change. What is really wrong is still wrong a little
//! later, so a fault counts only if several surveys find it at the same place.

use std::time::Duration;

use isthmus_region::reader::Reader;

use crate::survey::{Depth, Look, look};

/// Most surveys of memory: a process that has lost its processor in the middle of a change has a quarter of a second to come back to it.
const SURVEYS: u32 = 7;
/// How often all faults may be others than before until they are taken for changes.
const STARTS: u32 = 8;
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
    let is_memory = reader.is_memory();
    settle(is_memory, || look(reader, depth))
}

/// Looks until a look finds nothing, or some faults have stayed for all of [`SURVEYS`] looks.
///
/// What is wrong at one place hides what is behind it: of a region whose header makes no sense nothing else is read. Where all
/// that a look has found is gone in a later one that finds other faults, these may have been hidden before, so they are a new
/// beginning. Only where that happens [`STARTS`] times are they taken for changes.
fn settle(
    is_memory: bool,
    mut look: impl FnMut() -> isthmus_region::Result<Look>,
) -> isthmus_region::Result<Look> {
    let mut found = look()?;
    let (mut looks, mut starts, mut pause) = (1, 1, PAUSE);
    while is_memory && looks < SURVEYS && !found.is_sound() {
        std::thread::sleep(pause);
        pause *= 2;
        looks += 1;
        let again = look()?;
        if again.is_sound() {
            return Ok(again);
        }
        found.faults.keep_common(&again.faults);
        found.survey = again.survey;
        if found.faults.is_empty() {
            if starts == STARTS {
                break;
            }
            found.faults = again.faults;
            (looks, pause) = (1, PAUSE);
            starts += 1;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::{Fault, Faults, MOST};
    use crate::survey::tests::nothing;

    /// A look that has found a fault at each of these offsets.
    fn seen(is_read: bool, offsets: impl IntoIterator<Item = u64>) -> Look {
        let mut faults = Faults::default();
        for offset in offsets {
            let (place, value, allowed) = ("region".into(), "1".into(), "2".into());
            faults.add(Fault { place, field: "a.FIELD", offset, value, allowed });
        }
        Look { survey: is_read.then(nothing), faults }
    }

    /// What comes of looks, each made by its number, and how many there were.
    fn settled(mut nth: impl FnMut(u64) -> Look) -> (Look, u64) {
        let mut count = 0;
        let found = settle(true, || {
            count += 1;
            Ok(nth(count - 1))
        });
        (found.unwrap(), count)
    }

    #[test]
    fn a_header_that_keeps_changing_is_not_sound() {
        let (found, _) = settled(|nth| seen(false, [nth]));
        assert!(!found.is_sound() && found.survey.is_none());
    }

    #[test]
    fn what_a_changing_fault_had_hidden_is_found() {
        for is_read in [false, true] {
            let (found, _) = settled(|nth| match nth {
                0 => seen(is_read, [1]),
                _ => seen(true, [2, 10 + nth]),
            });
            let offsets: Vec<u64> = found.faults.list.iter().map(|fault| fault.offset).collect();
            assert_eq!(offsets, [2], "header read: {is_read}");
        }
    }

    #[test]
    fn more_faults_than_are_kept_are_never_taken_for_none() {
        let most = MOST as u64;
        let (found, _) = settled(|nth| seen(true, nth * 5000..nth * 5000 + most + 5));
        assert!(!found.is_sound() && found.faults.more > 0);
        // What was only counted in one look, and listed in all others, stays.
        let (found, _) = settled(|nth| match nth {
            0 => seen(true, 0..=most),
            _ => seen(true, [most, most + nth]),
        });
        assert_eq!((found.faults.list.len(), found.faults.list[0].offset, found.faults.more), (1, most, 0));
    }

    #[test]
    fn changes_end_and_a_sound_look_ends_them_at_once() {
        let (found, count) = settled(|nth| if nth < 2 { seen(false, [nth]) } else { seen(true, []) });
        assert!(found.is_sound() && count == 3);
        let (found, count) = settled(|nth| seen(true, [nth]));
        assert!(found.is_sound() && count < 20, "{count}");
    }
}
