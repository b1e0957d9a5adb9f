//! The format: every field with its offset, size and writer.
//!
//! All numbers are little-endian 64-bit words unless a narrower size is given; structures are multiples of a cache
//! line, and no line has two writers. `docs/region-format.md` shows the same tables; a test compares the two.
//!
//! With one file, as by default:
//!
//! ```text
//! region file ┌──────────────┬────────────────┬────────────────┬────────────────┬──
//!             │ host section │ shared section │ peer section 0 │ peer section 1 │ …
//!             └──────────────┴────────────────┴────────────────┴────────────────┴──
//! peer section┌───────────┬────────────────┬────────────┬────────────────┬──────────────────────────┬───────┐
//!             │ directory │ endpoint table │ area table │ activity table │ heap: extents of areas … │ pages │
//!             └───────────┴────────────────┴────────────┴────────────────┴──────────────────────────┴───────┘
//! ```

/// Offsets of a structure's fields, and the list that the documentation is checked against.
macro_rules! layout {
    ($( $(#[$meta:meta])* $module:ident ($bytes:expr) { $( $field:ident @ $offset:expr, $size:expr, $writer:literal, $doc:literal; )* } )*) => {
        $( $(#[$meta])* pub mod $module {
            /// Bytes of the structure.
            pub const BYTES: u64 = $bytes;
            $( #[doc = $doc] pub const $field: u64 = $offset; )*
        } )*
        /// Every field of every structure.
        pub const FIELDS: &[Field] = &[ $( $( Field {
            structure: stringify!($module), name: stringify!($field), offset: $offset, bytes: $size, writer: $writer, doc: $doc,
        }, )* )* ];
    };
}

/// One field, for tools and tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// The structure's name.
    pub structure: &'static str,
    /// The field's name.
    pub name: &'static str,
    /// Offset in the structure.
    pub offset: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// The writer.
    pub writer: &'static str,
    /// What it means.
    pub doc: &'static str,
}

/// "ISTHMUS1" in memory.
pub const MAGIC: u64 = u64::from_le_bytes(*b"ISTHMUS1");
/// "PEERDIR1" in memory.
pub const DIRECTORY_MAGIC: u64 = u64::from_le_bytes(*b"PEERDIR1");
/// "ISTHMUSS" in memory: a file of sections that has nothing there yet.
pub const SECTION_MAGIC: u64 = u64::from_le_bytes(*b"ISTHMUSS");
/// How much of a program's name a process's area keeps.
pub const PROGRAM_BYTES: usize = 24;
/// The version that this code reads and writes.
pub const VERSION: u32 = 4;
/// Smallest region.
pub const LEAST_REGION_BYTES: u64 = 1 << 20;
/// Alignment of sections, at least: that of regions which only processes of the host map.
pub const SECTION_ALIGN: u64 = 64 << 10;
/// Alignment of sections in a region that VMs map as the BAR of a device. A guest's kernel takes memory of a device over in
/// pieces of this size, and maps such pieces as one page. The largest that a region may have.
pub const DEVICE_SECTION_ALIGN: u64 = 2 << 20;
/// Unit of the heap that a local service hands out.
pub const EXTENT_UNIT: u64 = 16 << 10;
/// Most peers of a region.
pub const MAX_PEERS: u32 = 1024;
/// Most files of a region: the first, one for the shared section, and one for each peer.
pub const MAX_FILES: u32 = MAX_PEERS + 2;
/// Most named objects.
pub const MAX_OBJECTS: u32 = 1 << 16;
/// Most endpoints of a peer.
pub const MAX_ENDPOINTS: u32 = 16384;

layout! {
    /// The region's header, at offset 0 of the host section.
    header (192) {
        MAGIC @ 0, 8, "host service, once", "The bytes `ISTHMUS1`, written last.";
        VERSION @ 8, 4, "host service, once", "Format version.";
        HEADER_BYTES @ 12, 4, "host service, once", "Bytes of this header.";
        REGION_BYTES @ 16, 8, "host service, once", "Bytes of the region's first file.";
        UUID @ 24, 16, "host service, once", "Random identity of the region.";
        PEERS @ 40, 4, "host service, once", "Entries of the peer table.";
        ENDPOINTS @ 44, 4, "host service, once", "Endpoint slots of each peer.";
        PEER_TABLE @ 48, 8, "host service, once", "Offset of the peer table.";
        HOST_BYTES @ 56, 8, "host service, once", "Bytes of the host section.";
        GENERATION @ 64, 8, "host service", "Counts changes of the peer table.";
        SERVICE @ 72, 8, "host service", "Life of the service: incarnation and state.";
        LAYOUT @ 88, 8, "host service, once", "A hash of all fields that these tables list, so that two builds that differ do not meet.";
        CPUS @ 80, 8, "host service", "Processors of the host that it may use; 0 if unknown.";
        SHARED_BYTES @ 96, 8, "host service, once", "Bytes of the shared section; 0 if there is none.";
        OBJECTS @ 104, 4, "host service, once", "Entries of the object table.";
        REPLY_TABLE @ 112, 8, "host service, once", "Offset of the replies to the peers' local services.";
        OBJECT_TABLE @ 120, 8, "host service, once", "Offset of the object table.";
        FILE_TABLE @ 128, 8, "host service, once", "Offset of the file table.";
        FILES @ 136, 4, "host service, once", "Entries of the file table.";
        SHARED_FILE @ 140, 4, "host service, once", "File of the shared section.";
        SHARED @ 144, 8, "host service, once", "Offset of the shared section in that file.";
        SECTION_ALIGN @ 152, 8, "host service, once", "Sections and pools of pages begin and end at multiples of this: a power of two, 64 KiB to 2 MiB.";
        OBJECTS_HIGH @ 160, 8, "host service", "Entries of the object table that are in use lie before this one.";
    }
    /// The host service's answer to a question of a peer's local service about named objects; one for each peer.
    reply (576) {
        SEQUENCE @ 0, 8, "host service", "Number of the question that is answered, written last.";
        LEN @ 8, 8, "host service", "Bytes of the frame.";
        FRAME @ 64, 512, "host service", "A reply of the attach protocol.";
    }
    /// A file in which sections lie. The first is the one that begins with the header.
    file (64) {
        LENGTH @ 0, 8, "host service, once", "Bytes of the file; 0 if there is none.";
    }
    /// A named object: a piece of the shared section.
    object (256) {
        LIFE @ 0, 8, "host service", "Incarnation and state.";
        OFFSET @ 8, 8, "host service", "Offset in the shared section.";
        LEN @ 16, 8, "host service", "Bytes.";
        KIND @ 24, 4, "host service", "What it is; see the list below.";
        MODE @ 28, 4, "host service", "Who may read (4) and write (2) it: owner, group, others, as of a file.";
        UID @ 32, 4, "host service", "Owner.";
        GID @ 36, 4, "host service", "Group.";
        CREATOR @ 40, 8, "host service", "The process that made it, as a party.";
        FLAGS @ 48, 8, "host service", "1: ends with its creator; 2: its name is gone; 4: limited to the peers in `ALLOWED`. A sum.";
        OPENS @ 56, 8, "host service", "Processes that have it open.";
        PARAMS @ 64, 32, "host service", "Four words whose meaning depends on the kind.";
        ALLOWED @ 96, 32, "host service", "The peers to which it is limited, as bits: that of peer 0 is the lowest of the first word.";
        NAME @ 128, 128, "host service", "Its name, UTF-8, padded with zeros.";
    }
    /// The membership table's entry of one peer, in the host section.
    peer (256) {
        LIFE @ 0, 8, "host service", "Incarnation (upper 56 bits) and state (lower 8): the truth about who is alive.";
        SECTION @ 8, 8, "host service", "Offset of the peer's section in its file.";
        SECTION_BYTES @ 16, 8, "host service", "Bytes of the peer's section.";
        KIND @ 24, 4, "host service", "0: the host's own processes, 1: a VM.";
        FILE @ 32, 4, "host service", "File of the peer's section.";
        SYSTEM @ 40, 16, "host service", "The system that it is, or was last: 128 random bits; written before the peer becomes active.";
        NAME @ 64, 64, "host service", "Host name, UTF-8, padded with zeros.";
    }
    /// The start of a peer section.
    directory (1088) {
        MAGIC @ 0, 8, "local service, once", "The bytes `PEERDIR1`, written last.";
        INCARNATION @ 8, 8, "local service, once", "The peer's incarnation that this directory belongs to.";
        ENDPOINT_TABLE @ 16, 8, "local service, once", "Offset in the section.";
        AREA_TABLE @ 24, 8, "local service, once", "Offset in the section.";
        ACTIVITY_TABLE @ 32, 8, "local service, once", "Offset in the section.";
        HEAP @ 40, 8, "local service, once", "Offset of the heap in the section.";
        HEAP_BYTES @ 48, 8, "local service, once", "Bytes of the heap.";
        GENERATION @ 64, 8, "local service", "Counts changes of the endpoint and area tables.";
        HEAP_USED @ 72, 8, "local service", "Bytes of the heap that are granted.";
        ENDPOINTS_HIGH @ 80, 8, "local service", "Endpoint slots that were ever used.";
        DEATHS @ 88, 8, "local service", "Counts the deaths of processes and peers that the service has heard of; the lower half is a futex.";
        SYSTEM @ 96, 16, "local service, once", "What its service calls the system: 128 random bits. The peer's entry has what counts.";
        RETIRED @ 128, 320, "local service", "Counters of processes that are gone, added up; fields as in `counters`.";
        PAGES @ 448, 8, "local service, once", "Offset of the pool of pages in the section; the grant table ends here, where the heap ends.";
        PAGES_BYTES @ 456, 8, "local service, once", "Bytes of the pool, to the end of the section; 0 if there is none.";
        VECTORS @ 464, 8, "local service", "By how many interrupt vectors of its VM its sleepers are rung, or a VM rings the host's; less than 2: by none.";
        CALL @ 512, 8, "local service", "Number of its last question to the host service about named objects, written last.";
        CALL_PARTY @ 520, 8, "local service", "The process that asks, as a party.";
        CALL_UID @ 528, 4, "local service", "User of that process.";
        CALL_GID @ 532, 4, "local service", "Group of that process.";
        CALL_LEN @ 536, 8, "local service", "Bytes of the frame.";
        CALL_FRAME @ 576, 512, "local service", "A request of the attach protocol.";
    }
    /// One endpoint slot of a peer, in the endpoint table.
    endpoint (128) {
        LIFE @ 0, 8, "local service", "Incarnation and state of the endpoint.";
        AREA @ 8, 8, "local service", "Index of the area of the process that owns it.";
        BLOCK @ 16, 8, "local service", "Offset in the section of the endpoint's block.";
        PID @ 24, 8, "local service", "Process id, as seen by the local service; for people.";
        BIRTH @ 32, 8, "local service", "A number that no other endpoint of the system has had, in any region: services that the system had before (upper 32 bits), endpoints that this one has opened (lower 32).";
        DIED @ 40, 8, "local service", "Incarnation of the last endpoint in this slot that died and was not closed, or 0. Set before LIFE says so.";
        WAKE @ 64, 8, "processes of the peer and its local service, atomic add", "Counts wake-ups; the lower half is a futex.";
    }
    /// One area slot of a peer, in the area table.
    area (64) {
        LIFE @ 0, 8, "local service", "Incarnation and state of the process.";
        FIRST @ 8, 8, "local service", "Offset in the section of the first extent, which starts with the counters.";
        FIRST_BYTES @ 16, 8, "local service", "Bytes of the first extent.";
        GRANTED @ 24, 8, "local service", "Bytes of all extents; 0 once they were taken back.";
        PID @ 32, 8, "local service", "Process id, as seen by the local service; all bits set once the process is gone, which may be long before its memory is taken back.";
        PROGRAM @ 40, PROGRAM_BYTES as u64, "local service", "Name of its program as the process gave it, UTF-8, padded with zeros; for people.";
    }
    /// One line of the activity table: the line of receiver (peer p, slot s) is number p x ENDPOINTS + s.
    activity (64) {
        COUNTS @ 0, 64, "processes of the peer, atomic add", "Eight counters, one for each value of (sender's slot mod 8).";
    }
    /// The first 320 bytes of an area: what its process has done. Each is a count since the process attached.
    counters (320) {
        TX_MESSAGES @ 0, 8, "process", "Messages sent through the region.";
        TX_BYTES @ 8, 8, "process", "Payload bytes sent through the region.";
        RX_MESSAGES @ 16, 8, "process", "Messages received through the region.";
        RX_BYTES @ 24, 8, "process", "Payload bytes received through the region.";
        INLINE @ 32, 8, "process", "Messages sent in line.";
        EAGER @ 40, 8, "process", "Messages sent as buffered eager.";
        RENDEZVOUS @ 48, 8, "process", "Long messages sent: announced, and copied once their receive is posted.";
        CHUNKS @ 56, 8, "process", "Chunks of pipelined messages sent.";
        RMA @ 64, 8, "process", "RMA and atomic operations started.";
        RMA_BYTES @ 72, 8, "process", "Payload bytes of RMA and atomic operations, by the side that sent them.";
        UNEXPECTED @ 80, 8, "process", "Messages that came before their receive.";
        STALLS @ 88, 8, "process", "Posts that found no room and were queued, or refused: a lane was full, or could not be opened.";
        LANES_OPENED @ 96, 8, "process", "Lanes opened.";
        LANES_CLOSED @ 104, 8, "process", "Lanes closed.";
        ANNOUNCED @ 112, 8, "process", "Messages that were announced by an activity word.";
        DISCARDED @ 120, 8, "process", "Messages dropped because their sender was gone or faulty.";
        SLEEPS @ 128, 8, "process", "Times that a thread of it went to sleep to wait for a message.";
        WAKEUPS @ 136, 8, "process", "Wake-ups that it sent to others which slept.";
        DIRECT @ 144, 8, "process", "RMA and atomic operations that it did in the target's memory itself, without a message.";
        DIRECT_BYTES @ 152, 8, "process", "Bytes of the target's memory that those read or changed.";
        ATTACHED @ 160, 8, "process", "Long messages sent that their receiver copied from this process's memory itself; not through the region, though the other counters have them, too.";
        ATTACHED_BYTES @ 168, 8, "process", "Payload bytes of those messages.";
        COPY_NS @ 176, 8, "process", "Of long messages received that could have come in one copy: nanoseconds that those took which came in two, each as much as it added to those before.";
        COPY_BYTES @ 184, 8, "process", "Payload bytes of those messages.";
        ATTACH_NS @ 192, 8, "process", "The same nanoseconds of those that came in one copy.";
        ATTACH_BYTES @ 200, 8, "process", "Payload bytes of those messages.";
        ATTACH_REFUSED @ 208, 8, "process", "Long messages to it that were to come in one copy, and were asked for in two: its service or the kernel did not let it copy from their sender's process, or could not, or their sender had withdrawn them.";
        GRANTED @ 216, 8, "process", "Long messages sent of which pages were granted, and copied by their receiver from where the program has them.";
        GRANTED_BYTES @ 224, 8, "process", "Payload bytes in those pages.";
        GRANT_NS @ 232, 8, "process", "As `ATTACH_NS`, of long messages received whose sender was asked for granted pages.";
        GRANT_BYTES @ 240, 8, "process", "Payload bytes of those messages, in granted pages or not.";
        GRANTS_STALE @ 248, 8, "process", "Of those messages: how many named a page that was no longer granted when it was copied, and came in two copies from there on.";
        RESIDENT @ 256, 8, "process", "Long messages sent that lay in memory of the region, and that their receiver copied from there.";
        RESIDENT_BYTES @ 264, 8, "process", "Payload bytes of those messages.";
        RESIDE_NS @ 272, 8, "process", "As `ATTACH_NS`, of long messages received that their receiver copied from memory of the region.";
        RESIDE_BYTES @ 280, 8, "process", "Payload bytes of those messages.";
        DEEP @ 288, 8, "process", "Long messages received in two copies whose sender was asked to have up to 32 chunks under way, and not 8.";
    }
    /// An endpoint's block, in the area of its process.
    block (128) {
        LANES @ 0, 8, "process", "Offset in the section of the first lane chunk, 0 if none.";
        LANES_VERSION @ 8, 8, "process", "Counts changes of lane descriptors.";
        ACCEPTS @ 16, 8, "process", "Offset in the section of the first accept chunk, 0 if none.";
        ACCEPTS_VERSION @ 24, 8, "process", "Counts changes of accept entries.";
        SLEEP @ 32, 8, "process", "0: awake. Else a number that counts the sleeps, times 4, plus how to wake it: 1 by its futex, 2 through its local service.";
        REGISTRATIONS @ 40, 8, "process", "Offset in the section of the table of what may be reached without messages, 0 if none; never changes.";
        CHANNELS @ 48, 8, "process", "Offset in the section of the first chunk of channel ends, 0 if none.";
        CHANNELS_VERSION @ 56, 8, "process", "Counts changes of channel ends.";
        HOLD @ 64, 8, "process", "Whose memory its process is changing now: peer index (upper 32 bits) and area index (lower 32), plus one; 0 if nobody's.";
        KIND @ 72, 8, "process", "0: an endpoint with lanes; 1: a context with channels. Never changes.";
        MAGIC @ 80, 8, "process", "Of a context: the magic id of its group. Never changes.";
        CLIENT @ 88, 8, "process", "Of a context: its client id, as its program chose it. Never changes.";
        BACKLOG @ 96, 8, "process", "Of a context: how many connections may wait to be accepted; 0 if none are.";
    }
    /// One end of a channel, as its own context writes it: an offer, the answer to one, and the stream from there on.
    channel (256) {
        LIFE @ 0, 8, "process", "Generation of the entry (upper 56 bits) and state: active from the offer or answer on, dead once this end neither reads nor writes, and of a refusal.";
        TO @ 8, 8, "process", "Global slot of the other context.";
        TO_INCARNATION @ 16, 8, "process", "Its incarnation.";
        RING @ 24, 8, "process", "Offset in the section of the ring that this end writes.";
        RING_BYTES @ 32, 4, "process", "Bytes of that ring, a power of two.";
        SEGMENT_BYTES @ 36, 4, "process", "Bytes of a segment, a power of two.";
        PARTNER @ 40, 8, "process", "Number of the end that this one answers, plus one; 0 for an offer.";
        PARTNER_GENERATION @ 48, 8, "process", "Generation of that end.";
        STATUS @ 56, 8, "process", "0: an offer, or accepted; 1: refused.";
        WRITE @ 64, 8, "process", "Bytes written since the start.";
        END @ 72, 8, "process", "Position at which the stream ends, plus one; 0 while it goes on.";
        ROOM @ 80, 8, "process", "As `SLEEP` of a block, of a writer that waits for room.";
        ANSWER @ 88, 8, "process", "The other end's heat value that was seen last.";
        PAUSED @ 96, 8, "process", "Position at which writing was suspended, plus one; 0 if it was not.";
        HEAT @ 128, 8, "process", "Odd: the reader polls, do not ring; even: look whether it sleeps.";
        SLEEP @ 136, 8, "process", "As `SLEEP` of a block, of a reader that waits for bytes.";
        STOPPED @ 144, 8, "process", "1 once nothing is read any more.";
        READ @ 192, 8, "process", "Bytes of the other end's ring that were read and may be written again.";
    }
    /// The head of a domain's table of registrations, in the area of its process.
    registrations (64) {
        FIRST @ 0, 8, "process", "Offset in the section of the first chunk of registrations, 0 if none.";
        VERSION @ 8, 8, "process", "Counts changes of the table.";
    }
    /// A range of a process's area that others may read or change without a message.
    registration (64) {
        LIFE @ 0, 8, "process", "Generation of the entry (upper 56 bits) and state.";
        KEY @ 8, 8, "process", "Key of the registration.";
        OFFSET @ 16, 8, "process", "Offset in the section of its first byte; of its list of pages, if it lies in granted ones.";
        LENGTH @ 24, 8, "process", "Bytes.";
        ACCESS @ 32, 8, "process", "What is allowed: 1 reads, 2 writes, 4 atomic operations; 8 if it lies in granted pages; a sum.";
        BASE @ 40, 8, "process", "The address that stands for its first byte.";
        SKIP @ 48, 8, "process", "In granted pages: where in the first page its first byte is.";
    }
    /// The line that starts each chunk of sixteen lane descriptors, accept entries or registrations.
    chunk (64) {
        NEXT @ 0, 8, "process", "Offset in the section of the next chunk, 0 if none.";
    }
    /// A lane descriptor: one outgoing lane of an endpoint.
    lane (128) {
        LIFE @ 0, 8, "sender", "Generation of the descriptor (upper 56 bits) and state.";
        TO @ 8, 8, "sender", "Global slot of the receiving endpoint.";
        TO_INCARNATION @ 16, 8, "sender", "Incarnation of the receiving endpoint.";
        RING @ 24, 8, "sender", "Offset in the section of the ring.";
        SLOTS @ 32, 4, "sender", "Slots of the ring, a power of two.";
        DATA_BYTES @ 36, 4, "sender", "Bytes of the data ring.";
        DATA @ 40, 8, "sender", "Offset in the section of the data ring.";
        ANSWER @ 48, 8, "sender", "The heat value that the sender has seen last.";
        ROOM @ 56, 8, "sender", "Of an open lane: the read position at which its receiver wakes the sender, which sleeps for want of room; 0 if it never did. Of a closed one: the write position at its end.";
        MESSAGES @ 64, 8, "sender", "Messages sent from this endpoint to that one.";
        BYTES_SENT @ 72, 8, "sender", "Payload bytes of those messages.";
        CHUNKS @ 80, 8, "sender", "Chunks of pipelined messages sent.";
        RMA @ 88, 8, "sender", "RMA and atomic operations started by messages.";
        RMA_BYTES @ 96, 8, "sender", "Payload bytes of RMA and atomic operations sent, answers to the other's included.";
        STALLS @ 104, 8, "sender", "Posts that found no room.";
        ANNOUNCED @ 112, 8, "sender", "Messages, the protocol's own included, that were announced by an activity word.";
        WAKEUPS @ 120, 8, "sender", "Wake-ups sent to the other endpoint because it slept.";
    }
    /// An accept entry: one incoming lane of an endpoint.
    accept (128) {
        KEY @ 0, 8, "receiver", "Sender's global slot (upper 32 bits) and lane number (lower 32), plus one; 0 if free.";
        GENERATION @ 8, 8, "receiver", "Generation of the lane descriptor that is accepted.";
        SENDER @ 16, 8, "receiver", "Incarnation of the sending endpoint.";
        HEAT @ 24, 8, "receiver", "Odd: polled directly; even: announce.";
        READ @ 64, 8, "receiver", "Read position of the lane.";
    }
    /// One slot of a lane's ring.
    slot (64) {
        STAMP @ 0, 4, "sender", "Position plus one, in 32 bits; written last.";
        KIND @ 4, 1, "sender", "Kind of message.";
        FLAGS @ 5, 1, "sender", "Flags of the message.";
        INLINE_LEN @ 6, 2, "sender", "Payload bytes in this slot.";
        PAYLOAD @ 8, 56, "sender", "By kind; see the protocol in `docs/architecture.md`.";
    }
}

/// A hash of all fields, as `header::LAYOUT` holds it: FNV-1a over each one's structure, name, offset and size.
pub const LAYOUT_HASH: u64 = {
    const fn add(mut hash: u64, bytes: &[u8]) -> u64 {
        let mut i = 0;
        while i < bytes.len() {
            hash = (hash ^ bytes[i] as u64).wrapping_mul(0x0000_0100_0000_01b3);
            i += 1;
        }
        hash
    }
    let mut hash = 0xcbf2_9ce4_8422_2325;
    let mut i = 0;
    while i < FIELDS.len() {
        hash = add(hash, FIELDS[i].structure.as_bytes());
        hash = add(hash, FIELDS[i].name.as_bytes());
        hash = add(hash, &FIELDS[i].offset.to_le_bytes());
        hash = add(hash, &FIELDS[i].bytes.to_le_bytes());
        i += 1;
    }
    hash
};

/// Entries of a chunk of lane descriptors, accept entries or registrations.
pub const CHUNK_ENTRIES: u64 = 16;

/// Entries of a chunk of channel ends: with its first line it is 4096 bytes at most.
pub const CHANNEL_ENTRIES: u64 = 15;
/// Chunks of channel ends that are followed, and so most channels of a context.
pub const MOST_CHANNEL_CHUNKS: u64 = 256;
/// `block::KIND` of an endpoint that has lanes.
pub const KIND_LANES: u64 = 0;
/// `block::KIND` of a context that has channels.
pub const KIND_CHANNELS: u64 = 1;

/// The number of an endpoint slot in the whole region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GlobalSlot(pub u32);

impl GlobalSlot {
    /// The slot `local` of peer `peer`, where each peer has `endpoints` slots.
    pub fn new(peer: u32, local: u32, endpoints: u32) -> Self {
        Self(peer * endpoints + local)
    }

    /// The peer's index.
    pub fn peer(self, endpoints: u32) -> u32 {
        self.0 / endpoints
    }

    /// The slot in the peer's own table.
    pub fn local(self, endpoints: u32) -> u32 {
        self.0 % endpoints
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_in_their_structure_and_do_not_overlap() {
        for (i, a) in FIELDS.iter().enumerate() {
            assert_eq!(a.offset % a.bytes.min(8), 0, "{a:?} is misaligned");
            for b in &FIELDS[i + 1..] {
                let apart = a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset;
                assert!(a.structure != b.structure || apart, "{a:?} overlaps {b:?}");
            }
        }
    }

    #[test]
    fn lines_have_one_writer() {
        for a in FIELDS {
            for b in FIELDS {
                if a.structure == b.structure && a.offset / 64 == b.offset / 64 {
                    let side = |w: &'static str| w.trim_end_matches(", once");
                    assert_eq!(side(a.writer), side(b.writer), "{a:?} and {b:?} share a line");
                }
            }
        }
    }
}
