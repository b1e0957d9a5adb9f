//! Steps of sending, receiving and repairing: see `crate::fault`.

/// A place at which a process may be stopped: something has just been done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The senders' lock is taken.
    SendLocked,
    /// Half of what was taken is given back.
    Reclaiming,
    /// The sender has said that it changes something.
    SendBegun,
    /// A message is written, which no other process knows of.
    Written,
    /// It is sent.
    Sent,
    /// It is counted.
    SentCounted,
    /// The senders' lock is free, and nobody was rung.
    SendUnlocked,
    /// The receivers' lock is taken.
    ReceiveLocked,
    /// A message was copied.
    Copied,
    /// The receiver has said that it changes something.
    ReceiveBegun,
    /// A message was linked around, and lies nowhere.
    Bypassed,
    /// A message is taken.
    Taken,
    /// That is counted.
    TakenCounted,
    /// The receivers' lock is free, and nobody was rung.
    ReceiveUnlocked,
    /// All blocks are free, as far as a repair has come.
    Reset,
    /// A message's blocks are marked again.
    Kept,
    /// All is repaired but for the words that say so.
    Rebuilt,
}

impl Step {
    /// All steps of sending.
    pub const SEND: [Self; 7] = [
        Self::SendLocked,
        Self::Reclaiming,
        Self::SendBegun,
        Self::Written,
        Self::Sent,
        Self::SentCounted,
        Self::SendUnlocked,
    ];
    /// All steps of receiving.
    pub const RECEIVE: [Self; 7] = [
        Self::ReceiveLocked,
        Self::Copied,
        Self::ReceiveBegun,
        Self::Bypassed,
        Self::Taken,
        Self::TakenCounted,
        Self::ReceiveUnlocked,
    ];
    /// All steps of a repair.
    pub const REPAIR: [Self; 3] = [Self::Reset, Self::Kept, Self::Rebuilt];
}

crate::fault::steps!();
