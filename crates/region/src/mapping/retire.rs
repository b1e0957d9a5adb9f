//! The end of a mapping whose views are still in use.
//!
//! Memory of a region may stop being this process's while threads copy from and to it: its device is unplugged, or its place
//! in the region is given away. [`Mapping::retire`] then puts private pages in the mapping's place. No access faults, whatever
//! it does at that moment; it reads zeros, and what it writes reaches nobody. A zero is the life of nobody ([`crate::life`]), so
//! nothing that is read after that is believed (docs/memory-ordering.md, "Retired mappings").
//!
//! What the program itself stores to would lose its contents, so it is listed ([`Section::list`]) and keeps them.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mremap_fixed, munmap};

use super::{Access, Mapping, Section};
use crate::error::{Error, Result};
use crate::place::Place;

/// Memory of a region that the program itself stores to, outside of our functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgramMemory {
    /// What it is.
    pub what: &'static str,
    /// Where it is in the region.
    pub place: Place,
    /// Its address in this process.
    pub address: u64,
    /// Its bytes.
    pub len: u64,
}

/// The list of a mapping.
#[derive(Debug, Default)]
pub(super) struct List(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    is_retired: bool,
    last: u64,
    /// By number: what it is, and its offset in the mapping.
    entries: BTreeMap<u64, (ProgramMemory, u64)>,
}

/// An entry of the list; it ends with this.
#[derive(Debug)]
pub struct Listed {
    map: Arc<Mapping>,
    number: u64,
}

impl Drop for Listed {
    fn drop(&mut self) {
        // A thread of the parent may have held the lock when this process was forked.
        if self.map.is_own() {
            self.map.list().entries.remove(&self.number);
        }
    }
}

impl Section {
    /// Lists bytes of the section as memory that the program itself stores to, for as long as it keeps what this gives.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn list(&self, what: &'static str, offset: u64, len: u64) -> Result<Listed> {
        let part = self.part(what, offset, len)?;
        let address = part.check(what, 0, len, 1)?.as_ptr().expose_provenance() as u64;
        let entry = ProgramMemory { what, place: part.origin, address, len };
        let map = part.map;
        let mut list = map.list();
        list.last += 1;
        let number = list.last;
        list.entries.insert(number, (entry, part.base));
        drop(list);
        Ok(Listed { map, number })
    }
}

impl<A: Access> Section<A> {
    /// The mapping that it is a part of.
    pub(crate) fn mapping(&self) -> &Mapping {
        &self.map
    }
}

impl Mapping {
    fn list(&self) -> MutexGuard<'_, State> {
        self.list.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the program itself stores to, in the order in which it was listed.
    pub fn program_memory(&self) -> Vec<ProgramMemory> {
        self.list().entries.values().map(|(entry, _)| *entry).collect()
    }

    /// Whether it was retired.
    pub fn is_retired(&self) -> bool {
        self.list().is_retired
    }

