//! How a region is cut into sections: the host section, the host's own processes, then one section for each VM.
//!
//! Every member gets what its tables and a small heap need. The rest is divided by weight: the number of processes
//! expected there.

use isthmus_region::directory::least_section_bytes;
use isthmus_region::format::SECTION_ALIGN;
use isthmus_region::membership::Shape;

use crate::error::{Error, Result};

/// A place in the region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Offset in the region.
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
    let sum: u64 = weights.iter().map(|w| u64::from(*w)).sum::<u64>().max(1);
    let mut at = shape.first_section();
    let cut = |weight: &u32| {
        let share = spare / sum * u64::from(*weight);
        let place = Place { section: at, bytes: least + share / SECTION_ALIGN * SECTION_ALIGN };
        at += place.bytes;
        place
    };
    Ok(weights.iter().map(cut).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_lie_side_by_side_and_fit() {
        let shape = Shape::new(64 << 20, [1, 2], 4, 64).unwrap();
        let places = places(&shape, &[0, 1, 2, 1]).unwrap();
        let mut end = shape.host_bytes;
        for place in &places {
            assert_eq!(place.section, end);
            assert!(
                place.section.is_multiple_of(SECTION_ALIGN) && place.bytes >= least_section_bytes(&shape)
            );
            end += place.bytes;
        }
        assert!(end <= 64 << 20 && end > 63 << 20, "nothing worth mentioning is left over");
        assert!(places[2].bytes > 28 << 20 && places[0].bytes < 1 << 20);
    }

    #[test]
    fn too_many_members_are_an_error_that_says_what_they_need() {
        let shape = Shape::new(2 << 20, [1, 2], 16, 256).unwrap();
        let Err(Error::TooSmall { needed, .. }) = places(&shape, &[1; 16]) else { panic!("it fits?") };
        assert!(needed > 2 << 20);
    }
}
