//! One VM: its settings, the QEMU command line that they mean, and the running process.
//!
//! The command line follows measurements (Debian 12, QEMU 7.2; options that later versions dropped are not used):
//! - `thread=multi` and `maxcpus` of at least 2 under TCG, or atomic operations are not atomic between VMs;
//! - `erms=off` under TCG, or `rep movs`, which TCG runs element by element, makes copies ten times slower;
//! - an ELF kernel, which QEMU enters directly (PVH);
//! - the ivshmem device behind a root port whose 64-bit window is large enough: above 4 GiB guests can map it
//!   write-back, and it can be unplugged for migration;
//! - no device that is not asked for: each one costs boot time.

use crate::accel::Accel;
use crate::error::{Error, Result};
use crate::ivshmem::{Ivshmem, dimm_room, with_path};
use crate::places::Place;
use crate::programs;
use crate::qmp::Qmp;
use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a QEMU that was killed is waited for.
const KILL_LIMIT: Duration = Duration::from_secs(5);
/// The longest path that a UNIX socket's address holds.
const SOCKET_PATH_BYTES: usize = 107;
/// QEMU's limit for the name of a 9p export.
const TAG_BYTES: usize = 31;

/// All that QEMU is told about a VM.
#[derive(Clone, Debug)]
pub struct VmConfig {
    /// The VM's name; also seen in `ps`.
    pub name: String,
    /// Virtual CPUs.
    pub vcpus: u32,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// The accelerator.
    pub accel: Accel,
    /// The uncompressed kernel.
    pub kernel: PathBuf,
    /// The VM's own initramfs.
    pub initramfs: PathBuf,
    /// virtio-serial ports: the name that the guest sees, and the UNIX socket that QEMU listens on.
    pub ports: Vec<(String, PathBuf)>,
    /// virtio-serial ports whose UNIX socket another process listens on.
    pub calling_ports: Vec<(String, PathBuf)>,
    /// Directories of the host, served over 9p. The host's root is one of them.
    pub shares: Vec<Share>,
    /// The region.
    pub ivshmem: Option<Ivshmem>,
    /// A network interface on a tap device.
    pub tap: Option<Tap>,
    /// Where the guest's console goes, and QEMU's own messages.
    pub console: Console,
    /// The socket of QEMU's monitor.
    pub qmp: PathBuf,
    /// Words to add to the guest kernel's command line.
    pub extra_append: String,
    /// Words to put before QEMU's, for instance those of [`crate::tap::Netns::prefix`].
    pub prefix: Vec<OsString>,
}

/// A directory of the host in the guest.
#[derive(Clone, Debug)]
pub struct Share {
    /// The name to mount it by.
    pub tag: String,
    /// The directory.
    pub path: PathBuf,
    /// Let QEMU refuse all changes.
    pub read_only: bool,
}

/// A virtio-net device.
#[derive(Clone, Debug)]
pub struct Tap {
    /// The tap device on the host.
    pub ifname: String,
    /// The guest's hardware address.
    pub mac: String,
}

