//! What all groups of a process share: the engine and the turns at driving it, the first failure, the watch over the
//! others.
//!
//! Whoever waits for an operation drives the engine, for all operations under way: it *leads*. Others hand it theirs and
//! wait until they have ended, or until nobody leads any more; then one of them does.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use unisono_transport::{Limits, Wake, fork::Process};

pub(crate) mod affinity;
mod background;
mod callers;
mod current;
pub(crate) mod host;
pub(crate) mod monitor;
pub(crate) mod peer;
mod position;
mod supervisor;
pub(crate) mod watchdog;

use self::{affinity::Affinity, callers::Callers, monitor::Monitor, peer::PeerInfo};
use crate::{
    buffer::Registry,
    config::Config,
    engine::{
        Asked, Called, CommId, Done, Engine, Halt, Held, Operation, Request, Rest, Settings, Supervisor as _,
        Task, Ticket, What,
    },
    error::{Error, Failure, Result},
    rendezvous::Store,
    work::Driver,
};
use unisono_schedule::{CallSchedule, Rank, select::table::Table};

/// How long, where all shall end, what has not is gone on with before it is looked at again.
const DRAIN: Duration = Duration::from_millis(20);

/// The bit of the tag of what answers a message: by that and what the message said of its own.
pub(crate) const ANSWER: u32 = 1 << 31;

pub(crate) struct Runtime {
    /// In the world.
    pub rank: Rank,
    /// The one that joined, and its number.
    process: Process,
    pid: u32,
    pub config: Config,
    pub limits: Limits,
    /// The sizes of windows in force.
    pub settings: Settings,
    /// Where the ranks of the world run.
    pub peers: Vec<PeerInfo>,
    /// What was measured, for groups of any size.
    pub tuned: Table,
    /// Where the thread runs.
    affinity: Affinity,
    pub monitor: Monitor,
    pub callers: Callers,
    pub registry: Arc<Registry>,
    /// Whoever leads has it; gone once a group has failed: its endpoint may not touch borrowed memory any more.
    engine: Mutex<Option<Box<Engine>>>,
    queue: Mutex<SubmissionQueue>,
    /// For those who wait for an operation or the lead.
    changed: Condvar,
    /// For the [thread](background) that goes on where nobody waits.
    rested: Condvar,
    /// Whether there is a task on the queue, so that whoever leads need not lock it to know.
    asked: AtomicBool,
    /// Whether there is a rest on the queue, so that the thread that is to do it, if it leads, need not lock it to know.
    rests: AtomicBool,
    /// How many want the lead, for themselves alone; and how many wait that would replace the thread that goes on.
    claims: AtomicUsize,
    waiters: AtomicUsize,
    /// Whether this rank leaves, and calls nothing else.
    leaves: AtomicBool,
    /// Whether calls may not be made any more, so that those that may need not lock the queue to know.
    closed: AtomicBool,
    /// Operations that have not ended.
    open: AtomicUsize,
    /// The next tag of what belongs to a message.
    inner: AtomicU32,
    /// Goes on with operations where nobody waits; there once one was begun that way.
    thread: Mutex<Option<JoinHandle<()>>>,
    waker: Arc<dyn Wake>,
    /// Goes last: the process that serves it may have to stay for the others.
    #[expect(dead_code, reason = "kept for its drop")]
    store: Option<Arc<dyn Store>>,
}

/// Where operations are handed in.
#[derive(Default)]
struct SubmissionQueue {
    requests: VecDeque<(CommId, Request)>,
    /// What is left to do of operations that have ended, for the thread that goes on where nobody waits.
    rests: Vec<Rest>,
    /// Whether somebody leads, and sleeps meanwhile.
    leading: bool,
    asleep: bool,
    /// Whether it is the thread that goes on where nobody waits; whether that thread rests; and whether it is to end.
    background: bool,
    resting: bool,
    quit: bool,
    /// Threads that wait for the lead or for the end of their operation.
    waiting: usize,
    /// Why all is over, and whether the engine is gone too, and with it all that touched borrowed memory.
    failed: Option<Failure>,
    gone: bool,
    /// Whether it leaves, or has left.
    left: bool,
}

