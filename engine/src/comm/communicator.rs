//! A communicator: a group as the engine knows it, made of few parts that each know their own state. What concerns several parts stands here.

use unisono_schedule::Rank;
use unisono_transport::{Error, Transport};

use super::{
    collectives::Collectives,
    flows::Flows,
    identity::{CommMember, Identity},
    mailbox::Mailbox,
    shutdown::{Shutdown, ShutdownState},
    slots::SharedSlots,
    workspace::Workspace,
};
use crate::{
    messages::Messages,
    settings::Settings,
    wire::{CommId, ControlKind, FlowWay},
};

/// A communicator, without its operation under way.
pub(crate) struct Comm {
    pub(crate) identity: Identity,
    pub settings: Settings,
    pub(crate) collectives: Collectives,
    /// Messages from point to point.
    pub(crate) messages: Messages,
    pub(crate) flows: Flows,
    pub(crate) mailbox: Mailbox,
    /// Slots that ranks share, from the first operation that would use them.
    pub(crate) shared: SharedSlots,
    pub(crate) workspace: Workspace,
    pub(crate) shutdown: Shutdown,
}

impl Comm {
    /// A communicator of this many ranks, in which this one is rank `me`. Registers its mailbox.
    pub(crate) fn new(
        transport: &mut dyn Transport,
        comm_id: CommId,
        (me, ranks): (Rank, usize),
        settings: Settings,
    ) -> Result<Self, Error> {
        Ok(Self {
            identity: Identity::new(comm_id, me),
            settings,
            collectives: Collectives::new(settings.lanes),
            messages: Messages::default(),
            flows: Flows::default(),
            mailbox: Mailbox::new(transport, ranks)?,
            shared: SharedSlots::default(),
            workspace: Workspace::default(),
            shutdown: Shutdown::default(),
        })
    }

    /// Sets the members: their ranks in the world, by rank.
    pub(crate) fn set_members(&mut self, members: impl IntoIterator<Item = Rank>) {
        self.identity.members =
            members.into_iter().map(|world| CommMember { world, ..CommMember::default() }).collect();
        let members = self.identity.members.len();
        self.flows = Flows::new(members);
        self.mailbox.set_members(members);
    }

    /// True if nothing that this rank sent is in flight or queued.
    pub(crate) fn is_settled(&self) -> bool {
        self.mailbox.is_completed() && self.collectives.under_way == 0 && self.messages.under_way == 0
    }

    /// This rank leaves the group, unless it has left or something is under way. It tells the members that it has exchanged
    /// messages with.
    pub(crate) fn leave(&mut self) -> Result<(), Error> {
        if self.collectives.busy || self.shutdown.has_left() {
            return Ok(());
        }
        let identity = &self.identity;
        let is_alone = || (0..identity.members.len()).all(|rank| identity.is_gone(rank));
        self.messages.give_up_first(|from| from.map_or_else(is_alone, |rank| identity.is_gone(rank)));
        if self.messages.open() {
            return Ok(());
        }
        // A member that has received the end may drop the communicator, and not all providers keep the order of puts: so the end is
        // sent after all other puts have completed.
        self.settle_debts(true);
        if !self.is_settled() {
            return Ok(());
        }
        self.shutdown.state = ShutdownState::Left;
        self.tell_end()
    }

    /// Tells the members that this rank has exchanged messages with that it leaves, and how many operations it has begun. A member that
    /// it [has a flow](Self::note_flow) with later learns it then.
    pub(crate) fn tell_end(&mut self) -> Result<(), Error> {
        for rank in 0..self.identity.members.len() {
            if self.identity.members[rank].has_flow {
                self.tell_end_to(rank)?;
            }
        }
        Ok(())
    }

    fn tell_end_to(&mut self, rank: Rank) -> Result<(), Error> {
        self.mailbox.send(rank, ControlKind::End, self.collectives.begun)
    }

    /// There is a flow between this rank and a member.
    pub(crate) fn note_flow(&mut self, rank: Rank) -> Result<(), Error> {
        let had_flow = std::mem::replace(&mut self.identity.members[rank].has_flow, true);
        if had_flow || !self.shutdown.is_end_known() { Ok(()) } else { self.tell_end_to(rank) }
    }

    /// True if nothing of the communicator is in flight to this rank or from it.
    pub(crate) fn is_over(&self) -> bool {
        self.shutdown.has_left()
            && self.identity.all_ended()
            && self.mailbox.is_completed()
            && self.collectives.under_way == 0
            && self.messages.is_over()
    }

    /// This rank has left, and so have the members that it has met: frees the memory that serves these. The mailbox and control messages stay for the others.
    pub(crate) fn vacate(&mut self) {
        self.shutdown.state = ShutdownState::Vacant;
        self.workspace = Workspace::default();
        self.flows = Flows::new(self.identity.members.len());
        self.shared = SharedSlots::default();
    }

    /// The bytes of registered memory: windows, mailbox, control messages, scratch, inputs put aside, shared slots.
    pub(crate) fn memory(&self) -> usize {
        self.flows.memory() + self.mailbox.memory() + self.workspace.memory() + self.shared.memory()
    }

    /// Messages of a flow were freed or have landed: queues credit if it is [due](Flows::owe). If it waits for a header or a clear to
    /// send, and the sender may wait for it, a control message is sent when this rank has nothing else to do.
    pub(crate) fn owe(&mut self, receiver: usize, way: FlowWay) {
        // A member that needs no credit may have dropped the communicator, or all ranks are in the last barrier.
        if self.shutdown.has_left() || self.shutdown.is_last_barrier() {
            return;
        }
        if let Some(from) = self.flows.owe(receiver, way) {
            self.mailbox.send_credit(from, receiver, way);
        }
    }

    /// Queues credit that is due: if this rank is `idle`, all of it.
    pub(crate) fn settle_debts(&mut self, idle: bool) {
        let Self { flows, mailbox, .. } = self;
        flows.settle_debts(idle, |from, receiver, way| mailbox.send_credit(from, receiver, way));
    }

    /// The last barrier begins. This rank has taken all messages of the others, and in a barrier no rank sends more than one message to
    /// another, for which there is credit.
    pub(crate) fn shut_down(&mut self) {
        self.shutdown.state = ShutdownState::LastBarrier;
        self.flows.forgive(&(0..usize::MAX));
    }
}
