//! Runs an operation that shows all its elements, and sends no messages, step by step. Ranks show elements in rounds through
//! [shared slots](crate::comm::Sharing).
//!
//! A short operation through slots usually ends in its first pass, so this executor has no lanes and allocates nothing.

use std::cell::Cell;

use unisono_schedule::{CallSchedule, Place, Rank, SLICE, Span, Step};

use super::{
    location::{Location, broken, check_writes, compute},
    pass::Pass,
    rounds::{ShowRounds, copy_slice},
};
use crate::{
    comm::{Comm, Core, layout},
    memory::{self, SpanError},
    request::Operation,
    stop::Result,
};

/// The progress of an operation that shows all its elements.
#[derive(Default)]
pub(crate) struct ShownProgress {
    /// The number of steps that are done.
    pub(super) done: usize,
    /// The present step, unless the schedule is recorded.
    step: Option<Step>,
    /// The number of elements of the present step that are copied or reduced.
    elements: usize,
    /// True if the present step has begun a round, or has told the others that this rank has read their operands.
    begun: bool,
    rounds: ShowRounds,
}

/// What a step has done.
enum Stepped {
    /// It waits for another rank.
    Waits,
    /// It has copied or reduced this many bytes, and has more to do.
    Part(usize),
    /// It has copied or reduced this many bytes, and has ended.
    Ended(usize),
}

impl Stepped {
    /// Whether a step that waits has ended.
    fn waited(ended: bool) -> Self {
        if ended { Self::Ended(0) } else { Self::Waits }
    }
}

impl ShownProgress {
    /// The progress of an operation that has shown the first elements of its schedule in these rounds.
    pub(super) fn after_first(rounds: ShowRounds) -> Self {
        Self { done: 1, rounds, ..Self::default() }
    }

    /// Advances as far as possible now, by about a slice of work, and sends control messages that are queued.
    pub(crate) fn pass(&mut self, core: &mut Core<'_>, operation: &mut Operation) -> Result<Pass> {
        let pass = self.advance(core, operation)?;
        let sent = core.comm.mailbox.has_queued() && core.send_control()?;
        Ok(if sent && matches!(pass, Pass::Idle) { Pass::Moved } else { pass })
    }

    fn advance(&mut self, core: &mut Core<'_>, operation: &mut Operation) -> Result<Pass> {
        let mut worked = 0;
        loop {
            if let CallSchedule::Made(schedule) = &mut operation.schedule
                && self.step.is_none()
            {
                self.step = schedule.next(0);
            }
            let operation = &*operation;
            let made;
            let step = match &operation.schedule {
                CallSchedule::Recorded(recorded) => recorded.steps().get(self.done),
                _ => {
                    made = self.step;
                    made.as_ref()
                }
            };
            let Some(step) = step else { return Ok(Pass::Ended) };
            if worked >= SLICE {
                return Ok(Pass::Moved);
            }
            worked += match self.run(core, operation, step)? {
                // In slots a rank waits for the last of its host, as [`Pass::Moved`] says.
                Stepped::Waits if worked > 0 && self.rounds.how().is_some() => return Ok(Pass::Moved),
                Stepped::Waits => return Ok(Pass::Idle),
                Stepped::Part(bytes) => bytes,
                Stepped::Ended(bytes) => {
                    #[cfg(debug_assertions)]
                    core.trace(0, Some(*step));
                    (self.done, self.step, self.elements, self.begun) = (self.done + 1, None, 0, false);
                    bytes
                }
            };
        }
    }

