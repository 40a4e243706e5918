//! Halving and doubling: in each hop of the first phase, pairs or cycles of ranks exchange sums of about half of the blocks that are left,
//! until each rank has its own; in the second they exchange complete blocks, in the opposite order. An algorithm says which ranks
//! exchange which blocks ([`Exchanges`]); messages and steps follow in the same way for all.
//!
//! In place, a completely reduced block comes from a rank that has reduced this rank's contribution, so that the elements that it
//! overwrites have been sent. Doubling uses the same flows as halving, so that a rank has as few sources as possible, and on each
//! flow a put precedes the writes into the output.

use std::ops::Range;

use super::chunks::{Lanes, Pattern, PatternShape, Steps};
use crate::{
    Collective, Job, Rank, Schedule, Span, Step,
    partition::{self, Blocks, Pieces},
};

/// Exchanges halve the blocks that are still to be reduced, or double the blocks that are complete.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Halving,
    Doubling,
}

/// Consecutive places, as two ranges if they wrap around the end of a row; otherwise the second range is empty.
pub(super) type PlaceRange = [Range<usize>; 2];

/// `len` places from `start` on, which continue at `low` after `high - 1`.
pub(super) fn run(start: usize, len: usize, low: usize, high: usize) -> PlaceRange {
    let head = len.min(high - start);
    [start..start + head, low..low + (len - head)]
}

/// The blocks that a rank exchanges, and the ranks with which it does. Blocks are numbered by places; each rank has its own place,
/// which in a reduce_scatter and an all_gather is its rank.
pub(super) trait Exchanges: Send + 'static {
    /// The number of exchanges of a phase.
    fn levels(&self) -> usize;

    /// The number of blocks that a rank sends, and gets, at a level; none has more than the first, which has half of all.
    fn blocks(&self, level: usize) -> usize;

    /// The rank to which this one sends at a level, or from which it gets, and the places of the blocks.
    fn exchange(&self, level: usize, phase: Phase, gives: bool) -> (Rank, PlaceRange);

    /// The first and the number of the blocks of which this rank has sums after the first level.
    fn kept(&self) -> (usize, usize);

    /// The place of the block that this rank neither gives nor gets at the first level, and gives at the next, if the number of blocks
    /// is odd.
    fn left(&self) -> Option<usize>;
}

/// The schedule of a job by these exchanges.
pub(super) fn schedule(job: &Job<'_>, exchanges: impl Exchanges) -> Box<dyn Schedule> {
    Lanes::schedule(job, Halving::new(job, exchanges))
}

/// The elements that are divided into messages.
enum Whole {
    /// A vector, each round of which has a piece for each rank.
    Vector(Pieces),
    Blocks(Blocks),
}

/// One rank's part in the collective.
struct Halving<E> {
    exchanges: E,
    rank: Rank,
    ranks: usize,
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
    /// If chunks are written into outputs: the first one that is.
    direct_from: Option<usize>,
}

