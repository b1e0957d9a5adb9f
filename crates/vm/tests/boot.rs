//! Boots real guests: run with `ISTHMUS_TEST_VM=1` (or the name of one test), and QEMU installed.
//! `ISTHMUS_TEST_KERNEL` takes another kernel, `ISTHMUS_TEST_APPEND` adds to its command line.
//!
//! This program is packed into the guests as their first process, as `isthmus` is in real life; there it answers
//! questions on a port. So it has a `main` of its own and no test harness.

use isthmus_guest::boot::{self, Booted};
use isthmus_region::shared_by_threads::Flag;
use isthmus_vm::accel::{self, Accel, Choice};
use isthmus_vm::boot_config::{BootConfig, GuestShare, HostEntry, Interface, InterfaceKind, ROOT_TAG};
use isthmus_vm::ivshmem::Ivshmem;
use isthmus_vm::qemu::{Console, Share, Tap, Vm, VmConfig};
use isthmus_vm::tap::{Netns, Plan};
use isthmus_vm::{initramfs, kernel};
use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() {
    if boot::is_init() {
        boot::run(answer);
    }
    if std::env::var_os("ISTHMUS_TEST_VM").is_none() {
        println!("skipped: boot: set ISTHMUS_TEST_VM=1 to boot guests");
        return;
    }
    let outcome = match std::env::var("ISTHMUS_TEST_VM").as_deref() {
        Ok("one") => one(),
        Ok("several") => several(2),
        Ok("networked") => networked(),
        _ => one().and_then(|()| several(2)).and_then(|()| networked()),
    };
    if let Err(error) = outcome {
        println!("boot: FAILED: {error}");
        std::process::exit(1);
    }
}

/// The guest's side: each line is a shell command, answered by one line of its output; `exit` ends it.
fn answer(booted: Booted) {
    let port = fs::File::options().read(true).write(true).open(&booted.ports["test"]).unwrap();
    assert!(boot::wait_for_host(&port, Duration::from_secs(120)));
    let mut out = port.try_clone().unwrap();
    for line in BufReader::new(port).lines() {
        let line = line.unwrap();
        let reply = match line.as_str() {
            "exit" => return,
            "panic" => panic!("asked to"),
            "listen" => listen(),
            "region" => region(&booted),
            "changes" => format!("{:?}", booted.overlay_changes().unwrap()),
            command if command.starts_with("connect ") => connect(&command[8..]),
            command => {
                let output = std::process::Command::new("/bin/sh").args(["-c", command]).output().unwrap();
                let text = [output.stdout, output.stderr].concat();
                String::from_utf8_lossy(&text).trim().replace('\n', "|")
            }
        };
        writeln!(out, "{reply}").unwrap();
    }
}

fn listen() -> String {
    let listener = TcpListener::bind("0.0.0.0:5001").unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            writeln!(stream.unwrap(), "hello").unwrap();
        }
    });
    "listening".into()
}

fn connect(address: &str) -> String {
    let mut text = String::new();
    let connected = address
        .parse()
        .map_err(std::io::Error::other)
        .and_then(|address| TcpStream::connect_timeout(&address, Duration::from_secs(5)))
        .and_then(|mut stream| stream.read_to_string(&mut text));
    match connected {
        Ok(_) => text.trim().to_owned(),
        Err(error) => error.to_string(),
    }
}

/// Where the region lies, how large it is, and what its first bytes are.
fn region(booted: &Booted) -> String {
    let device = booted.ivshmem.as_ref().unwrap();
    let resource = fs::read_to_string(device.folder.join("resource")).unwrap();
    let line = resource.lines().nth(2).unwrap();
    let start = u64::from_str_radix(&line[2..18], 16).unwrap();
    let enabled = fs::read_to_string(device.folder.join("enable")).unwrap();
    format!("{} {} {}", device.bytes, if start >= 1 << 32 { "high" } else { "low" }, enabled.trim())
}

