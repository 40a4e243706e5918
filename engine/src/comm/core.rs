//! A communicator together with the port, for the work of an operation. Handles arrivals.

use unisono_core::error::Failure;
use unisono_schedule::{Rank, windows::stride};
use unisono_transport::{Error, Region, RemoteRegion};

use super::{
    communicator::Comm,
    flow::{OutgoingFlow, ProtocolViolation},
    flows::NONE,
    mailbox::ControlMessage,
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

/// A communicator together with the port.
pub(crate) struct Core<'e> {
    pub port: &'e mut Port,
    pub comm: &'e mut Comm,
}

impl Core<'_> {
    /// An operation begins: assigns its number.
    pub(crate) fn begin(&mut self, operation: &mut Operation) {
        let Self { port, comm } = self;
        port.operations += 1;
        comm.collectives.begin(operation, port.operations);
    }

    /// As [`Workspace::provide_scratch`](super::workspace::Workspace::provide_scratch).
    pub(crate) fn provide_scratch(&mut self, bytes: usize) -> Result<(), Stop> {
        Ok(self.comm.workspace.provide_scratch(&mut *self.port.transport, bytes)?)
    }

    /// As [`Workspace::provide_aside`](super::workspace::Workspace::provide_aside).
    pub(crate) fn provide_aside(&mut self, bytes: usize) -> Result<Region, Stop> {
        Ok(self.comm.workspace.provide_aside(&mut *self.port.transport, bytes)?)
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
        let end = &mut comm.flows.senders[sender];
        let before = end.bytes();
        let result = change(end);
        let (to, now) = (end.flow.to, end.bytes());
        port.in_flight(comm.identity.world(to), now, before);
        result
    }

    /// The put of this record has ended.
    pub(crate) fn sent(&mut self, record: &PutRecord) {
        let comm = &mut *self.comm;
        if record.message {
            return comm.messages.put_left(record.id);
        }
        comm.collectives.put_left(record.lane);
        if let Some((receiver, slot)) = record.hold {
            comm.flows.receivers[receiver].release(slot);
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
        let receiver = &mut comm.flows.receivers[flow];
        let from = receiver.from;
        let window = &comm.flows.windows[receiver.window];
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
            self.port.mark_active(comm.identity.comm_id);
        }
        let sender = comm.flows.sender(from, window.class, flow - window.first_flow);
        if let Some(sender) = sender {
            let FlowHeader { freed, .. } = comm.flows.header(flow, slot)?;
            let credit = self.sending(sender, |end| end.flow.credit(freed));
            credit.map_err(|violation| self.violation(from, violation.0))?;
        }
        self.comm.owe(flow, Way::Slots);
        Ok(())
    }

    /// A write has landed in this rank's memory.
    pub(crate) fn write_arrived(&mut self, flow: usize, number: u16) -> Result<(), Stop> {
        let message = self.comm.flows.is_message(&self.comm.flows.landings[flow]);
        if message {
            let written = &mut self.comm.messages.written;
            if !written.contains(&flow) {
                written.push(flow);
                self.port.mark_active(self.comm.identity.comm_id);
            }
        } else if !self.comm.collectives.exposed {
            let what = "a write into an output that nobody was allowed to write to".to_owned();
            return Err(self.port.forged(what));
        }
        let arrived = self.comm.flows.landings[flow].arrive(number);
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
        self.comm.flows.senders[sender].credits = self.comm.flows.senders[sender].credits.wrapping_add(1);
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
        if self.comm.shutdown.left && about != ControlKind::End {
            // The member may not know that this rank has left.
            self.comm.meets(from)?;
        }
        match about {
            ControlKind::Window(class) => {
                self.window_arrived(from, class, self.comm.mailbox.received_part(from, about)?)
            }
            // A member has a message from point to point: its window is opened.
            ControlKind::MismatchProbe(WindowClass::Message) => {
                self.port.mark_active(self.comm.identity.comm_id);
                self.listen(from, WindowClass::Message)
            }
            ControlKind::MismatchProbe(class) => {
                self.probe_arrived(from, class, self.comm.mailbox.received_part(from, about)?)
            }
            ControlKind::Read => {
                if std::mem::take(&mut self.comm.mailbox.peers[from].unread) {
                    return Ok(());
                }
                let what = "word that a mismatch probe was read, where none was sent".to_owned();
                Err(self.port.forged(what))
            }
            ControlKind::Close(class) => {
                self.close_arrived(from, class, self.comm.mailbox.received_part(from, about)?)
            }
            ControlKind::Answer(class) => {
                self.answer_arrived(from, class, self.comm.mailbox.received_part(from, about)?)
            }
            ControlKind::Handshake => {
                self.take_handshake(from, self.comm.mailbox.received_part(from, about)?)
            }
            ControlKind::End => {
                self.comm.identity.members[from].ended = Some(self.comm.mailbox.received_part(from, about)?);
                Ok(())
            }
            ControlKind::ClearToSend => {
                let clear_to_send: ClearToSend = self.comm.mailbox.received_part(from, about)?;
                if clear_to_send.remote().is_some_and(|(part, start)| start.checked_add(part.len).is_none()) {
                    let what = "a clear to send for more than can be addressed".to_owned();
                    return Err(self.violation(from, what));
                }
                if !self.comm.mailbox.keep_clear_to_send(from, clear_to_send) {
                    let what = format!(
                        "a third clear to send of rank {} for one operation",
                        self.comm.identity.world(from)
                    );
                    return Err(self.port.forged(what));
                }
                // If the window is unknown, nothing was sent that could be credited.
                let Some(sender) = self.comm.flows.sender(from, WindowClass::Bulk, 0) else { return Ok(()) };
                let (written, sent) = (clear_to_send.written, clear_to_send.freed);
                let credit = self.credited(sender, Way::Direct, (written & 0xffff) as u16);
                let credit = credit.and_then(|()| self.credited(sender, Way::Slots, (sent & 0xffff) as u16));
                credit.map_err(|violation| self.violation(from, violation.0))
            }
        }
    }

    /// A mismatch probe has arrived.
    fn probe_arrived(&mut self, from: Rank, class: WindowClass, info: OperationInfo) -> Result<(), Stop> {
        let Self { port, comm } = self;
        if !comm.mailbox.keep_probe(from, class, info) {
            let what = format!("a mismatch probe of op {} after one of a later or the same", info.number);
            return Err(port.forged(what));
        }
        // A member that knows the end may be gone.
        if comm.shutdown.is_end_known() {
            return Ok(());
        }
        comm.mailbox.queue.push_back((from, ControlMessage::Part(ControlKind::Read)));
        if comm.mailbox.has_queued() {
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
        if !agreed || comm.flows.outgoing[from][class.index()] != NONE {
            let what = format!("a window of class {class:?} that does not fit or came twice: {window:?}");
            return Err(self.violation(from, what));
        }
        let closed = comm.flows.closed_senders.iter().position(|(to, of, _)| (*to, *of) == (from, class));
        let closed = closed.map(|at| comm.flows.closed_senders.swap_remove(at).2);
        let sender = closed.unwrap_or(comm.flows.senders.len());
        let Some(reply) = port.outgoing.take(comm.identity.comm_id, sender, lanes) else {
            return Err(port.stop(format!(
                "a window of rank {}: its {lanes} flows would be more than the {MAX_FLOWS} that this process can send \
                 on; use fewer lanes",
                comm.identity.world(from)
            )));
        };
        comm.meets(from)?;
        comm.flows.outgoing[from][class.index()] = narrow(sender);
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
            match comm.flows.senders.get_mut(sender + lane) {
                Some(before) => {
                    end.flow = end.flow.following(&before.flow);
                    end.writes = end.writes.following(&before.writes);
                    *before = end;
                }
                None => comm.flows.senders.push(end),
            }
        }
        Ok(())
    }

    /// A handshake has arrived. A rank of another host sends two, in any order: the pattern, and a large message, which does not lie in
    /// the mailbox.
    fn take_handshake(&mut self, from: Rank, handshake: Handshake) -> Result<(), Stop> {
        let wanted = Handshake::new(from, self.comm.identity.me, handshake.area, handshake.slots).pattern;
        let seen = handshake.pattern;
        let member = &mut self.comm.identity.members[from];
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
        for (index, from, class) in comm.flows.opened() {
            port.expect_no_more(
                comm.identity.world(from),
                (comm.identity.comm_id, index),
                comm.settings.arrivals(class),
            );
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
        for (number, lanes) in comm.flows.listens() {
            port.incoming.give_back(number, lanes);
        }
        for (number, class) in comm.flows.speaks() {
            port.outgoing.give_back(number, comm.settings.window(class).0);
        }
        for sender in &comm.flows.senders {
            port.in_flight(comm.identity.world(sender.flow.to), 0, sender.bytes());
        }
    }

    /// The failure for a message of a member that breaks the protocol.
    #[cold]
    pub(crate) fn violation(&self, from: Rank, what: String) -> Stop {
        let from = self.comm.identity.world(from);
        Failure::Protocol { rank: self.port.me, from, what }.into()
    }

    #[cold]
    pub(crate) fn stop(&self, reason: String) -> Stop {
        self.port.stop(reason)
    }
}
