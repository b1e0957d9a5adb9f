//! What can go wrong with contexts and channels.

use std::time::Duration;

use crate::peer::Peer;

/// This crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a function failed. After some errors a channel is of no more use in that direction: [`Error::is_final`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The region or the local service refused.
    #[error("cannot {action}")]
    Region {
        /// What was attempted.
        action: &'static str,
        /// Why not.
        #[source]
        source: isthmus_region::Error,
    },
    /// The system refused.
    #[error("cannot {action}")]
    System {
        /// What was attempted.
        action: &'static str,
        /// Why not.
        #[source]
        source: rustix::io::Errno,
    },
    /// A size or count is not possible.
    #[error("{what}: {value} is not possible; {allowed}")]
    Invalid {
        /// What it is the value of.
        what: &'static str,
        /// The value.
        value: u64,
        /// What is possible.
        allowed: &'static str,
    },
    /// No member of the group has this address, or it has left.
    #[error("no member of the group has the address {address}; it may have left")]
    NoPeer {
        /// The address.
        address: crate::Address,
    },
    /// The address is that of the connecting context.
    #[error("a context cannot connect to itself")]
    Oneself,
    /// The member accepts no connections, or as many wait there as its backlog allows.
    #[error("{peer} refuses: it accepts no connections, or too many wait there to be accepted")]
    Refused {
        /// The context that was asked.
        peer: Peer,
    },
    /// The time is up. Nothing is lost: the bytes that were moved are counted, and the call may be repeated for the rest.
    #[error("{action} took longer than {limit:?}{}", if *moved > 0 { format!("; {moved} bytes were moved") } else { String::new() })]
    TimedOut {
        /// What was waited for.
        action: &'static str,
        /// How long.
        limit: Duration,
        /// Bytes that were moved before.
        moved: usize,
    },
    /// Everything was read, and no more will come: the partner closed the channel or its direction.
    #[error("end of the stream from {peer}")]
    End {
        /// The partner.
        peer: Peer,
    },
    /// Nothing can be written any more: this side has shut its direction down, or the partner has closed the channel. Or
    /// nothing can be read any more, since this side has stopped reading.
    #[error("the channel to {peer} is closed in this direction")]
    Closed {
        /// The partner.
        peer: Peer,
    },
    /// The partner's process, or its VM, is gone without having closed the channel. All bytes that are certain to be its
    /// own were delivered.
    #[error("{peer} is gone")]
    PeerDied {
        /// The partner.
        peer: Peer,
    },
    /// The partner wrote what no member that keeps to the format writes. The channel is not used any more.
    #[error(
        "{peer} broke the protocol: {what} is {found}, which must be from {low} to {high}; its channel is dead"
    )]
    Faulty {
        /// The partner.
        peer: Peer,
        /// The field.
        what: &'static str,
        /// What was found.
        found: u64,
        /// The least that it may be.
        low: u64,
        /// The most.
        high: u64,
    },
    /// The loan is over: its lender has ended it, or has given the memory back.
    #[error("the loan of {peer} is over")]
    LoanOver {
        /// The lender.
        peer: Peer,
    },
    /// The channel was suspended for a migration, and its unread bytes were handed over.
    #[error("the channel to {peer} is suspended; connect anew once the peer can be reached again")]
    Suspended {
        /// The partner.
        peer: Peer,
    },
}

impl Error {
    /// Whether the same call will fail for ever: with this error, or after [`Error::Suspended`] with that of a partner that is gone.
    pub fn is_final(&self) -> bool {
        matches!(
            self,
            Self::End { .. }
                | Self::Closed { .. }
                | Self::PeerDied { .. }
                | Self::Faulty { .. }
                | Self::Suspended { .. }
        )
    }
}

/// Wraps a region's error with what was attempted.
pub(crate) fn region(action: &'static str) -> impl Fn(isthmus_region::Error) -> Error {
    move |source| Error::Region { action, source }
}
