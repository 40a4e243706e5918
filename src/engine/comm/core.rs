//! What an operation works with: its group and the port. Here windows are opened, and arrivals come in.

use unisono_schedule::{Rank, windows::stride};
use unisono_transport::{Error, Memory, Region, RemoteRegion};

use super::{
    communicator::{Comm, ControlMessage, recent},
    flow::{Outgoing, Violation},
    member::NONE,
    window::Sender,
};
use crate::{
    buffer,
    engine::{
        endpoint::{Port, Record},
        request::Operation,
        stop::Stop,
        wire::{
            Class, ClearToSend, ControlKind, FlowHeader, HEADER, MAX_FLOWS, MAX_SLOTS, OperationInfo, Way,
            Window, hello,
        },
    },
    error::Failure,
};

/// A group together with the port it works through.
pub(crate) struct Core<'e> {
    pub port: &'e mut Port,
    pub comm: &'e mut Comm,
}

fn narrow(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

impl Core<'_> {
    /// An operation begins: it gets its number.
    pub(crate) fn begin(&mut self, operation: &mut Operation) {
        let Self { port, comm } = self;
        operation.number = comm.begun;
        comm.calls[recent(comm.begun)] = operation.signature;
        comm.begun += 1;
        port.operations += 1;
        comm.used = port.operations;
    }

    /// Makes sure that there is so much scratch. Only between operations, when no put reads from it.
    pub(crate) fn provide_scratch(&mut self, bytes: usize) -> Result<(), Stop> {
        let comm = &mut *self.comm;
        if comm.scratch.as_ref().map_or(0, |scratch| scratch.len()) < bytes {
            comm.scratch = None;
            let memory = Memory::map(bytes.next_power_of_two(), comm.settings.huge_pages)?;
            comm.scratch = Some(self.port.transport.register(memory)?);
        }
        Ok(())
    }

    /// What peers need to write into memory that was borrowed; registered for the time alone where that costs next to nothing,
    /// if it does not lie in a registered buffer. `None` where it is not to be had.
    pub(crate) fn expose(
        &mut self,
        memory: &Region,
        registered: Option<&(Region, usize)>,
    ) -> Result<Option<(RemoteRegion, Region)>, Error> {
        let len = memory.len() as u64;
        let (region, at) = match registered {
            Some((region, at)) => (region.clone(), *at as u64),
            None if !self.port.limits.cheap_registration => return Ok(None),
            None => (self.port.transport.register(buffer::expose(memory))?, 0),
        };
        let remote = region.remote();
        Ok(remote.map(|remote| (RemoteRegion { base: remote.base + at, len, ..remote }, region)))
    }

    /// Does something to a sending end that changes how much of it is on its way.
    pub(crate) fn sending<R>(&mut self, sender: usize, change: impl FnOnce(&mut Sender) -> R) -> R {
        let Self { port, comm } = self;
        let end = &mut comm.senders[sender];
        let before = end.bytes();
        let result = change(end);
        let (to, now) = (end.flow.to, end.bytes());
        port.fly(comm.world(to), now, before);
        result
    }

    /// A put has left; it was recorded so.
    pub(crate) fn sent(&mut self, record: &Record) {
        let comm = &mut *self.comm;
        if record.message {
            return comm.talk.put_left(record.id);
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

    /// A message landed. The credit in its header counts at once, not only when a lane takes the message:
    /// the lane may be waiting for just that credit.
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
        if window.class == Class::Message && !comm.talk.arrived.contains(&flow) {
            comm.talk.arrived.push(flow);
            self.port.mark_active(comm.comm_id);
        }
        let sender = comm.sender(from, window.class, flow - window.first_flow);
        if let Some(sender) = sender {
            let FlowHeader { freed, .. } = comm.header(flow, slot)?;
            let credit = self.sending(sender, |end| end.flow.credit(freed));
            credit.map_err(|violation| self.violation(from, violation))?;
        }
        self.comm.owe(flow, Way::Slots);
        Ok(())
    }

    /// A message landed in this rank's output.
    pub(crate) fn write_arrived(&mut self, flow: usize, number: u16) -> Result<(), Stop> {
        let message = self.comm.is_message(&self.comm.landings[flow]);
        if message {
            let written = &mut self.comm.talk.written;
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

    /// A receiver has freed messages, and says so by a put of its own.
    pub(crate) fn credit_arrived(&mut self, sender: usize, way: Way, freed: u16) -> Result<(), Violation> {
        self.comm.senders[sender].credits = self.comm.senders[sender].credits.wrapping_add(1);
        self.credited(sender, way, freed)
    }

    fn credited(&mut self, sender: usize, way: Way, freed: u16) -> Result<(), Violation> {
        self.sending(sender, |end| match way {
            Way::Slots => end.flow.credit(freed),
            Way::Direct => end.writes.credit(freed),
        })
    }

    /// A member has written to the mailbox.
    pub(crate) fn control_arrived(&mut self, from: Rank, about: ControlKind) -> Result<(), Stop> {
        let at = about.place();
        match about {
            ControlKind::Window(class) => self.window_arrived(from, class, self.comm.told(from, at)?),
            // The window for messages is opened for whoever has one.
            ControlKind::MismatchProbe(Class::Message) => {
                self.port.mark_active(self.comm.comm_id);
                self.listen(from, Class::Message)
            }
            ControlKind::MismatchProbe(class) => self.probe_arrived(from, class, self.comm.told(from, at)?),
            ControlKind::Read => {
                if std::mem::take(&mut self.comm.members[from].unread) {
                    return Ok(());
                }
                let what = "word that a mismatch probe was read, where none was sent".to_owned();
                Err(self.port.forged(what))
            }
            ControlKind::Close(class) => self.close_arrived(from, class, self.comm.told(from, at)?),
            ControlKind::Answer(class) => self.answer_arrived(from, class, self.comm.told(from, at)?),
            ControlKind::Hello => self.hello_arrived(from, self.comm.told(from, at)?),
            ControlKind::End => {
                self.comm.members[from].ended = Some(self.comm.told(from, at)?);
                Ok(())
            }
            ControlKind::ClearToSend => {
                let clear_to_send: ClearToSend = self.comm.told(from, at)?;
                if clear_to_send.writable > 1 {
                    let what = format!("neither leave to write nor refusal, but {}", clear_to_send.writable);
                    return Err(self.violation(from, Violation(what)));
                }
                if !self.comm.keep_clear_to_send(from, clear_to_send) {
                    let what =
                        format!("more leave of rank {} to write than it can give", self.comm.world(from));
                    return Err(self.port.forged(what));
                }
                // Nothing was sent yet to a peer whose window is unknown.
                let Some(sender) = self.comm.sender(from, Class::Bulk, 0) else { return Ok(()) };
                let (written, sent) = (clear_to_send.written, clear_to_send.freed);
                let credit = self.credited(sender, Way::Direct, (written & 0xffff) as u16);
                let credit = credit.and_then(|()| self.credited(sender, Way::Slots, (sent & 0xffff) as u16));
                credit.map_err(|violation| self.violation(from, violation))
            }
        }
    }

    /// A peer waits with a message of an operation. Only the latest counts: its operations before that are over.
    fn probe_arrived(&mut self, from: Rank, class: Class, info: OperationInfo) -> Result<(), Stop> {
        let Self { port, comm } = self;
        let before = comm.members[from].probed.replace(info.number);
        if before.is_some_and(|before| info.number.wrapping_sub(before).wrapping_sub(1) >= 1 << 31) {
            let what = format!("a mismatch probe of op {} after one of a later or the same", info.number);
            return Err(port.forged(what));
        }
        comm.mismatch_probes.retain(|(it, ..)| *it != from);
        comm.mismatch_probes.push((from, class, info));
        // Whoever has been told of the end may be gone.
        if comm.left || comm.end_told || comm.shutting_down {
            return Ok(());
        }
        comm.control_queue.push_back((from, ControlMessage::Read));
        if comm.has_control() {
            self.send_control()?;
        }
        Ok(())
    }

    fn window_arrived(&mut self, from: Rank, class: Class, window: Window) -> Result<(), Stop> {
        let Self { port, comm } = self;
        let (lanes, slots, slot_bytes) = comm.settings.window(class);
        let stride = stride(slot_bytes) as u64;
        let agreed = window.magic == Window::MAGIC
            && window.lanes as usize == lanes
            && window.slots as usize == slots
            && slots <= MAX_SLOTS
            && window.slot_bytes as usize == slot_bytes
            && window.first_flow as usize + lanes <= MAX_FLOWS
            && window.len >= (lanes * slots) as u64 * stride;
        if !agreed || comm.members[from].outgoing[class.index()] != NONE {
            let what = format!("a window of class {class:?} that does not fit or came twice: {window:?}");
            return Err(self.violation(from, Violation(what)));
        }
        let spare = comm.spare_senders.iter().position(|(of, _)| *of == class);
        let spare = spare.map(|spare| comm.spare_senders.swap_remove(spare).1);
        let first = spare.unwrap_or(comm.senders.len());
        let Some(reply) = port.outgoing.take(comm.comm_id, first, lanes) else {
            return Err(port.stop(format!(
                "a window of rank {}: its {lanes} flows would be more than the {MAX_FLOWS} that this process can send \
                 on; use fewer lanes",
                comm.world(from)
            )));
        };
        comm.meets(from)?;
        comm.members[from].outgoing[class.index()] = narrow(first);
        for lane in 0..lanes {
            let id = window.first_flow + narrow(lane);
            let first = (lane * slots) as u64 * stride;
            let end = Sender {
                flow: Outgoing::new(from, id, first, slots as u64),
                reply: reply + lane,
                region: window.remote(),
                slot_bytes,
                writes: Outgoing::new(from, id, 0, comm.settings.writes() as u64),
                credits: 0,
            };
            match spare {
                Some(first) => comm.senders[first + lane] = end,
                None => comm.senders.push(end),
            }
        }
        Ok(())
    }

    /// A greeting has come. To a rank of another host two come, and either may be the first: the pattern, and a large message
    /// that lies elsewhere.
    fn hello_arrived(&mut self, from: Rank, seen: [u64; 2]) -> Result<(), Stop> {
        let wanted = hello(from, self.comm.me);
        let member = &mut self.comm.members[from];
        if seen == wanted && !member.greeted {
            member.greeted = true;
        } else if !std::mem::take(&mut member.large_due) {
            let what = match seen == wanted {
                true => return Err(self.port.forged(format!("a greeting of rank {from} that was not due"))),
                false => {
                    format!("the greeting {seen:x?} where {wanted:x?} was due: the provider corrupts puts")
                }
            };
            return Err(self.violation(from, Violation(what)));
        }
        Ok(())
    }

    /// Nothing comes through the windows of a group that this rank has left, though its members may not have left yet.
    pub(crate) fn expect_none(&mut self) {
        let Self { port, comm } = self;
        for (index, from, class) in comm.opened() {
            port.expect_no_more(comm.world(from), (comm.comm_id, index), comm.settings.arrivals(class));
        }
    }

    /// Nothing comes on the flows of a group any more, nor goes.
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
            port.fly(comm.world(sender.flow.to), 0, sender.bytes());
        }
    }

    #[cold]
    pub(crate) fn violation(&self, from: Rank, violation: Violation) -> Stop {
        let from = self.comm.world(from);
        Failure::Protocol { rank: self.port.me, from, what: violation.0 }.into()
    }

    #[cold]
    pub(crate) fn stop(&self, reason: String) -> Stop {
        self.port.stop(reason)
    }
}
