//! `isthmus ipcs`, `isthmus ipcrm` and `isthmus ipcshare`.

use clap::ArgGroup;
use isthmus_attach::client::connect_at;
use isthmus_inspect::ipcs::{self, Format, Kind};
use isthmus_inspect::{Error, Result};
use isthmus_region::objects::{self, ObjectInfo};
use isthmus_sysv::{Caller, Errno, Ipc, ipc};

use crate::report;
use crate::user;
use crate::watch::{Which, print, print_json, status};

/// Show the objects of System V IPC in a region
///
/// Shared memory, semaphores and message queues of programs that run with `isthmus run --sysv` or with
/// libisthmus-sysv.so, in the tables of ipcs(1), with the ids that programs see. Each line has the process that made the
/// object: the host or VM, and its number there. Works on the host for all VMs, and in a VM through its agent; only reads.
///
///     isthmus ipcs -m
///     isthmus ipcs -s -i 1073741825
///
/// Times are in UTC. A `-` stands for what is not known.
#[derive(clap::Args)]
#[command(verbatim_doc_comment, group(ArgGroup::new("format").args(["time", "creator", "pid", "limits", "summary", "id"])))]
pub(crate) struct Ipcs {
    /// Shared memory segments
    #[arg(short = 'm', long)]
    shmems: bool,
    /// Message queues
    #[arg(short = 'q', long)]
    queues: bool,
    /// Sets of semaphores
    #[arg(short = 's', long)]
    semaphores: bool,
    /// All three, as by default
    #[arg(short, long)]
    all: bool,
    /// Times of attaching, detaching, operations, messages and changes
    #[arg(short, long)]
    time: bool,
    /// Who made each, who owns it, and with whom it is shared
    #[arg(short, long)]
    creator: bool,
    /// Processes that made a segment or used it last, sent or received last
    #[arg(short, long)]
    pid: bool,
    /// What there can be at most
    #[arg(short, long)]
    limits: bool,
    /// How much there is in all
    #[arg(short = 'u', long)]
    summary: bool,
    /// All about the object with this id; with -m, -q or -s
    #[arg(short, long, value_name = "ID")]
    id: Option<i32>,
    #[command(flatten)]
    which: Which,
    /// All of it as JSON
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

/// Remove objects of System V IPC from a region
///
/// As ipcrm(1) does: shared memory (-m, -M), message queues (-q, -Q) and sets of semaphores (-s, -S), by id as programs and
/// `isthmus ipcs` have it, or by key. Each option may be repeated. Only the owner of an object, who made it, and root may
/// remove it; a segment lives until it is detached everywhere.
///
///     isthmus ipcrm -m 1073741825 -S 0x77
///     isthmus ipcrm --all=sem
///
/// Exit status: 0 all are removed, 1 one could not be; 2 a mistake on the command line; 125 no service answered.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Ipcrm {
    #[command(flatten)]
    objects: Objects,
    /// All objects, or all of a kind
    #[arg(short, long, value_name = "shm|msg|sem", num_args = 0..=1, require_equals = true, default_missing_value = "all",
          value_parser = ["shm", "msg", "sem", "all"], hide_possible_values = true)]
    all: Option<String>,
    /// Say what is removed
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    which: Which,
}

/// Limit objects of System V IPC to some VMs, or take that back
///
/// An object is shared with all members of its region until its owner limits it: to the host or VM where it was made
/// (--own), or to that and others (--with). Processes elsewhere then do not find its key, and can no longer attach or use it;
/// a segment that they have attached stays theirs until they detach it. `isthmus ps` has the names of host and VMs,
/// `isthmus ipcs -c` shows with whom each object is shared.
///
///     isthmus ipcshare -M 0x77 --own
///     isthmus ipcshare -m 1073741825 --with vm1,vm2
///     isthmus ipcshare -M 0x77 --all
///
/// The owner, who made it, and root may do so, where it is shared, and on the host anyway. It guards against mistakes, as
/// modes do: all members of a region map all of its shared section.
///
/// Exit status: 0 done, 1 one could not be; 2 a mistake on the command line; 125 no service answered.
#[derive(clap::Args)]
#[command(verbatim_doc_comment, group(ArgGroup::new("how").args(["own", "with", "everywhere"]).required(true)))]
pub(crate) struct Ipcshare {
    #[command(flatten)]
    objects: Objects,
    /// With nobody but the host or VM where it was made
    #[arg(long)]
    own: bool,
    /// With that, and with these: host or VMs by name, with commas between; in place of those that it had
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    with: Vec<String>,
    /// With all again
    #[arg(long = "all")]
    everywhere: bool,
    #[command(flatten)]
    which: Which,
}

