//! Boots real guests: run with `ISTHMUS_TEST_VM=1`, and QEMU installed.
//!
//! This program is packed into the guests as their first process, as `isthmus` is in real life; there it answers
//! questions on a port. So it has a `main` of its own and no test harness.

use isthmus_guest::boot::{self, Booted};
use isthmus_vm::accel::{self, Accel, Choice};
use isthmus_vm::boot_config::{BootConfig, GuestShare, HostEntry, Interface, InterfaceKind, ROOT_TAG};
use isthmus_vm::qemu::{Share, Vm, VmConfig};
use isthmus_vm::{initramfs, kernel};
use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() {
    if boot::is_init() {
        boot::run(answer);
    }
    if std::env::var_os("ISTHMUS_TEST_VM").is_none() {
        println!("boot: skipped, set ISTHMUS_TEST_VM=1 to boot guests");
        return;
    }
    let outcome = one().and_then(|()| several(2));
    if let Err(error) = outcome {
        println!("boot: FAILED: {error}");
        std::process::exit(1);
    }
}

/// The guest's side: each line is a shell command, answered by one line of its output; `exit` ends it.
fn answer(booted: Booted) {
    let port = fs::File::options().read(true).write(true).open(&booted.ports["test"]).unwrap();
    let mut out = port.try_clone().unwrap();
    for line in BufReader::new(port).lines() {
        let line = line.unwrap();
        let reply = match line.as_str() {
            "exit" => return,
            "panic" => panic!("asked to"),
            "changes" => format!("{:?}", booted.overlay_changes().unwrap()),
            command => {
                let output = std::process::Command::new("/bin/sh").args(["-c", command]).output().unwrap();
                let text = [output.stdout, output.stderr].concat();
                String::from_utf8_lossy(&text).trim().replace('\n', "|")
            }
        };
        writeln!(out, "{reply}").unwrap();
    }
}

struct Guest {
    vm: Vm,
    port: BufReader<UnixStream>,
}

impl Guest {
    fn ask(&mut self, question: &str) -> Outcome<String> {
        writeln!(self.port.get_mut(), "{question}")?;
        let mut answer = String::new();
        self.port.read_line(&mut answer)?;
        Ok(answer.trim_end().to_owned())
    }

    fn expect(&mut self, question: &str, expected: &str) -> Outcome {
        let answer = self.ask(question)?;
        if answer == expected {
            return Ok(());
        }
        Err(format!("{question}: got {answer:?} instead of {expected:?}").into())
    }
}

struct Bench {
    dir: PathBuf,
    work: PathBuf,
    accel: Accel,
    kernel: kernel::Kernel,
    base: PathBuf,
}

impl Bench {
    fn new() -> Outcome<Bench> {
        let dir = std::env::temp_dir().join(format!("isthmus-boot-{}", std::process::id()));
        let work = dir.join("work");
        fs::create_dir_all(&work)?;
        let kernel = kernel::find(None, &mut |line| println!("boot: {line}"))?;
        let base = initramfs::base(&kernel)?;
        let decision = accel::choose(Choice::Auto, &kernel.vmlinux)?;
        println!(
            "boot: kernel {}, {:?} ({}), initramfs of {} KiB",
            kernel.release,
            decision.accel,
            decision.reason,
            fs::metadata(&base)?.len() / 1024
        );
        Ok(Bench { dir, work, accel: decision.accel, kernel, base })
    }

    fn start(&self, index: u8) -> Outcome<Vm> {
        let name = format!("vm{index}");
        let address = Ipv4Addr::new(10, 9, 8, index + 1);
        let config = BootConfig {
            name: name.clone(),
            hosts: vec![HostEntry { address, name: name.clone() }],
            shares: vec![GuestShare {
                tag: "work".into(),
                path: self.work.clone(),
                read_only: false,
                options: None,
            }],
            interfaces: vec![Interface { kind: InterfaceKind::Dummy, address, prefix: 24 }],
            ports: vec!["test".into()],
            ivshmem: false,
            verbose: true,
            ..BootConfig::default()
        };
        let own = self.dir.join(&name);
        fs::create_dir_all(&own)?;
        let image = own.join("initramfs");
        initramfs::for_vm(&self.base, &config, &image)?;
        let share =
            |tag: &str, path: &Path, read_only| Share { tag: tag.into(), path: path.into(), read_only };
        Ok(Vm::start(&VmConfig {
            name,
            vcpus: 1,
            memory_mib: 512,
            accel: self.accel,
            kernel: self.kernel.vmlinux.clone(),
            initramfs: image,
            ports: vec![("test".into(), own.join("test.sock"))],
            shares: vec![share(ROOT_TAG, Path::new("/"), true), share("work", &self.work, false)],
            ivshmem: None,
            tap: None,
            console: own.join("console"),
            qmp: own.join("qmp.sock"),
            extra_append: std::env::var("ISTHMUS_TEST_APPEND").unwrap_or_default(),
            prefix: Vec::new(),
        })?)
    }

