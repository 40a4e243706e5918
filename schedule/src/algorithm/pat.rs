//! PAT (parallel aggregated trees): an all_gather in which a block first goes to the rank half of all ranks away, and then to nearer
//! ones; a reduce_scatter is the same backwards. It takes any number of ranks and ⌈log2 n⌉ hops, and sends most bytes to neighbours. It
//! suits small and medium blocks among many ranks where near ranks have the faster path.
//!
//! By the cost model it is the fastest where two levels cannot be used, as for uneven blocks (an all_gather of 1 KiB among 2 × 15 ranks,
//! 25 Gbit/s: 56 µs, ring 100).
//!
//! Sylvain Jeaugey, "PAT: a new algorithm for all-gather and reduce-scatter operations at scale", arXiv:2506.20252, 2025; NCCL has it since
//! version 2.23. It is Bruck's all_gather with its hops in the opposite order.
//!
//! In an all_gather, a rank has the blocks of the ranks 0, 2d, 4d, ... before it when it sends those to the rank d after it. They are not
//! consecutive. While a message holds several, scratch has them in the order in which they came, or were sent, so that each hop's blocks
//! are consecutive there and are sent without being packed. Blocks that come are appended, or put before all others if that of the rank
//! farthest away is not among them, so that this one stays the last.
//!
//! Where a message holds one block or a part of one, an all_gather needs no scratch; a reduce_scatter has its sums there, half of the
//! blocks of a chunk. In the paper, slots limit an operation, so that parts of the tree follow each other; here chunks do.

use std::ops::Range;

use super::{
    Plan,
    chunks::{Lanes, Pattern, Shape, Steps},
    doublings, wrapped,
};
use crate::{
    Collective, Job, Rank, Schedule, Span, Step,
    cost::Alike,
    partition::{self, Blocks},
};

/// The plans of PAT.
pub(super) const PLANS: &[Plan] = &[
    plan(Collective::AllGather, |job| Lanes::schedule(job, AllGather::new(Blocked::new(job)))),
    plan(Collective::ReduceScatter, |job| Lanes::schedule(job, ReduceScatter::new(Blocked::new(job)))),
];

