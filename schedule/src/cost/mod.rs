//! Prices schedules, with no network: how long a collective takes on a fabric that is described by a few numbers.
//!
//! The same schedules that are proved and executed are run here against a clock of the simulation's own. A rank is one
//! thread: it goes through its lanes as the engine does (what can be put or taken first, then a slice of at
//! most 64 KiB reduced or copied), and its work takes processor time on one core of its host, which other ranks may
//! share. A message leaves through the sender's port, one at a time, needs the fabric's latency, and comes in through the
//! receiver's port, one at a time; it needs a free slot, and gives it back when it is freed. What that leaves out is in
//! `docs/cost.md`.
//!
//! [`simulate`] runs the schedules of all ranks. Where all ranks do the same at the same time ([`Alike`]), one stands
//! for all of them ([`simulate_one`]), and ten thousand ranks cost no more than the steps of one.
//! [`lower_bound`] says what no algorithm can go below.

mod bound;
mod fabric;
mod flow;
mod run;
#[cfg(test)]
mod tests;

pub use bound::lower_bound;
pub use fabric::Fabric;

use crate::{Rank, Schedule};

/// In what way all ranks of a collective do the same at the same time, so that one may stand for all: what rank r does
/// is what rank 0 does, with other ranks' numbers changed.
///
/// Spans may differ in place, and in length by an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alike {
    /// Rank p of rank 0's schedule is rank `(p + r) mod ranks` of rank r's, as in rings.
    Turned,
    /// Rank p of rank 0's schedule is rank `p xor r` of rank r's, as in exchanges between halves; the number of ranks is
    /// a power of two.
    Swapped,
}

/// Under which circumstances schedules are priced.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// The fabric and its hosts.
    pub fabric: &'a Fabric,
    /// Bytes of an element.
    pub element: usize,
    /// How many slots every flow has.
    pub slots: usize,
    /// Bytes of the window for one source.
    pub window: usize,
    /// How many writes of a flow may be under way straight into an output.
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

/// Runs the schedule of one rank in a world of ranks that all do the same at the same time: what it takes is
/// what it has put itself. Where ranks share cores, its work takes as many times as long as there are ranks on a core.
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

/// Bytes that a rank of a world of so many registers to run a schedule: a window for each source, the scratch, and what
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

/// Bytes that a rank of a world of so many registers for its mailbox, control messages and headers.
#[must_use]
pub fn control_memory(ranks: usize) -> usize {
    ranks.saturating_mul(736).saturating_add(10_240)
}
