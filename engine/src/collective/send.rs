//! The puts of a lane: through a slot of the receiver, or straight into its output.

use std::cell::Cell;

use unisono_schedule::{Place, Rank, Span, select::shown::is_fetched_in};
use unisono_transport::Target;

use super::{location::Location, run::OperationRun};
use crate::{
    call::narrow,
    comm::{Core, PutOrigin, ReadyPut, Whose},
    memory::Bytes,
    stop::Result,
    wire::{CollectiveHeader, HEADER},
};

impl OperationRun {
    /// Sends a message to a slot. False if there is no window, no credit or no room yet.
    pub(crate) fn put(&mut self, core: &mut Core<'_>, lane: usize, to: Rank, from: Span) -> Result<bool> {
        let Some(sender) = core.comm.flows.sender(to, self.class, lane) else {
            core.probe_mismatch(to, self.class, &self.operation.info(to))?;
            return Ok(false);
        };
        // The receiver may close its endpoint after this message: no control message may follow it.
        if core.comm.shutdown.is_last_barrier() && !core.comm.mailbox.is_completed() {
            return Ok(false);
        }
        let Some(record) = core.record(&core.comm.flows.senders[sender].flow) else { return Ok(false) };
        let bytes = from.len * self.operation.plan.size;
        let slot_bytes = core.comm.flows.senders[sender].slot_bytes;
        if bytes > slot_bytes {
            return Err(core.stop(format!("a message of {bytes} bytes for slots of {slot_bytes}")));
        }
        let injected = HEADER + bytes <= core.port.limits.max_inject;
        let joined = core.port.joins(bytes);
        let Some(origin) = self.origin(core, lane, from, injected, joined)? else { return Ok(false) };

        let opposite = core.comm.flows.receiver(to, self.class, lane);
        let ready = ReadyPut { sender, origin, bytes, record, whose: Whose::Collective(Some(lane)) };
        let operation = self.operation.info(to);
        core.put_to_slot(ready, opposite, |flow| CollectiveHeader { flow, len: narrow(from.len), operation })
    }

    /// Sends a message straight into the output of `to`, from its element `at` on; through a slot if the clear to send refuses
    /// that. False if there is no clear to send, no credit or no room yet.
    pub(crate) fn write(
        &mut self,
        core: &mut Core<'_>,
        lane: usize,
        (to, at): (Rank, usize),
        from: Span,
    ) -> Result<bool> {
        let Some(clear_to_send) = core.comm.mailbox.clear_to_send(to, self.operation.op()) else {
            return Ok(false);
        };
        core.comm.agree(&self.operation, to, &clear_to_send.operation)?;
        let Some((region, start)) = clear_to_send.remote() else { return self.put(core, lane, to, from) };
        let Some(sender) = core.comm.flows.sender(to, self.class, lane) else { return Ok(false) };
        let Some(record) = core.record(&core.comm.flows.senders[sender].writes) else { return Ok(false) };
        let size = self.operation.plan.size;
        let (bytes, at) = (from.len * size, (at * size) as u64);
        let end = at + bytes as u64;
        let offset = at.checked_sub(start).filter(|_| end <= start + region.len);
        let Some(offset) = offset else {
            let what =
                format!("bytes {start} to {} of an output where {at} to {end} belong", start + region.len);
            return Err(core.violation(to, what));
        };
        let injected = bytes <= core.port.limits.max_inject;
        let Some(mut origin) = self.origin(core, lane, from, injected, false)? else { return Ok(false) };
        origin.fetch = is_fetched_in(self.operation.plan.collective, self.operation.ranks, bytes);
        let ready = ReadyPut { sender, origin, bytes, record, whose: Whose::Collective(Some(lane)) };
        core.put_direct(ready, Target { region, offset })
    }

    /// The place that the bytes of a span are put from. They are staged if they must be registered and are not, if they lie in several
    /// places, or if a header must lie right before them. `None` if there is no staging slot yet.
    fn origin(
        &mut self,
        core: &mut Core<'_>,
        lane: usize,
        from: Span,
        injected: bool,
        joined: bool,
    ) -> Result<Option<PutOrigin>> {
        let bytes = from.len * self.operation.plan.size;
        let direct = bytes == 0 || injected || !core.port.limits.local_registration;
        let found = match self.locate(core.comm, lane, from) {
            _ if joined => None,
            Ok(Location::Region(region, offset)) => Some((region.clone(), offset)),
            Ok(Location::Operand(operand, at)) => {
                let found = operand.together(at, bytes, &Cell::new(0));
                found.filter(|it| it.registered || direct).map(|it| (it.region, it.offset))
            }
            // An empty span needs no memory.
            Err(_) if bytes == 0 => Some((self.operation.output.memory.region.clone(), 0)),
            Err(error) => return Err(core.stop(format!("a step's span {from:?}: {error}"))),
        };
        if let Some((region, offset)) = found {
            let hold = match from.place {
                Place::Landed(source) => core.comm.flows.receiver(source, self.class, lane),
                _ => None,
            };
            let hold = hold.and_then(|flow| Some((flow, core.comm.flows.receivers[flow].latest()?)));
            return Ok(Some(PutOrigin { hold, ..PutOrigin::new(region, offset) }));
        }
        // The source may still be staged for this put, which found no room before, or for the last one, unless a header lies right
        // before it.
        let again = self.lanes[lane].latest.filter(|(staged, _)| *staged == from && !joined);
        if self.lanes[lane].staged.is_none()
            && let Some((_, staged)) = again
            && core.port.posts.stage_again(staged)
        {
            self.lanes[lane].staged = Some(staged.slot);
        }
        if self.lanes[lane].staged.is_none() {
            let Some(taken) = core.port.posts.stage(&mut *core.port.transport)? else { return Ok(None) };
            let Some((region, at)) = core.port.posts.staged(taken.slot) else { return Ok(None) };
            let source = self.locate(core.comm, lane, from);
            let copied = source.and_then(|source| source.copy_to(Bytes::new(&region, at, bytes)?));
            copied.map_err(|error| core.stop(format!("a step's span {from:?}: {error}")))?;
            self.lanes[lane].staged = Some(taken.slot);
            self.lanes[lane].latest = Some((from, taken)).filter(|_| !joined);
        }
        let staging = self.lanes[lane].staged;
        let place = staging.and_then(|slot| core.port.posts.staged(slot));
        Ok(place.map(|(region, offset)| PutOrigin { staging, ..PutOrigin::new(region, offset) }))
    }
}
