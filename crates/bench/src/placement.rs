//! Where the processors of a measurement were: the sorting of rounds by a bare cache line.
//!
//! The host of a virtual machine moves its processors about. For minutes two of them are threads of one core or share a cache,
//! and a line goes from one to the other in 0.03 to 0.07 us; then they share none, and it takes 0.2 to 0.4 us. Figures of the one
//! and of the other are different figures. So a line is timed before and after each block, by the block's own processes or on their processors, and
//! the block counts for the placement that both agree on. What lies between, or changed meanwhile, is measured again.

use std::fs;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use isthmus_region::shared_by_threads::Count;
use isthmus_region::sync::Word;

use crate::error::{Error, Result};
use crate::{job, stats};

/// How two processors are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Without a cache that both have. Promises are about these.
    Far,
    /// On one core, or on two that share a cache.
    Near,
}

impl Placement {
    /// Both, the one that is judged first.
    pub const BOTH: [Self; 2] = [Self::Far, Self::Near];

    /// As records and people have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Far => "far",
            Self::Near => "near",
        }
    }
}

/// Which rounds are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Choice {
    /// Rounds with processors that share a core or a cache.
    Near,
    /// Rounds with processors that share neither, which promises are about.
    Far,
    /// Both, as rows of their own.
    Both,
    /// As many rounds as asked for, without an order.
    Any,
}

impl Choice {
    /// The placements that are looked for; none where nothing is sorted.
    pub fn wanted(self) -> &'static [Placement] {
        match self {
            Self::Near => &[Placement::Near],
            Self::Far => &[Placement::Far],
            Self::Both => &Placement::BOTH,
            Self::Any => &[],
        }
    }
}

/// Which blocks are taken for a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sieve {
    /// Those of one placement.
    Of(Placement),
    /// All of them: no particular one was asked for.
    Any,
    /// All of them, since none could be sorted.
    Mixed,
}

impl Sieve {
    /// As records have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Of(placement) => placement.name(),
            Self::Any => "any",
            Self::Mixed => "mixed",
        }
    }

    /// Whether a block with these lines, before and after it, belongs to it.
    pub fn takes(self, scale: &Scale, lines: Option<[f64; 2]>) -> bool {
        match self {
            Self::Of(placement) => lines.and_then(|lines| scale.both(lines)) == Some(placement),
            Self::Any | Self::Mixed => true,
        }
    }
}

/// Half a round of a bare line, in microseconds, below which two processors share a core or a cache, and from which on they
/// do not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// Less is near.
    pub near_below: f64,
    /// This or more is far.
    pub far_from: f64,
    /// More is no distance: other programs have the processors.
    pub busy_from: f64,
}

/// No two cores of one machine are so far apart, emulated ones neither.
const BUSY: f64 = 1.5;

/// Where the processors are a virtual machine's, whose host says nothing about cores. Threads of a core take 0.02 to 0.05 us, two
/// cores of an EPYC behind one cache 0.06; two cores of a Xeon, whose last cache is a mesh between them, 0.1 to 0.2, and two of
/// an EPYC that share no cache 0.2 to 0.4.
const VIRTUAL: Scale = Scale { near_below: 0.08, far_from: 0.1, busy_from: BUSY };

impl Scale {
    /// Of this machine: as its topology has it, if that names processors of one core, and by experience if not.
    pub fn here() -> Self {
        let pairs = all_pairs(&processors(), siblings);
        let near = pairs.iter().find(|pair| pair.is_near);
        let far = pairs.iter().find(|pair| !pair.is_near);
        if let (Some(near), Some(far)) = (near, far)
            && let (Some(near), Some(far)) = (line(near.cpus), line(far.cpus))
            && far >= near * 1.3
        {
            let between = (near * far).sqrt();
            return Self { near_below: between, far_from: between, busy_from: BUSY };
        }
        // On a machine of one's own without threads that share a core there is one placement only. Where there are such threads,
        // and the lines did not tell them apart just now, experience has to do.
        if is_virtual() || near.is_some() {
            VIRTUAL
        } else {
            Self { near_below: 0.0, far_from: 0.0, busy_from: BUSY }
        }
    }

