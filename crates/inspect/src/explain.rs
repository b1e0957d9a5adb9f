//! `isthmus explain`: how messages, RMA and atomic operations of each pair of endpoints go, and why.
//!
//! What a lane's descriptor and accept entry say is reported as found; what an endpoint decides by itself is derived from
//! the constants that the endpoint uses.

use std::collections::HashMap;
use std::fmt::Write;

use isthmus_region::counters::{Counter, LaneCounter};
use isthmus_region::registrations::{ATOMIC, PAGES, READ, WRITE};
use isthmus_transport::Config;
use isthmus_transport::endpoint::{ATTACH_BYTES, MANY_LANES};
use isthmus_transport::lane::Size;
use isthmus_transport::wire::INLINE_BYTES;
use serde::Serialize;

use crate::model::{Endpoint, Lane, Member, Registrations, Survey};
use crate::table::bytes;

/// One direction between two endpoints.
#[derive(Debug, Clone, Serialize)]
pub struct Pair {
    /// The sender, as tables name it.
    pub from: String,
    /// The receiver.
    pub to: String,
    /// The path of messages.
    pub path: Choice,
    /// The lane, if one is open.
    pub lane: Option<Choice>,
    /// How the receiver learns of a message.
    pub notice: Option<Choice>,
    /// The protocols by length; none without a lane.
    pub protocols: Vec<Protocol>,
    /// Whether RMA on the receiver's memory goes directly or by messages.
    pub rma: Choice,
    /// The same for atomic operations.
    pub atomics: Choice,
    /// Slots that went through the lane, and those that are in it.
    pub slots: Option<(u64, u64)>,
    /// Messages that were sent this way, and their bytes.
    pub sent: Option<(u64, u64)>,
}

/// What was chosen, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// What.
    pub what: String,
    /// Why.
    pub why: String,
}

/// One protocol and the lengths that it serves.
#[derive(Debug, Clone, Serialize)]
pub struct Protocol {
    /// Longest payload; none for any length.
    pub up_to_bytes: Option<u64>,
    /// Its name.
    pub name: &'static str,
    /// How it works and what set the limit.
    pub why: String,
}

fn choice(what: impl Into<String>, why: impl Into<String>) -> Choice {
    Choice { what: what.into(), why: why.into() }
}

/// Every pair with a lane; with `all`, the others, too.
pub fn pairs(survey: &Survey, all: bool) -> Vec<Pair> {
    let names = survey.names();
    let ends = || survey.members.iter().flat_map(|m| m.endpoints.iter().map(move |e| (m, e)));
    let receivers: HashMap<u32, (&Member, &Endpoint)> = ends().map(|(m, e)| (e.slot, (m, e))).collect();
    let mut pairs = Vec::new();
    for member in &survey.members {
        // Contexts of IVC have channels, and no messages to explain.
        for endpoint in member.endpoints.iter().filter(|e| e.group.is_none()) {
            for lane in &endpoint.lanes {
                let to = lane.name_of_receiver(&names);
                let receiver = receivers.get(&lane.to).copied();
                pairs.push(of_lane(survey, member, endpoint, lane, to, receiver));
            }
            if all {
                let lacks =
                    |e: &Endpoint| e.group.is_none() && !endpoint.lanes.iter().any(|l| l.to == e.slot);
                for (m, e) in ends().filter(|(_, e)| lacks(e)) {
                    pairs.push(without_lane(survey, (member, endpoint), (m, e)));
                }
            }
        }
    }
    pairs
}

fn through_region(survey: &Survey) -> Choice {
    choice(
        format!("through the region {}", survey.region.uuid),
        "both endpoints are members of it, and there is no other path in this version",
    )
}

fn without_lane(survey: &Survey, from: (&Member, &Endpoint), to: (&Member, &Endpoint)) -> Pair {
    let mut lane =
        choice("none yet", "a lane opens with the first message, and nothing was sent this way yet");
    if from.1.slot == to.1.slot {
        lane.why = "it is the endpoint itself; most MPIs keep messages to oneself in their own hands".into();
    } else if from.0.index == to.0.index {
        lane.why += "; between ranks of one host name an MPI uses its own shared memory, unless --through-region says otherwise";
    }
    Pair {
        from: from.0.name_of(from.1),
        to: to.0.name_of(to.1),
        path: through_region(survey),
        lane: Some(lane),
        notice: None,
        protocols: Vec::new(),
        rma: rma(from, Some(to)),
        atomics: atomics(from.0, Some(to)),
        slots: None,
        sent: None,
    }
}

