//! The first messages on lane 0, which must not depend on the count. This rule compares two counts, and so the checker, which sees one,
//! cannot check it.

use unisono_schedule::{Rank, Schedule, Step};

/// The first message of a flow, seen from one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// To this rank.
    Put(Rank),
    /// From this rank.
    Take(Rank),
}

/// The first message of each of lane 0's flows, in order. Consumes the lane.
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