/// The least that QEMU's ivshmem-doorbell accepts as a server: one greeting per connection, then nothing.
/// Returns once it listens; the thread ends with this program.
fn serve_region(socket: &Path, bytes: u64) -> Outcome {
    let memory = rustix::fs::memfd_create("region", rustix::fs::MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&memory, bytes)?;
    let listener = UnixListener::bind(socket)?;
    std::thread::spawn(move || {
        let mut clients = Vec::new();
        for client in listener.incoming() {
            let client = client.unwrap();
            // The protocol's version, and the id of a VM that may migrate.
            for number in [0_i64, 0] {
                (&client).write_all(&number.to_le_bytes()).unwrap();
            }
            let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
            let fds = [memory.as_fd()];
            assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&fds)));
            let marker = (-1i64).to_le_bytes();
            let data = [std::io::IoSlice::new(&marker)];
            let flags = rustix::net::SendFlags::empty();
            rustix::net::sendmsg(&client, &data, &mut control, flags).unwrap();
            clients.push(client);
        }
    });
    Ok(())
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
        let console = self.vm.console_tail(10);
        Err(format!("{question}: got {answer:?} instead of {expected:?}; {console:?}").into())
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
        let chosen = std::env::var_os("ISTHMUS_TEST_KERNEL").map(PathBuf::from);
        let kernel = kernel::find(chosen.as_deref(), false, &mut |line| println!("boot: {line}"))?;
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
        self.start_with(index, None, None)
    }

    fn start_with(&self, index: u8, netns: Option<&Netns>, ivshmem: Option<Ivshmem>) -> Outcome<Vm> {
        let name = format!("vm{index}");
        let address = Ipv4Addr::new(10, 9, 8, index + 1);
        let mac = format!("52:54:00:00:00:{:02x}", index + 1);
        let config = BootConfig {
            name: name.clone(),
            hosts: vec![HostEntry { address, name: name.clone() }],
            shares: vec![GuestShare {
                tag: "work".into(),
                path: self.work.clone(),
                read_only: false,
                options: None,
            }],
            interfaces: vec![match netns {
                None => Interface { kind: InterfaceKind::Dummy, address, prefix: 24 },
                Some(_) => Interface {
                    kind: InterfaceKind::VirtioNet { mac: mac.clone() },
                    address: Ipv4Addr::new(10, 77, 0, index + 1),
                    prefix: 16,
                },
            }],
            ports: vec!["test".into()],
            ivshmem: ivshmem.is_some(),
            dax: false,
            verbose: true,
            ..BootConfig::default()
        };
        let own = self.dir.join(&name);
        fs::create_dir_all(&own)?;
        let image = own.join("initramfs");
        initramfs::for_vm(&self.base, &config, None, &image)?;
        let share =
            |tag: &str, path: &Path, read_only| Share { tag: tag.into(), path: path.into(), read_only };
        Ok(Vm::start(&VmConfig {
            name,
            vcpus: 2,
            memory_mib: 512,
            accel: self.accel,
            kernel: self.kernel.vmlinux.clone(),
            initramfs: image,
            ports: vec![("test".into(), own.join("test.sock"))],
            calling_ports: Vec::new(),
            shares: vec![share(ROOT_TAG, Path::new("/"), true), share("work", &self.work, false)],
            ivshmem,
            tap: netns.map(|_| Tap { ifname: format!("tap{index}"), mac }),
            console: Console::create(&own.join("console"), &[])?,
            qmp: own.join("qmp.sock"),
            extra_append: std::env::var("ISTHMUS_TEST_APPEND").unwrap_or_default(),
            prefix: netns.map(Netns::prefix).unwrap_or_default(),
        })?)
    }

    fn connect(&self, vm: Vm) -> Outcome<Guest> {
        let path = self.dir.join(vm.name()).join("test.sock");
        let deadline = Instant::now() + Duration::from_secs(60);
        let socket = loop {
            match UnixStream::connect(&path) {
                Ok(socket) => break socket,
                Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(10)),
                Err(error) => return Err(format!("{error}: {:?}", vm.console_tail(20)).into()),
            }
        };
        socket.set_read_timeout(Some(Duration::from_secs(240)))?;
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
    // Programs are built in working directories: they must run from one, and belong to the user that makes them.
    let program = bench.work.join("program");
    fs::copy("/bin/echo", &program)?;
    guest.expect(&format!("{} ran", program.display()), "ran")?;
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let mine = bench.work.join("mine");
    let as_user = format!("setpriv --reuid {uid} --regid {gid} --clear-groups");
    guest.expect(
        &format!("{as_user} touch {0} && stat -c '%u %g' {0}", mine.display()),
        &format!("{uid} {gid}"),
    )?;
    fs::write(&file, "from the host")?;
    guest.expect(&format!("cat {}", file.display()), "from the host")?;
    guest.expect("cat /sys/devices/system/cpu/online", "0-1")?;
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

