//! What the processes of `bench barrier`, `counter` and `ivc` do.
//!
//! Each of them attaches to the region as any program does, by the crate that users have, takes a number at a segment that
//! all of them open, and runs the blocks of the plan in step with the others. The first one prints what came of them, a line
//! of JSON for each block of each repetition. Subjects take turns within a repetition, since the machine changes between two.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use isthmus::{Attachment, Parameters, Participant, Segment, Waiting, Word};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::placement::Awaited;

mod barriers;
mod channels;
mod counters;
mod posix;

/// First argument that makes our program one of the processes.
pub const RANK_COMMAND: &str = "object-rank";

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum What {
    /// Barriers.
    Barrier,
    /// Counters, by minitransactions and under a lock.
    Counter,
    /// Channels.
    Ivc,
    /// Completions that are slept for: processes of their own, which have nothing of this module.
    Wait,
    /// System V IPC, by a program of its own.
    Sysv,
    /// Wake-ups, by processes of their own.
    Doorbell,
}

/// What a process is told.
#[derive(Clone, Debug, PartialEq, clap::Parser)]
#[command(no_binary_name = true)]
pub struct Plan {
    /// What to measure.
    #[arg(value_enum)]
    pub what: What,
    /// How many processes there are.
    pub parties: u32,
    /// Repetitions.
    pub reps: u32,
    /// How long a block shall take.
    pub budget_ms: u64,
    /// A directory that all of them see, where they share a kernel.
    #[arg(long)]
    pub folder: Option<PathBuf>,
    /// The first two VMs are joined by a virtio-serial port.
    #[arg(long)]
    pub wire: bool,
    /// Only barriers that block, in rounds in which all but one sleep.
    #[arg(long)]
    pub asleep: bool,
    /// The processors of the first processes; otherwise each has its number's.
    #[arg(long, value_delimiter = ',')]
    pub on: Vec<usize>,
}

impl Plan {
    /// As arguments.
    pub fn args(&self) -> Vec<OsString> {
        let what = match self.what {
            What::Barrier => "barrier",
            What::Counter => "counter",
            What::Ivc => "ivc",
            What::Wait => "wait",
            What::Sysv => "sysv",
            What::Doorbell => "doorbell",
        };
        let numbers = [self.parties.to_string(), self.reps.to_string(), self.budget_ms.to_string()];
        let mut args: Vec<OsString> = vec![RANK_COMMAND.into(), what.into()];
        args.extend(numbers.map(Into::into));
        if let Some(folder) = &self.folder {
            args.extend(["--folder".into(), folder.clone().into()]);
        }
        if self.wire {
            args.push("--wire".into());
        }
        if self.asleep {
            args.push("--asleep".into());
        }
        if !self.on.is_empty() {
            let on: Vec<String> = self.on.iter().map(ToString::to_string).collect();
            args.extend(["--on".into(), on.join(",").into()]);
        }
        args
    }
}

/// The first line that is printed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// The host of each process.
    pub hosts: Vec<String>,
    /// Processors that the first process may use.
    pub processors: u32,
}

/// What came of a block.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// What was measured.
    pub benchmark: String,
    /// Of whom.
    pub subject: String,
    /// What `value` is, its unit as suffix.
    pub metric: String,
    /// Bytes of a message.
    pub bytes: Option<u64>,
    /// The figure.
    pub value: f64,
    /// Processor time of all processes for one operation.
    pub cpu_us_per_op: Option<f64>,
    /// Which way it went, where something that is counted proves it.
    pub path: Option<String>,
    /// Half a round of a bare line between the first two processes before and after it, where they have processors of their own.
    #[serde(default)]
    pub line_us: Option<[f64; 2]>,
}

impl Sample {
    fn new(benchmark: &str, subject: &str, metric: &str, value: f64) -> Self {
        Self {
            benchmark: benchmark.into(),
            subject: subject.into(),
            metric: metric.into(),
            bytes: None,
            value,
            cpu_us_per_op: None,
            path: None,
            line_us: None,
        }
    }
}

/// Lines of the board, each for one thing.
const ARRIVALS: u64 = 0;
const ROUNDS: u64 = 64;
const GO: u64 = 128;
const PORT: u64 = 192;
/// A line for each process, written by it alone.
const OF_RANK: u64 = 4096;
/// The bare ping-pong, the naive barrier, the lock, the counters.
const LINES: u64 = 16384;
const NAIVE: u64 = 20480;
const LOCK: u64 = 24576;
const COUNTERS: u64 = 28672;
/// What POSIX threads share.
const POSIX: u64 = 32768;
const BOARD_BYTES: u64 = 40960;

