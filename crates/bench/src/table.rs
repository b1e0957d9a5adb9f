//! The table for people, made from records alone.

use std::fmt::Write;

use crate::record::Record;
use crate::stats::median;

/// A value with as many digits as mean something, and its unit.
pub fn amount(value: f64, metric: &str) -> (String, &'static str) {
    let unit = match metric.rsplit('_').next() {
        Some("us") => "us",
        Some("MBps") => "MB/s",
        Some("Mps") => "M/s",
        Some("MB") => "MB",
        Some("pct") => "%",
        Some("s") if metric.ends_with("_per_s") => "/s",
        Some("s") => "s",
        _ => "",
    };
    let far = value.abs();
    let digits = if far >= 100.0 {
        0
    } else if far >= 10.0 {
        1
    } else if far >= 1.0 {
        2
    } else {
        3
    };
    (format!("{value:.digits$}"), unit)
}

/// A size as people say it.
pub fn size(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 20 && b % (1 << 20) == 0 => format!("{} MB", b >> 20),
        b if b >= 1 << 10 && b % (1 << 10) == 0 => format!("{} KB", b >> 10),
        b => format!("{b} B"),
    }
}

/// How the processors of a record were placed, and its line: `far 0.258`.
pub fn line(record: &Record) -> String {
    let placement = record.placement.as_deref().unwrap_or_default();
    let line = record.line_us.map_or_else(String::new, |line| format!(" {line:.3}"));
    format!("{placement}{line}").trim().to_owned()
}

/// A ratio in words: `312x lower`, `1.05x higher`, and the interval of its factor where there is one: `(1.02 to 1.08)`.
fn in_words(record: &Record) -> Option<String> {
    let ratio = record.ratio?;
    let is_lower = ratio < 1.0;
    let factor = |ratio: f64| if is_lower { 1.0 / ratio } else { ratio };
    let digits = |factor: f64| if factor >= 10.0 { 0 } else { 2 };
    let mut text =
        format!("{:.*}x {}", digits(factor(ratio)), factor(ratio), if is_lower { "lower" } else { "higher" });
    if let (Some(low), Some(high)) = (record.low, record.high) {
        let (low, high) = if is_lower { (factor(high), factor(low)) } else { (low, high) };
        let _ = write!(text, " ({low:.*} to {high:.*})", digits(low), digits(high));
    }
    Some(text)
}

fn benchmark(name: &str) -> &str {
    match name {
        "bandwidth" => "bandwidth, ping-pong",
        "bandwidth_windowed" => "bandwidth, windowed",
        "bandwidth_untouched" => "bandwidth, ping-pong, untouched",
        "bandwidth_windowed_untouched" => "bandwidth, windowed, untouched",
        "barrier_multiple" => "barrier, MPI_THREAD_MULTIPLE",
        "allreduce_multiple" => "allreduce, MPI_THREAD_MULTIPLE",
        "rate" => "message rate",
        "overhead" => "time in the MPI's calls, ranks at work",
        "pool_cpu" => "its processor time, both sides",
        "both_ways_cpu" => "its processor time, both ways",
        "replacement" => "pool of more than may be granted",
        kernels if kernels.ends_with("_large_messages") => "its messages over 64 KiB",
        kernels if kernels.ends_with("_large_bytes") => "their share of its bytes",
        kernels if kernels.ends_with("_sent") => "what it sends",
        name => name,
    }
}

/// Of a record, what its row shows.
fn label(name: &str, depth: Option<u32>) -> String {
    match (name, depth) {
        ("posted" | "unexpected", Some(count)) => format!("latency, {} {name}", thousands(count)),
        _ => benchmark(name).to_owned(),
    }
}

/// A count with its thousands apart.
pub fn thousands(count: u32) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Of a peer's several ways only the best has a column, under the peer's name; all are in the JSON.
fn has_column(record: &&Record) -> bool {
    crate::subject::family(&record.subject) == record.subject
}

/// One row a benchmark and size, one column a subject with the way its bytes went, then the ratios.
pub fn render(records: &[Record]) -> String {
    columns(&grid(records))
}