fn of_lane(
    survey: &Survey,
    member: &Member,
    endpoint: &Endpoint,
    lane: &Lane,
    to: String,
    receiver: Option<(&Member, &Endpoint)>,
) -> Pair {
    let receiver = receiver.filter(|_| lane.receiver_lives);
    Pair {
        from: member.name_of(endpoint),
        to,
        path: through_region(survey),
        lane: Some(size(endpoint, lane)),
        notice: Some(notice(lane, receiver.map(|(_, e)| e))),
        protocols: protocols(lane, one_copy(member, endpoint, receiver)),
        rma: rma((member, endpoint), receiver),
        atomics: atomics(member, receiver),
        slots: Some((lane.slots_read, lane.slots_unread)),
        sent: Some((lane.counters.get(LaneCounter::Messages), lane.counters.get(LaneCounter::BytesSent))),
    }
}

fn size(endpoint: &Endpoint, lane: &Lane) -> Choice {
    let what = format!("{} slots and {} of data ring", lane.slots, bytes(lane.data_bytes));
    let is = |size: Size| size.slots == lane.slots && size.data_bytes == lane.data_bytes;
    let open = endpoint.lanes.len();
    let why = if is(Size::USUAL) {
        format!("usual, as the sender had fewer than {MANY_LANES} lanes open ({open} now)")
    } else if is(Size::SMALL) {
        format!("small, as the sender had {MANY_LANES} lanes open or more ({open} now)")
    } else if is(Size::RESERVE) {
        "the endpoint's reserve: its section of the region was full; a larger --region-size helps".into()
    } else {
        "a size that this isthmus does not choose by itself".into()
    };
    choice(what, why)
}

fn notice(lane: &Lane, receiver: Option<&Endpoint>) -> Choice {
    let most = Config::default().hot_lanes;
    let hot = receiver.map_or(0, |e| e.polled_directly);
    let bell = match receiver.and_then(|e| e.asleep) {
        Some("futex") => "its futex",
        Some(_) => "a pipe to which its local service writes",
        None => "",
    };
    if lane.receiver_lives && !bell.is_empty() {
        return choice(
            format!("each message is announced by an activity word, and the receiver is woken by {bell}"),
            "it sleeps, as nothing came for a while and it waits, or shares its processor with others",
        );
    }
    match (lane.receiver_lives, lane.accepted, lane.polled_directly) {
        (false, ..) => choice("none", "the receiver is gone; the sender closes the lane when it notices"),
        (true, false, _) => choice(
            "each message is announced by an activity word",
            "the receiver has not answered: it has not polled since the lane was opened, and until it does the sender can fill the ring once",
        ),
        (true, true, true) => choice(
            "the receiver polls the lane itself",
            format!(
                "it was active lately: one of {hot} such lanes of its receiver, which polls at most {most}"
            ),
        ),
        (true, true, false) if hot >= most => choice(
            "each message is announced by an activity word",
            format!("its receiver polls {hot} other lanes itself, the most that it does"),
        ),
        (true, true, false) => choice(
            "each message is announced by an activity word",
            "no message came for a while, so the receiver stopped polling it; the next ones make it busy again",
        ),
    }
}

/// What a receiver lets initiators reach directly.
fn reach<'a>(from: &Member, to: Option<(&'a Member, &Endpoint)>) -> Result<&'a Registrations, Choice> {
    let Some((member, endpoint)) = to else { return Err(choice("none", "the receiver is gone")) };
    if from.file != member.file {
        return Err(choice(
            "by messages, which the target's progress serves",
            "the sender may not write the target's section, which lies in a file of its own (--separate-sections, --isolated)",
        ));
    }
    match member.registrations_of(endpoint) {
        Some(found) if !found.ranges.is_empty() => Ok(found),
        _ => Err(choice(
            "by messages, which the target's progress serves",
            "none of the memory that the target has registered is in the region: it is the program's own, which other processes cannot reach (isthmus run --alloc has large allocations of its program there, and with --grant a target in a VM grants pages of it; fi_isthmus(7) tells how a program takes memory of the region itself)",
        )),
    }
}

