//! `isthmus top`: what goes through a region per second, again and again.
//!
//! On a terminal the table is drawn on the alternate screen, and the terminal is restored however the program ends (by a
//! key, a signal, the end of the service, an error). Elsewhere each table is printed below the one before.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{IsTerminal, Read, Write as _};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use isthmus_region::counters::{Counter, LaneCounter, LaneTotals, Totals};
use isthmus_region::life::State;
use isthmus_region::print::to_stdout;
use isthmus_region::text::cut;
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTERM, SIGTSTP, SIGWINCH};

use crate::error::{Error, Result};
use crate::model::{Endpoint, Lane, Member, Process, SHOWN, SHOWN_OF_LANES, Survey, state_name};
use crate::ps;
use crate::table::{Table, bytes, count};
use crate::target::Target;

/// Rows and columns, if the terminal does not say.
const USUAL: (usize, usize) = (24, 80);

/// Columns that a narrow screen leaves out; those that change least first.
const DISPENSABLE: [&str; 8] = ["of", "memory", "granted", "kind", "state", "wakeups", "sleeps", "stalls"];

/// Most lanes that are shown.
const MOST_LANES: usize = 20;

/// What to do.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Between two tables.
    pub interval: Duration,
    /// Tables until the end; none for no end.
    pub count: Option<u64>,
}

enum Event {
    Signal(i32),
    Key(u8),
}

/// Shows tables until it is told to end, or the service has ended; returns why, if it ended unasked.
///
/// # Errors
/// [`Error::System`]; what [`Target::survey`] says.
pub fn run(target: &Target, options: Options) -> Result<Option<&'static str>> {
    let (send, events) = channel();
    watch_signals(send.clone())?;
    if !std::io::stdout().is_terminal() {
        return follow(target, options, &events, None, &mut |text| {
            to_stdout(&format!("{text}\n"));
            true
        });
    }
    let screen = Screen::enter()?;
    if screen.saved.is_some() {
        std::thread::spawn(move || {
            let mut key = [0];
            while std::io::stdin().read(&mut key).is_ok_and(|n| n == 1)
                && send.send(Event::Key(key[0])).is_ok()
            {}
        });
    }
    follow(target, options, &events, Some(&screen), &mut |text| print(&drawn(text, size())))
}

fn watch_signals(send: Sender<Event>) -> Result<()> {
    let wanted = [SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGCONT, SIGWINCH];
    let mut signals = signal_hook::iterator::Signals::new(wanted)
        .map_err(|source| Error::System { action: "watch signals", source })?;
    std::thread::spawn(move || {
        for signal in signals.forever() {
            if send.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// Prints `text`; false if standard output has no reader any more.
fn print(text: &str) -> bool {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_ok()
}

fn follow(
    target: &Target,
    options: Options,
    events: &Receiver<Event>,
    screen: Option<&Screen>,
    show: &mut dyn FnMut(&str) -> bool,
) -> Result<Option<&'static str>> {
    let mut before = Sample::take(target)?;
    let mut shown = 0;
    loop {
        let next = before.at + options.interval;
        match wait(events, next, screen) {
            Wake::End => return Ok(None),
            Wake::Redraw | Wake::Time => {}
        }
        let now = Sample::take(target)?;
        let ended = !target.is_served() || now.survey.region.service != State::Active;
        if !show(&text(target, &before, &now, screen.map(|_| size().1))) {
            return Ok(None);
        }
        before = now;
        shown += 1;
        if options.count.is_some_and(|most| shown >= most) {
            return Ok(None);
        }
        if ended {
            return Ok(Some("the service of this region has ended"));
        }
    }
}

enum Wake {
    Time,
    Redraw,
    End,
}

fn wait(events: &Receiver<Event>, until: Instant, screen: Option<&Screen>) -> Wake {
    loop {
        match events.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Err(RecvTimeoutError::Timeout) => return Wake::Time,
            Err(RecvTimeoutError::Disconnected) => return Wake::End,
            Ok(Event::Key(b'q' | b'Q' | 3 | 4)) | Ok(Event::Signal(SIGINT | SIGTERM | SIGHUP)) => {
                return Wake::End;
            }
            Ok(Event::Signal(SIGTSTP)) => {
                screen.inspect(|screen| screen.leave());
                let _ =
                    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP);
                screen.inspect(|screen| screen.draw_again());
                return Wake::Redraw;
            }
            // Also after a stop that this process was not told of: the shell has set its own modes since.
            Ok(Event::Signal(SIGCONT)) => {
                screen.inspect(|screen| screen.quiet());
                return Wake::Redraw;
            }
            Ok(Event::Key(b' ') | Event::Signal(SIGWINCH)) => return Wake::Redraw,
            Ok(_) => {}
        }
    }
}

/// The counters of one survey, and its time.
struct Sample {
    at: Instant,
    survey: Survey,
    note: String,
}

impl Sample {
    fn take(target: &Target) -> Result<Self> {
        let (survey, faults) = target.survey()?;
        Ok(Self { at: Instant::now(), survey, note: ps::note(&faults) })
    }

    /// Counters of lanes.
    fn lanes(&self) -> HashMap<LaneKey, LaneTotals> {
        self.survey.lanes().map(|(_, e, l)| (lane_key(e, l), l.counters)).collect()
    }

    /// Counters by member and life, and by process.
    fn counters(&self) -> HashMap<Key, Totals> {
        let mut all = HashMap::new();
        for m in &self.survey.members {
            all.insert((m.index, m.incarnation, None), m.counters);
            all.extend(m.processes.iter().map(|p| (key_of(m, p), p.counters)));
        }
        all
    }
}

/// A member's number and life, and of its processes each one's area and life.
type Key = (u32, u64, Option<(u32, u64)>);

fn key_of(member: &Member, process: &Process) -> Key {
    (member.index, member.incarnation, Some((process.area, process.incarnation)))
}

/// The sender's number and life, and the receiver's.
type LaneKey = (u32, u64, u32, u64);

fn lane_key(from: &Endpoint, lane: &Lane) -> LaneKey {
    (from.slot, from.incarnation, lane.to, lane.to_incarnation)
}

/// What was counted per second.
struct Rates {
    cells: Vec<String>,
    traffic: u64,
}

fn rates(before: Option<&Totals>, now: &Totals, seconds: f64) -> Rates {
    let zero = Totals::default();
    let before = before.unwrap_or(&zero);
    let per_second = |counter: Counter| rate(before.get(counter), now.get(counter), seconds);
    let cells = SHOWN.iter().map(|(counter, heading)| cell(heading, per_second(*counter)));
    Rates {
        cells: cells.collect(),
        traffic: per_second(Counter::TxMessages) + per_second(Counter::RxMessages),
    }
}

fn rates_of_lane(before: Option<&LaneTotals>, now: &LaneTotals, seconds: f64) -> Rates {
    let zero = LaneTotals::default();
    let before = before.unwrap_or(&zero);
    let per_second = |counter: LaneCounter| rate(before.get(counter), now.get(counter), seconds);
    let cells = SHOWN_OF_LANES.iter().map(|(counter, heading)| cell(heading, per_second(*counter)));
    Rates {
        cells: cells.collect(),
        traffic: per_second(LaneCounter::Messages) + per_second(LaneCounter::Rma),
    }
}

fn cell(heading: &str, value: u64) -> String {
    if heading == "bytes" { bytes(value) } else { count(value) }
}

/// A survey may miss counters that are being moved from a process to its member: the difference is then taken as 0.
fn rate(before: u64, now: u64, seconds: f64) -> u64 {
    rounded(now.saturating_sub(before) as f64 / seconds)
}

/// A rate as a whole number; the conversion from floating point saturates.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn rounded(value: f64) -> u64 {
    value.round() as u64
}

