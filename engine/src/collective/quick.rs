//! Runs the recorded schedule of a small operation that shows all its elements in slots, without lanes, slices and allocations, which
//! are a third of the instructions of 8 bytes (docs/decisions/090-shown.md).

use unisono_schedule::{CallSchedule, Place, Rank, Step};

use super::{
    location::{Location, broken, check_writes, compute},
    pass::Pass,
    rounds::ShowRounds,
};
use crate::{
    comm::{Comm, Core},
    memory::SpanError,
    request::Operation,
    stop::Result,
};

/// The schedule of an operation through slots is always recorded.
const NO_SLOTS: &str = "an operation through slots has no recorded schedule";

/// The progress of an operation that shows all its elements in slots.
#[derive(Default)]
pub(crate) struct Quick {
    /// The number of steps that are done.
    pub(super) done: usize,
    rounds: ShowRounds,
}

impl Quick {
    /// Takes steps until one must wait. Its steps alone do not count as [`Pass::Moved`].
    pub(crate) fn pass(&mut self, core: &mut Core<'_>, operation: &Operation) -> Result<Pass> {
        let ended = self.advance(core, operation)?;
        let sent = core.comm.mailbox.has_queued() && core.send_control()?;
        Ok(match ended {
            true => Pass::Ended,
            false if sent => Pass::Moved,
            false => Pass::Idle,
        })
    }

    /// True at the end of all steps.
    fn advance(&mut self, core: &mut Core<'_>, operation: &Operation) -> Result<bool> {
        let CallSchedule::Recorded(recorded) = &operation.schedule else { return Err(core.stop(NO_SLOTS)) };
        while let Some(step) = recorded.steps().get(self.done) {
            match step {
                Step::Show { shown } => {
                    if !self.rounds.enter(core, operation, shown)? {
                        return Ok(false);
                    }
                    core.publish_shared(&operation.info(0))?;
                }
                Step::View { from, shown } => {
                    if !self.rounds.view(core, operation, *from, shown)? {
                        return Ok(false);
                    }
                }
                step => {
                    let worked = self.work(core.comm, operation, step);
                    worked.map_err(|error| broken(core, operation, step, &error))?;
                }
            }
            #[cfg(debug_assertions)]
            core.trace(0, Some(*step));
            self.done += 1;
        }
        Ok(true)
    }

    /// Reduces or copies.
    fn work(&self, comm: &Comm, operation: &Operation, step: &Step) -> Result<(), SpanError> {
        let (Step::Fold { into, .. } | Step::Copy { into, .. }) = *step else { return Err(SpanError::Step) };
        check_writes(operation, step, into)?;
        let size = operation.plan.size;
        compute(operation, comm.identity.me, step, 0..into.len, |span| match span.place {
            Place::Landed(from) => {
                let found = self.rounds.place(comm, from, span, size);
                found.map(|(region, at)| Location::Region(region, at)).ok_or(SpanError::Landed)
            }
            Place::Input => Ok(Location::Operand(&operation.input, span.offset * size)),
            Place::Output | Place::Scratch => Ok(Location::Operand(&operation.output, span.offset * size)),
        })
    }

    /// The ranks that the next step waits for.
    pub(super) fn waits<'c>(
        &self,
        comm: &'c Comm,
        operation: &Operation,
    ) -> impl Iterator<Item = Rank> + use<'c> {
        let next = match &operation.schedule {
            CallSchedule::Recorded(recorded) => recorded.steps().get(self.done),
            _ => None,
        };
        next.map(|step| self.rounds.waits(comm, step, false)).into_iter().flatten()
    }
}
