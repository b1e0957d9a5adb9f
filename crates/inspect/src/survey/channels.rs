//! A context's channels: its ends, their rings, and which of them belong together.

use std::collections::HashMap;

use isthmus_region::format::{CHANNEL_ENTRIES, KIND_CHANNELS, KIND_LANES, block, channel, chunk};
use isthmus_region::life::State;
use isthmus_region::membership::Shape;

use super::members::Within;
use super::{Result, Walk, half, word};
use crate::fault::Place;
use crate::model::{Channel, Endpoint, Group, Survey};

/// Bytes of a chunk of ends.
const CHUNK_BYTES: u64 = chunk::BYTES + CHANNEL_ENTRIES * channel::BYTES;
/// The largest ring, and the smallest ring and segment.
const MOST_RING: u64 = 1 << 30;
const LEAST_RING: u64 = 256;
const LEAST_SEGMENT: u64 = 64;

impl Walk<'_> {
    /// What a block says of channels; `words` are the block's, which lies at `at`.
    pub(super) fn context(
        &mut self,
        shape: &Shape,
        within: &mut Within,
        endpoint: &mut Endpoint,
        at: u64,
        words: &[u64],
    ) -> Result<()> {
        let place = Place::Endpoint(within.peer, endpoint.local);
        let kind = word(words, block::KIND);
        let known = kind == KIND_LANES || kind == KIND_CHANNELS;
        self.require(known, place, "block.KIND", within.start + at + block::KIND, kind, || "0 or 1".into());
        let first = word(words, block::CHANNELS);
        if kind != KIND_CHANNELS {
            self.require(
                first == 0,
                place,
                "block.CHANNELS",
                within.start + at + block::CHANNELS,
                first,
                || "0, since the endpoint is no context".into(),
            );
            return Ok(());
        }
        endpoint.group = Some(Group {
            magic: word(words, block::MAGIC),
            client: word(words, block::CLIENT),
            backlog: word(words, block::BACKLOG),
        });
        let head = (at + block::CHANNELS, first);
        let mut number = 0;
        for chunk_at in self.chain(within, place, "block.CHANNELS", head, CHUNK_BYTES)? {
            for i in 0..CHANNEL_ENTRIES {
                let entry = chunk_at + chunk::BYTES + i * channel::BYTES;
                if let Some(end) = self.channel(shape, within, endpoint.local, number, entry)? {
                    endpoint.channels.push(end);
                }
                number += 1;
            }
        }
        Ok(())
    }

    fn channel(
        &mut self,
        shape: &Shape,
        within: &mut Within,
        local: u32,
        number: u64,
        entry: u64,
    ) -> Result<Option<Channel>> {
        let place = Place::Channel(within.peer, local, number);
        let at = within.start + entry;
        let words = self.words("channel", at, usize::try_from(channel::BYTES / 8).unwrap_or(0))?;
        let life = self.life(place, "channel.LIFE", at + channel::LIFE, word(&words, channel::LIFE));
        if life.state != State::Active {
            return Ok(None);
        }
        // An entry that was reused meanwhile belongs to another end, which the next survey sees.
        if self.words("channel", at + channel::LIFE, 1)?[0] != word(&words, channel::LIFE) {
            return Ok(None);
        }
        let to = word(&words, channel::TO);
        let known =
            self.require(to < u64::from(shape.slots()), place, "channel.TO", at + channel::TO, to, || {
                format!("below {}, the endpoint slots of the region", shape.slots())
            });
        let status = word(&words, channel::STATUS);
        self.require(status <= 1, place, "channel.STATUS", at + channel::STATUS, status, || "0 or 1".into());
        let ring_bytes = u64::from(half(&words, channel::RING_BYTES));
        let segment_bytes = u64::from(half(&words, channel::SEGMENT_BYTES));
        if status == 0 {
            let sized = ring_bytes.is_power_of_two() && (LEAST_RING..=MOST_RING).contains(&ring_bytes);
            let sized = self.require(
                sized,
                place,
                "channel.RING_BYTES",
                at + channel::RING_BYTES,
                ring_bytes,
                || format!("a power of two from {LEAST_RING} to {MOST_RING}"),
            );
            let most = ring_bytes / 4;
            let fits = segment_bytes.is_power_of_two() && (LEAST_SEGMENT..=most).contains(&segment_bytes);
            self.require(
                fits || !sized,
                place,
                "channel.SEGMENT_BYTES",
                at + channel::SEGMENT_BYTES,
                segment_bytes,
                || format!("a power of two from {LEAST_SEGMENT} to {most}"),
            );
            let ring = word(&words, channel::RING);
            if sized {
                self.part(within, place, "channel.RING", at + channel::RING, ring, ring_bytes);
            }
        }
        let written = word(&words, channel::WRITE);
        for (field, offset) in [("channel.END", channel::END), ("channel.PAUSED", channel::PAUSED)] {
            let end = word(&words, offset);
            self.require(end == 0 || end > written, place, field, at + offset, end, || {
                format!("0, or one more than a position from {written} on")
            });
        }
        for (field, offset) in [("channel.ROOM", channel::ROOM), ("channel.SLEEP", channel::SLEEP)] {
            let sleep = word(&words, offset);
            let said = sleep == 0 || matches!(sleep & 3, 1 | 2);
            self.require(said, place, field, at + offset, sleep, || {
                "0, or 1 (by its futex) or 2 (through its service) in its lowest two bits".into()
            });
        }
        let stopped = word(&words, channel::STOPPED);
        self.require(stopped <= 2, place, "channel.STOPPED", at + channel::STOPPED, stopped, || {
            "0, 1 or 2".into()
        });
        let partner = word(&words, channel::PARTNER).checked_sub(1);
        let state = match (status, word(&words, channel::PAUSED), word(&words, channel::END), partner) {
            (1, ..) => "refusal",
            (_, 1.., ..) => "suspended",
            (_, _, 1.., _) => "ended",
            (.., Some(_)) => "open",
            (.., None) => "offered",
        };
        let end = Channel {
            number,
            to: u32::try_from(to).unwrap_or(u32::MAX),
            to_incarnation: word(&words, channel::TO_INCARNATION),
            other_lives: false,
            state,
            ring_bytes,
            segment_bytes,
            written,
            unread: None,
            read: word(&words, channel::READ),
            asleep: match word(&words, channel::SLEEP) & 3 {
                1 => Some("futex"),
                2 => Some("service"),
                _ => None,
            },
            answers: partner.map(|number| (number, word(&words, channel::PARTNER_GENERATION))),
            generation: life.incarnation,
        };
        Ok(known.then_some(end))
    }

    /// Matches the two ends of each channel. What holds between words of two writers is not checked, since both writers go
    /// on meanwhile.
    pub(super) fn connect_channels(survey: &mut Survey) {
        let mut lives = HashMap::new();
        let mut reads = HashMap::new();
        let mut answered = HashMap::new();
        for (_, endpoint, end) in survey.channels() {
            reads.insert((endpoint.slot, end.number), (end.generation, end.read));
            if let Some((number, generation)) = end.answers.filter(|_| end.state != "refusal") {
                answered.insert((end.to, number, generation), (endpoint.slot, end.read));
            }
        }
        for endpoint in survey.members.iter().flat_map(|m| &m.endpoints) {
            lives.insert(endpoint.slot, endpoint.incarnation);
        }
        for endpoint in survey.members.iter_mut().flat_map(|m| &mut m.endpoints) {
            for end in &mut endpoint.channels {
                end.other_lives = lives.get(&end.to) == Some(&end.to_incarnation);
                let read = match end.answers {
                    Some((number, generation)) => {
                        reads.get(&(end.to, number)).filter(|r| r.0 == generation).map(|r| r.1)
                    }
                    None => answered
                        .get(&(endpoint.slot, end.number, end.generation))
                        .filter(|a| a.0 == end.to)
                        .map(|a| a.1),
                };
                if read.is_some() && end.state == "offered" {
                    end.state = "open";
                }
                end.unread = read.map(|read| end.written.saturating_sub(read).min(end.ring_bytes));
            }
        }
    }
}
