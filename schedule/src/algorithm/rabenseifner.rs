//! Rabenseifner: recursive halving, in which the ranks of a pair exchange halves of the vector until each has reduced its own block,
//! then recursive doubling. It sends as few elements as the ring, which is the lower bound, in ⌈log2 n⌉ hops each for halving and
//! doubling. It suits medium messages, and large ones among many ranks.
//!
//! Rolf Rabenseifner, "Optimization of collective reduction operations", International Conference on
//! Computational Science, 2004; Rajeev Thakur, Rolf Rabenseifner and William Gropp, "Optimization of collective
//! communication operations in MPICH", International Journal of High Performance Computing Applications 19(1),
//! 2005, sections 4.4 and 4.5. That algorithm halves between pairs and needs a power of two. Any other n is 2^a times an
//! odd number u: after `a` halvings between pairs, cycles of u ranks continue with the halving of Jesper
//! Larsson Träff, "Optimal, non-pipelined reduce-scatter and allreduce algorithms", arXiv:2410.14234, 2024, in
//! ⌈log2 u⌉ hops: with s = ⌈u/2⌉, ⌈u/4⌉, ..., 1, each rank sends to the rank s after it the sums of that rank's block and of
//! those that follow.
//!
//! In an all_reduce a rank may reduce any block. So the first pairs, which exchange half of the vector, are neighbours, and the
//! last pairs, whose messages are the smallest, are farthest apart. In the other collectives a rank must have its own block; the
//! first pairs are far apart, so that a message is one span, or two if it wraps around the end.
//!
//! In place, a completely reduced block comes from a rank that has reduced this rank's contribution, so that the elements that it
//! overwrites have been sent. Doubling uses the same flows as halving, so that a rank has as few sources as possible, and on each
//! flow a put precedes the writes into the output.

use std::ops::Range;

use super::{
    Plan, Split,
    chunks::{Lanes, Pattern, Shape, Steps},
    doublings, wrapped,
};
use crate::{
    Collective, Job, Rank, Span, Step,
    cost::Alike,
    partition::{self, Blocks, Pieces},
};

/// The plans of halving and doubling.
pub(super) const PLANS: &[Plan] =
    &[plan(Collective::AllReduce), plan(Collective::ReduceScatter), plan(Collective::AllGather)];

const fn plan(collective: Collective) -> Plan {
    let plan = Plan {
        uneven: collective.has_blocks(),
        ..Plan::new(collective, |job| Lanes::schedule(job, Halving::new(job)), doublings)
    };
    match collective {
        Collective::AllReduce => Plan {
            hops: |ranks| 2 * doublings(ranks),
            split: Split::Two,
            // With cycles, ranks are neither turned nor swapped.
            alike: |ranks| ranks.is_power_of_two().then_some(Alike::Swapped),
            ..plan
        },
        _ => plan,
    }
}

/// Whether exchanges halve the blocks that are still to be reduced, or double the blocks that are complete.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Halving,
    Doubling,
}

/// The ranks as 2^bits rows with an odd number of seats. Blocks are numbered by places, row by row; a rank's block has the rank's place.
/// First, pairs of rows exchange halves, the highest bit of the row first; then each row is a cycle.
#[derive(Clone, Copy)]
struct Grid {
    ranks: usize,
    bits: usize,
    seats: usize,
    /// The number of exchanges of a phase.
    levels: usize,
    /// Whether the first pairs are neighbours; otherwise they are far apart.
    near: bool,
    rank: Rank,
    row: usize,
    seat: usize,
}

/// Consecutive places, as two ranges if they wrap around the end of a row; otherwise the second range is empty.
type Run = [Range<usize>; 2];

/// `len` places from `start` on, which continue at `low` after `high - 1`.
fn run(start: usize, len: usize, low: usize, high: usize) -> Run {
    let head = len.min(high - start);
    [start..start + head, low..low + (len - head)]
}

/// The lowest `bits` bits in reverse.
const fn reversed(number: usize, bits: usize) -> usize {
    if bits == 0 { 0 } else { number.reverse_bits() >> (usize::BITS as usize - bits) }
}

