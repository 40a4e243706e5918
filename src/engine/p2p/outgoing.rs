//! Sends messages: through slots with clears to send, large ones straight to their places.

use std::collections::{BTreeMap, VecDeque};

use unisono_schedule::{Rank, windows::stride};
use unisono_transport::{Region, RemoteRegion, Target};

use super::talk::{Item, Sending, Stage};
use crate::{
    buffer::{self, Bytes},
    engine::{
        access,
        comm::{Core, Origin, Ready, Whose},
        stop::Stop,
        wire::{
            Class, FlowHeader, HEADER, Immediate, Message, MessageClearToSend, MessageHeader, OperationInfo,
            PAYLOAD, Part, Way,
        },
    },
};

/// What goes through a slot: its header, but for what the flow adds, and where its elements lie.
struct SlotPut<'p> {
    header: MessageHeader,
    /// Region, offset and bytes.
    source: Option<(&'p Region, usize, usize)>,
    /// Whether the source is registered.
    registered: bool,
    /// The message that has not ended before this has left; none of a request or a clear to send.
    id: Option<u64>,
}

/// What became of it.
enum Sent {
    /// There is no window, no credit or no room.
    No,
    /// It leaves by itself, and its memory may change.
    Gone,
    /// It may wait in the provider yet, or its memory is read still.
    UnderWay,
}

