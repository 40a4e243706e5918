//! Thousands of sends and receives that wait: the work for each does not grow with their number. What is counted is every look at a
//! message, send or receive.

use std::cell::Cell;

use super::*;
use crate::messages::LOOKS;

/// Stops the driver when it is about to sleep.
#[derive(Default)]
struct Sleepless(Cell<bool>);

impl Supervisor for Sleepless {
    fn stopped(&self) -> bool {
        false
    }

    fn sleeps(&self, asleep: bool) {
        self.0.set(self.0.get() || asleep);
    }

    fn wanted(&self) -> bool {
        self.0.get()
    }
}

impl Engine {
    /// Drives until there is nothing to do but to sleep.
    fn rest(&mut self) {
        let sleepless = Sleepless::default();
        self.driven_by(&sleepless).drive(&|| sleepless.0.get(), None).map_err(|halt| halt.stop).unwrap();
    }

    fn begin_message(&mut self, what: RequestKind) -> Arc<Outcome> {
        let (completion, outcome) = Completion::new(LIMIT, CompletionAction::Return(None));
        self.driven_by(&Nobody)
            .take(WORLD, WorkRequest { what, completion })
            .map_err(|halt| halt.stop)
            .unwrap();
        outcome
    }

    fn end_messages(&mut self, all: &[Arc<Outcome>]) {
        let (until, left) = (soon(), Cell::new(0));
        let over = || {
            while all.get(left.get()).is_some_and(|outcome| outcome.ended()) {
                left.set(left.get() + 1);
            }
            left.get() == all.len()
        };
        while !over() {
            assert!(Instant::now() < until, "{} of {} have ended", left.get(), all.len());
            self.driven_by(&Nobody).drive(&over, None).map_err(|halt| halt.stop).unwrap();
        }
    }
}

/// Rank 0 begins `many` sends of `bytes` bytes, and rank 1 as many receives. After each the engine is driven until it would sleep. If
/// `first`, all sends begin before the first receive, otherwise all receives before the first send. Returns the looks for each message
/// at the rank that has more.
fn looks(many: usize, bytes: usize, first: bool) -> f64 {
    let (hub, one) = (Hub::new(), AtomicBool::new(false));
    let each = |rank: Rank, engine: &mut Engine| {
        let mut data = vec![u8::from(rank == 1); bytes * many];
        let mut outcomes = Vec::new();
        let sends = rank == 0;
        let begins_first = sends == first;
        LOOKS.set(0);
        while !begins_first && !one.load(Ordering::Acquire) {
            engine.rest();
        }
        for (number, part) in data.chunks_mut(bytes).enumerate() {
            let borrowed = Borrowed::within(part, 0..bytes, 0..bytes).unwrap();
            let (kind, tag) = (MessageKind::new(Form::Plain, Dtype::U8, bytes), number as u64);
            outcomes.push(engine.begin_message(if sends {
                let source = borrowed.input.memory.clone();
                RequestKind::Send(Outbound { to: 1, tag, kind, source })
            } else {
                let place = Place::There(borrowed.output.memory.clone());
                RequestKind::Receive(Inbound { from: Some(0), tag, kind, place })
            }));
            engine.rest();
        }
        one.store(true, Ordering::Release);
        engine.end_messages(&outcomes);
        drop(outcomes);
        assert!(data.iter().all(|&byte| byte == 0), "rank {rank} has other bytes");
        LOOKS.get() as f64 / many as f64
    };
    let each = world(2, SMALL, || Box::new(hub.open()), each);
    each.into_iter().fold(0.0, f64::max)
}

#[test]
fn a_message_is_as_much_work_however_many_wait() {
    // Small messages, and large ones, which ask before they are sent.
    for bytes in [8, 100] {
        for first in [false, true] {
            let (few, more) = (looks(100, bytes, first), looks(3000, bytes, first));
            let message =
                format!("{bytes} bytes, sends first: {first}: {few:.1} and {more:.1} looks for each message");
            println!("{message}");
            assert!(more < 4.0 * few.max(10.0), "{message}");
        }
    }
}
