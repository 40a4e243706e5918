//! Ring: every rank talks to its two neighbours only, and moves no more elements than it must. For large
//! messages: (n-1)/n of the data per phase on the wire, which is the bound, but n-1 hops.
//!
//! Pitch Patarasuk and Xin Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
//! Journal of Parallel and Distributed Computing 69(2), 2009.

use std::ops::Range;

use super::{
    Plan, Split,
    chunks::{Lanes, Pattern, Steps},
};
use crate::{
    Collective, Job, Rank, Schedule, Span, Step, Traffic,
    cost::Alike,
    partition::{self, block},
};

/// What the ring can do.
pub(super) const PLANS: &[Plan] = &[
    Plan {
        depth: 2,
        split: Split::EachRank,
        alike: |_| Some(Alike::Turned),
        ..Plan::new(
            Collective::AllReduce,
            |job| Lanes::schedule(job, AllReduce::new(job)),
            all_reduce_traffic,
            |ranks| 2 * (ranks - 1),
        )
    },
    blocks_plan(Collective::ReduceScatter, |job| {
        Lanes::schedule(job, ReduceScatter(Blocks::new(job, job.input_blocks())))
    }),
    blocks_plan(Collective::AllGather, |job| {
        Lanes::schedule(job, AllGather(Blocks::new(job, job.output_blocks())))
    }),
    Plan::new(
        Collective::Broadcast,
        |job| Lanes::schedule(job, Broadcast::new(job)),
        broadcast_traffic,
        |ranks| ranks - 1,
    ),
];

const fn blocks_plan(collective: Collective, make: fn(&Job<'_>) -> Box<dyn Schedule>) -> Plan {
    Plan {
        uneven: true,
        depth: 2,
        alike: |_| Some(Alike::Turned),
        ..Plan::new(collective, make, blocks_traffic, |ranks| ranks - 1)
    }
}

/// A place in the ring.
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
        if self.rank + 1 == self.ranks { 0 } else { self.rank + 1 }
    }

    fn prev(self) -> Rank {
        self.back(1)
    }

    /// The rank `hops` before this one; at most `ranks` hops.
    fn back(self, hops: usize) -> Rank {
        if self.rank >= hops { self.rank - hops } else { self.rank + self.ranks - hops }
    }
}

/// A hop on which a block gathers this rank's contribution, in the slot where it landed, and goes on.
fn add_and_forward(ring: Ring, mine: &Range<usize>, steps: &mut Steps) {
    let landed = Span::landed(ring.prev(), mine.len());
    steps.take(ring.prev(), mine.len());
    steps.push(Step::Reduce { a: landed, b: Span::input(mine.start, mine.len()), into: landed, last: false });
    steps.put(ring.next(), landed);
    steps.free(ring.prev());
}

/// The hop that brings a block home, where the last contribution is this rank's. The slot is given back at
/// once, so that the message that goes out next can carry the credit for it.
fn add_last(ring: Ring, mine: &Range<usize>, into: Span, steps: &mut Steps) {
    steps.take(ring.prev(), mine.len());
    steps.push(Step::Reduce {
        a: Span::landed(ring.prev(), mine.len()),
        b: Span::input(mine.start, mine.len()),
        into,
        last: true,
    });
    steps.free(ring.prev());
}

/// A hop on which a block is kept and, unless everyone has it, passed on: first where it landed in a slot, so that
/// the wire works during the copy.
fn keep(ring: Ring, into: &Range<usize>, forward: bool, direct: bool, steps: &mut Steps) {
    let place = Span::output(into.start, into.len());
    if direct {
        steps.get(true, ring.prev(), place);
        if forward {
            steps.hand(true, ring.next(), place, into.start);
        }
        return;
    }
    let landed = Span::landed(ring.prev(), into.len());
    steps.take(ring.prev(), into.len());
    if forward {
        steps.put(ring.next(), landed);
    }
    steps.copy(landed, place);
    steps.free(ring.prev());
}

