//! Binomial tree: broadcast, reduce, gather and scatter of small messages in ⌊log2 n⌋ hops, with at most ⌈log2 n⌉
//! messages to or from any rank.
//!
//! Counted from the root, a rank's parent is its number without its lowest bit, and a subtree's ranks follow each
//! other. Rajeev Thakur, Rolf Rabenseifner and William Gropp, "Optimization of collective communication operations
//! in MPICH", International Journal of High Performance Computing Applications 19(1), 2005, sections 4.2 (broadcast,
//! scatter) and 4.4 (reduce, gather).

mod bundles;
mod gather;
mod scatter;
mod vector;

pub(super) use self::vector::{TreeNeighbours, schedule};
use self::{bundles::Bundles, gather::Gather, scatter::Scatter};
use super::{Plan, chunks::Lanes, doublings, wrapped};
use crate::{Collective, Job, Rank};

/// The plans of the binomial tree.
pub(super) const PLANS: &[Plan] = &[
    Plan::new(Collective::Broadcast, |job| schedule(job, Tree::new(job).family()), hops),
    Plan::new(Collective::Reduce, |job| schedule(job, Tree::new(job).family()), hops),
    Plan::new(Collective::Gather, |job| Lanes::schedule(job, Gather(Bundles::new(job))), hops),
    Plan::new(Collective::Scatter, |job| Lanes::schedule(job, Scatter(Bundles::new(job))), hops),
];

/// The most bits that a place below `ranks` has set: ⌊log2 n⌋.
const fn hops(ranks: usize) -> usize {
    ranks.ilog2() as usize
}

/// A rank's place in the tree.
struct Tree {
    root: Rank,
    ranks: usize,
    /// This rank, counted from the root.
    place: usize,
    /// The number of its children.
    children: usize,
}

impl Tree {
    fn new(job: &Job<'_>) -> Self {
        let (root, ranks) = (job.root, job.ranks);
        let place = wrapped(job.rank + ranks - root, ranks);
        // One for each zero below its lowest set bit, if there are this many ranks.
        let children = doublings(ranks - place).min(place.trailing_zeros() as usize);
        Self { root, ranks, place, children }
    }

    /// The rank at a place counted from the root.
    fn rank(&self, place: usize) -> Rank {
        wrapped(place + self.root, self.ranks)
    }

    fn parent(&self) -> Option<Rank> {
        (self.place > 0).then(|| self.rank(self.place & (self.place - 1)))
    }

    /// The child with a subtree of 2^index places, or as many as there are.
    fn child(&self, index: usize) -> Rank {
        self.rank(self.place + (1 << index))
    }

    fn family(&self) -> TreeNeighbours {
        let children = (0..self.children).map(|index| self.child(index)).collect();
        TreeNeighbours { parent: self.parent(), children }
    }

    /// Visits all children.
    fn children(&self, visit: &mut dyn FnMut(Rank)) {
        (0..self.children).for_each(|index| visit(self.child(index)));
    }
}
