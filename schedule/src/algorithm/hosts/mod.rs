//! Two levels: ranks of a host do among themselves what they can, so that fewer bytes go between hosts. The stages are other
//! algorithms ([`compose`](super::compose)).
//!
//! `leader` is for small messages: the ranks of a host reduce to the first of them, the leaders do the collective among
//! themselves, and hand the result to their hosts. `lanes` is for large ones: the ranks of a host reduce a piece of the vector each, do
//! the collective for it with the ranks of the other hosts that have the same piece, and gather the pieces. So all ranks of a
//! host send to other hosts at the same time, each a part of the vector.
//!
//! Jesper Larsson Träff and Sascha Hunold, "Decomposing MPI Collectives for Exploiting Multi-lane Communication", IEEE International
//! Conference on Cluster Computing, 2020, on lanes.

mod blocks;
mod vector;

use super::{
    Plan, binomial, bruck, compose::Composed, direct, dissemination, rabenseifner, recursive_doubling, tree,
};
use crate::{Collective, Job, Rank, Schedule};

use self::{blocks::Blocks, vector::Vector};

/// The plans by leaders.
pub(super) const LEADER: &[Plan] = &[
    leader(recursive_doubling::PLANS, Collective::AllReduce),
    leader(dissemination::PLANS, Collective::Barrier),
    leader(binomial::PLANS, Collective::Broadcast),
    leader(binomial::PLANS, Collective::Reduce),
    leader(bruck::PLANS, Collective::AllGather),
    leader(rabenseifner::PLANS, Collective::ReduceScatter),
    leader(binomial::PLANS, Collective::Gather),
    leader(binomial::PLANS, Collective::Scatter),
    leader(bruck::PLANS, Collective::AllToAll),
];

/// The plans by lanes.
pub(super) const LANES: &[Plan] = &[
    lanes(rabenseifner::PLANS, Collective::AllReduce),
    lanes(tree::PLANS, Collective::Broadcast),
    lanes(tree::PLANS, Collective::Reduce),
    lanes(rabenseifner::PLANS, Collective::AllGather),
    lanes(rabenseifner::PLANS, Collective::ReduceScatter),
    lanes(bruck::PLANS, Collective::AllToAll),
];

const fn leader(flat: &'static [Plan], collective: Collective) -> Plan {
    Plan::levels(Plan::of(flat, collective), |job| schedule(job, false))
}

const fn lanes(flat: &'static [Plan], collective: Collective) -> Plan {
    Plan::levels(Plan::of(flat, collective), |job| schedule(job, true))
}

/// The schedule by leaders or lanes.
fn schedule(job: &Job<'_>, lanes: bool) -> Box<dyn Schedule> {
    if !job.collective.has_blocks() {
        return Composed::schedule(job, Vector::new(job, lanes));
    }
    // The elements that a host has for all ranks may be too many to address, even if those of one rank are not.
    match Blocks::new(job, lanes) {
        Some(blocks) => Composed::schedule(job, blocks),
        None => exchange(1, job.collective).make(job),
    }
}

/// The ranks of every host, by place, and where this rank and the root are.
struct Places {
    /// The root, or the first rank of a host, has place 0.
    hosts: Vec<Vec<Rank>>,
    /// This rank's host, and its place there.
    home: usize,
    place: usize,
    /// The root's host.
    root: usize,
}

impl Places {
    fn of(job: &Job<'_>) -> Self {
        let mut hosts = job.spread.hosts(job.ranks);
        for host in hosts.iter_mut().filter(|_| job.collective.has_root()) {
            if let Some(at) = host.iter().position(|&member| member == job.root) {
                host[..=at].rotate_right(1);
            }
        }
        let find = |rank: Rank| {
            let place = |host: &Vec<Rank>| host.iter().position(|&member| member == rank);
            let found = hosts.iter().enumerate().find_map(|(index, host)| Some((index, place(host)?)));
            found.unwrap_or_default()
        };
        let ((home, place), (root, _)) = (find(job.rank), find(job.root));
        Self { hosts, home, place, root }
    }

    /// The fewest and the most ranks of a host.
    fn least_and_most(&self) -> (usize, usize) {
        let ranks = self.hosts.iter().map(Vec::len);
        ranks.fold((usize::MAX, 1), |(least, most), of| (least.min(of), most.max(of)))
    }
}

/// The most ranks that exchange blocks in one hop. More ranks use an algorithm with fewer messages.
const FEW: usize = 8;

/// The plan by which ranks of a host, or with the same place, scatter or gather blocks, even or not.
const fn exchange(ranks: usize, collective: Collective) -> &'static Plan {
    let halves = ranks > FEW && matches!(collective, Collective::ReduceScatter | Collective::AllGather);
    Plan::of(if halves { rabenseifner::PLANS } else { direct::PLANS }, collective)
}