impl VmConfig {
    /// The words of QEMU's command line, without the program itself.
    ///
    /// # Errors
    /// [`Error::BadConfig`] for settings that make QEMU abort, or that it would silently misread.
    pub fn arguments(&self) -> Result<Vec<OsString>> {
        self.check()?;
        let mut line = Line::default();
        line.option("-name", format!("{},debug-threads=on", self.name));
        // SATA, SMBus and the rest that q35 has by default only cost time to probe.
        let dimm = self.ivshmem.as_ref().and_then(|ivshmem| ivshmem.dimm.as_ref());
        let with_dimm = if dimm.is_some() { ",nvdimm=on" } else { "" };
        line.option("-machine", format!("q35,vmport=off,sata=off,smbus=off{with_dimm}"));
        match self.accel {
            Accel::Kvm => {
                line.option("-accel", "kvm");
                line.option("-cpu", "host");
            }
            Accel::Tcg => {
                line.option("-accel", "tcg,thread=multi");
                line.option("-cpu", "max,erms=off");
            }
        }
        let maximum = self.vcpus.max(2);
        line.option("-smp", format!("{},maxcpus={maximum}", self.vcpus));
        let most = dimm.map(|dimm| self.memory_mib.saturating_add(dimm_room(dimm.bytes) >> 20));
        let room = most.map_or_else(String::new, |most| format!(",slots=1,maxmem={most}M"));
        line.option("-m", format!("{}{room}", self.memory_mib));
        for word in ["-nodefaults", "-no-user-config", "-no-reboot"] {
            line.word(word);
        }
        line.option("-display", "none");
        line.option("-kernel", &self.kernel);
        line.option("-initrd", &self.initramfs);
        line.option("-append", self.kernel_arguments());
        // QEMU opens the same file once more, whatever its name has become. What it writes goes to the end, also where a guest that
        // may write the file has cut it.
        let console =
            format!("file,id=console,path=/proc/self/fd/{},append=on", self.console.guest.as_raw_fd());
        line.option("-chardev", console);
        line.option("-serial", "chardev:console");
        line.option("-qmp", with_path("unix:", &self.qmp, ",server=on,wait=off"));
        self.add_ports(&mut line);
        for (index, share) in self.shares.iter().enumerate() {
            let read_only = if share.read_only { ",readonly=on" } else { "" };
            line.option(
                "-fsdev",
                with_path(
                    &format!("local,id=fs{index},path="),
                    &share.path,
                    &format!(",security_model=none,multidevs=remap{read_only}"),
                ),
            );
            line.option("-device", format!("virtio-9p-pci,fsdev=fs{index},mount_tag={}", share.tag));
        }
        if let Some(ivshmem) = &self.ivshmem {
            for (option, value) in ivshmem.options("region", 1) {
                line.option(option, value);
            }
        }
        if let Some(tap) = &self.tap {
            line.option(
                "-netdev",
                format!("tap,id=net,ifname={},script=no,downscript=no,vhost=off", tap.ifname),
            );
            // No boot ROM: the guest never boots from its network.
            line.option("-device", format!("virtio-net-pci,netdev=net,mac={},romfile=", tap.mac));
        }
        Ok(line.words)
    }

    /// The same with the console's file, and the files of an isolated region, or that of a memory device, opened here and passed on: QEMU
    /// may be in a name space from which it could not open what another process has. Whatever this process executes meanwhile inherits the
    /// descriptors.
    fn with_opened_files(&self) -> Result<(Self, Vec<OwnedFd>)> {
        let mut config = self.clone();
        let mut opened = Vec::new();
        let console = rustix::io::dup(&self.console.guest);
        config.console.guest =
            Arc::new(console.map_err(|e| Error::io("copy a descriptor")(e.into()))?.into());
        let sections = config.ivshmem.iter_mut().filter_map(|ivshmem| ivshmem.isolated.as_mut());
        for section in sections.flat_map(|(_, sections)| sections) {
            let access = if section.is_writable { OFlags::RDWR } else { OFlags::RDONLY };
            let file = opened_at(&section.path, access)?;
            section.path = format!("/proc/self/fd/{}", file.as_raw_fd()).into();
            opened.push(file);
        }
        let dimms = config.ivshmem.iter_mut().filter_map(|ivshmem| ivshmem.dimm.as_mut());
        for dimm in dimms {
            let file = opened_at(&dimm.path, OFlags::RDWR)?;
            dimm.path = format!("/proc/self/fd/{}", file.as_raw_fd()).into();
            opened.push(file);
        }
        Ok((config, opened))
    }

    fn add_ports(&self, line: &mut Line) {
        if self.ports.is_empty() && self.calling_ports.is_empty() {
            return;
        }
        // Port 0 is reserved for a console.
        let count = self.ports.len() + self.calling_ports.len() + 1;
        line.option("-device", format!("virtio-serial-pci,id=ports,max_ports={count}"));
        let listens = self.ports.iter().map(|port| (port, ",server=on,wait=off"));
        let calls = self.calling_ports.iter().map(|port| (port, ""));
        for (index, ((name, path), how)) in listens.chain(calls).enumerate() {
            let number = index + 1;
            line.option("-chardev", with_path(&format!("socket,id=port{number},path="), path, how));
            line.option(
                "-device",
                format!("virtserialport,bus=ports.0,nr={number},chardev=port{number},name={name}"),
            );
        }
    }

