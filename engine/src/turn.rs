//! Starts and ends collectives: one after the other in each communicator. If nothing else is active, the caller runs its
//! operation directly, without queueing.

use std::{ops::ControlFlow, sync::Arc, time::Instant};

use unisono_schedule::{CallSchedule, Schedule};

use crate::{
    collective::{OperationRun, Pass, ShownProgress},
    comm::{QueuedCollective, Sharing},
    completion::{Completion, Done, Outcome, WorkRequest},
    progress::{DrivenEngine, Engine, OFTEN, RunningOperation},
    request::{Operation, RequestKind},
    stop::{Halt, Result, Stop},
    wire::CommId,
};

/// The result of [`DrivenEngine::call`].
pub enum Called {
    /// The operation of this number has ended.
    Ended(u64),
    /// The operation is under way.
    UnderWay(Arc<Outcome>),
}

/// Makes both halves of the end of an operation.
pub type MakeCompletion<'m> = &'m mut dyn FnMut() -> (Completion, Arc<Outcome>);

impl DrivenEngine<'_> {
    /// Begins a collective, or queues it if another one of its communicator is under way.
    pub(crate) fn turn(&mut self, comm_id: CommId, turn: QueuedCollective) -> Result<(), Halt> {
        let collectives = &mut self.engine.net.core(comm_id)?.comm.collectives;
        if collectives.busy {
            collectives.tasks.push_back(turn);
            return Ok(());
        }
        collectives.busy = true;
        self.begin(comm_id, turn)
    }

    /// Begins a collective. No other one of its communicator is under way.
    #[inline(never)] // A small call needs none of it.
    fn begin(&mut self, comm_id: CommId, turn: QueuedCollective) -> Result<(), Halt> {
        let QueuedCollective { operation, completion } = turn;
        match self.enter(comm_id, operation, Some(completion.submitted)) {
            Ok(run) => {
                self.engine.running.push(RunningOperation { comm_id, run, completion, stalled: None });
                Ok(())
            }
            Err(halt) => {
                self.engine.lost.push(completion);
                Err(halt)
            }
        }
    }

    /// Begins a collective, which gets its number. It was submitted at `since`, or now.
    fn enter(
        &mut self,
        comm_id: CommId,
        operation: Box<Operation>,
        since: Option<Instant>,
    ) -> Result<OperationRun, Halt> {
        let lanes = self.engine.lanes.pop().unwrap_or_default();
        let mut core = self.engine.net.core(comm_id)?;
        let mut run = OperationRun::new(lanes, operation);
        core.begin(&mut run.operation);
        self.supervisor.began(&run.operation);
        match run.begin(&mut core) {
            Ok(()) => Ok(run),
            Err(stop) => {
                let since = since.unwrap_or_else(Instant::now);
                Err(self.engine.net.halt(comm_id, &run.operation, stop, since))
            }
        }
    }

    /// Begins a collective and runs it directly as long as nothing else needs the driver. If it has not ended then, the engine takes it,
    /// and it gets a completion. After an error the engine must be [abandoned](Engine::abandon).
    pub fn call(
        &mut self,
        comm_id: CommId,
        place: &mut Option<Operation>,
        completion: MakeCompletion<'_>,
    ) -> Result<Called, Halt> {
        let Some(operation) = place else { return Err(Stop::Failed.into()) };
        let engine = &mut *self.engine;
        let talks = !engine.messaging.is_empty() || !engine.net.port.active_comms.is_empty();
        if talks || !engine.running.is_empty() {
            let (completion, outcome) = completion();
            self.turn(comm_id, QueuedCollective { operation: take(place)?, completion })?;
            return Ok(Called::UnderWay(outcome));
        }
        let mut core = engine.net.core(comm_id)?;
        core.comm.collectives.busy = true;
        let shows =
            matches!(&operation.schedule, CallSchedule::Recorded(recorded) if recorded.shows().is_some());
        if !shows || core.comm.shared.sharing != Sharing::Yes {
            let run = self.enter(comm_id, take(place)?, None)?;
            return self.run_alone(comm_id, run, completion);
        }
        // Such an operation usually ends before a run would be worth its allocations. Only this thread accesses its memory.
        core.begin(operation);
        self.supervisor.began(operation);
        core.comm.collectives.exposed = false;
        let mut shown = ShownProgress::default();
        let ended = self.go_on(|engine| shown.pass(&mut engine.net.core(comm_id)?, operation));
        if ended.map_err(|stop| self.engine.net.halt(comm_id, operation, stop, Instant::now()))? {
            self.next_turn(comm_id)?;
            return Ok(Called::Ended(operation.number));
        }
        let mut run = OperationRun::new(Vec::new(), take(place)?);
        run.shown = Some(shown);
        self.goes_under_way((comm_id, run), completion, None)
    }

    /// Runs an operation that has begun as long as nothing else needs the driver.
    #[inline(never)] // Its frame is large.
    fn run_alone(
        &mut self,
        comm_id: CommId,
        run: OperationRun,
        completion: MakeCompletion<'_>,
    ) -> Result<Called, Halt> {
        let number = run.operation.number;
        self.engine.alone = Some((comm_id, run));
        let ended = self.go_on(Engine::pass_alone);
        // The run is always there: only a panic leaves it in place, for `abandon`.
        let Some((comm_id, run)) = self.engine.alone.take() else { return Err(Stop::Failed.into()) };
        if let Ok(true) = ended {
            self.engine.wind_up(comm_id, run)?;
            self.next_turn(comm_id)?;
            return Ok(Called::Ended(number));
        }
        self.goes_under_way((comm_id, run), completion, ended.err())
    }

    /// An operation has not ended on the thread of its caller; perhaps the engine stops at it.
    #[inline(never)] // Its frame is large.
    fn goes_under_way(
        &mut self,
        (comm_id, run): (CommId, OperationRun),
        completion: MakeCompletion<'_>,
        stop: Option<Stop>,
    ) -> Result<Called, Halt> {
        let (completion, outcome) = completion();
        let under_way = RunningOperation { comm_id, run, completion, stalled: None };
        let halt = stop.map(|stop| under_way.halt(&self.engine.net, stop));
        self.engine.running.push(under_way);
        halt.map_or(Ok(Called::UnderWay(outcome)), Err)
    }

    /// Advances an operation, a pass at a time. True if it has ended; false if something else is to be done or checked, for which
    /// [`drive`](Self::drive) is needed.
    fn go_on(&mut self, mut pass: impl FnMut(&mut Engine) -> Result<Pass>) -> Result<bool> {
        let Self { engine, supervisor } = self;
        for _ in 0..OFTEN {
            let passed = pass(engine)?;
            if let Pass::Ended = passed {
                // A peer publishes without an event.
                engine.wait.reset();
                return Ok(true);
            }
            engine.idle = !(engine.net.poll()? || matches!(passed, Pass::Moved));
            if supervisor.asks() || !engine.net.port.active_comms.is_empty() {
                return Ok(false);
            }
            if !engine.idle {
                engine.wait.reset();
                continue;
            }
            let now = Instant::now();
            if supervisor.wanted() || supervisor.stopped() || !engine.wait.is_hot(now) {
                return Ok(false);
            }
            std::hint::spin_loop();
        }
        Ok(false)
    }

    /// Takes several messages, which end as one.
    pub(crate) fn take_several(
        &mut self,
        comm_id: CommId,
        all: Vec<RequestKind>,
        completion: Completion,
    ) -> Result<(), Halt> {
        if all.is_empty() {
            return self.message_ended(comm_id, completion, Done::default());
        }
        let parts = completion.split(all.len());
        let mut each = all.into_iter().zip(parts);
        each.try_for_each(|(what, completion)| self.take(comm_id, WorkRequest { what, completion }))
    }

    /// A message has ended: begins what follows it.
    pub(crate) fn message_ended(&mut self, comm_id: CommId, end: Completion, done: Done) -> Result<(), Halt> {
        let latest = self.engine.net.core(comm_id)?.comm.collectives.latest();
        match self.conclude(end, done, latest)? {
            Some(task) => self.take(comm_id, task),
            None => Ok(()),
        }
    }

    /// The operation has ended: begins the operation that follows it, or else the next one of its communicator.
    pub(crate) fn end(&mut self, index: usize) -> Result<(), Halt> {
        let RunningOperation { comm_id, run, completion, .. } = self.engine.running.swap_remove(index);
        let number = Some(run.operation.number);
        self.engine.wind_up(comm_id, run)?;
        match self.conclude(completion, Done { number, ..Done::default() }, number)? {
            Some(WorkRequest { what: RequestKind::Collective(operation), completion }) => {
                return self.begin(comm_id, QueuedCollective { operation, completion });
            }
            Some(task) => self.take(comm_id, task)?,
            None => {}
        }
        self.next_turn(comm_id)
    }

    /// Begins the next collective of a communicator, if one is queued.
    fn next_turn(&mut self, comm_id: CommId) -> Result<(), Halt> {
        let net = &mut self.engine.net;
        net.poll_at_times()?;
        let collectives = &mut net.core(comm_id)?.comm.collectives;
        let next = collectives.tasks.pop_front();
        collectives.busy = next.is_some();
        if let Some(mut next) = next {
            next.completion.restart();
            return self.begin(comm_id, next);
        }
        // This may have been the last one of a communicator that this rank leaves.
        net.mark_changed(comm_id);
        Ok(net.continue_leaving().map(drop)?)
    }

    /// An operation has ended. Returns the task that follows; if none does, reports the end. `latest` is the number of the
    /// communicator's latest operation.
    fn conclude(
        &mut self,
        completion: Completion,
        mut done: Done,
        latest: Option<u64>,
    ) -> Result<Option<WorkRequest>, Halt> {
        let Some(completion) = completion.join(&mut done) else { return Ok(None) };
        match completion.end(done) {
            Ok(ControlFlow::Continue(task)) => Ok(Some(task)),
            Ok(ControlFlow::Break(left)) => {
                self.supervisor.ended(latest, left);
                Ok(None)
            }
            Err((completion, stop)) => {
                self.engine.lost.push(completion);
                Err(stop.into())
            }
        }
    }
}

/// Takes the operation of a call.
fn take(place: &mut Option<Operation>) -> Result<Box<Operation>> {
    place.take().map(Box::new).ok_or(Stop::Failed)
}

impl Engine {
    /// Advances the operation that runs alone.
    fn pass_alone(&mut self) -> Result<Pass> {
        let Self { net, idle, alone: Some((comm_id, run)), .. } = self else { return Ok(Pass::Ended) };
        run.pass(&mut net.core(*comm_id)?, *idle)
    }

    /// Drops an operation that has ended, before its caller learns of the end: it refers to memory that returns to the caller.
    fn wind_up(&mut self, comm_id: CommId, run: OperationRun) -> Result<()> {
        let OperationRun { mut lanes, .. } = run;
        lanes.clear();
        let collectives = &mut self.net.core(comm_id)?.comm.collectives;
        (collectives.exposed, collectives.in_use) = (false, None);
        if lanes.capacity() > 0 {
            self.lanes.push(lanes);
        }
        Ok(())
    }
}