    /// The placement that a line tells, if it does.
    pub fn of(&self, line: f64) -> Option<Placement> {
        if line < self.near_below {
            Some(Placement::Near)
        } else if (self.far_from..self.busy_from).contains(&line) {
            Some(Placement::Far)
        } else {
            None
        }
    }

    /// The placement that both lines tell, before and after a block.
    pub fn both(&self, [before, after]: [f64; 2]) -> Option<Placement> {
        self.of(before).filter(|placement| self.of(after) == Some(*placement))
    }
}

/// A list of processors as /sys has it: `0,4-5`.
fn listed(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}

/// The processors of the same core, as the system's topology has them.
fn siblings(cpu: usize) -> Vec<usize> {
    let list = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    fs::read_to_string(list).map_or_else(|_| Vec::new(), |list| listed(&list))
}

/// Whether the processors are a virtual machine's, whose host may move them whatever the topology says.
fn is_virtual() -> bool {
    fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| has_hypervisor(&text))
}

/// Whether processors that are described so have the flag that a hypervisor sets.
fn has_hypervisor(cpuinfo: &str) -> bool {
    cpuinfo
        .lines()
        .filter(|line| line.starts_with("flags"))
        .any(|line| line.split(' ').any(|flag| flag == "hypervisor"))
}

/// Does something with this thread, and what it starts, kept to these two processors.
pub fn kept_to<T>(pair: Option<(usize, usize)>, what: impl FnOnce() -> T) -> T {
    let (Some((a, b)), Ok(before)) = (pair, rustix::thread::sched_getaffinity(None)) else { return what() };
    let mut set = rustix::thread::CpuSet::new();
    set.set(a);
    set.set(b);
    let is_kept = rustix::thread::sched_setaffinity(None, &set).is_ok();
    let done = what();
    if is_kept {
        // These were allowed before.
        let _ = rustix::thread::sched_setaffinity(None, &before);
    }
    done
}

/// The processors that this process may use.
pub fn processors() -> Vec<usize> {
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return Vec::new() };
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect()
}

/// Keeps this thread on one processor.
pub fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    // Unpinned, the figures are only noisier.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// Pairs of processors that are tried, so that a large machine's are not all.
const MOST_PAIRS: usize = 28;

/// Two processors, and whether the topology says that they are one core's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Both {
    cpus: (usize, usize),
    is_near: bool,
}

/// The pairs that are tried. Those of one core come first, and have half of the room at most: on a machine whose first processor
/// has its sibling far behind, neither kind may crowd out the other.
fn all_pairs(cpus: &[usize], siblings: impl Fn(usize) -> Vec<usize>) -> Vec<Both> {
    let of_core: Vec<Vec<usize>> = cpus.iter().map(|cpu| siblings(*cpu)).collect();
    let later = |at: usize| cpus[at + 1..].iter().map(move |b| (at, *b));
    let pairs = |is_near: bool| {
        let of_core = &of_core;
        let fits = move |(at, b): &(usize, usize)| of_core[*at].contains(b) == is_near;
        (0..cpus.len()).flat_map(later).filter(fits).map(move |(at, b)| Both { cpus: (cpus[at], b), is_near })
    };
    pairs(true).take(MOST_PAIRS / 2).chain(pairs(false)).take(MOST_PAIRS).collect()
}

/// The placements that these pairs can ever have. A virtual machine's can have any; otherwise the topology says which.
fn possible(pairs: &[Both], is_virtual: bool) -> Vec<Placement> {
    let can =
        |placement: &Placement| pairs.iter().any(|pair| pair.is_near == (*placement == Placement::Near));
    let all = Placement::BOTH.into_iter();
    if is_virtual || pairs.is_empty() { all.collect() } else { all.filter(can).collect() }
}

/// Why a placement cannot be seen on a machine of one's own.
fn why_never(placement: Placement, is_free: bool) -> &'static str {
    match (placement, is_free) {
        (Placement::Near, true) => "no two of the processors that we may use share a core",
        (Placement::Near, false) => "the two processors that it is put on do not share a core",
        (Placement::Far, true) => "all processors that we may use are of one core",
        (Placement::Far, false) => "the two processors that it is put on are of one core",
    }
}

