//! An installation to a file system that is mounted, whose owner may have put anything there: nothing outside of it is read, written or
//! removed.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use isthmus_guest::install::Plan;

const UNIT: &str = "etc/systemd/system/isthmus-guest.service";
const RECORD: &str = "usr/local/lib/isthmus/guest-installed";

/// A folder with the mounted system, `image`, and a folder of the host's beside it.
struct Host {
    dir: tempfile::TempDir,
    plan: Plan,
}

impl Host {
    /// None, and a line that `./test` counts, where this process may not install.
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            // Not by println!, which the harness keeps to itself where a test passes.
            let _ = std::io::Write::write_all(&mut std::io::stderr(), b"\nskipped: only root may install\n");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        for folder in ["etc/systemd/system", "etc/udev/rules.d"] {
            fs::create_dir_all(image.join(folder)).unwrap();
        }
        fs::write(image.join("etc/group"), "root:x:0:\nisthmus:x:990:\n").unwrap();
        fs::create_dir(dir.path().join("host")).unwrap();
        for name in ["host/isthmus", "program", "libisthmus-fi.so"] {
            fs::write(dir.path().join(name), name).unwrap();
        }
        let plan = Plan {
            root: image,
            prefix: "/usr/local".into(),
            program: dir.path().join("program"),
            libraries: vec![dir.path().join("libisthmus-fi.so")],
            dry_run: false,
        };
        Some(Self { dir, plan })
    }

    fn outside(&self) -> PathBuf {
        self.dir.path().join("host")
    }

    fn image(&self, path: &str) -> PathBuf {
        self.plan.root.join(path)
    }

    fn record(&self, lines: &str) {
        fs::create_dir_all(self.image("usr/local/lib/isthmus")).unwrap();
        fs::write(self.image(RECORD), lines).unwrap();
    }

    /// Whether the host's folder is as it was.
    fn is_untouched(&self) -> bool {
        let names: Vec<_> = fs::read_dir(self.outside()).unwrap().map(|e| e.unwrap().file_name()).collect();
        names == ["isthmus"] && fs::read(self.outside().join("isthmus")).unwrap() == b"host/isthmus"
    }
}

#[test]
fn a_record_removes_only_what_an_installation_makes() {
    let Some(host) = Host::new() else { return };
    let lines = [
        "file /../host/isthmus",
        "file /usr/local/bin/../../../../host/isthmus",
        "file /etc/group",
        "group root",
    ];
    for line in lines {
        host.record(&format!("file /usr/local/bin/isthmus\n{line}\n"));
        fs::create_dir_all(host.image("usr/local/bin")).unwrap();
        fs::write(host.image("usr/local/bin/isthmus"), "p").unwrap();
        let refused = host.plan.uninstall(&mut |_| ()).map_err(|e| e.to_string());
        assert!(refused.as_ref().is_err_and(|text| text.contains(line)), "{refused:?}");
        assert!(host.is_untouched() && host.image("etc/group").exists(), "{line}");
        assert!(host.image("usr/local/bin/isthmus").exists(), "nothing of it is carried out");
    }
}

#[test]
fn a_link_in_the_image_leads_to_no_file_of_the_hosts() {
    let Some(host) = Host::new() else { return };
    let outside = host.outside();
    for target in [outside.as_path(), Path::new("../../../host")] {
        let bin = host.image("usr/local/bin");
        host.record("file /usr/local/bin/isthmus\n");
        symlink(target, &bin).unwrap();
        let _ = host.plan.uninstall(&mut |_| ());
        assert!(host.is_untouched(), "removed by {}", target.display());
        let _ = host.plan.install(&mut |_| ());
        assert!(host.is_untouched(), "written by {}", target.display());
        fs::remove_file(&bin).unwrap();
    }
    // The file that a new one is written to before it has its name.
    fs::create_dir(host.image("usr/local/bin")).unwrap();
    symlink(outside.join("isthmus"), host.image("usr/local/bin/isthmus.isthmus-new")).unwrap();
    host.plan.install(&mut |_| ()).unwrap();
    assert!(host.is_untouched(), "written through the new file's name");
    host.plan.uninstall(&mut |_| ()).unwrap();
    // Folders of the system.
    fs::create_dir(outside.join("system")).unwrap();
    fs::remove_dir_all(host.image("etc/systemd")).unwrap();
    symlink(&outside, host.image("etc/systemd")).unwrap();
    assert!(host.plan.install(&mut |_| ()).is_err(), "there is no such folder in the image");
    fs::remove_dir(outside.join("system")).unwrap();
    assert!(host.is_untouched(), "written through /etc/systemd");
}

