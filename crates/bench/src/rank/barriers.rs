//! Barriers: ours, the naive one of the paper (figure 3.4), the C library's; and what a barrier costs at least.
//!
//! A blocking participant polls for some microseconds before it sleeps, and processes in step never wait that long. So barriers that
//! block are judged by rounds in which one process is late by far, each in turn, and all others must sleep. How often they did is
//! counted by the kernel, and said; the late one's work is taken out of the figure.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use isthmus::{Algorithm, Parameters, Participant, Waiting, Word};

use super::posix;
use super::{CPU_NS, Meeting, NAIVE, POSIX, Plan, SHARE, Sample, TALLY, failed, nanos, real};
use crate::error::{Error, Result};

/// Ours: the name in records, and what it is made with.
const OURS: [(&str, Waiting, Algorithm); 4] = [
    ("isthmus-spin", Waiting::Spin, Algorithm::Auto),
    ("isthmus-central", Waiting::Spin, Algorithm::Central),
    ("isthmus-block", Waiting::Block, Algorithm::Auto),
    ("isthmus-hybrid", Waiting::Hybrid, Algorithm::Auto),
];
/// Looks of the naive barrier before it offers its processor, where it does.
const SPINS: u32 = 1000;
/// How long processes compute between two barriers, at least and at most, where they do.
const WORK: (u64, u64) = (20_000, 40_000);
/// How long the late one computes in rounds in which the others sleep, and how long the others do: far longer than any of
/// them looks before it sleeps, and than it takes to wake all.
const LATE_WORK: (u64, u64) = (1_000_000, 20_000);
/// Which barriers may sleep.
const SLEEPERS: [&str; 3] = ["isthmus-block", "isthmus-hybrid", "pthread"];
/// How late the last one comes, where it is late, in how many rounds, and what that is called.
const LATE: [(Duration, u64, &str); 2] =
    [(Duration::from_millis(2), 50, "barrier_late"), (Duration::from_millis(10), 50, "barrier_late_10")];
/// Rounds in which each looks whether the others have come.
const CHECKED_ROUNDS: u64 = 32;

/// Something to wait at.
enum Barrier {
    Ours(Participant),
    Naive { yields: bool, sense: u64 },
    Posix(posix::Barrier),
}

/// The words that the naive barrier has.
#[derive(Clone, Copy)]
struct Naive<'a> {
    count: Word<'a>,
    sense: Word<'a>,
    parties: u64,
    pause: bool,
}

impl Barrier {
    /// So many rounds with `between` before each: one loop for each kind, with nothing else in it.
    fn rounds(&mut self, naive: Naive<'_>, rounds: u64, mut between: impl FnMut()) -> Result<()> {
        match self {
            Self::Ours(participant) => {
                for _ in 0..rounds {
                    between();
                    if let Err(error) = participant.wait() {
                        return Err(Error::Rank { what: format!("wait at a barrier: {error}") });
                    }
                }
            }
            Self::Naive { yields, sense } => {
                for _ in 0..rounds {
                    between();
                    *sense += 1;
                    naive.wait(*sense, *yields);
                }
            }
            Self::Posix(barrier) => {
                for _ in 0..rounds {
                    between();
                    barrier.wait()?;
                }
            }
        }
        Ok(())
    }

    fn wait(&mut self, naive: Naive<'_>) -> Result<()> {
        self.rounds(naive, 1, || ())
    }
}

impl Naive<'_> {
    #[inline]
    fn wait(self, sense: u64, yields: bool) {
        if self.count.fetch_add(1) + 1 == self.parties {
            self.count.store(0);
            self.sense.store(sense);
            return;
        }
        let mut looks = 0;
        while self.sense.load() != sense {
            looks += 1;
            if yields && looks % SPINS == 0 {
                std::thread::yield_now();
            } else if self.pause {
                std::hint::spin_loop();
            }
        }
    }
}

/// The port that joins the two VMs.
fn wire() -> Result<File> {
    let class = Path::new("/sys/class/virtio-ports");
    let ports = std::fs::read_dir(class).map_err(Error::io("find the virtio-serial ports"))?;
    let port = ports
        .flatten()
        .find(|port| {
            std::fs::read_to_string(port.path().join("name")).is_ok_and(|name| name.trim() == "isthmus.wire")
        })
        .ok_or_else(|| Error::Rank { what: "find the port that joins the VMs".into() })?;
    let device = Path::new("/dev").join(port.file_name());
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(&device)
        .map_err(Error::io(format!("open {}", device.display())))
}

/// Computes for so long.
fn compute(ns: u64) {
    let begun = Instant::now();
    while nanos(begun.elapsed()) < ns {}
}

/// How often this thread has gone to sleep.
fn sleeps() -> Result<u64> {
    let file = "/proc/thread-self/status";
    let text = std::fs::read_to_string(file).map_err(Error::io(format!("read {file}")))?;
    let count =
        text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse().ok());
    count.ok_or_else(|| Error::Rank { what: format!("find in {file} how often a thread slept") })
}

/// Computes for a while that differs from time to time.
fn work(random: &mut u64) {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    compute(WORK.0 + *random % (WORK.1 - WORK.0));
}

