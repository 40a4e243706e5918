//! Virtual time: the puts under way, and their delivery when it is due. The seed determines the order.
#![allow(unsafe_code)]

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap, VecDeque},
    ptr,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use unisono_transport::{Address, Error, Event, Peer, Region, RemoteRegion};

use super::{Config, PROVIDER};

/// `EINVAL`, for puts that the peer's memory refuses.
const INVALID: i64 = 22;
/// `ENOTCONN`, for puts to an endpoint that was dropped.
const GONE: i64 = 107;
/// `FI_EOVERRUN`, for a completion queue that was sent more than it holds.
const OVERRUN: i64 = 268;

#[derive(Debug)]
pub(super) struct Shared {
    /// Distinguishes the fabric's endpoints from those of others.
    pub(super) number: u64,
    pub(super) config: Config,
    pub(super) state: Mutex<State>,
    /// Signals that something was begun or has landed.
    pub(super) changed: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) now: u64,
    /// Grows with every put, delivery and move of the clock.
    pub(super) epoch: u64,
    pub(super) sequence: u64,
    pub(super) endpoints: Vec<Port>,
    pub(super) spans: HashMap<u64, Span>,
    pub(super) next_key: u64,
    pub(super) due: BinaryHeap<Reverse<(u64, u64)>>,
    pub(super) pending: BTreeMap<u64, Pending>,
    pub(super) lost: usize,
}

#[derive(Debug, Default)]
pub(super) struct Port {
    pub(super) events: VecDeque<Event>,
    pub(super) broken: Option<Failure>,
    pub(super) closed: bool,
    pub(super) under_way: usize,
    /// The time at which the last byte accepted so far will have left (ns).
    pub(super) busy_until: u64,
    /// The number of puts that it has begun, by receiver. Their delays follow from it.
    pub(super) begun: HashMap<usize, u64>,
    pub(super) waiting: HashMap<usize, usize>,
    pub(super) arrivals: usize,
    pub(super) woken: bool,
}

/// Memory that the endpoint `owner` has registered.
#[derive(Debug)]
pub(super) struct Span {
    pub(super) owner: usize,
    pub(super) base: *mut u8,
    pub(super) remote: RemoteRegion,
}

// SAFETY: a pointer that is followed only by `State::write`, which says why it may.
unsafe impl Send for Span {}

/// Why an endpoint is broken.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    peer: Option<Peer>,
    code: i64,
    reason: String,
}

impl From<Failure> for Error {
    fn from(Failure { peer, code, reason }: Failure) -> Self {
        Self::Completion { peer, code, reason, provider_code: 0, detail: String::new() }
    }
}

#[derive(Debug)]
pub(super) enum Pending {
    Delivery(Delivery),
    Sent { to: usize, token: u64 },
}

#[derive(Debug)]
pub(super) struct Delivery {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) peer: Peer,
    pub(super) sources: Sources,
    pub(super) len: usize,
    pub(super) key: u64,
    pub(super) address: u64,
    pub(super) immediate: u32,
    /// The token of the sender's notification, if it wants one.
    pub(super) token: Option<u64>,
}

/// What a delivery writes, read when it is delivered.
#[derive(Debug)]
pub(super) enum Sources {
    Copied(Vec<u8>),
    /// Parts of regions, each with its offset and length.
    Kept(Vec<(Region, usize, usize)>),
}

