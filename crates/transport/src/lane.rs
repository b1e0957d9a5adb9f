//! A lane: a one-way ring between two endpoints, both ends of it.
//!
//! Ring and data ring lie in the sender's area; heat word and read position in the receiver's. The sender
//! describes the lane in a *lane descriptor*; the receiver answers with an *accept entry*. Until it has, the
//! sender may fill the ring once, and announces every message.

use std::collections::VecDeque;

use isthmus_lockfree::activity;
use isthmus_lockfree::heat::{Thermostat, must_announce};
use isthmus_lockfree::ring::{BadPosition, Consumer, Producer, ReadSlots, Slots};
use isthmus_lockfree::sleep::{self, Bell};
use isthmus_lockfree::slot::{Message, ReadSlot, Slot};
use isthmus_region::counters::LaneTotals;
use isthmus_region::local::LocalBuf;
use isthmus_region::mapping::LineRef;
use isthmus_region::member::Member;
use isthmus_region::{PeerSection, ReadOnly, SlotRing};

use crate::fault::{Step, step};
use crate::types::PeerId;
use crate::wire;

/// Longest payload that a receiver expects, in bytes: so few lines that they come together.
pub const EXPECTED: u64 = 256;

/// Sizes of a lane's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Slots, a power of two.
    pub slots: u64,
    /// Bytes of the data ring, a power of two.
    pub data_bytes: u64,
}

impl Size {
    /// The usual lane.
    pub const USUAL: Self = Self { slots: 64, data_bytes: 64 << 10 };
    /// A lane of an endpoint that has many.
    pub const SMALL: Self = Self { slots: 16, data_bytes: 16 << 10 };
    /// The lane that each endpoint keeps in reserve for a full region.
    pub const RESERVE: Self = Self { slots: 8, data_bytes: 8 << 10 };

    /// Bytes of its ring.
    pub fn ring_bytes(self) -> u64 {
        self.slots * 64
    }
}

/// Memory of a lane in the sender's section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Offset of the ring.
    pub ring: u64,
    /// Offset of the data ring, which is a block of its own: blocks are powers of two, as both rings are.
    pub data: u64,
    /// Sizes.
    pub size: Size,
    /// Whether it is the endpoint's reserve, which is kept when the lane closes.
    pub reserve: bool,
}

impl Place {
    /// Takes memory for a lane. Where there is none, each round of progress comes here again, so the service is asked now and then only;
    /// for the reserve, without which there is no endpoint, it is.
    ///
    /// # Errors
    /// As [`Member::take`].
    pub fn take(member: &Member, size: Size, reserve: bool) -> isthmus_region::Result<Self> {
        let take = |bytes| if reserve { member.take(bytes) } else { member.take_unless_refused(bytes) };
        let ring = take(size.ring_bytes())?;
        match take(size.data_bytes) {
            Ok(data) => Ok(Self { ring, data, size, reserve }),
            Err(e) => {
                member.give(ring, size.ring_bytes());
                Err(e)
            }
        }
    }

    /// Gives the memory back.
    pub fn give(self, member: &Member) {
        member.give(self.ring, self.size.ring_bytes());
        member.give(self.data, self.size.data_bytes);
    }
}

/// Stores a payload that is not just one word. Not inlined, so that the rest fits into its caller.
#[inline(never)]
fn put_words(slot: &Slot, buf: LocalBuf) {
    buf.words(|i, word| slot.put(3 + i, word));
}

/// Whether a receiver knows that its sender waits for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// There is nothing to ask for.
    No,
    /// It knows, or will when it accepts the lane.
    Before,
    /// It was told in this call, by an announcement.
    Now,
}

