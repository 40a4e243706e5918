//! Runs one operation's schedule: each lane in order until it must wait.

use unisono_transport::Region;

use super::{
    Stop,
    core::Core,
    flow::Violation,
    operation::Operation,
    wire::{Class, Header, MAX_FLOWS, Way},
};
use crate::{
    buffer::{self, Bytes, SpanError},
    error::Failure,
    schedule::{Place, Rank, Schedule, Span, Step},
};

/// How much is reduced or copied between two polls, in bytes: small enough to keep the wire fed and the
/// data in the inner caches, large enough that a poll (a system call on tcp) costs little beside it.
const SLICE: usize = 64 << 10;

/// One lane's progress.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lane {
    /// The step it is at, if it was fetched.
    step: Option<Step>,
    /// Elements of that step already reduced or copied.
    done: usize,
    /// Where its source is staged, if it is a put that found no room yet.
    pub staged: Option<usize>,
    /// Steps that come before the schedule's next, the last one first.
    before: [Option<Step>; 3],
    ended: bool,
    /// Steps finished.
    steps: u64,
}

/// A step that was finished: see [`crate::ProcessGroup::keep_trace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traced {
    /// On which lane.
    pub lane: usize,
    /// The step.
    pub step: Step,
    /// How many of this rank's puts were under way then. What reductions find here overlaps with the wire.
    pub in_flight: usize,
}

/// What came of one pass over an operation.
pub(crate) enum Pass {
    Ended,
    /// There may be more to do.
    Moved,
    /// So too, and so much was reduced or copied that it is time for a poll.
    Worked,
    /// Nothing can be done until something comes.
    Idle,
}

/// An operation under way.
pub(crate) struct Run {
    pub operation: Operation,
    pub class: Class,
    schedule: Box<dyn Schedule>,
    pub(super) lanes: Vec<Lane>,
    /// What peers may write into, registered for the time of the operation.
    #[expect(dead_code, reason = "kept for its drop")]
    exposed: Option<Region>,
    /// The lane that is at work, and the bytes that were worked on since the latest poll.
    working: usize,
    worked: usize,
    /// Where finished steps are noted, if they are.
    pub trace: Option<Vec<Traced>>,
}

impl Run {
    pub(crate) fn new(
        operation: Operation,
        schedule: Box<dyn Schedule>,
        class: Class,
        exposed: Option<Region>,
    ) -> Self {
        let lanes = vec![Lane::default(); schedule.lanes()];
        Self { operation, class, schedule, lanes, exposed, working: 0, worked: 0, trace: None }
    }

    /// Does once what can be done: puts and takes on every lane, a slice of work, letters. `idle` says that the
    /// latest poll brought nothing.
    pub(crate) fn pass(&mut self, core: &mut Core<'_>, idle: bool) -> Result<Pass, Stop> {
        let mut moved = false;
        for lane in 0..self.lanes.len() {
            moved |= self.advance(core, lane)?;
        }
        moved |= self.work(core)?;
        if core.circle.has_debts() && (idle || self.ended()) {
            core.circle.settle_debts();
        }
        if core.circle.has_letters() {
            moved |= core.send_letters()?;
        }
        // Nothing of ours may wait for a poll that comes only with the next call; or, after the last one, be lost.
        let circle = &*core.circle;
        let left = if circle.parting { circle.letters_landed() } else { circle.letters_left() };
        if self.ended() && circle.under_way == 0 && left {
            self.close(core)?;
            return Ok(Pass::Ended);
        }
        if self.worked >= SLICE {
            self.worked = 0;
            return Ok(Pass::Worked);
        }
        Ok(if moved { Pass::Moved } else { Pass::Idle })
    }

    /// Whether every lane has ended.
    fn ended(&self) -> bool {
        self.lanes.iter().all(|lane| lane.ended)
    }

    /// Steps finished, and the first lane that waits for a peer: for whom.
    pub(crate) fn stand(&self) -> (u64, Option<(usize, Rank)>) {
        let waits = self.lanes.iter().enumerate().find_map(|(index, lane)| match lane.step {
            Some(Step::Take { from, .. } | Step::Await { from, .. }) => Some((index, from)),
            Some(Step::Put { to, .. } | Step::Write { to, .. }) => Some((index, to)),
            _ => None,
        });
        (self.lanes.iter().map(|lane| lane.steps).sum(), waits)
    }

    /// Runs a lane until it must wait or comes to work. True if it moved.
    ///
    /// Work comes second: whatever can be put goes on the wire before anything is reduced, so that chunk k
    /// is reduced while chunk k+1 is in flight.
    fn advance(&mut self, core: &mut Core<'_>, index: usize) -> Result<bool, Stop> {
        let mut moved = false;
        loop {
            let step = match self.lanes[index].step {
                Some(step) => step,
                None if self.lanes[index].ended => return Ok(moved),
                None => match self.next(core, index) {
                    Some(step) => step,
                    None => {
                        self.lanes[index].ended = true;
                        return Ok(true);
                    }
                },
            };
            self.lanes[index].step = Some(step);
            let finished = match step {
                Step::Put { to, from } => self.put(core, index, to, from)?,
                Step::Write { to, from, at } => self.write(core, index, (to, at), from)?,
                Step::Await { from, .. } => self.land(core, index, from)?,
                Step::Take { from, len } => self.take(core, index, from, len)?,
                Step::Free { from } => self.free(core, index, from)?,
                Step::Settle => core.circle.outstanding[index] == 0,
                Step::Reduce { .. } | Step::Fold { .. } | Step::Copy { .. } => false,
            };
            if !finished {
                return Ok(moved);
            }
            moved = true;
            self.finish(core, index, step);
        }
    }

