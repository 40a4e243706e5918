//! Bruck: ⌈log2 n⌉ hops, each with a rank twice as far away as the one before, for any number of ranks. It suits small all_gathers
//! and all_to_alls among many ranks, where n-1 messages cost more than moving blocks several times.
//!
//! Jehoshua Bruck, Ching-Tien Ho, Shlomo Kipnis, Eli Upfal and Derrick Weathersby, "Efficient algorithms for
//! all-to-all communications in multiport message-passing systems", IEEE Transactions on Parallel and Distributed
//! Systems 8(11), 1997: the concatenation of section 4 and the index algorithm of section 3, with one port and
//! radix 2.
//!
//! Unlike in the paper, blocks are not rotated. An all_gather, the doubling of [`halving`] among all ranks as one cycle, sends them from
//! their places in the output, as two spans if they wrap around its end. An all_to_all packs each block into the message that carries it
//! next.

use super::{
    Plan,
    chunks::{Lanes, Pattern, PatternShape, Steps},
    doublings,
    grid::Grid,
    halving, wrapped,
};
use crate::{
    Collective, Job, Rank, Span, Step,
    cost::Alike,
    partition::{self, block},
};

/// The plans of Bruck.
pub(super) const PLANS: &[Plan] = &[
    // The schedules of ranks differ: blocks that wrap around the end of the output need a second message.
    Plan {
        uneven: true,
        depth: 2,
        ..Plan::new(Collective::AllGather, |job| halving::schedule(job, Grid::cycle(job)), doublings)
    },
    Plan {
        alike: |_| Some(Alike::Turned),
        ..Plan::new(Collective::AllToAll, |job| Lanes::schedule(job, AllToAll::new(job)), doublings)
    },
];

/// A block for the rank `i` places after its owner has **index** i. For every bit of the index, lowest first, it moves on by 2^bit
/// ranks in that hop. The blocks that arrive in a hop have the same indices as those that leave.
///
/// Scratch has the blocks of each hop, in the order of their indices: an arriving block is copied to its place in its next hop, or
/// to the output if it has none. If a hop's blocks do not fit into a message they are cut, and a chunk has a slice of each. If a
/// message has fewer elements than half the number of ranks, a hop takes several messages.
struct AllToAll {
    rank: Rank,
    ranks: usize,
    count: usize,
    chunks: usize,
    lanes: usize,
    /// The most blocks of a message.
    most: usize,
    /// The longest slice.
    longest: usize,
    /// The number of blocks that are sent before each hop, and in all hops together.
    before: Vec<usize>,
}

/// The slice of each block that belongs to a chunk.
struct Slice {
    /// Its position in a block.
    start: usize,
    len: usize,
    /// The position of its lane's scratch.
    scratch: usize,
}

impl AllToAll {
    fn new(job: &Job<'_>) -> Self {
        let ranks = job.ranks;
        let mut before = vec![0; doublings(ranks) + 1];
        for level in 0..doublings(ranks) {
            // The number of indices that have this bit.
            let (bit, whole) = (1_usize << level, (ranks >> level) / 2);
            before[level + 1] = before[level] + whole * bit + (ranks % (2 * bit)).saturating_sub(bit);
        }
        // No hop has more blocks than the first one.
        let odd = ranks / 2;
        let chunks = partition::chunks(job.count, (job.chunk / odd).max(1));
        Self {
            rank: job.rank,
            ranks,
            count: job.count,
            chunks,
            lanes: job.lanes.clamp(1, chunks),
            most: odd.min(job.chunk),
            longest: partition::longest(job.count, chunks),
            before,
        }
    }

    fn levels(&self) -> usize {
        self.before.len() - 1
    }

    fn from(&self, level: usize) -> Rank {
        wrapped(self.rank + self.ranks - (1 << level), self.ranks)
    }

    fn slice(&self, chunk: usize) -> Slice {
        let slice = block(self.count, self.chunks, chunk);
        let lane = chunk % self.lanes * self.before[self.levels()];
        Slice { start: slice.start, len: slice.len(), scratch: lane * self.longest }
    }

