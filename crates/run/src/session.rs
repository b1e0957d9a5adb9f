//! Standing for a process in a VM: its standard streams, its terminal, its signals, its end.
//!
//! Two programs do so: the remote shell that an MPI's launcher starts ([`crate::rsh`]), and the visitor that a
//! user starts ([`crate::visit`]).

use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use isthmus_attach::daemon::not_ignored;
use isthmus_guest::wire::mux::{Mux, set_nonblocking};
use isthmus_guest::wire::{CHANNEL_ERR, CHANNEL_IN, CHANNEL_OUT, Exit, Frame, Kind, Window, WireError};
use rustix::event::Timespec;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use signal_hook::consts::{
    SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGSTOP, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGWINCH,
};

use crate::front::status_of_signal;
use crate::switch::CLIENT_STREAM;
use crate::terminal;

/// Two signals closer than this are one: `timeout` signals a process and its group at once.
const SAME_SIGNAL: Duration = Duration::from_millis(150);

/// How often signals are looked for while output waits for its reader.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// How a process in a VM ended, as its stand-in sees it.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// With this status, as a shell would state it.
    Exited(i32),
    /// The connection to the run is gone, and the process with it.
    Gone,
    /// It was not started, or the run closed the connection, for this reason.
    Refused(String),
    /// A second signal asked for the end, after the process had ignored the first.
    Abandoned {
        /// The signal.
        signal: i32,
    },
}

/// The size of the window of the terminal that is this process's standard input.
pub fn window() -> Option<Window> {
    let size = tcgetwinsize(io::stdin()).ok()?;
    Some(Window { rows: size.ws_row, columns: size.ws_col, width: size.ws_xpixel, height: size.ws_ypixel })
}

/// Standard input as a terminal that passes every key on. Its former settings are restored on drop.
struct Raw {
    before: Termios,
}

impl Raw {
    fn enter() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Self { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // What was typed ahead stays for the shell that comes after.
        let _ = tcsetattr(io::stdin(), OptionalActions::Drain, &self.before);
    }
}

/// Signals as they come, with a descriptor that wakes.
struct Signals {
    woken: UnixStream,
    came: Vec<(i32, Arc<AtomicBool>)>,
}

impl Signals {
    fn watch(wanted: &[i32]) -> io::Result<Self> {
        let (woken, waker) = UnixStream::pair()?;
        set_nonblocking(&woken)?;
        let mut came = Vec::new();
        for signal in wanted {
            let flag = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(*signal, Arc::clone(&flag))?;
            signal_hook::low_level::pipe::register(*signal, waker.try_clone()?)?;
            came.push((*signal, flag));
        }
        Ok(Self { woken, came })
    }

    fn take(&self) -> Vec<i32> {
        let mut drained = [0; 64];
        while (&self.woken).read(&mut drained).is_ok_and(|n| n > 0) {}
        #[allow(clippy::disallowed_types)]
        // signal-hook's handler sets a flag of the standard library, before it writes the byte
        let taken =
            self.came.iter().filter(|(_, flag)| flag.swap(false, std::sync::atomic::Ordering::Relaxed));
        taken.map(|(signal, _)| *signal).collect()
    }
}

/// What a stand-in does beside carrying bytes and signals.
#[derive(Clone, Copy, Debug, Default)]
pub struct Manner {
    /// The process has a terminal: this process's terminal passes every key on, and changes of its window are sent.
    pub terminal: bool,
    /// A second INT, TERM or HUP ends the stand-in, and with it the process, even if that ignores signals.
    pub impatient: bool,
    /// TSTP stops the process, and not the stand-in; CONT continues it.
    pub stops: bool,
}

