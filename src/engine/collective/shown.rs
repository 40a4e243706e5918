//! The steps of schedules that show elements: rounds through [shared slots](crate::engine::comm::Sharing). A rank shows what it has copied
//! to its own slot, or its operands, which the others have [mapped](super::agree); they read it there.

use smallvec::SmallVec;
use unisono_schedule::{Place, Rank, SLICE, Shown, Span, Step};
use unisono_transport::Region;

use super::run::Run;
use crate::{
    buffer::{self, Bytes, Operand, SpanError},
    engine::{
        access,
        comm::{Comm, Core},
        request::Operation,
        stop::Stop,
        wire::{OperationInfo, slots},
    },
};

/// The rounds of an operation that shows elements.
#[derive(Default)]
pub(crate) struct Rounds {
    /// The round in which the calls of ranks are compared: the first, unless they have been.
    compares: u64,
    /// The number of ranks whose calls have been compared with this one's.
    compared: usize,
    /// The bytes that another rank shows in this round.
    bytes: usize,
    /// How operands are read in place; `None` if all is copied to slots.
    in_place: Option<Box<InPlace>>,
}

/// How the operands of an operation are read.
pub(crate) struct InPlace {
    /// Whether this rank's are, or are copied to its slot.
    pub copies: bool,
    /// Whether others read something of this rank.
    pub is_read: bool,
    /// The ranks that this one reads from.
    pub others: SmallVec<[Other; 8]>,
}

/// A rank that is read from.
pub(crate) struct Other {
    pub rank: Rank,
    /// Whether it copies to its slot what it shows.
    pub copies: bool,
    /// Otherwise its operands, if they are read.
    pub input: Option<Region>,
    pub output: Option<Region>,
    /// What it shows in this round.
    pub shown: Shown,
}

impl InPlace {
    fn other(&self, rank: Rank) -> Option<&Other> {
        self.others.iter().find(|other| other.rank == rank)
    }
}

impl Rounds {
    /// The rounds of an operation whose operands are read in place. The calls of `compared` ranks have been compared.
    pub(super) fn in_place(in_place: InPlace, compared: usize) -> Self {
        Self { compared, in_place: Some(Box::new(in_place)), ..Self::default() }
    }

    /// Whether this rank copies to a slot what it shows, a slice at a time, because its memory cannot be read in place.
    pub(super) fn copies_slices(&self) -> bool {
        self.in_place.as_ref().is_some_and(|in_place| in_place.copies)
    }

    /// Where in slots lies what a rank shows in a round.
    fn in_slot(&self, round: u64) -> usize {
        match self.in_place {
            None => slots::slot(round) + slots::payload(self.bytes),
            Some(_) => slots::staged(round),
        }
    }

    /// Where elements lie that another rank shows in this round. `size`: the bytes of an element.
    pub(super) fn place<'c>(
        &'c self,
        comm: &'c Comm,
        from: Rank,
        span: Span,
        size: usize,
    ) -> Option<(&'c Region, usize)> {
        let other = match &self.in_place {
            Some(in_place) => Some(in_place.other(from)?).filter(|other| !other.copies),
            None => None,
        };
        let Some(other) = other else {
            return Some((comm.shared.view(from)?, self.in_slot(comm.shared.number()) + span.offset * size));
        };
        let there = other.shown.within(span.offset, span.len)?;
        let operand = if there.place == Place::Input { &other.input } else { &other.output };
        Some((operand.as_ref()?, there.offset * size))
    }

    /// The ranks that a step waits for.
    pub(super) fn waits(&self, comm: &Comm, step: &Step, begun: bool) -> Vec<Rank> {
        let round = comm.shared.number();
        match *step {
            Step::Show { .. } if !begun => comm.shared.behind().collect(),
            Step::View { from, .. } if !comm.shared.has_published(from, round) => vec![from],
            Step::Settle if self.is_read() => comm.shared.late(slots::DONE, round).collect(),
            _ => Vec::new(),
        }
    }

    /// Whether others read operands of this rank.
    fn is_read(&self) -> bool {
        self.in_place.as_ref().is_some_and(|in_place| in_place.is_read && !in_place.copies)
    }
}

