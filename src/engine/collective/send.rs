//! How a lane sends: through a slot of the receiver, or straight into its output.

use unisono_schedule::{Place, Rank, Span, windows::stride};
use unisono_transport::{Region, Target};

use super::run::Run;
use crate::{
    buffer::{self, Bytes},
    engine::{
        access,
        comm::{Core, Origin, Ready, Whose},
        stop::Stop,
        wire::{HEADER, Immediate, PAYLOAD, Way},
    },
    error::Failure,
};

impl Run {
    /// Sends a message to a slot. False if there is no window, no credit or no room yet.
    pub(crate) fn put(
        &mut self,
        core: &mut Core<'_>,
        lane: usize,
        to: Rank,
        from: Span,
    ) -> Result<bool, Stop> {
        let Some(sender) = core.comm.sender(to, self.class, lane) else {
            core.probe_mismatch(to, self.class, &self.operation.info())?;
            return Ok(false);
        };
        // This message may be the last that its receiver awaits before it closes: no control message may come after it.
        if core.comm.shutting_down && !core.comm.control_completed() {
            return Ok(false);
        }
        let Some(number) = core.comm.senders[sender].flow.next() else { return Ok(false) };
        let Some(record) = core.port.posts.vacant() else { return Ok(false) };
        let bytes = from.len * self.operation.size;
        let slot_bytes = core.comm.senders[sender].slot_bytes;
        if bytes > slot_bytes {
            return Err(core.stop(format!("a message of {bytes} bytes for slots of {slot_bytes}")));
        }
        let injected = HEADER + bytes <= core.port.limits.max_inject;
        let joined = core.port.joins(bytes);
        let Some(origin) = self.origin(core, lane, from, (injected, joined))? else { return Ok(false) };

        let opposite = core.comm.receiver(to, self.class, lane);
        let freed = opposite.map_or(0, |flow| core.comm.receivers[flow].freed());
        let header = self.operation.header(freed, core.comm.senders[sender].reply, from.len);
        let (headers, at) = core.port.posts.header(record);
        access::store(headers, at, &header)?;

        let flow = &core.comm.senders[sender].flow;
        let slot = flow.first + flow.slot(number) * stride(slot_bytes) as u64;
        let target =
            Target { region: core.comm.senders[sender].region, offset: slot + (PAYLOAD - HEADER) as u64 };
        let immediate = Immediate::Data { flow: flow.id, way: Way::Slots, number: (number & 0xffff) as u16 };
        let whose = Whose::Lane { lane };
        if !core.post(Ready { to, origin, bytes, record, header: true, target, immediate, whose })? {
            return Ok(false);
        }
        core.sending(sender, |end| end.flow.advance(HEADER + bytes));
        if let Some(flow) = opposite {
            core.comm.receivers[flow].answer();
        }
        Ok(true)
    }

    /// Sends a message straight into the output of `to`, from its element `at` on; through a slot if that rank
    /// does not allow it. False if that is not known yet, or there is no credit or no room.
    pub(crate) fn write(
        &mut self,
        core: &mut Core<'_>,
        lane: usize,
        (to, at): (Rank, usize),
        from: Span,
    ) -> Result<bool, Stop> {
        let Some(clear_to_send) = core.comm.clear_to_send(to, self.operation.op()) else { return Ok(false) };
        self.operation
            .agree(core.port.me, core.comm.world(to), &clear_to_send.operation)
            .map_err(Stop::from)?;
        let Some(region) = clear_to_send.remote() else { return self.put(core, lane, to, from) };
        let Some(sender) = core.comm.sender(to, self.class, lane) else { return Ok(false) };
        let Some(number) = core.comm.senders[sender].writes.next() else { return Ok(false) };
        let Some(record) = core.port.posts.vacant() else { return Ok(false) };
        let size = self.operation.size;
        let (bytes, offset) = (from.len * size, (at * size) as u64);
        if offset + bytes as u64 > region.len {
            return Err(Stop::from(Failure::Protocol {
                rank: core.port.me,
                from: core.comm.world(to),
                what: format!("an output of {} bytes where {} belong", region.len, offset + bytes as u64),
            }));
        }
        let injected = bytes <= core.port.limits.max_inject;
        let Some(origin) = self.origin(core, lane, from, (injected, false))? else { return Ok(false) };
        let immediate = Immediate::Data {
            flow: core.comm.senders[sender].writes.id,
            way: Way::Direct,
            number: (number & 0xffff) as u16,
        };
        let target = Target { region, offset };
        let whose = Whose::Lane { lane };
        if !core.post(Ready { to, origin, bytes, record, header: false, target, immediate, whose })? {
            return Ok(false);
        }
        core.sending(sender, |end| end.writes.advance(bytes));
        Ok(true)
    }

    /// Where the bytes of a span can be put from; staged, if they must be registered and are not, lie in several places, or
    /// are to be joined with a header. `None` if there is no room to stage them yet.
    fn origin(
        &mut self,
        core: &mut Core<'_>,
        lane: usize,
        from: Span,
        (injected, joined): (bool, bool),
    ) -> Result<Option<Origin>, Stop> {
        if let Place::Landed(source) = from.place
            && !joined
        {
            let (region, offset) = self.place(core, lane, from)?;
            let region = region.clone();
            let receiver = core.comm.receiver(source, self.class, lane);
            let hold = receiver.and_then(|flow| Some((flow, core.comm.receivers[flow].latest()?)));
            return Ok(Some(Origin { region, offset, hold, staging: None }));
        }
        // The engine's scratch is registered; what the caller borrowed may be, as a part of a region.
        let (here, (registered, base)) = match (from.place, &core.comm.scratch) {
            (Place::Input, _) => (&self.operation.input, part(&self.operation.registered_input)),
            (Place::Scratch, Some(scratch)) => (scratch, (Some(scratch), 0)),
            _ => (&self.operation.output, part(&self.operation.registered_output)),
        };
        let (bytes, offset) = (from.len * self.operation.size, from.offset * self.operation.size);
        let pieces = self.operation.scattered(&from);
        let direct = bytes == 0 || injected || !core.port.limits.local_registration;
        let origin = match (registered, pieces) {
            _ if joined => None,
            (Some(region), _) => Some((region.clone(), base + offset)),
            _ if !direct => None,
            (_, Some(pieces)) => pieces.together(offset, bytes).map(|region| (region, 0)),
            (_, None) => Some((here.clone(), if bytes == 0 { 0 } else { offset })),
        };
        if let Some((region, offset)) = origin {
            return Ok(Some(Origin { region, offset, hold: None, staging: None }));
        }
        // A put that found no room finds its source still staged. One that is joined has a header of its own there.
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
            let staged = Bytes::new(&region, at, bytes);
            let copied = match pieces {
                Some(pieces) => staged.and_then(|staged| pieces.gather(offset, staged)),
                None => {
                    let source = self.bytes(core, lane, from)?;
                    staged.and_then(|staged| buffer::copy(source, staged))
                }
            };
            copied.map_err(|error| core.stop(format!("a step's span {from:?}: {error}")))?;
            self.lanes[lane].staged = Some(taken.slot);
            self.lanes[lane].latest = Some((from, taken)).filter(|_| !joined);
        }
        let staging = self.lanes[lane].staged;
        let place = staging.and_then(|slot| core.port.posts.staged(slot));
        Ok(place.map(|(region, offset)| Origin { region, offset, hold: None, staging }))
    }
}

/// A region, if there is one, and where in it the part begins.
fn part(found: &Option<(Region, usize)>) -> (Option<&Region>, usize) {
    found.as_ref().map_or((None, 0), |(region, base)| (Some(region), *base))
}