    fn kernel_arguments(&self) -> String {
        let rate;
        // Words that the kernel does not know would become environment variables of the guest's first process.
        let mut words = vec![
            "console=ttyS0",
            "quiet",
            // A panic ends QEMU at once (with -no-reboot) instead of leaving a VM that hangs.
            "panic=-1",
            // A guest that lives for one job has nothing that justifies the cost of mitigations under emulation.
            "mitigations=off",
            "random.trust_cpu=on",
            "cryptomgr.notests",
        ];
        if self.accel == Accel::Tcg {
            // 86 instead of 1322 ns for reading the clock, and no watchdog that finds a busy host's ticks late and
            // drops the counter. Under KVM the kernel's own choice is the right one.
            words.extend(["clocksource=tsc", "tsc=reliable", "no_timer_check"]);
            // What the kernel would measure itself is wrong where the host is busy, and its clock would be with it.
            rate = isthmus_region::tsc::khz().map(|khz| format!("tsc_early_khz={khz}"));
            words.extend(rate.as_deref());
            // The kernel patches its own code while it boots. QEMU (7.2) may keep a translation that another processor began
            // meanwhile, in which that processor hits a breakpoint that was removed, for ever. So there is one processor
            // until the boot is done, and the guest's first process brings up the others.
            words.push("maxcpus=1");
        }
        let extra = self.extra_append.trim();
        if !extra.is_empty() {
            words.push(extra);
        }
        words.join(" ")
    }

    fn check(&self) -> Result<()> {
        let bad = |reason: String| Err(Error::BadConfig { vm: self.name.clone(), reason });
        let plain = |text: &str| {
            !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        };
        if !plain(&self.name) {
            return bad("its name may have letters, digits, '-', '_' and '.' only".to_owned());
        }
        if self.vcpus == 0 || self.memory_mib < 64 {
            return bad("it needs at least one virtual CPU and 64 MiB".to_owned());
        }
        let sockets = self.ports.iter().map(|(_, path)| path).chain([&self.qmp]);
        for path in sockets.chain(self.ivshmem.as_ref().map(|ivshmem| &ivshmem.socket)) {
            if path.as_os_str().len() > SOCKET_PATH_BYTES {
                return bad(format!(
                    "the socket path {} has more than {SOCKET_PATH_BYTES} bytes; choose a shorter run directory",
                    path.display()
                ));
            }
        }
        for (name, _) in self.ports.iter().chain(&self.calling_ports) {
            if !plain(name) {
                return bad(format!("port name {name:?} may have letters, digits, '-', '_' and '.' only"));
            }
        }
        for share in &self.shares {
            if !plain(&share.tag) || share.tag.len() > TAG_BYTES {
                return bad(format!(
                    "share name {:?} is not plain or has more than {TAG_BYTES} bytes",
                    share.tag
                ));
            }
        }
        if let Some(ivshmem) = &self.ivshmem {
            // QEMU aborts on an assertion otherwise.
            let others = ivshmem.isolated.iter().flat_map(|(_, sections)| sections).map(|s| s.bytes);
            for bytes in others.chain([ivshmem.region_bytes]) {
                if !bytes.is_power_of_two() || bytes < 4096 {
                    return bad(format!("a region of {bytes} bytes is not a power of two"));
                }
            }
            if !(1..=128).contains(&ivshmem.vectors) {
                return bad(format!("{} doorbell vectors are not between 1 and 128", ivshmem.vectors));
            }
        }
        Ok(())
    }
}

fn opened_at(path: &Path, access: OFlags) -> Result<OwnedFd> {
    rustix::fs::open(path, access, Mode::empty())
        .map_err(|e| Error::io(format!("open {}", path.display()))(e.into()))
}

