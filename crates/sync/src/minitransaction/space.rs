//! A space: the machinery that its users share, and the segments that they name.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use isthmus_lockfree::sync::Word;
use isthmus_region::Section;
use isthmus_region::member::Member;

use super::committer::Committer;
use super::error::{Error, Result};
use super::items::{Minitransaction, Node, Outcome, SegmentId, name, named};
use super::machinery::{Machinery, Shape};
use super::one::{Exchange, Place, key};

/// How long a commit waits for locks before it ends as [`Outcome::LockFailed`], by default. It is longer than the time slices
/// of a crowded machine, and on an idle one long enough to see a death.
pub const PATIENCE: Duration = Duration::from_millis(200);

/// Threads that can be in [`Space::commit`] and the like without waiting for each other.
const POOLED: usize = 16;

type Finder = Box<dyn Fn(Node, SegmentId) -> Found + Send + Sync>;

/// A segment as this process reaches it.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    pub(crate) name: u64,
    pub(crate) section: Section,
}

impl Segment {
    /// Whether it has these bytes.
    #[inline]
    pub(crate) fn check(&self, offset: u64, len: u64) -> Result<()> {
        let limit = self.section.len();
        if offset.checked_add(len).is_none_or(|end| end > limit) {
            return Err(Error::OutOfBounds { segment: named(self.name).1, offset, len, limit });
        }
        Ok(())
    }
}

/// What the committers of a space share.
pub(crate) struct Shared {
    member: Arc<Member>,
    pub(crate) machinery: Machinery,
    segments: Mutex<Vec<Segment>>,
    /// How often the segments changed. Committers compare it to see whether their copy is current.
    version: Word,
    finder: RwLock<Option<Finder>>,
    patience_ns: Word,
}

/// What a finder says of a segment that is not registered.
#[derive(Debug, Clone)]
pub enum Found {
    /// These are its bytes.
    Here(Section),
    /// It is gone, and no process has it open: its name will not come back. Or it was made so small that no word is left.
    Gone,
    /// Nothing is known of it here.
    Unknown,
}

/// What one process knows of a machinery and its segments. All its threads may use it at once. Committers keep what they
/// need of it, and the attachment, once it is dropped.
pub struct Space {
    shared: Arc<Shared>,
    pool: [Mutex<Option<Committer>>; POOLED],
}

impl fmt::Debug for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Space").field("shape", &self.shape()).finish_non_exhaustive()
    }
}

impl Space {
    /// Opens the machinery in `section`, which all users share. It must be zeroed before it is opened for the first time,
    /// begin at a multiple of 64 bytes and have [`Shape::bytes`].
    ///
    /// # Errors
    /// [`Error::BadShape`], [`Error::TooSmall`], [`Error::OtherShape`] if others opened it with another one, [`Error::Region`].
    pub fn open(member: &Arc<Member>, section: &Section, shape: Shape) -> Result<Self> {
        let shared = Arc::new(Shared {
            member: Arc::clone(member),
            machinery: Machinery::open(section, shape)?,
            segments: Mutex::default(),
            version: Word::new(0),
            finder: RwLock::default(),
            patience_ns: Word::new(nanoseconds(PATIENCE)),
        });
        Ok(Self { shared, pool: Default::default() })
    }

    /// The attachment that the space was opened with.
    pub fn member(&self) -> &Arc<Member> {
        &self.shared.member
    }

    /// The machinery's shape.
    pub fn shape(&self) -> Shape {
        self.shared.machinery.shape()
    }

    /// Names a segment: `section` is its bytes, which begin at a multiple of 8 and are whole words. Every user of the space
    /// registers the same bytes under that name.
    ///
    /// # Errors
    /// [`Error::BadSegment`]; [`Error::Registered`] if the name is in use here.
    pub fn register(&self, node: Node, segment: SegmentId, section: &Section) -> Result<()> {
        self.shared.register(node, segment, section)
    }