/// The lead: given back when it goes.
struct Lead<'n> {
    runtime: &'n Runtime,
    /// Whether the thread was unwinding already: then it calls from the drop of something.
    unwinding: bool,
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let runtime = self.runtime;
        if std::thread::panicking() && !self.unwinding {
            // Whatever it was in the middle of: nothing may touch the memory of operations any more.
            let why = "a thread panicked while it drove the engine".to_owned();
            runtime.end(runtime.abandon(), Failure::Aborted { rank: runtime.rank, why });
        }
        let mut queue = runtime.queue();
        queue.leading = false;
        runtime.hand_over(queue);
    }
}

impl Runtime {
    pub(crate) fn new(
        (rank, config, monitor): (Rank, Config, Monitor),
        engine: Engine,
        settings: Settings,
        (peers, tuned, affinity): (Vec<PeerInfo>, Table, Affinity),
        store: Option<Arc<dyn Store>>,
    ) -> Self {
        Self {
            rank,
            process: Process::this(),
            pid: std::process::id(),
            config,
            limits: engine.limits().clone(),
            settings,
            peers,
            tuned,
            affinity,
            monitor,
            callers: Callers::default(),
            registry: Arc::default(),
            waker: engine.waker(),
            engine: Mutex::new(Some(Box::new(engine))),
            queue: Mutex::default(),
            changed: Condvar::new(),
            rested: Condvar::new(),
            asked: AtomicBool::new(false),
            rests: AtomicBool::new(false),
            claims: AtomicUsize::new(0),
            waiters: AtomicUsize::new(0),
            leaves: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            open: AtomicUsize::new(0),
            inner: AtomicU32::new(0),
            thread: Mutex::default(),
            store,
        }
    }

    fn queue(&self) -> MutexGuard<'_, SubmissionQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands in an operation of the group on a channel. It is not begun before somebody leads.
    pub(crate) fn ask(&self, comm_id: CommId, task: Task) {
        let mut queue = self.queue();
        if let Some(failure) = queue.failed.clone() {
            let rest = task.asked.ticket.end(Err(failure)).with(task.asked.held);
            return self.leave_to_others(queue, [rest]);
        }
        queue.requests.push_back((comm_id, Request::Do(task)));
        self.open.fetch_add(1, Ordering::Release);
        self.asked.store(true, Ordering::Release);
        if queue.asleep {
            self.waker.wake();
        }
    }

    /// Leaves the group on a channel, once what was handed in before is done. Does not wait for that.
    pub(crate) fn leave(&self, comm_id: CommId) -> Result<()> {
        self.check()?;
        let mut queue = self.queue();
        queue.requests.push_back((comm_id, Request::Leave));
        self.asked.store(true, Ordering::Release);
        drop(queue);
        let lead = self.claim();
        self.drive(None, (&|| true, None));
        drop(lead);
        self.check()
    }

