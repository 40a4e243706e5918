//! Recursive doubling: an all_reduce in ⌊log2 n⌋ hops, in each of which pairs of ranks exchange the whole vector. It suits small
//! messages among many ranks.
//!
//! If n is no power of two, each rank beyond the greatest power first sends its contribution to a rank below it, and gets the result
//! at the end (up to two hops more). Rajeev Thakur, Rolf Rabenseifner and William Gropp, "Optimization of
//! collective communication operations in MPICH", International Journal of High Performance Computing
//! Applications 19(1), 2005, section 4.4.
//!
//! After k hops the 2^k ranks of a group hold the same bits, since both sides of an exchange reduce the
//! same two operands in the same order.

use std::ops::Range;

use super::{
    Plan,
    chunks::{Lanes, Pattern, PatternShape, Steps},
};
use crate::{
    Collective, Job, Place, Rank, Span, Step,
    cost::Alike,
    partition::{self, block},
};

/// The plan of recursive doubling.
pub(super) const PLANS: &[Plan] = &[Plan {
    alike: |ranks| ranks.is_power_of_two().then_some(Alike::Swapped),
    ..Plan::new(Collective::AllReduce, |job| Lanes::schedule(job, AllReduce::new(job)), hops)
}];

/// The number of exchanges among the ranks below the greatest power of two.
const fn levels(ranks: usize) -> usize {
    ranks.ilog2() as usize
}

/// A contribution from beyond the power of two takes one more hop, and its result another one. That is the last hop only if the
/// other half of the ranks had to wait for such a contribution too.
fn hops(ranks: usize) -> usize {
    let power = 1 << levels(ranks);
    let beyond = ranks - power;
    levels(ranks) + usize::from(beyond > 0) + usize::from(beyond > power / 2)
}

struct AllReduce {
    rank: Rank,
    count: usize,
    chunks: usize,
    levels: usize,
    /// For a rank below the power of two: the rank that sends it a contribution, if there is one.
    extra: Option<Rank>,
    /// For a rank beyond it: the rank to which it sends its contribution.
    base: Option<Rank>,
}

impl AllReduce {
    fn new(job: &Job<'_>) -> Self {
        let levels = levels(job.ranks);
        let power = 1 << levels;
        Self {
            rank: job.rank,
            count: job.count,
            chunks: partition::chunks(job.count, job.chunk),
            levels,
            extra: Some(job.rank + power).filter(|&extra| job.rank < power && extra < job.ranks),
            base: job.rank.checked_sub(power),
        }
    }

    fn partner(&self, level: usize) -> Rank {
        self.rank ^ (1 << level)
    }

    /// The memory of the sum before this level.
    fn sum(&self, level: usize, range: &Range<usize>) -> Span {
        let landed = |rank| Span::landed(rank, range.len());
        match (level.checked_sub(1), self.extra) {
            (Some(before), _) => landed(self.partner(before)),
            (None, Some(extra)) => landed(extra),
            (None, None) => Span::input(range.start, range.len()),
        }
    }

    fn exchange(&self, level: usize, range: &Range<usize>, steps: &mut Steps) {
        let (partner, mine) = (self.partner(level), self.sum(level, range));
        let theirs = Span::landed(partner, range.len());
        let last = level + 1 == self.levels;
        steps.put(partner, mine);
        steps.take(partner, range.len());
        // The output may lie in the input (in place), which may still be on its way to the first partner.
        if last && self.extra.is_none() {
            steps.push(Step::Settle);
        }
        let (a, b) = if self.rank < partner { (mine, theirs) } else { (theirs, mine) };
        let into = if last { Span::output(range.start, range.len()) } else { theirs };
        steps.push(Step::Reduce { a, b, into, last });
        if let Place::Landed(from) = mine.place {
            steps.free(from);
        }
        if last {
            steps.free(partner);
        }
    }
}

impl Pattern for AllReduce {
    fn shape(&self) -> PatternShape {
        let turns = if self.base.is_some() { 1 } else { self.levels + 2 };
        let max_message = partition::longest(self.count, self.chunks);
        PatternShape { chunks: self.chunks, turns, max_message, ..PatternShape::default() }
    }

    fn turn(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        let range = block(self.count, self.chunks, chunk);
        let (input, output) = (Span::input(range.start, range.len()), Span::output(range.start, range.len()));
        if let Some(base) = self.base {
            steps.put(base, input);
            return steps.get(false, base, output);
        }
        match (turn.checked_sub(1), self.extra) {
            (None, Some(extra)) => {
                let theirs = Span::landed(extra, range.len());
                steps.take(extra, range.len());
                steps.push(Step::Reduce { a: input, b: theirs, into: theirs, last: false });
            }
            (Some(level), _) if level < self.levels => self.exchange(level, &range, steps),
            (Some(_), Some(extra)) => steps.put(extra, output),
            (_, None) => {}
        }
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        if let Some(base) = self.base {
            visit(base);
            return;
        }
        (0..self.levels).map(|level| self.partner(level)).chain(self.extra).for_each(visit);
    }
}
