//! The endpoint that all communicators of a process share: the transport with its peers, the puts in flight, the numbers of flows.

use std::sync::Arc;

use rustix::rand::{GetRandomFlags, getrandom};
use unisono_core::{error::Failure, position::Traffic};
use unisono_schedule::{Rank, Step};
use unisono_transport::{Error, Event, Limits, Peer, Region, Transport};

use super::{Contacts, posts::Posts, routes::Routes};
use crate::{
    settings::Settings,
    stop::{Broken, Result, Stop},
    wire::{CommId, Immediate, WindowClass},
};

/// If no more bytes than these are in flight, a socket has room for them and for one more small message (`net.ipv4.tcp_wmem`:
/// 16 KiB at first, and an established connection has at least 20 segments).
const LITTLE: usize = 16 << 10;

/// Another process of the world, or this one.
#[derive(Debug, Default)]
struct Link {
    /// Its handle, and the mask of immediates to it; `None` before it is connected.
    peer: Option<(Peer, u32)>,
    /// At most this many bytes are in flight to it, of all communicators, which share a connection.
    bytes: usize,
    /// The number of puts to it.
    sent: u64,
    /// The number of its puts that have arrived.
    arrived: u64,
    /// The open windows through which it sends, of all communicators.
    windows: Vec<(CommId, usize)>,
    /// The most arrivals in flight through these windows.
    expected: usize,
}

/// A finished step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traced {
    /// The lane that has finished it.
    pub lane: usize,
    /// The step.
    pub step: Step,
    /// The number of this rank's puts in flight then: a reduction with any has overlapped with the wire.
    pub in_flight: usize,
}

/// A process's one endpoint.
pub(crate) struct Port {
    pub transport: Box<dyn Transport>,
    pub limits: Limits,
    /// This process's rank in the world.
    pub me: Rank,
    /// The mask of immediates to this process. Ranks of the job learn it when they join; a stranger can hardly guess a valid
    /// immediate.
    pub mask: u32,
    pub posts: Posts,
    /// The flows to this process, by number.
    pub incoming: Routes,
    /// The flows from this process, by the number that credits for them name.
    pub outgoing: Routes,
    links: Vec<Link>,
    /// The known processes.
    pub(crate) contacts: Option<Arc<dyn Contacts>>,
    /// The most arrivals in flight: the completion queue must hold them.
    expected: usize,
    /// The most arrivals of one peer before windows of idle communicators are closed.
    share: usize,
    /// The peers that have more arrivals than that.
    pub crowded: Vec<Rank>,
    /// Windows that cannot open before there is room: communicator and index.
    pub wanting: Vec<(CommId, usize)>,
    /// Memory of windows that were closed, by class.
    pub spare: [Vec<Region>; 3],
    /// Counts the uses of windows, and the operations that have begun.
    pub clock: u64,
    /// True if this rank is in the last barrier of shutdown.
    pub shutting_down: bool,
    /// An empty list for the events of a poll.
    pub events: Vec<Event>,
    /// The communicators that have messages from point to point to look at, even if no call of this rank waits for one.
    pub active_comms: Vec<CommId>,
    /// The finished steps of all operations, if a test keeps them.
    #[cfg(debug_assertions)]
    pub trace: Option<Vec<Traced>>,
}

impl Port {
    pub(crate) fn new(
        mut transport: Box<dyn Transport>,
        me: Rank,
        settings: &Settings,
    ) -> Result<Self, Error> {
        let limits = transport.limits().clone();
        let staging_bytes = settings.chunk_bytes.max(settings.eager_bytes);
        let posts = Posts::new(&mut *transport, settings.staging(), staging_bytes)?;
        Ok(Self {
            transport,
            limits,
            me,
            mask: mask()?,
            posts,
            incoming: Routes::default(),
            outgoing: Routes::default(),
            links: Vec::new(),
            contacts: None,
            expected: 0,
            share: usize::MAX,
            crowded: Vec::new(),
            wanting: Vec::new(),
            spare: Default::default(),
            clock: 0,
            shutting_down: false,
            events: Vec::with_capacity(64),
            active_comms: Vec::new(),
            #[cfg(debug_assertions)]
            trace: None,
        })
    }

    /// Sets the number of processes of the world. `least`: the most arrivals of one of them through the windows of one communicator.
    pub(crate) fn set_ranks(&mut self, ranks: usize, least: usize) {
        // Half, since a window is opened before another has been closed.
        let fair = self.limits.arrivals / 2 / ranks.saturating_sub(1).max(1);
        self.share = fair.min(self.limits.arrivals_per_peer).max(least);
        self.links.resize_with(ranks, Link::default);
    }

    /// The handle of a process, which is connected on first use, and the masked immediate.
    pub(crate) fn to(&mut self, world: Rank, immediate: Immediate) -> Result<(Peer, u32)> {
        let (peer, mask) = self.peer(world)?;
        Ok((peer, immediate.encode() ^ mask))
    }

    /// The handle of a process, which is connected on first use, and the mask of immediates to it.
    pub(crate) fn peer(&mut self, world: Rank) -> Result<(Peer, u32)> {
        match self.links.get(world).and_then(|link| link.peer) {
            Some(known) => Ok(known),
            None => self.connect(world),
        }
    }

    #[cold]
    fn connect(&mut self, world: Rank) -> Result<(Peer, u32)> {
        let contact = self.contacts.as_ref().and_then(|contacts| contacts.contact(world));
        let (Some(link), Some(contact)) = (self.links.get_mut(world), contact) else {
            return Err(self.stop(format!("nothing is known of rank {world}")));
        };
        Ok(*link.peer.insert((self.transport.connect(&contact.address)?, contact.mask)))
    }