/// How many ranges, and of how many bytes.
fn extent((count, of): (usize, u64)) -> String {
    format!("{count} registration{} of {}", if count == 1 { "" } else { "s" }, length(of))
}

fn rma(from: (&Member, &Endpoint), to: Option<(&Member, &Endpoint)>) -> Choice {
    let found = match reach(from.0, to) {
        Ok(found) => found,
        Err(choice) => return choice,
    };
    let (reads, writes) = (found.allowing(READ), found.allowing(WRITE));
    let what = match (reads.0, writes.0) {
        (0, 0) => {
            return choice(
                "by messages",
                "the target's registrations in the region allow neither reads nor writes",
            );
        }
        (0, _) => format!("writes directly to {}, all else by messages", extent(writes)),
        (_, 0) => format!("reads directly from {}, all else by messages", extent(reads)),
        _ => format!(
            "reads directly from {}, writes directly to {}, all else by messages",
            extent(reads),
            extent(writes)
        ),
    };
    let process = from.0.processes.iter().find(|p| p.area == from.1.area);
    let count = |counter| process.map_or(0, |p| p.counters.get(counter));
    let pages = found.allowing(PAGES).0;
    let how = match pages {
        0 => "took that memory of the region",
        _ if pages == found.ranges.len() => "has granted pages of that memory, its program's own",
        _ => "took some of that memory of the region, and has granted pages of the rest, its program's own",
    };
    choice(
        what,
        format!(
            "the target {how}, so that others copy to and from it themselves; what else it registered goes by messages, and so do writes with data for its completions. The sender's process did {} of its {} operations directly so far, to whatever targets",
            count(Counter::Direct),
            count(Counter::Rma)
        ),
    )
}

fn atomics(from: &Member, to: Option<(&Member, &Endpoint)>) -> Choice {
    let found = match reach(from, to) {
        Ok(found) => found,
        Err(choice) => return choice,
    };
    let (all, writes) = (found.allowing(ATOMIC), found.allowing(WRITE));
    if all.0 == 0 && writes.0 > 0 {
        return choice(
            "by messages",
            "the target does them alone: instructions of its processor are not atomic for others, as in an emulated VM with a single possible processor",
        );
    }
    if all.0 == 0 {
        return choice("by messages", "the target's registrations in the region do not allow them");
    }
    choice(
        format!("directly on {}, all else by messages", extent(all)),
        "for aligned elements of up to 8 bytes the processor's own instructions are atomic for both sides; larger ones go by messages, and so do all while one to the same target is under way by messages, and all of a sender in an emulated VM with a single possible processor",
    )
}

