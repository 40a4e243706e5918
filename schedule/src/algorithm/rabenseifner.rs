//! Rabenseifner: recursive halving, in which the ranks of a pair exchange halves of the vector until each has reduced its own block,
//! then recursive doubling. It sends as few elements as the ring, which is the lower bound, in ⌈log2 n⌉ hops each for halving and
//! doubling. It suits medium messages, and large ones among many ranks.
//!
//! Rolf Rabenseifner, "Optimization of collective reduction operations", International Conference on
//! Computational Science, 2004; Rajeev Thakur, Rolf Rabenseifner and William Gropp, "Optimization of collective
//! communication operations in MPICH", International Journal of High Performance Computing Applications 19(1),
//! 2005, sections 4.4 and 4.5. That algorithm halves between pairs and needs a power of two. Any other n is 2^a times an
//! odd number u: after `a` halvings between pairs, cycles of u ranks continue with the halving of Jesper
//! Larsson Träff, "Optimal, non-pipelined reduce-scatter and allreduce algorithms", arXiv:2410.14234, 2024, in
//! ⌈log2 u⌉ hops: with s = ⌈u/2⌉, ⌈u/4⌉, ..., 1, each rank sends to the rank s after it the sums of that rank's block and of
//! those that follow.
//!
//! In an all_reduce a rank may reduce any block. So the first pairs, which exchange half of the vector, are neighbours, and the
//! last pairs, whose messages are the smallest, are farthest apart. In the other collectives a rank must have its own block; the
//! first pairs are far apart, so that a message is one span, or two if it wraps around the end.

use super::{
    Plan, Split, doublings,
    grid::{Grid, GridPairs},
    halving,
};
use crate::{Collective, cost::Alike};

/// The plans of halving and doubling.
pub(super) const PLANS: &[Plan] =
    &[plan(Collective::AllReduce), plan(Collective::ReduceScatter), plan(Collective::AllGather)];

const fn plan(collective: Collective) -> Plan {
    let plan = Plan {
        uneven: collective.has_blocks(),
        depth: 2,
        ..Plan::new(collective, |job| halving::schedule(job, Grid::new(job, GridPairs::Far)), doublings)
    };
    match collective {
        Collective::AllReduce => Plan {
            make: |job| halving::schedule(job, Grid::new(job, GridPairs::Near)),
            hops: |ranks| 2 * doublings(ranks),
            split: Split::Two,
            depth: 1,
            // With cycles, ranks are neither turned nor swapped.
            alike: |ranks| ranks.is_power_of_two().then_some(Alike::Swapped),
            ..plan
        },
        _ => plan,
    }
}
