//! A communicator together with the port, for the work of an operation. Handles arrivals.

use unisono_core::error::Failure;
use unisono_schedule::{Rank, windows::stride};
use unisono_transport::{Error, Region, RemoteRegion};

use super::{
    communicator::{Comm, ControlMessage, recent},
    flow::{OutgoingFlow, ProtocolViolation},
    member::NONE,
    window::WindowSender,
};
use crate::memory;
use crate::{
    call::narrow,
    endpoint::{Port, PutRecord},
    request::Operation,
    stop::Stop,
    wire::{
        ClearToSend, ControlKind, FlowHeader, HEADER, Handshake, MAX_FLOWS, MAX_SLOTS, OperationInfo, Way,
        Window, WindowClass,
    },
};

/// The information that peers need to write into a part of a registered region, and the region.
pub(crate) fn expose_part(region: &Region, at: usize, len: usize) -> Option<(RemoteRegion, Region)> {
    let remote = region.remote()?;
    let part = RemoteRegion { base: remote.base + at as u64, len: len as u64, ..remote };
    Some((part, region.clone()))
}

/// The most bytes of the memory for inputs that are put aside that are kept for the next operation: fresh memory costs twice as much
/// as the copy into it.
const KEPT_ASIDE: usize = 64 << 20;

/// A communicator together with the port.
pub(crate) struct Core<'e> {
    pub port: &'e mut Port,
    pub comm: &'e mut Comm,
}

