//! The host section: the region's header and its membership table, the one truth about which peers live.

use std::sync::Arc;

use isthmus_lockfree::life::{Life, State};
use isthmus_lockfree::sync::{ReadWord, release_fence};

use crate::address::SystemId;
use crate::error::{Error, Result};
use crate::files::Files;
use crate::format::{
    self, DEVICE_SECTION_ALIGN, GlobalSlot, MAGIC, SECTION_ALIGN, VERSION, file, header, object, peer, reply,
};
use crate::mapping::{LineRef, Mapping, PeerSection, ProgramMemory, ReadOnly, Section};
use crate::place::{self, Place};
use crate::source::Source;
use crate::text::{cut, padded};

/// The shape of a region, fixed when it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of the region's first file.
    pub region_bytes: u64,
    /// Random identity.
    pub uuid: [u64; 2],
    /// Entries of the peer table.
    pub peers: u32,
    /// Endpoint slots of each peer.
    pub endpoints: u32,
    /// Bytes of the host section.
    pub host_bytes: u64,
    /// File of the shared section.
    pub shared_file: u32,
    /// Its offset there.
    pub shared: u64,
    /// Its bytes.
    pub shared_bytes: u64,
    /// Entries of the object table.
    pub objects: u32,
    /// Entries of the file table.
    pub files: u32,
    /// What sections and pools of pages begin and end at multiples of.
    pub section_align: u64,
}

impl Shape {
    /// A shape of one file without a shared section, its host section sized for `peers`, its sections at multiples of
    /// [`SECTION_ALIGN`].
    ///
    /// # Errors
    /// [`Error::Invalid`] for more peers or endpoints than the format allows, or for none.
    pub fn new(region_bytes: u64, uuid: [u64; 2], peers: u32, endpoints: u32) -> Result<Self> {
        let (host_bytes, shared_file, shared, shared_bytes, objects, files) = (0, 0, 0, 0, 0, 1);
        let section_align = SECTION_ALIGN;
        Self {
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
            section_align,
        }
        .sized()
    }

    /// The same with a shared section of at least so many bytes, and a table for so many objects there.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more objects than the format allows, or more bytes than the region has.
    pub fn with_shared(self, bytes: u64, objects: u32) -> Result<Self> {
        if bytes > self.region_bytes {
            return Err(Error::Invalid { what: "bytes of the shared section", value: bytes });
        }
        Self { shared_bytes: bytes, objects, ..self }.sized()
    }

    /// The same with sections at multiples of `section_align`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an alignment that the format does not allow.
    pub fn with_section_align(self, section_align: u64) -> Result<Self> {
        Self { section_align, ..self }.sized()
    }

    /// The same with so many files, and the shared section, if there is one, at the start of file `shared_file`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more files than the format allows, or a file that there is not.
    pub fn with_files(self, files: u32, shared_file: u32) -> Result<Self> {
        Self { files, shared_file, ..self }.sized()
    }

    fn sized(mut self) -> Result<Self> {
        self.check()?;
        self.host_bytes = self.tables_end().next_multiple_of(self.section_align);
        let shared_bytes = self.shared_bytes;
        self.shared_bytes = shared_bytes
            .checked_next_multiple_of(self.section_align)
            .ok_or(Error::Invalid { what: "bytes of the shared section", value: shared_bytes })?;
        self.shared = if self.shared_file == 0 { self.host_bytes } else { 0 };
        Ok(self)
    }

    /// Offset of the replies to local services.
    pub fn reply_table(&self) -> u64 {
        PEER_TABLE_OFFSET + u64::from(self.peers) * peer::BYTES
    }

    /// Offset of the object table.
    pub fn object_table(&self) -> u64 {
        self.reply_table() + u64::from(self.peers) * reply::BYTES
    }

    /// Offset of the file table.
    pub fn file_table(&self) -> u64 {
        self.object_table() + u64::from(self.objects) * object::BYTES
    }

    /// Where the tables of the host section end.
    pub fn tables_end(&self) -> u64 {
        self.file_table() + u64::from(self.files) * file::BYTES
    }

    /// Offset in the first file of the first peer's section there, at least.
    pub fn first_section(&self) -> u64 {
        self.first_section_in(0)
    }

    /// Offset in a file of the first peer's section there, at least: behind the host section and the shared one.
    pub fn first_section_in(&self, file: u32) -> u64 {
        let host = if file == 0 { self.host_bytes } else { 0 };
        let shared = if file == self.shared_file { self.shared.saturating_add(self.shared_bytes) } else { 0 };
        host.max(shared)
    }