pub(super) fn run(meeting: &mut Meeting, plan: &Plan) -> Result<()> {
    let board = meeting.board.clone();
    let naive = Naive {
        count: board.word(NAIVE).map_err(failed("use the board"))?,
        sense: board.word(NAIVE + 64).map_err(failed("use the board"))?,
        parties: plan.parties.into(),
        pause: meeting.pause,
    };
    let mut barriers: Vec<(&str, Barrier)> = Vec::new();
    for (name, waiting, algorithm) in OURS {
        let parameters = Parameters { algorithm, ..Parameters::new(plan.parties, waiting) };
        let participant = meeting
            .here
            .named(name)
            .barrier(parameters)
            .and_then(|barrier| barrier.participate())
            .map_err(failed("join a barrier"))?;
        let mut barrier = Barrier::Ours(participant);
        check(meeting, name, &mut barrier, naive)?;
        barriers.push((name, barrier));
    }
    barriers.push(("naive", Barrier::Naive { yields: false, sense: 0 }));
    barriers.push(("spin-yield", Barrier::Naive { yields: true, sense: 0 }));
    if plan.folder.is_some() {
        let barrier = posix::Barrier::at(&meeting.board, POSIX)?;
        if meeting.is_first() {
            barrier.make(plan.parties)?;
        }
        barriers.push(("pthread", Barrier::Posix(barrier)));
    }
    if plan.asleep {
        for _ in 0..plan.reps {
            for (name, barrier) in barriers.iter_mut().filter(|(name, _)| *name == "isthmus-block") {
                asleep(meeting, name, &mut |rounds, work| barrier.rounds(naive, rounds, work))?;
            }
        }
        return meeting.sync();
    }
    let mut port = if plan.wire { Some(wire()?) } else { None };
    // What passes between the naive ones, which share their words.
    let mut senses = 0;
    for _ in 0..plan.reps {
        if plan.parties == 2 {
            let line = meeting.line("bare")?;
            meeting.tell(&Sample {
                cpu_us_per_op: Some(line.cpu_us),
                ..Sample::new("barrier", "pingpong", "round_us", line.us)
            })?;
        }
        if let Some(port) = &mut port {
            echo(meeting, port)?;
        }
        for works in [false, true] {
            for (name, barrier) in &mut barriers {
                if let Barrier::Naive { sense, .. } = barrier {
                    *sense = senses;
                }
                let mut random = 0x9e37_79b9_7f4a_7c15 ^ u64::from(meeting.index + 1);
                let timed = meeting.timed(&format!("{name} {works}"), &mut |rounds| match works {
                    false => barrier.rounds(naive, rounds, || ()),
                    true => barrier.rounds(naive, rounds, || work(&mut random)),
                })?;
                if let Barrier::Naive { sense, .. } = barrier {
                    senses = *sense;
                }
                // Nothing counts what passes at a barrier, so no way is claimed.
                meeting.tell(&Sample {
                    cpu_us_per_op: Some(timed.cpu_us),
                    ..Sample::new(if works { "barrier_work" } else { "barrier" }, name, "round_us", timed.us)
                })?;
            }
        }
        for (name, barrier) in &mut barriers {
            if SLEEPERS.contains(name) {
                asleep(meeting, name, &mut |rounds, work| barrier.rounds(naive, rounds, work))?;
            }
        }
        if let Some(port) = &mut port {
            echo_asleep(meeting, port)?;
            exchange_asleep(meeting, port)?;
        }
        for (name, barrier) in &mut barriers {
            if matches!(*name, "isthmus-hybrid" | "isthmus-block") {
                for (by, rounds, benchmark) in LATE {
                    late(meeting, (benchmark, name), barrier, naive, by, rounds)?;
                }
            }
        }
    }
    meeting.sync()
}

/// Checks that no participant gets through before all have arrived, by what each has written before.
fn check(meeting: &mut Meeting, name: &str, barrier: &mut Barrier, naive: Naive<'_>) -> Result<()> {
    meeting.own(TALLY)?.store(0);
    meeting.sync()?;
    for round in 1..=CHECKED_ROUNDS {
        meeting.own(TALLY)?.store(round);
        barrier.wait(naive)?;
        for rank in 0..meeting.parties {
            if meeting.of_rank(rank, TALLY)?.load() < round {
                return Err(Error::Rank {
                    what: format!("{name}: process {rank} was not there in round {round}"),
                });
            }
        }
        barrier.wait(naive)?;
    }
    Ok(())
}

/// Makes so many rounds, each with a call of the work before it.
type Rounds<'a> = dyn FnMut(u64, &mut dyn FnMut()) -> Result<()> + 'a;

