//! Rabenseifner: recursive halving, in which the ranks of a pair exchange halves of the vector until each has reduced its own block,
//! then recursive doubling. It sends as few elements as the ring, which is the lower bound, in ⌈log2 n⌉ hops each for halving and
//! doubling. It suits medium messages, and large ones among many ranks.
//!
//! Rolf Rabenseifner, "Optimization of collective reduction operations", International Conference on
//! Computational Science, 2004; Rajeev Thakur, Rolf Rabenseifner and William Gropp, "Optimization of collective
//! communication operations in MPICH", International Journal of High Performance Computing Applications 19(1),
//! 2005, sections 4.4 and 4.5. That halves between pairs, and wants a power of two. Any other n is 2^a times an
//! odd number u: after `a` halvings between pairs, cycles of u ranks each go on with the halving of Jesper
//! Larsson Träff, "Optimal, non-pipelined reduce-scatter and allreduce algorithms", arXiv:2410.14234, 2024, which
//! takes ⌈log2 u⌉ hops and wastes none: with s = ⌈u/2⌉, ⌈u/4⌉, ..., 1, each rank gives the one s after it the sums
//! of what that one and those behind it are to have.
//!
//! In an all_reduce it does not matter whose block is which, so that the first pairs, which exchange half of
//! everything, are neighbours, and the last exchanges, which are the smallest, the farthest. Otherwise blocks
//! have their ranks, and so that a message is one span (or two, where it goes around the end) pairs are far
//! apart at first.
//!
//! In place, a whole block comes from a rank that has this rank's contribution in it, so that what it
//! overwrites has arrived. The second half goes the same way around as the first, so that a rank takes messages
//! from as few others as can be, and writes straight into outputs follow puts on their flow.

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

/// What halving and doubling can do.
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
            // Partners by pairs; where there are cycles too, neither turned nor swapped.
            alike: |ranks| ranks.is_power_of_two().then_some(Alike::Swapped),
            ..plan
        },
        _ => plan,
    }
}

/// Whether exchanges halve what is still to be reduced, or double what is known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Halving,
    Doubling,
}

/// Ranks as 2^bits rows of an odd number of seats. A rank's block has its place, row by row. First rows halve
/// by pairs, the highest bit first; then each row goes round.
#[derive(Clone, Copy)]
struct Grid {
    ranks: usize,
    bits: usize,
    seats: usize,
    /// How many exchanges there are.
    levels: usize,
    /// Whether the rows that halve first are those of neighbours, and not the farthest.
    near: bool,
    rank: Rank,
    row: usize,
    seat: usize,
}

/// Blocks one after the other by their places; of a row, cyclically, and then in two spans.
type Run = [Range<usize>; 2];

/// `len` places from `start` on, cyclically from `low` to before `high`.
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

    /// The rank in the row that differs in one bit.
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

    /// The seat `hops` after one, at most a round.
    fn after(&self, seat: usize, hops: usize) -> usize {
        wrapped(seat + hops, self.seats)
    }

    /// How far messages go round a row at a level beyond those of pairs, and how many blocks they have: what is
    /// left of those that the level before left.
    fn skip(&self, level: usize) -> (usize, usize) {
        let left = |halvings: usize| ((self.seats - 1) >> halvings) + 1;
        let halvings = level - self.bits;
        (left(halvings + 1), left(halvings) - left(halvings + 1))
    }

    /// How many blocks a rank gives, and gets, at a level.
    fn blocks(&self, level: usize) -> usize {
        match (self.bits - self.bits.min(level)).checked_sub(1) {
            Some(bit) => self.seats << bit,
            None => self.skip(level).1,
        }
    }

    /// With whom a rank gives or gets at a level, and what.
    fn exchange(&self, level: usize, phase: Phase, gives: bool) -> (Rank, Run) {
        let halves = phase == Phase::Halving;
        if level < self.bits {
            let bit = self.bits - 1 - level;
            // What the other one is to have, or what this one has; and the other way about.
            let row = if gives == halves { self.row ^ 1 << bit } else { self.row };
            let half = run((row >> bit << bit) * self.seats, self.seats << bit, 0, self.ranks);
            return (self.across(bit), half);
        }
        let (skip, len) = self.skip(level);
        let other = self.after(self.seat, if gives { skip } else { self.seats - skip });
        let (giver, getter) = if gives { (self.seat, other) } else { (other, self.seat) };
        // From the one who is to have the first of them on; or up to that of the one who has the last.
        let first = if halves { getter } else { self.after(giver, self.seats + 1 - len) };
        let base = self.row * self.seats;
        (self.beside(other), run(base + first, len, base, base + self.seats))
    }
}

/// What is cut.
enum Whole {
    /// A vector, every round of it into a piece per rank.
    Vector(Pieces),
    Blocks(Blocks),
}

/// One rank's part.
struct Halving {
    grid: Grid,
    collective: Collective,
    count: usize,
    /// Of an all_reduce: rounds, each with a piece per rank. Otherwise every block is cut into as many.
    chunks: usize,
    lanes: usize,
    whole: Whole,
    /// How many blocks a message has at most. One, if they are cut: the next one's chunk lies elsewhere.
    most: usize,
    /// How many turns each phase takes.
    phase: usize,
    /// If writes are used, from which chunk on.
    direct_from: Option<usize>,
}

impl Halving {
    fn new(job: &Job<'_>) -> Self {
        let grid = Grid::of(job);
        // What half of the ranks are to have is the longest message there could be.
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

    /// The elements of blocks one after the other, in one chunk.
    fn range(&self, chunk: usize, places: &Range<usize>) -> Range<usize> {
        match &self.whole {
            Whole::Vector(pieces) => pieces.range(chunk, places),
            Whole::Blocks(blocks) if self.chunks == 1 => {
                blocks.of(places.start).start..blocks.of(places.end - 1).end
            }
            Whole::Blocks(blocks) => blocks.chunk(places.start, self.chunks, chunk),
        }
    }

    /// Where the sums of these blocks, whose elements these are, lie before a level: those of an all_reduce in the
    /// output; those of a reduce_scatter, which has no room there, in scratch.
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

    /// The first of the blocks of which this rank keeps sums after the first level, and how many there are.
    fn kept(&self) -> (usize, usize) {
        let grid = &self.grid;
        let half = grid.ranks / 2;
        let first = if grid.bits == 0 { grid.place() } else { grid.place() / half * half };
        (first, grid.ranks - half)
    }

    /// Where in scratch the sum of a block lies.
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

    /// The level of a turn of a phase, which of its messages it is about, and whether these are taken. Every
    /// level has two turns for each message that a rank gives, or two where its run goes around the end.
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

    /// The `nth` messages of a run: one in each of its spans.
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
        // The scratch may still be on its way to others, from this lane's chunk before.
        if turn == 0 && chunk >= self.lanes && self.scratch() > 0 {
            steps.push(Step::Settle);
        }
        self.messages(&run, nth, |places| {
            steps.put(peer, self.sum(chunk, level, &places, &self.range(chunk, &places)));
        });
        // Of an odd number of blocks one is left that nobody gives anything for, and that goes out next.
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