    /// Takes a name back; returns whether it was there. A commit that is under way may still use the segment, and each
    /// committer keeps its memory mapped until its next commit.
    pub fn unregister(&self, node: Node, segment: SegmentId) -> bool {
        let mut segments = self.shared.segments();
        let before = segments.len();
        segments.retain(|s| s.name != name(node, segment));
        if segments.len() == before {
            return false;
        }
        self.shared.version.add(1);
        true
    }

    /// Sets the function that finds a segment that an item, or the log of a dead process, names and that is not registered
    /// here. What it finds is registered.
    pub fn set_finder(&self, find: impl Fn(Node, SegmentId) -> Found + Send + Sync + 'static) {
        *self.shared.finder.write().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(find));
    }

    /// Sets how long a commit of this process waits for locks before it ends as [`Outcome::LockFailed`]: [`PATIENCE`] by
    /// default. Zero tries once. A commit that finds its locks free never waits.
    pub fn set_patience(&self, patience: Duration) {
        self.shared.patience_ns.put(nanoseconds(patience));
    }

    /// A committer, for one thread at a time. Takes one of the machinery's slots until it is dropped; if none is free, that of
    /// a dead process is recovered.
    ///
    /// # Errors
    /// [`Error::NoSlot`]; [`Error::Corrupt`].
    pub fn committer(&self) -> Result<Committer> {
        Committer::open(&self.shared)
    }

    /// Finds the aligned word of 8 bytes at `offset` of a segment, for [`Committer::load`] and [`Committer::exchange`].
    ///
    /// # Errors
    /// [`Error::NotReachable`], [`Error::NoSegment`], [`Error::OutOfBounds`], also for an offset that is no multiple of 8.
    pub fn place(&self, node: Node, segment: SegmentId, offset: u64) -> Result<Place> {
        let found = self.shared.find(name(node, segment))?;
        if !offset.is_multiple_of(8) {
            let limit = found.section.len();
            return Err(Error::OutOfBounds { segment, offset, len: 8, limit });
        }
        self.shared.place(&found, offset)
    }

    /// Commits with one of the space's own committers: for programs that cannot keep one for each thread. A thread gets the
    /// same one each time; more than 16 threads share.
    ///
    /// # Errors
    /// As [`Space::committer`] and [`Committer::commit`].
    pub fn commit(&self, t: &mut Minitransaction) -> Result<Outcome> {
        self.with_committer(|own| own.commit(t))
    }

    /// [`Committer::load`] with one of the space's own committers, as [`Space::commit`]. The place is one of this space.
    ///
    /// # Errors
    /// As [`Space::committer`] and [`Committer::load`].
    pub fn load(&self, place: &Place) -> Result<Option<u64>> {
        self.with_committer(|own| own.load(place))
    }

    /// [`Committer::exchange`] with one of the space's own committers, as [`Space::commit`]. The place is one of this space.
    ///
    /// # Errors
    /// As [`Space::committer`] and [`Committer::exchange`].
    pub fn exchange(&self, place: &Place, old: u64, new: u64) -> Result<Exchange> {
        self.with_committer(|own| own.exchange(place, old, new))
    }

    #[inline]
    fn with_committer<R>(&self, act: impl FnOnce(&mut Committer) -> Result<R>) -> Result<R> {
        let usual = thread_number() % POOLED;
        let free = (usual..usual + POOLED).find_map(|place| self.pool[place % POOLED].try_lock().ok());
        let mut own = free.unwrap_or_else(|| self.pool[usual].lock().unwrap_or_else(PoisonError::into_inner));
        if own.is_none() {
            match self.committer() {
                Ok(new) => *own = Some(new),
                // All slots are taken, or the free ones are those of dead processes whose logs this one cannot settle.
                Err(why @ (Error::NoSlot { .. } | Error::NoSegment { .. } | Error::NotReachable { .. })) => {
                    drop(own);
                    return self.with_any_committer(why, act);
                }
                Err(e) => return Err(e),
            }
        }
        match &mut *own {
            Some(committer) => act(committer),
            None => Err(Error::NoSlot { slots: self.shared.machinery.shape().slots }),
        }
    }

    /// With a committer that another thread of this process has left here; `why` if there is none.
    #[cold]
    fn with_any_committer<R>(&self, why: Error, act: impl FnOnce(&mut Committer) -> Result<R>) -> Result<R> {
        for place in &self.pool {
            if let Some(committer) = &mut *place.lock().unwrap_or_else(PoisonError::into_inner) {
                return act(committer);
            }
        }
        Err(why)
    }

    /// Recovers the slots of all processes that are dead now: completes or undoes their commits. Commits do so by themselves
    /// for slots whose locks they need. Returns the number of slots that were freed.
    ///
    /// # Errors
    /// [`Error::Corrupt`]; [`Error::NoSegment`] or [`Error::NotReachable`] if a log names what is not registered here.
    pub fn recover(&self) -> Result<u32> {
        let mut freed = 0;
        for slot in 0..self.shared.machinery.slots() {
            freed += u32::from(self.shared.recover(slot)?);
        }
        Ok(freed)
    }
}

