//! The remote shell: what an MPI's launcher starts in place of ssh, once per host name.
//!
//! PRRTE and ORTE call it `NAME HOST COMMAND...`, Hydra `NAME -x HOST COMMAND...`, Intel's `NAME -q -x HOST COMMAND...`.
//! (Their settings call it the rsh or ssh agent.) The command starts the MPI's daemon, which connects back to the
//! launcher. A VM has no network, so the ports that the command names are announced to the run, which has the VM's relay
//! listen for them, and the command is rewritten to the VM's own address. The daemon must stay in the foreground, since
//! this process stands for it: its output, its signals, its status.

use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use isthmus_guest::exec::exec_as;
use isthmus_guest::wire::{Frame, Kind, WireError};

use crate::error::tell;
use crate::hydra;
use crate::mpi::{self, STRIP_VARIABLE};
use crate::rundir;
use crate::session::{self, End, Manner};
use crate::switch::{AGENT_SOCKET, Announce, Announced, CLIENT_STREAM};

/// The remote shell's name in the run's directory: a program called by it is the remote shell.
pub const REMOTE_SHELL_NAME: &str = "isthmus-rsh";
/// The hidden subcommand that does the same.
pub const RSH_COMMAND: &str = "rsh";
/// The hidden subcommand by which our own launcher starts a process in a VM.
pub const ON_COMMAND: &str = "on";
/// The variable that names the run's directory.
pub const RUN_VARIABLE: &str = "ISTHMUS_RUN";
/// The status with which ssh reports failures of its own, which launchers know.
const FAILED: i32 = 255;
/// Settings that hold for the launcher's own host only.
const NOT_FOR_GUESTS: [&str; 3] =
    ["PRTE_MCA_prte_local_tmpdir_base", STRIP_VARIABLE, "OMPI_MCA_plm_rsh_agent"];

/// Whether processes in VMs get the variable `name`, too.
pub(crate) fn for_guests(name: &OsStr) -> bool {
    NOT_FOR_GUESTS.iter().all(|unwanted| name != *unwanted)
}

/// `isthmus-rsh HOST COMMAND...`; `args` begins with the name it was called by.
pub fn main(args: &[OsString]) -> i32 {
    match carry_out(args) {
        Ok(status) => status,
        Err(why) => {
            tell!("{}: {why}", REMOTE_SHELL_NAME);
            FAILED
        }
    }
}

/// The host and the command in a launcher's arguments.
fn parse(args: &[OsString]) -> Result<(String, String), String> {
    let text: Vec<String> = args
        .iter()
        .map(|arg| arg.clone().into_string().map_err(|arg| format!("{} is not UTF-8", arg.to_string_lossy())))
        .collect::<Result<_, _>>()?;
    let mut words = text.iter().map(String::as_str).skip_while(|word| word.starts_with('-'));
    let host = words.next().ok_or("no host given")?;
    // As ssh does: what follows is joined with blanks and given to a shell.
    let command = words.collect::<Vec<_>>().join(" ");
    if command.is_empty() {
        return Err(format!("no command given for {host}"));
    }
    Ok((host.to_owned(), command))
}

fn run_directory(called: &OsString) -> Result<PathBuf, String> {
    let beside = Path::new(called).parent().filter(|dir| dir.join(AGENT_SOCKET).exists());
    beside
        .map(Path::to_owned)
        .or_else(|| std::env::var_os(RUN_VARIABLE).map(PathBuf::from))
        .ok_or_else(|| format!("{RUN_VARIABLE} is not set; only `isthmus run` starts this program"))
}

/// A port that a command names: where its number stands, and where it leads.
#[derive(Debug, PartialEq, Eq)]
struct Named {
    /// What is to be replaced by the VM's address.
    span: std::ops::Range<usize>,
    port: u16,
    targets: Vec<SocketAddr>,
    /// What stands before, between and after address and port in the replacement.
    around: (&'static str, &'static str, &'static str),
}

/// `--control-port HOST:PORT` of Hydra. It listens on all addresses.
fn hydra_port(command: &str) -> Option<Named> {
    const FLAG: &str = "--control-port ";
    let start = command.find(FLAG)? + FLAG.len();
    let word = command[start..].split_whitespace().next()?;
    let port = word.rsplit_once(':')?.1.trim_end_matches('"').parse().ok()?;
    let targets = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, port))];
    Some(Named { span: start..start + word.len(), port, targets, around: ("", ":", "") })
}