/// The sender's end.
#[derive(Debug)]
pub struct Outgoing {
    /// Number of its descriptor.
    pub number: u32,
    /// Its memory.
    pub place: Place,
    /// Version of the receiver's accept table that was last searched without success.
    pub accepts_seen: Option<u64>,
    /// Slow ticks since the last message.
    pub idle: u32,
    ring: SlotRing,
    producer: Producer,
    /// Payload bytes of programs' messages, and slots with other messages. Counted here, where the sender
    /// writes anyway; the number of programs' messages follows from the write position.
    bytes: u64,
    others: u64,
    descriptor: LineRef,
    counters: LineRef,
    accepted: Option<(LineRef<ReadOnly>, LineRef<ReadOnly>)>,
    answered: u64,
    activity: LineRef,
    sender: u32,
    /// The receiver's block, which says whether it sleeps, and the last sleep that was rung for.
    sleeper: Option<LineRef<ReadOnly>>,
    rung: u64,
    /// The read position at which the receiver was last asked to wake us.
    asked: u64,
    data_write: u64,
    data_read: u64,
    data_end: Box<[u64]>,
    chunks: VecDeque<(u64, u64)>,
}

impl Outgoing {
    /// A lane over fresh memory, with both lines of its descriptor; `sender` is the sending endpoint's slot in its peer's
    /// table.
    #[allow(clippy::too_many_arguments)] // each is a part of the lane, and there is one caller
    pub fn new(
        number: u32,
        place: Place,
        ring: SlotRing,
        descriptor: LineRef,
        counters: LineRef,
        activity: LineRef,
        sender: u32,
        sleeper: Option<LineRef<ReadOnly>>,
    ) -> Self {
        let slots = ring.capacity();
        for position in 0..slots {
            ring.slot(position).clear();
        }
        let count = usize::try_from(slots).unwrap_or(0);
        Self {
            number,
            place,
            accepts_seen: None,
            idle: 0,
            producer: Producer::new(slots),
            bytes: 0,
            others: 0,
            ring,
            descriptor,
            counters,
            accepted: None,
            answered: 0,
            activity,
            sender,
            sleeper,
            rung: 0,
            asked: 0,
            data_write: 0,
            data_read: 0,
            data_end: vec![0; count].into(),
            chunks: VecDeque::new(),
        }
    }

    /// Whether the receiver has answered.
    pub fn is_accepted(&self) -> bool {
        self.accepted.is_some()
    }

    /// The receiver's accept entry: the line with the heat word and the line with the read position.
    pub fn accept(&mut self, heat: LineRef<ReadOnly>, read: LineRef<ReadOnly>) {
        self.accepted = Some((heat, read));
    }

    /// Longest payload that goes through the data ring.
    #[inline]
    pub fn eager_bytes(&self) -> u64 {
        self.place.size.data_bytes / 2
    }

    /// Slots of its ring.
    #[inline]
    pub fn slots(&self) -> usize {
        usize::try_from(self.ring.capacity()).unwrap_or(0)
    }

    #[inline]
    fn index(&self, position: u64) -> usize {
        usize::try_from(position & (self.ring.capacity() - 1)).unwrap_or(0)
    }

    /// Reads the receiver's read position.
    ///
    /// # Errors
    /// [`BadPosition`]: the receiver is faulty.
    pub fn refresh(&mut self) -> Result<(), BadPosition> {
        if let Some((_, read)) = &self.accepted {
            self.producer.refresh(&read.words[0])?;
            let seen = self.producer.read_seen();
            if seen > 0 {
                self.data_read = self.data_end[self.index(seen - 1)];
            }
        }
        Ok(())
    }

    /// Whether a slot is free, by the read position that was last read.
    #[inline]
    pub fn has_known_room(&self) -> bool {
        self.producer.has_room()
    }

    /// Whether a slot is free.
    ///
    /// # Errors
    /// [`BadPosition`].
    #[inline]
    pub fn has_room(&mut self) -> Result<bool, BadPosition> {
        if self.producer.has_room() {
            return Ok(true);
        }
        self.refresh()?;
        Ok(self.producer.has_room())
    }

