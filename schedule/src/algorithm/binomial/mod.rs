//! Binomial tree: broadcast, reduce, gather and scatter of small messages in ⌊log2 n⌋ hops, with at most ⌈log2 n⌉
//! messages to or from any rank.
//!
//! Counted from the root, a rank's parent is its number without its lowest bit, and a subtree's ranks follow each
//! other. Rajeev Thakur, Rolf Rabenseifner and William Gropp, "Optimization of collective communication operations
//! in MPICH", International Journal of High Performance Computing Applications 19(1), 2005, sections 4.2 (broadcast,
//! scatter) and 4.4 (reduce, gather).

mod broadcast;
mod bundles;
mod gather;
mod reduce;
mod scatter;

use std::ops::Range;

pub(super) use self::{broadcast::broadcast, reduce::reduce};
use super::{Plan, chunks::Shape, doublings, wrapped};
use crate::{Job, Rank, partition};

/// The plans of the binomial tree.
pub(super) const PLANS: &[Plan] = &[broadcast::PLAN, reduce::PLAN, gather::PLAN, scatter::PLAN];

/// The most bits that a place below `ranks` has set: ⌊log2 n⌋.
const fn hops(ranks: usize) -> usize {
    ranks.ilog2() as usize
}

/// A rank's neighbours in a tree.
pub(super) struct Family {
    pub(super) parent: Option<Rank>,
    /// The children, the one with the smallest subtree first.
    pub(super) children: Vec<Rank>,
}

/// A rank's part in a collective of one vector, which is cut into chunks.
struct Vector {
    family: Family,
    count: usize,
    chunks: usize,
}

impl Vector {
    fn new(job: &Job<'_>, family: Family) -> Self {
        Self { family, count: job.count, chunks: partition::chunks(job.count, job.chunk) }
    }

    /// The elements of a chunk.
    fn slice(&self, chunk: usize) -> Range<usize> {
        partition::block(self.count, self.chunks, chunk)
    }

    /// The shape of a pattern with this many turns on this rank.
    fn shape(&self, turns: usize) -> Shape {
        let max_message = partition::longest(self.count, self.chunks);
        Shape { chunks: self.chunks, turns, max_message, ..Shape::default() }
    }
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

    fn family(&self) -> Family {
        let children = (0..self.children).map(|index| self.child(index)).collect();
        Family { parent: self.parent(), children }
    }

    /// Visits all children.
    fn children(&self, visit: &mut dyn FnMut(Rank)) {
        (0..self.children).for_each(|index| visit(self.child(index)));
    }
}
