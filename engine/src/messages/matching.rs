//! Matches messages with receives: messages of one sender and tag in their order, and receives in their order. It does nothing else.

use unisono_schedule::Rank;

use super::queue::Queue;
use crate::call::Space;

/// The sender and the tag of a message, or of the messages that a receive takes. Messages and receives are found by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Envelope {
    pub space: Space,
    pub tag: u64,
    /// The sender; `None` for a receive from any rank.
    pub from: Option<Rank>,
}

impl Envelope {
    /// The receives that take a message with this envelope have one of these.
    fn wanted(self) -> [Option<Self>; 2] {
        [Some(self), Some(Self { from: None, ..self })]
    }
}

/// Receives without a message, and messages without a receive; no message fits a receive. Of several that fit, the earliest is
/// taken, so messages of one sender and tag do not overtake each other, whether receives name the sender or not.
#[derive(Debug)]
pub(crate) struct Matching<R, M> {
    /// In their order.
    pub receives: Queue<Envelope, R>,
    /// In the order of arrival.
    pub messages: Queue<Envelope, M>,
}

impl<R, M> Default for Matching<R, M> {
    fn default() -> Self {
        Self { receives: Queue::default(), messages: Queue::default() }
    }
}

impl<R, M> Matching<R, M> {
    /// Takes the earliest message for a receive, and returns it with its number; if there is none, the receive waits.
    pub(crate) fn receive(&mut self, wanted: Envelope, receive: R) -> Option<(u64, M, R)> {
        let keys = [Some(wanted), None];
        let first = self.messages.first(keys);
        match first.and_then(|number| Some((number, self.messages.take(number)?))) {
            Some((number, message)) => Some((number, message, receive)),
            None => {
                self.receives.push(keys, receive);
                None
            }
        }
    }

    /// Takes the earliest receive for a message that has arrived.
    pub(crate) fn taker(&mut self, envelope: Envelope) -> Option<R> {
        self.receives.take(self.receives.first(envelope.wanted())?)
    }

    /// Keeps a message that [no receive takes](Self::taker). Returns its number.
    pub(crate) fn keep(&mut self, envelope: Envelope, message: M) -> u64 {
        self.messages.push(envelope.wanted(), message)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Move {
        Send(Envelope),
        Receive(Envelope),
        TakeBack(Rank),
    }

    fn space() -> impl Strategy<Value = Space> + Clone {
        prop_oneof![Just(Space::Calls), Just(Space::Inner), Just(Space::Groups)]
    }

    /// Some runs have far more sends than receives, some far fewer, so that many wait.
    fn moves(most: usize) -> impl Strategy<Value = Vec<Move>> {
        let send = (0_usize..3, 0_u64..3, space())
            .prop_map(|(from, tag, space)| Move::Send(Envelope { from: Some(from), tag, space }));
        let receive = (prop::option::of(0_usize..3), 0_u64..3, space())
            .prop_map(|(from, tag, space)| Move::Receive(Envelope { from, tag, space }));
        let take_back = (0_usize..3).prop_map(Move::TakeBack);
        let weights = prop_oneof![Just((50, 50)), Just((95, 5)), Just((5, 95))];
        weights.prop_flat_map(move |(sends, receives)| {
            let step = prop_oneof![sends * 10 => send.clone(), receives * 10 => receive.clone(), 1 => take_back.clone()];
            prop::collection::vec(step, 0..most)
        })
    }

    /// The same matching, by a search through all messages and receives that wait, in their order.
    #[derive(Default)]
    struct Naive {
        receives: Vec<(Envelope, usize)>,
        messages: Vec<(Envelope, usize)>,
    }

    fn fits(want: Envelope, message: Envelope) -> bool {
        (want.tag, want.space) == (message.tag, message.space)
            && (want.from.is_none() || want.from == message.from)
    }

    impl Naive {
        /// The message and the receive that step `number` matches.
        fn step(&mut self, number: usize, step: Move) -> Option<(usize, usize)> {
            match step {
                Move::Send(envelope) => {
                    let place = self.receives.iter().position(|&(want, _)| fits(want, envelope));
                    let Some(place) = place else {
                        self.messages.push((envelope, number));
                        return None;
                    };
                    Some((number, self.receives.remove(place).1))
                }
                Move::Receive(want) => {
                    let place = self.messages.iter().position(|&(envelope, _)| fits(want, envelope));
                    let Some(place) = place else {
                        self.receives.push((want, number));
                        return None;
                    };
                    Some((self.messages.remove(place).1, number))
                }
                Move::TakeBack(rank) => {
                    self.receives.retain(|(want, _)| want.from != Some(rank));
                    None
                }
            }
        }
    }

    /// An envelope and a number.
    type Numbered = (Envelope, usize);

    fn step(
        matching: &mut Matching<Numbered, Numbered>,
        number: usize,
        step: Move,
    ) -> Option<(usize, usize)> {
        match step {
            Move::Send(envelope) => match matching.taker(envelope) {
                Some((_, receive)) => Some((number, receive)),
                None => {
                    let kept = matching.keep(envelope, (envelope, number));
                    assert_eq!(matching.messages.get_mut(kept), Some(&mut (envelope, number)));
                    None
                }
            },
            Move::Receive(want) => {
                let found = matching.receive(want, (want, number));
                found.map(|(_, (_, message), (_, receive))| (message, receive))
            }
            Move::TakeBack(rank) => {
                drop(matching.receives.take_if(|(want, _)| want.from == Some(rank)));
                None
            }
        }
    }

    proptest! {
        /// Every message goes to the receive that a search one by one finds, and the same messages and receives remain, in the
        /// same order; with few of them, which are searched one by one, and with many.
        #[test]
        fn matches_as_a_search_one_by_one_does(moves in prop_oneof![moves(80), moves(1200)]) {
            let (mut matching, mut naive) = (Matching::default(), Naive::default());
            for (number, &it) in moves.iter().enumerate() {
                prop_assert_eq!(step(&mut matching, number, it), naive.step(number, it), "step {}", number);
            }
            let messages: Vec<_> = matching.messages.iter().map(|(_, &message)| message).collect();
            prop_assert_eq!(messages, naive.messages);
            let receives: Vec<_> = matching.receives.iter().map(|(_, &receive)| receive).collect();
            prop_assert_eq!(&receives, &naive.receives);
            prop_assert_eq!(matching.receives.into_values().collect::<Vec<_>>(), receives);
        }
    }
}
