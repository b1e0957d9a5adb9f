//! From the launcher's start to its end: what ends the job, and whether a status of 0 is to be believed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use signal_hook::consts::{SIGCONT, SIGTSTP};

use super::launcher::Launcher;
use super::{Event, Run, ends, with_console};
use crate::error::{Error, Result, tell};
use crate::lost_files::LostFiles;
use crate::machines::Machine;
use crate::mapped::Mapped;
use crate::mpi::Flavour;
use crate::switch::{self, Switch};
use crate::{stuck, tree};

/// After the launcher's end, how long to wait for news that a VM's end was the reason.
const VM_NEWS: Duration = Duration::from_millis(300);
/// The same natively, for news of a rank's death: the service hears of it by itself.
const NATIVE_NEWS: Duration = Duration::from_millis(100);
/// After the launcher's end with status 0, how long its daemons may take to end, too.
const DAEMON_GRACE: Duration = Duration::from_secs(2);
/// How long the VMs may take to list the files that vanish with them.
const CHANGES_LIMIT: Duration = Duration::from_secs(5);
/// How long a launcher has to stop its processes before it hears that they are to go on: signals of two kinds that wait for it come in
/// any order.
const STOPPING: Duration = Duration::from_millis(300);
/// How often adopted orphans are reaped.
const ORPHANS_EVERY: Duration = Duration::from_secs(5);

impl Run<'_> {
    /// Waits for the launcher's end, and passes signals on to it meanwhile.
    pub(super) fn follow(
        &self,
        launcher: &Launcher,
        machines: &[Machine],
        mapped: &Arc<Mapped>,
    ) -> Result<i32> {
        let Launcher { pid, flavour } = *launcher;
        launcher.watch(self)?;
        let stuck = self.sender.clone();
        if flavour == Some(Flavour::OpenMpi4) {
            stuck::watch(pid, move |child| {
                let _ = stuck.send(Event::Stuck(child));
            });
        }
        let claimed: Vec<Pid> = machines.iter().map(|m| m.pid).chain([pid]).collect();
        let scanner = Arc::clone(mapped);
        let _ = thread::Builder::new().name("orphans".into()).spawn(move || {
            let mut seen = Vec::new();
            loop {
                thread::sleep(ORPHANS_EVERY);
                tree::reap_orphans(&claimed, &mut seen);
                scanner.scan();
            }
        });
        let mut daemons = Daemons::default();
        let mut stopped: Option<Instant> = None;
        loop {
            match self.next(self.deadline) {
                Ok(Event::Signal(signal)) => {
                    if ends(signal) {
                        daemons.asked.get_or_insert(signal);
                        mapped.scan_soon();
                    }
                    match signal {
                        SIGTSTP => stopped = Some(Instant::now()),
                        SIGCONT => {
                            let rest = stopped.take().map(|at| STOPPING.saturating_sub(at.elapsed()));
                            thread::sleep(rest.unwrap_or_default());
                        }
                        _ => {}
                    }
                    launcher.signal(signal);
                }
                Ok(Event::Launcher(end)) => {
                    end.tell(launcher.name());
                    if let Some(asked) = daemons.asked.filter(|_| end.status != 0) {
                        tell!("{}: {} ended with status {}", name_of(asked), launcher.name(), end.status);
                    }
                    daemons.wait(end.status, self, machines)?;
                    // A full line may ask the launcher for its version only.
                    let expected = self.spec.ranks.is_some()
                        && self.spec.guest_ranks() > Some(0)
                        && !machines.is_empty();
                    return if end.status == 0 {
                        // Our own believes no daemon.
                        flavour.map_or(Ok(0), |flavour| daemons.judge(expected, flavour, machines))
                    } else {
                        Ok(end.status)
                    };
                }
                Ok(Event::Stuck(child)) => {
                    mapped.scan_soon();
                    daemons.hear_all(self);
                    // The launcher handles no signal; the guardian ends what is left.
                    return Err(Error::Stuck { child });
                }
                Ok(Event::Switch(switch::News::Lost { vm, why })) => {
                    let error = lost(&machines[vm], &why);
                    // mpirun would end by itself, with status 0, but its other ranks might not.
                    launcher.end(self);
                    return Err(error);
                }
                Ok(Event::Switch(news)) => {
                    if matches!(news, switch::News::Note { .. }) {
                        // One rank has died; the others are about to.
                        mapped.scan_soon();
                    }
                    daemons.hear(news);
                }
                Err(RecvTimeoutError::Timeout) => {
                    mapped.scan_soon();
                    launcher.end(self);
                    return Err(self.timed_out(String::new()));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::Broken("the job's threads ended".into()));
                }
            }
        }
    }

    /// Asks the agents which files vanish with their VMs, and prints a list.
    pub(super) fn report_lost_files(&self, switch: &Switch, machines: &[Machine]) {
        (0..machines.len()).for_each(|vm| switch.ask_changes(vm));
        let deadline = Instant::now() + CHANGES_LIMIT;
        let names: Vec<&str> = machines.iter().map(|machine| machine.name.as_str()).collect();
        let lost = lists_of(&names, || {
            loop {
                match self.next(Some(deadline)) {
                    Ok(Event::Switch(news)) => return Some(news),
                    Ok(_) => {}
                    Err(_) => return None,
                }
            }
        });
        for line in lost.lines() {
            tell!("{line}");
        }
    }
}

