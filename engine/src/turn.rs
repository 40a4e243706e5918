//! Starts and ends collectives: one after the other in each communicator. If nothing else is active, the caller runs its
//! operation directly, without queueing.

use std::{
    ops::ControlFlow,
    sync::Arc,
    time::{Duration, Instant},
};

use unisono_schedule::{CallSchedule, Schedule};

use crate::{
    collective::{Pass, Quick, Run},
    comm::{Core, Net, QueuedCollective},
    completion::{Completion, CompletionAction, Done, Memory, Outcome},
    progress::{Engine, OFTEN, RunningOperation},
    request::{Operation, Planned, What},
    stop::{Halt, Stop, halt},
    supervisor::{Supervisor, WorkRequest},
    wait::Wait,
    wire::CommId,
};

/// The result of [`Engine::call`].
pub enum Called {
    /// The operation of this number has ended.
    Ended(u64),
    /// The operation is under way.
    UnderWay(Arc<Outcome>),
}

impl Engine {
    /// Begins a collective, or queues it if another one of its communicator is under way.
    pub(crate) fn turn(
        &mut self,
        comm_id: CommId,
        turn: QueuedCollective,
        supervisor: &dyn Supervisor,
    ) -> Result<(), Halt> {
        let comm = self.net.core(comm_id)?.comm;
        if comm.collectives.busy {
            comm.collectives.tasks.push_back(turn);
            return Ok(());
        }
        comm.collectives.busy = true;
        self.begin(comm_id, turn, supervisor)
    }

    /// Begins a collective. No other one of its communicator is under way.
    pub(crate) fn begin(
        &mut self,
        comm_id: CommId,
        turn: QueuedCollective,
        supervisor: &dyn Supervisor,
    ) -> Result<(), Halt> {
        let (operation, schedule, completion) = turn;
        let submitted = Some(completion.submitted);
        match self.enter(comm_id, operation, schedule, submitted, supervisor) {
            Ok(run) => {
                self.running.push(RunningOperation { comm_id, run, completion, stalled: None });
                Ok(())
            }
            Err(halt) => {
                self.lost.push(completion);
                Err(halt)
            }
        }
    }

    /// Begins a collective, which gets its number. It was submitted at `since`, or now.
    fn enter(
        &mut self,
        comm_id: CommId,
        mut operation: Box<Operation>,
        schedule: CallSchedule,
        since: Option<Instant>,
        supervisor: &dyn Supervisor,
    ) -> Result<Run, Halt> {
        let mut core = self.net.core(comm_id)?;
        core.begin(&mut operation);
        supervisor.began(&operation);
        let (which, signature) = (operation.which(), operation.plan.signature);
        let lanes = self.lanes.pop().unwrap_or_default();
        let begun = Run::begin(&mut core, lanes, operation, schedule);
        begun.map_err(|stop| halt(stop, which, signature, since.unwrap_or_else(Instant::now)))
    }

    /// Begins a collective and runs it directly as long as nothing else needs the driver. If it has not ended then, its completion returns
    /// the memory that `memory` gives. After an error the engine must be [abandoned](Self::abandon).
    pub fn call(
        &mut self,
        comm_id: CommId,
        mut planned: Planned,
        timeout: Duration,
        memory: &mut dyn FnMut() -> Memory,
        supervisor: &dyn Supervisor,
    ) -> Result<Called, Halt> {
        let talks = !self.messaging.is_empty() || !self.net.port.active_comms.is_empty();
        if talks || !self.running.is_empty() {
            let (completion, outcome) = Completion::new(timeout, CompletionAction::Return(memory()));
            self.turn(comm_id, (Box::new(planned.0), planned.1, completion), supervisor)?;
            return Ok(Called::UnderWay(outcome));
        }
        let mut core = self.net.core(comm_id)?;
        core.comm.collectives.busy = true;
        let (operation, schedule) = (&mut planned.0, planned.1);
        let (run, fresh) = match schedule {
            // Such an operation usually ends before a run would be worth its allocations. Only this thread accesses its memory.
            CallSchedule::Recorded(recorded) if recorded.shows().is_some() && core.comm.shared.is_open() => {
                core.begin(operation);
                supervisor.began(operation);
                core.comm.collectives.exposed = false;
                let mut quick = Quick::new(operation, recorded.steps());
                let engine = (&mut self.net, &mut self.wait, &mut self.idle);
                let ended = go_on(engine, comm_id, |core, _| quick.pass(core), supervisor);
                if ended.map_err(|stop| operation.halt(stop, Instant::now()))? {
                    self.next_turn(comm_id, supervisor)?;
                    return Ok(Called::Ended(planned.0.number));
                }
                let left = quick.left();
                let lanes = self.lanes.pop().unwrap_or_default();
                (Run::go_on(lanes, Box::new(planned.0), recorded, left), false)
            }
            schedule => (self.enter(comm_id, Box::new(planned.0), schedule, None, supervisor)?, true),
        };
        let number = run.operation.number;
        self.alone = Some((comm_id, run));
        let ended = if fresh { self.go_on_alone(supervisor) } else { Ok(false) };
        // The run is always there: only a panic leaves it in place, for `abandon`.
        let Some((comm_id, run)) = self.alone.take() else { return Err(Stop::Failed.into()) };
        if let Ok(true) = ended {
            self.wind_up(comm_id, run)?;
            self.next_turn(comm_id, supervisor)?;
            return Ok(Called::Ended(number));
        }
        let (completion, outcome) = Completion::new(timeout, CompletionAction::Return(memory()));
        let under_way = RunningOperation { comm_id, run, completion, stalled: None };
        let halt = ended.map_err(|stop| under_way.halt(stop)).err();
        self.running.push(under_way);
        halt.map_or(Ok(Called::UnderWay(outcome)), Err)
    }

