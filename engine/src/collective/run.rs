//! Runs one operation's schedule: each lane in order until it must wait.

use smallvec::SmallVec;
use unisono_schedule::{CallSchedule, Place, Rank, SLICE, Shown, Span, Step};
use unisono_transport::Region;

use super::{
    agree::{Agreed, Agreement},
    lane::LaneProgress,
    location::Location,
    pass::Pass,
    rounds::ShowRounds,
    shown::ShownProgress,
};
use crate::{
    call::Signature,
    comm::{Comm, Core},
    memory::SpanError,
    request::Operation,
    stop::Result,
    wire::{CollectiveHeader, FlowWay, MAX_FLOWS, WindowClass},
};

/// Registered parts of an output: one, or one for each source.
pub(super) type Exposed = SmallVec<[Region; 1]>;

/// The error of a step that is only in schedules that show elements.
const NO_ROUNDS: &str = "a step shows elements in a schedule of messages";

/// An operation under way.
pub(crate) struct OperationRun {
    pub operation: Box<Operation>,
    pub class: WindowClass,
    pub(crate) lanes: Vec<LaneProgress>,
    /// The parts of the output that peers may write, registered as long as the operation runs.
    pub(super) exposed: Exposed,
    /// The lane that reduced or copied last.
    pub(crate) working: usize,
    /// The agreement of ranks before the schedule begins.
    pub(super) agreement: Option<Box<Agreement>>,
    /// The progress of an operation that shows all its elements; it has no lanes.
    pub(crate) shown: Option<ShownProgress>,
    /// The rounds in which ranks of a host show elements, if messages go between hosts.
    pub(super) rounds: Option<ShowRounds>,
}

impl OperationRun {
    /// Advances the operation until the next poll: puts and takes on every lane, at most a slice of work, and control messages.
    /// `idle` says that the latest round moved nothing.
    pub(crate) fn pass(&mut self, core: &mut Core<'_>, idle: bool) -> Result<Pass> {
        if let Some(moved) = self.agree(core)? {
            let moved = moved | (core.comm.mailbox.has_queued() && core.send_control()?);
            return Ok(if moved { Pass::Moved } else { Pass::Idle });
        }
        if let Some(shown) = &mut self.shown {
            return shown.pass(core, &mut self.operation);
        }
        let (mut moved, mut worked) = (false, 0);
        loop {
            for lane in 0..self.lanes.len() {
                moved |= self.advance(core, lane)?;
            }
            if worked >= SLICE {
                break;
            }
            // Control messages go before any work, because a peer may wait for a clear to send.
            if core.comm.mailbox.has_queued() {
                moved |= core.send_control()?;
            }
            let Some(bytes) = self.work(core)? else { break };
            (moved, worked) = (true, worked + bytes);
        }
        if core.comm.flows.has_debts() && (idle || self.ended()) {
            core.comm.settle_debts(idle);
        }
        if core.comm.mailbox.has_queued() {
            moved |= core.send_control()?;
        }
        // No put may wait in the provider for a poll, since the next one comes only with the next call. Copied control messages that
        // leave without a poll need not be completed, except in the shutdown, after which they would be lost.
        let comm = &*core.comm;
        let left = if comm.shutdown.is_last_barrier() {
            comm.mailbox.is_completed()
        } else {
            comm.mailbox.is_sent()
        };
        if self.ended() && comm.collectives.under_way == 0 && left {
            self.close(core)?;
            return Ok(Pass::Ended);
        }
        Ok(if moved { Pass::Moved } else { Pass::Idle })
    }

