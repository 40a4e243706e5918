//! Direct: everyone sends to everyone at once. One hop, and n-1 messages from each rank: for small messages
//! and few ranks.
//!
//! Contributions are reduced in the order of ranks, so that all ranks get the same bits. Sending starts
//! with the next rank, so that not all send to the same one first (Rajeev Thakur, Rolf Rabenseifner and
//! William Gropp, "Optimization of collective communication operations in MPICH", International Journal of
//! High Performance Computing Applications 19(1), 2005, on pairwise exchange).

use std::ops::Range;

use super::{
    Plan,
    turns::{Lanes, Pattern, Steps},
};
use crate::{
    partition::{self, block},
    schedule::{Collective, Job, Rank, Span, Step, Traffic, cost::Alike},
};

/// What direct can do.
pub(super) const PLANS: &[Plan] = &[
    Plan {
        collective: Collective::AllReduce,
        make: |job| Lanes::schedule(job, Reducing { all: All::of(job), stride: 0 }),
        traffic: to_everyone,
        hops: |_| 1,
        depth: 1,
        alike: turned,
    },
    Plan {
        collective: Collective::ReduceScatter,
        make: |job| Lanes::schedule(job, Reducing { all: All::of(job), stride: job.count }),
        traffic: to_everyone,
        hops: |_| 1,
        depth: 1,
        alike: turned,
    },
    Plan {
        collective: Collective::AllGather,
        make: |job| Lanes::schedule(job, AllGather(All::of(job))),
        traffic: to_everyone,
        hops: |_| 1,
        depth: 1,
        alike: |_| Some(Alike::Turned),
    },
    Plan {
        collective: Collective::Broadcast,
        make: |job| Lanes::schedule(job, Broadcast { all: All::of(job), root: job.root }),
        traffic: |job| if job.rank == job.root { to_everyone(job) } else { Traffic::NONE },
        hops: |_| 1,
        depth: 1,
        alike: |_| None,
    },
    Plan {
        collective: Collective::Barrier,
        make: |job| Lanes::schedule(job, Barrier(All::of(&Job { count: 0, ..*job }))),
        traffic: |job| to_everyone(&Job { count: 0, ..*job }),
        hops: |_| 1,
        depth: 1,
        alike: |_| Some(Alike::Turned),
    },
];

/// Contributions are taken in the order of ranks, so that ranks with many chunks drift apart: by 8 % of the time among 4,
/// by 2 % among 12.
fn turned(ranks: usize) -> Option<Alike> {
    (ranks >= 32).then_some(Alike::Turned)
}

fn to_everyone(job: &Job) -> Traffic {
    Traffic {
        messages: partition::chunks(job.count, job.chunk) * (job.ranks - 1),
        elements: job.count * (job.ranks - 1),
    }
}

/// Everyone, seen from one rank.
#[derive(Clone, Copy)]
struct All {
    rank: Rank,
    ranks: usize,
    count: usize,
    chunks: usize,
}

impl All {
    fn of(job: &Job) -> Self {
        let chunks = partition::chunks(job.count, job.chunk);
        Self { rank: job.rank, ranks: job.ranks, count: job.count, chunks }
    }

    fn chunk(&self, chunk: usize) -> Range<usize> {
        block(self.count, self.chunks, chunk)
    }

    /// How many others there are.
    fn others(&self) -> usize {
        self.ranks - 1
    }

    /// The rank `hops` after this one, `hops` at most `ranks`.
    fn after(&self, hops: usize) -> Rank {
        let rank = self.rank + hops;
        if rank >= self.ranks { rank - self.ranks } else { rank }
    }

    fn max_message(&self) -> usize {
        partition::longest(self.count, self.chunks)
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        (0..self.ranks).filter(|&rank| rank != self.rank).for_each(visit);
    }
}

/// all_reduce, where everyone gets the same elements, and reduce_scatter, where rank r gets those from
/// `r * stride` on.
struct Reducing {
    all: All,
    stride: usize,
}

