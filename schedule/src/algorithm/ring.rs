//! Ring: every rank receives from the rank before it and sends to the rank after it. In each phase a rank sends (n-1)/n of the
//! data, which is the lower bound, in n-1 hops. It suits large messages.
//!
//! Pitch Patarasuk and Xin Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
//! Journal of Parallel and Distributed Computing 69(2), 2009.

use std::ops::Range;

use super::{
    Plan, Split,
    chunks::{Lanes, Pattern, Shape, Steps},
    wrapped,
};
use crate::{
    Collective, Job, Rank, Span, Step,
    cost::Alike,
    partition::{self, block},
};

/// The plans of the ring.
pub(super) const PLANS: &[Plan] = &[
    Plan {
        depth: 2,
        split: Split::EachRank,
        alike: |_| Some(Alike::Turned),
        ..Plan::new(
            Collective::AllReduce,
            |job| Lanes::schedule(job, AllReduce::new(job)),
            |ranks| 2 * (ranks - 1),
        )
    },
    plan(Collective::ReduceScatter),
    plan(Collective::AllGather),
    plan(Collective::Broadcast),
];

const fn plan(collective: Collective) -> Plan {
    let plan = Plan::new(collective, |job| Lanes::schedule(job, Blocks::new(job)), |ranks| ranks - 1);
    match collective {
        Collective::Broadcast => plan,
        _ => Plan { uneven: true, depth: 2, alike: |_| Some(Alike::Turned), ..plan },
    }
}

/// A rank's place in the ring.
#[derive(Clone, Copy)]
struct Ring {
    rank: Rank,
    ranks: usize,
}

impl Ring {
    fn of(job: &Job<'_>) -> Self {
        Self { rank: job.rank, ranks: job.ranks }
    }

    fn next(self) -> Rank {
        wrapped(self.rank + 1, self.ranks)
    }

    fn prev(self) -> Rank {
        self.back(1)
    }

    /// The rank `hops` before this one; at most `ranks` hops.
    fn back(self, hops: usize) -> Rank {
        wrapped(self.rank + self.ranks - hops, self.ranks)
    }

    /// Keeps the elements `into` of the output that come from the rank before and, unless the next rank has them, forwards them.
    fn keep(self, into: &Range<usize>, forward: bool, direct: bool, steps: &mut Steps) {
        let into = Span::output(into.start, into.len());
        steps.relay(direct, self.prev(), into, forward.then(|| self.next()));
    }

    /// Adds this rank's contribution, which lies at `mine` in its input, to a block that comes from the rank before. If it is
    /// the last one, the sum goes to `result`, and the slot is given back before the next message leaves, which can carry the
    /// credit for it. Otherwise the sum is forwarded from the slot.
    fn add(self, mine: &Range<usize>, result: Option<Span>, steps: &mut Steps) {
        let (landed, last) = (Span::landed(self.prev(), mine.len()), result.is_some());
        let b = Span::input(mine.start, mine.len());
        steps.take(self.prev(), mine.len());
        steps.push(Step::Reduce { a: landed, b, into: result.unwrap_or(landed), last });
        if !last {
            steps.put(self.next(), landed);
        }
        steps.free(self.prev());
    }
}

/// A round is a reduce_scatter and an all_gather of `ranks` pieces. Piece p starts at rank p+1, is completely reduced at rank p,
/// and goes around the ring once more from there.
struct AllReduce {
    ring: Ring,
    count: usize,
    rounds: usize,
    direct: bool,
}

impl AllReduce {
    fn new(job: &Job<'_>) -> Self {
        let rounds = partition::rounds(job.count, job.ranks, job.chunk);
        // No piece may be empty, because no write may be.
        let direct = job.direct && job.count / rounds >= job.ranks;
        Self { ring: Ring::of(job), count: job.count, rounds, direct }
    }

    fn piece(&self, round: usize, rank: Rank) -> Range<usize> {
        partition::piece(self.count, self.rounds, round, self.ring.ranks, rank)
    }
}

impl Pattern for AllReduce {
    fn shape(&self) -> Shape {
        Shape {
            chunks: self.rounds,
            turns: 2 * self.ring.ranks - 1,
            max_message: partition::longest(partition::longest(self.count, self.rounds), self.ring.ranks),
            direct: self.direct,
            scratch: 0,
            shows: None,
        }
    }

