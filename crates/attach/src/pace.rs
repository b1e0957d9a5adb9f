//! How often something is done that many are woken for: at once as long as it is seldom, some together where it is not. A ring for a
//! death wakes all that sleep, so a process that attaches and leaves without end, a VM that reports deaths without end, or the
//! end of a job with hundreds of ranks must not lead to as many of them. So it is with rounds that a VM asks for, in which all services
//! look at their processes.
//!
//! And how often a log has a line about a user who is turned away ([`Refusals`]).

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How many go through at once, and after these one in how long.
type Rate = (u32, Duration);

/// Rings for the deaths of a service's own processes.
const OWN: Rate = (16, Duration::from_millis(5));
/// Rings for the deaths that a VM reports, each of which wakes all other systems.
const OF_VM: Rate = (32, Duration::from_millis(25));
/// Rounds of all services that a VM asks for.
const ROUNDS: Rate = (256, Duration::from_millis(10));

/// Looks at a VM's entry in the table of members, for which its agent rings at each of its steps.
const JOINS: Rate = (32, Duration::from_millis(50));

/// Decides each time whether to do it at once.
#[derive(Debug)]
pub struct Pace {
    burst: u32,
    every: Duration,
    /// So many may go through at once, as of `refilled`.
    left: u32,
    refilled: Instant,
    /// Whether one waits to be done.
    waits: bool,
}

impl Pace {
    fn new((burst, every): Rate, now: Instant) -> Self {
        Self { burst, every, left: burst, refilled: now, waits: false }
    }

    /// Of the deaths of a service's own processes.
    pub fn of_own_deaths(now: Instant) -> Self {
        Self::new(OWN, now)
    }

    /// Of the deaths that a VM reports.
    pub fn of_deaths_behind(now: Instant) -> Self {
        Self::new(OF_VM, now)
    }

    /// Of the rounds that a VM asks for.
    pub fn of_rounds(now: Instant) -> Self {
        Self::new(ROUNDS, now)
    }

    /// Of the steps of joining that a VM rings for.
    pub fn of_joins(now: Instant) -> Self {
        Self::new(JOINS, now)
    }

    /// Notes one. Returns whether to do it now; if not, [`Pace::is_due`] will tell.
    pub fn comes(&mut self, now: Instant) -> bool {
        self.waits = true;
        self.is_due(now)
    }

    /// Whether to do now what was noted. Returns true once.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let periods = now.saturating_duration_since(self.refilled).as_nanos() / self.every.as_nanos();
        if periods >= u128::from(self.burst - self.left) {
            (self.left, self.refilled) = (self.burst, now);
        } else if let Ok(periods) = u32::try_from(periods) {
            self.left += periods;
            self.refilled += self.every * periods;
        }
        let due = self.waits && self.left > 0;
        if due {
            self.waits = false;
            self.left -= 1;
        }
        due
    }

    /// How long until [`Pace::is_due`] is to be asked again; never if nothing waits.
    pub fn due_in(&self, now: Instant) -> Option<Duration> {
        self.waits.then(|| (self.refilled + self.every).saturating_duration_since(now))
    }
}

/// Lines about one user who may not come in, in a minute.
pub const OF_STRANGER: u32 = 1;
/// The same of one who may, whose processes do something wrong each time.
pub const OF_USER: u32 = 16;
/// For how long they are counted.
const MINUTE: Duration = Duration::from_secs(60);
/// Users whose refusals are counted by themselves, at most. All further ones count as one.
const MOST_USERS: usize = 1024;
/// The number that no user has.
const FURTHER: u32 = u32::MAX;

/// Decides which refusals a log has a line about: else a user who is not let in could fill it.
#[derive(Debug, Default)]
pub struct Refusals(HashMap<u32, Told>);

#[derive(Debug)]
struct Told {
    since: Instant,
    lines: u32,
    left_out: u64,
}

impl Told {
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= MINUTE
    }
}

impl Refusals {
    /// A user is turned away, of whom a minute may have `most` lines. Gives whether this is one of them; the others are counted.
    pub fn comes(&mut self, user: u32, most: u32, now: Instant) -> bool {
        let is_further = self.0.len() >= MOST_USERS && !self.0.contains_key(&user);
        let told = self.0.entry(if is_further { FURTHER } else { user });
        let told = told.or_insert(Told { since: now, lines: 0, left_out: 0 });
        if told.is_over(now) {
            (told.since, told.lines) = (now, 0);
        }
        let is_told = told.lines < most;
        if is_told {
            told.lines += 1;
        } else {
            told.left_out += 1;
        }
        is_told
    }