impl Run<'_> {
    /// Begins a round, if all others have begun the one before, and shows elements in it. False if that must wait, or if elements are
    /// still to be copied.
    pub(super) fn show(&mut self, core: &mut Core<'_>, lane: usize, shown: &Shown) -> Result<bool, Stop> {
        if !self.lanes[lane].begun {
            if core.comm.shared.behind().next().is_some() {
                return Ok(false);
            }
            let Some(rounds) = &mut self.rounds else {
                return Err(core.stop("shows without rounds".to_owned()));
            };
            let unchecked = rounds.compared + 1 < self.operation.ranks;
            let unchecked = unchecked.then_some((self.operation.number, self.operation.signature));
            let round = core.enter_shared(&self.operation.info(0), unchecked)?;
            self.lanes[lane].begun = true;
            rounds.bytes = shown.len() * self.operation.size;
            if rounds.compared == 0 {
                rounds.compares = round;
            }
            if rounds.in_place.is_none() && !shown.is_empty() {
                let at = rounds.in_slot(round);
                let copied = copy_shown(&self.operation, shown, 0..shown.len(), core.comm.shared.own(), at);
                copied.map_err(|error| self.broken(core, Step::Show { shown: *shown }, &error))?;
            }
        }
        let slices = self.rounds.as_ref().is_some_and(Rounds::copies_slices);
        if slices && self.lanes[lane].done < shown.len() {
            return Ok(false);
        }
        core.publish_shared()?;
        Ok(true)
    }

    /// Copies a slice of what this rank shows in place of an operand to its slot. Returns the number of elements that are copied now.
    pub(super) fn copy_slice(
        &self,
        core: &mut Core<'_>,
        shown: &Shown,
        done: usize,
    ) -> Result<usize, SpanError> {
        let size = self.operation.size;
        core.comm.shared.stages(shown.len() * size);
        let end = shown.len().min(done + SLICE / size);
        let at = slots::staged(core.comm.shared.number());
        copy_shown(&self.operation, shown, done..end, core.comm.shared.own(), at)?;
        Ok(end)
    }

    /// Looks whether a rank has shown these elements in this round, and compares its call. False if it has not.
    pub(super) fn view(&mut self, core: &mut Core<'_>, from: Rank, shown: &Shown) -> Result<bool, Stop> {
        let round = core.comm.shared.number();
        if !core.comm.shared.has_published(from, round) {
            return Ok(false);
        }
        let Some(rounds) = &mut self.rounds else { return Err(core.stop("views without rounds".to_owned())) };
        rounds.bytes = shown.len() * self.operation.size;
        if rounds.compares == round {
            let Some(view) = core.comm.shared.view(from) else {
                return Err(core.stop(format!("no memory of rank {from} is mapped")));
            };
            let info: OperationInfo = access::load(view, slots::slot(round) + size_of::<u64>())?;
            self.operation.agree(core.port.me, (from, core.comm.world(from)), &info).map_err(Stop::from)?;
            rounds.compared += 1;
            if rounds.compared + 1 == self.operation.ranks {
                core.comm.shared.set_checked();
            }
        }
        if let Some(in_place) = &mut rounds.in_place
            && let Some(other) = in_place.others.iter_mut().find(|other| other.rank == from)
        {
            other.shown = *shown;
        }
        Ok(true)
    }

    /// Tells the others that this rank reads their operands no more, if any of them waits for that, and waits for those that read its
    /// own. False if one still may.
    pub(super) fn settle_shown(&mut self, core: &mut Core<'_>, lane: usize) -> Result<bool, Stop> {
        let Some(in_place) = self.rounds.as_ref().and_then(|rounds| rounds.in_place.as_ref()) else {
            return Ok(true);
        };
        let (round, is_read) = (core.comm.shared.number(), in_place.is_read && !in_place.copies);
        if !std::mem::replace(&mut self.lanes[lane].begun, true)
            && in_place.others.iter().any(|other| !other.copies)
        {
            core.tell_shared(slots::DONE, round)?;
        }
        // What is copied to a slot is written over no sooner than two rounds later, which no rank begins before all have ended this one.
        Ok(!is_read || core.comm.shared.late(slots::DONE, round).next().is_none())
    }
}

/// Copies elements of what a rank shows to its slots, from byte `at` on.
pub(super) fn copy_shown(
    operation: &Operation,
    shown: &Shown,
    elements: std::ops::Range<usize>,
    own: Option<&Region>,
    at: usize,
) -> Result<(), SpanError> {
    let operand = if shown.first.place == Place::Input { &operation.input } else { &operation.output };
    let (size, mut next) = (operation.size, elements.start);
    let Some(own) = own else { return Ok(()) };
    while next < elements.end {
        let left_in_block = shown.first.len - next % shown.first.len;
        let len = left_in_block.min(elements.end - next);
        let nowhere = SpanError::Bounds { offset: next, len, place: shown.len() };
        let from = shown.within(next, len).ok_or(nowhere)?;
        copy(operand, from.offset * size, Bytes::new(own, at + next * size, len * size)?)?;
        next += len;
    }
    Ok(())
}

/// Copies bytes of an operand.
fn copy(from: &Operand, at: usize, into: Bytes<'_>) -> Result<(), SpanError> {
    match &from.pieces {
        Some(pieces) => pieces.gather(at, into),
        None => buffer::copy(Bytes::new(&from.region, at, into.len)?, into),
    }
}