/// What makes a row: benchmark, bytes, metric, depth, placement.
type Key<'a> = (&'a str, Option<u64>, &'a str, Option<u32>, Option<&'a str>);

fn key(record: &Record) -> Key<'_> {
    (&record.benchmark, record.bytes, &record.metric, record.depth, record.placement.as_deref())
}

/// The cells of that table, a row of headings first.
pub fn grid(records: &[Record]) -> Vec<Vec<String>> {
    let mut subjects: Vec<&str> = Vec::new();
    let mut rows: Vec<Key<'_>> = Vec::new();
    for record in records.iter().filter(has_column) {
        if !subjects.contains(&record.subject.as_str()) {
            subjects.push(&record.subject);
        }
        let row = key(record);
        if !rows.contains(&row) {
            rows.push(row);
        }
    }
    let compared: Vec<(&str, &str)> = records.iter().fold(Vec::new(), |mut pairs, record| {
        if let Some(peer) = &record.peer {
            let pair = (record.subject.as_str(), peer.as_str());
            if !pairs.contains(&pair) {
                pairs.push(pair);
            }
        }
        pairs
    });

    let mut grid: Vec<Vec<String>> = Vec::new();
    let mut head = vec![String::new(), String::new(), "line".to_owned()];
    head.extend(subjects.iter().map(|subject| (*subject).to_owned()));
    head.extend(compared.iter().map(|(subject, peer)| format!("{subject} : {peer}")));
    grid.push(head);
    for row in &rows {
        let of_row = |record: &&Record| key(record) == *row;
        let line = records.iter().find(of_row).map(line).unwrap_or_default();
        let what =
            if row.0 == "startup" { row.2.trim_end_matches("_s").to_owned() } else { label(row.0, row.3) };
        let mut cells = vec![what, row.1.filter(|bytes| *bytes > 0).map(size).unwrap_or_default(), line];
        for subject in &subjects {
            let record = records.iter().filter(of_row).find(|record| record.subject == *subject);
            cells.push(record.map_or_else(
                || "-".into(),
                |record| {
                    let (value, unit) = amount(record.value, &record.metric);
                    match &record.path {
                        Some(path) => format!("{value} {unit} ({path})"),
                        None if record.bytes.is_some() => format!("{value} {unit} (unproved)"),
                        None => format!("{value} {unit}"),
                    }
                },
            ));
        }
        for (subject, peer) in &compared {
            let record = records
                .iter()
                .filter(of_row)
                .find(|record| record.subject == *subject && record.peer.as_deref() == Some(*peer));
            cells.push(record.and_then(in_words).unwrap_or_default());
        }
        grid.push(cells);
    }
    grid
}

