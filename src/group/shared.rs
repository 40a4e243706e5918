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
    engine::{FAREWELL, Operation, Task, Ticket},
    error::{Error, Failure, Result},
    reduce::{Kernel, ReduceOp},
    schedule::{Collective, Job, Rank},
};

/// How long a rank that leaves waits for the others to leave too.
const PARTING: Duration = Duration::from_secs(5);

pub(super) struct Shared {
    pub node: Arc<Node>,
    pub channel: u8,
    /// In the group.
    pub rank: Rank,
    /// How many ranks it has, and how many cores for them.
    pub world: World,
    /// Their ranks in the world.
    pub members: Vec<Rank>,
    pub name: String,
    /// What was measured for groups of this size.
    pub tuned: Table,
    pub state: Mutex<State>,
    /// The group that it comes from, which ends after it; the world comes from none.
    pub parent: Option<Arc<Self>>,
}

#[derive(Default)]
pub(super) struct State {
    /// The number of the next operation.
    pub next: u64,
    /// How many groups were made of this one.
    pub made: u64,
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
        // What has no root has other calls' names for it: the farewell is a barrier.
        let planned = Job { root: if collective.has_root() { job.root } else { 0 }, ..job };
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
            fixed: lent.fixed,
            writable: !lent.fixed && (!collective.exchanges() || lent.is_apart()),
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
        self.node.ask(self.channel, task);
        self.node.wait(&ticket).map(drop)
    }

    /// Says farewell.
    pub(super) fn part(&self) -> Result<()> {
        if self.parent.is_some() {
            return Ok(());
        }
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
    /// The world's as `ProcessGroup::leave`; not while panicking, so that the others hear of a death.
    fn drop(&mut self) {
        let over = std::thread::panicking() || self.node.over();
        let parted = match self.parent {
            _ if over => Ok(()),
            None => self.part(),
            // Of another group nobody waits for the end.
            Some(_) => self.node.with(|engine| engine.net().leave(self.channel)).and_then(|left| {
                left.map_err(|stop| {
                    let call = format!("leaving group {}", self.name);
                    self.fail(self.node.guard.explain(stop, 0, &call, Duration::ZERO))
                })
            }),
        };
        if let Err(error) = parted {
            tracing::error!(rank = self.node.rank, %error, "the group did not part in good order");
        }
    }
}
