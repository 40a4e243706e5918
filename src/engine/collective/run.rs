//! Runs one operation's schedule: each lane in order until it must wait.

use unisono_schedule::{CallSchedule, Place, Rank, SLICE, Span, Step};
use unisono_transport::Region;

use super::lane::{Lane, Traced};
use crate::{
    buffer::{Bytes, SpanError},
    engine::{
        comm::{Core, Violation},
        request::Operation,
        stop::Stop,
        wire::{Class, CollectiveHeader, MAX_FLOWS, OperationInfo, Way},
    },
    error::Failure,
};

/// What came of one pass over an operation.
pub(crate) enum Pass {
    Ended,
    /// All was done that can be done before the next poll, or so much was reduced or copied that it is time for one.
    Moved,
    /// There was nothing to do.
    Idle,
}

/// An operation under way.
pub(crate) struct Run {
    pub operation: Box<Operation>,
    pub class: Class,
    pub(super) schedule: CallSchedule,
    pub(crate) lanes: Vec<Lane>,
    /// What peers may write into, registered for the time of the operation.
    #[expect(dead_code, reason = "kept for its drop")]
    pub(super) exposed: Option<Region>,
    /// The lane that is at work.
    pub(crate) working: usize,
    /// Where finished steps are noted, if they are.
    pub trace: Option<Vec<Traced>>,
}

impl Run {
    pub(crate) fn new(
        operation: Box<Operation>,
        schedule: CallSchedule,
        class: Class,
        lanes: Vec<Lane>,
        exposed: Option<Region>,
    ) -> Self {
        Self { operation, class, schedule, lanes, exposed, working: 0, trace: None }
    }

    /// Does what can be done before the next poll: puts and takes on every lane, no more than a slice of work, control messages.
    /// `idle` says that the latest poll brought nothing.
    pub(crate) fn pass(&mut self, core: &mut Core<'_>, idle: bool) -> Result<Pass, Stop> {
        let (mut moved, mut worked) = (false, 0);
        loop {
            for lane in 0..self.lanes.len() {
                moved |= self.advance(core, lane)?;
            }
            if worked >= SLICE {
                break;
            }
            // Before any work: a peer may wait for leave to write.
            if core.comm.has_control() {
                moved |= core.send_control()?;
            }
            let Some(bytes) = self.work(core)? else { break };
            (moved, worked) = (true, worked + bytes);
        }
        if core.comm.has_debts() && (idle || self.ended()) {
            core.comm.settle_debts(idle);
        }
        if core.comm.has_control() {
            moved |= core.send_control()?;
        }
        // Nothing of ours may wait for a poll that comes only with the next call (copies that surely leave do not, and are
        // not waited for); or, after the last one, be lost.
        let comm = &*core.comm;
        let left = if comm.shutting_down { comm.control_completed() } else { comm.control_sent() };
        if self.ended() && comm.under_way == 0 && left {
            self.close(core)?;
            return Ok(Pass::Ended);
        }
        Ok(if moved { Pass::Moved } else { Pass::Idle })
    }

    /// Whether every lane has ended.
    fn ended(&self) -> bool {
        self.lanes.iter().all(|lane| lane.ended)
    }