    /// Advances the agreement on how elements are shown. Returns true if something moved, and `None` if the ranks have agreed.
    fn agree(&mut self, core: &mut Core<'_>) -> Result<Option<bool>> {
        let Some(agreement) = &mut self.agreement else { return Ok(None) };
        match agreement.pass(core, &self.operation)? {
            Agreed::Not { moved } => return Ok(Some(moved)),
            Agreed::Messages => self.open_windows(core)?,
            Agreed::Inside(rounds) => {
                if let CallSchedule::Inside(inside) = &mut self.operation.schedule {
                    inside.agreed = true;
                }
                self.rounds = Some(rounds);
                self.open_windows(core)?;
            }
            Agreed::Copied => self.shown = Some(ShownProgress::default()),
            Agreed::InPlace(schedule, rounds) => {
                self.operation.schedule = schedule;
                self.shown = Some(ShownProgress::after_first(rounds));
            }
        }
        self.agreement = None;
        Ok(None)
    }

    /// True if something that peers publish in shared slots would let it continue.
    pub(crate) fn is_ready(&self, comm: &Comm) -> bool {
        if let Some(shown) = &self.shown {
            return shown.waits(comm, &self.operation).next().is_none();
        }
        match (&self.agreement, &self.rounds) {
            (Some(agreement), _) => agreement.is_ready(comm),
            (None, Some(rounds)) => self.lanes.iter().filter(|lane| !lane.ended).any(|lane| {
                let due = |step| ShowRounds::has(step) && rounds.waits(comm, step, false).next().is_none();
                lane.step.as_ref().is_none_or(due)
            }),
            (None, None) => false,
        }
    }

    /// True if every lane has ended.
    fn ended(&self) -> bool {
        self.lanes.iter().all(|lane| lane.ended)
    }

    /// The number of steps that are done, and the ranks that lanes wait for: none if a lane can continue.
    pub(crate) fn progress(&self, comm: &Comm) -> (u64, Vec<Rank>) {
        if let Some(agreement) = &self.agreement {
            return (agreement.steps(), agreement.waits(comm));
        }
        if let Some(shown) = &self.shown {
            return (shown.done as u64, shown.waits(comm, &self.operation).collect());
        }
        let mut waits = Vec::new();
        for lane in self.lanes.iter().filter(|lane| !lane.ended) {
            if let (Some(rounds), Some(step)) = (&self.rounds, &lane.step)
                && ShowRounds::has(step)
            {
                waits.extend(rounds.waits(comm, step, false));
                continue;
            }
            match lane.step {
                Some(Step::Take { from: rank, .. } | Step::Await { from: rank, .. })
                | Some(Step::Put { to: rank, .. } | Step::Write { to: rank, .. }) => waits.push(rank),
                _ => return (self.steps(), Vec::new()),
            }
        }
        waits.sort_unstable();
        waits.dedup();
        (self.steps(), waits)
    }

