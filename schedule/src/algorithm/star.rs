//! Star: all ranks send to one rank, the hub, which sends the results back: 2(n-1) messages, fewer than in any other algorithm, in two
//! hops. The hub does all the work. It suits small messages among ranks that share cores, where the number of messages and of
//! context switches matters more than the latency of a message.
//!
//! These are the basic linear algorithms of Open MPI (`ompi/mca/coll/base`), here for collectives without a root; `direct` does the
//! same for those with a root.

use std::ops::Range;

use super::{
    Plan,
    chunks::{Lanes, Pattern, PatternShape, Steps},
};
use crate::{Collective, Job, Rank, Span, Step, partition};

/// The plans of the star.
pub(super) const PLANS: &[Plan] = &[
    plan(Collective::AllReduce),
    plan(Collective::ReduceScatter),
    plan(Collective::AllGather),
    plan(Collective::Barrier),
    plan(Collective::AllToAll),
];

/// The rank to which all others send.
const HUB: Rank = 0;

const fn plan(collective: Collective) -> Plan {
    Plan {
        ordered: collective.reduces(),
        from_all: true,
        ..Plan::new(collective, |job| Lanes::schedule(job, Star::new(job)), |_| 2)
    }
}

/// A vector of equal blocks, divided into messages: a message has as many whole blocks as fit, or else a part of one block.
#[derive(Clone, Copy)]
struct Cut {
    blocks: usize,
    /// Elements of a block.
    count: usize,
    /// The messages of a block, if it does not fit into one.
    pieces: usize,
    /// The blocks of a message, if they fit into one.
    bundle: usize,
}

impl Cut {
    fn new(blocks: usize, count: usize, chunk: usize) -> Self {
        let fit = chunk.checked_div(count).unwrap_or(blocks);
        Self { blocks, count, pieces: partition::chunks(count, chunk), bundle: fit.clamp(1, blocks) }
    }

    fn messages(&self) -> usize {
        if self.pieces > 1 { self.blocks * self.pieces } else { self.blocks.div_ceil(self.bundle) }
    }

    /// The elements of a message.
    fn message(&self, message: usize) -> Range<usize> {
        if self.pieces > 1 {
            let start = message / self.pieces * self.count;
            let part = partition::block(self.count, self.pieces, message % self.pieces);
            return start + part.start..start + part.end;
        }
        let first = message * self.bundle;
        first * self.count..(first + self.bundle).min(self.blocks) * self.count
    }

    /// The most elements of a message.
    fn longest(&self) -> usize {
        if self.pieces > 1 { partition::longest(self.count, self.pieces) } else { self.bundle * self.count }
    }

    fn len(&self) -> usize {
        self.blocks.saturating_mul(self.count)
    }
}

/// One rank's part in the collective.
struct Star {
    collective: Collective,
    rank: Rank,
    ranks: usize,
    /// Elements of a block, or of the whole where there are no blocks.
    count: usize,
    ordered: bool,
    /// The vector that each rank sends to the hub, and the one that it gets back.
    up: Cut,
    down: Cut,
}

impl Star {
    fn new(job: &Job<'_>) -> Self {
        let &Job { collective, rank, ranks, ordered, .. } = job;
        let count = if collective == Collective::Barrier { 0 } else { job.count };
        let (one, all) = (Cut::new(1, count, job.chunk), Cut::new(ranks, count, job.chunk));
        let (up, down) = match job.collective {
            Collective::AllGather => (one, all),
            Collective::ReduceScatter => (all, one),
            Collective::AllToAll => (all, all),
            _ => (one, one),
        };
        Self { collective, rank, ranks, count, ordered: ordered && collective.reduces(), up, down }
    }

    /// True if the hub sends each message's result back separately, so that messages can use several lanes. If there are blocks, it
    /// takes all messages before it sends one back.
    fn separate(&self) -> bool {
        !self.collective.has_blocks()
    }

    /// The messages that each rank sends and gets back in the turns of a chunk.
    fn messages(&self) -> (usize, usize) {
        if self.separate() { (1, 1) } else { (self.up.messages(), self.down.messages()) }
    }

    /// The hub's turns before it copies its own result, and after. Before: one to take each rank's message, or, where blocks are
    /// sorted, each of its blocks; and, where all are reduced at once, one to free its slot. After: one to send each message.
    fn hub_turns(&self) -> (usize, usize) {
        let (up, down) = self.messages();
        let others = self.ranks - 1;
        let takes = match self.collective {
            Collective::AllToAll => self.up.blocks * self.up.pieces * self.ranks,
            _ if self.ordered => 2 * others * up,
            _ => others * up,
        };
        (takes, others * down)
    }

    /// The position in the hub's scratch of what all ranks have for rank `to`, from element `at` on; `usize::MAX` if it is greater.
    fn place(&self, to: Rank, at: usize) -> usize {
        to.saturating_mul(self.down.len()).saturating_add(at)
    }

