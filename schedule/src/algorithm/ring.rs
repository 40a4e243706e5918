//! Ring: every rank receives from the rank before it and sends to the rank after it. In each phase a rank sends (n-1)/n of the
//! data, which is the lower bound, in n-1 hops. It suits large messages.
//!
//! Pitch Patarasuk and Xin Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
//! Journal of Parallel and Distributed Computing 69(2), 2009.

use std::ops::Range;

use super::{
    Plan, Split,
    chunks::{Lanes, Pattern, PatternShape, Steps},
    wrapped,
};
use crate::{
    Collective, Job, Rank, Span, Step,
    cost::Alike,
    partition::{self, Blocks, block},
};

/// The plans of the ring.
pub(super) const PLANS: &[Plan] = &[
    Plan { split: Split::EachRank, hops: |ranks| 2 * (ranks - 1), ..plan(Collective::AllReduce) },
    Plan { uneven: true, ..plan(Collective::ReduceScatter) },
    Plan { uneven: true, ..plan(Collective::AllGather) },
    Plan { depth: 1, alike: |_| None, ..plan(Collective::Broadcast) },
];

const fn plan(collective: Collective) -> Plan {
    let plan = Plan::new(collective, |job| Lanes::schedule(job, Ring::new(job)), |ranks| ranks - 1);
    Plan { depth: 2, alike: |_| Some(Alike::Turned), ..plan }
}

/// One rank's part. In a reduce_scatter, block b starts at rank b+1 and is completely reduced at rank b; in an all_gather it goes around
/// the ring from there. An all_reduce is both: each chunk is a round that has a piece for each rank. In a broadcast there is one block,
/// which all ranks have.
struct Ring {
    rank: Rank,
    ranks: usize,
    root: Rank,
    collective: Collective,
    /// The elements of the vector, or of the longest block.
    count: usize,
    chunks: usize,
    /// The blocks, all cut into the same number of chunks; `None` in an all_reduce.
    blocks: Option<Blocks>,
    /// If chunks are written into outputs: those from this one on.
    direct_from: Option<usize>,
}

impl Ring {
    fn new(job: &Job<'_>) -> Self {
        let &Job { rank, ranks, root, collective, count, lanes, .. } = job;
        let blocks = match collective {
            Collective::AllReduce => None,
            Collective::AllGather => Some(job.output_blocks()),
            Collective::ReduceScatter => Some(job.input_blocks()),
            _ => Some(Blocks::Even(count)),
        };
        let chunks = partition::rounds(count, if blocks.is_none() { ranks } else { 1 }, job.chunk);
        // No piece may be empty, and no chunk of a block, because no write may be. The first chunk of each lane that only gathers goes
        // through slots.
        let direct_from = match collective {
            Collective::AllReduce => (count / chunks >= ranks).then_some(0),
            Collective::ReduceScatter => None,
            _ => (job.uneven.is_none() && chunks > lanes).then_some(lanes),
        };
        let direct_from = direct_from.filter(|_| job.direct);
        Self { rank, ranks, root, collective, count, chunks, blocks, direct_from }
    }

    fn next(&self) -> Rank {
        wrapped(self.rank + 1, self.ranks)
    }

    /// The rank `hops` before this one; at most `ranks` hops.
    fn back(&self, hops: usize) -> Rank {
        wrapped(self.rank + self.ranks - hops, self.ranks)
    }

    /// The elements of a chunk in the block of a rank, among all blocks.
    fn of(&self, chunk: usize, rank: Rank) -> Range<usize> {
        match &self.blocks {
            None => partition::piece(self.count, self.chunks, chunk, self.ranks, rank),
            Some(blocks) => blocks.chunk(rank, self.chunks, chunk),
        }
    }

    /// The chunk's elements in this rank's own block, where it lies alone.
    fn own(&self, chunk: usize) -> Range<usize> {
        match &self.blocks {
            None => self.of(chunk, self.rank),
            Some(blocks) => block(blocks.len(self.rank), self.chunks, chunk),
        }
    }

    /// Adds this rank's contribution to the chunk of a block that comes from the rank before. If it is the last one, the sum goes to
    /// `result`, and the slot is given back before the next message leaves, which can carry the credit for it. Otherwise the sum is
    /// forwarded from the slot.
    fn add(&self, chunk: usize, block: Rank, result: Option<Span>, steps: &mut Steps) {
        let (prev, mine) = (self.back(1), self.of(chunk, block));
        let (landed, last) = (Span::landed(prev, mine.len()), result.is_some());
        let b = Span::input(mine.start, mine.len());
        steps.take(prev, mine.len());
        steps.push(Step::Reduce { a: landed, b, into: result.unwrap_or(landed), last });
        if !last {
            steps.put(self.next(), landed);
        }
        steps.free(prev);
    }
}

impl Pattern for Ring {
    fn shape(&self) -> PatternShape {
        let longest = partition::longest(self.count, self.chunks);
        let (turns, max_message) = match self.collective {
            Collective::AllReduce => (2 * self.ranks - 1, partition::longest(longest, self.ranks)),
            Collective::Broadcast => (1, longest),
            _ => (self.ranks, longest),
        };
        let direct = self.direct_from.is_some();
        PatternShape { chunks: self.chunks, turns, max_message, direct, ..PatternShape::default() }
    }

    fn turn(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        let (next, home) = (self.next(), self.ranks - 1);
        let direct = self.direct_from.is_some_and(|first| chunk >= first);
        let output = |range: Range<usize>| Span::output(range.start, range.len());
        // The hops of a block that is complete.
        let hops = match self.collective {
            Collective::Broadcast if self.rank == self.root => {
                let own = self.own(chunk);
                return steps.hand(direct, next, output(own.clone()), own.start);
            }
            Collective::Broadcast => {
                let to = (next != self.root).then_some(next);
                return steps.relay(direct, self.back(1), output(self.own(chunk)), to);
            }
            Collective::AllGather => turn,
            _ if turn == 0 => {
                let first = self.of(chunk, self.back(1));
                return steps.put(next, Span::input(first.start, first.len()));
            }
            _ if turn < home => return self.add(chunk, self.back(turn + 1), None, steps),
            _ => turn - home,
        };
        let whole = self.of(chunk, self.back(hops));
        match (hops, self.collective) {
            (0, Collective::AllGather) => {
                let own = self.own(chunk);
                let mine = Span::input(own.start, own.len());
                steps.hand(direct, next, mine, whole.start);
                steps.copy(mine, output(whole));
            }
            (0, collective) => {
                self.add(chunk, self.rank, Some(output(self.own(chunk))), steps);
                if collective == Collective::AllReduce {
                    steps.hand(direct, next, output(whole.clone()), whole.start);
                }
            }
            _ => steps.relay(direct, self.back(1), output(whole), (hops < home).then_some(next)),
        }
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        if self.collective != Collective::Broadcast || self.rank != self.root {
            visit(self.back(1));
        }
    }
}