const fn plan(collective: Collective, make: fn(&Job<'_>) -> Box<dyn Schedule>) -> Plan {
    Plan {
        uneven: true,
        near: true,
        alike: |_| Some(Alike::Turned),
        ..Plan::new(collective, make, doublings)
    }
}

/// A hop of an all_gather. Positions are those of [`Blocked::order`].
struct Hop {
    distance: usize,
    /// The first position of the blocks that are sent.
    start: usize,
    /// The first position of those that come.
    land: usize,
    /// The number of blocks that are sent, and the number that come.
    blocks: usize,
}

/// What this rank does in a turn of a chunk.
#[derive(Clone, Copy)]
enum Move {
    /// Sends and takes a message of a hop.
    Exchange(Message),
    /// Only sends the message.
    Send(Message),
    /// Takes it, if this is its first block, and puts its `nth` block where it belongs.
    Arrive(Message, usize),
    /// Copies the block at a position from scratch to the output, or from the input to scratch.
    Copy(usize),
}

/// Some of the blocks of a hop.
#[derive(Clone, Copy)]
struct Message {
    hop: usize,
    first: usize,
    len: usize,
}

/// What an all_gather and a reduce_scatter have in common: the blocks, and their order in scratch.
struct Blocked {
    rank: Rank,
    ranks: usize,
    count: usize,
    chunks: usize,
    lanes: usize,
    blocks: Blocks,
    /// The most blocks of a message.
    most: usize,
    /// The hops of an all_gather, the farthest first.
    hops: Vec<Hop>,
    /// For each position, the distance of the block's owner before this rank.
    order: Vec<usize>,
    /// The position of this rank's own block.
    own: usize,
    /// The beginning in scratch of the block at each position, if blocks are not cut.
    offsets: Vec<usize>,
    turns: Vec<Move>,
    /// If chunks are written into outputs: the first that is.
    direct_from: Option<usize>,
}

/// The hops of an all_gather, and the order of blocks: those that are sent on come first.
fn hops(ranks: usize) -> (Vec<Hop>, Vec<usize>) {
    let mut order = std::collections::VecDeque::from([0]);
    // The positions of blocks in front of which others are put change, so hops count from the first block.
    let (mut front, mut hops) = (0, Vec::new());
    for level in (0..doublings(ranks)).rev() {
        let (distance, held) = (1 << level, order.len());
        let blocks = held - usize::from(order.back().is_some_and(|last| last + distance >= ranks));
        let came: Vec<_> = order.iter().take(blocks).map(|behind| behind + distance).collect();
        let ahead = blocks < held && level > 0;
        hops.push((distance, front, ahead, held, blocks));
        if ahead {
            front += blocks;
            came.into_iter().rev().for_each(|behind| order.push_front(behind));
        } else {
            order.extend(came);
        }
    }
    let all = front;
    let hops = hops.into_iter().map(|(distance, before, ahead, held, blocks)| {
        let start = all - before;
        let land = if ahead { start - blocks } else { start + held };
        Hop { distance, start, land, blocks }
    });
    (hops.collect(), order.into())
}

impl Blocked {
    fn new(job: &Job<'_>) -> Self {
        let gathers = job.collective == Collective::AllGather;
        let (rank, ranks, half) = (job.rank, job.ranks, job.ranks / 2);
        let (hops, order) = hops(ranks);
        let blocks = if gathers { job.output_blocks() } else { job.input_blocks() };
        let chunks = partition::chunks(job.count, job.chunk);
        let fitting = job.chunk.checked_div(job.count).unwrap_or(half);
        let mut offsets = Vec::with_capacity(ranks + 1);
        offsets.push(0);
        for behind in &order {
            let owner = wrapped(rank + ranks - behind, ranks);
            offsets.push(offsets[offsets.len() - 1] + blocks.of(owner).len());
        }
        // Each lane's first chunk goes through slots, and no chunk is empty.
        let direct = gathers && job.direct && job.uneven.is_none() && chunks > job.lanes;
        Self {
            rank,
            ranks,
            count: job.count,
            chunks,
            lanes: job.lanes.clamp(1, chunks),
            blocks,
            most: if chunks > 1 { 1 } else { fitting.clamp(1, half) },
            own: order.iter().position(|&behind| behind == 0).unwrap_or_default(),
            hops,
            order,
            offsets,
            turns: Vec::new(),
            direct_from: direct.then_some(job.lanes),
        }
    }

    /// The blocks that are sent on: all at an even distance.
    const fn kept(&self) -> usize {
        self.ranks.div_ceil(2)
    }

    /// True if messages of several blocks are assembled in scratch.
    const fn packs(&self) -> bool {
        self.most > 1 && self.ranks > 2
    }

    /// The messages of a hop.
    fn messages(&self, hop: usize) -> impl Iterator<Item = Message> + use<> {
        let (blocks, most) = (self.hops[hop].blocks, self.most);
        (0..blocks).step_by(most).map(move |first| Message { hop, first, len: most.min(blocks - first) })
    }

    /// The elements, in the vector of all blocks, of the chunk of the block at a position.
    fn range(&self, chunk: usize, position: usize) -> Range<usize> {
        let owner = wrapped(self.rank + self.ranks - self.order[position], self.ranks);
        if self.chunks == 1 { self.blocks.of(owner) } else { self.blocks.chunk(owner, self.chunks, chunk) }
    }

    /// The memory in scratch of the chunks of `len` blocks from a position on: of one block, if blocks are cut.
    fn aside(&self, chunk: usize, position: usize, len: usize) -> Span {
        if self.chunks == 1 {
            let start = self.offsets[position];
            return Span::scratch(start, self.offsets[position + len] - start);
        }
        let block = chunk % self.lanes * self.kept() + position;
        let longest = partition::longest(self.count, self.chunks);
        Span::scratch(block * longest, self.range(chunk, position).len())
    }

    /// The chunk of this rank's own block: of the input of an all_gather, or the output of a reduce_scatter.
    fn alone(&self, chunk: usize) -> Range<usize> {
        let (start, range) = (self.blocks.of(self.rank).start, self.range(chunk, self.own));
        range.start - start..range.end - start
    }

    fn after(&self, distance: usize) -> Rank {
        wrapped(self.rank + distance, self.ranks)
    }

    fn before(&self, distance: usize) -> Rank {
        wrapped(self.rank + self.ranks - distance, self.ranks)
    }

    fn shape(&self, scratch: usize) -> Shape {
        Shape {
            chunks: self.chunks,
            turns: self.turns.len(),
            max_message: self.most * partition::longest(self.count, self.chunks),
            direct: self.direct_from.is_some(),
            scratch,
            shows: None,
        }
    }
}

/// The all_gather, which sends to far ranks first.
struct AllGather(Blocked);

impl AllGather {
    fn new(mut blocked: Blocked) -> Self {
        let last = blocked.hops.len() - 1;
        let mut turns: Vec<_> = (0..last).flat_map(|hop| blocked.messages(hop)).map(Move::Exchange).collect();
        if blocked.packs() {
            for message in blocked.messages(last) {
                turns.push(Move::Send(message));
                // Blocks are copied while the first message is on its way.
                let waits = if message.first == 0 { blocked.kept() } else { 0 };
                turns.extend((0..waits).map(Move::Copy));
                turns.extend((0..message.len).map(|nth| Move::Arrive(message, nth)));
            }
        } else {
            turns.extend(blocked.messages(last).map(Move::Exchange));
        }
        blocked.turns = turns;
        Self(blocked)
    }

    fn output(&self, chunk: usize, position: usize) -> Span {
        let range = self.0.range(chunk, position);
        Span::output(range.start, range.len())
    }

    fn input(&self, chunk: usize) -> Span {
        let range = self.0.alone(chunk);
        Span::input(range.start, range.len())
    }

    /// A message through scratch.
    fn pass(&self, chunk: usize, message: Message, steps: &mut Steps) {
        let hop = &self.0.hops[message.hop];
        let (to, from) = (self.0.after(hop.distance), self.0.before(hop.distance));
        let into = self.0.aside(chunk, hop.land + message.first, message.len);
        if message.hop == 0 {
            steps.put(to, self.input(chunk));
            steps.copy(self.input(chunk), self.0.aside(chunk, self.0.own, 1));
        } else {
            steps.put(to, self.0.aside(chunk, hop.start + message.first, message.len));
        }
        steps.take(from, into.len);
        steps.copy(Span::landed(from, into.len), into);
        steps.free(from);
    }

    /// A block from output to output.
    fn relay(&self, chunk: usize, message: Message, steps: &mut Steps) {
        let hop = &self.0.hops[message.hop];
        let (to, from) = (self.0.after(hop.distance), self.0.before(hop.distance));
        let direct = self.0.direct_from.is_some_and(|first| chunk >= first);
        let out = self.output(chunk, hop.start + message.first);
        if message.hop == 0 {
            steps.hand(direct, to, self.input(chunk), out.offset);
            steps.copy(self.input(chunk), out);
        } else {
            steps.hand(direct, to, out, out.offset);
        }
        steps.get(direct, from, self.output(chunk, hop.land + message.first));
    }
}

impl Pattern for AllGather {
    fn shape(&self) -> Shape {
        // Empty spans need scratch, too.
        self.0.shape(if self.0.packs() { self.0.offsets[self.0.kept()].max(1) } else { 0 })
    }

    fn turn(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        match self.0.turns[turn] {
            Move::Exchange(message) if self.0.packs() => self.pass(chunk, message, steps),
            Move::Exchange(message) => self.relay(chunk, message, steps),
            Move::Send(message) => {
                let hop = &self.0.hops[message.hop];
                let from = self.0.aside(chunk, hop.start + message.first, message.len);
                steps.put(self.0.after(hop.distance), from);
            }
            Move::Copy(position) if position == self.0.own => {
                steps.copy(self.input(chunk), self.output(chunk, position));
            }
            Move::Copy(position) => {
                steps.copy(self.0.aside(chunk, position, 1), self.output(chunk, position));
            }
            Move::Arrive(message, nth) => {
                let hop = &self.0.hops[message.hop];
                let (from, first) = (self.0.before(hop.distance), hop.land + message.first);
                let start = self.0.offsets[first];
                if nth == 0 {
                    steps.take(from, self.0.offsets[first + message.len] - start);
                }
                let (into, offset) = (self.output(chunk, first + nth), self.0.offsets[first + nth] - start);
                steps.copy(Span { offset, ..Span::landed(from, into.len) }, into);
                if nth + 1 == message.len {
                    steps.free(from);
                }
            }
        }
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        self.0.hops.iter().for_each(|hop| visit(self.0.before(hop.distance)));
    }
}

/// The reduce_scatter, which sends to near ranks first: its hops are those of the all_gather in reverse, with sent and received
/// blocks exchanged.
struct ReduceScatter(Blocked);

impl ReduceScatter {
    fn new(mut blocked: Blocked) -> Self {
        let last = blocked.hops.len() - 1;
        let mut turns = Vec::new();
        for message in blocked.messages(last) {
            if message.len > 1 {
                let first = blocked.hops[last].land + message.first;
                turns.extend((first..first + message.len).map(Move::Copy));
            }
            turns.push(Move::Send(message));
            // Nothing is added to the block of the rank farthest away, if it is an even number of ranks away.
            if message.first == 0 && blocked.hops[last].blocks < blocked.kept() {
                turns.push(Move::Copy(blocked.kept() - 1));
            }
            turns.extend((0..message.len).map(|nth| Move::Arrive(message, nth)));
        }
        turns.extend((0..last).rev().flat_map(|hop| blocked.messages(hop)).map(Move::Exchange));
        blocked.turns = turns;
        Self(blocked)
    }

    fn input(&self, chunk: usize, position: usize) -> Span {
        let range = self.0.range(chunk, position);
        Span::input(range.start, range.len())
    }

    /// The memory of sums after a hop: scratch, or the output after the last one.
    fn sum(&self, chunk: usize, hop: usize, position: usize, len: usize) -> Span {
        if hop == 0 {
            let range = self.0.alone(chunk);
            return Span::output(range.start, range.len());
        }
        self.0.aside(chunk, position, len)
    }
}

impl Pattern for ReduceScatter {
    fn shape(&self) -> Shape {
        let blocked = &self.0;
        let scratch = match (blocked.ranks > 2, blocked.packs()) {
            (false, _) => 0,
            (true, true) => blocked.offsets[blocked.ranks].max(1),
            (true, false) if blocked.chunks == 1 => blocked.offsets[blocked.kept()].max(1),
            (true, false) => {
                blocked.lanes * blocked.kept() * partition::longest(blocked.count, blocked.chunks)
            }
        };
        blocked.shape(scratch)
    }

    fn turn(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        // Messages of this lane's previous chunk may still be read from scratch.
        if turn == 0 && chunk >= self.0.lanes && self.0.ranks > 2 {
            steps.push(Step::Settle);
        }
        match self.0.turns[turn] {
            Move::Copy(position) => {
                steps.copy(self.input(chunk, position), self.0.aside(chunk, position, 1));
            }
            Move::Send(message) => {
                let hop = &self.0.hops[message.hop];
                let first = hop.land + message.first;
                let from = match message.len {
                    1 => self.input(chunk, first),
                    len => self.0.aside(chunk, first, len),
                };
                steps.put(self.0.before(hop.distance), from);
            }
            Move::Arrive(message, nth) => {
                let hop = &self.0.hops[message.hop];
                let (from, first) = (self.0.after(hop.distance), hop.start + message.first);
                let own = self.input(chunk, first + nth);
                let (mut len, mut offset) = (own.len, 0);
                if message.len > 1 {
                    offset = self.0.offsets[first + nth] - self.0.offsets[first];
                    len = self.0.offsets[first + message.len] - self.0.offsets[first];
                }
                if nth == 0 {
                    steps.take(from, len);
                }
                let theirs = Span { offset, ..Span::landed(from, own.len) };
                let into = self.sum(chunk, message.hop, first + nth, 1);
                steps.push(Step::Reduce { a: own, b: theirs, into, last: message.hop == 0 });
                if nth + 1 == message.len {
                    steps.free(from);
                }
            }
            Move::Exchange(message) => {
                let hop = &self.0.hops[message.hop];
                let (to, from) = (self.0.before(hop.distance), self.0.after(hop.distance));
                let kept = self.0.aside(chunk, hop.start + message.first, message.len);
                steps.put(to, self.0.aside(chunk, hop.land + message.first, message.len));
                steps.take(from, kept.len);
                let into = self.sum(chunk, message.hop, hop.start + message.first, message.len);
                let theirs = Span::landed(from, kept.len);
                steps.push(Step::Reduce { a: kept, b: theirs, into, last: message.hop == 0 });
                steps.free(from);
            }
        }
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        self.0.hops.iter().for_each(|hop| visit(self.0.after(hop.distance)));
    }
}
