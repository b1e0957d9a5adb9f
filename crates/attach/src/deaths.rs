//! Names the process that died first with an endpoint open: the one to look at when a job has failed.
//!
//! Its rank is in its environment, which is memory of the process: a reader waits for the lock of that memory, which the process may
//! hold for as long as a file system keeps it waiting. So a thread of its own reads environments, and nothing waits for that thread. A
//! process that holds it up costs others their ranks in that line, and nothing else.

use std::collections::HashMap;
use std::fs;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::server::{Ending, Event};

/// Variables in which launchers tell a process its rank.
const RANK_VARIABLES: [&str; 3] = ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"];

/// Processes whose environment is to be read, at most.
const MOST_UNREAD: usize = 4096;

/// Watches the events of all processes and reports one death.
#[derive(Debug, Default)]
pub struct Deaths {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Ranks by process, once they are known.
    ranks: HashMap<u32, Rank>,
    /// What reads them; it ends with this.
    reader: Option<SyncSender<(u32, Rank)>>,
    told: bool,
}

type Rank = Arc<OnceLock<u32>>;

impl State {
    /// Has the rank of a process read.
    fn read(&mut self, pid: u32) {
        let rank = Rank::default();
        let reader = match self.reader.take().or_else(|| read_ranks(rank_of)) {
            Some(reader) => reader,
            None => return,
        };
        let sent = reader.try_send((pid, Arc::clone(&rank)));
        if !matches!(sent, Err(TrySendError::Disconnected(_))) {
            self.reader = Some(reader);
        }
        if sent.is_ok() {
            self.ranks.insert(pid, rank);
        }
    }
}

/// Starts what has `read` tell the ranks of processes; none if there can be no thread.
fn read_ranks(read: impl Fn(u32) -> Option<u32> + Send + 'static) -> Option<SyncSender<(u32, Rank)>> {
    let (reader, asked) = sync_channel::<(u32, Rank)>(MOST_UNREAD);
    let all = move || {
        for (pid, rank) in asked {
            if let Some(number) = read(pid) {
                let _ = rank.set(number);
            }
        }
    };
    std::thread::Builder::new().name("isthmus-ranks".into()).spawn(all).ok()?;
    Some(reader)
}

impl Deaths {
    /// A report of `event` if it is the first death of a process with an endpoint open.
    pub fn hear(&self, event: &Event) -> Option<String> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Attached { who, .. } => {
                // Now, since its environment is gone once it is dead.
                state.read(who.pid);
                None
            }
            Event::Gone { who, ending, endpoints, .. } => {
                let rank = state.ranks.remove(&who.pid).and_then(|rank| rank.get().copied());
                let rank = rank.map_or(String::new(), |rank| format!("rank {rank}, "));
                // The end of a process's connection is often seen before its death.
                let died = matches!(ending, Ending::Died | Ending::Closed) && !endpoints.is_empty();
                let how = match ending {
                    Ending::Died => {
                        "is gone with an endpoint open: it was killed, or ended without MPI_Finalize"
                    }
                    _ => {
                        "is gone with an endpoint open: it was killed, ended without MPI_Finalize, or has closed its connection"
                    }
                };
                (died && !std::mem::replace(&mut state.told, true))
                    .then(|| format!("{rank}process {} ({}) {how}", who.pid, who.name))
            }
            Event::Refused { .. } | Event::Trouble { .. } => None,
        }
    }
}

/// The rank of a process in its job, if its launcher has told it.
fn rank_of(pid: u32) -> Option<u32> {
    rank_in(&fs::read(format!("/proc/{pid}/environ")).ok()?)
}

fn rank_in(environment: &[u8]) -> Option<u32> {
    let variables: Vec<&str> =
        environment.split(|b| *b == 0).filter_map(|word| std::str::from_utf8(word).ok()).collect();
    RANK_VARIABLES.iter().find_map(|name| {
        let value = variables.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))?;
        value.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Who;

    #[test]
    fn only_the_first_death_with_an_endpoint_is_reported() {
        let deaths = Deaths::default();
        let who = |pid| Who { pid, uid: 0, name: "prog".into() };
        let gone = |pid, ending, endpoints: &[u32]| Event::Gone {
            who: who(pid),
            area: 0,
            ending,
            endpoints: endpoints.to_vec(),
        };
        assert_eq!(deaths.hear(&gone(1, Ending::Detached, &[7])), None);
        assert_eq!(deaths.hear(&gone(2, Ending::Died, &[])), None);
        let text = deaths.hear(&gone(3, Ending::Closed, &[7])).unwrap();
        assert!(
            text.starts_with("process 3 (prog) is gone") && text.ends_with("closed its connection"),
            "{text}"
        );
        let text = Deaths::default().hear(&gone(3, Ending::Died, &[7])).unwrap();
        assert!(text.starts_with("process 3 (prog) is gone"), "{text}");
        assert_eq!(deaths.hear(&gone(4, Ending::Died, &[7])), None);
    }

    #[test]
    fn a_process_whose_environment_cannot_be_read_keeps_nobody_waiting() {
        let deaths = Deaths::default();
        let (asked, reads) = std::sync::mpsc::channel();
        let never = move |pid| {
            let _ = asked.send(pid);
            loop {
                std::thread::park();
            }
        };
        deaths.state.lock().unwrap().reader = read_ranks(never);
        let who = |pid| Who { pid, uid: 0, name: "prog".into() };
        // More than are kept in mind, too.
        for pid in 0..5000 {
            deaths.hear(&Event::Attached { who: who(pid), area: 0 });
        }
        assert_eq!(reads.recv().unwrap(), 0, "it is being read");
        assert!(deaths.state.lock().unwrap().ranks.len() <= MOST_UNREAD + 1);
        let gone = Event::Gone { who: who(0), area: 0, ending: Ending::Died, endpoints: vec![7] };
        assert!(deaths.hear(&gone).unwrap().starts_with("process 0 (prog) is gone"));
    }

    #[test]
    fn a_rank_is_told_once_it_is_known() {
        let mut child = std::process::Command::new("sleep").arg("60").env("PMI_RANK", "3").spawn().unwrap();
        let deaths = Deaths::default();
        let who = Who { pid: child.id(), uid: 0, name: "prog".into() };
        let begun = std::time::Instant::now();
        let is_known = |deaths: &Deaths| deaths.state.lock().unwrap().ranks[&who.pid].get().is_some();
        // The child may not have executed its program yet.
        loop {
            deaths.hear(&Event::Attached { who: who.clone(), area: 0 });
            std::thread::sleep(std::time::Duration::from_millis(10));
            if is_known(&deaths) {
                break;
            }
            assert!(begun.elapsed().as_secs() < 20, "its rank is not read");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let gone = Event::Gone { who, area: 0, ending: Ending::Died, endpoints: vec![7] };
        let text = deaths.hear(&gone).unwrap();
        assert!(text.starts_with("rank 3, process "), "{text}");
    }

    #[test]
    fn ranks_are_found_in_the_variables_of_each_launcher() {
        assert_eq!(rank_in(b"A=b\0PMI_RANK=3\0\xff=\0"), Some(3));
        assert_eq!(rank_in(b"PMIX_RANK=5\0OMPI_COMM_WORLD_RANK=1\0"), Some(1));
        assert_eq!(rank_in(b"PMI_RANKS=3\0PMI_RANK=x"), None);
    }
}
