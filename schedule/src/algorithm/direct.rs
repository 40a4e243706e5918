//! Direct: every rank sends to every other rank at once, in one hop with n-1 messages from each rank. It suits small messages and
//! few ranks.
//!
//! Contributions are reduced in the order of ranks, so that all ranks get the same bits. Sending starts
//! with the next rank, so that not all send to the same one first (Rajeev Thakur, Rolf Rabenseifner and
//! William Gropp, "Optimization of collective communication operations in MPICH", International Journal of
//! High Performance Computing Applications 19(1), 2005, on pairwise exchange).

use std::ops::Range;

use super::{
    Plan,
    chunks::{Lanes, Pattern, PatternShape, Steps},
    shown, wrapped,
};
use crate::{
    Collective, Job, Rank, Showing, Span, Step,
    cost::Alike,
    partition::{self, Blocks},
};

/// The plans of direct, which can do every collective.
pub(crate) const PLANS: &[Plan] = &[
    plan(Collective::AllReduce),
    plan(Collective::ReduceScatter),
    plan(Collective::AllGather),
    plan(Collective::Broadcast),
    plan(Collective::Barrier),
    plan(Collective::Reduce),
    plan(Collective::Gather),
    plan(Collective::Scatter),
    plan(Collective::AllToAll),
];

const fn plan(collective: Collective) -> Plan {
    let make: fn(&Job<'_>) -> _ = |job| match job.shown {
        Some(_) => shown::schedule(job, false),
        None => Lanes::schedule(job, Direct::new(job)),
    };
    Plan {
        uneven: collective.has_blocks(),
        pairwise: matches!(collective, Collective::Gather | Collective::Scatter | Collective::AllToAll),
        ordered: collective.reduces(),
        whole: !collective.reduces() && !matches!(collective, Collective::Barrier),
        from_all: !matches!(collective, Collective::Broadcast | Collective::Scatter),
        // In place, the result of an all_reduce would replace elements that others still reduce: two_shot reads these in place.
        shows: match collective {
            Collective::ReduceScatter
            | Collective::AllGather
            | Collective::AllToAll
            | Collective::Broadcast => &[Showing::Copied, Showing::InPlace],
            _ => &[Showing::Copied],
        },
        alike: if collective.has_root() {
            |_| None
        } else if collective.reduces() {
            turned
        } else {
            |_| Some(Alike::Turned)
        },
        ..Plan::new(collective, make, |_| 1)
    }
}

/// Contributions are taken in the order of ranks, so that ranks with many chunks drift apart: by 8 % of the time among
/// 4, by 2 % among 12.
fn turned(ranks: usize) -> Option<Alike> {
    (ranks >= 32).then_some(Alike::Turned)
}

/// One rank's part. The elements for each other rank are cut into chunks separately.
struct Direct {
    collective: Collective,
    rank: Rank,
    ranks: usize,
    root: Rank,
    /// The most elements that one rank has for another, and the number of their chunks.
    count: usize,
    chunks: usize,
    chunk: usize,
    uneven: bool,
    /// The lanes that all ranks have although they do not know how many chunks others have ([`Job::pairwise`]); otherwise 0.
    pairwise: usize,
    /// If true, all contributions are reduced at once, in the order of ranks ([`Job::ordered`]).
    ordered: bool,
    /// If true, one write carries all elements that one rank has for another.
    long: bool,
    /// The number of heads, and the elements of each. If chunks are written, a head precedes them on each lane, through a slot. Heads
    /// keep the wire busy until the clear to send has arrived. They are short because they are copied
    /// (docs/decisions/005-long-writes.md).
    heads: usize,
    head: usize,
    input: Blocks,
    output: Blocks,
}

impl Direct {
    fn new(job: &Job<'_>) -> Self {
        let count = if job.collective == Collective::Barrier { 0 } else { job.count };
        // Some chunks of uneven blocks may be empty, and no write may be.
        let writes = job.direct && !job.collective.reduces() && job.uneven.is_none();
        let long = writes && job.long && count > 0;
        let chunk = if long { count } else { job.chunk };
        let head = job.chunk.div_ceil(8).max(1);
        let heads = if writes && !long && count > job.lanes * head { job.lanes } else { 0 };
        let chunks = heads + partition::chunks(count - heads * head, chunk);
        Self {
            collective: job.collective,
            rank: job.rank,
            ranks: job.ranks,
            root: job.root,
            count,
            chunks,
            chunk,
            long,
            heads,
            head,
            uneven: job.uneven.is_some(),
            pairwise: if job.pairwise { job.lanes } else { 0 },
            ordered: job.ordered && job.collective.reduces(),
            input: job.input_blocks(),
            output: job.output_blocks(),
        }
    }

