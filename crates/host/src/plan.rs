//! How a region is cut into sections: the host section, the host's own processes, then one section for each VM.
//!
//! Every member gets what its tables and a small heap need. The rest is divided by weight: the number of processes
//! expected there. Sections begin and end at multiples of the region's alignment.

use isthmus_region::directory::least_section_bytes;
use isthmus_region::format::LEAST_REGION_BYTES;
use isthmus_region::membership::Shape;

use crate::error::{Error, Result};

/// A place in the region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// File of the region.
    pub file: u32,
    /// Offset there.
    pub section: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A place for each weight, side by side, which together fill the region.
///
/// # Errors
/// [`Error::TooSmall`].
pub fn places(shape: &Shape, weights: &[u32]) -> Result<Vec<Place>> {
    let least = least_section_bytes(shape);
    let count = weights.len();
    let needed = (least * count as u64).saturating_add(shape.first_section());
    let Some(spare) = shape.region_bytes.checked_sub(needed) else {
        return Err(Error::TooSmall { bytes: shape.region_bytes, peers: count, needed });
    };
    let units = spare / shape.section_align;
    let sum: u64 = weights.iter().map(|w| u64::from(*w)).sum::<u64>().max(1);
    // What is cut off of one section goes to a later one, so that less than one unit is left over.
    let units_to =
        |weight: u64| u64::try_from(u128::from(units) * u128::from(weight) / u128::from(sum)).unwrap_or(0);
    let (mut at, mut before) = (shape.first_section(), 0);
    let cut = |weight: &u32| {
        let share = units_to(before + u64::from(*weight)) - units_to(before);
        before += u64::from(*weight);
        let place = Place { file: 0, section: at, bytes: least + share * shape.section_align };
        at += place.bytes;
        place
    };
    Ok(weights.iter().map(cut).collect())
}

/// Files of a region, and what lies where.
#[derive(Debug)]
pub struct Plan {
    /// The region's shape.
    pub shape: Shape,
    /// The section of each member.
    pub places: Vec<Place>,
    /// Bytes of each file.
    pub lengths: Vec<u64>,
}

/// One file, with a section for each weight.
///
/// # Errors
/// [`Error::TooSmall`].
pub fn together(shape: Shape, weights: &[u32]) -> Result<Plan> {
    Ok(Plan { shape, places: places(&shape, weights)?, lengths: vec![shape.region_bytes] })
}

/// A file for each section, of a size that goes by its weight: so a process or a VM can have the others' memory without the right to write
/// it. `whole` is the shape of a region in one file, whose bytes are what all files may have together; no file has less than `least`
/// bytes. A file's bytes are a power of two, as those of a BAR.
///
/// # Errors
/// [`Error::TooSmall`]; [`Error::Region`] for more files than the format allows.
pub fn separate(whole: Shape, weights: &[u32], least: u64) -> Result<Plan> {
    let file_of = |section: u64| section.next_power_of_two().max(least).max(LEAST_REGION_BYTES);
    let of_shared = u32::from(whole.shared_bytes > 0);
    let first_of_peers = 1 + of_shared;
    let mut shape = whole.with_files(first_of_peers + whole.peers, of_shared)?;
    let mut lengths = vec![file_of(shape.host_bytes)];
    lengths.extend((of_shared > 0).then(|| file_of(shape.shared_bytes)));
    let each = file_of(least_section_bytes(&shape));
    let others = lengths.iter().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
    // Of each peer, with so many bytes for each unit of weight: equal weights have equal files.
    let with = |unit: u64| {
        let share = |weight: &u32| u64::from(*weight).saturating_mul(unit).checked_next_power_of_two();
        let sizes: Vec<u64> =
            weights.iter().map(|weight| share(weight).unwrap_or(1 << 63).max(each)).collect();
        let all = sizes.iter().fold(others, |sum, bytes| sum.saturating_add(*bytes));
        (sizes, all)
    };
    let units = (0..64).rev().map(|bits| 1 << bits).chain([0]);
    let Some((sizes, _)) = units.map(with).find(|(_, all)| *all <= whole.region_bytes) else {
        return Err(Error::TooSmall { bytes: whole.region_bytes, peers: weights.len(), needed: with(0).1 });
    };
    shape.region_bytes = lengths[0];
    let files = (first_of_peers..).zip(&sizes);
    let places = files.map(|(file, bytes)| Place { file, section: 0, bytes: *bytes }).collect();
    lengths.extend(&sizes);
    Ok(Plan { shape, places, lengths })
}