    fn check(&self) -> Result<()> {
        if self.peers == 0 || self.peers > format::MAX_PEERS {
            return Err(Error::Invalid { what: "number of peers", value: self.peers.into() });
        }
        if self.endpoints == 0 || self.endpoints > format::MAX_ENDPOINTS {
            return Err(Error::Invalid { what: "endpoints per peer", value: self.endpoints.into() });
        }
        if self.objects > format::MAX_OBJECTS {
            return Err(Error::Invalid { what: "number of objects", value: self.objects.into() });
        }
        if self.files == 0 || self.files > format::MAX_FILES {
            return Err(Error::Invalid { what: "number of files", value: self.files.into() });
        }
        let aligns = SECTION_ALIGN..=DEVICE_SECTION_ALIGN;
        if !self.section_align.is_power_of_two() || !aligns.contains(&self.section_align) {
            return Err(Error::Invalid { what: "alignment of sections", value: self.section_align });
        }
        if self.shared_file >= self.files {
            return Err(Error::Invalid {
                what: "file of the shared section",
                value: self.shared_file.into(),
            });
        }
        Ok(())
    }

    /// The slot `local` of `peer`.
    pub fn slot(&self, peer: u32, local: u32) -> GlobalSlot {
        GlobalSlot::new(peer, local, self.endpoints)
    }

    /// Endpoint slots of the whole region, and so lines of each activity table.
    pub fn slots(&self) -> u32 {
        self.peers * self.endpoints
    }
}

const PEER_TABLE_OFFSET: u64 = 4096;

/// One peer, as the table shows it at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerInfo {
    /// Index in the table.
    pub index: u32,
    /// Incarnation and state.
    pub life: Life,
    /// File of its section.
    pub file: u32,
    /// Offset of its section there.
    pub section: u64,
    /// Bytes of its section.
    pub section_bytes: u64,
    /// Whether it is a VM (or the host's own processes).
    pub is_vm: bool,
    /// The system that it is, or was last if it is not active.
    pub system: SystemId,
    /// Host name.
    pub name: String,
}

/// A region as its members read it.
#[derive(Debug, Clone)]
pub struct Region {
    /// The first file.
    whole: PeerSection,
    files: Arc<Files>,
    shape: Shape,
    status: LineRef<ReadOnly>,
}

impl Region {
    /// Believes a mapping to be a region, after checking its header. What lies in other files than the first cannot be reached.
    ///
    /// # Errors
    /// [`Error::Version`] or [`Error::Layout`] if it is something else, [`Error::WrongSize`], [`Error::Invalid`], [`Error::OutOfBounds`].
    pub fn open(map: &Arc<Mapping>) -> Result<Self> {
        Self::open_from(map, None)
    }

