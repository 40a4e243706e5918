//! The rule on first messages, which is about two counts rather than one run: on lane 0 they do not depend on the count.

use unisono_schedule::{Rank, Schedule, Step};

/// The first message of a flow, seen from one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// To this rank.
    Put(Rank),
    /// From this rank.
    Take(Rank),
}

/// The first messages on each of lane 0's flows, in their order. Uses the lane up.
pub(crate) fn openings(schedule: &mut dyn Schedule) -> Vec<Opening> {
    let mut openings = Vec::new();
    while let Some(step) = schedule.next(0) {
        let opening = match step {
            Step::Put { to, .. } | Step::Write { to, .. } => Opening::Put(to),
            Step::Take { from, .. } | Step::Await { from, .. } => Opening::Take(from),
            _ => continue,
        };
        if !openings.contains(&opening) {
            openings.push(opening);
        }
    }
    openings
}
