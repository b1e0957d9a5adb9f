//! `isthmus ipcs`: objects of System V IPC in the tables of ipcs(1), each with the process that made it.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::model::{Member, Object, Pid, Survey, Sysv, Usage};
use crate::target::Target;

/// A kind of object, in the order in which ipcs(1) shows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Message queues.
    Msg,
    /// Shared memory.
    Shm,
    /// Sets of semaphores.
    Sem,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Msg, Self::Shm, Self::Sem];

    fn name(self) -> &'static str {
        match self {
            Self::Msg => "msg",
            Self::Shm => "shm",
            Self::Sem => "sem",
        }
    }

    /// The heading of the column of ids.
    fn id(self) -> &'static str {
        match self {
            Self::Msg => "msqid",
            Self::Shm => "shmid",
            Self::Sem => "semid",
        }
    }
}

/// What to show of each object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Format {
    /// What it is and how much it is used.
    #[default]
    Usual,
    /// Times.
    Times,
    /// Owners, and who made it.
    Creators,
    /// Processes.
    Processes,
    /// Nothing; what there may be at most.
    Limits,
    /// Nothing; how much there is in all.
    Summary,
}

/// Names of users, by their numbers.
pub type Users<'a> = &'a dyn Fn(u32) -> Option<String>;

/// A survey, as these tables read it.
struct View<'a> {
    survey: &'a Survey,
    users: Users<'a>,
}

/// Bytes of a page, which ipcs(1) counts shared memory in.
const PAGE: u64 = 4096;

/// For people: the tables of these kinds.
pub fn text(survey: &Survey, kinds: &[Kind], format: Format, users: Users<'_>) -> String {
    let view = View { survey, users };
    let mut out = String::new();
    for kind in Kind::ALL.into_iter().filter(|kind| kinds.contains(kind)) {
        let table = match format {
            Format::Limits => view.limits(kind),
            Format::Summary => view.summary(kind),
            Format::Usual => view.usual(kind),
            Format::Times => view.times(kind),
            Format::Creators => view.creators(kind),
            Format::Processes => view.processes(kind),
        };
        if !table.is_empty() {
            let _ = write!(out, "\n{table}");
        }
    }
    out.push('\n');
    out
}

/// For people: all that is known of one object; nothing if there is none.
pub fn details(survey: &Survey, kind: Kind, id: i32, users: Users<'_>) -> Option<String> {
    let view = View { survey, users };
    let (object, sysv) = view.all(kind).find(|(_, sysv)| sysv.id == id)?;
    Some(view.one(kind, object, sysv))
}

/// For programs: these kinds.
pub fn json(target: &Target, survey: &Survey, kinds: &[Kind]) -> Value {
    let view = View { survey, users: &|_| None };
    let mut value = json!({ "socket": target.service.as_ref().map(|s| s.socket.to_string_lossy()) });
    for kind in Kind::ALL.into_iter().filter(|kind| kinds.contains(kind)) {
        let list: Vec<Value> = view.all(kind).map(|(object, sysv)| view.object(object, sysv)).collect();
        value[kind.name()] = list.into();
    }
    value
}

/// Rows under a heading, each cell padded as ipcs(1) does, so that what reads its tables reads these.
struct Rows(String);

impl Rows {
    fn new(title: &str, columns: &[(&str, usize)]) -> Self {
        let mut rows = Self(format!("------ {title} --------\n"));
        rows.row(columns, columns.iter().map(|(name, _)| (*name).to_owned()));
        rows
    }

    fn row(&mut self, columns: &[(&str, usize)], cells: impl Iterator<Item = String>) {
        let mut line = String::new();
        for (cell, (_, width)) in cells.zip(columns) {
            let _ = write!(line, "{cell:<width$} ");
        }
        let _ = writeln!(self.0, "{}", line.trim_end());
    }
}

/// A number, or that there is none.
fn known(value: Option<u64>) -> String {
    value.map_or_else(|| "-".into(), |value| value.to_string())
}

/// A time; ipcs(1) shows it in the local zone, which this program does not know.
fn time(seconds: Option<u64>) -> String {
    match seconds {
        None => "-".into(),
        Some(0) => "Not set".into(),
        Some(seconds) => utc(seconds),
    }
}

/// Date and time of the Gregorian calendar, in UTC.
fn utc(seconds: u64) -> String {
    // Anything may stand in an object's memory; a calendar of four digits ends here.
    const END: u64 = 253_402_300_800;
    if seconds >= END {
        return "-".into();
    }
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute) = (second / 3600, second % 3600 / 60);
    format!("{year}-{month:02}-{of_month:02} {hour:02}:{minute:02}:{:02}", second % 60)
}