    /// As [`Region::open`]; the other files come from `source`, each when it is first used.
    ///
    /// # Errors
    /// As [`Region::open`].
    pub fn open_from(map: &Arc<Mapping>, source: Option<Arc<dyn Source>>) -> Result<Self> {
        let whole = map.whole_for_reading();
        let magic = whole.word("header", header::MAGIC)?.get();
        let version = whole.half("header", header::VERSION)?;
        if magic != MAGIC || version != VERSION {
            return Err(Error::Version { magic, version, expected: VERSION });
        }
        let layout = whole.word("header", header::LAYOUT)?.get();
        if layout != format::LAYOUT_HASH {
            return Err(Error::Layout { found: layout, expected: format::LAYOUT_HASH });
        }
        let word = |offset| whole.word("header", offset).map(ReadWord::get);
        let shape = Shape {
            region_bytes: word(header::REGION_BYTES)?,
            uuid: [word(header::UUID)?, word(header::UUID + 8)?],
            peers: whole.half("header", header::PEERS)?,
            endpoints: whole.half("header", header::ENDPOINTS)?,
            host_bytes: word(header::HOST_BYTES)?,
            shared_file: whole.half("header", header::SHARED_FILE)?,
            shared: word(header::SHARED)?,
            shared_bytes: word(header::SHARED_BYTES)?,
            objects: whole.half("header", header::OBJECTS)?,
            files: whole.half("header", header::FILES)?,
            section_align: word(header::SECTION_ALIGN)?,
        };
        shape.check()?;
        if shape.region_bytes != map.len() {
            return Err(Error::WrongSize { found: map.len(), expected: shape.region_bytes });
        }
        // The tables must lie where this version puts them, inside the host section.
        for (field, what, offset) in [
            (header::PEER_TABLE, "peer table offset", PEER_TABLE_OFFSET),
            (header::REPLY_TABLE, "reply table offset", shape.reply_table()),
            (header::OBJECT_TABLE, "object table offset", shape.object_table()),
            (header::FILE_TABLE, "file table offset", shape.file_table()),
        ] {
            if word(field)? != offset {
                return Err(Error::Invalid { what, value: word(field)? });
            }
        }
        let host = whole.part("host section", 0, shape.host_bytes)?;
        host.part("tables", 0, shape.tables_end())?;
        if !shape.host_bytes.is_multiple_of(shape.section_align) {
            return Err(Error::Invalid { what: "bytes of the host section", value: shape.host_bytes });
        }
        if !shape.shared_bytes.is_multiple_of(shape.section_align) {
            return Err(Error::Invalid { what: "bytes of the shared section", value: shape.shared_bytes });
        }
        if !shape.shared.is_multiple_of(shape.section_align) {
            return Err(Error::Invalid { what: "offset of the shared section", value: shape.shared });
        }
        if shape.shared_file == 0 {
            // Where it lies in another file, that is checked when the file is mapped.
            if shape.shared < shape.host_bytes {
                return Err(Error::Invalid { what: "offset of the shared section", value: shape.shared });
            }
            whole.part("shared section", shape.shared, shape.shared_bytes)?;
        }
        let status = whole.line("header", header::GENERATION)?;
        let files = Arc::new(Files::new(whole.clone(), shape.files, source));
        Ok(Self { whole, files, shape, status })
    }

    /// A file, mapped now if it was not.
    fn file(&self, index: u32) -> Result<&PeerSection> {
        self.files.get(index, || {
            let at = self.shape.file_table() + u64::from(index) * file::BYTES;
            self.whole.word("file table", at + file::LENGTH).map(ReadWord::get)
        })
    }

    /// Whether a mapping holds a region yet; a guest's service waits for this.
    pub fn is_there(map: &Arc<Mapping>) -> bool {
        map.whole_for_reading().word("header", header::MAGIC).is_ok_and(|w| w.get() == MAGIC)
    }

    /// Whether it still is where [`Region::open`] found it: memory of a device that was unplugged reads as zeros, and so does a
    /// mapping that was retired.
    pub fn is_still_there(&self) -> bool {
        self.whole.word("header", header::MAGIC).is_ok_and(|word| word.get() == MAGIC)
    }

    /// Puts private pages in the place of the region's memory, for all views that this process has of it; see
    /// [`Mapping::retire`].
    ///
    /// # Errors
    /// As there.
    pub fn retire(&self) -> Result<()> {
        self.files.retire()
    }

    /// In a forked child, closes what the region keeps open.
    pub(crate) fn abandon(&self) {
        self.files.abandon();
    }

    /// Whether its memory was retired.
    pub fn is_retired(&self) -> bool {
        self.whole.mapping().is_retired()
    }

    /// What the program itself stores to in the region's memory; see [`Section::list`].
    pub fn program_memory(&self) -> Vec<ProgramMemory> {
        self.files.mapped().iter().flat_map(|file| file.mapping().program_memory()).collect()
    }

