//! The outcome of a survey of a region.

use std::collections::{BTreeMap, HashMap};

use isthmus_region::counters::{Counter, LaneCounter, LaneTotals, Totals};
use isthmus_region::life::{Life, State};
use isthmus_region::text::printable;
use serde::{Serialize, Serializer};

/// A region at one moment, or nearly: members write while it is read.
#[derive(Debug, Clone, Serialize)]
pub struct Survey {
    /// The region itself.
    pub region: Region,
    /// Members whose places were ever used, in the order of the table.
    pub members: Vec<Member>,
    /// Named objects, in the order of their table.
    pub objects: Vec<Object>,
}

/// A named object: a piece of the shared section.
#[derive(Debug, Clone, Serialize)]
pub struct Object {
    /// Index in the table.
    pub index: u32,
    /// Incarnation.
    pub incarnation: u64,
    /// What it is.
    pub kind: &'static str,
    /// Name.
    pub name: String,
    /// Whether its name was removed: it ends when no process has it open any more.
    pub unlinked: bool,
    /// Offset in the region's files, one after the other.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// Mode, as of a file.
    pub mode: u32,
    /// Owner: user and group.
    pub owner: (u32, u32),
    /// Processes that have it open.
    pub opens: u64,
    /// The members to which it is limited, by their indexes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_with: Option<Vec<u32>>,
    /// What else is known of an object of System V IPC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sysv: Option<Sysv>,
}

/// An object of System V IPC (svipc(7)).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sysv {
    /// Its id, as programs see it.
    pub id: i32,
    /// Its key; 0 if it has none, or is removed.
    pub key: i32,
    /// User and group of the process that made it.
    pub creator: (u32, u32),
    /// The process that made it.
    pub maker: Option<Pid>,
    /// When owner or mode were changed last, in seconds since 1970.
    pub changed: u64,
    /// Its size in its own terms: bytes of shared memory, semaphores of a set, most bytes of a queue.
    pub size: u64,
    /// What its own memory says of its use, which every process can write.
    pub usage: Usage,
}

/// A process, as its own system knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Pid {
    /// Its member's number.
    pub member: u32,
    /// Its number there.
    pub pid: u32,
}

/// What an object of System V IPC says of its use: times in seconds since 1970, 0 for never; nothing where it says nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "of", rename_all = "lowercase")]
pub enum Usage {
    /// Shared memory.
    Shm {
        /// The last attach.
        attached: Option<u64>,
        /// The last detach.
        detached: Option<u64>,
        /// Who did either last.
        last: Option<Pid>,
    },
    /// A set of semaphores.
    Sem {
        /// The last operation.
        operated: Option<u64>,
        /// Each of them.
        semaphores: Option<Vec<Semaphore>>,
    },
    /// A message queue.
    Msg {
        /// Bytes in it.
        bytes: Option<u64>,
        /// Messages in it.
        messages: Option<u64>,
        /// The last msgsnd(2), and whose.
        sent: Option<u64>,
        /// See there.
        last_sender: Option<Pid>,
        /// The last msgrcv(2), and whose.
        received: Option<u64>,
        /// See there.
        last_receiver: Option<Pid>,
    },
}

/// A semaphore.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Semaphore {
    /// Its value.
    pub value: u32,
    /// Who wait for it to grow.
    pub waiters: u32,
    /// Who wait for it to be zero.
    pub waiters_for_zero: u32,
    /// Who changed it last.
    pub last: Option<Pid>,
}

/// The region as a whole.
#[derive(Debug, Clone, Serialize)]
pub struct Region {
    /// Its identity, in hexadecimal digits.
    pub uuid: String,
    /// Bytes of all files that are there.
    pub bytes: u64,
    /// Files in which its sections lie.
    pub files: u32,
    /// Counts changes of the membership.
    pub generation: u64,
    /// The state of the host service: active, or dead once it has ended.
    #[serde(serialize_with = "state")]
    pub service: State,
    /// Members that there is room for.
    pub places: u32,
    /// Endpoints that each may have.
    pub endpoints_per_member: u32,
    /// Bytes of the shared section, for named objects.
    pub shared_bytes: u64,
    /// Places for named objects.
    pub object_places: u32,
    /// The host's processors; 0 if its service does not know.
    pub processors: u64,
    /// Whether VMs have it as a memory device (`--source dax`).
    pub dax: bool,
}

