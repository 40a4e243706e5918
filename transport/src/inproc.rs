//! Ranks as threads of one process: a put copies straight into the peer's region and wakes the peer.
//!
//! ```
//! use unisono_transport::{Event, Memory, Put, Source, Target, Notify, Transport, inproc::Hub};
//! # fn main() -> Result<(), unisono_transport::Error> {
//! let hub = Hub::new();
//! let (mut here, mut there) = (hub.open(), hub.open());
//! let window = there.register(Memory::map(64)?)?;
//! let Some(remote) = window.remote() else { unreachable!("it is registered") };
//!
//! let source = here.register(Memory::map(5)?)?;
//! // SAFETY: no put reads the source yet.
//! unsafe { source.write(0, b"hello")? };
//! let peer = here.connect(there.address())?;
//! let target = Target { region: remote, offset: 8 };
//! let put = Put { to: peer, sources: &[Source::new(&source, 0, 5)?], target, immediate: 7, token: 0, notify: Notify::IfNotInjected, fetch: false };
//! // SAFETY: the window is read when the put has arrived, and the source is not written again.
//! let _ = unsafe { here.put(&put)? };
//!
//! let mut events = Vec::new();
//! there.poll(&mut events)?;
//! assert_eq!(events, [Event::Arrived { immediate: 7, len: Some(5) }]);
//! let mut bytes = [0; 5];
//! // SAFETY: it has arrived, and nobody puts again.
//! unsafe { window.read(8, &mut bytes)? };
//! assert_eq!(&bytes, b"hello");
//! # Ok(()) }
//! ```
#![allow(unsafe_code)]

use std::{
    collections::{HashMap, VecDeque},
    os::fd::BorrowedFd,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::{
    Address, Error, Event, Limits, Mapping, Memory, Peer, Posted, Put, Ready, Region, Registration,
    RemoteRegion, Transport, Wake,
    eventfd::EventFd,
    keys::Keys,
    local::{Failure, Span},
    peer_memory::{OwnPermit, PeerMemory},
    region,
};

/// The provider's name in addresses and errors.
const PROVIDER: &str = "inproc";

/// The endpoints of one process that can reach each other. Cloning copies a handle.
#[derive(Clone, Debug)]
pub struct Hub(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    inboxes: Mutex<Vec<Arc<Inbox>>>,
    /// What is registered, by its key. A put holds the lock while it writes, so that closing a registration waits for it.
    entries: RwLock<HashMap<u64, Entry>>,
    keys: Mutex<Keys>,
    /// The memory of this process, if the system lets it read that as that of another.
    memory: Option<(OwnPermit, PeerMemory)>,
}

/// Registered memory.
#[derive(Debug)]
struct Entry {
    owner: Arc<Inbox>,
    span: Span,
    /// Its memory, if peers can map it.
    memory: Option<Arc<Memory>>,
}

/// The puts that have landed at an endpoint.
#[derive(Debug)]
struct Inbox {
    address: Address,
    state: Mutex<State>,
    /// Ends the owner's sleep; created when the owner first sleeps.
    waker: OnceLock<EventFd>,
    /// The number of waiting events, so that an empty poll takes no lock.
    waiting: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<Event>,
    parked: bool,
    woken: bool,
    closed: bool,
}

impl Shared {
    fn entries(&self) -> RwLockReadGuard<'_, HashMap<u64, Entry>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn entries_mut(&self) -> RwLockWriteGuard<'_, HashMap<u64, Entry>> {
        self.entries.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end_sleep(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }
}

impl Default for Hub {
    fn default() -> Self {
        Self::new()
    }
}

impl Hub {
    /// A hub with no endpoint yet.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Shared {
            inboxes: Mutex::default(),
            entries: RwLock::default(),
            keys: Mutex::new(Keys::new(size_of::<u64>())),
            memory: OwnPermit::new(true).ok().and_then(|own| {
                let peer = PeerMemory::of(own.permit())?;
                Some((own, peer))
            }),
        }))
    }

    /// A new endpoint, which may move to another thread.
    #[must_use]
    pub fn open(&self) -> Endpoint {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let inbox = Arc::new(Inbox {
            address: Address([PROVIDER.as_bytes(), &number.to_le_bytes()].concat()),
            state: Mutex::default(),
            waker: OnceLock::new(),
            waiting: AtomicUsize::new(0),
        });
        self.0.inboxes.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&inbox));
        Endpoint {
            hub: Arc::clone(&self.0),
            inbox,
            peers: Vec::new(),
            sent: Vec::new(),
            // Any put could be injected; a small bound makes both kinds occur, as on a real fabric.
            limits: Limits {
                provider: PROVIDER.to_owned(),
                max_inject: 128,
                max_copied: 128,
                one_host: true,
                maps: true,
                wakes: true,
                ..Limits::default()
            },
        }
    }
}