/// Two words far enough apart that no prefetcher takes them for one.
#[repr(align(4096))]
struct Lines {
    first: Word,
    second: Apart,
}

/// Half a page from the other one, whichever way the struct is laid out.
#[repr(align(2048))]
struct Apart(Word);

/// Rounds of a batch, and batches of which the median is the line.
const ROUNDS: u64 = 1000;
const BATCHES: usize = 7;
/// How long a line may be timed: where other programs have the processors, it is not.
const LIMIT: Duration = Duration::from_secs(1);

/// Half a round of a bare line between two processors of this host, in microseconds: the median of a few batches, with or
/// without the processor's hint, whatever is shorter.
pub fn line((a, b): (usize, usize)) -> Option<f64> {
    let lines = Lines { first: Word::new(0), second: Apart(Word::new(0)) };
    let over = Instant::now() + LIMIT;
    let half = |cpu: usize, first: bool| {
        pin(cpu);
        let (mine, theirs) =
            if first { (&lines.first, &lines.second.0) } else { (&lines.second.0, &lines.first) };
        let mut turn = 0;
        let mut medians = Vec::new();
        for with_pause in [false, true] {
            let mut batches = Vec::new();
            for _ in 0..BATCHES {
                let begun = Instant::now();
                for _ in 0..ROUNDS {
                    turn += 1;
                    if first {
                        mine.set(turn);
                    }
                    let mut looks = 0_u32;
                    while theirs.get() < turn {
                        if with_pause {
                            std::hint::spin_loop();
                        }
                        looks += 1;
                        if looks.is_multiple_of(1 << 16) && Instant::now() >= over {
                            // The other one stops at the same time, or sees this.
                            mine.set(u64::MAX);
                            return None;
                        }
                    }
                    if !first {
                        mine.set(turn);
                    }
                }
                batches.push(begun.elapsed().as_secs_f64() * 5e5 / ROUNDS as f64);
            }
            medians.push(stats::median(&batches)?);
        }
        // The one that gave up left a number that no round has.
        (theirs.get() != u64::MAX).then(|| medians.into_iter().fold(f64::INFINITY, f64::min))
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| half(b, false));
        let this = scope.spawn(|| half(a, true));
        let _ = other.join();
        this.join().ok().flatten()
    })
}

/// How long a table takes at most, and how many rounds it needs.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// What is looked for.
    pub choice: Choice,
    /// How many rounds of each placement.
    pub rounds: u32,
    /// How long to go on for a placement that lacks rounds.
    pub patience: Duration,
}

/// The rounds of one table, as they are made.
#[derive(Debug)]
pub struct Search {
    policy: Policy,
    /// What tells near from far.
    pub scale: Scale,
    /// The processors that the next round's pair of processes is put on.
    pub pair: Option<(usize, usize)>,
    /// Whether processes may be put on any pair; otherwise it is always the first two.
    is_free: bool,
    /// Placements that this machine can have at all.
    possible: Vec<Placement>,
    /// What becomes of more processes than the line is timed between.
    crowd: Crowd,
    /// Whether the processes are in VMs, whose own line is another one.
    in_vms: bool,
    begun: Instant,
    made: u32,
}

/// How often the host is asked where it has its processors while there is nothing to measure.
const LOOK: Duration = Duration::from_secs(1);
/// Milliseconds that all tables of this process have waited without seeing the placement: on a machine that never moves
/// its processors, a benchmark of many tables waits as long as one.
static WAITED_MS: Count = Count::new(0);

/// How long the blocks of one launch together wait for the placement that lacks rounds: where one alone does, and where both do,
/// and the other one will come anyway.
const AWAITED: Duration = Duration::from_secs(20);
const AWAITED_OF_BOTH: Duration = Duration::from_secs(2);
/// And no more than this part of the time that the table still has: a round is a launch for each subject.
const SHARE_OF_PATIENCE: u32 = 8;
/// The variable by which programs are told, as `LOW,HIGH,SECONDS`; see `programs/await.h`.
const AWAIT: &str = "ISTHMUS_BENCH_AWAIT";

/// What the blocks of the next launches wait for.
static NEXT: Mutex<Option<Awaited>> = Mutex::new(None);

