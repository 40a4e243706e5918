//! Shared memory and a fabric as one transport: peers of this host are reached by [`shm`], all others by the fabric.
//!
//! An address says in which *scope* its endpoint is: the caller names the set of processes that can reach each other by shared memory.
//! Two endpoints of one scope that both have shared memory use it in both directions. The fabric does not know such a peer, and
//! shared memory of no other.
//!
//! A region has the fabric's key and base in both parts. [Allocated](Transport::allocate) memory can be mapped by peers of the host,
//! and is registered with the fabric as well; [shared](Transport::share) memory is no region of the fabric.
//!
//! **Polls.** Both are polled, shared memory first. A poll of a fabric that goes through sockets is a system call, which costs more
//! than all of a put over shared memory. So while such a fabric brings nothing, it is polled every fourth time.
//!
//! **Sleep.** One sleep waits for all: shared memory says to its peers that it sleeps, looks whether something came before, and lends
//! its descriptor to the fabric's sleep, which ends with that, with the fabric's events or with its waker. No event is lost: a write
//! of a peer of this host after the look makes the descriptor readable until the sleep's end has read it; an event of the fabric, or
//! of its waker, ends the fabric's sleep as it would without shared memory; and nothing is read in between.
//!
//! ```
//! use unisono_transport::{Error, Transport, inproc::Hub, mux::Mux, shm};
//! # fn main() -> Result<(), Error> {
//! let hub = Hub::new();
//! let open = |host| Ok::<_, Error>(Mux::new(host, Some(shm::Endpoint::open()?), Box::new(hub.open())));
//! let (mut here, beside, away) = (open(1)?, open(1)?, open(2)?);
//! let by_shared_memory = here.connect(beside.address())?;
//! let by_the_fabric = here.connect(away.address())?;
//! # assert_ne!(by_shared_memory, by_the_fabric);
//! # Ok(()) }
//! ```
#![allow(unsafe_code)]

mod address;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, os::fd::BorrowedFd, sync::Arc, time::Duration};

use address::AddressParts;

use crate::{
    Activity, Address, Error, Event, Limits, Mapping, Memory, Notify, Peer, Posted, Put, Ready, Region,
    RemoteRegion, Transport, Wake, local::Failure, shm,
};

/// A fabric of sockets from which nothing arrived in this many polls is idle: this many polls may pass while an answer is under way.
const IDLE_AFTER: u32 = 64;
/// An idle fabric is polled once in this many polls. A poll of shared memory takes a tenth of the time of the system call.
const IDLE_EVERY: u32 = 4;

/// The fabric's name in the name of such a provider (`tcp` in `shm,tcp`); `None` if it is the name of another provider.
#[must_use]
pub fn fabric_of(provider: &str) -> Option<&str> {
    provider.strip_prefix(shm::PROVIDER)?.strip_prefix(',')
}

/// The transport that serves a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Shm,
    Fabric,
}

/// One thread's endpoint, which reaches peers by shared memory or by a fabric.
pub struct Mux {
    scope: u128,
    address: Address,
    limits: Limits,
    // Order matters: the fabric ends first, so that no NIC accesses memory when shared memory makes it private to its owner.
    fabric: Box<dyn Transport>,
    shm: Option<shm::Endpoint>,
    known: HashMap<Address, Peer>,
    /// The part that reaches each peer, and the peer's number there.
    routes: Vec<(Way, Peer)>,
    /// The peers that each way serves, by their numbers there.
    served: [Vec<Peer>; 2],
    /// The failure of one part, kept while the events of the other part are reported.
    failing: Option<Error>,
    /// The peers that are being notified, by their numbers there.
    notified: Vec<Peer>,
    /// The number of polls since the fabric was used or has brought something.
    idle: u32,
}

