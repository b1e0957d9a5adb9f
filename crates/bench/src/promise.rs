//! What is promised of a figure, and what became of it.

use serde::{Deserialize, Serialize};

use crate::placement::{Placement, Sieve};
use crate::record::Record;
use crate::stats::Interval;

/// On which side of a bound a figure should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// This or less.
    AtMost,
    /// Less.
    Under,
    /// Less, of a figure that is no ratio and has no unit.
    Below,
    /// This or more.
    AtLeast,
    /// This or less, of a figure in microseconds.
    Within,
}

/// What is promised of a figure: a ratio, or megabytes for each rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Promise {
    /// The side.
    pub side: Side,
    /// The bound.
    pub required: f64,
    /// The bound that we would like to keep.
    pub aim: f64,
}

/// What became of a promise.
///
/// A figure *holds* a bound where all of its interval is on the bound's good side, and is *short* of it where all of the interval is
/// beyond; otherwise, or where there were too few rounds to say or they were not sorted by placement, nothing is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Holds what we aim at.
    Aim,
    /// Holds what is required.
    Holds,
    /// The interval has the bound in it, or there were too few rounds, or they were not sorted by placement.
    Undecided,
    /// Wholly beyond what is required.
    Short,
    /// Stands beside a row that is judged: its processors share a core.
    Beside,
    /// The messages went another way, or it is not known which.
    Unproved,
    /// The machine's processors were never placed so.
    NotSeen,
    /// There is no figure.
    NotMeasured,
}

impl Verdict {
    /// As people read it.
    pub fn text(self) -> &'static str {
        match self {
            Self::Aim => "holds, aim reached",
            Self::Holds => "holds",
            Self::Undecided => "undecided",
            Self::Short => "SHORT",
            Self::Beside => "",
            Self::Unproved => "unproved",
            Self::NotSeen => "not seen",
            Self::NotMeasured => "not measured",
        }
    }
}

/// Rounds without which nothing is decided.
pub const ROUNDS: u32 = 21;
/// The same with VMs, which take long to boot.
pub const ROUNDS_VMS: u32 = 7;

/// A figure with what it takes to judge it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// The median.
    pub value: f64,
    /// Where it lies; none where a single count is the figure, which is judged as it is.
    pub interval: Option<Interval>,
    /// Of how many rounds.
    pub rounds: u32,
    /// How many there must be.
    pub needed: u32,
}

impl Figure {
    /// A count that is the same each time.
    pub const fn exact(value: f64) -> Self {
        Self { value, interval: None, rounds: 1, needed: 1 }
    }

    /// What a record says of its ratio, or of its value where it has no peer.
    pub fn of(record: &Record) -> Self {
        let interval = record.low.zip(record.high).map(|(low, high)| Interval { low, high });
        let needed = if record.vms == 0 { ROUNDS } else { ROUNDS_VMS };
        Self { value: record.ratio.unwrap_or(record.value), interval, rounds: record.rounds, needed }
    }
}

/// One promise beside its figure.
#[derive(Clone, Debug)]
pub struct Row {
    /// What is promised.
    pub what: String,
    /// With which MPI, where it is one's.
    pub mpi: Option<String>,
    /// How the processors were placed, where that is told apart.
    pub placement: Option<String>,
    /// The promise.
    pub promise: Promise,
    /// The figure that it is about.
    pub figure: Option<Figure>,
    /// Where it comes from, or why there is none.
    pub said: String,
    /// What became of it.
    pub verdict: Verdict,
}

/// The same in a record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// What is promised.
    pub what: String,
    /// On which side of the bounds the figure should be.
    pub side: Side,
    /// What is required.
    pub required: f64,
    /// What we aim at.
    pub aim: f64,
    /// What became of it.
    pub verdict: Verdict,
    /// Both figures as people read them, or why there is none.
    pub said: String,
}

impl Row {
    /// A row without a figure.
    pub fn missing(what: &str, mpi: Option<&str>, promise: Promise, why: &str) -> Self {
        Self {
            what: what.into(),
            mpi: mpi.map(Into::into),
            placement: None,
            promise,
            figure: None,
            said: why.into(),
            verdict: Verdict::NotMeasured,
        }
    }

    /// What a record of it has.
    pub fn judged(&self) -> Judged {
        let Promise { side, required, aim } = self.promise;
        Judged {
            what: self.what.clone(),
            side,
            required,
            aim,
            verdict: self.verdict,
            said: self.said.clone(),
        }
    }
}

/// A bound from above or below, and the one that we would like to keep.
pub const fn at_most(required: f64, aim: f64) -> Promise {
    Promise { side: Side::AtMost, required, aim }
}

/// A bound from above or below, and the one that we would like to keep.
pub const fn at_least(required: f64, aim: f64) -> Promise {
    Promise { side: Side::AtLeast, required, aim }
}

/// A time that may be so many microseconds.
pub const fn within(required: f64, aim: f64) -> Promise {
    Promise { side: Side::Within, required, aim }
}

/// A figure that must stay below a bound.
pub const fn below(required: f64, aim: f64) -> Promise {
    Promise { side: Side::Below, required, aim }
}

