//! Binomial tree: broadcast of small messages in ⌊log2 n⌋ hops, with at most
//! ⌈log2 n⌉ messages from any rank.
//!
//! Counted from the root, a rank's parent is its number without its lowest bit. The child with the largest
//! subtree is served first. Rajeev Thakur, Rolf Rabenseifner and William Gropp, "Optimization of collective
//! communication operations in MPICH", International Journal of High Performance Computing Applications
//! 19(1), 2005, section 4.2.

use super::{
    Plan,
    turns::{Lanes, Pattern, Steps},
};
use crate::{
    partition::{self, block},
    schedule::{Collective, Job, Rank, Span, Traffic},
};

/// What the binomial tree can do.
pub(super) const PLANS: &[Plan] = &[Plan {
    collective: Collective::Broadcast,
    uneven: false,
    ordered: false,
    make: |job| Lanes::schedule(job, Broadcast::new(job)),
    traffic: |job| {
        let children = Broadcast::new(job).children();
        Traffic {
            messages: partition::chunks(job.count, job.chunk) * children,
            elements: job.count * children,
        }
    },
    // No place below n has more bits than that.
    hops: |ranks| ranks.ilog2() as usize,
    depth: 1,
    alike: |_| None,
}];

struct Broadcast {
    root: Rank,
    ranks: usize,
    count: usize,
    chunks: usize,
    /// This rank, counted from the root.
    place: usize,
    /// How many children it would have if there were ranks enough.
    levels: usize,
}

impl Broadcast {
    fn new(job: &Job<'_>) -> Self {
        let place = if job.rank >= job.root { job.rank - job.root } else { job.rank + job.ranks - job.root };
        let levels = if place == 0 { job.ranks.next_power_of_two().ilog2() } else { place.trailing_zeros() };
        let chunks = partition::chunks(job.count, job.chunk);
        let levels = levels as usize;
        Self { root: job.root, ranks: job.ranks, count: job.count, chunks, place, levels }
    }

    /// The rank at a place counted from the root.
    fn rank(&self, place: usize) -> Rank {
        let rank = place + self.root;
        if rank >= self.ranks { rank - self.ranks } else { rank }
    }

    fn parent(&self) -> Option<Rank> {
        (self.place > 0).then(|| self.rank(self.place & (self.place - 1)))
    }

    /// The child with the `index`-th largest subtree, if there are ranks enough.
    fn child(&self, index: usize) -> Option<Rank> {
        let place = self.place + (1 << (self.levels - 1 - index));
        (place < self.ranks).then(|| self.rank(place))
    }

    fn children(&self) -> usize {
        (0..self.levels).filter(|&index| self.child(index).is_some()).count()
    }
}

impl Pattern for Broadcast {
    fn chunks(&self) -> usize {
        self.chunks
    }

    fn turns(&self) -> usize {
        self.levels + 2
    }

    fn turn(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        let range = block(self.count, self.chunks, chunk);
        let (parent, output) = (self.parent(), Span::output(range.start, range.len()));
        let data = parent.map_or(output, |parent| Span::landed(parent, range.len()));
        match (turn, parent) {
            (0, Some(parent)) => steps.take(parent, range.len()),
            (0, None) => {}
            (turn, _) if turn <= self.levels => {
                if let Some(child) = self.child(turn - 1) {
                    steps.put(child, data);
                }
            }
            (_, Some(parent)) => {
                steps.copy(data, output);
                steps.free(parent);
            }
            (_, None) => {}
        }
    }

    fn max_message(&self) -> usize {
        partition::longest(self.count, self.chunks)
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        self.parent().into_iter().for_each(visit);
    }
}
