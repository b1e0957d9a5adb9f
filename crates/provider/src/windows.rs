//! Registrations that lie in the program's own memory, and that initiators reach in granted pages: in a VM whose guest driver moves
//! pages into the VM's section, and keeps them there for others to write to (isthmus(4)).
//!
//! Moving pages costs more than many messages, so only what has come by messages more than once is granted: in chunks of 64 KiB, as far as
//! their pages lie within the registration whole, since others may read and write all of a page. A registration is published with a list of
//! pages as soon as one of them is there. When it is closed they are moved back, but for those that another registration has, too.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use isthmus_region::driver;
use isthmus_region::grants::{Granted, KeptPages, Own, PAGE};
use isthmus_region::member::Member;
use isthmus_region::registrations::{self, Range, Table};

/// Pages of a chunk, and its bytes.
const PAGES: usize = 16;
const CHUNK: u64 = PAGES as u64 * PAGE;
/// Chunks that are granted when an initiator has reached so much at once.
const MOST_CHUNKS: usize = 64;

/// What is registered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Registered {
    pub(crate) key: u64,
    pub(crate) start: u64,
    pub(crate) len: u64,
    /// As [`Range::access`].
    pub(crate) access: u64,
    /// As [`Range::base`].
    pub(crate) base: u64,
}

/// What came of a chunk's pages.
enum Granting {
    /// All are granted.
    All,
    /// Some are not.
    Part,
    /// There is no room for more.
    Full,
}

/// A registration that has been reached by messages.
#[derive(Debug)]
pub(crate) struct Window {
    of: Registered,
    /// Offset of the list of its pages, once there is one.
    list: Option<u64>,
    /// Number of its entry, once it is published.
    number: Option<u32>,
    is_withdrawn: bool,
    /// How often a chunk was reached that has pages which are not granted.
    reached: HashMap<u64, u32>,
    pages: Vec<Option<Granted>>,
    /// Chunks of which pages were granted, some of which may have become others since.
    chunks: BTreeSet<u64>,
    kept: KeptPages,
}

impl Window {
    /// None if it is too long, or no page lies in it whole.
    pub(crate) fn new(of: Registered) -> Option<Self> {
        let whole = of.start.checked_add(of.len)? / PAGE > of.start.div_ceil(PAGE);
        let count = usize::try_from(Range::pages(of.start % PAGE, of.len)).ok()?;
        (whole && of.len <= registrations::MOST_PAGED).then(|| Self {
            of,
            list: None,
            number: None,
            is_withdrawn: false,
            reached: HashMap::new(),
            pages: vec![None; count],
            chunks: BTreeSet::new(),
            kept: KeptPages::default(),
        })
    }

    /// The addresses of those pages of a chunk that lie in the registration whole.
    fn whole_pages(&self, chunk: u64) -> std::ops::Range<u64> {
        let Registered { start, len, .. } = self.of;
        let low = chunk.max(start.next_multiple_of(PAGE));
        low..(chunk + CHUNK).min((start + len) / PAGE * PAGE).max(low)
    }

    fn number_of(&self, address: u64) -> usize {
        usize::try_from(address / PAGE - self.of.start / PAGE).unwrap_or(usize::MAX)
    }

    /// Whether one of these pages is not granted.
    fn is_any_missing(&self, own: &Own, pages: &std::ops::Range<u64>) -> bool {
        let (first, end) = (self.number_of(pages.start), self.number_of(pages.end));
        let stands = |page: &Option<Granted>| page.is_some_and(|page| own.pool.stands(own.owner, page));
        self.pages.get(first..end).is_some_and(|pages| !pages.iter().all(stands))
    }

