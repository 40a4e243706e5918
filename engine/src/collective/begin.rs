//! Begins an operation: opens its windows, and sends clears to send.

use std::cell::Cell;

use smallvec::SmallVec;
use unisono_schedule::{CallSchedule, Recorded, Schedule};
use unisono_transport::{Error, Region, RemoteRegion};

use super::{
    agree::Agreement,
    lane::LaneProgress,
    rounds::ShowRounds,
    run::{Exposed, Run},
};
use crate::{
    comm::{Core, expose_part},
    memory::{self, Bytes, Operand, Pieces},
    request::{Operation, OutputAccess},
    stop::Stop,
    wire::WindowClass,
};

impl Run {
    /// Begins an operation. If it sends messages, opens its windows, and sends a clear to send to each of its sources if its schedule
    /// writes straight into outputs. `lanes` is empty, and the allocation of an operation that has ended.
    pub(crate) fn begin(
        core: &mut Core<'_>,
        lanes: Vec<LaneProgress>,
        operation: Box<Operation>,
        schedule: CallSchedule,
    ) -> Result<Self, Stop> {
        if operation.plan.signature.is_shutdown() {
            core.check_shared()?;
            core.comm.shut_down();
            core.port.shutting_down = true;
        }
        let inside = matches!(schedule, CallSchedule::Inside(_));
        let shows = inside || schedule.shows().is_some() || operation.plan.shown.is_some();
        let may_show = shows && core.comm.shared.may_share();
        let agreement = match &schedule {
            _ if !may_show => None,
            CallSchedule::Inside(inside) => {
                // The others learn where the scratch lies, and no message may move it then.
                let scratch = inside.shown.scratch().max(inside.messages.scratch());
                core.provide_scratch(scratch.saturating_mul(operation.plan.size))?;
                core.comm.shared.set_host(&inside.host);
                Some(Agreement::inside(core.comm, &inside.host))
            }
            _ => Agreement::begin(core.comm, &operation),
        };
        let mut run = Self::new(lanes, operation, schedule);
        run.agreement = agreement;
        if may_show {
            core.comm.collectives.exposed = false;
            if run.agreement.is_none() {
                run.begin_rounds(ShowRounds::default());
            }
            return Ok(run);
        }
        run.open_windows(core)?;
        Ok(run)
    }

    fn new(lanes: Vec<LaneProgress>, operation: Box<Operation>, schedule: CallSchedule) -> Self {
        Self {
            operation,
            schedule,
            class: WindowClass::Eager,
            lanes,
            exposed: Exposed::new(),
            working: 0,
            agreement: None,
            rounds: None,
        }
    }

    /// Continues an operation that shows elements in slots, after the first steps of its schedule.
    pub(crate) fn go_on(
        lanes: Vec<LaneProgress>,
        operation: Box<Operation>,
        mut schedule: Recorded,
        (done, rounds): (usize, ShowRounds),
    ) -> Self {
        schedule.skip(done);
        let mut run = Self::new(lanes, operation, CallSchedule::Recorded(schedule));
        run.begin_rounds(rounds);
        run.lanes.iter_mut().for_each(|lane| lane.steps = done as u64);
        run
    }

    /// Begins the rounds of its schedule, and makes its lane.
    pub(super) fn begin_rounds(&mut self, rounds: ShowRounds) {
        self.rounds = Some(rounds);
        self.lanes.resize_with(self.schedule.lanes(), LaneProgress::default);
    }

    /// Opens the windows of its schedule, and makes its lanes. If the schedule shows elements, messages are sent instead.
    pub(super) fn open_windows(&mut self, core: &mut Core<'_>) -> Result<(), Stop> {
        if let Some(instead) = self.schedule.instead() {
            self.schedule = instead;
        }
        let Self { operation, schedule, .. } = self;
        let small = schedule.is_small(operation.plan.size, core.comm.settings.eager_bytes);
        let class = if small { WindowClass::Eager } else { WindowClass::Bulk };
        self.class = class;
        let bytes = schedule.max_message() * operation.plan.size;
        let (lanes, _, slot_bytes) = core.comm.settings.window(class);
        if schedule.lanes() > lanes || bytes > slot_bytes {
            return Err(core.stop(format!(
                "a schedule of {} lanes and messages of {bytes} bytes, where windows have {lanes} lanes and slots of {slot_bytes}",
                schedule.lanes()
            )));
        }
        core.provide_scratch(schedule.scratch().saturating_mul(operation.plan.size))?;
        put_aside(core, operation)?;
        core.comm.collectives.in_use = Some(class);
        let mut opened = Ok(());
        schedule.sources(&mut |from| {
            if opened.is_ok() {
                opened = core.listen(from, class);
            }
        });
        opened?;
        if schedule.direct() {
            let parts = expose(core, operation, &**schedule)?;
            send_clear_to_send(core, operation, &**schedule, &parts)?;
            core.comm.collectives.exposed = !parts.is_empty();
            // Sources may write there until the operation ends.
            self.exposed.extend(parts.into_iter().map(|part| part.region));
        } else {
            core.comm.collectives.exposed = false;
        }
        self.lanes.resize_with(self.schedule.lanes(), LaneProgress::default);
        Ok(())
    }
}

