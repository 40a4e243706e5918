//! How this rank leaves communicators. The engine looks at each when something has happened in it, so that any number of them can be left
//! together.

use unisono_core::error::Failure;

use super::{core::Core, net::Net, shutdown::ShutdownState};
use crate::{stop::Result, wire::CommId};

/// The most communicators that stay vacant.
const MOST_VACANT: usize = 64;

impl Net {
    /// This rank leaves a communicator as soon as nothing is under way in it. Its memory is freed when the others have left too.
    pub(crate) fn leave(&mut self, comm_id: CommId) -> Result<()> {
        if let Some(comm) = self.comm_mut(comm_id)
            && comm.shutdown.state == ShutdownState::Open
        {
            comm.shutdown.state = ShutdownState::Leaving;
        }
        self.mark_changed(comm_id);
        self.continue_leaving().map(drop)
    }

    /// Something has happened in a communicator. If this rank leaves it, the engine looks at it.
    pub(crate) fn mark_changed(&mut self, comm_id: CommId) {
        if self.comm_mut(comm_id).is_some_and(|comm| comm.shutdown.mark_changed()) {
            self.leaving.changed.push(comm_id);
        }
    }

    /// As [`continue_leaving`](Self::continue_leaving), and also looks at communicators that may change without an event.
    pub(crate) fn continue_leaving_all(&mut self) -> Result<bool> {
        for comm_id in std::mem::take(&mut self.leaving.watched) {
            self.mark_changed(comm_id);
        }
        self.continue_leaving()
    }

    /// Continues to leave the communicators in which something has happened. True if a control message was sent.
    #[inline]
    pub(crate) fn continue_leaving(&mut self) -> Result<bool> {
        // In the last barrier members need not learn of it, and may be gone.
        if self.leaving.changed.is_empty() || self.port.shutting_down {
            return Ok(false);
        }
        self.leave_changed()
    }

    /// Looks at all communicators in which something has happened.
    #[cold]
    fn leave_changed(&mut self) -> Result<bool> {
        let mut any = false;
        for comm_id in std::mem::take(&mut self.leaving.changed) {
            if self.comm_mut(comm_id).is_some_and(|comm| comm.shutdown.look()) {
                any |= self.continue_to_leave(comm_id)?;
            }
        }
        Ok(any)
    }

    /// Continues to leave a communicator. True if a control message was sent.
    fn continue_to_leave(&mut self, comm_id: CommId) -> Result<bool> {
        #[cfg(debug_assertions)]
        {
            self.leaving.looks += 1;
        }
        let mut core = self.core(comm_id)?;
        let left = core.comm.shutdown.has_left();
        core.comm.leave()?;
        if core.comm.shutdown.has_left() && !left {
            core.expect_none();
        }
        let any = core.comm.mailbox.has_queued() && core.send_control()?;
        if core.comm.shutdown.has_left()
            && let Some(left_over) = core.left_over()?
        {
            return Err(left_over.into());
        }
        let over = core.comm.is_over();
        if self.leaves_all || !over {
            let comm = self.core(comm_id)?.comm;
            // A caller may have dropped a receive, there may be room for a control message, and peers may publish in their slots.
            if comm.messages.open() || comm.mailbox.has_queued() || comm.shared.unchecked.is_some() {
                self.leaving.watched.push(comm_id);
            }
            return Ok(any);
        }
        let mut core = self.core(comm_id)?;
        if !core.comm.mailbox.introduced || !core.comm.identity.has_strangers() {
            self.free(comm_id);
            return Ok(any);
        }
        core.take_back();
        core.comm.vacate();
        self.leaving.vacant.push_back(comm_id);
        if self.leaving.vacant.len() > MOST_VACANT
            && let Some(oldest) = self.leaving.vacant.pop_front()
            && self.comm(oldest).is_some_and(|comm| comm.shutdown.is_vacant())
        {
            self.free(oldest);
        }
        Ok(any)
    }

    pub(crate) fn free(&mut self, comm_id: CommId) {
        if let Some(mut comm) = self.comms[usize::from(comm_id)].take() {
            Core { port: &mut self.port, comm: &mut comm }.take_back();
            self.port.active_comms.retain(|&it| it != comm_id);
        }
    }
}

impl Core<'_> {
    /// The failure of a group that this rank has left, if there is one.
    pub(crate) fn left_over(&mut self) -> Result<Option<Failure>> {
        let unreceived = self.unreceived()?;
        let comm = &*self.comm;
        Ok(unreceived
            .or_else(|| comm.untaken_message())
            .or_else(|| comm.unlike_shared())
            .or_else(|| comm.uneven_end()))
    }

    /// This rank has left the communicator: nothing arrives through its windows, though members may not have left yet.
    pub(crate) fn expect_none(&mut self) {
        let Self { port, comm } = self;
        for (index, from, class) in comm.flows.opened() {
            port.expect_no_more(
                comm.identity.world(from),
                (comm.identity.comm_id, index),
                comm.settings.arrivals(class),
            );
        }
    }

    /// The communicator has ended: gives back the numbers of its flows.
    pub(crate) fn take_back(&mut self) {
        self.expect_none();
        let Self { port, comm } = self;
        for window in comm.flows.open_windows() {
            port.incoming.give_back(window.number, window.lanes);
        }
        for (number, class) in comm.flows.speaks() {
            port.outgoing.give_back(number, comm.settings.window(class).lanes);
        }
        for sender in &comm.flows.senders {
            port.in_flight(comm.identity.world(sender.flow.to), 0, sender.bytes());
        }
    }
}
