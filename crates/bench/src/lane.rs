//! `bench lane`: the transport's own latency and bandwidth beside a bare cache line, without any MPI.
//!
//! Two processes attach to one region, find each other in its endpoint tables, and take turns. In each round
//! they time, one right after the other, a bare ping-pong over two lines of the region (one written by each side) and
//! the endpoint's messages. Ratios are formed within a round, since the host moves processors about between them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use isthmus_region::counters::Counter;
use isthmus_region::life::State;
use isthmus_region::local::LocalBuf;
use isthmus_region::mapping::LineRef;
use isthmus_region::member::Member;
use isthmus_transport::types::NoMemory;
use isthmus_transport::{
    Address, Config, Endpoint, Op, PeerId, PostError, Posted, Receive, Selector, Send, Short, ShortReceived,
    ShortSink, Status, Ticket,
};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::job::{Launch, accel_in, statistics};
use crate::placement::{self, Placement, Policy, Scale, Search, Sieve};
use crate::record::Record;
use crate::stats;

/// What a rank prints for one block of one repetition, as a line of JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Block {
    /// `latency` (half a round), `bandwidth` (windowed, one way).
    pub benchmark: String,
    /// Bytes of a message.
    pub bytes: u64,
    /// Microseconds, or megabytes (10^6 bytes) a second.
    pub value: f64,
    /// Half a round of the bare line, timed just before and after, in microseconds.
    pub line_us: [f64; 2],
    /// Payload bytes of the block's messages, both ways.
    pub payload_bytes: u64,
    /// Payload bytes that this process's counters saw leave and come through the region.
    pub region_bytes: u64,
    /// Processor time of this process for one message, in microseconds.
    pub cpu_us_per_op: f64,
}

/// Message sizes of the latency blocks.
const LATENCY_BYTES: [usize; 6] = [0, 8, 64, 1024, 8192, 65536];
/// Message sizes of the bandwidth blocks.
const BANDWIDTH_BYTES: [usize; 3] = [8192, 65536, 1 << 20];
/// Messages in flight in the bandwidth blocks.
const WINDOW: usize = 8;
/// How long to wait for the other process.
const PATIENCE: Duration = Duration::from_secs(60);

/// First argument that makes our program one of the two processes.
pub const RANK_COMMAND: &str = "lane-rank";
/// How long all of it may take: emulated guests on a busy machine are slow.
const LIMIT: Duration = Duration::from_secs(900);

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// VMs, 0 or 2.
    pub vms: u32,
    /// The MPI whose launcher starts the processes.
    pub mpi: Option<String>,
    /// How many rounds of which placement; a launch is a round.
    pub policy: Policy,
    /// Fewer sizes and rounds.
    pub quick: bool,
    /// Accelerator.
    pub accel: Option<String>,
}

/// Repetitions of one launch. Those of one launch have much in common (where its memory is, what else ran just then), so each round
/// has a launch of its own: an interval takes the rounds for independent.
const REPS: u32 = 1;

/// What was measured.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// The measurements.
    pub records: Vec<Record>,
    /// Placements that were looked for and not seen, and what else must be known of them.
    pub placed: Vec<String>,
    /// Why there are fewer rounds than there should be.
    pub cut: Option<String>,
}

type Blocks = BTreeMap<(String, u64), Vec<Block>>;