/// Keeps all processors busy until it is dropped.
struct Crowd(Arc<Flag>);

impl Crowd {
    fn new() -> Self {
        let over = Arc::new(Flag::new(false));
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) * 2 {
            let over = Arc::clone(&over);
            std::thread::spawn(move || while !over.is_set() {});
        }
        Self(over)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.0.set();
    }
}

/// Seconds of a guest's clock in a second of the host's.
fn clock_rate(guest: &mut Guest) -> Outcome<f64> {
    let mut read = || -> Outcome<(f64, Instant)> {
        let before = Instant::now();
        let answer = guest.ask("cut -d' ' -f1 /proc/uptime")?;
        Ok((answer.parse()?, before + before.elapsed() / 2))
    };
    let (first, begun) = read()?;
    std::thread::sleep(Duration::from_secs(2));
    let (last, ended) = read()?;
    Ok((last - first) / ended.duration_since(begun).as_secs_f64())
}

/// Several at once, as a run boots them, on a host that is busy meanwhile.
fn several(count: u8) -> Outcome {
    let bench = Bench::new()?;
    let begin = Instant::now();
    let crowd = Crowd::new();
    let vms: Vec<Vm> = (0..count).map(|index| bench.start(index)).collect::<Outcome<_>>()?;
    let mut guests = Vec::new();
    for vm in vms {
        guests.push(bench.connect(vm)?);
    }
    drop(crowd);
    // An emulated guest that measured its counter itself was out by 2 to 20 then.
    for guest in &mut guests {
        let rate = clock_rate(guest)?;
        if !(0.9..=1.1).contains(&rate) {
            return Err(format!("{}: its clock counts {rate:.2} s in a second", guest.vm.name()).into());
        }
    }
    println!("boot: {count} guests answer after {:.2} s", begin.elapsed().as_secs_f64());
    for guest in &mut guests {
        for line in guest.vm.console_tail(5) {
            println!("boot:   {line}");
        }
        let name = guest.vm.name().to_owned();
        guest.expect("hostname", &name)?;
    }
    // What one guest has written and closed the other reads whole.
    let file = bench.work.join("shared");
    let count_bytes = format!("wc -c < {}", file.display());
    for bytes in ["1000", "300000"] {
        guests[0].expect(&format!("head -c {bytes} /dev/zero > {}", file.display()), "")?;
        guests[1].expect(&count_bytes, bytes)?;
    }
    Ok(())
}

/// Two guests on a tap network, with a region.
fn networked() -> Outcome {
    const REGION: u64 = 128 << 20;
    let bench = Bench::new()?;
    let socket = bench.dir.join("ivshmem.sock");
    serve_region(&socket, REGION)?;
    let netns = Netns::create(&Plan::new(2))?;
    let begin = Instant::now();
    let vms: Vec<Vm> = (0..2)
        .map(|index| {
            let ivshmem = Ivshmem {
                socket: socket.clone(),
                region_bytes: REGION,
                vectors: 1,
                isolated: None,
                dimm: None,
            };
            bench.start_with(index, Some(&netns), Some(ivshmem))
        })
        .collect::<Outcome<_>>()?;
    let mut guests = Vec::new();
    for vm in vms {
        guests.push(bench.connect(vm)?);
    }
    println!(
        "boot: 2 guests with a network and a region answer after {:.2} s",
        begin.elapsed().as_secs_f64()
    );
    for guest in &mut guests {
        guest.expect("region", &format!("{REGION} high 1"))?;
    }
    guests[0].expect("listen", "listening")?;
    guests[1].expect("connect 10.77.0.1:5001", "hello")?;
    let probe = "exec 3<>/dev/tcp/10.77.0.1/5001 && head -n 1 <&3";
    let output = netns.command("bash").args(["-c", probe]).output()?;
    if output.stdout != b"hello\n" {
        return Err(format!("from the host's side of the network: {output:?}").into());
    }
    println!("boot: the network and the region work");
    Ok(())
}
