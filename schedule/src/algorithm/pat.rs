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
    chunks::{Lanes, Pattern, PatternShape, Steps},
    doublings, wrapped,
};
use crate::{
    Collective, Job, Rank, Span, Step,
    cost::Alike,
    partition::{self, Blocks},
};

/// The plans of PAT.
pub(super) const PLANS: &[Plan] = &[plan(Collective::AllGather), plan(Collective::ReduceScatter)];

const fn plan(collective: Collective) -> Plan {
    Plan {
        uneven: true,
        near: true,
        alike: |_| Some(Alike::Turned),
        ..Plan::new(collective, |job| Lanes::schedule(job, Pat::new(job)), doublings)
    }
}

/// A hop of an all_gather. Positions are those of [`Pat::order`]. The hops of a reduce_scatter are the same in reverse, with sent and
/// received blocks exchanged.
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

/// One rank's part: an all_gather, which sends to far ranks first, or a reduce_scatter, which sends to near ranks first.
struct Pat {
    rank: Rank,
    ranks: usize,
    count: usize,
    chunks: usize,
    lanes: usize,
    gathers: bool,
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

impl Pat {
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
        let mut pat = Self {
            rank,
            ranks,
            count: job.count,
            chunks,
            lanes: job.lanes.clamp(1, chunks),
            gathers,
            blocks,
            most: if chunks > 1 { 1 } else { fitting.clamp(1, half) },
            own: order.iter().position(|&behind| behind == 0).unwrap_or_default(),
            hops,
            order,
            offsets,
            turns: Vec::new(),
            direct_from: direct.then_some(job.lanes),
        };
        pat.turns = if gathers { pat.all_gather() } else { pat.reduce_scatter() };
        pat
    }

    fn all_gather(&self) -> Vec<Move> {
        let last = self.hops.len() - 1;
        let alike = if self.packs() { last } else { last + 1 };
        let mut turns: Vec<_> = (0..alike).flat_map(|hop| self.messages(hop)).map(Move::Exchange).collect();
        for message in (alike..=last).flat_map(|hop| self.messages(hop)) {
            turns.push(Move::Send(message));
            // Blocks are copied while the first message is on its way.
            let waits = if message.first == 0 { self.kept() } else { 0 };
            turns.extend((0..waits).map(Move::Copy));
            turns.extend((0..message.len).map(|nth| Move::Arrive(message, nth)));
        }
        turns
    }

