//! The memory of one rank, in symbols, with input and output overlapping as the setup says.

use std::ops::Range;

use super::{Fault, Setup};
use crate::schedule::{Collective, Rank};

/// One element: which it is, and whose contributions are in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) element: usize,
    /// Bit r is set if rank r's contribution is in.
    pub(super) ranks: u64,
    /// Whether the last contribution was marked as such.
    pub(super) done: bool,
    /// Stands for the tree of reductions that made it; sides do not count, since `⊕` commutes.
    pub(super) order: u64,
}

impl Cell {
    pub(super) const UNDEFINED: Self = Self { element: usize::MAX, ranks: 0, done: false, order: 0 };

    pub(super) fn is_defined(self) -> bool {
        self != Self::UNDEFINED
    }

    /// The order of what two cells are reduced to.
    pub(super) fn joined(self, other: Self) -> u64 {
        let (less, more) = (self.order.min(other.order), self.order.max(other.order));
        less.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ more.wrapping_mul(0xbf58_476d_1ce4_e5b9)
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

/// Whether two ranges of one area have an element in common.
pub(super) fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

/// Where elements really lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Area {
    /// The output, and what overlaps it.
    Main,
    /// An input of its own.
    Apart,
    /// A slot of a flow.
    Slot { flow: usize, slot: usize },
}

/// Input and output of one rank.
pub(super) struct Memory {
    main: Vec<Cell>,
    apart: Vec<Cell>,
    input: Place,
    output: Place,
}

#[derive(Clone, Copy)]
struct Place {
    area: Area,
    base: usize,
    len: usize,
}

impl Memory {
    pub(super) fn new(setup: &Setup, rank: Rank) -> Option<Self> {
        let job = &setup.job;
        let (inputs, outputs) = job.collective.lengths(job.ranks, job.count)?;
        let own = rank * job.count;
        let joined = setup.in_place || job.collective == Collective::Broadcast;
        let (input_base, output_base) = match job.collective {
            Collective::AllGather if joined => (own, 0),
            Collective::ReduceScatter if joined => (0, own),
            _ => (0, 0),
        };
        let input =
            Place { area: if joined { Area::Main } else { Area::Apart }, base: input_base, len: inputs };
        let output = Place { area: Area::Main, base: output_base, len: outputs };
        let main = if joined { inputs.max(outputs) } else { outputs };
        let mut memory = Self {
            main: vec![Cell::UNDEFINED; main],
            apart: vec![Cell::UNDEFINED; if joined { 0 } else { inputs }],
            input,
            output,
        };
        if job.collective != Collective::Broadcast || rank == job.root {
            let first = if job.collective == Collective::AllGather { own } else { 0 };
            for (at, cell) in memory.cells_mut(input.area)[input.base..][..inputs].iter_mut().enumerate() {
                *cell = Cell { element: first + at, ranks: 1 << rank, done: false, order: rank as u64 + 1 };
            }
        }
        Some(memory)
    }

    /// Where a range of the input or the output really lies; or how much room there is.
    pub(super) fn find(&self, input: bool, offset: usize, len: usize) -> Result<(Area, Range<usize>), usize> {
        let place = if input { self.input } else { self.output };
        match offset.checked_add(len) {
            Some(end) if end <= place.len => Ok((place.area, place.base + offset..place.base + end)),
            _ => Err(place.len),
        }
    }

    pub(super) fn cells(&self, area: Area) -> &[Cell] {
        if area == Area::Apart { &self.apart } else { &self.main }
    }

    pub(super) fn cells_mut(&mut self, area: Area) -> &mut [Cell] {
        if area == Area::Apart { &mut self.apart } else { &mut self.main }
    }

    /// The first place where this output was reduced in another order than that one.
    pub(super) fn differs(&self, other: &Self) -> Option<usize> {
        let output = |memory: &'_ Self| memory.output.base..memory.output.base + memory.output.len;
        let (mine, theirs) = (&self.main[output(self)], &other.main[output(other)]);
        mine.iter().zip(theirs).position(|(mine, theirs)| mine.order != theirs.order)
    }

    /// Whether the output is what the collective promises.
    pub(super) fn judge(&self, setup: &Setup, rank: Rank) -> Result<(), Fault> {
        let job = &setup.job;
        let output = &self.main[self.output.base..][..self.output.len];
        for (at, &found) in output.iter().enumerate() {
            let element =
                if job.collective == Collective::ReduceScatter { rank * job.count + at } else { at };
            let (ranks, done) = match job.collective {
                Collective::AllReduce | Collective::ReduceScatter => (everyone(job.ranks), job.ranks > 1),
                Collective::AllGather => (1 << (at / job.count), false),
                Collective::Broadcast | Collective::Barrier => (1 << job.root, false),
            };
            let wanted = Cell { element, ranks, done, order: found.order };
            if found != wanted {
                return Err(Fault::Output { at, found: found.show(), wanted: wanted.show() });
            }
        }
        Ok(())
    }
}
