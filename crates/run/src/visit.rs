//! Visitors: `isthmus exec` and `isthmus shell`, which run a command in a VM of a run beside its job.
//!
//! A visitor connects to the run's switch as remote shells do, but says that it is a visitor, so that its
//! processes do not affect the run's exit status. It sends only the command; the run itself adds everything else that makes
//! a process the job's twin (user, groups, limits, environment, working directory).

use std::ffi::OsString;
use std::io;
use std::os::unix::net::UnixStream;

use isthmus_guest::wire::{Frame, Kind, Request, WireError};

use crate::error::{Error, Result, tell};
use crate::front::status_of_signal;
use crate::runs;
use crate::session::{self, End, Manner};
use crate::switch::{AGENT_SOCKET, Announce, CLIENT_STREAM};

/// What programs must know of their terminal, which is the visitor's and not the job's.
const OF_THE_TERMINAL: [&str; 2] = ["TERM", "COLORTERM"];

/// What a visitor wants.
#[derive(Clone, Debug)]
pub struct Visit {
    /// Which run, by its process number or its directory, if the VM's name does not decide that.
    pub run: Option<String>,
    /// The VM's host name, where there are several.
    pub vm: Option<String>,
    /// The command; the user's shell if it is empty.
    pub command: Vec<OsString>,
    /// Give it a terminal.
    pub terminal: bool,
}

/// Runs the command and returns its exit status, as a shell would state it.
///
/// # Errors
/// [`Error::Usage`] if run or VM are not clear, or there is no terminal; [`Error::Visit`].
pub fn run(visit: &Visit) -> Result<i32> {
    let window = visit.terminal.then(session::window).flatten();
    if visit.terminal && window.is_none() {
        return Err(Error::Usage("-t: standard input is no terminal".into()));
    }
    let (found, vm) = runs::find(visit.run.as_deref(), visit.vm.as_deref())?;
    let failed = |why: String| Error::Visit { vm: vm.clone(), why };
    let socket = found.dir.join(AGENT_SOCKET);
    let connection = UnixStream::connect(&socket)
        .map_err(|e| failed(format!("the run does not answer at {}: {e}", socket.display())))?;
    introduce(&connection, &vm).map_err(failed)?;
    let mut argv = visit.command.clone();
    if argv.is_empty() && window.is_some() && visit.run.is_none() {
        // A user may have forgotten another run of their own.
        tell!("{vm} of run {}, which was started in {}", found.is.pid, found.is.directory.display());
    }
    if argv.is_empty() {
        argv.push(
            std::env::var_os("SHELL").filter(|shell| !shell.is_empty()).unwrap_or_else(|| "/bin/sh".into()),
        );
    }
    let env = OF_THE_TERMINAL
        .iter()
        .filter(|_| window.is_some())
        .filter_map(|name| Some((OsString::from(name), std::env::var_os(name)?)))
        .collect();
    let request = Request { argv, env, terminal: window, ..Request::default() }.encode();
    if !Frame::fits(Kind::Start, request.len()) {
        return Err(failed("the command is too long".into()));
    }
    let manner = Manner { terminal: window.is_some(), impatient: true, ..Manner::default() };
    let start = Frame::new(Kind::Start, CLIENT_STREAM, request);
    match session::follow(connection, &start, manner).map_err(|e: io::Error| failed(e.to_string()))? {
        End::Exited(status) => Ok(status),
        End::Gone => Err(failed("the run has ended, and the command with it".into())),
        End::Refused(why) => Err(failed(why)),
        End::Abandoned { signal } => Ok(status_of_signal(signal)),
    }
}

/// Says hello, and names the VM.
fn introduce(run: &UnixStream, vm: &str) -> std::result::Result<(), String> {
    let text = |e: WireError| match e {
        WireError::Closed => "the run has just ended".to_owned(),
        e => format!("the run does not answer: {e}"),
    };
    Frame::hello().write_to(run).map_err(text)?;
    Frame::read_from(run).and_then(|frame| frame.check_hello()).map_err(text)?;
    let announce = Announce { host: vm.to_owned(), ports: Vec::new(), visitor: true };
    let payload = serde_json::to_vec(&announce).map_err(|e| e.to_string())?;
    Frame::new(Kind::Announce, 0, payload).write_to(run).map_err(text)?;
    let answer = Frame::read_from(run).map_err(text)?;
    match answer.kind {
        Kind::Announced => Ok(()),
        Kind::Refused => Err(answer.text()),
        kind => Err(format!("the run answers with a frame of kind {}", kind as u8)),
    }
}
