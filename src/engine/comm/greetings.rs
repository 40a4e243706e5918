//! Greetings: the self-test of the ways between this rank and some others, there and back, before anything waits on them.
//!
//! Every greeting is a pattern in the mailbox; to ranks of other hosts a message as large as a chunk goes too, since a network
//! may lose large packets alone.

use std::time::Instant;

use unisono_schedule::Rank;
use unisono_transport::{Region, RemoteRegion};

/// What greetings of the world need, until all have come.
#[derive(Default)]
pub(crate) struct Greetings {
    /// Where large messages come, and behind that as much again that they are sent from; `None` where there is no memory.
    pub(crate) area: Option<Region>,
    /// The others' areas, by rank.
    pub(crate) areas: Vec<RemoteRegion>,
    pub(crate) neighbours: Vec<Rank>,
    /// Until when those of neighbours are waited for.
    pub(crate) deadline: Option<Instant>,
    /// To whom a large message is still to be sent.
    pub(crate) unsent: Vec<Rank>,
}

/// How far the greetings of a neighbour are that have not all come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Awaited {
    pub rank: Rank,
    /// Whether its pattern has come, and its large message is what is missing.
    pub heard: bool,
}

impl Greetings {
    /// Where others may put a large message.
    pub(crate) fn remote(&self) -> RemoteRegion {
        let remote = self.area.as_ref().and_then(|area| Some((area.remote()?, area.len() / 2)));
        remote.map_or_else(RemoteRegion::default, |(remote, len)| RemoteRegion { len: len as u64, ..remote })
    }

    pub(crate) fn meet(&mut self, areas: Vec<RemoteRegion>) {
        self.areas = areas;
    }
}
