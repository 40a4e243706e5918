//! A flow of the simulation: what has arrived and when, and which slots its sender may use.

use std::{
    collections::VecDeque,
    hash::{BuildHasherDefault, Hasher},
};

/// The two ways of a flow, each with credit of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Into slots.
    Slots,
    /// Straight into the output.
    Direct,
}

/// Messages from one rank to another on one lane, one way. Times are in seconds.
pub(super) struct Flow {
    /// Who sends and who receives, among the ranks that are simulated.
    pub sender: usize,
    pub receiver: usize,
    /// Messages that may be put now.
    credit: usize,
    /// When more may be put, in ascending order.
    credits: VecDeque<f64>,
    /// When messages not taken yet lie in their slots, in ascending order.
    arrivals: VecDeque<f64>,
    /// For each message taken and not freed, until when it is read by puts.
    held: VecDeque<f64>,
    /// Whether the sender or the receiver waits for something of which nobody knows yet when it will be.
    pub sender_waits: bool,
    pub receiver_waits: bool,
}

impl Flow {
    pub(super) fn new(sender: usize, receiver: usize, slots: usize) -> Self {
        Self {
            sender,
            receiver,
            credit: slots,
            credits: VecDeque::new(),
            arrivals: VecDeque::new(),
            held: VecDeque::new(),
            sender_waits: false,
            receiver_waits: false,
        }
    }

    /// When a message can be put, if that is known.
    pub(super) fn room(&self) -> Option<f64> {
        if self.credit > 0 { Some(0.0) } else { self.credits.front().copied() }
    }

    /// Takes up a slot. False if none is free now.
    pub(super) fn put(&mut self, now: f64) -> bool {
        while self.credits.front().is_some_and(|time| *time <= now) {
            self.credits.pop_front();
            self.credit += 1;
        }
        let free = self.credit > 0;
        self.credit -= usize::from(free);
        free
    }

    /// A message can be taken then, or when those before it can; tells when.
    pub(super) fn arrive(&mut self, time: f64) -> f64 {
        let time = self.arrivals.back().map_or(time, |&before| time.max(before));
        self.arrivals.push_back(time);
        time
    }

    /// When the next message can be taken, if that is known.
    pub(super) fn arrival(&self) -> Option<f64> {
        self.arrivals.front().copied()
    }

    /// Takes the next message. False if it is not there now.
    pub(super) fn take(&mut self, now: f64) -> bool {
        let there = self.arrivals.front().is_some_and(|time| *time <= now);
        if there {
            self.arrivals.pop_front();
            self.held.push_back(0.0);
        }
        there
    }

    /// The latest message taken is read until then.
    pub(super) fn read(&mut self, until: f64) {
        if let Some(latest) = self.held.back_mut() {
            *latest = latest.max(until);
        }
    }

    /// Gives back the oldest message's slot; tells when the sender learns of it.
    pub(super) fn free(&mut self, now: f64, latency: f64) -> f64 {
        let read = self.held.pop_front().unwrap_or(0.0);
        let earlier = self.credits.back().copied().unwrap_or(0.0);
        let time = (now.max(read) + latency).max(earlier);
        self.credits.push_back(time);
        time
    }
}

/// Mixes the one word that is a flow's key. The standard library's hash withstands attackers, of whom there are none.
#[derive(Default)]
pub(super) struct Mix(u64);

/// As the third parameter of a `HashMap`.
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
