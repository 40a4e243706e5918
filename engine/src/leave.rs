//! Shutdown: how a rank leaves all communicators, and the messages that no call has received then.

use std::time::Instant;

use unisono_core::error::Failure;

use crate::{
    comm::{Comm, Core, Net, ShutdownState},
    completion::Completion,
    progress::{DrivenEngine, Engine, WORLD},
    stop::{Halt, Result, Stop},
};

impl Engine {
    /// This rank leaves all groups: from now on it does not wait for receives whose message has not arrived.
    pub fn leaves(&mut self) {
        self.net.leaves_all = true;
    }

    /// True if only receives are under way, and neither their messages nor requests to send have arrived.
    pub fn has_only_receives(&self) -> bool {
        let mut comms = self.net.comms.iter().flatten();
        self.running.is_empty()
            && comms.all(|comm| comm.collectives.tasks.is_empty() && comm.messages.only_receives())
    }

    /// Gives these receives up. Returns their calls and completions.
    pub fn give_up_receives(&mut self) -> Vec<(String, Completion)> {
        let comms = self.net.comms.iter_mut().flatten();
        let given_up = comms.flat_map(|comm| {
            let Comm { messages, identity, .. } = &mut **comm;
            messages.give_up_receives(|rank| identity.world(rank))
        });
        given_up.collect()
    }

    /// After all ranks have [left](DrivenEngine::take_leave), returns the failure if a message of any group was not received or ranks
    /// have called different operations.
    pub fn left_over(&mut self) -> Result<Option<Failure>> {
        let Net { port, comms, .. } = &mut self.net;
        let mut comms = comms.iter_mut().flatten();
        comms.find_map(|comm| Core { port, comm }.left_over().transpose()).transpose()
    }
}

impl DrivenEngine<'_> {
    /// When all ranks leave, sends the end of each communicator to all members that this rank has exchanged messages with, and waits for
    /// theirs, which are their last messages. Afterwards no control message is in flight.
    pub fn take_leave(&mut self, until: Instant) -> Result<(), Halt> {
        for comm in self.engine.net.comms.iter_mut().flatten().filter(|comm| !comm.shutdown.is_end_known()) {
            comm.settle_debts(true);
            comm.shutdown.state = match comm.shutdown.state {
                _ if comm.identity.comm_id == WORLD => ShutdownState::EndTold,
                ShutdownState::Leaving => ShutdownState::Left,
                _ => ShutdownState::LeftWithWorld,
            };
            comm.tell_end().map_err(Stop::from)?;
        }
        let mut done = |engine: &mut Engine, moved: bool| {
            let ended = |comm: &Comm| comm.identity.all_ended() && comm.mailbox.is_completed();
            match moved {
                // Control messages tell members that this rank has left: none is queued or in flight.
                false if engine.net.comms.iter().flatten().all(|comm| ended(comm)) => Ok(true),
                false if Instant::now() >= until => Err(Stop::Deadline),
                _ => Ok(false),
            }
        };
        self.join_or_leave(&mut done, Some(until))
    }
}
