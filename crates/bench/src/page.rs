//! `--report`: one HTML file with everything in it, curves, tables, the machine and the command lines. It loads nothing,
//! and runs nothing.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::chart;
use crate::error::{Error, Result};
use crate::mpi::Comparison;
use crate::peers;
use crate::record::{self, Record};
use crate::table;

const STYLE: &str = "body{font:15px/1.45 sans-serif;max-width:1300px;margin:2em auto;padding:0 1em;color:#222}\
h1{font-size:1.6em}h2{font-size:1.25em;margin-top:2em}table{border-collapse:collapse;margin:1em 0}\
td,th{border-bottom:1px solid #ddd;padding:.25em .7em;text-align:right}td:first-child,th:first-child{text-align:left}\
th{background:#f4f4f4}pre{background:#f6f6f6;padding:.8em;white-space:pre-wrap;overflow-wrap:anywhere}\
.charts{display:flex;flex-wrap:wrap;gap:1em}svg{max-width:100%;height:auto;border:1px solid #eee}";

/// The page, as it grows.
#[derive(Debug)]
pub struct Page {
    body: String,
}

impl Page {
    /// A page that begins with the machine and the command line.
    pub fn new(title: &str) -> Self {
        let mut page = Self { body: String::new() };
        let command: Vec<String> = std::env::args().collect();
        page.line(&format!("<h1>{}</h1>", escaped(title)));
        page.rows(&facts());
        page.line(&format!("<pre>{}</pre>", escaped(&command.join(" "))));
        page.line(
            "<p>All subjects were measured in turn, round by round. The way of each figure, in brackets, is what counters \
             prove: <i>region</i> is the memory that isthmus shares, <i>region+cma</i> messages that are \
             announced there and copied by the kernel, <i>shm</i> the MPI's own shared memory, <i>cma</i> the \
             same with the kernel copying, <i>tcp</i> a network interface. Ratios are medians over rounds and not quotients \
             of the columns; in brackets behind them where these medians lie, with 95 % (fewer than 6 rounds: the least and the greatest). <i>near</i> and <i>far</i> are rounds \
             on processors that share a core or a cache and on such that do not, as a bare cache line tells (its time stands beside). Both axes of the curves are logarithmic.</p>",
        );
        page
    }

    /// Adds a comparison: its curves if it has any, its table, and how each subject was launched.
    ///
    /// # Errors
    /// [`Error::Chart`].
    pub fn comparison(&mut self, done: &Comparison) -> Result<()> {
        let Some(first) = done.records.first() else { return Ok(()) };
        let place = match first.vms {
            0 => "as plain processes".to_owned(),
            vms => format!("in {vms} VMs ({})", first.accel),
        };
        let mpi = first.mpi.as_deref().unwrap_or("MPI");
        self.line(&format!("<h2>{}, {} ranks {}</h2>", escaped(mpi), first.ranks, escaped(&place)));
        let load = first.load.map_or_else(|| "unknown".into(), |load| format!("{load:.2}"));
        self.line(&format!("<p>Medians of {} rounds; the machine's load before: {load}.</p>", first.rounds));
        for placement in record::placements(&done.records).into_iter().flatten() {
            if placement != "any" {
                self.line(&format!("<h3>{}</h3>", escaped(&placement)));
            }
            self.charts(&record::placed(&done.records, Some(&placement)))?;
        }
        self.table(&table::grid(&done.records));
        for said in &done.placed {
            self.line(&format!("<p>{}</p>", escaped(said)));
        }
        for what in &done.left_out {
            self.line(&format!("<p>Left out: {}</p>", escaped(what)));
        }
        let lines: Vec<String> = done.lines.iter().map(|(name, line)| format!("{name}: {line}")).collect();
        self.line(&format!("<pre>{}</pre>", escaped(&lines.join("\n\n"))));
        Ok(())
    }

    /// Adds the table of promises.
    pub fn promises(&mut self, peers: &peers::Table) {
        self.line("<h2>What is promised, and what was measured</h2>");
        self.table(&peers.grid());
        self.line(&format!("<pre>{}</pre>", escaped(peers.summary().trim_end())));
    }

    fn charts(&mut self, records: &[Record]) -> Result<()> {
        let mut drawn = String::new();
        for (benchmark, title, metric) in [
            ("latency", "Latency (half a ping-pong)", "latency_us"),
            ("bandwidth_windowed", "Bandwidth (8 messages in flight)", "bandwidth_MBps"),
        ] {
            let curves = chart::curves(records, benchmark);
            if curves.iter().any(|curve| curve.points.len() > 1) {
                drawn.push_str(&chart::draw(title, &curves, metric)?);
            }
        }
        if !drawn.is_empty() {
            self.line(&format!("<div class=\"charts\">{drawn}</div>"));
        }
        Ok(())
    }