/// A placement that blocks wait for: while half a round of a bare line is not within these, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Awaited {
    low: f64,
    high: f64,
    left: Duration,
}

impl Awaited {
    /// What this process, which is one of a launch, was told.
    pub fn told() -> Option<Self> {
        Self::read(&std::env::var(AWAIT).ok()?)
    }

    fn read(text: &str) -> Option<Self> {
        let mut numbers = text.split(',').map(str::parse::<f64>);
        let mut next = || numbers.next()?.ok();
        let (low, high, seconds) = (next()?, next()?, next()?);
        Some(Self { low, high, left: Duration::try_from_secs_f64(seconds).ok()? })
    }

    /// As the variable has it.
    fn text(&self) -> String {
        format!("{},{},{}", self.low, self.high, self.left.as_secs_f64())
    }

    /// Whether to go on for it, after that much more time, with this line.
    pub fn lacks(&self, line: f64, spent: Duration) -> bool {
        !(self.low..self.high).contains(&line) && spent < self.left
    }

    /// So much of the time is over.
    pub fn spend(&mut self, spent: Duration) {
        self.left = self.left.saturating_sub(spent);
    }
}

/// What a launch gets in its environment so that its blocks wait, where they time their own line.
pub fn awaited() -> Option<(&'static str, String)> {
    let next = NEXT.lock().unwrap_or_else(PoisonError::into_inner);
    next.map(|awaited| (AWAIT, awaited.text()))
}

/// How often people are told that it still is.
const TELL: Duration = Duration::from_secs(30);

impl Search {
    /// The beginning of one for so many processes in so many VMs. Processes of this host may be put on any two processors.
    pub fn new(policy: Policy, processes: u32, vms: u32) -> Self {
        let cpus = processors();
        let crowd = Crowd::here(policy.choice, processes, vms);
        let is_free = processes == 2 && vms == 0 || crowd == Crowd::Kept;
        let choice = if crowd == Crowd::Unsorted { Choice::Any } else { policy.choice };
        let policy = Policy { choice, ..policy };
        let pair = cpus.first().copied().zip(cpus.get(1).copied());
        let scale = if policy.choice == Choice::Any { VIRTUAL } else { Scale::here() };
        let possible = possible(&pairs(pair, is_free), is_virtual());
        let begun = Instant::now();
        Self { policy, scale, pair, is_free, possible, crowd, in_vms: vms > 0, begun, made: 0 }
    }

    /// The pair as a program of ours takes it: `0,3`.
    pub fn pair_text(&self) -> Option<String> {
        self.pair.map(|(a, b)| format!("{a},{b}"))
    }

    /// The line between the processors of the pair, now; nothing where nothing is sorted.
    pub fn line(&self) -> Option<f64> {
        if self.policy.choice == Choice::Any {
            return None;
        }
        line(self.pair?)
    }

    /// The two processors that more processes than two are kept to.
    pub fn kept(&self) -> Option<(usize, usize)> {
        self.pair.filter(|_| self.crowd == Crowd::Kept)
    }

    /// Whether rounds are sorted at all.
    pub fn is_sorting(&self) -> bool {
        self.policy.choice != Choice::Any
    }

    /// The rounds made.
    pub fn made(&self) -> u32 {
        self.made
    }

    /// Placements that lack rounds, of which `have` says how many there are. What cannot come is not waited for.
    fn lacking(&self, have: impl Fn(Placement) -> u32) -> Vec<Placement> {
        let wanted = self.policy.choice.wanted().iter();
        let lacks = |placement: &Placement| {
            self.possible.contains(placement) && have(*placement) < self.policy.rounds
        };
        wanted.copied().filter(lacks).collect()
    }

    /// Placements that are wanted and cannot be seen here, with the reason.
    fn never(&self) -> Vec<String> {
        let wanted = self.policy.choice.wanted().iter();
        wanted
            .filter(|placement| !self.possible.contains(placement))
            .map(|placement| {
                format!("{}: not seen: {}", placement.name(), why_never(*placement, self.is_free))
            })
            .collect()
    }

