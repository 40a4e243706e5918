//! How collectives come to be under way: each in its group's turn. One that whoever leads calls and waits for, as long as it
//! is alone and worth polling hot for, needs no ticket, no place among others and no look at what else there may be: mostly
//! that is until its end.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use unisono_schedule::CallSchedule;

use super::{
    Engine, OFTEN, UnderWay,
    lane::{Pass, Run},
    operation::Operation,
    task::{Halt, QueuedCollective, Stop, Supervisor, halt},
    ticket::{Asked, Held, Ticket},
    wire::CommId,
};

/// How a collective stands that was called.
pub(crate) enum Called {
    /// It has ended; its number.
    Ended(u64),
    /// It is one of those under way.
    UnderWay(Arc<Ticket>),
}

impl Engine {
    /// Takes on a collective: it begins, or waits for its group's turn.
    pub(super) fn turn(
        &mut self,
        comm_id: CommId,
        turn: QueuedCollective,
        supervisor: &dyn Supervisor,
    ) -> Result<(), Halt> {
        let comm = self.net.core(comm_id)?.comm;
        if comm.busy {
            comm.tasks.push_back(turn);
            return Ok(());
        }
        comm.busy = true;
        self.begin(comm_id, turn, supervisor)
    }

    /// Begins a collective whose turn has come.
    pub(super) fn begin(
        &mut self,
        comm_id: CommId,
        turn: QueuedCollective,
        supervisor: &dyn Supervisor,
    ) -> Result<(), Halt> {
        let (operation, schedule, asked) = turn;
        match self.open(comm_id, (operation, schedule), Some(asked.at), supervisor) {
            Ok(mut run) => {
                run.trace = self.trace.as_ref().map(|_| Vec::new());
                self.running.push(UnderWay { comm_id, run, asked, doubted: None });
                Ok(())
            }
            Err(halt) => {
                self.lost.push(asked);
                Err(halt)
            }
        }
    }

    /// Gives a collective its number, and opens what it needs. It was asked for `since` then, or now.
    fn open(
        &mut self,
        comm_id: CommId,
        (mut operation, schedule): (Box<Operation>, CallSchedule),
        since: Option<Instant>,
        supervisor: &dyn Supervisor,
    ) -> Result<Run, Halt> {
        let mut core = self.net.core(comm_id)?;
        core.begin(&mut operation);
        supervisor.began(&operation);
        let which = (Some(operation.number), operation.group.clone(), operation.group_id);
        let signature = operation.signature;
        Run::begin(&mut core, operation, schedule)
            .map_err(|stop| halt(stop, which, signature, since.unwrap_or_else(Instant::now)))
    }

    /// Begins a collective of a group and goes on with it as long as nobody wants anything else. After an error the engine
    /// must be [abandoned](Self::abandon).
    pub(crate) fn call(
        &mut self,
        comm_id: CommId,
        (operation, schedule): (Box<Operation>, CallSchedule),
        timeout: Duration,
        supervisor: &dyn Supervisor,
    ) -> Result<Called, Halt> {
        let talks = !self.talking.is_empty() || !self.net.port.active_comms.is_empty();
        if talks || !self.running.is_empty() || self.trace.is_some() {
            let asked = Asked::now(timeout, Held::Back(None));
            let ticket = Arc::clone(&asked.ticket);
            self.turn(comm_id, (operation, schedule, asked), supervisor)?;
            return Ok(Called::UnderWay(ticket));
        }
        if operation.pair {
            self.wait.wait_for_skew();
        }
        self.net.core(comm_id)?.comm.busy = true;
        let run = self.open(comm_id, (operation, schedule), None, supervisor)?;
        self.alone = Some((comm_id, run));
        let ended = self.go_on_alone(supervisor);
        // It is there: a panic alone leaves it to whoever abandons the engine.
        let Some((comm_id, run)) = self.alone.take() else { return Err(Stop::Alarm.into()) };
        if let Ok(true) = ended {
            let number = run.operation.number;
            self.wind_up(comm_id, run)?;
            self.next_turn(comm_id, supervisor)?;
            return Ok(Called::Ended(number));
        }
        let asked = Asked::now(timeout, Held::Back(None));
        let ticket = Arc::clone(&asked.ticket);
        let under_way = UnderWay { comm_id, run, asked, doubted: None };
        let halt = ended.map_err(|stop| under_way.halt(stop)).err();
        self.running.push(under_way);
        halt.map_or(Ok(Called::UnderWay(ticket)), Err)
    }

    /// Goes on with what is alone under way. True if it has ended; false if something else is to be done, or to be looked at,
    /// which [`drive`](Self::drive) does.
    fn go_on_alone(&mut self, supervisor: &dyn Supervisor) -> Result<bool, Stop> {
        let Some((comm_id, run)) = &mut self.alone else { return Ok(true) };
        let mut waited = false;
        for _ in 0..OFTEN {
            let pass = run.pass(&mut self.net.core(*comm_id)?, self.idle)?;
            if let Pass::Ended = pass {
                if waited && run.operation.pair {
                    self.wait.delay_for_skew(run.operation.exchange());
                }
                return Ok(true);
            }
            self.idle = !(self.net.poll()? || matches!(pass, Pass::Moved));
            if supervisor.asks() || !self.net.port.active_comms.is_empty() {
                return Ok(false);
            }
            if !self.idle {
                self.wait.reset();
                continue;
            }
            let now = Instant::now();
            if supervisor.wanted() || supervisor.stopped() || !self.wait.is_hot(now) {
                return Ok(false);
            }
            waited = true;
            std::hint::spin_loop();
        }
        Ok(false)
    }
}
