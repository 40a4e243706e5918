//! Which message goes to which receive: the order of messages that have a sender and a tag in common, and of receives,
//! and nothing else.

use std::collections::VecDeque;

use unisono_schedule::Rank;

/// Who sent a message, and the tag that it bears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    pub from: Rank,
    pub tag: u32,
    /// Whether it belongs to a message that came before, and the tag is that one's own.
    pub inner: bool,
}

/// What a receive takes: from this rank, or from any where there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Want {
    pub from: Option<Rank>,
    pub tag: u32,
    pub inner: bool,
}

impl Want {
    fn takes(self, envelope: Envelope) -> bool {
        let tags = (self.tag, self.inner) == (envelope.tag, envelope.inner);
        tags && self.from.is_none_or(|from| from == envelope.from)
    }
}

/// Receives that wait for their message, and messages that wait for their receive; never two that fit. Of those that
/// fit, the earliest is taken.
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
    /// The earliest message for a receive, or the receive waits for it.
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

    /// The earliest receive for a message that has come.
    pub(crate) fn taker(&mut self, envelope: Envelope) -> Option<R> {
        let place = self.receives.iter().position(|&(want, _)| want.takes(envelope))?;
        self.receives.remove(place).map(|(_, receive)| receive)
    }

    /// A message that [nobody takes](Self::taker) waits.
    pub(crate) fn keep(&mut self, envelope: Envelope, message: M) {
        self.messages.push_back((envelope, message));
    }

    /// The messages that wait, in the order in which they came.
    pub(crate) fn messages(&mut self) -> impl Iterator<Item = (Envelope, &mut M)> {
        self.messages.iter_mut().map(|(envelope, message)| (*envelope, message))
    }

    /// The receives that wait, in their order.
    pub(crate) fn receives(&self) -> impl Iterator<Item = (Want, &R)> {
        self.receives.iter().map(|(want, receive)| (*want, receive))
    }

    /// The receives of which this is so: they wait no longer.
    pub(crate) fn take_back(&mut self, so: impl Fn(Want, &R) -> bool) -> Vec<R> {
        let all = std::mem::take(&mut self.receives).into_iter();
        let (taken, kept): (VecDeque<_>, _) = all.partition(|(want, receive)| so(*want, receive));
        self.receives = kept;
        taken.into_iter().map(|(_, receive)| receive).collect()
    }

    /// All receives, which wait no longer.
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

    fn moves() -> impl Strategy<Value = Vec<Move>> {
        let send = (0_usize..3, 0_u32..3, any::<bool>())
            .prop_map(|(from, tag, inner)| Move::Send(Envelope { from, tag, inner }));
        let receive = (prop::option::of(0_usize..3), 0_u32..3, any::<bool>())
            .prop_map(|(from, tag, inner)| Move::Receive(Want { from, tag, inner }));
        prop::collection::vec(prop_oneof![send, receive], 0..80)
    }

    proptest! {
        /// Each message goes to one receive that takes it; those of one sender and tag come in order; and what is left
        /// over fits nothing.
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
                // No earlier message of the same kind went to a later receive that came first or stays.
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