    /// Whether there is another round to make: it waits until the host has its processors where rounds are lacking, finds a pair
    /// that is so placed, and tells `progress` what it waits for.
    ///
    /// # Errors
    /// [`Error::Interrupted`]; [`Error::Usage`] where nothing that was asked for can be seen on this machine.
    pub fn go_on(&mut self, have: impl Fn(Placement) -> u32, progress: &mut dyn FnMut(&str)) -> Result<bool> {
        if let Some(said) = self.crowd.said().filter(|_| self.made == 0) {
            progress(said);
        }
        self.await_next(None, Duration::ZERO);
        if self.policy.choice == Choice::Any {
            let is_left = self.made < self.policy.rounds;
            self.made += u32::from(is_left);
            return Ok(is_left);
        }
        let never = self.never();
        if self.made == 0 {
            never.iter().for_each(|said| progress(said));
            if never.len() == self.policy.choice.wanted().len() {
                return Err(Error::Usage(format!("--placement: {}", never.join("; "))));
            }
        }
        let lacking = self.lacking(&have);
        if lacking.is_empty() || processors().len() < 2 && self.made >= self.policy.rounds {
            return Ok(false);
        }
        let mut told = Instant::now().checked_sub(TELL).unwrap_or_else(Instant::now);
        loop {
            job::check_signals()?;
            let waited = Duration::from_millis(WAITED_MS.get());
            let is_over = self.begun.elapsed().max(waited) >= self.policy.patience;
            // As many rounds as were asked for are made in any case: what cannot be sorted is shown unsorted.
            if self.begun.elapsed() >= self.policy.patience && self.made >= self.policy.rounds {
                return Ok(false);
            }
            let seen = self.look(&lacking);
            if seen.is_err() && is_over && self.made >= self.policy.rounds {
                return Ok(false);
            }
            if seen.is_ok() || self.made < self.policy.rounds && is_over {
                self.await_next(
                    seen.ok().flatten(),
                    if lacking.len() > 1 { AWAITED_OF_BOTH } else { AWAITED },
                );
                self.made += 1;
                return Ok(true);
            }
            if told.elapsed() >= TELL {
                told = Instant::now();
                let names: Vec<&str> = lacking.iter().map(|placement| placement.name()).collect();
                progress(&format!(
                    "{}; waiting for {}: {}; {:.0} of {:.0} s are over",
                    self.counts(&have),
                    names.join(" or "),
                    seen.err().unwrap_or_default(),
                    self.begun.elapsed().as_secs_f64(),
                    self.policy.patience.as_secs_f64()
                ));
            }
            let begun = Instant::now();
            self.pass_time(&lacking);
            WAITED_MS.add(u64::try_from(begun.elapsed().as_millis()).unwrap_or(0));
        }
    }

    /// Waits a moment for a placement. A host puts two processors that are busy on cores of their own sooner than two that are
    /// idle, so they are kept busy while such cores are waited for.
    fn pass_time(&self, lacking: &[Placement]) {
        let begun = Instant::now();
        if lacking == [Placement::Far]
            && let Some(pair) = self.pair
        {
            while begun.elapsed() < LOOK
                && line(pair).is_some_and(|it| self.scale.of(it) != Some(Placement::Far))
            {}
        } else {
            thread::sleep(LOOK);
        }
    }

    /// What the blocks of the next round wait for, and how long together: where the processors were seen, or nothing.
    fn await_next(&self, seen: Option<Placement>, left: Duration) {
        let own_line = !self.in_vms && self.crowd == Crowd::No;
        let left = left.min(self.policy.patience.saturating_sub(self.begun.elapsed()) / SHARE_OF_PATIENCE);
        let next = seen.filter(|_| own_line).map(|placement| {
            let (low, high) = match placement {
                Placement::Far => (self.scale.far_from, self.scale.busy_from),
                Placement::Near => (0.0, self.scale.near_below),
            };
            Awaited { low, high, left }
        });
        *NEXT.lock().unwrap_or_else(PoisonError::into_inner) = next;
    }

