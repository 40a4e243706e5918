//! Begins an operation: opens its windows, and sends clears to send.

use std::mem;

use unisono_schedule::{CallSchedule, Schedule};
use unisono_transport::{Region, RemoteRegion};

use super::{lane::Lane, run::Run};
use crate::engine::{comm::Core, request::Operation, stop::Stop, wire::Class};

impl Run {
    /// Opens the windows that an operation needs, and sends a clear to send to each of its sources if its schedule writes straight
    /// into outputs.
    pub(crate) fn begin(
        core: &mut Core<'_>,
        operation: Box<Operation>,
        schedule: CallSchedule,
    ) -> Result<Self, Stop> {
        if operation.signature.is_shutdown() {
            core.comm.shut_down();
            core.port.shutting_down = true;
        }
        let bytes = schedule.max_message() * operation.size;
        let settings = &core.comm.settings;
        let small = schedule.is_small(operation.size, settings.eager_bytes);
        let class = if small { Class::Eager } else { Class::Bulk };
        let (lanes, _, slot_bytes) = settings.window(class);
        if schedule.lanes() > lanes || bytes > slot_bytes {
            return Err(core.stop(format!(
                "a schedule of {} lanes and messages of {bytes} bytes, where windows have {lanes} lanes and slots of {slot_bytes}",
                schedule.lanes()
            )));
        }
        core.provide_scratch(schedule.scratch().saturating_mul(operation.size))?;
        let mut opened = Ok(());
        schedule.sources(&mut |from| {
            if opened.is_ok() {
                opened = core.listen(from, class);
            }
        });
        opened?;
        // Sources may write there until the operation ends.
        let mut exposed = None;
        if schedule.direct() {
            exposed = expose(core, &operation)?;
            send_clear_to_send(core, &operation, &*schedule, exposed.as_ref().map(|(remote, _)| *remote))?;
        }
        core.comm.exposed = exposed.is_some();
        let mut lanes = mem::take(&mut core.comm.lanes);
        lanes.resize_with(schedule.lanes(), Lane::default);
        Ok(Self::new(operation, schedule, class, lanes, exposed.map(|(_, region)| region)))
    }
}

/// What peers need to write into an operation's output; `None` if they may not.
fn expose(core: &mut Core<'_>, operation: &Operation) -> Result<Option<(RemoteRegion, Region)>, Stop> {
    if !operation.writable {
        return Ok(None);
    }
    match core.expose(&operation.output.region, operation.output.registered.as_ref()) {
        Err(error) if operation.long => Err(error.into()),
        Err(error) => {
            let len = operation.output.len();
            tracing::debug!(%error, len, "an output that cannot be registered comes through slots");
            Ok(None)
        }
        exposed => Ok(exposed?),
    }
}

/// Sends a clear to send to every source: whether and where it may write into this rank's output.
fn send_clear_to_send(
    core: &mut Core<'_>,
    operation: &Operation,
    schedule: &dyn Schedule,
    output: Option<RemoteRegion>,
) -> Result<(), Stop> {
    let mut told = Ok(());
    schedule.sources(&mut |source| {
        if told.is_ok() {
            told = core.send_clear_to_send(source, operation.info(source), output);
        }
    });
    told
}
