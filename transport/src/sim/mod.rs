//! A simulated fabric: a virtual clock, latency, bandwidth and reordering, all drawn from a seed.
//!
//! It is meaner than a real one where the contract allows it: the bytes of a put are read when it is delivered, not when it is
//! begun, deliveries overtake one another, and a completion queue that is asked to hold more than its limits say breaks.
//!
//! Time passes only when nothing else can happen. An endpoint whose poll finds nothing, twice in a row with
//! no put and no delivery anywhere in between, moves the clock to the next delivery. So one thread that
//! polls its endpoints in a fixed order replays the same run from the same seed; several threads may drive
//! them too, and then each delivery's delay is still the seed's, though the order of calls is the threads'.
#![allow(unsafe_code)]

mod config;
pub mod fault;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap, VecDeque},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    Activity, Address, Error, Event, Limits, Memory, Peer, Posted, Put, Region, Registration, RemoteRegion,
    Transport, Wake, check, region,
};

pub use config::Config;

/// `EINVAL`, for puts that the peer's memory refuses.
const INVALID: i64 = 22;
/// `ENOTCONN`, for puts to an endpoint that was dropped.
const GONE: i64 = 107;
/// `FI_EOVERRUN`, for a completion queue that was sent more than it holds.
const OVERRUN: i64 = 268;
/// How long `park` sleeps at most, in real time, when nothing is under way.
const NAP: Duration = Duration::from_micros(100);

/// The fabric. Cloning copies a handle.
#[derive(Clone, Debug)]
pub struct Fabric(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    identity: u64,
    config: Config,
    state: Mutex<State>,
    /// Something was begun or has landed.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    now: u64,
    /// Grows with every put, delivery and move of the clock.
    epoch: u64,
    sequence: u64,
    endpoints: Vec<Port>,
    spans: HashMap<u64, Span>,
    next_key: u64,
    due: BinaryHeap<Reverse<(u64, u64)>>,
    pending: BTreeMap<u64, Pending>,
    lost: usize,
}

#[derive(Debug, Default)]
struct Port {
    events: VecDeque<Event>,
    broken: Option<Failure>,
    closed: bool,
    under_way: usize,
    /// When the last byte accepted so far will have left.
    busy_until: u64,
    /// How many puts it has begun, by receiver: what their delays are drawn from.
    begun: HashMap<usize, u64>,
    waiting: HashMap<usize, usize>,
    arrivals: usize,
    woken: bool,
}

#[derive(Clone, Debug)]
struct Failure {
    peer: Option<Peer>,
    code: i64,
    reason: String,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    owner: usize,
    base: usize,
    remote: RemoteRegion,
}

#[derive(Debug)]
enum Pending {
    Delivery(Delivery),
    Sent { to: usize, token: u64 },
}

#[derive(Debug)]
struct Delivery {
    from: usize,
    to: usize,
    peer: Peer,
    bytes: Bytes,
    len: usize,
    key: u64,
    address: u64,
    immediate: u32,
    /// What its sender is told, if it is.
    token: Option<u64>,
}

