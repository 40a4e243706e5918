//! What an operation works with: its group and the port. Here windows are opened, and arrivals come in.

use unisono_schedule::{Rank, windows::stride};
use unisono_transport::{Error, Memory, Region, RemoteRegion};

use super::{
    Stop,
    circle::{self, Circle, NONE, Sender},
    flow::{Outgoing, Violation},
    letters::Letter,
    operation::Operation,
    port::Port,
    post::Record,
    wire::{self, About, Class, Grant, HEADER, Header, MAX_FLOWS, MAX_SLOTS, Way, Window},
};
use crate::{buffer, error::Failure};

/// A group together with the port it works through.
pub(crate) struct Core<'e> {
    pub port: &'e mut Port,
    pub circle: &'e mut Circle,
}

fn narrow(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

impl Core<'_> {
    /// An operation begins: it gets its number.
    pub(super) fn begin(&mut self, operation: &mut Operation) {
        let Self { port, circle } = self;
        operation.number = circle.begun;
        circle.calls[circle::place(circle.begun)] = operation.signature;
        circle.algorithm_name = operation.algorithm_name;
        circle.begun += 1;
        port.operations += 1;
        circle.used = port.operations;
    }

    /// Makes sure that there is so much scratch. Only between operations, when no put reads from it.
    pub(crate) fn provide_scratch(&mut self, bytes: usize) -> Result<(), Stop> {
        let circle = &mut *self.circle;
        if circle.scratch.as_ref().map_or(0, |scratch| scratch.len()) < bytes {
            circle.scratch = None;
            let memory = Memory::map(bytes.next_power_of_two(), circle.settings.huge_pages)?;
            circle.scratch = Some(self.port.transport.register(memory)?);
        }
        Ok(())
    }

    /// What peers need to write into memory that was lent; registered for the time alone where that costs next to nothing,
    /// if it does not lie in a registered buffer. `None` where it is not to be had.
    pub(super) fn expose(
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
    pub(super) fn sending<R>(&mut self, sender: usize, change: impl FnOnce(&mut Sender) -> R) -> R {
        let Self { port, circle } = self;
        let end = &mut circle.senders[sender];
        let before = end.bytes();
        let result = change(end);
        let (to, now) = (end.flow.to, end.bytes());
        port.fly(circle.world(to), now, before);
        result
    }

    /// A put has left; it was recorded so.
    pub(crate) fn sent(&mut self, record: &Record) {
        let circle = &mut *self.circle;
        if record.message {
            return circle.talk.put_left(record.id);
        }
        circle.under_way = circle.under_way.saturating_sub(1);
        if let Some(lane) = record.lane {
            circle.outstanding[lane] = circle.outstanding[lane].saturating_sub(1);
        }
        if let Some((receiver, slot)) = record.hold {
            circle.receivers[receiver].release(slot);
            circle.owe(receiver, Way::Slots);
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
        let circle = &mut *self.circle;
        let receiver = &mut circle.receivers[flow];
        let from = receiver.from;
        let window = &circle.windows[receiver.window];
        if let Some(len) = len.filter(|len| !(HEADER..=HEADER + window.slot_bytes).contains(len)) {
            let what =
                format!("a message of {len} bytes, in a slot for {HEADER} to {}", HEADER + window.slot_bytes);
            return Err(self.port.forged(what));
        }
        let slot = match receiver.arrive(number) {
            Ok(slot) => slot,
            Err(violation) => return Err(self.port.forged(violation.0)),
        };
        if window.class == Class::Message && !circle.talk.arrived.contains(&flow) {
            circle.talk.arrived.push(flow);
            self.port.stir(circle.channel);
        }
        let sender = circle.sender(from, window.class, flow - window.first_flow);
        if let Some(sender) = sender {
            let freed = circle.header(flow, slot)?.freed;
            let credit = self.sending(sender, |end| end.flow.credit((freed & 0xffff) as u16));
            credit.map_err(|violation| self.violation(from, violation))?;
        }
        self.circle.owe(flow, Way::Slots);
        Ok(())
    }

    /// A message landed in this rank's output.
    pub(crate) fn write_arrived(&mut self, flow: usize, number: u16) -> Result<(), Stop> {
        let message = self.circle.is_message(&self.circle.landings[flow]);
        if message {
            let written = &mut self.circle.talk.written;
            if !written.contains(&flow) {
                written.push(flow);
                self.port.stir(self.circle.channel);
            }
        } else if !self.circle.exposed {
            let what = "a write into an output that nobody was allowed to write to".to_owned();
            return Err(self.port.forged(what));
        }
        let arrived = self.circle.landings[flow].arrive(number);
        arrived.map_err(|violation| self.port.forged(violation.0))?;
        self.circle.owe(flow, Way::Direct);
        Ok(())
    }

    /// A receiver has freed messages, and says so by a put of its own.
    pub(crate) fn credit_arrived(&mut self, sender: usize, way: Way, freed: u16) -> Result<(), Violation> {
        self.circle.senders[sender].credits = self.circle.senders[sender].credits.wrapping_add(1);
        self.credited(sender, way, freed)
    }

    fn credited(&mut self, sender: usize, way: Way, freed: u16) -> Result<(), Violation> {
        self.sending(sender, |end| match way {
            Way::Slots => end.flow.credit(freed),
            Way::Direct => end.writes.credit(freed),
        })
    }

    /// A member has written to the mailbox.
    pub(crate) fn letter_arrived(&mut self, from: Rank, about: About) -> Result<(), Stop> {
        let at = about.place();
        match about {
            About::Window(class) => self.window_arrived(from, class, self.circle.told(from, at)?),
            // The window for messages is opened for whoever has one.
            About::Knock(Class::Message) => {
                self.port.stir(self.circle.channel);
                self.listen(from, Class::Message)
            }
            About::Knock(class) => self.probe_arrived(from, class, self.circle.told(from, at)?),
            About::Read => {
                if std::mem::take(&mut self.circle.members[from].unread) {
                    return Ok(());
                }
                let what = "word that a mismatch probe was read, where none was sent".to_owned();
                Err(self.port.forged(what))
            }
            About::Close(class) => self.close_arrived(from, class, self.circle.told(from, at)?),
            About::Answer(class) => self.answer_arrived(from, class, self.circle.told(from, at)?),
            About::Hello => self.hello_arrived(from, self.circle.told(from, at)?),
            About::End => {
                self.circle.members[from].ended = Some(self.circle.told(from, at)?);
                Ok(())
            }
            About::Grant => {
                let grant: Grant = self.circle.told(from, at)?;
                if grant.granted > 1 {
                    let what = format!("neither leave to write nor refusal, but {}", grant.granted);
                    return Err(self.violation(from, Violation(what)));
                }
                if !self.circle.keep_grant(from, grant) {
                    let what =
                        format!("more leave of rank {} to write than it can give", self.circle.world(from));
                    return Err(self.port.forged(what));
                }
                // Nothing was sent yet to a peer whose window is unknown.
                let Some(sender) = self.circle.sender(from, Class::Bulk, 0) else { return Ok(()) };
                let (written, sent) = (grant.header.freed, grant.header.reply);
                let credit = self.credited(sender, Way::Direct, (written & 0xffff) as u16);
                let credit = credit.and_then(|()| self.credited(sender, Way::Slots, (sent & 0xffff) as u16));
                credit.map_err(|violation| self.violation(from, violation))
            }
        }
    }

    /// A peer waits with a message of an operation. Only the latest counts: its operations before that are over.
    fn probe_arrived(&mut self, from: Rank, class: Class, header: Header) -> Result<(), Stop> {
        let Self { port, circle } = self;
        let before = circle.members[from].probed.replace(header.op);
        if before.is_some_and(|before| header.op.wrapping_sub(before).wrapping_sub(1) >= 1 << 31) {
            let what = format!("a mismatch probe of op {} after one of a later or the same", header.op);
            return Err(port.forged(what));
        }
        circle.knocks.retain(|(it, ..)| *it != from);
        circle.knocks.push((from, class, header));
        // Whoever has been told of the end may be gone.
        if circle.left || circle.end_told || circle.parting {
            return Ok(());
        }
        circle.post_box.push_back((from, Letter::Read));
        if circle.has_letters() {
            self.send_letters()?;
        }
        Ok(())
    }

    fn window_arrived(&mut self, from: Rank, class: Class, window: Window) -> Result<(), Stop> {
        let Self { port, circle } = self;
        let (lanes, slots, slot_bytes) = circle.settings.window(class);
        let stride = stride(slot_bytes) as u64;
        let agreed = window.magic == Window::MAGIC
            && window.lanes as usize == lanes
            && window.slots as usize == slots
            && slots <= MAX_SLOTS
            && window.slot_bytes as usize == slot_bytes
            && window.first_flow as usize + lanes <= MAX_FLOWS
            && window.len >= (lanes * slots) as u64 * stride;
        if !agreed || circle.members[from].outgoing[class.index()] != NONE {
            let what = format!("a window of class {class:?} that does not fit or came twice: {window:?}");
            return Err(self.violation(from, Violation(what)));
        }
        let spare = circle.spare_senders.iter().position(|(of, _)| *of == class);
        let spare = spare.map(|spare| circle.spare_senders.swap_remove(spare).1);
        let first = spare.unwrap_or(circle.senders.len());
        let Some(reply) = port.outgoing.take(circle.channel, first, lanes) else {
            return Err(port.stop(format!(
                "a window of rank {}: its {lanes} flows would be more than the {MAX_FLOWS} that this process can send \
                 on; use fewer lanes",
                circle.world(from)
            )));
        };
        circle.meets(from)?;
        circle.members[from].outgoing[class.index()] = narrow(first);
        for lane in 0..lanes {
            let id = window.first_flow + narrow(lane);
            let first = (lane * slots) as u64 * stride;
            let end = Sender {
                flow: Outgoing::new(from, id, first, slots as u64),
                reply: reply + lane,
                region: window.remote(),
                slot_bytes,
                writes: Outgoing::new(from, id, 0, circle.settings.writes() as u64),
                credits: 0,
            };
            match spare {
                Some(first) => circle.senders[first + lane] = end,
                None => circle.senders.push(end),
            }
        }
        Ok(())
    }

    /// A greeting has come. To a rank of another host two come, and either may be the first: the pattern, and a large message
    /// that lies elsewhere.
    fn hello_arrived(&mut self, from: Rank, seen: [u64; 2]) -> Result<(), Stop> {
        let wanted = wire::hello(from, self.circle.me);
        let member = &mut self.circle.members[from];
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

    #[cold]
    pub(crate) fn violation(&self, from: Rank, violation: Violation) -> Stop {
        let from = self.circle.world(from);
        Failure::Protocol { rank: self.port.me, from, what: violation.0 }.into()
    }

    #[cold]
    pub(crate) fn stop(&self, reason: String) -> Stop {
        self.port.stop(reason)
    }
}
