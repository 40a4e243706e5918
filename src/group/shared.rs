//! The data that all handles of a group share: its ranks, its planner and the order of its operations.

use std::{
    any::Any,
    sync::{
        Arc, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use unisono_engine::{
    Aside, Borrowed, Called, Cargo, CommId, Completion, CompletionAction, Engine, Operation, Outcome,
    Overlap, Pairs, RequestKind, SpanError, StalledOperation, Stop, WORLD, WorkRequest,
};
use unisono_schedule::{Collective, Rank};

use crate::{
    dtype::Dtype,
    error::{Error, Failure, Result},
    group::{
        members::Members,
        order::{Engaged, Order, OrderState},
        plan::{CallOptions, CallSpec, Planned, Planner, argument},
    },
    reduce::{Kernel, ReduceOp},
    runtime::{Runtime, peer},
    work::Work,
};

/// How long a rank that leaves waits before it logs where the other ranks are; each further wait is twice as long.
const NOTICE: Duration = Duration::from_secs(30);

/// The timeout of an operation that has none: longer than any that can be configured.
const NEVER: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

pub(crate) struct GroupState {
    pub runtime: Arc<Runtime>,
    pub comm_id: CommId,
    /// Plans calls; has this rank's number in the group, and how its ranks are spread over hosts and cores.
    pub planner: Planner,
    /// The ranks in the world of all members, by rank.
    pub members: Members,
    pub name: String,
    /// The group's name and members, for errors; `None` for the world.
    pub label: Option<Arc<str>>,
    pub order: Order,
    /// One more than the number of the latest operation that a call has waited for; 0 before the first.
    pub latest: AtomicU64,
}

/// The kind of a blocking call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallKind {
    /// It has one operation, and takes the group's state until that has begun.
    Single,
    /// It has several operations, and has the state already.
    Several,
}

/// The membership that the handles of a group share: the group ends when the last of them is dropped. Operations under way hold only
/// [`GroupState`], so they do not keep the group from ending.
pub(crate) struct Membership {
    pub shared: Arc<GroupState>,
    /// The handle of the parent group, which ends after this one; `None` for the world.
    #[expect(dead_code, reason = "kept for its drop")]
    pub parent: Option<Arc<Self>>,
}

impl GroupState {
    /// A group of these ranks of the world, in which this process has this rank. `known`: its name and its label.
    pub(crate) fn new(
        runtime: Arc<Runtime>,
        comm_id: CommId,
        (rank, members): (Rank, Vec<Rank>),
        (name, label): (String, Option<Arc<str>>),
    ) -> Self {
        let peers: Vec<_> = members.iter().filter_map(|&rank| runtime.roster.peer(rank)).collect();
        let chooser = peer::chooser(&peers, &runtime.limits.provider);
        let tuned = runtime.tuned.clone().of(members.len());
        let planner = Planner::new(rank, chooser, tuned, runtime.settings, &runtime.limits);
        let (members, order, latest) = (Members(members), Order::default(), AtomicU64::new(0));
        Self { runtime, comm_id, planner, members, name, label, order, latest }
    }

    /// The group's name in errors; empty for the world.
    pub(crate) fn group_name(&self) -> Box<str> {
        self.label.as_deref().unwrap_or_default().into()
    }

    /// Waits until no other thread holds the group's state, and returns it.
    pub(crate) fn state(&self) -> Result<MutexGuard<'_, OrderState>> {
        self.order.state(&self.runtime)
    }

    /// The same for a call of several operations.
    pub(crate) fn engage(&self) -> Result<Engaged<'_>> {
        self.order.engage((&self.runtime, self.comm_id))
    }

    /// Ends all groups. Returns the error of every later call.
    pub(crate) fn fail(&self, failure: Failure) -> Error {
        self.runtime.returned(self.runtime.fail(failure))
    }

    /// As [`Runtime::with`], in a call that returns the error to the program.
    pub(crate) fn with_engine<R>(&self, act: impl FnOnce(&mut Engine) -> R) -> Result<R> {
        self.runtime.with(act).map_err(|error| self.runtime.returned(error))
    }

    /// The number of operations that have begun; after the group has ended, of those that calls have waited for.
    pub(crate) fn operations(&self) -> u64 {
        let begun = self.runtime.with(|engine| engine.begun(self.comm_id));
        begun.unwrap_or_else(|_| self.latest.load(Ordering::Relaxed))
    }

    /// The number of the latest operation that a call has waited for; 0 before the first.
    pub(crate) fn op(&self) -> u64 {
        self.latest.load(Ordering::Relaxed).saturating_sub(1)
    }

    /// A call has waited for an operation, perhaps with others of other threads.
    fn ended(&self, number: Option<u64>) {
        if let Some(number) = number {
            self.latest.fetch_max(number + 1, Ordering::Relaxed);
        }
    }

    /// Runs a collective on borrowed memory; a failure ends the group.
    pub(crate) fn run(
        &self,
        kind: CallKind,
        spec: &CallSpec<'_>,
        mut borrowed: Borrowed<'_>,
        options: &CallOptions,
    ) -> Result<Option<u64>> {
        // It is dropped once the operation has begun.
        let state = match kind {
            CallKind::Single => Some(self.state()?),
            CallKind::Several => None,
        };
        self.runtime.check_calls(spec.collective.name())?;
        let mut aside = Aside::new();
        let planned = self.prepare(spec, &mut borrowed, &mut aside, options)?;
        let ranks = self.planner.topology.ranks;
        let mut operation = Some(Operation::new(planned, ranks, borrowed, self.pairs(spec)));
        match self.runtime.start(self.comm_id, &mut operation, self.timeout(options), &mut || None)? {
            (Called::Ended(number), _) => {
                // The operations before it have ended.
                self.latest.store(number + 1, Ordering::Relaxed);
                Ok(Some(number))
            }
            (Called::UnderWay(outcome), lock) => {
                drop(state);
                self.runtime.advance(lock, &outcome, None);
                let number = self.runtime.wait(&outcome)?.number;
                self.ended(number);
                Ok(number)
            }
        }
    }

    /// Runs a planned collective, and asks `go_on` every `every` whether to wait longer. Returns `held`, or the work that returns it.
    pub(crate) fn run_while<B: Send + 'static>(
        &self,
        call: &'static str,
        (operation, aside): (Operation, Aside),
        held: B,
        options: &CallOptions,
        (every, go_on): (Duration, impl FnMut() -> bool),
    ) -> Result<std::result::Result<B, Work<B>>> {
        self.runtime.check_process()?;
        // The reason is that of `submit`.
        self.runtime.prepare()?;
        let mut held = Some((held, aside));
        let mut memory = || held.take().map(|held| Box::new(held) as Box<dyn Any + Send>);
        let state = self.state()?;
        self.runtime.check_calls(call)?;
        let timeout = self.timeout(options);
        let mut operation = Some(operation);
        let (called, lock) = self.runtime.start(self.comm_id, &mut operation, timeout, &mut memory)?;
        let outcome = match called {
            Called::Ended(number) => {
                self.ended(Some(number));
                return held.map(|(held, _)| Ok(held)).ok_or(Error::Failed(Failure::Closed));
            }
            Called::UnderWay(outcome) => outcome,
        };
        // `go_on` may call this group.
        drop(state);
        self.runtime.advance(lock, &outcome, Instant::now().checked_add(every));
        let work = Work::begun::<Aside>(outcome, &self.runtime);
        match work.wait_done_while(every, go_on)? {
            true => work.take().map(Ok),
            false => Ok(Err(work)),
        }
    }

    /// Plans a collective that is to [begin](Self::begin_planned) or [run](Self::run_while).
    pub(crate) fn plan(
        &self,
        spec: &CallSpec<'_>,
        borrowed: Borrowed<'static>,
        options: &CallOptions,
    ) -> Result<(Operation, Aside)> {
        let mut aside = Aside::new();
        Ok((self.collective(spec, borrowed, &mut aside, options)?, aside))
    }

    /// Begins a collective on memory that `held` owns; the work returns it.
    pub(crate) fn begin_planned<B: Send + 'static>(
        &self,
        call: &'static str,
        (operation, aside): (Operation, Aside),
        held: B,
        options: &CallOptions,
    ) -> Result<Work<B>> {
        let action = CompletionAction::Return(Some(Box::new((held, aside))));
        let outcome = self.submit(call, RequestKind::Collective(Box::new(operation)), action, options)?;
        Ok(Work::begun::<Aside>(outcome, &self.runtime))
    }

    /// The timeout of a call with these options.
    pub(crate) fn timeout(&self, options: &CallOptions) -> Duration {
        options.timeout.unwrap_or(self.runtime.config.timeout)
    }

    /// Submits an operation that no thread waits for yet.
    pub(crate) fn submit(
        &self,
        call: &'static str,
        what: RequestKind,
        action: CompletionAction,
        options: &CallOptions,
    ) -> Result<Arc<Outcome>> {
        self.runtime.check_process()?;
        // This comes before the state is locked, because an error drops the memory of the call, whose destructor may call this group.
        self.runtime.prepare()?;
        let (completion, outcome) = Completion::new(self.timeout(options), action);
        let task = WorkRequest { what, completion };
        if let RequestKind::Collective(..) = task.what {
            self.order.begin(call, task, (&self.runtime, self.comm_id))?;
        } else {
            self.runtime.check_calls(call)?;
            self.runtime.begin(self.comm_id, task);
        }
        Ok(outcome)
    }

    /// Plans a collective that is to be submitted, and [prepares](Self::prepare) its memory; the driver may call this too.
    pub(crate) fn collective(
        &self,
        spec: &CallSpec<'_>,
        mut borrowed: Borrowed<'_>,
        aside: &mut Aside,
        options: &CallOptions,
    ) -> Result<Operation> {
        let planned = self.prepare(spec, &mut borrowed, aside, options)?;
        Ok(Operation::new(planned, self.planner.topology.ranks, borrowed, self.pairs(spec)))
    }

    /// Plans a collective. Multiplies the input of a pre-multiplied sum, in place if the output lies there. May copy the input to `aside`,
    /// which must then live as long as the borrowed memory.
    fn prepare(
        &self,
        spec: &CallSpec<'_>,
        borrowed: &mut Borrowed<'_>,
        aside: &mut Aside,
        options: &CallOptions,
    ) -> Result<Planned> {
        let (plan, schedule) = self.planner.plan(spec, options)?;
        let scales = matches!(spec.op, ReduceOp::PreMulSum(_)) && spec.collective.reduces();
        if scales || borrowed.overlap == Overlap::Crossed {
            let arranged = arrange(&plan.kernel, borrowed, aside, scales);
            arranged.map_err(|error| argument(spec.collective.name(), error.to_string()))?;
        }
        borrowed.find_in(&self.runtime.registry);
        Ok((plan, schedule))
    }

    /// The lengths of blocks that this rank compares with each other rank separately.
    #[inline]
    fn pairs(&self, spec: &CallSpec<'_>) -> Option<Box<Pairs>> {
        if spec.pairwise { spec.pairs(self.planner.rank, self.planner.topology.ranks) } else { None }
    }

    /// Ends all groups with the failure of a call. Returns its error, which is that of the first failure.
    pub(crate) fn over(&self, failure: Failure) -> Error {
        // All ranks are leaving, and this call has received nothing: the world has not failed.
        if let Failure::Unsent { .. } = failure {
            return Error::Failed(failure);
        }
        match self.runtime.check() {
            Ok(()) => self.fail(failure),
            Err(error) => self.runtime.returned(error),
        }
    }

    /// Ends all groups because the engine has stopped.
    pub(crate) fn stopped(&self, stop: Stop, doing: &str, waited: Duration) -> Error {
        let stalled = StalledOperation { call: doing.to_owned(), waited, ..StalledOperation::default() };
        self.fail(self.runtime.monitor.explain(stop, stalled))
    }

    /// Leaves the world with all other ranks; does nothing on another group. Returns a failure that no call has returned.
    pub(crate) fn shut_down(&self) -> Result<()> {
        self.runtime.check_process()?;
        let knew = self.runtime.knows();
        let left = self.leave_world();
        if let (false, Err(Error::Failed(failure))) = (knew, &left) {
            self.runtime.late(failure);
        }
        left
    }

    /// As `shut_down`, when the last handle of the world is dropped. If the thread panics, it does not wait for the other ranks, but
    /// reports the panic to them.
    fn dropped(&self) -> Result<()> {
        let runtime = &self.runtime;
        match runtime.ended_by() {
            // The other ranks may have ended, so no rank needs a report.
            _ if runtime.has_left() => Ok(()),
            Some(failure) => {
                if !runtime.knows() {
                    runtime.late(&failure);
                }
                Err(Error::Failed(failure))
            }
            None if std::thread::panicking() => {
                let how = match self.latest.load(Ordering::Relaxed).checked_sub(1) {
                    Some(op) => format!("a panic ended its program after op {op}"),
                    None => "a panic ended its program before its first operation".to_owned(),
                };
                drop(runtime.fail(Failure::Died { rank: runtime.rank, how }));
                Ok(())
            }
            None => self.shut_down(),
        }
    }

    fn leave_world(&self) -> Result<()> {
        if self.comm_id != WORLD {
            return Ok(());
        }
        let mut state = self.order.leaving(&self.runtime)?;
        if std::mem::replace(&mut state.shutdown, true) {
            return Ok(());
        }
        self.runtime.check()?;
        // Operations that no call has waited for end first, because other ranks wait for them.
        self.runtime.drain()?;
        self.last_barrier(Cargo::Leaving)?;
        // All ranks are here. Once everything that they sent has arrived too, a message that no call received is an error on all ranks,
        // none of which has left yet.
        let timeout = self.runtime.config.timeout;
        let until = Instant::now() + timeout;
        let left = self.runtime.with(|engine| {
            engine.driven_by(&*self.runtime).take_leave(until).map_err(|halt| halt.stop)?;
            engine.left_over()
        })?;
        let left_over = left.map_err(|stop| self.stopped(stop, "leave()", timeout))?;
        if let Some(failure) = left_over {
            return Err(self.fail(failure));
        }
        self.runtime.give_up_receives()?;
        self.last_barrier(Cargo::Shutdown)
    }

    /// One of the two barriers by which all ranks leave the world. Ranks may leave at any time, so it waits as long as a rank lives that
    /// has not begun to leave. Once all have begun, only messages are missing, and the timeout counts.
    fn last_barrier(&self, cargo: Cargo) -> Result<()> {
        let spec = CallSpec { cargo, ..CallSpec::new(Collective::Barrier, Dtype::U8, 0) };
        let borrowed = Borrowed::apart::<u8>(&[], &mut []);
        let operation = self.collective(&spec, borrowed, &mut Aside::new(), &CallOptions::default())?;
        let (completion, outcome) = Completion::new(NEVER, CompletionAction::Return(None));
        // This thread counts as blocked although the wait below has a limit: it continues only when the others come.
        let _waiting = self.runtime.callers.wait();
        self.runtime.ask(
            self.comm_id,
            WorkRequest { what: RequestKind::Collective(Box::new(operation)), completion },
        );
        if cargo == Cargo::Leaving {
            self.runtime.leaves();
        }
        let (begun, timeout) = (Instant::now(), self.runtime.config.timeout);
        let limit = self.runtime.config.leave_timeout.unwrap_or(NEVER);
        let (mut notice, mut all_since) = (NOTICE, None);
        let step = || match limit.saturating_sub(begun.elapsed()) {
            Duration::ZERO => NOTICE.min(timeout),
            left => NOTICE.min(timeout).min(left),
        };
        while !self.runtime.wait_until(&outcome, Some(Instant::now() + step())) {
            let (monitor, waited) = (&self.runtime.monitor, begun.elapsed());
            let late = if monitor.all_leave() {
                all_since.get_or_insert_with(Instant::now).elapsed() >= timeout
            } else {
                all_since = None;
                waited >= limit
            };
            if late {
                return Err(self.stopped(Stop::Deadline, "leave()", waited));
            }
            if waited >= notice {
                notice *= 2;
                monitor.warn_leaving(waited, self.runtime.config.leave_timeout);
            }
        }
        self.ended(self.runtime.wait(&outcome)?.number);
        Ok(())
    }
}

