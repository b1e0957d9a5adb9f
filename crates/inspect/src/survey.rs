//! A survey: one pass over a region, in which every structure of the format is read once, checked, and returned as data.
//!
//! The host section and the members' tables are read here, named objects in `objects`, an endpoint's chains in `chains`, a
//! context's channels in `channels`, and memory that initiators reach without messages in `registrations`. Two kinds of
//! rules are checked: what a single writer guarantees (offsets, sizes, states), always; and what holds between words of
//! two writers (a lane's read position and its stamps), only in memory, since a dump of a region at work has words of
//! different moments.

mod chains;
mod channels;
mod members;
mod objects;
mod registrations;
mod sysv;

use isthmus_region::address::SystemId;
use isthmus_region::format::{self, DEVICE_SECTION_ALIGN, MAGIC, SECTION_ALIGN, VERSION, file, header, peer};
use isthmus_region::life::{Life, State};
use isthmus_region::membership::Shape;
use isthmus_region::reader::Reader;
use isthmus_region::text::printable;

use crate::claims::Claims;
use crate::fault::{Fault, Faults, Place, number};
use crate::model::{Member, Region, Survey, padded};

/// How much to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Tables, lanes, counters.
    Tables,
    /// Every slot of every ring, too.
    Slots,
}

/// What a survey has found.
#[derive(Debug)]
pub struct Look {
    /// The region; none if its header makes no sense.
    pub survey: Option<Survey>,
    /// What is wrong with it.
    pub faults: Faults,
}

impl Look {
    /// Whether the region could be read and nothing was wrong with it.
    pub fn is_sound(&self) -> bool {
        self.survey.is_some() && self.faults.is_empty()
    }
}

/// Where the peer table lies in this version.
const PEER_TABLE: u64 = 4096;

/// The walk through a region.
struct Walk<'a> {
    reader: &'a Reader,
    depth: Depth,
    faults: Faults,
    /// Of each file, its start in what is read, if it is there, and its length.
    files: Vec<(Option<u64>, u64)>,
    /// Whether the shared section lies where it may.
    has_shared: bool,
}

/// An error of the region's; the caller, which knows what was read, makes this crate's error of it.
type Result<T> = isthmus_region::Result<T>;

/// Surveys a region.
///
/// # Errors
/// The reader's, if the system does not let this process read bytes that the reader said are there.
pub fn look(reader: &Reader, depth: Depth) -> Result<Look> {
    let mut walk = Walk { reader, depth, faults: Faults::default(), files: Vec::new(), has_shared: false };
    let survey = walk.region()?;
    Ok(Look { survey, faults: walk.faults })
}

/// The half of a word at an offset that is a multiple of four.
fn half(words: &[u64], offset: u64) -> u32 {
    let word = word(words, offset & !7);
    let shift = if offset % 8 == 4 { 32 } else { 0 };
    u32::try_from((word >> shift) & 0xffff_ffff).unwrap_or(0)
}

/// The word at an offset of a structure.
fn word(words: &[u64], offset: u64) -> u64 {
    usize::try_from(offset / 8).ok().and_then(|i| words.get(i)).copied().unwrap_or(0)
}

