//! The steps of schedules that show elements, in rounds through [shared slots](crate::comm::Sharing). A rank shows what it has
//! copied to its own slot, or its operands, which the others have [mapped](super::agree); they read it there.

use unisono_schedule::{Rank, Shown};

use super::{
    rounds::{OperandReads, ShowRounds, copy_to_slot},
    run::Run,
};
use crate::{
    access,
    comm::{Core, layout},
    request::Operation,
    stop::Stop,
    wire::OperationInfo,
};

/// A step shows or views elements, and its schedule does not say that it does.
const NO_ROUNDS: &str = "a step shows elements in a schedule of messages";

impl ShowRounds {
    /// Begins a round, if all others have begun the one before, in which this rank shows these elements. Copies them to its slot, unless
    /// operands are read in place. False if that must wait.
    pub(super) fn enter(
        &mut self,
        core: &mut Core<'_>,
        operation: &Operation,
        shown: &Shown,
    ) -> Result<bool, Stop> {
        if core.comm.shared.behind().next().is_some() {
            return Ok(false);
        }
        let unchecked =
            self.is_unchecked(operation.group.ranks).then_some((operation.number, operation.plan.signature));
        let round = core.enter_shared(&operation.info(0), unchecked)?;
        self.begin(round, shown.len() * operation.plan.size);
        if self.how().is_none() && !shown.is_empty() {
            copy_to_slot(core, operation, (shown, 0..shown.len()), self.in_slot(round))?;
        }
        Ok(true)
    }

    /// Looks whether a rank has shown these elements in this round, and compares its call. False if it has not.
    pub(super) fn view(
        &mut self,
        core: &mut Core<'_>,
        operation: &Operation,
        from: Rank,
        shown: &Shown,
    ) -> Result<bool, Stop> {
        let round = core.comm.shared.number();
        if !core.comm.shared.has_published(from, round) {
            return Ok(false);
        }
        if !self.views(round, from, shown, shown.len() * operation.plan.size) {
            return Ok(true);
        }
        let Some(view) = core.comm.shared.view(from) else {
            return Err(core.stop(format!("no memory of rank {from} is mapped")));
        };
        let info: OperationInfo = access::load(view, layout::slot(round) + size_of::<u64>())?;
        operation.agree(core.port.me, (from, core.comm.identity.world(from)), &info).map_err(Stop::from)?;
        if !self.is_unchecked(operation.group.ranks) {
            core.comm.shared.set_checked();
        }
        Ok(true)
    }
}

impl Run {
    /// Begins a round and shows elements in it. False if that must wait, or if elements are still to be copied.
    pub(super) fn show(&mut self, core: &mut Core<'_>, lane: usize, shown: &Shown) -> Result<bool, Stop> {
        let Some(rounds) = &mut self.rounds else { return Err(core.stop(NO_ROUNDS.to_owned())) };
        let lane = &mut self.lanes[lane];
        lane.begun = lane.begun || rounds.enter(core, &self.operation, shown)?;
        if !lane.begun || rounds.copies_slices() && lane.done < shown.len() {
            return Ok(false);
        }
        core.publish_shared()?;
        Ok(true)
    }

    /// Looks whether a rank has shown these elements. False if it has not.
    pub(super) fn view(&mut self, core: &mut Core<'_>, from: Rank, shown: &Shown) -> Result<bool, Stop> {
        match &mut self.rounds {
            Some(rounds) => rounds.view(core, &self.operation, from, shown),
            None => Err(core.stop(NO_ROUNDS.to_owned())),
        }
    }

    /// Tells the others that this rank no longer reads their operands, if any of them waits for that, and waits for those that read its
    /// operands. False if one still may.
    pub(super) fn settle_shown(&mut self, core: &mut Core<'_>, lane: usize) -> Result<bool, Stop> {
        let Some(OperandReads { others, .. }) = self.rounds.as_ref().and_then(ShowRounds::how) else {
            return Ok(true);
        };
        let (round, reads) = (core.comm.shared.number(), others.iter().any(|other| !other.copies));
        if !std::mem::replace(&mut self.lanes[lane].begun, true) && reads {
            core.tell_shared(layout::DONE, round)?;
        }
        let is_read = self.rounds.as_ref().is_some_and(ShowRounds::is_read);
        Ok(!is_read || core.comm.shared.late(layout::DONE, round).next().is_none())
    }
}
