//! The cost model: simulates schedules on a fabric that a few numbers describe, and says how long they take.
//!
//! It runs the same schedules that are proved and executed. Each rank is one thread. It works through its lanes as the
//! engine does: first what can be put or taken, then a slice of at most 64 KiB of reductions and copies. Its work takes
//! processor time on a core of its host, which other ranks may share. A message leaves through a port of the sender's host,
//! takes the fabric's latency, and enters through a port of the receiver's host; a port carries one message at a time in
//! each direction. A message needs a free slot, which is given back when the receiver frees it. `docs/cost.md` says what
//! is left out.
//!
//! [`simulate`] runs the schedules of all ranks. If all ranks do the same at the same time ([`Alike`]), [`simulate_one`]
//! runs one for all, and ten thousand ranks cost no more than the steps of one. [`lower_bound`] says what no algorithm can
//! go below.

mod agenda;
mod bound;
mod fabric;
mod flow;
#[cfg(test)]
mod hosts_tests;
mod ports;
mod run;
#[cfg(test)]
mod tests;

pub use bound::lower_bound;
pub use fabric::{Fabric, Path};

use crate::{Rank, Schedule};

/// How the schedules of all ranks follow from that of rank 0, so that one may be simulated for all: rank r does what rank 0
/// does at the same time, with other peers. Spans may differ in place, and in length by an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alike {
    /// Rank p of rank 0's schedule is rank `(p + r) mod ranks` of rank r's, as in rings.
    Turned,
    /// Rank p of rank 0's schedule is rank `p xor r` of rank r's, as in exchanges between halves; the number of ranks is
    /// a power of two.
    Swapped,
}

/// On what, and with what windows, schedules are priced.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// The fabric and its hosts.
    pub fabric: &'a Fabric,
    /// The host of each rank, counted from 0; `None` if consecutive ranks share one, [`Fabric::ranks_per_host`] of them.
    pub hosts: Option<&'a [u32]>,
    /// Bytes of an element.
    pub element: usize,
    /// How many slots every flow has.
    pub slots: usize,
    /// Bytes of the window for one source.
    pub window: usize,
    /// How many writes of a flow into an output may be in flight.
    pub writes: usize,
    /// With more steps than that, on all simulated ranks together, [`Unpriced::TooLong`] is the answer.
    pub limit: u64,
}

/// What each rank has to do of something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// On the rank with the most.
    pub most: u64,
    /// On all ranks together.
    pub total: u64,
}

/// What a collective costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// The longest that any rank takes, from when it begins until it has ended and its puts have left (s). All begin at
    /// once, but for those that first have to wait for a core: nobody's clock runs before it does, as in measurements.
    pub seconds: f64,
    /// Messages sent, empty ones too.
    pub messages: Load,
    /// Bytes of elements sent.
    pub bytes: Load,
    /// Bytes of results of reductions.
    pub reduced: Load,
    /// Bytes that the rank with the most registers for it ([`memory`]).
    pub memory: usize,
    /// Steps that were simulated, on all simulated ranks together.
    pub steps: u64,
    /// Whether only a part was simulated and the rest extrapolated.
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
    /// The ranks wait for each other, as with fewer slots than the algorithm needs.
    #[error("the schedules come to a standstill with {slots} slots")]
    Stuck {
        /// How many slots every flow had.
        slots: usize,
    },
    /// A message to a rank that does not exist, or more memory or messages than can be counted.
    #[error("the schedules have no sense: rank {rank} and a peer {peer}")]
    Peer {
        /// Whose schedule.
        rank: Rank,
        /// Whom it names.
        peer: Rank,
    },
}

/// Runs the schedules of all ranks, which `make` gives. A message costs about a microsecond of real time.
///
/// # Errors
/// If they come to no end, or not within the limit.
pub fn simulate(
    ranks: usize,
    make: &mut dyn FnMut(Rank) -> Box<dyn Schedule>,
    setup: &Setup<'_>,
) -> Result<Cost, Unpriced> {
    run::Simulation::all(ranks, make, setup).run()
}

/// Runs the schedule of one of `ranks` ranks that all do the same at the same time: what it takes is what it has put
/// itself. Where ranks share cores, its work takes as many times as long as there are ranks on a core.
///
/// # Errors
/// As [`simulate`].
pub fn simulate_one(
    rank: Rank,
    ranks: usize,
    alike: Alike,
    schedule: Box<dyn Schedule>,
    setup: &Setup<'_>,
) -> Result<Cost, Unpriced> {
    run::Simulation::one(rank, ranks, alike, schedule, setup).run()
}

/// Bytes that one of `ranks` ranks registers to run a schedule: a window for each source, the scratch, and what
/// it has for control messages of all ranks (`docs/wire.md`, "Windows and memory"); no staging.
#[must_use]
pub fn memory(schedule: &dyn Schedule, ranks: usize, setup: &Setup<'_>) -> usize {
    let mut sources = 0_usize;
    schedule.sources(&mut |_| sources += 1);
    let scratch = match schedule.scratch().saturating_mul(setup.element) {
        0 => 0,
        bytes => bytes.checked_next_power_of_two().unwrap_or(usize::MAX),
    };
    sources.saturating_mul(setup.window).saturating_add(scratch).saturating_add(control_memory(ranks))
}

/// Bytes that one of `ranks` ranks registers for its mailbox, control messages and headers.
#[must_use]
pub fn control_memory(ranks: usize) -> usize {
    ranks.saturating_mul(736).saturating_add(10_240)
}