    /// An initiator has reached `len` bytes at `address` by a message.
    pub(crate) fn reached(
        &mut self,
        member: &Arc<Member>,
        own: &Own,
        table: &mut Table,
        address: u64,
        len: u64,
    ) {
        if self.is_withdrawn || len == 0 {
            return;
        }
        let mut tried = 0;
        let last = address.saturating_add(len - 1) / CHUNK;
        for chunk in (address / CHUNK..=last).map(|number| number * CHUNK) {
            let pages = self.whole_pages(chunk);
            if !self.is_any_missing(own, &pages) {
                // What made it a message is elsewhere.
                continue;
            }
            let count = self.reached.entry(chunk).or_insert(0);
            // What cannot be granted is tried again ever more seldom; and no message waits for more than some of the work.
            if *count >= 1 && (*count + 1).is_power_of_two() {
                if tried == MOST_CHUNKS {
                    break;
                }
                tried += 1;
            }
            *count = count.saturating_add(1);
            if *count < 2 || !count.is_power_of_two() {
                continue;
            }
            match self.grant(member, pages) {
                Granting::All => _ = self.reached.remove(&chunk),
                Granting::Part => {}
                // For others there is none either.
                Granting::Full => break,
            }
        }
        if tried > 0
            && self.number.is_none()
            && self.pages.iter().any(Option::is_some)
            && let Some(list) = self.list
        {
            let Registered { key, len, access, base, start } = self.of;
            let access = access | registrations::PAGES;
            let range = Range { key, offset: list, len, access, base, skip: start % PAGE };
            // Without room for it, another time.
            self.number = table.publish(&range).ok();
        }
    }

    /// The list of its pages, for which there may be no room.
    fn list(&mut self, member: &Member) -> Option<u64> {
        if self.list.is_none() {
            let bytes = self.pages.len() as u64 * 8;
            let list = member.take(bytes).ok()?;
            // Within what was taken.
            let _ = member.section().zero("list of pages", list, bytes);
            self.list = Some(list);
        }
        self.list
    }

    /// Grants pages of a chunk.
    fn grant(&mut self, member: &Member, pages: std::ops::Range<u64>) -> Granting {
        let Some(list) = self.list(member) else { return Granting::Full };
        let count = usize::try_from((pages.end - pages.start) / PAGE).unwrap_or(PAGES).min(PAGES);
        let mut granted = [None; PAGES];
        let granted = &mut granted[..count];
        self.chunks.insert(pages.start / CHUNK * CHUNK);
        let Ok(outcome) = member.keep_pages(pages.start, granted, &mut self.kept) else {
            return Granting::Part;
        };
        for (number, page) in (self.number_of(pages.start)..).zip(&*granted) {
            if let Some(known) = self.pages.get_mut(number)
                && known != page
                && let Ok(word) = member.section().word("list of pages", list + number as u64 * 8)
            {
                word.set(page.map_or(0, Granted::word));
                *known = *page;
            }
        }
        match (outcome.is_full, granted.iter().all(Option::is_some)) {
            (true, _) => Granting::Full,
            (false, true) => Granting::All,
            (false, false) => Granting::Part,
        }
    }

    /// Takes it out of the table: operations that initiators have begun may still be under way.
    pub(crate) fn withdraw(&mut self, table: &mut Table) -> isthmus_region::Result<()> {
        if !self.is_withdrawn
            && let Some(number) = self.number
        {
            table.withdraw(number)?;
        }
        self.is_withdrawn = true;
        Ok(())
    }