impl<E: Exchanges> Halving<E> {
    fn new(job: &Job<'_>, exchanges: E) -> Self {
        // The longest possible message has the blocks of half of the ranks.
        let half = job.ranks / 2;
        let (chunks, most, whole, direct_from);
        match job.collective {
            Collective::AllReduce => {
                chunks = partition::chunks(job.count, partition::fitting(job.ranks, half, job.chunk));
                most = half;
                whole = Whole::Vector(Pieces::of(job.count, chunks, job.ranks));
                // No piece may be empty, because no write may be.
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
        let phase =
            2 * (0..exchanges.levels()).map(|level| exchanges.blocks(level).div_ceil(most)).sum::<usize>();
        let direct_from = direct_from.filter(|_| job.direct);
        let (rank, ranks, collective, count) = (job.rank, job.ranks, job.collective, job.count);
        let lanes = job.lanes.clamp(1, chunks);
        Self { exchanges, rank, ranks, collective, count, chunks, lanes, whole, most, phase, direct_from }
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
            Whole::Blocks(blocks) if level == self.exchanges.levels() => {
                Span::output(range.start - blocks.of(self.rank).start, range.len())
            }
            Whole::Blocks(blocks) => Span::scratch(self.aside(blocks, chunk, places.start), range.len()),
        }
    }

    /// The position in scratch of the sum of a block.
    fn aside(&self, blocks: &Blocks, chunk: usize, place: usize) -> usize {
        let ((first, kept), ranks) = (self.exchanges.kept(), self.ranks);
        let wraps = place < first;
        if self.chunks == 1 {
            let around = if wraps { blocks.of(ranks - 1).end } else { 0 };
            return blocks.of(place).start + around - blocks.of(first).start;
        }
        let nth = place + if wraps { ranks } else { 0 } - first;
        (chunk % self.lanes * kept + nth) * partition::longest(self.count, self.chunks)
    }

    /// For a turn of a phase: its level, the number of the message in that level, and whether the message is taken or sent. Every
    /// level has two turns for each message that a rank sends (two messages if the run wraps around the end). A message is sent before
    /// the one before it is taken, so that the wire works meanwhile: two slots are enough.
    fn find(&self, phase: Phase, mut turn: usize) -> (usize, usize, bool) {
        let levels = self.exchanges.levels();
        let level_of = |index| if phase == Phase::Halving { index } else { levels - 1 - index };
        if self.most >= self.ranks / 2 {
            return (level_of(turn / 2), 0, turn % 2 == 1);
        }
        let mut index = 0;
        loop {
            let turns = 2 * self.exchanges.blocks(level_of(index)).div_ceil(self.most);
            if turn < turns {
                let takes = turn > 0 && (turn.is_multiple_of(2) || turn + 1 == turns);
                return (level_of(index), if takes { (turn - 1) / 2 } else { turn.div_ceil(2) }, takes);
            }
            turn -= turns;
            index += 1;
        }
    }

    /// The `nth` messages of a run: one in each of its ranges.
    fn messages(&self, run: &PlaceRange, nth: usize, mut each: impl FnMut(Range<usize>)) {
        for places in run {
            let start = places.start + nth * self.most;
            if start < places.end {
                each(start..places.end.min(start + self.most));
            }
        }
    }

    /// The elements of scratch, where a reduce_scatter has its sums.
    fn scratch(&self) -> usize {
        let ((first, kept), ranks) = (self.exchanges.kept(), self.ranks);
        if self.collective != Collective::ReduceScatter || self.exchanges.levels() == 1 {
            return 0;
        }
        let elements = if self.chunks == 1 {
            let runs = run(first, kept, 0, ranks).into_iter().filter(|places| !places.is_empty());
            runs.map(|places| self.range(0, &places).len()).sum()
        } else {
            self.lanes * kept * partition::longest(self.count, self.chunks)
        };
        // Empty spans need scratch, too.
        elements.max(1)
    }

    fn halve(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        let (level, nth, takes) = self.find(Phase::Halving, turn);
        let (peer, run) = self.exchanges.exchange(level, Phase::Halving, !takes);
        if takes {
            self.messages(&run, nth, |places| {
                let range = self.range(chunk, &places);
                steps.take(peer, range.len());
                steps.push(Step::Reduce {
                    a: self.sum(chunk, level, &places, &range),
                    b: Span::landed(peer, range.len()),
                    into: self.sum(chunk, level + 1, &places, &range),
                    last: level + 1 == self.exchanges.levels(),
                });
                steps.free(peer);
            });
            return;
        }
        // Messages of this lane's previous chunk may still be read from scratch.
        if turn == 0 && chunk >= self.lanes && self.scratch() > 0 {
            steps.push(Step::Settle);
        }
        self.messages(&run, nth, |places| {
            steps.put(peer, self.sum(chunk, level, &places, &self.range(chunk, &places)));
        });
        // If the number of blocks is odd, one is left: nothing is added to it at this level, and it is sent at the next one.
        if turn == 0
            && let Some(left) = self.exchanges.left()
        {
            let left = left..left + 1;
            let range = self.range(chunk, &left);
            steps.copy(self.sum(chunk, 0, &left, &range), self.sum(chunk, 1, &left, &range));
        }
    }

    fn double(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        let (level, nth, takes) = self.find(Phase::Doubling, turn);
        let (peer, run) = self.exchanges.exchange(level, Phase::Doubling, !takes);
        let direct = self.direct_from.is_some_and(|first| chunk >= first);
        let opens = turn == 0 && self.collective == Collective::AllGather;
        self.messages(&run, nth, |places| {
            let range = self.range(chunk, &places);
            let whole = Span::output(range.start, range.len());
            match &self.whole {
                _ if takes => steps.get(direct, peer, whole),
                Whole::Blocks(blocks) if opens => {
                    let mine = Span::input(range.start - blocks.of(self.rank).start, range.len());
                    steps.hand(direct, peer, mine, range.start);
                    steps.copy(mine, whole);
                }
                _ => steps.hand(direct, peer, whole, range.start),
            }
        });
    }
}

impl<E: Exchanges> Pattern for Halving<E> {
    fn shape(&self) -> PatternShape {
        let longest = partition::longest(self.count, self.chunks);
        let phases = if self.collective == Collective::AllReduce { 2 } else { 1 };
        PatternShape {
            chunks: self.chunks,
            turns: phases * self.phase,
            max_message: match self.whole {
                Whole::Vector(_) => partition::most(longest, self.ranks, self.most),
                Whole::Blocks(_) => self.most * longest,
            },
            direct: self.direct_from.is_some(),
            scratch: self.scratch(),
            ..PatternShape::default()
        }
    }

    fn turn(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        match turn.checked_sub(if self.collective == Collective::AllGather { 0 } else { self.phase }) {
            None => self.halve(chunk, turn, steps),
            Some(turn) => self.double(chunk, turn, steps),
        }
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        (0..self.exchanges.levels())
            .for_each(|level| visit(self.exchanges.exchange(level, Phase::Halving, false).0));
    }
}
