//! Hands a put to the transport and records what its end frees.

use super::core::Core;
use crate::engine::{
    access,
    endpoint::Record,
    stop::Stop,
    wire::{HEADER, Immediate},
};
use unisono_schedule::Rank;
use unisono_transport::{Notify, Posted, Put, Region, Source, Target};

/// Where the bytes of a put lie, and what its end frees.
pub(crate) struct Origin {
    pub region: Region,
    pub offset: usize,
    /// The incoming flow and slot that they landed in.
    pub hold: Option<(usize, usize)>,
    /// The staging slot that they were copied to.
    pub staging: Option<usize>,
}

/// A put of at most this many bytes, a header and little else, is copied: libfabric's providers do that.
const FEW: usize = 128;

/// Whose put it is.
#[derive(Clone, Copy)]
pub(crate) enum Whose {
    /// The operation's, on this lane.
    Lane { lane: usize },
    /// A message's from point to point; which one's, if that has not ended before this has left.
    Message(Option<u64>),
}

/// A put that has all it needs.
pub(crate) struct Ready {
    pub to: Rank,
    pub origin: Origin,
    pub bytes: usize,
    /// The record that is vacant for it.
    pub record: usize,
    /// Whether the record's header goes first.
    pub header: bool,
    pub target: Target,
    pub immediate: Immediate,
    pub whose: Whose,
}

impl Core<'_> {
    /// Hands a put to the transport. False if it has no room.
    pub(crate) fn post(&mut self, ready: Ready) -> Result<bool, Stop> {
        let Ready { to, origin, bytes, record, header, target, immediate, whose } = ready;
        let (peer, immediate) = self.port.to(self.comm.world(to), immediate)?;
        let (headers, at) = self.port.posts.header(record);
        let header_source = Source::new(headers, at, HEADER)?;
        let joined = header && self.port.joins(bytes);
        let both = [
            header_source,
            match (bytes, joined) {
                (0, _) => header_source,
                (_, false) => Source::new(&origin.region, origin.offset, bytes)?,
                (_, true) => {
                    // What is staged has room for it right before.
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
        // Nobody need wait for the end of what was copied and leaves at once; during shutdown every put is waited for.
        let notify = match whose {
            Whose::Lane { .. } if self.comm.shutting_down => Notify::Always,
            Whose::Lane { .. } if HEADER + bytes <= FEW && self.port.quiet(self.comm.world(to)) => {
                Notify::IfNotCopied
            }
            _ => Notify::IfNotInjected,
        };
        let put = Put { to: peer, sources, target, immediate, token: record as u64, notify };
        let posted = access::put(&mut *self.port.transport, &put);
        if posted.map_err(|error| self.port.broken(error))? == Posted::Full {
            return Ok(false);
        }
        let notified = put.notifies(&self.port.limits);
        self.port.sent(self.comm.world(to));
        let comm = &mut *self.comm;
        if !notified {
            // Its source may change at once.
            origin.staging.into_iter().for_each(|slot| self.port.posts.put_back(slot));
            return Ok(true);
        }
        let Origin { hold, staging, .. } = origin;
        let mut record = Record { comm_id: comm.comm_id, hold, staging, ..Record::default() };
        match whose {
            Whose::Lane { lane, .. } => {
                let reads = staging.is_none() && hold.is_none() && bytes > 0;
                comm.outstanding[lane] += usize::from(reads);
                record.lane = reads.then_some(lane);
                if let Some((receiver, slot)) = hold {
                    comm.receivers[receiver].hold(slot);
                }
                comm.under_way += 1;
            }
            Whose::Message(id) => {
                (record.message, record.id) = (true, id);
                comm.talk.under_way += 1;
            }
        }
        self.port.posts.begin(record);
        Ok(true)
    }
}
