//! How fast processes increment counters by minitransactions, and under one spin lock that yields after 1,000 spins.
//!
//! `cargo run --release -p isthmus-sync --example counter [SECONDS [PROCESSES...]]`
//!
//! As in section 3.3.3 of the paper, there are as many counters as processes. Without contention each process has its own; at
//! medium contention each goes round all of them; at high contention all use one. `spin` is the lock, one for all counters;
//! `items` are minitransactions that are built anew for each increment, one that reads and one that compares and writes;
//! `word` are the same as `Committer::load` and `Committer::exchange`. The kinds take turns within each round, and the table
//! has the medians over the rounds: increments per microsecond, over all processes; their ratio to the lock's; failed commits
//! per increment; and the spread, the increments of the slowest process by those of the fastest.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_host::{Config, Service};
use isthmus_region::Section;
use isthmus_sync::minitransaction::{Exchange, Minitransaction, Node, Outcome, SegmentId, Shape, Space};

const SEGMENT: SegmentId = SegmentId(1);
/// A line each: the word that starts and stops a run; the spin lock; counters; results.
const GO: u64 = 0;
const LOCK: u64 = 64;
const COUNTERS: u64 = 4096;
const RESULTS: u64 = 8192;
const BYTES: u64 = 16384;
const ROUNDS: u64 = 5;
const KINDS: [&str; 3] = ["spin", "items", "word"];

fn word(section: &Section, offset: u64) -> &isthmus_region::sync::Word {
    section.word("counter", offset).expect("an aligned offset below the section's length")
}

/// What a process does in one run: which counter comes next, and how it is incremented.
struct Run {
    index: u64,
    count: u64,
    contention: u64,
    /// What stands in the word at [`GO`] while it lasts.
    go: u64,
}

impl Run {
    fn counter(&self, i: u64) -> u64 {
        let which = match self.contention {
            0 => self.index,
            1 => (self.index + i) % self.count,
            _ => 0,
        };
        COUNTERS + 64 * which
    }
}

fn spin(section: &Section, run: &Run) -> u64 {
    let (go, lock) = (word(section, GO), word(section, LOCK));
    let mut done = 0;
    while go.get() == run.go {
        let counter = word(section, run.counter(done));
        let mut spins = 0;
        while lock.peek() != 0 || lock.replace(0, 1).is_err() {
            std::hint::spin_loop();
            spins += 1;
            if spins == 1000 {
                spins = 0;
                std::thread::yield_now();
            }
        }
        counter.put(counter.peek() + 1);
        lock.set(0);
        done += 1;
    }
    done
}

fn commit(section: &Section, space: &Space, run: &Run) -> (u64, u64) {
    let go = word(section, GO);
    let mut own = space.committer().expect("a slot");
    let mut t = Minitransaction::new();
    let (mut done, mut failed) = (0, 0);
    while go.get() == run.go {
        let at = run.counter(done);
        t.clear();
        let read = t.read(Node::LOCAL, SEGMENT, at, 8);
        let outcome = own.commit(&mut t).expect("a sound machinery");
        let Some(old) = t.number(read).filter(|_| outcome == Outcome::Committed) else {
            failed += 1;
            continue;
        };
        t.clear();
        t.compare(Node::LOCAL, SEGMENT, at, &old.to_le_bytes());
        t.write(Node::LOCAL, SEGMENT, at, &(old + 1).to_le_bytes());
        match own.commit(&mut t).expect("a sound machinery") {
            Outcome::Committed => done += 1,
            _ => failed += 1,
        }
    }
    (done, failed)
}

/// The same with words that were found once.
fn exchange(section: &Section, space: &Space, run: &Run) -> (u64, u64) {
    let go = word(section, GO);
    let mut own = space.committer().expect("a slot");
    let place = |i| space.place(Node::LOCAL, SEGMENT, run.counter(i)).expect("an aligned offset inside");
    let places: Vec<_> = (0..run.count).map(place).collect();
    let (mut done, mut failed) = (0, 0);
    while go.get() == run.go {
        for place in &places {
            let Some(old) = own.load(place).expect("a sound machinery") else {
                failed += 1;
                continue;
            };
            match own.exchange(place, old, old + 1).expect("a sound machinery") {
                Exchange::Committed => done += 1,
                _ => failed += 1,
            }
        }
    }
    (done, failed)
}

