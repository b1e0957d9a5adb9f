//! `isthmus ps`: the members of a region with their processes, and what went through it.

use std::fmt::Write;

use isthmus_region::counters::{LaneTotals, Totals};
use isthmus_region::life::State;

use crate::fault::Faults;
use crate::model::{Lane, Member, SHOWN, SHOWN_OF_LANES, Survey, state_name};
use crate::table::{Table, bytes, count};
use crate::target::Target;

/// Most rows of a table of endpoints or lanes that is shown by default.
const MOST_ROWS: usize = 40;

/// For people. `all` shows every endpoint and lane, however many there are.
pub fn text(target: &Target, survey: &Survey, faults: &Faults, all: bool) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{}", target.headline());
    let region = &survey.region;
    let service = if target.is_served() { state_name(region.service) } else { "killed" };
    let parted = if region.is_parted() { ", sections read-only to other members" } else { "" };
    let _ = writeln!(out, "region {}, {}{parted}, service {service}\n", region.uuid, bytes(region.bytes));
    let _ = writeln!(out, "{}", members(survey));
    if !survey.objects.is_empty() {
        let _ = writeln!(out, "{}", objects(survey));
    }
    let processes = processes(survey);
    if processes.is_empty() {
        let _ = writeln!(out, "no process is attached");
        return out + &note(faults);
    }
    let _ = writeln!(out, "{processes}");
    let tables = [(endpoints(survey), "endpoints"), (lanes(survey), "lanes"), (channels(survey), "channels")];
    for (table, what) in tables {
        if table.is_empty() {
            // Channels are shown only where there are any: few programs use them.
            if what != "channels" {
                let _ = writeln!(out, "no {what}\n");
            }
        } else if all || table.len() <= MOST_ROWS {
            let _ = writeln!(out, "{table}");
        } else {
            let _ = writeln!(out, "{} {what}; --all shows them\n", table.len());
        }
    }
    out.truncate(out.trim_end().len());
    out + "\n" + &note(faults)
}

/// A line about a region that is not sound.
pub fn note(faults: &Faults) -> String {
    match faults.list.first() {
        None => String::new(),
        Some(first) => format!(
            "\nsomething in this region is wrong ({} in all; `isthmus region check` names them): {first}\n",
            faults.list.len() as u64 + faults.more
        ),
    }
}

/// For programs.
pub fn json(target: &Target, survey: &Survey, faults: &Faults) -> serde_json::Value {
    // Strings and numbers, which always serialise.
    let mut value = serde_json::to_value(survey).unwrap_or_default();
    if let Some(map) = value.as_object_mut() {
        let service = target.service.as_ref();
        map.insert("socket".into(), service.map(|s| s.socket.to_string_lossy()).into());
        map.insert("service_pid".into(), service.map(|s| s.pid).into());
        map.insert("faults".into(), serde_json::to_value(&faults.list).unwrap_or_default());
    }
    value
}

/// The cells of the counters that tables show.
pub(crate) fn counted(counters: &Totals) -> impl Iterator<Item = String> {
    SHOWN.iter().map(|(counter, heading)| {
        let value = counters.get(*counter);
        if *heading == "bytes" { bytes(value) } else { count(value) }
    })
}

/// The same for a lane.
pub(crate) fn counted_of_lane(counters: &LaneTotals) -> impl Iterator<Item = String> {
    SHOWN_OF_LANES.iter().map(|(counter, heading)| {
        let value = counters.get(*counter);
        if *heading == "bytes" { bytes(value) } else { count(value) }
    })
}

