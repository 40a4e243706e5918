//! The sends and receives of a communicator that have not ended ([`Messages`]).
//!
//! All messages to one rank go through one flow of slots, in the order of their sends, except that clears to send, and parts of large
//! messages, go before messages that wait. A small message is whole in its slot. For a large one the sender first sends a request to send.
//! When the receive has begun, the receiver answers with a clear to send, and the sender writes straight into the receiver's memory, or
//! sends the message in parts through slots if either memory cannot be registered. A small message without a receive is unexpected: it is
//! copied out of its slot, so that it does not block the flow.

mod landings;
mod matching;
mod queue;
mod waits;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use unisono_schedule::Rank;
use unisono_transport::RemoteRegion;

#[cfg(test)]
pub(crate) use self::queue::LOOKS;
use self::{landings::Landings, matching::Matching};
pub(crate) use self::{
    landings::{Landing, PIECE, Receiving},
    matching::Envelope,
    queue::look,
    waits::MessageWait,
};
use crate::{
    call::{Form, MessageKind},
    completion::{Completion, ReceivedMessage},
    memory::Fresh,
    request::Outbound,
    wire::{MessageClearToSend, MessageInfo},
};

/// If large messages have waited for each other for this time, one of them is received unexpected: far longer than it takes to begin
/// a receive right after a send.
pub(crate) const STALE: Duration = Duration::from_millis(1);

/// If a collective or a receive has waited for this time, it may wait for a rank whose large message waits to be received. That is
/// far longer than they usually take, since a message that is received unexpected is copied once more.
pub(crate) const LONG: Duration = Duration::from_millis(100);

/// Deadlines are checked no more often than this, because each check looks at all calls that wait.
const TICK: Duration = Duration::from_millis(10);

/// A send that has begun.
pub(crate) struct Sending {
    pub(crate) outbound: Outbound,
    pub(crate) completion: Completion,
    /// The number of the message among those to its receiver; the low 32 bits.
    pub(crate) number: u32,
    /// The number of bytes that were sent in parts or written.
    pub(crate) gone: usize,
    /// The number of its puts in flight.
    pub(crate) under_way: usize,
    pub(crate) stage: SendStage,
}

impl Sending {
    /// True if it was submitted longer ago than this.
    fn is_older(&self, now: Instant, than: Duration) -> bool {
        now >= self.completion.submitted + than
    }

    /// The description of the message. `writes`: true if this rank can write its elements from where they lie.
    pub(crate) fn info(&self, writes: bool) -> MessageInfo {
        let Outbound { tag, kind, .. } = self.outbound;
        let (dtype, alias) = (kind.dtype.code(), kind.alias.code());
        let (form, count) = (kind.form.code(), kind.count as u64);
        let (tag, tag_high, writes) = ((tag & 0xffff_ffff) as u32, (tag >> 32) as u32, writes.into());
        MessageInfo { tag, dtype, form, writes, count, tag_high, alias, ..MessageInfo::default() }
    }
}

/// The progress of a send.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SendStage {
    /// The send waits for a slot.
    Queued,
    /// The send waits for a clear to send.
    Requested,
    /// The message is written to this region, in pieces of this many bytes.
    Writing(RemoteRegion, usize),
    /// The message is sent in parts.
    InParts,
    /// The transport has taken all puts.
    Gone,
}

/// An entry that goes to a rank's slots before the messages that wait for them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PriorityEntry {
    /// The next parts of this send's message.
    Parts(u64),
    /// A clear to send for the message of that number.
    ClearToSend(u32, MessageClearToSend),
}

/// What its sender says of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Described {
    pub(crate) from: Rank,
    pub(crate) tag: u64,
    /// The number of the message among those from its sender; the low 32 bits.
    pub(crate) number: u32,
    pub(crate) kind: MessageKind,
}

impl Described {
    pub(crate) fn envelope(&self) -> Envelope {
        Envelope { from: Some(self.from), tag: self.tag, space: self.kind.form.space() }
    }

    /// The key of a [large message](Landings).
    pub(crate) fn key(&self) -> (Rank, u32) {
        (self.from, self.number)
    }
}

/// A message that has arrived, or whose request to send has, before its receive.
pub(crate) struct Early {
    pub(crate) message: Described,
    pub(crate) state: EarlyState,
}