/// Words of a process's line.
const CPU_NS: u64 = 0;
const DONE: u64 = 8;
const FAILED: u64 = 16;
const TALLY: u64 = 24;
const MEMBER: u64 = 32;
const SHARE: u64 = 40;
/// The one processor that it keeps to, and 1; 0 where it may use several.
const PROCESSOR: u64 = 48;

/// Most processes: what the board has lines for.
pub const MOST_PARTIES: u32 = 64;
/// Most rounds of a block.
const MOST_ROUNDS: u64 = 20_000_000;
/// Rounds of a batch of the line beside a block, and batches of which the median counts.
const LINE_ROUNDS: u64 = 500;
const LINE_BATCHES: u32 = 7;

/// The whole of one of the processes; gives its exit status.
pub fn main(args: &[OsString]) -> i32 {
    let done = <Plan as clap::Parser>::try_parse_from(args)
        .map_err(|e| Error::Usage(e.to_string()))
        .and_then(|plan| run(&plan));
    match done {
        Ok(()) => 0,
        Err(error) => {
            isthmus_region::tell!("isthmus: {}", error.chain());
            1
        }
    }
}

fn run(plan: &Plan) -> Result<()> {
    let mut meeting = Meeting::join(plan)?;
    match plan.what {
        What::Barrier => barriers::run(&mut meeting, plan),
        What::Counter => counters::run(&mut meeting, plan),
        What::Ivc => channels::run(&mut meeting, plan),
        What::Wait | What::Sysv | What::Doorbell => {
            Err(Error::Usage("these have a program of their own".into()))
        }
    }
}

/// A failure of a process, in words.
fn failed(what: &str) -> impl FnOnce(isthmus::Error) -> Error {
    let what = what.to_owned();
    move |e| Error::Rank { what: format!("{what}: {}", isthmus_region::error::with_causes(&e)) }
}

/// One of the processes, among the others.
struct Meeting {
    here: Attachment,
    board: Segment,
    control: Participant,
    index: u32,
    parties: u32,
    /// Whether the processor's hint for those that spin is worth while here: it is dear under emulation.
    pause: bool,
    /// Whether the first two have processors of their own, so that a line between them means something.
    apart: bool,
    budget: Duration,
    /// Rounds of each block that was measured before.
    rounds: HashMap<String, u64>,
    /// The bare line before and after the block that was timed last.
    lines: Option<[f64; 2]>,
    /// The placement that blocks are to have.
    awaited: Option<Awaited>,
}

/// How long a block took.
#[derive(Clone, Copy, Debug)]
struct Timed {
    us: f64,
    cpu_us: f64,
    rounds: u64,
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[allow(clippy::cast_precision_loss)] // far below 2^53
fn real(count: u64) -> f64 {
    count as f64
}

/// Keeps the process on one processor: its number's, among those it may use, or of the pair that was chosen.
fn pin(index: u32, on: &[usize]) {
    if let Some(cpu) = on.get(index as usize) {
        crate::placement::pin(*cpu);
        return;
    }
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return };
    let all: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    if let Some(cpu) = all.get(index as usize % all.len().max(1)) {
        let mut set = rustix::thread::CpuSet::new();
        set.set(*cpu);
        // Unpinned, the figures are only noisier.
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}

impl Meeting {
    fn join(plan: &Plan) -> Result<Self> {
        let here = Attachment::open().map_err(failed("attach"))?;
        let board = here.segment("bench").or_create(BOARD_BYTES).map_err(failed("open the board"))?;
        let arrivals = board.word(ARRIVALS).map_err(failed("open the board"))?;
        let index = u32::try_from(arrivals.fetch_add(1)).unwrap_or(u32::MAX);
        if index >= plan.parties || plan.parties > MOST_PARTIES {
            return Err(Error::Rank { what: format!("more than {} processes came", plan.parties) });
        }
        let processors = crate::subject::processors();
        pin(index, &plan.on);
        let control = here
            .named("bench control")
            .barrier(Parameters::new(plan.parties, Waiting::Hybrid))
            .and_then(|barrier| barrier.participate())
            .map_err(failed("join the others"))?;
        let member = here.member().map_err(failed("find the own member"))?;
        let mut meeting = Self {
            here,
            board,
            control,
            index,
            parties: plan.parties,
            pause: true,
            apart: false,
            budget: Duration::from_millis(plan.budget_ms),
            rounds: HashMap::new(),
            lines: None,
            awaited: None,
        };
        meeting.own(MEMBER)?.store(member.index.into());
        let own = match crate::placement::processors()[..] {
            [cpu] => cpu as u64 + 1,
            _ => 0,
        };
        meeting.own(PROCESSOR)?.store(own);
        meeting.sync()?;
        let hosts = (0..plan.parties).map(|rank| meeting.host_of(rank)).collect::<Result<Vec<String>>>()?;
        // Each VM has a processor of its own; on one host both must keep to one, not the same.
        let of_first = meeting.of_rank(0, PROCESSOR)?.load();
        let of_second = meeting.of_rank(1.min(plan.parties - 1), PROCESSOR)?.load();
        meeting.apart = plan.parties >= 2
            && (hosts[0] != hosts[1] || (of_first != 0 && of_second != 0 && of_first != of_second));
        meeting.print(&Start { hosts, processors })?;
        if plan.parties == 2 {
            // The better hint for this machine; both must take the same, and the first one's opinion counts.
            let with = meeting.line("with")?;
            meeting.pause = false;
            let without = meeting.line("without")?;
            let opinion = u64::from(with.us < without.us);
            meeting.pause = meeting.agree(opinion)? != 0;
        }
        meeting.awaited = Awaited::told();
        Ok(meeting)
    }