    /// The region's shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Counts changes of the peer table. One line that everybody reads and the host service seldom writes.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.status.words[0].get()
    }

    /// The service's life.
    pub fn service(&self) -> Life {
        Life::unpack(self.status.words[1].get())
    }

    /// Processors of the host, as far as its service may use them; none if it does not know.
    pub fn processors(&self) -> Option<u64> {
        Some(self.status.words[2].peek()).filter(|count| *count > 0)
    }

    fn entry(&self, index: u32) -> Result<PeerSection> {
        if index >= self.shape.peers {
            return Err(Error::NoPeer { peer: index });
        }
        self.whole.part("peer table", PEER_TABLE_OFFSET + u64::from(index) * peer::BYTES, peer::BYTES)
    }

    /// The line that holds a peer's life, for readers that poll it.
    ///
    /// # Errors
    /// [`Error::NoPeer`] beyond the table.
    pub fn life_line(&self, index: u32) -> Result<LineRef<ReadOnly>> {
        self.entry(index)?.line("peer", 0)
    }

    /// What a peer's entry says of its place, if its slot was ever used: for those who ring, and have no time for its name.
    pub(crate) fn spot(&self, index: u32) -> Result<Option<Spot>> {
        let entry = self.entry(index)?;
        let word = |offset| entry.word("peer", offset).map(ReadWord::get);
        let life = Life::unpack(word(peer::LIFE)?);
        if life.state == State::Free {
            return Ok(None);
        }
        Ok(Some(Spot {
            index,
            life,
            file: entry.half("peer", peer::FILE)?,
            section: word(peer::SECTION)?,
            section_bytes: word(peer::SECTION_BYTES)?,
            is_vm: entry.half("peer", peer::KIND)? == 1,
        }))
    }

    /// One peer, if its slot was ever used.
    ///
    /// # Errors
    /// [`Error::NoPeer`] beyond the table.
    pub fn peer(&self, index: u32) -> Result<Option<PeerInfo>> {
        let Some(Spot { index, life, file, section, section_bytes, is_vm }) = self.spot(index)? else {
            return Ok(None);
        };
        let entry = self.entry(index)?;
        let word = |offset| entry.word("peer", offset).map(ReadWord::get);
        let name = entry.bytes("peer", peer::NAME, 64)?.to_vec(0, 64)?;
        let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
        Ok(Some(PeerInfo {
            index,
            life,
            file,
            section,
            section_bytes,
            is_vm,
            system: SystemId([word(peer::SYSTEM)?, word(peer::SYSTEM + 8)?]),
            name: String::from_utf8_lossy(&name[..end]).into_owned(),
        }))
    }

    /// All peers whose slots were ever used.
    pub fn peers(&self) -> Vec<PeerInfo> {
        (0..self.shape.peers).filter_map(|i| self.peer(i).ok().flatten()).collect()
    }

    /// The peer that a system is, or was last.
    pub fn find(&self, system: SystemId) -> Option<u32> {
        let is_it = |index: u32| {
            let entry = PEER_TABLE_OFFSET + u64::from(index) * peer::BYTES;
            let word = |field| self.whole.word("peer", entry + field).map_or(0, ReadWord::get);
            let state = Life::unpack(word(peer::LIFE)).state;
            (state != State::Free
                && word(peer::SYSTEM) == system.0[0]
                && word(peer::SYSTEM + 8) == system.0[1])
                .then_some((state == State::Active, index))
        };
        let all = (0..self.shape.peers).filter(|_| system != SystemId::NONE).filter_map(is_it);
        // One that lives comes before a former place of the same system.
        all.max_by_key(|(lives, _)| *lives).map(|(_, index)| index)
    }

    /// The shared section, which all members write.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] where it is mapped for reading; where it lies in a file of its own, also as [`Region::section`].
    pub fn shared(&self) -> Result<Section> {
        self.shared_for_reading()?.writable()
    }

    fn shared_for_reading(&self) -> Result<PeerSection> {
        let Shape { shared_file, shared, shared_bytes, .. } = self.shape;
        let shared = self.file(shared_file)?.part("shared section", shared, shared_bytes)?;
        Ok(shared.at(Place::new(place::SHARED, 0)?))
    }

    /// The host section, for the tables in it that other modules read.
    pub(crate) fn host(&self) -> Result<PeerSection> {
        Ok(self.whole.part("host section", 0, self.shape.host_bytes)?.at(Place::new(place::HOST, 0)?))
    }

    /// The `len` bytes at a place, which any process may have named.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; [`Error::NoPeer`] for a section that there is not.
    pub fn at(&self, what: &'static str, place: Place, len: u64) -> Result<PeerSection> {
        let section = match place.section() {
            place::HOST => self.host()?,
            place::SHARED => self.shared_for_reading()?,
            peer => {
                let peer = u32::from(peer);
                self.section(&self.peer(peer)?.ok_or(Error::NoPeer { peer })?)?
            }
        };
        section.part(what, place.offset(), len)
    }

    /// The section of the own peer, to be written; for its processes and its local service. The host service writes that of a
    /// peer that is dead.
    ///
    /// # Errors
    /// As [`Region::section`]; [`Error::ReadOnly`] where it is mapped for reading.
    pub fn own_section(&self, info: &PeerInfo) -> Result<Section> {
        self.section(info)?.writable()
    }

    /// The section of a peer, checked against its file, which is mapped now if it was not.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], [`Error::Invalid`] when the table claims a section outside of its file, where another section is, or
    /// at no multiple of the alignment; what is wrong with the file.
    pub fn section(&self, info: &PeerInfo) -> Result<PeerSection> {
        let PeerInfo { index, life, file, section, section_bytes, is_vm, .. } = *info;
        self.section_at(&Spot { index, life, file, section, section_bytes, is_vm })
    }

    /// As [`Region::section`].
    pub(crate) fn section_at(&self, info: &Spot) -> Result<PeerSection> {
        if info.section < self.shape.first_section_in(info.file)
            || !info.section.is_multiple_of(self.shape.section_align)
        {
            return Err(Error::Invalid { what: "section offset", value: info.section });
        }
        if !info.section_bytes.is_multiple_of(self.shape.section_align) {
            return Err(Error::Invalid { what: "bytes of a section", value: info.section_bytes });
        }
        let section = self.file(info.file)?.part("peer section", info.section, info.section_bytes)?;
        Ok(section.at(Place::of_peer(info.index)?))
    }
}