impl Region {
    /// Whether each member's section is a file of its own, which the others can only read (`--isolated`, `--separate-sections`).
    pub fn is_parted(&self) -> bool {
        self.files > 1
    }
}

/// A member: a VM, or the host's own processes.
#[derive(Debug, Clone, Serialize)]
pub struct Member {
    /// Its number.
    pub index: u32,
    /// Its host name.
    pub name: String,
    /// `host` or `vm`.
    pub kind: &'static str,
    /// Whether it lives.
    #[serde(serialize_with = "state")]
    pub state: State,
    /// Which of its lives this is.
    pub incarnation: u64,
    /// Which host or VM it is, or was last, as addresses name it.
    pub system: String,
    /// File of its section.
    pub file: u32,
    /// Offset of its section in the region.
    pub section: u64,
    /// Bytes of its section.
    pub section_bytes: u64,
    /// By how many interrupt vectors its sleepers are rung, which takes the guest driver in a VM; 0 if by the agents.
    pub vectors: u32,
    /// Bytes that its processes can be granted.
    pub heap_bytes: u64,
    /// Bytes that they were granted.
    pub heap_used: u64,
    /// Bytes of the pool of pages that its processes may grant; 0 if there is none.
    pub pages_bytes: u64,
    /// Bytes of those that are granted.
    pub pages_granted: u64,
    /// What all processes of this life have counted, including those that have ended.
    #[serde(serialize_with = "counters")]
    pub counters: Totals,
    /// Its processes.
    pub processes: Vec<Process>,
    /// Their endpoints.
    pub endpoints: Vec<Endpoint>,
    /// Tables of their memory that initiators reach without messages.
    pub registrations: Vec<Registrations>,
}

/// An attached process.
#[derive(Debug, Clone, Serialize)]
pub struct Process {
    /// Its area's number.
    pub area: u32,
    /// Its life.
    pub incarnation: u64,
    /// Its process id where it runs.
    pub pid: u64,
    /// Its program's name, as the process gave it; of a long name the first 24 bytes.
    pub program: String,
    /// Bytes of the region that it was granted.
    pub memory_bytes: u64,
    /// Bytes of its own memory that it has granted, which lie in the region as long as that.
    pub pages_granted: u64,
    /// What it has counted.
    #[serde(serialize_with = "counters")]
    pub counters: Totals,
}

/// An endpoint.
#[derive(Debug, Clone, Serialize)]
pub struct Endpoint {
    /// Its number in the region.
    pub slot: u32,
    /// Its number at its member.
    #[serde(skip)]
    pub local: u32,
    /// Its life.
    pub incarnation: u64,
    /// The area of its process.
    pub area: u32,
    /// Its process.
    pub pid: u64,
    /// Its outgoing lanes.
    pub lanes: Vec<Lane>,
    /// Incoming lanes that it polls directly.
    pub polled_directly: usize,
    /// How it is woken, if it says that it sleeps: by its `futex`, or through its local `service`.
    pub asleep: Option<&'static str>,
    /// The table of memory that initiators reach without messages, by its offset in the section.
    pub registrations: Option<u64>,
    /// Whose memory its process changes at this moment.
    pub holds: Option<Hold>,
    /// Its accept entries for incoming lanes.
    #[serde(skip)]
    pub accepts: Vec<Accept>,
    /// Entries that its lane chunks have.
    #[serde(skip)]
    pub lane_entries: u64,
    /// Of a context of IVC, which has channels in place of lanes: its group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<Group>,
    /// Its ends of channels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<Channel>,
    /// Offset of its block in the section.
    #[serde(skip)]
    pub block: u64,
}

/// What a context of IVC says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Group {
    /// The magic id of its group.
    pub magic: u64,
    /// Its client id.
    pub client: u64,
    /// Connections that may wait there; 0 if none are accepted.
    pub backlog: u64,
}

