//! Hands a put to the transport and records the resources that its end frees.

use bytemuck::Pod;
use unisono_schedule::windows::stride;
use unisono_transport::{Notify, Posted, Put, Region, Source, Target};

use super::{core::Core, flow::OutgoingFlow};
use crate::{
    access,
    endpoint::{PutRecord, Whose},
    stop::Result,
    wire::{FlowHeader, FlowWay, HEADER, Immediate, PAYLOAD},
};

/// The source of a put, and the resources that the put's end frees.
pub(crate) struct PutOrigin {
    pub region: Region,
    pub offset: usize,
    /// The incoming flow and the slot that the source lies in, if it does.
    pub hold: Option<(usize, usize)>,
    /// The staging slot that the source lies in, if it does.
    pub staging: Option<usize>,
    /// True if the receiver should fetch the bytes ([`Put::fetch`]).
    pub fetch: bool,
}

impl PutOrigin {
    /// A source that belongs to no flow and is not staged.
    pub(crate) fn new(region: Region, offset: usize) -> Self {
        Self { region, offset, hold: None, staging: None, fetch: false }
    }
}

/// libfabric's providers copy a put of at most this many bytes: a header and few elements.
const FEW: usize = 128;

/// A put of a flow that has all it needs: a window, a credit and a record.
pub(crate) struct ReadyPut {
    /// The sending end of its flow.
    pub sender: usize,
    pub origin: PutOrigin,
    /// The bytes of its elements.
    pub bytes: usize,
    /// The record that is vacant for it.
    pub record: usize,
    pub whose: Whose,
}

impl Core<'_> {
    /// A record for the next put of a flow; `None` if the flow has no credit, or no record is free.
    pub(crate) fn record(&self, flow: &OutgoingFlow) -> Option<usize> {
        self.port.posts.vacant().filter(|_| flow.has_credit())
    }

    /// Puts the next message of a flow into its slot. The header also carries credit for the `opposite` flow, if there is one.
    /// False if the transport has no room.
    pub(crate) fn put_to_slot<H: Pod>(
        &mut self,
        ready: ReadyPut,
        opposite: Option<usize>,
        header: impl FnOnce(FlowHeader) -> H,
    ) -> Result<bool> {
        let ReadyPut { sender, bytes, record, whose, .. } = ready;
        let end = &self.comm.flows.senders[sender];
        let freed = opposite.map_or(0, |flow| self.comm.flows.receivers[flow].freed);
        let (headers, at) = self.port.posts.header(record);
        access::store(headers, at, &header(FlowHeader::new(freed, end.reply)))?;
        let number = end.flow.sent;
        let slot = end.flow.first + end.flow.slot(number) * stride(end.slot_bytes) as u64;
        let target = Target { region: end.region, offset: slot + (PAYLOAD - HEADER) as u64 };
        let immediate =
            Immediate::Data { flow: end.flow.id, way: FlowWay::Slots, number: (number & 0xffff) as u16 };
        if !self.post(ready, true, target, immediate)? {
            return Ok(false);
        }
        self.sending(sender, |end| end.flow.advance(HEADER + bytes));
        if let Some(flow) = opposite {
            let flow = &mut self.comm.flows.receivers[flow];
            match whose {
                Whose::Collective(_) => flow.answer(),
                Whose::Message(_) => flow.tell(),
            }
        }
        Ok(true)
    }

    /// Puts the next write of a flow straight into the receiver's memory. False if the transport has no room.
    pub(crate) fn put_direct(&mut self, ready: ReadyPut, target: Target) -> Result<bool> {
        let ReadyPut { sender, bytes, .. } = ready;
        let flow = &self.comm.flows.senders[sender].writes;
        let number = (flow.sent & 0xffff) as u16;
        let immediate = Immediate::Data { flow: flow.id, way: FlowWay::Direct, number };
        let posted = self.post(ready, false, target, immediate)?;
        if posted {
            self.sending(sender, |end| end.writes.advance(bytes));
        }
        Ok(posted)
    }

    /// Hands a put to the transport, with the record's `header` first if it has one. False if the transport has no room.
    fn post(&mut self, ready: ReadyPut, header: bool, target: Target, immediate: Immediate) -> Result<bool> {
        let ReadyPut { sender, origin, bytes, record, whose } = ready;
        let to = self.comm.identity.world(self.comm.flows.senders[sender].flow.to);
        let (peer, immediate) = self.port.to(to, immediate)?;
        let (headers, at) = self.port.posts.header(record);
        let header_source = Source::new(headers, at, HEADER)?;
        let joined = header && self.port.joins(bytes);
        let both = [
            header_source,
            match (bytes, joined) {
                (0, _) => header_source,
                (_, false) => Source::new(&origin.region, origin.offset, bytes)?,
                (_, true) => {
                    // A staging slot has room for the header right before the elements.
                    let header: [u64; HEADER / 8] = access::load(headers, at)?;
                    let at = origin.offset - HEADER;
                    access::store(&origin.region, at, &header)?;
                    Source::new(&origin.region, at, HEADER + bytes)?
                }
            },
        ];
        let sources = match (header && !joined, bytes) {
            (true, 0) => &both[..1],
            (true, _) => &both[..],
            (false, _) => &both[1..],
        };
        // A put that is copied and leaves at once needs no notice of its end, except in the last barrier.
        let notify = match whose {
            Whose::Collective(_) if self.comm.shutdown.is_last_barrier() => Notify::Always,
            Whose::Collective(_) if HEADER + bytes <= FEW && self.port.leaves_at_once(to) => {
                Notify::IfNotCopied
            }
            _ => Notify::IfNotInjected,
        };
        let put =
            Put { to: peer, sources, target, immediate, token: record as u64, notify, fetch: origin.fetch };
        let posted = access::put(&mut *self.port.transport, &put);
        if posted.map_err(|error| self.port.broken(error))? == Posted::Full {
            return Ok(false);
        }
        let notified = put.notifies(&self.port.limits);
        self.port.sent(to);
        let comm = &mut *self.comm;
        if !notified {
            // The source may change at once.
            origin.staging.into_iter().for_each(|slot| self.port.posts.put_back(slot));
            return Ok(true);
        }
        let PutOrigin { hold, staging, .. } = origin;
        let whose = match whose {
            Whose::Collective(lane) => {
                let lane = lane.filter(|_| staging.is_none() && hold.is_none() && bytes > 0);
                if let Some(lane) = lane {
                    comm.collectives.outstanding[lane] += 1;
                }
                if let Some((receiver, slot)) = hold {
                    comm.flows.receivers[receiver].hold(slot);
                }
                comm.collectives.under_way += 1;
                Whose::Collective(lane)
            }
            Whose::Message(_) => {
                comm.messages.under_way += 1;
                whose
            }
        };
        self.port.posts.begin(PutRecord { comm_id: comm.identity.comm_id, whose, hold, staging });
        Ok(true)
    }
}