    fn is_first(&self) -> bool {
        self.index == 0
    }

    fn word(&self, offset: u64) -> Result<Word<'_>> {
        self.board.word(offset).map_err(failed("use the board"))
    }

    fn of_rank(&self, rank: u32, what: u64) -> Result<Word<'_>> {
        self.word(OF_RANK + u64::from(rank) * 64 + what)
    }

    fn own(&self, what: u64) -> Result<Word<'_>> {
        self.of_rank(self.index, what)
    }

    fn sum(&self, what: u64) -> Result<u64> {
        (0..self.parties).map(|rank| Ok(self.of_rank(rank, what)?.load())).sum()
    }

    fn host_of(&self, rank: u32) -> Result<String> {
        let index = self.of_rank(rank, MEMBER)?.load();
        let found = self.here.members().into_iter().find(|member| u64::from(member.index) == index);
        found.map(|member| member.name).ok_or_else(|| Error::Rank { what: format!("process {rank} is gone") })
    }

    fn print(&self, what: &impl Serialize) -> Result<()> {
        if self.is_first() {
            let text = serde_json::to_string(what)
                .map_err(|e| Error::Io { what: "turn a block into JSON".into(), source: e.into() })?;
            println!("{text}");
        }
        Ok(())
    }

    /// Prints what came of the block that was timed last, with its lines.
    fn tell(&self, sample: &Sample) -> Result<()> {
        self.print(&Sample { line_us: self.lines, ..sample.clone() })
    }

    /// Waits for all.
    fn sync(&mut self) -> Result<()> {
        let waited = self.control.wait();
        waited.map(|_| ()).map_err(|e| Error::Rank { what: format!("wait for the others: {e}") })
    }

    /// The first one's number, known to all.
    fn agree(&mut self, number: u64) -> Result<u64> {
        self.sync()?;
        if self.is_first() {
            self.word(ROUNDS)?.store(number);
        }
        self.sync()?;
        let number = self.word(ROUNDS)?.load();
        self.sync()?;
        Ok(number)
    }

    /// How many rounds of `op` fit the budget: found with ever more of them.
    fn fitting(&mut self, op: &mut dyn FnMut(u64) -> Result<()>) -> Result<u64> {
        let mut rounds = 8_u64;
        loop {
            self.sync()?;
            let begun = Instant::now();
            op(rounds)?;
            let took = nanos(begun.elapsed()).max(1);
            let fits = real(rounds) * real(nanos(self.budget)) / real(took);
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // positive, and bounded below
            let fits = (fits as u64).clamp(8, MOST_ROUNDS);
            // An odd answer is the last.
            let answer = if fits <= rounds * 8 { fits * 2 + 1 } else { rounds * 8 };
            let answer = self.agree(answer)?;
            if answer % 2 == 1 {
                return Ok(answer / 2);
            }
            rounds = answer;
        }
    }

    /// Times a block, as all run it at the same time. `op` makes so many rounds.
    fn timed(&mut self, name: &str, op: &mut dyn FnMut(u64) -> Result<()>) -> Result<Timed> {
        let rounds = match self.rounds.get(name) {
            Some(rounds) => *rounds,
            None => {
                let rounds = self.fitting(op)?;
                self.rounds.insert(name.to_owned(), rounds);
                rounds
            }
        };
        let (took, cpu) = loop {
            let before = self.before()?;
            self.sync()?;
            let (cpu, begun) = (cpu_time(), Instant::now());
            op(rounds)?;
            let (took, cpu) = (begun.elapsed(), cpu_time().saturating_sub(cpu));
            self.after(before)?;
            if !self.lacks(self.lines.map(|[_, after]| after), Duration::ZERO)? {
                break (took, cpu);
            }
            self.spend(begun.elapsed());
        };
        self.own(CPU_NS)?.store(nanos(cpu));
        self.sync()?;
        let all = self.sum(CPU_NS)?;
        self.sync()?;
        Ok(Timed {
            us: took.as_secs_f64() * 1e6 / real(rounds),
            cpu_us: real(all) / 1e3 / real(rounds),
            rounds,
        })
    }

    /// The line before a block, which waits for the placement that it is to have.
    fn before(&mut self) -> Result<Option<f64>> {
        let begun = Instant::now();
        let mut line = self.beside()?;
        while self.lacks(line, begun.elapsed())? {
            line = self.beside()?;
        }
        self.spend(begun.elapsed());
        Ok(line)
    }

    /// Whether all wait on for their placement after this line, as the first one finds.
    fn lacks(&mut self, line: Option<f64>, spent: Duration) -> Result<bool> {
        let Some(awaited) = self.awaited else { return Ok(false) };
        let opinion = line.is_some_and(|line| awaited.lacks(line, spent));
        Ok(self.agree(u64::from(opinion))? != 0)
    }

    fn spend(&mut self, spent: Duration) {
        self.awaited.iter_mut().for_each(|awaited| awaited.spend(spent));
    }

    /// Half a round of a bare line between the first two processes, in microseconds; the others wait. Nothing where the two share
    /// a processor.
    fn beside(&mut self) -> Result<Option<f64>> {
        self.sync()?;
        let mut found = None;
        if self.index < 2 && self.apart {
            let first = self.is_first();
            let line = |rank: u32| self.word(LINES + u64::from(rank) * 64);
            let (mine, theirs) = (line(self.index)?, line(1 - self.index)?);
            let mut turn = mine.load();
            let mut batches = Vec::new();
            for _ in 0..LINE_BATCHES {
                let begun = Instant::now();
                for _ in 0..LINE_ROUNDS {
                    turn += 1;
                    if first {
                        mine.store(turn);
                    }
                    let mut looks = 0_u32;
                    while theirs.load() != turn {
                        if self.pause {
                            std::hint::spin_loop();
                        }
                        looks = looks.wrapping_add(1);
                        // Other threads of these processors must not keep the other rank from its turn.
                        if looks.is_multiple_of(1 << 16) {
                            std::thread::yield_now();
                        }
                    }
                    if !first {
                        mine.store(turn);
                    }
                }
                batches.push(begun.elapsed().as_secs_f64() * 5e5 / real(LINE_ROUNDS));
            }
            found = crate::stats::median(&batches);
        }
        self.sync()?;
        Ok(found)
    }

    /// Keeps the line before a block, and times the one after it.
    fn after(&mut self, before: Option<f64>) -> Result<()> {
        let after = self.beside()?;
        self.lines = before.zip(after).map(|(before, after)| [before, after]);
        Ok(())
    }

    /// A round of the bare ping-pong over two lines, one written by each of two processes.
    fn line(&mut self, name: &str) -> Result<Timed> {
        let board = self.board.clone();
        let line = |rank: u32| board.word(LINES + u64::from(rank) * 64).map_err(failed("use the board"));
        let (mine, theirs) = (line(self.index)?, line(1 - self.index)?);
        let (first, pause) = (self.is_first(), self.pause);
        let mut turn = mine.load();
        self.timed(&format!("line {name}"), &mut |rounds| {
            for _ in 0..rounds {
                turn += 1;
                if first {
                    mine.store(turn);
                }
                while theirs.load() != turn {
                    if pause {
                        std::hint::spin_loop();
                    }
                }
                if !first {
                    mine.store(turn);
                }
            }
            Ok(())
        })
    }
}
