//! Names the process that died first with an endpoint open: the one to look at when a job has failed.

use std::collections::HashMap;
use std::fs;
use std::sync::Mutex;
use std::sync::PoisonError;

use crate::server::{Ending, Event};

/// Variables in which launchers tell a process its rank.
const RANK_VARIABLES: [&str; 3] = ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"];

/// Watches the events of all processes and reports one death.
#[derive(Debug, Default)]
pub struct Deaths {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Ranks by process.
    ranks: HashMap<u32, u32>,
    told: bool,
}

impl Deaths {
    /// A report of `event` if it is the first death of a process with an endpoint open.
    pub fn hear(&self, event: &Event) -> Option<String> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Attached { who, .. } => {
                // Now, since its environment is gone once it is dead.
                if let Some(rank) = rank_of(who.pid) {
                    state.ranks.insert(who.pid, rank);
                }
                None
            }
            Event::Gone { who, ending, endpoints, .. } => {
                let rank =
                    state.ranks.remove(&who.pid).map_or(String::new(), |rank| format!("rank {rank}, "));
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
    fn ranks_are_found_in_the_variables_of_each_launcher() {
        assert_eq!(rank_in(b"A=b\0PMI_RANK=3\0\xff=\0"), Some(3));
        assert_eq!(rank_in(b"PMIX_RANK=5\0OMPI_COMM_WORLD_RANK=1\0"), Some(1));
        assert_eq!(rank_in(b"PMI_RANKS=3\0PMI_RANK=x"), None);
    }
}
