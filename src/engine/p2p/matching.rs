//! Matches messages with receives: messages of one sender and tag in their order, receives in theirs, and nothing else.

use std::collections::VecDeque;

use unisono_schedule::Rank;

use crate::call::Space;

/// The sender and the tag of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    pub from: Rank,
    pub tag: u64,
    pub space: Space,
}

/// The messages that a receive takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Want {
    /// The sender; `None` for any rank.
    pub from: Option<Rank>,
    pub tag: u64,
    pub space: Space,
}

impl Want {
    fn takes(self, envelope: Envelope) -> bool {
        let tags = (self.tag, self.space) == (envelope.tag, envelope.space);
        tags && self.from.is_none_or(|from| from == envelope.from)
    }
}

/// Receives without a message, and messages without a receive; no message fits a receive. Of several that fit, the earliest is
/// taken.
#[derive(Debug)]
pub(crate) struct Matching<R, M> {
    receives: VecDeque<(Want, R)>,
    messages: VecDeque<(Envelope, M)>,
}

impl<R, M> Default for Matching<R, M> {
    fn default() -> Self {
        Self { receives: VecDeque::new(), messages: VecDeque::new() }
    }
}

impl<R, M> Matching<R, M> {
    /// Takes the earliest message for a receive; if there is none, the receive waits.
    pub(crate) fn receive(&mut self, want: Want, receive: R) -> Option<(Envelope, M, R)> {
        match self.messages.iter().position(|&(envelope, _)| want.takes(envelope)) {
            Some(place) => {
                self.messages.remove(place).map(|(envelope, message)| (envelope, message, receive))
            }
            None => {
                self.receives.push_back((want, receive));
                None
            }
        }
    }

    /// Takes the earliest receive for a message that has arrived.
    pub(crate) fn taker(&mut self, envelope: Envelope) -> Option<R> {
        let place = self.receives.iter().position(|&(want, _)| want.takes(envelope))?;
        self.receives.remove(place).map(|(_, receive)| receive)
    }

    /// Keeps a message that [no receive takes](Self::taker).
    pub(crate) fn keep(&mut self, envelope: Envelope, message: M) {
        self.messages.push_back((envelope, message));
    }

    /// Whether there are messages without a receive.
    pub(crate) fn has_messages(&self) -> bool {
        !self.messages.is_empty()
    }

    /// The messages without a receive, in the order of arrival.
    pub(crate) fn messages(&mut self) -> impl Iterator<Item = (Envelope, &mut M)> {
        self.messages.iter_mut().map(|(envelope, message)| (*envelope, message))
    }

    /// The receives without a message, in their order.
    pub(crate) fn receives(&self) -> impl Iterator<Item = (Want, &R)> {
        self.receives.iter().map(|(want, receive)| (*want, receive))
    }

    /// Removes the receives without a message for which this is true.
    pub(crate) fn take_back(&mut self, so: impl Fn(Want, &R) -> bool) -> Vec<R> {
        let all = std::mem::take(&mut self.receives).into_iter();
        let (taken, kept): (VecDeque<_>, _) = all.partition(|(want, receive)| so(*want, receive));
        self.receives = kept;
        taken.into_iter().map(|(_, receive)| receive).collect()
    }

    /// Removes all receives.
    pub(crate) fn give_up(&mut self) -> impl Iterator<Item = R> {
        self.receives.drain(..).map(|(_, receive)| receive)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Move {
        Send(Envelope),
        Receive(Want),
    }

    fn space() -> impl Strategy<Value = Space> {
        prop_oneof![Just(Space::Calls), Just(Space::Inner), Just(Space::Groups)]
    }

    fn moves() -> impl Strategy<Value = Vec<Move>> {
        let send = (0_usize..3, 0_u64..3, space())
            .prop_map(|(from, tag, space)| Move::Send(Envelope { from, tag, space }));
        let receive = (prop::option::of(0_usize..3), 0_u64..3, space())
            .prop_map(|(from, tag, space)| Move::Receive(Want { from, tag, space }));
        prop::collection::vec(prop_oneof![send, receive], 0..80)
    }

    proptest! {
        /// Each message goes to one receive that takes it; messages of one sender and tag are taken in order; and no message that
        /// remains fits a receive that remains.
        #[test]
        fn messages_of_a_sender_and_tag_stay_in_order(moves in moves()) {
            let mut matching = Matching::default();
            let mut matched: Vec<(Envelope, usize, usize)> = Vec::new();
            for (number, step) in moves.iter().enumerate() {
                match *step {
                    Move::Send(envelope) => match matching.taker(envelope) {
                        Some(receive) => matched.push((envelope, number, receive)),
                        None => matching.keep(envelope, number),
                    },
                    Move::Receive(want) => {
                        if let Some((envelope, message, receive)) = matching.receive(want, number) {
                            matched.push((envelope, message, receive));
                        }
                    }
                }
            }
            for &(envelope, message, receive) in &matched {
                prop_assert!(matches!(moves[message], Move::Send(it) if it == envelope));
                let Move::Receive(want) = moves[receive] else { panic!("no receive") };
                prop_assert!(want.takes(envelope));
                // Every earlier message of the same sender and tag was matched too.
                for (earlier, step) in moves.iter().enumerate().take(message) {
                    if matches!(step, Move::Send(it) if *it == envelope) {
                        prop_assert!(matched.iter().any(|&(_, it, _)| it == earlier), "{earlier} was overtaken");
                    }
                }
            }
            let mut receives: Vec<_> = matched.iter().map(|&(.., receive)| receive).collect();
            receives.sort_unstable();
            receives.dedup();
            prop_assert_eq!(receives.len(), matched.len());
            let waiting: Vec<Want> = matching.receives().map(|(want, _)| want).collect();
            for (envelope, _) in matching.messages() {
                prop_assert!(!waiting.iter().any(|want| want.takes(envelope)));
            }
        }
    }
}