    /// Takes `len` bytes of the data ring for the message that is pushed next; returns their offset in the
    /// section, or `None` if there is no room.
    ///
    /// # Errors
    /// [`BadPosition`].
    #[inline]
    pub fn take_data(&mut self, len: u64) -> Result<Option<u64>, BadPosition> {
        let bytes = self.place.size.data_bytes;
        let need = len.next_multiple_of(64);
        let at = self.data_write & (bytes - 1);
        let skip = if at + need > bytes { bytes - at } else { 0 };
        if self.data_write + skip + need - self.data_read > bytes {
            self.refresh()?;
            if self.data_write + skip + need - self.data_read > bytes {
                return Ok(None);
            }
        }
        self.data_write += skip + need;
        Ok(Some(self.place.data + ((at + skip) & (bytes - 1))))
    }

    /// Where the next message's payload will lie, if it is of so many bytes, and if they are known to be free.
    #[inline(always)] // a few instructions
    pub fn next_data(&self, len: u64) -> Option<u64> {
        let bytes = self.place.size.data_bytes;
        let need = len.next_multiple_of(64);
        let at = self.data_write & (bytes - 1);
        let is_free = at + need <= bytes && self.data_write + need - self.data_read <= bytes;
        is_free.then_some(self.place.data + at)
    }

    /// Publishes a message; there must be room. Returns whether it had to be announced.
    #[inline]
    pub fn push(&mut self, message: &Message, count: usize) -> bool {
        self.others += u64::from(!wire::is_programs(wire::kind_of(message[0])));
        let announce = self.begin();
        self.producer.push(&self.ring, message, count);
        self.published(announce);
        announce
    }

    /// Publishes a program's message whose payload `buf` lies in its slot, with `head` as word 0; there must be room. Returns
    /// whether it had to be announced.
    #[inline(always)] // on the way of a short message
    pub fn push_inline(&mut self, head: u64, [tag, data]: [u64; 2], buf: LocalBuf) -> bool {
        let announce = self.begin();
        let slot = self.producer.begin(&self.ring);
        slot.put(1, tag);
        slot.put(2, data);
        match buf.eight() {
            Some(word) => slot.put(3, word),
            None => put_words(slot, buf),
        }
        self.producer.publish(slot, head);
        self.published(announce);
        announce
    }

    /// The same for a payload of `len` bytes at `offset` of the sender's section.
    #[inline(always)] // into its one caller
    pub fn push_staged(&mut self, head: u64, [tag, data]: [u64; 2], len: u64, offset: u64) -> bool {
        let announce = self.begin();
        let slot = self.producer.begin(&self.ring);
        slot.put(1, tag);
        slot.put(2, data);
        slot.put(3, len);
        slot.put(4, offset);
        self.producer.publish(slot, head);
        self.published(announce);
        announce
    }

    /// What comes before a message is published. Returns whether it has to be announced.
    #[inline(always)] // on the way of a short message
    fn begin(&mut self) -> bool {
        let announce = match &self.accepted {
            Some((heat, _)) => must_announce(&heat.words[3], &self.descriptor.words[6], &mut self.answered),
            None => true,
        };
        let at = self.index(self.producer.written());
        self.data_end[at] = self.data_write;
        step(Step::Unpublished);
        announce
    }

    /// What comes after a message was published.
    #[inline(always)] // on the way of a short message
    fn published(&mut self, announce: bool) {
        step(Step::Published);
        self.idle = 0;
        if announce {
            activity::announce(&self.activity, self.sender);
        }
    }

    /// The chunk at `offset` is in use until the receiver has passed the message that was pushed last.
    pub fn hold_chunk(&mut self, offset: u64) {
        self.chunks.push_back((self.producer.written(), offset));
    }

    /// Chunks in flight.
    pub fn chunks_held(&self) -> usize {
        self.chunks.len()
    }

    /// A chunk that the receiver has passed, by the read position that was last read.
    pub fn free_chunk(&mut self) -> Option<u64> {
        let (position, _) = self.chunks.front()?;
        if *position <= self.producer.read_seen() {
            return self.chunks.pop_front().map(|(_, offset)| offset);
        }
        None
    }

