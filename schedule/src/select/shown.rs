//! Chooses how ranks that share memory show the elements of a call, where that is faster than messages. The bounds are measured
//! (docs/performance.md).

use crate::{
    Collective, Job, Showing,
    algorithm::{ALGORITHMS, Algorithm, Plan},
};

/// The most bytes that a rank shows in a slot where all ranks copy: in one round.
pub const COPIED_BYTES: usize = 16 << 10;

/// The most bytes that a rank copies to a slot at once where others have operands that are read in place.
pub const SLOT_BYTES: usize = 1 << 20;

/// The least bytes of a rank that are read in place.
const IN_PLACE_FROM: usize = 1 << 10;

/// The most bytes of plain memory that a rank copies to its slots to be read there: between 2 ranks (except all_gather), in a
/// reduce_scatter of ranks with a core each, and where a rank has a block for each other one. Messages are faster beyond, by up to 1.4
/// between 2 ranks and in a reduce_scatter of 16, since they put bytes while others are reduced or copied. Other calls gain at every
/// size, up to 2.2 times.
const COPIED_AMONG_2: usize = 16 << 10;
const COPIED_REDUCE_SCATTER: usize = 16 << 10;
const COPIED_BLOCKS: usize = 256 << 10;

/// The bytes that the root of a broadcast copies to its slots at once. It copies the next ones while the others read these, which stay in
/// its cache.
const BROADCAST_BYTES: usize = 128 << 10;

/// The bytes that a rank gives to all others together, in elements of `size` bytes.
fn given(job: &Job<'_>, size: usize) -> usize {
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

fn shown_job(job: &Job<'_>, shown: Showing, chunk: usize) -> Job<'static> {
    Job { shown: Some(shown), chunk, lanes: 1, direct: false, long: false, ..job.even() }
}

/// The plan by which ranks read each other's operands in place, and the most bytes of plain memory that a rank copies to a slot at once for
/// that; 0 if messages are faster than such copies. `None` if no algorithm that is allowed can, or the elements are few. Ranks share
/// `cores` cores.
pub fn in_place(
    job: &Job<'_>,
    size: usize,
    cores: usize,
    allows: impl Fn(&Algorithm) -> bool,
) -> Option<(&'static Plan, usize)> {
    let plans = ALGORITHMS.iter().filter(|algorithm| allows(algorithm));
    let mut plans = plans.filter_map(|algorithm| algorithm.plan(job.collective));
    let plan = plans.find(|plan| plan.shows.contains(&Showing::InPlace))?;
    let blocks = if job.collective.has_blocks() { job.ranks } else { 1 };
    let bytes = job.count.saturating_mul(blocks).saturating_mul(size);
    if job.uneven.is_some() || job.pairwise || bytes < IN_PLACE_FROM {
        return None;
    }
    let most = match job.collective {
        Collective::ReduceScatter if cores >= job.ranks => COPIED_REDUCE_SCATTER,
        Collective::ReduceScatter | Collective::AllToAll => COPIED_BLOCKS,
        _ => usize::MAX,
    };
    let pair = job.ranks == 2 && job.collective != Collective::AllGather;
    let copies = match job.collective {
        _ if given(job, size) > if pair { COPIED_AMONG_2 } else { most } => 0,
        Collective::Broadcast => BROADCAST_BYTES,
        _ => usize::MAX,
    };
    Some((plan, copies))
}