/// One thread's endpoint.
#[derive(Debug)]
pub struct Endpoint {
    hub: Arc<Shared>,
    inbox: Arc<Inbox>,
    peers: Vec<Arc<Inbox>>,
    sent: Vec<u64>,
    limits: Limits,
}

/// Closes a registration when it is dropped.
#[derive(Debug)]
struct Guard {
    hub: Arc<Shared>,
    key: u64,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.hub.entries_mut().remove(&self.key);
    }
}

impl Endpoint {
    /// Registers memory, which peers may map if it is `mappable`.
    fn enter(&self, memory: Memory, mappable: bool) -> Result<Region, Error> {
        let mut entries = self.hub.entries_mut();
        let mut keys = self.hub.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let key = keys.next(|key| entries.contains_key(&key))?;
        drop(keys);
        let remote = RemoteRegion { base: 0, key, len: memory.len() as u64, mappable };
        let (span, memory) = (Span { base: memory.base(), remote }, Arc::new(memory));
        // SAFETY: mapped as long as the owner lives.
        let own = unsafe { Memory::owned(memory.base(), memory.len(), Arc::clone(&memory)) };
        let entry = Entry { owner: Arc::clone(&self.inbox), span, memory: mappable.then_some(memory) };
        entries.insert(key, entry);
        drop(entries);
        let guard = Box::new(Guard { hub: Arc::clone(&self.hub), key });
        Ok(Region::registered(own, Registration { remote, descriptor: std::ptr::null_mut(), guard }))
    }
}

fn known(peers: &[Arc<Inbox>], peer: Peer) -> Result<&Arc<Inbox>, Error> {
    let unknown = || Error::BadPut { reason: format!("peer {} is unknown", peer.0) };
    peers.get(peer.0 as usize).ok_or_else(unknown)
}

// SAFETY: a put is copied whole, under the lock of what is registered, before the arrival is reported; an endpoint's entries end with
// it.
unsafe impl Transport for Endpoint {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn address(&self) -> &Address {
        &self.inbox.address
    }

    fn connect(&mut self, address: &Address) -> Result<Peer, Error> {
        let bad = |reason| Error::bad_address(address, PROVIDER, reason);
        let inboxes = self.hub.inboxes.lock().unwrap_or_else(PoisonError::into_inner);
        let found = inboxes.iter().find(|inbox| inbox.address == *address);
        let found = found.ok_or_else(|| bad("no endpoint of this hub has it"))?;
        let known = self.peers.iter().position(|inbox| Arc::ptr_eq(inbox, found));
        let place = known.unwrap_or(self.peers.len());
        if known.is_none() {
            self.peers.push(Arc::clone(found));
        }
        u32::try_from(place).map(Peer).map_err(|_| bad("there are too many peers"))
    }

    fn register(&mut self, memory: Memory) -> Result<Region, Error> {
        let mappable = memory.memfd().is_some();
        self.enter(memory, mappable)
    }

    fn allocate(&mut self, len: usize) -> Result<Region, Error> {
        self.enter(Memory::map(len)?, true)
    }

    fn map(&mut self, peer: Peer, region: &RemoteRegion) -> Result<Mapping, Error> {
        let inbox = known(&self.peers, peer)?;
        let entries = self.hub.entries();
        let entry = entries.get(&region.key).filter(|entry| Arc::ptr_eq(&entry.owner, inbox));
        let mapped = entry.and_then(|entry| {
            let memory = entry.memory.clone()?;
            let start = entry.span.start(region.base, region.len)?;
            let len = usize::try_from(region.len).ok()?;
            // SAFETY: mapped as long as the owner lives, and in bounds. The peer may access it too, as `Transport::map` says.
            Some(Region::unregistered(unsafe { Memory::owned(memory.base().add(start), len, memory) }))
        });
        Ok(mapped.map_or(Mapping::No, Mapping::Yes))
    }

    fn reads(&mut self, peer: Peer) -> Result<bool, Error> {
        known(&self.peers, peer)?;
        Ok(self.hub.memory.is_some())
    }

