//! The parts that a process has once for all its groups: the engine, the driver lock, the submission queue, the first failure, the progress
//! thread, and where its peers run.
//!
//! A thread that waits for an operation holds the driver lock and drives the engine, for all operations. Other threads submit their
//! operations and wait until these have ended, or until no thread drives; then one of them takes the lock.

use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crossbeam_queue::SegQueue;
use unisono_transport::{Limits, Wake, fork::Process};

pub(crate) mod affinity;
mod background;
mod callers;
mod current;
mod driver;
pub(crate) mod host;
mod late;
pub(crate) mod monitor;
pub(crate) mod network;
pub(crate) mod peer;
mod position;
pub(crate) mod roster;
mod submission;
mod supervisor;
pub(crate) mod watchdog;

pub use self::late::late_failure;
use unisono_engine::{
    Called, CommId, Completion, CompletionAction, Done, Engine, Halt, Operation, Outcome, Registry,
    RequestKind, ReturnedMemory, Settings, SubmissionEntry, WorkRequest,
};
use unisono_schedule::{Rank, select::table::Table};

use self::{
    affinity::Affinity, callers::Callers, driver::DriverLock, monitor::Monitor, roster::Roster,
    submission::Submission,
};
use crate::{
    config::Config,
    error::{Error, Failure, Result},
    rendezvous::{Position, Store},
};

/// When this rank leaves: how long it drives the engine before it checks again whether an operation is left.
const DRAIN: Duration = Duration::from_millis(20);

pub(crate) struct Runtime {
    /// The rank in the world.
    pub rank: Rank,
    /// The process that joined, and its id.
    process: Process,
    pid: u32,
    pub config: Config,
    pub limits: Limits,
    /// The sizes of windows in force.
    pub settings: Settings,
    /// The known facts about all ranks of the world.
    pub roster: Arc<Roster>,
    /// The tuning file's rows, for groups of any size.
    pub tuned: Table,
    /// The processors of the progress thread.
    affinity: Affinity,
    pub monitor: Monitor,
    pub callers: Callers,
    pub registry: Arc<Registry>,
    /// The driver locks this. `None` once the world has failed or ended: its endpoint must not touch borrowed memory any more.
    engine: Mutex<Option<Box<Engine>>>,
    requests: Submission,
    /// Completions whose actions the progress thread runs.
    finished: SegQueue<Completion>,
    /// True if a thread has the [driver lock](driver).
    driven: AtomicBool,
    /// The number of threads that wait for the driver lock or for their operation. It changes under `roles`.
    waiting: AtomicUsize,
    roles: Mutex<Roles>,
    /// The position at the failure for which this rank closed its endpoint. Other ranks may ask for it until they know of the failure.
    last_position: OnceLock<Position>,
    /// Wakes threads that wait for an operation or for the driver lock.
    changed: Condvar,
    /// Wakes the [progress thread](background).
    rested: Condvar,
    /// The number of threads that claim the driver lock; and the number of those that wait to replace the progress thread as the driver.
    claims: AtomicUsize,
    waiters: AtomicUsize,
    /// True if this rank is leaving and makes no other call.
    leaves: AtomicBool,
    /// True if calls are refused; read without a lock.
    closed: AtomicBool,
    /// The number of operations that have not ended.
    open: AtomicUsize,
    /// True if a call has returned the failure of the world.
    knows: AtomicBool,
    /// The next tag for messages that belong to another message.
    inner: AtomicU32,
    /// The progress thread, once an asynchronous call was made.
    thread: Mutex<Option<JoinHandle<()>>>,
    waker: Arc<dyn Wake>,
    /// Dropped last: the process that serves the store may have to serve it until the other ranks have left.
    #[expect(dead_code, reason = "kept for its drop")]
    store: Option<Store>,
}

/// What the progress thread does, and whether the world has ended.
#[derive(Default)]
struct Roles {
    /// True if the progress thread drives; how it sleeps; true if it has to end.
    background: bool,
    sleep: Sleep,
    quit: bool,
    /// True if an operation has begun on the thread of its caller since the progress thread last looked.
    begun: bool,
    /// The failure that ended the world; and whether the engine is dropped too, so that nothing touches borrowed memory.
    failed: Option<Failure>,
    gone: bool,
    left: bool,
}

/// How the progress thread sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sleep {
    #[default]
    Awake,
    /// The thread will soon check whether there is an operation for it.
    Naps,
    /// It must be woken.
    Deep,
}

