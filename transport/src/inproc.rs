//! Ranks as threads of one process: a put copies straight into the peer's region and wakes the peer.
//!
//! ```
//! use unisono_transport::{Event, Memory, Put, Source, Target, Told, Transport, inproc::Hub};
//! # fn main() -> Result<(), unisono_transport::Error> {
//! let hub = Hub::new();
//! let (mut here, mut there) = (hub.open(), hub.open());
//! let window = there.register(Memory::map(64, false)?)?;
//! let Some(remote) = window.remote() else { unreachable!("it is registered") };
//!
//! let source = here.register(Memory::map(5, false)?)?;
//! // SAFETY: no put reads the source yet.
//! unsafe { source.write(0, b"hello")? };
//! let peer = here.connect(there.address())?;
//! let target = Target { region: remote, offset: 8 };
//! let put = Put { to: peer, sources: &[Source::new(&source, 0, 5)?], target, immediate: 7, token: 0, told: Told::IfNotInjected };
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
    collections::{HashMap, VecDeque, hash_map::RandomState},
    hash::BuildHasher,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    Activity, Address, Error, Event, Limits, Memory, Peer, Posted, Put, Region, Registration, RemoteRegion,
    Transport, Wake, check, region,
};

/// `EINVAL`, for puts that the peer's memory refuses.
const INVALID: i64 = 22;
/// `ENOTCONN`, for puts to an endpoint that was dropped.
const GONE: i64 = 107;

/// Where endpoints of one process find one another. Cloning copies a handle.
#[derive(Clone, Debug)]
pub struct Hub(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Tells one hub's addresses from another's.
    identity: u64,
    inboxes: Mutex<Vec<Arc<Inbox>>>,
    spans: RwLock<HashMap<u64, Arc<Slot>>>,
    /// Keys are drawn from these: nobody guesses one.
    keys: RandomState,
    next_key: AtomicU64,
}

/// A registered span. Whoever copies into it holds `span` for reading, so that taking the registration
/// back waits for copies under way.
#[derive(Debug)]
struct Slot {
    owner: usize,
    span: RwLock<Option<Span>>,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    base: *mut u8,
    len: u64,
}

// SAFETY: a pointer and a length; it is only followed in `Endpoint::put`, under the lock that shows that
// the region is still there.
unsafe impl Send for Span {}
// SAFETY: as above.
unsafe impl Sync for Span {}