impl Grid {
    fn of(job: &Job<'_>) -> Self {
        let bits = job.ranks.trailing_zeros() as usize;
        let (seats, near) = (job.ranks >> bits, job.collective == Collective::AllReduce);
        let (row, seat) = if near {
            (reversed(job.rank, bits), job.rank >> bits)
        } else {
            (job.rank / seats, job.rank % seats)
        };
        let levels = bits + doublings(seats);
        Self { ranks: job.ranks, bits, seats, levels, near, rank: job.rank, row, seat }
    }

    /// The rank with the same seat in the row that differs in one bit.
    fn across(&self, bit: usize) -> Rank {
        if self.near {
            self.rank ^ 1 << (self.bits - 1 - bit)
        } else {
            (self.row ^ 1 << bit) * self.seats + self.seat
        }
    }

    /// The rank in another seat of this row.
    fn beside(&self, seat: usize) -> Rank {
        if self.near {
            seat << self.bits | self.rank & ((1 << self.bits) - 1)
        } else {
            self.row * self.seats + seat
        }
    }

    /// The place of this rank's block.
    fn place(&self) -> usize {
        self.row * self.seats + self.seat
    }

    /// The seat `hops` after one; `hops` is at most the number of seats.
    fn after(&self, seat: usize, hops: usize) -> usize {
        wrapped(seat + hops, self.seats)
    }

    /// For a level after those of pairs: the distance in the cycle, and the number of blocks that are exchanged, which the next level
    /// no longer has.
    fn skip(&self, level: usize) -> (usize, usize) {
        let left = |halvings: usize| ((self.seats - 1) >> halvings) + 1;
        let halvings = level - self.bits;
        (left(halvings + 1), left(halvings) - left(halvings + 1))
    }

    /// The number of blocks that a rank sends, and gets, at a level.
    fn blocks(&self, level: usize) -> usize {
        match (self.bits - self.bits.min(level)).checked_sub(1) {
            Some(bit) => self.seats << bit,
            None => self.skip(level).1,
        }
    }

    /// The rank to which this one sends at a level, or from which it gets, and the places of the blocks.
    fn exchange(&self, level: usize, phase: Phase, gives: bool) -> (Rank, Run) {
        let halves = phase == Phase::Halving;
        if level < self.bits {
            let bit = self.bits - 1 - level;
            // When halving, the sender gives the receiver's row; when doubling, its own.
            let row = if gives == halves { self.row ^ 1 << bit } else { self.row };
            let half = run((row >> bit << bit) * self.seats, self.seats << bit, 0, self.ranks);
            return (self.across(bit), half);
        }
        let (skip, len) = self.skip(level);
        let other = self.after(self.seat, if gives { skip } else { self.seats - skip });
        let (giver, getter) = if gives { (self.seat, other) } else { (other, self.seat) };
        // When halving, from the receiver's place on; when doubling, up to the sender's place.
        let first = if halves { getter } else { self.after(giver, self.seats + 1 - len) };
        let base = self.row * self.seats;
        (self.beside(other), run(base + first, len, base, base + self.seats))
    }
}

/// What is divided into messages.
enum Whole {
    /// A vector, each round of which has a piece for each rank.
    Vector(Pieces),
    Blocks(Blocks),
}

/// One rank's part.
struct Halving {
    grid: Grid,
    collective: Collective,
    count: usize,
    /// The rounds of an all_reduce, each with a piece for each rank; otherwise the chunks of each block.
    chunks: usize,
    lanes: usize,
    whole: Whole,
    /// The most blocks of a message; 1 if blocks are cut into chunks, because then the chunks of two blocks are not adjacent.
    most: usize,
    /// The number of turns of a phase.
    phase: usize,
    /// If chunks are written into outputs: the first that is.
    direct_from: Option<usize>,
}