/// Of a set or a queue that is removed, how often processes have it open still: so long it keeps its memory. One that owes to a set has it open
/// twice.
fn removed(object: &Object) -> String {
    if object.unlinked { format!("removed, still open by {}", object.opens) } else { String::new() }
}

impl<'a> View<'a> {
    fn all(&self, kind: Kind) -> impl Iterator<Item = (&'a Object, &'a Sysv)> {
        let objects = self.survey.objects.iter().filter(move |object| object.kind == kind.name());
        objects.filter_map(|object| Some((object, object.sysv.as_ref()?)))
    }

    fn user(&self, uid: u32) -> String {
        (self.users)(uid).unwrap_or_else(|| uid.to_string())
    }

    /// The name of a member.
    fn member(&self, index: u32) -> Option<&'a Member> {
        self.survey.members.iter().find(|member| member.index == index)
    }

    /// The members to which an object is limited, of those that there are.
    fn shared_with(&self, object: &Object) -> Option<Vec<&'a str>> {
        let members = object.shared_with.as_ref()?.iter().filter_map(|index| self.member(*index));
        Some(members.map(|member| member.name.as_str()).collect())
    }

    /// The same for people.
    fn shared(&self, object: &Object) -> String {
        match self.shared_with(object) {
            None => "all".into(),
            Some(names) if names.is_empty() => "none".into(),
            Some(names) => names.join(","),
        }
    }

    /// A process's host or VM.
    fn place(&self, process: Option<Pid>) -> String {
        let member = process.and_then(|process| self.member(process.member));
        member.map_or_else(|| "-".into(), |member| member.name.clone())
    }

    /// A process, with its host or VM.
    fn process(&self, process: Option<Pid>) -> String {
        match process {
            Some(Pid { pid, .. }) => format!("{}:{pid}", self.place(process)),
            None => "-".into(),
        }
    }

    fn usual(&self, kind: Kind) -> String {
        let (title, own): (_, &[(&str, usize)]) = match kind {
            Kind::Msg => {
                let own = &[("used-bytes", 12), ("messages", 12), ("creator", 15), ("status", 12)];
                ("Message Queues", own)
            }
            Kind::Shm => {
                ("Shared Memory Segments", &[("bytes", 10), ("nattch", 10), ("creator", 15), ("status", 12)])
            }
            Kind::Sem => ("Semaphore Arrays", &[("nsems", 10), ("creator", 15), ("status", 12)]),
        };
        let columns = [&[("key", 10), (kind.id(), 10), ("owner", 10), ("perms", 10)], own].concat();
        let mut rows = Rows::new(title, &columns);
        for (object, sysv) in self.all(kind) {
            let first = [
                format!("0x{:08x}", sysv.key),
                sysv.id.to_string(),
                self.user(object.owner.0),
                format!("{:o}", object.mode & 0o777),
            ];
            let maker = self.process(sysv.maker);
            let own = match &sysv.usage {
                Usage::Shm { .. } => {
                    let status = if object.unlinked { "dest" } else { "" };
                    vec![sysv.size.to_string(), object.opens.to_string(), maker, status.to_owned()]
                }
                Usage::Sem { .. } => vec![sysv.size.to_string(), maker, removed(object)],
                Usage::Msg { bytes, messages, .. } => {
                    vec![known(*bytes), known(*messages), maker, removed(object)]
                }
            };
            rows.row(&columns, first.into_iter().chain(own));
        }
        rows.0
    }

    fn times(&self, kind: Kind) -> String {
        let (title, own): (_, &[&str]) = match kind {
            Kind::Msg => ("Message Queues Send/Recv/Change Times (UTC)", &["send", "recv", "change"]),
            Kind::Shm => {
                ("Shared Memory Attach/Detach/Change Times (UTC)", &["attached", "detached", "changed"])
            }
            Kind::Sem => ("Semaphore Operation/Change Times (UTC)", &["last-op", "last-changed"]),
        };
        let mut columns = vec![(kind.id(), 10), ("owner", 10)];
        columns.extend(own.iter().map(|name| (*name, 20)));
        let mut rows = Rows::new(title, &columns);
        for (object, sysv) in self.all(kind) {
            let own = match &sysv.usage {
                Usage::Shm { attached, detached, .. } => vec![*attached, *detached],
                Usage::Sem { operated, .. } => vec![*operated],
                Usage::Msg { sent, received, .. } => vec![*sent, *received],
            };
            let first = [sysv.id.to_string(), self.user(object.owner.0)];
            let times = own.into_iter().chain([Some(sysv.changed)]).map(time);
            rows.row(&columns, first.into_iter().chain(times));
        }
        rows.0
    }

    fn creators(&self, kind: Kind) -> String {
        let title = match kind {
            Kind::Msg => "Message Queues Creators/Owners",
            Kind::Shm => "Shared Memory Segment Creators/Owners",
            Kind::Sem => "Semaphore Arrays Creators/Owners",
        };
        let columns = [
            (kind.id(), 10),
            ("perms", 10),
            ("cuid", 10),
            ("cgid", 10),
            ("uid", 10),
            ("gid", 10),
            ("creator", 15),
            ("shared", 10),
        ];
        let mut rows = Rows::new(title, &columns);
        for (object, sysv) in self.all(kind) {
            let cells = [
                sysv.id.to_string(),
                format!("{:o}", object.mode & 0o777),
                self.user(sysv.creator.0),
                sysv.creator.1.to_string(),
                self.user(object.owner.0),
                object.owner.1.to_string(),
                self.process(sysv.maker),
                self.shared(object),
            ];
            rows.row(&columns, cells.into_iter());
        }
        rows.0
    }

    /// Sets of semaphores have none in ipcs(1), either.
    fn processes(&self, kind: Kind) -> String {
        let (title, names) = match kind {
            Kind::Msg => ("Message Queues PIDs", ["lspid", "lrpid", "on", "on"]),
            Kind::Shm => ("Shared Memory Creator/Last-op PIDs", ["cpid", "lpid", "on", "on"]),
            Kind::Sem => return String::new(),
        };
        let mut columns = vec![(kind.id(), 10), ("owner", 10)];
        columns.extend(names.map(|name| (name, 10)));
        let mut rows = Rows::new(title, &columns);
        for (object, sysv) in self.all(kind) {
            let both = match &sysv.usage {
                Usage::Msg { last_sender, last_receiver, .. } => [*last_sender, *last_receiver],
                Usage::Shm { last, .. } => [sysv.maker, *last],
                Usage::Sem { .. } => continue,
            };
            let cells = [sysv.id.to_string(), self.user(object.owner.0)];
            let pids = both.map(|process| known(process.map(|p| p.pid.into())));
            let places = both.map(|process| self.place(process));
            rows.row(&columns, cells.into_iter().chain(pids).chain(places));
        }
        rows.0
    }

    fn limits(&self, kind: Kind) -> String {
        let (objects, bytes) = (self.survey.region.object_places, self.survey.region.shared_bytes);
        match kind {
            Kind::Msg => format!("------ Messages Limits --------\nmax queues system wide = {objects}\n"),
            Kind::Shm => format!(
                "------ Shared Memory Limits --------\nmax number of segments = {objects}\nmax seg size (kbytes) = {0}\n\
                 max total shared memory (kbytes) = {0}\nmin seg size (bytes) = 1\n",
                bytes >> 10
            ),
            Kind::Sem => format!("------ Semaphore Limits --------\nmax number of arrays = {objects}\n"),
        }
    }

    fn summary(&self, kind: Kind) -> String {
        let (mut count, mut size) = (0_u64, 0_u64);
        let (mut bytes, mut messages) = (Some(0_u64), Some(0_u64));
        let sum = |sum: Option<u64>, more: Option<u64>| Some(sum?.saturating_add(more?));
        for (_, sysv) in self.all(kind) {
            count += 1;
            size = size.saturating_add(if kind == Kind::Shm { sysv.size.div_ceil(PAGE) } else { sysv.size });
            if let Usage::Msg { bytes: more, messages: more_messages, .. } = &sysv.usage {
                (bytes, messages) = (sum(bytes, *more), sum(messages, *more_messages));
            }
        }
        match kind {
            Kind::Msg => format!(
                "------ Messages Status --------\nallocated queues = {count}\nused headers = {}\nused space = {} bytes\n",
                known(messages),
                known(bytes)
            ),
            // Memory of a region is always there.
            Kind::Shm => format!(
                "------ Shared Memory Status --------\nsegments allocated {count}\npages allocated {size}\n\
                 pages resident  {size}\npages swapped   0\n"
            ),
            Kind::Sem => format!(
                "------ Semaphore Status --------\nused arrays = {count}\nallocated semaphores = {size}\n"
            ),
        }
    }

    fn one(&self, kind: Kind, object: &Object, sysv: &Sysv) -> String {
        let ids = [object.owner.0, object.owner.1, sysv.creator.0, sysv.creator.1];
        let [uid, gid, cuid, cgid] = ids;
        let mode = object.mode & 0o777;
        let (id, maker) = (sysv.id, format!("{}\tshared={}", self.process(sysv.maker), self.shared(object)));
        let changed = time(Some(sysv.changed));
        let owners = format!("uid={uid}\tgid={gid}\tcuid={cuid}\tcgid={cgid}");
        let pid = |process: Option<Pid>| known(process.map(|p| p.pid.into()));
        match &sysv.usage {
            Usage::Shm { attached, detached, last } => format!(
                "\nShared memory Segment {}={id}\n{owners}\nmode=0{mode:o}\taccess_perms=0{mode:o}\n\
                 bytes={}\tlpid={}\tcpid={}\tnattch={}\ncreator={maker}\tlast={}\tstatus={}\n\
                 att_time={}\ndet_time={}\nchange_time={changed}\n\n",
                kind.id(),
                sysv.size,
                pid(*last),
                pid(sysv.maker),
                object.opens,
                self.process(*last),
                if object.unlinked { "dest" } else { "" },
                time(*attached),
                time(*detached),
            ),
            Usage::Msg { bytes, messages, sent, last_sender, received, last_receiver } => format!(
                "\nMessage Queue {}={id}\n{owners}\tmode=0{mode:o}\ncbytes={}\tqbytes={}\tqnum={}\tlspid={}\tlrpid={}\n\
                 creator={maker}\nsend_time={}\nrcv_time={}\nchange_time={changed}\n\n",
                kind.id(),
                known(*bytes),
                sysv.size,
                known(*messages),
                pid(*last_sender),
                pid(*last_receiver),
                time(*sent),
                time(*received),
            ),
            Usage::Sem { operated, semaphores } => {
                let mut out = format!(
                    "\nSemaphore Array {}={id}\n{owners}\nmode=0{mode:o}, access_perms=0{mode:o}\nnsems = {}\n\
                     creator = {maker}\notime = {}\nctime = {changed}\n",
                    kind.id(),
                    sysv.size,
                    time(*operated),
                );
                let columns =
                    [("semnum", 10), ("value", 10), ("ncount", 10), ("zcount", 10), ("pid", 10), ("on", 10)];
                let mut rows = Rows(String::new());
                rows.row(&columns, columns.iter().map(|(name, _)| (*name).to_owned()));
                for (number, semaphore) in semaphores.iter().flatten().enumerate() {
                    let cells = [
                        number.to_string(),
                        semaphore.value.to_string(),
                        semaphore.waiters.to_string(),
                        semaphore.waiters_for_zero.to_string(),
                        pid(semaphore.last),
                        self.place(semaphore.last),
                    ];
                    rows.row(&columns, cells.into_iter());
                }
                let _ = writeln!(out, "{}", rows.0);
                out
            }
        }
    }

    fn object(&self, object: &Object, sysv: &Sysv) -> Value {
        // Strings and numbers, which always serialise.
        let mut value = serde_json::to_value(sysv).unwrap_or_default();
        let named = |process: Option<Pid>| {
            process.map(|p| json!({ "member": self.place(process), "index": p.member, "pid": p.pid }))
        };
        let usage = value["usage"].take();
        value["usage"] = Value::Null;
        if let (Some(map), Value::Object(usage)) = (value.as_object_mut(), usage) {
            map.remove("usage");
            map.extend(usage.into_iter().filter(|(name, _)| name != "of"));
            map.insert("maker".into(), named(sysv.maker).into());
            map.insert("owner".into(), json!([object.owner.0, object.owner.1]));
            map.insert("mode".into(), (object.mode & 0o777).into());
            map.insert("removed".into(), object.unlinked.into());
            map.insert("shared_with".into(), self.shared_with(object).into());
            match &sysv.usage {
                Usage::Shm { last, .. } => {
                    map.insert("nattch".into(), object.opens.into());
                    map.insert("last".into(), named(*last).into());
                }
                Usage::Msg { last_sender, last_receiver, .. } => {
                    map.insert("last_sender".into(), named(*last_sender).into());
                    map.insert("last_receiver".into(), named(*last_receiver).into());
                }
                Usage::Sem { .. } => {}
            }
            if object.unlinked {
                map.insert("opens".into(), object.opens.into());
            }
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_removed_says_by_how_many_it_is_held() {
        let mut object = Object {
            index: 1,
            incarnation: 1,
            kind: "sem",
            unlinked: false,
            offset: 0,
            bytes: 64,
            mode: 0o600,
            owner: (0, 0),
            opens: 3,
            shared_with: None,
            name: "x".into(),
            sysv: None,
        };
        assert_eq!(removed(&object), "");
        object.unlinked = true;
        assert_eq!(removed(&object), "removed, still open by 3");
    }

    #[test]
    fn times_are_those_of_the_calendar_or_none() {
        assert_eq!(utc(951_782_399), "2000-02-28 23:59:59");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(utc(1_795_566_516), "2026-11-25 00:28:36");
        assert_eq!(utc(253_402_300_799), "9999-12-31 23:59:59");
        assert_eq!(
            (time(None), time(Some(0)), time(Some(u64::MAX))),
            ("-".into(), "Not set".into(), "-".into())
        );
    }
}
