//! The collectives of a communicator: the one under way, those that are queued behind it, and the numbers and calls of those that have begun.

use std::collections::VecDeque;

use unisono_core::position::{CALLS, CallRecord};

use crate::{call::Signature, completion::Completion, request::Operation, wire::WindowClass};

/// The place of operation `number` in [`Collectives::calls`].
fn recent(number: u64) -> usize {
    const { assert!(CALLS == 4) }
    usize::from((number & 3) as u8)
}

/// A collective that is queued.
pub(crate) struct QueuedCollective {
    pub(crate) operation: Box<Operation>,
    pub(crate) completion: Completion,
}

/// The collectives of a communicator: one at a time, in the order in which they were called.
#[derive(Default)]
pub(crate) struct Collectives {
    /// True if one is under way.
    pub(crate) busy: bool,
    /// Those that are queued behind it.
    pub(crate) tasks: VecDeque<QueuedCollective>,
    /// The class of the windows that the one under way needs, if it needs any.
    pub(crate) in_use: Option<WindowClass>,
    /// True if peers may write into this rank's output now.
    pub exposed: bool,
    /// The number of its puts in flight.
    pub under_way: usize,
    /// The number of those that read the caller's memory, for each lane.
    pub outstanding: Vec<usize>,
    /// The number of those that have begun, which is the number of the next one.
    pub begun: u64,
    /// The latest of them, each at its number modulo `CALLS`.
    calls: [Signature; CALLS],
    /// When the latest one began, by the port's clock.
    pub(crate) used: u64,
}

impl Collectives {
    pub(super) fn new(lanes: usize) -> Self {
        Self { outstanding: vec![0; lanes.max(1)], ..Self::default() }
    }

    /// One begins at this time of the port's clock: assigns its number.
    #[inline]
    pub(super) fn begin(&mut self, operation: &mut Operation, used: u64) {
        operation.number = self.begun;
        self.calls[recent(self.begun)] = operation.plan.signature;
        self.begun += 1;
        self.used = used;
    }

    /// A put of the one under way has ended: of a lane, if it read the caller's memory.
    pub(super) fn put_left(&mut self, lane: Option<usize>) {
        self.under_way = self.under_way.saturating_sub(1);
        if let Some(lane) = lane {
            self.outstanding[lane] = self.outstanding[lane].saturating_sub(1);
        }
    }

    /// The number of the latest one.
    pub(crate) fn latest(&self) -> Option<u64> {
        self.begun.checked_sub(1)
    }

    /// The latest ones, the last one first.
    pub(crate) fn latest_calls(&self) -> Vec<CallRecord> {
        let numbers = (0..self.begun).rev().take(CALLS);
        numbers.map(|number| self.calls[recent(number)].record()).collect()
    }

    /// The latest ones, with their numbers.
    pub(super) fn calls_by_number(&self) -> Vec<(u64, CallRecord)> {
        (0..self.begun).rev().zip(self.latest_calls()).collect()
    }

    /// Forgets those that have begun; none is under way.
    pub(crate) fn forget(&mut self) {
        (self.begun, self.calls) = (0, [Signature::default(); CALLS]);
    }
}
