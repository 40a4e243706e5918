//! Star: everyone sends to one rank, the hub, which hands the results out: 2(n-1) messages in all, fewer than by any
//! other way, in two hops. The hub does all the work, so this is for small messages among ranks that share cores: there
//! it matters less how long a message takes than how many there are, and who has to wait for a turn on a core.
//!
//! It is what Open MPI calls the basic linear algorithms (`ompi/mca/coll/base`), here for everything that has no root;
//! what has one is done like this by `direct`.

use std::ops::Range;

use super::{
    Plan,
    chunks::{Lanes, Pattern, Shape, Steps},
};
use crate::{Collective, Job, Rank, Span, Step, partition};

/// What the star can do.
pub(super) const PLANS: &[Plan] = &[
    plan(Collective::AllReduce),
    plan(Collective::ReduceScatter),
    plan(Collective::AllGather),
    plan(Collective::Barrier),
    plan(Collective::AllToAll),
];

/// Through whom everything goes.
const HUB: Rank = 0;

const fn plan(collective: Collective) -> Plan {
    Plan {
        ordered: collective.reduces(),
        from_all: true,
        ..Plan::new(collective, |job| Lanes::schedule(job, Star::new(job)), |_| 2)
    }
}

/// A vector of equal blocks, cut into messages: of as many whole blocks as fit into one, or else of parts of one block.
#[derive(Clone, Copy)]
struct Cut {
    blocks: usize,
    /// Elements of a block.
    count: usize,
    /// Messages of a block, if it does not fit into one.
    pieces: usize,
    /// Blocks of a message, if they fit.
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

    /// What the message holds of the vector.
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

/// One rank's part.
struct Star {
    collective: Collective,
    rank: Rank,
    ranks: usize,
    /// Elements of a block, or of the whole where there are no blocks.
    count: usize,
    ordered: bool,
    /// What goes to the hub from each rank, and what comes back.
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

    /// Of a vector without blocks each message comes back by itself, so that they can go by several lanes; otherwise
    /// all go up before any comes down.
    fn separate(&self) -> bool {
        !self.collective.has_blocks()
    }

    /// How many messages of each rank go up, and come down, in the turns of a chunk.
    fn messages(&self) -> (usize, usize) {
        if self.separate() { (1, 1) } else { (self.up.messages(), self.down.messages()) }
    }

    /// The turns of the hub: to take a message of every rank, or a block of one where blocks are sorted; to give its
    /// slot back, where all are reduced at once; to keep what is the hub's own; to hand a message out.
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

    /// Where the hub has, in its scratch, what all have for a rank: beyond all memory, if there is more than can be counted.
    fn place(&self, to: Rank, at: usize) -> usize {
        to.saturating_mul(self.down.len()).saturating_add(at)
    }

    /// Where the hub has what it hands out, for this rank.
    fn result(&self, to: Rank, range: &Range<usize>) -> Span {
        match self.collective {
            Collective::Barrier => Span::input(0, 0),
            Collective::ReduceScatter => Span::scratch(to * self.count + range.start, range.len()),
            Collective::AllToAll => Span::scratch(self.place(to, range.start), range.len()),
            _ => Span::output(range.start, range.len()),
        }
    }

    /// The hub takes the message of a rank and reduces it, or puts it in its place. In order, it takes those of all
    /// ranks before it reduces them.
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
                steps.push(Step::Fold { own, into: sum });
            }
            return;
        }
        if self.collective == Collective::AllGather {
            steps.copy(Span::landed(rank, len), Span::output(rank * self.count + range.start, len));
        }
        steps.free(rank);
    }

    /// The hub sorts a block, or a part of one, that a rank has for another; its own are where they are.
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

    /// The hub keeps what is its own, if it is not there already.
    fn keep(&self, steps: &mut Steps) {
        let into = Span::output(0, self.count);
        match self.collective {
            Collective::AllGather => steps.copy(Span::input(0, self.count), into),
            Collective::ReduceScatter => steps.copy(Span::scratch(0, self.count), into),
            Collective::AllToAll => {
                let len = self.down.len();
                steps.copy(Span::scratch(0, len), Span::output(0, len));
            }
            _ => {}
        }
    }

    /// Everyone else sends what it has, then gets what belongs to it.
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
    fn shape(&self) -> Shape {
        let (up, down) = self.messages();
        let (takes, puts) = self.hub_turns();
        let blocks = match self.collective {
            Collective::ReduceScatter => 1,
            Collective::AllToAll => self.ranks,
            _ => 0,
        };
        Shape {
            chunks: if self.separate() { self.up.messages() } else { 1 },
            turns: if self.rank == HUB { takes + 1 + puts } else { up + down },
            max_message: self.up.longest().max(self.down.longest()),
            direct: false,
            scratch: if self.rank == HUB { self.up.len().saturating_mul(blocks) } else { 0 },
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