    /// The position in the input or the output of the slice of a rank's block.
    fn of(&self, slice: &Slice, rank: Rank) -> usize {
        rank * self.count + slice.start
    }

    /// `blocks` blocks in scratch, from a position among those of a hop on.
    fn packed(&self, slice: &Slice, level: usize, position: usize, blocks: usize) -> Span {
        let offset = slice.scratch + (self.before[level] + position) * slice.len;
        Span::scratch(offset, blocks * slice.len)
    }

    /// The place in scratch of the block of this index in its next hop, that of its lowest bit from `level` on; `None` if it has none.
    fn place(&self, slice: &Slice, index: usize, level: usize) -> Option<Span> {
        let bits = index >> level;
        if bits == 0 {
            return None;
        }
        let level = level + bits.trailing_zeros() as usize;
        let position = (index >> (level + 1) << level) | (index & ((1 << level) - 1));
        Some(self.packed(slice, level, position, 1))
    }

    /// Copies one of this rank's blocks to its place in its first hop, or to the output.
    fn pack(&self, slice: &Slice, index: usize, steps: &mut Steps) {
        let own = self.of(slice, wrapped(self.rank + index, self.ranks));
        let into = self.place(slice, index, 0).unwrap_or_else(|| Span::output(own, slice.len));
        steps.copy(Span::input(own, slice.len), into);
    }

    /// The number of blocks in the message of a hop that begins at this position.
    fn message(&self, level: usize, position: usize) -> usize {
        self.most.min(self.before[level + 1] - self.before[level] - position)
    }

    fn send(&self, slice: &Slice, level: usize, position: usize, steps: &mut Steps) {
        let message = self.packed(slice, level, position, self.message(level, position));
        steps.put(wrapped(self.rank + (1 << level), self.ranks), message);
    }

    /// Copies the arriving block at this position to its next place; before the first one of a message, takes the message.
    fn arrive(&self, slice: &Slice, level: usize, position: usize, steps: &mut Steps) {
        let within = if position < self.most { position } else { position % self.most };
        let (from, blocks) = (self.from(level), self.message(level, position - within));
        if within == 0 {
            if level + position > 0 {
                self.send(slice, level, position, steps);
            }
            steps.take(from, blocks * slice.len);
        }
        let bit = 1 << level;
        let index = ((position >> level) << (level + 1)) | bit | (position & (bit - 1));
        let into = self.place(slice, index, level + 1).unwrap_or_else(|| {
            Span::output(self.of(slice, wrapped(self.rank + self.ranks - index, self.ranks)), slice.len)
        });
        steps.copy(Span { offset: within * slice.len, ..Span::landed(from, slice.len) }, into);
        if within + 1 == blocks {
            steps.free(from);
        }
    }
}

impl Pattern for AllToAll {
    /// A turn for each block of this rank, one for the first put, and one for each block that arrives.
    fn shape(&self) -> PatternShape {
        let sent = self.before[self.levels()];
        PatternShape {
            chunks: self.chunks,
            turns: self.ranks + 1 + sent,
            max_message: self.most * self.longest,
            direct: false,
            // Empty messages need scratch, too.
            scratch: (self.lanes * sent).saturating_mul(self.longest).max(1),
            ..PatternShape::default()
        }
    }

    fn turn(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        // The blocks of the first hop have odd indices.
        let (odd, slice) = (self.ranks / 2, self.slice(chunk));
        if turn < odd {
            // The lane's chunk before this one may still be leaving.
            if turn == 0 && chunk >= self.lanes {
                steps.push(Step::Settle);
            }
            self.pack(&slice, 2 * turn + 1, steps);
        } else if turn == odd {
            self.send(&slice, 0, 0, steps);
        } else if turn <= self.ranks {
            // In place, arriving blocks replace the input, which is completely packed by then.
            self.pack(&slice, 2 * (turn - odd - 1), steps);
        } else {
            let block = turn - self.ranks - 1;
            let level = self.before.partition_point(|&before| before <= block) - 1;
            self.arrive(&slice, level, block - self.before[level], steps);
        }
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        (0..self.levels()).for_each(|level| visit(self.from(level)));
    }
}