/// How much of a message has arrived before its receive.
pub(crate) enum EarlyState {
    /// A small message, copied out of its slot, or a large one that has arrived completely.
    Whole(Fresh),
    /// A request to send.
    Requested { writes: bool, since: Instant },
    /// A large message that is being received unexpected.
    Coming,
}

/// The sends and receives of a communicator that have not ended, and its unexpected messages.
#[derive(Default)]
pub(crate) struct Messages {
    /// The sends, by id: in the order in which they began.
    pub(crate) sendings: BTreeMap<u64, Sending>,
    /// The id of the next send.
    pub(crate) asked: u64,
    /// The number of messages that were sent to each rank.
    pub(crate) numbers: BTreeMap<Rank, u32>,
    /// For each rank, the entries that go to its slots before messages: the receiver may have no room for these.
    pub(crate) answers: BTreeMap<Rank, VecDeque<PriorityEntry>>,
    /// For each rank, the sends whose message, or whose request to send, waits for a slot.
    pub(crate) queues: BTreeMap<Rank, VecDeque<u64>>,
    /// For each rank, the sends whose messages are written, in the order of their clears to send.
    pub(crate) writes: BTreeMap<Rank, VecDeque<u64>>,
    pub(crate) matching: Matching<Receiving, Early>,
    /// The requests to send without a receive, by their numbers in `matching`: those that are not being received unexpected.
    pub(crate) requested: BTreeSet<u64>,
    /// The sends that wait for a clear to send, by receiver and number.
    pub(crate) requests: BTreeMap<(Rank, u32), u64>,
    /// The large messages that were cleared to send.
    pub(crate) landings: Landings,
    /// For each rank, the numbers of those that it writes, in the order of the clears to send.
    pub(crate) clear_to_send: BTreeMap<Rank, VecDeque<u32>>,
    /// Flows with messages in slots that were not handled.
    pub(crate) arrived: Vec<usize>,
    /// Flows with writes that were not handled.
    pub(crate) written: Vec<usize>,
    /// The bytes of unexpected messages.
    pub(crate) unexpected: usize,
    /// The number of puts in flight.
    pub(crate) under_way: usize,
    /// The completions of calls that have ended, with the results of receives; and of calls with which the engine fails.
    pub(crate) ended: VecDeque<(Completion, Option<ReceivedMessage>)>,
    /// No deadline is earlier than this; `None` if no call waits.
    pub(crate) soonest: Option<Instant>,
}

impl Messages {
    /// True if a send or a receive whose message is known has not ended, or has ended and was not reported.
    pub(crate) fn busy(&self) -> bool {
        !self.sendings.is_empty() || self.landings.receives().next().is_some() || !self.ended.is_empty()
    }

    /// True if a send or a receive has not ended, or was not reported.
    pub(crate) fn open(&self) -> bool {
        self.busy() || self.matching.receives.iter().next().is_some()
    }

    pub(crate) fn has_more(&self) -> bool {
        !self.answers.is_empty() || !self.queues.is_empty() || !self.writes.is_empty()
    }

    /// True if only receives whose message has not arrived are under way, and none for a message that belongs to an earlier one, which
    /// its sender will send.
    pub(crate) fn only_receives(&self) -> bool {
        !self.busy() && !self.matching.receives.iter().any(|(_, it)| it.inbound.kind.form == Form::Inner)
    }

    /// Gives up receives without a message whose caller does not wait any more and whose sender is `gone`: from the earliest on, up to
    /// the first that is kept, since the rank cannot leave before that has ended.
    pub(crate) fn give_up_first(&mut self, gone: impl Fn(Option<Rank>) -> bool) {
        let is_given_up = |it: &Receiving| it.completion.is_forsaken() && gone(it.inbound.from);
        while let Some(receiving) = self.matching.receives.take_first_if(is_given_up) {
            self.cancel(receiving);
        }
    }

    /// Ends a receive whose caller does not wait any more.
    fn cancel(&mut self, Receiving { mut completion, inbound }: Receiving) {
        unisono_transport::log::debug!(from = ?inbound.from, tag = inbound.tag, "a receive that nobody waits for is given up");
        completion.cancel();
        self.ended.push_back((completion, None));
    }

