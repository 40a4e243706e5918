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

mod background;
mod callers;
mod overseer;
mod stand;

use self::callers::Callers;
use super::{cores::Place, guard::Guard, pin::Pin};
use crate::{
    buffer::Registry,
    config::Config,
    engine::{
        Asked, Called, Channel, Done, Engine, Halt, Held, Operation, Overseer as _, Rest, Settings, Task,
        Ticket, What, Wish,
    },
    error::{Error, Failure, Result},
    rendezvous::Store,
    work::Driver,
};
use unisono_schedule::{CallSchedule, Rank, select::table::Table};

/// How long, where all shall end, what has not is gone on with before it is looked at again.
const DRAIN: Duration = Duration::from_millis(20);

/// The bit of the tag of what answers a message: by that and what the message said of its own.
pub(super) const ANSWER: u32 = 1 << 31;

pub(super) struct Node {
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
    pub places: Vec<Place>,
    /// What was measured, for groups of any size.
    pub tuned: Table,
    /// Where the thread runs.
    pin: Pin,
    pub guard: Guard,
    pub callers: Callers,
    pub registry: Arc<Registry>,
    /// Whoever leads has it; gone once a group has failed: its endpoint may not touch borrowed memory any more.
    engine: Mutex<Option<Box<Engine>>>,
    desk: Mutex<Desk>,
    /// For those who wait for an operation or the lead.
    changed: Condvar,
    /// For the [thread](background) that goes on where nobody waits.
    rested: Condvar,
    /// Whether there is a task on the desk, so that whoever leads need not lock it to know.
    asked: AtomicBool,
    /// Whether there is a rest on the desk, so that the thread that is to do it, if it leads, need not lock it to know.
    rests: AtomicBool,
    /// How many want the lead, for themselves alone; and how many wait that would replace the thread that goes on.
    claims: AtomicUsize,
    waiters: AtomicUsize,
    /// Whether this rank leaves, and calls nothing else.
    leaves: AtomicBool,
    /// Whether calls may not be made any more, so that those that may need not lock the desk to know.
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
struct Desk {
    wishes: VecDeque<(Channel, Wish)>,
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
    node: &'n Node,
    /// Whether the thread was unwinding already: then it calls from the drop of something.
    unwinding: bool,
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let node = self.node;
        if std::thread::panicking() && !self.unwinding {
            // Whatever it was in the middle of: nothing may touch the memory of operations any more.
            let why = "a thread panicked while it drove the engine".to_owned();
            node.end(node.abandon(), Failure::Aborted { rank: node.rank, why });
        }
        let mut desk = node.desk();
        desk.leading = false;
        node.hand_over(desk);
    }
}

