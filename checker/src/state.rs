//! The checker's state: lanes, flows (messages in slots, writes into the receiver's output), and puts.

use std::{collections::VecDeque, ops::Range};

use super::memory::{Cell, SpanLocation};
use unisono_schedule::{Rank, Span, Step};

/// A lane of a rank.
#[derive(Clone, Copy)]
pub(super) struct LaneId {
    pub(super) rank: Rank,
    pub(super) lane: usize,
}

/// What a message tells its receiver: the ranks of which its sender has heard, as bits, and the length of the longest chain of messages
/// that ends with it.
#[derive(Clone, Copy, Default)]
pub(super) struct Past {
    pub(super) heard: u64,
    pub(super) chain: usize,
}

/// The state of a lane.
#[derive(Default)]
pub(super) struct Lane {
    /// The step that waits for something.
    pub(super) waits: Option<Step>,
    /// Steps that come before the schedule's next, the last one first.
    pub(super) before: Vec<Step>,
    /// If true, it is on the agenda.
    pub(super) listed: bool,
    pub(super) ended: bool,
    pub(super) steps: usize,
    /// The number of its puts of which it does not know that they have left.
    pub(super) unsent: usize,
    /// The length of the longest chain of messages that ends here.
    pub(super) chain: usize,
}

impl Lane {
    /// The awaited elements `into` arrive in a slot instead of the output: inserts the steps that follow the taking of the message.
    /// `after` is the schedule's next step.
    pub(super) fn take_from_slot(&mut self, from: Rank, into: Span, after: Option<Step>) {
        let landed = Span::landed(from, into.len);
        let (copy, free) = (Step::Copy { from: landed, into }, Step::Free { from });
        self.before = match after {
            Some(Step::Write { to, from, at }) if from == into => {
                vec![free, copy, Step::Write { to, from: landed, at }]
            }
            after => after.into_iter().chain([free, copy]).collect(),
        };
    }

    /// What it waits for, if it waits.
    pub(super) fn waits_for(&self) -> Option<String> {
        Some(match self.waits? {
            Step::Put { to, .. } | Step::Write { to, .. } => format!("for room at rank {to}"),
            Step::Take { from, .. } | Step::Await { from, .. } => format!("for a message from rank {from}"),
            Step::Show { .. } => "for all others to begin the round before".to_owned(),
            Step::View { from, .. } => format!("for rank {from} to begin the round"),
            _ => "for its puts to leave, or for all others to settle".to_owned(),
        })
    }
}

/// Message numbers; message `m` lies in slot `m % depth`.
#[derive(Default)]
pub(super) struct CheckedFlow {
    pub(super) sent: usize,
    pub(super) taken: usize,
    pub(super) freed: usize,
    /// Freed, and no longer the source of a put: the sender may use the slots again.
    pub(super) released: usize,
    /// Made when the first message is put; most flows carry none.
    pub(super) slots: Vec<Slot>,
    pub(super) writes: Writes,
}

impl CheckedFlow {
    /// The number of the next message. The flow has `depth` slots.
    pub(super) fn send(&mut self, depth: usize) -> usize {
        if self.slots.is_empty() {
            self.slots.resize_with(depth, Slot::default);
        }
        self.sent += 1;
        self.sent - 1
    }

    /// Gives freed slots back to the sender, unless a put still reads them.
    pub(super) fn release(&mut self, depth: usize) {
        while self.released < self.freed {
            let slot = &mut self.slots[self.released % depth];
            if slot.readers > 0 {
                break;
            }
            slot.arrived = None;
            self.released += 1;
        }
    }
}

#[derive(Default)]
pub(super) struct Slot {
    /// The number of the message that lies here.
    pub(super) arrived: Option<usize>,
    pub(super) cells: Vec<Cell>,
    /// Puts that read from here and have not left.
    pub(super) readers: usize,
    pub(super) past: Past,
}

pub(super) struct CheckedPut {
    pub(super) by: LaneId,
    /// The step of its lane.
    pub(super) step: usize,
    pub(super) to: Rank,
    pub(super) number: usize,
    pub(super) source: SpanLocation,
    pub(super) past: Past,
    /// The elements of the receiver's output to which it goes; `None` if it goes to a slot.
    pub(super) lands: Option<Range<usize>>,
}

/// The writes of a flow into the receiver's output.
#[derive(Default)]
pub(super) struct Writes {
    pub(super) sent: usize,
    /// The writes that were sent and not awaited, in order.
    pub(super) open: VecDeque<OpenWrite>,
}

pub(super) struct OpenWrite {
    pub(super) lands: Range<usize>,
    pub(super) landed: bool,
    pub(super) past: Past,
}
