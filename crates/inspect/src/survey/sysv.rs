//! Objects of System V IPC: what the table says of them, which the host service alone writes, and what their own memory says of
//! their use, which any process may have written.

use isthmus_region::objects::{Kind, ObjectInfo, sysv};
use isthmus_sysv::ipc;
use isthmus_sysv::msg::queue;
use isthmus_sysv::sem::USED;

use super::{Result, Walk};
use crate::model::{Pid, Sysv, Usage};

/// What a segment's first page says, as `isthmus_sysv::shm` lays it out: words of times, and of the last one's process.
const SHM_ATTACHED: usize = 0;
const SHM_DETACHED: usize = 1;
const SHM_LAST: usize = 2;

/// The process in a word that [`sysv::both`] has made of its number and its member's.
fn process(word: u64) -> Option<Pid> {
    let half = |word: u64| u32::try_from(word & u64::from(u32::MAX)).unwrap_or(0);
    let (pid, member) = (half(word), half(word >> 32));
    (pid != 0).then_some(Pid { member, pid })
}

impl Walk<'_> {
    /// What else there is to say of an object. `memory` is where its own memory is in what is read, if it is there.
    pub(super) fn sysv(&self, kind: Kind, info: &ObjectInfo, memory: Option<u64>) -> Result<Sysv> {
        let (key, pid) = sysv::key_and_maker(info);
        let maker = info.creator.map(|creator| Pid { member: creator.peer(), pid });
        Ok(Sysv {
            id: ipc::id_of(info),
            key,
            creator: sysv::creator(info),
            maker,
            changed: info.params[sysv::CHANGED],
            size: info.params[sysv::SIZE],
            usage: match kind {
                Kind::SysvSem => self.sem(info, memory)?,
                Kind::SysvMsg => self.msg(info, memory)?,
                _ => self.shm(info, memory)?,
            },
        })
    }

    fn shm(&self, info: &ObjectInfo, memory: Option<u64>) -> Result<Usage> {
        let Some(at) = memory.filter(|_| info.len >= 24) else {
            return Ok(Usage::Shm { attached: None, detached: None, last: None });
        };
        let words = self.words("segment", at, 3)?;
        Ok(Usage::Shm {
            attached: Some(words[SHM_ATTACHED]),
            detached: Some(words[SHM_DETACHED]),
            last: process(words[SHM_LAST]),
        })
    }

    /// When a set was used last; its semaphores are not read.
    fn sem(&self, info: &ObjectInfo, memory: Option<u64>) -> Result<Usage> {
        let at = memory.filter(|_| info.len >= USED + 8);
        let operated = at.map(|at| self.words("set", at + USED, 1)).transpose()?.map(|words| words[0]);
        Ok(Usage::Sem { operated, semaphores: None })
    }

    fn msg(&self, info: &ObjectInfo, memory: Option<u64>) -> Result<Usage> {
        let memory = memory.filter(|_| info.len >= queue::TAKEN + 64);
        let read = |offset| memory.map(|at| self.words("queue", at + offset, 4)).transpose();
        let (sent, taken) = (read(queue::SENT)?, read(queue::TAKEN)?);
        // Counted by two processes, so one count may be ahead of the other for a moment; and any process may have written both.
        let left = |word: usize| {
            let left = sent.as_ref()?[word].wrapping_sub(taken.as_ref()?[word]);
            (left <= info.len).then_some(left)
        };
        Ok(Usage::Msg {
            messages: left(0),
            bytes: left(1),
            sent: sent.as_ref().map(|words| words[3]),
            last_sender: sent.as_ref().and_then(|words| process(words[2])),
            received: taken.as_ref().map(|words| words[3]),
            last_receiver: taken.as_ref().and_then(|words| process(words[2])),
        })
    }
}