/// What the VMs called `names` list, by the news that `next` gives until there is none in time.
fn lists_of(names: &[&str], mut next: impl FnMut() -> Option<switch::News>) -> LostFiles {
    let mut lost = LostFiles::default();
    let mut missing: BTreeSet<usize> = (0..names.len()).collect();
    // A VM that is gone, or goes later, has said by then what it could.
    let mut gone = BTreeSet::new();
    while missing.difference(&gone).next().is_some() {
        match next() {
            Some(switch::News::Changes { vm, changes }) => {
                if missing.remove(&vm) {
                    lost.add(names[vm], changes);
                }
            }
            Some(switch::News::Lost { vm, .. }) => drop(gone.insert(vm)),
            Some(_) => {}
            None => break,
        }
    }
    missing.into_iter().for_each(|vm| lost.add_unknown(names[vm]));
    lost
}

fn lost(machine: &Machine, why: &str) -> Error {
    Error::LostVm { vm: machine.name.clone(), why: with_console(machine, why, false) }
}

/// What is known of the launcher's daemons in the VMs.
/// What a signal that ends a job has done to it.
fn name_of(signal: i32) -> &'static str {
    match signal {
        signal_hook::consts::SIGINT => "interrupted",
        signal_hook::consts::SIGHUP => "hung up (SIGHUP)",
        _ => "terminated (SIGTERM)",
    }
}

#[derive(Default)]
struct Daemons {
    /// VM and stream of each that runs.
    running: BTreeSet<(usize, u32)>,
    started: bool,
    /// The VM of the first that ended badly by itself, or of the last to lose its remote shell; and how it ended.
    bad: Option<(usize, String)>,
    /// The signal that has asked for the end, so that deaths are not reported.
    asked: Option<i32>,
    /// Why the first remote shell was turned away.
    turned_away: Option<String>,
    /// The service has said of a rank that it is gone.
    noted: bool,
}

impl Daemons {
    fn hear(&mut self, news: switch::News) {
        match news {
            switch::News::Started { vm, stream } => {
                self.started = true;
                self.running.insert((vm, stream));
            }
            switch::News::Ended { vm, stream, bad } => {
                self.running.remove(&(vm, stream));
                // A launcher that loses one daemon kills the remote shells of the others: that is not the cause.
                let better =
                    bad.is_some() && self.bad.as_ref().is_none_or(|(_, how)| how == switch::LEFT_BEHIND);
                if let (true, Some(how)) = (better, bad) {
                    self.bad = Some((vm, how));
                }
            }
            switch::News::TurnedAway { why } => {
                self.turned_away.get_or_insert(why);
            }
            switch::News::Note { text } => {
                self.noted = true;
                if self.asked.is_none() {
                    tell!("{text}");
                }
            }
            switch::News::Up { .. } | switch::News::Lost { .. } | switch::News::Changes { .. } => {}
        }
    }

    /// Takes in the news so far: a rank's death that the service reports is the cause of a bad end.
    fn hear_all(&mut self, run: &Run<'_>) {
        while let Ok(event) = run.events.try_recv() {
            if let Event::Switch(news) = event {
                self.hear(news);
            }
        }
    }