    /// Steps finished, and the ranks for which lanes wait: none if a lane can go on.
    pub(crate) fn progress(&self) -> (u64, Vec<Rank>) {
        let mut waits = Vec::new();
        for lane in self.lanes.iter().filter(|lane| !lane.ended) {
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

    /// Runs a lane until it must wait or comes to work. True if it moved.
    ///
    /// Work comes second: whatever can be put goes on the wire before anything is reduced, so that chunk k
    /// is reduced while chunk k+1 is in flight.
    fn advance(&mut self, core: &mut Core<'_>, index: usize) -> Result<bool, Stop> {
        let mut moved = false;
        loop {
            let lane = &mut self.lanes[index];
            if lane.step.is_none() {
                if lane.ended {
                    return Ok(moved);
                }
                lane.step = match lane.before.pop() {
                    None => self.schedule.next(index),
                    before => before,
                };
                if let Some(Step::Await { from, into }) = lane.step
                    && !core.comm.exposed
                {
                    lane.by_slot((from, into), self.schedule.next(index));
                }
            }
            let finished = match lane.step {
                Some(Step::Put { to, from }) => self.put(core, index, to, from)?,
                Some(Step::Write { to, from, at }) => self.write(core, index, (to, at), from)?,
                Some(Step::Await { from, .. }) => self.land(core, index, from)?,
                Some(Step::Take { from, len }) => self.take(core, index, from, len)?,
                Some(Step::Free { from }) => self.free(core, index, from)?,
                Some(Step::Settle) => core.comm.outstanding[index] == 0,
                Some(Step::Reduce { .. } | Step::Fold { .. } | Step::Copy { .. }) => false,
                None => {
                    lane.ended = true;
                    return Ok(true);
                }
            };
            if !finished {
                return Ok(moved);
            }
            moved = true;
            self.finish(core, index);
        }
    }

    pub(crate) fn finish(&mut self, core: &Core<'_>, index: usize) {
        let lane = &mut self.lanes[index];
        if let (Some(trace), Some(step)) = (&mut self.trace, lane.step) {
            trace.push(Traced { lane: index, step, in_flight: core.comm.under_way });
        }
        if !matches!(lane.step, Some(Step::Put { .. } | Step::Write { .. })) {
            // It may have changed what was staged.
            lane.latest = None;
        }
        (lane.step, lane.done, lane.staged) = (None, 0, None);
        lane.steps += 1;
    }

    /// The bytes of a span that does not lie [scattered](Operation::scattered).
    pub(crate) fn bytes<'c>(
        &'c self,
        core: &'c Core<'_>,
        lane: usize,
        span: Span,
    ) -> Result<Bytes<'c>, Stop> {
        let (region, offset) = self.place(core, lane, span)?;
        let bytes = Bytes::new(region, offset, span.len * self.operation.size);
        bytes.map_err(|error| core.stop(format!("a step's span {span:?}: {error}")))
    }