/// A bound with as many digits as it needs.
fn short(bound: f64) -> String {
    let text = if bound < 0.1 { format!("{bound:.3}") } else { format!("{bound:.2}") };
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl Promise {
    /// Whether a figure keeps a bound.
    pub fn holds(&self, figure: f64, bound: f64) -> bool {
        match self.side {
            Side::AtMost | Side::Within => figure <= bound,
            Side::Under | Side::Below => figure < bound,
            Side::AtLeast => figure >= bound,
        }
    }

    /// What becomes of it with this figure.
    pub fn verdict(&self, figure: &Figure) -> Verdict {
        if figure.rounds < figure.needed {
            return Verdict::Undecided;
        }
        let Interval { low, high } =
            figure.interval.unwrap_or(Interval { low: figure.value, high: figure.value });
        let (worst, best) = if self.side == Side::AtLeast { (low, high) } else { (high, low) };
        if self.holds(worst, self.aim) {
            Verdict::Aim
        } else if self.holds(worst, self.required) {
            Verdict::Holds
        } else if self.holds(best, self.required) {
            Verdict::Undecided
        } else {
            Verdict::Short
        }
    }

    /// What becomes of it with a figure of rounds that were sorted so: promises are about processors that are far apart, and what
    /// was not sorted is of those and of others.
    pub fn judge(&self, figure: &Figure, sieve: Sieve) -> Verdict {
        match sieve {
            Sieve::Of(Placement::Near) => Verdict::Beside,
            Sieve::Mixed | Sieve::Any => Verdict::Undecided,
            Sieve::Of(Placement::Far) => self.verdict(figure),
        }
    }

    /// A bound as people read it.
    pub fn words(&self, bound: f64) -> String {
        match self.side {
            Side::AtMost => format!("<= {}x", short(bound)),
            Side::Under => format!("< {bound} MB"),
            Side::Below => format!("< {bound:.3}"),
            Side::Within => format!("<= {bound} us"),
            Side::AtLeast => format!(">= {}x", short(bound)),
        }
    }
}

/// The cells of a table of promises, a row of headings first.
pub fn grid(rows: &[Row]) -> Vec<Vec<String>> {
    let head =
        ["what", "MPI", "line", "measured", "figure", "95 % of it", "rounds", "required", "aim", "verdict"];
    let mut grid = vec![head.map(str::to_owned).to_vec()];
    for row in rows {
        let side = row.promise.side;
        let show = |figure: f64| match side {
            Side::Under => format!("{figure:.2} MB"),
            Side::Below => format!("{figure:.3}"),
            Side::Within => format!("{figure:.0} us"),
            // As many digits as such a bound has.
            Side::AtMost if figure < 0.1 => format!("{figure:.3}x"),
            Side::AtMost | Side::AtLeast => format!("{figure:.2}x"),
        };
        let interval = row.figure.and_then(|figure| figure.interval);
        let has_none = matches!(row.verdict, Verdict::NotMeasured | Verdict::NotSeen);
        let rounds = row.figure.map_or_else(String::new, |figure| match row.verdict {
            Verdict::Undecided if figure.rounds < figure.needed => {
                format!("{} of {}", figure.rounds, figure.needed)
            }
            _ => figure.rounds.to_string(),
        });
        grid.push(vec![
            row.what.clone(),
            row.mpi.clone().unwrap_or_default(),
            row.placement.clone().unwrap_or_default(),
            if has_none { String::new() } else { row.said.clone() },
            row.figure.map_or_else(|| "-".into(), |figure| show(figure.value)),
            interval.map_or_else(String::new, |it| {
                format!(
                    "{} to {}",
                    show(it.low).trim_end_matches(" MB").trim_end_matches(" us").trim_end_matches('x'),
                    show(it.high)
                )
            }),
            rounds,
            row.promise.words(row.promise.required),
            row.promise.words(row.promise.aim),
            row.verdict.text().into(),
        ]);
    }
    grid
}

/// The same without a column for MPIs.
pub fn short_grid(rows: &[Row]) -> Vec<Vec<String>> {
    let mut grid = grid(rows);
    grid.iter_mut().for_each(|row| drop(row.remove(1)));
    grid
}

/// What is said below it: how many rows came to what, and why some have no figure.
pub fn summary(rows: &[Row]) -> String {
    let count = |verdict| rows.iter().filter(|row| row.verdict == verdict).count();
    let mut text = format!(
        "{} rows: {} reach the aim, {} hold, {} are undecided, {} fall short, {} stand beside, {} are unproved, {} were not \
         seen, {} were not measured.\n",
        rows.len(),
        count(Verdict::Aim),
        count(Verdict::Holds),
        count(Verdict::Undecided),
        count(Verdict::Short),
        count(Verdict::Beside),
        count(Verdict::Unproved),
        count(Verdict::NotSeen),
        count(Verdict::NotMeasured)
    );
    if rows.iter().any(|row| row.figure.is_some_and(|figure| figure.interval.is_some())) {
        text.push_str(&format!(
            "holds, SHORT: the 95 % interval of the median lies wholly on the good side of what is required, wholly beyond it; \
             undecided: the bound is in it, or there were fewer than {ROUNDS} rounds ({ROUNDS_VMS} with VMs).\n"
        ));
    }
    if rows.iter().any(|row| row.verdict == Verdict::Beside) {
        text.push_str(
            "Promises are about far processors; near ones, which share a core or a cache, stand beside.\n",
        );
    }
    // One launch serves several rows, and its failure is told once.
    let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
    for row in rows.iter().filter(|row| row.verdict == Verdict::NotMeasured) {
        let name = row.what.clone() + &row.mpi.as_deref().map(|mpi| format!(", {mpi}")).unwrap_or_default();
        match reasons.iter_mut().find(|(said, _)| *said == row.said) {
            Some((_, names)) => names.push(name),
            None => reasons.push((&row.said, vec![name])),
        }
    }
    for (said, names) in reasons {
        text.push_str(&format!("not measured: {}: {said}\n", names.join("; ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{interval, median};

    fn of(values: &[f64], needed: u32) -> Figure {
        Figure {
            value: median(values).unwrap(),
            interval: interval(values),
            rounds: u32::try_from(values.len()).unwrap(),
            needed,
        }
    }

    #[test]
    fn what_was_not_sorted_decides_nothing() {
        let interval = Some(Interval { low: 0.1, high: 0.2 });
        let figure = Figure { value: 0.15, interval, rounds: 21, needed: 21 };
        let of = |sieve| at_most(1.0, 0.5).judge(&figure, sieve);
        assert_eq!(of(Sieve::Of(Placement::Far)), Verdict::Aim);
        assert_eq!(of(Sieve::Of(Placement::Near)), Verdict::Beside);
        assert_eq!((of(Sieve::Any), of(Sieve::Mixed)), (Verdict::Undecided, Verdict::Undecided));
    }

    #[test]
    fn a_count_is_judged_as_it_is() {
        let verdict = |promise: Promise, figure| promise.verdict(&Figure::exact(figure));
        assert_eq!(verdict(at_most(1.0, 0.85), 0.85), Verdict::Aim);
        assert_eq!(verdict(at_most(1.0, 0.85), 1.0), Verdict::Holds);
        assert_eq!(verdict(at_most(1.0, 0.85), 1.01), Verdict::Short);
        assert_eq!(verdict(at_least(0.5, 1.5), 0.49), Verdict::Short);
        assert_eq!(verdict(at_least(0.5, 1.5), 1.6), Verdict::Aim);
        assert_eq!(verdict(within(3000.0, 1000.0), 999.0), Verdict::Aim);
        assert_eq!(
            (verdict(within(3.0, 1.0), 3.0), verdict(within(3.0, 1.0), 3.1)),
            (Verdict::Holds, Verdict::Short)
        );
        assert_eq!(within(3000.0, 1000.0).words(3000.0), "<= 3000 us");
        assert_eq!(at_most(1.0 / 20.0, 1.0 / 56.0).words(1.0 / 56.0), "<= 0.018x");
        let under = Promise { side: Side::Under, required: 2.0, aim: 1.0 };
        assert_eq!((verdict(under, 2.0), verdict(under, 1.0)), (Verdict::Short, Verdict::Holds));
    }

    #[test]
    fn a_median_of_seven_that_straddles_the_bar_is_not_short() {
        // The median is beyond 1.0, three of seven rounds are not: the next seven may say otherwise.
        let seven = [0.93, 0.96, 0.99, 1.02, 1.05, 1.08, 1.12];
        let bar = at_most(1.0, 0.8);
        assert!(of(&seven, 7).value > 1.0);
        assert_eq!(bar.verdict(&of(&seven, 7)), Verdict::Undecided);
        // Nor does its mirror hold.
        let mirror = seven.map(|ratio| 2.0 - ratio);
        assert!(of(&mirror, 7).value < 1.0);
        assert_eq!(bar.verdict(&of(&mirror, 7)), Verdict::Undecided);
    }

    #[test]
    fn what_is_wholly_on_one_side_is_decided_from_both_sides() {
        let beyond: Vec<f64> = (0..21).map(|i| 1.1 + f64::from(i) / 100.0).collect();
        assert_eq!(at_most(1.0, 0.8).verdict(&of(&beyond, 21)), Verdict::Short);
        assert_eq!(at_most(1.5, 1.4).verdict(&of(&beyond, 21)), Verdict::Aim);
        assert_eq!(at_least(1.0, 1.2).verdict(&of(&beyond, 21)), Verdict::Holds);
        assert_eq!(at_least(1.5, 2.0).verdict(&of(&beyond, 21)), Verdict::Short);
        // A few stray rounds do not undo it.
        let mut stray = beyond.clone();
        stray[..3].fill(0.5);
        assert_eq!(at_most(1.0, 0.8).verdict(&of(&stray, 21)), Verdict::Short);
    }

    #[test]
    fn too_few_rounds_decide_nothing() {
        assert_eq!(at_most(1.0, 0.8).verdict(&of(&[3.0; 20], 21)), Verdict::Undecided);
        assert_eq!(at_most(1.0, 0.8).verdict(&of(&[3.0; 21], 21)), Verdict::Short);
    }
}
