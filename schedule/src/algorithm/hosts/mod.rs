//! Two levels: what ranks of a host can do among themselves they do there, so that less goes between hosts. The stages are other
//! algorithms ([`compose`](super::compose)).
//!
//! `leader` is for small messages: the ranks of a host reduce to the first of them, the leaders do the collective among
//! themselves, and hand the result to their hosts. `lanes` is for large ones: the ranks of a host reduce a piece of the vector each, do
//! the collective for it with the ranks of the other hosts that have the same piece, and gather the pieces. So all ranks of a
//! host send to other hosts at the same time, each a part of the vector.
//!
//! Jesper Larsson Träff and Sascha Hunold, "Decomposing MPI Collectives for Exploiting Multi-lane Communication", IEEE Cluster 2020
//! (both, and the words); in MPI libraries the first is the older one.

mod vector;

use super::{
    Plan, binomial, compose::Composed, direct, dissemination, rabenseifner, recursive_doubling, tree,
};
use crate::Collective;

use self::vector::Vector;

/// The plans by leaders.
pub(super) const LEADER: &[Plan] = &[
    leader(recursive_doubling::PLANS, Collective::AllReduce),
    leader(dissemination::PLANS, Collective::Barrier),
    leader(binomial::PLANS, Collective::Broadcast),
    leader(binomial::PLANS, Collective::Reduce),
];

/// The plans by lanes.
pub(super) const LANES: &[Plan] = &[
    lanes(rabenseifner::PLANS, Collective::AllReduce),
    lanes(tree::PLANS, Collective::Broadcast),
    lanes(tree::PLANS, Collective::Reduce),
];

const fn leader(flat: &'static [Plan], collective: Collective) -> Plan {
    Plan::levels(Plan::of(flat, collective), |job| Composed::schedule(job, Vector::leader(job)))
}

const fn lanes(flat: &'static [Plan], collective: Collective) -> Plan {
    Plan::levels(Plan::of(flat, collective), |job| Composed::schedule(job, Vector::lanes(job)))
}

/// The most ranks of a host that exchange blocks in one hop. More need fewer messages.
const FEW: usize = 8;

/// The plan by which the ranks of a host scatter or gather blocks.
const fn inside(ranks: usize, collective: Collective) -> &'static Plan {
    match collective {
        Collective::ReduceScatter if ranks > FEW => {
            const { Plan::of(rabenseifner::PLANS, Collective::ReduceScatter) }
        }
        Collective::ReduceScatter => const { Plan::of(direct::PLANS, Collective::ReduceScatter) },
        Collective::AllGather if ranks > FEW => {
            const { Plan::of(rabenseifner::PLANS, Collective::AllGather) }
        }
        Collective::AllGather => const { Plan::of(direct::PLANS, Collective::AllGather) },
        Collective::Gather => const { Plan::of(direct::PLANS, Collective::Gather) },
        _ => const { Plan::of(direct::PLANS, Collective::Scatter) },
    }
}
