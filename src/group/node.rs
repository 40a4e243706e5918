//! What all groups of a process share: the engine and the turns at driving it, the first failure, the watch over the
//! others.
//!
//! Whoever waits for an operation drives the engine, for all operations under way: it *leads*. Others hand it theirs and
//! wait until they have ended, or until nobody leads any more; then one of them does.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use unisono_transport::{Limits, Wake};

use super::{cores::Place, guard::Guard};
use crate::{
    algorithm::table::Table,
    buffer::Registry,
    config::Config,
    engine::{Engine, Halt, Held, Operation, Overseer, Settings, Stop, Task, Ticket},
    error::{Error, Failure, Result},
    rendezvous::Store,
    schedule::Rank,
};

pub(super) struct Node {
    /// In the world.
    pub rank: Rank,
    pub config: Config,
    pub limits: Limits,
    /// The sizes of windows in force.
    pub settings: Settings,
    /// Where the ranks of the world run.
    pub places: Vec<Place>,
    /// What was measured, for groups of any size.
    pub tuned: Table,
    pub guard: Guard,
    pub registry: Arc<Registry>,
    /// Whoever leads has it; gone once a group has failed: its endpoint may not touch borrowed memory any more.
    engine: Mutex<Option<Engine>>,
    desk: Mutex<Desk>,
    changed: Condvar,
    /// Whether there is a task on the desk, so that whoever leads need not lock it to know.
    asked: AtomicBool,
    /// How many want the engine for something else than to drive it.
    claims: AtomicUsize,
    waker: Arc<dyn Wake>,
    /// Goes last: the process that serves it may have to stay for the others.
    #[expect(dead_code, reason = "kept for its drop")]
    store: Option<Arc<dyn Store>>,
}

/// Where operations are handed in.
#[derive(Default)]
struct Desk {
    tasks: VecDeque<(u8, Task)>,
    /// Whether somebody leads, and sleeps meanwhile.
    leading: bool,
    asleep: bool,
    /// Threads that wait for the lead or for the end of their operation.
    waiting: usize,
    /// Why all is over, and whether the engine is gone too, and with it all that touched borrowed memory.
    failed: Option<Failure>,
    gone: bool,
    /// Whether this rank leaves: then a deadline that passes is nobody's failure; and whether one has.
    parting: bool,
    out_of_time: bool,
}

/// The lead: given back when it goes.
struct Lead<'n>(&'n Node);

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let node = self.0;
        let panicking = std::thread::panicking();
        if panicking {
            // Whatever it was in the middle of: nothing may touch the memory of operations any more.
            *node.engine.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        let mut desk = node.desk();
        desk.leading = false;
        if panicking && desk.failed.is_none() {
            let why = "a thread panicked while it drove the engine".to_owned();
            desk.failed = Some(Failure::Aborted { rank: node.rank, why });
            desk.gone = true;
        }
        if desk.waiting > 0 {
            node.changed.notify_all();
        }
    }
}

