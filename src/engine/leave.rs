//! How a rank leaves all communicators, and what is left over then.

use crate::{
    engine::{
        comm::Core,
        completion::Completion,
        progress::{Engine, Until, WORLD},
        stop::{Halt, Stop},
        supervisor::Supervisor,
    },
    error::Failure,
};
use std::time::Instant;

impl Engine {
    /// This rank will leave all groups: from now on nobody waits for receives whose message has not come.
    pub(crate) fn leaves(&mut self) {
        self.net.leaves_all = true;
    }

    /// Whether all that is under way are receives whose message has not come, and for which there is no request to send.
    pub(crate) fn has_only_receives(&self) -> bool {
        let mut comms = self.net.comms.iter().flatten();
        self.running.is_empty() && comms.all(|comm| comm.tasks.is_empty() && comm.talk.only_receives())
    }

    /// Gives these up: their calls, and what belongs to who has asked.
    pub(crate) fn give_up_receives(&mut self) -> Vec<(String, Completion)> {
        let comms = self.net.comms.iter_mut().flatten();
        comms.flat_map(|comm| comm.give_up_receives()).collect()
    }

    /// When all ranks leave: tells the end of all groups to whom this rank has met there, and waits for theirs, which come
    /// after all else. Then no control message is under way any more either.
    pub(crate) fn take_leave(&mut self, supervisor: &dyn Supervisor, until: Instant) -> Result<(), Halt> {
        for comm in self.net.comms.iter_mut().flatten().filter(|comm| !comm.end_told) {
            comm.settle_debts(true);
            comm.left = comm.comm_id != WORLD;
            comm.tell_end().map_err(Stop::from)?;
        }
        let mut over = |engine: &mut Self, moved: bool| {
            let ended = engine.net.comms.iter().flatten().all(|comm| comm.all_ended());
            match moved {
                false if ended && !engine.net.has_control() => Ok(true),
                false if Instant::now() >= until => Err(Stop::Deadline),
                _ => Ok(false),
            }
        };
        let until = Until { over: &mut over, at: Some(until), attends: true };
        self.progress(until, supervisor)?;
        Ok(())
    }

    /// What is left over of any group, after that.
    pub(crate) fn left_over(&mut self) -> Result<Option<Failure>, Stop> {
        for comm in self.net.comms.iter_mut().flatten() {
            let left = Core { port: &mut self.net.port, comm }.left_over()?;
            if left.is_some() {
                return Ok(left);
            }
        }
        Ok(None)
    }
}