/// What a delivery writes.
#[derive(Debug)]
enum Bytes {
    /// Injected: copied when the put began.
    Copied(Vec<u8>),
    /// Read when it is delivered.
    Held(Vec<(Region, usize, usize)>),
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A well-mixed number from four (SplitMix64's finaliser, applied in turn).
fn draw(parts: [u64; 4]) -> u64 {
    parts.into_iter().fold(0x9e37_79b9_7f4a_7c15, |mixed, part| {
        let mut z = (mixed ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Fabric {
    /// A fabric with no endpoint yet.
    #[must_use]
    pub fn new(config: Config) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let identity = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(Arc::new(Shared { identity, config, state: Mutex::default(), changed: Condvar::new() }))
    }

    /// A new endpoint, which may move to another thread.
    #[must_use]
    pub fn open(&self) -> Endpoint {
        let config = &self.0.config;
        let mut state = self.0.lock();
        let index = state.endpoints.len();
        state.endpoints.push(Port::default());
        drop(state);
        let mut address = self.0.identity.to_le_bytes().to_vec();
        address.extend_from_slice(b"sim:");
        address.extend_from_slice(&(index as u64).to_le_bytes());
        Endpoint {
            index,
            address: Address(address),
            peers: Vec::new(),
            seen: None,
            limits: Limits {
                provider: "sim".into(),
                version: String::new(),
                device: String::new(),
                max_put: config.max_put,
                max_inject: config.max_inject,
                max_copied: config.max_copied.max(config.max_inject),
                max_sources: config.max_sources.max(1),
                local_registration: config.local_registration,
                cheap_registration: config.cheap_registration,
                arrivals: config.arrivals,
                arrivals_per_peer: config.arrivals_per_peer.min(config.arrivals),
                more_arrivals: "",
                listens: String::new(),
                wakes: false,
                caution: "",
                connect_all: false,
            },
            fabric: Arc::clone(&self.0),
        }
    }

    /// The virtual time since the fabric was made.
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.0.lock().now)
    }

    /// How many puts have not landed because the endpoint that they came from or went to was closed.
    #[must_use]
    pub fn lost(&self) -> usize {
        self.0.lock().lost
    }
}

/// One endpoint of the fabric.
#[derive(Debug)]
pub struct Endpoint {
    fabric: Arc<Shared>,
    index: usize,
    address: Address,
    peers: Vec<usize>,
    /// The epoch in which a poll last found nothing.
    seen: Option<u64>,
    limits: Limits,
}

/// Takes a registration back. Deliveries are made under the same lock, so none is under way after it.
#[derive(Debug)]
struct Guard {
    fabric: Arc<Shared>,
    key: u64,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.fabric.lock().spans.remove(&self.key);
    }
}

impl State {
    fn schedule(&mut self, at: u64, pending: Pending) {
        self.sequence += 1;
        self.due.push(Reverse((at, self.sequence)));
        self.pending.insert(self.sequence, pending);
    }

    /// Everything due by now happens. The regions let go come back, to be dropped outside the lock.
    fn deliver(&mut self, config: &Config) -> Vec<Bytes> {
        let mut done = Vec::new();
        while let Some(Reverse((at, number))) = self.due.peek().copied() {
            if at > self.now {
                break;
            }
            self.due.pop();
            self.epoch += 1;
            match self.pending.remove(&number) {
                Some(Pending::Sent { to, token }) => {
                    if let Some(port) = self.endpoints.get_mut(to) {
                        port.under_way = port.under_way.saturating_sub(1);
                        port.events.push_back(Event::Sent { token });
                    }
                }
                Some(Pending::Delivery(delivery)) => done.push(self.land(delivery, config)),
                None => {}
            }
        }
        done
    }

    /// One delivery lands, or breaks whoever is to blame.
    fn land(&mut self, delivery: Delivery, config: &Config) -> Bytes {
        let Delivery { from, to, peer, bytes, len, key, address, immediate, token } = delivery;
        if let Err((code, reason)) = self.write(to, key, address, len, &bytes) {
            self.lost += usize::from(code == GONE);
            if let Some(port) = self.endpoints.get_mut(from) {
                port.under_way = port.under_way.saturating_sub(1);
                let failure = || Failure { peer: Some(peer), code, reason: reason.into() };
                port.broken.get_or_insert_with(failure);
            }
            return bytes;
        }
        if let Some(port) = self.endpoints.get_mut(to) {
            port.events.push_back(Event::Arrived { immediate, len: config.tells_len.then_some(len) });
            port.arrivals += 1;
            let waiting = port.waiting.entry(from).or_default();
            *waiting += 1;
            let limits = [
                (port.arrivals, config.arrivals, "all peers"),
                (*waiting, config.arrivals_per_peer, "one peer"),
            ];
            for (waiting, limit, whom) in limits {
                if waiting > limit {
                    let reason = format!("{waiting} puts of {whom} have landed unread, {limit} are allowed");
                    port.broken.get_or_insert(Failure { peer: None, code: OVERRUN, reason });
                }
            }
        }
        match token {
            None => {
                if let Some(port) = self.endpoints.get_mut(from) {
                    port.under_way = port.under_way.saturating_sub(1);
                }
            }
            // The sender learns of it when the acknowledgement is back.
            Some(token) => {
                let at = self.now.saturating_add(nanoseconds(config.latency));
                self.schedule(at, Pending::Sent { to: from, token });
            }
        }
        bytes
    }

    fn write(
        &self,
        to: usize,
        key: u64,
        address: u64,
        len: usize,
        bytes: &Bytes,
    ) -> Result<(), (i64, &'static str)> {
        if self.endpoints.get(to).is_none_or(|port| port.closed) {
            return Err((GONE, "the peer's endpoint is closed"));
        }
        let span = self.spans.get(&key).filter(|span| span.owner == to);
        let span = span.ok_or((INVALID, "the peer has no memory registered under this key"))?;
        let start = address.checked_sub(span.remote.base);
        let start =
            start.filter(|start| start.checked_add(len as u64).is_some_and(|end| end <= span.remote.len));
        let start = start.and_then(|start| usize::try_from(start).ok());
        let start = start.ok_or((INVALID, "the put would leave the peer's registered memory"))?;
        let base = std::ptr::with_exposed_provenance_mut::<u8>(span.base);
        // SAFETY: in bounds of a span that is registered, which dropping its region would have to undo under
        // the lock that we hold. Nobody reads the target before the arrival; the sources are at rest until
        // `Sent`, and kept alive by `bytes`.
        unsafe {
            let target = base.add(start);
            match bytes {
                Bytes::Copied(bytes) => {
                    region::gather(std::iter::once((bytes.as_ptr(), bytes.len())), target)
                }
                Bytes::Held(sources) => {
                    let spans = sources
                        .iter()
                        .map(|(region, offset, len)| (region.base().add(*offset).cast_const(), *len));
                    region::gather(spans, target);
                }
            }
        }
        Ok(())
    }
}

// SAFETY: a delivery writes where its put says while that is registered, and is told of then; its sources are kept until then.
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
        let parts = address
            .0
            .strip_prefix(&self.fabric.identity.to_le_bytes())
            .and_then(|rest| rest.strip_prefix(b"sim:"));
        let index = parts.and_then(|rest| Some(u64::from_le_bytes(rest.try_into().ok()?)));
        let index = index.ok_or_else(|| bad("it is not one of this fabric's"))?;
        let count = self.fabric.lock().endpoints.len();
        let index = usize::try_from(index).ok().filter(|index| *index < count);
        let index = index.ok_or_else(|| bad("the fabric has no such endpoint"))?;
        let known = self.peers.iter().position(|known| *known == index).unwrap_or_else(|| {
            self.peers.push(index);
            self.peers.len() - 1
        });
        u32::try_from(known).map(Peer).map_err(|_| bad("there are too many peers"))
    }