impl Runtime {
    pub(crate) fn new(
        (rank, config, monitor): (Rank, Config, Monitor),
        engine: Engine,
        settings: Settings,
        (roster, tuned, affinity): (Arc<Roster>, Table, Affinity),
        store: Option<Store>,
    ) -> Self {
        Self {
            rank,
            process: Process::this(),
            pid: std::process::id(),
            config,
            limits: engine.limits().clone(),
            settings,
            roster,
            tuned,
            affinity,
            monitor,
            callers: Callers::default(),
            registry: Arc::default(),
            waker: engine.waker(),
            engine: Mutex::new(Some(Box::new(engine))),
            requests: Submission::default(),
            finished: SegQueue::new(),
            driven: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            roles: Mutex::default(),
            last_position: OnceLock::new(),
            changed: Condvar::new(),
            rested: Condvar::new(),
            claims: AtomicUsize::new(0),
            waiters: AtomicUsize::new(0),
            leaves: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            open: AtomicUsize::new(0),
            knows: AtomicBool::new(false),
            inner: AtomicU32::new(0),
            thread: Mutex::default(),
            store,
        }
    }

    fn roles(&self) -> MutexGuard<'_, Roles> {
        self.roles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits an operation of a communicator. The next driver begins it.
    pub(crate) fn ask(&self, comm_id: CommId, task: WorkRequest) {
        self.open.fetch_add(1, Ordering::SeqCst);
        self.requests.push((comm_id, SubmissionEntry::Do(task)));
        if self.requests.closed() {
            self.fail_requests(Vec::new());
        } else {
            self.wake_driver();
        }
    }

    /// Closes a communicator once the operations that were submitted before have ended. Does not wait for that.
    pub(crate) fn leave(&self, comm_id: CommId) -> Result<()> {
        self.check()?;
        self.requests.push((comm_id, SubmissionEntry::Leave));
        let lock = self.claim_driver();
        self.drive(None, (&|| true, None));
        drop(lock);
        self.check()
    }

    /// Runs an operation of a communicator; without queueing on this thread, if no thread drives.
    pub(crate) fn call(&self, comm_id: CommId, what: RequestKind, timeout: Duration) -> Result<Done> {
        let (completion, outcome) = Completion::new(timeout, CompletionAction::Return(None));
        let task = WorkRequest { what, completion };
        match self.try_lock_driver() {
            None => self.ask(comm_id, task),
            Some(lock) => {
                self.open.fetch_add(1, Ordering::SeqCst);
                let waiting = self.callers.wait();
                self.drive(Some((comm_id, task)), (&|| outcome.ended(), None));
                drop((lock, waiting));
            }
        }
        self.wait(&outcome)
    }

    /// Begins a collective of a communicator, with less work than [`call`](Self::call) has. If nothing else is active, this thread runs it
    /// as long as the peers answer at once, and then still has the driver lock. If the collective has not ended then, it returns the memory
    /// that `memory` gives at its end, and `operation` is taken.
    pub(crate) fn start(
        &self,
        comm_id: CommId,
        operation: &mut Option<Operation>,
        timeout: Duration,
        memory: &mut dyn FnMut() -> ReturnedMemory,
    ) -> Result<(Called, Option<DriverLock<'_>>)> {
        let mut completion = || Completion::new(timeout, CompletionAction::Return(memory()));
        let Some(lock) = self.try_lock_driver() else {
            let Some(operation) = operation.take() else { return Err(self.no_more()) };
            let (completion, outcome) = completion();
            self.ask(comm_id, WorkRequest { what: RequestKind::Collective(Box::new(operation)), completion });
            return Ok((Called::UnderWay(outcome), None));
        };
        let mut slot = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(engine) = slot.as_mut() else { return Err(self.no_more()) };
        // If this thread unwinds, the driver lock drops the engine, and with it its puts, before the memory that they read.
        let called = engine.driven_by(self).call(comm_id, operation, &mut completion);
        drop(slot);
        let called = called.map_err(|halt| {
            self.halted(halt);
            self.no_more()
        })?;
        match &called {
            Called::Ended(number) => self.monitor.current.finish(Some(*number)),
            Called::UnderWay(_) => _ = self.open.fetch_add(1, Ordering::SeqCst),
        }
        Ok((called, Some(lock)))
    }

    /// Drives until an operation has ended, at most until `until`, if this thread has the driver lock.
    pub(crate) fn advance(&self, lock: Option<DriverLock<'_>>, outcome: &Outcome, until: Option<Instant>) {
        let Some(lock) = lock else { return };
        let waiting = self.callers.wait();
        self.drive(None, (&|| outcome.ended() || is_over(until), until));
        drop((lock, waiting));
    }

    /// Waits for the end of an operation that was [submitted](Self::ask).
    pub(crate) fn wait(&self, outcome: &Outcome) -> Result<Done> {
        if !outcome.ended() {
            self.wait_until(outcome, None);
        }
        match outcome.take() {
            Some(end) => end.map_err(|failure| self.returned(Error::Failed(failure))),
            None => Err(self.no_more()),
        }
    }