impl std::fmt::Debug for Mux {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mux")
            .field("limits", &self.limits)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// The limits of both parts together, or of the fabric without shared memory.
fn limits(scope: u128, shm: Option<&Limits>, fabric: &Limits) -> Limits {
    // The name is the same on hosts with and without shared memory, since their endpoints reach each other.
    let provider = format!("{},{}", shm::PROVIDER, fabric.provider);
    let Some(shm) = shm else { return Limits { provider, ..fabric.clone() } };
    Limits {
        provider,
        max_put: shm.max_put.min(fabric.max_put),
        max_inject: shm.max_inject.min(fabric.max_inject),
        max_copied: shm.max_copied.min(fabric.max_copied),
        max_sources: shm.max_sources.min(fabric.max_sources),
        local_registration: shm.local_registration || fabric.local_registration,
        cheap_registration: shm.cheap_registration && fabric.cheap_registration,
        sockets: shm.sockets || fabric.sockets,
        arrivals: shm.arrivals.min(fabric.arrivals),
        arrivals_per_peer: shm.arrivals_per_peer.min(fabric.arrivals_per_peer),
        wakes: shm.wakes && fabric.wakes,
        connect_all: shm.connect_all || fabric.connect_all,
        maps: shm.maps,
        shares: Some(scope),
        // The names and addresses are the fabric's. Peers need not be on this host if the fabric's need not.
        ..fabric.clone()
    }
}

impl Mux {
    /// Joins both parts. `scope` names the processes that reach each other by shared memory: it is the same on all of them and on no
    /// others, so it must tell hosts, network namespaces and users apart. Without `shm`, for instance because the host refuses it, the
    /// fabric serves all peers.
    #[must_use]
    pub fn new(scope: u128, shm: Option<shm::Endpoint>, fabric: Box<dyn Transport>) -> Self {
        let near = shm.as_ref().map_or(&[][..], |shm| &shm.address().0);
        let address = AddressParts { scope, shm: near, fabric: &fabric.address().0 }.address();
        let limits = limits(scope, shm.as_ref().map(|shm| shm.limits()), fabric.limits());
        Self {
            scope,
            address,
            limits,
            fabric,
            shm,
            known: HashMap::new(),
            routes: Vec::new(),
            served: [Vec::new(), Vec::new()],
            failing: None,
            notified: Vec::new(),
            idle: 0,
        }
    }

    /// A part's error, with the peer's number here.
    fn renumbered(&self, way: Way, error: Error) -> Error {
        error.renumbered(|peer| self.served[way as usize].get(peer.0 as usize).copied().unwrap_or(peer))
    }

    fn fabric_is_due(&self) -> bool {
        !self.limits.sockets
            || self.shm.is_none()
            || self.idle < IDLE_AFTER
            || self.idle.is_multiple_of(IDLE_EVERY)
    }
}

// SAFETY: the part that serves the peer puts, writes and reports. A region is of the memory that the fabric was given, and is entered
// into shared memory as that memory; its entry ends before its registration, and both before the memory.
unsafe impl Transport for Mux {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn address(&self) -> &Address {
        &self.address
    }

    fn connect(&mut self, address: &Address) -> Result<Peer, Error> {
        if let Some(peer) = self.known.get(address) {
            return Ok(*peer);
        }
        let bad = |reason: String| Error::bad_address(address, &self.limits.provider, reason);
        let Some(AddressParts { scope, shm: near, fabric: far }) = AddressParts::parse(&address.0) else {
            return Err(bad("it is of another kind or version, or not whole".into()));
        };
        let (way, place) = match &mut self.shm {
            Some(shm) if scope == self.scope && !near.is_empty() => {
                (Way::Shm, shm.connect(&Address(near.into())))
            }
            _ => (Way::Fabric, self.fabric.connect(&Address(far.into()))),
        };
        let place = match place {
            Ok(place) => place,
            Err(Error::BadAddress { provider, reason, .. }) => {
                return Err(bad(format!("its part for {provider}: {reason}")));
            }
            Err(error) => return Err(self.renumbered(way, error)),
        };
        let served = &mut self.served[way as usize];
        let peer = match served.get(place.0 as usize) {
            Some(peer) => *peer,
            None => {
                let next = u32::try_from(self.routes.len());
                let peer = next.map(Peer).map_err(|_| bad("there are too many peers".into()))?;
                served.push(peer);
                self.routes.push((way, place));
                peer
            }
        };
        self.known.insert(address.clone(), peer);
        Ok(peer)
    }

    fn register(&mut self, memory: Memory) -> Result<Region, Error> {
        let Self { shm, fabric, .. } = self;
        match shm {
            Some(shm) => shm.register_again(memory, |memory| fabric.register(memory)),
            None => fabric.register(memory),
        }
    }

    fn allocate(&mut self, len: usize) -> Result<Region, Error> {
        let Self { shm, fabric, .. } = self;
        match shm {
            Some(shm) => shm.allocate_again(len, |memory| fabric.register(memory)),
            None => fabric.allocate(len),
        }
    }

    fn share(&mut self, len: usize) -> Result<Region, Error> {
        match &mut self.shm {
            Some(shm) => shm.share(len),
            None => self.fabric.share(len),
        }
    }

    fn reads(&mut self, peer: Peer) -> Result<bool, Error> {
        match (self.routes.get(peer.0 as usize), &mut self.shm) {
            (Some((Way::Shm, near)), Some(shm)) => shm.reads(*near),
            _ => return Ok(false),
        }
        .map_err(|error| self.renumbered(Way::Shm, error))
    }

