//! The sends and receives that wait, and the ranks that they wait for.

use std::time::Instant;

use unisono_core::position::MessagePosition;
use unisono_schedule::Rank;

use super::{Messages, SendStage, Sending, landings::Receiving, queue::look};
use crate::{
    call::{Form, Signature},
    completion::Completion,
};

/// A send or a receive that waits.
#[derive(Clone, Copy)]
pub(crate) struct MessageWait {
    /// When it was submitted.
    pub since: Instant,
    pub deadline: Instant,
    pub signature: Signature,
    /// The rank that it waits for, unless it waits for any.
    pub peer: Option<Rank>,
}

impl MessageWait {
    fn of(completion: &Completion, signature: Signature, peer: Option<Rank>) -> Self {
        Self { since: completion.submitted, deadline: completion.deadline, signature, peer }
    }

    /// The same, with ranks of the world.
    pub(crate) fn worldwide(self, world: impl Fn(Rank) -> Rank) -> Self {
        Self { signature: self.signature.worldwide(&world), peer: self.peer.map(world), ..self }
    }
}

impl Sending {
    fn wait(&self) -> MessageWait {
        let peer = Some(self.outbound.to);
        let signature = Signature::message(true, &self.outbound.kind, peer, self.outbound.tag);
        MessageWait::of(&self.completion, signature, peer)
    }
}

impl Receiving {
    /// `from`: the sender if it is known, otherwise that which the receive names.
    fn wait(&self, from: Option<Rank>) -> MessageWait {
        let signature = Signature::message(false, &self.inbound.kind, from, self.inbound.tag);
        MessageWait::of(&self.completion, signature, from)
    }
}

impl Messages {
    /// Receives whose message is known.
    fn landing(&self) -> impl Iterator<Item = MessageWait> {
        self.landings.receives().map(|(from, receiving)| receiving.wait(Some(from)))
    }

    /// Receives without a message.
    fn receiving(&self) -> impl Iterator<Item = (&Receiving, MessageWait)> {
        self.matching
            .receives
            .iter()
            .map(|(_, receiving)| (receiving, receiving.wait(receiving.inbound.from)))
    }

    /// All sends and receives that have not ended.
    pub(super) fn waits(&self) -> impl Iterator<Item = MessageWait> {
        let sends = self.sendings.values().inspect(|_| look()).map(Sending::wait);
        sends.chain(self.landing()).chain(self.receiving().map(|(_, wait)| wait))
    }

    /// The send or receive that was submitted first, if there is any.
    pub(crate) fn longest_wait(&self) -> Option<MessageWait> {
        // Each of the three is in the order in which calls began.
        let sends = self.sendings.values().next().map(Sending::wait);
        let receives = self.receiving().next().map(|(_, wait)| wait);
        let first = [sends, self.landing().next(), receives].into_iter().flatten();
        first.min_by_key(|wait| wait.since)
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
        let position = |wait: MessageWait, receives: bool, waits: bool| {
            let waits = match wait.peer {
                _ if !waits => Vec::new(),
                Some(peer) => vec![world(peer)],
                None => (0..ranks).map(&world).collect(),
            };
            MessagePosition { call: wait.signature.worldwide(&world).call(), receives, waits }
        };
        let sends = self.sendings.values().inspect(|_| look()).map(|sending| {
            // If the transport has taken all puts, the send ends without its receiver.
            position(sending.wait(), false, !matches!(sending.stage, SendStage::Gone))
        });
        let asked =
            |it: &Receiving| !it.completion.is_forsaken() && (!leaves || it.inbound.kind.form == Form::Inner);
        let receiving = self.receiving().filter(|(receiving, _)| asked(receiving)).map(|(_, wait)| wait);
        let receives = self.landing().chain(receiving).map(|wait| position(wait, true, !news));
        sends.chain(receives).take(most).collect()
    }

    /// Gives up all receives whose message has not arrived. Returns their calls, with ranks of the world, and their completions.
    pub(crate) fn give_up_receives(&mut self, world: impl Fn(Rank) -> Rank) -> Vec<(String, Completion)> {
        let receives = std::mem::take(&mut self.matching.receives).into_values();
        let given_up = receives.map(|receiving| {
            let wait = receiving.wait(receiving.inbound.from);
            (wait.signature.worldwide(&world).call(), receiving.completion)
        });
        given_up.collect()
    }
}
