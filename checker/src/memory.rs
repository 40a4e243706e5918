//! The symbolic memory of one rank: input, output and scratch. Input and output overlap if the setup is in place.

use std::ops::Range;

use super::{Fault, Setup};
use unisono_schedule::{Collective, Job, Place, Rank};

/// One element of memory: its index, and the ranks whose contributions were reduced into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) element: usize,
    /// Bit r is set if rank r's contribution is in.
    pub(super) ranks: u64,
    /// If true, the last contribution was marked as such.
    pub(super) done: bool,
    /// A hash of the tree of reductions that made it. The sides of `⊕` do not matter, because it commutes.
    pub(super) order: u64,
}

impl Cell {
    pub(super) const UNDEFINED: Self = Self { element: usize::MAX, ranks: 0, done: false, order: 0 };

    pub(super) fn is_defined(self) -> bool {
        self != Self::UNDEFINED
    }

    /// The order of the reduction of two cells.
    pub(super) fn joined(self, other: Self) -> u64 {
        let (less, more) = (self.order.min(other.order), self.order.max(other.order));
        less.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ more.wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }

    /// Reduces another cell into this one.
    pub(super) fn take_in(&mut self, other: &Self) -> Result<(), Fault> {
        if self.element != other.element {
            return Err(Fault::Elements { left: self.element, right: other.element });
        }
        let common = self.ranks & other.ranks;
        if common != 0 {
            return Err(Fault::Twice { element: self.element, rank: common.trailing_zeros() as usize });
        }
        self.order = self.joined(*other);
        self.ranks |= other.ranks;
        Ok(())
    }

    /// The order of contributions that are reduced one after the other, rank by rank.
    pub(super) fn in_order(ranks: usize) -> u64 {
        let mut sum = Self { order: 1, ..Self::UNDEFINED };
        for rank in 1..ranks {
            sum.order = sum.joined(Self { order: rank as u64 + 1, ..Self::UNDEFINED });
        }
        sum.order
    }

    fn show(self) -> String {
        if !self.is_defined() {
            return "not written".to_owned();
        }
        let ranks: Vec<Rank> = (0..64).filter(|rank| self.ranks >> rank & 1 == 1).collect();
        let done = if self.done { ", reduced" } else { "" };
        format!("element {} of ranks {ranks:?}{done}", self.element)
    }
}

/// The bits of this many ranks, at least 1 and at most 64.
pub(super) fn everyone(ranks: usize) -> u64 {
    u64::MAX >> (64 - ranks)
}

/// The block of each rank in the input of a job, if it has blocks.
fn input_blocks(job: &Job<'_>) -> Vec<Range<usize>> {
    blocks(job, job.uneven.map(|uneven| uneven.input))
}

/// The block of each rank in the output of a job, if it has blocks.
fn output_blocks(job: &Job<'_>) -> Vec<Range<usize>> {
    blocks(job, job.uneven.map(|uneven| uneven.output))
}

fn blocks(job: &Job<'_>, lengths: Option<&[usize]>) -> Vec<Range<usize>> {
    let mut end = 0;
    let block = |rank| {
        let start = end;
        end += lengths.map_or(job.count, |lengths| lengths.get(rank).copied().unwrap_or_default());
        start..end
    };
    (0..job.ranks).map(block).collect()
}

pub(super) fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

/// A contiguous memory of the checker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Area {
    /// The rank's own memory.
    Own(OwnMemory),
    /// A slot of a flow.
    Slot { flow: usize, slot: usize },
    /// The memory of another rank that is read in place.
    Theirs { owner: Rank, part: OwnMemory },
    /// What another rank has copied to one of the slots that it shows.
    Copied { owner: Rank, slot: usize },
}

/// A part of a rank's own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnMemory {
    /// The output, and what overlaps it.
    Main,
    /// The input, if it does not overlap the output.
    Apart,
    /// Scratch, which the engine provides.
    Scratch,
}

/// Where the elements of a span lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SpanLocation {
    pub(super) area: Area,
    pub(super) range: Range<usize>,
}

impl SpanLocation {
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.area == other.area && overlap(&self.range, &other.range)
    }
}

/// Input, output and scratch of one rank.
pub(super) struct RankMemory {
    /// Indexed by [`OwnMemory`].
    parts: [Vec<Cell>; 3],
    input: Room,
    output: Room,
}

#[derive(Clone, Copy)]
struct Room {
    part: OwnMemory,
    base: usize,
    len: usize,
}

