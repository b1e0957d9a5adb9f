//! The counters of a region in the OpenMetrics text format, version 1.0.0, as Prometheus reads it.
//!
//! Source: OpenMetrics 1.0.0: families one after the other, each with `TYPE`, `UNIT` and `HELP`; samples of counters end
//! in `_total`; label values escape backslash, quote and line feed; the last line is `# EOF`.

use std::collections::HashMap;
use std::fmt::Write;

use isthmus_region::counters::{Totals, lane_fields};
use isthmus_region::format::FIELDS;
use isthmus_region::life::State;

use crate::fault::Faults;
use crate::model::{Endpoint, Lane, Member, Survey};

/// The type of an answer.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Most lanes that are listed: more would make an answer too long to be fetched every few seconds.
const MOST_LANES: usize = 4096;

/// Makes the text, again and again.
#[derive(Debug, Default)]
pub struct Exporter {
    /// The largest values seen, by member and life: a counter must never fall, but a survey may miss a process whose
    /// counters are being added to its member's at that moment.
    highest: HashMap<(u32, u64), Totals>,
}

impl Exporter {
    /// The text for a region as it is now.
    pub fn text(&mut self, survey: &Survey, faults: &Faults) -> String {
        let mut members: Vec<(&Member, Totals)> = Vec::new();
        for member in &survey.members {
            let highest = self.highest.entry((member.index, member.incarnation)).or_default();
            highest.raise(&member.counters);
            members.push((member, *highest));
        }
        // Former lives are not reported again.
        let lives: Vec<_> = survey.members.iter().map(|m| (m.index, m.incarnation)).collect();
        self.highest.retain(|key, _| lives.contains(key));
        render(survey, faults, &members)
    }
}

/// One metric that every member has: family, unit, help, value.
type PerMember<'a> = (&'a str, &'a str, &'a str, fn(&Member) -> u64);

const GAUGES: [PerMember<'static>; 9] = [
    ("member_up", "", "Whether the member lives.", |m| u64::from(m.state == State::Active)),
    ("member_processes", "", "Attached processes.", |m| m.processes.len() as u64),
    ("member_endpoints", "", "Open endpoints.", |m| m.endpoints.len() as u64),
    ("member_endpoints_asleep", "", "Endpoints that sleep until somebody wakes them.", |m| {
        m.endpoints.iter().filter(|e| e.asleep.is_some()).count() as u64
    }),
    ("member_lanes", "", "Outgoing lanes that are open.", |m| m.lanes() as u64),
    (
        "member_memory_bytes",
        "bytes",
        "Bytes of the region that the member's processes can be granted.",
        |m| m.heap_bytes,
    ),
    ("member_memory_granted_bytes", "bytes", "Bytes of the region that they were granted.", |m| m.heap_used),
    (
        "member_pages_bytes",
        "bytes",
        "Bytes of the pool of pages that the member's processes may grant.",
        |m| m.pages_bytes,
    ),
    (
        "member_pages_granted_bytes",
        "bytes",
        "Bytes of the member's processes' own memory that they have granted, in that pool.",
        |m| m.pages_granted,
    ),
];