    /// The bytes in flight to a process change: of one flow they were `before`, and are `now`.
    pub(crate) fn in_flight(&mut self, world: Rank, now: usize, before: usize) {
        if let Some(link) = self.links.get_mut(world) {
            link.bytes = (link.bytes + now).saturating_sub(before);
        }
    }

    /// The transport has taken a put to a process.
    pub(crate) fn sent(&mut self, world: Rank) {
        if let Some(link) = self.links.get_mut(world) {
            link.sent += 1;
        }
    }

    /// A put of a process has arrived.
    pub(crate) fn arrived(&mut self, world: Rank) {
        if let Some(link) = self.links.get_mut(world) {
            link.arrived += 1;
        }
    }

    /// The numbers of puts to and from each process, if there were any.
    pub(crate) fn traffic(&self) -> impl Iterator<Item = Traffic> {
        let all = self.links.iter().enumerate();
        let traffic = all.map(|(rank, link)| Traffic { rank, sent: link.sent, arrived: link.arrived });
        traffic.filter(|it| it.sent + it.arrived > 0)
    }

    /// True if so few bytes are in flight to a process that one more small message, which is copied, leaves at once: it does not
    /// wait in the provider for room in the socket until the next poll.
    pub(crate) fn leaves_at_once(&self, world: Rank) -> bool {
        self.links.get(world).is_some_and(|link| link.bytes <= LITTLE)
    }

    /// True if a header and this many bytes after it must be contiguous to be one put.
    pub(crate) fn joins(&self, bytes: usize) -> bool {
        bytes > 0 && self.limits.max_sources == 1
    }

    /// True if there is room for this many more arrivals at once.
    pub(crate) fn has_room(&self, arrivals: usize) -> bool {
        // In the last barrier no other window is used any more.
        self.shutting_down || self.expected + arrivals <= self.limits.arrivals
    }

    /// A window opens: a process may have this many more arrivals in flight.
    pub(crate) fn expect(&mut self, world: Rank, window: (CommId, usize), arrivals: usize) {
        self.expected += arrivals;
        let Some(link) = self.links.get_mut(world) else { return };
        link.expected += arrivals;
        link.windows.push(window);
        if link.expected > self.share {
            self.crowded.push(world);
        }
    }

    /// A window is closed: nothing arrives through it any more.
    pub(crate) fn expect_no_more(&mut self, world: Rank, window: (CommId, usize), arrivals: usize) {
        let Some(link) = self.links.get_mut(world) else { return };
        let Some(at) = link.windows.iter().position(|it| *it == window) else { return };
        link.windows.swap_remove(at);
        link.expected = link.expected.saturating_sub(arrivals);
        self.expected = self.expected.saturating_sub(arrivals);
    }

    /// The number of arrivals that a process has beyond its share.
    pub(crate) fn excess(&self, world: Rank) -> usize {
        self.links.get(world).map_or(0, |link| link.expected.saturating_sub(self.share))
    }

    /// The windows through which a process sends.
    pub(crate) fn windows(&self, world: Rank) -> &[(CommId, usize)] {
        self.links.get(world).map_or(&[], |link| &link.windows)
    }

    pub(crate) fn all_windows(&self) -> Vec<(CommId, usize)> {
        self.links.iter().flat_map(|link| link.windows.iter().copied()).collect()
    }

    /// A communicator has messages from point to point to look at or to send.
    pub(crate) fn mark_active(&mut self, comm_id: CommId) {
        if !self.active_comms.contains(&comm_id) {
            self.active_comms.push(comm_id);
        }
    }

    /// An error of the transport, with the rank and host that it is about. (The transport numbers peers in the order of connection.)
    #[cold]
    pub(crate) fn broken(&self, error: Error) -> Stop {
        let is = |link: &Link, peer: Peer| link.peer.is_some_and(|(handle, _)| handle == peer);
        let at = error.peer().and_then(|peer| self.links.iter().position(|link| is(link, peer)));
        let host = |rank| Some(self.contacts.as_ref()?.contact(rank)?.host);
        let with = at.and_then(|rank| Some(format!("the connection to rank {rank} on {}: ", host(rank)?)));
        Stop::Transport(Box::new(Broken { error, with: with.unwrap_or_default() }))
    }

    /// The failure for an arrival that no rank can have sent.
    #[cold]
    pub(crate) fn forged(&self, what: impl Into<String>) -> Stop {
        let Limits { provider, listens, .. } = &self.limits;
        let at = if listens.is_empty() { provider.clone() } else { format!("{provider} at {listens}") };
        Stop::from(Failure::Forged { rank: self.me, at, what: what.into() })
    }

    #[cold]
    pub(crate) fn stop(&self, reason: impl Into<String>) -> Stop {
        Stop::from(Failure::Transport {
            rank: self.me,
            doing: format!("driving {}", self.limits.provider),
            reason: reason.into(),
        })
    }

    /// Keeps the memory of a closed window for the next one of its class.
    pub(crate) fn keep(&mut self, class: WindowClass, region: Region) {
        /// This is more than the number of windows that are closed for the peers of one operation.
        const SPARE: usize = 64;
        let spare = &mut self.spare[class.index()];
        if spare.len() < SPARE {
            spare.push(region);
        }
    }
}

/// Random bits from the operating system.
fn mask() -> Result<u32, Error> {
    let mut bytes = [0; 4];
    getrandom(&mut bytes, GetRandomFlags::empty()).map_err(|error| Error::System {
        call: "getrandom",
        context: "for the mask of immediates".into(),
        code: error.raw_os_error().into(),
        reason: error.to_string(),
    })?;
    Ok(u32::from_ne_bytes(bytes))
}