    /// Does the present step, or a slice of it.
    fn run(&mut self, core: &mut Core<'_>, operation: &Operation, step: &Step) -> Result<Stepped> {
        let (size, before) = (operation.plan.size, self.elements);
        match step {
            Step::Show { shown } => {
                self.begun = self.begun || self.rounds.enter(core, operation, shown)?;
                if !self.begun {
                    return Ok(Stepped::Waits);
                }
                if self.rounds.copies_slices() && before < shown.len() {
                    self.elements = copy_slice(core, operation, shown, before)?;
                    return Ok(Stepped::Part((self.elements - before) * size));
                }
                core.publish_shared(&operation.info(0))?;
                Ok(Stepped::Ended(0))
            }
            Step::View { from, shown } => {
                self.rounds.view(core, operation, *from, shown).map(Stepped::waited)
            }
            Step::Settle => self.settle(core).map(Stepped::waited),
            step => {
                let ended = match *step {
                    Step::Copy { from: from @ Span { place: Place::Landed(rank), .. }, into }
                        if self.rounds.fetches(rank) =>
                    {
                        self.fetch(core, operation, step, (rank, from, into))?
                    }
                    _ => {
                        let worked = self.work(core.comm, operation, step);
                        worked.map_err(|error| broken(core, operation, step, &error))?
                    }
                };
                let bytes = (self.elements - before) * size;
                Ok(if ended { Stepped::Ended(bytes) } else { Stepped::Part(bytes) })
            }
        }
    }

    /// Copies or reduces a slice of a step. True at its end.
    fn work(&mut self, comm: &Comm, operation: &Operation, step: &Step) -> Result<bool, SpanError> {
        let (Step::Fold { into, .. } | Step::Copy { into, .. }) = *step else { return Err(SpanError::Step) };
        check_writes(operation, step, into)?;
        let size = operation.plan.size;
        let end = into.len.min(self.elements + operation.plan.slice);
        let rounds = &self.rounds;
        compute(operation, comm.identity.me, step, self.elements..end, move |span| match span.place {
            Place::Landed(from) => {
                let found = rounds.place(comm, from, span, size);
                found.map(|(region, at)| Location::Region(region, at)).ok_or(SpanError::Landed)
            }
            Place::Input => Ok(Location::Operand(&operation.input, span.offset * size)),
            Place::Output => Ok(Location::Operand(&operation.output, span.offset * size)),
            // Such a schedule needs none.
            Place::Scratch => Err(SpanError::Scratch),
        })?;
        self.elements = end;
        Ok(end == into.len)
    }

    /// Copies a slice of another rank's plain memory. True at the end of the step.
    #[inline(never)] // Other steps need none of it.
    fn fetch(
        &mut self,
        core: &mut Core<'_>,
        operation: &Operation,
        step: &Step,
        (rank, from, into): (Rank, Span, Span),
    ) -> Result<bool> {
        let size = operation.plan.size;
        let end = into.len.min(self.elements + operation.plan.slice);
        let near = Cell::new(0);
        while self.elements < end {
            let place = || {
                check_writes(operation, step, into)?;
                let (at, most) = ((into.offset + self.elements) * size, (end - self.elements) * size);
                let piece = operation.output.stretch(at, most, &near)?;
                if into.place != Place::Output || piece.len < size {
                    return Err(SpanError::Step);
                }
                let span = Span { offset: from.offset + self.elements, len: piece.len / size, ..from };
                Ok((self.rounds.address(rank, span, size).ok_or(SpanError::Landed)?, piece))
            };
            let (address, into) = place().map_err(|error| broken(core, operation, step, &error))?;
            let (peer, _) = core.port.peer(core.comm.identity.world(rank))?;
            let fetched = memory::fetch(&mut *core.port.transport, peer, address, into);
            fetched.map_err(|error| core.port.broken(error))?;
            self.elements += into.len / size;
        }
        Ok(end == into.len)
    }

    /// Tells the others that this rank has read their operands, and waits until they have read those of this rank. False if that must
    /// wait.
    fn settle(&mut self, core: &mut Core<'_>) -> Result<bool> {
        let Some(reads) = self.rounds.how() else { return Ok(true) };
        let round = core.comm.shared.number;
        if !std::mem::replace(&mut self.begun, true) && reads.others.iter().any(|other| !other.copies()) {
            core.tell_shared(layout::DONE, round)?;
        }
        Ok(!self.rounds.is_read() || core.comm.shared.late(layout::DONE, round).next().is_none())
    }

    /// The ranks that it waits for.
    pub(super) fn waits<'c>(
        &self,
        comm: &'c Comm,
        operation: &Operation,
    ) -> impl Iterator<Item = Rank> + use<'c> {
        let step = match &operation.schedule {
            CallSchedule::Recorded(recorded) => recorded.steps().get(self.done),
            _ => self.step.as_ref(),
        };
        step.map(|step| self.rounds.waits(comm, step, self.begun)).into_iter().flatten()
    }
}
