//! The steps of schedules that show elements, in rounds through [shared slots](crate::comm::Sharing). A rank shows what it has
//! copied to its own slot, or its operands, which the others have [mapped](super::agree); they read it there.

use unisono_schedule::{Rank, Shown};

use super::{
    rounds::{OperandReads, ShowRounds},
    run::OperationRun,
};
use crate::{
    comm::{Core, layout},
    stop::Result,
};

/// A step shows or views elements, and its schedule does not say that it does.
const NO_ROUNDS: &str = "a step shows elements in a schedule of messages";

impl OperationRun {
    /// Begins a round and shows elements in it. False if that must wait, or if elements are still to be copied.
    pub(super) fn show(&mut self, core: &mut Core<'_>, lane: usize, shown: &Shown) -> Result<bool> {
        let Some(rounds) = &mut self.rounds else { return Err(core.stop(NO_ROUNDS)) };
        let lane = &mut self.lanes[lane];
        lane.begun = lane.begun || rounds.enter(core, &self.operation, shown)?;
        if !lane.begun || rounds.copies_slices() && lane.done < shown.len() {
            return Ok(false);
        }
        core.publish_shared(&self.operation.info(0))?;
        Ok(true)
    }

    /// Looks whether a rank has shown these elements. False if it has not.
    pub(super) fn view(&mut self, core: &mut Core<'_>, from: Rank, shown: &Shown) -> Result<bool> {
        match &mut self.rounds {
            Some(rounds) => rounds.view(core, &self.operation, from, shown),
            None => Err(core.stop(NO_ROUNDS)),
        }
    }

    /// Waits for the lane's puts. If elements are only shown, tells the others that this rank no longer reads their operands, if any of
    /// them waits for that, and waits for those that read its operands. False if one still may.
    pub(super) fn settle(&mut self, core: &mut Core<'_>, lane: usize) -> Result<bool> {
        let shows = self.rounds.as_ref().filter(|rounds| !rounds.sends);
        let Some(OperandReads { others, .. }) = shows.and_then(ShowRounds::how) else {
            return Ok(core.comm.collectives.outstanding[lane] == 0);
        };
        let (round, reads) = (core.comm.shared.number, others.iter().any(|other| !other.copies()));
        if !std::mem::replace(&mut self.lanes[lane].begun, true) && reads {
            core.tell_shared(layout::DONE, round)?;
        }
        let is_read = self.rounds.as_ref().is_some_and(ShowRounds::is_read);
        Ok(!is_read || core.comm.shared.late(layout::DONE, round).next().is_none())
    }
}
