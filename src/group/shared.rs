//! What all handles of a group share: its ranks, its planner and the order of its operations.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError},
    time::{Duration, Instant},
};

use unisono_schedule::{CallSchedule, Collective, Rank};

use crate::{
    buffer::Borrowed,
    call::Cargo,
    dtype::Dtype,
    engine::{Action, CommId, Completion, Operation, Outcome, StalledOperation, Stop, Task, WORLD, What},
    error::{Error, Failure, Result},
    group::plan::{
        CallTraits, PlannedCall, Planner,
        spec::{CallOptions, CallSpec},
    },
    runtime::Runtime,
    work::{Driver, Work},
};

/// After so long a rank that leaves says for whom it waits.
const NOTICE: Duration = Duration::from_secs(30);

/// The timeout of an operation that has none: longer than any that can be configured.
const NEVER: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

pub(crate) struct Shared {
    pub runtime: Arc<Runtime>,
    pub comm_id: CommId,
    /// Knows this rank in the group, and how its ranks are spread over hosts and cores.
    pub planner: Planner,
    /// Their ranks in the world.
    pub members: Vec<Rank>,
    pub name: String,
    /// What errors call it, with its members; the world needs no name.
    pub label: Option<Arc<str>>,
    /// The same on all members, and no other group's; 0 of the world.
    pub id: u64,
    pub state: Mutex<State>,
}

/// What a group's handles have in common with none of its operations: the group ends when it goes. Operations under way
/// keep [`Shared`], which is why this is another.
pub(crate) struct Membership {
    pub shared: Arc<Shared>,
    /// In the group that it comes from, which ends after it; the world comes from none.
    #[expect(dead_code, reason = "kept for its drop")]
    pub parent: Option<Arc<Self>>,
}

#[derive(Default)]
pub(crate) struct State {
    /// The number of the latest operation that a call has waited for.
    pub latest: Option<u64>,
    /// How many groups were made of this one.
    pub made: u64,
    /// Whether the shutdown was said.
    pub parted: bool,
}

impl State {
    /// The number of the operation that has just been waited for.
    pub(crate) fn op(&self) -> u64 {
        self.latest.unwrap_or_default()
    }
}

impl Shared {
    /// Of errors.
    pub(crate) fn group_name(&self) -> Box<str> {
        self.label.as_deref().unwrap_or_default().into()
    }

    pub(crate) fn driver(&self) -> Arc<dyn Driver> {
        Arc::<Runtime>::clone(&self.runtime)
    }

