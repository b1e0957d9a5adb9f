//! What is wrong in a region: where, what was found, what would be right.

use std::fmt;

use serde::Serialize;

/// Most faults that are kept; the others are counted.
pub(crate) const MOST: usize = 1000;

/// The part of a region that a fault is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The file as a whole, or the header.
    Region,
    /// An entry of the peer table.
    Peer(u32),
    /// An entry of the object table.
    Object(u32),
    /// A peer's directory.
    Directory(u32),
    /// An entry of a peer's area table.
    Area(u32, u32),
    /// An endpoint of a peer.
    Endpoint(u32, u32),
    /// An outgoing lane: peer, endpoint, number.
    Lane(u32, u32, u64),
    /// An accept entry: peer, endpoint, number.
    Accept(u32, u32, u64),
    /// An end of a channel: peer, endpoint, number.
    Channel(u32, u32, u64),
    /// A table of registrations: peer, area.
    Registrations(u32, u32),
    /// An entry of such a table: peer, area, number.
    Registration(u32, u32, u64),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Region => f.write_str("region"),
            Self::Peer(peer) => write!(f, "peer {peer}"),
            Self::Object(index) => write!(f, "object {index}"),
            Self::Directory(peer) => write!(f, "peer {peer}, directory"),
            Self::Area(peer, area) => write!(f, "peer {peer}, area {area}"),
            Self::Endpoint(peer, slot) => write!(f, "peer {peer}, endpoint {slot}"),
            Self::Lane(peer, slot, number) => write!(f, "peer {peer}, endpoint {slot}, lane {number}"),
            Self::Channel(peer, slot, number) => write!(f, "peer {peer}, endpoint {slot}, channel {number}"),
            Self::Registrations(peer, area) => write!(f, "peer {peer}, area {area}, registrations"),
            Self::Registration(peer, area, number) => {
                write!(f, "peer {peer}, area {area}, registration {number}")
            }
            Self::Accept(peer, slot, number) => write!(f, "peer {peer}, endpoint {slot}, accept {number}"),
        }
    }
}

/// One fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// The part of the region.
    pub place: String,
    /// The field, as `docs/region-format.md` names it: structure, dot, field.
    pub field: &'static str,
    /// Where the field is, in bytes from the region's start.
    pub offset: u64,
    /// What was found.
    pub value: String,
    /// What would be right.
    pub allowed: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, field, offset, value, allowed } = self;
        write!(f, "{place}: {field} at offset {offset:#x} is {value}; it must be {allowed}")
    }
}

/// The faults of a region, in the order in which they were found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults {
    /// The first of them.
    pub list: Vec<Fault>,
    /// How many more there are.
    pub more: u64,
}

impl Faults {
    /// Whether nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Adds a fault.
    pub fn add(&mut self, fault: Fault) {
        if self.list.len() < MOST {
            self.list.push(fault);
        } else {
            self.more += 1;
        }
    }

    /// Keeps the faults that `other` has at the same place, too, and those that may be among the ones that either has only
    /// counted.
    pub fn keep_common(&mut self, other: &Faults) {
        let is_in = |list: &[Fault], fault: &Fault| {
            list.iter().any(|o| o.offset == fault.offset && o.field == fault.field)
        };
        if other.more == 0 {
            let had = std::mem::take(&mut self.list);
            let rest = other.list.iter().filter(|fault| self.more > 0 && !is_in(&had, fault)).cloned();
            self.list = had.iter().filter(|fault| is_in(&other.list, fault)).cloned().chain(rest).collect();
        }
        self.more = self.more.min(other.more);
    }
}

/// A number for people: a small one plain, a large one in decimal and hexadecimal.
pub fn number(value: u64) -> String {
    if value < 100_000 { value.to_string() } else { format!("{value} ({value:#x})") }
}