    /// Takes a pair of processors that is placed as one of `lacking`, and gives that, if two processors are there; otherwise says
    /// what there is.
    fn look(&mut self, lacking: &[Placement]) -> std::result::Result<Option<Placement>, String> {
        let pairs = pairs(self.pair, self.is_free);
        if pairs.is_empty() {
            return Ok(None);
        }
        let lines: Vec<_> = pairs.iter().filter_map(|pair| Some((pair.cpus, line(pair.cpus)?))).collect();
        // The scarcer one first, which is the last that `go_on` names.
        for placement in lacking.iter().rev() {
            if let Some((pair, _)) = lines.iter().find(|(_, line)| self.scale.of(*line) == Some(*placement)) {
                self.pair = Some(*pair);
                return Ok(Some(*placement));
            }
        }
        let all: Vec<String> = lines.iter().map(|(_, line)| format!("{line:.3}")).collect();
        Err(match all.as_slice() {
            [] => "the processors are too busy to time a bare line".to_string(),
            all => format!("a bare line takes {} us now", all.join(", ")),
        })
    }

    /// How many rounds there are of what, for people.
    pub fn counts(&self, have: impl Fn(Placement) -> u32) -> String {
        let wanted = self.policy.choice.wanted();
        let said: Vec<String> = wanted
            .iter()
            .map(|placement| format!("{} {} of {}", placement.name(), have(*placement), self.policy.rounds))
            .collect();
        if said.is_empty() {
            format!("round {} of {}", self.made, self.policy.rounds)
        } else {
            said.join(", ")
        }
    }

    /// What rows are made of in the end, and the placements that were not seen.
    pub fn rows(&self, have: impl Fn(Placement) -> u32) -> (Vec<Sieve>, Vec<Placement>) {
        let wanted = self.policy.choice.wanted();
        let (seen, not_seen): (Vec<Placement>, Vec<Placement>) =
            wanted.iter().partition(|placement| have(**placement) > 0);
        match (wanted.is_empty(), seen.is_empty()) {
            (true, _) => (vec![Sieve::Any], Vec::new()),
            (false, true) => (vec![Sieve::Mixed], not_seen),
            _ => (seen.into_iter().map(Sieve::Of).collect(), not_seen),
        }
    }

    /// What became of the placements, for people: which were not seen, and what is shown instead.
    pub fn said(&self, sieves: &[Sieve], not_seen: &[Placement]) -> Vec<String> {
        let mut said = self.never();
        said.extend(self.crowd.said().map(str::to_owned));
        let waited_for = not_seen.iter().filter(|placement| self.possible.contains(placement));
        said.extend(waited_for.map(|placement| {
            format!("{}: not seen within {:.0} s", placement.name(), self.policy.patience.as_secs_f64())
        }));
        if sieves.contains(&Sieve::Mixed) {
            said.push(
                "mixed: no block had the same line before and after it, so all rounds are shown together, and decide nothing; \
                 is the machine busy?"
                    .into(),
            );
        }
        said
    }
}

/// What becomes of more processes than the two between which a line is timed, where that line does not tell where the others are:
/// there are more than two processors, and they are not all placed alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crowd {
    /// There is none.
    No,
    /// Its rounds are sorted, and it is kept to the two processors.
    Kept,
    /// It is in VMs, and its rounds are not sorted.
    Unsorted,
}

impl Crowd {
    /// On this machine.
    pub fn here(choice: Choice, processes: u32, vms: u32) -> Self {
        let possible = possible(&pairs(None, true), is_virtual());
        Self::of(choice, (processes, vms), processors().len(), &possible)
    }

    fn of(choice: Choice, (processes, vms): (u32, u32), cpus: usize, possible: &[Placement]) -> Self {
        match (choice == Choice::Any || processes <= 2 || cpus <= 2 || possible.len() < 2, vms) {
            (true, _) => Self::No,
            (false, 0) => Self::Kept,
            (false, _) => Self::Unsorted,
        }
    }

    const fn said(self) -> Option<&'static str> {
        match self {
            Self::No => None,
            Self::Kept => Some(
                "more than two processes are kept to the two processors between which the line is timed; `--placement any` lets them \
                 have all",
            ),
            Self::Unsorted => Some(
                "any: more VMs than the two between whose processors a line is timed are not sorted, and decide nothing; `taskset -c \
                 0,1` before the command keeps all to two",
            ),
        }
    }
}

