//! The ways in which ranks that share memory show the elements of a call, where that is faster than messages. The bounds are measured
//! (docs/performance.md); those of plain memory are rows of tables ([`super::table`]).

use std::ops::RangeInclusive;

use crate::{
    Collective, Job, Showing,
    algorithm::{ALGORITHMS, Algorithm, Plan, direct},
};

/// The most bytes that a rank shows in a slot where all ranks copy: in one round.
pub const COPIED_BYTES: usize = 16 << 10;

/// The most bytes that a rank copies to a slot at once where others have operands that are read in place.
pub const SLOT_BYTES: usize = 1 << 20;

/// The bytes of a message, or of a part of a collective that one put writes, that its receiver fetches from the sender's memory if it may:
/// between ranks of one host, into plain memory.
const FETCHED: RangeInclusive<usize> = 128 << 10..=4 << 20;

/// True if the receiver of a message of this many bytes should fetch it.
#[must_use]
pub fn is_fetched(bytes: usize) -> bool {
    FETCHED.contains(&bytes)
}

/// True if the receiver of a put of this many bytes should fetch it in a collective among this many ranks: if all that it gets comes from one
/// rank. A rank that gathers also copies its block, and has no time for it (docs/performance.md).
#[must_use]
pub fn is_fetched_in(collective: Collective, ranks: usize, bytes: usize) -> bool {
    let has_time = match collective {
        Collective::Broadcast | Collective::Scatter => true,
        Collective::AllToAll => ranks == 2,
        _ => false,
    };
    has_time && is_fetched(bytes)
}

/// How ranks that share slots move the elements of a call that lie in plain memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlainMemory {
    /// In messages.
    Messages,
    /// Each rank copies its elements to its slot, at most this many bytes at once.
    Copied(usize),
    /// Ranks read the elements where they lie, if the system lets each read the memory of the others.
    Read,
}

/// The ways for a call: one if all ranks may read each other's memory, and one otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlainWays {
    /// True if they read it where it lies, if they may.
    pub reads: bool,
    /// Otherwise, the most bytes that a rank copies to its slot at once; 0 if messages are faster.
    pub copies: usize,
}

impl PlainWays {
    /// The ways for a call that these rows fit, in the order in which they are tried.
    pub fn of(rows: impl IntoIterator<Item = PlainMemory>) -> Self {
        let mut ways = Self::default();
        for row in rows {
            match row {
                PlainMemory::Read => ways.reads = true,
                PlainMemory::Messages => return ways,
                PlainMemory::Copied(copies) => return Self { copies, ..ways },
            }
        }
        ways
    }

    /// The way of ranks that may read each other's memory.
    #[must_use]
    pub fn first(self) -> PlainMemory {
        match self {
            Self { reads: true, .. } => PlainMemory::Read,
            Self { copies: 0, .. } => PlainMemory::Messages,
            Self { copies, .. } => PlainMemory::Copied(copies),
        }
    }
}

/// Checks a number of bytes that a rank copies to a slot at once.
///
/// # Errors
/// A sentence, if it is neither 0 nor a power of two up to [`SLOT_BYTES`].
pub fn check_copies(bytes: usize) -> Result<(), String> {
    if bytes == 0 || bytes.is_power_of_two() && bytes <= SLOT_BYTES {
        return Ok(());
    }
    Err(format!(
        "a rank copies {bytes} bytes to a slot at once; wanted 0 or a power of two up to {SLOT_BYTES}"
    ))
}

/// The least bytes of a rank that are read in place.
const IN_PLACE_FROM: usize = 1 << 10;

/// The bytes that a rank gives to all others together, in elements of `size` bytes.
#[must_use]
pub fn given(job: &Job<'_>, size: usize) -> usize {
    let blocks = match job.collective {
        Collective::ReduceScatter | Collective::Scatter | Collective::AllToAll => job.ranks,
        _ => 1,
    };
    job.count.saturating_mul(blocks).saturating_mul(size)
}

/// True if ranks show the elements of a job by this plan in slots, in one round.
#[must_use]
pub fn copied(plan: &Plan, job: &Job<'_>, size: usize) -> bool {
    let even = job.uneven.is_none() && !job.pairwise;
    plan.shows.contains(&Showing::Copied) && even && given(job, size) <= COPIED_BYTES
}

/// The job whose elements ranks show in slots, in one round.
#[must_use]
pub fn copied_job(job: &Job<'_>) -> Job<'static> {
    shown_job(job, Showing::Copied, usize::MAX)
}

/// The job whose elements ranks read in place. `copies`: the most bytes that a rank copies to a slot at once, if the memory of some rank
/// cannot be read.
#[must_use]
pub fn in_place_job(job: &Job<'_>, size: usize, copies: Option<usize>) -> Job<'static> {
    let chunk = copies.map_or(usize::MAX, |bytes| (bytes.min(SLOT_BYTES) / size).max(1));
    shown_job(job, Showing::InPlace, chunk)
}

/// The plan and the job of ranks all of which copy elements to slots, at most `copies` bytes at once, where `plan` can also read operands.
///
/// Of two ranks that reduce a vector each reads all elements of the other: in two shots it would read half of them, and half of the results,
/// in twice as many rounds. It may do so because a copy stays as it is when the result is written over the operand.
#[must_use]
pub fn all_copied(
    plan: &'static Plan,
    job: &Job<'_>,
    size: usize,
    copies: usize,
) -> (&'static Plan, Job<'static>) {
    let job = in_place_job(job, size, Some(copies));
    if job.collective == Collective::AllReduce && job.ranks == 2 {
        return (Plan::of(direct::PLANS, job.collective), Job { shown: Some(Showing::Copied), ..job });
    }
    (plan, job)
}

fn shown_job(job: &Job<'_>, shown: Showing, chunk: usize) -> Job<'static> {
    Job { shown: Some(shown), chunk, lanes: 1, direct: false, long: false, ..job.even() }
}

/// The plan by which ranks read each other's operands in place. `None` if no algorithm that is allowed can, or the elements are few.
pub fn in_place(job: &Job<'_>, size: usize, allows: impl Fn(&Algorithm) -> bool) -> Option<&'static Plan> {
    let blocks = if job.collective.has_blocks() { job.ranks } else { 1 };
    let bytes = job.count.saturating_mul(blocks).saturating_mul(size);
    if job.uneven.is_some() || job.pairwise || bytes < IN_PLACE_FROM {
        return None;
    }
    let plans = ALGORITHMS.iter().filter(|algorithm| allows(algorithm));
    let mut plans = plans.filter_map(|algorithm| algorithm.plan(job.collective));
    plans.find(|plan| plan.shows.contains(&Showing::InPlace))
}