    unsafe fn read(&mut self, peer: Peer, address: u64, into: *mut u8, len: usize) -> Result<(), Error> {
        match (self.routes.get(peer.0 as usize), &mut self.shm) {
            // SAFETY: by the caller's promise.
            (Some((Way::Shm, near)), Some(shm)) => unsafe { shm.read(*near, address, into, len) },
            _ => return Err(Failure::unreadable().to(peer).into()),
        }
        .map_err(|error| self.renumbered(Way::Shm, error))
    }

    fn map(&mut self, peer: Peer, region: &RemoteRegion) -> Result<Mapping, Error> {
        match (self.routes.get(peer.0 as usize), &mut self.shm) {
            (Some((Way::Shm, near)), Some(shm)) => shm.map(*near, region),
            _ => return Ok(Mapping::No),
        }
        .map_err(|error| self.renumbered(Way::Shm, error))
    }

    fn notify(&mut self, peers: &[Peer]) -> Result<(), Error> {
        let Some(shm) = &mut self.shm else { return Ok(()) };
        self.notified.clear();
        let near = peers.iter().filter_map(|peer| match self.routes.get(peer.0 as usize) {
            Some(&(Way::Shm, near)) => Some(near),
            _ => None,
        });
        self.notified.extend(near);
        shm.notify(&self.notified).map_err(|error| self.renumbered(Way::Shm, error))
    }

    unsafe fn put(&mut self, put: &Put<'_>) -> Result<Posted, Error> {
        put.check(&self.limits, self.routes.len())?;
        let (way, to) = self.routes[put.to.0 as usize];
        // The combined limits decide which puts report their end: a part alone copies more, and would not report it. A part also does not
        // report what the combined limits promise not to report.
        let notify = if put.notifies(&self.limits) { Notify::Always } else { put.notify };
        let inner = Put { to, notify, ..*put };
        let posted = match (way, &mut self.shm) {
            // SAFETY: by the caller's promise.
            (Way::Shm, Some(shm)) => unsafe { shm.put(&inner) },
            _ => {
                self.idle = 0;
                // SAFETY: by the caller's promise.
                unsafe { self.fabric.put(&inner) }
            }
        };
        posted.map_err(|error| self.renumbered(way, error))
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), Error> {
        if let Some(error) = self.failing.take() {
            return Err(error);
        }
        let before = events.len();
        let near = self.shm.as_mut().map_or(Ok(()), |shm| shm.poll(events));
        let between = events.len();
        // All events, also those of the other part, are reported before a failure.
        let due = near.is_err() || self.fabric_is_due();
        let far = if due { self.fabric.poll(events) } else { Ok(()) };
        self.idle = if events.len() > between { 0 } else { self.idle.wrapping_add(1) };
        // A failure of shared memory is returned by every later poll too, so it may come second.
        let error = match (near, far) {
            (Ok(()), Ok(())) => return Ok(()),
            (_, Err(error)) => self.renumbered(Way::Fabric, error),
            (Err(error), Ok(())) => self.renumbered(Way::Shm, error),
        };
        if events.len() == before {
            return Err(error);
        }
        self.failing = Some(error);
        Ok(())
    }

    fn park(&mut self, timeout: Duration, others: &[BorrowedFd<'_>], ready: Ready<'_>) -> Result<(), Error> {
        if self.failing.is_some() {
            return Ok(());
        }
        // The next poll finds what has ended the sleep.
        self.idle = self.idle.checked_next_multiple_of(IDLE_EVERY).unwrap_or(0);
        let slept = match &mut self.shm {
            None => self.fabric.park(timeout, others, ready),
            Some(shm) => {
                let timeout = match shm.begin_sleep(timeout, ready) {
                    Ok(timeout) => timeout,
                    Err(error) => return Err(self.renumbered(Way::Shm, error)),
                };
                let others: Vec<_> = others.iter().copied().chain([shm.descriptor()]).collect();
                let slept = self.fabric.park(timeout, &others, &mut || false);
                if let Err(error) = shm.end_sleep(Duration::ZERO) {
                    return Err(self.renumbered(Way::Shm, error));
                }
                slept
            }
        };
        slept.map_err(|error| self.renumbered(Way::Fabric, error))
    }

    fn waker(&self) -> Arc<dyn Wake> {
        self.fabric.waker()
    }

    fn activity(&self) -> Arc<Activity> {
        self.fabric.activity()
    }
}
