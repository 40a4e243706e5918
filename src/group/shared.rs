//! What all handles of a group share: the engine, the first failure, the watch over the others.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use unisono_transport::Limits;

use super::{
    guard::Guard,
    request::{Request, Shape, Wishes},
};
use crate::{
    algorithm::{self, World, table::Table},
    buffer::{Lent, Registry},
    config::Config,
    dtype::Dtype,
    engine::{Engine, FAREWELL, Operation, Settings, Signature, Stop, WORLD},
    error::{Error, Failure, Result},
    reduce::{Kernel, ReduceOp},
    rendezvous::Store,
    schedule::{Collective, Job, Rank},
};

/// How long a rank that leaves waits for the others to leave too.
const PARTING: Duration = Duration::from_secs(5);

pub(super) struct Shared {
    pub rank: Rank,
    pub world: World,
    pub config: Config,
    /// What was measured for worlds of this size.
    pub tuned: Table,
    pub limits: Limits,
    /// The sizes of windows in force.
    pub settings: Settings,
    pub guard: Guard,
    pub registry: Arc<Registry>,
    pub state: Mutex<State>,
    /// Goes last: the process that serves it may have to stay for the others.
    #[expect(dead_code, reason = "kept for its drop")]
    pub store: Option<Arc<dyn Store>>,
}

pub(super) struct State {
    /// Gone once the group has failed: its endpoint may not touch borrowed memory any more.
    pub engine: Option<Engine>,
    pub next: u64,
    pub failed: Option<Failure>,
    /// Whether the farewell was said.
    pub parted: bool,
}

impl Shared {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn engine<'s>(&self, state: &'s mut State) -> Result<&'s mut Engine> {
        if state.failed.is_none()
            && let Some(failure) = self.guard.alarm.failure()
        {
            self.latch(state, failure);
        }
        match (&state.failed, &mut state.engine) {
            (None, Some(engine)) => Ok(engine),
            (Some(failure), _) => Err(Error::Failed(failure.clone())),
            (None, None) => Err(Error::Failed(Failure::StoreLost { how: "the group has ended".to_owned() })),
        }
    }

    /// Ends the group: the endpoint is torn down before anything else, so that no put can touch memory
    /// that a caller gets back; then the store hears of it.
    pub(super) fn latch(&self, state: &mut State, failure: Failure) -> Error {
        state.engine = None;
        let failure = match &state.failed {
            Some(first) => first.clone(),
            None => self.guard.tell(failure),
        };
        // Whoever called is told, and decides how loud to be.
        tracing::info!(rank = self.rank, %failure, "the group has failed");
        state.failed = Some(failure.clone());
        Error::Failed(failure)
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
        let begun = Instant::now();
        let number = state.next;
        let (signature, result) = self.attempt(state, dtype, request, lent, wishes, self.config.timeout)?;
        result.map_err(|stop| {
            let failure = self.guard.explain(stop, number, &signature.call(), begun.elapsed());
            self.latch(state, failure)
        })
    }

    /// Checks a request and runs it. The outer error is one of the caller's, and the group still works.
    fn attempt(
        &self,
        state: &mut State,
        dtype: Dtype,
        request: &Request<'_>,
        lent: &Lent<'_>,
        wishes: &Wishes,
        timeout: Duration,
    ) -> Result<(Signature, std::result::Result<(), Stop>)> {
        let Request { collective, op, .. } = *request;
        let argument = |problem: String| Error::Argument { call: collective.name(), problem };
        let kernel = Kernel::new(dtype, op).map_err(|error| argument(error.to_string()))?;
        self.engine(state)?;
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
            registered_input: self.registry.find(&lent.input),
            registered_output: self.registry.find(&lent.output),
            algorithm_name: |code| algorithm::from_code(code).map_or("unknown", |algorithm| algorithm.name),
        };
        state.next += 1;
        let number = operation.number;
        self.guard.position.enter(number, signature.bits());
        let deadline = Instant::now() + timeout;
        // Out of the state meanwhile: should this thread unwind, the engine goes, and its puts with it,
        // before the memory does that they read.
        self.engine(state)?;
        let Some(mut engine) = state.engine.take() else { return Ok((signature, Err(Stop::Alarm))) };
        let result = engine.run(WORLD, operation, schedule, &self.guard, deadline);
        state.engine = Some(engine);
        if result.is_ok() {
            self.guard.position.finish(number);
        }
        Ok((signature, result))
    }

    /// Says farewell.
    pub(super) fn part(&self) -> Result<()> {
        let mut state = self.state();
        if std::mem::replace(&mut state.parted, true) {
            return Ok(());
        }
        self.engine(&mut state)?;
        let farewell = Request { root: FAREWELL as usize, ..Request::new(Collective::Barrier, 0) };
        let lent = Lent::apart::<u8>(&[], &mut []);
        match self.attempt(&mut state, Dtype::U8, &farewell, &lent, &Wishes::default(), PARTING)?.1 {
            // The others may be long about it: that is no harm to this rank.
            Ok(()) | Err(Stop::Deadline) => Ok(()),
            Err(stop) => {
                let failure = self.guard.explain(stop, state.next, "leave()", Duration::ZERO);
                Err(self.latch(&mut state, failure))
            }
        }
    }
}

impl Drop for Shared {
    /// As `ProcessGroup::leave`; not while panicking, so that the others hear of a death.
    fn drop(&mut self) {
        let panicking = std::thread::panicking();
        let over = self.state().failed.is_some() || self.guard.alarm.raised();
        let parted = if panicking || over { Ok(()) } else { self.part() };
        if let Err(error) = parted {
            tracing::error!(rank = self.rank, %error, "the group did not part in good order");
        }
        self.state().engine = None;
        if let (Some(watch), false) = (&self.guard.watch, panicking) {
            watch.leave();
        }
    }
}