    fn reduce_scatter(&self) -> Vec<Move> {
        let (last, mut turns) = (self.hops.len() - 1, Vec::new());
        for message in self.messages(last) {
            if message.len > 1 {
                let first = self.hops[last].land + message.first;
                turns.extend((first..first + message.len).map(Move::Copy));
            }
            turns.push(Move::Send(message));
            // Nothing is added to the block of the rank farthest away, if it is an even number of ranks away.
            if message.first == 0 && self.hops[last].blocks < self.kept() {
                turns.push(Move::Copy(self.kept() - 1));
            }
            turns.extend((0..message.len).map(|nth| Move::Arrive(message, nth)));
        }
        turns.extend((0..last).rev().flat_map(|hop| self.messages(hop)).map(Move::Exchange));
        turns
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

    /// The rank to which this one sends a message, and the one from which it gets one.
    fn peers(&self, hop: usize) -> [Rank; 2] {
        let distance = self.hops[hop].distance;
        let [after, before] = [distance, self.ranks - distance].map(|it| wrapped(self.rank + it, self.ranks));
        if self.gathers { [after, before] } else { [before, after] }
    }

    /// The first positions of the blocks of a message that this rank sends, and of one that it gets.
    fn positions(&self, message: Message) -> [usize; 2] {
        let Hop { start, land, .. } = self.hops[message.hop];
        let [start, land] = [start, land].map(|position| position + message.first);
        if self.gathers { [start, land] } else { [land, start] }
    }

    /// The elements, in the vector of all blocks, of the chunk of the block at a position.
    fn range(&self, chunk: usize, position: usize) -> Range<usize> {
        let owner = wrapped(self.rank + self.ranks - self.order[position], self.ranks);
        if self.chunks == 1 { self.blocks.of(owner) } else { self.blocks.chunk(owner, self.chunks, chunk) }
    }

    /// The chunk of the block at a position, in the output of an all_gather or the input of a reduce_scatter.
    fn block(&self, chunk: usize, position: usize) -> Span {
        let range = self.range(chunk, position);
        if self.gathers {
            Span::output(range.start, range.len())
        } else {
            Span::input(range.start, range.len())
        }
    }

    /// The chunk of this rank's own block, where it lies alone: in the input of an all_gather, or the output of a reduce_scatter.
    fn alone(&self, chunk: usize) -> Span {
        let range = self.range(chunk, self.own);
        let start = range.start - self.blocks.of(self.rank).start;
        if self.gathers { Span::input(start, range.len()) } else { Span::output(start, range.len()) }
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

    /// The memory of the sums of `len` blocks after a hop: scratch, or the output after the last one.
    fn sum(&self, chunk: usize, hop: usize, position: usize, len: usize) -> Span {
        if hop == 0 { self.alone(chunk) } else { self.aside(chunk, position, len) }
    }

    /// Sends and takes a message.
    fn exchange(&self, chunk: usize, message: Message, steps: &mut Steps) {
        let ([to, from], [sent, got]) = (self.peers(message.hop), self.positions(message));
        let opens = self.gathers && message.hop == 0;
        if self.gathers && !self.packs() {
            let direct = self.direct_from.is_some_and(|first| chunk >= first);
            let out = self.block(chunk, sent);
            steps.hand(direct, to, if opens { self.alone(chunk) } else { out }, out.offset);
            if opens {
                steps.copy(self.alone(chunk), out);
            }
            return steps.get(direct, from, self.block(chunk, got));
        }
        if opens {
            steps.put(to, self.alone(chunk));
            steps.copy(self.alone(chunk), self.aside(chunk, self.own, 1));
        } else {
            steps.put(to, self.aside(chunk, sent, message.len));
        }
        let kept = self.aside(chunk, got, message.len);
        let landed = Span::landed(from, kept.len);
        steps.take(from, kept.len);
        if self.gathers {
            steps.copy(landed, kept);
        } else {
            let into = self.sum(chunk, message.hop, got, message.len);
            steps.push(Step::Reduce { a: kept, b: landed, into, last: message.hop == 0 });
        }
        steps.free(from);
    }

    /// Takes a message if this is its first block, and puts its `nth` block where it belongs.
    fn arrive(&self, chunk: usize, message: Message, nth: usize, steps: &mut Steps) {
        let ([_, from], [_, first]) = (self.peers(message.hop), self.positions(message));
        if nth == 0 {
            steps.take(from, self.aside(chunk, first, message.len).len);
        }
        let block = self.block(chunk, first + nth);
        let offset = self.offsets[first + nth] - self.offsets[first];
        let landed = Span { offset, ..Span::landed(from, block.len) };
        if self.gathers {
            steps.copy(landed, block);
        } else {
            let into = self.sum(chunk, message.hop, first + nth, 1);
            steps.push(Step::Reduce { a: block, b: landed, into, last: message.hop == 0 });
        }
        if nth + 1 == message.len {
            steps.free(from);
        }
    }
}

impl Pattern for Pat {
    fn shape(&self) -> PatternShape {
        let (sent_on, longest) = (self.offsets[self.kept()], partition::longest(self.count, self.chunks));
        // Empty spans need scratch, too.
        let scratch = match (self.gathers, self.packs()) {
            (true, false) => 0,
            (true, true) => sent_on.max(1),
            _ if self.ranks == 2 => 0,
            (_, true) => self.offsets[self.ranks].max(1),
            _ if self.chunks == 1 => sent_on.max(1),
            _ => self.lanes * self.kept() * longest,
        };
        PatternShape {
            chunks: self.chunks,
            turns: self.turns.len(),
            max_message: self.most * longest,
            direct: self.direct_from.is_some(),
            scratch,
            ..PatternShape::default()
        }
    }

    fn turn(&self, chunk: usize, turn: usize, steps: &mut Steps) {
        // Messages of this lane's previous chunk may still be read from scratch.
        if !self.gathers && turn == 0 && chunk >= self.lanes && self.ranks > 2 {
            steps.push(Step::Settle);
        }
        match self.turns[turn] {
            Move::Exchange(message) => self.exchange(chunk, message, steps),
            Move::Send(message) => {
                let ([to, _], [sent, _]) = (self.peers(message.hop), self.positions(message));
                let one = !self.gathers && message.len == 1;
                let from = if one { self.block(chunk, sent) } else { self.aside(chunk, sent, message.len) };
                steps.put(to, from);
            }
            Move::Arrive(message, nth) => self.arrive(chunk, message, nth, steps),
            Move::Copy(position) if self.gathers && position == self.own => {
                steps.copy(self.alone(chunk), self.block(chunk, position));
            }
            Move::Copy(position) => {
                let (aside, block) = (self.aside(chunk, position, 1), self.block(chunk, position));
                let (from, into) = if self.gathers { (aside, block) } else { (block, aside) };
                steps.copy(from, into);
            }
        }
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        (0..self.hops.len()).for_each(|hop| visit(self.peers(hop)[1]));
    }
}