impl Walk<'_> {
    fn fault(
        &mut self,
        place: Place,
        field: &'static str,
        offset: u64,
        value: impl Into<String>,
        allowed: impl Into<String>,
    ) {
        let (value, allowed) = (value.into(), allowed.into());
        self.faults.add(Fault { place: place.to_string(), field, offset, value, allowed });
    }

    /// Notes a fault unless `holds`; returns `holds`.
    fn require(
        &mut self,
        holds: bool,
        place: Place,
        field: &'static str,
        offset: u64,
        value: u64,
        allowed: impl FnOnce() -> String,
    ) -> bool {
        if !holds {
            self.fault(place, field, offset, number(value), allowed());
        }
        holds
    }

    /// Reads `count` words.
    fn words(&self, what: &'static str, offset: u64, count: usize) -> Result<Vec<u64>> {
        let mut words = vec![0; count];
        self.reader.words(what, offset, &mut words)?;
        Ok(words)
    }

    /// Checks a life word and decodes it.
    fn life(&mut self, place: Place, field: &'static str, offset: u64, word: u64) -> Life {
        let life = Life::unpack(word);
        let state = word & 0xff;
        self.require(state <= 3, place, field, offset, word, || {
            "0 (free), 1 (joining), 2 (active) or 3 (dead) in its lowest byte".into()
        });
        self.require(state == 0 || life.incarnation != 0, place, field, offset, word, || {
            "an incarnation above 0 in its upper bytes".into()
        });
        life
    }

    fn region(&mut self) -> Result<Option<Survey>> {
        let Some((shape, region)) = self.header()? else { return Ok(None) };
        let end = PEER_TABLE + u64::from(shape.peers) * peer::BYTES;
        if end > self.reader.len() {
            let at = header::PEERS;
            self.fault(
                Place::Region,
                "header.PEERS",
                at,
                number(shape.peers.into()),
                "as many as fit into the region",
            );
            return Ok(Some(Survey { region, members: Vec::new(), objects: Vec::new() }));
        }
        let mut sections = Claims::default();
        // Host section and shared section were checked to lie in the region; nothing was claimed before them.
        let _ = sections.take(0, shape.first_section().clamp(1, self.reader.len()));
        if shape.shared_file != 0
            && shape.shared_bytes > 0
            && let Some(start) = self.start_of(shape.shared_file)
        {
            let _ = sections.take(start + shape.shared, shape.shared_bytes);
        }
        let mut members = Vec::new();
        for index in 0..shape.peers {
            if let Some(member) = self.peer(&shape, index, &mut sections)? {
                members.push(member);
            }
        }
        self.names(&members);
        let objects = self.objects(&shape)?;
        let mut survey = Survey { region, members, objects };
        self.connect(&shape, &mut survey)?;
        Self::connect_channels(&mut survey);
        self.owners(&survey);
        Ok(Some(survey))
    }

    fn header(&mut self) -> Result<Option<(Shape, Region)>> {
        let len = self.reader.len();
        let least = format::LEAST_REGION_BYTES;
        let place = Place::Region;
        if !self.require(len >= least, place, "its size", 0, len, || format!("at least {}", number(least))) {
            return Ok(None);
        }
        let words = self.words("header", 0, 24)?;
        let magic = word(&words, header::MAGIC);
        if magic != MAGIC {
            let found: String = magic.to_le_bytes().iter().map(|b| char::from(*b)).collect();
            self.fault(
                place,
                "header.MAGIC",
                header::MAGIC,
                format!("{:?}", printable(&found)),
                "\"ISTHMUS1\"",
            );
            return Ok(None);
        }
        let version = half(&words, header::VERSION);
        if !self.require(version == VERSION, place, "header.VERSION", header::VERSION, version.into(), || {
            format!("{VERSION}, the version that this isthmus knows")
        }) {
            return Ok(None);
        }
        let bytes = u64::from(half(&words, header::HEADER_BYTES));
        self.require(
            bytes == header::BYTES,
            place,
            "header.HEADER_BYTES",
            header::HEADER_BYTES,
            bytes,
            || header::BYTES.to_string(),
        );
        let bytes = word(&words, header::REGION_BYTES);
        let (files, shared_file) = (half(&words, header::FILES), half(&words, header::SHARED_FILE));
        // Of several files, the others may be missing.
        let fits = bytes.is_power_of_two() && if files > 1 { bytes <= len } else { bytes == len };
        self.require(fits, place, "header.REGION_BYTES", header::REGION_BYTES, bytes, || {
            let or_less = if files > 1 { " or less" } else { "" };
            format!("the bytes that there are, {}{or_less}, and a power of two", number(len))
        });
        let region_bytes = if files > 1 { bytes.min(len) } else { len };
        let uuid = [word(&words, header::UUID), word(&words, header::UUID + 8)];
        self.require(uuid != [0, 0], place, "header.UUID", header::UUID, 0, || "a random number".into());
        let (peers, endpoints) = (half(&words, header::PEERS), half(&words, header::ENDPOINTS));
        let sane = self.require(
            (1..=format::MAX_PEERS).contains(&peers),
            place,
            "header.PEERS",
            header::PEERS,
            peers.into(),
            || format!("1 to {}", format::MAX_PEERS),
        ) & self.require(
            (1..=format::MAX_ENDPOINTS).contains(&endpoints),
            place,
            "header.ENDPOINTS",
            header::ENDPOINTS,
            endpoints.into(),
            || format!("1 to {}", format::MAX_ENDPOINTS),
        );
        if !sane {
            return Ok(None);
        }
        let table = word(&words, header::PEER_TABLE);
        self.require(table == PEER_TABLE, place, "header.PEER_TABLE", header::PEER_TABLE, table, || {
            PEER_TABLE.to_string()
        });
        let host_bytes = word(&words, header::HOST_BYTES);
        let objects = half(&words, header::OBJECTS);
        if !self.require(
            objects <= format::MAX_OBJECTS,
            place,
            "header.OBJECTS",
            header::OBJECTS,
            objects.into(),
            || format!("at most {}", format::MAX_OBJECTS),
        ) {
            return Ok(None);
        }
        let shared_bytes = word(&words, header::SHARED_BYTES);
        let sane = self.require(
            (1..=format::MAX_FILES).contains(&files),
            place,
            "header.FILES",
            header::FILES,
            files.into(),
            || format!("1 to {}", format::MAX_FILES),
        ) && self.require(
            shared_file < files,
            place,
            "header.SHARED_FILE",
            header::SHARED_FILE,
            shared_file.into(),
            || format!("below the number of files, {files}"),
        );
        if !sane {
            return Ok(None);
        }
        let shared = word(&words, header::SHARED);
        let align = word(&words, header::SECTION_ALIGN);
        let fits = align.is_power_of_two() && (SECTION_ALIGN..=DEVICE_SECTION_ALIGN).contains(&align);
        if !self.require(fits, place, "header.SECTION_ALIGN", header::SECTION_ALIGN, align, || {
            format!("a power of two from {SECTION_ALIGN} to {DEVICE_SECTION_ALIGN}")
        }) {
            return Ok(None);
        }
        let mut shape = Shape {
            region_bytes,
            uuid,
            peers,
            endpoints,
            host_bytes,
            shared_file,
            shared,
            shared_bytes,
            objects,
            files,
            section_align: align,
        };
        for (field, offset, expected) in [
            ("header.REPLY_TABLE", header::REPLY_TABLE, shape.reply_table()),
            ("header.OBJECT_TABLE", header::OBJECT_TABLE, shape.object_table()),
            ("header.FILE_TABLE", header::FILE_TABLE, shape.file_table()),
        ] {
            let found = word(&words, offset);
            self.require(found == expected, place, field, offset, found, || expected.to_string());
        }
        let end = shape.tables_end();
        let fits = host_bytes >= end && host_bytes <= region_bytes && host_bytes.is_multiple_of(align);
        self.require(fits, place, "header.HOST_BYTES", header::HOST_BYTES, host_bytes, || {
            format!("a multiple of {align} from {end} to {}", number(region_bytes))
        });
        // The tables that follow were just found to lie in the host section only if it fits.
        if !fits {
            return Ok(None);
        }
        let file = self.files(&shape)?;
        let least = if shared_file == 0 { host_bytes } else { 0 };
        let begins = shared >= least && shared <= file && shared.is_multiple_of(align);
        self.require(begins, place, "header.SHARED", header::SHARED, shared, || {
            format!("a multiple of {align} from {least} to {}", number(file))
        });
        let left = file.saturating_sub(shared);
        let fits_too = shared_bytes <= left && shared_bytes.is_multiple_of(align);
        self.require(fits_too, place, "header.SHARED_BYTES", header::SHARED_BYTES, shared_bytes, || {
            format!("a multiple of {align} up to {}", number(left))
        });
        self.has_shared = begins && fits_too;
        if !self.has_shared {
            // Without it everything else can still be shown; peers' sections are then compared with the host section alone.
            shape = Shape { shared: if shared_file == 0 { host_bytes } else { 0 }, shared_bytes: 0, ..shape };
        }
        let layout = word(&words, header::LAYOUT);
        let same = self.require(
            layout == format::LAYOUT_HASH,
            place,
            "header.LAYOUT",
            header::LAYOUT,
            layout,
            || format!("{:#018x}, as in this build of isthmus", format::LAYOUT_HASH),
        );
        if !same {
            return Ok(None);
        }
        let service = word(&words, header::SERVICE);
        let life = self.life(place, "header.SERVICE", header::SERVICE, service);
        let said = matches!(life.state, State::Active | State::Dead);
        self.require(said, place, "header.SERVICE", header::SERVICE, service, || {
            "active (2) or dead (3) in its lowest byte".into()
        });
        let region = Region {
            uuid: format!("{:016x}{:016x}", uuid[0], uuid[1]),
            bytes: len,
            generation: word(&words, header::GENERATION),
            service: life.state,
            files,
            places: peers,
            endpoints_per_member: endpoints,
            shared_bytes: shape.shared_bytes,
            object_places: objects,
            processors: word(&words, header::CPUS),
            dax: self.reader.is_dax(),
        };
        Ok(Some((shape, region)))
    }

    /// Checks the file table, and finds the files in what is read. Gives the length of the shared section's file.
    fn files(&mut self, shape: &Shape) -> Result<u64> {
        let mut lengths = Vec::new();
        for index in 0..shape.files {
            let at = shape.file_table() + u64::from(index) * file::BYTES;
            let bytes = self.words("file table", at + file::LENGTH, 1)?[0];
            let fits = if index == 0 { bytes == shape.region_bytes } else { bytes.is_power_of_two() };
            self.require(fits, Place::Region, "file.LENGTH", at + file::LENGTH, bytes, || match index {
                0 => format!("the region's bytes, {}", number(shape.region_bytes)),
                _ => "a power of two".into(),
            });
            lengths.push(bytes);
        }
        let all = lengths.iter().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        let len = self.reader.len();
        let is_whole = shape.files == 1 || all == len;
        self.require(
            is_whole,
            Place::Region,
            "header.FILES",
            header::FILES,
            shape.files.into(),
            || match len == shape.region_bytes {
                true => "1, as only the first file is here".into(),
                false => format!("files that have the bytes that there are, {}, together", number(len)),
            },
        );
        let mut start = 0;
        self.files.clear();
        for (index, bytes) in lengths.iter().enumerate() {
            // The first file is the region's, whatever length is claimed for it.
            let length = if index == 0 { shape.region_bytes } else { *bytes };
            self.files.push(((index == 0 || is_whole).then_some(start), length));
            start = start.saturating_add(*bytes);
        }
        Ok(self.files.get(shape.shared_file as usize).map_or(0, |(_, bytes)| *bytes))
    }

    /// Where a file begins in what is read; none if it is not there.
    fn start_of(&self, file: u32) -> Option<u64> {
        self.files.get(file as usize).and_then(|(start, _)| *start)
    }

    /// One entry of the peer table and, if the peer lives, its section.
    fn peer(&mut self, shape: &Shape, index: u32, sections: &mut Claims) -> Result<Option<Member>> {
        let at = PEER_TABLE + u64::from(index) * peer::BYTES;
        let place = Place::Peer(index);
        let words = self.words("peer", at, 16)?;
        let life_word = word(&words, peer::LIFE);
        let life = self.life(place, "peer.LIFE", at + peer::LIFE, life_word);
        if life.state == State::Free {
            return Ok(None);
        }
        self.require(life.incarnation < 1 << 24, place, "peer.LIFE", at + peer::LIFE, life_word, || {
            "an incarnation of 24 bits in its upper bytes".into()
        });
        let kind = half(&words, peer::KIND);
        self.require(kind <= 1, place, "peer.KIND", at + peer::KIND, kind.into(), || "0 or 1".into());
        let name = self.name(place, at);
        let section = word(&words, peer::SECTION);
        let section_bytes = word(&words, peer::SECTION_BYTES);
        let file = half(&words, peer::FILE);
        let known =
            self.require(file < shape.files, place, "peer.FILE", at + peer::FILE, file.into(), || {
                format!("below the number of files, {}", shape.files)
            });
        let usable = match known {
            true => self.section(shape, place, at, (file, section), section_bytes, sections),
            false => None,
        };
        let mut member = Member {
            index,
            name: name?,
            kind: if kind == 1 { "vm" } else { "host" },
            state: life.state,
            incarnation: life.incarnation,
            system: SystemId([word(&words, peer::SYSTEM), word(&words, peer::SYSTEM + 8)]).to_string(),
            file,
            section: usable.unwrap_or(0),
            section_bytes,
            vectors: 0,
            heap_bytes: 0,
            heap_used: 0,
            pages_bytes: 0,
            pages_granted: 0,
            counters: isthmus_region::counters::Totals::default(),
            processes: Vec::new(),
            endpoints: Vec::new(),
            registrations: Vec::new(),
        };
        // A joining peer's section is being written, and a dead peer's has no owner.
        if usable.is_some() && life.state == State::Active {
            self.member(shape, &mut member)?;
        }
        Ok(Some(member))
    }

    fn name(&mut self, place: Place, at: u64) -> Result<String> {
        let mut bytes = [0; 64];
        self.reader.bytes("peer", at + peer::NAME, &mut bytes)?;
        let (name, length) = padded(&bytes);
        if !length.is_some_and(|bytes| (1..64).contains(&bytes)) {
            self.fault(
                place,
                "peer.NAME",
                at + peer::NAME,
                format!("{name:?}"),
                "1 to 63 bytes of UTF-8 and zeros behind them",
            );
        }
        Ok(name)
    }

    /// Checks where a section lies. Gives its start in what is read, if its file is there.
    fn section(
        &mut self,
        shape: &Shape,
        place: Place,
        at: u64,
        (file, start): (u32, u64),
        bytes: u64,
        taken: &mut Claims,
    ) -> Option<u64> {
        let least = isthmus_region::directory::least_section_bytes(shape);
        let (first, length) = match file {
            0 => (shape.first_section(), shape.region_bytes),
            _ => (shape.first_section_in(file), self.files.get(file as usize)?.1),
        };
        let (end, align) = (start.checked_add(bytes), shape.section_align);
        let inside = start >= first && start.is_multiple_of(align) && end.is_some_and(|e| e <= length);
        if !self.require(inside, place, "peer.SECTION", at + peer::SECTION, start, || {
            format!(
                "a multiple of {align} from {} on, with its {} bytes inside its file's {}",
                number(first),
                number(bytes),
                number(length)
            )
        }) {
            return None;
        }
        let enough = bytes >= least && bytes.is_multiple_of(align);
        if !self.require(enough, place, "peer.SECTION_BYTES", at + peer::SECTION_BYTES, bytes, || {
            format!("a multiple of {align}, and at least {}", number(least))
        }) {
            return None;
        }
        // All files that are there together are no longer than what is read, so this does not overflow.
        let start = self.start_of(file)? + start;
        if let Err((s, e)) = taken.take(start, bytes) {
            let other = format!("outside of {s:#x} to {e:#x}, which belong to another section");
            self.fault(
                place,
                "peer.SECTION",
                at + peer::SECTION,
                format!("{start:#x} to {:#x}", start + bytes),
                other,
            );
            return None;
        }
        Some(start)
    }

    /// Checks that no two members that live have the same name, or are the same system.
    fn names(&mut self, members: &[Member]) {
        let living: Vec<&Member> =
            members.iter().filter(|m| matches!(m.state, State::Joining | State::Active)).collect();
        for (i, member) in living.iter().enumerate() {
            let at = PEER_TABLE + u64::from(member.index) * peer::BYTES;
            let place = Place::Peer(member.index);
            if let Some(other) = living[..i].iter().find(|m| m.name == member.name) {
                let allowed = format!("another name than that of peer {}", other.index);
                self.fault(place, "peer.NAME", at + peer::NAME, format!("{:?}", member.name), allowed);
            }
            let is_same = |m: &Member| m.system == member.system && m.state == State::Active;
            let other = living[..i].iter().find(|m| is_same(m)).map(|m| format!("peer {}", m.index));
            let none = || (member.system == SystemId::NONE.to_string()).then(|| "none".to_owned());
            if let Some(other) = other.or_else(none).filter(|_| member.state == State::Active) {
                let allowed = format!("another system than that of {other}");
                self.fault(place, "peer.SYSTEM", at + peer::SYSTEM, member.system.clone(), allowed);
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A survey of a region without members.
    pub(crate) fn nothing() -> Survey {
        let region = Region {
            uuid: String::new(),
            bytes: 0,
            generation: 0,
            service: State::Active,
            files: 1,
            places: 0,
            endpoints_per_member: 0,
            shared_bytes: 0,
            object_places: 0,
            processors: 0,
            dax: false,
        };
        Survey { region, members: Vec::new(), objects: Vec::new() }
    }
}
