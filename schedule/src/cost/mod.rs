//! The cost model: simulates schedules on a [`Fabric`], which a few numbers describe, and predicts their time ([`Cost`]).
//! [`price`](crate::price::price) is its entry point; [`lower_bound`] is the least time of any algorithm.
//!
//! The model simulates the same schedules that are checked and executed. Each rank is one thread. It works through its lanes as
//! the engine does: first all puts and takes that are possible, then a slice of at most 64 KiB of reductions and copies. This work
//! takes processor time on a core of the rank's host, which other ranks may share. A message leaves through a port of the sender's
//! host, takes the fabric's latency, and enters through a port of the receiver's host; a port carries one message at a time in each
//! direction. A message needs a free slot, which is given back when the receiver frees it. `docs/cost.md` says what the model
//! leaves out.
//!
//! Where ranks show elements instead of sending messages, a rank sees another's round one latency of shared memory after it was begun.
//! Elements that are shown in slots are copied once more.
//!
//! Usually the schedules of all ranks are simulated. If all ranks do the same at the same time, one rank is simulated for all, so
//! that ten thousand ranks take no longer than one.

mod bound;
mod event_queue;
mod fabric;
mod flow;
#[cfg(test)]
mod hosts_tests;
mod ports;
mod run;
mod shown;
#[cfg(test)]
mod tests;

pub use bound::lower_bound;
pub use fabric::{Fabric, Path};
pub(crate) use run::Simulation;

use crate::{Rank, Schedule, Showing};

/// How the schedules of all ranks follow from that of rank 0, so that one may be simulated for all: rank r takes the same steps as
/// rank 0 at the same time, with other peers. Spans may have other offsets, and lengths that differ by one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alike {
    /// Rank p of rank 0's schedule is rank `(p + r) mod ranks` of rank r's, as in rings.
    Turned,
    /// Rank p of rank 0's schedule is rank `p xor r` of rank r's, as in exchanges between halves; the number of ranks is
    /// a power of two.
    Swapped,
}

/// The fabric and the windows of a simulation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SimulationSetup<'a> {
    /// The fabric and its hosts.
    pub fabric: &'a Fabric,
    /// The host of each rank, counted from 0; `None` if consecutive ranks share one, [`Fabric::ranks_per_host`] of them.
    pub hosts: Option<&'a [u32]>,
    /// Bytes of an element.
    pub element: usize,
    /// The number of slots of each flow.
    pub slots: usize,
    /// Bytes of the window for one source.
    pub window: usize,
    /// How elements are shown, if no messages are sent.
    pub showing: Option<Showing>,
    /// The most writes of a flow into an output that may be in flight.
    pub writes: usize,
    /// If all simulated ranks together take more steps than this, the simulation ends with [`Unpriced::TooLong`].
    pub limit: u64,
}

/// The amount of something (messages, bytes) that ranks have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// On the rank with the most.
    pub most: u64,
    /// On all ranks together.
    pub total: u64,
}

/// The predicted cost of a collective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// The time of the slowest rank, from its beginning until its schedule has ended and its puts have left (s). All ranks begin at
    /// time 0, except that a rank without a core begins when it gets one, as in measurements.
    pub seconds: f64,
    /// Messages sent, including empty ones.
    pub messages: Load,
    /// Bytes of elements sent.
    pub bytes: Load,
    /// Bytes of results of reductions.
    pub reduced: Load,
    /// Bytes that the rank with the most memory registers: windows, scratch and control messages (`docs/wire.md`, "Windows and
    /// memory").
    pub memory: usize,
    /// Steps that were simulated, of all simulated ranks together.
    pub steps: u64,
    /// If true, two smaller counts were simulated and the cost was extrapolated.
    pub extrapolated: bool,
}

/// Why there is no price.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unpriced {
    /// It would take too long to simulate.
    #[error("more than {limit} steps to simulate")]
    TooLong {
        /// The limit.
        limit: u64,
    },
    /// The ranks wait for each other, for instance because flows have fewer slots than the algorithm needs.
    #[error("the schedules come to a standstill with {slots} slots")]
    Stuck {
        /// The number of slots of each flow.
        slots: usize,
    },
    /// A message to or from a rank that does not exist, or itself.
    #[error("the schedules are invalid: rank {rank} has a message to or from rank {peer}")]
    Peer {
        /// The rank whose schedule it is.
        rank: Rank,
        /// The rank that it names.
        peer: Rank,
    },
}

/// The bytes that one of `ranks` ranks registers to run a schedule ([`Cost::memory`]). Staging is left out.
pub(crate) fn memory(schedule: &dyn Schedule, ranks: usize, setup: &SimulationSetup<'_>) -> usize {
    let mut sources = 0_usize;
    schedule.sources(&mut |_| sources += 1);
    let scratch = match schedule.scratch().saturating_mul(setup.element) {
        0 => 0,
        bytes => bytes.checked_next_power_of_two().unwrap_or(usize::MAX),
    };
    sources.saturating_mul(setup.window).saturating_add(scratch).saturating_add(control_memory(ranks))
}

/// The bytes that one of `ranks` ranks registers for its mailbox, control messages and headers.
#[must_use]
pub fn control_memory(ranks: usize) -> usize {
    ranks.saturating_mul(880).saturating_add(10_240)
}