/// A round is a whole reduce_scatter and all_gather of `ranks` pieces. Piece p starts at rank p+1, is whole
/// at rank p, and from there goes round again.
struct AllReduce {
    ring: Ring,
    count: usize,
    rounds: usize,
    direct: bool,
}

impl AllReduce {
    fn new(job: &Job<'_>) -> Self {
        let rounds = partition::rounds(job.count, job.ranks, job.chunk);
        // Only where no piece is empty.
        let direct = job.direct && job.count / rounds >= job.ranks;
        Self { ring: Ring::of(job), count: job.count, rounds, direct }
    }

    fn piece(&self, round: usize, rank: Rank) -> Range<usize> {
        partition::piece(self.count, self.rounds, round, self.ring.ranks, rank)
    }
}

impl Pattern for AllReduce {
    fn chunks(&self) -> usize {
        self.rounds
    }

    fn turns(&self) -> usize {
        2 * self.ring.ranks - 1
    }

    fn turn(&self, round: usize, turn: usize, steps: &mut Steps) {
        let (ring, home) = (self.ring, self.ring.ranks - 1);
        if turn == 0 {
            let first = self.piece(round, ring.prev());
            steps.put(ring.next(), Span::input(first.start, first.len()));
        } else if turn < home {
            add_and_forward(ring, &self.piece(round, ring.back(turn + 1)), steps);
        } else if turn == home {
            let mine = self.piece(round, ring.rank);
            let whole = Span::output(mine.start, mine.len());
            add_last(ring, &mine, whole, steps);
            steps.hand(self.direct, ring.next(), whole, mine.start);
        } else {
            let hop = turn - home;
            keep(ring, &self.piece(round, ring.back(hop)), hop < home, self.direct, steps);
        }
    }

    fn direct(&self) -> bool {
        self.direct
    }

    fn max_message(&self) -> usize {
        partition::longest(partition::longest(self.count, self.rounds), self.ring.ranks)
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        visit(self.ring.prev());
    }
}

fn all_reduce_traffic(job: &Job<'_>) -> Traffic {
    let rounds = partition::rounds(job.count, job.ranks, job.chunk);
    let (short, longer) = (job.count / rounds, job.count % rounds);
    let piece = |rank| {
        longer * block(short + 1, job.ranks, rank).len()
            + (rounds - longer) * block(short, job.ranks, rank).len()
    };
    // In the first phase every piece but the own one is sent, in the second every piece but the next one's.
    let next = (job.rank + 1) % job.ranks;
    Traffic {
        messages: rounds * 2 * (job.ranks - 1),
        elements: 2 * job.count - piece(job.rank) - piece(next),
    }
}

/// A collective with one block per rank, all cut into equally many chunks; or with one whole, of which all have the
/// same block.
struct Blocks {
    ring: Ring,
    blocks: partition::Blocks,
    /// The longest block.
    count: usize,
    chunks: usize,
    /// If chunks are written into outputs: those from this one on, which are not the first of their lanes.
    direct_from: Option<usize>,
}

impl Blocks {
    fn new(job: &Job<'_>, blocks: partition::Blocks) -> Self {
        let chunks = partition::chunks(job.count, job.chunk);
        // Of uneven blocks some chunks may be empty, which no write may be.
        let direct = job.direct && job.uneven.is_none() && chunks > job.lanes;
        let direct_from = Some(job.lanes).filter(|_| direct);
        Self { ring: Ring::of(job), blocks, count: job.count, chunks, direct_from }
    }

    /// Whether this chunk's messages are writes. Those of the first chunk of each lane go through slots.
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

    /// The chunk's elements in the whole.
    fn chunk(&self, chunk: usize) -> Range<usize> {
        block(self.count, self.chunks, chunk)
    }

    fn max_message(&self) -> usize {
        partition::longest(self.count, self.chunks)
    }
}

