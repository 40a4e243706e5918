//! Sends messages and clears to send: through slots, and large messages straight into the receiver's memory.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
};

use unisono_schedule::{Rank, select::shown::is_fetched};
use unisono_transport::{RemoteRegion, Target};

use crate::{
    call::Signature,
    comm::{Core, PutOrigin, ReadyPut, Whose},
    memory::{self, Bytes, Stretch},
    messages::{Messages, PriorityEntry, SendStage, Sending},
    stop::Result,
    wire::{HEADER, SlotMessage, WindowClass},
};

/// A put through a slot.
struct SlotPut<'p> {
    message: SlotMessage,
    /// The number of the message among those between the two ranks.
    number: u32,
    /// The bytes of this memory that it carries.
    source: Option<(&'p Stretch, Range<usize>)>,
    /// The send that cannot end before this put has left; `None` for a request to send and a clear to send.
    id: Option<u64>,
}

/// The result of a put.
enum Sent {
    /// There is no window, no credit or no room.
    No,
    /// The put needs no further poll, and its source may change.
    Gone,
    /// The put may still wait in the provider or read its source.
    UnderWay,
}

impl Core<'_> {
    /// Sends the entries of each rank's queue in order, as far as possible. True if anything was sent. `send` sends something of an
    /// entry, and tells whether that was the rest; `None` if there was no room.
    pub(super) fn send_queues<T: Copy>(
        &mut self,
        queues: impl Fn(&mut Messages) -> &mut BTreeMap<Rank, VecDeque<T>>,
        send: impl Fn(&mut Self, Rank, T) -> Result<Option<bool>>,
    ) -> Result<bool> {
        let mut moved = false;
        let mut taken = std::mem::take(queues(&mut self.comm.messages));
        for (&to, queue) in &mut taken {
            while let Some(&first) = queue.front() {
                let Some(whole) = send(self, to, first)? else { break };
                moved = true;
                if whole {
                    queue.pop_front();
                }
            }
        }
        taken.retain(|_, queue| !queue.is_empty());
        *queues(&mut self.comm.messages) = taken;
        Ok(moved)
    }

    pub(super) fn send_answer(&mut self, to: Rank, answer: PriorityEntry) -> Result<Option<bool>> {
        match answer {
            PriorityEntry::ClearToSend(number, clear) => {
                let message = SlotMessage::ClearToSend(clear);
                let put = SlotPut { message, number, source: None, id: None };
                Ok((!matches!(self.send_to_slot(to, &put)?, Sent::No)).then_some(true))
            }
            PriorityEntry::Parts(id) => self.send_piece(to, id),
        }
    }

    pub(super) fn send_message(&mut self, to: Rank, id: u64) -> Result<Option<bool>> {
        if self.comm.messages.answers.contains_key(&to) {
            return Ok(None);
        }
        let Some(sending) = self.comm.messages.sendings.get(&id) else { return Ok(Some(true)) };
        let outbound = &sending.outbound;
        let kind = outbound.kind;
        let whole = kind.bytes() <= self.comm.settings.eager_bytes;
        let source = outbound.source.clone();
        // True if this rank can write the elements from where they lie.
        let writes = source.registered || !self.port.limits.local_registration;
        let info = sending.info(writes && !whole);
        let message = if whole { SlotMessage::Whole(info) } else { SlotMessage::RequestToSend(info) };
        let number = sending.number;
        if !whole {
            // The clear to send arrives through this window.
            self.listen(to, WindowClass::Message)?;
        }
        let source = whole.then_some((&source, 0..kind.bytes()));
        let put = SlotPut { message, number, source, id: whole.then_some(id) };
        let sent = self.send_to_slot(to, &put)?;
        let Some(sending) = self.note_sent(id, &sent) else { return Ok(None) };
        sending.stage = if whole { SendStage::Gone } else { SendStage::Requested };
        if !whole {
            self.comm.messages.requests.insert((to, number), id);
        }
        self.comm.messages.left(id);
        Ok(Some(true))
    }

    /// Sends the next piece of a large message: writes it, or sends it through a slot.
    pub(super) fn send_piece(&mut self, to: Rank, id: u64) -> Result<Option<bool>> {
        let Some(sending) = self.comm.messages.sendings.get(&id) else { return Ok(Some(true)) };
        let Sending { stage, number, gone, .. } = *sending;
        let (source, kind) = (sending.outbound.source.clone(), sending.outbound.kind);
        let (bytes, sent) = match stage {
            SendStage::Writing(region, piece) => {
                let bytes = piece.min(kind.bytes() - gone);
                (bytes, self.write(to, id, (source, gone, bytes), region)?)
            }
            SendStage::InParts => {
                let size = kind.dtype.size();
                let bytes = (self.comm.settings.eager_bytes / size * size).min(kind.bytes() - gone);
                let message = SlotMessage::Part((bytes / size) as u64);
                let source = Some((&source, gone..gone + bytes));
                (bytes, self.send_to_slot(to, &SlotPut { message, number, source, id: Some(id) })?)
            }
            SendStage::Queued | SendStage::Requested | SendStage::Gone => return Ok(Some(true)),
        };
        let Some(sending) = self.note_sent(id, &sent) else { return Ok(None) };
        sending.gone += bytes;
        let whole = sending.gone == kind.bytes();
        if whole {
            sending.stage = SendStage::Gone;
            self.comm.messages.left(id);
        }
        Ok(Some(whole))
    }

    /// Notes the result of a put of a send. Returns the send; `None` if there was no room.
    fn note_sent(&mut self, id: u64, sent: &Sent) -> Option<&mut Sending> {
        let sending = self.comm.messages.sendings.get_mut(&id).filter(|_| !matches!(sent, Sent::No))?;
        sending.under_way += usize::from(matches!(sent, Sent::UnderWay));
        Some(sending)
    }

    /// Puts a message into the next slot of a rank.
    fn send_to_slot(&mut self, to: Rank, put: &SlotPut<'_>) -> Result<Sent> {
        let Some(sender) = self.comm.flows.sender(to, WindowClass::Message, 0) else {
            self.probe_mismatch(to, WindowClass::Message, &Signature::default())?;
            return Ok(Sent::No);
        };
        let Some(record) = self.record(&self.comm.flows.senders[sender].flow) else { return Ok(Sent::No) };
        let bytes = put.source.as_ref().map_or(0, |(_, range)| range.len());
        let injected = HEADER + bytes <= self.port.limits.max_inject;
        let origin = match &put.source {
            Some((source, range)) if bytes > 0 => {
                let anywhere = source.registered || injected || !self.port.limits.local_registration;
                if anywhere && !self.port.joins(bytes) {
                    PutOrigin::new(source.region.clone(), source.offset + range.start)
                } else {
                    let Some(staged) = self.port.posts.stage(&mut *self.port.transport)? else {
                        return Ok(Sent::No);
                    };
                    let slot = staged.slot;
                    let Some((region, offset)) = self.port.posts.staged(slot) else { return Ok(Sent::No) };
                    let copied = source
                        .bytes(range.start, bytes)
                        .and_then(|source| memory::copy(source, Bytes::new(&region, offset, bytes)?));
                    copied.map_err(|error| self.stop(format!("a message to staging: {error}")))?;
                    PutOrigin { staging: Some(slot), ..PutOrigin::new(region, offset) }
                }
            }
            _ => PutOrigin::new(self.comm.mailbox.sources.clone(), 0),
        };
        let staging = origin.staging;
        let opposite = self.comm.flows.receiver(to, WindowClass::Message, 0);
        let ready = ReadyPut { sender, origin, bytes, record, whose: Whose::Message(put.id) };
        if !self.put_to_slot(ready, opposite, |flow| put.message.header(flow, put.number))? {
            if let Some(slot) = staging {
                self.port.posts.put_back(slot);
            }
            return Ok(Sent::No);
        }
        Ok(if injected || put.id.is_none() { Sent::Gone } else { Sent::UnderWay })
    }

    /// Writes a piece of a message, `bytes` of its source from `at` on, to the same place of the receiver's region, which has as many bytes
    /// as the message.
    fn write(
        &mut self,
        to: Rank,
        id: u64,
        (source, at, bytes): (Stretch, usize, usize),
        region: RemoteRegion,
    ) -> Result<Sent> {
        let Some(sender) = self.comm.flows.sender(to, WindowClass::Message, 0) else { return Ok(Sent::No) };
        let Some(record) = self.record(&self.comm.flows.senders[sender].writes) else { return Ok(Sent::No) };
        let fetch = is_fetched(source.len);
        let origin = PutOrigin { fetch, ..PutOrigin::new(source.region, source.offset + at) };
        let ready = ReadyPut { sender, origin, bytes, record, whose: Whose::Message(Some(id)) };
        if !self.put_direct(ready, Target { region, offset: at as u64 })? {
            return Ok(Sent::No);
        }
        Ok(if bytes <= self.port.limits.max_inject { Sent::Gone } else { Sent::UnderWay })
    }
}
