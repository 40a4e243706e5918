//! Both ends of one way of a flow: message numbers, slots and credit, and nothing else. For writes straight into an output a slot
//! is not memory, but only the permission to have one more write in flight.
//!
//! Messages are numbered from 0 as long as the communicator exists, so operations follow each other without a barrier. Message
//! `k` lands in slot `k mod slots`. The wire carries the low 16 bits of numbers; the high bits follow from the counters of the
//! flow, because at most 64 messages are in flight. Messages may arrive in any order. Numbers continue when a window is closed and opened
//! again: a message that carries credit may arrive later, and its credit must then count as old, not as more than was used.

use unisono_schedule::Rank;

/// The number at or after `base` with these low 16 bits.
fn widen(base: u64, low: u16) -> u64 {
    base + u64::from(low.wrapping_sub((base & 0xffff) as u16))
}

/// A slot's number as an index: at most 64, so it always fits.
fn index(slot: u64) -> usize {
    usize::from((slot & 0xff) as u8)
}

/// The sending end.
#[derive(Debug)]
pub(crate) struct OutgoingFlow {
    /// The receiver.
    pub to: Rank,
    /// The number of the flow at the receiver.
    pub id: u32,
    /// The offset of slot 0 in the receiver's window, in bytes.
    pub first: u64,
    slots: u64,
    /// The number of messages that were sent, which is the number of the next one.
    pub sent: u64,
    /// The number of messages that the receiver has freed, as far as this end knows.
    freed: u64,
    /// The bytes of the longest message since no message was in flight.
    longest: usize,
}

impl OutgoingFlow {
    pub(crate) fn new(to: Rank, id: u32, first: u64, slots: u64) -> Self {
        Self { to, id, first, slots, sent: 0, freed: 0, longest: 0 }
    }

    /// The window is closed: the receiver has freed all messages. Its numbers go on when it is opened again.
    pub(crate) fn close(&mut self) {
        self.freed = self.sent;
    }

    pub(crate) fn has_credit(&self) -> bool {
        self.sent < self.freed + self.slots
    }

    /// The number of messages that the receiver has not freed, as far as this end knows.
    pub(crate) fn pending(&self) -> u64 {
        self.sent - self.freed
    }

    /// At most this many bytes are in flight to the receiver.
    pub(crate) fn bytes(&self) -> usize {
        usize::try_from(self.pending()).unwrap_or(usize::MAX).saturating_mul(self.longest)
    }

    /// The slot of message `number`.
    pub(crate) fn slot(&self, number: u64) -> u64 {
        number % self.slots
    }

    /// The transport has taken the next message, of this many bytes.
    pub(crate) fn advance(&mut self, bytes: usize) {
        self.longest = if self.pending() == 0 { bytes } else { self.longest.max(bytes) };
        self.sent += 1;
    }

    /// The receiver has freed this number of messages (the low 16 bits). Credit that is already known changes nothing. An error says
    /// how the receiver has broken the protocol.
    pub(crate) fn credit(&mut self, freed: u16) -> Result<(), String> {
        let freed = widen(self.freed, freed);
        // Credits may overtake each other: an old one looks like one far ahead.
        if freed > self.freed + 0x8000 {
            return Ok(());
        }
        if freed > self.sent {
            return Err(format!("a credit for {freed} messages when {} were sent", self.sent));
        }
        self.freed = freed;
        Ok(())
    }
}

/// The receiving end.
#[derive(Debug, Default)]
pub(crate) struct IncomingFlow {
    /// The sender.
    pub from: Rank,
    /// The index of the window that its slots lie in.
    pub window: usize,
    /// The offset of slot 0 in that window, in bytes.
    pub first: usize,
    /// The number of the flow at the sender, which its first message contains.
    pub reply: Option<u32>,
    slots: u64,
    /// A bit for every slot with a message that has arrived and was not taken.
    landed: u64,
    /// A bit for every slot whose message was given back, while a put still reads it or an earlier one.
    freeing: u64,
    /// The number of puts that read from each slot.
    holds: Vec<u16>,
    /// The number of messages that were taken.
    pub taken: u64,
    /// The number of messages that the schedule has given back.
    given: u64,
    /// The number of messages whose slots may be written again.
    pub freed: u64,
    /// The value of `freed` that was last sent to the sender.
    credited: u64,
    /// True if that was sent in a header or a clear to send, and not by a control message of credit.
    answered: bool,
}

