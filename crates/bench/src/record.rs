//! One measurement as it is written with `--json`: every benchmark keeps this shape.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// One measurement. A key that does not apply is null.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// What was measured: `latency`, `bandwidth`, `bandwidth_windowed`, `rate`, `posted`, `unexpected`, `barrier`,
    /// `allreduce`, `memory`, `startup`.
    pub benchmark: String,
    /// What carried it: `isthmus`, `tcp`, `ompi-sm`, `ompi-sm-nocma`, `mpich-shm`, `pingpong`.
    pub subject: String,
    /// The subject that `ratio` compares with.
    pub peer: Option<String>,
    /// This value divided by the peer's, whatever the metric: the median of the rounds' own ratios.
    pub ratio: Option<f64>,
    /// Name and version of the MPI.
    pub mpi: Option<String>,
    /// Which way the bytes went, from counters: `region`, `tcp`, `cma`, `shm` or `mixed`.
    pub path: Option<String>,
    /// Bytes of a message.
    pub bytes: Option<u64>,
    /// Messages in flight; of `posted` and `unexpected` those that wait; of `memory` each rank's neighbours.
    pub depth: Option<u32>,
    /// What `value` is, its unit as suffix.
    pub metric: String,
    /// The median over the rounds.
    pub value: f64,
    /// The least of the rounds.
    pub min: f64,
    /// The greatest of the rounds.
    pub max: f64,
    /// How many rounds.
    pub reps: u32,
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
    /// Half a round of one bare cache line in the same processes, in microseconds.
    pub line_us: Option<f64>,
}

/// Writes `records` as one JSON array.
///
/// # Errors
/// [`Error::Io`].
pub fn write(path: &Path, records: &[Record]) -> Result<()> {
    let mut text = String::from("[\n");
    for (at, record) in records.iter().enumerate() {
        let line = serde_json::to_string(record)
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

    #[test]
    fn a_record_has_every_key_and_nulls_where_none_applies() {
        let record = Record {
            benchmark: "latency".into(),
            subject: "isthmus".into(),
            peer: None,
            ratio: None,
            mpi: None,
            path: None,
            bytes: None,
            depth: None,
            metric: "latency_us".into(),
            value: 1.5,
            min: 1.0,
            max: 2.0,
            reps: 3,
            cpu_us_per_op: None,
            accel: "native".into(),
            vms: 0,
            ranks: 2,
            load: None,
            line_us: None,
        };
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("records.json");
        write(&file, &[record.clone(), record.clone()]).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        let read: Vec<serde_json::Map<String, serde_json::Value>> = serde_json::from_str(&text).unwrap();
        let mut keys: Vec<&str> = read[0].keys().map(String::as_str).collect();
        keys.sort_unstable();
        let mut wanted = [
            "benchmark",
            "subject",
            "peer",
            "ratio",
            "mpi",
            "path",
            "bytes",
            "depth",
            "metric",
            "value",
            "min",
            "max",
            "reps",
            "cpu_us_per_op",
            "accel",
            "vms",
            "ranks",
            "load",
            "line_us",
        ];
        wanted.sort_unstable();
        assert_eq!(keys, wanted);
        assert!(read[1]["peer"].is_null());
        assert_eq!(serde_json::from_str::<Vec<Record>>(&text).unwrap(), [record.clone(), record]);
    }
}
