//! Runs the recorded schedule of a small operation that shows all its elements in slots: the same steps as [`OperationRun`](super::run::OperationRun) takes,
//! without lanes, slices and allocations, which are a third of the instructions of a run of 8 bytes (docs/decisions/090-shown.md).
//! If a step must wait for long, a run takes the remaining steps.

use unisono_schedule::{CallSchedule, Place, Step};

use super::{
    location::{Location, broken, check_writes, compute},
    rounds::ShowRounds,
    run::Pass,
};
use crate::{
    comm::{Comm, Core},
    memory::SpanError,
    request::Operation,
    stop::Result,
};

/// An operation whose recorded steps are taken.
pub(crate) struct Quick<'q> {
    operation: &'q Operation,
    steps: &'q [Step],
    /// The number of steps that are done.
    pub(crate) done: usize,
    pub(crate) rounds: ShowRounds,
}

impl<'q> Quick<'q> {
    /// An operation with a recorded schedule; another one has no steps.
    pub(crate) fn new(operation: &'q Operation) -> Self {
        let steps = match &operation.schedule {
            CallSchedule::Recorded(recorded) => recorded.steps(),
            _ => &[],
        };
        Self { operation, steps, done: 0, rounds: ShowRounds::default() }
    }

    /// Takes steps until one must wait.
    pub(crate) fn pass(&mut self, core: &mut Core<'_>) -> Result<Pass> {
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
    fn advance(&mut self, core: &mut Core<'_>) -> Result<bool> {
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
                    worked.map_err(|error| broken(core, self.operation, step, &error))?;
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
        let (Step::Fold { into, .. } | Step::Copy { into, .. }) = *step else { return Err(SpanError::Step) };
        check_writes(self.operation, step, into)?;
        let (operation, size) = (self.operation, self.operation.plan.size);
        compute(operation, comm.identity.me, step, 0..into.len, |span| match span.place {
            Place::Landed(from) => {
                let found = self.rounds.place(comm, from, span, size);
                found.map(|(region, at)| Location::Region(region, at)).ok_or(SpanError::Landed)
            }
            Place::Input => Ok(Location::Operand(&operation.input, span.offset * size)),
            Place::Output | Place::Scratch => Ok(Location::Operand(&operation.output, span.offset * size)),
        })
    }
}
