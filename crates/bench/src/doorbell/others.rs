//! What else differs between VMs without the guest driver and with it: a barrier and semaphores at which processes sleep, messages,
//! the mapping of memory, and the attach. Each is a launch of its own, by the processes that other benchmarks have, too.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::process::Command;
use std::time::{Duration, Instant};

use isthmus_lockfree::ring::ReadSlots;
use isthmus_region::error::with_causes;
use isthmus_region::mapping::Mapping;
use serde::{Deserialize, Serialize};

use super::{RANK_COMMAND, WAKE_UP, Way, bad, run_in};
use crate::error::{Error, Result};
use crate::objects::{self, Place, Plan};
use crate::placement::Search;
use crate::rank::{self, Sample, What};
use crate::{lane, stats, sysv};

/// Bytes of the buffer that a turn by semaphores is about.
pub(super) const TURN: u64 = 64;
/// Work in a turn, in microseconds: longer than any process polls before it sleeps.
const WORK_US: u64 = 2000;
/// Memory that is mapped and read.
const MAPPED: u64 = 64 << 20;
const PAGE: u64 = 4096;
/// How often it is mapped, and how often a process attaches; each in a process of its own.
const TIMES: usize = 15;
const TIMES_QUICK: usize = 5;
const PATIENCE: Duration = Duration::from_secs(10);

/// All of it, one way; `wake_up` is what one took in this round, where the turn of semaphores is compared with it. Gives what was left
/// out, too, and why.
pub(super) fn measure(
    plan: &Plan,
    place: Place,
    search: &Search,
    way: Way,
    wake_up: Option<f64>,
) -> Result<(Vec<Sample>, Vec<String>)> {
    let exe: OsString = std::env::current_exe().map_err(Error::io("find this program"))?.into();
    let run = |options: &[&str], words: Vec<OsString>| -> Result<(String, String, Option<[f64; 2]>)> {
        let before = search.line();
        let program = [vec![exe.clone()], words].concat();
        let (text, _, accel) = run_in(plan, place, search, way, options, &program)?;
        Ok((text, accel, before.zip(search.line()).map(|(before, after)| [before, after])))
    };
    let as_ours = |samples: Vec<Sample>, lines| -> Vec<Sample> {
        let ours = |sample| Sample { subject: way.name().into(), line_us: lines, ..sample };
        samples.into_iter().map(ours).collect()
    };

    let (text, _, lines) = run(&[], barrier(plan, place))?;
    let mut samples = as_ours(objects::parse(&text, None)?.samples, lines);

    let (text, _, lines) = run(&[], [lane::RANK_COMMAND, "1", "quick"].map(Into::into).into())?;
    samples.extend(as_ours(messages(&text)?, lines));

    let times = if plan.is_quick { TIMES_QUICK } else { TIMES };
    let words = [RANK_COMMAND, MAPS, &times.to_string(), way.name()].map(Into::into).into();
    let (text, _, lines) = run(&[], words)?;
    samples.extend(as_ours(mapped(&text)?, lines));

    let mut left_out = Vec::new();
    match sysv::program() {
        Ok(program) => {
            let words = sysv::words(&exe, plan.budget_ms, &format!("work:{TURN}:{WORK_US}"));
            let before = search.line();
            let program = [vec![program.into()], words].concat();
            let (text, _, accel) = run_in(plan, place, search, way, &["--sysv"], &program)?;
            let lines = before.zip(search.line()).map(|(before, after)| [before, after]);
            let turns = as_ours(sysv::read(&text, "isthmus", &accel)?.samples, lines);
            // The wake-up beside it, as a figure of the same kind.
            let turn = turns.iter().find(|sample| sample.metric == "beyond_work_us");
            if let Some((turn, value)) = turn.zip(wake_up) {
                samples.push(Sample { subject: WAKE_UP.into(), value, path: None, ..turn.clone() });
            }
            samples.extend(turns);
        }
        Err(error) => left_out.push(format!("turn by semaphores: {}", error.chain())),
    }
    Ok((samples, left_out))
}

fn barrier(plan: &Plan, place: Place) -> Vec<OsString> {
    let plan = rank::Plan {
        what: What::Barrier,
        parties: place.processes,
        reps: 1,
        budget_ms: plan.budget_ms,
        folder: None,
        wire: false,
        asleep: true,
        on: Vec::new(),
    };
    plan.args()
}

fn messages(text: &str) -> Result<Vec<Sample>> {
    let blocks = lane::parse(text)?;
    let sample = |((benchmark, bytes), blocks): ((String, u64), Vec<lane::Block>)| {
        let values: Vec<f64> = blocks.iter().map(|block| block.value).collect();
        let cpu: Vec<f64> = blocks.iter().map(|block| block.cpu_us_per_op).collect();
        let through = blocks.iter().all(|block| block.region_bytes >= block.payload_bytes);
        Some(Sample {
            metric: if benchmark == "latency" { "latency_us" } else { "bandwidth_MBps" }.into(),
            benchmark,
            subject: String::new(),
            bytes: Some(bytes),
            value: stats::median(&values)?,
            cpu_us_per_op: stats::median(&cpu),
            path: through.then(|| "region".into()),
            line_us: None,
        })
    };
    Ok(blocks.into_iter().filter_map(sample).collect())
}

/// First word behind [`RANK_COMMAND`]: how often, and by which way.
const MAPS: &str = "maps";
/// And of the processes that this one starts.
const TOUCH: &str = "touch";
const ATTACH: &str = "attach";