    /// The lead, if nobody else has it or wants anything.
    fn lead_at_once(&self) -> Option<Lead<'_>> {
        let queue = self.queue();
        let engaged = queue.failed.is_some() || queue.leading || self.wanted() || !queue.requests.is_empty();
        (!engaged).then(|| self.lead(queue))
    }

    /// Does an operation of the group on a channel: at once, without another's hands, if nobody leads.
    pub(crate) fn call(&self, comm_id: CommId, task: Task) -> Result<Done> {
        let ticket = Arc::clone(&task.asked.ticket);
        match self.lead_at_once() {
            None => self.ask(comm_id, task),
            Some(lead) => {
                self.open.fetch_add(1, Ordering::Release);
                let waiting = self.callers.wait();
                self.drive(Some((comm_id, task)), (&|| ticket.ended(), None));
                drop((lead, waiting));
            }
        }
        self.wait(&ticket)
    }

    /// Does a collective of the group on a channel, and tells the number of its last operation: as [`call`](Self::call), but
    /// with less ado while nothing else is under way.
    pub(crate) fn collective(
        &self,
        comm_id: CommId,
        (operation, schedule): (Box<Operation>, CallSchedule),
        timeout: Duration,
    ) -> Result<Option<u64>> {
        let Some(lead) = self.lead_at_once() else {
            let asked = Asked::now(timeout, Held::Back(None));
            let ticket = Arc::clone(&asked.ticket);
            self.ask(comm_id, Task { what: What::Collective(operation, schedule), asked });
            return self.wait(&ticket).map(|done| done.number);
        };
        let mut slot = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(engine) = slot.as_mut() else { return Err(self.no_more()) };
        // Should this thread unwind, the engine goes with the lead, and its puts with it, before the memory that they read.
        let called = engine.call(comm_id, (operation, schedule), timeout, self);
        drop(slot);
        match called {
            Ok(Called::Ended(number)) => {
                self.monitor.current.finish(Some(number));
                Ok(Some(number))
            }
            Ok(Called::UnderWay(ticket)) => {
                self.open.fetch_add(1, Ordering::Release);
                let waiting = self.callers.wait();
                self.drive(None, (&|| ticket.ended(), None));
                drop((lead, waiting));
                self.wait(&ticket).map(|done| done.number)
            }
            Err(halt) => {
                self.halted(halt);
                Err(self.no_more())
            }
        }
    }

    /// Waits for the end of an operation that was [handed in](Self::ask).
    pub(crate) fn wait(&self, ticket: &Ticket) -> Result<Done> {
        if !ticket.ended() {
            self.wait_until(ticket, None);
        }
        match ticket.take() {
            Some(end) => end.map_err(Error::Failed),
            None => Err(self.no_more()),
        }
    }

    /// What a call gets after the end of all.
    fn no_more(&self) -> Error {
        Error::Failed(Driver::failed(self).unwrap_or_else(ended))
    }

    /// Waits for the end of an operation, and leads if nobody else does who waits. False if the time is over; after
    /// the end of all, true.
    pub(crate) fn wait_until(&self, ticket: &Ticket, until: Option<Instant>) -> bool {
        let late = || until.is_some_and(|until| Instant::now() >= until);
        // Whoever waits so long and no longer goes on by itself.
        let _waiting = until.is_none().then(|| self.callers.wait());
        self.callers.enter();
        loop {
            let mut queue = self.queue();
            // Whoever waits is faster than the thread that goes on where nobody does.
            let replaces = queue.background && !ticket.ended();
            if replaces {
                self.waiters.fetch_add(1, Ordering::Relaxed);
                if queue.asleep {
                    self.waker.wake();
                }
            }
            while !ticket.ended()
                && !queue.gone
                && (queue.leading || self.claims.load(Ordering::Relaxed) > 0)
                && !late()
            {
                queue = self.sleep(queue, until);
            }
            self.waiters.fetch_sub(usize::from(replaces), Ordering::Relaxed);
            let over = ticket.ended() || queue.gone;
            if over || late() {
                self.hand_over(queue);
                return over;
            }
            let lead = self.lead(queue);
            self.drive(None, (&|| ticket.ended() || late(), until));
            drop(lead);
        }
    }

    /// Waits until nothing is under way any more but receives whose message has not come. From then on there are no calls.
    pub(crate) fn drain(&self) -> Result<()> {
        self.with(Engine::leaves)?;
        let mut until = Instant::now();
        loop {
            let (lead, _waiting) = (self.claim(), self.callers.wait());
            // First of all what was handed in is begun.
            self.drive(None, (&|| Instant::now() >= until, Some(until)));
            let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
            let only_receives = engine.as_ref().is_none_or(|engine| engine.has_only_receives());
            let mut queue = self.queue();
            let over = only_receives && queue.requests.is_empty();
            if over {
                queue.left = true;
                self.closed.store(true, Ordering::Release);
            }
            drop((queue, engine, lead));
            self.check()?;
            if over {
                return Ok(());
            }
            until = Instant::now() + DRAIN;
        }
    }

    /// Ends receives whose message has not come: all ranks leave, and nothing comes any more.
    pub(crate) fn give_up_receives(&self) -> Result<()> {
        let receives = self.with(Engine::give_up_receives)?;
        // Nothing else is under way.
        self.open.store(0, Ordering::Release);
        let told = receives.into_iter().filter(|(_, asked)| !asked.ticket.ended()).map(|(call, asked)| {
            let Asked { at, ticket, held, .. } = asked;
            let report = "all ranks left, and none had sent it".to_owned();
            let failure = Failure::Undelivered { call, rank: self.rank, waited: at.elapsed(), report };
            ticket.end(Err(failure)).with(held)
        });
        let rests: Vec<_> = told.collect();
        self.leave_to_others(self.queue(), rests);
        self.changed.notify_all();
        Ok(())
    }

    /// This rank calls nothing but to leave: the others are to know, if any of them waits for something else of it. It has
    /// begun to: whoever calls something else in the world's same operation is told of both.
    pub(crate) fn leaves(&self) {
        let lead = self.claim();
        self.drive(None, (&|| true, None));
        drop(lead);
        self.leaves.store(true, Ordering::Release);
        self.monitor.leaves();
    }

    /// Whether operations are under way, or handed in.
    fn has_open(&self) -> bool {
        self.open.load(Ordering::Acquire) > 0
    }

    /// Nobody leads any more, or somebody who waited does not: the next in turn shall know.
    fn hand_over(&self, queue: MutexGuard<'_, SubmissionQueue>) {
        let (waiting, resting) = (queue.waiting > 0, queue.resting);
        // Who is woken wants the queue.
        drop(queue);
        if waiting {
            self.changed.notify_all();
        } else if resting && self.has_open() {
            self.rested.notify_one();
        }
    }

    /// What is left to do of operations is for the [thread](background) that does that.
    fn leave_to_others(
        &self,
        mut queue: MutexGuard<'_, SubmissionQueue>,
        rests: impl IntoIterator<Item = Rest>,
    ) {
        queue.rests.extend(rests.into_iter().filter(|rest| !rest.is_none()));
        if queue.rests.is_empty() {
            return;
        }
        self.rests.store(true, Ordering::Relaxed);
        if queue.resting {
            drop(queue);
            self.rested.notify_one();
        }
    }

    fn lead(&self, mut queue: MutexGuard<'_, SubmissionQueue>) -> Lead<'_> {
        queue.leading = true;
        Lead { runtime: self, unwinding: std::thread::panicking() }
    }

    /// Takes the lead from whoever has it, as soon as may be.
    fn claim(&self) -> Lead<'_> {
        self.claims.fetch_add(1, Ordering::Relaxed);
        let mut queue = self.queue();
        while queue.leading {
            if queue.asleep {
                self.waker.wake();
            }
            queue = self.sleep(queue, None);
        }
        self.claims.fetch_sub(1, Ordering::Relaxed);
        self.lead(queue)
    }

    fn sleep<'d>(
        &self,
        mut queue: MutexGuard<'d, SubmissionQueue>,
        until: Option<Instant>,
    ) -> MutexGuard<'d, SubmissionQueue> {
        queue.waiting += 1;
        queue = match until.map(|until| until.saturating_duration_since(Instant::now())) {
            None => self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
            Some(left) => self.changed.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0,
        };
        queue.waiting -= 1;
        queue
    }

    /// Drives the engine until `until` says so, nothing is left to do, or somebody else wants it; takes this on before,
    /// which has not come by the queue.
    fn drive(&self, first: Option<(CommId, Task)>, until: (&dyn Fn() -> bool, Option<Instant>)) {
        let mut slot = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        // Should this thread unwind, the engine goes with the lead, and its puts with it, before the memory that they read.
        let Some(engine) = slot.as_mut() else { return };
        let taken = first.map_or(Ok(()), |(comm_id, task)| engine.take(comm_id, task, self));
        if let Err(halt) = taken.and_then(|()| engine.drive(until, self)) {
            drop(slot);
            self.halted(halt);
        }
    }

    /// The engine has stopped: all is over.
    fn halted(&self, Halt { stop, stalled }: Halt) {
        let failure = self.monitor.explain(stop, *stalled.unwrap_or_default());
        let left = self.abandon();
        let failure = self.end(left, self.monitor.tell(failure));
        // Whoever called is told, and decides how loud to be.
        tracing::info!(rank = self.rank, %failure, "the group has failed");
    }

    /// Closes the endpoint; what was under way belongs to those who are still to be told.
    fn abandon(&self) -> Vec<(Arc<Ticket>, Held)> {
        let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner).take();
        engine.map(|engine| engine.abandon()).unwrap_or_default()
    }

    /// All is over: those who wait for operations are told.
    fn end(&self, left: Vec<(Arc<Ticket>, Held)>, failure: Failure) -> Failure {
        let mut queue = self.queue();
        let failure = queue.failed.get_or_insert(failure).clone();
        self.closed.store(true, Ordering::Release);
        let requests = std::mem::take(&mut queue.requests);
        drop(queue);
        let handed_in = requests.into_iter().filter_map(|(_, request)| match request {
            Request::Do(task) => Some((task.asked.ticket, task.asked.held)),
            Request::Leave | Request::Position(_) => None,
        });
        let told = |(ticket, held): (Arc<Ticket>, Held)| ticket.end(Err(failure.clone())).with(held);
        let rests: Vec<_> = left.into_iter().chain(handed_in).map(told).collect();
        let mut queue = self.queue();
        queue.gone = true;
        self.leave_to_others(queue, rests);
        self.changed.notify_all();
        failure
    }

    /// Does something with the engine, when nobody drives it.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut Engine) -> R) -> Result<R> {
        self.check()?;
        self.callers.enter();
        let _lead = self.claim();
        let mut slot = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *slot {
            Some(engine) => Ok(act(engine)),
            None => Err(Error::Failed(self.queue().failed.clone().unwrap_or_else(ended))),
        }
    }

    /// Whether all is over, on this rank or elsewhere.
    pub(crate) fn check(&self) -> Result<()> {
        self.check_process()?;
        self.check_desk(self.queue())
    }

    /// Whether this is the process that joined. In its children locks may be held for good, by threads that are not there:
    /// this comes before any.
    pub(crate) fn check_process(&self) -> Result<()> {
        if self.is_ours() { Ok(()) } else { Err(Error::Forked { rank: self.rank, parent: self.pid }) }
    }

    pub(crate) fn is_ours(&self) -> bool {
        self.process.is_this()
    }

    fn check_desk(&self, queue: MutexGuard<'_, SubmissionQueue>) -> Result<()> {
        let failed = queue.failed.clone();
        drop(queue);
        match failed {
            Some(failure) => Err(Error::Failed(failure)),
            None => self.monitor.latch.failure().map_or(Ok(()), |failure| Err(self.fail(failure))),
        }
    }

    /// A tag of its own for what belongs to a message: one of the lower half, since answers have the upper.
    pub(crate) fn inner(&self) -> u32 {
        self.inner.fetch_add(1, Ordering::Relaxed) & !ANSWER
    }

    /// Whether this rank leaves, or has left.
    pub(crate) fn has_left(&self) -> bool {
        self.queue().left
    }

    /// Whether calls may be made.
    pub(crate) fn check_calls(&self, call: &'static str) -> Result<()> {
        self.check_process()?;
        self.callers.enter();
        if !self.closed.load(Ordering::Acquire) && !self.monitor.latch.raised() {
            return Ok(());
        }
        let queue = self.queue();
        if queue.left && queue.failed.is_none() {
            let problem = "this rank has left the world, and with it all groups".to_owned();
            return Err(Error::Argument { call, problem });
        }
        self.check_desk(queue)
    }

    /// Ends all groups, everywhere; the store hears of it. What is under way ends first, because the latch is raised.
    pub(crate) fn fail(&self, failure: Failure) -> Error {
        if let Err(error) = self.check_process() {
            return error;
        }
        let failure = self.monitor.tell(failure);
        self.waker.wake();
        let _lead = self.claim();
        Error::Failed(self.end(self.abandon(), failure))
    }

    /// Whether all is over.
    pub(crate) fn over(&self) -> bool {
        self.queue().failed.is_some() || self.monitor.latch.raised()
    }
}

/// What calls get that come after the end.
fn ended() -> Failure {
    Failure::StoreLost { how: "the group has ended".to_owned() }
}
