//! The public face: a process group and what it can do.
//!
//! Here arguments are checked, an algorithm is chosen and the operation is handed to the engine; here the
//! first failure is latched, told to the others, and returned by every later call.

mod calls;
mod guard;
mod join;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use unisono_transport::{Limits, Memory};

use self::guard::Guard;
pub use crate::engine::Traced;
use crate::{
    algorithm::{self, Algorithm},
    buffer::{Buffer, Lent, Registry},
    config::Config,
    dtype::{Dtype, Element},
    engine::{Engine, FAREWELL, Operation, Settings, Signature, Stop},
    error::{Error, Failure, Result},
    reduce::{Kernel, ReduceOp},
    rendezvous::Store,
    schedule::{Collective, Job, Rank, Uneven},
};

/// How long a rank that leaves waits for the others to leave too.
const PARTING: Duration = Duration::from_secs(5);

/// The ranks that work together, seen from one of them.
///
/// Every rank makes the same calls in the same order. Calls block until this rank's part is done: its
/// output is complete and its input may be changed. A call that does not fit what the other ranks call
/// fails on all of them: no element of a message that does not fit is used. What the output holds then is
/// not said, for it may hold what came from ranks that agree. A rank that only sends, as a broadcast's root
/// does, may learn of it at its next call or when it leaves. Every call fails once a rank has died or a
/// deadline has passed; from then on the group is over.
///
/// It may be shared by threads, which then take turns.
pub struct ProcessGroup {
    rank: Rank,
    ranks: usize,
    config: Config,
    limits: Limits,
    guard: Guard,
    registry: Arc<Registry>,
    state: Mutex<State>,
    /// Goes last: the process that serves it may have to stay for the others.
    #[expect(dead_code, reason = "kept for its drop")]
    store: Option<Arc<dyn Store>>,
}

struct State {
    /// Gone once the group has failed: its endpoint may not touch borrowed memory any more.
    engine: Option<Engine>,
    next: u64,
    failed: Option<Failure>,
    /// Whether the farewell was said.
    parted: bool,
}

impl fmt::Debug for ProcessGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessGroup")
            .field("rank", &self.rank)
            .field("ranks", &self.ranks)
            .field("provider", &self.limits.provider)
            .finish_non_exhaustive()
    }
}

impl ProcessGroup {
    /// This process's rank, from 0.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// The world size.
    #[must_use]
    pub fn size(&self) -> usize {
        self.ranks
    }

    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What the transport under the group can do, and its provider's name and version.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// A buffer of `len` zeros in registered memory: puts read it, and large results are written into it, without a
    /// copy. On providers that pin memory (verbs, EFA, cxi) that saves a copy of everything that is sent and of
    /// large results; on tcp and shm it changes nothing. The configuration says whether it lies in huge pages.
    ///
    /// # Errors
    /// [`Error::Transport`] if the memory cannot be had or not be registered (see `ulimit -l`);
    /// [`Error::Argument`] if the length overflows; [`Error::Failed`] if the group is over.
    pub fn buffer<T: Element>(&self, len: usize) -> Result<Buffer<T>> {
        let overflow = || Error::Argument {
            call: "buffer",
            problem: format!("{len} elements of {} bytes are more than can be addressed", size_of::<T>()),
        };
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(overflow)?;
        let mut state = self.state();
        let engine = self.engine(&mut state)?;
        let memory = Memory::map(bytes.max(1), self.config.huge_pages)?;
        let region = engine.transport().register(memory)?;
        drop(state);
        Buffer::new(region, len, &self.registry).ok_or_else(overflow)
    }

    /// Ends the group for every rank, which all get [`Failure::Aborted`] with this reason from the call
    /// they are in or make next. May be called while another thread is in a call, which it ends.
    pub fn abort(&self, why: &str) {
        // Before anything else, since a call under way holds the state, and looks at the alarm.
        let failure = self.guard.tell(Failure::Aborted { rank: self.rank, why: why.to_owned() });
        let mut state = self.state();
        if state.failed.is_none() {
            self.latch(&mut state, failure);
        }
    }