    /// All chunks; for a lane whose receiver is gone.
    pub fn all_chunks(&mut self) -> impl Iterator<Item = u64> + '_ {
        self.chunks.drain(..).map(|(_, offset)| offset)
    }

    /// Whether the receiver has passed everything.
    ///
    /// # Errors
    /// [`BadPosition`].
    pub fn is_drained(&mut self) -> Result<bool, BadPosition> {
        if self.producer.written() != self.producer.read_seen() {
            self.refresh()?;
        }
        Ok(self.producer.written() == self.producer.read_seen())
    }

    /// Counts the payload of a program's message.
    #[inline]
    pub fn count_bytes(&mut self, len: u64) {
        self.bytes += len;
    }

    /// Messages that programs sent since the lane was opened, and their payload bytes.
    pub fn sent(&self) -> (u64, u64) {
        (self.producer.written() - self.others, self.bytes)
    }

    /// Writes what was sent to the descriptor's counters, for observers.
    pub fn tell(&self, totals: &LaneTotals) {
        totals.write(&self.counters);
    }

    /// Messages pushed since the lane was opened.
    pub fn written(&self) -> u64 {
        self.producer.written()
    }

    /// Messages that the receiver has passed, by the read position that was last read.
    pub fn read_seen(&self) -> u64 {
        self.producer.read_seen()
    }

    /// Tells the receiver that something about the lane changed.
    pub fn announce(&self) {
        activity::announce(&self.activity, self.sender);
    }

    /// After an announcement: how the receiver is to be woken, if it sleeps.
    pub fn bell_to_ring(&mut self) -> Option<Bell> {
        let sleeper = self.sleeper.as_ref()?;
        sleep::who_to_ring(&sleeper.words[4], &mut self.rung)
    }

    /// Whether the receiver no longer has the lane in its accept table, where it was found under `key`.
    pub fn is_let_go(&self, key: u64) -> bool {
        self.accepted.as_ref().is_none_or(|(entry, _)| entry.words[0].get() != key)
    }

    /// Before a sleep for want of room: tells the receiver at which read position it is to wake us, unless it
    /// knows. Asks nothing if the receiver has passed everything, or has not accepted the lane: it wakes us
    /// when it does.
    pub fn ask_for_room(&mut self) -> Asked {
        if self.accepted.is_none() {
            return Asked::Before;
        }
        let (read, written) = (self.producer.read_seen(), self.producer.written());
        if read == written {
            return Asked::No;
        }
        // Halfway: there is room again while the receiver still has something to do.
        let middle = match self.chunks.get(self.chunks.len() / 2) {
            Some((position, _)) => (*position).max(read + 1),
            None => read + (written - read).div_ceil(2),
        };
        if self.asked == middle {
            return Asked::Before;
        }
        self.asked = middle;
        self.descriptor.words[7].set(middle);
        self.announce();
        Asked::Now
    }

    /// Answers a request to cool, if there is one.
    pub fn answer(&mut self) {
        if let Some((heat, _)) = &self.accepted {
            let _ = must_announce(&heat.words[3], &self.descriptor.words[6], &mut self.answered);
        }
    }
}

/// What a receiver is to do for a sender that may wait for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Nothing.
    None,
    /// Wake it when more was read.
    Later,
    /// Wake it now.
    Now,
}

/// The receiver's end.
#[derive(Debug)]
pub struct Incoming {
    /// The sender.
    pub peer: PeerId,
    /// The sender's section, for payloads.
    pub section: PeerSection,
    /// Number of the accept entry.
    pub entry: u32,
    /// Generation of the descriptor that was accepted.
    pub generation: u64,
    /// Number of the sender's descriptor.
    pub number: u32,
    /// Whether the lane is polled directly, and how it cools.
    pub thermostat: Thermostat,
    /// The endpoint's tick at its last message.
    pub last: u64,
    /// The read position of the last request for room that was served.
    woken_at: u64,
    /// Where the next payload is expected, and its length.
    expected: Option<(u64, u64)>,
    ring: SlotRing<ReadOnly>,
    consumer: Consumer,
    descriptor: LineRef<ReadOnly>,
    heat: LineRef,
    read: LineRef,
    /// The sender's block, which says whether it sleeps, and the last sleep that was rung for.
    sleeper: Option<LineRef<ReadOnly>>,
    rung: u64,
}