impl Reducing {
    /// The turn of one rank's contribution, in the order of ranks. The sum so far lies where the first
    /// contribution from elsewhere landed.
    fn contribution(&self, range: &Range<usize>, rank: Rank, steps: &mut Steps) {
        let me = self.all.rank;
        let slot = if me == 0 { 1 } else { 0 };
        let mine = Span::input(me * self.stride + range.start, range.len());
        let landed = |rank| Span::landed(rank, range.len());
        if rank != me {
            steps.take(rank, range.len());
        }
        if rank == 0 {
            return;
        }
        let last = rank == self.all.others();
        // The output may lie in the input (in place), and the input may still be on its way to others; but
        // nobody is sent the own block of a reduce_scatter.
        if last && self.stride == 0 {
            steps.push(Step::Settle);
        }
        steps.push(Step::Reduce {
            a: if me == 0 && rank == 1 { mine } else { landed(slot) },
            b: if rank == me { mine } else { landed(rank) },
            into: if last { Span::output(range.start, range.len()) } else { landed(slot) },
            last,
        });
        if rank != me && rank != slot {
            steps.free(rank);
        }
        if last {
            steps.free(slot);
        }
    }
}

impl Pattern for Reducing {
    fn chunks(&self) -> usize {
        self.all.chunks
    }

    fn turns(&self) -> usize {
        self.all.others() + self.all.ranks
    }

    fn turn(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        let range = self.all.chunk(chunk);
        if turn < self.all.others() {
            let to = self.all.after(turn + 1);
            steps.put(to, Span::input(to * self.stride + range.start, range.len()));
        } else {
            self.contribution(&range, turn - self.all.others(), steps);
        }
    }

    fn max_message(&self) -> usize {
        self.all.max_message()
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        self.all.sources(visit);
    }
}

struct AllGather(All);

impl Pattern for AllGather {
    fn chunks(&self) -> usize {
        self.0.chunks
    }

    fn turns(&self) -> usize {
        2 * self.0.others() + 1
    }

    fn turn(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        let range = self.0.chunk(chunk);
        let mine = Span::input(range.start, range.len());
        let block_of = |rank| Span::output(rank * self.0.count + range.start, range.len());
        if turn < self.0.others() {
            steps.put(self.0.after(turn + 1), mine);
        } else if turn == self.0.others() {
            steps.copy(mine, block_of(self.0.rank));
        } else {
            // The rank before this one has sent here first.
            let from = self.0.after(2 * self.0.ranks - 1 - turn);
            steps.take(from, range.len());
            steps.copy(Span::landed(from, range.len()), block_of(from));
            steps.free(from);
        }
    }

    fn max_message(&self) -> usize {
        self.0.max_message()
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        self.0.sources(visit);
    }
}

struct Broadcast {
    all: All,
    root: Rank,
}

impl Pattern for Broadcast {
    fn chunks(&self) -> usize {
        self.all.chunks
    }

    fn turns(&self) -> usize {
        if self.all.rank == self.root { self.all.others() } else { 1 }
    }

    fn turn(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        let range = self.all.chunk(chunk);
        let output = Span::output(range.start, range.len());
        if self.all.rank == self.root {
            steps.put(self.all.after(turn + 1), output);
        } else {
            steps.take(self.root, range.len());
            steps.copy(Span::landed(self.root, range.len()), output);
            steps.free(self.root);
        }
    }

    fn max_message(&self) -> usize {
        self.all.max_message()
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        if self.all.rank != self.root {
            visit(self.root);
        }
    }
}

struct Barrier(All);

impl Pattern for Barrier {
    fn chunks(&self) -> usize {
        1
    }

    fn turns(&self) -> usize {
        2 * self.0.others()
    }

    fn turn(&self, _: usize, turn: usize, steps: &mut Steps) {
        if turn < self.0.others() {
            steps.put(self.0.after(turn + 1), Span::input(0, 0));
        } else {
            let from = self.0.after(2 * self.0.ranks - 2 - turn);
            steps.take(from, 0);
            steps.free(from);
        }
    }

    fn max_message(&self) -> usize {
        0
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        self.0.sources(visit);
    }
}