    /// True if nothing is under way.
    pub(crate) fn is_over(&self) -> bool {
        let sent = self.answers.is_empty() && self.queues.is_empty() && self.under_way == 0;
        sent && !self.open() && self.landings.all.is_empty()
    }

    /// The call whose deadline has passed, if there is one.
    pub(crate) fn late(&mut self, now: Instant) -> Option<MessageWait> {
        if self.soonest.is_none_or(|soonest| now < soonest) {
            return None;
        }
        let over = |it: &Receiving| it.completion.is_forsaken() && it.completion.deadline <= now;
        self.matching.receives.take_if(over).into_iter().for_each(|receiving| self.cancel(receiving));
        let first = self.waits().min_by_key(|wait| wait.deadline);
        self.soonest = first.map(|first| first.deadline.max(now + TICK));
        first.filter(|first| first.deadline <= now)
    }

    /// A call that has this deadline begins.
    pub(crate) fn wait_until(&mut self, deadline: Instant) {
        self.soonest = Some(self.soonest.map_or(deadline, |soonest| soonest.min(deadline)));
    }

    /// When to check whether a message is to be received unexpected; `None` if no message can be.
    pub(crate) fn patience(&self) -> Option<Instant> {
        if self.requested.is_empty() {
            return None;
        }
        self.oldest_send().map(|oldest| oldest.completion.submitted + STALE)
    }

    /// The first send of which nothing was sent: one that waits for a slot or for a clear to send. There is one look at each rank.
    fn oldest_send(&self) -> Option<&Sending> {
        let queued = self.queues.values().filter_map(|queue| queue.front().copied());
        let mut from = 0;
        let requested = std::iter::from_fn(|| {
            let (&(to, _), &id) = self.requests.range((from, 0)..).next()?;
            from = to + 1;
            Some(id)
        });
        // Ids are in the order in which sends began.
        let oldest = queued.chain(requested).inspect(|_| look()).min();
        oldest.and_then(|id| self.sendings.get(&id))
    }

    /// True if a send to this rank has waited so long that the rank may wait until one of its messages is received here.
    pub(crate) fn waits_for(&self, to: Rank, now: Instant) -> bool {
        let queued = self.queues.get(&to).and_then(|queue| queue.front());
        let requested = self.requests.range((to, 0)..=(to, u32::MAX)).next().map(|(_, id)| id);
        let both = queued.into_iter().chain(requested).filter_map(|id| self.sendings.get(id));
        both.inspect(|_| look()).any(|sending| sending.is_older(now, LONG))
    }

    /// True if a send to any rank has waited for this time.
    pub(crate) fn waits_for_any(&self, now: Instant, time: Duration) -> bool {
        self.oldest_send().is_some_and(|oldest| oldest.is_older(now, time))
    }

    /// Gives everything up. Returns the completions.
    pub(crate) fn abandon(&mut self) -> Vec<Completion> {
        let sendings = std::mem::take(&mut self.sendings).into_values().map(|sending| sending.completion);
        let landings =
            std::mem::take(&mut self.landings).into_receives().map(|receiving| receiving.completion);
        let receives =
            std::mem::take(&mut self.matching.receives).into_values().map(|receiving| receiving.completion);
        let ended = self.ended.drain(..).map(|(completion, _)| completion);
        sendings.chain(landings).chain(receives).chain(ended).collect()
    }

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
    pub(crate) fn left(&mut self, id: u64) {
        let over = |sending: &Sending| matches!(sending.stage, SendStage::Gone) && sending.under_way == 0;
        if self.sendings.get(&id).is_some_and(over)
            && let Some(sending) = self.sendings.remove(&id)
        {
            self.ended.push_back((sending.completion, None));
        }
    }

    /// Keeps a message that no receive takes. Returns its number in `matching`.
    pub(crate) fn keep(&mut self, message: Described, state: EarlyState) -> u64 {
        self.matching.keep(message.envelope(), Early { message, state })
    }

    /// A receive has ended: its sender, and new memory with the message.
    pub(crate) fn received(&mut self, completion: Completion, from: Rank, fresh: Option<Fresh>) {
        self.ended.push_back((completion, Some(ReceivedMessage { from, message: fresh })));
    }
}