impl Incoming {
    /// A lane at its first message.
    #[allow(clippy::too_many_arguments)] // each is a part of the lane, and there is one caller
    pub fn new(
        peer: PeerId,
        section: PeerSection,
        entry: u32,
        generation: u64,
        number: u32,
        ring: SlotRing<ReadOnly>,
        descriptor: LineRef<ReadOnly>,
        heat: LineRef,
        read: LineRef,
        sleeper: Option<LineRef<ReadOnly>>,
    ) -> Self {
        Self {
            peer,
            section,
            entry,
            generation,
            number,
            thermostat: Thermostat::default(),
            last: 0,
            woken_at: 0,
            expected: None,
            ring,
            consumer: Consumer::new(),
            descriptor,
            heat,
            read,
            sleeper,
            rung: 0,
        }
    }

    /// Word 0 of the next message, if it is there.
    #[inline]
    pub fn arrived(&self) -> Option<u64> {
        self.next().arrived(self.consumer.read())
    }

    /// Asks for the lines of the payload that is expected, if one is: for a receiver that waits.
    #[inline]
    pub fn expect_payload(&self) {
        if let Some((offset, len)) = self.expected {
            self.section.expect(offset, len);
        }
    }

    /// The payload of the last message lay in the data ring. If it was short and nothing came behind it, the next message is probably
    /// like it, and its payload lies behind this one.
    #[inline]
    pub fn took_payload(&mut self, offset: u64, len: u64) {
        let need = len.next_multiple_of(64);
        let is_likely = len <= EXPECTED && self.arrived().is_none();
        self.expected = is_likely.then_some((offset.wrapping_add(need), need));
    }

    /// Whether anything came.
    pub fn has_taken(&self) -> bool {
        self.consumer.read() > 0
    }

    /// The slot of the next message.
    #[inline]
    pub fn next(&self) -> &ReadSlot {
        self.consumer.next(&self.ring)
    }

    /// Prefetches the line of the message `ahead` after the next.
    #[inline(always)] // one instruction
    pub fn expect(&self, ahead: u64) {
        self.consumer.expect(&self.ring, ahead);
    }

    /// Counts the next message as consumed.
    #[inline]
    pub fn advance(&mut self) {
        self.consumer.advance();
    }

    /// Gives consumed slots back, if there are any.
    #[inline]
    pub fn release(&mut self) {
        if self.consumer.owes() {
            self.give_back();
        }
    }

    /// Gives consumed slots back, of which there are some.
    #[inline(always)] // on the way of a short message
    pub fn give_back(&mut self) {
        self.consumer.release(&self.read.words[0]);
    }

    /// Gives back the slot of the message that is being handled, and all before it.
    pub fn release_through(&mut self) {
        self.consumer.release_through(&self.read.words[0]);
    }

    /// Makes the lane hot.
    pub fn warm(&mut self) {
        self.thermostat.warm(&self.heat.words[3]);
    }

    /// Asks the sender to announce again.
    pub fn cool(&mut self) {
        self.thermostat.cool(&self.heat.words[3]);
    }

    /// Whether the sender has answered that.
    pub fn settled(&mut self) -> bool {
        self.thermostat.settled(&self.descriptor.words[6])
    }

    /// What a receiver is to do for a sender that may wait for room. A request that no honest sender makes is
    /// ignored.
    pub fn request(&mut self) -> Request {
        let asked = self.descriptor.words[7].get();
        let read = self.consumer.released();
        if asked == self.woken_at || asked > read + self.ring.capacity() {
            return Request::None;
        }
        if asked > read {
            // An honest sender asks only for messages that it has published.
            return if self.arrived().is_some() { Request::Later } else { Request::None };
        }
        self.woken_at = asked;
        Request::Now
    }

    /// How the sender is to be woken, if it sleeps.
    pub fn bell_to_ring(&mut self) -> Option<Bell> {
        sleep::who_to_ring(&self.sleeper.as_ref()?.words[4], &mut self.rung)
    }
}
