//! One measurement as it is written with `--json`: an array of such records, the same shape for every benchmark.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::promise::{Judged, Row};
use crate::{placement, stats};

/// One measurement. A key that does not apply is null.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// What was measured: `latency`, `bandwidth`, `bandwidth_windowed`, `rate`, `posted`, `unexpected`, `barrier`,
    /// `allreduce`, `memory`, `startup`, and others.
    pub benchmark: String,
    /// What carried it: `isthmus`, `tcp`, `ompi-sm`, `ompi-sm-nocma`, `mpich-shm`, `pingpong`, and others.
    pub subject: String,
    /// The subject that `ratio` compares with.
    pub peer: Option<String>,
    /// This value divided by the peer's, whatever the metric: the median of the rounds' own ratios.
    pub ratio: Option<f64>,
    /// The lower end of the 95 % bootstrap interval (`stats::interval`) of `ratio`, or of `value` where there is no peer.
    pub low: Option<f64>,
    /// Its upper end.
    pub high: Option<f64>,
    /// How many rounds `ratio` and its interval are of, or `value` where there is no peer.
    pub rounds: u32,
    /// How the processors were placed: `near` or `far`; `any` where that was not asked for, `mixed` where it could not be told.
    pub placement: Option<String>,
    /// Half a round of one bare cache line in the same processes, or on their processors, in microseconds: the median.
    pub line_us: Option<f64>,
    /// The same, timed before each block.
    pub line_before_us: Option<f64>,
    /// The same, timed after each block.
    pub line_after_us: Option<f64>,
    /// Name and version of the MPI.
    pub mpi: Option<String>,
    /// Which way the bytes went, from counters: `region`, `region+cma` (announced there, and copied by the kernel in
    /// some blocks or all), `region+pages` (copied from pages that the sender granted), `region, some pages` (in some blocks),
    /// `region+resident` (copied from where the sender has it in the region, in some blocks or all), `region+direct` (no message), `tcp`, `udp`, `kernel` (its System V IPC),
    /// `cma`, `shm` or `mixed`; null where nothing counts them.
    pub path: Option<String>,
    /// Bytes of a message.
    pub bytes: Option<u64>,
    /// Messages in flight; of `posted` and `unexpected` those that wait; of `memory` each rank's neighbours.
    pub depth: Option<u32>,
    /// What `value` is, its unit as suffix.
    pub metric: String,
    /// The median over the rounds; null where it could not be measured, and `promise` says why.
    #[serde(with = "nothing")]
    pub value: f64,
    /// The least of the rounds.
    #[serde(with = "nothing")]
    pub min: f64,
    /// The greatest of the rounds.
    #[serde(with = "nothing")]
    pub max: f64,
    /// Processor time of all ranks for one message, or one loop of a collective call, in microseconds.
    pub cpu_us_per_op: Option<f64>,
    /// How the processors of the ranks are made: `native`, `tcg`, `kvm`.
    pub accel: String,
    /// How many VMs the ranks were in.
    pub vms: u32,
    /// How many ranks.
    pub ranks: u32,
    /// The machine's load before the run.
    pub load: Option<f64>,
    /// How many processors we may use.
    pub cpus: u32,
    /// What it was measured with: `isthmus`, `kernel`, `processor`, and with VMs `qemu`.
    pub versions: BTreeMap<String, String>,
    /// When it was written.
    pub date: String,
    /// What is promised of it, if anything is: `what`, `side`, `required`, `aim`, the `verdict`, and both figures as text.
    pub promise: Option<Judged>,
}

/// A figure that is not there is no number, and null in JSON.
mod nothing {
    use serde::{Deserialize, Deserializer, Serializer};

    #[allow(clippy::trivially_copy_pass_by_ref)] // the shape that serde asks for
    pub(super) fn serialize<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
        if value.is_finite() { to.serialize_f64(*value) } else { to.serialize_none() }
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<f64, D::Error> {
        Ok(Option::<f64>::deserialize(from)?.unwrap_or(f64::NAN))
    }
}

impl Record {
    /// This one with the values of its rounds: the median, the least and the greatest, their number and interval.
    pub fn with_values(mut self, values: &[f64]) -> Self {
        self.value = stats::median(values).unwrap_or(f64::NAN);
        self.min = values.iter().copied().fold(f64::INFINITY, f64::min);
        self.max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        self.ranged(values)
    }

    /// This one, compared with `peer` by the ratios of its rounds.
    pub fn with_ratios(mut self, peer: &str, ratios: &[f64]) -> Self {
        self.peer = Some(peer.into());
        self.ratio = stats::median(ratios);
        self.ranged(ratios)
    }

    fn ranged(mut self, values: &[f64]) -> Self {
        let interval = stats::interval(values);
        (self.low, self.high) = (interval.map(|it| it.low), interval.map(|it| it.high));
        self.rounds = u32::try_from(values.len()).unwrap_or(u32::MAX);
        self
    }

    /// This one with the lines timed beside its blocks.
    pub fn with_lines(mut self, lines: &[[f64; 2]]) -> Self {
        let of = |side: usize| stats::median(&lines.iter().map(|both| both[side]).collect::<Vec<_>>());
        (self.line_before_us, self.line_after_us) = (of(0), of(1));
        self.line_us = stats::median(&lines.concat());
        self
    }

