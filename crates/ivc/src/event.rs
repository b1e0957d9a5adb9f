//! Events: what a context reports to its program.

use crate::peer::Peer;

/// The name of a channel in events of its context: [`crate::Channel::id`]. No context uses one twice.
pub type ChannelId = u64;

/// Something that happened to a group or a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A member of the group can be reached that could not before.
    Joined(Peer),
    /// A member has left the group or died.
    Left {
        /// The member.
        peer: Peer,
        /// Whether it is known to have left in good order. A process that died did not; if its endpoint was given to
        /// another meanwhile, it is not known.
        in_order: bool,
    },
    /// A channel is no longer available since one of its sides is about to migrate. Neither side writes to it any more.
    Suspended {
        /// The channel.
        channel: ChannelId,
        /// Its partner.
        peer: Peer,
        /// All bytes that had arrived and were not read.
        unread: Vec<u8>,
    },
    /// The partner of a channel is gone.
    Gone {
        /// The channel.
        channel: ChannelId,
        /// Its partner.
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
    /// A channel is no longer available; gets all bytes that had arrived and were not read.
    pub on_suspended: Option<OnSuspended>,
    /// A channel's partner is gone.
    pub on_gone: Option<OnGone>,
    /// Members can be reached that could not before.
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
    /// Calls the call-back of each event; returns the events that have none.
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