fn render(survey: &Survey, faults: &Faults, members: &[(&Member, Totals)]) -> String {
    let mut out = String::new();
    let region = &survey.region;
    family(&mut out, "build", "info", "", "The version of isthmus.");
    sample(&mut out, "build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    let of_region = [("region", region.uuid.as_str())];
    let gauges = [
        ("region_bytes", "bytes", "Bytes of the region.", region.bytes),
        (
            "region_service_up",
            "",
            "Whether the host service says that it runs.",
            u64::from(region.service == State::Active),
        ),
        (
            "region_processors",
            "",
            "Processors that the host has for all members; 0 if unknown.",
            region.processors,
        ),
        ("region_places", "", "Members that the region has room for.", region.places.into()),
        (
            "region_faults",
            "",
            "Values in the region's tables that cannot be right.",
            faults.list.len() as u64 + faults.more,
        ),
    ];
    for (name, unit, help, value) in gauges {
        family(&mut out, name, "gauge", unit, help);
        sample(&mut out, name, &of_region, value);
    }
    for (name, unit, help, value) in GAUGES {
        family(&mut out, name, "gauge", unit, help);
        for (member, _) in members {
            sample(&mut out, name, &labels(member), value(member));
        }
    }
    for (index, field) in FIELDS.iter().filter(|f| f.structure == "counters").enumerate() {
        let name = counter_name(field.name);
        let unit = if name.ends_with("_bytes") { "bytes" } else { "" };
        family(&mut out, &name, "counter", unit, field.doc);
        for (member, totals) in members {
            let value = totals.named().nth(index).map_or(0, |(_, value)| value);
            sample(&mut out, &format!("{name}_total"), &labels(member), value);
        }
    }
    lanes(&mut out, survey);
    out.push_str("# EOF\n");
    out
}

/// Counters of lanes, by endpoints. An endpoint that takes the place of another one begins at 0 again.
fn lanes(out: &mut String, survey: &Survey) {
    let endpoints = survey.members.iter().flat_map(|m| m.endpoints.iter().map(move |e| (e.slot, m)));
    let members: HashMap<u32, &Member> = endpoints.collect();
    // Lanes to dead endpoints are left out: lanes to the next endpoint in such a place have the same labels.
    let living: Vec<(&Member, &Endpoint, &Lane)> =
        survey.lanes().filter(|(_, _, lane)| lane.receiver_lives).collect();
    let left_out = living.len().saturating_sub(MOST_LANES);
    let help = "Lanes whose counters are not listed, since there are too many.";
    family(out, "region_lanes_left_out", "gauge", "", help);
    sample(out, "region_lanes_left_out", &[("region", &survey.region.uuid)], left_out as u64);
    for (index, field) in lane_fields().enumerate() {
        let name = format!("lane_{}", counter_name(field.name));
        let unit = if name.ends_with("_bytes") { "bytes" } else { "" };
        family(out, &name, "counter", unit, field.doc);
        for (member, endpoint, lane) in living.iter().take(MOST_LANES) {
            let (from, to) = (endpoint.slot.to_string(), lane.to.to_string());
            let labels = [
                ("from", from.as_str()),
                ("from_member", &member.name),
                ("to", &to),
                ("to_member", members.get(&lane.to).map_or("", |m| &m.name)),
            ];
            let value = lane.counters.named().nth(index).map_or(0, |(_, value)| value);
            sample(out, &format!("{name}_total"), &labels, value);
        }
    }
}

/// The name of the metric for a field: it must say what is counted, which a field of one table need not.
fn counter_name(field: &str) -> String {
    match field {
        "INLINE" | "EAGER" | "UNEXPECTED" | "ANNOUNCED" | "DISCARDED" => {
            format!("{}_messages", field.to_lowercase())
        }
        "RENDEZVOUS" => "long_messages".into(),
        "ATTACHED" | "GRANTED" | "RESIDENT" => format!("{}_messages", field.to_lowercase()),
        "ATTACH_REFUSED" => "attach_refused_messages".into(),
        "RMA" => "rma_operations".into(),
        "TX_MESSAGES" | "MESSAGES" => "sent_messages".into(),
        "TX_BYTES" | "BYTES_SENT" => "sent_bytes".into(),
        "RX_MESSAGES" => "received_messages".into(),
        "RX_BYTES" => "received_bytes".into(),
        _ => field.to_lowercase(),
    }
}

fn labels(member: &Member) -> [(&'static str, &str); 2] {
    [("member", &member.name), ("kind", member.kind)]
}

fn family(out: &mut String, name: &str, kind: &str, unit: &str, help: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "# TYPE isthmus_{name} {kind}");
    if !unit.is_empty() {
        let _ = writeln!(out, "# UNIT isthmus_{name} {unit}");
    }
    let _ = writeln!(out, "# HELP isthmus_{name} {}", escaped(help));
}

fn sample(out: &mut String, name: &str, labels: &[(&str, &str)], value: u64) {
    let labels: Vec<String> = labels.iter().map(|(k, v)| format!("{k}=\"{}\"", escaped(v))).collect();
    let _ = writeln!(out, "isthmus_{name}{{{}}} {value}", labels.join(","));
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Region;
    use isthmus_region::counters::{Counter, LaneTotals, WORDS};
    use std::collections::{BTreeMap, BTreeSet};

    fn survey(name: &str, sent: u64, incarnation: u64) -> Survey {
        let mut words = [0; WORDS];
        words[Counter::TxMessages as usize] = sent;
        let member = Member {
            index: 1,
            name: name.into(),
            kind: "vm",
            state: State::Active,
            incarnation,
            system: "cd".into(),
            file: 0,
            section: 0,
            section_bytes: 0,
            vectors: 0,
            heap_bytes: 10,
            heap_used: 5,
            pages_bytes: 20,
            pages_granted: 8,
            counters: Totals::from_words(words),
            processes: Vec::new(),
            endpoints: Vec::new(),
            registrations: Vec::new(),
        };
        let region = Region {
            uuid: "ab".into(),
            bytes: 1,
            files: 1,
            generation: 1,
            service: State::Active,
            places: 2,
            endpoints_per_member: 1,
            shared_bytes: 0,
            object_places: 0,
            processors: 2,
            dax: false,
        };
        Survey { region, members: vec![member], objects: Vec::new() }
    }

    /// Reads the text back by the rules of the format: families, and samples by name and labels.
    fn parse(text: &str) -> (BTreeMap<String, String>, BTreeMap<String, u64>) {
        let body = text.strip_suffix("# EOF\n").expect("the last line is # EOF");
        assert!(!body.contains("# EOF") && !body.contains("\n\n") && body.ends_with('\n'));
        let (mut types, mut samples, mut seen) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        let mut family = String::new();
        for line in body.lines() {
            if let Some(rest) = line.strip_prefix("# ") {
                let (what, rest) = rest.split_once(' ').unwrap();
                let (name, value) = rest.split_once(' ').unwrap();
                match what {
                    "TYPE" => {
                        assert!(seen.insert(name.to_owned()), "{name} comes twice");
                        family = name.to_owned();
                        types.insert(family.clone(), value.to_owned());
                    }
                    "UNIT" => assert!(name == family && name.ends_with(&format!("_{value}")), "{line}"),
                    "HELP" => assert!(name == family && value.ends_with('.'), "{line}"),
                    _ => panic!("{line}"),
                }
                continue;
            }
            let (name, rest) = line.split_once('{').unwrap();
            let (_, value) = rest.rsplit_once("} ").unwrap();
            let suffix = match types[&family].as_str() {
                "counter" => "_total",
                "info" => "_info",
                "gauge" => "",
                other => panic!("{other}"),
            };
            assert_eq!(name, format!("{family}{suffix}"), "samples follow their family");
            assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'));
            let before = samples.insert(line.rsplit_once(' ').unwrap().0.to_owned(), value.parse().unwrap());
            assert!(before.is_none(), "{line} comes twice");
        }
        (types, samples)
    }

    #[test]
    fn text_keeps_to_the_format_and_escapes_names() {
        let text = Exporter::default().text(&survey("a\"b\\c\nd", 7, 1), &Faults::default());
        let (types, samples) = parse(&text);
        assert_eq!(types["isthmus_sent_messages"], "counter");
        assert_eq!(types["isthmus_build"], "info");
        assert_eq!(samples["isthmus_sent_messages_total{member=\"a\\\"b\\\\c\\nd\",kind=\"vm\"}"], 7);
        assert_eq!(samples["isthmus_region_bytes{region=\"ab\"}"], 1);
        for needed in ["stalls", "sleeps", "wakeups", "received_bytes", "rma_operations"] {
            assert_eq!(types[&format!("isthmus_{needed}")], "counter");
        }
    }

    /// An endpoint with `count` lanes to itself, of which the first of each pair is to its former life.
    fn with_lanes(count: u64) -> Survey {
        let lane = |number| crate::model::Lane {
            number,
            to: 0,
            to_incarnation: number % 2,
            receiver_lives: number % 2 == 1,
            slots: 16,
            data_bytes: 0,
            accepted: true,
            polled_directly: false,
            slots_read: 0,
            slots_unread: 0,
            counters: LaneTotals::from_words([number; 8]),
            generation: 1,
            at: 0,
            ring: None,
        };
        let mut survey = survey("a", 1, 1);
        survey.members[0].endpoints.push(Endpoint {
            slot: 0,
            local: 0,
            incarnation: 1,
            area: 0,
            pid: 1,
            lanes: (0..count).map(lane).collect(),
            polled_directly: 0,
            asleep: None,
            registrations: None,
            holds: None,
            accepts: Vec::new(),
            lane_entries: 0,
            group: None,
            channels: Vec::new(),
            block: 0,
        });
        survey
    }

    #[test]
    fn lanes_are_listed_once_and_not_without_end() {
        let (types, samples) = parse(&Exporter::default().text(&with_lanes(2), &Faults::default()));
        let labels = "from=\"0\",from_member=\"a\",to=\"0\",to_member=\"a\"";
        for name in ["sent_messages", "sent_bytes", "stalls", "wakeups", "rma_bytes", "announced_messages"] {
            assert_eq!(types[&format!("isthmus_lane_{name}")], "counter");
            assert_eq!(samples[&format!("isthmus_lane_{name}_total{{{labels}}}")], 1);
        }
        assert_eq!(samples["isthmus_region_lanes_left_out{region=\"ab\"}"], 0);
        let text = Exporter::default().text(&with_lanes(2 * 4096 + 6), &Faults::default());
        assert_eq!(text.matches("isthmus_lane_stalls_total{").count(), MOST_LANES);
        assert!(text.contains("isthmus_region_lanes_left_out{region=\"ab\"} 3\n"));
    }

    #[test]
    fn a_counter_falls_only_with_a_new_life() {
        let mut exporter = Exporter::default();
        let mut sent = |count, life| {
            let text = exporter.text(&survey("a", count, life), &Faults::default());
            parse(&text).1["isthmus_sent_messages_total{member=\"a\",kind=\"vm\"}"]
        };
        assert_eq!((sent(7, 1), sent(3, 1), sent(9, 1), sent(2, 2)), (7, 7, 9, 2));
    }
}