    /// The error of a call after the world has ended.
    fn no_more(&self) -> Error {
        self.returned(Error::Failed(self.failed().unwrap_or(Failure::Closed)))
    }

    /// Waits for the end of an operation, and drives if no other waiting thread does. Returns `false` if the time is over first;
    /// `true` also if the world has ended.
    pub(crate) fn wait_until(&self, outcome: &Outcome, until: Option<Instant>) -> bool {
        let late = || is_over(until);
        // A wait with a limit ends by itself: it does not count as blocked.
        let _waiting = until.is_none().then(|| self.callers.wait());
        self.callers.enter();
        loop {
            let mut roles = self.roles();
            // A waiting thread drives faster than the progress thread, so it replaces that.
            let replaces = roles.background && !outcome.ended();
            if replaces {
                self.waiters.fetch_add(1, Ordering::Relaxed);
                self.wake_driver();
            }
            self.waiting.fetch_add(1, Ordering::SeqCst);
            let lock = loop {
                if outcome.ended() || roles.gone || late() {
                    break None;
                }
                if self.claims.load(Ordering::Relaxed) == 0
                    && let Some(lock) = self.take_driver()
                {
                    break Some(lock);
                }
                roles = self.sleep(roles, until);
            };
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            self.waiters.fetch_sub(usize::from(replaces), Ordering::Relaxed);
            let Some(lock) = lock else {
                let over = outcome.ended() || roles.gone;
                self.hand_over(roles);
                return over;
            };
            drop(roles);
            self.drive(None, (&|| outcome.ended() || late(), until));
            drop(lock);
        }
    }

    /// Waits until nothing is active except receives whose message has not come. From then on this rank refuses calls.
    pub(crate) fn drain(&self) -> Result<()> {
        self.with(Engine::leaves)?;
        let mut until = Instant::now();
        loop {
            let (lock, _waiting) = (self.claim_driver(), self.callers.wait());
            // This begins the operations that were submitted first.
            self.drive(None, (&|| Instant::now() >= until, Some(until)));
            let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
            let only_receives = engine.as_ref().is_none_or(|engine| engine.has_only_receives());
            let mut roles = self.roles();
            let over = only_receives && self.requests.is_empty();
            if over {
                roles.left = true;
                self.closed.store(true, Ordering::Release);
            }
            drop((roles, engine, lock));
            self.check()?;
            if over {
                return Ok(());
            }
            until = Instant::now() + DRAIN;
        }
    }

    /// Ends receives whose message has not come: all ranks are leaving, so none will.
    pub(crate) fn give_up_receives(&self) -> Result<()> {
        let receives = self.with(Engine::give_up_receives)?;
        // No other operation is under way.
        self.open.store(0, Ordering::Release);
        let failed: Vec<_> = receives
            .into_iter()
            .filter_map(|(call, completion)| completion.fail(Failure::Unsent { call, rank: self.rank }))
            .collect();
        self.finish_later(self.roles(), failed);
        self.changed.notify_all();
        Ok(())
    }

    /// Tells the store that this rank is leaving and makes no other call, for ranks that wait for it. Its barrier has begun before, so that
    /// the error of a rank that calls something else in that operation names both calls.
    pub(crate) fn leaves(&self) {
        let lock = self.claim_driver();
        self.drive(None, (&|| true, None));
        drop(lock);
        self.leaves.store(true, Ordering::Release);
        if let Some(watch) = &self.monitor.watch {
            watch.leaves();
        }
    }

    /// True if operations are active or submitted.
    fn has_open(&self) -> bool {
        self.open.load(Ordering::SeqCst) > 0
    }

    /// Gives completions to the [progress thread](background), which runs their actions.
    fn finish_later(&self, roles: MutexGuard<'_, Roles>, finished: impl IntoIterator<Item = Completion>) {
        finished.into_iter().for_each(|completion| self.finished.push(completion));
        if roles.sleep != Sleep::Awake && !self.finished.is_empty() {
            drop(roles);
            self.rested.notify_one();
        }
    }

    fn wake_driver(&self) {
        if self.requests.asleep() {
            self.waker.wake();
        }
    }

    /// Drives the engine until `until` returns true, nothing is active, or another thread claims the lock. Begins `first`, which was
    /// not queued, before anything else.
    fn drive(&self, first: Option<(CommId, WorkRequest)>, until: (&dyn Fn() -> bool, Option<Instant>)) {
        let mut slot = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        // If this thread unwinds, the driver lock drops the engine, and with it its puts, before the memory that they read.
        let Some(engine) = slot.as_mut() else { return };
        let mut driver = engine.driven_by(self);
        let taken = first.map_or(Ok(()), |(comm_id, task)| driver.take(comm_id, task));
        if let Err(halt) = taken.and_then(|()| driver.drive(until.0, until.1)) {
            drop(slot);
            self.halted(halt);
        }
    }