/// What has landed at an endpoint.
#[derive(Debug, Default)]
struct Inbox {
    state: Mutex<State>,
    arrived: Condvar,
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

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(Arc::new(Shared {
            identity: NEXT.fetch_add(1, Ordering::Relaxed),
            inboxes: Mutex::default(),
            spans: RwLock::default(),
            keys: RandomState::new(),
            next_key: AtomicU64::new(1),
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
        let mut address = self.0.identity.to_le_bytes().to_vec();
        address.extend_from_slice(&(index as u64).to_le_bytes());
        Endpoint {
            hub: Arc::clone(&self.0),
            index,
            inbox,
            address: Address(address),
            peers: Vec::new(),
            sent: Vec::new(),
            limits: Limits {
                provider: "inproc".into(),
                version: String::new(),
                device: String::new(),
                max_put: isize::MAX.unsigned_abs(),
                // Any put could be injected; a small bound makes both kinds occur, as on a real fabric.
                max_inject: 128,
                max_copied: 128,
                max_sources: 4,
                local_registration: false,
                cheap_registration: true,
                arrivals: 1024,
                arrivals_per_peer: 1024,
                more_arrivals: "",
                listens: String::new(),
                wakes: true,
                caution: "",
                connect_all: false,
            },
        }
    }
}

/// One thread's way to the others.
#[derive(Debug)]
pub struct Endpoint {
    hub: Arc<Shared>,
    index: usize,
    inbox: Arc<Inbox>,
    address: Address,
    peers: Vec<Known>,
    sent: Vec<u64>,
    limits: Limits,
}

#[derive(Debug)]
struct Known {
    index: usize,
    inbox: Arc<Inbox>,
}

/// Takes a registration back.
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

// SAFETY: a put is copied whole, under the lock of the span that its key names, before it is told of; an endpoint's spans go
// with it.
unsafe impl Transport for Endpoint {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn address(&self) -> &Address {
        &self.address
    }

    fn connect(&mut self, address: &Address) -> Result<Peer, Error> {
        let bad = |reason: &str| Error::BadAddress {
            address: address.clone(),
            provider: self.limits.provider.clone(),
            reason: reason.into(),
        };
        let (identity, index) = match address.0.as_chunks::<8>() {
            ([identity, index], []) => (u64::from_le_bytes(*identity), u64::from_le_bytes(*index)),
            _ => return Err(bad("16 bytes are wanted")),
        };
        if identity != self.hub.identity {
            return Err(bad("it belongs to another hub"));
        }
        let inboxes = self.hub.inboxes.lock().unwrap_or_else(PoisonError::into_inner);
        let found = usize::try_from(index).ok().and_then(|index| Some((index, inboxes.get(index)?)));
        let Some((index, inbox)) = found else {
            return Err(bad("the hub has no such endpoint"));
        };
        let known = self.peers.iter().position(|known| known.index == index).unwrap_or_else(|| {
            self.peers.push(Known { index, inbox: Arc::clone(inbox) });
            self.peers.len() - 1
        });
        u32::try_from(known).map(Peer).map_err(|_| bad("there are too many peers"))
    }

    fn register(&mut self, memory: Memory) -> Result<Region, Error> {
        let len = memory.len() as u64;
        let span = RwLock::new(Some(Span { base: memory.base(), len }));
        let slot = Arc::new(Slot { owner: self.index, span });
        let mut spans = self.hub.spans.write().unwrap_or_else(PoisonError::into_inner);
        let key = loop {
            let key = self.hub.keys.hash_one(self.hub.next_key.fetch_add(1, Ordering::Relaxed));
            if !spans.contains_key(&key) {
                break key;
            }
        };
        spans.insert(key, slot);
        drop(spans);
        let guard = Guard { hub: Arc::clone(&self.hub), key };
        let remote = RemoteRegion { base: 0, key, len };
        Ok(Region::registered(
            memory,
            Registration { remote, descriptor: std::ptr::null_mut(), guard: Box::new(guard) },
        ))
    }

    unsafe fn put(&mut self, put: &Put<'_>) -> Result<Posted, Error> {
        let len = check::put(put, &self.limits, self.peers.len())?;
        let Some(peer) = self.peers.get(put.to.0 as usize) else {
            return Err(Error::BadPut { reason: format!("peer {} is unknown", put.to.0) });
        };
        let failed = |code: i64, reason: &str| Error::Completion {
            peer: Some(put.to),
            code,
            reason: reason.into(),
            provider_code: 0,
            detail: String::new(),
        };
        // Only this thread's peers add to the inbox, so more than one may pass here at the brim: the bound
        // is then exceeded by at most the number of peers.
        if peer.inbox.waiting.load(Ordering::Relaxed) >= self.limits.arrivals {
            return Ok(Posted::Full);
        }
        let key = put.target.region.key;
        let slot = self.hub.spans.read().unwrap_or_else(PoisonError::into_inner).get(&key).map(Arc::clone);
        let slot = slot.filter(|slot| slot.owner == peer.index);
        let slot = slot.ok_or_else(|| failed(INVALID, "the peer has no memory registered under this key"))?;
        let span = slot.span.read().unwrap_or_else(PoisonError::into_inner);
        let span_now = span.ok_or_else(|| failed(INVALID, "the peer has taken this registration back"))?;
        let end = (put.target.region.base.checked_add(put.target.offset))
            .and_then(|start| Some((usize::try_from(start).ok()?, start.checked_add(len as u64)?)));
        let (start, _) = end
            .filter(|(_, end)| *end <= span_now.len)
            .ok_or_else(|| failed(INVALID, "the put would leave the peer's registered memory"))?;
        let sources = put.sources.iter().map(|source| {
            let region = source.region();
            // SAFETY: `Source` is in bounds of its region, which its borrow keeps alive.
            (unsafe { region.base().add(source.offset()) }.cast_const(), source.len())
        });
        // SAFETY: in bounds of a span that stays registered while `span` is held; nobody reads it before
        // the arrival below, which the inbox's lock orders after the copy.
        unsafe { region::gather(sources, span_now.base.add(start)) };
        drop(span);
        let mut state = peer.inbox.lock();
        if state.closed {
            return Err(failed(GONE, "the peer's endpoint is closed"));
        }
        state.events.push_back(Event::Arrived { immediate: put.immediate, len: Some(len) });
        peer.inbox.waiting.store(state.events.len(), Ordering::Release);
        let parked = std::mem::take(&mut state.parked);
        drop(state);
        if parked {
            peer.inbox.arrived.notify_one();
        }
        if put.ends_told(&self.limits) {
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

    fn park(&mut self, timeout: Duration) -> Result<(), Error> {
        if !self.sent.is_empty() {
            return Ok(());
        }
        let until = Instant::now().checked_add(timeout);
        let mut state = self.inbox.lock();
        while state.events.is_empty() && !state.woken {
            let left = until.map_or(timeout, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                break;
            }
            state.parked = true;
            state = self.inbox.arrived.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        (state.parked, state.woken) = (false, false);
        Ok(())
    }

    fn waker(&self) -> Arc<dyn Wake> {
        Arc::<Inbox>::clone(&self.inbox)
    }

    fn activity(&self) -> Arc<Activity> {
        // There is no library.
        Arc::default()
    }
}

impl Wake for Inbox {
    fn wake(&self) {
        self.lock().woken = true;
        self.arrived.notify_one();
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
