//! Receives messages: through slots, and by writes straight into their memory.

use std::time::Instant;

use unisono_core::{
    dtype::{Alias, Dtype},
    error::Failure,
};
use unisono_schedule::Rank;
use unisono_transport::RemoteRegion;

use crate::{
    call::{Form, MessageKind},
    comm::Core,
    memory::{self, Bytes, Fresh},
    messages::{Described, Early, EarlyState, Landing, PIECE, PriorityEntry, Receiving, SendStage},
    request::Place,
    stop::{Result, Stop},
    wire::{FlowWay, MAX_FLOWS, MessageClearToSend, MessageHeader, MessageInfo, SlotMessage},
};

impl Core<'_> {
    /// Handles the messages that have landed in slots. True if any was taken.
    pub(crate) fn messages_arrived(&mut self) -> Result<bool> {
        let mut flows = std::mem::take(&mut self.comm.messages.arrived);
        let mut moved = false;
        let mut index = 0;
        while let Some(&flow) = flows.get(index) {
            let (emptied, took) = self.empty(flow)?;
            moved |= took;
            if emptied {
                flows.swap_remove(index);
            } else {
                index += 1;
            }
        }
        // Flows with messages that must wait are handled again.
        self.comm.messages.arrived = flows;
        Ok(moved)
    }

    /// Takes the messages of a flow. Returns whether it took all, and whether it took any.
    fn empty(&mut self, flow: usize) -> Result<(bool, bool)> {
        let mut took = false;
        while let Some(slot) = self.comm.flows.receivers[flow].ready_slot() {
            let header: MessageHeader = self.comm.flows.header(flow, slot)?;
            let from = self.comm.flows.receivers[flow].from;
            if usize::from(header.flow.reply) >= MAX_FLOWS {
                let what = format!("a message whose credit is to go to flow {}", header.flow.reply);
                return Err(self.violation(from, what));
            }
            if !self.message(flow, slot, from, &header)? {
                return Ok((false, took));
            }
            let receiver = &mut self.comm.flows.receivers[flow];
            receiver.take();
            receiver.free();
            receiver.reply = Some(header.flow.reply.into());
            self.comm.owe(flow, FlowWay::Slots);
            took = true;
        }
        Ok((true, took))
    }

    /// Handles a message. False if there is no room for it yet.
    fn message(&mut self, flow: usize, slot: usize, from: Rank, header: &MessageHeader) -> Result<bool> {
        let number = header.number;
        match SlotMessage::of(header) {
            Some(SlotMessage::Whole(info)) => {
                let message = self.described(from, number, &info)?;
                return self.whole(flow, slot, message);
            }
            Some(SlotMessage::RequestToSend(info)) => {
                let (message, writes) = (self.described(from, number, &info)?, info.writes == 1);
                match self.comm.messages.matching.taker(message.envelope()) {
                    Some(receiving) => self.admit(message, writes, receiving)?,
                    None => {
                        let state = EarlyState::Requested { writes, since: Instant::now() };
                        let kept = self.comm.messages.keep(message, state);
                        self.comm.messages.requested.insert(kept);
                    }
                }
            }
            Some(SlotMessage::Part(len)) => self.part(flow, slot, (from, number), len)?,
            Some(SlotMessage::ClearToSend(clear)) => self.clear_to_send_arrived(from, number, &clear)?,
            None => return Err(self.violation(from, format!("a message of an unknown kind, {header:?}"))),
        }
        Ok(true)
    }

    /// What a peer says of a message.
    fn described(&self, from: Rank, number: u32, info: &MessageInfo) -> Result<Described> {
        let (Some(form), Some(dtype)) = (Form::from_code(info.form), Dtype::from_code(info.dtype)) else {
            let what = format!("a message of unknown elements, type {} and form {}", info.dtype, info.form);
            return Err(self.violation(from, what));
        };
        let fits =
            |count: &usize| count.checked_mul(dtype.size()).is_some_and(|it| it <= isize::MAX as usize);
        let Some(count) = usize::try_from(info.count).ok().filter(fits) else {
            return Err(self.violation(from, format!("a message of {} elements", info.count)));
        };
        let kind = MessageKind { form, dtype, alias: Alias::from_code(info.alias), count };
        Ok(Described { from, tag: info.tag(), number, kind })
    }

    /// The bytes of a message in its slot.
    fn landed(&self, flow: usize, slot: usize, bytes: usize) -> Result<Bytes<'_>> {
        let from = self.comm.flows.receivers[flow].from;
        let slot_bytes = self.comm.flows.slot_bytes(flow);
        let (region, at) = self.comm.flows.slot(flow, slot);
        if bytes > slot_bytes {
            return Err(self.violation(from, format!("a message of {bytes} bytes in a slot of {slot_bytes}")));
        }
        Bytes::new(region, at, bytes).map_err(|error| self.stop(format!("a message in its slot: {error}")))
    }

    /// Handles a message that is whole in its slot. False if there is no room for it yet.
    fn whole(&mut self, flow: usize, slot: usize, message: Described) -> Result<bool> {
        let Described { from, kind, .. } = message;
        let bytes = kind.bytes();
        // The length is checked before memory is allocated for it.
        self.landed(flow, slot, bytes)?;
        if let Some(receiving) = self.comm.messages.matching.taker(message.envelope()) {
            let (receiving, mut fresh) = self.agree_with_room(&message, receiving)?;
            let place = match (&receiving.inbound.place, &mut fresh) {
                (Place::There(output), _) => output.bytes(0, bytes),
                (_, Some(fresh)) => {
                    fresh.provide(bytes);
                    Bytes::new(fresh.region(), 0, bytes)
                }
                (_, None) => return Err(self.stop("a whole message without memory")),
            };
            self.copy(self.landed(flow, slot, bytes)?, place)?;
            self.comm.messages.received(receiving.completion, from, fresh);
            return Ok(true);
        }
        let messages = &self.comm.messages;
        let room = self.comm.settings.bounds.unexpected_bytes;
        let full = messages.unexpected > 0 && messages.unexpected + kind.kept() > room;
        // The parts of a message with a receive may be behind this message. Parts go before later messages, so the excess is small.
        if full && !messages.landings.comes_in_parts(from) && !messages.waits_for(from, Instant::now()) {
            return Ok(false);
        }
        let mut fresh = self.room(kind.dtype, bytes)?;
        fresh.provide(bytes);
        self.copy(self.landed(flow, slot, bytes)?, Bytes::new(fresh.region(), 0, bytes))?;
        self.comm.messages.unexpected += kind.kept();
        self.comm.messages.keep(message, EarlyState::Whole(fresh));
        Ok(true)
    }

    fn copy(&self, from: Bytes<'_>, into: Result<Bytes<'_>, memory::SpanError>) -> Result<()> {
        into.and_then(|into| memory::copy(from, into))
            .map_err(|error| self.stop(format!("a message to its place: {error}")))
    }

    /// New memory for a message of this many bytes.
    fn room(&self, dtype: Dtype, bytes: usize) -> Result<Fresh> {
        Fresh::new(dtype, bytes / dtype.size()).ok_or_else(|| {
            let why = format!("recv: no memory for the {bytes} bytes of a message");
            Stop::from(Failure::Aborted { rank: self.port.me, why })
        })
    }

    /// Checks that a receive fits the message that it takes. If it does not, the receive fails with all other operations.
    fn agree(&mut self, message: &Described, receiving: Receiving) -> Result<Receiving> {
        let (wanted, count) = (receiving.inbound.kind, message.kind.count);
        let fits = match receiving.inbound.place {
            Place::There(_) | Place::New(_) => count == wanted.count,
            Place::Fresh => count <= wanted.count,
        };
        if fits && message.kind == (MessageKind { count, ..wanted }) {
            return Ok(receiving);
        }
        let stop = self.differ(message, &receiving.inbound);
        Err(self.refuse(receiving, stop))
    }

    /// A receive fails with all other operations.
    fn refuse(&mut self, receiving: Receiving, stop: Stop) -> Stop {
        self.comm.messages.ended.push_back((receiving.completion, None));
        stop
    }

    /// The same, with new memory for the message if the receive gives none.
    fn agree_with_room(
        &mut self,
        message: &Described,
        receiving: Receiving,
    ) -> Result<(Receiving, Option<Fresh>)> {
        let receiving = self.agree(message, receiving)?;
        let dtype = match receiving.inbound.place {
            Place::There(_) => return Ok((receiving, None)),
            Place::Fresh => message.kind.dtype,
            Place::New(dtype) => dtype,
        };
        let (receiving, fresh) = self.with_room(receiving, dtype, message.kind.bytes())?;
        Ok((receiving, Some(fresh)))
    }

    /// Handles a receive whose message, or its request to send, has arrived before.
    pub(super) fn early(&mut self, kept: u64, early: Early, receiving: Receiving) -> Result<()> {
        let Early { message, state } = early;
        match state {
            EarlyState::Whole(fresh) => {
                let receiving = self.agree(&message, receiving)?;
                self.comm.messages.unexpected -= message.kind.kept();
                self.hand_over(message.from, fresh, message.kind.bytes(), receiving)
            }
            EarlyState::Requested { writes, .. } => {
                self.comm.messages.requested.remove(&kept);
                self.admit(message, writes, receiving)
            }
            EarlyState::Coming => {
                let receiving = self.agree(&message, receiving)?;
                self.comm.messages.landings.receive(message.key(), receiving);
                Ok(())
            }
        }
    }

    /// A receive and memory for its message of this many bytes.
    fn with_room(&mut self, receiving: Receiving, dtype: Dtype, bytes: usize) -> Result<(Receiving, Fresh)> {
        match self.room(dtype, bytes) {
            Ok(fresh) => Ok((receiving, fresh)),
            Err(stop) => Err(self.refuse(receiving, stop)),
        }
    }

    /// Gives an unexpected message to its receive.
    fn hand_over(&mut self, from: Rank, kept: Fresh, bytes: usize, mut receiving: Receiving) -> Result<()> {
        let source = Bytes::new(kept.region(), 0, bytes);
        let source = source.map_err(|error| self.stop(format!("an unexpected message: {error}")));
        let fresh = match &receiving.inbound.place {
            Place::There(output) => {
                self.copy(source?, output.bytes(0, bytes))?;
                None
            }
            &Place::New(dtype) if dtype != kept.dtype() => {
                let mut fresh;
                (receiving, fresh) = self.with_room(receiving, dtype, bytes)?;
                fresh.provide(bytes);
                self.copy(source?, Bytes::new(fresh.region(), 0, bytes))?;
                Some(fresh)
            }
            Place::Fresh | Place::New(_) => Some(kept),
        };
        self.comm.messages.received(receiving.completion, from, fresh);
        Ok(())
    }

    /// Clears a large message to be sent to its receive.
    fn admit(&mut self, message: Described, writes: bool, receiving: Receiving) -> Result<()> {
        let (receiving, fresh) = self.agree_with_room(&message, receiving)?;
        let into = match (&receiving.inbound.place, &fresh) {
            (Place::There(output), _) => output.clone(),
            (_, Some(fresh)) => fresh.region().clone().into(),
            (_, None) => return Err(self.stop("a cleared message without memory")),
        };
        let landing = Landing::new(message.kind, Some(receiving), into, fresh, self.comm.settings.bounds);
        self.clear_message_to_send(message.key(), landing, writes)
    }

    /// Sends a clear to send for a large message: the sender writes it straight into the receiver's memory, or sends it in parts.
    pub(super) fn clear_message_to_send(
        &mut self,
        (from, number): (Rank, u32),
        mut landing: Landing,
        writes: bool,
    ) -> Result<()> {
        let exposed = match writes {
            true => self.expose(&landing.into).unwrap_or_else(|error| {
                let len = landing.kind.bytes();
                unisono_transport::log::debug!(%error, len, "a message to memory that cannot be registered comes in parts");
                None
            }),
            false => None,
        };
        let place = exposed.as_ref().map(|(place, _)| *place);
        let piece = landing.piece;
        // Parts are copied by this rank, so all of the memory must be there.
        landing.provide(place.is_some().then(|| self.comm.settings.writes()));
        let messages = &mut self.comm.messages;
        if place.is_some() {
            messages.clear_to_send.entry(from).or_default().push_back(number);
        }
        landing.exposed = exposed.map(|(_, region)| region);
        let RemoteRegion { base, key, mappable, .. } = place.unwrap_or_default();
        let (writable, mappable) = (place.is_some().into(), mappable.into());
        let clear = MessageClearToSend { base, key, writable, piece, mappable, reserved: [0; 5] };
        messages.answers.entry(from).or_default().push_back(PriorityEntry::ClearToSend(number, clear));
        messages.landings.insert((from, number), landing);
        Ok(())
    }

    /// Handles a part of a large message.
    fn part(&mut self, flow: usize, slot: usize, key: (Rank, u32), len: u64) -> Result<()> {
        let Some(landing) = self.comm.messages.landings.all.get(&key) else {
            return Err(self.violation(key.0, "a part of a message that has no clear to send"));
        };
        let (size, at) = (landing.kind.dtype.size(), landing.arrived);
        let left = landing.kind.count - at;
        let Some(len) = usize::try_from(len).ok().filter(|len| (1..=left).contains(len)) else {
            let what = format!("a part of {len} elements at {at} of {}", landing.kind.count);
            return Err(self.violation(key.0, what));
        };
        let into = landing.into.bytes(at * size, len * size);
        self.copy(self.landed(flow, slot, len * size)?, into)?;
        let arrived = at + len;
        let whole = arrived == landing.kind.count;
        if let Some(landing) = self.comm.messages.landings.all.get_mut(&key) {
            landing.arrived = arrived;
        }
        if whole { self.arrived(key) } else { Ok(()) }
    }

    /// Handles the pieces of messages that were written straight into their memory. True if there were any.
    pub(crate) fn writes_arrived(&mut self) -> Result<bool> {
        let flows = std::mem::take(&mut self.comm.messages.written);
        let any = !flows.is_empty();
        for flow in flows {
            while self.comm.flows.landings[flow].ready() {
                let written = &mut self.comm.flows.landings[flow];
                written.take();
                let from = written.from;
                let clear_to_send = self.comm.messages.clear_to_send.entry(from).or_default();
                let Some(&number) = clear_to_send.front() else {
                    return Err(self.port.forged("a message written where nobody was allowed to write"));
                };
                let Some(landing) = self.comm.messages.landings.all.get_mut(&(from, number)) else {
                    return Err(self.stop("a message that was cleared to send is unknown"));
                };
                landing.arrived += 1;
                // With the credit for this piece the sender may write this many more.
                landing.provide(Some(self.comm.settings.writes()));
                let whole = landing.arrived == landing.kind.bytes().div_ceil(1 << landing.piece);
                if whole {
                    clear_to_send.pop_front();
                }
                self.comm.flows.landings[flow].free();
                self.comm.owe(flow, FlowWay::Direct);
                if whole {
                    self.arrived((from, number))?;
                }
            }
        }
        Ok(any)
    }

    /// A large message has arrived completely.
    fn arrived(&mut self, key: (Rank, u32)) -> Result<()> {
        let Some(landing) = self.comm.messages.landings.remove(key) else { return Ok(()) };
        let Landing { kind, receiving, into, fresh, exposed, kept, .. } = landing;
        drop((into, exposed));
        let Some(receiving) = receiving else {
            let early = kept.and_then(|kept| self.comm.messages.matching.messages.get_mut(kept));
            if let Some((early, fresh)) = early.zip(fresh) {
                early.state = EarlyState::Whole(fresh);
            }
            return Ok(());
        };
        if kept.is_some() {
            self.comm.messages.unexpected -= kind.kept();
            // Messages may have waited for that room.
            self.port.mark_active(self.comm.identity.comm_id);
        }
        match fresh {
            Some(fresh) => self.hand_over(key.0, fresh, kind.bytes(), receiving)?,
            None => self.comm.messages.received(receiving.completion, key.0, None),
        }
        Ok(())
    }

    /// A clear to send has arrived: the receiver of a large message is ready for it.
    fn clear_to_send_arrived(&mut self, from: Rank, number: u32, clear: &MessageClearToSend) -> Result<()> {
        let messages = &mut self.comm.messages;
        let id = messages.requests.remove(&(from, number));
        let Some((id, sending)) = id.and_then(|id| Some((id, messages.sendings.get_mut(&id)?))) else {
            let what = format!("a clear to send for message {number}, which had no request");
            return Err(self.violation(from, what));
        };
        let len = sending.outbound.kind.bytes() as u64;
        let MessageClearToSend { base, key, writable, piece, mappable, .. } = *clear;
        if writable == 1 {
            if piece > PIECE {
                let what = format!("a clear to send for message {number} in pieces of 2^{piece} bytes");
                return Err(self.violation(from, what));
            }
            let region = RemoteRegion { base, key, len, mappable: mappable == 1 };
            sending.stage = SendStage::Writing(region, 1 << piece);
            messages.writes.entry(from).or_default().push_back(id);
        } else {
            sending.stage = SendStage::InParts;
            messages.answers.entry(from).or_default().push_back(PriorityEntry::Parts(id));
        }
        Ok(())
    }
}
