//! What of messages waits, and for whom.

use std::time::Instant;

use unisono_schedule::Rank;

use super::{
    matching::Want,
    talk::{Receiving, Sending, Stage, Talk},
};
use crate::{
    call::{Kind, Signature},
    engine::completion::Completion,
    position::MessagePosition,
};

/// A send or a receive that waits, and for whom.
pub(super) enum Waits<'t> {
    Send(&'t Sending),
    Receive(&'t Receiving, Option<Rank>),
}

impl Waits<'_> {
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
                let Kind { form, dtype, .. } = outbound.kind;
                Signature::message(true, form, dtype, Some(outbound.to), outbound.tag)
            }
            Self::Receive(Receiving { inbound, .. }, from) => {
                Signature::message(false, inbound.form, inbound.dtype, *from, inbound.tag)
            }
        }
    }
}

impl Talk {
    /// What waits.
    pub(super) fn waits(&self) -> impl Iterator<Item = Waits<'_>> {
        let receives = self.matching.receives().map(|(want, receiving)| Waits::Receive(receiving, want.from));
        self.begun().chain(receives)
    }

    /// Sends, and receives whose message is known.
    fn begun(&self) -> impl Iterator<Item = Waits<'_>> {
        let sends = self.sendings.values().map(Waits::Send);
        let landings = self.landings.iter().filter_map(|(&(from, _), landing)| {
            landing.receiving.as_ref().map(|receiving| Waits::Receive(receiving, Some(from)))
        });
        sends.chain(landings)
    }

    /// Where the one stands that has waited longest, if any does: since when, its call, and the rank it waits for.
    pub(crate) fn longest_wait(&self) -> Option<(Instant, Signature, Option<Rank>)> {
        let oldest = self.waits().min_by_key(|waits| waits.completion().submitted);
        oldest.map(|waits| (waits.completion().submitted, waits.signature(), waits.peer()))
    }

    /// Where each stands that somebody waits for, in a group of so many ranks, by ranks of the world. A rank that leaves waits
    /// for no receive for which there is no request to send.
    pub(crate) fn positions(
        &self,
        world: impl Fn(Rank) -> Rank,
        ranks: usize,
        leaves: bool,
    ) -> Vec<MessagePosition> {
        // What has come and was not looked at may be what a receive waits for.
        let news = !(self.arrived.is_empty() && self.written.is_empty() && self.ended.is_empty());
        let position = |waits: Waits<'_>| {
            let whom = match (&waits, waits.peer()) {
                // It ends by itself.
                (Waits::Send(Sending { stage: Stage::Gone, .. }), _) => Vec::new(),
                (Waits::Receive(..), _) if news => Vec::new(),
                (_, Some(peer)) => vec![world(peer)],
                (_, None) => (0..ranks).map(&world).collect(),
            };
            let receives = matches!(waits, Waits::Receive(..));
            MessagePosition { call: waits.signature().worldwide(&world).call(), receives, waits: whom }
        };
        let unasked = |(want, it): &(Want, &Receiving)| it.completion.is_forsaken() || leaves && !want.inner;
        let receives = self.matching.receives().filter(|receive| !unasked(receive));
        let receives = receives.map(|(want, it)| Waits::Receive(it, want.from));
        self.begun().chain(receives).map(position).collect()
    }

    /// Gives up all receives whose message has not come, by ranks of the world: their calls, and what belongs to who has asked.
    pub(crate) fn give_up_receives(&mut self, world: impl Fn(Rank) -> Rank) -> Vec<(String, Completion)> {
        let calls: Vec<String> = {
            let receives = self.matching.receives();
            let calls = receives.map(|(want, it)| Waits::Receive(it, want.from).signature());
            calls.map(|signature| signature.worldwide(&world).call()).collect()
        };
        calls.into_iter().zip(self.matching.give_up().map(|receiving| receiving.completion)).collect()
    }
}
