//! Control messages: small puts outside of any flow, into the mailboxes of peers.

use unisono_schedule::Rank;
use unisono_transport::{Notify, Posted, Put, RemoteRegion, Source, Target};

use super::{communicator::ControlMessage, core::Core};
use crate::engine::{
    access,
    endpoint::control_token,
    stop::Stop,
    wire::{Class, ClearToSend, Close, ControlKind, Entry, Immediate, OperationInfo, Window, hello},
};

/// The low 32 bits.
fn low(number: u64) -> u32 {
    (number & 0xffff_ffff) as u32
}

impl Core<'_> {
    /// Tells a peer, once in an operation for each class, of a message that waits for its window or its clear to send: if the
    /// two disagree on the operation, neither may ever come, and the header says why. It waits until the peer has read the
    /// one before; where it matters it is tried again. For [`Class::Message`] nobody reads the header.
    pub(crate) fn probe_mismatch(
        &mut self,
        to: Rank,
        class: Class,
        info: &OperationInfo,
    ) -> Result<(), Stop> {
        let comm = &mut *self.comm;
        let read = class != Class::Message;
        let member = &mut comm.members[to];
        if read && member.unread {
            return Ok(());
        }
        if member.probed_classes[class.index()].replace(info.number) != Some(info.number) {
            member.unread |= read;
            let at = to * size_of::<Entry>() + ControlKind::MismatchProbe(class).place();
            access::store(&comm.control, at, info)?;
            comm.control_queue.push_back((to, ControlMessage::MismatchProbe(class)));
        }
        Ok(())
    }

    /// Tells a peer, for the operation of this header, where it may write straight into this rank's output; or that
    /// it may not. It takes along the credit for what the peer has sent on the first lane, both ways.
    pub(crate) fn send_clear_to_send(
        &mut self,
        to: Rank,
        operation: OperationInfo,
        output: Option<RemoteRegion>,
    ) -> Result<(), Stop> {
        let RemoteRegion { base, key, len } = output.unwrap_or_default();
        let comm = &mut *self.comm;
        let first = comm.receiver(to, Class::Bulk, 0);
        let (mut written, mut freed) = (0, 0);
        if let Some(receiver) = first {
            let (landing, flow) = (&mut comm.landings[receiver], &mut comm.receivers[receiver]);
            (written, freed) = (low(landing.freed()), low(flow.freed()));
            // There may be many writes before the next one, but then no more than one message in a slot.
            landing.tell();
            flow.answer();
        }
        let writable = output.is_some().into();
        let clear_to_send = ClearToSend { operation, written, freed, writable, base, key, len };
        let at = to * size_of::<Entry>() + ControlKind::ClearToSend.place();
        access::store(&comm.control, at, &clear_to_send)?;
        comm.control_queue.push_back((to, ControlMessage::ClearToSend));
        Ok(())
    }

    /// Sends the self-test pattern to a neighbour.
    pub(crate) fn greet(&mut self, to: Rank) -> Result<(), Stop> {
        let at = to * size_of::<Entry>() + ControlKind::Hello.place();
        let comm = &mut *self.comm;
        access::store(&comm.control, at, &hello(comm.me, to))?;
        comm.control_queue.push_back((to, ControlMessage::Hello));
        Ok(())
    }

    /// Hands control messages to the transport, as many as it takes. True if any went.
    pub(crate) fn send_control(&mut self) -> Result<bool, Stop> {
        let Self { port, comm } = self;
        let mut any = false;
        for _ in 0..comm.control_queue.len() {
            let Some(&(to, message)) = comm.control_queue.front() else { break };
            let control_of_kind = |about: ControlKind, len| {
                (
                    about.place(),
                    len,
                    Immediate::ControlMessage { comm_id: comm.comm_id, from: comm.me, about },
                )
            };
            let (at, len, immediate) = match message {
                ControlMessage::Window(class) => {
                    control_of_kind(ControlKind::Window(class), size_of::<Window>())
                }
                ControlMessage::ClearToSend => {
                    control_of_kind(ControlKind::ClearToSend, size_of::<ClearToSend>())
                }
                ControlMessage::Hello => control_of_kind(ControlKind::Hello, 16),
                ControlMessage::End => control_of_kind(ControlKind::End, 8),
                ControlMessage::Close(class) => {
                    control_of_kind(ControlKind::Close(class), size_of::<Close>())
                }
                ControlMessage::Answer(class) => {
                    control_of_kind(ControlKind::Answer(class), size_of::<u64>())
                }
                ControlMessage::Read => control_of_kind(ControlKind::Read, 4),
                ControlMessage::MismatchProbe(class) => {
                    control_of_kind(ControlKind::MismatchProbe(class), size_of::<OperationInfo>())
                }
                ControlMessage::Credit(receiver, way) => {
                    let reply = comm.receivers[receiver].reply;
                    let flow = comm.incoming(receiver, way);
                    // Nothing may be owed any more: a message that went the other way has told it.
                    let (Some(reply), true) = (reply, flow.owes() || flow.stalls()) else {
                        comm.control_queue.pop_front();
                        continue;
                    };
                    let freed = (flow.freed() & 0xffff) as u16;
                    (std::mem::offset_of!(Entry, credit), 8, Immediate::Credit { flow: reply, way, freed })
                }
            };
            let copied = len <= port.limits.max_inject;
            let member = &comm.members[to];
            let (peer, immediate) = port.to(member.world, immediate)?;
            let put = Put {
                to: peer,
                sources: &[Source::new(&comm.control, to * size_of::<Entry>() + at, len)?],
                target: Target { region: member.mailbox, offset: (comm.me * size_of::<Entry>() + at) as u64 },
                immediate,
                token: control_token(comm.comm_id, copied),
                notify: Notify::Always,
            };
            let posted = access::put(&mut *port.transport, &put);
            if posted.map_err(|error| port.broken(error))? == Posted::Full {
                // One peer that is slow to connect must not hold up the others' control messages.
                comm.control_queue.rotate_left(1);
                continue;
            }
            port.sent(comm.world(to));
            comm.control_in_flight += usize::from(!copied);
            comm.control_copies_in_flight += usize::from(copied);
            if let ControlMessage::Credit(receiver, way) = message {
                comm.incoming(receiver, way).tell();
                let window = comm.receivers[receiver].window;
                comm.windows[window].credits = comm.windows[window].credits.wrapping_add(1);
            }
            comm.control_queue.pop_front();
            any = true;
        }
        Ok(any)
    }
}
