//! The progress of one lane of an operation.

use smallvec::SmallVec;
use unisono_schedule::{Rank, Span, Step};

use crate::endpoint::Staged;

/// One lane's progress.
#[derive(Debug, Default)]
pub(crate) struct LaneProgress {
    /// The present step, if it was taken from the schedule.
    pub step: Option<Step>,
    /// The number of elements of that step that have been reduced or copied.
    pub done: usize,
    /// The staging slot of its source, if the step is a put that found no room yet.
    pub staged: Option<usize>,
    /// The source of the last put and its staging slot: a source that goes to several ranks is staged once.
    pub latest: Option<(Span, Staged)>,
    /// Steps to run before the next one of the schedule, in reverse order.
    pub(super) before: SmallVec<[Step; 3]>,
    pub(super) ended: bool,
    /// The number of steps that are done.
    pub(super) steps: u64,
}

impl LaneProgress {
    /// Replaces an `Await` if peers may not write into this rank's output: the message arrives through a slot and is copied. If the
    /// step `after` forwards it, it is forwarded from the slot before the copy, so that the copy overlaps with the wire.
    pub(super) fn by_slot(&mut self, (from, into): (Rank, Span), after: Option<Step>) {
        let landed = Span::landed(from, into.len);
        let (copy, free) = (Step::Copy { from: landed, into }, Step::Free { from });
        match after {
            Some(Step::Write { to, from, at }) if from == into => {
                self.before.extend([free, copy, Step::Write { to, from: landed, at }]);
            }
            after => self.before.extend(after.into_iter().chain([free, copy])),
        }
        self.step = Some(Step::Take { from, len: into.len });
    }
}
