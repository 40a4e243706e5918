//! Sends messages and clears to send: through slots, and large messages straight into the receiver's memory.

use std::collections::{BTreeMap, VecDeque};

use unisono_schedule::Rank;
use unisono_transport::{Region, RemoteRegion, Target};

use super::messages::{Messages, PriorityEntry, SendStage, Sending};
use crate::{
    comm::{Core, Origin, ReadyPut, Whose},
    memory::{self, Bytes},
    stop::Stop,
    wire::{HEADER, Message, MessageClearToSend, OperationInfo, Part, WindowClass},
};

/// A put through a slot.
struct SlotPut<'p> {
    message: Message,
    /// The number of the message among those between the two ranks.
    number: u32,
    /// The place of its elements: region, offset and length in bytes.
    source: Option<(&'p Region, usize, usize)>,
    /// True if the source is registered.
    registered: bool,
    /// The send that cannot end before this put has left; `None` for a request to send and a clear to send.
    id: Option<u64>,
}

/// The result of a put through a slot.
enum Sent {
    /// There is no window, no credit or no room.
    No,
    /// The put needs no further poll, and its source may change.
    Gone,
    /// The put may still wait in the provider or read its source.
    UnderWay,
}

impl Core<'_> {
    /// Sends the entries that wait for slots, as far as possible. True if anything was sent.
    pub(crate) fn send_items(&mut self) -> Result<bool, Stop> {
        let answered = self.send_queues(|messages| &mut messages.answers, Self::send_answer)?;
        Ok(self.send_queues(|messages| &mut messages.queues, Self::send_message)? || answered)
    }

    /// Writes large messages straight into their receivers' memory, as far as possible. True if anything was written.
    pub(crate) fn write_messages(&mut self) -> Result<bool, Stop> {
        self.send_queues(|messages| &mut messages.writes, Self::write_message)
    }

    /// Sends the entries of each rank's queue in order, as far as possible. True if anything was sent. `send` tells whether it has sent
    /// an entry completely, and whether it has sent anything of it.
    fn send_queues<T: Copy>(
        &mut self,
        queues: impl Fn(&mut Messages) -> &mut BTreeMap<Rank, VecDeque<T>>,
        send: impl Fn(&mut Self, Rank, T) -> Result<(bool, bool), Stop>,
    ) -> Result<bool, Stop> {
        let mut moved = false;
        let mut taken = std::mem::take(queues(&mut self.comm.messages));
        for (&to, queue) in &mut taken {
            while let Some(&first) = queue.front() {
                let (all, any) = send(self, to, first)?;
                moved |= any;
                if !all {
                    break;
                }
                queue.pop_front();
            }
        }
        taken.retain(|_, queue| !queue.is_empty());
        *queues(&mut self.comm.messages) = taken;
        Ok(moved)
    }

    fn send_answer(&mut self, to: Rank, answer: PriorityEntry) -> Result<(bool, bool), Stop> {
        match answer {
            PriorityEntry::ClearToSend { number, place, piece } => {
                let RemoteRegion { base, key, mappable, .. } = place.unwrap_or_default();
                let (writable, mappable) = (place.is_some().into(), mappable.into());
                let clear = MessageClearToSend { base, key, writable, piece, mappable, reserved: [0; 5] };
                let message = Message::ClearToSend(clear);
                let put = SlotPut { message, number, source: None, registered: false, id: None };
                let sent = !matches!(self.send_to_slot(to, &put)?, Sent::No);
                Ok((sent, sent))
            }
            PriorityEntry::Parts(id) => self.send_parts(to, id),
        }
    }

    fn send_message(&mut self, to: Rank, id: u64) -> Result<(bool, bool), Stop> {
        if self.comm.messages.answers.contains_key(&to) {
            return Ok((false, false));
        }
        let Some(sending) = self.comm.messages.sendings.get(&id) else { return Ok((true, false)) };
        let outbound = &sending.outbound;
        let kind = outbound.kind;
        let whole = kind.bytes() <= self.comm.settings.eager_bytes;
        let (source, at, registered) = outbound.place();
        // True if this rank can write the elements from where they lie.
        let writes = registered || !self.port.limits.local_registration;
        let info = sending.info(writes && !whole);
        let message = if whole { Message::Whole(info) } else { Message::RequestToSend(info) };
        let number = sending.number;
        if !whole {
            // The clear to send arrives through this window.
            self.listen(to, WindowClass::Message)?;
        }
        let source = whole.then_some((&source, at, kind.bytes()));
        let put = SlotPut { message, number, source, registered, id: whole.then_some(id) };
        let sent = self.send_to_slot(to, &put)?;
        let Some(sending) = self.comm.messages.sendings.get_mut(&id) else { return Ok((true, true)) };
        match sent {
            Sent::No => return Ok((false, false)),
            Sent::Gone => {}
            Sent::UnderWay => sending.under_way += 1,
        }
        sending.stage = if whole { SendStage::Gone } else { SendStage::Requested };
        if !whole {
            self.comm.messages.requests.insert((to, number), id);
        }
        self.comm.messages.left(id);
        Ok((true, true))
    }

    fn send_parts(&mut self, to: Rank, id: u64) -> Result<(bool, bool), Stop> {
        let mut any = false;
        loop {
            let Some(sending) = self.comm.messages.sendings.get(&id) else { return Ok((true, any)) };
            let (kind, gone) = (sending.outbound.kind, sending.gone);
            let size = kind.dtype.size();
            let len = (self.comm.settings.eager_bytes / size).min(kind.count - gone);
            let (source, at, registered) = sending.outbound.place();
            let message = Message::Part(Part { len: len as u64, unused: [0; 2] });
            let number = sending.number;
            let source = Some((&source, at + gone * size, len * size));
            let put = SlotPut { message, number, source, registered, id: Some(id) };
            let sent = self.send_to_slot(to, &put)?;
            let Some(sending) = self.comm.messages.sendings.get_mut(&id) else { return Ok((true, any)) };
            match sent {
                Sent::No => return Ok((false, any)),
                Sent::Gone => {}
                Sent::UnderWay => sending.under_way += 1,
            }
            any = true;
            sending.gone += len;
            if sending.gone == kind.count {
                sending.stage = SendStage::Gone;
                self.comm.messages.left(id);
                return Ok((true, any));
            }
        }
    }

    /// Puts a message into the next slot of a rank.
    fn send_to_slot(&mut self, to: Rank, put: &SlotPut<'_>) -> Result<Sent, Stop> {
        let Some(sender) = self.comm.flows.sender(to, WindowClass::Message, 0) else {
            self.probe_mismatch(to, WindowClass::Message, &OperationInfo::default())?;
            return Ok(Sent::No);
        };
        let Some(record) = self.record(&self.comm.flows.senders[sender].flow) else { return Ok(Sent::No) };
        let bytes = put.source.map_or(0, |(.., bytes)| bytes);
        let injected = HEADER + bytes <= self.port.limits.max_inject;
        let origin = match put.source {
            Some((region, offset, bytes)) if bytes > 0 => {
                let anywhere = put.registered || injected || !self.port.limits.local_registration;
                if anywhere && !self.port.joins(bytes) {
                    Origin { region: region.clone(), offset, hold: None, staging: None }
                } else {
                    let Some(staged) = self.port.posts.stage(&mut *self.port.transport)? else {
                        return Ok(Sent::No);
                    };
                    let slot = staged.slot;
                    let Some((staging, at)) = self.port.posts.staged(slot) else { return Ok(Sent::No) };
                    let copied = Bytes::new(region, offset, bytes)
                        .and_then(|source| memory::copy(source, Bytes::new(&staging, at, bytes)?));
                    copied.map_err(|error| self.stop(format!("a message to staging: {error}")))?;
                    Origin { region: staging, offset: at, hold: None, staging: Some(slot) }
                }
            }
            _ => Origin { region: self.comm.mailbox.sources.clone(), offset: 0, hold: None, staging: None },
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

    fn write_message(&mut self, to: Rank, id: u64) -> Result<(bool, bool), Stop> {
        let mut any = false;
        loop {
            let Some(sending) = self.comm.messages.sendings.get(&id) else { return Ok((true, any)) };
            let SendStage::Writing(region, piece) = sending.stage else { return Ok((true, any)) };
            let (len, gone) = (sending.outbound.kind.bytes(), sending.gone);
            let (source, base, _) = sending.outbound.place();
            let Some(sender) = self.comm.flows.sender(to, WindowClass::Message, 0) else {
                return Ok((false, any));
            };
            let Some(record) = self.record(&self.comm.flows.senders[sender].writes) else {
                return Ok((false, any));
            };
            let bytes = piece.min(len - gone);
            let origin = Origin { region: source, offset: base + gone, hold: None, staging: None };
            let ready = ReadyPut { sender, origin, bytes, record, whose: Whose::Message(Some(id)) };
            if !self.put_direct(ready, Target { region, offset: gone as u64 })? {
                return Ok((false, any));
            }
            any = true;
            let injected = bytes <= self.port.limits.max_inject;
            if let Some(sending) = self.comm.messages.sendings.get_mut(&id) {
                sending.gone += bytes;
                sending.under_way += usize::from(!injected);
                if sending.gone == len {
                    sending.stage = SendStage::Gone;
                    self.comm.messages.left(id);
                    return Ok((true, any));
                }
            }
        }
    }
}

impl Messages {
    /// A put has ended; `id` is the send that could not end before.
    pub(crate) fn put_left(&mut self, id: Option<u64>) {
        self.under_way = self.under_way.saturating_sub(1);
        if let Some(id) = id {
            if let Some(sending) = self.sendings.get_mut(&id) {
                sending.under_way = sending.under_way.saturating_sub(1);
            }
            self.left(id);
        }
    }

    /// Ends a send, if all its puts have ended.
    fn left(&mut self, id: u64) {
        let over = |sending: &Sending| matches!(sending.stage, SendStage::Gone) && sending.under_way == 0;
        if self.sendings.get(&id).is_some_and(over)
            && let Some(sending) = self.sendings.remove(&id)
        {
            self.ended.push_back((sending.completion, None));
        }
    }
}
