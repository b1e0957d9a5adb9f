//! A question of a peer's local service about objects, and the answer's place: how a VM's agent reaches the host service.
//! One question at a time; both sides read each word once.

use super::{Error, PeerInfo, PeerSection, ReadWord, Region, Result, Section, reply};
use crate::format::directory;

/// Longest frame that goes this way.
pub const MAX_FRAME: usize = 512;

/// What was asked, and by which process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Number of the question.
    pub number: u64,
    /// The process that asks.
    pub party: u64,
    /// Its user and group.
    pub user: (u32, u32),
    /// A request of the attach protocol.
    pub frame: Vec<u8>,
}

/// Writes a question into the own section; for a local service.
///
/// # Errors
/// [`Error::Invalid`] for a frame that is too long.
pub fn ask(section: &Section, call: &Call) -> Result<()> {
    if call.frame.len() > MAX_FRAME {
        return Err(Error::Invalid { what: "bytes of a call", value: call.frame.len() as u64 });
    }
    let put = |offset, value| section.word("call", offset).map(|w| w.put(value));
    section.fill_bytes("call", directory::CALL_FRAME, &call.frame)?;
    put(directory::CALL_LEN, call.frame.len() as u64)?;
    put(directory::CALL_PARTY, call.party)?;
    put(directory::CALL_UID, u64::from(call.user.0) | (u64::from(call.user.1) << 32))?;
    section.word("call", directory::CALL)?.set(call.number);
    Ok(())
}

/// The question that stands in a peer's section, if it is another one than `last`.
///
/// # Errors
/// [`Error::Invalid`] for one that is too long.
pub fn heard(section: &PeerSection, last: u64) -> Result<Option<Call>> {
    let number = section.word("call", directory::CALL)?.get();
    if number == last {
        return Ok(None);
    }
    let len = section.word("call", directory::CALL_LEN)?.peek();
    if len > MAX_FRAME as u64 {
        return Err(Error::Invalid { what: "bytes of a call", value: len });
    }
    let frame = section.bytes("call", directory::CALL_FRAME, MAX_FRAME as u64)?.to_vec(0, len)?;
    let user = (section.half("call", directory::CALL_UID)?, section.half("call", directory::CALL_GID)?);
    let party = section.word("call", directory::CALL_PARTY)?.peek();
    Ok(Some(Call { number, party, user, frame }))
}

fn place(region: &Region, peer: u32) -> Result<PeerSection> {
    if peer >= region.shape().peers {
        return Err(Error::NoPeer { peer });
    }
    let at = region.shape().reply_table() + u64::from(peer) * reply::BYTES;
    region.host()?.part("reply", at, reply::BYTES)
}

/// Writes the answer to a peer's question; for the host service.
///
/// # Errors
/// [`Error::Invalid`] for a frame that is too long.
pub fn answer(region: &Region, peer: u32, number: u64, frame: &[u8]) -> Result<()> {
    if frame.len() > MAX_FRAME {
        return Err(Error::Invalid { what: "bytes of a reply", value: frame.len() as u64 });
    }
    let at = place(region, peer)?.writable()?;
    at.fill_bytes("reply", reply::FRAME, frame)?;
    at.word("reply", reply::LEN)?.put(frame.len() as u64);
    at.word("reply", reply::SEQUENCE)?.set(number);
    Ok(())
}

/// The answer to question `number`, once it is there.
///
/// # Errors
/// [`Error::Invalid`] for one that is too long.
pub fn answered(region: &Region, info: &PeerInfo, number: u64) -> Result<Option<Vec<u8>>> {
    let at = place(region, info.index)?;
    if at.word("reply", reply::SEQUENCE).map(ReadWord::get)? != number {
        return Ok(None);
    }
    let len = at.word("reply", reply::LEN)?.peek();
    if len > MAX_FRAME as u64 {
        return Err(Error::Invalid { what: "bytes of a reply", value: len });
    }
    at.bytes("reply", reply::FRAME, MAX_FRAME as u64)?.to_vec(0, len).map(Some)
}
