//! What else differs between VMs without the guest driver and with it: a barrier and semaphores at which processes sleep, messages,
//! the mapping of memory, and the attach, by the processes that other benchmarks have, too. Semaphores have a launch of their own;
//! for all else one process in each VM runs the others, one after the other, and prints what these print.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::process::Command;
use std::time::{Duration, Instant};

use isthmus_lockfree::ring::ReadSlots;
use isthmus_region::error::with_causes;
use isthmus_region::mapping::Mapping;
use serde::{Deserialize, Serialize};

use super::{RANK_COMMAND, VMS, WAKE_UP, Way, bad, run_in};
use crate::error::{Error, Result};
use crate::objects::{self, Place, Plan};
use crate::placement::Search;
use crate::rank::{self, Sample, What};
use crate::{lane, stats, sysv};

/// Bytes of the buffer that a turn by semaphores is about.
pub(super) const TURN: u64 = 64;
/// Work in a turn, in microseconds: longer than any process polls before it sleeps.
pub(super) const WORK_US: u64 = 2000;
/// Memory that is mapped and read.
const MAPPED: u64 = 64 << 20;
const PAGE: u64 = 4096;
/// How often it is mapped, and how often a process attaches; each in a process of its own.
const TIMES: usize = 15;
const TIMES_QUICK: usize = 5;
const PATIENCE: Duration = Duration::from_secs(10);

