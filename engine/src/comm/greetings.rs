//! Greetings: the messages of the connection checks, in both directions between this rank and some others.
//!
//! Every greeting is a pattern in the mailbox. A rank of another host also gets a message as large as a chunk, since a network may
//! lose large packets only.

use std::time::Instant;

use unisono_schedule::Rank;
use unisono_transport::{Region, RemoteRegion};

/// The greetings of the world, until all have arrived.
#[derive(Default)]
pub(crate) struct Greetings {
    /// Memory for large greetings: the first half to receive, the second to send. `None` if it could not be registered.
    pub(crate) area: Option<Region>,
    /// The ranks that this one exchanges greetings with.
    pub(crate) neighbours: Vec<Rank>,
    /// When this rank stops waiting for their greetings.
    pub(crate) deadline: Option<Instant>,
    /// The ranks to which a large greeting is still to be sent.
    pub(crate) unsent: Vec<Rank>,
}

/// A neighbour whose greetings have not all arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// The rank that was awaited.
    pub rank: Rank,
    /// True if its pattern has arrived, and only its large greeting is missing.
    pub heard: bool,
}

impl Greetings {
    /// The memory for large greetings to this rank.
    pub(crate) fn remote(&self) -> RemoteRegion {
        let remote = self.area.as_ref().and_then(|area| Some((area.remote()?, area.len() / 2)));
        remote.map_or_else(RemoteRegion::default, |(remote, len)| RemoteRegion { len: len as u64, ..remote })
    }
}