    fn turn(&self, round: usize, turn: usize, steps: &mut Steps) {
        let (ring, home) = (self.ring, self.ring.ranks - 1);
        if turn == 0 {
            let first = self.piece(round, ring.prev());
            steps.put(ring.next(), Span::input(first.start, first.len()));
        } else if turn < home {
            ring.add(&self.piece(round, ring.back(turn + 1)), None, steps);
        } else if turn == home {
            let mine = self.piece(round, ring.rank);
            let whole = Span::output(mine.start, mine.len());
            ring.add(&mine, Some(whole), steps);
            steps.hand(self.direct, ring.next(), whole, mine.start);
        } else {
            let hop = turn - home;
            ring.keep(&self.piece(round, ring.back(hop)), hop < home, self.direct, steps);
        }
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        visit(self.ring.prev());
    }
}

/// A collective with one block for each rank, all cut into the same number of chunks; or a broadcast, whose only block all ranks
/// have.
struct Blocks {
    ring: Ring,
    collective: Collective,
    root: Rank,
    blocks: partition::Blocks,
    /// The elements of the longest block.
    count: usize,
    chunks: usize,
    /// If chunks are written into outputs: those from this one on, which are not the first of their lanes.
    direct_from: Option<usize>,
}

impl Blocks {
    fn new(job: &Job<'_>) -> Self {
        let &Job { collective, root, count, lanes, .. } = job;
        let blocks = match collective {
            Collective::AllGather => job.output_blocks(),
            Collective::ReduceScatter => job.input_blocks(),
            _ => partition::Blocks::even(count),
        };
        let chunks = partition::chunks(count, job.chunk);
        // Some chunks of uneven blocks may be empty, and no write may be.
        let direct = job.direct && !collective.reduces() && job.uneven.is_none() && chunks > lanes;
        let direct_from = direct.then_some(lanes);
        Self { ring: Ring::of(job), collective, root, blocks, count, chunks, direct_from }
    }

    /// True if this chunk is written into outputs. The first chunk of each lane goes through slots.
    fn direct(&self, chunk: usize) -> bool {
        self.direct_from.is_some_and(|first| chunk >= first)
    }

    /// The chunk's elements in the block of this rank, among all blocks.
    fn of(&self, chunk: usize, rank: Rank) -> Range<usize> {
        self.blocks.chunk(rank, self.chunks, chunk)
    }

    /// The chunk's elements in this rank's own block, which lies alone.
    fn own(&self, chunk: usize) -> Range<usize> {
        block(self.blocks.len(self.ring.rank), self.chunks, chunk)
    }

    /// As the first half of an all_reduce.
    fn reduce_scatter(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        let ring = self.ring;
        if turn == 0 {
            let first = self.of(chunk, ring.prev());
            steps.put(ring.next(), Span::input(first.start, first.len()));
        } else if turn + 1 < ring.ranks {
            ring.add(&self.of(chunk, ring.back(turn + 1)), None, steps);
        } else {
            let result = self.own(chunk);
            let result = Span::output(result.start, result.len());
            ring.add(&self.of(chunk, ring.rank), Some(result), steps);
        }
    }

    /// As the second half of an all_reduce.
    fn all_gather(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        let ring = self.ring;
        let into = self.of(chunk, ring.back(turn));
        if turn == 0 {
            let from = self.own(chunk);
            let mine = Span::input(from.start, from.len());
            steps.hand(self.direct(chunk), ring.next(), mine, into.start);
            steps.copy(mine, Span::output(into.start, into.len()));
        } else {
            ring.keep(&into, turn + 1 < ring.ranks, self.direct(chunk), steps);
        }
    }

    /// The root's chunks go around the ring once, one behind the other.
    fn broadcast(&self, chunk: usize, steps: &mut Steps) {
        let (ring, range, direct) = (self.ring, self.own(chunk), self.direct(chunk));
        if ring.rank == self.root {
            steps.hand(direct, ring.next(), Span::output(range.start, range.len()), range.start);
        } else {
            ring.keep(&range, ring.next() != self.root, direct, steps);
        }
    }
}

impl Pattern for Blocks {
    fn shape(&self) -> Shape {
        Shape {
            chunks: self.chunks,
            turns: if self.collective == Collective::Broadcast { 1 } else { self.ring.ranks },
            max_message: partition::longest(self.count, self.chunks),
            direct: self.direct_from.is_some(),
            scratch: 0,
            shows: None,
        }
    }

    fn turn(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        match self.collective {
            Collective::ReduceScatter => self.reduce_scatter(chunk, turn, steps),
            Collective::AllGather => self.all_gather(chunk, turn, steps),
            _ => self.broadcast(chunk, steps),
        }
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        if self.collective != Collective::Broadcast || self.ring.rank != self.root {
            visit(self.ring.prev());
        }
    }
}