impl Core<'_> {
    /// Sends what waits for slots, as far as it can. True if anything went.
    pub(crate) fn send_items(&mut self) -> Result<bool, Stop> {
        if self.comm.talk.queues.is_empty() {
            return Ok(false);
        }
        let mut queues = std::mem::take(&mut self.comm.talk.queues);
        let moved = self.go_through(&mut queues, Self::send_item);
        self.comm.talk.queues = queues;
        moved
    }

    /// Goes on with the first of each rank's queue, as far as it can. True if anything went. `go` tells whether one has gone
    /// wholly, and whether anything of it has.
    fn go_through<T: Copy>(
        &mut self,
        queues: &mut BTreeMap<Rank, VecDeque<T>>,
        go: impl Fn(&mut Self, Rank, T) -> Result<(bool, bool), Stop>,
    ) -> Result<bool, Stop> {
        let mut moved = false;
        for (&to, queue) in &mut *queues {
            while let Some(&first) = queue.front() {
                let (all, any) = go(self, to, first)?;
                moved |= any;
                if !all {
                    break;
                }
                queue.pop_front();
            }
        }
        queues.retain(|_, queue| !queue.is_empty());
        Ok(moved)
    }

    /// Sends one thing: whether it has gone wholly, and whether anything of it has.
    fn send_item(&mut self, to: Rank, item: Item) -> Result<(bool, bool), Stop> {
        match item {
            Item::ClearToSend { number, place, piece } => {
                let RemoteRegion { base, key, .. } = place.unwrap_or_default();
                let writable = place.is_some().into();
                let clear = MessageClearToSend { base, key, writable, piece, reserved: [0; 6] };
                let header = Message::ClearToSend(clear).header(number);
                let sent =
                    self.put_to_slot(to, &SlotPut { header, source: None, registered: false, id: None })?;
                Ok((!matches!(sent, Sent::No), !matches!(sent, Sent::No)))
            }
            Item::Message(id) => self.send_message(to, id).map(|sent| (sent, sent)),
            Item::Parts(id) => self.send_parts(to, id),
        }
    }

    fn send_message(&mut self, to: Rank, id: u64) -> Result<bool, Stop> {
        let Some(sending) = self.comm.talk.sendings.get(&id) else { return Ok(true) };
        let outbound = &sending.outbound;
        let kind = outbound.kind;
        let whole = kind.bytes() <= self.comm.settings.eager_bytes;
        let (source, at, registered) = outbound.place();
        // Whether it could be written from where it lies.
        let writes = registered || !self.port.limits.local_registration;
        let info = sending.info(writes && !whole);
        let message = if whole { Message::Whole(info) } else { Message::RequestToSend(info) };
        let header = message.header(sending.number);
        if !whole {
            // The clear to send comes through it.
            self.listen(to, Class::Message)?;
        }
        let source = whole.then_some((&source, at, kind.bytes()));
        let sent = self.put_to_slot(to, &SlotPut { header, source, registered, id: whole.then_some(id) })?;
        let Some(sending) = self.comm.talk.sendings.get_mut(&id) else { return Ok(true) };
        match sent {
            Sent::No => return Ok(false),
            Sent::Gone => {}
            Sent::UnderWay => sending.under_way += 1,
        }
        sending.stage = if whole { Stage::Gone } else { Stage::Requested };
        self.comm.talk.left(id);
        Ok(true)
    }

    fn send_parts(&mut self, to: Rank, id: u64) -> Result<(bool, bool), Stop> {
        let mut any = false;
        loop {
            let Some(sending) = self.comm.talk.sendings.get(&id) else { return Ok((true, any)) };
            let (kind, gone) = (sending.outbound.kind, sending.gone);
            let size = kind.dtype.size();
            let len = (self.comm.settings.eager_bytes / size).min(kind.count - gone);
            let (source, at, registered) = sending.outbound.place();
            let part = Part { len: len as u64, unused: [0; 2] };
            let header = Message::Part(part).header(sending.number);
            let source = Some((&source, at + gone * size, len * size));
            let sent = self.put_to_slot(to, &SlotPut { header, source, registered, id: Some(id) })?;
            let Some(sending) = self.comm.talk.sendings.get_mut(&id) else { return Ok((true, any)) };
            match sent {
                Sent::No => return Ok((false, any)),
                Sent::Gone => {}
                Sent::UnderWay => sending.under_way += 1,
            }
            any = true;
            sending.gone += len;
            if sending.gone == kind.count {
                sending.stage = Stage::Gone;
                self.comm.talk.left(id);
                return Ok((true, any));
            }
        }
    }

    /// Puts something into the next slot.
    fn put_to_slot(&mut self, to: Rank, put: &SlotPut<'_>) -> Result<Sent, Stop> {
        let Some(sender) = self.comm.sender(to, Class::Message, 0) else {
            self.probe_mismatch(to, Class::Message, &OperationInfo::default())?;
            return Ok(Sent::No);
        };
        let Some(number) = self.comm.senders[sender].flow.next() else { return Ok(Sent::No) };
        let Some(record) = self.port.posts.vacant() else { return Ok(Sent::No) };
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
                        .and_then(|source| buffer::copy(source, Bytes::new(&staging, at, bytes)?));
                    copied.map_err(|error| self.stop(format!("a message to staging: {error}")))?;
                    Origin { region: staging, offset: at, hold: None, staging: Some(slot) }
                }
            }
            _ => Origin { region: self.comm.control.clone(), offset: 0, hold: None, staging: None },
        };
        let staging = origin.staging;
        let opposite = self.comm.receiver(to, Class::Message, 0);
        let freed = opposite.map_or(0, |flow| self.comm.receivers[flow].freed());
        let mut header = put.header;
        header.flow = FlowHeader::new(freed, self.comm.senders[sender].reply);
        let (headers, at) = self.port.posts.header(record);
        access::store(headers, at, &header)?;
        let sender_end = &self.comm.senders[sender];
        let flow = &sender_end.flow;
        let slot = flow.first + flow.slot(number) * stride(sender_end.slot_bytes) as u64;
        let target = Target { region: sender_end.region, offset: slot + (PAYLOAD - HEADER) as u64 };
        let immediate = Immediate::Data { flow: flow.id, way: Way::Slots, number: (number & 0xffff) as u16 };
        let whose = Whose::Message(put.id);
        let ready = Ready { to, origin, bytes, record, header: true, target, immediate, whose };
        if !self.post(ready)? {
            if let Some(slot) = staging {
                self.port.posts.put_back(slot);
            }
            return Ok(Sent::No);
        }
        self.sending(sender, |end| end.flow.advance(HEADER + bytes));
        if let Some(flow) = opposite {
            self.comm.receivers[flow].tell();
        }
        Ok(if injected || put.id.is_none() { Sent::Gone } else { Sent::UnderWay })
    }

    /// Writes large messages to where their receivers want them. True if anything went.
    pub(crate) fn write_messages(&mut self) -> Result<bool, Stop> {
        if self.comm.talk.writes.is_empty() {
            return Ok(false);
        }
        let mut writes = std::mem::take(&mut self.comm.talk.writes);
        let moved = self.go_through(&mut writes, Self::write_message);
        self.comm.talk.writes = writes;
        moved
    }

    fn write_message(&mut self, to: Rank, id: u64) -> Result<(bool, bool), Stop> {
        let mut any = false;
        loop {
            let Some(sending) = self.comm.talk.sendings.get(&id) else { return Ok((true, any)) };
            let Stage::Writing(region, piece) = sending.stage else { return Ok((true, any)) };
            let (len, gone) = (sending.outbound.kind.bytes(), sending.gone);
            let (source, base, _) = sending.outbound.place();
            let Some(sender) = self.comm.sender(to, Class::Message, 0) else { return Ok((false, any)) };
            let Some(number) = self.comm.senders[sender].writes.next() else { return Ok((false, any)) };
            let Some(record) = self.port.posts.vacant() else { return Ok((false, any)) };
            let bytes = piece.min(len - gone);
            let origin = Origin { region: source, offset: base + gone, hold: None, staging: None };
            let flow = self.comm.senders[sender].writes.id;
            let immediate = Immediate::Data { flow, way: Way::Direct, number: (number & 0xffff) as u16 };
            let target = Target { region, offset: gone as u64 };
            let whose = Whose::Message(Some(id));
            let ready = Ready { to, origin, bytes, record, header: false, target, immediate, whose };
            if !self.post(ready)? {
                return Ok((false, any));
            }
            any = true;
            self.sending(sender, |end| end.writes.advance(bytes));
            let injected = bytes <= self.port.limits.max_inject;
            if let Some(sending) = self.comm.talk.sendings.get_mut(&id) {
                sending.gone += bytes;
                sending.under_way += usize::from(!injected);
                if sending.gone == len {
                    sending.stage = Stage::Gone;
                    self.comm.talk.left(id);
                    return Ok((true, any));
                }
            }
        }
    }
}

impl super::Talk {
    /// A put has left; and of which message, if that has not ended before.
    pub(crate) fn put_left(&mut self, id: Option<u64>) {
        self.under_way = self.under_way.saturating_sub(1);
        if let Some(id) = id {
            if let Some(sending) = self.sendings.get_mut(&id) {
                sending.under_way = sending.under_way.saturating_sub(1);
            }
            self.left(id);
        }
    }

    /// Ends a send, if it has left wholly.
    fn left(&mut self, id: u64) {
        let over = |sending: &Sending| matches!(sending.stage, Stage::Gone) && sending.under_way == 0;
        if self.sendings.get(&id).is_some_and(over)
            && let Some(sending) = self.sendings.remove(&id)
        {
            self.ended.push_back((sending.completion, None));
        }
    }
}
