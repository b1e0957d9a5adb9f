//! Minitransactions over named segments.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use isthmus_region::objects::{self, Access, Kind, Object};
use isthmus_sync::minitransaction::{
    self as mini, Exchange, Found, Minitransaction, Node, Outcome, Place, SegmentId, Shape,
};

use crate::error::{Error, Result};
use crate::named::Held;
use crate::segment::Segment;

/// Where minitransactions are made: locks and logs, which all processes share that open the same name, and the segments that
/// this process has added. Cheap to clone.
///
/// A segment's number comes from the region, so it is the same for all processes. A segment that was not added here, but that
/// an item or the log of a dead process names, is opened by its name if this user may write to it.
#[derive(Debug, Clone)]
pub struct Space(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    // Dropped in this order.
    held: Held<mini::Space>,
    segments: Arc<Mutex<HashMap<SegmentId, Object>>>,
}

/// A committer of a space, for one thread; it keeps the space open. As [`isthmus_sync::minitransaction::Committer`].
#[derive(Debug)]
pub struct Committer {
    // Dropped in this order.
    inner: mini::Committer,
    _space: Space,
}

impl Deref for Committer {
    type Target = mini::Committer;

    #[inline]
    fn deref(&self) -> &mini::Committer {
        &self.inner
    }
}

impl DerefMut for Committer {
    #[inline]
    fn deref_mut(&mut self) -> &mut mini::Committer {
        &mut self.inner
    }
}

/// Bits of a segment's number that are its place in the table of objects; the others are of its incarnation.
const PLACE_BITS: u32 = 16;

fn number(index: u32, incarnation: u64) -> Option<SegmentId> {
    let life = u32::try_from(incarnation & 0xffff).ok()?;
    (index < 1 << PLACE_BITS).then_some(SegmentId((life << PLACE_BITS) | index))
}

/// The whole words of an object.
fn words(object: &Object) -> isthmus_region::Result<isthmus_region::Section> {
    let section = object.section();
    section.part("segment", 0, section.len() & !7)
}

impl Space {
    pub(crate) fn new(held: Held<mini::Space>) -> Self {
        let segments: Arc<Mutex<HashMap<SegmentId, Object>>> = Arc::default();
        let (member, known) = (Arc::clone(held.get().member()), Arc::clone(&segments));
        held.get().set_finder(move |node, segment| {
            if node != Node::LOCAL {
                return Found::Unknown;
            }
            let index = segment.0 & ((1 << PLACE_BITS) - 1);
            let info = match objects::object(member.region(), index) {
                Ok(Some(info)) if number(index, info.life.incarnation) == Some(segment) => info,
                // Its place is free, or another segment's.
                Ok(_) => return Found::Gone,
                Err(_) => return Found::Unknown,
            };
            // The service says whether this user may, and where the segment lies.
            let opened = Object::open(&member, Kind::Segment, &info.name, Access::Write);
            let Ok(object) = opened else { return Found::Unknown };
            let (index, incarnation) = object.place();
            match words(&object) {
                _ if number(index, incarnation) != Some(segment) => Found::Unknown,
                // It was made that small after it had been added.
                Ok(section) if section.is_empty() => Found::Gone,
                Ok(section) => {
                    known.lock().unwrap_or_else(PoisonError::into_inner).insert(segment, object);
                    Found::Here(section)
                }
                Err(_) => Found::Unknown,
            }
        });
        Self(Arc::new(Inner { held, segments }))
    }

    /// Whether this very call made it.
    pub fn is_new(&self) -> bool {
        self.0.held.is_new()
    }

    /// Its shape.
    pub fn shape(&self) -> Shape {
        self.0.held.get().shape()
    }

    /// Adds a segment, and keeps it open as long as the space is. Returns its number, by which items name it, with the node
    /// [`Node::LOCAL`]; it is the same for all processes. Bytes after the last multiple of eight cannot be reached.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::Transaction`] for a segment of fewer than 8 bytes.
    pub fn add(&self, segment: &Segment) -> Result<SegmentId> {
        let object = segment.writable_object()?;
        let (index, incarnation) = object.place();
        let id = number(index, incarnation)
            .ok_or_else(|| Error::Invalid(format!("segment '{}' has no number", segment.name())))?;
        let mut known = self.0.segments.lock().unwrap_or_else(PoisonError::into_inner);
        if known.contains_key(&id) {
            return Ok(id);
        }
        match self.0.held.get().register(Node::LOCAL, id, &words(object)?) {
            Ok(()) | Err(mini::Error::Registered { .. }) => {}
            Err(e) => return Err(e.into()),
        }
        known.insert(id, object.clone());
        Ok(id)
    }

    /// Commits, with a committer that is kept for the calling thread.
    ///
    /// # Errors
    /// [`Error::Transaction`]; nothing was written then.
    #[inline]
    pub fn commit(&self, t: &mut Minitransaction) -> Result<Outcome> {
        Ok(self.0.held.get().commit(t)?)
    }

    /// A committer for a thread that commits often.
    ///
    /// # Errors
    /// [`Error::Transaction`] when all slots are taken.
    pub fn committer(&self) -> Result<Committer> {
        Ok(Committer { inner: self.0.held.get().committer()?, _space: self.clone() })
    }

    /// Finds an aligned word of 8 bytes once, for loops that change the same words again and again by `load` and `exchange`,
    /// of a [`Committer`] or of the space: minitransactions with one item, or with a compare and a write of the whole word.
    ///
    /// # Errors
    /// [`Error::Transaction`].
    pub fn place(&self, node: Node, segment: SegmentId, offset: u64) -> Result<Place> {
        Ok(self.0.held.get().place(node, segment, offset)?)
    }

    /// Reads a word of this space, with a committer that is kept for the calling thread. `None` stands for
    /// [`Outcome::LockFailed`].
    ///
    /// # Errors
    /// [`Error::Transaction`].
    #[inline]
    pub fn load(&self, place: &Place) -> Result<Option<u64>> {
        Ok(self.0.held.get().load(place)?)
    }

    /// Changes a word of this space from `old` to `new`, with a committer that is kept for the calling thread.
    ///
    /// # Errors
    /// [`Error::Transaction`].
    #[inline]
    pub fn exchange(&self, place: &Place, old: u64, new: u64) -> Result<Exchange> {
        Ok(self.0.held.get().exchange(place, old, new)?)
    }

    /// How long a commit of this process waits for others before it ends as [`Outcome::LockFailed`]: 200 ms at first.
    pub fn set_patience(&self, patience: Duration) {
        self.0.held.get().set_patience(patience);
    }

    /// Completes or undoes the minitransactions of dead processes now, as a commit does that meets one. Returns how many there
    /// were.
    ///
    /// # Errors
    /// [`Error::Transaction`].
    pub fn recover(&self) -> Result<u32> {
        Ok(self.0.held.get().recover()?)
    }
}
