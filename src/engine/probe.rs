//! What the benches need to see of the engine: the cost of a step, without a wire, and of finding a message's receive.

use std::time::{Duration, Instant};

use unisono_schedule::{CallSchedule, Collective, Job, Rank, Schedule, Span, Step};
use unisono_transport::{Memory, Region, inproc::Hub};

use super::{
    Bounds, Completion, Engine, Operation, Patience, Settings, Stop, Supervisor, Task, WORLD, What,
    p2p::{Envelope, Matching, Want},
};
use crate::{
    call::Signature,
    dtype::Dtype,
    error::{Error, Result},
    reduce::{Kernel, ReduceOp},
};

/// Sends empty messages to itself: a put, a take and a free, over and over.
struct ToMyself {
    steps: usize,
}

impl Schedule for ToMyself {
    fn lanes(&self) -> usize {
        1
    }

    fn max_message(&self) -> usize {
        0
    }

    fn direct(&self) -> bool {
        false
    }

    fn scratch(&self) -> usize {
        0
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        visit(0);
    }

    fn next(&mut self, _: usize) -> Option<Step> {
        self.steps = self.steps.checked_sub(1)?;
        Some(match self.steps % 3 {
            2 => Step::Put { to: 0, from: Span::input(0, 0) },
            1 => Step::Take { from: 0, len: 0 },
            _ => Step::Free { from: 0 },
        })
    }
}

struct Nobody;

impl Supervisor for Nobody {
    fn stopped(&self) -> bool {
        false
    }
}

/// An engine in a world of one, over the in-process transport.
pub struct Probe {
    engine: Engine,
}

impl Probe {
    /// A fresh engine.
    ///
    /// # Errors
    /// [`Error::Transport`] if there is no memory.
    pub fn new() -> Result<Self> {
        let settings = Settings {
            eager_bytes: 1024,
            eager_slots: 8,
            chunk_bytes: 1024,
            bulk_slots: 2,
            lanes: 1,
            huge_pages: false,
            bounds: Bounds::default(),
        };
        let mut engine = Engine::new(Box::new(Hub::new().open()), 0, 1, settings)?;
        let patience =
            Patience { spin: Duration::from_secs(1), give_way: Duration::ZERO, alone: Duration::ZERO };
        let contact = engine.contact();
        engine.meet(vec![contact], settings.chunk_bytes, patience).map_err(refused)?;
        Ok(Self { engine })
    }

    /// Runs one operation of so many steps, rounded up to threes (a message put to itself, taken and freed),
    /// and gives the time it took.
    ///
    /// # Errors
    /// [`Error::Failed`] if the engine does.
    pub fn run(&mut self, steps: usize) -> Result<Duration> {
        let job = Job::new(Collective::Barrier, 0, 1, 0);
        let kernel = Kernel::new(Dtype::U8, ReduceOp::Sum)
            .map_err(|error| Error::Argument { call: "probe", problem: error.to_string() })?;
        let empty = Region::unregistered(Memory::map(1, false)?);
        let operation = Box::new(Operation {
            number: 0,
            group: None,
            group_id: 0,
            signature: Signature::new(&job, Dtype::U8, ReduceOp::Sum, 0),
            ranks: 1,
            kernel,
            average: false,
            size: 1,
            input: empty.clone(),
            output: empty,
            long: false,
            fixed: false,
            writable: true,
            pieces: None,
            registered_input: None,
            registered_output: None,
        });
        let schedule = CallSchedule::Made(Box::new(ToMyself { steps: steps.next_multiple_of(3) }));
        let begun = Instant::now();
        let completion = Completion::unobserved(Duration::from_secs(60));
        let task = Task { what: What::Collective(operation, schedule), completion };
        let taken = self.engine.take(WORLD, task, &Nobody);
        let driven = taken.and_then(|()| self.engine.drive((&|| false, None), &Nobody));
        driven.map_err(|halt| refused(halt.stop))?;
        Ok(begun.elapsed())
    }
}

/// Messages and receives that meet behind others.
pub struct Matches(Matching<(), ()>);

impl Matches {
    /// So many messages and so many receives wait, none of which fit.
    #[must_use]
    pub fn new(waiting: u16) -> Self {
        let mut matching = Matching::default();
        for tag in 0..u32::from(waiting) {
            matching.keep(Envelope { from: 0, tag: 2 * tag, inner: false }, ());
            matching.receive(Want { from: Some(0), tag: 2 * tag + 1, inner: false }, ());
        }
        Self(matching)
    }

    /// A message comes, and then its receive; a receive, and then its message. Tells whether they have met.
    pub fn meet(&mut self) -> bool {
        let (tag, inner) = (u32::MAX, false);
        let (message, receive) = (Envelope { from: 0, tag, inner }, Want { from: None, tag, inner });
        let early = self.0.taker(message).is_none();
        self.0.keep(message, ());
        let found = self.0.receive(receive, ()).is_some();
        let waits = self.0.receive(receive, ()).is_none();
        early && found && waits && self.0.taker(message).is_some()
    }
}

fn refused(stop: Stop) -> Error {
    match stop {
        Stop::Failure(failure) => Error::Failed(*failure),
        Stop::Transport(broken) => broken.error.into(),
        Stop::Failed | Stop::Deadline => {
            Error::Argument { call: "probe", problem: "its steps take too long".to_owned() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_meet_receives_however_many_wait() {
        for waiting in [0, 1, 100] {
            let mut matches = Matches::new(waiting);
            assert!((0..3).all(|_| matches.meet()), "{waiting}");
            assert_eq!(matches.0.receives().count(), usize::from(waiting));
        }
    }

    #[test]
    fn a_probe_runs_again_and_again() {
        let mut probe = Probe::new().unwrap();
        for steps in [0, 1, 3, 100, 1000] {
            probe.run(steps).unwrap();
        }
    }
}
