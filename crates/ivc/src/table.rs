//! Ends of channels in the region: the own ones, and what members of the group claim of theirs.

use isthmus_lockfree::life::{Life, State, unchanged};
use isthmus_lockfree::sync::release_fence;
use isthmus_region::chain::{self, CHANNELS, Chain};
use isthmus_region::format::{MOST_CHANNEL_CHUNKS, block, channel};
use isthmus_region::mapping::{Access, LineRef};
use isthmus_region::member::Member;
use isthmus_region::roster::Record;
use isthmus_region::{PeerSection, ReadOnly, ReadWrite, Section};

use crate::config::{fits_ring, fits_segment};

/// Indices of words in the lines of an end.
pub(crate) mod at {
    pub(crate) const WRITE: usize = 0;
    pub(crate) const END: usize = 1;
    pub(crate) const ROOM: usize = 2;
    pub(crate) const ANSWER: usize = 3;
    pub(crate) const PAUSED: usize = 4;
    pub(crate) const HEAT: usize = 0;
    pub(crate) const SLEEP: usize = 1;
    pub(crate) const STOPPED: usize = 2;
}

/// The lines of an end, own or a partner's.
#[derive(Debug, Clone)]
pub(crate) struct End<A: Access = ReadWrite> {
    ident: LineRef<A>,
    write: LineRef<A>,
    state: LineRef<A>,
    read: LineRef<A>,
}

impl<A: Access> End<A> {
    pub(crate) fn at(section: &Section<A>, offset: u64) -> isthmus_region::Result<Self> {
        let line = |at| section.line("channel", offset.saturating_add(at));
        Ok(Self {
            ident: line(channel::LIFE)?,
            write: line(channel::WRITE)?,
            state: line(channel::HEAT)?,
            read: line(channel::READ)?,
        })
    }

    #[inline]
    pub(crate) fn life(&self) -> &A::Word {
        A::word(&self.ident, 0)
    }

    /// The line that its writer writes: [`at::WRITE`], [`at::END`], [`at::ROOM`], [`at::ANSWER`], [`at::PAUSED`].
    #[inline]
    pub(crate) fn writer(&self, word: usize) -> &A::Word {
        A::word(&self.write, word)
    }

    /// The line that its reader seldom writes: [`at::HEAT`], [`at::SLEEP`], [`at::STOPPED`].
    #[inline]
    pub(crate) fn reader(&self, word: usize) -> &A::Word {
        A::word(&self.state, word)
    }

    /// The read position.
    #[inline]
    pub(crate) fn read(&self) -> &A::Word {
        A::word(&self.read, 0)
    }
}

/// What is written into an end before its life is published.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms<'a> {
    pub(crate) to: &'a Record,
    pub(crate) ring: u64,
    pub(crate) ring_bytes: u64,
    pub(crate) segment_bytes: u64,
    /// The end that is answered: number and generation.
    pub(crate) answers: Option<(u32, u64)>,
    pub(crate) refused: bool,
}

/// The own ends of a context.
#[derive(Debug)]
pub(crate) struct Table(Chain);

impl Default for Table {
    fn default() -> Self {
        Self(Chain::new(CHANNELS, MOST_CHANNEL_CHUNKS))
    }
}

impl Table {
    /// Takes an entry, adding a chunk where needed.
    pub(crate) fn take(&mut self, member: &Member, block_at: u64) -> isthmus_region::Result<u32> {
        self.0.take(member, block_at + block::CHANNELS)
    }

    /// Gives back an entry that no partner reads any more.
    pub(crate) fn give(&mut self, number: u32) {
        self.0.give(number);
    }

    pub(crate) fn end(&self, member: &Member, number: u32) -> isthmus_region::Result<End> {
        End::at(member.section(), self.0.at(number)?)
    }

    /// Writes the terms of a fresh end; returns its life, which the caller publishes.
    pub(crate) fn describe(end: &End, terms: &Terms<'_>) -> u64 {
        let former = Life::unpack(end.life().peek()).incarnation;
        let generation = former + 1;
        end.life().put(Life { incarnation: former, state: State::Free }.pack());
        // A reader that sees any of the new terms sees first that the entry is no longer its former end's (P5).
        release_fence();
        for line in [&end.write, &end.state, &end.read] {
            line.words.iter().for_each(|w| w.put(0));
        }
        let (partner, partner_generation) =
            terms.answers.map_or((0, 0), |(number, generation)| (u64::from(number) + 1, generation));
        let words = [
            u64::from(terms.to.slot().0),
            terms.to.incarnation(),
            terms.ring,
            terms.ring_bytes | (terms.segment_bytes << 32),
            partner,
            partner_generation,
            u64::from(terms.refused),
        ];
        for (word, value) in end.ident.words[1..].iter().zip(words) {
            word.put(value);
        }
        Life { incarnation: generation, state: State::Active }.pack()
    }

    /// Gives all memory back, once no member sees the context any more.
    pub(crate) fn give_back(&mut self, member: &Member) {
        self.0.give_back(member);
    }
}

/// What an end of another context claims, read once. Sizes are checked, the ring's place is not.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) number: u32,
    /// The value of the end's life word while it is open.
    pub(crate) life: u64,
    pub(crate) ring: u64,
    pub(crate) ring_bytes: u64,
    pub(crate) segment_bytes: u64,
    /// Number and generation of the end that it answers; none for an offer.
    pub(crate) answers: Option<(u32, u64)>,
    pub(crate) refused: bool,
    pub(crate) end: End<ReadOnly>,
}

impl Claim {
    pub(crate) fn generation(&self) -> u64 {
        Life::unpack(self.life).incarnation
    }

    /// What entry `number` at `offset` claims, if it is an end to `us`: an offer that stands, or an answer, which may be
    /// closed again already. An entry that is given to another end while it is read claims nothing; the version of the
    /// table changes after that (P5).
    fn read(section: &PeerSection, number: u32, offset: u64, us: &Record) -> Option<Self> {
        let end = End::at(section, offset).ok()?;
        let words = &end.ident.words;
        let seen = words[0].get();
        let life = Life::unpack(seen);
        if !matches!(life.state, State::Active | State::Dead) {
            return None;
        }
        if words[1].peek() != u64::from(us.slot().0) || words[2].peek() != us.incarnation() {
            return None;
        }
        let (ring, sizes) = (words[3].peek(), words[4].peek());
        let (partner, generation, status) = (words[5].peek(), words[6].peek(), words[7].peek());
        if !unchanged(&words[0], seen) || (life.state == State::Dead && partner == 0) {
            return None;
        }
        let life = Life { state: State::Active, ..life }.pack();
        let (ring_bytes, segment_bytes) = (sizes & 0xffff_ffff, sizes >> 32);
        let answers = match partner.checked_sub(1) {
            Some(number) => Some((u32::try_from(number).ok()?, generation)),
            None => None,
        };
        let refused = status != 0;
        let sized = fits_ring(ring_bytes) && fits_segment(segment_bytes, ring_bytes);
        (refused || sized).then_some(Self {
            number,
            life,
            ring,
            ring_bytes,
            segment_bytes,
            answers,
            refused,
            end,
        })
    }
}

/// All ends to `us` in the table of the context whose block's first line is `block`.
pub(crate) fn claims(section: &PeerSection, block: &LineRef<ReadOnly>, us: &Record) -> Vec<Claim> {
    chain::entries(section, CHANNELS, MOST_CHANNEL_CHUNKS, block.words[6].get())
        .filter_map(|(number, at)| Claim::read(section, number, at, us))
        .collect()
}