/// `first` headings and those of the counters of lanes.
pub(crate) fn headings_of_lanes(first: &[&'static str]) -> Vec<&'static str> {
    first.iter().copied().chain(SHOWN_OF_LANES.iter().map(|(_, heading)| *heading)).collect()
}

/// `first` headings and those of the counters.
pub(crate) fn headings(first: &[&'static str]) -> Vec<&'static str> {
    first.iter().copied().chain(SHOWN.iter().map(|(_, heading)| *heading)).collect()
}

/// Columns of the table of members, before those of the counters.
const MEMBERS: [&str; 10] =
    ["<member", "<kind", "<rung by", "<state", "processes", "endpoints", "lanes", "memory", "of", "granted"];

fn members(survey: &Survey) -> Table {
    let mut table = Table::new(&headings(&MEMBERS));
    // Of which one would ring the other.
    let active = survey.members.iter().filter(|m| m.state == State::Active).count();
    for m in &survey.members {
        let cells = [
            m.name.clone(),
            m.kind.to_owned(),
            if active > 1 { rung_by(m) } else { "-" }.to_owned(),
            state_name(m.state).to_owned(),
            m.processes.len().to_string(),
            m.endpoints.len().to_string(),
            m.lanes().to_string(),
            bytes(m.heap_used),
            bytes(m.heap_bytes),
            granted(m, m.pages_granted),
        ];
        table.row(cells.into_iter().chain(counted(&m.counters)).collect());
    }
    only_pooled(survey, &mut table);
    table
}

/// Pages that a process or all of a member have granted, where the member has a pool of them.
pub(crate) fn granted(member: &Member, pages: u64) -> String {
    if member.pages_bytes == 0 { "-".into() } else { bytes(pages) }
}

/// Few regions have pages that are granted: the others' tables have no column for them.
pub(crate) fn only_pooled(survey: &Survey, table: &mut Table) {
    if survey.members.iter().all(|member| member.pages_bytes == 0) {
        table.without("granted");
    }
}

/// By what other members wake its sleepers.
fn rung_by(member: &Member) -> &'static str {
    match (member.state, member.vectors) {
        (State::Active, 0) => "agents",
        (State::Active, _) => "interrupts",
        _ => "-",
    }
}

fn objects(survey: &Survey) -> Table {
    let mut table = Table::new(&["<object", "<kind", "bytes", "mode", "user", "group", "open in", "<state"]);
    for o in &survey.objects {
        table.row(vec![
            o.name.clone(),
            o.kind.to_owned(),
            bytes(o.bytes),
            format!("{:03o}", o.mode),
            o.owner.0.to_string(),
            o.owner.1.to_string(),
            o.opens.to_string(),
            if o.unlinked { "unlinked" } else { "named" }.to_owned(),
        ]);
    }
    table
}

fn processes(survey: &Survey) -> Table {
    let mut table = Table::new(&headings(&["<member", "process", "<program", "memory", "granted"]));
    for m in &survey.members {
        for p in &m.processes {
            let program = if p.program.is_empty() { "-".into() } else { p.program.clone() };
            let granted = granted(m, p.pages_granted);
            let cells = [m.name.clone(), p.pid.to_string(), program, bytes(p.memory_bytes), granted];
            table.row(cells.into_iter().chain(counted(&p.counters)).collect());
        }
    }
    only_pooled(survey, &mut table);
    table
}

fn endpoints(survey: &Survey) -> Table {
    let mut table = Table::new(&[
        "<endpoint",
        "<member",
        "process",
        "lanes out",
        "lanes in",
        "polled directly",
        "reachable",
        "<sleeps by",
        "<hears from",
    ]);
    for m in &survey.members {
        for e in &m.endpoints {
            let mut from: Vec<String> = e.accepts.iter().map(|a| a.sender.to_string()).collect();
            from.sort_unstable();
            from.dedup();
            if from.len() > 8 {
                from.truncate(8);
                from.push("…".into());
            }
            table.row(vec![
                e.slot.to_string(),
                m.name.clone(),
                e.pid.to_string(),
                e.lanes.len().to_string(),
                e.accepts.len().to_string(),
                e.polled_directly.to_string(),
                m.registrations_of(e).map_or_else(|| "-".into(), |r| bytes(r.allowing(0).1)),
                e.asleep.unwrap_or("-").to_owned(),
                from.join(" "),
            ]);
        }
    }
    table
}

fn lanes(survey: &Survey) -> Table {
    let first = ["<from", "<to", "slots", "unread", "data", "<state"];
    let mut table = Table::new(&headings_of_lanes(&first));
    let names = survey.names();
    for (m, e, lane) in survey.lanes() {
        let cells = [
            m.name_of(e),
            lane.name_of_receiver(&names),
            lane.slots.to_string(),
            count(lane.slots_unread),
            bytes(lane.data_bytes),
            state_of(lane).to_owned(),
        ];
        table.row(cells.into_iter().chain(counted_of_lane(&lane.counters)).collect());
    }
    table
}

fn channels(survey: &Survey) -> Table {
    let mut table = Table::new(&["<from", "<to", "group", "client", "ring", "written", "unread", "<state"]);
    let names = survey.names();
    for (m, e, channel) in survey.channels() {
        let group = e.group.map_or((0, 0), |g| (g.magic, g.client));
        let to = match names.get(&channel.to) {
            Some((life, name)) if *life == channel.to_incarnation => name.clone(),
            _ => format!("{} (gone)", channel.to),
        };
        table.row(vec![
            m.name_of(e),
            to,
            format!("{:#x}", group.0),
            group.1.to_string(),
            bytes(channel.ring_bytes),
            bytes(channel.written),
            channel.unread.map_or_else(|| "-".into(), bytes),
            if channel.other_lives { channel.state } else { "other side gone" }.to_owned(),
        ]);
    }
    table
}

/// A lane's state in a few words.
pub(crate) fn state_of(lane: &Lane) -> &'static str {
    match (lane.receiver_lives, lane.accepted, lane.polled_directly) {
        (false, ..) => "receiver gone",
        (true, false, _) => "not answered",
        (true, true, true) => "polled directly",
        (true, true, false) => "announced",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::survey::tests::nothing;

    #[test]
    fn the_man_page_explains_each_column() {
        let page = include_str!("../../../man/isthmus.1");
        let (_, glossary) = page.split_once("The columns of\n.BR ps").unwrap();
        let (glossary, _) = glossary.split_once("\n.RE\n").unwrap();
        let explained: Vec<&str> = glossary
            .lines()
            .filter_map(|line| line.strip_prefix(".BR ").or_else(|| line.strip_prefix(".B ")))
            .flat_map(|line| line.split('"').map(str::trim))
            .collect();
        let survey = nothing();
        let tables = [objects, processes, endpoints, lanes, channels].map(|table| table(&survey));
        // Without a member that has a pool there is no column for what is granted.
        let all = tables.iter().flat_map(Table::headings).chain(MEMBERS.map(|m| m.trim_start_matches('<')));
        for heading in all {
            assert!(explained.contains(&heading), "{heading}: {explained:?}");
        }
    }
}
