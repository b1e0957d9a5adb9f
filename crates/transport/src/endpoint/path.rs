//! How a remote endpoint is reached now.
//!
//! ```text
//!           first message               accept entry found
//!  Closed ────────────────► Near, asked ──────────────────► Near, accepted
//!    ▲ ▲                         │                                │
//!    │ └──── lane closed, idle in a full region ──────────────────┤
//!    │                           ▼                                ▼
//!    └── number used again ─── Gone ◄───── closed, died or faulty ┘
//! ```
//! Messages of a pair are sent along one path at a time. Whoever sends looks at the path alone; only `outgoing` opens and closes
//! lanes, and only `remotes` ends a path for good.

use crate::lane::Outgoing;

/// The state of the path to a remote endpoint.
#[derive(Debug)]
#[repr(u8)] // a tag of its own is compared in one instruction, a niche in two or three
#[allow(clippy::large_enum_variant)] // a box would be one more load on the way of each message
pub(super) enum Path {
    /// None: the first message opens one.
    Closed,
    /// A lane through the region. Until its receiver has accepted it, it takes as many messages as its ring has slots.
    Near(Outgoing),
    /// The remote endpoint is gone, or faulty, and no path comes any more.
    Gone {
        /// It was not closed in good order: directed receives from it fail.
        died: bool,
    },
}

impl Path {
    /// The lane, if there is one.
    #[inline]
    pub(super) fn lane(&self) -> Option<&Outgoing> {
        if let Self::Near(lane) = self { Some(lane) } else { None }
    }

    /// The same, to be changed.
    #[inline]
    pub(super) fn lane_mut(&mut self) -> Option<&mut Outgoing> {
        if let Self::Near(lane) = self { Some(lane) } else { None }
    }

    /// Closes it, and gives the lane that was open. What is gone stays so.
    pub(super) fn close(&mut self) -> Option<Outgoing> {
        if !matches!(self, Self::Near(_)) {
            return None;
        }
        match std::mem::replace(self, Self::Closed) {
            Self::Near(lane) => Some(lane),
            Self::Closed | Self::Gone { .. } => None,
        }
    }

    /// Whether the remote endpoint is gone.
    #[inline]
    pub(super) fn is_gone(&self) -> bool {
        matches!(self, Self::Gone { .. })
    }

    /// Whether it is gone and was not closed in good order.
    #[inline]
    pub(super) fn has_died(&self) -> bool {
        matches!(self, Self::Gone { died: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_has_no_lane_and_does_not_come_back() {
        for died in [false, true] {
            let mut path = Path::Gone { died };
            assert!(path.close().is_none() && path.lane().is_none() && path.lane_mut().is_none());
            assert!(path.is_gone() && path.has_died() == died);
        }
        let mut path = Path::Closed;
        assert!(path.close().is_none() && !path.is_gone() && !path.has_died());
    }
}