    fn register(&mut self, memory: Memory) -> Result<Region, Error> {
        let mut state = self.fabric.lock();
        state.next_key += 1;
        let key = draw([self.fabric.config.seed, u64::MAX, state.next_key, 0]); // Nobody guesses the seed.
        let start = memory.base().expose_provenance();
        let base = if self.fabric.config.virtual_addresses { start as u64 } else { 0 };
        let remote = RemoteRegion { base, key, len: memory.len() as u64 };
        state.spans.insert(key, Span { owner: self.index, base: start, remote });
        drop(state);
        let guard = Box::new(Guard { fabric: Arc::clone(&self.fabric), key });
        Ok(Region::registered(memory, Registration { remote, descriptor: std::ptr::null_mut(), guard }))
    }

    unsafe fn put(&mut self, put: &Put<'_>) -> Result<Posted, Error> {
        let len = check::put(put, &self.limits, self.peers.len())?;
        let unknown = || Error::BadPut { reason: format!("peer {} is unknown", put.to.0) };
        let to = *self.peers.get(put.to.0 as usize).ok_or_else(unknown)?;
        let address = put.target.region.base.checked_add(put.target.offset);
        let address = address
            .ok_or_else(|| Error::BadPut { reason: format!("{:?} is beyond all memory", put.target) })?;
        let config = &self.fabric.config;
        let held = put.sources.iter().map(|source| (source.region().clone(), source.offset(), source.len()));
        let bytes = if len <= self.limits.max_copied {
            let mut copy = Vec::new();
            for (region, offset, len) in held {
                let start = copy.len();
                copy.resize(start + len, 0);
                // SAFETY: a put's sources are at rest.
                unsafe { region.read(offset, copy.get_mut(start..).unwrap_or_default())? };
            }
            Bytes::Copied(copy)
        } else {
            Bytes::Held(held.collect())
        };

        let mut guard = self.fabric.lock();
        let state = &mut *guard;
        let Some(port) = state.endpoints.get_mut(self.index) else {
            return Err(Error::Unexpected { call: "sim", value: "an endpoint that was never opened".into() });
        };
        if let Some(failure) = &port.broken {
            return Err(failure.error());
        }
        if port.under_way >= config.depth {
            return Ok(Posted::Full);
        }
        port.under_way += 1;
        let begun = port.begun.entry(to).or_default();
        *begun += 1;
        let drawn = draw([config.seed, self.index as u64, to as u64, *begun]);
        let jitter = drawn % nanoseconds(config.jitter).saturating_add(1);
        let sending = (len as u128 * 1_000_000_000).div_ceil(u128::from(config.bandwidth.max(1)));
        port.busy_until =
            port.busy_until.max(state.now).saturating_add(u64::try_from(sending).unwrap_or(u64::MAX));
        let at = port.busy_until.saturating_add(nanoseconds(config.latency)).saturating_add(jitter);
        state.epoch += 1;
        let key = put.target.region.key;
        let token = put.ends_told(&self.limits).then_some(put.token);
        let (immediate, from) = (put.immediate, self.index);
        let delivery = Delivery { from, to, peer: put.to, bytes, len, key, address, immediate, token };
        state.schedule(at, Pending::Delivery(delivery));
        drop(guard);
        self.fabric.changed.notify_all();
        Ok(Posted::Yes)
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), Error> {
        let mut guard = self.fabric.lock();
        let state = &mut *guard;
        let idle = state
            .endpoints
            .get(self.index)
            .is_none_or(|port| port.events.is_empty() && port.broken.is_none());
        if idle
            && self.seen == Some(state.epoch)
            && let Some(Reverse((at, _))) = state.due.peek()
        {
            state.now = state.now.max(*at);
        }
        let done = state.deliver(&self.fabric.config);
        let delivered = !done.is_empty();
        let mut failure = None;
        if let Some(port) = state.endpoints.get_mut(self.index) {
            failure.clone_from(&port.broken);
            let found = !port.events.is_empty();
            events.extend(port.events.drain(..));
            port.waiting.clear();
            port.arrivals = 0;
            self.seen = (!found).then_some(state.epoch);
        }
        drop(guard);
        if delivered {
            self.fabric.changed.notify_all();
        }
        drop(done);
        failure.map_or(Ok(()), |failure| Err(failure.error()))
    }