/// What the first process prints.
#[derive(Debug, Serialize, Deserialize)]
struct Maps {
    isthmus_bench: u32,
    touch_us: f64,
    attach_us: f64,
}

fn mapped(text: &str) -> Result<Vec<Sample>> {
    let line = text.lines().find(|line| line.starts_with("{\"isthmus_bench\":1,"));
    let line = line.ok_or_else(|| bad("nobody mapped anything"))?;
    let maps: Maps = serde_json::from_str(line).map_err(|e| bad(format!("{e} in {line}")))?;
    let sample = |metric: &str, value| Sample {
        benchmark: "mapped".into(),
        subject: String::new(),
        metric: metric.into(),
        bytes: None,
        value,
        cpu_us_per_op: None,
        path: None,
        line_us: None,
    };
    Ok(vec![sample("touch_us", maps.touch_us), sample("attach_us", maps.attach_us)])
}

/// A process of this module; none if these words are not for one.
pub(super) fn rank_command(words: &[&str]) -> Option<i32> {
    let done = match words {
        [MAPS, times, way] => maps(times, way),
        [TOUCH, way] => touch(way).map(|us| isthmus_region::say!("{us}")),
        [ATTACH, way] => attach(way).map(|us| isthmus_region::say!("{us}")),
        _ => return None,
    };
    Some(done.map_or_else(
        |why| {
            isthmus_region::tell!("isthmus: doorbell: {why}");
            125
        },
        |()| 0,
    ))
}

fn maps(times: &str, way: &str) -> std::result::Result<(), String> {
    if std::env::var("ISTHMUS_RANK").is_ok_and(|rank| rank != "0") {
        return Ok(());
    }
    let times = times.parse::<usize>().map_err(|e| e.to_string())?;
    let exe = std::env::current_exe().map_err(|e| e.to_string())?;
    let median = |what: &str| -> std::result::Result<f64, String> {
        let one = |_| {
            let output = Command::new(&exe).args([RANK_COMMAND, what, way]).output();
            let output = output.map_err(|e| e.to_string())?;
            let text = String::from_utf8_lossy(&output.stdout);
            text.trim()
                .parse::<f64>()
                .map_err(|_| format!("{what}: {}", String::from_utf8_lossy(&output.stderr)))
        };
        let all: Vec<f64> = (0..times).map(one).collect::<std::result::Result<_, _>>()?;
        stats::median(&all).ok_or_else(|| "nothing was timed".into())
    };
    let maps = Maps { isthmus_bench: 1, touch_us: median(TOUCH)?, attach_us: median(ATTACH)? };
    isthmus_region::say!("{}", serde_json::to_string(&maps).map_err(|e| e.to_string())?);
    Ok(())
}

fn microseconds(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e6
}

/// Maps memory of the region, and reads a word of each page.
fn touch(way: &str) -> std::result::Result<f64, String> {
    let socket = isthmus_attach::socket::find_socket().map_err(|e| with_causes(&e))?;
    let view = isthmus_attach::client::observe_at(&socket, PATIENCE).map_err(|e| with_causes(&e))?;
    let is_drivers = isthmus_region::driver::bytes(view.region.as_fd()).is_some();
    if is_drivers != (Way::named(way) == Some(Way::Doorbell)) {
        return Err(format!("the memory is{} the driver's", if is_drivers { "" } else { " not" }));
    }
    let begun = Instant::now();
    let text = |e: isthmus_region::Error| with_causes(&e);
    let map = Mapping::as_opened(view.region.as_fd(), MAPPED).map_err(text)?;
    // As lines, since a word of these is found without a check for each.
    let lines = map.whole_for_reading().ring("memory", 0, MAPPED / 64).map_err(text)?;
    let words = (0..MAPPED / PAGE).map(|page| lines.read_slot(page * (PAGE / 64)).word(0));
    std::hint::black_box(words.fold(0, u64::wrapping_add));
    Ok(microseconds(begun))
}

fn attach(way: &str) -> std::result::Result<f64, String> {
    let begun = Instant::now();
    let member = isthmus_attach::connect().map_err(|e| with_causes(&e))?;
    let took = microseconds(begun);
    let wanted = Way::named(way).map(Way::kind);
    match wanted == Some(member.doorbell()) {
        true => Ok(took),
        false => Err(format!("sleepers have {:?} here", member.doorbell())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_processes_print_becomes_samples() {
        let samples = mapped("x\n{\"isthmus_bench\":1,\"touch_us\":2.5,\"attach_us\":7}\n").unwrap();
        let told: Vec<_> = samples.iter().map(|sample| (sample.metric.as_str(), sample.value)).collect();
        assert_eq!(told, [("touch_us", 2.5), ("attach_us", 7.0)]);
        assert!(mapped("x\n").is_err());
        let block = "{\"benchmark\":\"latency\",\"bytes\":8,\"value\":1.5,\"line_us\":[0.2,0.2],\"payload_bytes\":8,\
                     \"region_bytes\":8,\"cpu_us_per_op\":1.0}";
        let sample = messages(block).unwrap().remove(0);
        assert_eq!((sample.metric.as_str(), sample.path.as_deref()), ("latency_us", Some("region")));
        let past = block.replace("\"region_bytes\":8", "\"region_bytes\":7");
        assert_eq!(messages(&past).unwrap().remove(0).path, None, "it went another way");
    }

    #[test]
    fn words_for_others_are_not_for_these() {
        assert_eq!(rank_command(&["200", "relay"]), None);
    }
}