    fn connect(&self, vm: Vm) -> Outcome<Guest> {
        let path = self.dir.join(vm.name()).join("test.sock");
        let deadline = Instant::now() + Duration::from_secs(30);
        let socket = loop {
            match UnixStream::connect(&path) {
                Ok(socket) => break socket,
                Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(10)),
                Err(error) => return Err(format!("{error}: {:?}", vm.console_tail(20)).into()),
            }
        };
        socket.set_read_timeout(Some(Duration::from_secs(60)))?;
        let mut guest = Guest { vm, port: BufReader::new(socket) };
        match guest.ask("echo ready") {
            Ok(answer) if answer == "ready" => Ok(guest),
            other => Err(format!("{other:?}: {:?}", guest.vm.console_tail(20)).into()),
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// One guest sees what it should, and its end is clean.
fn one() -> Outcome {
    let bench = Bench::new()?;
    let begin = Instant::now();
    let mut guest = bench.connect(bench.start(0)?)?;
    println!("boot: one guest answers after {:.2} s", begin.elapsed().as_secs_f64());
    for line in guest.vm.console_tail(20) {
        println!("boot:   {line}");
    }
    guest.expect("hostname", "vm0")?;
    guest.expect("cat /etc/hostname; grep -c ' vm0$' /etc/hosts", "vm0|1")?;
    guest.expect("cat /sys/class/net/dummy0/operstate", "unknown")?;
    guest.expect("stat -c %a / /dev/shm /dev/null /run", "755|1777|666|755")?;
    // The host's files under an overlay, the working directory itself.
    let exe = std::env::current_exe()?;
    let meta = fs::metadata(&exe)?;
    guest.expect(
        &format!("stat -c '%u %g %s' {}", exe.display()),
        &format!("{} {} {}", meta.uid(), meta.gid(), meta.len()),
    )?;
    guest.expect("echo x > /opt/made && cat /opt/made", "x")?;
    guest.expect("changes", r#"[Change { path: "/opt/made", bytes: 2 }]"#)?;
    let file = bench.work.join("result");
    guest.expect(&format!("echo from the guest > {0}; cat {0}", file.display()), "from the guest")?;
    if fs::read_to_string(&file)? != "from the guest\n" || Path::new("/opt/made").exists() {
        return Err("files did not go where they should".into());
    }
    fs::write(&file, "from the host")?;
    guest.expect(&format!("cat {}", file.display()), "from the host")?;
    guest.expect("cat /sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc")?;
    guest.vm.pin(&[0])?;
    writeln!(guest.port.get_mut(), "exit")?;
    let begin = Instant::now();
    match guest.vm.wait(Duration::from_secs(10)) {
        Some(status) if status.success() => {}
        other => return Err(format!("power off: {other:?}").into()),
    }
    println!("boot: powered off in {:.2} s", begin.elapsed().as_secs_f64());
    // A panic ends the machine and leaves its text.
    let mut guest = bench.connect(bench.start(1)?)?;
    writeln!(guest.port.get_mut(), "panic")?;
    let ended = guest.vm.wait(Duration::from_secs(10));
    let said = guest.vm.console_tail(50).join("\n");
    if ended.is_none() || !said.contains("asked to") {
        return Err(format!("panic: {ended:?}, console {said}").into());
    }
    Ok(())
}

/// Several at once, as a run boots them.
fn several(count: u8) -> Outcome {
    let bench = Bench::new()?;
    let begin = Instant::now();
    let vms: Vec<Vm> = (0..count).map(|index| bench.start(index)).collect::<Outcome<_>>()?;
    let mut guests = Vec::new();
    for vm in vms {
        guests.push(bench.connect(vm)?);
    }
    println!("boot: {count} guests answer after {:.2} s", begin.elapsed().as_secs_f64());
    for guest in &mut guests {
        for line in guest.vm.console_tail(5) {
            println!("boot:   {line}");
        }
        let name = guest.vm.name().to_owned();
        guest.expect("hostname", &name)?;
    }
    // What one has written and closed the other reads whole.
    let file = bench.work.join("shared");
    let count_bytes = format!("wc -c < {}", file.display());
    for bytes in ["1000", "300000"] {
        guests[0].expect(&format!("head -c {bytes} /dev/zero > {}", file.display()), "")?;
        guests[1].expect(&count_bytes, bytes)?;
    }
    Ok(())
}