    fn steps(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.steps).sum()
    }

    /// Runs a lane until it must wait, or its next step reduces or copies. True if it moved.
    ///
    /// All lanes put as much as they can before any lane reduces, so that chunk k is reduced while chunk k+1 is in flight.
    fn advance(&mut self, core: &mut Core<'_>, index: usize) -> Result<bool> {
        let mut moved = false;
        loop {
            let lane = &mut self.lanes[index];
            if lane.step.is_none() {
                if lane.ended {
                    return Ok(moved);
                }
                lane.step = match lane.before.pop() {
                    None => self.operation.schedule.next(index),
                    before => before,
                };
                if let Some(Step::Await { from, into }) = lane.step
                    && !core.comm.collectives.exposed
                {
                    lane.by_slot((from, into), self.operation.schedule.next(index));
                }
            }
            let finished = match lane.step {
                Some(Step::Put { to, from }) => self.put(core, index, to, from)?,
                Some(Step::Write { to, from, at }) => self.write(core, index, (to, at), from)?,
                Some(Step::Await { from, .. }) => self.land(core, index, from)?,
                Some(Step::Take { from, len }) => self.take(core, index, from, len)?,
                Some(Step::Free { from }) => self.free(core, index, from)?,
                Some(Step::Show { shown }) => self.show(core, &shown)?,
                Some(Step::View { from, shown }) => self.view(core, from, &shown)?,
                Some(Step::Settle) => core.comm.collectives.outstanding[index] == 0,
                Some(Step::Reduce { .. } | Step::Fold { .. } | Step::Copy { .. }) => false,
                None => {
                    self.lanes[index].ended = true;
                    return Ok(true);
                }
            };
            if !finished {
                return Ok(moved);
            }
            moved |= !matches!(self.lanes[index].step, Some(Step::Show { .. } | Step::View { .. }));
            #[cfg(debug_assertions)]
            core.trace(index, self.lanes[index].step);
            self.finish(index);
        }
    }

    /// Shows elements to the other ranks of this host. False if that must wait.
    fn show(&mut self, core: &mut Core<'_>, shown: &Shown) -> Result<bool> {
        let Some(rounds) = &mut self.rounds else { return Err(core.stop(NO_ROUNDS)) };
        let begun = rounds.enter(core, &self.operation, shown)?;
        if begun {
            core.publish_shared(&self.operation.info(0))?;
        }
        Ok(begun)
    }

    /// Looks whether another rank of this host has shown these elements. False if it has not.
    fn view(&mut self, core: &mut Core<'_>, from: Rank, shown: &Shown) -> Result<bool> {
        match &mut self.rounds {
            Some(rounds) => rounds.view(core, &self.operation, from, shown),
            None => Err(core.stop(NO_ROUNDS)),
        }
    }

    /// The present step of a lane is done.
    pub(crate) fn finish(&mut self, index: usize) {
        let lane = &mut self.lanes[index];
        if !matches!(lane.step, Some(Step::Put { .. } | Step::Write { .. })) {
            // The step may have changed the source that was staged.
            lane.latest = None;
        }
        (lane.step, lane.done, lane.staged) = (None, 0, None);
        lane.steps += 1;
    }

    /// Where the elements of a span lie.
    pub(super) fn locate<'c>(
        &'c self,
        comm: &'c Comm,
        lane: usize,
        span: Span,
    ) -> Result<Location<'c>, SpanError> {
        let size = self.operation.plan.size;
        let at = span.offset * size;
        let found = match (span.place, &self.rounds) {
            (Place::Input, _) => return Ok(Location::Operand(&self.operation.input, at)),
            (Place::Output, _) => return Ok(Location::Operand(&self.operation.output, at)),
            (Place::Scratch, _) => {
                let scratch = comm.workspace.scratch.as_ref().ok_or(SpanError::Scratch)?;
                return Ok(Location::Region(scratch, at));
            }
            (Place::Landed(from), Some(rounds)) if rounds.reads(from) => rounds.place(comm, from, span, size),
            (Place::Landed(from), _) => comm.flows.receiver(from, self.class, lane).and_then(|receiver| {
                let (region, start) = comm.flows.slot(receiver, comm.flows.receivers[receiver].latest()?);
                Some((region, start + at))
            }),
        };
        found.map(|(region, at)| Location::Region(region, at)).ok_or(SpanError::Landed)
    }

    /// Finds out whether the operation is stalled because ranks disagree: compares the messages that arrived, and sends mismatch probes.
    pub(crate) fn check_stalled(&self, core: &mut Core<'_>) -> Result<()> {
        self.compare(core)?;
        // A rank whose clear to send a lane waits for may be in another call.
        for lane in &self.lanes {
            if let Some(Step::Write { to, .. }) = lane.step
                && core.comm.mailbox.clear_to_send(to, self.operation.op()).is_none()
            {
                core.probe_mismatch(to, self.class, &self.operation.info(to))?;
            }
        }
        Ok(())
    }

    /// Compares this operation with messages, probes and clears to send that no lane takes: ranks that disagree may wait for each
    /// other on different flows.
    fn compare(&self, core: &mut Core<'_>) -> Result<()> {
        let number = self.operation.op();
        let comm = &*core.comm;
        let now = |(_, info): &(Rank, Signature)| info.number == number;
        // A message of a later operation is early; one of an earlier operation was never awaited.
        let earlier = |info: &Signature| info.number.wrapping_sub(number) >= 1 << 31;
        let untaken = comm.flows.untaken().filter(|sent| now(sent) || earlier(&sent.1));
        let probes = comm.mailbox.mismatch_probes.iter().filter_map(|&(from, class, info)| {
            // If an earlier operation had awaited its message, there would be a window for it.
            let unawaited = earlier(&info) && comm.flows.receiver(from, class, 0).is_none();
            (info.number == number || unawaited).then_some((from, info))
        });
        let clears = comm.mailbox.clear_to_sends.iter().map(|(from, clear)| (*from, clear.operation));
        let published = comm.shared.calls().chain(clears).filter(now);
        for (from, info) in untaken.chain(probes).chain(published) {
            comm.agree(&self.operation, from, &info)?;
        }
        // Only probes of later operations are still needed.
        core.comm
            .mailbox
            .mismatch_probes
            .retain(|(.., info)| info.number.wrapping_sub(number).wrapping_sub(1) < 1 << 31);
        Ok(())
    }

    /// Ends the operation: it fails if a peer has sent a message that no lane has taken. Its clears to send are dropped.
    fn close(&self, core: &mut Core<'_>) -> Result<()> {
        self.compare(core)?;
        // If peers may not write, a write fails on arrival.
        if core.comm.collectives.exposed && core.comm.flows.unawaited() {
            return Err(core.port.forged("a write that nobody awaits"));
        }
        core.comm.mailbox.drop_clear_to_sends(self.operation.op());
        Ok(())
    }

    /// The receiving end of the flow from a rank that the schedule takes messages from.
    fn source(&self, core: &Core<'_>, lane: usize, from: Rank) -> Result<usize> {
        core.comm.flows.receiver(from, self.class, lane).ok_or_else(|| {
            core.stop(format!("a step takes from rank {from}, which is no source of its schedule"))
        })
    }

    /// Takes the next message. False if it has not landed.
    fn take(&mut self, core: &mut Core<'_>, lane: usize, from: Rank, len: usize) -> Result<bool> {
        let receiver = self.source(core, lane, from)?;
        if !core.comm.flows.receivers[receiver].ready() {
            return Ok(false);
        }
        let slot = core.comm.flows.receivers[receiver].take();
        let header: CollectiveHeader = core.comm.flows.header(receiver, slot)?;
        core.comm.agree(&self.operation, from, &header.operation)?;
        if header.len as usize != len {
            let what = format!("a message of {} elements where {len} were due", header.len);
            return Err(core.violation(from, what));
        }
        if usize::from(header.flow.reply) >= MAX_FLOWS {
            let what = format!("a message whose credit is to go to flow {}", header.flow.reply);
            return Err(core.violation(from, what));
        }
        core.comm.flows.receivers[receiver].reply = Some(header.flow.reply.into());
        Ok(true)
    }

    /// Frees the slot of the oldest message that was taken.
    fn free(&mut self, core: &mut Core<'_>, lane: usize, from: Rank) -> Result<bool> {
        let receiver = self.source(core, lane, from)?;
        if !core.comm.flows.receivers[receiver].free() {
            return Err(core.stop(format!("a step frees more messages than rank {from} sent")));
        }
        core.comm.owe(receiver, FlowWay::Slots);
        Ok(true)
    }

    /// Waits for the next write from a peer. False if it has not landed.
    fn land(&mut self, core: &mut Core<'_>, lane: usize, from: Rank) -> Result<bool> {
        let receiver = self.source(core, lane, from)?;
        let landing = &mut core.comm.flows.landings[receiver];
        if !landing.ready() {
            return Ok(false);
        }
        landing.take();
        landing.free();
        core.comm.owe(receiver, FlowWay::Direct);
        Ok(true)
    }
}