    /// Gives all back, but for what other registrations of the process have, too; no operation is under way.
    pub(crate) fn end(self, member: &Member) {
        member.release_kept(self.kept);
        let mut chunks = self.chunks.into_iter().peekable();
        while let Some(first) = chunks.next() {
            let mut pages = PAGES;
            // As many at once as a call takes.
            while pages < driver::MOST_PAGES && chunks.next_if_eq(&(first + pages as u64 * PAGE)).is_some() {
                pages += PAGES;
            }
            // What cannot be moved back just now is granted until the program frees it.
            let _ = member.revoke_pages(first, u32::try_from(pages).unwrap_or(0));
        }
        if let Some(list) = self.list {
            member.give(list, self.pages.len() as u64 * 8);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::Mutex;

    use isthmus_region::Section;
    use isthmus_region::address::Naming;
    use isthmus_region::directory::Writer;
    use isthmus_region::extent::Extent;
    use isthmus_region::grants::{self, Outcome, table_bytes};
    use isthmus_region::mapping::Mapping;
    use isthmus_region::member::LocalService;
    use isthmus_region::membership::{self, NewPeer, Shape};

    use super::*;

    const SECTION: u64 = 32 << 20;
    const POOL: u64 = 16 << 20;
    /// Where the program's memory is, of which each page goes to the page of the pool with the same number.
    const MEMORY: u64 = 1 << 40;

    /// What the driver was asked for.
    #[derive(Default)]
    struct Driver {
        generation: u64,
        /// First pages of calls.
        kept: Vec<u64>,
        released: Vec<u64>,
        revoked: Vec<u64>,
        /// Pages that cannot be granted.
        refused: Vec<u64>,
        /// How many more there is room for.
        room: usize,
    }

    struct Service {
        writer: Arc<Mutex<Writer>>,
        area: u32,
        section: Section,
        driver: Arc<Mutex<Driver>>,
    }

    fn word_of(page: u64) -> u64 {
        SECTION - POOL - table_bytes(POOL) + page * 8
    }

    impl LocalService for Service {
        fn grow(&self, bytes: u64) -> isthmus_region::Result<Extent> {
            self.writer.lock().unwrap().grow_area(self.area, bytes)
        }
        fn open_endpoint(&self, block: u64) -> isthmus_region::Result<(u32, u64)> {
            self.writer.lock().unwrap().open_endpoint(self.area, block, 1)
        }
        fn close_endpoint(&self, slot: u32) -> isthmus_region::Result<()> {
            self.writer.lock().unwrap().close_endpoint(self.area, slot)
        }
        fn grant(&self, _: u64, _: &mut [Option<Granted>]) -> isthmus_region::Result<Outcome> {
            Ok(Outcome::default())
        }
        fn keep(&self, address: u64, into: &mut [Option<Granted>]) -> isthmus_region::Result<Outcome> {
            let mut driver = self.driver.lock().unwrap();
            let first = (address - MEMORY) / PAGE;
            driver.kept.push(first);
            let mut is_full = false;
            for (page, into) in (first..).zip(&mut *into) {
                *into = None;
                is_full |= driver.room == 0;
                if !driver.refused.contains(&page) && driver.room > 0 {
                    driver.room -= 1;
                    driver.generation += 1;
                    let word = (driver.generation << 24) | grants::owner(self.area);
                    self.section.word("table", word_of(page)).unwrap().set(word);
                    *into = Granted::new(u32::try_from(page).unwrap(), word);
                }
            }
            Ok(Outcome { count: into.len(), is_full })
        }
        fn release_kept(&self, pages: &[Granted]) {
            let pages = pages.iter().map(|page| page.word() & 0xff_ffff);
            self.driver.lock().unwrap().released.extend(pages);
        }
        fn revoke(&self, address: u64, _: u32) -> isthmus_region::Result<usize> {
            self.driver.lock().unwrap().revoked.push((address - MEMORY) / PAGE);
            Ok(0)
        }
    }

    struct World {
        member: Arc<Member>,
        own: Own,
        table: Table,
        driver: Arc<Mutex<Driver>>,
    }

    fn world() -> World {
        let all = 64 << 20;
        let fd = isthmus_region::create::memory(all).unwrap();
        let map = Mapping::map(fd.as_fd(), all).unwrap();
        let shape = Shape::new(all, [1, 2], 1, 16).unwrap();
        let mut host = membership::Writer::create(&map, &shape, 1).unwrap();
        let new = NewPeer {
            file: 0,
            section: shape.host_bytes,
            section_bytes: SECTION,
            is_vm: false,
            name: "host",
        };
        host.add(0, &new).unwrap();
        host.activate(0, Naming::of_test(0).system).unwrap();
        let writer = Writer::create_with_pages(host.region(), 0, Naming::of_test(0), POOL).unwrap();
        let writer = Arc::new(Mutex::new(writer));
        let grant = writer.lock().unwrap().open_area(64 << 10, 1, "test").unwrap();
        let section = host.region().own_section(&host.region().peer(0).unwrap().unwrap()).unwrap();
        let driver = Arc::new(Mutex::new(Driver { room: usize::MAX, ..Driver::default() }));
        let service = Service { writer, area: grant.area, section, driver: Arc::clone(&driver) };
        let member = Member::new(&map, 0, grant, Box::new(service)).unwrap();
        let own = Own::of(&member).unwrap();
        let table = Table::create(&member).unwrap();
        World { member, own, table, driver }
    }

    fn window(key: u64, at: u64, len: u64) -> Window {
        let of = Registered { key, start: MEMORY + at, len, access: registrations::WRITE, base: 0 };
        Window::new(of).unwrap()
    }

    impl World {
        fn reach(&mut self, window: &mut Window, at: u64, len: u64) {
            window.reached(&self.member, &self.own, &mut self.table, MEMORY + at, len);
        }

        fn kept(&self) -> Vec<u64> {
            std::mem::take(&mut self.driver.lock().unwrap().kept)
        }

        fn change(&self, page: u64) {
            self.member.section().word("table", word_of(page)).unwrap().set(1 << 60);
        }
    }

    #[test]
    fn what_is_reached_twice_is_granted_and_what_is_granted_is_left_alone() {
        let mut world = world();
        let mut window = window(1, 100, 3 * CHUNK);
        world.reach(&mut window, CHUNK, 8);
        assert_eq!((world.kept(), window.list), (vec![], None), "once");
        world.reach(&mut window, CHUNK + 5000, 8);
        assert_eq!((world.kept(), window.number), (vec![16], Some(0)));
        // Nothing is missing there, and at the edges nothing can be granted.
        for _ in 0..10 {
            world.reach(&mut window, CHUNK, CHUNK);
            world.reach(&mut window, 100, 200);
        }
        assert_eq!(world.kept(), [1], "the first chunk, without the page that is others', too");
        world.change(20);
        world.reach(&mut window, CHUNK, 8);
        assert_eq!(world.kept(), []);
        world.reach(&mut window, CHUNK, 8);
        assert_eq!(world.kept(), [16]);
        let list = world.member.section().word("list", window.list.unwrap() + 20 * 8).unwrap().get();
        assert_eq!(Some(list), window.pages[20].map(Granted::word));
        // Ever more seldom what cannot be.
        world.driver.lock().unwrap().refused.push(35);
        (0..1000).for_each(|_| world.reach(&mut window, 2 * CHUNK, 8));
        assert_eq!(world.kept(), vec![32; 9]);
    }

    #[test]
    fn a_long_operation_is_granted_bit_by_bit() {
        let mut world = world();
        let len = POOL;
        let mut window = window(1, 0, len);
        for granted in [0, 64, 128, 192, 256] {
            world.reach(&mut window, 0, len);
            assert_eq!(window.pages.iter().flatten().count(), granted * PAGES);
        }
        world.kept();
        world.reach(&mut window, 0, len);
        assert_eq!(world.kept(), []);
    }

    #[test]
    fn a_page_of_two_registrations_is_kept_for_the_other_one() {
        let mut world = world();
        let (mut one, mut two) = (window(1, 0, 2 * CHUNK), window(2, CHUNK, 2 * CHUNK));
        for _ in 0..2 {
            world.reach(&mut one, 0, 2 * CHUNK);
            world.reach(&mut two, CHUNK, 2 * CHUNK);
        }
        // The first is found again by both.
        world.change(16);
        (0..2).for_each(|_| world.reach(&mut one, CHUNK, 8));
        (0..2).for_each(|_| world.reach(&mut two, CHUNK, 8));
        one.withdraw(&mut world.table).unwrap();
        world.reach(&mut one, 0, 8);
        one.end(&world.member);
        assert_eq!(world.driver.lock().unwrap().released, (0..16).collect::<Vec<_>>());
        two.withdraw(&mut world.table).unwrap();
        two.end(&world.member);
        let driver = world.driver.lock().unwrap();
        assert_eq!(driver.released, (0..48).collect::<Vec<_>>());
        assert_eq!(driver.revoked, [0, 16], "two chunks by each call");
    }

    #[test]
    fn a_message_looks_no_further_once_there_is_no_room() {
        let mut world = world();
        let mut window = window(1, 0, 8 * CHUNK);
        world.driver.lock().unwrap().room = 40;
        (0..2).for_each(|_| world.reach(&mut window, 0, 8 * CHUNK));
        assert_eq!(world.kept(), [0, 16, 32]);
        world.driver.lock().unwrap().room = usize::MAX;
        (0..2).for_each(|_| world.reach(&mut window, 0, 8 * CHUNK));
        assert_eq!(world.kept(), [48, 64, 80, 96, 112, 32], "the one that had some is tried at its fourth");
    }

    #[test]
    fn what_has_no_whole_page_is_no_window() {
        let of = |start, len| Registered { key: 1, start, len, access: registrations::READ, base: 0 };
        for (start, len) in [
            (1, PAGE),
            (PAGE - 1, PAGE),
            (1, 2 * PAGE - 2),
            (0, PAGE - 1),
            (0, registrations::MOST_PAGED + 1),
            (u64::MAX - PAGE, 2 * PAGE),
        ] {
            assert!(Window::new(of(start, len)).is_none(), "{len} bytes at {start}");
        }
        assert!(Window::new(of(1, 2 * PAGE - 1)).is_some() && Window::new(of(0, PAGE)).is_some());
    }
}