impl Halving {
    fn new(job: &Job<'_>) -> Self {
        let grid = Grid::of(job);
        // The longest possible message has the blocks of half of the ranks.
        let half = job.ranks / 2;
        let (chunks, most, whole, direct_from);
        match job.collective {
            Collective::AllReduce => {
                chunks = partition::chunks(job.count, partition::fitting(job.ranks, half, job.chunk));
                most = half;
                whole = Whole::Vector(Pieces::of(job.count, chunks, job.ranks));
                // Only where no piece is empty.
                direct_from = (job.count / chunks >= job.ranks).then_some(0);
            }
            collective => {
                chunks = partition::chunks(job.count, job.chunk);
                let fitting = job.chunk.checked_div(job.count).unwrap_or(half);
                most = if chunks > 1 { 1 } else { fitting.clamp(1, half) };
                let gathers = collective == Collective::AllGather;
                whole = Whole::Blocks(if gathers { job.output_blocks() } else { job.input_blocks() });
                // Each lane's first chunk goes through slots, and no chunk is empty.
                let direct = gathers && job.uneven.is_none() && chunks > job.lanes;
                direct_from = direct.then_some(job.lanes);
            }
        }
        let phase = 2 * (0..grid.levels).map(|level| grid.blocks(level).div_ceil(most)).sum::<usize>();
        let direct_from = direct_from.filter(|_| job.direct);
        let (collective, count, lanes) = (job.collective, job.count, job.lanes.clamp(1, chunks));
        Self { grid, collective, count, chunks, lanes, whole, most, phase, direct_from }
    }

    /// The elements of consecutive blocks in one chunk.
    fn range(&self, chunk: usize, places: &Range<usize>) -> Range<usize> {
        match &self.whole {
            Whole::Vector(pieces) => pieces.range(chunk, places),
            Whole::Blocks(blocks) if self.chunks == 1 => {
                blocks.of(places.start).start..blocks.of(places.end - 1).end
            }
            Whole::Blocks(blocks) => blocks.chunk(places.start, self.chunks, chunk),
        }
    }

    /// The memory of the sums of these blocks, whose elements are `range`, before a level: the output in an all_reduce; scratch in a
    /// reduce_scatter, whose output is too small.
    fn sum(&self, chunk: usize, level: usize, places: &Range<usize>, range: &Range<usize>) -> Span {
        match &self.whole {
            _ if level == 0 => Span::input(range.start, range.len()),
            Whole::Vector(_) => Span::output(range.start, range.len()),
            Whole::Blocks(blocks) if level == self.grid.levels => {
                Span::output(range.start - blocks.of(self.grid.rank).start, range.len())
            }
            Whole::Blocks(blocks) => Span::scratch(self.aside(blocks, chunk, places.start), range.len()),
        }
    }

    /// The first and the number of the blocks of which this rank has sums after the first level.
    fn kept(&self) -> (usize, usize) {
        let grid = &self.grid;
        let half = grid.ranks / 2;
        let first = if grid.bits == 0 { grid.place() } else { grid.place() / half * half };
        (first, grid.ranks - half)
    }

    /// The position in scratch of the sum of a block.
    fn aside(&self, blocks: &Blocks, chunk: usize, place: usize) -> usize {
        let ((first, kept), ranks) = (self.kept(), self.grid.ranks);
        let wraps = place < first;
        if self.chunks == 1 {
            let around = if wraps { blocks.of(ranks - 1).end } else { 0 };
            return blocks.of(place).start + around - blocks.of(first).start;
        }
        let nth = place + if wraps { ranks } else { 0 } - first;
        (chunk % self.lanes * kept + nth) * partition::longest(self.count, self.chunks)
    }

    /// For a turn of a phase: its level, the number of the message in that level, and whether the message is taken or sent. Every
    /// level has two turns for each message that a rank sends (two messages if the run wraps around the end).
    fn find(&self, phase: Phase, turn: usize) -> (usize, usize, bool) {
        let (mut nth, takes, levels) = (turn / 2, turn % 2 == 1, self.grid.levels);
        let level_of = |index| if phase == Phase::Halving { index } else { levels - 1 - index };
        if self.most >= self.grid.ranks / 2 {
            return (level_of(nth), 0, takes);
        }
        let mut index = 0;
        loop {
            let messages = self.grid.blocks(level_of(index)).div_ceil(self.most);
            if nth < messages {
                return (level_of(index), nth, takes);
            }
            nth -= messages;
            index += 1;
        }
    }

