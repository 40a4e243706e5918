//! The port and all communicators: hands each arrival to the communicator that it is for.

use std::collections::VecDeque;

use unisono_schedule::Rank;
use unisono_transport::{Error, Event, RemoteRegion};

use super::{communicator::Comm, core::Core, shutdown::Vacant};
use crate::{
    endpoint::{Port, control_of_token},
    settings::Settings,
    stop::Stop,
    wire::{CommId, Immediate, MAX_COMMS, Way},
};

/// The communicators that this rank is leaving, or has left before other members.
#[derive(Default)]
pub(crate) struct Leaving {
    /// Those in which something has happened since the engine last looked at them.
    pub(super) changed: Vec<CommId>,
    /// Those that may change without an event.
    pub(super) watched: Vec<CommId>,
    /// Those that became [vacant](Vacant), the oldest first; some may not be vacant any more.
    pub(super) vacant: VecDeque<CommId>,
    /// How often a communicator was looked at.
    #[cfg(debug_assertions)]
    pub looks: usize,
}

#[cfg(debug_assertions)]
impl Leaving {
    /// The number of communicators that are to be looked at.
    pub(crate) fn len(&self) -> usize {
        self.changed.len() + self.watched.len()
    }
}

/// The port and all communicators, without the operations.
pub(crate) struct Net {
    pub port: Port,
    /// The communicators, by id.
    pub comms: Vec<Option<Box<Comm>>>,
    /// The communicators that this rank is leaving, or has left before other members.
    pub leaving: Leaving,
    /// True if this rank leaves all groups: then it waits for no receive, and memory of communicators stays, since members that have
    /// not left may still send.
    pub leaves_all: bool,
    /// Operations that have ended since the latest poll.
    pub unpolled: u32,
}

/// This many operations may end without a poll: those through shared slots need none, and messages of others must not wait for ever.
const MAX_UNPOLLED: u32 = 16;

/// A bit for each communicator id.
pub type CommIds = [u64; MAX_COMMS / 64];