/// `columns` are those of the screen, if there is one.
fn text(target: &Target, before: &Sample, now: &Sample, columns: Option<usize>) -> String {
    let columns = columns.unwrap_or(usize::MAX - 2);
    let seconds = now.at.duration_since(before.at).as_secs_f64().max(0.001);
    let earlier = before.counters();
    let region = &now.survey.region;
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{}", target.headline());
    let service = if target.is_served() { state_name(region.service) } else { "killed" };
    let _ = writeln!(
        out,
        "region {}, {}, service {service}; per second, over {seconds:.1} s\n",
        region.uuid,
        bytes(region.bytes)
    );
    let mut members =
        Table::new(&ps::headings(&["<member", "<kind", "<state", "processes", "memory", "of", "granted"]));
    let mut processes: Vec<(u64, Vec<String>)> = Vec::new();
    for m in &now.survey.members {
        let key = (m.index, m.incarnation, None);
        let cells = [
            m.name.clone(),
            m.kind.to_owned(),
            state_name(m.state).to_owned(),
            m.processes.len().to_string(),
            bytes(m.heap_used),
            bytes(m.heap_bytes),
            ps::granted(m, m.pages_granted),
        ];
        members.row(cells.into_iter().chain(rates(earlier.get(&key), &m.counters, seconds).cells).collect());
        for p in &m.processes {
            let rates = rates(earlier.get(&key_of(m, p)), &p.counters, seconds);
            let program = if p.program.is_empty() { "-" } else { cut(&p.program, 15) }.to_owned();
            let cells = [m.name.clone(), p.pid.to_string(), program, ps::granted(m, p.pages_granted)];
            processes.push((rates.traffic, cells.into_iter().chain(rates.cells).collect()));
        }
    }
    ps::only_pooled(&now.survey, &mut members);
    members.fit(columns, &DISPENSABLE);
    let _ = writeln!(out, "{members}");
    let (mut table, _) =
        busiest(&ps::headings(&["<member", "process", "<program", "granted"]), processes, usize::MAX);
    ps::only_pooled(&now.survey, &mut table);
    if table.is_empty() {
        let _ = writeln!(out, "no process is attached");
    } else {
        table.fit(columns, &DISPENSABLE);
        let _ = write!(out, "{table}");
    }
    let (mut lanes, more) = lanes(before, now, seconds);
    if !lanes.is_empty() {
        lanes.fit(columns, &DISPENSABLE);
        let _ = write!(out, "\n{lanes}");
    }
    if more > 0 {
        let _ = writeln!(out, "{more} more lanes with less traffic");
    }
    out + &now.note
}