impl Core<'_> {
    /// An operation begins: assigns its number.
    pub(crate) fn begin(&mut self, operation: &mut Operation) {
        let Self { port, comm } = self;
        operation.number = comm.begun;
        comm.calls[recent(comm.begun)] = operation.signature;
        comm.begun += 1;
        port.operations += 1;
        comm.used = port.operations;
    }

    /// Provides scratch memory of at least this many bytes. Only between operations, while no put reads from it.
    pub(crate) fn provide_scratch(&mut self, bytes: usize) -> Result<(), Stop> {
        let comm = &mut *self.comm;
        if comm.scratch.as_ref().map_or(0, |scratch| scratch.len()) < bytes {
            comm.scratch = None;
            let bytes = bytes.next_power_of_two();
            comm.scratch = Some(self.port.transport.allocate(bytes)?);
        }
        Ok(())
    }

    /// Memory of at least this many bytes for the input of an operation that is put aside. Only between operations, as above.
    pub(crate) fn provide_aside(&mut self, bytes: usize) -> Result<Region, Stop> {
        let Self { port, comm } = self;
        let fits = |aside: &Region| aside.len() >= bytes;
        let aside = match comm.aside.take().filter(fits) {
            Some(aside) => aside,
            None => port.transport.allocate(bytes)?,
        };
        // A larger region is freed with the operation.
        comm.aside = Some(aside.clone()).filter(|aside| aside.len() <= KEPT_ASIDE);
        Ok(aside)
    }

    /// The information that peers need to write into borrowed memory, and the region to keep meanwhile. The memory lies in a registered
    /// buffer, or is registered for this operation if registration is cheap; otherwise `None`.
    pub(crate) fn expose(
        &mut self,
        memory: &Region,
        registered: Option<&(Region, usize)>,
    ) -> Result<Option<(RemoteRegion, Region)>, Error> {
        if let Some((region, at)) = registered {
            return Ok(expose_part(region, *at, memory.len()));
        }
        if !self.port.limits.cheap_registration {
            return Ok(None);
        }
        let region = self.port.transport.register(memory::expose(memory))?;
        Ok(expose_part(&region, 0, memory.len()))
    }

    /// Changes a sending end, and accounts for the change of its bytes in flight.
    pub(crate) fn sending<R>(&mut self, sender: usize, change: impl FnOnce(&mut WindowSender) -> R) -> R {
        let Self { port, comm } = self;
        let end = &mut comm.senders[sender];
        let before = end.bytes();
        let result = change(end);
        let (to, now) = (end.flow.to, end.bytes());
        port.in_flight(comm.world(to), now, before);
        result
    }

    /// The put of this record has ended.
    pub(crate) fn sent(&mut self, record: &PutRecord) {
        let comm = &mut *self.comm;
        if record.message {
            return comm.messages.put_left(record.id);
        }
        comm.under_way = comm.under_way.saturating_sub(1);
        if let Some(lane) = record.lane {
            comm.outstanding[lane] = comm.outstanding[lane].saturating_sub(1);
        }
        if let Some((receiver, slot)) = record.hold {
            comm.receivers[receiver].release(slot);
            comm.owe(receiver, Way::Slots);
        }
    }

    /// A message has landed in a slot. The credit in its header counts at once, not only when a lane takes the message: the lane may be
    /// waiting for that credit.
    pub(crate) fn message_arrived(
        &mut self,
        flow: usize,
        number: u16,
        len: Option<usize>,
    ) -> Result<(), Stop> {
        let comm = &mut *self.comm;
        let receiver = &mut comm.receivers[flow];
        let from = receiver.from;
        let window = &comm.windows[receiver.window];
        if let Some(len) = len.filter(|len| !(HEADER..=HEADER + window.slot_bytes).contains(len)) {
            let what =
                format!("a message of {len} bytes, in a slot for {HEADER} to {}", HEADER + window.slot_bytes);
            return Err(self.port.forged(what));
        }
        let slot = match receiver.arrive(number) {
            Ok(slot) => slot,
            Err(violation) => return Err(self.port.forged(violation.0)),
        };
        if window.class == WindowClass::Message && !comm.messages.arrived.contains(&flow) {
            comm.messages.arrived.push(flow);
            self.port.mark_active(comm.comm_id);
        }
        let sender = comm.sender(from, window.class, flow - window.first_flow);
        if let Some(sender) = sender {
            let FlowHeader { freed, .. } = comm.header(flow, slot)?;
            let credit = self.sending(sender, |end| end.flow.credit(freed));
            credit.map_err(|violation| self.violation(from, violation.0))?;
        }
        self.comm.owe(flow, Way::Slots);
        Ok(())
    }

    /// A write has landed in this rank's memory.
    pub(crate) fn write_arrived(&mut self, flow: usize, number: u16) -> Result<(), Stop> {
        let message = self.comm.is_message(&self.comm.landings[flow]);
        if message {
            let written = &mut self.comm.messages.written;
            if !written.contains(&flow) {
                written.push(flow);
                self.port.mark_active(self.comm.comm_id);
            }
        } else if !self.comm.exposed {
            let what = "a write into an output that nobody was allowed to write to".to_owned();
            return Err(self.port.forged(what));
        }
        let arrived = self.comm.landings[flow].arrive(number);
        arrived.map_err(|violation| self.port.forged(violation.0))?;
        self.comm.owe(flow, Way::Direct);
        Ok(())
    }

    /// A control message of credit has arrived.
    pub(crate) fn credit_arrived(
        &mut self,
        sender: usize,
        way: Way,
        freed: u16,
    ) -> Result<(), ProtocolViolation> {
        self.comm.senders[sender].credits = self.comm.senders[sender].credits.wrapping_add(1);
        self.credited(sender, way, freed)
    }

    fn credited(&mut self, sender: usize, way: Way, freed: u16) -> Result<(), ProtocolViolation> {
        self.sending(sender, |end| match way {
            Way::Slots => end.flow.credit(freed),
            Way::Direct => end.writes.credit(freed),
        })
    }

    /// A control message of a member has arrived.
    pub(crate) fn control_arrived(&mut self, from: Rank, about: ControlKind) -> Result<(), Stop> {
        if self.comm.left && about != ControlKind::End {
            // The member may not know that this rank has left.
            self.comm.meets(from)?;
        }
        match about {
            ControlKind::Window(class) => {
                self.window_arrived(from, class, self.comm.received_part(from, about)?)
            }
            // A member has a message from point to point: its window is opened.
            ControlKind::MismatchProbe(WindowClass::Message) => {
                self.port.mark_active(self.comm.comm_id);
                self.listen(from, WindowClass::Message)
            }
            ControlKind::MismatchProbe(class) => {
                self.probe_arrived(from, class, self.comm.received_part(from, about)?)
            }
            ControlKind::Read => {
                if std::mem::take(&mut self.comm.members[from].unread) {
                    return Ok(());
                }
                let what = "word that a mismatch probe was read, where none was sent".to_owned();
                Err(self.port.forged(what))
            }
            ControlKind::Close(class) => {
                self.close_arrived(from, class, self.comm.received_part(from, about)?)
            }
            ControlKind::Answer(class) => {
                self.answer_arrived(from, class, self.comm.received_part(from, about)?)
            }
            ControlKind::Handshake => self.take_handshake(from, self.comm.received_part(from, about)?),
            ControlKind::End => {
                self.comm.members[from].ended = Some(self.comm.received_part(from, about)?);
                Ok(())
            }
            ControlKind::ClearToSend => {
                let clear_to_send: ClearToSend = self.comm.received_part(from, about)?;
                if clear_to_send.remote().is_some_and(|(part, start)| start.checked_add(part.len).is_none()) {
                    let what = "a clear to send for more than can be addressed".to_owned();
                    return Err(self.violation(from, what));
                }
                if !self.comm.keep_clear_to_send(from, clear_to_send) {
                    let what =
                        format!("a third clear to send of rank {} for one operation", self.comm.world(from));
                    return Err(self.port.forged(what));
                }
                // If the window is unknown, nothing was sent that could be credited.
                let Some(sender) = self.comm.sender(from, WindowClass::Bulk, 0) else { return Ok(()) };
                let (written, sent) = (clear_to_send.written, clear_to_send.freed);
                let credit = self.credited(sender, Way::Direct, (written & 0xffff) as u16);
                let credit = credit.and_then(|()| self.credited(sender, Way::Slots, (sent & 0xffff) as u16));
                credit.map_err(|violation| self.violation(from, violation.0))
            }
        }
    }

    /// A mismatch probe has arrived. Only the latest of a peer counts: it has ended its earlier operations.
    fn probe_arrived(&mut self, from: Rank, class: WindowClass, info: OperationInfo) -> Result<(), Stop> {
        let Self { port, comm } = self;
        let before = comm.members[from].probed.replace(info.number);
        if before.is_some_and(|before| info.number.wrapping_sub(before).wrapping_sub(1) >= 1 << 31) {
            let what = format!("a mismatch probe of op {} after one of a later or the same", info.number);
            return Err(port.forged(what));
        }
        comm.mismatch_probes.retain(|(it, ..)| *it != from);
        comm.mismatch_probes.push((from, class, info));
        // A member that knows the end may be gone.
        if comm.left || comm.end_told || comm.shutting_down {
            return Ok(());
        }
        comm.control_queue.push_back((from, ControlMessage::Part(ControlKind::Read)));
        if comm.has_control() {
            self.send_control()?;
        }
        Ok(())
    }

    fn window_arrived(&mut self, from: Rank, class: WindowClass, window: Window) -> Result<(), Stop> {
        let Self { port, comm } = self;
        let (lanes, slots, slot_bytes) = comm.settings.window(class);
        let stride = stride(slot_bytes) as u64;
        let agreed = window.magic == Window::MAGIC
            && window.lanes as usize == lanes
            && window.slots as usize == slots
            && slots <= MAX_SLOTS
            && window.slot_bytes as usize == slot_bytes
            && window.first_flow as usize + lanes <= MAX_FLOWS
            && window.remote().len >= (lanes * slots) as u64 * stride;
        if !agreed || comm.members[from].outgoing[class.index()] != NONE {
            let what = format!("a window of class {class:?} that does not fit or came twice: {window:?}");
            return Err(self.violation(from, what));
        }
        let closed = comm.closed_senders.iter().position(|(to, of, _)| (*to, *of) == (from, class));
        let closed = closed.map(|at| comm.closed_senders.swap_remove(at).2);
        let sender = closed.unwrap_or(comm.senders.len());
        let Some(reply) = port.outgoing.take(comm.comm_id, sender, lanes) else {
            return Err(port.stop(format!(
                "a window of rank {}: its {lanes} flows would be more than the {MAX_FLOWS} that this process can send \
                 on; use fewer lanes",
                comm.world(from)
            )));
        };
        comm.meets(from)?;
        comm.members[from].outgoing[class.index()] = narrow(sender);
        for lane in 0..lanes {
            let id = window.first_flow + narrow(lane);
            let first = (lane * slots) as u64 * stride;
            let mut end = WindowSender {
                flow: OutgoingFlow::new(from, id, first, slots as u64),
                reply: reply + lane,
                region: window.remote(),
                slot_bytes,
                writes: OutgoingFlow::new(from, id, 0, comm.settings.writes() as u64),
                credits: 0,
            };
            match comm.senders.get_mut(sender + lane) {
                Some(before) => {
                    end.flow = end.flow.following(&before.flow);
                    end.writes = end.writes.following(&before.writes);
                    *before = end;
                }
                None => comm.senders.push(end),
            }
        }
        Ok(())
    }

    /// A handshake has arrived. A rank of another host sends two, in any order: the pattern, and a large message, which does not lie in
    /// the mailbox.
    fn take_handshake(&mut self, from: Rank, handshake: Handshake) -> Result<(), Stop> {
        let wanted = Handshake::new(from, self.comm.me, handshake.area, handshake.slots).pattern;
        let seen = handshake.pattern;
        let member = &mut self.comm.members[from];
        let first = seen == wanted && !member.handshake_arrived;
        if first {
            member.handshake_arrived = true;
            // A rank that cannot receive large handshakes does not send them either.
            member.large_due &= RemoteRegion::from_words(handshake.area).len > 0;
        }
        // This message may have overwritten the handshake before this rank read it.
        if let Some(slots) = handshake.remote().filter(|_| seen == wanted) {
            return match *member.slots.get_or_insert(slots) == slots {
                true => Ok(()),
                false => Err(self.violation(from, "other shared slots than before".to_owned())),
            };
        }
        if !first && !std::mem::take(&mut member.large_due) {
            let what = match seen == wanted {
                true => return Err(self.port.forged(format!("a handshake of rank {from} that was not due"))),
                false => {
                    format!(
                        "the handshake pattern {seen:x?} where {wanted:x?} was due: the provider corrupts puts"
                    )
                }
            };
            return Err(self.violation(from, what));
        }
        Ok(())
    }

    /// This rank has left the communicator: nothing arrives through its windows, though members may not have left yet.
    pub(crate) fn expect_none(&mut self) {
        let Self { port, comm } = self;
        for (index, from, class) in comm.opened() {
            port.expect_no_more(comm.world(from), (comm.comm_id, index), comm.settings.arrivals(class));
        }
    }

    /// This rank has left the communicator, and so have the members that it has exchanged anything with.
    pub(crate) fn vacate(&mut self) {
        self.take_back();
        self.comm.vacate();
    }

    /// The communicator has ended: gives back the numbers of its flows.
    pub(crate) fn take_back(&mut self) {
        self.expect_none();
        let Self { port, comm } = self;
        for (number, lanes) in comm.listens() {
            port.incoming.give_back(number, lanes);
        }
        for (number, lanes) in comm.speaks() {
            port.outgoing.give_back(number, lanes);
        }
        for sender in &comm.senders {
            port.in_flight(comm.world(sender.flow.to), 0, sender.bytes());
        }
    }

    /// The failure for a message of a member that breaks the protocol.
    #[cold]
    pub(crate) fn violation(&self, from: Rank, what: String) -> Stop {
        let from = self.comm.world(from);
        Failure::Protocol { rank: self.port.me, from, what }.into()
    }

    #[cold]
    pub(crate) fn stop(&self, reason: String) -> Stop {
        self.port.stop(reason)
    }
}
