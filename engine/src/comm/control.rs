//! Control messages: small puts outside of any flow, into the mailboxes of peers. Sends them, and handles those that arrive.

use std::{mem::offset_of, ops::Range};

use unisono_schedule::Rank;
use unisono_transport::{Notify, Posted, Put, RemoteRegion, Source, Target};

use super::{core::Core, mailbox::ControlMessage};
use crate::{
    access,
    call::Signature,
    endpoint::control_token,
    stop::Result,
    wire::{ClearToSend, ControlKind, FlowWay, Handshake, Immediate, MailboxEntry, WindowClass, low},
};

/// The part of an entry that credits are written to. Only their immediate counts.
const CREDIT: Range<usize> = {
    let at = offset_of!(MailboxEntry, credit);
    at..at + size_of::<u64>()
};

impl Core<'_> {
    /// Sends a mismatch probe, once in an operation for each class: a message for the peer waits for a window or a clear to send. If
    /// the two ranks disagree on the operation, these may never arrive, and the probe shows the difference. If the peer has not read
    /// the last probe, the caller tries again later. For [`WindowClass::Message`] the peer reads the immediate only.
    pub(crate) fn probe_mismatch(&mut self, to: Rank, class: WindowClass, info: &Signature) -> Result<()> {
        let comm = &mut *self.comm;
        let read = class != WindowClass::Message;
        let peer = &mut comm.mailbox.peers[to];
        if read && peer.unread {
            return Ok(());
        }
        if peer.probed_classes[class.index()].replace(info.number) != Some(info.number) {
            peer.unread |= read;
            comm.mailbox.send(to, ControlKind::MismatchProbe(class), *info)?;
        }
        Ok(())
    }

    /// Sends a clear to send: where a peer may write into this rank's output in this operation (a region, and its offset in the
    /// output), or that it may not. It also carries the credit for the first lane of both ways.
    pub(crate) fn send_clear_to_send(
        &mut self,
        to: Rank,
        operation: Signature,
        output: Option<(RemoteRegion, u64)>,
    ) -> Result<()> {
        let start = output.map_or(0, |(_, offset)| offset + 1);
        let part = output.unwrap_or_default().0.words();
        let comm = &mut *self.comm;
        let first = comm.flows.receiver(to, WindowClass::Bulk, 0);
        let (mut written, mut freed) = (0, 0);
        if let Some(receiver) = first {
            let (landing, flow) = (&mut comm.flows.landings[receiver], &mut comm.flows.receivers[receiver]);
            (written, freed) = (low(landing.freed), low(flow.freed));
            // Before the next clear to send there may be many writes, but at most one message in a slot.
            landing.tell();
            flow.answer();
        }
        let clear_to_send = ClearToSend { operation, written, freed, start, part };
        Ok(comm.mailbox.send(to, ControlKind::ClearToSend, clear_to_send)?)
    }

    /// Hands the queued control messages to the transport, as many as it takes. True if it took any.
    pub(crate) fn send_control(&mut self) -> Result<bool> {
        let Self { port, comm } = self;
        let mut any = false;
        for _ in 0..comm.mailbox.queue.len() {
            let Some(&(to, message)) = comm.mailbox.queue.front() else { break };
            let (part, immediate) = match message {
                ControlMessage::MessagePart(about) => (about.part(), comm.identity.immediate(about)),
                ControlMessage::Credit(receiver, way) => {
                    let reply = comm.flows.receivers[receiver].reply;
                    let flow = comm.flows.incoming(receiver, way);
                    // A message in the opposite direction may have taken the credit along.
                    let (Some(reply), true) = (reply, flow.owes() || flow.stalls()) else {
                        comm.mailbox.queue.pop_front();
                        continue;
                    };
                    let freed = (flow.freed & 0xffff) as u16;
                    (CREDIT, Immediate::Credit { flow: reply, way, freed })
                }
            };
            let copied = part.len() <= port.limits.max_inject;
            let world = comm.identity.world(to);
            let (peer, immediate) = port.to(world, immediate)?;
            let (region, entry) = (comm.mailbox.peers[to].remote, size_of::<MailboxEntry>());
            let sources = &[Source::new(&comm.mailbox.sources, to * entry + part.start, part.len())?];
            let target = Target { region, offset: (comm.identity.me * entry + part.start) as u64 };
            let token = control_token(comm.identity.comm_id, copied);
            let put =
                Put { to: peer, sources, target, immediate, token, notify: Notify::Always, fetch: false };
            let posted = access::put(&mut *port.transport, &put);
            if posted.map_err(|error| port.broken(error))? == Posted::Full {
                // A peer that is slow to connect must not delay control messages to the others.
                comm.mailbox.queue.rotate_left(1);
                continue;
            }
            port.sent(world);
            comm.mailbox.put(copied);
            if let ControlMessage::Credit(receiver, way) = message {
                comm.flows.incoming(receiver, way).tell();
                let window = comm.flows.receivers[receiver].window;
                comm.flows.windows[window].credits = comm.flows.windows[window].credits.wrapping_add(1);
            }
            comm.mailbox.queue.pop_front();
            any = true;
        }
        Ok(any)
    }

    /// Credit of a peer has arrived.
    pub(super) fn credited(&mut self, sender: usize, way: FlowWay, freed: u16) -> Result<(), String> {
        self.sending(sender, |end| match way {
            FlowWay::Slots => end.flow.credit(freed),
            FlowWay::Direct => end.writes.credit(freed),
        })
    }

    /// A control message of a member has arrived.
    pub(crate) fn control_arrived(&mut self, from: Rank, about: ControlKind) -> Result<()> {
        if self.comm.shutdown.has_left() && about != ControlKind::End {
            // The member may not know that this rank has left.
            self.comm.note_flow(from)?;
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
                Err(self.port.forged("word that a mismatch probe was read, where none was sent"))
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
                    return Err(self.violation(from, "a clear to send for more than can be addressed"));
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
                let credit = self.credited(sender, FlowWay::Direct, (written & 0xffff) as u16);
                let credit =
                    credit.and_then(|()| self.credited(sender, FlowWay::Slots, (sent & 0xffff) as u16));
                credit.map_err(|violation| self.violation(from, violation))
            }
        }
    }

    /// A mismatch probe has arrived.
    fn probe_arrived(&mut self, from: Rank, class: WindowClass, info: Signature) -> Result<()> {
        let Self { port, comm } = self;
        if !comm.mailbox.keep_probe(from, class, info) {
            let what = format!("a mismatch probe of op {} after one of a later or the same", info.number);
            return Err(port.forged(what));
        }
        // A member that knows the end may be gone.
        if comm.shutdown.is_end_known() {
            return Ok(());
        }
        comm.mailbox.queue.push_back((from, ControlMessage::MessagePart(ControlKind::Read)));
        if comm.mailbox.has_queued() {
            self.send_control()?;
        }
        Ok(())
    }

    /// A handshake has arrived. A rank of another host sends two, in any order: the pattern, and a large message, which does not lie in
    /// the mailbox.
    fn take_handshake(&mut self, from: Rank, handshake: Handshake) -> Result<()> {
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
                false => Err(self.violation(from, "other shared slots than before")),
            };
        }
        if first || std::mem::take(&mut member.large_due) {
            return Ok(());
        }
        if seen == wanted {
            return Err(self.port.forged(format!("a handshake of rank {from} that was not due")));
        }
        let what =
            format!("the handshake pattern {seen:x?} where {wanted:x?} was due: the provider corrupts puts");
        Err(self.violation(from, what))
    }
}