/// The lanes with most traffic, and how many more there are.
fn lanes(before: &Sample, now: &Sample, seconds: f64) -> (Table, usize) {
    let (earlier, names) = (before.lanes(), now.survey.names());
    let row = |(m, e, lane): (&Member, &Endpoint, &Lane)| {
        let rates = rates_of_lane(earlier.get(&lane_key(e, lane)), &lane.counters, seconds);
        let cells = [
            m.name_of(e),
            lane.name_of_receiver(&names),
            count(lane.slots_unread),
            ps::state_of(lane).to_owned(),
        ];
        (rates.traffic, cells.into_iter().chain(rates.cells).collect())
    };
    let headings = ps::headings_of_lanes(&["<from", "<to", "unread", "<state"]);
    busiest(&headings, now.survey.lanes().map(row).collect(), MOST_LANES)
}

/// A table of the `most` rows with most traffic, which come first, and how many more there are. The sort is stable, so that
/// rows with equal traffic keep their places.
fn busiest(headings: &[&'static str], mut rows: Vec<(u64, Vec<String>)>, most: usize) -> (Table, usize) {
    rows.sort_by_key(|(traffic, _)| std::cmp::Reverse(*traffic));
    let more = rows.len().saturating_sub(most);
    let mut table = Table::new(headings);
    rows.into_iter().take(most).for_each(|(_, cells)| table.row(cells));
    (table, more)
}

const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// A text that is drawn over the one before: from the top, each line cut and cleared to its end, then the rest cleared.
fn drawn(text: &str, (rows, columns): (usize, usize)) -> String {
    let mut out = String::from("\x1b[H");
    let lines: Vec<&str> = text.lines().collect();
    let room = rows.max(2) - 1;
    let cut = lines.len() > room;
    for line in lines.iter().take(if cut { room - 1 } else { room }) {
        out.extend(line.chars().take(columns));
        out.push_str("\x1b[K\r\n");
    }
    if cut {
        let _ = write!(out, "… {} more lines\x1b[K\r\n", lines.len() - (room - 1));
    }
    out.push_str("\x1b[J");
    out
}

fn size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(std::io::stdout()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => (size.ws_row.into(), size.ws_col.into()),
        _ => USUAL,
    }
}

/// The terminal while tables are drawn on it.
struct Screen {
    saved: Option<Termios>,
}

impl Screen {
    fn enter() -> Result<Self> {
        let screen = Self { saved: rustix::termios::tcgetattr(std::io::stdin()).ok() };
        screen.set_quiet().map_err(|e| Error::System { action: "set the terminal", source: e.into() })?;
        print(ENTER);
        Ok(screen)
    }

    /// Has keys read at once and not echoed; those that make signals still do.
    fn set_quiet(&self) -> rustix::io::Result<()> {
        let Some(mut quiet) = self.saved.clone() else { return Ok(()) };
        quiet.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        quiet.special_codes[SpecialCodeIndex::VMIN] = 1;
        quiet.special_codes[SpecialCodeIndex::VTIME] = 0;
        rustix::termios::tcsetattr(std::io::stdin(), OptionalActions::Now, &quiet)
    }

    /// The same, where nothing can be done about an error. In the background it stops until the foreground is this process's.
    fn quiet(&self) {
        let _ = self.set_quiet();
    }

    /// After [`Screen::leave`].
    fn draw_again(&self) {
        // First: in the background this stops, and nothing is drawn.
        self.quiet();
        print(ENTER);
    }

    /// Gives the terminal back as it was.
    fn leave(&self) {
        print(LEAVE);
        if let Some(saved) = &self.saved {
            let _ = rustix::termios::tcsetattr(std::io::stdin(), OptionalActions::Now, saved);
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isthmus_region::counters::WORDS;

    #[test]
    fn rates_are_of_the_time_between_and_never_negative() {
        let totals = |sent| {
            let mut words = [0; WORDS];
            words[Counter::TxMessages as usize] = sent;
            Totals::from_words(words)
        };
        assert_eq!(rates(Some(&totals(100)), &totals(300), 2.0).cells[0], "100");
        assert_eq!(rates(Some(&totals(300)), &totals(100), 2.0).cells[0], "0");
        assert_eq!(rates(None, &totals(10), 0.5).cells[0], "20");
    }

    #[test]
    fn the_drawn_table_fits_the_screen() {
        let text = (0..50).map(|i| format!("line {i} {}", "x".repeat(100))).collect::<Vec<_>>().join("\n");
        let drawn = drawn(&text, (10, 20));
        let lines: Vec<&str> = drawn.split("\r\n").collect();
        assert_eq!(lines.len(), 10);
        assert!(lines[8].contains("42 more lines") && lines[0].len() <= 3 + 20 + 3);
    }
}