/// What is known of long messages in one copy, if they may go so from a sender's process to this receiver's.
fn one_copy(from: &Member, endpoint: &Endpoint, to: Option<(&Member, &Endpoint)>) -> Option<String> {
    let (member, receiver) = to?;
    if receiver.slot == endpoint.slot {
        return Some(
            "; but this is the endpoint itself, which copies it from buffer to buffer instead".into(),
        );
    }
    let counters =
        |m: &Member, of: &Endpoint| m.processes.iter().find(|p| p.area == of.area).map(|p| p.counters);
    let (sent, received) = (counters(from, endpoint)?, counters(member, receiver)?);
    let speed = |what, ns, bytes| match (received.get(ns), received.get(bytes)) {
        (0, _) | (_, 0) => format!("none in {what}"),
        // Figures for people; a process may have written anything there.
        (ns, bytes) => format!("{:.1} GB/s in {what}", bytes as f64 / ns as f64),
    };
    let two = speed("two copies", Counter::CopyNs, Counter::CopyBytes);
    let resident = match sent.get(Counter::Resident) {
        0 => String::new(),
        count => format!(
            "; {count} of the {} long messages that the sender's process has sent so far, to whatever receivers, itself among them, lay in memory of the region (isthmus run --alloc, isthmus_memory), and their receivers copied them from there: of these the receiver's process has measured, of all lengths and senders, {}",
            sent.get(Counter::Rendezvous),
            speed("one copy", Counter::ResideNs, Counter::ResideBytes)
        ),
    };
    if member.index != from.index {
        if from.pages_bytes == 0 {
            return (!resident.is_empty()).then_some(resident);
        }
        let process = from.processes.iter().find(|p| p.area == endpoint.area)?;
        let stale = match received.get(Counter::GrantsStale) {
            0 => String::new(),
            count => format!(
                "; {count} named a page that was no longer granted, and came in two copies from there on"
            ),
        };
        return Some(format!(
            "; from {} on, its receiver may copy it in one copy from pages of the sender's program instead, which the guest driver has moved into the region ({} of this process now), once a buffer comes back and if that is faster or less work, or as FI_ISTHMUS_LONG says: {} of the {} long messages that the sender's process has sent so far, to whatever receivers, itself among them, had such pages; the receiver's process has measured, of all lengths and senders, {two}, {}{stale}{resident}",
            bytes(ATTACH_BYTES),
            length(process.pages_granted),
            sent.get(Counter::Granted),
            sent.get(Counter::Rendezvous),
            speed("one", Counter::GrantNs, Counter::GrantBytes),
        ));
    }
    // In a region of one file: `Member::may_attach` of the transport's side.
    if member.file != 0 {
        return (!resident.is_empty()).then_some(resident);
    }
    let measured = [two, speed("one", Counter::AttachNs, Counter::AttachBytes)];
    let refused = match received.get(Counter::AttachRefused) {
        0 => String::new(),
        count => format!(
            "; {count} were to come in one copy and were asked for in two: its service or the kernel refused, the sender's memory could not be read, or the sender had withdrawn them"
        ),
    };
    Some(format!(
        "; from {} on, its receiver may have the kernel copy it from the sender's memory in one copy instead, if that is allowed and faster, or as FI_ISTHMUS_LONG says: so went {} of the {} long messages that the sender's process has sent so far, to whatever receivers, itself among them; the receiver's process has measured, of all lengths and senders, {}{refused}{resident}",
        bytes(ATTACH_BYTES),
        sent.get(Counter::Attached),
        sent.get(Counter::Rendezvous),
        measured.join(", ")
    ))
}

fn protocols(lane: &Lane, one_copy: Option<String>) -> Vec<Protocol> {
    let config = Config::default();
    let ring = lane.data_bytes / 2;
    let eager = ring.min(config.eager_bytes);
    let why = if ring < config.eager_bytes {
        format!(
            "the limit is half of the lane's data ring, a larger lane would allow {}",
            bytes(config.eager_bytes)
        )
    } else {
        format!("the limit is the protocol's, the lane's data ring would allow {}", bytes(ring))
    };
    let instead = one_copy.unwrap_or_default();
    vec![
        Protocol {
            up_to_bytes: Some(INLINE_BYTES as u64),
            name: "in line",
            why: "flag, tag and payload lie in one cache line, so that only one line moves".into(),
        },
        Protocol {
            up_to_bytes: Some(eager),
            name: "buffered eager",
            why: format!("copied to the data ring at once, without asking the receiver; {why}"),
        },
        Protocol {
            up_to_bytes: None,
            name: "pipelined two-copy",
            why: format!(
                "announced, and copied in chunks of {}, {} in flight (up to {} where the receiver has measured that this is faster; the counter deep says of how many it asked for that), once its receive is posted: while one is copied in the other is copied out{instead}",
                bytes(config.chunk_bytes),
                config.pipeline_depth,
                config.deep_pipeline
            ),
        },
    ]
}

/// A length with its unit.
fn length(len: u64) -> String {
    let text = bytes(len);
    if text.ends_with(|c: char| c.is_ascii_digit()) { text + " B" } else { text }
}