/// Every block but one is sent on: the next rank's in an all_gather, the own one in a reduce_scatter.
fn blocks_traffic(job: &Job<'_>) -> Traffic {
    let ring = Ring::of(job);
    let (blocks, kept) = match job.collective {
        Collective::AllGather => (job.output_blocks(), ring.next()),
        _ => (job.input_blocks(), ring.rank),
    };
    Traffic {
        messages: partition::chunks(job.count, job.chunk) * (job.ranks - 1),
        elements: (0..job.ranks).filter(|&rank| rank != kept).map(|rank| blocks.len(rank)).sum(),
    }
}

/// The first half of an all_reduce.
struct ReduceScatter(Blocks);

impl Pattern for ReduceScatter {
    fn chunks(&self) -> usize {
        self.0.chunks
    }

    fn turns(&self) -> usize {
        self.0.ring.ranks
    }

    fn turn(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        let ring = self.0.ring;
        if turn == 0 {
            let first = self.0.of(chunk, ring.prev());
            steps.put(ring.next(), Span::input(first.start, first.len()));
        } else if turn + 1 < ring.ranks {
            add_and_forward(ring, &self.0.of(chunk, ring.back(turn + 1)), steps);
        } else {
            let whole = self.0.own(chunk);
            add_last(ring, &self.0.of(chunk, ring.rank), Span::output(whole.start, whole.len()), steps);
        }
    }

    fn max_message(&self) -> usize {
        self.0.max_message()
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        visit(self.0.ring.prev());
    }
}

/// The second half of an all_reduce.
struct AllGather(Blocks);

impl Pattern for AllGather {
    fn chunks(&self) -> usize {
        self.0.chunks
    }

    fn turns(&self) -> usize {
        self.0.ring.ranks
    }

    fn turn(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        let ring = self.0.ring;
        let into = self.0.of(chunk, ring.back(turn));
        if turn == 0 {
            let from = self.0.own(chunk);
            let mine = Span::input(from.start, from.len());
            steps.hand(self.0.direct(chunk), ring.next(), mine, into.start);
            steps.copy(mine, Span::output(into.start, into.len()));
        } else {
            keep(ring, &into, turn + 1 < ring.ranks, self.0.direct(chunk), steps);
        }
    }

    fn direct(&self) -> bool {
        self.0.direct_from.is_some()
    }

    fn max_message(&self) -> usize {
        self.0.max_message()
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        visit(self.0.ring.prev());
    }
}

/// The root's chunks go round once, one behind the other.
struct Broadcast {
    blocks: Blocks,
    root: Rank,
}

impl Broadcast {
    fn new(job: &Job<'_>) -> Self {
        Self { blocks: Blocks::new(job, partition::Blocks::even(job.count)), root: job.root }
    }
}

impl Pattern for Broadcast {
    fn chunks(&self) -> usize {
        self.blocks.chunks
    }

    fn turns(&self) -> usize {
        1
    }

    fn turn(&self, chunk: usize, _: usize, steps: &mut Steps) {
        let (ring, range) = (self.blocks.ring, self.blocks.chunk(chunk));
        let direct = self.blocks.direct(chunk);
        if ring.rank == self.root {
            steps.hand(direct, ring.next(), Span::output(range.start, range.len()), range.start);
        } else {
            keep(ring, &range, ring.next() != self.root, direct, steps);
        }
    }

    fn direct(&self) -> bool {
        self.blocks.direct_from.is_some()
    }

    fn max_message(&self) -> usize {
        self.blocks.max_message()
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        if self.blocks.ring.rank != self.root {
            visit(self.blocks.ring.prev());
        }
    }
}

fn broadcast_traffic(job: &Job<'_>) -> Traffic {
    if Ring::of(job).next() == job.root {
        return Traffic::NONE;
    }
    Traffic { messages: partition::chunks(job.count, job.chunk), elements: job.count }
}