    fn park(&mut self, timeout: Duration) -> Result<(), Error> {
        let mut state = self.fabric.lock();
        let idle = state
            .endpoints
            .get(self.index)
            .is_none_or(|port| port.events.is_empty() && port.broken.is_none() && !port.woken);
        if idle && state.due.is_empty() {
            let nap = timeout.min(NAP);
            state = self.fabric.changed.wait_timeout(state, nap).unwrap_or_else(PoisonError::into_inner).0;
        }
        if let Some(port) = state.endpoints.get_mut(self.index) {
            port.woken = false;
        }
        Ok(())
    }

    fn waker(&self) -> Arc<dyn Wake> {
        Arc::new(Sleeper { fabric: Arc::clone(&self.fabric), index: self.index })
    }

    fn activity(&self) -> Arc<Activity> {
        Arc::default()
    }
}

/// An endpoint that may be asleep.
struct Sleeper {
    fabric: Arc<Shared>,
    index: usize,
}

impl Wake for Sleeper {
    fn wake(&self) {
        if let Some(port) = self.fabric.lock().endpoints.get_mut(self.index) {
            port.woken = true;
        }
        self.fabric.changed.notify_all();
    }
}

impl Failure {
    fn error(&self) -> Error {
        Error::Completion {
            peer: self.peer,
            code: self.code,
            reason: self.reason.clone(),
            provider_code: 0,
            detail: String::new(),
        }
    }
}

impl Drop for Endpoint {
    /// What it has begun and has not been delivered is lost; what is under way to it breaks its sender.
    fn drop(&mut self) {
        let mut state = self.fabric.lock();
        let mine = self.index;
        let of_mine = |pending: &Pending| match pending {
            Pending::Delivery(delivery) => delivery.from == mine,
            Pending::Sent { to, .. } => *to == mine,
        };
        let (lost, left): (Vec<_>, Vec<_>) =
            std::mem::take(&mut state.pending).into_iter().partition(|(_, pending)| of_mine(pending));
        state.pending = left.into_iter().collect();
        state.lost += lost.iter().filter(|(_, it)| matches!(it, Pending::Delivery(_))).count();
        if let Some(port) = state.endpoints.get_mut(mine) {
            port.closed = true;
            port.events.clear();
        }
        drop(state);
        // Only now: dropping a region takes the lock.
        drop(lost);
    }
}