impl Shared {
    /// The address of the endpoint of this index.
    pub(super) fn address(&self, index: usize) -> Address {
        Address([&self.number.to_le_bytes(), PROVIDER.as_bytes(), &index.to_le_bytes()].concat())
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A well-mixed number from four (SplitMix64's finaliser, applied in turn).
pub(super) fn draw(parts: [u64; 4]) -> u64 {
    parts.into_iter().fold(0x9e37_79b9_7f4a_7c15, |mixed, part| {
        let mut z = (mixed ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl State {
    pub(super) fn schedule(&mut self, at: u64, pending: Pending) {
        self.sequence += 1;
        self.due.push(Reverse((at, self.sequence)));
        self.pending.insert(self.sequence, pending);
    }

    /// Delivers everything that is due. Returns the sources of the deliveries, whose regions must be dropped outside the lock.
    pub(super) fn deliver(&mut self, config: &Config) -> Vec<Sources> {
        let mut done = Vec::new();
        while let Some(Reverse((at, number))) = self.due.peek().copied() {
            if at > self.now {
                break;
            }
            self.due.pop();
            self.epoch += 1;
            match self.pending.remove(&number) {
                Some(Pending::Sent { to, token }) => {
                    let port = &mut self.endpoints[to];
                    port.under_way -= 1;
                    port.events.push_back(Event::Sent { token });
                }
                Some(Pending::Delivery(delivery)) => done.push(self.land(delivery, config)),
                None => {}
            }
        }
        done
    }

    /// Lands a delivery, or breaks the endpoint that is at fault.
    fn land(&mut self, delivery: Delivery, config: &Config) -> Sources {
        let Delivery { from, to, peer, sources, len, key, address, immediate, token } = delivery;
        if let Err((code, reason)) = self.write(to, key, address, len, &sources) {
            self.lost += usize::from(code == GONE);
            let port = &mut self.endpoints[from];
            port.under_way -= 1;
            port.broken.get_or_insert_with(|| Failure { peer: Some(peer), code, reason: reason.into() });
            return sources;
        }
        let port = &mut self.endpoints[to];
        port.events.push_back(Event::Arrived { immediate, len: config.reports_len.then_some(len) });
        port.arrivals += 1;
        let waiting = port.waiting.entry(from).or_default();
        *waiting += 1;
        let limits =
            [(port.arrivals, config.arrivals, "all peers"), (*waiting, config.arrivals_per_peer, "one peer")];
        for (waiting, limit, which) in limits {
            if waiting > limit {
                let reason = format!("{waiting} puts of {which} have landed unread, {limit} are allowed");
                port.broken.get_or_insert(Failure { peer: None, code: OVERRUN, reason });
            }
        }
        match token {
            None => self.endpoints[from].under_way -= 1,
            // The sender learns of it when the acknowledgement is back.
            Some(token) => {
                let at = self.now.saturating_add(nanoseconds(config.latency));
                self.schedule(at, Pending::Sent { to: from, token });
            }
        }
        sources
    }

    /// Writes what a delivery brings, or says with which code and for which reason it cannot land.
    fn write(
        &self,
        to: usize,
        key: u64,
        address: u64,
        len: usize,
        sources: &Sources,
    ) -> Result<(), (i64, &'static str)> {
        if self.endpoints[to].closed {
            return Err((GONE, "the peer's endpoint is closed"));
        }
        let span = self.spans.get(&key).filter(|span| span.owner == to);
        let span = span.ok_or((INVALID, "the peer has no memory registered under this key"))?;
        let inside = |start: &u64| start.checked_add(len as u64).is_some_and(|end| end <= span.remote.len);
        let start = address.checked_sub(span.remote.base).filter(inside);
        let start = start.and_then(|start| usize::try_from(start).ok());
        let start = start.ok_or((INVALID, "the put would leave the peer's registered memory"))?;
        // SAFETY: the memory is registered, which dropping its region would have to undo under the lock that is held here, and the bytes
        // lie in it. Nothing reads the target before the arrival; the sources are at rest until `Sent`, and kept alive by `sources`.
        unsafe {
            let mut target = span.base.add(start);
            match sources {
                Sources::Copied(bytes) => ptr::copy(bytes.as_ptr(), target, bytes.len()),
                Sources::Kept(parts) => {
                    for (region, offset, len) in parts {
                        ptr::copy(region.base().add(*offset), target, *len);
                        target = target.add(*len);
                    }
                }
            }
        }
        Ok(())
    }
}
