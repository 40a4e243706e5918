//! Bine (binomial negabinary) trees: trees and butterflies in which the ranks of a pair are a third nearer than in binary ones.
//! They suit small and medium messages where near ranks have the faster path.
//!
//! By the cost model they are the fastest between hosts that no power of two of consecutive ranks fits (a reduce of 8 KiB among 2 × 10
//! ranks, 10 Gbit/s, 2 ranks a core: 62 µs, binomial 85), and where ranks are on the hosts in turn with a NIC each (an all_reduce of
//! 512 KiB among 2 × 16 ranks, InfiniBand NDR: 57 µs, rabenseifner 103).
//!
//! Daniele De Sensi, Saverio Pasqualoni, Lorenzo Piarulli, Tommaso Bonato, Seydou Ba, Matteo Turisini, Jens Domke and Torsten Hoefler,
//! "Bine Trees: Enhancing Collective Operations by Optimizing Communication Locality", SC 2025, arXiv:2508.17311.
//!
//! - A broadcast and a reduce use a binomial tree over labels in base -2 ([`negabinary`]), counted from the root. If n is no power of two,
//!   the first places are in pairs, and the second of a pair is a leaf below the first.
//! - A reduce_scatter and an all_gather halve and double runs of consecutive blocks around a rank, which grow alternately after and
//!   before it; among an even number of ranks, not only powers of two as in the paper. An odd number of ranks cannot be paired and uses
//!   rabenseifner's schedule.
//! - An all_reduce halves and doubles as rabenseifner does, so that the first pairs, which exchange half of the vector, are neighbours;
//!   the later pairs are nearer than rabenseifner's.

use super::{
    Plan, Split,
    binomial::{self, TreeNeighbours},
    doublings,
    grid::{Grid, GridPairs},
    halving::{self, Exchanges, Phase, PlaceRange, run},
    negabinary, rabenseifner, wrapped,
};
use crate::{Collective, Job, Rank, Schedule};

/// The plans of Bine trees.
pub(super) const PLANS: &[Plan] = &[
    plan(Collective::Broadcast, |job| binomial::schedule(job, Tree::new(job).family(job)), tree_hops),
    plan(Collective::Reduce, |job| binomial::schedule(job, Tree::new(job).family(job)), tree_hops),
    Plan {
        split: Split::Two,
        ..plan(
            Collective::AllReduce,
            |job| halving::schedule(job, Grid::new(job, GridPairs::Bine)),
            |ranks| 2 * doublings(ranks),
        )
    },
    plan(Collective::ReduceScatter, blocks, doublings),
    plan(Collective::AllGather, blocks, doublings),
];