/// Runs both processes, telling `progress` what is going on, and makes records of what they print.
///
/// # Errors
/// When they cannot be started, or do not do their part.
pub fn run(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Result<Done> {
    let load = stats::load();
    let mut search = Search::new(plan.policy, 2, plan.vms);
    let scale = search.scale;
    let mut blocks = Blocks::new();
    let mut accel = "native".to_owned();
    let (mut launches, mut cut) = (0, None);
    while search.go_on(|placement| least(&blocks, &scale, placement), progress)? {
        let launched = launch(plan, &search).and_then(|(output, made_by)| Ok((parse(&output)?, made_by)));
        let (of_launch, made_by) = match launched {
            Ok(launched) => launched,
            Err(error) => {
                let why = error.after(launches)?;
                progress(&why);
                cut = Some(why);
                break;
            }
        };
        launches += 1;
        for (key, more) in of_launch {
            blocks.entry(key).or_default().extend(more);
        }
        accel = made_by;
        progress(&format!("rounds: {}", search.counts(|placement| least(&blocks, &scale, placement))));
    }
    let (sieves, not_seen) = search.rows(|placement| least(&blocks, &scale, placement));
    let mut done = Done { records: Vec::new(), placed: search.said(&sieves, &not_seen), cut };
    for sieve in sieves {
        for ((benchmark, bytes), blocks) in &blocks {
            let taken: Vec<&Block> =
                blocks.iter().filter(|block| sieve.takes(&scale, Some(block.line_us))).collect();
            if taken.is_empty() {
                continue;
            }
            let record = record(&taken, (benchmark, *bytes), sieve);
            done.records.push(Record { accel: accel.clone(), vms: plan.vms, load, ..record });
        }
    }
    Ok(done)
}

/// How many rounds all blocks have of a placement.
fn least(blocks: &Blocks, scale: &Scale, placement: Placement) -> u32 {
    let sieve = Sieve::Of(placement);
    let counts = blocks
        .values()
        .map(|blocks| blocks.iter().filter(|block| sieve.takes(scale, Some(block.line_us))).count());
    u32::try_from(counts.min().unwrap_or(0)).unwrap_or(u32::MAX)
}

/// The record of one block's repetitions.
fn record(blocks: &[&Block], (benchmark, bytes): (&str, u64), sieve: Sieve) -> Record {
    let values: Vec<f64> = blocks.iter().map(|b| b.value).collect();
    let lines: Vec<[f64; 2]> = blocks.iter().map(|b| b.line_us).collect();
    let cpu: Vec<f64> = blocks.iter().map(|b| b.cpu_us_per_op).collect();
    let is_latency = benchmark == "latency";
    // All payload was seen to go through the region, or nothing is said about the way. An empty message has none.
    let through = bytes > 0 && blocks.iter().all(|b| b.region_bytes >= b.payload_bytes);
    let record = Record {
        benchmark: benchmark.into(),
        subject: "isthmus".into(),
        placement: Some(sieve.name().into()),
        path: through.then(|| "region".into()),
        bytes: Some(bytes),
        depth: (!is_latency).then_some(u32::try_from(WINDOW).unwrap_or(u32::MAX)),
        metric: if is_latency { "latency_us" } else { "bandwidth_MBps" }.into(),
        cpu_us_per_op: stats::median(&cpu),
        ranks: 2,
        ..Record::default()
    };
    let record = record.with_values(&values).with_lines(&lines);
    if !is_latency {
        return record;
    }
    let ratios: Vec<f64> =
        values.iter().zip(&lines).map(|(value, line)| value / ((line[0] + line[1]) / 2.0)).collect();
    record.with_ratios("pingpong", &ratios)
}

/// One launch: what the first process printed, and the accelerator.
fn launch(plan: &Plan, search: &Search) -> Result<(String, String)> {
    let exe = std::env::current_exe().map_err(Error::io("find this program"))?;
    let folder = tempfile::tempdir().map_err(Error::io("make a temporary folder"))?;
    let counters = folder.path().join("stats.json");
    let mut args: Vec<std::ffi::OsString> = vec!["run".into(), "--vms".into(), plan.vms.to_string().into()];
    args.extend(["-n".into(), "2".into(), "--stats".into(), counters.clone().into()]);
    if plan.vms > 0 {
        args.extend(["--cpus".into(), "1".into(), "--pin".into()]);
    }
    if let Some(mpi) = &plan.mpi {
        args.extend(["--mpi".into(), mpi.into()]);
    }
    if let Some(accel) = &plan.accel {
        args.extend(["--accel".into(), accel.into()]);
    }
    args.extend(["--".into(), exe.clone().into(), RANK_COMMAND.into(), REPS.to_string().into()]);
    args.push(if plan.quick { "quick" } else { "full" }.into());
    if let Some(pair) = search.pair_text().filter(|_| plan.vms == 0) {
        args.push(pair.into());
    }
    let launch = Launch { program: exe, args, env: Vec::new() };
    let output = launch.run("isthmus", LIMIT)?;
    // What the accelerator really was, the run itself says.
    Ok((output, accel_in(statistics(&counters).as_ref(), plan.vms)))
}

/// The whole of one of the two processes; gives its exit status.
pub fn rank_command(args: &[std::ffi::OsString]) -> i32 {
    let reps = args.first().and_then(|a| a.to_str()).and_then(|a| a.parse().ok()).unwrap_or(1);
    let quick = args.get(1).is_some_and(|a| a == "quick");
    let pair = args.get(2).and_then(|a| a.to_str()).and_then(|a| {
        let (first, second) = a.split_once(',')?;
        Some((first.parse().ok()?, second.parse().ok()?))
    });
    match rank_main(reps, quick, pair) {
        Ok(()) => 0,
        Err(error) => {
            isthmus_region::tell!("isthmus: {}", error.chain());
            1
        }
    }
}

struct Pair {
    endpoint: Endpoint,
    other: PeerId,
    first: bool,
    mine: LineRef,
    theirs: LineRef<isthmus_region::ReadOnly>,
    turn: u64,
    pause: bool,
}

/// One of the two processes. The first one prints its blocks.
///
/// # Errors
/// When no service is there, or the other process does not come.
pub fn rank_main(reps: u32, quick: bool, on: Option<(usize, usize)>) -> Result<()> {
    let failed = |what: &str| {
        let what = what.to_owned();
        move |e: &dyn std::fmt::Display| Error::Lane { what: format!("{what}: {e}") }
    };
    let member = isthmus_attach::shared().map_err(|e| failed("attach")(&e))?;
    let mut endpoint =
        Endpoint::open(&member, Config::default(), Box::new(NoMemory)).map_err(|e| failed("open")(&e))?;
    let mine = endpoint.address();
    let theirs = find_other(&member, mine)?;
    let slot = |address: Address| (member.region().find(address.system), address.number);
    let first = slot(mine) < slot(theirs);
    pin(first, on);
    let other = endpoint.resolve(&theirs).map_err(|e| failed("resolve")(&e))?;
    let at = member.take(64).map_err(|e| failed("take a line")(&e))?;
    member.section().zero("line", at, 64).map_err(|e| failed("take a line")(&e))?;
    let line = member.section().line("line", at).map_err(|e| failed("take a line")(&e))?;

    // Tell the other where the line is.
    let mut place = Vec::from(u64::from(member.peer()).to_le_bytes());
    place.extend(at.to_le_bytes());
    let sent = LocalBuf::leaked(place);
    let got = LocalBuf::leaked(vec![0; 16]);
    post(&mut endpoint, got)?;
    send(&mut endpoint, other, sent)?;
    received(&mut endpoint, 1)?;
    let bytes = got.to_vec();
    let word = |i: usize| u64::from_le_bytes(bytes[i..i + 8].try_into().unwrap_or_default());
    let peer = u32::try_from(word(0)).unwrap_or(u32::MAX);
    let (_, directory) = member.directory(peer).map_err(|e| failed("find the other's section")(&e))?;
    let far = directory.section().line("line", word(8)).map_err(|e| failed("find the other's line")(&e))?;

    let mut pair = Pair { endpoint, other, first, mine: line, theirs: far, turn: 0, pause: false };
    // The better hint for this machine: `pause` is dear under emulation, and cheap for a neighbour on real cores.
    let rounds = if quick { 2_000 } else { 20_000 };
    let without = pair.line(rounds);
    pair.pause = true;
    let with = pair.line(rounds);
    // Both must take the same hint; the first one's opinion counts.
    pair.pause = pair.agree(with < without)?;

    let sizes: &[usize] = if quick { &[8, 1024] } else { &LATENCY_BYTES };
    for _ in 0..reps {
        for bytes in sizes {
            let count = if *bytes > 4096 { rounds / 10 } else { rounds };
            let before = pair.line(rounds);
            let mut block = pair.latency(&member, *bytes, count)?;
            block.line_us = [before, pair.line(rounds)];
            if first {
                print(&block)?;
            }
        }
        for bytes in BANDWIDTH_BYTES {
            let before = pair.line(rounds);
            let total = if quick { 16 << 20 } else { 128 << 20 };
            let mut block = pair.bandwidth(&member, bytes, total / bytes)?;
            block.line_us = [before, pair.line(rounds)];
            if first {
                print(&block)?;
            }
        }
    }
    pair.endpoint.close(isthmus_transport::CLOSE_PATIENCE);
    Ok(())
}

fn print(block: &Block) -> Result<()> {
    let text = serde_json::to_string(block)
        .map_err(|e| Error::Io { what: "turn a block into JSON".into(), source: e.into() })?;
    println!("{text}");
    Ok(())
}

/// Waits for the one other endpoint of the region.
fn find_other(member: &Member, mine: Address) -> Result<Address> {
    let start = Instant::now();
    loop {
        for peer in member.region().peers() {
            if peer.life.state != State::Active {
                continue;
            }
            let Ok((_, directory)) = member.directory(peer.index) else { continue };
            for (number, info) in directory.endpoints() {
                let found = Address { system: peer.system, number, birth: info.birth };
                if found != mine {
                    return Ok(found);
                }
            }
        }
        if start.elapsed() > PATIENCE {
            return Err(Error::Lane { what: "the other process did not come within a minute".into() });
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Pins the two processes apart, where there are two processors.
fn pin(first: bool, on: Option<(usize, usize)>) {
    let here = placement::processors();
    let pair = on.or_else(|| here.first().copied().zip(here.get(1).copied()));
    if let Some((a, b)) = pair {
        placement::pin(if first { a } else { b });
    }
}

fn any() -> Selector {
    Selector { tagged: true, from: None, tag: 1, ignore: 0 }
}

/// Takes short messages that were received at once.
struct Count(usize);

impl ShortSink for Count {
    #[inline]
    fn take(&mut self, _: &ShortReceived, _: &Address) {
        self.0 += 1;
    }
}

fn post(endpoint: &mut Endpoint, buf: LocalBuf) -> Result<()> {
    if endpoint.receive_at_once(any(), buf, Ticket::default()) {
        return Ok(());
    }
    let bufs = [buf];
    let receive = Receive { select: any(), bufs: &bufs, multi: None, ticket: Ticket::default() };
    endpoint.receive(&receive).map_err(|e| Error::Lane { what: format!("post a receive: {e}") })
}

/// Sends, making progress while there is no room. Gives whether a completion follows.
fn send(endpoint: &mut Endpoint, to: PeerId, buf: LocalBuf) -> Result<bool> {
    if endpoint.send_at_once(to, true, 1, None, buf, usize::MAX) {
        return Ok(false);
    }
    let bufs = [buf];
    let message = Send {
        to,
        tagged: true,
        tag: 1,
        data: None,
        bufs: &bufs,
        inject: false,
        delivered: false,
        ticket: Ticket::default(),
    };
    loop {
        match endpoint.send(&message) {
            Ok(posted) => return Ok(posted == Posted::Pending),
            Err(PostError::Again) => {
                endpoint.progress();
            }
            Err(e) => return Err(Error::Lane { what: format!("send: {e}") }),
        }
    }
}

/// Polls that wait for a moment, as those of the provider's first reads do.
const MOMENTS: u32 = 2;

/// Makes progress until `count` receives have completed; sends that complete meanwhile are counted.
fn received(endpoint: &mut Endpoint, count: usize) -> Result<usize> {
    let (mut left, mut sent) = (count, 0);
    let mut moments = MOMENTS;
    while left > 0 {
        // As the provider does: the short way as far as it goes, waiting for a moment at first.
        let mut short = Count(0);
        let wait = moments > 0;
        moments = moments.saturating_sub(1);
        match endpoint.poll_short(left, wait, &mut short) {
            Short::Nothing => continue,
            Short::Received => {
                left -= short.0;
                moments = MOMENTS;
                continue;
            }
            Short::Other => {}
        }
        endpoint.progress();
        while let Some(completion) = endpoint.pop() {
            if completion.status != Status::Ok {
                return Err(Error::Lane { what: format!("the other process: {:?}", completion.status) });
            }
            match completion.op {
                Op::Receive { .. } => left -= 1,
                _ => sent += 1,
            }
        }
    }
    Ok(sent)
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

impl Pair {
    /// Half a round of the bare line, in microseconds.
    fn line(&mut self, rounds: u32) -> f64 {
        let start = Instant::now();
        for _ in 0..rounds {
            self.turn += 1;
            if self.first {
                self.mine.words[0].set(self.turn);
            }
            while self.theirs.words[0].get() != self.turn {
                if self.pause {
                    std::hint::spin_loop();
                }
            }
            if !self.first {
                self.mine.words[0].set(self.turn);
            }
        }
        start.elapsed().as_secs_f64() * 1e6 / f64::from(rounds) / 2.0
    }

    /// The first one's opinion, known to both.
    fn agree(&mut self, opinion: bool) -> Result<bool> {
        let buf = LocalBuf::leaked(vec![u8::from(opinion)]);
        if self.first {
            send(&mut self.endpoint, self.other, buf)?;
            return Ok(opinion);
        }
        post(&mut self.endpoint, buf)?;
        received(&mut self.endpoint, 1)?;
        Ok(buf.to_vec() == [1])
    }

    fn block(
        &mut self,
        member: &Member,
        benchmark: &str,
        bytes: usize,
        messages: u32,
        run: impl FnOnce(&mut Self) -> Result<f64>,
    ) -> Result<Block> {
        let count = |pair: &mut Self| {
            // The endpoint settles its counts with the process's now and then; idle progress makes it do so.
            for _ in 0..600 {
                pair.endpoint.progress();
            }
            let counters = member.counters().read();
            counters.get(Counter::TxBytes).wrapping_add(counters.get(Counter::RxBytes))
        };
        let before = count(self);
        let cpu = cpu_time();
        let value = run(self)?;
        let spent = (cpu_time() - cpu).as_secs_f64() * 1e6 / f64::from(messages.max(1));
        let region_bytes = count(self).wrapping_sub(before);
        Ok(Block {
            benchmark: benchmark.into(),
            bytes: bytes as u64,
            value,
            line_us: [0.0; 2],
            payload_bytes: u64::from(messages) * bytes as u64,
            region_bytes,
            cpu_us_per_op: spent,
        })
    }

    /// Ping-pong of `bytes`: half a round in microseconds.
    fn latency(&mut self, member: &Member, bytes: usize, rounds: u32) -> Result<Block> {
        let (out, into) = (LocalBuf::leaked(vec![7; bytes]), LocalBuf::leaked(vec![0; bytes]));
        self.block(member, "latency", bytes, rounds * 2, |pair| {
            let start = Instant::now();
            for _ in 0..rounds {
                post(&mut pair.endpoint, into)?;
                let mut pending = 0;
                if pair.first {
                    pending += usize::from(send(&mut pair.endpoint, pair.other, out)?);
                }
                let mut done = received(&mut pair.endpoint, 1)?;
                if !pair.first {
                    pending += usize::from(send(&mut pair.endpoint, pair.other, out)?);
                }
                pair.finish(pending, &mut done)?;
            }
            Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(rounds) / 2.0)
        })
    }

    fn finish(&mut self, pending: usize, done: &mut usize) -> Result<()> {
        while *done < pending {
            self.endpoint.progress();
            while let Some(completion) = self.endpoint.pop() {
                if completion.status != Status::Ok {
                    return Err(Error::Lane { what: format!("a send: {:?}", completion.status) });
                }
                *done += 1;
            }
        }
        Ok(())
    }

    /// One way, `WINDOW` in flight, an answer for each window: megabytes a second.
    fn bandwidth(&mut self, member: &Member, bytes: usize, messages: usize) -> Result<Block> {
        let windows = (messages / WINDOW).max(1);
        let bufs: Vec<LocalBuf> = (0..WINDOW).map(|_| LocalBuf::leaked(vec![5; bytes])).collect();
        let token = LocalBuf::leaked(vec![0; 1]);
        let count = u32::try_from(windows * WINDOW).unwrap_or(u32::MAX);
        self.block(member, "bandwidth", bytes, count, |pair| {
            let start = Instant::now();
            for _ in 0..windows {
                if pair.first {
                    post(&mut pair.endpoint, token)?;
                    let mut pending = 0;
                    for buf in &bufs {
                        pending += usize::from(send(&mut pair.endpoint, pair.other, *buf)?);
                    }
                    let mut done = received(&mut pair.endpoint, 1)?;
                    pair.finish(pending, &mut done)?;
                } else {
                    for buf in &bufs {
                        post(&mut pair.endpoint, *buf)?;
                    }
                    received(&mut pair.endpoint, WINDOW)?;
                    send(&mut pair.endpoint, pair.other, token)?;
                }
            }
            #[allow(clippy::cast_precision_loss)] // a few hundred megabytes
            Ok((windows * WINDOW * bytes) as f64 / start.elapsed().as_secs_f64() / 1e6)
        })
    }
}

/// The blocks that a rank printed, by benchmark and size, in the order of their repetitions.
///
/// # Errors
/// [`Error::Lane`] for a line that is no block.
pub fn parse(output: &str) -> Result<BTreeMap<(String, u64), Vec<Block>>> {
    let mut blocks = Blocks::new();
    for line in output.lines().filter(|l| l.starts_with('{')) {
        let block: Block =
            serde_json::from_str(line).map_err(|e| Error::Lane { what: format!("unreadable block: {e}") })?;
        blocks.entry((block.benchmark.clone(), block.bytes)).or_default().push(block);
    }
    Ok(blocks)
}
