//! A process's place in a region, from which everything else is opened.

use std::path::Path;
use std::sync::Arc;

use isthmus_region::life::State;
use isthmus_region::member::Member as Attached;
use isthmus_region::objects;

use crate::error::Result;
use crate::named::Named;
use crate::segment::SegmentOptions;

pub use isthmus_region::ProgramMemory;
pub use isthmus_region::objects::{Kind, ObjectInfo};

/// A process's place in a region. Cheap to clone; the attachment ends with its last clone and the last object that was opened
/// by it.
#[derive(Debug, Clone)]
pub struct Attachment(pub(crate) Arc<Attached>);

/// A member of the region: the host's own processes together, or a VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its number in the region.
    pub index: u32,
    /// Its host name.
    pub name: String,
    /// Whether it is a VM.
    pub is_vm: bool,
}

impl Attachment {
    /// Attaches to the service of this host or VM: at `ISTHMUS_SOCKET`, else `/run/isthmus/socket`, else
    /// `$XDG_RUNTIME_DIR/isthmus/socket`. A process that is attached already gets the same attachment.
    ///
    /// # Errors
    /// [`crate::Error::Attach`], naming the socket and what helps.
    pub fn open() -> Result<Self> {
        Ok(Self(isthmus_attach::client::shared()?))
    }

    /// Attaches to the service that listens at `socket`, anew each time.
    ///
    /// # Errors
    /// As [`Attachment::open`].
    pub fn at(socket: impl AsRef<Path>) -> Result<Self> {
        Ok(Self(isthmus_attach::connect_at(socket.as_ref())?))
    }

    /// The member that this process belongs to.
    ///
    /// # Errors
    /// [`crate::Error::Region`] when the membership table cannot be read.
    pub fn member(&self) -> Result<Member> {
        let found = self.members().into_iter().find(|m| m.index == self.0.peer());
        Ok(found.ok_or(isthmus_region::Error::NoPeer { peer: self.0.peer() })?)
    }

    /// The members that live.
    pub fn members(&self) -> Vec<Member> {
        let live = self.0.region().peers().into_iter().filter(|p| p.life.state == State::Active);
        live.map(|p| Member { index: p.index, name: p.name, is_vm: p.is_vm }).collect()
    }

    /// The memory of the region that this process itself stores to: its open segments, memory that its libfabric programs took, rings
    /// of channels. It keeps its contents if this process's place in the region ends, while all else reads as zeros.
    pub fn program_memory(&self) -> Vec<ProgramMemory> {
        self.0.region().program_memory()
    }

    /// A segment by its name; the value returned opens or makes it.
    pub fn segment(&self, name: &str) -> SegmentOptions {
        SegmentOptions::new(self, name)
    }

    /// All segments, including those whose names were removed but which some process has open.
    pub fn segments(&self) -> Vec<ObjectInfo> {
        let all = objects::objects(self.0.region()).into_iter();
        all.filter(|o| o.kind == Kind::Segment as u32).collect()
    }

    /// Registers a context, which joins the group of all contexts with the same `magic` id; they know it by its `client` id.
    ///
    /// # Errors
    /// [`crate::Error::Ivc`] if the region or the service has no room for it.
    pub fn register(&self, magic: u64, client: u64) -> Result<isthmus_ivc::Context> {
        Ok(isthmus_ivc::Context::register(&self.0, magic, client)?)
    }

    /// As [`Attachment::register`], with sizes and limits of the caller's choice.
    ///
    /// # Errors
    /// As there; [`isthmus_ivc::Error::Invalid`] for sizes that cannot be.
    pub fn register_with(
        &self,
        magic: u64,
        client: u64,
        config: isthmus_ivc::Config,
    ) -> Result<isthmus_ivc::Context> {
        Ok(isthmus_ivc::Context::register_with(&self.0, magic, client, config)?)
    }

    /// A barrier, lock or the like by its name; the value returned opens or makes it.
    pub fn named(&self, name: &str) -> Named {
        Named::new(self, name)
    }

    /// Removes a name. The memory is freed when no process has the object open any more.
    ///
    /// # Errors
    /// [`crate::Error::NotFound`]; [`crate::Error::Denied`] for a user that is neither its owner nor root.
    pub fn unlink(&self, kind: Kind, name: &str) -> Result<()> {
        objects::check_name(name)?;
        Ok(self.0.service().unlink_object(kind, name)?)
    }
}