/// The pairs that a search may take: any, or the one that is given.
fn pairs(pair: Option<(usize, usize)>, is_free: bool) -> Vec<Both> {
    if is_free {
        return all_pairs(&processors(), siblings);
    }
    pair.map(|cpus| Both { cpus, is_near: siblings(cpus.0).contains(&cpus.1) }).into_iter().collect()
}

/// Whether a table could be sorted at all.
///
/// # Errors
/// [`Error::Usage`] where a placement was asked for that needs two processors.
pub fn check(choice: Choice) -> Result<()> {
    if matches!(choice, Choice::Near | Choice::Far) && processors().len() < 2 {
        let what = "--placement: this machine lets us use one processor; only `any` makes sense";
        return Err(Error::Usage(what.into()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_before_and_after_must_agree() {
        assert_eq!(VIRTUAL.both([0.05, 0.06]), Some(Placement::Near));
        assert_eq!(VIRTUAL.both([0.2, 0.4]), Some(Placement::Far));
        assert_eq!(VIRTUAL.both([0.05, 0.3]), None);
        assert_eq!(VIRTUAL.both([0.09, 0.09]), None);
        assert_eq!(VIRTUAL.both([0.3, 17.0]), None, "somebody else had a processor");
        let alone = Scale { near_below: 0.0, far_from: 0.0, busy_from: BUSY };
        assert_eq!(alone.both([0.03, 0.02]), Some(Placement::Far), "cores of one's own are far");
    }

    #[test]
    fn a_sieve_takes_what_it_is_for() {
        let far = Sieve::Of(Placement::Far);
        assert!(far.takes(&VIRTUAL, Some([0.3, 0.3])) && !far.takes(&VIRTUAL, Some([0.3, 0.05])));
        assert!(!far.takes(&VIRTUAL, None), "a block without a line has no placement");
        assert!(Sieve::Any.takes(&VIRTUAL, None) && Sieve::Mixed.takes(&VIRTUAL, Some([0.3, 0.05])));
    }

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(listed("0,4-6\n"), [0, 4, 5, 6]);
        assert_eq!(listed(""), [0_usize; 0]);
        let pairs: Vec<_> = all_pairs(&[0, 1, 3], |_| Vec::new()).iter().map(|pair| pair.cpus).collect();
        assert_eq!(pairs, [(0, 1), (0, 3), (1, 3)]);
    }

    #[test]
    fn a_thread_is_kept_to_a_pair_for_a_while() {
        let all = processors();
        let [first, .., last] = all[..] else { return };
        assert_eq!(kept_to(Some((first, last)), processors), [first, last]);
        assert_eq!(kept_to(None, processors), all);
        assert_eq!(processors(), all);
    }

    #[test]
    fn siblings_far_behind_are_tried_and_do_not_crowd_out_the_others() {
        let cpus: Vec<usize> = (0..128).collect();
        let pairs = all_pairs(&cpus, |cpu| vec![cpu % 64, cpu % 64 + 64]);
        assert_eq!(pairs[0], Both { cpus: (0, 64), is_near: true });
        assert_eq!(pairs.len(), MOST_PAIRS);
        assert_eq!(pairs.iter().filter(|pair| pair.is_near).count(), MOST_PAIRS / 2);
        assert!(pairs.contains(&Both { cpus: (0, 1), is_near: false }));
    }

    #[test]
    fn blocks_are_told_what_they_wait_for() {
        let awaited = Awaited { low: 0.15, high: 1.5, left: Duration::from_secs(20) };
        assert_eq!(awaited.text(), "0.15,1.5,20");
        assert_eq!(Awaited::read(&awaited.text()), Some(awaited));
        assert_eq!([Awaited::read("0.15,1.5"), Awaited::read("a,b,c"), Awaited::read("0,1,-1")], [None; 3]);
        assert!(awaited.lacks(0.05, Duration::ZERO) && !awaited.lacks(0.2, Duration::ZERO));
        assert!(!awaited.lacks(0.05, Duration::from_secs(20)), "its time is over");
    }

    #[test]
    fn a_placement_that_cannot_come_is_not_waited_for() {
        let pair = |is_near| Both { cpus: (0, 1), is_near };
        assert_eq!(possible(&[pair(false)], false), [Placement::Far]);
        assert_eq!(possible(&[pair(true)], false), [Placement::Near]);
        assert_eq!(possible(&[pair(true), pair(false)], false), Placement::BOTH);
        assert_eq!(possible(&[pair(false)], true), Placement::BOTH, "a host moves its guests' processors");
        assert!(has_hypervisor("model name\t: x\nflags\t\t: fpu hypervisor lahf_lm\n"));
        assert!(!has_hypervisor("model name\t: a hypervisor of sorts\nflags\t\t: fpu lahf_lm\n"));

        let mut search = search(Choice::Both, 3);
        search.policy.patience = Duration::from_secs(3600);
        search.possible = vec![Placement::Far];
        let mut told = Vec::new();
        let have = |placement| if placement == Placement::Far { 3 } else { 0 };
        assert!(!search.go_on(have, &mut |what| told.push(what.to_owned())).unwrap());
        assert_eq!(told, ["near: not seen: no two of the processors that we may use share a core"]);
        let (sieves, not_seen) = search.rows(have);
        assert_eq!(search.said(&sieves, &not_seen), told);
        search.policy.choice = Choice::Near;
        assert!(matches!(search.go_on(have, &mut |_| ()), Err(Error::Usage(_))));
    }

    #[test]
    fn processes_that_may_be_anywhere_are_not_sorted_by_the_line_of_two() {
        let both = &Placement::BOTH;
        let of = |place, cpus, possible| Crowd::of(Choice::Both, place, cpus, possible);
        assert_eq!((of((4, 0), 4, both), of((4, 4), 4, both)), (Crowd::Kept, Crowd::Unsorted));
        assert_eq!(of((2, 0), 4, both), Crowd::No, "they are on the pair");
        assert_eq!(of((8, 0), 2, both), Crowd::No, "there is no other pair");
        assert_eq!(of((8, 0), 64, &[Placement::Far]), Crowd::No, "all are far");
        assert_eq!(Crowd::of(Choice::Any, (8, 0), 64, both), Crowd::No, "nothing is sorted");
        for (crowd, choice) in [(Crowd::Kept, Choice::Both), (Crowd::Unsorted, Choice::Any)] {
            let mut search = search(choice, 1);
            search.crowd = crowd;
            let mut told = Vec::new();
            assert!(search.go_on(|_| 0, &mut |what| told.push(what.to_owned())).unwrap());
            assert_eq!(search.said(&[], &[]), told);
            assert_eq!(told.len(), 1);
            assert_eq!(search.kept(), search.pair.filter(|_| crowd == Crowd::Kept));
        }
    }

    fn search(choice: Choice, rounds: u32) -> Search {
        let policy = Policy { choice, rounds, patience: Duration::ZERO };
        let mut search = Search::new(policy, 2, 0);
        (search.scale, search.possible) = (VIRTUAL, Placement::BOTH.into());
        search
    }

    #[test]
    fn a_search_without_patience_makes_the_rounds_it_was_asked_for_and_no_more() {
        for choice in [Choice::Any, Choice::Both] {
            let mut search = search(choice, 3);
            let mut made = 0;
            while search.go_on(|_| 0, &mut |_| ()).unwrap() {
                made += 1;
            }
            assert_eq!(made, 3, "{choice:?}");
        }
    }

    #[test]
    fn a_search_ends_when_all_placements_have_their_rounds() {
        let mut search = search(Choice::Both, 3);
        assert!(!search.go_on(|_| 3, &mut |_| ()).unwrap());
        assert_eq!(
            search.lacking(|placement| if placement == Placement::Far { 3 } else { 2 }),
            [Placement::Near]
        );
    }

    #[test]
    fn what_was_not_seen_is_said_and_what_was_not_sorted_is_mixed() {
        let search = search(Choice::Both, 3);
        let (rows, not_seen) = search.rows(|placement| u32::from(placement == Placement::Far));
        assert_eq!((rows, not_seen), (vec![Sieve::Of(Placement::Far)], vec![Placement::Near]));
        assert_eq!(search.rows(|_| 0).0, [Sieve::Mixed]);
        let said = search.said(&[Sieve::Mixed], &Placement::BOTH);
        assert!(said[0].starts_with("far: not seen") && said[2].starts_with("mixed:"), "{said:?}");
    }
}