/// How processes wait that have nothing to do.
pub fn waiting(survey: &Survey) -> Choice {
    let with_endpoints = |m: &Member| {
        let mut areas: Vec<u32> = m.endpoints.iter().map(|e| e.area).collect();
        areas.sort_unstable();
        areas.dedup();
        areas.len() as u64
    };
    let all: u64 = survey.members.iter().map(with_endpoints).sum();
    let processors = survey.region.processors;
    let numbers = format!("{all} processes with endpoints on the host's {processors} processors");
    match processors {
        0 => choice("unknown", "the service did not say how many processors the host has"),
        _ if all > processors => choice(
            "polls that find nothing yield, and then nap for 100 us at a time",
            format!("there are {numbers}, so a process that spins keeps another one from its work"),
        ),
        _ => choice(
            "polls spin",
            format!(
                "there are {numbers}; in a VM with fewer virtual CPUs than ranks they yield all the same"
            ),
        ),
    }
}

/// What VMs have the region as, or who may write what in it, where that decides what can be done.
pub fn memory(survey: &Survey) -> Option<Choice> {
    let with_dax = || {
        choice(
            "VMs have the region as a memory device (DAX), write-back and in pages of 2 MiB",
            "so --source dax said; such a device cannot be unplugged, so the VMs must not be saved or migrated; no VM's section is kept from the others (--isolated), and no program's pages can be granted (--grant), since the region's memory is not the guest driver's: --alloc has large allocations in the region instead",
        )
    };
    let parted = || {
        choice(
            "each member reads all sections and writes only its own (and the shared one, if there is one)",
            "so --isolated or --separate-sections said; RMA and atomic operations on another member's memory go by messages, and are done by its process when that next polls",
        )
    };
    if survey.region.dax { Some(with_dax()) } else { survey.region.is_parted().then(parted) }
}

/// All of it, for programs.
pub fn json(survey: &Survey, all: bool) -> serde_json::Value {
    // Strings and numbers, which always serialise.
    serde_json::json!({"memory": memory(survey), "waiting": waiting(survey), "pairs": pairs(survey, all)})
}

/// For people.
pub fn text(survey: &Survey, all: bool) -> String {
    let mut out = String::new();
    let pairs = pairs(survey, all);
    let endpoints: usize = survey.members.iter().map(|m| m.endpoints.len()).sum();
    if let Some(Choice { what, why }) = memory(survey) {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "memory: {what}: {why}\n");
    }
    if endpoints > 0 {
        let Choice { what, why } = waiting(survey);
        // Writing to a string cannot fail.
        let _ = writeln!(out, "waiting: {what}: {why}\n");
    }
    for pair in &pairs {
        let _ = writeln!(out, "{}  ->  {}", pair.from, pair.to);
        let parts =
            [("path", Some(&pair.path)), ("lane", pair.lane.as_ref()), ("notice", pair.notice.as_ref())];
        for (what, choice) in parts {
            if let Some(Choice { what: chosen, why }) = choice {
                let _ = writeln!(out, "  {what:<8} {chosen}: {why}");
            }
        }
        for Protocol { up_to_bytes, name, why } in &pair.protocols {
            let length =
                up_to_bytes.map_or_else(|| "longer".to_owned(), |most| format!("to {}", length(most)));
            let _ = writeln!(out, "  {length:<8} {name}: {why}");
        }
        let _ = writeln!(out, "  {:<8} {}: {}", "rma", pair.rma.what, pair.rma.why);
        let same = pair.atomics == pair.rma;
        let atomics =
            if same { "as rma".into() } else { format!("{}: {}", pair.atomics.what, pair.atomics.why) };
        let _ = writeln!(out, "  {:<8} {atomics}", "atomics");
        if let (Some((messages, sent)), Some((read, unread))) = (pair.sent, pair.slots) {
            let so_far =
                format!("{messages} messages of {}; {read} slots read, {unread} waiting", length(sent));
            let _ = writeln!(out, "  {:<8} {so_far}", "so far");
        }
        let _ = writeln!(out);
    }
    let others = (endpoints * endpoints).saturating_sub(pairs.len());
    let _ = match (endpoints, others, all) {
        (0, ..) => writeln!(out, "no endpoint is open"),
        (_, 0, _) | (_, _, true) => Ok(()),
        _ => writeln!(
            out,
            "{others} more pairs of the {endpoints} endpoints have no lane: no message was sent that way; --all shows them, too"
        ),
    };
    out
}