    /// The lane's next step. Where nobody may write into this rank's output, what is awaited there comes through a
    /// slot; and what is passed on is passed on from there, so that the wire works during the copy.
    fn next(&mut self, core: &Core<'_>, index: usize) -> Option<Step> {
        let before = &mut self.lanes[index].before;
        let laid_aside = before.iter_mut().rev().find_map(Option::take);
        let step = laid_aside.or_else(|| self.schedule.next(index))?;
        let Step::Await { from, into } = step else { return Some(step) };
        if core.circle.exposed {
            return Some(step);
        }
        let landed = Span::landed(from, into.len);
        let (copy, free) = (Some(Step::Copy { from: landed, into }), Some(Step::Free { from }));
        *before = match self.schedule.next(index) {
            Some(Step::Write { to, from, at }) if from == into => {
                [free, copy, Some(Step::Write { to, from: landed, at })]
            }
            after => [after, free, copy],
        };
        Some(Step::Take { from, len: into.len })
    }

    fn finish(&mut self, core: &Core<'_>, index: usize, step: Step) {
        if let Some(trace) = &mut self.trace {
            trace.push(Traced { lane: index, step, in_flight: core.circle.under_way });
        }
        let lane = &mut self.lanes[index];
        *lane = Lane { steps: lane.steps + 1, before: lane.before, ..Lane::default() };
    }

    /// Reduces or copies a slice on the first lane, from the one latest at work on, that has that to do. False if
    /// none has.
    fn work(&mut self, core: &Core<'_>) -> Result<bool, Stop> {
        let (lanes, index) = (self.lanes.len(), self.working);
        for lane in (index..lanes).chain(0..index) {
            if let Some(
                step @ (Step::Reduce { into, .. } | Step::Fold { into, .. } | Step::Copy { into, .. }),
            ) = self.lanes[lane].step
            {
                let before = self.lanes[lane].done;
                self.slice(core, lane, step, into.len)?;
                let now = self.lanes[lane].done;
                if now >= into.len {
                    self.finish(core, lane, step);
                }
                self.working = lane;
                self.worked += (now - before) * self.operation.size;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Does a slice of a reduction or a copy.
    fn slice(&mut self, core: &Core<'_>, index: usize, step: Step, len: usize) -> Result<(), Stop> {
        let size = self.operation.size;
        let from = self.lanes[index].done;
        // What was lent to be read. A copy to where it is copies nothing.
        let stays = |from: Span, into: Span| from == Span { place: Place::Input, ..into };
        let fixed = |place| place == Place::Input || place == Place::Output && self.operation.fixed;
        match step {
            Step::Copy { from, into } if stays(from, into) => {}
            Step::Reduce { into, .. } | Step::Fold { into, .. } | Step::Copy { into, .. }
                if into.len > 0 && fixed(into.place) =>
            {
                return Err(core.stop(format!("{step:?} writes to what is only read")));
            }
            _ => {}
        }
        let now = (len - from).min(SLICE / size);
        let part = |span: Span| -> Result<Bytes<'_>, Stop> {
            Ok(self.bytes(core, index, span)?.part(from * size, now * size))
        };
        let kernel = &self.operation.kernel;
        let result = match step {
            Step::Reduce { a, b, into, last } => {
                let into = part(into)?;
                buffer::reduce(kernel, part(a)?, part(b)?, into).and_then(|()| {
                    if last && self.operation.average {
                        buffer::divide(kernel, into, self.operation.ranks)
                    } else {
                        Ok(())
                    }
                })
            }
            Step::Fold { own, into } => {
                let of = |rank| if rank == core.circle.me { own } else { Span::landed(rank, into.len) };
                let contributions = (0..self.operation.ranks).map(|rank| part(of(rank)));
                buffer::total(kernel, &contributions.collect::<Result<Vec<_>, _>>()?, part(into)?)
            }
            Step::Copy { from, into } => buffer::copy(part(from)?, part(into)?),
            _ => Ok(()),
        };
        result.map_err(|error| self.broken(core, step, &error))?;
        self.lanes[index].done += now;
        Ok(())
    }

    /// The bytes of a span.
    pub(super) fn bytes<'c>(
        &'c self,
        core: &'c Core<'_>,
        lane: usize,
        span: Span,
    ) -> Result<Bytes<'c>, Stop> {
        let size = self.operation.size;
        let offset = span.offset * size;
        let (region, base) = match span.place {
            Place::Input => (&self.operation.input, 0),
            Place::Output => (&self.operation.output, 0),
            Place::Scratch => match &core.circle.scratch {
                Some(scratch) => (scratch, 0),
                // Nothing may lie anywhere.
                None if span.len == 0 => (&self.operation.output, 0),
                None => {
                    return Err(core.stop("a step uses scratch that its schedule never asked for".to_owned()));
                }
            },
            Place::Landed(from) => {
                let slot = core.circle.receiver(from, self.class, lane).and_then(|receiver| {
                    let slot = core.circle.receivers[receiver].latest()?;
                    Some(core.circle.slot(receiver, slot))
                });
                match slot {
                    Some(slot) => slot,
                    None => {
                        return Err(core.stop(format!("a step reads from rank {from}, which sent nothing")));
                    }
                }
            }
        };
        let offset = if span.len == 0 { 0 } else { offset };
        Bytes::new(region, base + offset, span.len * size)
            .map_err(|error| core.stop(format!("a step's span {span:?}: {error}")))
    }