    /// The `nth` messages of a run: one in each of its ranges.
    fn messages(&self, run: &Run, nth: usize, mut each: impl FnMut(Range<usize>)) {
        for places in run {
            let start = places.start + nth * self.most;
            if start < places.end {
                each(start..places.end.min(start + self.most));
            }
        }
    }

    /// The elements of scratch, where a reduce_scatter has its sums.
    fn scratch(&self) -> usize {
        let ((first, kept), ranks) = (self.kept(), self.grid.ranks);
        if self.collective != Collective::ReduceScatter || self.grid.levels == 1 {
            return 0;
        }
        let elements = if self.chunks == 1 {
            let runs = run(first, kept, 0, ranks).into_iter().filter(|places| !places.is_empty());
            runs.map(|places| self.range(0, &places).len()).sum()
        } else {
            self.lanes * kept * partition::longest(self.count, self.chunks)
        };
        // Empty spans want it, too.
        elements.max(1)
    }

    fn halve(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        let (level, nth, takes) = self.find(Phase::Halving, turn);
        let (peer, run) = self.grid.exchange(level, Phase::Halving, !takes);
        if takes {
            self.messages(&run, nth, |places| {
                let range = self.range(chunk, &places);
                steps.take(peer, range.len());
                steps.push(Step::Reduce {
                    a: self.sum(chunk, level, &places, &range),
                    b: Span::landed(peer, range.len()),
                    into: self.sum(chunk, level + 1, &places, &range),
                    last: level + 1 == self.grid.levels,
                });
                steps.free(peer);
            });
            return;
        }
        // Messages of this lane's chunk before may still be read from scratch.
        if turn == 0 && chunk >= self.lanes && self.scratch() > 0 {
            steps.push(Step::Settle);
        }
        self.messages(&run, nth, |places| {
            steps.put(peer, self.sum(chunk, level, &places, &self.range(chunk, &places)));
        });
        // If the number of blocks is odd, one is left to which nothing is added at this level, and which is sent next.
        if turn == 0 && self.grid.bits == 0 {
            let left = self.grid.after(self.grid.seat, self.grid.seats / 2);
            let left = left..left + 1;
            let range = self.range(chunk, &left);
            steps.copy(self.sum(chunk, 0, &left, &range), self.sum(chunk, 1, &left, &range));
        }
    }

    fn double(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        let (level, nth, takes) = self.find(Phase::Doubling, turn);
        let (peer, run) = self.grid.exchange(level, Phase::Doubling, !takes);
        let direct = self.direct_from.is_some_and(|first| chunk >= first);
        let opens = turn == 0 && self.collective == Collective::AllGather;
        self.messages(&run, nth, |places| {
            let range = self.range(chunk, &places);
            let whole = Span::output(range.start, range.len());
            match &self.whole {
                _ if takes => steps.get(direct, peer, whole),
                Whole::Blocks(blocks) if opens => {
                    let mine = Span::input(range.start - blocks.of(self.grid.rank).start, range.len());
                    steps.hand(direct, peer, mine, range.start);
                    steps.copy(mine, whole);
                }
                _ => steps.hand(direct, peer, whole, range.start),
            }
        });
    }
}

impl Pattern for Halving {
    fn shape(&self) -> Shape {
        let longest = partition::longest(self.count, self.chunks);
        let phases = if self.collective == Collective::AllReduce { 2 } else { 1 };
        Shape {
            chunks: self.chunks,
            turns: phases * self.phase,
            max_message: match self.whole {
                Whole::Vector(_) => partition::most(longest, self.grid.ranks, self.most),
                Whole::Blocks(_) => self.most * longest,
            },
            direct: self.direct_from.is_some(),
            scratch: self.scratch(),
        }
    }

    fn turn(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        match turn.checked_sub(if self.collective == Collective::AllGather { 0 } else { self.phase }) {
            None => self.halve(chunk, turn, steps),
            Some(turn) => self.double(chunk, turn, steps),
        }
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        (0..self.grid.levels).for_each(|level| visit(self.grid.exchange(level, Phase::Halving, false).0));
    }
}
