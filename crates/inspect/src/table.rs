//! Tables for people: columns as wide as their widest cell, numbers to the right.

use std::fmt;

/// A table.
#[derive(Debug)]
pub struct Table {
    headings: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings; `<` at the beginning of a heading marks a column of text, and is not printed.
    pub fn new(headings: &[&'static str]) -> Self {
        Self { headings: headings.to_vec(), rows: Vec::new() }
    }

    /// The headings as they are printed.
    #[cfg(test)]
    pub(crate) fn headings(&self) -> impl Iterator<Item = &'static str> {
        self.headings.iter().map(|heading| heading.trim_start_matches('<'))
    }

    /// Adds a row with as many cells as there are headings.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Leaves out a column, by its heading.
    pub fn without(&mut self, name: &str) {
        let Some(at) = self.headings.iter().position(|h| h.trim_start_matches('<') == name) else { return };
        self.headings.remove(at);
        for row in &mut self.rows {
            row.remove(at);
        }
    }

    /// Leaves out columns, in the order of `dispensable`, until lines have at most `most` characters.
    pub fn fit(&mut self, most: usize, dispensable: &[&str]) {
        for name in dispensable {
            if self.widths().iter().map(|width| width + 2).sum::<usize>() <= most + 2 {
                return;
            }
            self.without(name);
        }
    }

    /// Of each column, as wide as its widest cell.
    fn widths(&self) -> Vec<usize> {
        let width = |(column, heading): (usize, &&str)| {
            let cells = self.rows.iter().filter_map(|r| r.get(column)).map(|c| c.chars().count());
            cells.chain([heading.trim_start_matches('<').len()]).max().unwrap_or(0)
        };
        self.headings.iter().enumerate().map(width).collect()
    }

    /// Rows so far.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headings: Vec<String> =
            self.headings.iter().map(|h| h.trim_start_matches('<').to_owned()).collect();
        let widths = self.widths();
        for row in std::iter::once(&headings).chain(&self.rows) {
            let mut line = String::new();
            for ((cell, width), heading) in row.iter().zip(&widths).zip(&self.headings) {
                let pad = " ".repeat(width.saturating_sub(cell.chars().count()));
                let gap = if line.is_empty() { "" } else { "  " };
                let (before, after) =
                    if heading.starts_with('<') { ("", pad.as_str()) } else { (pad.as_str(), "") };
                line = format!("{line}{gap}{before}{cell}{after}");
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// A number in few characters: whole up to five digits, then with a decimal suffix.
pub fn count(value: u64) -> String {
    scaled(value, 100_000, 1000, &["", "k", "M", "G", "T", "P", "E"])
}

/// Bytes in few characters, with a binary suffix.
pub fn bytes(value: u64) -> String {
    scaled(value, 10_240, 1024, &["", "K", "M", "G", "T", "P", "E"])
}

fn scaled(value: u64, plain: u64, base: u64, suffixes: &[&str]) -> String {
    let (mut unit, mut power) = (1_u64, 0);
    while value / unit >= plain.min(base * 10) && power + 1 < suffixes.len() && value >= plain {
        unit = unit.saturating_mul(base);
        power += 1;
    }
    let (whole, rest) = (value / unit, value % unit);
    let suffix = suffixes.get(power).copied().unwrap_or("");
    // One decimal, if it is significant.
    let tenths = if unit > 1 { rest / (unit / 10).max(1) } else { 0 };
    if power > 0 && whole < 100 && tenths > 0 {
        format!("{whole}.{}{suffix}", tenths.min(9))
    } else {
        format!("{whole}{suffix}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["<name", "n"]);
        table.row(vec!["a".into(), "100".into()]);
        table.row(vec!["bcdefg".into(), "7".into()]);
        assert_eq!(table.to_string(), "name      n\na       100\nbcdefg    7\n");
    }

    #[test]
    fn columns_that_matter_least_are_left_out_first() {
        let mut table = Table::new(&["<name", "n", "<state", "more"]);
        table.row(["a", "100", "active", "1"].map(String::from).into());
        table.fit(23, &["state", "more"]);
        assert_eq!(table.to_string().lines().next(), Some("name    n  state   more"));
        table.fit(22, &["none", "state", "more"]);
        assert_eq!(table.to_string(), "name    n  more\na     100     1\n");
    }

    #[test]
    fn numbers_stay_short() {
        for (value, short) in
            [(0, "0"), (99_999, "99999"), (100_000, "100k"), (1_234_567, "1234k"), (12_345_678, "12.3M")]
        {
            assert_eq!(count(value), short);
        }
        for (value, short) in [
            (0, "0"),
            (10_000, "10000"),
            (16_384, "16K"),
            (128 << 20, "128M"),
            (3 << 29, "1536M"),
            (5 << 30, "5120M"),
            (11 << 30, "11G"),
        ] {
            assert_eq!(bytes(value), short);
        }
        assert!(count(u64::MAX).len() < 7 && bytes(u64::MAX).len() < 7);
    }
}
