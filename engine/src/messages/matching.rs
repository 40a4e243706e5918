//! Matches messages with receives: messages of one sender and tag in their order, and receives in their order. It does nothing else.

use unisono_schedule::Rank;

use super::queue::Queue;
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

/// The key by which messages and receives are found. A rank of `None` stands for any.
type Key = (Space, u64, Option<Rank>);

impl Envelope {
    /// The receives that take this message have one of these keys.
    fn keys(self) -> [Option<Key>; 2] {
        [Some((self.space, self.tag, Some(self.from))), Some((self.space, self.tag, None))]
    }
}

impl Want {
    /// The messages that this receive takes have this key.
    fn key(self) -> [Option<Key>; 2] {
        [Some((self.space, self.tag, self.from)), None]
    }
}

/// A kept message that a receive takes.
#[derive(Debug)]
pub(crate) struct KeptMessage<M> {
    /// The number that [`Matching::keep`] has returned.
    pub number: u64,
    pub message: M,
}

/// Receives without a message, and messages without a receive; no message fits a receive. Of several that fit, the earliest is
/// taken, so messages of one sender and tag do not overtake each other, whether receives name the sender or not.
#[derive(Debug)]
pub(crate) struct Matching<R, M> {
    receives: Queue<Key, (Want, R)>,
    messages: Queue<Key, (Envelope, M)>,
}

impl<R, M> Default for Matching<R, M> {
    fn default() -> Self {
        Self { receives: Queue::default(), messages: Queue::default() }
    }
}

impl<R, M> Matching<R, M> {
    /// Takes the earliest message for a receive; if there is none, the receive waits.
    pub(crate) fn receive(&mut self, want: Want, receive: R) -> Option<(KeptMessage<M>, R)> {
        let number = self.messages.first(want.key());
        let Some((number, (_, message))) = number.zip(number.and_then(|it| self.messages.take(it))) else {
            self.receives.push(want.key(), (want, receive));
            return None;
        };
        Some((KeptMessage { number, message }, receive))
    }

    /// Takes the earliest receive for a message that has arrived.
    pub(crate) fn taker(&mut self, envelope: Envelope) -> Option<R> {
        let number = self.receives.first(envelope.keys())?;
        self.receives.take(number).map(|(_, receive)| receive)
    }

    /// Keeps a message that [no receive takes](Self::taker). Returns its number.
    pub(crate) fn keep(&mut self, envelope: Envelope, message: M) -> u64 {
        self.messages.push(envelope.keys(), (envelope, message))
    }

    /// The kept message with this number, as long as no receive has taken it.
    pub(crate) fn kept(&mut self, number: u64) -> Option<&mut (Envelope, M)> {
        self.messages.get_mut(number)
    }

    /// As [`kept`](Self::kept), by a shared reference.
    pub(crate) fn look_at(&self, number: u64) -> Option<&(Envelope, M)> {
        self.messages.get(number)
    }

    /// The messages without a receive, in the order of arrival.
    pub(crate) fn messages(&self) -> impl Iterator<Item = (Envelope, &M)> {
        self.messages.iter().map(|(_, (envelope, message))| (*envelope, message))
    }

    /// The receives without a message, in their order.
    pub(crate) fn receives(&self) -> impl Iterator<Item = (Want, &R)> {
        self.receives.iter().map(|(_, (want, receive))| (*want, receive))
    }

    /// Removes the receives without a message for which this is true.
    pub(crate) fn take_back(&mut self, so: impl Fn(Want, &R) -> bool) -> Vec<R> {
        let taken = self.receives.take_if(|(want, receive)| so(*want, receive));
        taken.into_iter().map(|(_, receive)| receive).collect()
    }

    /// Removes the earliest receive without a message if this is true of it.
    pub(crate) fn take_first_if(&mut self, so: impl Fn(Want, &R) -> bool) -> Option<R> {
        let (number, (want, receive)) = self.receives.iter().next()?;
        let it = so(*want, receive).then_some(number);
        self.receives.take(it?).map(|(_, receive)| receive)
    }

    /// Removes all receives.
    pub(crate) fn give_up(&mut self) -> impl Iterator<Item = R> {
        std::mem::take(&mut self.receives).into_values().map(|(_, receive)| receive)
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
        TakeBack(Rank),
    }

    fn space() -> impl Strategy<Value = Space> + Clone {
        prop_oneof![Just(Space::Calls), Just(Space::Inner), Just(Space::Groups)]
    }

    /// Some runs have far more sends than receives, some far fewer, so that many wait.
    fn moves(most: usize) -> impl Strategy<Value = Vec<Move>> {
        let send = (0_usize..3, 0_u64..3, space())
            .prop_map(|(from, tag, space)| Move::Send(Envelope { from, tag, space }));
        let receive = (prop::option::of(0_usize..3), 0_u64..3, space())
            .prop_map(|(from, tag, space)| Move::Receive(Want { from, tag, space }));
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
        receives: Vec<(Want, usize)>,
        messages: Vec<(Envelope, usize)>,
    }

    fn fits(want: Want, envelope: Envelope) -> bool {
        (want.tag, want.space) == (envelope.tag, envelope.space)
            && want.from.is_none_or(|from| from == envelope.from)
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

    fn step(matching: &mut Matching<usize, usize>, number: usize, step: Move) -> Option<(usize, usize)> {
        match step {
            Move::Send(envelope) => match matching.taker(envelope) {
                Some(receive) => Some((number, receive)),
                None => {
                    let kept = matching.keep(envelope, number);
                    assert_eq!(matching.kept(kept), Some(&mut (envelope, number)));
                    None
                }
            },
            Move::Receive(want) => {
                matching.receive(want, number).map(|(found, receive)| (found.message, receive))
            }
            Move::TakeBack(rank) => {
                drop(matching.take_back(|want, _| want.from == Some(rank)));
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
            let messages: Vec<_> = matching.messages().map(|(envelope, &message)| (envelope, message)).collect();
            prop_assert_eq!(messages, naive.messages);
            let receives: Vec<_> = matching.receives().map(|(want, &receive)| (want, receive)).collect();
            prop_assert_eq!(&receives, &naive.receives);
            let given_up: Vec<usize> = matching.give_up().collect();
            prop_assert_eq!(given_up, receives.into_iter().map(|(_, receive)| receive).collect::<Vec<_>>());
        }
    }
}