/// Rounds in which all but one must sleep: `run` makes them.
fn asleep(meeting: &mut Meeting, name: &str, run: &mut Rounds<'_>) -> Result<()> {
    let (index, parties) = (u64::from(meeting.index), u64::from(meeting.parties));
    let mut slept = 0;
    let timed = meeting.timed(&format!("{name} asleep"), &mut |rounds| {
        let before = sleeps()?;
        let mut round = 0;
        run(rounds, &mut || {
            let is_late = round % parties == index;
            compute(if is_late { LATE_WORK.0 } else { LATE_WORK.1 });
            round += 1;
        })?;
        slept = sleeps()? - before;
        Ok(())
    })?;
    meeting.own(SHARE)?.store(slept);
    meeting.sync()?;
    let slept = real(meeting.sum(SHARE)?) / real(timed.rounds);
    meeting.sync()?;
    let sample = |metric: &str, value: f64| Sample::new("barrier_sleep", name, metric, value);
    meeting.tell(&Sample {
        cpu_us_per_op: Some(timed.cpu_us),
        ..sample("beyond_work_us", timed.us - real(LATE_WORK.0) / 1e3)
    })?;
    meeting.tell(&sample("sleeps_per_round", slept))
}

/// A byte there and back over the port, with the work of such a round.
fn echo_asleep(meeting: &mut Meeting, port: &mut File) -> Result<()> {
    let first = meeting.is_first();
    asleep(meeting, "virtio-serial", &mut |rounds, _| {
        (0..rounds).try_for_each(|_| echo_round(port, first, &mut compute))
    })
}

/// The first one works before it asks, and the second one meanwhile, as at a barrier: were it at work between question and answer,
/// that would be in the port's figure, and in no barrier's.
fn echo_round(port: &mut (impl Read + Write), first: bool, compute: &mut impl FnMut(u64)) -> Result<()> {
    if first {
        compute(LATE_WORK.0);
        tell(port)?;
        hear(port)
    } else {
        compute(LATE_WORK.1);
        hear(port)?;
        tell(port)
    }
}

/// What a barrier would be if there were nothing but the port: each tells the other that it is there.
fn exchange_asleep(meeting: &mut Meeting, port: &mut File) -> Result<()> {
    asleep(meeting, "virtio-serial-both", &mut |rounds, work| {
        for _ in 0..rounds {
            work();
            tell(port)?;
            hear(port)?;
        }
        Ok(())
    })
}

fn tell(port: &mut impl Write) -> Result<()> {
    port.write_all(&[7]).map_err(Error::io("write to the port that joins the VMs"))
}

fn hear(port: &mut impl Read) -> Result<()> {
    let mut byte = [0];
    while port.read(&mut byte).map_err(Error::io("read from the port that joins the VMs"))? == 0 {
        // The other side has not opened it yet.
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// A byte there and back over the port, asleep in between.
fn echo(meeting: &mut Meeting, port: &mut File) -> Result<()> {
    let first = meeting.is_first();
    let timed = meeting.timed("virtio-serial", &mut |rounds| {
        for _ in 0..rounds {
            if first {
                tell(port)?;
            }
            hear(port)?;
            if !first {
                tell(port)?;
            }
        }
        Ok(())
    })?;
    meeting.tell(&Sample {
        cpu_us_per_op: Some(timed.cpu_us),
        ..Sample::new("barrier", "virtio-serial", "round_us", timed.us)
    })
}

/// The share of a processor that waiting participants take while one is late.
fn late(
    meeting: &mut Meeting,
    (benchmark, name): (&str, &str),
    barrier: &mut Barrier,
    naive: Naive<'_>,
    by: Duration,
    rounds: u64,
) -> Result<()> {
    let line = meeting.before()?;
    let (cpu, begun) = (super::cpu_time(), Instant::now());
    for _ in 0..rounds {
        if meeting.is_first() {
            std::thread::sleep(by);
        }
        barrier.wait(naive)?;
    }
    let took = nanos(begun.elapsed()).max(1);
    meeting.own(CPU_NS)?.store(nanos(super::cpu_time().saturating_sub(cpu)));
    meeting.own(SHARE)?.store(took);
    meeting.sync()?;
    let mut shares = Vec::new();
    for rank in 1..meeting.parties {
        shares.push(
            real(meeting.of_rank(rank, CPU_NS)?.load()) / real(meeting.of_rank(rank, SHARE)?.load().max(1)),
        );
    }
    meeting.sync()?;
    // The greatest of them: no participant may burn its processor.
    meeting.after(line)?;
    let share = shares.into_iter().fold(0.0, f64::max);
    meeting.tell(&Sample::new(benchmark, name, "sleeper_share", share))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::io;

    use super::*;

    struct Port<'a>(&'a RefCell<Vec<String>>);

    impl Read for Port<'_> {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            self.0.borrow_mut().push("hear".into());
            Ok(bytes.len())
        }
    }

    impl Write for Port<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.borrow_mut().push("tell".into());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn nobody_works_between_a_question_over_the_port_and_its_answer() {
        let done = |first| {
            let log = RefCell::new(Vec::new());
            let mut work = |ns: u64| log.borrow_mut().push(format!("work {ns}"));
            echo_round(&mut Port(&log), first, &mut work).unwrap();
            log.into_inner()
        };
        assert_eq!(done(true), ["work 1000000", "tell", "hear"]);
        assert_eq!(done(false), ["work 20000", "hear", "tell"]);
    }
}