    /// Ends the world because the engine has stopped.
    fn halted(&self, Halt { stop, stalled }: Halt) {
        let failure = self.monitor.explain(stop, *stalled.unwrap_or_default());
        let _ = self.last_position.set(self.position());
        let left = self.abandon();
        let failure = self.end(left, self.monitor.tell(failure));
        // The call returns the failure too; the program chooses how to report it.
        crate::log::info!(rank = self.rank, %failure, "the group has failed");
    }

    /// Closes the endpoint. Returns the completions of the operations that were active.
    fn abandon(&self) -> Vec<Completion> {
        let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner).take();
        engine.map(|engine| engine.abandon()).unwrap_or_default()
    }

    /// Ends the world: every operation ends with this failure, or with an earlier one, which is returned.
    fn end(&self, left: Vec<Completion>, failure: Failure) -> Failure {
        let mut roles = self.roles();
        let failure = roles.failed.get_or_insert(failure).clone();
        self.closed.store(true, Ordering::Release);
        drop(roles);
        self.requests.close();
        self.fail_requests(left);
        failure
    }

    /// After the world has ended and the endpoint is closed: ends these operations, and those submitted, with the failure.
    fn fail_requests(&self, left: Vec<Completion>) {
        let Some(failure) = self.roles().failed.clone() else { return };
        let submitted =
            std::iter::from_fn(|| self.requests.next()).filter_map(|(_, request)| match request {
                SubmissionEntry::Do(task) => Some(task.completion),
                SubmissionEntry::Leave | SubmissionEntry::Position(_) => None,
            });
        let all = left.into_iter().chain(submitted);
        let failed: Vec<_> = all.filter_map(|completion| completion.fail(failure.clone())).collect();
        let mut roles = self.roles();
        roles.gone = true;
        self.finish_later(roles, failed);
        self.changed.notify_all();
    }

    /// Accesses the engine under the driver lock.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut Engine) -> R) -> Result<R> {
        self.check()?;
        self.callers.enter();
        let _lock = self.claim_driver();
        let mut slot = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *slot {
            Some(engine) => Ok(act(engine)),
            None => Err(Error::Failed(self.roles().failed.clone().unwrap_or(Failure::Closed))),
        }
    }

    /// Returns the error of all calls if the world has failed, on this rank or another.
    pub(crate) fn check(&self) -> Result<()> {
        self.check_process()?;
        self.check_roles(self.roles())
    }

    /// An error in a forked child. There, threads that do not exist may hold locks for ever, so check this before you take a lock.
    pub(crate) fn check_process(&self) -> Result<()> {
        let ours = self.process.is_this();
        if ours { Ok(()) } else { Err(Error::Forked { rank: self.rank, parent: self.pid }) }
    }

    fn check_roles(&self, roles: MutexGuard<'_, Roles>) -> Result<()> {
        let failed = roles.failed.clone();
        drop(roles);
        match failed {
            Some(failure) => Err(Error::Failed(failure)),
            None => self.monitor.latch.failure().map_or(Ok(()), |failure| Err(self.fail(failure))),
        }
    }

    /// A new tag for messages that belong to another message.
    pub(crate) fn inner(&self) -> u32 {
        self.inner.fetch_add(1, Ordering::Relaxed)
    }

    /// True if this rank is leaving or has left.
    pub(crate) fn has_left(&self) -> bool {
        self.roles().left
    }

    /// Returns an error if no call may be made.
    #[inline]
    pub(crate) fn check_calls(&self, call: &'static str) -> Result<()> {
        self.check_process()?;
        self.callers.enter();
        if !self.closed.load(Ordering::Acquire) && !self.monitor.latch.raised() {
            return Ok(());
        }
        self.refuse(call)
    }

    /// The error of a call after the world has failed or ended.
    #[cold]
    fn refuse(&self, call: &'static str) -> Result<()> {
        let roles = self.roles();
        if roles.left && roles.failed.is_none() {
            return Err(Error::Left { call });
        }
        self.check_roles(roles).map_err(|error| self.returned(error))
    }

    /// Ends all groups on all ranks, by telling the store. The driver stops, because the latch is raised.
    pub(crate) fn fail(&self, failure: Failure) -> Error {
        if let Err(error) = self.check_process() {
            return error;
        }
        let failure = self.monitor.tell(failure);
        self.waker.wake();
        let _lock = self.claim_driver();
        Error::Failed(self.end(self.abandon(), failure))
    }

    /// True if the world has failed or ended.
    pub(crate) fn over(&self) -> bool {
        self.roles().failed.is_some() || self.monitor.latch.raised()
    }
}

fn is_over(until: Option<Instant>) -> bool {
    until.is_some_and(|until| Instant::now() >= until)
}
