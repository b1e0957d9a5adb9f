//! What is promised of a figure, and what became of it.

use serde::Serialize;

/// On which side of a bound a figure should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
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
}

/// What is promised of a figure: a ratio, or megabytes for each rank.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Promise {
    /// The side.
    pub side: Side,
    /// The bound.
    pub required: f64,
    /// The bound that we would like to keep.
    pub aim: f64,
}

/// What became of a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As good as we would like it.
    Aim,
    /// As good as it must be.
    Pass,
    /// Not as good.
    Short,
    /// The messages went another way, or it is not known which.
    Unproved,
    /// There is no figure.
    NotMeasured,
}

impl Verdict {
    /// As people read it.
    pub fn text(self) -> &'static str {
        match self {
            Self::Aim => "pass, aim reached",
            Self::Pass => "pass",
            Self::Short => "SHORT",
            Self::Unproved => "unproved",
            Self::NotMeasured => "not measured",
        }
    }
}

/// One promise beside its figure.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What is promised.
    pub what: String,
    /// With which MPI, where it is one's.
    pub mpi: Option<String>,
    /// The promise.
    pub promise: Promise,
    /// The figure that it is about.
    pub measured: Option<f64>,
    /// Where it comes from, or why there is none.
    pub said: String,
    /// What became of it.
    pub verdict: Verdict,
}

/// A bound from above or below, and the one that we would like to keep.
pub const fn at_most(required: f64, aim: f64) -> Promise {
    Promise { side: Side::AtMost, required, aim }
}

/// A bound from above or below, and the one that we would like to keep.
pub const fn at_least(required: f64, aim: f64) -> Promise {
    Promise { side: Side::AtLeast, required, aim }
}

/// A figure that must stay below a bound.
pub const fn below(required: f64, aim: f64) -> Promise {
    Promise { side: Side::Below, required, aim }
}

/// A bound with as many digits as it needs.
fn short(bound: f64) -> String {
    let text = format!("{bound:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl Promise {
    /// Whether a figure keeps a bound.
    pub fn holds(&self, figure: f64, bound: f64) -> bool {
        match self.side {
            Side::AtMost => figure <= bound,
            Side::Under | Side::Below => figure < bound,
            Side::AtLeast => figure >= bound,
        }
    }

    /// What becomes of it with this figure.
    pub fn verdict(&self, figure: f64) -> Verdict {
        if self.holds(figure, self.aim) {
            Verdict::Aim
        } else if self.holds(figure, self.required) {
            Verdict::Pass
        } else {
            Verdict::Short
        }
    }

    /// A bound as people read it.
    pub fn words(&self, bound: f64) -> String {
        match self.side {
            Side::AtMost => format!("<= {}x", short(bound)),
            Side::Under => format!("< {bound} MB"),
            Side::Below => format!("< {bound:.3}"),
            Side::AtLeast => format!(">= {}x", short(bound)),
        }
    }
}

/// The cells of a table of promises, a row of headings first.
pub fn grid(rows: &[Row]) -> Vec<Vec<String>> {
    let head = ["what", "MPI", "measured", "figure", "required", "aim", "verdict"];
    let mut grid = vec![head.map(str::to_owned).to_vec()];
    for row in rows {
        let figure = match (row.measured, row.promise.side) {
            (None, _) => "-".into(),
            (Some(megabytes), Side::Under) => format!("{megabytes:.2} MB"),
            (Some(figure), Side::Below) => format!("{figure:.3}"),
            (Some(ratio), _) => format!("{ratio:.2}x"),
        };
        let said = if row.verdict == Verdict::NotMeasured { String::new() } else { row.said.clone() };
        grid.push(vec![
            row.what.clone(),
            row.mpi.clone().unwrap_or_default(),
            said,
            figure,
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
        "{} rows: {} reach the aim, {} pass, {} fall short, {} are unproved, {} were not measured.\n",
        rows.len(),
        count(Verdict::Aim),
        count(Verdict::Pass),
        count(Verdict::Short),
        count(Verdict::Unproved),
        count(Verdict::NotMeasured)
    );
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

    #[test]
    fn bounds_are_kept_on_their_own_side() {
        assert_eq!(at_most(1.0, 0.85).verdict(0.85), Verdict::Aim);
        assert_eq!(at_most(1.0, 0.85).verdict(1.0), Verdict::Pass);
        assert_eq!(at_most(1.0, 0.85).verdict(1.01), Verdict::Short);
        assert_eq!(at_least(0.5, 1.5).verdict(0.49), Verdict::Short);
        assert_eq!(at_least(0.5, 1.5).verdict(1.6), Verdict::Aim);
        let under = Promise { side: Side::Under, required: 2.0, aim: 1.0 };
        assert_eq!((under.verdict(2.0), under.verdict(1.0)), (Verdict::Short, Verdict::Pass));
    }
}