impl Node {
    pub(super) fn new(
        (rank, config, guard): (Rank, Config, Guard),
        engine: Engine,
        settings: Settings,
        (places, tuned): (Vec<Place>, Table),
        store: Option<Arc<dyn Store>>,
    ) -> Self {
        Self {
            rank,
            config,
            limits: engine.limits().clone(),
            settings,
            places,
            tuned,
            guard,
            registry: Arc::default(),
            waker: engine.waker(),
            engine: Mutex::new(Some(engine)),
            desk: Mutex::default(),
            changed: Condvar::new(),
            asked: AtomicBool::new(false),
            claims: AtomicUsize::new(0),
            store,
        }
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands in an operation of the group on a channel. It is not begun before somebody leads.
    pub(super) fn ask(&self, channel: u8, task: Task) {
        let mut desk = self.desk();
        if let Some(failure) = desk.failed.clone() {
            drop(desk);
            return task.ticket.end(Err(failure));
        }
        desk.tasks.push_back((channel, task));
        self.asked.store(true, Ordering::Release);
        if desk.asleep {
            self.waker.wake();
        }
    }

    /// Waits for the end of an operation that was [handed in](Self::ask), and leads if nobody does.
    pub(super) fn wait(&self, ticket: &Ticket) -> Result<Held> {
        loop {
            let mut desk = self.desk();
            while !ticket.ended() && (desk.leading || self.claims.load(Ordering::Relaxed) > 0) {
                desk = self.sleep(desk);
            }
            if let Some(end) = ticket.take() {
                return end.map_err(Error::Failed);
            }
            if let (Some(failure), true) = (&desk.failed, desk.gone) {
                return Err(Error::Failed(failure.clone()));
            }
            let lead = self.lead(desk);
            self.drive(&|| ticket.ended());
            drop(lead);
        }
    }

    fn lead(&self, mut desk: MutexGuard<'_, Desk>) -> Lead<'_> {
        desk.leading = true;
        Lead(self)
    }

    /// Takes the lead from whoever has it, as soon as may be.
    fn claim(&self) -> Lead<'_> {
        self.claims.fetch_add(1, Ordering::Relaxed);
        let mut desk = self.desk();
        while desk.leading {
            if desk.asleep {
                self.waker.wake();
            }
            desk = self.sleep(desk);
        }
        self.claims.fetch_sub(1, Ordering::Relaxed);
        self.lead(desk)
    }

    fn sleep<'d>(&self, mut desk: MutexGuard<'d, Desk>) -> MutexGuard<'d, Desk> {
        desk.waiting += 1;
        desk = self.changed.wait(desk).unwrap_or_else(PoisonError::into_inner);
        desk.waiting -= 1;
        desk
    }

    /// Drives the engine until `until` says so, nothing is left to do, or somebody else wants it.
    fn drive(&self, until: &dyn Fn() -> bool) {
        let mut slot = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        // Out of its place meanwhile: should this thread unwind, the engine goes, and its puts with it, before the
        // memory does that they read.
        let Some(mut engine) = slot.take() else { return };
        match engine.drive(until, self) {
            Ok(()) => *slot = Some(engine),
            Err(Halt { stop, operation }) => {
                drop(slot);
                let (op, call, waited) = *operation.unwrap_or_default();
                let parting = self.desk().parting;
                // The others may be long about parting: that is no harm to this rank.
                let late = matches!(stop, Stop::Deadline) && parting;
                let failure = if late { ended() } else { self.guard.explain(stop, op, &call, waited) };
                let left = engine.abandon();
                let failure = if late { failure } else { self.guard.tell(failure) };
                self.desk().out_of_time |= late;
                self.end(left, failure);
            }
        }
    }

    /// All is over: those who wait for operations are told.
    fn end(&self, left: Vec<(Arc<Ticket>, Held)>, failure: Failure) -> Failure {
        let mut desk = self.desk();
        let failure = desk.failed.get_or_insert(failure).clone();
        let tasks = std::mem::take(&mut desk.tasks);
        drop(desk);
        // Whoever called is told, and decides how loud to be.
        tracing::info!(rank = self.rank, %failure, "the group has failed");
        let handed_in = tasks.into_iter().map(|(_, task)| (task.ticket, task.held));
        for (ticket, held) in left.into_iter().chain(handed_in) {
            ticket.end(Err(failure.clone()));
            drop(held);
        }
        self.desk().gone = true;
        self.changed.notify_all();
        failure
    }

    /// Does something with the engine, when nobody drives it.
    pub(super) fn with<R>(&self, act: impl FnOnce(&mut Engine) -> R) -> Result<R> {
        self.check()?;
        let _lead = self.claim();
        let mut slot = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *slot {
            Some(engine) => Ok(act(engine)),
            None => Err(Error::Failed(self.desk().failed.clone().unwrap_or_else(ended))),
        }
    }

    /// Whether all is over, on this rank or elsewhere.
    pub(super) fn check(&self) -> Result<()> {
        let failed = self.desk().failed.clone();
        match failed {
            Some(failure) => Err(Error::Failed(failure)),
            None => self.guard.alarm.failure().map_or(Ok(()), |failure| Err(self.fail(failure))),
        }
    }

    /// Ends all groups, everywhere; the store hears of it. What is under way ends first, because the alarm is raised.
    pub(super) fn fail(&self, failure: Failure) -> Error {
        let failure = self.guard.tell(failure);
        self.waker.wake();
        let _lead = self.claim();
        let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner).take();
        Error::Failed(self.end(engine.map(Engine::abandon).unwrap_or_default(), failure))
    }

    /// From now on a deadline that passes is nobody's failure.
    pub(super) fn part(&self) {
        self.desk().parting = true;
    }

    /// Whether the others were too long about [parting](Self::part).
    pub(super) fn out_of_time(&self) -> bool {
        self.desk().out_of_time
    }

    /// Whether all is over.
    pub(super) fn over(&self) -> bool {
        self.desk().failed.is_some() || self.guard.alarm.raised()
    }
}

/// What calls get that come after the end.
fn ended() -> Failure {
    Failure::StoreLost { how: "the group has ended".to_owned() }
}

impl Overseer for Node {
    fn stopped(&self) -> bool {
        self.guard.stopped()
    }

    fn stand(&self, operation: Option<&Operation>, steps: u64, waits: Option<(usize, Rank)>) {
        self.guard.stand(operation, steps, waits);
    }

    fn began(&self, operation: &Operation) {
        self.guard.position.enter(operation.number, operation.signature.bits());
    }

    fn ended(&self, operation: &Operation) {
        self.guard.position.finish(operation.number);
    }

    fn asked(&self) -> Option<(u8, Task)> {
        if !self.asked.load(Ordering::Acquire) {
            return None;
        }
        let mut desk = self.desk();
        let task = desk.tasks.pop_front();
        self.asked.store(!desk.tasks.is_empty(), Ordering::Release);
        task
    }

    fn wanted(&self) -> bool {
        self.claims.load(Ordering::Relaxed) > 0
    }

    fn sleeps(&self, asleep: bool) {
        self.desk().asleep = asleep;
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        *self.engine.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
        if let (Some(watch), false) = (&self.guard.watch, std::thread::panicking()) {
            watch.leave();
        }
    }
}