/// One end of a channel.
#[derive(Debug, Clone, Serialize)]
pub struct Channel {
    /// Its number at its context.
    pub number: u64,
    /// The partner's number in the region.
    pub to: u32,
    /// The life of it that the channel is to.
    pub to_incarnation: u64,
    /// Whether that life lasts.
    pub other_lives: bool,
    /// `offered`, `open`, `ended` (its stream has an end), `suspended` or `refusal`.
    pub state: &'static str,
    /// Bytes of the ring that it writes.
    pub ring_bytes: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Bytes written since the start.
    pub written: u64,
    /// Those of them that the partner's end has not given back; none without such an end.
    pub unread: Option<u64>,
    /// Bytes of the partner's ring that were read.
    pub read: u64,
    /// How its reader is woken, if it sleeps.
    pub asleep: Option<&'static str>,
    /// The end that it answers: number and generation.
    #[serde(skip)]
    pub answers: Option<(u64, u64)>,
    /// Its generation.
    #[serde(skip)]
    pub generation: u64,
}

/// A domain's table of memory that initiators reach without messages.
#[derive(Debug, Clone, Serialize)]
pub struct Registrations {
    /// Offset in the section, by which endpoints name it.
    pub table: u64,
    /// The area of its process.
    pub area: u32,
    /// What is registered now.
    pub ranges: Vec<Range>,
}

impl Registrations {
    /// Ranges that allow what is asked for, and their bytes.
    pub fn allowing(&self, access: u64) -> (usize, u64) {
        let allow = self.ranges.iter().filter(|r| r.access & access == access);
        allow.fold((0, 0), |(count, bytes), r| (count + 1, r.bytes.saturating_add(bytes)))
    }
}

/// A registration that initiators reach without messages.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Range {
    /// Its key.
    pub key: u64,
    /// Offset in the section of its first byte.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// What is allowed: 1 reads, 2 writes, 4 atomic operations; a sum.
    pub access: u64,
}

/// The owner of memory that a process is changing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Hold {
    /// The owner's member.
    pub member: u32,
    /// The owner's area.
    pub area: u32,
}

/// An outgoing lane.
#[derive(Debug, Clone, Serialize)]
pub struct Lane {
    /// Its number at its endpoint.
    pub number: u64,
    /// The receiving endpoint's number in the region.
    pub to: u32,
    /// The life of it that the lane was opened for.
    pub to_incarnation: u64,
    /// Whether that life lasts.
    pub receiver_lives: bool,
    /// Slots of the ring.
    pub slots: u64,
    /// Bytes of the data ring.
    pub data_bytes: u64,
    /// Whether the receiver has answered.
    pub accepted: bool,
    /// Whether the receiver polls it directly; else messages are announced.
    pub polled_directly: bool,
    /// Slots that the receiver has given back.
    pub slots_read: u64,
    /// Slots that it has not.
    pub slots_unread: u64,
    /// What the sender has counted on the way to this receiver.
    #[serde(serialize_with = "lane_counters")]
    pub counters: LaneTotals,
    /// The descriptor's generation.
    #[serde(skip)]
    pub generation: u64,
    /// Offset of the descriptor in the region.
    #[serde(skip)]
    pub at: u64,
    /// Offset of the ring in the region; `None` if it is none.
    #[serde(skip)]
    pub ring: Option<u64>,
}

/// An accept entry in use.
#[derive(Debug, Clone, Copy)]
pub struct Accept {
    /// Its number at its endpoint.
    pub number: u64,
    /// The sender's number in the region.
    pub sender: u32,
    /// The sender's lane.
    pub lane: u64,
    /// The generation of the lane's descriptor.
    pub generation: u64,
    /// The sender's life.
    pub incarnation: u64,
    /// Odd: polled directly.
    pub heat: u64,
    /// Read position.
    pub read: u64,
    /// Offset of the entry in the region.
    pub at: u64,
}

impl Survey {
    /// The sum of what all members have counted.
    pub fn totals(&self) -> Totals {
        let mut sum = Totals::default();
        self.members.iter().for_each(|m| sum.add(&m.counters));
        sum
    }

