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
//! let put = Put { to: peer, sources: &[Source::new(&source, 0, 5)?], target, immediate: 7, token: 0, notify: Notify::IfNotInjected };
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
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::{
    Address, Error, Event, Limits, Mapping, Memory, Peer, Posted, Put, Ready, Region, Registration,
    RemoteRegion, Transport, Wake, check,
    eventfd::EventFd,
    keys::Keys,
    local::{self, Failure, Names, Peers, Span},
    region,
};

/// The provider's name in addresses and errors.
const PROVIDER: &str = "inproc";

/// The endpoints of one process that can reach each other. Cloning copies a handle.
#[derive(Clone, Debug)]
pub struct Hub(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    names: Names,
    inboxes: Mutex<Vec<Arc<Inbox>>>,
    spans: RwLock<HashMap<u64, Arc<Slot>>>,
    keys: Mutex<Keys>,
}

/// Registered memory. A put holds `span` for reading, so that closing the registration waits for writes under way.
#[derive(Debug)]
struct Slot {
    owner: usize,
    span: RwLock<Option<Span>>,
    /// Its memory, if peers can map it.
    memory: Option<Arc<Memory>>,
}

/// The puts that have landed at an endpoint.
#[derive(Debug, Default)]
struct Inbox {
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
    /// What the endpoint of this index has registered under this key.
    fn slot(&self, owner: usize, key: u64) -> Option<Arc<Slot>> {
        let spans = self.spans.read().unwrap_or_else(PoisonError::into_inner);
        spans.get(&key).filter(|slot| slot.owner == owner).map(Arc::clone)
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
            names: Names::new(PROVIDER),
            inboxes: Mutex::default(),
            spans: RwLock::default(),
            keys: Mutex::new(Keys::new(size_of::<u64>())),
        }))
    }

    /// A new endpoint, which may move to another thread.
    #[must_use]
    pub fn open(&self) -> Endpoint {
        let inbox = Arc::new(Inbox::default());
        let mut inboxes = self.0.inboxes.lock().unwrap_or_else(PoisonError::into_inner);
        let index = inboxes.len();
        inboxes.push(Arc::clone(&inbox));
        drop(inboxes);
        Endpoint {
            hub: Arc::clone(&self.0),
            index,
            inbox,
            address: self.0.names.address(index),
            peers: Peers::default(),
            sent: Vec::new(),
            // Any put could be injected; a small bound makes both kinds occur, as on a real fabric.
            limits: Limits {
                max_inject: 128,
                max_copied: 128,
                one_host: true,
                maps: true,
                wakes: true,
                ..local::limits(PROVIDER)
            },
        }
    }
}

/// One thread's endpoint.
#[derive(Debug)]
pub struct Endpoint {
    hub: Arc<Shared>,
    index: usize,
    inbox: Arc<Inbox>,
    address: Address,
    peers: Peers<Arc<Inbox>>,
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
        let slot = self.hub.spans.write().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
        if let Some(slot) = slot {
            *slot.span.write().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }
}

impl Endpoint {
    /// Registers memory, which peers may map if `mappable` is the same memory.
    fn enter(&self, memory: Memory, mappable: Option<Arc<Memory>>) -> Result<Region, Error> {
        let mut spans = self.hub.spans.write().unwrap_or_else(PoisonError::into_inner);
        let mut keys = self.hub.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let key = keys.next(|key| spans.contains_key(&key))?;
        drop(keys);
        let remote = RemoteRegion { base: 0, key, len: memory.len() as u64, mappable: mappable.is_some() };
        let span = RwLock::new(Some(Span { base: memory.base(), remote }));
        spans.insert(key, Arc::new(Slot { owner: self.index, span, memory: mappable }));
        drop(spans);
        let guard = Box::new(Guard { hub: Arc::clone(&self.hub), key });
        Ok(Region::registered(memory, Registration { remote, descriptor: std::ptr::null_mut(), guard }))
    }

