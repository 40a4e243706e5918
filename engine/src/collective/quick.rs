//! Runs the recorded schedule of a small operation that shows all its elements in slots: the same steps as [`Run`](super::run::Run) takes,
//! without lanes, slices and allocations, which are a third of the instructions of a run of 8 bytes (docs/decisions/090-shown.md).
//! If a step must wait for long, a run takes the remaining steps.

use std::cell::Cell;

use unisono_schedule::{Place, Span, Step};

use super::{
    rounds::ShowRounds,
    run::Pass,
    slice::{Contributions, fold},
};
use crate::{
    comm::{Comm, Core},
    memory::{self, Bytes, Operand, SpanError},
    request::{Operation, OutputAccess},
    stop::Stop,
};

/// An operation whose recorded steps are taken.
pub(crate) struct Quick<'q> {
    operation: &'q Operation,
    steps: &'q [Step],
    done: usize,
    rounds: ShowRounds,
}

impl<'q> Quick<'q> {
    pub(crate) fn new(operation: &'q Operation, steps: &'q [Step]) -> Self {
        Self { operation, steps, done: 0, rounds: ShowRounds::default() }
    }

    /// The number of steps that are done, and the rounds so far.
    pub(crate) fn left(self) -> (usize, ShowRounds) {
        (self.done, self.rounds)
    }

    /// Takes steps until one must wait.
    pub(crate) fn pass(&mut self, core: &mut Core<'_>) -> Result<Pass, Stop> {
        let before = self.done;
        let ended = self.advance(core)?;
        let sent = core.comm.mailbox.has_queued() && core.send_control()?;
        Ok(match ended {
            true => Pass::Ended,
            false if sent || self.done > before => Pass::Moved,
            false => Pass::Idle,
        })
    }

    /// True at the end of all steps.
    fn advance(&mut self, core: &mut Core<'_>) -> Result<bool, Stop> {
        while let Some(step) = self.steps.get(self.done) {
            match step {
                Step::Show { shown } => {
                    if !self.rounds.enter(core, self.operation, shown)? {
                        return Ok(false);
                    }
                    core.publish_shared()?;
                }
                Step::View { from, shown } => {
                    if !self.rounds.view(core, self.operation, *from, shown)? {
                        return Ok(false);
                    }
                }
                step => {
                    let worked = self.work(core.comm, step);
                    worked.map_err(|error| {
                        core.stop(format!("{} {step:?}: {error}", self.operation.plan.signature.call()))
                    })?;
                }
            }
            #[cfg(debug_assertions)]
            core.trace(0, Some(*step));
            self.done += 1;
        }
        Ok(true)
    }

    /// Reduces or copies.
    fn work(&self, comm: &Comm, step: &Step) -> Result<(), SpanError> {
        let (own, into) = match *step {
            Step::Fold { own, into, .. } => (own, into),
            Step::Copy { from, into } => (from, into),
            _ => return Err(SpanError::Step),
        };
        let stays = own == Span { place: Place::Input, ..into };
        if self.operation.access == OutputAccess::Nobody
            && into.len > 0
            && !(stays && matches!(step, Step::Copy { .. }))
        {
            return Err(SpanError::Fixed);
        }
        let size = self.operation.plan.size;
        let (near, mut done, len) = ([Cell::new(0), Cell::new(0)], 0, into.len * size);
        while done < len {
            let mine = self.stretch(comm, own, done, len - done, &near[0])?;
            let into = stretch(&self.operation.output, into.offset * size + done, mine.len, &near[1])?;
            let mine = mine.part(0, into.len);
            match *step {
                Step::Fold { at, .. } => {
                    let mut all = Contributions::new();
                    for rank in 0..self.operation.group.ranks {
                        all.push(match rank == comm.identity.me {
                            true => mine,
                            false => {
                                let span = Span { offset: at, ..Span::landed(rank, own.len) };
                                self.stretch(comm, span, done, into.len, &near[0])?
                            }
                        });
                    }
                    fold(self.operation, &all, into)?;
                }
                _ => memory::copy(mine, into)?,
            }
            done += into.len;
        }
        Ok(())
    }

    /// Bytes of a span from byte `at` on, as far as they are contiguous: at least one.
    fn stretch<'c>(
        &'c self,
        comm: &'c Comm,
        span: Span,
        at: usize,
        most: usize,
        near: &Cell<usize>,
    ) -> Result<Bytes<'c>, SpanError> {
        let start = span.offset * self.operation.plan.size + at;
        match span.place {
            Place::Landed(from) => {
                let found = self.rounds.place(comm, from, span, self.operation.plan.size);
                let (region, offset) = found.ok_or(SpanError::Step)?;
                Bytes::new(region, offset + at, most)
            }
            Place::Input => stretch(&self.operation.input, start, most, near),
            Place::Output | Place::Scratch => stretch(&self.operation.output, start, most, near),
        }
    }
}

/// Some bytes of an operand, as far as they are contiguous: at least one.
fn stretch<'o>(of: &'o Operand, at: usize, most: usize, near: &Cell<usize>) -> Result<Bytes<'o>, SpanError> {
    let stretch = of.stretch(at, most, near)?;
    if stretch.len == 0 {
        Err(SpanError::Bounds { offset: at, len: most, place: of.len() })
    } else {
        Ok(stretch)
    }
}
