//! The runtime as its engine sees it ([`Supervisor`]) and as [`Work`](crate::Work) does.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use unisono_engine::{CommId, Completion, Operation, SubmissionEntry, Supervisor, WaitingCall};
use unisono_schedule::Rank;

use super::Runtime;
use crate::error::Failure;

impl Supervisor for Runtime {
    fn stopped(&self) -> bool {
        self.monitor.stopped()
    }

    fn waits_longest(&self, call: WaitingCall, waits: Option<Rank>, deadline: Option<Instant>) {
        self.monitor.waits_longest(call, waits, deadline);
    }

    fn waits(&self, vainly: Duration) {
        self.monitor.waits(vainly);
    }

    fn began(&self, operation: &Operation) {
        self.monitor.current.enter(operation.number, operation.plan.signature.bits());
    }

    fn ended(&self, number: Option<u64>, left: Option<Completion>) {
        self.monitor.current.finish(number);
        self.open.fetch_sub(1, Ordering::Release);
        let roles = self.roles();
        let waiting = self.waiting.load(Ordering::SeqCst) > 0;
        match left {
            None => drop(roles),
            left => self.finish_later(roles, left),
        }
        // The operation may be that of a thread other than the driver.
        if waiting {
            self.changed.notify_all();
        }
    }

    fn asked(&self) -> Option<(CommId, SubmissionEntry)> {
        self.requests.next()
    }

    fn asks(&self) -> bool {
        !self.requests.is_empty()
    }

    fn wanted(&self) -> bool {
        self.claims.load(Ordering::Relaxed) > 0 || self.waiters.load(Ordering::Relaxed) > 0
    }

    fn sleeps(&self, asleep: bool) {
        self.requests.sleeps(asleep);
    }
}

impl Runtime {
    /// The failure that has ended the world, if there is one.
    pub(crate) fn failed(&self) -> Option<Failure> {
        let roles = self.roles();
        roles.failed.clone().filter(|_| roles.gone)
    }
}