#[derive(Default)]
struct Line {
    words: Vec<OsString>,
}

impl Line {
    fn word(&mut self, word: impl Into<OsString>) {
        self.words.push(word.into());
    }

    fn option(&mut self, option: &str, value: impl Into<OsString>) {
        self.word(option);
        self.word(value);
    }
}

/// The QEMU program: `ISTHMUS_QEMU`, or the one on the PATH.
pub fn program() -> Result<PathBuf> {
    match std::env::var_os("ISTHMUS_QEMU") {
        Some(path) if !path.is_empty() => Ok(path.into()),
        _ => programs::need("qemu-system-x86_64", "qemu-system-x86"),
    }
}

/// Where a VM's console and QEMU's own messages are written: files that stay the same, whatever becomes of their names.
#[derive(Clone, Debug)]
pub struct Console {
    guest: Arc<File>,
    qemu: Arc<File>,
}

impl Console {
    /// Makes both, or empties them: the guest's console at `path`, QEMU's messages at the same path with `.qemu` appended. VMs may write
    /// the directories `shares`.
    ///
    /// # Errors
    /// [`Error::Link`]; [`Error::Io`], also for what is no regular file.
    pub fn create(path: &Path, shares: &[PathBuf]) -> Result<Self> {
        let made = |path: &Path| {
            let (file, is_new) = Place::find(path, shares, true)?.open(OFlags::RDWR | OFlags::APPEND)?;
            if !is_new {
                file.set_len(0).map_err(Error::io(format!("empty {}", path.display())))?;
            }
            Ok(Arc::new(file))
        };
        let mut messages = path.to_owned().into_os_string();
        messages.push(".qemu");
        Ok(Self { guest: made(path)?, qemu: made(Path::new(&messages))? })
    }

    /// The last `lines` lines of both, QEMU's first, with control characters and empty lines left out.
    pub fn tail(&self, lines: usize) -> Vec<String> {
        let mut all = Vec::new();
        for file in [&self.qemu, &self.guest] {
            all.extend(clean_lines(&String::from_utf8_lossy(&end_of(file))));
        }
        let skip = all.len().saturating_sub(lines);
        all.split_off(skip)
    }
}

/// A running VM. Dropping it kills and reaps QEMU.
pub struct Vm {
    name: String,
    child: Child,
    console: Console,
    qmp: PathBuf,
    ended: Option<ExitStatus>,
}

