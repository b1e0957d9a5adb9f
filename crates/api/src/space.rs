//! Minitransactions over named segments.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Mutex, PoisonError};

use isthmus_region::objects;
use isthmus_sync::minitransaction::{self as mini, Node, SegmentId};

use crate::error::{Error, Result};
use crate::named::Held;
use crate::segment::Segment;

/// Where minitransactions are made: locks and logs that all share who open the same name, and the segments that this
/// process has put in.
///
/// It works like [`isthmus_sync::minitransaction::Space`], of which it is one. Segments get their numbers from the region, so
/// that they are the same for everybody, and one that a dead process has used is found even if it was never put in here.
#[derive(Debug)]
pub struct Space {
    held: Held<mini::Space>,
    segments: Mutex<HashMap<SegmentId, Segment>>,
}

impl Deref for Space {
    type Target = mini::Space;

    #[inline]
    fn deref(&self) -> &mini::Space {
        &self.held
    }
}

/// Bits of a segment's number that are its place in the table of objects; the others are of its incarnation.
const PLACE_BITS: u32 = 16;

fn number(index: u32, incarnation: u64) -> Option<SegmentId> {
    let life = u32::try_from(incarnation & 0xffff).ok()?;
    (index < 1 << PLACE_BITS).then_some(SegmentId((life << PLACE_BITS) | index))
}

impl Space {
    pub(crate) fn new(held: Held<mini::Space>) -> Self {
        let region = held.member().region().clone();
        held.set_finder(move |node, segment| {
            if node != Node::LOCAL {
                return None;
            }
            let index = segment.0 & ((1 << PLACE_BITS) - 1);
            let info = objects::object(&region, index).ok()??;
            let same = number(index, info.life.incarnation) == Some(segment);
            let section = objects::section(&region, &info).ok().filter(|_| same)?;
            section.part("segment", 0, section.len() & !7).ok()
        });
        Self { held, segments: Mutex::default() }
    }

    /// Whether this very call made it.
    pub fn is_new(&self) -> bool {
        self.held.is_new()
    }

    /// Puts a segment in, and keeps it open as long as the space is: gives its number, by which items name it, with the node
    /// [`Node::LOCAL`]. It is the same for all processes. What is left of it behind the last whole eight bytes is out of
    /// reach.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::Transaction`] for a segment of fewer than 8 bytes.
    pub fn add(&self, segment: &Segment) -> Result<SegmentId> {
        let object = segment.writable_object()?;
        let info =
            object.info().ok_or_else(|| Error::NotFound(format!("segment '{}' is gone", segment.name())))?;
        let id = number(info.index, info.life.incarnation)
            .ok_or_else(|| Error::Invalid(format!("segment '{}' has no number", segment.name())))?;
        let mut known = self.segments.lock().unwrap_or_else(PoisonError::into_inner);
        if known.contains_key(&id) {
            return Ok(id);
        }
        let bytes = object.section();
        let section = bytes.part("segment", 0, bytes.len() & !7)?;
        match self.held.register(Node::LOCAL, id, &section) {
            // The log of somebody who died has brought it here before.
            Ok(()) | Err(mini::Error::Registered { .. }) => {}
            Err(e) => return Err(e.into()),
        }
        known.insert(id, segment.clone());
        Ok(id)
    }
}