#[cfg(test)]
mod tests {
    use isthmus_region::format::{DEVICE_SECTION_ALIGN, SECTION_ALIGN};

    use super::*;

    #[test]
    fn sections_lie_side_by_side_and_fill_the_region() {
        for (align, least) in [(SECTION_ALIGN, 28 << 20), (DEVICE_SECTION_ALIGN, 26 << 20)] {
            let shape = Shape::new(64 << 20, [1, 2], 4, 64).unwrap().with_section_align(align).unwrap();
            let shape = shape.with_shared(100_000, 16).unwrap();
            let places = places(&shape, &[0, 1, 2, 1]).unwrap();
            let mut end = shape.host_bytes + shape.shared_bytes;
            assert!(shape.host_bytes.is_multiple_of(align) && shape.shared_bytes.is_multiple_of(align));
            for place in &places {
                assert_eq!(place.section, end);
                let whole = place.section.is_multiple_of(align) && place.bytes.is_multiple_of(align);
                assert!(whole && place.bytes >= least_section_bytes(&shape));
                end += place.bytes;
            }
            assert!(end <= 64 << 20 && (64 << 20) - end < align, "{end} with {align}");
            assert!(places[2].bytes > least && places[0].bytes == least_section_bytes(&shape));
        }
    }

    #[test]
    fn separate_sections_have_files_of_their_own() {
        for shared in [0, 1 << 20] {
            let whole = Shape::new(64 << 20, [1, 2], 3, 64).unwrap();
            let whole = if shared == 0 { whole } else { whole.with_shared(shared, 8).unwrap() };
            let Plan { shape, places, lengths } = separate(whole, &[1; 3], 0).unwrap();
            let first = if shared == 0 { 1 } else { 2 };
            assert_eq!((shape.files, lengths.len()), (first + 3, first as usize + 3));
            assert!(lengths.iter().all(|bytes| bytes.is_power_of_two()));
            assert!(lengths.iter().sum::<u64>() <= 64 << 20);
            assert_eq!(
                (shape.region_bytes, shape.shared),
                (lengths[0], if shared == 0 { shape.host_bytes } else { 0 })
            );
            for (place, file) in places.iter().zip(first..) {
                assert_eq!(*place, Place { file, section: 0, bytes: 16 << 20 });
                assert_eq!(lengths[file as usize], 16 << 20);
            }
            assert!(separate(whole, &[1; 3], 32 << 20).is_err(), "huge pages that are too large");
        }
    }

    #[test]
    fn separate_sections_go_by_their_weight() {
        let whole = Shape::new(256 << 20, [1, 2], 4, 64).unwrap();
        let whole = whole.with_section_align(DEVICE_SECTION_ALIGN).unwrap();
        for shared in [0, 16 << 20] {
            let whole = if shared == 0 { whole } else { whole.with_shared(shared, 8).unwrap() };
            let Plan { shape, places, lengths } = separate(whole, &[0, 2, 1, 1], 0).unwrap();
            assert_eq!(shape.files as usize, lengths.len());
            assert!(lengths.iter().all(|bytes| bytes.is_power_of_two() && *bytes >= DEVICE_SECTION_ALIGN));
            assert!(lengths.iter().sum::<u64>() <= 256 << 20);
            let sizes: Vec<u64> = places.iter().map(|place| place.bytes >> 20).collect();
            let least = least_section_bytes(&shape).next_power_of_two() >> 20;
            assert_eq!(sizes, [least, 64, 32, 32]);
            for place in &places {
                assert_eq!((place.section, place.bytes), (0, lengths[place.file as usize]));
            }
        }
        let Err(Error::TooSmall { needed, .. }) = separate(whole, &[1; 4], 128 << 20) else {
            panic!("huge pages that are too large")
        };
        assert_eq!(needed, 5 * (128 << 20));
        assert_eq!(
            separate(Shape { region_bytes: needed, ..whole }, &[0; 4], 128 << 20).unwrap().lengths.len(),
            5
        );
    }

    #[test]
    fn too_many_members_are_an_error_that_says_what_they_need() {
        let shape = Shape::new(2 << 20, [1, 2], 16, 256).unwrap();
        let Err(Error::TooSmall { needed, .. }) = places(&shape, &[1; 16]) else { panic!("it fits?") };
        assert!(needed > 2 << 20);
    }
}
