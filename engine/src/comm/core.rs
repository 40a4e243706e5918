//! A communicator together with the port, for the work of an operation. Handles the messages and writes that arrive.

use unisono_core::error::Failure;
use unisono_schedule::Rank;
#[cfg(debug_assertions)]
use unisono_schedule::Step;
use unisono_transport::{Error, Region, RemoteRegion};

use super::{communicator::Comm, window::WindowSender};
#[cfg(debug_assertions)]
use crate::endpoint::Traced;
use crate::{
    endpoint::{Port, PutRecord, Whose},
    memory::{self, Stretch},
    request::Operation,
    stop::{Result, Stop},
    wire::{FlowHeader, FlowWay, HEADER, WindowClass},
};

/// A communicator together with the port.
pub(crate) struct Core<'e> {
    pub port: &'e mut Port,
    pub comm: &'e mut Comm,
}

impl Core<'_> {
    /// An operation begins: assigns its number.
    pub(crate) fn begin(&mut self, operation: &mut Operation) {
        let Self { port, comm } = self;
        port.clock += 1;
        comm.collectives.begin(operation, port.clock);
    }

    /// The information that peers need to write into borrowed memory, and the region to keep meanwhile. The memory lies in a registered
    /// buffer, or is registered for this operation if registration is cheap; otherwise `None`.
    pub(crate) fn expose(&mut self, memory: &Stretch) -> Result<Option<(RemoteRegion, Region)>, Error> {
        if memory.registered {
            return Ok(memory.remote());
        }
        if !self.port.limits.cheap_registration {
            return Ok(None);
        }
        let region = self.port.transport.register(memory::expose(&memory.region))?;
        Ok(Stretch::from(region).remote())
    }

    /// Changes a sending end, and accounts for the change of its bytes in flight.
    pub(crate) fn sending<R>(&mut self, sender: usize, change: impl FnOnce(&mut WindowSender) -> R) -> R {
        let Self { port, comm } = self;
        let end = &mut comm.flows.senders[sender];
        let before = end.bytes();
        let result = change(end);
        let (to, now) = (end.flow.to, end.bytes());
        port.in_flight(comm.identity.world(to), now, before);
        result
    }

    /// The put of this record has ended.
    pub(crate) fn sent(&mut self, record: &PutRecord) {
        let comm = &mut *self.comm;
        let lane = match record.whose {
            Whose::Message(id) => return comm.messages.put_left(id),
            Whose::Collective(lane) => lane,
        };
        comm.collectives.put_left(lane);
        if let Some((receiver, slot)) = record.hold {
            comm.flows.receivers[receiver].release(slot);
            comm.owe(receiver, FlowWay::Slots);
        }
    }

    /// A message has landed in a slot. The credit in its header counts at once, not only when a lane takes the message: the lane may be
    /// waiting for that credit.
    pub(crate) fn message_arrived(&mut self, flow: usize, number: u16, len: Option<usize>) -> Result<()> {
        let comm = &mut *self.comm;
        let receiver = &mut comm.flows.receivers[flow];
        let from = receiver.from;
        let window = &comm.flows.windows[receiver.window];
        if let Some(len) = len.filter(|len| !(HEADER..=HEADER + window.slot_bytes).contains(len)) {
            let what =
                format!("a message of {len} bytes, in a slot for {HEADER} to {}", HEADER + window.slot_bytes);
            return Err(self.port.forged(what));
        }
        let slot = match receiver.arrive(number) {
            Ok(slot) => slot,
            Err(violation) => return Err(self.port.forged(violation)),
        };
        if window.class == WindowClass::Message && !comm.messages.arrived.contains(&flow) {
            comm.messages.arrived.push(flow);
            self.port.mark_active(comm.identity.comm_id);
        }
        let sender = comm.flows.sender(from, window.class, flow - window.first_flow);
        if let Some(sender) = sender {
            let FlowHeader { freed, .. } = comm.flows.header(flow, slot)?;
            let credit = self.sending(sender, |end| end.flow.credit(freed));
            credit.map_err(|violation| self.violation(from, violation))?;
        }
        self.comm.owe(flow, FlowWay::Slots);
        Ok(())
    }

    /// A write has landed in this rank's memory.
    pub(crate) fn write_arrived(&mut self, flow: usize, number: u16) -> Result<()> {
        let message = self.comm.flows.is_message(&self.comm.flows.landings[flow]);
        if message {
            let written = &mut self.comm.messages.written;
            if !written.contains(&flow) {
                written.push(flow);
                self.port.mark_active(self.comm.identity.comm_id);
            }
        } else if !self.comm.collectives.exposed {
            return Err(self.port.forged("a write into an output that nobody was allowed to write to"));
        }
        let arrived = self.comm.flows.landings[flow].arrive(number);
        arrived.map_err(|violation| self.port.forged(violation))?;
        self.comm.owe(flow, FlowWay::Direct);
        Ok(())
    }

    /// Keeps a step that a lane has finished.
    #[cfg(debug_assertions)]
    pub(crate) fn trace(&mut self, lane: usize, step: Option<Step>) {
        if let (Some(trace), Some(step)) = (&mut self.port.trace, step) {
            trace.push(Traced { lane, step, in_flight: self.comm.collectives.under_way });
        }
    }

    /// The failure for a message of a member that breaks the protocol.
    #[cold]
    pub(crate) fn violation(&self, from: Rank, what: impl Into<String>) -> Stop {
        let from = self.comm.identity.world(from);
        Failure::Protocol { rank: self.port.me, from, what: what.into() }.into()
    }

    #[cold]
    pub(crate) fn stop(&self, reason: impl Into<String>) -> Stop {
        self.port.stop(reason)
    }
}
