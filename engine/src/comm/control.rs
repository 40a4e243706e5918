//! Control messages: small puts outside of any flow, into the mailboxes of peers.

use std::{mem::offset_of, ops::Range};

use unisono_schedule::Rank;
use unisono_transport::{Notify, Posted, Put, RemoteRegion, Source, Target};

use super::{core::Core, mailbox::ControlMessage};
use crate::{
    access,
    endpoint::control_token,
    stop::Stop,
    wire::{ClearToSend, ControlKind, Immediate, MailboxEntry, OperationInfo, WindowClass, low},
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
    pub(crate) fn probe_mismatch(
        &mut self,
        to: Rank,
        class: WindowClass,
        info: &OperationInfo,
    ) -> Result<(), Stop> {
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
        operation: OperationInfo,
        output: Option<(RemoteRegion, u64)>,
    ) -> Result<(), Stop> {
        let start = output.map_or(0, |(_, offset)| offset + 1);
        let part = output.unwrap_or_default().0.words();
        let comm = &mut *self.comm;
        let first = comm.flows.receiver(to, WindowClass::Bulk, 0);
        let (mut written, mut freed) = (0, 0);
        if let Some(receiver) = first {
            let (landing, flow) = (&mut comm.flows.landings[receiver], &mut comm.flows.receivers[receiver]);
            (written, freed) = (low(landing.freed()), low(flow.freed()));
            // Before the next clear to send there may be many writes, but at most one message in a slot.
            landing.tell();
            flow.answer();
        }
        let clear_to_send = ClearToSend { operation, written, freed, start, part };
        Ok(comm.mailbox.send(to, ControlKind::ClearToSend, clear_to_send)?)
    }

    /// Hands the queued control messages to the transport, as many as it takes. True if it took any.
    pub(crate) fn send_control(&mut self) -> Result<bool, Stop> {
        let Self { port, comm } = self;
        let mut any = false;
        for _ in 0..comm.mailbox.queue.len() {
            let Some(&(to, message)) = comm.mailbox.queue.front() else { break };
            let (part, immediate) = match message {
                ControlMessage::Part(about) => {
                    let immediate = Immediate::ControlMessage {
                        comm_id: comm.identity.comm_id,
                        from: comm.identity.me,
                        about,
                    };
                    (about.part(), immediate)
                }
                ControlMessage::Credit(receiver, way) => {
                    let reply = comm.flows.receivers[receiver].reply;
                    let flow = comm.flows.incoming(receiver, way);
                    // A message in the opposite direction may have taken the credit along.
                    let (Some(reply), true) = (reply, flow.owes() || flow.stalls()) else {
                        comm.mailbox.queue.pop_front();
                        continue;
                    };
                    let freed = (flow.freed() & 0xffff) as u16;
                    (CREDIT, Immediate::Credit { flow: reply, way, freed })
                }
            };
            let copied = part.len() <= port.limits.max_inject;
            let world = comm.identity.world(to);
            let (peer, immediate) = port.to(world, immediate)?;
            let put = Put {
                to: peer,
                sources: &[Source::new(
                    &comm.mailbox.sources,
                    to * size_of::<MailboxEntry>() + part.start,
                    part.len(),
                )?],
                target: Target {
                    region: comm.mailbox.peers[to].remote,
                    offset: (comm.identity.me * size_of::<MailboxEntry>() + part.start) as u64,
                },
                immediate,
                token: control_token(comm.identity.comm_id, copied),
                notify: Notify::Always,
            };
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
}
