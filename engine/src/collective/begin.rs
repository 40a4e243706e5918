//! Begins an operation: opens its windows, and sends clears to send.

use std::cell::Cell;

use smallvec::SmallVec;
use unisono_schedule::{CallSchedule, Rank};
use unisono_transport::{Error, Region, RemoteRegion};

use super::{
    agree::Agreement,
    lane::LaneProgress,
    run::{Exposed, OperationRun},
    shown::ShownProgress,
};
use crate::{
    comm::{Core, Sharing},
    memory::{Bytes, Operand, Pieces},
    request::{Operation, OutputAccess},
    settings::WindowSize,
    stop::Result,
    wire::WindowClass,
};

impl OperationRun {
    /// A run of an operation. `lanes` is empty, and the allocation of an operation that has ended.
    pub(crate) fn new(lanes: Vec<LaneProgress>, operation: Box<Operation>) -> Self {
        Self {
            operation,
            class: WindowClass::Eager,
            lanes,
            exposed: Exposed::new(),
            working: 0,
            agreement: None,
            shown: None,
            rounds: None,
        }
    }

    /// Begins the operation. If it sends messages, opens its windows, and sends a clear to send to each of its sources if its schedule
    /// writes straight into outputs.
    pub(crate) fn begin(&mut self, core: &mut Core<'_>) -> Result<()> {
        let operation = &*self.operation;
        if operation.plan.signature.is_shutdown() {
            core.check_shared()?;
            core.comm.shut_down();
            core.port.shutting_down = true;
        }
        let inside = if let CallSchedule::Inside(inside) = &operation.schedule { Some(inside) } else { None };
        let shows =
            inside.is_some() || operation.schedule.shows().is_some() || operation.plan.shown.is_some();
        if !shows || core.comm.shared.sharing == Sharing::No {
            return self.open_windows(core);
        }
        self.agreement = match inside {
            Some(inside) => {
                // The others learn where the scratch lies, and no message may move it then.
                let scratch = inside.shown.scratch().max(inside.messages.scratch());
                let scratch = scratch.saturating_mul(operation.plan.size);
                core.comm.workspace.provide_scratch(&mut *core.port.transport, scratch)?;
                core.comm.shared.host.get_or_insert_with(|| inside.host.as_slice().into());
                Some(Agreement::inside(core.comm, &inside.host))
            }
            None => Agreement::begin(core.comm, operation),
        };
        core.comm.collectives.exposed = false;
        if self.agreement.is_none() {
            self.shown = Some(ShownProgress::default());
        }
        Ok(())
    }

    /// Opens the windows of its schedule, and makes its lanes. If the schedule shows elements, messages are sent instead.
    pub(super) fn open_windows(&mut self, core: &mut Core<'_>) -> Result<()> {
        if let Some(instead) = self.operation.schedule.instead() {
            self.operation.schedule = instead;
        }
        let (schedule, size) = (&self.operation.schedule, self.operation.plan.size);
        let small = schedule.is_small(size, core.comm.settings.eager_bytes);
        let class = if small { WindowClass::Eager } else { WindowClass::Bulk };
        self.class = class;
        let bytes = schedule.max_message() * size;
        let WindowSize { lanes, slot_bytes, .. } = core.comm.settings.window(class);
        if schedule.lanes() > lanes || bytes > slot_bytes {
            return Err(core.stop(format!(
                "a schedule of {} lanes and messages of {bytes} bytes, where windows have {lanes} lanes and slots of {slot_bytes}",
                schedule.lanes()
            )));
        }
        let scratch = schedule.scratch().saturating_mul(size);
        core.comm.workspace.provide_scratch(&mut *core.port.transport, scratch)?;
        put_aside(core, &mut self.operation)?;
        let (operation, mut sources) = (&*self.operation, Sources::new());
        operation.schedule.sources(&mut |from| sources.push(from));
        core.comm.collectives.in_use = Some(class);
        for &from in &sources {
            core.listen(from, class)?;
        }
        core.comm.collectives.exposed = false;
        if operation.schedule.direct() {
            let parts = expose(core, operation, &sources)?;
            // Each source learns whether and where it may write into this rank's output.
            for (index, &to) in sources.iter().enumerate() {
                let part = parts.get(if parts.len() > 1 { index } else { 0 });
                core.send_clear_to_send(to, operation.info(to), part.map(|part| (part.remote, part.start)))?;
            }
            core.comm.collectives.exposed = !parts.is_empty();
            // Sources may write there until the operation ends.
            self.exposed.extend(parts.into_iter().map(|part| part.region));
        }
        self.lanes.resize_with(self.operation.schedule.lanes(), LaneProgress::default);
        Ok(())
    }
}

/// The ranks that a schedule takes messages from.
type Sources = SmallVec<[Rank; 32]>;

/// If peers write into the output of an operation and its input lies there, copies the input.
fn put_aside(core: &mut Core<'_>, operation: &mut Operation) -> Result<()> {
    if operation.access != OutputAccess::AllAfterCopy {
        return Ok(());
    }
    let (input, len) = (&operation.input, operation.input.len());
    let (me, block) = (core.comm.identity.me, len / operation.ranks);
    let aside = core.comm.workspace.provide_aside(&mut *core.port.transport, len)?;
    let copied = [0..me * block, (me + 1) * block..len]
        .into_iter()
        .try_for_each(|range| input.copy_to(range.start, Bytes::new(&aside, range.start, range.len())?));
    copied.map_err(|error| core.stop(format!("an input that is put aside: {error}")))?;
    operation.input = Operand::registered(aside);
    Ok(())
}

/// A part of an output that a source may write.
struct OutputPart {
    remote: RemoteRegion,
    /// Kept until the operation ends.
    region: Region,
    /// The offset in the output, in bytes.
    start: u64,
}

/// The parts of an output that sources may write: one for each source, or one for all of them; none if they may not write.
type Parts = SmallVec<[OutputPart; 1]>;

/// The parts of an operation's output that these sources may write.
fn expose(core: &mut Core<'_>, operation: &Operation, sources: &[Rank]) -> Result<Parts> {
    if !operation.access.is_open() {
        return Ok(Parts::new());
    }
    let Operand { memory, pieces } = &operation.output;
    let exposed = match pieces {
        None => core.expose(memory).map(|one| {
            one.map(|(remote, region)| OutputPart { remote, region, start: 0 }).into_iter().collect()
        }),
        Some(pieces) => expose_pieces(core, operation, pieces, sources),
    };
    match exposed {
        Err(error) if !operation.plan.long => {
            let len = operation.output.len();
            unisono_transport::log::debug!(%error, len, "an output that cannot be registered comes through slots");
            Ok(Parts::new())
        }
        exposed => Ok(exposed?),
    }
}

/// As [`expose`], if the output lies in several pieces: all sources may write if each writes into one piece.
fn expose_pieces(
    core: &mut Core<'_>,
    operation: &Operation,
    pieces: &Pieces,
    sources: &[Rank],
) -> Result<Parts, Error> {
    let (size, near, mut parts) = (operation.plan.size, Cell::new(0), Parts::new());
    for &source in sources {
        let Some(range) = operation.schedule.written_by(source) else { return Ok(Parts::new()) };
        let (start, len) = (range.start * size, range.len() * size);
        let exposed =
            pieces.together(start, len, &near).map(|part| core.expose(&part)).transpose()?.flatten();
        let Some((remote, region)) = exposed else { return Ok(Parts::new()) };
        parts.push(OutputPart { remote, region, start: start as u64 });
    }
    Ok(parts)
}