/// Objects by id or key.
#[derive(clap::Args)]
struct Objects {
    /// The segment with this id
    #[arg(short = 'm', long, value_name = "ID")]
    shmem_id: Vec<i32>,
    /// The segment with this key
    #[arg(short = 'M', long, value_name = "KEY", value_parser = key)]
    shmem_key: Vec<Key>,
    /// The message queue with this id
    #[arg(short = 'q', long, value_name = "ID")]
    queue_id: Vec<i32>,
    /// The message queue with this key
    #[arg(short = 'Q', long, value_name = "KEY", value_parser = key)]
    queue_key: Vec<Key>,
    /// The set of semaphores with this id
    #[arg(short, long, value_name = "ID")]
    semaphore_id: Vec<i32>,
    /// The set of semaphores with this key
    #[arg(short = 'S', long, value_name = "KEY", value_parser = key)]
    semaphore_key: Vec<Key>,
}

impl Objects {
    /// By kind: what was named.
    fn by_kind(self) -> [(objects::Kind, &'static str, Vec<What>); 3] {
        let named = |ids: Vec<i32>, keys: Vec<Key>| {
            ids.into_iter().map(What::Id).chain(keys.into_iter().map(What::Key)).collect()
        };
        [
            (objects::Kind::SysvShm, "shm", named(self.shmem_id, self.shmem_key)),
            (objects::Kind::SysvMsg, "msg", named(self.queue_id, self.queue_key)),
            (objects::Kind::SysvSem, "sem", named(self.semaphore_id, self.semaphore_key)),
        ]
    }
}

/// A key, as it was written and as a number.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Key {
    text: String,
    number: i32,
}

/// Reads a key as strtoul(3) does: decimal, hexadecimal after 0x, octal after 0.
fn key(text: &str) -> std::result::Result<Key, String> {
    let digits = text.trim();
    let (digits, radix) = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) => (hex, 16),
        None if digits.len() > 1 && digits.starts_with('0') => (&digits[1..], 8),
        None => (digits, 10),
    };
    let number = u32::from_str_radix(digits, radix).map(u32::cast_signed);
    let number = number.or_else(|e| if radix == 10 { digits.parse() } else { Err(e) });
    let number = number.map_err(|_| format!("`{text}` is no key: write for instance 0x77 or 119"))?;
    if number == ipc::PRIVATE {
        return Err(format!("illegal key ({text}): many objects may have none"));
    }
    Ok(Key { text: text.into(), number })
}

impl Ipcs {
    pub(crate) fn run(self) -> i32 {
        let kinds = self.kinds();
        if let (Some(_), [_, _, ..]) = (self.id, kinds.as_slice()) {
            isthmus_region::tell!("isthmus: --id needs one of -m, -q and -s: which kind of object it is");
            return report::USAGE;
        }
        let mut found = true;
        let shown = self.show(&kinds, &mut found);
        match status(shown) {
            0 if !found => 1,
            status => status,
        }
    }

    fn kinds(&self) -> Vec<Kind> {
        let asked = [(Kind::Msg, self.queues), (Kind::Shm, self.shmems), (Kind::Sem, self.semaphores)];
        let named: Vec<Kind> = asked.iter().filter(|(_, asked)| *asked).map(|(kind, _)| *kind).collect();
        if named.is_empty() || self.all { Kind::ALL.to_vec() } else { named }
    }

    fn format(&self) -> Format {
        match self {
            Self { time: true, .. } => Format::Times,
            Self { creator: true, .. } => Format::Creators,
            Self { pid: true, .. } => Format::Processes,
            Self { limits: true, .. } => Format::Limits,
            Self { summary: true, .. } => Format::Summary,
            _ => Format::Usual,
        }
    }

    fn show(self, kinds: &[Kind], found: &mut bool) -> Result<()> {
        let (format, id, is_json) = (self.format(), self.id, self.json);
        let target = self.which.find()?;
        let (survey, faults) = target.survey()?;
        let names = user::names();
        let users = |uid: u32| names.get(&uid).cloned();
        if is_json {
            print_json(&ipcs::json(&target, &survey, kinds));
            return Ok(());
        }
        if let (Some(id), [kind]) = (id, kinds) {
            match ipcs::details(&survey, *kind, id, &users) {
                Some(text) => print(&text),
                None => {
                    *found = false;
                    isthmus_region::tell!("isthmus: id {id} not found");
                }
            }
        } else {
            print(&ipcs::text(&survey, kinds, format, &users));
        }
        isthmus_region::print::to_stderr(&isthmus_inspect::ps::note(&faults));
        Ok(())
    }
}

/// An object that was named.
enum What {
    Id(i32),
    Key(Key),
}

