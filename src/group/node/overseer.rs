//! The node as its engine sees it, and as whoever waits for an operation does.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use unisono_schedule::Rank;

use super::Node;
use crate::{
    engine::{Call, Channel, Operation, Overseer, Rest, Ticket, Wish},
    error::{Failure, Result},
    work::Driver,
};

impl Overseer for Node {
    fn stopped(&self) -> bool {
        self.guard.stopped()
    }

    fn stand(&self, call: Call, waits: Option<Rank>) {
        self.guard.stand(call, waits);
    }

    fn waits(&self, vainly: Duration) {
        self.guard.waits(vainly);
    }

    fn until(&self, deadline: Instant) {
        self.guard.until(deadline);
    }

    fn began(&self, operation: &Operation) {
        self.guard.doing.enter(operation.number, operation.signature.bits());
    }

    fn ended(&self, number: Option<u64>, rest: Rest) {
        self.guard.doing.finish(number);
        self.open.fetch_sub(1, Ordering::Release);
        let desk = self.desk();
        let waiting = desk.waiting > 0;
        if rest.is_none() {
            // As mostly: to move it and have it found so costs more.
            drop(desk);
        } else {
            self.leave_to_others(desk, [rest]);
        }
        // It may be another's than the one's who leads.
        if waiting {
            self.changed.notify_all();
        }
    }

    fn asked(&self) -> Option<(Channel, Wish)> {
        if !self.asks() {
            return None;
        }
        let mut desk = self.desk();
        let wish = desk.wishes.pop_front();
        self.asked.store(!desk.wishes.is_empty(), Ordering::Release);
        wish
    }

    fn asks(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    fn wanted(&self) -> bool {
        self.claims.load(Ordering::Relaxed) > 0 || self.waiters.load(Ordering::Relaxed) > 0
    }

    fn sleeps(&self, asleep: bool) {
        self.desk().asleep = asleep;
    }
}

impl Driver for Node {
    fn wait(&self, ticket: &Ticket, until: Option<Instant>) -> bool {
        self.wait_until(ticket, until)
    }

    fn failed(&self) -> Option<Failure> {
        let desk = self.desk();
        desk.failed.clone().filter(|_| desk.gone)
    }

    fn check_process(&self) -> Result<()> {
        Self::check_process(self)
    }
}