/// Where a peer's section is, and whose.
pub(crate) struct Spot {
    pub(crate) index: u32,
    pub(crate) life: Life,
    file: u32,
    section: u64,
    section_bytes: u64,
    pub(crate) is_vm: bool,
}

/// Processors that this process may use; 0 if that cannot be found out.
pub(crate) fn processors() -> u64 {
    std::thread::available_parallelism().map_or(0, |n| n.get() as u64)
}

/// Processors of this system, also those that this very process may not use: launchers tie each rank to its own. 0 if
/// that cannot be found out.
pub(crate) fn online_processors() -> u64 {
    std::fs::read_to_string("/sys/devices/system/cpu/online").map_or(0, |list| count_list(list.trim()))
}

/// How many numbers a list such as `0-3,8` names; 0 if it is none.
fn count_list(list: &str) -> u64 {
    let count = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
        (last.checked_sub(first)?).checked_add(1)
    };
    list.split(',').map(count).try_fold(0_u64, |sum, n| sum.checked_add(n?)).unwrap_or(0)
}

/// The host service's side: the only writer of the host section.
#[derive(Debug)]
pub struct Writer {
    region: Region,
    /// Generation and life of the service.
    status: LineRef,
    incarnation: u64,
}

/// What the host service says about a new peer.
#[derive(Debug, Clone)]
pub struct NewPeer<'a> {
    /// File of the section it gets.
    pub file: u32,
    /// Offset of the section there.
    pub section: u64,
    /// Bytes of the section.
    pub section_bytes: u64,
    /// Whether it is a VM (or the host's own processes).
    pub is_vm: bool,
    /// Host name.
    pub name: &'a str,
}

impl Writer {
    /// Writes the header of a fresh (zeroed) region of one file.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] when the shape does not fit the mapping.
    pub fn create(map: &Arc<Mapping>, shape: &Shape, incarnation: u64) -> Result<Self> {
        Self::create_from(map, shape, incarnation, &[], None)
    }

    /// As [`Writer::create`]; the region's other files have these lengths, and come from `source`.
    ///
    /// # Errors
    /// As [`Writer::create`]; [`Error::Invalid`] for more or fewer lengths than the shape has further files.
    pub fn create_from(
        map: &Arc<Mapping>,
        shape: &Shape,
        incarnation: u64,
        others: &[u64],
        source: Option<Arc<dyn Source>>,
    ) -> Result<Self> {
        if others.len() as u64 + 1 != u64::from(shape.files) {
            return Err(Error::Invalid { what: "number of files", value: shape.files.into() });
        }
        let whole = map.whole()?;
        if map.len() != shape.region_bytes {
            return Err(Error::WrongSize { found: map.len(), expected: shape.region_bytes });
        }
        whole.zero("host section", 0, shape.host_bytes)?;
        let put = |offset, value| whole.word("header", offset).map(|w| w.put(value));
        put(header::VERSION, u64::from(VERSION) | (header::BYTES << 32))?;
        put(header::REGION_BYTES, shape.region_bytes)?;
        put(header::UUID, shape.uuid[0])?;
        put(header::UUID + 8, shape.uuid[1])?;
        put(header::PEERS, u64::from(shape.peers) | (u64::from(shape.endpoints) << 32))?;
        put(header::PEER_TABLE, PEER_TABLE_OFFSET)?;
        put(header::HOST_BYTES, shape.host_bytes)?;
        put(header::SHARED_BYTES, shape.shared_bytes)?;
        put(header::OBJECTS, shape.objects.into())?;
        put(header::FILE_TABLE, shape.file_table())?;
        put(header::FILES, u64::from(shape.files) | (u64::from(shape.shared_file) << 32))?;
        put(header::SHARED, shape.shared)?;
        put(header::SECTION_ALIGN, shape.section_align)?;
        for (index, bytes) in (0_u64..).zip([shape.region_bytes].iter().chain(others)) {
            put(shape.file_table() + index * file::BYTES + file::LENGTH, *bytes)?;
        }
        put(header::REPLY_TABLE, shape.reply_table())?;
        put(header::OBJECT_TABLE, shape.object_table())?;
        put(header::CPUS, processors())?;
        put(header::LAYOUT, format::LAYOUT_HASH)?;
        put(header::SERVICE, Life { incarnation, state: State::Active }.pack())?;
        whole.word("header", header::MAGIC)?.set(MAGIC);
        let status = whole.line("header", header::GENERATION)?;
        Ok(Self { region: Region::open_from(map, source)?, status, incarnation })
    }