impl IncomingFlow {
    pub(crate) fn new(from: Rank, window: usize, first: usize, slots: usize) -> Self {
        let holds = vec![0; slots];
        Self { from, window, first, slots: slots as u64, holds, ..Self::default() }
    }

    /// The window is opened again, after all messages were taken and freed. The numbers go on.
    pub(crate) fn reopen(&mut self) {
        (self.credited, self.answered, self.reply) = (self.freed, false, None);
    }

    /// A message has landed. Returns its slot; how the sender has broken the protocol if it had no credit for it.
    pub(crate) fn arrive(&mut self, number: u16) -> Result<usize, String> {
        let number = widen(self.taken, number);
        if number >= self.credited + self.slots {
            return Err(format!(
                "message {number} when {} were taken and it had credit for those below {}",
                self.taken,
                self.credited + self.slots
            ));
        }
        let bit = 1 << (number % self.slots);
        if self.landed & bit != 0 {
            return Err(format!("message {number} twice"));
        }
        self.landed |= bit;
        Ok(index(number % self.slots))
    }

    /// True if the next message in order has landed.
    pub(crate) fn ready(&self) -> bool {
        self.landed & 1 << (self.taken % self.slots) != 0
    }

    /// The slot of the next message in order, if it has landed.
    pub(crate) fn ready_slot(&self) -> Option<usize> {
        self.ready().then(|| index(self.taken % self.slots))
    }

    /// Takes the next message, which must be [`ready`](Self::ready). Returns its slot.
    pub(crate) fn take(&mut self) -> usize {
        let slot = self.taken % self.slots;
        self.landed &= !(1 << slot);
        self.taken += 1;
        index(slot)
    }

    /// The slot of the latest message that was taken, unless it was given back.
    pub(crate) fn latest(&self) -> Option<usize> {
        (self.taken > self.given).then(|| index((self.taken - 1) % self.slots))
    }

    /// A put begins to read from the slot.
    pub(crate) fn hold(&mut self, slot: usize) {
        self.holds[slot] += 1;
    }

    /// A put has read from the slot.
    pub(crate) fn release(&mut self, slot: usize) {
        self.holds[slot] = self.holds[slot].saturating_sub(1);
        self.settle();
    }

    /// The schedule gives back the oldest message that was taken; false if there is none.
    pub(crate) fn free(&mut self) -> bool {
        if self.given == self.taken {
            return false;
        }
        self.freeing |= 1 << (self.given % self.slots);
        self.given += 1;
        self.settle();
        true
    }

    fn settle(&mut self) {
        loop {
            let slot = self.freed % self.slots;
            if self.freeing & 1 << slot == 0 || self.holds[index(slot)] != 0 {
                return;
            }
            self.freeing &= !(1 << slot);
            self.freed += 1;
        }
    }

    /// True if the sender has used all the credit that it knows of, and all slots are free again.
    pub(crate) fn exhausted(&self) -> bool {
        self.freed - self.credited == self.slots
    }

    /// True if the sender should get credit though it may not wait yet: half of the slots were freed since the last credit, which was
    /// not sent in a header or a clear to send. If credit arrives in time, the sender never waits.
    pub(crate) fn owes(&self) -> bool {
        !self.answered && self.freed - self.credited >= self.slots.div_ceil(2)
    }

    /// True if the sender may wait: it has used all the credit that it knows of, and there is more.
    pub(crate) fn stalls(&self) -> bool {
        self.freed > self.credited
            && self.taken + u64::from(self.landed.count_ones()) == self.credited + self.slots
    }

    /// True if all messages that have landed were taken and freed.
    pub(crate) fn at_rest(&self) -> bool {
        self.landed == 0 && self.freed == self.taken
    }