    /// The rank `hops` after this one, `hops` at most `ranks`.
    fn after(&self, hops: usize) -> Rank {
        wrapped(self.rank + hops, self.ranks)
    }

    /// True if one rank has elements for another.
    fn speaks(&self, from: Rank, to: Rank) -> bool {
        match self.collective {
            Collective::Broadcast | Collective::Scatter => from == self.root,
            Collective::Reduce | Collective::Gather => to == self.root,
            _ => true,
        }
    }

    /// The elements of this rank's input (in a broadcast, of its output) that are for a rank, or for itself.
    fn share(&self, to: Rank) -> Range<usize> {
        match self.collective {
            Collective::ReduceScatter | Collective::Scatter | Collective::AllToAll => self.input.of(to),
            Collective::AllGather | Collective::Gather => 0..self.output.len(self.rank),
            _ => 0..self.count,
        }
    }

    /// The elements of this rank's output that come from a rank, or from itself.
    fn place(&self, from: Rank) -> Range<usize> {
        match self.collective {
            Collective::AllGather | Collective::Gather | Collective::AllToAll => self.output.of(from),
            Collective::ReduceScatter | Collective::Scatter => 0..self.input.len(self.rank),
            _ => 0..self.count,
        }
    }

    /// One chunk of the elements that one rank has for another, if they have this many chunks.
    fn chunk_of(&self, whole: &Range<usize>, chunk: usize) -> Option<Range<usize>> {
        if let Some(rest) = chunk.checked_sub(self.heads) {
            let start = whole.start + self.heads * self.head;
            let chunks = partition::chunks(whole.end - start, self.chunk);
            let part = partition::block(whole.end - start, chunks, rest);
            return (rest < chunks).then(|| start + part.start..start + part.end);
        }
        let start = whole.start + chunk * self.head;
        Some(start..start + self.head)
    }

    /// True if this rank exchanges messages only with the root.
    fn leaf(&self) -> bool {
        self.collective.has_root() && self.rank != self.root
    }

    fn send(&self, chunk: usize, to: Rank, steps: &mut Steps) {
        let whole = self.share(to);
        let range = self.chunk_of(&whole, chunk).filter(|_| self.speaks(self.rank, to));
        let Some(range) = range else { return };
        let from = match self.collective {
            Collective::Broadcast => Span::output(range.start, range.len()),
            _ => Span::input(range.start, range.len()),
        };
        // The position of this rank's block in the other rank's output, if blocks are equal.
        let base = match self.collective {
            Collective::AllGather | Collective::Gather | Collective::AllToAll => self.rank * self.count,
            _ => 0,
        };
        steps.hand(self.writes(chunk), to, from, base + (range.start - whole.start));
    }

    /// True if this chunk is written into outputs.
    fn writes(&self, chunk: usize) -> bool {
        (self.long || self.heads > 0) && chunk >= self.heads
    }

    /// Receives what another rank has for this one.
    fn keep(&self, chunk: usize, from: Rank, steps: &mut Steps) {
        let into = self.chunk_of(&self.place(from), chunk).filter(|_| self.speaks(from, self.rank));
        let Some(into) = into else { return };
        if self.collective == Collective::Barrier {
            steps.take(from, 0);
            steps.free(from);
        } else {
            steps.get(self.writes(chunk), from, Span::output(into.start, into.len()));
        }
    }

    /// Copies what this rank has for itself.
    fn keep_own(&self, chunk: usize, steps: &mut Steps) {
        let joined = matches!(self.collective, Collective::Broadcast | Collective::Barrier);
        if joined || !self.speaks(self.rank, self.rank) {
            return;
        }
        // In place, the block from another rank replaces the block for it. (The input of a long job was put aside.)
        if self.collective == Collective::AllToAll && !self.long {
            steps.push(Step::Settle);
        }
        let places =
            self.chunk_of(&self.share(self.rank), chunk).zip(self.chunk_of(&self.place(self.rank), chunk));
        if let Some((from, into)) = places {
            steps.copy(Span::input(from.start, from.len()), Span::output(into.start, into.len()));
        }
    }