    /// After the launcher's end: waits a little for news of the cause. A launcher that lost a VM or a daemon may end with
    /// status 0.
    fn wait(&mut self, status: i32, run: &Run<'_>, machines: &[Machine]) -> Result<()> {
        if machines.is_empty() {
            // The launcher may have learned of a rank's death before the service has.
            let deadline = Instant::now() + NATIVE_NEWS;
            self.hear_all(run);
            while status != 0 && self.asked.is_none() && !self.noted {
                match run.next(Some(deadline)) {
                    Ok(Event::Switch(news)) => self.hear(news),
                    Ok(_) => {}
                    Err(_) => break,
                }
            }
            return Ok(());
        }
        let deadline = Instant::now() + if status == 0 { DAEMON_GRACE } else { VM_NEWS };
        // If all daemons have ended in good order, no VM was lost before.
        while status != 0 || self.bad.is_some() || !self.running.is_empty() || !self.started {
            // A daemon may have ended because its VM did.
            let until = if status == 0 && self.running.is_empty() {
                deadline.min(Instant::now() + VM_NEWS)
            } else {
                deadline
            };
            match run.next(Some(until)) {
                Ok(Event::Switch(switch::News::Lost { vm, why })) => return Err(lost(&machines[vm], &why)),
                Ok(Event::Switch(news)) => self.hear(news),
                Ok(_) => {}
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// Whether to believe the launcher's status 0. After a signal that asked for the end it is believed, however the
    /// daemons ended.
    fn judge(self, expected: bool, flavour: Flavour, machines: &[Machine]) -> Result<i32> {
        let ask = match flavour {
            Flavour::OpenMpi | Flavour::OpenMpi4 => "--mpi-arg --debug-daemons",
            Flavour::Mpich | Flavour::Intel => "--mpi-arg -verbose",
        };
        match self.bad {
            _ if self.asked.is_some() => Ok(0),
            Some((vm, how)) => Err(Error::Daemon { vm: machines[vm].name.clone(), how, ask }),
            None if expected && !self.started => {
                let why = self.turned_away.map(|why| format!(": {why}")).unwrap_or_default();
                Err(Error::NothingRan { why, ask })
            }
            None => self.turned_away.map_or(Ok(0), |why| Err(Error::TurnedAway { why, ask })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_whose_list_does_not_come_is_named() {
        use crate::switch::News;
        use isthmus_guest::control::Changes;
        let list = |vm| {
            let changes = Changes { files: vec![("/srv/result".into(), 5)], ..Changes::default() };
            News::Changes { vm, changes }
        };
        let gone = |vm| News::Lost { vm, why: "its process ended".into() };
        let lines = |news: Vec<News>| {
            let mut news = news.into_iter();
            lists_of(&["vm0", "vm1", "vm2"], || news.next()).lines()
        };
        let unknown = |lines: &[String]| {
            let named = lines.iter().filter_map(|line| line.split_once(" did not say in time"));
            named.map(|(vm, _)| vm.to_owned()).collect::<Vec<_>>()
        };
        let all = lines(vec![list(1), list(0), list(2)]);
        assert!(unknown(&all).is_empty() && all.len() == 4, "{all:?}");
        assert_eq!(unknown(&lines(vec![list(1)])), ["vm0", "vm2"]);
        // A VM that goes after it has said all is counted once: the others are waited for.
        let all = lines(vec![list(0), gone(0), list(0), list(1), list(2)]);
        assert!(
            unknown(&all).is_empty() && all.iter().any(|line| line.contains("vm2:/srv/result")),
            "{all:?}"
        );
        assert_eq!(unknown(&lines(vec![list(0), gone(1), list(2)])), ["vm1"]);
    }

    #[test]
    fn a_remote_shell_that_was_turned_away_is_an_error_also_where_another_daemon_ran() {
        let turned_away = || switch::News::TurnedAway { why: "this run has no host called vm7".into() };
        let judge = |news: Vec<switch::News>, asked, expected| {
            let mut daemons = Daemons { asked, ..Daemons::default() };
            news.into_iter().for_each(|news| daemons.hear(news));
            daemons.judge(expected, Flavour::Mpich, &[]).map_err(|e| e.line())
        };
        let ran = || {
            let started = switch::News::Started { vm: 0, stream: 1 };
            vec![started, switch::News::Ended { vm: 0, stream: 1, bad: None }]
        };
        assert_eq!(judge(ran(), None, true), Ok(0));
        for (mut news, expected) in [(ran(), true), (ran(), false), (Vec::new(), true), (Vec::new(), false)] {
            news.insert(0, turned_away());
            let line = judge(news, None, expected).unwrap_err();
            assert!(line.contains("ended with status 0") && line.contains("vm7"), "{line}");
        }
        let mut news = ran();
        news.push(turned_away());
        assert_eq!(judge(news, Some(15), true), Ok(0));
    }
}
