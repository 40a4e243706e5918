//! The choice by the cost model, where no table applies: simulates every algorithm on the fabric and orders them by time.
//!
//! All ranks get the same order: they simulate the same schedules with the same parameters, by additions, multiplications,
//! divisions and comparisons of IEEE 754 doubles, which give the same bits on every processor.

use super::choice::{Choice, FEW, writes};
use crate::{
    Collective, Job, Spread, Topology,
    algorithm::{ALGORITHMS, Algorithm},
    cost::Fabric,
    price::{Effort, price},
    windows::{CHUNK_BYTES, EAGER_BYTES, LANES},
};

/// The most ranks for which calls are priced. With more, a call would wait too long.
pub(super) const MOST_RANKS: usize = 32;

/// Some milliseconds for all algorithms together.
const EFFORT: Effort = Effort { steps: 3_000, limit: 40_000 };

/// The bounds of a message (bytes) where there is one lane.
const WHOLE: (usize, usize) = (256 << 10, 256 << 10);
/// The bounds of a pipeline's chunks (bytes), and its lanes.
const PIPED: (usize, usize) = (128 << 10, 256 << 10);
const PIPES: usize = 4;

/// The part of the time that an algorithm of two levels, or for near ranks, must save to be chosen: the model's own error between similar
/// schedules.
pub(super) const GAIN: f64 = 0.05;

/// The class of a size, in bytes. Sizes of one class have the same order of algorithms: those up to the same power of two, and all
/// beyond 64 MiB.
pub(super) fn class(bytes: usize) -> u32 {
    bytes.clamp(1, 1 << 26).next_power_of_two().ilog2()
}

/// The messages and lanes with which an algorithm would execute a call.
pub(super) fn shape(
    algorithm: &'static Algorithm,
    collective: Collective,
    ranks: usize,
    bytes: usize,
) -> Choice {
    let takes_from_all = algorithm.plan(collective).is_some_and(|plan| plan.from_all);
    // Windows for many sources must be small.
    let small = bytes <= EAGER_BYTES || ranks > FEW && takes_from_all;
    let (chunk, lanes) = if small { (WHOLE, 1) } else { (PIPED, PIPES) };
    Choice::cut(algorithm, collective, ranks, bytes, chunk, lanes)
}

/// The algorithms that can do a collective of this class of sizes, the fastest first, with their times (s). Among many ranks, the
/// algorithms in which a rank receives from all others come last, because their windows take much memory; so do those without a price.
/// An algorithm of two levels, or for near ranks, comes before the others if it saves 5 % of the time or more; if there is one level,
/// algorithms of two levels are left out.
pub(super) fn order(
    collective: Collective,
    topology: &Topology,
    fabric: &Fabric,
    hosts: &[u32],
    class: u32,
) -> Vec<(&'static Algorithm, f64)> {
    let (ranks, chunk) = (topology.ranks, CHUNK_BYTES);
    let bytes = if collective == Collective::Barrier { 0 } else { 1_usize << class };
    let mut all: Vec<_> = ALGORITHMS
        .iter()
        .filter_map(|algorithm| {
            let plan = algorithm.plan(collective)?;
            if plan.flat.is_some() && !Spread::Of(hosts).has_levels(ranks) {
                return None;
            }
            let choice = shape(algorithm, collective, ranks, bytes).within(chunk, EAGER_BYTES, LANES);
            let (direct, long) = writes(plan, ranks, bytes, chunk, fabric.cheap_registration);
            let job = Job {
                chunk: choice.chunk_bytes,
                lanes: choice.lanes,
                direct,
                long,
                spread: Spread::Of(hosts),
                ..Job::new(collective, 0, ranks, bytes)
            };
            let cost = price(plan, &job, 1, fabric, EFFORT);
            let seconds = cost.map_or(f64::INFINITY, |cost| cost.seconds);
            let weighed = if plan.flat.is_some() || plan.near { seconds / (1.0 - GAIN) } else { seconds };
            Some((algorithm, (ranks > FEW && plan.from_all, weighed), seconds))
        })
        .collect();
    all.sort_by(|one, other| one.1.partial_cmp(&other.1).unwrap_or(std::cmp::Ordering::Equal));
    all.into_iter().map(|(algorithm, _, seconds)| (algorithm, seconds)).collect()
}