impl RankMemory {
    pub(super) fn new(setup: &Setup<'_>, rank: Rank, scratch: usize) -> Option<Self> {
        let job = &setup.job_of(rank);
        let (inputs, outputs) = job.lengths()?;
        let aside = setup.puts_aside();
        let joined = setup.in_place && !aside || job.collective == Collective::Broadcast;
        // The position of this rank's block among all blocks, if input and output overlap.
        let own_output = output_blocks(job)[rank].start;
        let own_input = input_blocks(job)[rank].start;
        let (input_base, output_base) = match job.collective {
            Collective::AllGather if joined => (own_output, 0),
            Collective::Gather if joined && outputs > 0 => (own_output, 0),
            Collective::ReduceScatter if joined => (0, own_input),
            Collective::Scatter if joined && inputs > 0 => (0, own_input),
            _ => (0, 0),
        };
        let part = if joined { OwnMemory::Main } else { OwnMemory::Apart };
        let input = Room { part, base: input_base, len: inputs };
        let output = Room { part: OwnMemory::Main, base: output_base, len: outputs };
        let (main, apart) = match joined {
            true => ((input_base + inputs).max(output_base + outputs), 0),
            false => (outputs, inputs),
        };
        let parts = [main, apart, scratch].map(|len| vec![Cell::UNDEFINED; len]);
        let mut memory = Self { parts, input, output };
        if job.collective != Collective::Broadcast || rank == job.root {
            let first = match job.collective {
                Collective::AllGather | Collective::Gather => own_output,
                _ => 0,
            };
            for (at, cell) in memory.cells_mut(part)[input.base..][..inputs].iter_mut().enumerate() {
                *cell = Cell { element: first + at, ranks: 1 << rank, done: false, order: rank as u64 + 1 };
            }
        }
        if aside {
            // No rank may read its own block among the others that were put aside.
            let [main, apart, _] = &mut memory.parts;
            main.copy_from_slice(apart);
            apart[input_blocks(job)[rank].clone()].fill(Cell::UNDEFINED);
        }
        Some(memory)
    }

    /// The part and the range of a span that is not in a slot; the error is the length of the place.
    pub(super) fn find(
        &self,
        place: Place,
        offset: usize,
        len: usize,
    ) -> Result<(OwnMemory, Range<usize>), usize> {
        let room = match place {
            Place::Input => self.input,
            Place::Scratch => {
                Room { part: OwnMemory::Scratch, base: 0, len: self.cells(OwnMemory::Scratch).len() }
            }
            Place::Output | Place::Landed(_) => self.output,
        };
        match offset.checked_add(len) {
            Some(end) if end <= room.len => Ok((room.part, room.base + offset..room.base + end)),
            _ => Err(room.len),
        }
    }

    pub(super) fn cells(&self, part: OwnMemory) -> &[Cell] {
        &self.parts[part as usize]
    }

    pub(super) fn cells_mut(&mut self, part: OwnMemory) -> &mut [Cell] {
        &mut self.parts[part as usize]
    }

    fn output(&self) -> &[Cell] {
        &self.cells(OwnMemory::Main)[self.output.base..][..self.output.len]
    }

    /// The first element of this output that was reduced in another order than in the other output.
    pub(super) fn differs(&self, other: &Self) -> Option<usize> {
        self.output().iter().zip(other.output()).position(|(mine, theirs)| mine.order != theirs.order)
    }

    /// Checks that the output is what the collective promises.
    pub(super) fn judge(&self, setup: &Setup<'_>, rank: Rank) -> Result<(), Fault> {
        let job = setup.job_of(rank);
        let blocks = output_blocks(&job);
        let (mut owner, mut promise) = (0, Promise::new(setup, &job, 0, &blocks));
        for (at, &found) in self.output().iter().enumerate() {
            // The rank whose block of the output this is, if it has blocks.
            while at >= blocks[owner].end && owner + 1 < job.ranks {
                owner += 1;
                promise = Promise::new(setup, &job, owner, &blocks);
            }
            let (element, ranks) = (promise.first + at - promise.at, promise.ranks);
            let done = job.collective.reduces() && job.ranks > 1;
            let wanted = Cell { element, ranks, done, order: found.order };
            if found != wanted {
                return Err(Fault::Output { at, found: found.show(), wanted: wanted.show() });
            }
            if job.ordered && done && found.order != Cell::in_order(job.ranks) {
                return Err(Fault::Unordered { at });
            }
        }
        Ok(())
    }
}

/// The contents of one block of a rank's output that the collective promises.
struct Promise {
    /// The position of the block, and the index of the element that belongs there.
    at: usize,
    first: usize,
    /// The ranks whose contributions belong in it, as bits.
    ranks: u64,
}

impl Promise {
    fn new(setup: &Setup<'_>, job: &Job<'_>, owner: Rank, blocks: &[Range<usize>]) -> Self {
        let own = |sender: Job<'_>| input_blocks(&sender)[job.rank].start;
        let all = everyone(job.ranks);
        let (at, first, ranks) = match job.collective {
            Collective::AllReduce | Collective::Reduce => (0, 0, all),
            Collective::ReduceScatter => (0, own(*job), all),
            Collective::AllGather | Collective::Gather => (0, 0, 1 << owner),
            Collective::Scatter => (0, own(setup.job_of(job.root)), 1 << job.root),
            Collective::AllToAll => (blocks[owner].start, own(setup.job_of(owner)), 1 << owner),
            Collective::Broadcast | Collective::Barrier => (0, 0, 1 << job.root),
        };
        Self { at, first, ranks }
    }
}