    unsafe fn read(&mut self, peer: Peer, address: u64, into: *mut u8, len: usize) -> Result<(), Error> {
        let Some((_, memory)) = &self.hub.memory else { return Err(Failure::unreadable().to(peer).into()) };
        // SAFETY: by the caller's promise.
        let read = unsafe { memory.read(address, into, len) };
        let closed = known(&self.peers, peer)?.lock().closed;
        let read = read.and_then(|()| if closed { Err(Failure::gone()) } else { Ok(()) });
        read.map_err(|failure| failure.to(peer).into())
    }

    fn notify(&mut self, peers: &[Peer]) -> Result<(), Error> {
        for &peer in peers {
            let inbox = known(&self.peers, peer)?;
            // Either this thread sees that the owner sleeps, or the owner looks after this lock was taken.
            if std::mem::take(&mut inbox.lock().parked) {
                inbox.end_sleep();
            }
        }
        Ok(())
    }

    unsafe fn put(&mut self, put: &Put<'_>) -> Result<Posted, Error> {
        let (len, address) = put.check(&self.limits, self.peers.len())?;
        let inbox = &self.peers[put.to.0 as usize];
        let failed = |failure: Failure| Error::from(failure.to(put.to));
        // Only this thread's peers add to the inbox, so more than one may pass here when it is nearly full: the bound is then
        // exceeded by at most the number of peers.
        if inbox.waiting.load(Ordering::Relaxed) >= self.limits.arrivals {
            return Ok(Posted::Full);
        }
        let entries = self.hub.entries();
        let entry = entries.get(&put.target.region.key).filter(|entry| Arc::ptr_eq(&entry.owner, inbox));
        let entry = entry.ok_or_else(|| failed(Failure::unregistered()))?;
        // SAFETY: it stays registered while `entries` is held; no one reads it before the arrival below, which the inbox's lock orders
        // after the copy; sources are at rest by the contract of `Transport::put`.
        unsafe { entry.span.write(address, put.sources.iter().map(region::bytes), len) }.map_err(failed)?;
        drop(entries);
        let mut state = inbox.lock();
        if state.closed {
            return Err(failed(Failure::gone()));
        }
        state.events.push_back(Event::Arrived { immediate: put.immediate, len: Some(len) });
        inbox.waiting.store(state.events.len(), Ordering::Release);
        let parked = std::mem::take(&mut state.parked);
        drop(state);
        if parked {
            inbox.end_sleep();
        }
        if put.notifies(&self.limits) {
            self.sent.push(put.token);
        }
        Ok(Posted::Yes)
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), Error> {
        events.extend(self.sent.drain(..).map(|token| Event::Sent { token }));
        if self.inbox.waiting.load(Ordering::Acquire) > 0 {
            let mut state = self.inbox.lock();
            events.extend(state.events.drain(..));
            self.inbox.waiting.store(0, Ordering::Release);
        }
        Ok(())
    }

    fn park(&mut self, timeout: Duration, others: &[BorrowedFd<'_>], ready: Ready<'_>) -> Result<(), Error> {
        if !self.sent.is_empty() {
            return Ok(());
        }
        let waker = match self.inbox.waker.get() {
            Some(waker) => waker,
            None => {
                let made = EventFd::new()?;
                self.inbox.waker.get_or_init(|| made)
            }
        };
        // The thread that takes the lock after this finds the waker, and sees that it must end the sleep.
        let mut state = self.inbox.lock();
        state.parked = state.events.is_empty() && !state.woken;
        let timeout = if state.parked { timeout } else { Duration::ZERO };
        drop(state);
        let timeout = if ready() { Duration::ZERO } else { timeout };
        let slept = waker.sleep(others.iter().copied(), timeout);
        let mut state = self.inbox.lock();
        (state.parked, state.woken) = (false, false);
        slept
    }

    fn waker(&self) -> Arc<dyn Wake> {
        Arc::<Inbox>::clone(&self.inbox)
    }
}

impl Wake for Inbox {
    fn wake(&self) {
        self.lock().woken = true;
        self.end_sleep();
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let mut state = self.inbox.lock();
        state.closed = true;
        state.events.clear();
        self.inbox.waiting.store(0, Ordering::Release);
        drop(state);
        // Regions may outlive their endpoint, but are not written any more; this waits for copies under way.
        self.hub.entries_mut().retain(|_, entry| !Arc::ptr_eq(&entry.owner, &self.inbox));
    }
}