/// If peers write into the output of an operation and its input lies there, copies the input.
fn put_aside(core: &mut Core<'_>, operation: &mut Operation) -> Result<(), Stop> {
    if operation.access != OutputAccess::AllAfterCopy {
        return Ok(());
    }
    let (input, len) = (&operation.input, operation.input.len());
    let (me, block) = (core.comm.identity.me, len / operation.group.ranks);
    let aside = core.provide_aside(len)?;
    let copied = [0..me * block, (me + 1) * block..len].into_iter().try_for_each(|range| {
        let into = Bytes::new(&aside, range.start, range.len())?;
        match &input.pieces {
            Some(pieces) => pieces.gather(range.start, into),
            None => memory::copy(Bytes::new(&input.region, range.start, range.len())?, into),
        }
    });
    copied.map_err(|error| core.stop(format!("an input that is put aside: {error}")))?;
    operation.input = Operand { registered: Some((aside.clone(), 0)), ..aside.into() };
    Ok(())
}

/// A part of an output that a source may write.
struct Part {
    remote: RemoteRegion,
    /// Kept until the operation ends.
    region: Region,
    /// The offset in the output, in bytes.
    start: u64,
}

/// The part of an operation's output that each source may write, in the order of the schedule's sources, or one for all of them; none
/// if they may not write.
fn expose(
    core: &mut Core<'_>,
    operation: &Operation,
    schedule: &dyn Schedule,
) -> Result<SmallVec<[Part; 1]>, Stop> {
    if !operation.access.is_open() {
        return Ok(SmallVec::new());
    }
    let exposed = match &operation.output.pieces {
        None => {
            let Operand { region, registered, .. } = &operation.output;
            core.expose(region, registered.as_ref()).map(|one| {
                one.map(|(remote, region)| Part { remote, region, start: 0 }).into_iter().collect()
            })
        }
        Some(pieces) => expose_pieces(core, operation, pieces, schedule),
    };
    match exposed {
        Err(error) if operation.plan.long => Err(error.into()),
        Err(error) => {
            let len = operation.output.len();
            unisono_transport::log::debug!(%error, len, "an output that cannot be registered comes through slots");
            Ok(SmallVec::new())
        }
        Ok(parts) => Ok(parts),
    }
}

/// As [`expose`], if the output lies in several pieces: all sources may write if each writes into one piece.
fn expose_pieces(
    core: &mut Core<'_>,
    operation: &Operation,
    pieces: &Pieces,
    schedule: &dyn Schedule,
) -> Result<SmallVec<[Part; 1]>, Error> {
    let (size, near) = (operation.plan.size, Cell::new(0));
    let mut parts = Some(SmallVec::new());
    let mut failed = None;
    schedule.sources(&mut |source| {
        let Some(found) = &mut parts else { return };
        let part = schedule.written_by(source).and_then(|range| {
            let start = range.start * size;
            let (region, at, registered) = pieces.together(start, range.len() * size, &near)?;
            Some((region, at, registered, start, range.len() * size))
        });
        let part = part.and_then(|(region, at, registered, start, len)| {
            let exposed = match registered {
                true => Ok(expose_part(&region, at, len)),
                false => core.expose(&region, None),
            };
            let (remote, region) = exposed.map_err(|error| failed = Some(error)).ok()??;
            Some(Part { remote, region, start: start as u64 })
        });
        match part {
            Some(part) => found.push(part),
            None => parts = None,
        }
    });
    failed.map_or_else(|| Ok(parts.unwrap_or_default()), Err)
}

/// Sends a clear to send to every source: whether and where it may write into this rank's output.
fn send_clear_to_send(
    core: &mut Core<'_>,
    operation: &Operation,
    schedule: &dyn Schedule,
    parts: &[Part],
) -> Result<(), Stop> {
    let (mut sent, mut index) = (Ok(()), 0);
    schedule.sources(&mut |source| {
        if sent.is_ok() {
            let part = parts.get(if parts.len() > 1 { index } else { 0 });
            let part = part.map(|part| (part.remote, part.start));
            sent = core.send_clear_to_send(source, operation.info(source), part);
        }
        index += 1;
    });
    sent
}