    /// Advances the operation that runs alone, as [`go_on`] does.
    fn go_on_alone(&mut self, supervisor: &dyn Supervisor) -> Result<bool, Stop> {
        let Self { net, wait, idle, alone: Some((comm_id, run)), .. } = self else { return Ok(true) };
        go_on((net, wait, idle), *comm_id, |core, idle| run.pass(core, idle), supervisor)
    }

    /// Takes several messages, which end as one.
    pub(crate) fn take_several(
        &mut self,
        comm_id: CommId,
        all: Vec<What>,
        completion: Completion,
        supervisor: &dyn Supervisor,
    ) -> Result<(), Halt> {
        // One completion more than there are messages, which ends right away: it is the last one if there are no messages.
        let mut parts = completion.split(all.len() + 1).into_iter();
        for (what, completion) in all.into_iter().zip(parts.by_ref()) {
            self.take(comm_id, WorkRequest { what, completion }, supervisor)?;
        }
        let latest = self.net.core(comm_id)?.comm.collectives.latest();
        let last = parts.next().map(|last| self.conclude(last, Done::default(), latest, supervisor));
        match last.transpose()?.flatten() {
            Some(task) => self.take(comm_id, task, supervisor),
            None => Ok(()),
        }
    }

    /// The operation has ended: begins the operation that follows it, or else the next one of its communicator.
    pub(crate) fn end(&mut self, index: usize, supervisor: &dyn Supervisor) -> Result<(), Halt> {
        let RunningOperation { comm_id, run, completion, .. } = self.running.swap_remove(index);
        let number = run.operation.number;
        self.wind_up(comm_id, run)?;
        let done = Done { number: Some(number), ..Done::default() };
        match self.conclude(completion, done, Some(number), supervisor)? {
            Some(WorkRequest { what: What::Collective(operation, schedule), completion }) => {
                return self.begin(comm_id, (operation, schedule, completion), supervisor);
            }
            Some(task) => self.take(comm_id, task, supervisor)?,
            None => {}
        }
        self.next_turn(comm_id, supervisor)
    }

    /// Begins the next collective of a communicator, if one is queued.
    pub(crate) fn next_turn(&mut self, comm_id: CommId, supervisor: &dyn Supervisor) -> Result<(), Halt> {
        self.net.poll_at_times()?;
        let comm = self.net.core(comm_id)?.comm;
        let next = comm.collectives.tasks.pop_front();
        comm.collectives.busy = next.is_some();
        match next {
            Some((operation, schedule, mut completion)) => {
                completion.restart();
                self.begin(comm_id, (operation, schedule, completion), supervisor)
            }
            // This may have been the last one of a communicator that this rank leaves.
            None => {
                self.net.mark_changed(comm_id);
                Ok(self.net.continue_leaving().map(drop)?)
            }
        }
    }

    /// Drops an operation that has ended, before its caller learns of the end: it refers to memory that returns to the caller.
    pub(crate) fn wind_up(&mut self, comm_id: CommId, mut run: Run) -> Result<(), Stop> {
        let mut lanes = std::mem::take(&mut run.lanes);
        lanes.clear();
        drop(run);
        let comm = self.net.core(comm_id)?.comm;
        (comm.collectives.exposed, comm.collectives.in_use) = (false, None);
        self.lanes.push(lanes);
        Ok(())
    }

    /// An operation has ended. Returns the task that follows; if none does, reports the end. `latest` is the number of the
    /// communicator's latest operation.
    pub(crate) fn conclude(
        &mut self,
        completion: Completion,
        mut done: Done,
        latest: Option<u64>,
        supervisor: &dyn Supervisor,
    ) -> Result<Option<WorkRequest>, Halt> {
        let Some(completion) = completion.join(&mut done) else { return Ok(None) };
        match completion.end(done) {
            Ok(ControlFlow::Continue((what, completion))) => Ok(Some(WorkRequest { what, completion })),
            Ok(ControlFlow::Break(left)) => {
                supervisor.ended(latest, left);
                Ok(None)
            }
            Err((completion, stop)) => {
                self.lost.push(completion);
                Err(stop.into())
            }
        }
    }
}

/// Advances an operation, a pass at a time. True if it has ended; false if something else is to be done or checked, for which
/// [`drive`](Engine::drive) is needed.
fn go_on(
    (net, wait, idle): (&mut Net, &mut Wait, &mut bool),
    comm_id: CommId,
    mut pass: impl FnMut(&mut Core<'_>, bool) -> Result<Pass, Stop>,
    supervisor: &dyn Supervisor,
) -> Result<bool, Stop> {
    for _ in 0..OFTEN {
        let passed = pass(&mut net.core(comm_id)?, *idle)?;
        if let Pass::Ended = passed {
            // A peer publishes without an event.
            wait.reset();
            return Ok(true);
        }
        *idle = !(net.poll()? || matches!(passed, Pass::Moved));
        if supervisor.asks() || !net.port.active_comms.is_empty() {
            return Ok(false);
        }
        if !*idle {
            wait.reset();
            continue;
        }
        let now = Instant::now();
        if supervisor.wanted() || supervisor.stopped() || !wait.is_hot(now) {
            return Ok(false);
        }
        std::hint::spin_loop();
    }
    Ok(false)
}