    pub(crate) fn state(&self) -> Result<MutexGuard<'_, State>> {
        self.runtime.check_process()?;
        Ok(match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            Err(TryLockError::WouldBlock) => {
                // Until another thread's call has ended.
                let _waiting = self.runtime.callers.wait();
                self.state.lock().unwrap_or_else(PoisonError::into_inner)
            }
        })
    }

    /// Ends all groups.
    pub(crate) fn fail(&self, failure: Failure) -> Error {
        self.runtime.fail(failure)
    }

    /// How many operations have begun. Of a group that is over: as far as calls have waited for them.
    pub(crate) fn operations(&self) -> u64 {
        let begun = self.runtime.with(|engine| engine.begun(self.comm_id));
        let waited_for = || self.state().ok()?.latest.map(|latest| latest + 1);
        begun.unwrap_or_else(|_| waited_for().unwrap_or_default())
    }

    /// Runs a collective on borrowed memory; a failure ends the group.
    pub(crate) fn run(
        &self,
        state: &mut State,
        dtype: Dtype,
        spec: &CallSpec<'_>,
        borrowed: Borrowed<'_>,
        options: &CallOptions,
    ) -> Result<()> {
        self.runtime.check_calls(spec.collective.name())?;
        let mut aside = Vec::new();
        let (operation, schedule) = self.collective(dtype, spec, borrowed, &mut aside, options)?;
        let timeout = self.runtime.config.timeout;
        state.latest = self.runtime.collective(self.comm_id, (operation, schedule), timeout)?;
        Ok(())
    }

    /// Begins a collective on memory that `held` and `kept` own; the work returns `held`.
    pub(crate) fn begin<B: Send + 'static, K: Send + 'static>(
        &self,
        dtype: Dtype,
        spec: &CallSpec<'_>,
        borrowed: Borrowed<'static>,
        (held, kept): (B, K),
        options: &CallOptions,
    ) -> Result<Work<B>> {
        let mut aside = Vec::new();
        let (operation, schedule) = self.collective(dtype, spec, borrowed, &mut aside, options)?;
        let action = Action::Return(Some(Box::new((held, (kept, aside)))));
        let what = What::Collective(operation, schedule);
        let outcome = self.hand_in(spec.collective.name(), what, action)?;
        Ok(Work::begun::<(K, Vec<u8>)>(outcome, &self.driver()))
    }

    /// Hands in what nobody waits for yet.
    pub(crate) fn hand_in(&self, call: &'static str, what: What, action: Action) -> Result<Arc<Outcome>> {
        self.runtime.check_process()?;
        // Before the turn, which what is held may want when it is dropped.
        self.runtime.prepare()?;
        // Behind what others of this group's threads call and wait for. Messages have no turns.
        let _turn = matches!(what, What::Collective(..)).then(|| self.state()).transpose()?;
        self.runtime.check_calls(call)?;
        let (completion, outcome) = Completion::new(self.runtime.config.timeout, action);
        self.runtime.begin(self.comm_id, Task { what, completion });
        Ok(outcome)
    }

    /// A collective, to be handed in. Whoever drives the engine may call this. Its input may be in `aside` afterwards, which
    /// is to be kept as what was borrowed is.
    pub(crate) fn collective(
        &self,
        dtype: Dtype,
        spec: &CallSpec<'_>,
        borrowed: Borrowed<'_>,
        aside: &mut Vec<u8>,
        options: &CallOptions,
    ) -> Result<(Box<Operation>, CallSchedule)> {
        let plan = self.planner.plan(dtype, spec, options)?;
        if !plan.traits.needs_apart(&borrowed) {
            return Ok(self.operation(plan, borrowed));
        }
        // Long writes need an output in which nothing waits to be sent.
        let apart = borrowed.aside(aside).map_err(|error| plan.traits.argument(error.to_string()))?;
        Ok(self.operation(plan, apart))
    }

    /// What an error is to a call under way: the others go on.
    pub(crate) fn midway(&self, error: Error) -> Failure {
        match error {
            Error::Failed(failure) => failure,
            error => Failure::Aborted { rank: self.runtime.rank, why: error.to_string() },
        }
    }

    /// What a call gets that ends so: all is over.
    pub(crate) fn over(&self, failure: Failure) -> Error {
        // Whoever failed first is right.
        match self.runtime.check() {
            Ok(()) => self.fail(failure),
            Err(error) => error,
        }
    }

    fn operation(&self, plan: PlannedCall, borrowed: Borrowed<'_>) -> (Box<Operation>, CallSchedule) {
        let PlannedCall {
            traits: CallTraits { collective, signature, kernel, average, size, long },
            schedule,
        } = plan;
        let registry = &self.runtime.registry;
        let operation = Box::new(Operation {
            number: 0,
            signature,
            group: self.label.clone(),
            group_id: self.id,
            ranks: self.planner.topology.ranks,
            kernel,
            average,
            size,
            long,
            fixed: borrowed.fixed,
            writable: !borrowed.fixed
                && borrowed.pieces.is_none()
                && (!collective.exchanges() || borrowed.is_apart()),
            registered_input: registry.find(&borrowed.input),
            registered_output: registry.find(&borrowed.output),
            input: borrowed.input,
            output: borrowed.output,
            pieces: borrowed.pieces,
        });
        (operation, schedule)
    }

    /// The engine could not do it: all is over.
    pub(crate) fn stopped(&self, stop: Stop, doing: &str, waited: Duration) -> Error {
        let stalled = StalledOperation { call: doing.to_owned(), waited, ..StalledOperation::default() };
        self.fail(self.runtime.monitor.explain(stop, stalled))
    }

    /// Says shutdown.
    pub(crate) fn part(&self) -> Result<()> {
        self.runtime.check_process()?;
        if self.comm_id != WORLD {
            return Ok(());
        }
        let mut state = self.state()?;
        if std::mem::replace(&mut state.parted, true) {
            return Ok(());
        }
        self.runtime.check()?;
        // What was begun and never waited for ends first: others wait for it.
        self.runtime.drain()?;
        self.last_barrier(&mut state, Cargo::Leaving)?;
        // All are here. When what they have sent is too, what is left over is an error of all, of whom none has gone yet.
        let timeout = self.runtime.config.timeout;
        let until = Instant::now() + timeout;
        let left = self.runtime.with(|engine| {
            engine.take_leave(&*self.runtime, until).map_err(|halt| halt.stop)?;
            engine.left_over()
        })?;
        let left_over = left.map_err(|stop| self.stopped(stop, "leave()", timeout))?;
        if let Some(failure) = left_over {
            return Err(self.fail(failure));
        }
        self.runtime.give_up_receives()?;
        self.last_barrier(&mut state, Cargo::Shutdown)
    }

    /// A barrier of those that end the world. It has no deadline: ranks may leave as far apart as they like. What ends it early
    /// is a failure, a rank's death above all.
    fn last_barrier(&self, state: &mut State, cargo: Cargo) -> Result<()> {
        let spec = CallSpec { cargo, ..CallSpec::new(Collective::Barrier, 0) };
        let borrowed = Borrowed::apart::<u8>(&[], &mut []);
        let (operation, schedule) =
            self.collective(Dtype::U8, &spec, borrowed, &mut Vec::new(), &CallOptions::default())?;
        let (completion, outcome) = Completion::new(NEVER, Action::Return(None));
        // However long: it goes on only when others come.
        let _waiting = self.runtime.callers.wait();
        self.runtime.ask(self.comm_id, Task { what: What::Collective(operation, schedule), completion });
        if cargo == Cargo::Leaving {
            self.runtime.leaves();
        }
        if !self.runtime.wait_until(&outcome, Some(Instant::now() + NOTICE)) {
            let (rank, others) = (self.runtime.rank, self.runtime.monitor.whereabouts());
            tracing::warn!(rank, "this rank leaves and waits for the others to leave too: {others}");
        }
        state.latest = self.runtime.wait(&outcome)?.number;
        Ok(())
    }
}

impl Drop for Membership {
    /// The world's as `ProcessGroup::leave`; not while panicking, so that the others hear of a death. Another group's also
    /// then: who catches the panic goes on with the world.
    fn drop(&mut self) {
        let Shared { runtime, comm_id, .. } = &*self.shared;
        if !runtime.is_ours() {
            // All stays as it is: the endpoint and the store's connections are the parent's.
            std::mem::forget(Arc::clone(&self.shared));
            return;
        }
        // After the shutdown the others may be gone: there is nobody to tell.
        let dying = *comm_id == WORLD && std::thread::panicking();
        let over = dying || runtime.over() || runtime.has_left();
        let parted = match *comm_id {
            _ if over => Ok(()),
            WORLD => self.shared.part(),
            // Of another group nobody waits for the end.
            comm_id => runtime.leave(comm_id),
        };
        if *comm_id == WORLD {
            runtime.close();
        }
        if let Err(error) = parted {
            tracing::error!(rank = runtime.rank, %error, "the group did not part in good order");
        }
    }
}
