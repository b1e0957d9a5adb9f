//! Named objects: the table that the host service writes. What an object's bytes mean is its users' affair.

use isthmus_region::format::object;
use isthmus_region::life::{Life, State};
use isthmus_region::membership::Shape;
use isthmus_region::objects::{FLAGS, Kind, LIMITED, MAX_ALLOWED, MAX_NAME, ObjectInfo, Patience, UNLINKED};
use isthmus_region::party::Party;

use super::{Result, Walk, half, word};
use crate::claims::Claims;
use crate::fault::{Place, number};
use crate::model::{Object, padded};

/// Words of an entry before its name.
const WORDS: usize = 16;

impl Walk<'_> {
    /// All entries of the table that are in use. No two of them have a byte in common.
    pub(super) fn objects(&mut self, shape: &Shape) -> Result<Vec<Object>> {
        let mut taken = Claims::default();
        let mut found = Vec::new();
        for index in 0..shape.objects {
            if let Some(object) = self.object(shape, index, &mut taken)? {
                found.push(object);
            }
        }
        Ok(found)
    }

    fn object(&mut self, shape: &Shape, index: u32, taken: &mut Claims) -> Result<Option<Object>> {
        let at = shape.object_table() + u64::from(index) * object::BYTES;
        let place = Place::Object(index);
        let words = self.entry(at)?;
        let life = self.life(place, "object.LIFE", at + object::LIFE, word(&words, object::LIFE));
        if life.state != State::Active {
            return Ok(None);
        }
        let (offset, len) = (word(&words, object::OFFSET), word(&words, object::LEN));
        let end = offset.checked_add(len);
        let inside = self.has_shared && len > 0 && end.is_some_and(|e| e <= shape.shared_bytes);
        // Of a shared section that lies nowhere it was said already.
        self.require(inside || !self.has_shared, place, "object.OFFSET", at + object::OFFSET, offset, || {
            format!(
                "with its {} bytes inside the shared section's {}",
                number(len),
                number(shape.shared_bytes)
            )
        });
        let apart = !inside || taken.take(offset, len).is_ok();
        self.require(apart, place, "object.OFFSET", at + object::OFFSET, offset, || {
            "no byte of another object".into()
        });
        let (kind, mode) = (half(&words, object::KIND), half(&words, object::MODE));
        let known = Kind::of(kind);
        self.require(known.is_some(), place, "object.KIND", at + object::KIND, kind.into(), || {
            format!("1 to {}", Kind::ALL.len())
        });
        // Those of System V IPC keep the bits of execution, as the kernel's do, though these mean nothing.
        let bits = if known.is_some_and(Kind::is_sysv) { 0o777 } else { 0o666 };
        self.require(mode & !bits == 0, place, "object.MODE", at + object::MODE, mode.into(), || {
            "read and write bits of owner, group and others".into()
        });
        let flags = word(&words, object::FLAGS);
        self.require(flags <= FLAGS, place, "object.FLAGS", at + object::FLAGS, flags, || {
            format!("0 to {FLAGS}")
        });
        let mut bytes = [0; MAX_NAME + 1];
        self.reader.bytes("object", at + object::NAME, &mut bytes)?;
        let (name, length) = padded(&bytes);
        if !length.is_some_and(|bytes| (1..=MAX_NAME).contains(&bytes)) {
            let allowed = format!("1 to {MAX_NAME} bytes of UTF-8 and zeros behind them");
            self.fault(place, "object.NAME", at + object::NAME, format!("{name:?}"), allowed);
        }
        let param = |i: u64| word(&words, object::PARAMS + 8 * i);
        let info = ObjectInfo {
            index,
            life,
            offset,
            len,
            kind,
            mode,
            owner: (half(&words, object::UID), half(&words, object::GID)),
            creator: Party::named(word(&words, object::CREATOR)),
            flags,
            opens: word(&words, object::OPENS),
            params: [0, 1, 2, 3].map(param),
            allowed: [0, 1, 2, 3].map(|i| word(&words, object::ALLOWED + 8 * i)),
            name,
        };
        let start = self.start_of(shape.shared_file).filter(|_| self.has_shared);
        let start = start.map(|start| start.saturating_add(shape.shared));
        let memory = start.filter(|_| inside).map(|start| start.saturating_add(offset));
        let sysv = match known.filter(|kind| kind.is_sysv()) {
            Some(kind) => Some(self.sysv(kind, &info, memory)?),
            None => None,
        };
        let limited = flags & LIMITED != 0;
        let listed = info.allowed.into_iter().fold(0, |all, bits| all | bits);
        self.require(limited || listed == 0, place, "object.ALLOWED", at + object::ALLOWED, listed, || {
            "0 where it is not limited".into()
        });
        Ok(Some(Object {
            index,
            incarnation: life.incarnation,
            kind: known.map_or("unknown", Kind::name),
            unlinked: flags & UNLINKED != 0,
            offset: start.unwrap_or(shape.shared).saturating_add(offset),
            bytes: len,
            mode,
            owner: info.owner,
            opens: info.opens,
            shared_with: limited
                .then(|| (0..MAX_ALLOWED).filter(|peer| info.is_shared_with(*peer)).collect()),
            name: info.name,
            sysv,
        }))
    }

    /// The words of an entry. One that is being changed, as it is whenever a process opens the object, is read again.
    fn entry(&self, at: u64) -> Result<Vec<u64>> {
        let mut words = self.words("object", at, WORDS)?;
        let mut patience = Patience::default();
        let changes = |words: &[u64]| Life::unpack(word(words, object::LIFE)).state == State::Joining;
        while changes(&words) && self.reader.is_memory() && patience.wait() {
            words = self.words("object", at, WORDS)?;
        }
        Ok(words)
    }
}