impl Node {
    pub(super) fn new(
        (rank, config, guard): (Rank, Config, Guard),
        engine: Engine,
        settings: Settings,
        (places, tuned, pin): (Vec<Place>, Table, Pin),
        store: Option<Arc<dyn Store>>,
    ) -> Self {
        Self {
            rank,
            process: Process::this(),
            pid: std::process::id(),
            config,
            limits: engine.limits().clone(),
            settings,
            places,
            tuned,
            pin,
            guard,
            callers: Callers::default(),
            registry: Arc::default(),
            waker: engine.waker(),
            engine: Mutex::new(Some(Box::new(engine))),
            desk: Mutex::default(),
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

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands in an operation of the group on a channel. It is not begun before somebody leads.
    pub(super) fn ask(&self, channel: Channel, task: Task) {
        let mut desk = self.desk();
        if let Some(failure) = desk.failed.clone() {
            let rest = task.asked.ticket.end(Err(failure)).with(task.asked.held);
            return self.leave_to_others(desk, [rest]);
        }
        desk.wishes.push_back((channel, Wish::Do(task)));
        self.open.fetch_add(1, Ordering::Release);
        self.asked.store(true, Ordering::Release);
        if desk.asleep {
            self.waker.wake();
        }
    }

    /// Leaves the group on a channel, once what was handed in before is done. Does not wait for that.
    pub(super) fn leave(&self, channel: Channel) -> Result<()> {
        self.check()?;
        let mut desk = self.desk();
        desk.wishes.push_back((channel, Wish::Leave));
        self.asked.store(true, Ordering::Release);
        drop(desk);
        let lead = self.claim();
        self.drive(None, (&|| true, None));
        drop(lead);
        self.check()
    }

    /// The lead, if nobody else has it or wants anything.
    fn lead_at_once(&self) -> Option<Lead<'_>> {
        let desk = self.desk();
        let engaged = desk.failed.is_some() || desk.leading || self.wanted() || !desk.wishes.is_empty();
        (!engaged).then(|| self.lead(desk))
    }

    /// Does an operation of the group on a channel: at once, without another's hands, if nobody leads.
    pub(super) fn call(&self, channel: Channel, task: Task) -> Result<Done> {
        let ticket = Arc::clone(&task.asked.ticket);
        match self.lead_at_once() {
            None => self.ask(channel, task),
            Some(lead) => {
                self.open.fetch_add(1, Ordering::Release);
                let waiting = self.callers.wait();
                self.drive(Some((channel, task)), (&|| ticket.ended(), None));
                drop((lead, waiting));
            }
        }
        self.wait(&ticket)
    }

    /// Does a collective of the group on a channel, and tells the number of its last operation: as [`call`](Self::call), but
    /// with less ado while nothing else is under way.
    pub(super) fn collective(
        &self,
        channel: Channel,
        (operation, schedule): (Box<Operation>, CallSchedule),
        timeout: Duration,
    ) -> Result<Option<u64>> {
        let Some(lead) = self.lead_at_once() else {
            let asked = Asked::now(timeout, Held::Back(None));
            let ticket = Arc::clone(&asked.ticket);
            self.ask(channel, Task { what: What::Collective(operation, schedule), asked });
            return self.wait(&ticket).map(|done| done.number);
        };
        let mut slot = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(engine) = slot.as_mut() else { return Err(self.no_more()) };
        // Should this thread unwind, the engine goes with the lead, and its puts with it, before the memory that they read.
        let called = engine.call(channel, (operation, schedule), timeout, self);
        drop(slot);
        match called {
            Ok(Called::Ended(number)) => {
                self.guard.doing.finish(Some(number));
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
    pub(super) fn wait(&self, ticket: &Ticket) -> Result<Done> {
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
    pub(super) fn wait_until(&self, ticket: &Ticket, until: Option<Instant>) -> bool {
        let late = || until.is_some_and(|until| Instant::now() >= until);
        // Whoever waits so long and no longer goes on by itself.
        let _waiting = until.is_none().then(|| self.callers.wait());
        self.callers.enter();
        loop {
            let mut desk = self.desk();
            // Whoever waits is faster than the thread that goes on where nobody does.
            let replaces = desk.background && !ticket.ended();
            if replaces {
                self.waiters.fetch_add(1, Ordering::Relaxed);
                if desk.asleep {
                    self.waker.wake();
                }
            }
            while !ticket.ended()
                && !desk.gone
                && (desk.leading || self.claims.load(Ordering::Relaxed) > 0)
                && !late()
            {
                desk = self.sleep(desk, until);
            }
            self.waiters.fetch_sub(usize::from(replaces), Ordering::Relaxed);
            let over = ticket.ended() || desk.gone;
            if over || late() {
                self.hand_over(desk);
                return over;
            }
            let lead = self.lead(desk);
            self.drive(None, (&|| ticket.ended() || late(), until));
            drop(lead);
        }
    }

    /// Waits until nothing is under way any more but receives whose message has not come. From then on there are no calls.
    pub(super) fn drain(&self) -> Result<()> {
        self.with(Engine::leaves)?;
        let mut until = Instant::now();
        loop {
            let (lead, _waiting) = (self.claim(), self.callers.wait());
            // First of all what was handed in is begun.
            self.drive(None, (&|| Instant::now() >= until, Some(until)));
            let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
            let only_receives = engine.as_ref().is_none_or(|engine| engine.has_only_receives());
            let mut desk = self.desk();
            let over = only_receives && desk.wishes.is_empty();
            if over {
                desk.left = true;
                self.closed.store(true, Ordering::Release);
            }
            drop((desk, engine, lead));
            self.check()?;
            if over {
                return Ok(());
            }
            until = Instant::now() + DRAIN;
        }
    }

    /// Ends receives whose message has not come: all ranks leave, and nothing comes any more.
    pub(super) fn give_up_receives(&self) -> Result<()> {
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
        self.leave_to_others(self.desk(), rests);
        self.changed.notify_all();
        Ok(())
    }

    /// This rank calls nothing but to leave: the others are to know, if any of them waits for something else of it. It has
    /// begun to: whoever calls something else in the world's same operation is told of both.
    pub(super) fn leaves(&self) {
        let lead = self.claim();
        self.drive(None, (&|| true, None));
        drop(lead);
        self.leaves.store(true, Ordering::Release);
        self.guard.leaves();
    }

    /// Whether operations are under way, or handed in.
    fn has_open(&self) -> bool {
        self.open.load(Ordering::Acquire) > 0
    }

    /// Nobody leads any more, or somebody who waited does not: the next in turn shall know.
    fn hand_over(&self, desk: MutexGuard<'_, Desk>) {
        let (waiting, resting) = (desk.waiting > 0, desk.resting);
        // Who is woken wants the desk.
        drop(desk);
        if waiting {
            self.changed.notify_all();
        } else if resting && self.has_open() {
            self.rested.notify_one();
        }
    }

    /// What is left to do of operations is for the [thread](background) that does that.
    fn leave_to_others(&self, mut desk: MutexGuard<'_, Desk>, rests: impl IntoIterator<Item = Rest>) {
        desk.rests.extend(rests.into_iter().filter(|rest| !rest.is_none()));
        if desk.rests.is_empty() {
            return;
        }
        self.rests.store(true, Ordering::Relaxed);
        if desk.resting {
            drop(desk);
            self.rested.notify_one();
        }
    }

    fn lead(&self, mut desk: MutexGuard<'_, Desk>) -> Lead<'_> {
        desk.leading = true;
        Lead { node: self, unwinding: std::thread::panicking() }
    }

    /// Takes the lead from whoever has it, as soon as may be.
    fn claim(&self) -> Lead<'_> {
        self.claims.fetch_add(1, Ordering::Relaxed);
        let mut desk = self.desk();
        while desk.leading {
            if desk.asleep {
                self.waker.wake();
            }
            desk = self.sleep(desk, None);
        }
        self.claims.fetch_sub(1, Ordering::Relaxed);
        self.lead(desk)
    }

    fn sleep<'d>(&self, mut desk: MutexGuard<'d, Desk>, until: Option<Instant>) -> MutexGuard<'d, Desk> {
        desk.waiting += 1;
        desk = match until.map(|until| until.saturating_duration_since(Instant::now())) {
            None => self.changed.wait(desk).unwrap_or_else(PoisonError::into_inner),
            Some(left) => self.changed.wait_timeout(desk, left).unwrap_or_else(PoisonError::into_inner).0,
        };
        desk.waiting -= 1;
        desk
    }

    /// Drives the engine until `until` says so, nothing is left to do, or somebody else wants it; takes this on before,
    /// which has not come by the desk.
    fn drive(&self, first: Option<(Channel, Task)>, until: (&dyn Fn() -> bool, Option<Instant>)) {
        let mut slot = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        // Should this thread unwind, the engine goes with the lead, and its puts with it, before the memory that they read.
        let Some(engine) = slot.as_mut() else { return };
        let taken = first.map_or(Ok(()), |(channel, task)| engine.take(channel, task, self));
        if let Err(halt) = taken.and_then(|()| engine.drive(until, self)) {
            drop(slot);
            self.halted(halt);
        }
    }

    /// The engine has stopped: all is over.
    fn halted(&self, Halt { stop, culprit }: Halt) {
        let failure = self.guard.explain(stop, *culprit.unwrap_or_default());
        let left = self.abandon();
        let failure = self.end(left, self.guard.tell(failure));
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
        let mut desk = self.desk();
        let failure = desk.failed.get_or_insert(failure).clone();
        self.closed.store(true, Ordering::Release);
        let wishes = std::mem::take(&mut desk.wishes);
        drop(desk);
        let handed_in = wishes.into_iter().filter_map(|(_, wish)| match wish {
            Wish::Do(task) => Some((task.asked.ticket, task.asked.held)),
            Wish::Leave | Wish::Stand(_) => None,
        });
        let told = |(ticket, held): (Arc<Ticket>, Held)| ticket.end(Err(failure.clone())).with(held);
        let rests: Vec<_> = left.into_iter().chain(handed_in).map(told).collect();
        let mut desk = self.desk();
        desk.gone = true;
        self.leave_to_others(desk, rests);
        self.changed.notify_all();
        failure
    }

    /// Does something with the engine, when nobody drives it.
    pub(super) fn with<R>(&self, act: impl FnOnce(&mut Engine) -> R) -> Result<R> {
        self.check()?;
        self.callers.enter();
        let _lead = self.claim();
        let mut slot = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *slot {
            Some(engine) => Ok(act(engine)),
            None => Err(Error::Failed(self.desk().failed.clone().unwrap_or_else(ended))),
        }
    }

    /// Whether all is over, on this rank or elsewhere.
    pub(super) fn check(&self) -> Result<()> {
        self.check_process()?;
        self.check_desk(self.desk())
    }

    /// Whether this is the process that joined. In its children locks may be held for good, by threads that are not there:
    /// this comes before any.
    pub(super) fn check_process(&self) -> Result<()> {
        if self.is_ours() { Ok(()) } else { Err(Error::Forked { rank: self.rank, parent: self.pid }) }
    }

    pub(super) fn is_ours(&self) -> bool {
        self.process.is_this()
    }

    fn check_desk(&self, desk: MutexGuard<'_, Desk>) -> Result<()> {
        let failed = desk.failed.clone();
        drop(desk);
        match failed {
            Some(failure) => Err(Error::Failed(failure)),
            None => self.guard.alarm.failure().map_or(Ok(()), |failure| Err(self.fail(failure))),
        }
    }

    /// A tag of its own for what belongs to a message: one of the lower half, since answers have the upper.
    pub(super) fn inner(&self) -> u32 {
        self.inner.fetch_add(1, Ordering::Relaxed) & !ANSWER
    }

    /// Whether this rank leaves, or has left.
    pub(super) fn has_left(&self) -> bool {
        self.desk().left
    }

    /// Whether calls may be made.
    pub(super) fn check_calls(&self, call: &'static str) -> Result<()> {
        self.check_process()?;
        self.callers.enter();
        if !self.closed.load(Ordering::Acquire) && !self.guard.alarm.raised() {
            return Ok(());
        }
        let desk = self.desk();
        if desk.left && desk.failed.is_none() {
            let problem = "this rank has left the world, and with it all groups".to_owned();
            return Err(Error::Argument { call, problem });
        }
        self.check_desk(desk)
    }

    /// Ends all groups, everywhere; the store hears of it. What is under way ends first, because the alarm is raised.
    pub(super) fn fail(&self, failure: Failure) -> Error {
        if let Err(error) = self.check_process() {
            return error;
        }
        let failure = self.guard.tell(failure);
        self.waker.wake();
        let _lead = self.claim();
        Error::Failed(self.end(self.abandon(), failure))
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
