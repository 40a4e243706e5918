//! What all groups of a process share: the transport with its peers, the puts under way, the numbers of flows.

use rustix::rand::{GetRandomFlags, getrandom};
use unisono_schedule::Rank;
use unisono_transport::{Address, Error, Event, Limits, Peer, Region, Transport};

use super::{posts::Posts, routes::Routes};
use crate::{
    engine::{
        settings::Settings,
        stop::{Broken, Stop},
        wire::{Class, CommId, Immediate},
    },
    error::Failure,
    position::Traffic,
};

/// So many bytes on their way are little: a socket has room for them and for a small message more (`net.ipv4.tcp_wmem`:
/// 16 KiB at first, and a connection that is established has at least 20 segments).
const LITTLE: usize = 16 << 10;

/// Another process of the world, or this one.
#[derive(Debug)]
struct Link {
    address: Address,
    /// What people call its host.
    host: String,
    mask: u32,
    handle: Option<Peer>,
    /// No more bytes than these are on their way to it, of all groups: they share a connection.
    bytes: usize,
    /// Puts to it, and puts of it that have arrived.
    sent: u64,
    arrived: u64,
    /// The windows through which it may send, of all groups, and how many arrivals may come through them at once.
    windows: Vec<(CommId, usize)>,
    expected: usize,
}