    /// Lines about users of whose refusals some were left out, for those whose minute is over.
    pub fn due(&mut self, now: Instant) -> Vec<String> {
        let mut lines = Vec::new();
        self.0.retain(|user, told| {
            let is_over = told.is_over(now);
            if is_over && told.left_out > 0 {
                let who = if *user == FURTHER { "further users".into() } else { format!("user {user}") };
                lines.push(format!("{who}: turned away {} more times within a minute", told.left_out));
            }
            !is_over
        });
        lines
    }

    /// How long until [`Refusals::due`] has something to say; never if nothing was left out.
    pub fn due_in(&self, now: Instant) -> Option<Duration> {
        let left_out = self.0.values().filter(|told| told.left_out > 0);
        left_out.map(|told| (told.since + MINUTE).saturating_duration_since(now)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_who_is_turned_away_without_end_has_one_line_a_minute_and_a_count() {
        let (mut refusals, begun) = (Refusals::default(), Instant::now());
        let at = |ms: u64| begun + Duration::from_millis(ms);
        let told = (0..50_000).filter(|ms| refusals.comes(7, OF_STRANGER, at(*ms))).count();
        assert_eq!(told, 1);
        assert!(refusals.comes(8, OF_USER, at(50_000)), "another");
        assert!(refusals.due(at(59_999)).is_empty());
        assert_eq!(refusals.due_in(at(50_000)), Some(Duration::from_secs(10)));
        assert_eq!(refusals.due(at(60_000)), ["user 7: turned away 49999 more times within a minute"]);
        assert_eq!(refusals.due_in(at(60_000)), None);
        assert!(refusals.comes(7, OF_STRANGER, at(60_001)));
        assert!(refusals.due(at(200_000)).is_empty() && refusals.0.is_empty());
        // A minute that was over before anybody asked.
        assert!(refusals.comes(9, 1, at(200_000)) && !refusals.comes(9, 1, at(200_001)));
        assert!(refusals.comes(9, 1, at(270_000)), "it is another one");
        assert_eq!(refusals.due(at(330_000)), ["user 9: turned away 1 more times within a minute"]);
    }

    #[test]
    fn many_users_take_no_more_memory_and_few_lines() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        let told = (0..100_000).filter(|user| refusals.comes(*user, OF_STRANGER, now)).count();
        assert_eq!((told, refusals.0.len()), (MOST_USERS + 1, MOST_USERS + 1));
        let lines = refusals.due(now + MINUTE);
        assert_eq!(lines, ["further users: turned away 98975 more times within a minute"]);
    }

    #[test]
    fn few_go_through_at_once() {
        for (rate, begun) in [OWN, OF_VM, ROUNDS, JOINS].map(|rate| (rate, Instant::now())) {
            let (burst, every) = rate;
            let mut pace = Pace::new(rate, begun);
            for i in 0..1000 {
                assert!(pace.comes(begun + every * i));
                assert_eq!(pace.due_in(begun + every * i), None);
            }
            let now = begun + every * 2000;
            assert_eq!((0..burst).filter(|_| pace.comes(now)).count(), burst as usize);
        }
    }

    #[test]
    fn many_go_through_together_and_none_is_forgotten() {
        for rate in [OWN, OF_VM, ROUNDS, JOINS] {
            let (burst, every) = rate;
            let begun = Instant::now();
            let mut pace = Pace::new(rate, begun);
            let (mut done, mut now) = (0, begun);
            for _ in 0..10_000 {
                now += Duration::from_micros(100);
                done += u32::from(pace.comes(now));
            }
            // One second: the burst, and one in each period.
            let periods = u32::try_from(Duration::from_secs(1).as_nanos() / every.as_nanos()).unwrap();
            assert!((burst + periods - 10..=burst + periods).contains(&done), "{done}");
            while let Some(wait) = pace.due_in(now) {
                assert!(wait <= every);
                now += wait;
                assert!(pace.is_due(now));
            }
            assert!(!pace.is_due(now + every), "the last was for all");
        }
    }
}
