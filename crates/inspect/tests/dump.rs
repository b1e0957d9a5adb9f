//! A dump that is interrupted.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use isthmus_inspect::dump;
use isthmus_region::reader::Reader;
use rustix::process::{Pid, Signal, kill_process};

/// What a process of this program that is started with it dumps, and where to.
const FROM: &str = "ISTHMUS_TEST_DUMP_FROM";
const TO: &str = "ISTHMUS_TEST_DUMP_TO";

#[test]
fn an_interrupted_dump_leaves_no_file() {
    let named = |variable| std::env::var_os(variable).map(PathBuf::from);
    if let (Some(from), Some(to)) = (named(FROM), named(TO)) {
        let reader = Reader::new(File::open(from).unwrap().into()).unwrap();
        dump::write(&reader, "it", &to, true).unwrap();
        return;
    }
    for (signal, number) in [(Signal::INT, 2), (Signal::TERM, 15)] {
        for has_former in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let (from, to) = (dir.path().join("from"), dir.path().join("to"));
            // A hole of a size that takes minutes to read.
            File::create(&from).unwrap().set_len(1 << 40).unwrap();
            if has_former {
                std::fs::write(&to, "former").unwrap();
            }
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "an_interrupted_dump_leaves_no_file"])
                .env(FROM, &from)
                .env(TO, &to)
                .spawn()
                .unwrap();
            let part = dir.path().join(format!("to.{}.part", child.id()));
            let limit = Instant::now() + Duration::from_secs(20);
            while !has_bytes(&part) && !has_bytes(&to) && Instant::now() < limit {
                std::thread::sleep(Duration::from_millis(5));
            }
            kill_process(Pid::from_child(&child), signal).unwrap();
            let ended = child.wait().unwrap();
            assert_eq!(ended.signal(), Some(number), "{ended:?}");
            let mut left: Vec<_> =
                std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
            left.sort();
            let expected: &[&str] = if has_former { &["from", "to"] } else { &["from"] };
            assert_eq!(left, expected);
            assert!(!has_former || std::fs::read(&to).unwrap() == b"former");
        }
    }
}

/// Whether a file has its size, so that it is being filled.
fn has_bytes(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.len() == 1 << 40)
}
