//! The port and all communicators: hands each arrival to the communicator that it is for.

use std::{collections::VecDeque, time::Instant};

use unisono_transport::Event;

use super::{communicator::Comm, core::Core, shutdown::ShutdownState};
use crate::{
    endpoint::{Port, control_of_token},
    request::Operation,
    stop::{Halt, Result, StalledOperation, Stop},
    wire::{CommId, FlowWay, Immediate},
};

/// The communicators that this rank is leaving, or has left before other members.
#[derive(Default)]
pub(crate) struct Leaving {
    /// Those in which something has happened since the engine last looked at them.
    pub(crate) changed: Vec<CommId>,
    /// Those that may change without an event.
    pub(crate) watched: Vec<CommId>,
    /// Those that became [vacant](ShutdownState::Vacant), the oldest first; some may not be vacant any more.
    pub(super) vacant: VecDeque<CommId>,
    /// How often a communicator was looked at.
    #[cfg(debug_assertions)]
    pub looks: usize,
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

impl Net {
    /// A communicator and the port.
    pub(crate) fn core(&mut self, comm_id: CommId) -> Result<Core<'_>> {
        match self.comms.get_mut(usize::from(comm_id)) {
            Some(Some(comm)) => Ok(Core { port: &mut self.port, comm }),
            _ => Err(self.port.stop(format!("there is no communicator {comm_id}"))),
        }
    }

    /// Why the engine stops at an operation of a communicator, which was submitted at `since`.
    #[cold]
    pub(crate) fn halt(&self, comm_id: CommId, operation: &Operation, stop: Stop, since: Instant) -> Halt {
        let mut stalled = StalledOperation::new(operation.plan.signature, since);
        stalled.number = Some(operation.number);
        if let Some(Comm { identity, .. }) = self.comm(comm_id) {
            (stalled.group, stalled.id) = (identity.label.clone(), identity.id);
        }
        Halt::at(stop, stalled)
    }

    /// A communicator, if it exists.
    pub(crate) fn comm(&self, comm_id: CommId) -> Option<&Comm> {
        self.comms.get(usize::from(comm_id))?.as_deref()
    }

    /// The same, to change it.
    pub(crate) fn comm_mut(&mut self, comm_id: CommId) -> Option<&mut Comm> {
        self.comms.get_mut(usize::from(comm_id))?.as_deref_mut()
    }

    /// Hands the control messages of all communicators to the transport, as many as it takes. True if it took any.
    pub(crate) fn send_control(&mut self) -> Result<bool> {
        let mut any = false;
        for comm in self.comms.iter_mut().flatten().filter(|comm| comm.mailbox.has_queued()) {
            any |= Core { port: &mut self.port, comm }.send_control()?;
        }
        Ok(any)
    }

    /// An operation has ended: polls if many have ended without a poll.
    pub(crate) fn poll_at_times(&mut self) -> Result<()> {
        self.unpolled += 1;
        if self.unpolled < MAX_UNPOLLED { Ok(()) } else { self.poll().map(drop) }
    }

    /// Polls the transport and handles its events. True if there were any.
    pub(crate) fn poll(&mut self) -> Result<bool> {
        self.unpolled = 0;
        let mut events = std::mem::take(&mut self.port.events);
        let polled = self.port.transport.poll(&mut events);
        let any = !events.is_empty();
        for event in &events {
            match *event {
                Event::Arrived { immediate, len } => self.arrived(immediate, len)?,
                Event::Sent { token } => self.sent(token)?,
            }
        }
        events.clear();
        self.port.events = events;
        polled.map_err(|error| self.port.broken(error))?;
        if !self.port.crowded.is_empty() || !self.port.wanting.is_empty() {
            self.give_back()?;
        }
        Ok(any)
    }

    fn sent(&mut self, token: u64) -> Result<()> {
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
    pub(crate) fn arrived(&mut self, bits: u32, len: Option<usize>) -> Result<()> {
        match Immediate::decode(bits ^ self.port.mask) {
            Immediate::Data { flow, way, number } => {
                let Some((comm_id, receiver)) = self.port.incoming.find(flow) else {
                    return Err(self.port.forged(format!("a message on flow {flow}, which leads nowhere")));
                };
                let mut core = self.core(comm_id)?;
                core.port.arrived(core.comm.identity.world(core.comm.flows.receivers[receiver].from));
                match way {
                    FlowWay::Slots => core.message_arrived(receiver, number, len)?,
                    FlowWay::Direct => core.write_arrived(receiver, number)?,
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
                let credits = &mut core.comm.flows.senders[sender].credits;
                *credits = credits.wrapping_add(1);
                core.credited(sender, way, freed).map_err(|violation| core.port.forged(violation))
            }
            Immediate::ControlMessage { comm_id, from, about } => {
                let Self { port, comms, .. } = self;
                let comm = comms.get_mut(usize::from(comm_id)).and_then(Option::as_mut);
                let Some(comm) = comm.filter(|it| from < it.identity.members.len()) else {
                    return Err(port.forged(format!(
                        "a control message of rank {from} for communicator {comm_id}, which does not exist"
                    )));
                };
                port.arrived(comm.identity.world(from));
                if comm.shutdown.is_vacant() {
                    comm.shutdown.state = ShutdownState::Left;
                }
                Core { port, comm }.control_arrived(from, about)?;
                self.mark_changed(comm_id);
                Ok(())
            }
        }
    }
}