    /// The name of the algorithm that does a collective of `count` elements (as [`Collective`] counts them).
    ///
    /// # Errors
    /// [`Error::Argument`] if the lengths overflow; [`Error::Failed`] if the group is over.
    pub fn algorithm(&self, collective: Collective, count: usize, dtype: Dtype) -> Result<&'static str> {
        let settings = *self.engine(&mut self.state())?.settings();
        Ok(self.choose(&Request::new(collective, count), dtype.size(), &settings)?.0.name)
    }

    /// The number of operations begun so far.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.state().next
    }

    /// Keeps, from now on, the steps of each operation in the order in which they finished;
    /// [`Self::trace`] gives those of the latest. It costs memory: one entry for every step.
    pub fn keep_trace(&self) {
        if let Some(engine) = &mut self.state().engine {
            engine.trace = Some(Vec::new());
        }
    }

    /// The steps of the latest operation, if [`Self::keep_trace`] was called before it.
    #[must_use]
    pub fn trace(&self) -> Vec<Traced> {
        self.state().engine.as_ref().and_then(|engine| engine.trace.clone()).unwrap_or_default()
    }

    /// Bytes of memory that the group's windows, mailboxes and staging take on this rank at present.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.state().engine.as_ref().map_or(0, Engine::memory)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn engine<'s>(&self, state: &'s mut State) -> Result<&'s mut Engine> {
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
    fn latch(&self, state: &mut State, failure: Failure) -> Error {
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

    /// Runs a collective of `T` on lent memory; a failure ends the group.
    fn run<T: Element>(&self, request: Request<'_>, lent: &Lent<'_>) -> Result<()> {
        let mut state = self.state();
        let begun = Instant::now();
        let number = state.next;
        let (signature, result) = self.attempt(&mut state, T::DTYPE, &request, lent, self.config.timeout)?;
        result.map_err(|stop| {
            let failure = self.guard.explain(stop, number, &signature.call(), begun.elapsed());
            self.latch(&mut state, failure)
        })
    }

    /// The algorithm for a collective, and how it is to go about it: from the table, or with the algorithm that the
    /// configuration names.
    fn choose(
        &self,
        request: &Request<'_>,
        size: usize,
        settings: &Settings,
    ) -> Result<(&'static Algorithm, Shape)> {
        let Request { collective, count, .. } = *request;
        let argument = |problem: String| Error::Argument { call: collective.name(), problem };
        let fits = |(inputs, outputs): (usize, usize)| inputs.max(outputs).checked_mul(size).is_some();
        let bytes =
            count.checked_mul(size).filter(|_| request.job(self).lengths().is_some_and(fits)).ok_or_else(
                || argument(format!("{count} elements of {size} bytes are more than can be addressed")),
            )?;
        let choice = algorithm::choose(collective, self.ranks, bytes)
            .ok_or_else(|| argument("no algorithm can do it".to_owned()))?;
        let direct = algorithm::direct(bytes, settings.chunk_bytes);
        let named = self.config.algorithm.as_deref().and_then(algorithm::find);
        Ok(match named.filter(|algorithm| algorithm.supports(collective)) {
            Some(algorithm) if algorithm.code != choice.algorithm.code => {
                let chunk = (settings.chunk_bytes / size).max(1);
                (algorithm, Shape { chunk, lanes: settings.lanes, direct })
            }
            _ => {
                // One lane's messages go through eager windows, however large the whole.
                let most = if choice.lanes == 1 { settings.eager_bytes } else { settings.chunk_bytes };
                let chunk = choice.chunk_bytes.min(most);
                let lanes = choice.lanes.min(settings.lanes);
                (choice.algorithm, Shape { chunk: (chunk / size).max(1), lanes, direct })
            }
        })
    }

    /// Checks a request and runs it. The outer error is one of the caller's, and the group still works.
    fn attempt(
        &self,
        state: &mut State,
        dtype: Dtype,
        request: &Request<'_>,
        lent: &Lent<'_>,
        timeout: Duration,
    ) -> Result<(Signature, std::result::Result<(), Stop>)> {
        let Request { collective, root, op, .. } = *request;
        let argument = |problem: String| Error::Argument { call: collective.name(), problem };
        let kernel = Kernel::new(dtype, op).map_err(|error| argument(error.to_string()))?;
        let settings = *self.engine(state)?.settings();
        let (algorithm, shape) = self.choose(request, dtype.size(), &settings)?;
        let Shape { chunk, lanes, direct } = shape;
        let job = Job { chunk, lanes, direct, ..request.job(self) };
        // The farewell is a barrier by another name.
        let planned = Job { root: if collective == Collective::Barrier { 0 } else { root }, ..job };
        let Some(mut schedule) = algorithm.make(&planned) else {
            return Err(argument(format!("algorithm {} cannot do it", algorithm.name)));
        };
        let signature = Signature::new(&job, dtype, op, algorithm.code);
        let operation = Operation {
            number: state.next,
            signature,
            ranks: self.ranks,
            kernel,
            average: op == ReduceOp::Avg,
            size: dtype.size(),
            input: lent.input.clone(),
            output: lent.output.clone(),
            registered_input: self.registry.find(&lent.input),
            registered_output: self.registry.find(&lent.output),
            algorithm_name: |code| algorithm::from_code(code).map_or("unknown", |algorithm| algorithm.name),
        };
        state.next += 1;
        self.guard.position.enter(operation.number, signature.bits());
        let deadline = Instant::now() + timeout;
        // Out of the state meanwhile: should this thread unwind, the engine goes, and its puts with it,
        // before the memory does that they read.
        self.engine(state)?;
        let Some(mut engine) = state.engine.take() else { return Ok((signature, Err(Stop::Alarm))) };
        let result = engine.run(&operation, &mut *schedule, &self.guard, deadline);
        state.engine = Some(engine);
        if result.is_ok() {
            self.guard.position.finish(operation.number);
        }
        Ok((signature, result))
    }
}