/// A process's one endpoint.
pub(crate) struct Port {
    pub transport: Box<dyn Transport>,
    pub limits: Limits,
    /// This process's rank in the world.
    pub me: Rank,
    /// With what immediates to this process are masked. Whoever joins the job is told; to whoever is not, one that says
    /// something is as good as never known.
    pub mask: u32,
    pub posts: Posts,
    /// Where messages for this process lead, and where the credits for what it sends do.
    pub incoming: Routes,
    pub outgoing: Routes,
    links: Vec<Link>,
    /// Arrivals that may be under way at once: what the completion queue must hold.
    expected: usize,
    /// How many of them each peer may have before windows of idle groups are closed; those that have more.
    share: usize,
    pub crowded: Vec<Rank>,
    /// Windows that wait for room.
    pub wanting: Vec<(CommId, usize)>,
    /// Memory of windows that were closed, by class.
    pub spare: [Vec<Region>; 3],
    /// Counts the uses of windows.
    pub clock: u64,
    /// Whether this rank says shutdown to the world.
    pub shutting_down: bool,
    /// One peer's arrivals for windows of each class, in one group.
    least: usize,
    events: Vec<Event>,
    /// Operations begun, of all groups.
    pub operations: u64,
    /// The groups whose messages from point to point are to be looked at, also where nobody here waits for any.
    pub active_comms: Vec<CommId>,
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
            expected: 0,
            share: usize::MAX,
            crowded: Vec::new(),
            wanting: Vec::new(),
            spare: Default::default(),
            clock: 0,
            shutting_down: false,
            least: settings.arrivals_among(1),
            events: Vec::with_capacity(64),
            operations: 0,
            active_comms: Vec::new(),
        })
    }

    /// Where all processes of the world are, what their hosts are called, and with what immediates to them are masked, by
    /// rank.
    pub(crate) fn meet(&mut self, processes: Vec<(Address, String, u32)>) {
        // Half, since a window is opened before another has been closed.
        let fair = self.limits.arrivals / 2 / processes.len().saturating_sub(1).max(1);
        self.share = fair.min(self.limits.arrivals_per_peer).max(self.least);
        let link = |(address, host, mask)| Link {
            address,
            host,
            mask,
            handle: None,
            bytes: 0,
            sent: 0,
            arrived: 0,
            windows: Vec::new(),
            expected: 0,
        };
        self.links = processes.into_iter().map(link).collect();
    }

    /// The handle of a process, connecting on first use, and the immediate for it.
    pub(crate) fn to(&mut self, world: Rank, immediate: Immediate) -> Result<(Peer, u32), Stop> {
        let Some(Link { address, mask, handle, .. }) = self.links.get_mut(world) else {
            return Err(self.stop(format!("there is no rank {world}")));
        };
        let peer = match handle {
            Some(handle) => *handle,
            None => *handle.insert(self.transport.connect(address)?),
        };
        Ok((peer, immediate.encode() ^ *mask))
    }

    /// So many bytes of a flow to a process are on their way, and so many were.
    pub(crate) fn fly(&mut self, world: Rank, now: usize, before: usize) {
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

    /// How much there was of both.
    pub(crate) fn traffic(&self) -> impl Iterator<Item = Traffic> {
        let all = self.links.iter().enumerate();
        let traffic = all.map(|(rank, link)| Traffic { rank, sent: link.sent, arrived: link.arrived });
        traffic.filter(|it| it.sent + it.arrived > 0)
    }

    /// Whether so little is on its way to a process that a copy of one more small message surely leaves at once, and does
    /// not wait in a queue of the provider's for room in the socket, unseen, until somebody polls.
    pub(crate) fn quiet(&self, world: Rank) -> bool {
        self.links.get(world).is_some_and(|link| link.bytes <= LITTLE)
    }

    /// Whether a header and so many bytes behind it must lie in one place to be one put.
    pub(crate) fn joins(&self, bytes: usize) -> bool {
        bytes > 0 && self.limits.max_sources == 1
    }

    /// Whether there is room for so many more arrivals at once.
    pub(crate) fn has_room(&self, arrivals: usize) -> bool {
        // Whoever parts calls nothing any more: of other windows nobody makes use.
        self.shutting_down || self.expected + arrivals <= self.limits.arrivals
    }

    /// So many more arrivals may come from a process at once, through this window.
    pub(crate) fn expect(&mut self, world: Rank, window: (CommId, usize), arrivals: usize) {
        self.expected += arrivals;
        let Some(link) = self.links.get_mut(world) else { return };
        link.expected += arrivals;
        link.windows.push(window);
        if link.expected > self.share {
            self.crowded.push(world);
        }
    }

    /// Nothing comes through this window any more.
    pub(crate) fn expect_no_more(&mut self, world: Rank, window: (CommId, usize), arrivals: usize) {
        let Some(link) = self.links.get_mut(world) else { return };
        let Some(at) = link.windows.iter().position(|it| *it == window) else { return };
        link.windows.swap_remove(at);
        link.expected = link.expected.saturating_sub(arrivals);
        self.expected = self.expected.saturating_sub(arrivals);
    }

    /// By how much a process has more arrivals than its share.
    pub(crate) fn excess(&self, world: Rank) -> usize {
        self.links.get(world).map_or(0, |link| link.expected.saturating_sub(self.share))
    }

    /// The windows through which a process may send, or all may.
    pub(crate) fn windows(&self, world: Rank) -> &[(CommId, usize)] {
        self.links.get(world).map_or(&[], |link| &link.windows)
    }

    pub(crate) fn all_windows(&self) -> Vec<(CommId, usize)> {
        self.links.iter().flat_map(|link| link.windows.iter().copied()).collect()
    }

    /// Something of a message from point to point has come, or waits to be sent.
    pub(crate) fn mark_active(&mut self, comm_id: CommId) {
        if !self.active_comms.contains(&comm_id) {
            self.active_comms.push(comm_id);
        }
    }

    /// Asks the transport what has happened. The list is to be [handed back](Self::seen).
    pub(crate) fn poll(&mut self) -> (Vec<Event>, Result<(), Stop>) {
        let mut events = std::mem::take(&mut self.events);
        let result = self.transport.poll(&mut events).map_err(|error| self.broken(error));
        (events, result)
    }

    /// The transport counts peers as they were connected; people know ranks.
    #[cold]
    pub(crate) fn broken(&self, error: Error) -> Stop {
        let at = error.peer().and_then(|peer| self.links.iter().position(|link| link.handle == Some(peer)));
        let with = at.and_then(|rank| Some(format!("rank {rank} on {}", self.links.get(rank)?.host)));
        Stop::Transport(Box::new(Broken { error, with }))
    }

    pub(crate) fn seen(&mut self, mut events: Vec<Event>) {
        events.clear();
        self.events = events;
    }

    /// Something arrived that no rank can have sent.
    #[cold]
    pub(crate) fn forged(&self, what: String) -> Stop {
        let Limits { provider, listens, .. } = &self.limits;
        let at = if listens.is_empty() { provider.clone() } else { format!("{provider} at {listens}") };
        Stop::from(Failure::Forged { rank: self.me, at, what })
    }

    #[cold]
    pub(crate) fn stop(&self, reason: String) -> Stop {
        Stop::from(Failure::Transport {
            rank: self.me,
            doing: format!("driving {}", self.limits.provider),
            reason,
        })
    }
}

impl Port {
    /// Keeps the memory of a window for the next of its class.
    pub(crate) fn keep(&mut self, class: Class, region: Region) {
        /// More than are closed at once, for one operation's peers.
        const SPARE: usize = 64;
        let spare = &mut self.spare[class.index()];
        if spare.len() < SPARE {
            spare.push(region);
        }
    }
}

/// Random bits of the system's.
fn mask() -> Result<u32, Error> {
    let mut bytes = [0; 4];
    getrandom(&mut bytes, GetRandomFlags::empty()).map_err(|error| Error::Call {
        call: "getrandom",
        peer: None,
        context: "for the mask of immediates".into(),
        code: error.raw_os_error().into(),
        reason: error.to_string(),
    })?;
    Ok(u32::from_ne_bytes(bytes))
}
