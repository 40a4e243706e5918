//! The sends and receives that wait, and the ranks that they wait for.

use std::time::Instant;

use unisono_core::position::MessagePosition;
use unisono_schedule::Rank;

use super::{Messages, SendStage, Sending, landings::Receiving, matching::Want, queue::look};
use crate::{
    call::{MessageKind, Signature, Space},
    completion::Completion,
};

/// A send, or a receive with the rank that it waits for (`None` for any).
pub(crate) enum Waits<'t> {
    Send(&'t Sending),
    Receive(&'t Receiving, Option<Rank>),
}

/// The call that has waited longest.
pub(crate) struct LongestWait {
    /// When it was submitted.
    pub since: Instant,
    pub signature: Signature,
    /// The rank that it waits for, unless it waits for any.
    pub peer: Option<Rank>,
}

impl Waits<'_> {
    /// The call, which was submitted at the time that its completion says.
    pub(crate) fn longest(&self) -> LongestWait {
        LongestWait { since: self.completion().submitted, signature: self.signature(), peer: self.peer() }
    }

    pub(crate) fn completion(&self) -> &Completion {
        match self {
            Self::Send(sending) => &sending.completion,
            Self::Receive(receiving, _) => &receiving.completion,
        }
    }

    fn peer(&self) -> Option<Rank> {
        match self {
            Self::Send(sending) => Some(sending.outbound.to),
            Self::Receive(_, from) => *from,
        }
    }

    pub(crate) fn signature(&self) -> Signature {
        match self {
            Self::Send(Sending { outbound, .. }) => {
                let MessageKind { form, dtype, alias, .. } = outbound.kind;
                Signature::message(true, form, dtype, Some(outbound.to), outbound.tag).named(alias)
            }
            Self::Receive(Receiving { inbound, .. }, from) => {
                Signature::message(false, inbound.form, inbound.dtype, *from, inbound.tag)
                    .named(inbound.alias)
            }
        }
    }
}

impl Messages {
    /// All sends and receives that have not ended.
    pub(crate) fn waits(&self) -> impl Iterator<Item = Waits<'_>> {
        let receives = self.matching.receives().map(|(want, receiving)| Waits::Receive(receiving, want.from));
        self.begun().chain(receives)
    }

    /// Sends, and receives whose message is known.
    fn begun(&self) -> impl Iterator<Item = Waits<'_>> {
        let sends = self.sendings.values().inspect(|_| look()).map(Waits::Send);
        sends.chain(self.landings.receives().map(|(from, receiving)| Waits::Receive(receiving, Some(from))))
    }

    /// The send or receive that was submitted first, if there is any.
    pub(crate) fn longest_wait(&self) -> Option<LongestWait> {
        // Each of the three is in the order in which calls began.
        let sends = self.sendings.values().map(Waits::Send).next();
        let landing = self.landings.receives().next().map(|(from, it)| Waits::Receive(it, Some(from)));
        let receives = self.matching.receives().map(|(want, it)| Waits::Receive(it, want.from)).next();
        let first = [sends, landing, receives].into_iter().flatten();
        first.min_by_key(|waits| waits.completion().submitted).map(|waits| waits.longest())
    }

    /// The positions of at most `most` calls that the caller waits for, in a group of `ranks` ranks, with ranks of the world. If the
    /// rank `leaves`, it does not wait for receives without a message.
    pub(crate) fn positions(
        &self,
        world: impl Fn(Rank) -> Rank,
        ranks: usize,
        leaves: bool,
        most: usize,
    ) -> Vec<MessagePosition> {
        // A message that was not handled may be the one that a receive waits for.
        let news = !(self.arrived.is_empty() && self.written.is_empty() && self.ended.is_empty());
        let position = |waits: Waits<'_>| {
            let ranks = match (&waits, waits.peer()) {
                // The send ends without its receiver.
                (Waits::Send(Sending { stage: SendStage::Gone, .. }), _) => Vec::new(),
                (Waits::Receive(..), _) if news => Vec::new(),
                (_, Some(peer)) => vec![world(peer)],
                (_, None) => (0..ranks).map(&world).collect(),
            };
            let receives = matches!(waits, Waits::Receive(..));
            MessagePosition { call: waits.signature().worldwide(&world).call(), receives, waits: ranks }
        };
        let unasked = |(want, it): &(Want, &Receiving)| {
            it.completion.is_forsaken() || leaves && want.space != Space::Inner
        };
        let receives = self.matching.receives().filter(|receive| !unasked(receive));
        let receives = receives.map(|(want, it)| Waits::Receive(it, want.from));
        self.begun().chain(receives).take(most).map(position).collect()
    }

    /// Gives up all receives whose message has not arrived. Returns their calls, with ranks of the world, and their completions.
    pub(crate) fn give_up_receives(&mut self, world: impl Fn(Rank) -> Rank) -> Vec<(String, Completion)> {
        let calls: Vec<String> = {
            let receives = self.matching.receives();
            let calls = receives.map(|(want, it)| Waits::Receive(it, want.from).signature());
            calls.map(|signature| signature.worldwide(&world).call()).collect()
        };
        calls.into_iter().zip(self.matching.give_up().map(|receiving| receiving.completion)).collect()
    }
}