const fn plan(
    collective: Collective,
    make: fn(&Job<'_>) -> Box<dyn Schedule>,
    hops: fn(usize) -> usize,
) -> Plan {
    let uneven = collective.has_blocks();
    Plan { uneven, depth: if uneven { 2 } else { 1 }, near: true, ..Plan::new(collective, make, hops) }
}

/// The hops of a tree: one for each bit of a label, and one more if the place whose label has only ones has a leaf.
fn tree_hops(ranks: usize) -> usize {
    let bits = ranks.ilog2() as usize;
    let deepest = negabinary::rank((1 << bits) - 1, bits);
    bits + usize::from(ranks - (1 << bits) > deepest)
}

/// A tree of the greatest power of two ranks, and leaves.
struct Tree {
    root: Rank,
    ranks: usize,
    bits: usize,
    /// The number of inner places that have a leaf, which are the first ones.
    leaves: usize,
}

impl Tree {
    const fn new(job: &Job<'_>) -> Self {
        let bits = job.ranks.ilog2() as usize;
        Self { root: job.root, ranks: job.ranks, bits, leaves: job.ranks - (1 << bits) }
    }

    /// The rank at a place counted from the root.
    const fn rank(&self, place: usize) -> Rank {
        wrapped(place + self.root, self.ranks)
    }

    /// The place of the inner node with this label.
    fn inner(&self, label: usize) -> usize {
        let node = negabinary::rank(label, self.bits);
        node + node.min(self.leaves)
    }

    fn family(&self, job: &Job<'_>) -> TreeNeighbours {
        let place = wrapped(job.rank + self.ranks - self.root, self.ranks);
        let paired = place < 2 * self.leaves;
        if paired && place % 2 == 1 {
            return TreeNeighbours { parent: Some(self.rank(place - 1)), children: Vec::new() };
        }
        let label = negabinary::label(if paired { place / 2 } else { place - self.leaves }, self.bits);
        let of = |label| self.rank(self.inner(label));
        let leaf = paired.then(|| self.rank(place + 1));
        let nodes = (0..self.bits.min(label.trailing_zeros() as usize)).map(|bit| of(label | 1 << bit));
        TreeNeighbours {
            parent: (label > 0).then(|| of(label & (label - 1))),
            children: leaf.into_iter().chain(nodes).collect(),
        }
    }
}

/// A reduce_scatter or an all_gather.
fn blocks(job: &Job<'_>) -> Box<dyn Schedule> {
    if job.ranks.is_multiple_of(2) {
        halving::schedule(job, Butterfly::new(job))
    } else {
        Plan::of(rabenseifner::PLANS, job.collective).make(job)
    }
}

/// Before each exchange of an all_gather an even rank has the blocks of a run, which begins some ranks before it; the run of an odd rank is
/// the same mirrored. The run grows on one side and then on the other, by the run of the nearest rank that has the missing blocks.
struct Butterfly {
    rank: Rank,
    ranks: usize,
    /// One for each level: the first has half of all blocks.
    levels: Vec<Growth>,
}

/// The growth of a rank's run in an exchange.
#[derive(Clone, Copy)]
struct Growth {
    /// The length of the run before.
    len: usize,
    /// The number of its blocks before an even rank.
    before: usize,
    /// The number of blocks that are added.
    more: usize,
    /// If true, they are added after an even rank.
    after: bool,
}

impl Butterfly {
    fn new(job: &Job<'_>) -> Self {
        let count = doublings(job.ranks);
        let mut before = 0;
        let mut levels: Vec<_> = (0..count)
            .map(|step| {
                // The longest run has half of all blocks, the one before half of that, and so on, rounded up.
                let left = |halvings: usize| ((job.ranks - 1) >> halvings) + 1;
                let (len, after) = (left(count - step), step % 2 == 0);
                let growth = Growth { len, before, more: left(count - step - 1) - len, after };
                before += if after { 0 } else { growth.more };
                growth
            })
            .collect();
        levels.reverse();
        Self { rank: job.rank, ranks: job.ranks, levels }
    }

    /// A run of `len` blocks that begins `ahead` ranks after this one, or the rank count less if that is before it; mirrored for odd ranks.
    fn around(&self, ahead: usize, len: usize) -> PlaceRange {
        let first = if self.rank.is_multiple_of(2) {
            self.rank + ahead
        } else {
            self.rank + 2 * self.ranks + 1 - ahead - len
        };
        run(first % self.ranks, len, 0, self.ranks)
    }
}

impl Exchanges for Butterfly {
    fn levels(&self) -> usize {
        self.levels.len()
    }

    fn blocks(&self, level: usize) -> usize {
        self.levels[level].more
    }

    fn exchange(&self, level: usize, phase: Phase, gives: bool) -> (Rank, PlaceRange) {
        let Growth { len, before, more, after } = self.levels[level];
        let distance = if after { 2 * (len - before) - 1 } else { 2 * before + 1 };
        let forward = after == self.rank.is_multiple_of(2);
        let peer = wrapped(
            if forward { self.rank + distance } else { self.rank + self.ranks - distance },
            self.ranks,
        );
        // A rank's run has the blocks that the other rank lacks next to its own run.
        let own = gives == (phase == Phase::Doubling);
        let start = match (own, after) {
            (true, true) => len - more,
            (true, false) => 0,
            (false, true) => len,
            (false, false) => self.ranks - more,
        };
        (peer, self.around((start + self.ranks - before) % self.ranks, more))
    }

    fn kept(&self) -> (usize, usize) {
        let Growth { len, before, .. } = self.levels[0];
        let [first, _] = self.around((self.ranks - before) % self.ranks, len);
        (first.start, len)
    }

    fn left(&self) -> Option<usize> {
        None
    }
}