/// Starts the process that `start` asks for and stands for it until it ends. Hellos were exchanged on `run`.
///
/// # Errors
/// Those of the connection, and of this process's own streams.
pub fn follow(run: UnixStream, start: &Frame, manner: Manner) -> io::Result<End> {
    let mut wanted = vec![SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2];
    if manner.terminal {
        wanted.push(SIGWINCH);
    }
    if manner.stops {
        wanted.extend([SIGTSTP, SIGCONT]);
    }
    // What a person started to ignore signals, as nohup(1) does; what a launcher starts takes all of them.
    let wanted = if manner.impatient { not_ignored(&wanted) } else { wanted };
    let signals = Signals::watch(&wanted)?;
    let raw = if manner.terminal { Some(Raw::enter()?) } else { None };
    let mut mux = Mux::greeted_already(run.into())?;
    mux.send(start);
    let copy = |fd: &dyn AsFd| -> io::Result<OwnedFd> { fd.as_fd().try_clone_to_owned() };
    // A process without a terminal of its own reads this process's terminal from its foreground only.
    let input = if manner.terminal { copy(&io::stdin())? } else { terminal::input()? };
    mux.add_source((CLIENT_STREAM, CHANNEL_IN), input);
    mux.add_sink((CLIENT_STREAM, CHANNEL_OUT), copy(&io::stdout())?);
    mux.add_sink((CLIENT_STREAM, CHANNEL_ERR), copy(&io::stderr())?);
    let end = carry(&mut mux, &signals, manner);
    drop(raw);
    end
}

fn carry(mux: &mut Mux, signals: &Signals, manner: Manner) -> io::Result<End> {
    let mut exit = None;
    let mut asked: Option<Instant> = None;
    loop {
        if let Some(status) = exit
            && [CHANNEL_OUT, CHANNEL_ERR].iter().all(|channel| !mux.has_waiting((CLIENT_STREAM, *channel)))
        {
            return Ok(End::Exited(status));
        }
        let turn = match mux.wait(&[signals.woken.as_fd()], None) {
            Ok(turn) => turn,
            // The run has ended after the process, whose last output may still wait for its reader here.
            Err(_) if let Some(status) = exit => return Ok(write_rest(mux, signals, manner, status)),
            Err(WireError::Closed) => {
                write_rest(mux, signals, manner, 0);
                return Ok(End::Gone);
            }
            Err(e) => return Err(io::Error::other(e)),
        };
        for signal in if turn.ready.is_empty() { Vec::new() } else { signals.take() } {
            if signal == SIGWINCH {
                if let Some(window) = window() {
                    mux.send(&Frame::new(Kind::Resize, CLIENT_STREAM, window.encode()));
                }
                continue;
            }
            if manner.impatient && matches!(signal, SIGINT | SIGTERM | SIGHUP) {
                match asked {
                    Some(first) if first.elapsed() >= SAME_SIGNAL => return Ok(End::Abandoned { signal }),
                    Some(_) => {}
                    None => asked = Some(Instant::now()),
                }
            }
            // Where there is no terminal, as in a VM, a process is not stopped by what terminals send.
            let signal = if signal == SIGTSTP { SIGSTOP } else { signal };
            mux.send(&Frame::new(Kind::Signal, CLIENT_STREAM, signal.to_le_bytes()));
        }
        let Some(frame) = turn.frame else { continue };
        match frame.kind {
            Kind::Exited => {
                exit = Some(match Exit::decode(&frame.payload).map_err(io::Error::other)? {
                    Exit::Code(code) => code,
                    Exit::Signal(signal) => status_of_signal(signal),
                });
            }
            Kind::Refused => return Ok(End::Refused(frame.text())),
            _ => {}
        }
    }
}

/// Writes what a process had still to say, of which nothing comes any more, and gives its end.
fn write_rest(mux: &mut Mux, signals: &Signals, manner: Manner, status: i32) -> End {
    for channel in [CHANNEL_OUT, CHANNEL_ERR] {
        while mux.write_rest((CLIENT_STREAM, channel), &TICK).is_ok_and(|more| more) {
            let ends = |signal: &i32| matches!(*signal, SIGINT | SIGTERM | SIGHUP | SIGQUIT);
            if let Some(signal) = signals.take().into_iter().find(ends).filter(|_| manner.impatient) {
                return End::Abandoned { signal };
            }
        }
    }
    End::Exited(status)
}
