//! What all handles of a group share: which ranks it has, and the order of its operations.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::{
    node::Node,
    request::{Request, Shape, Wishes},
};
use crate::{
    algorithm::{self, World, table::Table},
    buffer::Lent,
    dtype::Dtype,
    engine::{FAREWELL, Operation, Task, Ticket, WORLD},
    error::{Error, Failure, Result},
    reduce::{Kernel, ReduceOp},
    schedule::{Collective, Job, Rank},
};

/// How long a rank that leaves waits for the others to leave too.
const PARTING: Duration = Duration::from_secs(5);

pub(super) struct Shared {
    pub node: Arc<Node>,
    /// In the group.
    pub rank: Rank,
    pub world: World,
    /// What was measured for groups of this size.
    pub tuned: Table,
    pub state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    /// The number of the next operation.
    pub next: u64,
    /// Whether the farewell was said.
    pub parted: bool,
}

impl Shared {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all groups.
    pub(super) fn fail(&self, failure: Failure) -> Error {
        self.node.fail(failure)
    }

    /// Runs a collective on lent memory; a failure ends the group.
    pub(super) fn run(
        &self,
        state: &mut State,
        dtype: Dtype,
        request: &Request<'_>,
        lent: &Lent<'_>,
        wishes: &Wishes,
    ) -> Result<()> {
        self.run_within(state, dtype, request, lent, wishes, self.node.config.timeout)
    }

    fn run_within(
        &self,
        state: &mut State,
        dtype: Dtype,
        request: &Request<'_>,
        lent: &Lent<'_>,
        wishes: &Wishes,
        timeout: Duration,
    ) -> Result<()> {
        let Request { collective, op, .. } = *request;
        let argument = |problem: String| Error::Argument { call: collective.name(), problem };
        let kernel = Kernel::new(dtype, op).map_err(|error| argument(error.to_string()))?;
        self.node.check()?;
        let (algorithm, shape) = request.choose(self, dtype.size(), wishes)?;
        let Shape { chunk, lanes, direct, long, ordered } = shape;
        let job = Job { chunk, lanes, direct, long, ordered, ..request.job(self) };
        // The farewell is a barrier by another name.
        let planned = Job { root: if collective == Collective::Barrier { 0 } else { job.root }, ..job };
        let Some(schedule) = algorithm.make(&planned) else {
            return Err(argument(format!("algorithm {} cannot do it", algorithm.name)));
        };
        let signature = request.signature(&job, dtype, algorithm.code);
        // Long writes need an output in which nothing waits to be sent.
        let mut aside = Vec::new();
        let apart = (long && collective.exchanges() && !lent.is_apart()).then(|| lent.aside(&mut aside));
        let lent = match &apart {
            Some(apart) => apart.as_ref().map_err(|error| argument(error.to_string()))?,
            None => lent,
        };
        let registry = &self.node.registry;
        let operation = Operation {
            number: state.next,
            signature,
            ranks: self.world.ranks,
            kernel,
            average: op == ReduceOp::Avg,
            size: dtype.size(),
            input: lent.input.clone(),
            output: lent.output.clone(),
            long,
            writable: !collective.exchanges() || lent.is_apart(),
            registered_input: registry.find(&lent.input),
            registered_output: registry.find(&lent.output),
            algorithm_name: |code| algorithm::from_code(code).map_or("unknown", |algorithm| algorithm.name),
        };
        state.next += 1;
        let asked = Instant::now();
        let ticket = Arc::new(Ticket::default());
        let task = Task {
            operation,
            schedule,
            deadline: asked + timeout,
            asked,
            ticket: Arc::clone(&ticket),
            held: None,
        };
        self.node.ask(WORLD, task);
        self.node.wait(&ticket).map(drop)
    }

    /// Says farewell.
    pub(super) fn part(&self) -> Result<()> {
        let mut state = self.state();
        if std::mem::replace(&mut state.parted, true) {
            return Ok(());
        }
        self.node.check()?;
        self.node.part();
        let farewell = Request { root: FAREWELL as usize, ..Request::new(Collective::Barrier, 0) };
        let lent = Lent::apart::<u8>(&[], &mut []);
        let parted = self.run_within(&mut state, Dtype::U8, &farewell, &lent, &Wishes::default(), PARTING);
        match parted {
            Err(_) if self.node.out_of_time() => Ok(()),
            parted => parted,
        }
    }
}

impl Drop for Shared {
    /// As `ProcessGroup::leave`; not while panicking, so that the others hear of a death.
    fn drop(&mut self) {
        let parted = if std::thread::panicking() || self.node.over() { Ok(()) } else { self.part() };
        if let Err(error) = parted {
            tracing::error!(rank = self.node.rank, %error, "the group did not part in good order");
        }
    }
}