/// Copies the input if its overlap with the output is not one that the collective allows, or if it is only read and has to be multiplied;
/// then multiplies it.
#[cold]
fn arrange(
    kernel: &Kernel,
    borrowed: &mut Borrowed<'_>,
    aside: &mut Aside,
    scales: bool,
) -> std::result::Result<(), SpanError> {
    if borrowed.overlap != Overlap::InPlace {
        borrowed.set_aside(aside)?;
    }
    if scales { borrowed.scale(kernel) } else { Ok(()) }
}

impl Drop for Membership {
    /// Leaves the world as `ProcessGroup::leave` does, unless the thread panics. Leaves another group even then: a program that catches the
    /// panic may continue with the world.
    fn drop(&mut self) {
        let GroupState { runtime, comm_id, .. } = &*self.shared;
        if runtime.check_process().is_err() {
            // A forked child: the endpoint and the connections to the store belong to the parent process.
            std::mem::forget(Arc::clone(&self.shared));
            return;
        }
        if *comm_id != WORLD {
            // Ranks wait only for the end of the world. If this group has failed, the world has failed, too, and reports it when it ends.
            if !runtime.over() && !runtime.has_left() {
                drop(runtime.leave(*comm_id));
            }
            return;
        }
        let knew = runtime.knows();
        let left = self.shared.dropped();
        runtime.close();
        if let (false, Err(error)) = (knew, left) {
            crate::log::error!("rank {} did not leave its world in good order: {error}", runtime.rank);
        }
    }
}