    /// Puts private pages in the place of all of it. Threads may use views of it meanwhile and later: none of them faults, and each
    /// reads zeros from some moment on. When this returns, no store of this process reaches the region any more. What is listed
    /// has the contents that it had; a store to it by another thread just now may be lost.
    ///
    /// Does nothing the second time, and in a forked child, which has no part in the mapping.
    ///
    /// # Errors
    /// [`Error::Memory`] if the system gives no pages; nothing has changed then.
    pub fn retire(&self) -> Result<()> {
        if !self.is_own() {
            return Ok(());
        }
        let mut list = self.list();
        if list.is_retired {
            return Ok(());
        }
        let failed = |source| Error::Memory { action: "retire", bytes: self.len, source };
        let size = usize::try_from(self.len).map_err(|_| failed(rustix::io::Errno::NOMEM))?;
        // Made elsewhere and moved, so that all that may fail for want of memory fails before anything has changed. They take
        // memory only where they are written to.
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of ours.
        let pages = unsafe { mmap_anonymous(std::ptr::null_mut(), size, access, flags) }.map_err(failed)?;
        // SAFETY: exactly the range that was just mapped. A forked child has no part in them either; if the advice is refused,
        // it has a copy that it cannot reach, no more.
        let _ = unsafe { madvise(pages, size, Advice::LinuxDontFork) };
        for (entry, base) in list.entries.values() {
            // Both were checked when the entry was made: the part is inside the mapping, whose length is a usize.
            let (at, len) = (usize::try_from(*base).unwrap_or(0), usize::try_from(entry.len).unwrap_or(0));
            let from = NonNull::new(self.base.as_ptr().wrapping_add(at));
            let to = NonNull::new(pages.cast::<u8>().wrapping_add(at));
            let (Some(from), Some(to)) = (from, to) else { continue };
            // SAFETY: at + len <= size, which `Section::list` checked, so the source lies in the mapping, which lives as long as
            // self, and the target in the fresh pages, which nobody else knows yet. The source may change meanwhile, by stores of
            // the program, as in any copy out of a region.
            unsafe { super::inherit::copy_readable(from, to, len) };
        }
        // SAFETY: from the range mapped above, to which nothing refers, to the whole of the one that `map` obtained and every view's
        // Arc keeps. The views stay valid: as many bytes at the same addresses, readable and writable, any value of which they
        // take. The kernel replaces the range while it holds the address space's lock, so no access finds a hole.
        let replace =
            || unsafe { mremap_fixed(pages, size, size, MremapFlags::MAYMOVE, self.base.as_ptr().cast()) };
        let moved = match &self.windows {
            None => replace(),
            Some(windows) => windows.give_up(replace),
        };
        if let Err(source) = moved {
            // SAFETY: the range mapped above, to which nothing refers.
            let _ = unsafe { munmap(pages, size) };
            return Err(failed(source));
        }
        list.is_retired = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::Barrier;

    use super::*;
    use crate::life::{Life, State};
    use crate::mapping::ReadOnly;
    use crate::shared_by_threads::{Count, Flag};

    const PAGE: u64 = 4096;
    const BYTES: u64 = 1 << 20;
    /// A record's life, and the message whose sender it is.
    const RECORD: u64 = PAGE;
    const MESSAGE: u64 = 4 * PAGE;
    const MESSAGE_BYTES: usize = 4096 + 100;
    /// What the threads here write.
    const OURS: u64 = 8 * PAGE;

    fn mapped() -> (std::os::fd::OwnedFd, Arc<Mapping>, Arc<Mapping>) {
        let fd = crate::create::memory(BYTES).unwrap();
        let [one, two] = [(); 2].map(|()| Mapping::map(fd.as_fd(), BYTES).unwrap());
        (fd, one, two)
    }

    /// Threads that read and write in the middle of it, a thousand times.
    #[test]
    fn nothing_faults_and_nothing_is_believed_while_a_mapping_is_retired() {
        let alive = Life { incarnation: 77, state: State::Active };
        let (believed, discarded) = (Count::new(0), Count::new(0));
        let (fd, _map, other) = mapped();
        let there = other.whole().unwrap();
        there.fill_bytes("message", MESSAGE, &[0xab; MESSAGE_BYTES]).unwrap();
        there.word("record", RECORD).unwrap().set(alive.pack());
        for round in 0..1000 {
            let map = Mapping::map(fd.as_fd(), BYTES).unwrap();
            let (over, start) = (Flag::new(false), Barrier::new(3));
            let reads = || {
                let whole = map.whole_for_reading();
                let (life, mut is_gone) = (whole.line("record", RECORD).unwrap(), false);
                start.wait();
                loop {
                    // Before the round, so that one of them is all after the end.
                    let last = over.is_set();
                    let copy = whole.bytes("message", MESSAGE, MESSAGE_BYTES as u64).unwrap();
                    let copy = copy.to_vec(0, MESSAGE_BYTES as u64).unwrap();
                    let found = Life::unpack(life.words[0].get());
                    let is_whole = copy.iter().all(|byte| *byte == 0xab);
                    if found.is_active(77) {
                        // What was copied before the record was read, and is believed, was the sender's.
                        assert!(is_whole && !is_gone, "round {round}");
                        believed.add(1);
                    } else {
                        assert_eq!(found, Life { incarnation: 0, state: State::Free });
                        is_gone = true;
                        discarded.add(1);
                    }
                    if last {
                        assert!(is_gone);
                        return;
                    }
                }
            };
            let writes = || {
                let whole = map.whole().unwrap();
                let word = whole.word("word", OURS).unwrap();
                start.wait();
                while !over.is_set() {
                    word.add(1);
                    whole.fill_bytes("bytes", OURS + 64, &[0xcd; 5000]).unwrap();
                    whole.zero("bytes", OURS + 64, 5000).unwrap();
                }
            };
            std::thread::scope(|scope| {
                scope.spawn(reads);
                scope.spawn(writes);
                start.wait();
                for _ in 0..round % 50 * 20 {
                    std::hint::spin_loop();
                }
                map.retire().unwrap();
                // No store reaches the region from here on.
                let seen = there.word("word", OURS).unwrap().get();
                there.zero("bytes", OURS + 64, 5000).unwrap();
                std::thread::yield_now();
                assert_eq!(there.word("word", OURS).unwrap().get(), seen);
                let mut left = [1; 5000];
                there.bytes("bytes", OURS + 64, 5000).unwrap().get(0, &mut left).unwrap();
                assert!(left.iter().all(|byte| *byte == 0), "round {round}");
                over.set();
            });
        }
        assert!(believed.get() > 0 && discarded.get() > 0);
    }

    #[test]
    fn what_the_program_stores_to_is_listed_and_keeps_its_contents() {
        let (_fd, map, other) = mapped();
        let whole = map.whole().unwrap();
        let part = whole.part("part", PAGE, 8 * PAGE).unwrap();
        let kept = part.list("segment", 100, 5000).unwrap();
        let gone = part.list("ring", PAGE * 4, 64).unwrap();
        assert!(matches!(part.list("beyond", 7 * PAGE, PAGE + 1), Err(Error::OutOfBounds { .. })));
        let listed = map.program_memory();
        let described: Vec<_> = listed.iter().map(|e| (e.what, e.address, e.len)).collect();
        let address = whole.address(0, 1).unwrap();
        assert_eq!(described, [("segment", address + PAGE + 100, 5000), ("ring", address + 5 * PAGE, 64)]);
        drop(gone);
        assert_eq!(map.program_memory(), listed[..1]);
        whole.fill_bytes("all", 0, &vec![0x11; usize::try_from(BYTES).unwrap()]).unwrap();
        assert!(!map.is_retired());
        map.retire().unwrap();
        assert!(map.is_retired());
        let found = whole.bytes("all", 0, BYTES).unwrap().to_vec(0, BYTES).unwrap();
        let is_kept = |at: u64| (PAGE + 100..PAGE + 5100).contains(&at);
        assert!((0..).zip(&found).all(|(at, byte)| *byte == if is_kept(at) { 0x11 } else { 0 }));
        // It is the program's alone now, and not retired a second time.
        whole.fill_bytes("kept", PAGE + 100, b"private").unwrap();
        map.retire().unwrap();
        let mut read = [0; 7];
        whole.bytes("kept", PAGE + 100, 7).unwrap().get(0, &mut read).unwrap();
        assert_eq!(&read, b"private");
        other.whole().unwrap().bytes("kept", PAGE + 100, 7).unwrap().get(0, &mut read).unwrap();
        assert_eq!(read, [0x11; 7]);
        drop(kept);
        assert!(map.program_memory().is_empty());
    }

    #[test]
    fn a_mapping_for_reading_is_retired_too() {
        let (fd, _map, other) = mapped();
        other.whole().unwrap().word("word", 64).unwrap().set(5);
        let map = Mapping::map_for_reading(fd.as_fd(), BYTES).unwrap();
        let word = map.whole_for_reading().line("word", 64).unwrap();
        assert_eq!(word.words[0].get(), 5);
        map.retire().unwrap();
        assert_eq!(word.words[0].get(), 0);
        let _: &super::super::LineRef<ReadOnly> = &word;
    }
}