    /// Registers memory that peers may map.
    fn enter_mappable(&self, memory: Memory) -> Result<Region, Error> {
        let memory = Arc::new(memory);
        // SAFETY: mapped as long as the owner lives.
        let own = unsafe { Memory::owned(memory.base(), memory.len(), Arc::clone(&memory)) };
        self.enter(own, Some(memory))
    }
}

// SAFETY: a put is copied whole, under the lock of the span that its key names, before the arrival is reported; an endpoint's spans
// end with it.
unsafe impl Transport for Endpoint {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn address(&self) -> &Address {
        &self.address
    }

    fn connect(&mut self, address: &Address) -> Result<Peer, Error> {
        let inboxes = self.hub.inboxes.lock().unwrap_or_else(PoisonError::into_inner);
        self.peers.connect(&self.hub.names, address, |index| inboxes.get(index).map(Arc::clone))
    }

    fn register(&mut self, memory: Memory) -> Result<Region, Error> {
        if memory.memfd().is_some() { self.enter_mappable(memory) } else { self.enter(memory, None) }
    }

    fn allocate(&mut self, len: usize) -> Result<Region, Error> {
        self.enter_mappable(Memory::map(len)?)
    }

    fn map(&mut self, peer: Peer, region: &RemoteRegion) -> Result<Mapping, Error> {
        let (index, _) = self.peers.get(peer)?;
        let slot = self.hub.slot(*index, region.key);
        let mapped = slot.and_then(|slot| {
            let memory = slot.memory.clone()?;
            let start = (*slot.span.read().unwrap_or_else(PoisonError::into_inner))?
                .start(region.base, region.len)?;
            let len = usize::try_from(region.len).ok()?;
            // SAFETY: mapped as long as the owner lives, and in bounds. The peer may access it too, as `Transport::map` says.
            Some(Region::unregistered(unsafe { Memory::owned(memory.base().add(start), len, memory) }))
        });
        Ok(mapped.map_or(Mapping::No, Mapping::Yes))
    }

    fn notify(&mut self, peers: &[Peer]) -> Result<(), Error> {
        for &peer in peers {
            let (_, inbox) = self.peers.get(peer)?;
            // Either this thread sees that the owner sleeps, or the owner looks after this lock was taken.
            if std::mem::take(&mut inbox.lock().parked) {
                inbox.end_sleep();
            }
        }
        Ok(())
    }

    unsafe fn put(&mut self, put: &Put<'_>) -> Result<Posted, Error> {
        let (len, address) = check::put(put, &self.limits, self.peers.len())?;
        let (index, inbox) = self.peers.get(put.to)?;
        let failed = |failure: Failure| Error::from(failure.to(put.to));
        // Only this thread's peers add to the inbox, so more than one may pass here when it is nearly full: the bound is then
        // exceeded by at most the number of peers.
        if inbox.waiting.load(Ordering::Relaxed) >= self.limits.arrivals {
            return Ok(Posted::Full);
        }
        let unregistered = || failed(Failure::unregistered());
        let slot = self.hub.slot(*index, put.target.region.key).ok_or_else(unregistered)?;
        let span = slot.span.read().unwrap_or_else(PoisonError::into_inner);
        let registered = span.ok_or_else(unregistered)?;
        // SAFETY: it stays registered while `span` is held; no one reads it before the arrival below, which the inbox's lock orders
        // after the copy; sources are at rest by the contract of `Transport::put`.
        unsafe { registered.write(address, put.sources.iter().map(region::bytes), len) }.map_err(failed)?;
        drop(span);
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
        let spans = self.hub.spans.read().unwrap_or_else(PoisonError::into_inner);
        let own: Vec<_> = spans.values().filter(|slot| slot.owner == self.index).map(Arc::clone).collect();
        drop(spans);
        for slot in own {
            *slot.span.write().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }
}