/// Rows of as many cells as the first one has, in columns: words to the left, figures to the right.
pub fn columns(grid: &[Vec<String>]) -> String {
    let columns = grid.first().map_or(0, Vec::len);
    let widths: Vec<usize> = (0..columns)
        .map(|column| grid.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in grid {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            let _ =
                if column == 0 { write!(line, "{cell:<width$}") } else { write!(line, "   {cell:>width$}") };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// The bare line of each subject whose ranks share one, in a sentence; nothing if none does. Beside it stands how many
/// lines the shortest message takes, from the same processes at nearly the same time.
pub fn lines(records: &[Record]) -> Option<String> {
    let mut lines: Vec<(&str, Vec<f64>)> = Vec::new();
    for record in records.iter().filter(has_column) {
        let Some(line) = record.line_us else { continue };
        match lines.iter_mut().find(|(subject, _)| *subject == record.subject) {
            Some((_, known)) => known.push(line),
            None => lines.push((&record.subject, vec![line])),
        }
    }
    let said: Vec<String> = lines
        .iter()
        .filter_map(|(subject, lines)| {
            let line = amount(median(lines)?, "line_us").0;
            let shortest = records
                .iter()
                .filter(|record| record.subject == *subject && record.metric == "latency_us")
                .filter_map(|record| Some((record.bytes?, record.value / record.line_us?)))
                .min_by_key(|(bytes, _)| *bytes);
            Some(match shortest {
                Some((bytes, times)) => {
                    format!("{subject} {line} us ({} takes {times:.1} of them)", size(bytes))
                }
                None => format!("{subject} {line} us"),
            })
        })
        .collect();
    let said = (!said.is_empty()).then(|| said.join(", "))?;
    Some(format!(
        "Half a round of one bare cache line, timed between the blocks in the same processes, or on their processors: {said}."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(
        subject: &str,
        peer: Option<&str>,
        ratio: Option<f64>,
        value: f64,
        path: Option<&str>,
    ) -> Record {
        Record {
            benchmark: "latency".into(),
            subject: subject.into(),
            peer: peer.map(Into::into),
            ratio,
            path: path.map(Into::into),
            bytes: Some(8),
            metric: "latency_us".into(),
            value,
            accel: "tcg".into(),
            vms: 2,
            ranks: 2,
            ..Record::default()
        }
    }

    #[test]
    fn ratios_have_their_intervals_and_rows_their_placement() {
        let far = Record {
            low: Some(0.25),
            high: Some(0.5),
            placement: Some("far".into()),
            line_us: Some(0.2584),
            ..record("isthmus", Some("tcp"), Some(0.4), 2.0, Some("region"))
        };
        let near = Record { placement: Some("near".into()), ..far.clone() };
        let text = render(&[far, near]);
        assert_eq!(text.matches("2.50x lower (2.00 to 4.00)").count(), 2, "{text}");
        assert!(text.contains("far 0.258") && text.contains("near 0.258"), "{text}");
    }

    #[test]
    fn a_row_shows_subjects_their_paths_and_ratios() {
        let records = [
            record("isthmus", Some("tcp"), Some(1.0 / 312.0), 2.19, Some("region")),
            record("isthmus", Some("ompi-sm"), Some(1.05), 2.19, Some("region")),
            record("tcp", None, None, 680.4, Some("tcp")),
            record("ompi-sm", None, None, 2.04, None),
        ];
        let text = render(&records);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        for cell in
            ["2.19 us (region)", "680 us (tcp)", "2.04 us (unproved)", "312x lower", "1.05x higher", "8 B"]
        {
            assert!(lines[1].contains(cell), "{cell} is missing in {text}");
        }
        assert_eq!(
            lines[0].find("isthmus : tcp").map(|at| at + 13),
            lines[1].find("312x lower").map(|at| at + 10)
        );
    }

    #[test]
    fn rows_with_other_numbers_that_wait_are_other_rows() {
        let waiting = |benchmark: &str, depth| Record {
            benchmark: benchmark.into(),
            depth: Some(depth),
            ..record("isthmus", None, None, 2.0, Some("region"))
        };
        let text = render(&[waiting("posted", 10), waiting("posted", 10_000), waiting("unexpected", 10)]);
        let rows: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(rows.len(), 3, "{text}");
        assert!(rows[1].starts_with("latency, 10,000 posted "), "{text}");
    }

    #[test]
    fn lines_are_named_once_a_subject() {
        let line = |subject, line_us| Record { line_us, ..record(subject, None, None, 1.0, Some("region")) };
        let records = [line("isthmus", Some(0.05)), line("tcp", None), line("isthmus", Some(0.07))];
        let said = lines(&records).unwrap();
        assert!(said.ends_with(": isthmus 0.060 us (8 B takes 20.0 of them)."), "{said}");
        assert_eq!(lines(&records[1..2]), None);
    }

    #[test]
    fn figures_keep_three_digits() {
        assert_eq!(amount(0.0654, "latency_us"), ("0.065".into(), "us"));
        assert_eq!(amount(12411.6, "bandwidth_MBps"), ("12412".into(), "MB/s"));
        assert_eq!(
            (size(1 << 20), size(65536), size(1000)),
            ("1 MB".into(), "64 KB".into(), "1000 B".into())
        );
    }
}