    pub(super) fn broken(&self, core: &Core<'_>, step: Step, error: &SpanError) -> Stop {
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
        let (me, circle) = (core.port.me, &*core.circle);
        let agree = |from, header: &Header| {
            self.operation.agree(me, circle.world(from), header).map_err(Stop::Failure)
        };
        for (from, header) in circle.untaken() {
            // What belongs to a later operation waits; what belongs to an earlier one was never due.
            if header.op == number || header.op.wrapping_sub(number) >= 1 << 31 {
                agree(from, &header)?;
            }
        }
        let granted = circle.grants.iter().map(|(from, grant)| (*from, grant.header));
        for (from, header) in circle.knocks.iter().copied().chain(granted) {
            if header.op == number {
                agree(from, &header)?;
            }
        }
        // Most knocks were answered by a window long before anyone looks.
        core.circle.knocks.retain(|(_, header)| header.op.wrapping_sub(number).wrapping_sub(1) < 1 << 31);
        Ok(())
    }

    /// Tells those from whom lanes have waited in vain for leave to write what they would write: they may wait for
    /// a message of another call.
    fn ask(&self, core: &mut Core<'_>) -> Result<(), Stop> {
        for lane in &self.lanes {
            if let Some(Step::Write { to, .. }) = lane.step
                && core.circle.granted(to, self.operation.op()).is_none()
            {
                core.knock(to, self.class, &self.operation.header(0, 0, 0))?;
            }
        }
        Ok(())
    }

    /// At the end: a peer's message that nobody took spoils what seems done. What peers allowed is over.
    fn close(&self, core: &mut Core<'_>) -> Result<(), Stop> {
        self.compare(core)?;
        // Otherwise its arrival was an error already.
        if core.circle.exposed
            && let Some(from) = core.circle.unawaited()
        {
            return Err(core.violation(from, Violation("a write that nobody awaits".to_owned())));
        }
        let number = self.operation.op();
        core.circle.grants.retain(|(_, grant)| grant.header.op != number);
        Ok(())
    }

    /// Takes the next message. False if it has not landed.
    fn take(&mut self, core: &mut Core<'_>, lane: usize, from: Rank, len: usize) -> Result<bool, Stop> {
        let Some(receiver) = core.circle.receiver(from, self.class, lane) else {
            return Err(
                core.stop(format!("a step takes from rank {from}, which is no source of its schedule"))
            );
        };
        if !core.circle.receivers[receiver].ready() {
            return Ok(false);
        }
        let slot = core.circle.receivers[receiver].take();
        let header = core.circle.header(receiver, slot)?;
        self.operation.agree(core.port.me, core.circle.world(from), &header).map_err(Stop::Failure)?;
        if header.len as usize != len {
            return Err(Stop::Failure(Failure::Protocol {
                rank: core.port.me,
                from: core.circle.world(from),
                what: format!("a message of {} elements where {len} were due", header.len),
            }));
        }
        if header.reply as usize >= MAX_FLOWS {
            let what = format!("a message that wants its credit on flow {}", header.reply);
            return Err(core.violation(from, Violation(what)));
        }
        core.circle.receivers[receiver].reply = Some(header.reply);
        Ok(true)
    }

    /// Gives a slot back.
    fn free(&mut self, core: &mut Core<'_>, lane: usize, from: Rank) -> Result<bool, Stop> {
        let Some(receiver) = core.circle.receiver(from, self.class, lane) else {
            return Err(core.stop(format!("a step frees what rank {from} never sent")));
        };
        if !core.circle.receivers[receiver].free() {
            return Err(core.stop(format!("a step frees more messages than rank {from} sent")));
        }
        core.circle.owe(receiver, Way::Slots);
        Ok(true)
    }

    /// Waits for the next write from a peer. False if it has not landed.
    fn land(&mut self, core: &mut Core<'_>, lane: usize, from: Rank) -> Result<bool, Stop> {
        let Some(receiver) = core.circle.receiver(from, self.class, lane) else {
            return Err(core.stop(format!("a step awaits rank {from}, which is no source of its schedule")));
        };
        let landing = &mut core.circle.landings[receiver];
        if !landing.ready() {
            return Ok(false);
        }
        landing.take();
        landing.free();
        core.circle.owe(receiver, Way::Direct);
        Ok(true)
    }
}
