//! Two-shot: every rank receives one piece of the vector from all ranks, reduces it, and sends the result to all ranks. It sends as
//! few elements as the ring, which is the lower bound, in two hops instead of 2(n-1). It suits medium and large messages among few
//! ranks, and ranks that share cores, where a hop costs a context switch.
//!
//! The name is that of the GPU libraries' kernels; the scheme is the direct reduce-scatter and all-gather of
//! Rajeev Thakur, Rolf Rabenseifner and William Gropp, "Optimization of collective communication operations
//! in MPICH", International Journal of High Performance Computing Applications 19(1), 2005.

use std::ops::Range;

use super::{
    Plan, Split,
    chunks::{Lanes, Pattern, PatternShape, Steps},
    shown, wrapped,
};
use crate::{Collective, Job, Rank, Schedule, Showing, Span, Step, cost::Alike, partition};

/// The plan of two-shot.
pub(super) const PLANS: &[Plan] = &[Plan {
    ordered: true,
    split: Split::EachRank,
    from_all: true,
    shows: &[Showing::InPlace],
    alike: |_| Some(Alike::Turned),
    ..Plan::new(Collective::AllReduce, make, |_| 2)
}];

fn make(job: &Job<'_>) -> Box<dyn Schedule> {
    match job.shown {
        Some(_) => shown::schedule(job, true),
        None => Lanes::schedule(job, TwoShot::new(job)),
    }
}

/// In every round each rank owns one of as many pieces as there are ranks.
struct TwoShot {
    rank: Rank,
    ranks: usize,
    count: usize,
    rounds: usize,
    direct: bool,
    /// If true, all contributions are reduced at once, in the order of ranks ([`Job::ordered`]).
    ordered: bool,
}

impl TwoShot {
    fn new(job: &Job<'_>) -> Self {
        let rounds = partition::rounds(job.count, job.ranks, job.chunk);
        // No piece may be empty, because no write may be.
        let direct = job.direct && job.count / rounds >= job.ranks;
        Self { rank: job.rank, ranks: job.ranks, count: job.count, rounds, direct, ordered: job.ordered }
    }

    fn piece(&self, round: usize, owner: Rank) -> Range<usize> {
        partition::piece(self.count, self.rounds, round, self.ranks, owner)
    }

    /// The rank `distance` after this one, which is at most `ranks`. Each rank sends in this order, so that not all send to the same
    /// rank first.
    fn after(&self, distance: usize) -> Rank {
        wrapped(self.rank + distance, self.ranks)
    }
}

impl Pattern for TwoShot {
    fn shape(&self) -> PatternShape {
        // Send the pieces of the others, reduce this rank's piece, free its slots (if it is reduced in order), send it to the
        // others, receive theirs: n-1 turns each.
        let phases = if self.ordered { 5 } else { 4 };
        PatternShape {
            chunks: self.rounds,
            turns: phases * (self.ranks - 1),
            max_message: partition::longest(partition::longest(self.count, self.rounds), self.ranks),
            direct: self.direct,
            ..PatternShape::default()
        }
    }

    fn turn(&self, round: usize, turn: usize, steps: &mut Steps) {
        let others = self.ranks - 1;
        let mine = self.piece(round, self.rank);
        let (phase, distance) = (turn / others, turn % others + 1);
        let from = self.after(self.ranks - distance);
        let phase = match (phase, self.ordered) {
            (1, true) => {
                steps.take(from, mine.len());
                if distance == others {
                    let own = Span::input(mine.start, mine.len());
                    steps.push(Step::Fold { own, at: 0, into: Span::output(mine.start, mine.len()) });
                }
                return;
            }
            (2, true) => {
                steps.free(from);
                return;
            }
            (phase, true) if phase > 2 => phase - 1,
            (phase, _) => phase,
        };
        match phase {
            0 => {
                let to = self.after(distance);
                let piece = self.piece(round, to);
                steps.put(to, Span::input(piece.start, piece.len()));
            }
            // The rank before this one has sent here first.
            1 => {
                let own = Span::input(mine.start, mine.len());
                let result = (distance == others).then(|| Span::output(mine.start, mine.len()));
                steps.accumulate(own, from, self.after(others), result);
            }
            2 => {
                let whole = Span::output(mine.start, mine.len());
                steps.hand(self.direct, self.after(distance), whole, mine.start);
            }
            _ => {
                let piece = self.piece(round, from);
                steps.get(self.direct, from, Span::output(piece.start, piece.len()));
            }
        }
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        (1..self.ranks).for_each(|distance| visit(self.after(distance)));
    }
}