impl Shared {
    pub(crate) fn member(&self) -> &Member {
        &self.member
    }

    fn segments(&self) -> MutexGuard<'_, Vec<Segment>> {
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn register(&self, node: Node, segment: SegmentId, section: &Section) -> Result<()> {
        if !section.len().is_multiple_of(8) || section.word("segment", 0).is_err() {
            return Err(Error::BadSegment { len: section.len() });
        }
        let mut segments = self.segments();
        let name = name(node, segment);
        if segments.iter().any(|s| s.name == name) {
            return Err(Error::Registered { node, segment });
        }
        segments.push(Segment { name, section: section.clone() });
        self.version.add(1);
        Ok(())
    }

    pub(crate) fn patience(&self) -> Duration {
        Duration::from_nanos(self.patience_ns.peek())
    }

    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.version.peek()
    }

    /// The word at `offset` of a segment, a multiple of 8.
    pub(crate) fn place(&self, segment: &Segment, offset: u64) -> Result<Place> {
        segment.check(offset, 8)?;
        let index = self.machinery.lock_of(segment.name, offset / 64);
        let lock = self.machinery.lock_line(index)?;
        Ok(Place {
            data: segment.section.part("segment", offset, 8)?,
            lock,
            index,
            key: key(segment.name, offset),
        })
    }

    /// All segments, and their version.
    pub(crate) fn snapshot(&self) -> (u64, Vec<Segment>) {
        let segments = self.segments();
        (self.version.peek(), segments.clone())
    }

    /// Whether a segment that is not known here is gone for good: then writes to it can be left out.
    pub(crate) fn is_gone(&self, name: u64) -> bool {
        let (node, segment) = named(name);
        let finder = self.finder.read().unwrap_or_else(PoisonError::into_inner);
        finder.as_ref().is_some_and(|find| matches!(find(node, segment), Found::Gone))
    }

    /// The segment of that name; asks the finder if it is not registered.
    pub(crate) fn find(&self, name: u64) -> Result<Segment> {
        let (node, segment) = named(name);
        if let Some(found) = self.segments().iter().find(|s| s.name == name) {
            return Ok(found.clone());
        }
        let finder = self.finder.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(Found::Here(section)) = finder.as_ref().map(|find| find(node, segment)) {
            match self.register(node, segment, &section) {
                Ok(()) | Err(Error::Registered { .. }) => {}
                Err(e) => return Err(e),
            }
        }
        let segments = self.segments();
        match segments.iter().find(|s| s.name == name) {
            Some(found) => Ok(found.clone()),
            None if segments.iter().any(|s| named(s.name).0 == node) || node == Node::LOCAL => {
                Err(Error::NoSegment { node, segment })
            }
            None => Err(Error::NotReachable { node }),
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A number of the calling thread's own, from 0.
fn thread_number() -> usize {
    static NEXT: Mutex<usize> = Mutex::new(0);
    thread_local! {
        static OWN: usize = {
            let mut next = NEXT.lock().unwrap_or_else(PoisonError::into_inner);
            *next += 1;
            *next - 1
        };
    }
    OWN.with(|own| *own)
}
