//! The events of the simulation, ordered by time.

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
};

/// An event.
#[derive(Clone, Copy)]
pub(super) enum What {
    /// A rank that has a core continues.
    Resume(usize),
    /// A rank may have something to do.
    Wake(usize),
    /// A message's first byte reaches its receiver's port. The last one reaches it at `last` (s) if the port is as fast.
    Head { flow: usize, bytes: f64, last: f64 },
}

#[derive(Clone, Copy)]
struct Event {
    time: f64,
    order: u64,
    what: What,
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        self.time.total_cmp(&other.time).then(self.order.cmp(&other.order))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Event {}

/// Events in the order of their times (s); those of one time in the order in which they were added.
#[derive(Default)]
pub(super) struct Agenda {
    events: BinaryHeap<Reverse<Event>>,
    added: u64,
}

impl Agenda {
    pub(super) fn add(&mut self, time: f64, what: What) {
        self.added += 1;
        self.events.push(Reverse(Event { time, order: self.added, what }));
    }

    /// Removes the next event and returns it with its time.
    pub(super) fn next(&mut self) -> Option<(f64, What)> {
        self.events.pop().map(|Reverse(event)| (event.time, event.what))
    }

    /// The time of the next event.
    pub(super) fn due(&self) -> Option<f64> {
        self.events.peek().map(|Reverse(event)| event.time)
    }
}
