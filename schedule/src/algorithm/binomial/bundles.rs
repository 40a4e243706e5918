//! Bundles of blocks, the messages of gather and scatter.
//!
//! A **bundle** is the blocks of as many consecutive places as fit into a message, rounded down to a power of two: of places 0 to
//! 3, 4 to 7 and so on. Its places are a subtree, or the end of one. Within a bundle, a message holds the blocks of a whole
//! subtree. Between the first places of bundles, each bundle is a separate message. If all blocks fit into one message, each rank
//! sends or receives one. If not even one block fits, blocks are cut: a chunk has a slice of each block, and a bundle one slice.

use std::ops::Range;

use super::Tree;
use crate::{
    Job, Rank,
    algorithm::chunks::PatternShape,
    partition::{self, block},
};

pub(super) struct Bundles {
    pub(super) tree: Tree,
    pub(super) count: usize,
    pub(super) chunks: usize,
    /// A bundle has 2^level places.
    level: usize,
}

impl Bundles {
    pub(super) fn new(job: &Job<'_>) -> Self {
        let room = job.chunk.checked_div(job.count).unwrap_or(usize::MAX).clamp(1, job.ranks);
        let chunks = partition::chunks(job.count, job.chunk);
        Self { tree: Tree::new(job), count: job.count, chunks, level: room.ilog2() as usize }
    }

    /// The elements of a chunk in a block.
    pub(super) fn slice(&self, chunk: usize) -> Range<usize> {
        block(self.count, self.chunks, chunk)
    }

    /// The number of places from `offset` after this one on, at most `most`.
    fn places(&self, offset: usize, most: usize) -> usize {
        most.min(self.tree.ranks - self.tree.place - offset)
    }

    /// The number of places in this one's subtree.
    pub(super) fn subtree(&self) -> usize {
        match self.tree.place {
            0 => self.tree.ranks,
            place => self.places(0, 1 << place.trailing_zeros()),
        }
    }

    /// The number of bundles in the subtree, including this place's bundle.
    pub(super) fn bundles(&self) -> usize {
        self.subtree().div_ceil(1 << self.level)
    }

    /// The number of places of the subtree that are in this place's bundle.
    pub(super) fn own(&self) -> usize {
        self.subtree().min(1 << self.level)
    }

    /// The number of children in this place's bundle, which are the first ones.
    pub(super) fn near(&self) -> usize {
        self.tree.children.min(self.level)
    }

    /// The subtree of a child in this place's bundle: its distance from this place, and its number of places.
    pub(super) fn child(&self, index: usize) -> (usize, usize) {
        (1 << index, self.places(1 << index, 1 << index))
    }

    /// A bundle of the subtree other than this place's: its distance from this place, and its number of places.
    pub(super) fn bundle(&self, index: usize) -> (usize, usize) {
        (index << self.level, self.places(index << self.level, 1 << self.level))
    }

    /// The child in whose subtree such a bundle is.
    pub(super) fn toward(&self, index: usize) -> Rank {
        self.tree.child(self.level + index.ilog2() as usize)
    }

    /// The bundle of a child that is not in this place's.
    pub(super) fn first_of(&self, child: usize) -> usize {
        1 << (child - self.level)
    }

    /// The elements of the blocks of these places (distance from the root, number) at the root: one range, or two if they wrap around
    /// the end.
    pub(super) fn spans(
        &self,
        chunk: usize,
        (offset, places): (usize, usize),
    ) -> (Range<usize>, Option<Range<usize>>) {
        let slice = self.slice(chunk);
        let first = self.tree.rank(offset);
        // If a message has several blocks, there is one chunk, so that they are adjacent.
        let span = |first: Rank, blocks: usize| {
            let start = first * self.count + slice.start;
            start..start + blocks * slice.len()
        };
        match (first + places).checked_sub(self.tree.ranks) {
            None | Some(0) => (span(first, places), None),
            Some(beyond) => (span(first, places - beyond), Some(span(0, beyond))),
        }
    }

    /// The most places in a message of any rank.
    fn most(&self) -> usize {
        let power = 1 << self.tree.ranks.ilog2();
        (power / 2).max(self.tree.ranks - power).min(1 << self.level)
    }

    /// The shape of a pattern with this many turns, and this much scratch, on this rank.
    pub(super) fn shape(&self, turns: usize, scratch: usize) -> PatternShape {
        PatternShape {
            chunks: self.chunks,
            turns,
            max_message: self.longest(),
            scratch,
            ..PatternShape::default()
        }
    }

    /// The most elements in a message of any rank.
    pub(super) fn longest(&self) -> usize {
        self.most() * partition::longest(self.count, self.chunks)
    }
}