impl Ipcrm {
    pub(crate) fn run(self) -> i32 {
        let Self { objects, all, verbose, which } = self;
        let kinds = objects.by_kind();
        if kinds.iter().all(|(_, _, named)| named.is_empty()) && all.is_none() {
            isthmus_region::tell!(
                "isthmus: nothing to remove: name objects by -m, -q, -s, -M, -Q or -S, or all by --all"
            );
            return report::USAGE;
        }
        let ipc = match attached(which) {
            Ok(ipc) => ipc,
            Err(e) => return status(Err(e)),
        };
        let caller = Caller::current();
        let mut is_done = true;
        for (kind, name, named) in kinds {
            let is_all = all.as_ref().is_some_and(|all| all == "all" || all == name);
            let of_all = if is_all { ipc.all(kind) } else { Vec::new() };
            let what = of_all.iter().map(ipc::id_of).map(What::Id).chain(named);
            for what in what {
                match remove(&ipc, kind, &what, &caller) {
                    Ok(info) if verbose => {
                        isthmus_region::say!("removing {} id `{}'", kind.name(), ipc::id_of(&info));
                    }
                    Ok(_) => {}
                    Err(errno) => {
                        is_done = false;
                        isthmus_region::tell!("isthmus: {}", told(&what, errno));
                    }
                }
            }
        }
        i32::from(!is_done)
    }
}

/// As a member of the region that is meant: only members may change it.
fn attached(which: Which) -> Result<Ipc> {
    let target = which.find()?;
    let Some(service) = target.service else {
        return Err(Error::NoService { looked: target.name });
    };
    let member = connect_at(&service.socket)
        .map_err(|source| Error::Attach { path: service.socket.clone(), source })?;
    Ok(Ipc::to_rule(&member))
}

impl Ipcshare {
    pub(crate) fn run(self) -> i32 {
        let Self { objects, own: _, with, everywhere, which } = self;
        let kinds = objects.by_kind();
        if kinds.iter().all(|(_, _, named)| named.is_empty()) {
            isthmus_region::tell!("isthmus: nothing to share: name objects by -m, -q, -s, -M, -Q or -S");
            return report::USAGE;
        }
        let ipc = match attached(which) {
            Ok(ipc) => ipc,
            Err(e) => return status(Err(e)),
        };
        let with = (!everywhere).then_some(with.as_slice());
        let mut is_done = true;
        for (kind, _, named) in kinds {
            for what in named {
                let shared = match find(&ipc, kind, &what) {
                    Ok(info) => ipc.share(&info, with).map_err(|e| isthmus_region::error::with_causes(&e)),
                    Err(errno) => Err(told(&what, errno)),
                };
                if let Err(why) = shared {
                    is_done = false;
                    isthmus_region::tell!("isthmus: {why}");
                }
            }
        }
        i32::from(!is_done)
    }
}

fn find(ipc: &Ipc, kind: objects::Kind, what: &What) -> isthmus_sysv::Result<ObjectInfo> {
    match what {
        What::Id(id) => ipc.look(kind, *id),
        What::Key(key) => ipc.find(kind, key.number).ok_or(Errno::NOENT),
    }
}

fn remove(ipc: &Ipc, kind: objects::Kind, what: &What, caller: &Caller) -> isthmus_sysv::Result<ObjectInfo> {
    let info = find(ipc, kind, what)?;
    // Those that wait are woken.
    let id = isthmus_sysv::ipc::id_of(&info);
    match kind {
        objects::Kind::SysvSem => ipc.semrm(id, caller)?,
        objects::Kind::SysvMsg => ipc.msgremove(id, caller)?,
        _ => ipc.remove(&info, caller)?,
    }
    Ok(info)
}

/// Why something was not done, as ipcrm(1) says it.
fn told(what: &What, errno: Errno) -> String {
    let (noun, shown) = match what {
        What::Id(id) => ("id", id.to_string()),
        What::Key(key) => ("key", key.text.clone()),
    };
    let why = match errno {
        Errno::ACCESS | Errno::PERM => format!("permission denied for {noun}"),
        Errno::INVAL | Errno::NOENT => format!("invalid {noun}"),
        Errno::IDRM => format!("already removed {noun}"),
        errno => format!("{noun} failed: {errno}"),
    };
    format!("{why} ({shown})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_numbers_as_in_c() {
        let of = |text| key(text).map(|key| key.number);
        assert_eq!((of("119"), of("0x77"), of("0167")), (Ok(119), Ok(119), Ok(119)));
        assert_eq!((of("0xffffffff"), of("-1"), of("4294967295")), (Ok(-1), Ok(-1), Ok(-1)));
        for bad in ["", "x", "0x", "09", "0", "0x0", "4294967296"] {
            assert!(key(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn errors_are_those_of_ipcrm() {
        let key = What::Key(key("0x77").unwrap());
        assert_eq!(told(&What::Id(15), Errno::INVAL), "invalid id (15)");
        assert_eq!(told(&key, Errno::NOENT), "invalid key (0x77)");
        assert_eq!(told(&key, Errno::PERM), "permission denied for key (0x77)");
        assert_eq!(told(&What::Id(7), Errno::IDRM), "already removed id (7)");
    }
}