/// All of it, one way; `wake_up` is one of this round, where the turn of semaphores is compared with it. Gives what was left
/// out, too, and why.
pub(super) fn measure(
    plan: &Plan,
    place: Place,
    search: &Search,
    way: Way,
    wake_up: Option<&Sample>,
) -> Result<(Vec<Sample>, Vec<String>)> {
    let exe: OsString = std::env::current_exe().map_err(Error::io("find this program"))?.into();
    let run = |options: &[&str], program: Vec<OsString>| -> Result<(String, String, Option<[f64; 2]>)> {
        let before = search.line();
        let (text, _, accel) = run_in(plan, place, search, way, options, &program)?;
        Ok((text, accel, before.zip(search.line()).map(|(before, after)| [before, after])))
    };
    let as_ours = |samples: Vec<Sample>, lines| -> Vec<Sample> {
        let ours = |sample| Sample { subject: way.name().into(), line_us: lines, ..sample };
        samples.into_iter().map(ours).collect()
    };

    let times = if plan.is_quick { TIMES_QUICK } else { TIMES };
    let words = [RANK_COMMAND, EACH, &times.to_string(), &plan.budget_ms.to_string(), way.name()];
    let (text, _, lines) = run(&[], [vec![exe.clone()], words.map(Into::into).into()].concat())?;
    let told = told(&text, place)?;
    let said = |of: &dyn Fn(&Each) -> &str| told.iter().map(of).collect::<String>();
    let mut samples = as_ours(objects::parse(&said(&|each| &each.barrier), None, 0)?.samples, lines);
    samples.extend(as_ours(messages(&said(&|each| &each.messages))?, lines));
    samples.extend(as_ours(mapped(&told)?, lines));

    let mut left_out = Vec::new();
    match sysv::program() {
        Ok(program) => {
            let words = sysv::words(&exe, plan.budget_ms, &format!("work:{TURN}:{WORK_US}"));
            let (text, accel, lines) = run(&["--sysv"], [vec![program.into()], words].concat())?;
            let turns = as_ours(sysv::read(&text, "isthmus", &accel)?.samples, lines);
            // The wake-up beside it, as a figure of the same kind.
            let turn = turns.iter().find(|sample| sample.metric == "beyond_work_us");
            if let Some((turn, wake_up)) = turn.zip(wake_up) {
                let Sample { benchmark, metric, bytes, .. } = turn.clone();
                samples.push(Sample {
                    benchmark,
                    metric,
                    bytes,
                    subject: WAKE_UP.into(),
                    path: None,
                    ..wake_up.clone()
                });
            }
            samples.extend(turns);
        }
        Err(error) => left_out.push(format!("turn by semaphores: {}", error.chain())),
    }
    Ok((samples, left_out))
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

/// First word behind [`RANK_COMMAND`]: how often memory is mapped, how long a block shall take, and by which way.
const EACH: &str = "each";
/// And of the processes that this one starts.
const TOUCH: &str = "touch";
const AGAIN: &str = "again";
const ATTACH: &str = "attach";

/// What a process prints: what those that it ran printed, and of the first one the medians of mapping and attaching.
#[derive(Debug, Serialize, Deserialize)]
struct Each {
    isthmus_bench: u32,
    barrier: String,
    messages: String,
    touch_us: Option<f64>,
    again_us: Option<f64>,
    attach_us: Option<f64>,
}

fn told(text: &str, place: Place) -> Result<Vec<Each>> {
    let lines = text.lines().filter(|line| line.starts_with("{\"isthmus_bench\":1,"));
    let all: Vec<Each> = lines
        .map(|line| serde_json::from_str(line).map_err(|e| bad(format!("{e} in {line}"))))
        .collect::<Result<_>>()?;
    match all.len() == place.processes as usize {
        true => Ok(all),
        false => Err(bad(format!("it has the lines of {} processes", all.len()))),
    }
}

fn mapped(told: &[Each]) -> Result<Vec<Sample>> {
    let first = told.iter().find_map(|each| Some((each.touch_us?, each.again_us?, each.attach_us?)));
    let (touch_us, again_us, attach_us) = first.ok_or_else(|| bad("nobody mapped anything"))?;
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
    Ok(vec![sample("touch_us", touch_us), sample("again_us", again_us), sample("attach_us", attach_us)])
}

/// A process of this module; none if these words are not for one.
pub(super) fn rank_command(words: &[&str]) -> Option<i32> {
    let done = match words {
        [EACH, times, budget_ms, way] => each(times, budget_ms, way),
        [TOUCH, way] => touch(way, false).map(|us| isthmus_region::say!("{us}")),
        [AGAIN, way] => touch(way, true).map(|us| isthmus_region::say!("{us}")),
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

/// What a program of ours prints.
fn output(words: &[OsString]) -> std::result::Result<String, String> {
    let exe = std::env::current_exe().map_err(|e| e.to_string())?;
    let output = Command::new(&exe).args(words).output().map_err(|e| e.to_string())?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{words:?}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

fn each(times: &str, budget_ms: &str, way: &str) -> std::result::Result<(), String> {
    let number = |text: &str| text.parse::<u64>().map_err(|e| format!("{text}: {e}"));
    let times = number(times)?;
    let plan = rank::Plan {
        what: What::Barrier,
        parties: VMS,
        reps: 1,
        budget_ms: number(budget_ms)?,
        folder: None,
        wire: false,
        asleep: true,
        on: Vec::new(),
    };
    let median = |what: &str| -> std::result::Result<f64, String> {
        let one = |_| {
            let text = output(&[RANK_COMMAND, what, way].map(Into::into))?;
            text.trim().parse::<f64>().map_err(|e| format!("{what}: {e}"))
        };
        let all: Vec<f64> = (0..times).map(one).collect::<std::result::Result<_, _>>()?;
        stats::median(&all).ok_or_else(|| "nothing was timed".into())
    };
    let messages = output(&[lane::RANK_COMMAND, "1", "quick"].map(Into::into))?;
    let barrier = output(&plan.args())?;
    // Last, since the other process does not wait for it.
    let is_first = std::env::var("ISTHMUS_RANK").is_ok_and(|rank| rank == "0");
    let first = |what| if is_first { median(what).map(Some) } else { Ok(None) };
    let (touch_us, again_us, attach_us) = (first(TOUCH)?, first(AGAIN)?, first(ATTACH)?);
    let each = Each { isthmus_bench: 1, barrier, messages, touch_us, again_us, attach_us };
    isthmus_region::say!("{}", serde_json::to_string(&each).map_err(|e| e.to_string())?);
    Ok(())
}

fn microseconds(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e6
}

/// Maps memory of the region, and reads a word of each page. Times that, or the same words once more: what the processor, or its
/// emulator, takes for it where nothing is mapped any more.
fn touch(way: &str, again: bool) -> std::result::Result<f64, String> {
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
    let read = || {
        let words = (0..MAPPED / PAGE).map(|page| lines.read_slot(page * (PAGE / 64)).word(0));
        std::hint::black_box(words.fold(0, u64::wrapping_add));
    };
    read();
    if !again {
        return Ok(microseconds(begun));
    }
    let begun = Instant::now();
    read();
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
        let line =
            |rest: &str| format!("x\n{{\"isthmus_bench\":1,\"barrier\":\"b\",\"messages\":\"m\",{rest}}}\n");
        let first = line("\"touch_us\":2.5,\"again_us\":2,\"attach_us\":7");
        let other = line("\"touch_us\":null,\"again_us\":null,\"attach_us\":null");
        let place = Place { processes: 2, vms: 2 };
        assert!(told(&first, place).is_err(), "one of two");
        let samples = mapped(&told(&format!("{other}{first}"), place).unwrap()).unwrap();
        let values: Vec<_> = samples.iter().map(|sample| (sample.metric.as_str(), sample.value)).collect();
        assert_eq!(values, [("touch_us", 2.5), ("again_us", 2.0), ("attach_us", 7.0)]);
        assert!(mapped(&told(&format!("{other}{other}"), place).unwrap()).is_err());
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