    /// The place of a rank's result at the hub.
    fn result(&self, to: Rank, range: &Range<usize>) -> Span {
        match self.collective {
            Collective::Barrier => Span::input(0, 0),
            Collective::ReduceScatter => Span::scratch(to * self.count + range.start, range.len()),
            Collective::AllToAll => Span::scratch(self.place(to, range.start), range.len()),
            _ => Span::output(range.start, range.len()),
        }
    }

    /// The hub takes the message of a rank and reduces it, or copies it to its place. If contributions are reduced in the order of
    /// ranks, it takes those of all ranks first.
    fn gather(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        let others = self.ranks - 1;
        let (round, turn) = if self.ordered {
            (turn / (2 * others), turn % (2 * others))
        } else {
            (turn / others, turn % others)
        };
        let range = self.up.message(chunk + round);
        let len = range.len();
        let rank = 1 + turn % others;
        if turn >= others {
            return steps.free(rank);
        }
        let (own, last) = (Span::input(range.start, len), rank == others);
        let sum = match self.collective {
            Collective::AllReduce => Span::output(range.start, len),
            _ => Span::scratch(range.start, len),
        };
        if self.collective.reduces() && !self.ordered {
            return steps.accumulate(own, rank, 1, last.then_some(sum));
        }
        steps.take(rank, len);
        if self.ordered {
            if last {
                steps.push(Step::Fold { own, at: 0, into: sum });
            }
            return;
        }
        if self.collective == Collective::AllGather {
            steps.copy(Span::landed(rank, len), Span::output(rank * self.count + range.start, len));
        }
        steps.free(rank);
    }

    /// The hub copies a block, or a part of one, that a rank has for another one to its place in scratch.
    fn sort(&self, turn: usize, steps: &mut Steps) {
        let (from, part) = (turn % self.ranks, turn / self.ranks);
        let (to, piece) = (part / self.up.pieces, part % self.up.pieces);
        let range = partition::block(self.count, self.up.pieces, piece);
        let (len, at) = (range.len(), to * self.count + range.start);
        let message = if self.up.pieces > 1 { part } else { to / self.up.bundle };
        let whole = self.up.message(message);
        let first = at == whole.start && (self.count > 0 || to == 0);
        let last = at + len == whole.end && (self.count > 0 || to + 1 == self.ranks);
        if from != HUB && first {
            steps.take(from, whole.len());
        }
        let landed = Span { offset: at - whole.start, ..Span::landed(from, len) };
        let source = if from == HUB { Span::input(at, len) } else { landed };
        let place = from * self.count + range.start;
        steps.copy(source, Span::scratch(self.place(to, place), len));
        if from != HUB && last {
            steps.free(from);
        }
    }

    /// The hub copies its own result to its output, unless it is there already.
    fn keep(&self, steps: &mut Steps) {
        let from = match self.collective {
            Collective::AllGather => Span::input(0, self.count),
            Collective::ReduceScatter | Collective::AllToAll => Span::scratch(0, self.down.len()),
            _ => return,
        };
        steps.copy(from, Span::output(0, from.len));
    }

    /// Every other rank sends its messages, then gets its results.
    fn other(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        let (up, _) = self.messages();
        if turn < up {
            let range = self.up.message(chunk + turn);
            return steps.put(HUB, Span::input(range.start, range.len()));
        }
        let range = self.down.message(chunk + turn - up);
        steps.take(HUB, range.len());
        if self.collective != Collective::Barrier {
            steps.copy(Span::landed(HUB, range.len()), Span::output(range.start, range.len()));
        }
        steps.free(HUB);
    }
}

impl Pattern for Star {
    fn shape(&self) -> PatternShape {
        let (up, down) = self.messages();
        let (takes, puts) = self.hub_turns();
        let blocks = match self.collective {
            Collective::ReduceScatter => 1,
            Collective::AllToAll => self.ranks,
            _ => 0,
        };
        PatternShape {
            chunks: if self.separate() { self.up.messages() } else { 1 },
            turns: if self.rank == HUB { takes + 1 + puts } else { up + down },
            max_message: self.up.longest().max(self.down.longest()),
            scratch: if self.rank == HUB { self.up.len().saturating_mul(blocks) } else { 0 },
            ..PatternShape::default()
        }
    }

    fn turn(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        if self.rank != HUB {
            return self.other(chunk, turn, steps);
        }
        let (takes, _) = self.hub_turns();
        match turn.checked_sub(takes) {
            None if self.collective == Collective::AllToAll => self.sort(turn, steps),
            None => self.gather(chunk, turn, steps),
            Some(0) => self.keep(steps),
            Some(turn) => {
                let (message, to) = ((turn - 1) / (self.ranks - 1), 1 + (turn - 1) % (self.ranks - 1));
                steps.put(to, self.result(to, &self.down.message(chunk + message)));
            }
        }
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        if self.rank == HUB { (1..self.ranks).for_each(visit) } else { visit(HUB) }
    }
}
