//! The work of lanes: reductions and copies, a slice at a time.

use unisono_schedule::{Span, Step};

use super::{
    location::{broken, check_writes, compute, stays},
    run::OperationRun,
};
use crate::{comm::Core, request::OutputAccess, stop::Result};

impl OperationRun {
    /// Reduces or copies a slice on one lane whose step does that: the lane that did so last, or else the next one. Returns the number
    /// of bytes; `None` if there is no such lane.
    pub(crate) fn work(&mut self, core: &mut Core<'_>) -> Result<Option<usize>> {
        let (lanes, first) = (self.lanes.len(), self.working);
        let work = |lane: usize| match self.lanes[lane].step {
            Some(step @ (Step::Reduce { into, .. } | Step::Fold { into, .. } | Step::Copy { into, .. })) => {
                Some((lane, step, into))
            }
            _ => None,
        };
        let found = match lanes {
            1 => work(0),
            _ => (first..lanes).chain(0..first).find_map(work),
        };
        let Some((lane, step, into)) = found else { return Ok(None) };
        let before = self.lanes[lane].done;
        self.slice(core, lane, step, into)?;
        let now = self.lanes[lane].done;
        if now >= into.len {
            #[cfg(debug_assertions)]
            core.trace(lane, Some(step));
            self.finish(lane);
        }
        self.working = lane;
        Ok(Some((now - before) * self.operation.plan.size))
    }

    /// Does a slice of a step.
    fn slice(&mut self, core: &mut Core<'_>, lane: usize, step: Step, into: Span) -> Result<()> {
        let mut end = into.len.min(self.lanes[lane].done + self.operation.plan.slice);
        // If the input is put aside, the elements of such a copy already lie in the output.
        if stays(&step) && self.operation.access == OutputAccess::AllAfterCopy {
            end = into.len;
        } else {
            let (operation, comm, done) = (&*self.operation, &*core.comm, self.lanes[lane].done);
            let computed = check_writes(operation, &step, into).and_then(|()| {
                let locate = |span| self.locate(comm, lane, span);
                compute(operation, comm.identity.me, &step, done..end, locate)
            });
            computed.map_err(|error| broken(core, operation, &step, &error))?;
        }
        self.lanes[lane].done = end;
        Ok(())
    }
}