fn child() {
    let get = |name: &str| std::env::var(name).expect("set by the parent");
    let number = |name: &str| get(name).parse::<u64>().expect("a number");
    let member = isthmus_attach::connect_at(&PathBuf::from(get("ISTHMUS_SOCKET"))).expect("a service");
    let part = |at, bytes| member.section().part("counter", at, bytes).expect("inside");
    let section = part(number("COUNTER_AT"), BYTES);
    let shape = Shape::default();
    let space =
        Space::open(&member, &part(number("COUNTER_MACHINERY"), shape.bytes()), shape).expect("a space");
    space.register(Node::LOCAL, SEGMENT, &section).expect("a segment");
    let (index, count) = (number("COUNTER_INDEX"), number("COUNTER_COUNT"));
    println!("ready");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let [kind, contention, go] = line.split(' ').collect::<Vec<_>>().try_into().expect("three words");
        let [contention, go] = [contention, go].map(|n| n.parse().expect("a number"));
        let run = Run { index, count, contention, go };
        while word(&section, GO).get() < go {
            std::thread::yield_now();
        }
        let (done, failed) = match kind {
            "spin" => (spin(&section, &run), 0),
            "word" => exchange(&section, &space, &run),
            _ => commit(&section, &space, &run),
        };
        word(&section, RESULTS + 64 * index).put(done);
        word(&section, RESULTS + 64 * index + 8).put(failed);
        println!("ready");
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[derive(Default)]
struct Rows {
    rate: Vec<f64>,
    failures: Vec<f64>,
    spread: Vec<f64>,
}

fn main() {
    if std::env::var_os("COUNTER_AT").is_some() {
        return child();
    }
    let mut args = std::env::args().skip(1);
    let seconds = args.next().map_or(1.0, |text| text.parse::<f64>().expect("a number"));
    let mut counts: Vec<u64> = args.map(|text| text.parse().expect("a whole number")).collect();
    if counts.is_empty() {
        counts = vec![2, 8];
    }
    let dir = tempfile::tempdir().expect("a directory");
    let config = Config { host_name: "host".into(), ..Config::new(dir.path(), 16 << 20) };
    let service = Service::start(config, Arc::new(|_| ())).expect("a service");
    let member = isthmus_attach::connect_at(service.attach_socket()).expect("a service");
    println!("processes  contention  kind   rate/us   ratio  failures  spread");
    for count in counts {
        let [at, machinery] = [BYTES, Shape::default().bytes()].map(|bytes| {
            let at = member.allocate(bytes, 4096).expect("room");
            member.section().zero("counter", at, bytes).expect("inside");
            at
        });
        let section = member.section().part("counter", at, BYTES).expect("inside");
        let mut children: Vec<(Child, BufReader<ChildStdout>)> = (0..count)
            .map(|index| {
                let mut child = Command::new(std::env::current_exe().expect("a path"))
                    .env("ISTHMUS_SOCKET", service.attach_socket())
                    .env("COUNTER_AT", at.to_string())
                    .env("COUNTER_MACHINERY", machinery.to_string())
                    .env("COUNTER_INDEX", index.to_string())
                    .env("COUNTER_COUNT", count.to_string())
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .spawn()
                    .expect("a process");
                let output = BufReader::new(child.stdout.take().expect("a pipe"));
                (child, output)
            })
            .collect();
        let ready = |children: &mut Vec<(Child, BufReader<ChildStdout>)>| {
            for (_, output) in children {
                let mut line = String::new();
                output.read_line(&mut line).expect("a pipe");
                assert_eq!(line, "ready\n");
            }
        };
        ready(&mut children);
        let mut go = 1;
        for contention in 0..3 {
            let mut rows = [Rows::default(), Rows::default(), Rows::default()];
            for _ in 0..ROUNDS {
                for (kind, rows) in KINDS.into_iter().zip(&mut rows) {
                    let sum =
                        |at| (0..count).map(|i| word(&section, at + 64 * i).get()).collect::<Vec<u64>>();
                    let before: u64 = sum(COUNTERS).iter().sum();
                    for (child, _) in &mut children {
                        writeln!(child.stdin.as_mut().expect("a pipe"), "{kind} {contention} {go}")
                            .expect("a pipe");
                    }
                    std::thread::sleep(Duration::from_millis(20));
                    let begun = Instant::now();
                    word(&section, GO).set(go);
                    std::thread::sleep(Duration::from_secs_f64(seconds));
                    word(&section, GO).set(go + 1);
                    go += 2;
                    let time = begun.elapsed().as_secs_f64() * 1e6;
                    ready(&mut children);
                    let (done, failed) = (sum(RESULTS), sum(RESULTS + 8));
                    let all: u64 = done.iter().sum();
                    assert_eq!(sum(COUNTERS).iter().sum::<u64>() - before, all, "increments were lost");
                    rows.rate.push(all as f64 / time);
                    rows.failures.push(failed.iter().sum::<u64>() as f64 / all as f64);
                    let bounds = (done.iter().min(), done.iter().max());
                    rows.spread.push(*bounds.0.unwrap_or(&0) as f64 / *bounds.1.unwrap_or(&1) as f64);
                }
            }
            let of_spin = median(rows[0].rate.clone());
            let name = ["no", "medium", "high"][contention];
            for (kind, Rows { rate, failures, spread }) in KINDS.into_iter().zip(rows) {
                let (rate, failures, spread) = (median(rate), median(failures), median(spread));
                let ratio = rate / of_spin;
                println!(
                    "{count:9}  {name:10}  {kind:5}  {rate:8.2}  {ratio:6.2}  {failures:8.4}  {spread:6.3}"
                );
            }
        }
        for (mut child, _) in children {
            drop(child.stdin.take());
            let _ = child.wait();
        }
    }
}