    /// The region as members see it.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Adds a peer as joining, with a new incarnation, which is returned. Its section must be zeroed already.
    ///
    /// # Errors
    /// [`Error::NoPeer`] beyond the table.
    pub fn add(&mut self, index: u32, new: &NewPeer<'_>) -> Result<u64> {
        let entry = self.region.entry(index)?.writable()?;
        let life = entry.word("peer", peer::LIFE)?;
        // Peer incarnations leave the lower 24 bits of an endpoint's incarnation to the peer's own service.
        let incarnation = (Life::unpack(life.peek()).incarnation + 1) & 0xff_ffff;
        let put = |offset, value| entry.word("peer", offset).map(|w| w.put(value));
        put(peer::FILE, new.file.into())?;
        put(peer::SECTION, new.section)?;
        put(peer::SECTION_BYTES, new.section_bytes)?;
        put(peer::KIND, new.is_vm.into())?;
        // The last byte is a zero always.
        entry.fill_bytes("peer", peer::NAME, &padded::<64>(cut(new.name, 63)))?;
        life.set(Life { incarnation, state: State::Joining }.pack());
        self.changed();
        Ok(incarnation)
    }

    /// Publishes that a peer is active, as this system.
    ///
    /// # Errors
    /// [`Error::NoPeer`] beyond the table.
    pub fn activate(&mut self, index: u32, system: SystemId) -> Result<()> {
        let entry = self.region.entry(index)?.writable()?;
        for (at, word) in [0, 8].into_iter().zip(system.0) {
            entry.word("peer", peer::SYSTEM + at)?.put(word);
        }
        self.set_state(index, State::Active)
    }

    /// Publishes a new state of a peer, keeping its incarnation; active is for [`Writer::activate`].
    ///
    /// # Errors
    /// [`Error::NoPeer`] beyond the table.
    pub fn set_state(&mut self, index: u32, state: State) -> Result<()> {
        let entry = self.region.entry(index)?.writable()?;
        let life = entry.word("peer", peer::LIFE)?;
        life.set(Life { incarnation: Life::unpack(life.peek()).incarnation, state }.pack());
        // Every later write to the dead peer's section comes after the state (P5).
        release_fence();
        self.changed();
        Ok(())
    }

    /// Tells members that the service ends.
    pub fn end(&mut self) {
        self.status.words[1].set(Life { incarnation: self.incarnation, state: State::Dead }.pack());
        self.changed();
    }

    fn changed(&self) {
        let generation = &self.status.words[0];
        generation.set(generation.peek().wrapping_add(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_counted() {
        for (list, count) in [("0", 1), ("0-1", 2), ("0-3,8,10-11", 7)] {
            assert_eq!(count_list(list), count, "{list}");
        }
        for list in ["", "a", "3-1", "0-18446744073709551615", "1,"] {
            assert_eq!(count_list(list), 0, "{list}");
        }
    }

    #[test]
    fn a_process_tied_to_one_processor_counts_them_all() {
        let before = online_processors();
        let all = rustix::thread::sched_getaffinity(None).unwrap();
        let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).unwrap();
        let mut one = rustix::thread::CpuSet::new();
        one.set(first);
        // Of this thread alone.
        rustix::thread::sched_setaffinity(None, &one).unwrap();
        assert_eq!(processors(), 1);
        assert_eq!(online_processors(), before);
        assert!(before >= all.count().into());
    }
}