    fn table(&mut self, grid: &[Vec<String>]) {
        let mut text = String::from("<table>\n");
        for (at, row) in grid.iter().enumerate() {
            let cell = if at == 0 { "th" } else { "td" };
            let cells: String =
                row.iter().map(|text| format!("<{cell}>{}</{cell}>", escaped(text))).collect();
            // Writing to a string does not fail.
            let _ = writeln!(text, "<tr>{cells}</tr>");
        }
        text.push_str("</table>");
        self.line(&text);
    }

    fn rows(&mut self, facts: &[(&str, String)]) {
        let rows: String = facts
            .iter()
            .map(|(name, value)| format!("<tr><td>{}</td><td>{}</td></tr>\n", escaped(name), escaped(value)))
            .collect();
        self.line(&format!("<table>\n{rows}</table>"));
    }

    fn line(&mut self, text: &str) {
        self.body.push_str(text);
        self.body.push('\n');
    }

    /// The whole file.
    fn text(&self) -> String {
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>isthmus bench</title>\n\
             <style>{STYLE}</style>\n<body>\n{}</body>\n</html>\n",
            self.body
        )
    }

    /// Writes it.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, path: &Path) -> Result<()> {
        isthmus_region::room::write(path, self.text()).map_err(Error::io(format!("write {}", path.display())))
    }
}

/// What the figures depend on.
fn facts() -> Vec<(&'static str, String)> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let after = |text: &str, key: &str| {
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let unknown = || "unknown".to_owned();
    let uname = rustix::system::uname();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    vec![
        ("date", utc(now)),
        ("isthmus", env!("CARGO_PKG_VERSION").into()),
        ("processor", after(&read("/proc/cpuinfo"), "model name").unwrap_or_else(unknown)),
        ("processors", crate::subject::processors().to_string()),
        ("memory", after(&read("/proc/meminfo"), "MemTotal").unwrap_or_else(unknown)),
        (
            "system",
            format!(
                "{} {} {}",
                uname.sysname().to_string_lossy(),
                uname.release().to_string_lossy(),
                uname.machine().to_string_lossy()
            ),
        ),
        ("load", read("/proc/loadavg").trim().into()),
    ]
}

/// Seconds since 1970 as a date and time. The calendar of Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms".
pub(crate) fn utc(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let (year, month) =
        (year + era * 400 + u64::from(month >= 10), if month < 10 { month + 3 } else { month - 9 });
    format!("{year}-{month:02}-{of_month:02} {:02}:{:02} UTC", second / 3600, second % 3600 / 60)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(subject: &str, bytes: u64, value: f64, path: &str) -> Record {
        Record {
            benchmark: "latency".into(),
            subject: subject.into(),
            placement: Some("any".into()),
            mpi: Some("MPI <1>".into()),
            path: Some(path.into()),
            bytes: Some(bytes),
            metric: "latency_us".into(),
            value,
            accel: "native".into(),
            ranks: 2,
            ..Record::default()
        }
    }

    fn comparison() -> Comparison {
        let mut records = Vec::new();
        for (bytes, value) in [(1, 0.2), (1024, 0.5), (1 << 22, 400.0)] {
            records.push(record("isthmus", bytes, value, "region"));
            records.push(record("tcp", bytes, value * 20.0, "tcp"));
            records.push(record("tcp-ucx", bytes, value * 40.0, "tcp"));
            records.push(record("ompi-sm", bytes, value * 1.1, if bytes > 4096 { "cma" } else { "shm" }));
        }
        let lines = vec![("isthmus".into(), "run 'a' && <b>".into())];
        Comparison { records, lines, left_out: vec!["tcp-ucx: why & so".into()], ..Comparison::default() }
    }

    #[test]
    fn the_page_stands_alone_with_a_curve_for_each_subject() {
        let mut page = Page::new("a & b");
        page.comparison(&comparison()).unwrap();
        let text = page.text();
        assert_eq!(text.matches("<svg").count(), 1, "only latencies were measured");
        assert_eq!(text.matches("<circle").count(), 9, "three subjects at three sizes: {text}");
        for colour in ["#D55E00", "#0072B2", "#009E73"] {
            assert!(text.contains(&format!("stroke=\"{colour}\"")), "no curve in {colour}: {text}");
        }
        for part in
            ["isthmus (region)", "tcp (tcp)", "ompi-sm (shm, cma)", "4 MB", "a &amp; b", "MPI &lt;1&gt;"]
        {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
        let elsewhere = ["http:", "https:", "src=", "<script", "<link", "@import"];
        let plain = text.replace("http://www.w3.org/2000/svg", "");
        assert!(elsewhere.iter().all(|word| !plain.contains(word)), "{text}");
        assert!(!text.contains("&& <b>"), "{text}");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01 00:00 UTC");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(utc(1_795_305_540), "2026-11-21 23:59 UTC");
    }
}