impl Vm {
    /// Starts QEMU, in a process group of its own: a Ctrl-C at the terminal must reach the launcher only.
    ///
    /// Returns once the process exists; [`Vm::exited`] and [`Vm::console_tail`] show if QEMU fails.
    pub fn start(config: &VmConfig) -> Result<Vm> {
        let console = config.console.clone();
        let (config, opened) = config.with_opened_files()?;
        let arguments = config.arguments()?;
        let qemu = program()?;
        let mut command = match config.prefix.split_first() {
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(qemu);
                command
            }
            None => Command::new(qemu),
        };
        let said = |file: &File| file.try_clone().map_err(Error::io("copy a descriptor"));
        let (log, log_too) = (said(&config.console.qemu)?, said(&config.console.qemu)?);
        command.args(arguments).stdin(Stdio::null()).stdout(log).stderr(log_too).process_group(0);
        let child = command.spawn().map_err(Error::io(format!("run {}", programs::describe(&command))))?;
        drop(opened);
        Ok(Vm { name: config.name, child, console, qmp: config.qmp, ended: None })
    }

    /// The VM's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// QEMU's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How QEMU ended, if it has.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended
    }

    /// Waits for QEMU's end, up to `timeout`.
    pub fn wait(&mut self, timeout: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + timeout;
        loop {
            let status = self.exited();
            if status.is_some() || Instant::now() >= deadline {
                return status;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The last lines of QEMU's messages and the guest's console.
    pub fn console_tail(&self, lines: usize) -> Vec<String> {
        self.console.tail(lines)
    }

    /// A way to read the console that outlives this value.
    pub fn console(&self) -> Console {
        self.console.clone()
    }

    /// A connection to QEMU's monitor. There can be one at a time.
    pub fn monitor(&self) -> Result<Qmp> {
        Qmp::connect(&self.qmp, crate::qmp::ANSWER_TIMEOUT)
    }

    /// Binds virtual CPU i to the host's CPU `cpus[i % len]`. Without it the scheduler may put two VMs on one core
    /// for seconds.
    pub fn pin(&self, cpus: &[usize]) -> Result<()> {
        if cpus.is_empty() {
            return Ok(());
        }
        let threads = self.monitor()?.cpu_threads()?;
        for (thread, &cpu) in threads.into_iter().zip(cpus.iter().cycle()) {
            let mut set = rustix::thread::CpuSet::new();
            set.set(cpu);
            rustix::thread::sched_setaffinity(Pid::from_raw(thread), &set).map_err(|error| {
                Error::io(format!("pin a virtual CPU of {} to CPU {cpu}", self.name))(error.into())
            })?;
        }
        Ok(())
    }

    /// Kills QEMU and reaps it. The guest gets no notice: what it has not written is lost.
    pub fn kill(&mut self) {
        if self.exited().is_none() {
            // This fails only if QEMU has ended.
            let _ = self.child.kill();
            // One that waits for a disk or a network file system dies later: then whoever ends the run sees to it.
            self.ended = self.wait(KILL_LIMIT);
        }
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.kill();
    }
}

/// As much of a file's end as its last lines may be. A guest writes to its console without end if it likes.
fn end_of(file: &File) -> Vec<u8> {
    const MOST: usize = 64 << 10;
    let bytes = file.metadata().map_or(0, |meta| meta.len());
    let begin = bytes.saturating_sub(MOST as u64);
    let mut end = vec![0; MOST];
    let mut read = 0;
    // What cannot be read is not shown.
    while let Ok(more @ 1..) = file.read_at(&mut end[read..], begin.saturating_add(read as u64)) {
        read += more;
    }
    end.truncate(read);
    end
}

fn clean_lines(text: &str) -> Vec<String> {
    text.split(['\n', '\r'])
        .map(|line| {
            let line: String = line.chars().filter(|c| !c.is_control()).collect();
            line.trim_end().to_owned()
        })
        .filter(|line| !line.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn console() -> Console {
        let null = || Arc::new(File::open("/dev/null").unwrap());
        Console { guest: null(), qemu: null() }
    }

    fn config() -> VmConfig {
        VmConfig {
            name: "vm0".into(),
            vcpus: 1,
            memory_mib: 512,
            accel: Accel::Tcg,
            kernel: "/k/vmlinux".into(),
            initramfs: "/r/initramfs".into(),
            ports: vec![("exec".into(), "/r/exec".into())],
            calling_ports: vec![("wake".into(), "/r/wake".into())],
            shares: vec![Share { tag: "root".into(), path: "/a,b".into(), read_only: true }],
            ivshmem: Some(Ivshmem {
                socket: "/r/ivshmem".into(),
                region_bytes: 64 << 20,
                vectors: 2,
                isolated: None,
                dimm: None,
            }),
            tap: None,
            console: console(),
            qmp: "/r/qmp".into(),
            extra_append: String::new(),
            prefix: Vec::new(),
        }
    }

    fn text(config: &VmConfig) -> String {
        let words = config.arguments().unwrap();
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        words.join(" ")
    }

    #[test]
    fn emulated_vms_keep_atomic_operations_atomic() {
        let line = text(&config());
        assert!(line.contains("-accel tcg,thread=multi -cpu max,erms=off"));
        assert!(line.contains("-smp 1,maxcpus=2"));
        let four = VmConfig { vcpus: 4, ..config() };
        assert!(text(&four).contains("-smp 4,maxcpus=4"));
    }

    #[test]
    fn a_vm_of_a_run_can_migrate_with_its_region() {
        let line = text(&config());
        assert!(line.contains("ivshmem-doorbell,id=region-device,chardev=region,vectors=2,master=on"));
    }

    #[test]
    fn shares_are_read_only_where_asked_and_commas_are_doubled() {
        let line = text(&config());
        assert!(
            line.contains("-fsdev local,id=fs0,path=/a,,b,security_model=none,multidevs=remap,readonly=on")
        );
    }

    #[test]
    fn clock_settings_are_for_emulation_only() {
        let line = text(&config());
        assert!(line.contains("clocksource=tsc tsc=reliable no_timer_check tsc_early_khz="));
        assert!(line.contains(" maxcpus=1"));
        let kvm = VmConfig { accel: Accel::Kvm, extra_append: "debug".into(), ..config() };
        let line = text(&kvm);
        assert!(line.contains("-cpu host") && !line.contains("clocksource") && !line.contains(" maxcpus=1"));
        assert!(!line.contains("tsc_early_khz"));
        assert!(line.contains(" debug "));
    }

    #[test]
    fn settings_that_qemu_would_abort_on_are_refused() {
        let mut odd = config();
        odd.ivshmem.as_mut().unwrap().region_bytes = 3 << 20;
        assert!(odd.arguments().unwrap_err().to_string().contains("power of two"));
        let long = VmConfig { qmp: format!("/{}", "x".repeat(120)).into(), ..config() };
        assert!(long.arguments().unwrap_err().to_string().contains("shorter run directory"));
        let comma = VmConfig { name: "a,b".into(), ..config() };
        assert!(comma.arguments().is_err());
    }

    #[test]
    fn console_lines_lose_their_control_characters() {
        assert_eq!(clean_lines("\u{1b}a\r\nb \n\n"), ["a", "b"]);
    }

    #[test]
    fn a_console_is_read_and_written_whatever_its_name_has_become() {
        use std::fs;
        use std::io::Write;
        let dir = std::env::temp_dir().join(format!("isthmus-console-{}", std::process::id()));
        let (path, users) = (dir.join("share/logs/vm0.console"), dir.join("file"));
        fs::create_dir_all(dir.join("share")).unwrap();
        fs::write(&users, "the user's").unwrap();
        let shares = [dir.join("share")];
        let console = Console::create(&path, &shares).unwrap();
        // What QEMU is told to open.
        let config = VmConfig { console, ..config() };
        let (told, _opened) = config.with_opened_files().unwrap();
        let line = text(&told);
        let (_, at) = line.split_once("file,id=console,path=").unwrap();
        let (at, _) = at.split_once(",append=on").unwrap();
        fs::remove_file(&path).unwrap();
        // Whoever opens it by its name waits for ever.
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let mut qemu = fs::OpenOptions::new().append(true).open(at).unwrap();
        writeln!(qemu, "{}\nlast", "x".repeat(1 << 20)).unwrap();
        let end = end_of(&config.console.guest);
        assert!(end.len() == 64 << 10 && end.ends_with(b"x\nlast\n"));
        assert_eq!(config.console.tail(1), ["last"]);
        // A guest that may write the file cuts it; what is said later is there.
        config.console.guest.set_len(0).unwrap();
        assert!(config.console.tail(1).is_empty());
        writeln!(qemu, "later").unwrap();
        assert_eq!(config.console.tail(9), ["later"]);
        // What VMs have put into its place before.
        assert!(Console::create(&path, &shares).is_err(), "a pipe");
        fs::remove_file(&path).unwrap();
        for name in [&path, &dir.join("share/logs/vm0.console.qemu")] {
            let _ = fs::remove_file(name);
            std::os::unix::fs::symlink(&users, name).unwrap();
            assert!(matches!(Console::create(&path, &shares), Err(Error::Link { .. })));
            fs::remove_file(name).unwrap();
        }
        assert_eq!(fs::read_to_string(&users).unwrap(), "the user's");
        // One of an earlier run is emptied.
        fs::write(&path, "earlier").unwrap();
        assert!(Console::create(&path, &shares).unwrap().tail(1).is_empty());
        fs::remove_dir_all(dir).unwrap();
    }
}
