//! A flow of the simulation: when its messages arrive, and when its slots are free.

use std::{
    collections::VecDeque,
    hash::{BuildHasherDefault, Hasher},
};

/// The two kinds of messages of a flow, each with its own credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlowKind {
    /// Puts into slots.
    Slots,
    /// Writes into the output.
    Direct,
}

/// Messages of one kind from one rank to another on one lane. Times are in seconds.
pub(super) struct SimulatedFlow {
    /// The sender and the receiver, as indices of simulated ranks.
    pub sender: usize,
    pub receiver: usize,
    /// The number of messages that may be put now.
    credit: usize,
    /// The times at which one more may be put, in ascending order.
    credits: VecDeque<f64>,
    /// The times at which messages that are not taken yet arrive in their slots, in ascending order.
    arrivals: VecDeque<f64>,
    /// For each message that is taken and not freed, the time until which puts read it.
    held: VecDeque<f64>,
    /// True while the sender, or the receiver, waits for an event whose time is not known yet.
    pub waits: [bool; 2],
}

impl SimulatedFlow {
    pub(super) fn new(sender: usize, receiver: usize, slots: usize) -> Self {
        Self {
            sender,
            receiver,
            credit: slots,
            credits: VecDeque::new(),
            arrivals: VecDeque::new(),
            held: VecDeque::new(),
            waits: [false; 2],
        }
    }

    /// The time at which a message can be put, if it is known.
    pub(super) fn room(&self) -> Option<f64> {
        if self.credit > 0 { Some(0.0) } else { self.credits.front().copied() }
    }

    /// Occupies a slot, of which one is free now.
    pub(super) fn put(&mut self, now: f64) {
        while self.credits.front().is_some_and(|time| *time <= now) {
            self.credits.pop_front();
            self.credit += 1;
        }
        self.credit -= 1;
    }

    /// A message arrives at `time`. Returns the time at which it can be taken, which is not earlier than that of the message before.
    pub(super) fn arrive(&mut self, time: f64) -> f64 {
        let time = self.arrivals.back().map_or(time, |&before| time.max(before));
        self.arrivals.push_back(time);
        time
    }

    /// The time at which the next message can be taken, if it is known.
    pub(super) fn arrival(&self) -> Option<f64> {
        self.arrivals.front().copied()
    }

    /// Takes the next message, which has arrived.
    pub(super) fn take(&mut self) {
        self.arrivals.pop_front();
        self.held.push_back(0.0);
    }

    /// The latest message that was taken is read until then.
    pub(super) fn read(&mut self, until: f64) {
        if let Some(latest) = self.held.back_mut() {
            *latest = latest.max(until);
        }
    }

    /// Gives back the slot of the oldest message. Returns the time at which the sender learns of it.
    pub(super) fn free(&mut self, now: f64, latency: f64) -> f64 {
        let read = self.held.pop_front().unwrap_or(0.0);
        let earlier = self.credits.back().copied().unwrap_or(0.0);
        let time = (now.max(read) + latency).max(earlier);
        self.credits.push_back(time);
        time
    }
}

/// The hash of a flow's key, which is one word. It need not withstand attackers, as the standard library's does.
#[derive(Default)]
pub(super) struct Mix(u64);

/// The third parameter of a `HashMap`.
pub(super) type Mixed = BuildHasherDefault<Mix>;

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u64(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}
