//! What a context tells its program without being asked.

use crate::peer::Peer;

/// Names a channel of a context in events: [`crate::Channel::id`]. Never used again by the same context.
pub type ChannelId = u64;

/// Something that happened to a group or a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A member of the group can be reached that could not before.
    Joined(Peer),
    /// A member has left the group or died.
    Left {
        /// Who.
        peer: Peer,
        /// Whether it is known to have left in good order. A process that died did not; of one whose place was taken by
        /// another meanwhile it is not known.
        in_order: bool,
    },
    /// A channel is no longer available since one of its sides is about to migrate. Nothing more is written to it by
    /// either side.
    Suspended {
        /// Which.
        channel: ChannelId,
        /// Its other side.
        peer: Peer,
        /// All that had arrived and was not read.
        unread: Vec<u8>,
    },
    /// The other side of a channel is gone.
    Gone {
        /// Which.
        channel: ChannelId,
        /// Its other side.
        peer: Peer,
    },
}

/// The call-back for [`Callbacks::on_suspended`].
pub type OnSuspended = Box<dyn FnMut(ChannelId, Vec<u8>) + Send>;
/// The call-back for [`Callbacks::on_gone`].
pub type OnGone = Box<dyn FnMut(ChannelId) + Send>;
/// The call-back for [`Callbacks::on_reachable`].
pub type OnReachable = Box<dyn FnMut(&[Peer]) + Send>;

/// Functions that [`crate::Context::progress`] calls, on the thread that calls it. An event that has a call-back is not in
/// [`crate::Context::events`].
///
/// # Source
/// The dissertation's call-backs for migration, 6.1.3.
#[derive(Default)]
pub struct Callbacks {
    /// A channel is no longer available; with all bytes that had arrived and were not read.
    pub on_suspended: Option<OnSuspended>,
    /// A channel's other side is gone.
    pub on_gone: Option<OnGone>,
    /// These members can be reached now and could not before.
    pub on_reachable: Option<OnReachable>,
}

impl std::fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Callbacks")
            .field("on_suspended", &self.on_suspended.is_some())
            .field("on_gone", &self.on_gone.is_some())
            .field("on_reachable", &self.on_reachable.is_some())
            .finish()
    }
}

impl Callbacks {
    /// Calls what there is for each event; gives back those that there is nothing for.
    pub(crate) fn call(&mut self, events: Vec<Event>) -> Vec<Event> {
        let mut rest = Vec::new();
        let mut reachable = Vec::new();
        for event in events {
            match event {
                Event::Joined(peer) if self.on_reachable.is_some() => reachable.push(peer),
                Event::Suspended { channel, peer, unread } => match &mut self.on_suspended {
                    Some(call) => call(channel, unread),
                    None => rest.push(Event::Suspended { channel, peer, unread }),
                },
                Event::Gone { channel, peer } => match &mut self.on_gone {
                    Some(call) => call(channel),
                    None => rest.push(Event::Gone { channel, peer }),
                },
                other => rest.push(other),
            }
        }
        if let Some(call) = self.on_reachable.as_mut().filter(|_| !reachable.is_empty()) {
            call(&reachable);
        }
        rest
    }
}