    /// A promise that no measurement came to.
    pub fn of_missing(row: &Row) -> Self {
        Self {
            benchmark: "promise".into(),
            subject: "isthmus".into(),
            mpi: row.mpi.clone(),
            placement: row.placement.clone(),
            metric: "none".into(),
            value: f64::NAN,
            min: f64::NAN,
            max: f64::NAN,
            promise: Some(row.judged()),
            ..Self::default()
        }
    }
}

/// Placements among `records`, in their order; none stands for records that have none.
pub fn placements(records: &[Record]) -> Vec<Option<String>> {
    let mut all = Vec::new();
    for record in records {
        if !all.contains(&record.placement) {
            all.push(record.placement.clone());
        }
    }
    all
}

/// Those of one placement.
pub fn placed(records: &[Record], placement: Option<&str>) -> Vec<Record> {
    records.iter().filter(|record| record.placement.as_deref() == placement).cloned().collect()
}

/// What a figure depends on besides.
fn versions(has_vms: bool) -> BTreeMap<String, String> {
    let uname = rustix::system::uname();
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let processor =
        info.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(':'));
    let mut all = BTreeMap::from([
        ("isthmus".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        ("kernel".to_owned(), uname.release().to_string_lossy().into_owned()),
        ("processor".to_owned(), processor.map_or_else(|| "unknown".into(), |(_, name)| name.trim().into())),
    ]);
    if has_vms {
        all.insert("qemu".into(), qemu().unwrap_or_else(|| "unknown".into()));
    }
    all
}

fn qemu() -> Option<String> {
    let program = isthmus_vm::qemu::program().ok()?;
    let said = std::process::Command::new(program).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let version = text.lines().next()?.split("version ").nth(1)?;
    Some(version.split_whitespace().next()?.to_owned())
}

/// Writes `records` as one JSON array, each with the machine, the versions and the time.
///
/// # Errors
/// [`Error::Io`].
pub fn write(path: &Path, records: &[Record]) -> Result<()> {
    let cpus = u32::try_from(placement::processors().len()).unwrap_or(u32::MAX);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let date = crate::page::utc(now);
    let (native, with_vms) =
        (versions(false), records.iter().any(|record| record.vms > 0).then(|| versions(true)));
    let mut text = String::from("[\n");
    for (at, record) in records.iter().enumerate() {
        let versions = with_vms.as_ref().filter(|_| record.vms > 0).unwrap_or(&native).clone();
        let record = Record { cpus, versions, date: date.clone(), ..record.clone() };
        let line = serde_json::to_string(&record)
            .map_err(|error| Error::Io { what: "turn a record into JSON".into(), source: error.into() })?;
        text.push_str(&line);
        text.push_str(if at + 1 < records.len() { ",\n" } else { "\n" });
    }
    text.push_str("]\n");
    isthmus_region::room::write(path, text).map_err(Error::io(format!("write {}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::promise::{Verdict, at_most};

    fn record() -> Record {
        Record {
            benchmark: "latency".into(),
            subject: "isthmus".into(),
            metric: "latency_us".into(),
            accel: "native".into(),
            ranks: 2,
            ..Record::default()
        }
    }

    #[test]
    fn a_record_has_every_key_and_nulls_where_none_applies() {
        let record = record().with_values(&[1.0, 1.5, 2.0]);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("records.json");
        write(&file, &[record.clone(), record.clone()]).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        let read: Vec<serde_json::Map<String, serde_json::Value>> = serde_json::from_str(&text).unwrap();
        let mut keys: Vec<&str> = read[0].keys().map(String::as_str).collect();
        keys.sort_unstable();
        let wanted = "accel benchmark bytes cpu_us_per_op cpus date depth high line_after_us line_before_us line_us load low max \
                      metric min mpi path peer placement promise ranks ratio rounds subject value versions vms";
        assert_eq!(keys, wanted.split_whitespace().collect::<Vec<_>>());
        assert!(read[1]["peer"].is_null() && read[1]["path"].is_null());
        let back = &serde_json::from_str::<Vec<Record>>(&text).unwrap()[1];
        assert_eq!((back.value, back.min, back.max, back.rounds), (1.5, 1.0, 2.0, 3));
        assert!(
            back.cpus >= 1 && back.date.ends_with(" UTC") && back.versions.contains_key("kernel"),
            "{back:?}"
        );
    }

    #[test]
    fn what_could_not_be_measured_is_null_and_says_why() {
        let row = Row::missing("latency", Some("MPICH"), at_most(1.0, 0.9), "no tap");
        let text = serde_json::to_string(&Record::of_missing(&row)).unwrap();
        assert!(text.contains("\"value\":null") && text.contains("no tap"), "{text}");
        let back: Record = serde_json::from_str(&text).unwrap();
        assert!(back.value.is_nan());
        assert_eq!(back.promise.unwrap().verdict, Verdict::NotMeasured);
    }

    #[test]
    fn ratios_have_their_own_number_of_rounds() {
        let record = record().with_values(&[1.0, 2.0, 3.0]).with_ratios("tcp", &[0.5, 0.25]);
        assert_eq!((record.value, record.ratio, record.rounds), (2.0, Some(0.375), 2));
        assert_eq!((record.low, record.high), (Some(0.25), Some(0.5)));
        let record = record.with_lines(&[[0.1, 0.2], [0.3, 0.2]]);
        assert_eq!(
            (record.line_before_us, record.line_after_us, record.line_us),
            (Some(0.2), Some(0.2), Some(0.2))
        );
    }
}
