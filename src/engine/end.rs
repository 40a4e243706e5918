//! What becomes of what has ended: something follows it, or whoever asked is told.

use std::{sync::Arc, time::Instant};

use super::{
    Engine, UnderWay,
    lane::Run,
    task::{Halt, Stop, Supervisor, Task, What},
    ticket::{Asked, Done, Held, Step},
    wire::CommId,
};

impl Engine {
    /// Takes on several messages as one.
    pub(super) fn take_several(
        &mut self,
        comm_id: CommId,
        all: Vec<What>,
        asked: Asked,
        supervisor: &dyn Supervisor,
    ) -> Result<(), Halt> {
        let Asked { at, deadline, ticket, held } = asked;
        let joint = held.jointly();
        let each = |index| {
            let held = Held::Jointly(index, Arc::clone(&joint));
            Asked { at, deadline, ticket: Arc::clone(&ticket), held }
        };
        let none = each(all.len());
        for (index, what) in all.into_iter().enumerate() {
            self.take(comm_id, Task { what, asked: each(index) }, supervisor)?;
        }
        drop(joint);
        // Of none, this is the last.
        let latest = self.net.core(comm_id)?.comm.latest();
        match self.conclude(none, Done::default(), latest, supervisor)? {
            Some(task) => self.take(comm_id, task, supervisor),
            None => Ok(()),
        }
    }

    /// The operation has ended; what follows it begins, or else the next of its group.
    pub(super) fn end(&mut self, index: usize, supervisor: &dyn Supervisor) -> Result<(), Halt> {
        let UnderWay { comm_id, mut run, asked, .. } = self.running.swap_remove(index);
        if let Some(steps) = run.trace.take() {
            self.trace = Some(steps);
        }
        let number = run.operation.number;
        self.wind_up(comm_id, run)?;
        let done = Done { number: Some(number), ..Done::default() };
        match self.conclude(asked, done, Some(number), supervisor)? {
            Some(Task { what: What::Collective(operation, schedule), asked }) => {
                return self.begin(comm_id, (operation, schedule, asked), supervisor);
            }
            Some(task) => self.take(comm_id, task, supervisor)?,
            None => {}
        }
        self.next_turn(comm_id, supervisor)
    }

    /// Begins the next collective of a group, if one waits for its turn.
    pub(super) fn next_turn(&mut self, comm_id: CommId, supervisor: &dyn Supervisor) -> Result<(), Halt> {
        let comm = self.net.core(comm_id)?.comm;
        let next = comm.tasks.pop_front();
        comm.busy = next.is_some();
        match next {
            Some((operation, schedule, mut asked)) => {
                asked.anew(Instant::now());
                self.begin(comm_id, (operation, schedule, asked), supervisor)
            }
            // It may have been the last of a group that this rank has left.
            None => Ok(self.net.sweep().map(drop)?),
        }
    }

    /// Takes leave of an operation that has ended. Before anyone learns of its end: it refers to memory that is given back.
    pub(super) fn wind_up(&mut self, comm_id: CommId, mut run: Run) -> Result<(), Stop> {
        let mut lanes = std::mem::take(&mut run.lanes);
        lanes.clear();
        drop(run);
        let comm = self.net.core(comm_id)?.comm;
        (comm.exposed, comm.lanes) = (false, lanes);
        Ok(())
    }

    /// What follows something that has ended so. If nothing does, whoever asked is told, and that the group has come to
    /// this operation.
    pub(super) fn conclude(
        &mut self,
        asked: Asked,
        done: Done,
        latest: Option<u64>,
        supervisor: &dyn Supervisor,
    ) -> Result<Option<Task>, Halt> {
        let Asked { at, deadline, ticket, held } = asked;
        let Some((held, done)) = held.last(done) else { return Ok(None) };
        let number = done.number;
        let done = match held {
            Held::Then(then) => match then(done) {
                Ok(Step::Done(held)) => Done { held, number, ..Done::default() },
                Ok(Step::More(what, held)) => {
                    let mut asked = Asked { at, deadline, ticket, held };
                    asked.anew(Instant::now());
                    return Ok(Some(Task { what, asked }));
                }
                Err(failure) => {
                    self.lost.push(Asked { at, deadline, ticket, held: Held::Back(None) });
                    return Err(Stop::from(failure).into());
                }
            },
            Held::Back(held) => Done { held, ..done },
            // Of several this is the last.
            Held::Jointly(..) => done,
        };
        supervisor.ended(latest, ticket.end(Ok(done)));
        Ok(None)
    }
}
