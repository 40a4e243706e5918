//! What stands between a group and the fate of its ranks: the alarm, the watch, and where this rank stands.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::watchdog::Watchdog;
use crate::{
    engine::{Call, Culprit, Overseer, Stop},
    error::Failure,
    rendezvous::{Alarm, Position, Stand, Watch, report, whereabouts},
    schedule::Rank,
};

/// How long a broken transport waits for the store to say who died before it reports itself.
const CULPRIT: Duration = Duration::from_millis(1000);

/// How long the ranks' positions are gathered for.
const POSITIONS: Duration = Duration::from_millis(1000);

pub(super) struct Guard {
    /// Goes first: it refers to the watch. A world of one has none.
    pub watchdog: Option<Watchdog>,
    pub rank: Rank,
    pub alarm: Arc<Alarm>,
    pub position: Arc<Position>,
    /// A world of one has none.
    pub watch: Option<Arc<dyn Watch>>,
}

impl Overseer for Guard {
    fn stopped(&self) -> bool {
        self.alarm.raised()
    }

    fn stand(&self, call: Call, steps: u64, waits: Option<(usize, Rank)>) {
        match call {
            Call::Greeting => {}
            Call::Operation(number, signature) => self.position.enter(number, signature.bits()),
            Call::Message(number, signature) => self.position.beside(number, signature.bits()),
        }
        self.position.steps(steps);
        match waits {
            Some((lane, rank)) => self.position.waits_for(rank, lane),
            None => self.position.goes_on(),
        }
    }

    fn until(&self, deadline: Instant) {
        self.position.due_by(deadline);
    }
}

impl Guard {
    /// Tells the store, and gives back the failure that it heard of first.
    pub(super) fn tell(&self, failure: Failure) -> Failure {
        if let Some(first) = self.alarm.failure() {
            return first;
        }
        match &self.watch {
            Some(watch) => watch.report(&failure),
            None => {
                self.alarm.raise(failure.clone());
                self.alarm.failure().unwrap_or(failure)
            }
        }
    }

    /// Where all ranks stand, in words.
    pub(super) fn whereabouts(&self) -> String {
        whereabouts(&self.positions())
    }

    fn positions(&self) -> Vec<Option<Stand>> {
        self.watch.as_ref().map_or_else(Vec::new, |watch| watch.positions(POSITIONS))
    }

    /// Why an operation stopped.
    pub(super) fn explain(&self, stop: Stop, culprit: Culprit) -> Failure {
        let Culprit { number, group, call, waited } = culprit;
        match stop {
            Stop::Failure(failure) => *failure,
            Stop::Alarm => self.alarm.failure().unwrap_or_else(|| Failure::StoreLost {
                how: "the alarm was raised without a reason".to_owned(),
            }),
            Stop::Transport(broken) => {
                // A dead peer breaks the wire too; the store knows better who it was.
                let named = self.alarm.wait(CULPRIT);
                named.unwrap_or_else(|| Failure::Transport {
                    rank: self.rank,
                    doing: number.map_or_else(|| call.clone(), |op| format!("op {op} {call}")),
                    reason: broken.to_string(),
                })
            }
            Stop::Deadline => {
                let stands = self.positions();
                match number {
                    Some(op) => {
                        // Numbers of different groups say nothing of who is behind.
                        let report = if group.is_some() { whereabouts(&stands) } else { report(op, &stands) };
                        let group = group.as_deref().unwrap_or_default().into();
                        Failure::Deadline { group, op, call, rank: self.rank, waited, report }
                    }
                    None => {
                        Failure::Undelivered { call, rank: self.rank, waited, report: whereabouts(&stands) }
                    }
                }
            }
        }
    }
}