/// `--upstream-host HOST --upstream-port PORT` of Intel's Hydra. It listens on all addresses.
fn intel_port(command: &str) -> Option<Named> {
    const HOST: &str = "--upstream-host ";
    const PORT: &str = " --upstream-port ";
    let start = command.find(HOST)? + HOST.len();
    let host = command[start..].split_whitespace().next()?;
    let rest = command[start + host.len()..].strip_prefix(PORT)?;
    let digits = rest.split_whitespace().next()?;
    let port = digits.parse().ok()?;
    let targets = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, port))];
    let span = start..start + host.len() + PORT.len() + digits.len();
    Some(Named { span, port, targets, around: ("", PORT, "") })
}

/// The addresses of a PRRTE URI, `NAME;tcp://A,B:PORT:24,24;tcp6://[...]:PORT:64`, or of one of ORTE, which has no
/// network masks at its end.
fn prrte_ports(command: &str) -> Vec<Named> {
    let mut found = Vec::new();
    let flags = [
        ("prte_hnp_uri \"", ":24"),
        ("prte_parent_uri \"", ":24"),
        ("orte_hnp_uri \"", ""),
        ("orte_parent_uri \"", ""),
    ];
    for (flag, after) in flags {
        let Some(start) = command.find(flag).map(|at| at + flag.len()) else { continue };
        let Some(uri) = command[start..].split('"').next() else { continue };
        let Some(name) = uri.find(';') else { continue };
        let tcp = uri[name + 1..].split(';').find_map(|part| part.strip_prefix("tcp://"));
        let Some((addresses, rest)) = tcp.and_then(|tcp| tcp.split_once(':')) else { continue };
        let Some(port) = rest.split(':').next().and_then(|port| port.parse().ok()) else { continue };
        let mut targets: Vec<SocketAddr> = addresses
            .split(',')
            .filter_map(|address| address.parse::<IpAddr>().ok())
            .map(|address| SocketAddr::from((address, port)))
            .collect();
        targets.push(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        found.push(Named {
            span: start + name + 1..start + uri.len(),
            port,
            targets,
            around: ("tcp://", ":", after),
        });
    }
    found
}

fn named_ports(command: &str) -> Vec<Named> {
    let mut named = prrte_ports(command);
    named.extend(hydra_port(command));
    named.extend(intel_port(command));
    named.sort_by_key(|named| named.span.start);
    named
}

/// The command as the VM shall run it.
fn rewrite(command: &str, named: &[Named], announced: &Announced) -> Result<String, String> {
    let mut rewritten = String::with_capacity(command.len());
    let mut from = 0;
    for Named { span, port, around: (before, between, after), .. } in named {
        let at = announced.ports.get(port).ok_or_else(|| format!("port {port} was not announced"))?;
        rewritten.push_str(&command[from..span.start]);
        rewritten.push_str(&format!("{before}{}{between}{at}{after}", announced.address));
        from = span.end;
    }
    rewritten.push_str(&command[from..]);
    // In the background the daemon would be an orphan in the VM, and this process could not stand for it.
    let foreground = rewritten.replace(" --daemonize", "");
    Ok(REPEATED.iter().fold(foreground, |command, words| without(&command, words)))
}

/// Settings that a launcher repeats on its daemon's command line and that hold for its own host only: a name that PRRTE
/// gives itself, and ORTE's way to start daemons, with which a daemon refuses to start if the remote shell is not a file.
const REPEATED: [&str; 3] = ["--prtemca prte_strip_prefix", "-mca plm", "-mca plm_rsh_agent"];

/// `command` without `words` and the quoted value behind them.
fn without(command: &str, words: &str) -> String {
    let words = format!(" {words} \"");
    let Some(start) = command.find(&words) else { return command.to_owned() };
    let rest = &command[start + words.len()..];
    let Some(end) = rest.find('"') else { return command.to_owned() };
    format!("{}{}", &command[..start], &rest[end + 1..])
}

fn carry_out(args: &[OsString]) -> Result<i32, String> {
    let (called, args) = args.split_first().ok_or("no arguments")?;
    let (host, command) = parse(args)?;
    if host == "localhost" {
        let error = Command::new("/bin/sh").arg("-c").arg(command.replace(" --daemonize", "")).exec();
        return Err(format!("cannot run /bin/sh: {error}"));
    }
    let dir = run_directory(called)?;
    let command = hydra::with_real_proxy(&command, &dir);
    let named = named_ports(&command);
    let (run, announced) = reach(&dir, &host, &named)?;
    let command = format!("{}{}", leave_hints(&dir), rewrite(&command, &named, &announced)?);
    stand_in(run, &dir, &host, vec!["/bin/sh".into(), "-c".into(), command.into()], Manner::default())
}

/// `isthmus on VM PROGRAM ARGS...`: stands for a process of our own launcher in a VM. `args` begins with the VM.
pub fn on_main(args: &[OsString]) -> i32 {
    let carry_out = || {
        let (host, command) = args.split_first().ok_or("no host given")?;
        let host = host.to_string_lossy();
        let dir = run_directory(&OsString::new())?;
        let (run, _) = reach(&dir, &host, &[])?;
        stand_in(run, &dir, &host, command.to_vec(), Manner { stops: true, ..Manner::default() })
    };
    carry_out().unwrap_or_else(|why: String| {
        tell!("{why}");
        FAILED
    })
}

/// Connects to the run, and announces what its VM must know.
fn reach(dir: &Path, host: &str, named: &[Named]) -> Result<(UnixStream, Announced), String> {
    let socket = dir.join(AGENT_SOCKET);
    let run = UnixStream::connect(&socket)
        .map_err(|e| format!("cannot reach the run at {}: {e}", socket.display()))?;
    let announced = announce(&run, host, named).map_err(|e| match e {
        Talk::Wire(e) => format!("the run does not answer: {e}"),
        Talk::Refused(why) => why,
    })?;
    Ok((run, announced))
}

/// Starts a process in a VM that is as this one, and stands for it until it ends; gives its status.
fn stand_in(
    run: UnixStream,
    dir: &Path,
    host: &str,
    argv: Vec<OsString>,
    manner: Manner,
) -> Result<i32, String> {
    let mut request =
        exec_as::own_request(argv).map_err(|e| format!("cannot tell what this process is: {e}"))?;
    request.env.retain(|(name, _)| for_guests(name));
    request.make_dirs.push(rundir::shm_twin(dir));
    let request = request.encode();
    if !Frame::fits(Kind::Start, request.len()) {
        return Err("the environment and command are too long".into());
    }
    let start = Frame::new(Kind::Start, CLIENT_STREAM, request);
    match session::follow(run, &start, manner).map_err(|e| e.to_string())? {
        End::Exited(status) => Ok(status),
        // The run reports a lost VM itself, once.
        End::Gone | End::Abandoned { .. } => Ok(FAILED),
        End::Refused(why) => Err(format!("{host}: {why}")),
    }
}

/// A shell command that puts the hints for MPI-IO where the VM has its twin of the run's directory.
fn leave_hints(dir: &Path) -> String {
    let file = rundir::shm_twin(dir).join(mpi::HINTS_NAME);
    format!("echo '{}' >'{}'; ", mpi::HINTS.trim_end(), file.display())
}

/// What can go wrong before the process runs.
enum Talk {
    Wire(WireError),
    Refused(String),
}

impl From<WireError> for Talk {
    fn from(e: WireError) -> Self {
        Self::Wire(e)
    }
}

fn announce(run: &UnixStream, host: &str, named: &[Named]) -> Result<Announced, Talk> {
    let bad = |_| Talk::Wire(WireError::BadPayload { what: "announcement" });
    Frame::hello().write_to(run)?;
    Frame::read_from(run)?.check_hello()?;
    let ports = named.iter().map(|named| (named.port, named.targets.clone())).collect();
    let announce = Announce { host: host.to_owned(), ports, visitor: false };
    Frame::new(Kind::Announce, 0, serde_json::to_vec(&announce).map_err(bad)?).write_to(run)?;
    let answer = Frame::read_from(run)?;
    match answer.kind {
        Kind::Announced => serde_json::from_slice(&answer.payload).map_err(bad),
        Kind::Refused => Err(Talk::Refused(answer.text())),
        kind => Err(WireError::BadFrame { kind: kind as u8, len: answer.payload.len() }.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn announced() -> Announced {
        Announced { address: Ipv4Addr::new(10, 1, 2, 3), ports: BTreeMap::from([(36793, 36793), (40759, 5)]) }
    }

    #[test]
    fn a_prrte_line_gets_the_address_of_the_vm_and_stays_in_the_foreground() {
        let line = "A=b;export A;/x/prted --daemonize --prtemca ess_base_vpid 1 --prtemca prte_hnp_uri \
                    \"prterun-vm-7871@0.0;tcp://192.0.2.2,10.0.0.1:36793:64,24;tcp6://[fd00::2]:50905:64\" --prtemca prte_strip_prefix \"nod\" --prtemca plm \"ssh\"";
        let named = named_ports(line);
        let targets: Vec<String> = named[0].targets.iter().map(ToString::to_string).collect();
        assert_eq!(targets, ["192.0.2.2:36793", "10.0.0.1:36793", "127.0.0.1:36793"]);
        assert_eq!(
            rewrite(line, &named, &announced()).unwrap(),
            "A=b;export A;/x/prted --prtemca ess_base_vpid 1 --prtemca prte_hnp_uri \
             \"prterun-vm-7871@0.0;tcp://10.1.2.3:36793:24\" --prtemca plm \"ssh\""
        );
    }

    #[test]
    fn a_hydra_line_gets_the_address_and_port_of_the_vm() {
        let args: Vec<OsString> =
            ["-x", "vm1", "\"/x/hydra_pmi_proxy\"", "--control-port", "some-host:40759", "--rmk", "user"]
                .map(OsString::from)
                .into();
        let (host, line) = parse(&args).unwrap();
        assert_eq!(host, "vm1");
        let named = named_ports(&line);
        assert_eq!(named[0].targets, [SocketAddr::from((Ipv4Addr::LOCALHOST, 40759))]);
        let rewritten = rewrite(&line, &named, &announced()).unwrap();
        assert_eq!(rewritten, "\"/x/hydra_pmi_proxy\" --control-port 10.1.2.3:5 --rmk user");
    }

    #[test]
    fn an_orte_line_gets_the_address_of_the_vm_without_a_mask() {
        let line = "/usr/bin/orted -mca ess_base_vpid 2 -mca orte_hnp_uri \"136577024.0;tcp://192.0.2.2,10.0.0.1:40759;\
                    tcp6://[fd00::2]:38653\" -mca plm \"rsh\" -mca plm_rsh_agent \"/r/isthmus-rsh\" -mca routed \"radix\"";
        let named = named_ports(line);
        let targets: Vec<String> = named[0].targets.iter().map(ToString::to_string).collect();
        assert_eq!(targets, ["192.0.2.2:40759", "10.0.0.1:40759", "127.0.0.1:40759"]);
        assert_eq!(
            rewrite(line, &named, &announced()).unwrap(),
            "/usr/bin/orted -mca ess_base_vpid 2 -mca orte_hnp_uri \"136577024.0;tcp://10.1.2.3:5\" \
             -mca routed \"radix\""
        );
    }

    #[test]
    fn a_line_of_intels_hydra_gets_the_address_and_port_of_the_vm() {
        let args: Vec<OsString> = [
            "-q",
            "-x",
            "vm1",
            "/x/hydra_bstrap_proxy",
            "--upstream-host",
            "some-host",
            "--upstream-port",
            "40759",
            "--pgid",
            "0",
        ]
        .map(OsString::from)
        .into();
        let (host, line) = parse(&args).unwrap();
        assert_eq!(host, "vm1");
        let rewritten = rewrite(&line, &named_ports(&line), &announced()).unwrap();
        assert_eq!(rewritten, "/x/hydra_bstrap_proxy --upstream-host 10.1.2.3 --upstream-port 5 --pgid 0");
    }

    #[test]
    fn an_ordinary_command_is_left_alone() {
        assert!(named_ports("ls -l /tmp").is_empty());
        assert!(parse(&["-x".into()]).is_err());
        assert!(parse(&["host".into()]).is_err());
    }
}
