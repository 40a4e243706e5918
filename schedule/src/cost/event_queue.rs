//! The events of the simulation, ordered by time.

use std::{cmp::Reverse, collections::BinaryHeap};

/// An event.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SimulationEvent {
    /// A rank that has a core continues.
    Resume(usize),
    /// A rank may have something to do.
    Wake(usize),
    /// The first byte of a message of `len` elements reaches its receiver's port. The last one reaches it at `last` (the bits of a time in
    /// s) if the port is as fast.
    Head { flow: usize, len: usize, last: u64 },
}

/// Events in the order of their times (s); those of one time in the order in which they were added.
#[derive(Default)]
pub(super) struct EventQueue {
    /// Each after the bits of its time, which is not negative, and the number of events that were added before.
    events: BinaryHeap<Reverse<(u64, u64, SimulationEvent)>>,
    added: u64,
}

impl EventQueue {
    pub(super) fn add(&mut self, time: f64, what: SimulationEvent) {
        self.added += 1;
        self.events.push(Reverse((time.to_bits(), self.added, what)));
    }

    /// Removes the next event and returns it with its time.
    pub(super) fn next(&mut self) -> Option<(f64, SimulationEvent)> {
        self.events.pop().map(|Reverse((time, _, what))| (f64::from_bits(time), what))
    }

    /// The time of the next event.
    pub(super) fn due(&self) -> Option<f64> {
        self.events.peek().map(|Reverse((time, _, _))| f64::from_bits(*time))
    }
}
