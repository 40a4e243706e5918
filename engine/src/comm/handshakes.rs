//! Handshakes: the messages that verify the connections between this rank and some others, in both directions.
//!
//! Every handshake has a small message, a pattern in the mailbox. Between hosts it also has a large one, as long as a chunk, since a
//! network may lose large packets only.

use std::time::Instant;

use unisono_schedule::Rank;
use unisono_transport::{Region, RemoteRegion};

/// The handshakes of the world, until all have arrived.
#[derive(Default)]
pub(crate) struct Handshakes {
    /// Memory for large handshakes: the first half to receive, the second to send. `None` if it could not be registered.
    pub(crate) area: Option<Region>,
    /// The ranks that this one exchanges handshakes with.
    pub(crate) neighbours: Vec<Rank>,
    /// When this rank stops waiting for their handshakes.
    pub(crate) deadline: Option<Instant>,
    /// The ranks to which a large handshake is still to be sent.
    pub(crate) unsent: Vec<Rank>,
}

/// A neighbour whose handshakes have not all arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingHandshake {
    /// The neighbour.
    pub rank: Rank,
    /// True if its pattern has arrived, and only its large message is missing.
    pub small_arrived: bool,
}

impl Handshakes {
    /// The memory for large handshakes to this rank.
    pub(crate) fn remote(&self) -> RemoteRegion {
        let remote = self.area.as_ref().and_then(|area| Some((area.remote()?, area.len() / 2)));
        remote.map_or_else(RemoteRegion::default, |(remote, len)| RemoteRegion { len: len as u64, ..remote })
    }
}
