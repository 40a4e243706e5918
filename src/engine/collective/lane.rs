//! How far one lane of an operation has come.

use crate::engine::endpoint::Staged;
use smallvec::SmallVec;
use unisono_schedule::{Rank, Span, Step};

/// One lane's progress.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    /// The step it is at, if it was fetched.
    pub step: Option<Step>,
    /// Elements of that step already reduced or copied.
    pub done: usize,
    /// Where its source is staged, if it is a put that found no room yet.
    pub staged: Option<usize>,
    /// What the put before it was staged from, and where: what goes to several ranks is staged once.
    pub latest: Option<(Span, Staged)>,
    /// Steps that come before the schedule's next, the last one first.
    pub(super) before: SmallVec<[Step; 3]>,
    pub(super) ended: bool,
    /// Steps finished.
    pub(super) steps: u64,
}

impl Lane {
    /// Where nobody may write into this rank's output, what is awaited there comes through a slot; and what is passed on is
    /// passed on from there, so that the wire works during the copy. If it was laid aside, it was the last of those.
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

/// A finished step, as tests see it: see [`crate::ProcessGroup::keep_trace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Traced {
    /// On which lane.
    pub lane: usize,
    /// The step.
    pub step: Step,
    /// How many of this rank's puts were under way then. What reductions find here overlaps with the wire.
    pub in_flight: usize,
}