    /// Reduces one rank's contribution, in the order of ranks. The sum lies in the slot of the first contribution from another rank.
    fn contribution(&self, chunk: usize, rank: Rank, steps: &mut Steps) {
        let me = self.rank;
        let slot = if me == 0 { 1 } else { 0 };
        let ranges = self.chunk_of(&self.share(me), chunk).zip(self.chunk_of(&self.place(rank), chunk));
        let Some((share, into)) = ranges.filter(|_| self.speaks(rank, me)) else { return };
        let mine = Span::input(share.start, share.len());
        let landed = |rank| Span::landed(rank, into.len());
        if rank != me {
            steps.take(rank, into.len());
        }
        let last = rank + 1 == self.ranks;
        let whole = Span::output(into.start, into.len());
        if self.ordered {
            if last {
                self.settle(steps);
                steps.push(Step::Fold { own: mine, at: 0, into: whole });
            }
            return;
        }
        if rank == 0 {
            return;
        }
        if last {
            self.settle(steps);
        }
        steps.push(Step::Reduce {
            a: if me == 0 && rank == 1 { mine } else { landed(slot) },
            b: if rank == me { mine } else { landed(rank) },
            into: if last { whole } else { landed(slot) },
            last,
        });
        if rank != me && rank != slot {
            steps.free(rank);
        }
        if last {
            steps.free(slot);
        }
    }

    /// Waits, before a result is written, until the input is no longer read: in place, the output lies in the input, which may still be
    /// on its way to others. A reduce_scatter, in which a rank does not send its own block, and the root of a reduce, which sends
    /// nothing, need not wait.
    fn settle(&self, steps: &mut Steps) {
        if self.collective == Collective::AllReduce {
            steps.push(Step::Settle);
        }
    }
}

impl Pattern for Direct {
    /// A turn to send to each other rank, and one to receive from each; if contributions are reduced in order, also one to free
    /// each slot after all were reduced.
    fn shape(&self) -> PatternShape {
        let others = self.ranks - 1;
        let max_message = if self.long {
            0
        } else if self.pairwise > 0 {
            self.chunk
        } else if self.uneven {
            // A shorter block may be cut into longer chunks than the longest.
            self.chunk.min(self.count)
        } else {
            let longest = partition::longest(self.count - self.heads * self.head, self.chunks - self.heads);
            if self.heads > 0 { longest.max(self.head) } else { longest }
        };
        PatternShape {
            chunks: self.chunks.max(self.pairwise),
            turns: if self.leaf() { 1 } else { others * if self.ordered { 3 } else { 2 } + 1 },
            max_message,
            direct: self.long || self.heads > 0,
            ..PatternShape::default()
        }
    }

    fn turn(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        if self.leaf() {
            self.send(chunk, self.root, steps);
            return self.keep(chunk, self.root, steps);
        }
        let others = self.ranks - 1;
        if turn < others {
            // This rank's block is copied while the others wait for the clear to send.
            if self.long && turn == 0 {
                self.keep_own(chunk, steps);
            }
            self.send(chunk, self.after(turn + 1), steps);
        } else if turn >= others + self.ranks {
            let from = self.after(turn - others - self.ranks + 1);
            if self.speaks(from, self.rank) && self.chunk_of(&self.place(from), chunk).is_some() {
                steps.free(from);
            }
        } else if self.collective.reduces() {
            self.contribution(chunk, turn - others, steps);
        } else if turn == others {
            if !self.long {
                self.keep_own(chunk, steps);
            }
        } else {
            // The rank before this one has sent here first.
            self.keep(chunk, self.after(2 * self.ranks - 1 - turn), steps);
        }
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        let others = (1..self.ranks).map(|hops| self.after(hops));
        others.filter(|&from| self.speaks(from, self.rank)).for_each(visit);
    }

    fn written_by(&self, source: Rank) -> Option<Range<usize>> {
        Some(self.place(source))
    }
}