#[test]
fn a_record_that_is_no_file_of_the_image_is_not_read() {
    let Some(host) = Host::new() else { return };
    host.record("");
    fs::remove_file(host.image(RECORD)).unwrap();
    let told = host.outside().join("isthmus");
    fs::write(&told, "file /usr/local/bin/isthmus\n").unwrap();
    symlink(&told, host.image(RECORD)).unwrap();
    fs::create_dir_all(host.image("usr/local/bin")).unwrap();
    fs::write(host.image("usr/local/bin/isthmus"), "p").unwrap();
    assert!(host.plan.uninstall(&mut |_| ()).is_err());
    assert!(host.image("usr/local/bin/isthmus").exists() && told.exists());
    // Nobody writes to this pipe, so whoever opened it would wait.
    fs::remove_file(host.image(RECORD)).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o644);
    rustix::fs::mknodat(rustix::fs::CWD, host.image(RECORD), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let (say, said) = std::sync::mpsc::channel();
    let plan = host.plan.clone();
    std::thread::spawn(move || say.send(plan.uninstall(&mut |_| ()).is_err()));
    assert_eq!(said.recv_timeout(std::time::Duration::from_secs(20)), Ok(true));
}

#[test]
fn links_within_the_image_are_followed_as_in_the_vm() {
    let Some(host) = Host::new() else { return };
    fs::rename(host.image("etc/systemd"), host.image("units")).unwrap();
    symlink("/units", host.image("etc/systemd")).unwrap();
    fs::create_dir_all(host.image("opt/local")).unwrap();
    fs::create_dir(host.image("usr")).unwrap();
    symlink("/opt/local", host.image("usr/local")).unwrap();
    host.plan.install(&mut |_| ()).unwrap();
    assert!(host.image("units/system/isthmus-guest.service").exists());
    assert_eq!(fs::read(host.image("opt/local/bin/isthmus")).unwrap(), b"program");
    assert_eq!(fs::metadata(host.image("opt/local/bin/isthmus")).unwrap().mode() & 0o7777, 0o755);
    host.plan.uninstall(&mut |_| ()).unwrap();
    assert!(!host.image("opt/local/bin/isthmus").exists());
    assert!(!host.image("units/system/isthmus-guest.service").exists());
    assert!(!host.image("opt/local/lib/isthmus").exists());
}

/// Without a program that runs in the image and loads what is there.
#[test]
fn the_group_is_written_to_the_image() {
    let Some(host) = Host::new() else { return };
    let before = "root:x:0:\nsomebody:x:999:\n+::\nlast:x:1000:a,b";
    fs::write(host.image("etc/group"), before).unwrap();
    fs::write(host.image("etc/gshadow"), "root:*::\n").unwrap();
    rustix::fs::chmod(host.image("etc/gshadow"), rustix::fs::Mode::from_raw_mode(0o640)).unwrap();
    host.plan.install(&mut |_| ()).unwrap();
    let written = fs::read_to_string(host.image("etc/group")).unwrap();
    assert_eq!(written, format!("{before}\nisthmus:x:998:\n"));
    assert_eq!(fs::read_to_string(host.image("etc/gshadow")).unwrap(), "root:*::\nisthmus:!::\n");
    assert_eq!(fs::metadata(host.image("etc/gshadow")).unwrap().mode() & 0o7777, 0o640);
    host.plan.install(&mut |_| ()).unwrap();
    assert_eq!(fs::read_to_string(host.image("etc/group")).unwrap(), written, "once");
    host.plan.uninstall(&mut |_| ()).unwrap();
    assert_eq!(fs::read_to_string(host.image("etc/group")).unwrap(), format!("{before}\n"));
    assert_eq!(fs::read_to_string(host.image("etc/gshadow")).unwrap(), "root:*::\n");
    assert!(!host.image(UNIT).exists());
}