    /// Credit for all freed messages is sent by a control message, or by a message from point to point.
    pub(crate) fn tell(&mut self) {
        (self.credited, self.answered) = (self.freed, false);
    }

    /// Credit for all freed messages is sent in a header or a clear to send of the opposite direction, and so will be the next.
    pub(crate) fn answer(&mut self) {
        (self.credited, self.answered) = (self.freed, true);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// This holds in any order of arrivals, takes, frees and credits, and across the wrap of the 16 bits: messages are taken in order,
        /// each from its own slot; no more are in flight than there are slots, nor more bytes than `bytes` says; and a sender without
        /// credit gets the credit that there is. Credit may arrive after the window was closed and opened again.
        #[test]
        fn both_ends_agree(slots in 1_usize..=64, moves in prop::collection::vec((0_u8..6, any::<u8>()), 1..400),
                           start in prop_oneof![Just(0_u64), 65_500_u64..65_540, Just(u64::from(u32::MAX))]) {
            let mut out = OutgoingFlow::new(1, 0, 0, slots as u64);
            let mut inc = IncomingFlow::new(0, 0, 0, slots);
            (out.sent, out.freed) = (start, start);
            (inc.taken, inc.given, inc.freed, inc.credited) = (start, start, start, start);
            let (mut wire, mut credits, mut next, mut sizes) = (Vec::new(), Vec::new(), start, Vec::new());
            for (action, choice) in moves {
                match action {
                    0 if out.has_credit() => {
                        let number = out.sent;
                        prop_assert!(number < inc.freed + slots as u64);
                        wire.push((number & 0xffff) as u16);
                        out.advance(choice.into());
                        sizes.push(usize::from(choice));
                    },
                    1 if !wire.is_empty() => {
                        let number = wire.swap_remove(usize::from(choice) % wire.len());
                        inc.arrive(number).unwrap();
                        prop_assert!(inc.arrive(number).is_err(), "twice");
                    }
                    2 if inc.ready() => {
                        prop_assert_eq!(inc.take() as u64, next % slots as u64);
                        next += 1;
                    },
                    3 => { inc.free(); }
                    4 => {
                        if choice % 2 == 0 { inc.tell() } else { inc.answer() }
                        credits.push((inc.freed & 0xffff) as u16);
                        let credit = credits.swap_remove(usize::from(choice) % credits.len());
                        out.credit(credit).unwrap();
                    }
                    5 if inc.at_rest() && inc.taken == out.sent => {
                        out.close();
                        inc.reopen();
                        prop_assert!(out.has_credit());
                    }
                    _ => {}
                }
                let under_way: usize = sizes.iter().rev().zip(0..out.pending()).map(|(size, _)| size).sum();
                prop_assert!(under_way <= out.bytes());
                prop_assert!(out.pending() > 0 || out.bytes() == 0);
                // A sender that waits gets the credit that there is.
                let waits = out.sent == inc.credited + slots as u64 && wire.is_empty();
                prop_assert!(inc.stalls() || !waits || inc.freed == inc.credited);
            }
        }
    }

    #[test]
    fn a_held_slot_is_not_credited() {
        let mut inc = IncomingFlow::new(0, 0, 0, 2);
        inc.arrive(0).unwrap();
        inc.arrive(1).unwrap();
        let first = inc.take();
        inc.hold(first);
        assert!(inc.free());
        inc.take();
        assert!(inc.free());
        assert!(!inc.free(), "nothing left to free");
        assert_eq!(inc.freed, 0);
        inc.release(first);
        assert_eq!(inc.freed, 2);
    }

    #[test]
    fn wrong_declarations_are_noticed() {
        let mut inc = IncomingFlow::new(0, 0, 0, 2);
        assert!(inc.arrive(2).is_err(), "no credit for it");
        let mut out = OutgoingFlow::new(1, 0, 0, 2);
        assert!(out.credit(1).is_err(), "nothing was sent");
        assert!(out.has_credit() && out.sent == 0);
    }
}
