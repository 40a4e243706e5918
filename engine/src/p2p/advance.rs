//! Begins and advances the sends and receives of a communicator.

use std::time::Instant;

use unisono_core::error::Failure;
use unisono_schedule::Rank;

use crate::{
    call::{Form, MessageKind},
    comm::Core,
    completion::Completion,
    memory::Fresh,
    messages::{
        Described, Early, EarlyState, Envelope, LONG, Landing, Messages, Receiving, STALE, SendStage,
        Sending, look,
    },
    request::{Inbound, Outbound, Place},
    stop::{Result, Stop},
};

impl Core<'_> {
    /// Begins a send.
    pub(crate) fn send(&mut self, outbound: Outbound, completion: Completion) {
        let messages = &mut self.comm.messages;
        let number = messages.numbers.entry(outbound.to).or_default();
        let stage = SendStage::Queued;
        let sending = Sending { number: *number, completion, gone: 0, under_way: 0, stage, outbound };
        *number = number.wrapping_add(1);
        let id = messages.asked;
        messages.asked += 1;
        messages.wait_until(sending.completion.deadline);
        messages.queues.entry(sending.outbound.to).or_default().push_back(id);
        messages.sendings.insert(id, sending);
    }

    /// Begins a receive.
    pub(crate) fn receive(&mut self, inbound: Inbound, completion: Completion) -> Result<()> {
        let wanted = Envelope { from: inbound.from, tag: inbound.tag, space: inbound.kind.form.space() };
        self.comm.messages.wait_until(completion.deadline);
        match self.comm.messages.matching.receive(wanted, Receiving { inbound, completion }) {
            None => Ok(()),
            Some((number, message, receiving)) => self.early(number, message, receiving),
        }
    }

    /// Advances sends and receives. True if anything moved.
    pub(crate) fn advance_messages(&mut self) -> Result<bool> {
        let mut moved = self.messages_arrived()?;
        moved |= self.writes_arrived()?;
        // Entries that wait for slots, then large messages that are written straight into their receivers' memory.
        moved |= self.send_queues(|messages| &mut messages.answers, Self::send_answer)?;
        moved |= self.send_queues(|messages| &mut messages.queues, Self::send_message)?;
        moved |= self.send_queues(|messages| &mut messages.writes, Self::send_piece)?;
        if self.comm.flows.has_debts() {
            self.comm.settle_debts(false);
        }
        if self.comm.mailbox.has_queued() {
            moved |= self.send_control()?;
        }
        Ok(moved)
    }

    /// Receives one large message unexpected, into new memory, if large messages wait for each other because ranks send before they
    /// receive, or if one may wait for this rank, which waits in a receive or, as `waits` says, in a collective. True if it does.
    pub(crate) fn receive_unexpected(&mut self, now: Instant, waits: bool) -> Result<bool> {
        // This runs for all communicators before each sleep, and there may be thousands.
        if self.comm.messages.requested.is_empty() {
            return Ok(false);
        }
        let (bounds, messages) = (self.comm.settings.bounds, &self.comm.messages);
        let sends = messages.waits_for_any(now, STALE);
        let first = messages.matching.receives.iter().next();
        let receives = first.is_some_and(|(_, first)| now >= first.completion.submitted + LONG);
        if !sends && !receives && !waits || self.comm.shutdown.has_left() {
            return Ok(false);
        }
        let left = bounds.unexpected_bytes.saturating_sub(messages.unexpected);
        let one_at_least = sends && messages.unexpected == 0;
        if left <= self.comm.settings.eager_bytes && !one_at_least && !messages.waits_for_any(now, LONG) {
            // There is no room for any large message.
            return Ok(false);
        }
        // The peer of a call that waits may only be late. But if sends wait for each other, only this helps.
        let fits = |from: Rank, kind: &MessageKind| {
            kind.kept() <= left || one_at_least || messages.waits_for(from, now)
        };
        let in_order = messages.requested.iter().inspect(|_| look());
        let requests = in_order.filter_map(|&kept| match *messages.matching.messages.get(kept)? {
            Early { message, state: EarlyState::Requested { writes, since } } => {
                Some((since, (kept, message, writes)))
            }
            _ => None,
        });
        // Its receive may follow right after the one that waits. They are in the order of their arrival.
        let mut may = requests.take_while(|&(since, _)| sends || waits || now >= since + LONG);
        let found = may.find(|(_, (_, message, _))| fits(message.from, &message.kind));
        let Some((_, (kept, message, writes))) = found else { return Ok(false) };
        let kind = message.kind;
        let Some(fresh) = Fresh::new(kind.dtype, kind.count) else { return Ok(false) };
        let Messages { matching, unexpected, requested, .. } = &mut self.comm.messages;
        requested.remove(&kept);
        if let Some(early) = matching.messages.get_mut(kept) {
            early.state = EarlyState::Coming;
        }
        *unexpected += kind.kept();
        let into = fresh.region().clone().into();
        let landing = Landing::new(kind, None, into, Some(fresh), bounds);
        self.clear_message_to_send(message.key(), Landing { kept: Some(kept), ..landing }, writes)?;
        self.port.mark_active(self.comm.identity.comm_id);
        Ok(true)
    }

    /// The failure for a message that has arrived and that no call has received. Sends nothing: the others may be gone.
    pub(crate) fn unreceived(&mut self) -> Result<Option<Failure>> {
        self.messages_arrived()?;
        let comm = &*self.comm;
        if !comm.messages.only_receives() {
            // A message that belongs to an earlier one may have arrived before its receive.
            return Ok(None);
        }
        let unreceived = comm.messages.matching.messages.iter().next();
        Ok(unreceived.map(|(_, early)| self.misfit(&early.message, "nothing, and leaves".to_owned())))
    }

    /// The failure for a message that is not what its receiver says.
    fn misfit(&self, message: &Described, receiver: String) -> Failure {
        let Described { from, tag, number, kind } = *message;
        let sender = (self.comm.identity.world(from), kind.words());
        Failure::Message { number: number.into(), tag, sender, receiver: (self.port.me, receiver) }
    }

    /// The failure for a message that does not fit its receive.
    pub(super) fn differ(&self, message: &Described, me: &Inbound) -> Stop {
        let (kind, wanted) = (&message.kind, me.kind);
        let wanted = match me.place {
            Place::There(_) | Place::New(_) => wanted.words(),
            Place::Fresh if wanted.form == kind.form && wanted.dtype == kind.dtype => {
                format!("at most {} bytes", wanted.bytes())
            }
            Place::Fresh if wanted.form == Form::Plain => format!("{} elements", wanted.dtype.name()),
            Place::Fresh => MessageKind { count: 0, ..wanted }.words(),
        };
        self.misfit(message, wanted).into()
    }
}