/// The part of a [`Job`] that is chosen.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Elements.
    chunk: usize,
    lanes: usize,
    direct: bool,
}

/// What a collective is asked to do; the fields are those of a [`Job`].
#[derive(Clone, Copy, Debug)]
struct Request<'a> {
    collective: Collective,
    count: usize,
    uneven: Option<Uneven<'a>>,
    root: Rank,
    /// Matters where elements are reduced.
    op: ReduceOp,
}

impl<'a> Request<'a> {
    /// Of a collective with even blocks, no root and nothing to reduce.
    fn new(collective: Collective, count: usize) -> Self {
        Self { collective, count, uneven: None, root: 0, op: ReduceOp::Sum }
    }

    /// The job, in one piece on one lane.
    fn job(&self, group: &ProcessGroup) -> Job<'a> {
        let job = Job::new(self.collective, group.rank, group.ranks, self.count);
        Job { uneven: self.uneven, root: self.root, ..job }
    }
}

impl ProcessGroup {
    /// Parts from the others in good order: waits, at most five seconds, for them to come here too, because
    /// an endpoint that closes may take along what it has sent and the network has not delivered. Dropping
    /// the group does the same, but cannot tell what came of it.
    ///
    /// # Errors
    /// [`Error::Failed`] if the group is over, or the others call something else: a rank that leaves while
    /// others call a collective is a mismatch, and so is a call whose messages nobody took.
    pub fn leave(self) -> Result<()> {
        self.part()
    }

    fn part(&self) -> Result<()> {
        let mut state = self.state();
        if std::mem::replace(&mut state.parted, true) {
            return Ok(());
        }
        self.engine(&mut state)?;
        let farewell = Request { root: FAREWELL as usize, ..Request::new(Collective::Barrier, 0) };
        let lent = Lent::apart::<u8>(&[], &mut []);
        match self.attempt(&mut state, Dtype::U8, &farewell, &lent, PARTING)?.1 {
            // The others may be long about it: that is no harm to this rank.
            Ok(()) | Err(Stop::Deadline) => Ok(()),
            Err(stop) => {
                let failure = self.guard.explain(stop, state.next, "leave()", Duration::ZERO);
                Err(self.latch(&mut state, failure))
            }
        }
    }
}

impl Drop for ProcessGroup {
    /// As [`ProcessGroup::leave`]; not while panicking, so that the others hear of a death.
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