impl Net {
    /// A communicator and the port.
    pub(crate) fn core(&mut self, comm_id: CommId) -> Result<Core<'_>, Stop> {
        match self.comms.get_mut(usize::from(comm_id)) {
            Some(Some(comm)) => Ok(Core { port: &mut self.port, comm }),
            _ => Err(self.port.stop(format!("there is no communicator {comm_id}"))),
        }
    }

    /// A communicator, if it exists.
    pub(crate) fn comm(&self, comm_id: CommId) -> Option<&Comm> {
        self.comms.get(usize::from(comm_id))?.as_deref()
    }

    /// The communicator ids that are free on this rank, a bit for each.
    pub(crate) fn free_comm_ids(&self) -> CommIds {
        let most = self.comms.iter().flatten().map(|comm| comm.settings.bounds.comms).next().unwrap_or(0);
        let below = |end: usize| if end >= 64 { u64::MAX } else { (1 << end) - 1 };
        let mut free = std::array::from_fn(|word| below(most.saturating_sub(64 * word)));
        for (comm_id, comm) in self.comms.iter().enumerate() {
            if comm.as_ref().is_some_and(|comm| comm.shutdown.vacant != Some(Vacant::Offered)) {
                free[comm_id / 64] &= !(1 << (comm_id % 64));
            }
        }
        free
    }

    /// Makes a communicator of these ranks of the world, in which this one is rank `me`, and returns its mailbox; `None` if another one
    /// has that id. Nothing is sent to its members before their mailboxes are [known](super::mailbox::Mailbox::introduce).
    pub(crate) fn open(
        &mut self,
        comm_id: CommId,
        me: Rank,
        members: &[Rank],
        settings: Settings,
    ) -> Result<Option<RemoteRegion>, Error> {
        let place = usize::from(comm_id);
        if let Some(Some(old)) = self.comms.get_mut(place) {
            // All members of the new group have said that they have left the old one.
            if old.shutdown.vacant.is_none()
                || !old.identity.members.iter().all(|member| members.contains(&member.world))
            {
                old.shutdown.vacant = old.shutdown.vacant.map(|_| Vacant::Kept);
                return Ok(None);
            }
            self.free(comm_id);
        }
        let mut comm = Comm::new(&mut *self.port.transport, comm_id, (me, members.len()), settings)?;
        comm.set_members(members.iter().copied());
        let mailbox = comm.mailbox();
        if self.comms.len() <= place {
            self.comms.resize_with(place + 1, || None);
        }
        self.comms[place] = Some(Box::new(comm));
        Ok(Some(mailbox))
    }

    /// True if control messages of any communicator are queued or in flight, including those that tell its members that this rank has
    /// left.
    pub(crate) fn has_control(&self) -> bool {
        self.comms.iter().flatten().any(|comm| !comm.mailbox.is_completed())
    }

    /// Hands the control messages of all communicators to the transport, as many as it takes. True if it took any.
    pub(crate) fn send_control(&mut self) -> Result<bool, Stop> {
        let mut any = false;
        for comm in self.comms.iter_mut().flatten().filter(|comm| comm.mailbox.has_queued()) {
            any |= Core { port: &mut self.port, comm }.send_control()?;
        }
        Ok(any)
    }

    /// An operation has ended: polls if many have ended without a poll.
    pub(crate) fn poll_at_times(&mut self) -> Result<(), Stop> {
        self.unpolled += 1;
        if self.unpolled < MAX_UNPOLLED { Ok(()) } else { self.poll().map(drop) }
    }

    /// Polls the transport and handles its events. True if there were any.
    pub(crate) fn poll(&mut self) -> Result<bool, Stop> {
        self.unpolled = 0;
        let (events, result) = self.port.poll();
        let any = !events.is_empty();
        for event in &events {
            match *event {
                Event::Arrived { immediate, len } => self.arrived(immediate, len)?,
                Event::Sent { token } => self.sent(token)?,
            }
        }
        self.port.seen(events);
        result?;
        if !self.port.crowded.is_empty() || !self.port.wanting.is_empty() {
            self.give_back()?;
        }
        Ok(any)
    }

    fn sent(&mut self, token: u64) -> Result<(), Stop> {
        if let Some((comm_id, copied)) = control_of_token(token) {
            let comm = self.core(comm_id)?.comm;
            comm.mailbox.put_left(copied);
            self.mark_changed(comm_id);
            return Ok(());
        }
        let Some(record) = self.port.posts.end(token) else {
            let what = format!("the transport ended a put that was never begun (token {token})");
            return Err(self.port.stop(what));
        };
        self.core(record.comm_id)?.sent(&record);
        self.mark_changed(record.comm_id);
        Ok(())
    }

    /// Hands an arrival to its communicator. An arrival that no rank can have sent is an error.
    pub(crate) fn arrived(&mut self, bits: u32, len: Option<usize>) -> Result<(), Stop> {
        match Immediate::decode(bits ^ self.port.mask) {
            Immediate::Data { flow, way, number } => {
                let Some((comm_id, receiver)) = self.port.incoming.find(flow) else {
                    return Err(self.port.forged(format!("a message on flow {flow}, which leads nowhere")));
                };
                let mut core = self.core(comm_id)?;
                core.port.arrived(core.comm.identity.world(core.comm.flows.receivers[receiver].from));
                match way {
                    Way::Slots => core.message_arrived(receiver, number, len)?,
                    Way::Direct => core.write_arrived(receiver, number)?,
                }
                self.mark_changed(comm_id);
                Ok(())
            }
            Immediate::Credit { flow, way, freed } => {
                let Some((comm_id, sender)) = self.port.outgoing.find(flow) else {
                    // Late credit of a communicator that has ended.
                    if self.port.outgoing.retired(flow) {
                        return Ok(());
                    }
                    return Err(self
                        .port
                        .forged(format!("credit for flow {flow}, on which nothing was sent")));
                };
                let mut core = self.core(comm_id)?;
                core.port.arrived(core.comm.identity.world(core.comm.flows.senders[sender].flow.to));
                core.credit_arrived(sender, way, freed).map_err(|violation| core.port.forged(violation.0))
            }
            Immediate::ControlMessage { comm_id, from, about } => {
                let comm = self.comms.get_mut(usize::from(comm_id));
                let Some(comm) = comm.and_then(Option::as_mut).filter(|it| from < it.identity.members.len())
                else {
                    let what = format!(
                        "a control message of rank {from} for communicator {comm_id}, which does not exist"
                    );
                    return Err(self.port.forged(what));
                };
                self.port.arrived(comm.identity.world(from));
                if comm.shutdown.vacant.take().is_some() {
                    comm.shutdown.leaves = true;
                }
                Core { port: &mut self.port, comm }.control_arrived(from, about)?;
                self.mark_changed(comm_id);
                Ok(())
            }
        }
    }
}