    /// The region of such a span, and where in it the span begins.
    pub(crate) fn place<'c>(
        &'c self,
        core: &'c Core<'_>,
        lane: usize,
        span: Span,
    ) -> Result<(&'c Region, usize), Stop> {
        let (region, base) = match span.place {
            Place::Input => (&self.operation.input, 0),
            Place::Output => (&self.operation.output, 0),
            Place::Scratch => match &core.comm.scratch {
                Some(scratch) => (scratch, 0),
                // Nothing may lie anywhere.
                None if span.len == 0 => (&self.operation.output, 0),
                None => {
                    return Err(core.stop("a step uses scratch that its schedule never asked for".to_owned()));
                }
            },
            Place::Landed(from) => {
                let slot = core.comm.receiver(from, self.class, lane).and_then(|receiver| {
                    let slot = core.comm.receivers[receiver].latest()?;
                    Some(core.comm.slot(receiver, slot))
                });
                match slot {
                    Some(slot) => slot,
                    None => {
                        return Err(core.stop(format!("a step reads from rank {from}, which sent nothing")));
                    }
                }
            }
        };
        Ok((region, base + if span.len == 0 { 0 } else { span.offset * self.operation.size }))
    }

    #[cold]
    pub(crate) fn broken(&self, core: &Core<'_>, step: Step, error: &SpanError) -> Stop {
        core.stop(format!("{} {step:?}: {error}", self.operation.signature.call()))
    }

    /// What to do where nothing comes: ranks that disagree may wait for each other for ever.
    pub(crate) fn doubt(&self, core: &mut Core<'_>) -> Result<(), Stop> {
        self.compare(core)?;
        self.ask(core)
    }

    /// Looks at what peers sent or would send that no lane takes: ranks that disagree may wait for each
    /// other on different flows.
    fn compare(&self, core: &mut Core<'_>) -> Result<(), Stop> {
        let number = self.operation.op();
        let (me, comm) = (core.port.me, &*core.comm);
        let agree =
            |from, info: &OperationInfo| self.operation.agree(me, comm.world(from), info).map_err(Stop::from);
        // What belongs to a later operation waits; what belongs to an earlier one was never due.
        let earlier = |info: &OperationInfo| info.number.wrapping_sub(number) >= 1 << 31;
        for (from, info) in comm.untaken() {
            if info.number == number || earlier(&info) {
                agree(from, &info)?;
            }
        }
        for &(from, class, info) in &comm.mismatch_probes {
            // For those that were due a window was opened.
            let never_due = earlier(&info) && comm.receiver(from, class, 0).is_none();
            if info.number == number || never_due {
                agree(from, &info)?;
            }
        }
        for (from, clear_to_send) in
            comm.clear_to_sends.iter().filter(|(_, clear_to_send)| clear_to_send.operation.number == number)
        {
            agree(*from, &clear_to_send.operation)?;
        }
        // Most mismatch probes were answered by a window long before anyone looks.
        core.comm
            .mismatch_probes
            .retain(|(.., info)| info.number.wrapping_sub(number).wrapping_sub(1) < 1 << 31);
        Ok(())
    }

    /// Tells those from whom lanes have waited in vain for leave to write what they would write: they may wait for
    /// a message of another call.
    fn ask(&self, core: &mut Core<'_>) -> Result<(), Stop> {
        for lane in &self.lanes {
            if let Some(Step::Write { to, .. }) = lane.step
                && core.comm.clear_to_send(to, self.operation.op()).is_none()
            {
                core.probe_mismatch(to, self.class, &self.operation.info())?;
            }
        }
        Ok(())
    }

    /// At the end: a peer's message that nobody took spoils what seems done. What peers allowed is over.
    fn close(&self, core: &mut Core<'_>) -> Result<(), Stop> {
        self.compare(core)?;
        // Otherwise its arrival was an error already.
        if core.comm.exposed && core.comm.unawaited() {
            return Err(core.port.forged("a write that nobody awaits".to_owned()));
        }
        core.comm.drop_clear_to_sends(self.operation.op());
        Ok(())
    }

    /// Takes the next message. False if it has not landed.
    fn take(&mut self, core: &mut Core<'_>, lane: usize, from: Rank, len: usize) -> Result<bool, Stop> {
        let Some(receiver) = core.comm.receiver(from, self.class, lane) else {
            return Err(
                core.stop(format!("a step takes from rank {from}, which is no source of its schedule"))
            );
        };
        if !core.comm.receivers[receiver].ready() {
            return Ok(false);
        }
        let slot = core.comm.receivers[receiver].take();
        let header: CollectiveHeader = core.comm.header(receiver, slot)?;
        self.operation.agree(core.port.me, core.comm.world(from), &header.operation).map_err(Stop::from)?;
        if header.len as usize != len {
            return Err(Stop::from(Failure::Protocol {
                rank: core.port.me,
                from: core.comm.world(from),
                what: format!("a message of {} elements where {len} were due", header.len),
            }));
        }
        if usize::from(header.flow.reply) >= MAX_FLOWS {
            let what = format!("a message that wants its credit on flow {}", header.flow.reply);
            return Err(core.violation(from, Violation(what)));
        }
        core.comm.receivers[receiver].reply = Some(header.flow.reply.into());
        Ok(true)
    }

    /// Gives a slot back.
    fn free(&mut self, core: &mut Core<'_>, lane: usize, from: Rank) -> Result<bool, Stop> {
        let Some(receiver) = core.comm.receiver(from, self.class, lane) else {
            return Err(core.stop(format!("a step frees what rank {from} never sent")));
        };
        if !core.comm.receivers[receiver].free() {
            return Err(core.stop(format!("a step frees more messages than rank {from} sent")));
        }
        core.comm.owe(receiver, Way::Slots);
        Ok(true)
    }

    /// Waits for the next write from a peer. False if it has not landed.
    fn land(&mut self, core: &mut Core<'_>, lane: usize, from: Rank) -> Result<bool, Stop> {
        let Some(receiver) = core.comm.receiver(from, self.class, lane) else {
            return Err(core.stop(format!("a step awaits rank {from}, which is no source of its schedule")));
        };
        let landing = &mut core.comm.landings[receiver];
        if !landing.ready() {
            return Ok(false);
        }
        landing.take();
        landing.free();
        core.comm.owe(receiver, Way::Direct);
        Ok(true)
    }
}