    /// Its lanes, with their senders.
    pub fn lanes(&self) -> impl Iterator<Item = (&Member, &Endpoint, &Lane)> {
        let ends = self.members.iter().flat_map(|m| m.endpoints.iter().map(move |e| (m, e)));
        ends.flat_map(|(m, e)| e.lanes.iter().map(move |l| (m, e, l)))
    }

    /// Its ends of channels, with their contexts.
    pub fn channels(&self) -> impl Iterator<Item = (&Member, &Endpoint, &Channel)> {
        let ends = self.members.iter().flat_map(|m| m.endpoints.iter().map(move |e| (m, e)));
        ends.flat_map(|(m, e)| e.channels.iter().map(move |c| (m, e, c)))
    }

    /// Of each endpoint, by number: its life, and the name by which tables know it.
    pub fn names(&self) -> Names {
        let of = |m: &Member, e: &Endpoint| (e.slot, (e.incarnation, m.name_of(e)));
        self.members.iter().flat_map(|m| m.endpoints.iter().map(move |e| of(m, e))).collect()
    }
}

/// Lives and names of endpoints, by number.
pub type Names = HashMap<u32, (u64, String)>;

impl Lane {
    /// The name by which tables know the receiver.
    pub fn name_of_receiver(&self, names: &Names) -> String {
        match names.get(&self.to) {
            Some((life, name)) if *life == self.to_incarnation => name.clone(),
            _ => format!("{} (gone)", self.to),
        }
    }
}

impl Member {
    /// The table that an endpoint names, if it could be read.
    pub fn registrations_of(&self, endpoint: &Endpoint) -> Option<&Registrations> {
        self.registrations.iter().find(|r| Some(r.table) == endpoint.registrations)
    }

    /// The name by which tables know one of its endpoints.
    pub fn name_of(&self, endpoint: &Endpoint) -> String {
        format!("{} {}:{}", endpoint.slot, self.name, endpoint.pid)
    }

    /// Lanes of all its endpoints.
    pub fn lanes(&self) -> usize {
        self.endpoints.iter().map(|e| e.lanes.len()).sum()
    }
}

/// Text that is padded with zeros, printable, and how many bytes it has, if it is UTF-8 with nothing else behind it.
pub fn padded(bytes: &[u8]) -> (String, Option<usize>) {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    let (text, rest) = bytes.split_at(end);
    let sound = std::str::from_utf8(text).is_ok() && rest.iter().all(|b| *b == 0);
    (printable(&String::from_utf8_lossy(text)), sound.then_some(end))
}

/// A state's name.
pub fn state_name(state: State) -> &'static str {
    match state {
        State::Free => "free",
        State::Joining => "joining",
        State::Active => "active",
        State::Dead => "dead",
    }
}

fn state<S: Serializer>(value: &State, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(state_name(*value))
}

fn counters<S: Serializer>(value: &Totals, to: S) -> Result<S::Ok, S::Error> {
    value.named().collect::<BTreeMap<String, u64>>().serialize(to)
}

fn lane_counters<S: Serializer>(value: &LaneTotals, to: S) -> Result<S::Ok, S::Error> {
    value.named().collect::<BTreeMap<String, u64>>().serialize(to)
}

/// The counters of lanes that tables show, with their headings.
pub const SHOWN_OF_LANES: [(LaneCounter, &str); 6] = [
    (LaneCounter::Messages, "sent"),
    (LaneCounter::BytesSent, "bytes"),
    (LaneCounter::Rma, "rma"),
    (LaneCounter::RmaBytes, "bytes"),
    (LaneCounter::Stalls, "stalls"),
    (LaneCounter::Wakeups, "wakeups"),
];

/// The counters that tables show, with their headings.
pub const SHOWN: [(Counter, &str); 8] = [
    (Counter::TxMessages, "sent"),
    (Counter::TxBytes, "bytes"),
    (Counter::RxMessages, "received"),
    (Counter::RxBytes, "bytes"),
    (Counter::Rma, "rma"),
    (Counter::Stalls, "stalls"),
    (Counter::Sleeps, "sleeps"),
    (Counter::Wakeups, "wakeups"),
];

/// Whether a record is of a life that lasts.
pub(crate) fn lives(life: Life) -> bool {
    life.state == State::Active
}
