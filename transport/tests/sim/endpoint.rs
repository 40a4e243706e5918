//! An endpoint of the simulated fabric.
#![allow(unsafe_code)]

use std::{
    cmp::Reverse,
    os::fd::BorrowedFd,
    sync::{Arc, PoisonError},
    time::Duration,
};

use unisono_transport::{
    Address, Error, Event, Limits, Memory, Peer, Posted, Put, Ready, Region, Registration, RemoteRegion,
    Source, Transport, Wake,
};

use super::{
    PROVIDER,
    time::{Delivery, Pending, Shared, Sources, Span, draw, nanoseconds},
};

/// The longest sleep of `park`, in real time, when nothing is under way.
const NAP: Duration = Duration::from_micros(100);

/// One endpoint of the fabric.
#[derive(Debug)]
pub(crate) struct Endpoint {
    fabric: Arc<Shared>,
    index: usize,
    address: Address,
    /// The index of each peer.
    peers: Vec<usize>,
    /// The epoch in which a poll last found nothing.
    seen: Option<u64>,
    limits: Limits,
}

/// Ends a registration when it is dropped. Deliveries are made under the same lock, so none is under way after it.
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

impl Endpoint {
    /// The endpoint of this index.
    pub(super) fn new(fabric: &Arc<Shared>, index: usize) -> Self {
        let config = &fabric.config;
        Self {
            index,
            address: fabric.address(index),
            peers: Vec::new(),
            seen: None,
            limits: Limits {
                provider: PROVIDER.into(),
                max_put: config.max_put,
                max_inject: config.max_inject,
                max_copied: config.max_copied.max(config.max_inject),
                max_sources: config.max_sources.max(1),
                local_registration: config.local_registration,
                cheap_registration: config.cheap_registration,
                arrivals: config.arrivals,
                arrivals_per_peer: config.arrivals_per_peer.min(config.arrivals),
                ..Limits::default()
            },
            fabric: Arc::clone(fabric),
        }
    }
}

// SAFETY: a delivery writes where its put says while that is registered, and is reported then; its sources are kept until then.
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
            provider: PROVIDER.into(),
            reason: reason.into(),
        };
        let count = self.fabric.lock().endpoints.len();
        let index = (0..count).find(|index| self.fabric.address(*index) == *address);
        let index = index.ok_or_else(|| bad("no endpoint of this fabric has it"))?;
        let place = self.peers.iter().position(|known| *known == index).unwrap_or(self.peers.len());
        if place == self.peers.len() {
            self.peers.push(index);
        }
        u32::try_from(place).map(Peer).map_err(|_| bad("there are too many peers"))
    }

    fn register(&mut self, memory: Memory) -> Result<Region, Error> {
        let mut state = self.fabric.lock();
        state.next_key += 1;
        let key = draw([self.fabric.config.seed, u64::MAX, state.next_key, 0]); // The seed is secret.
        let start = memory.base().addr() as u64;
        let base = if self.fabric.config.virtual_addresses { start } else { 0 };
        let remote = RemoteRegion { base, key, len: memory.len() as u64, mappable: false };
        state.spans.insert(key, Span { owner: self.index, base: memory.base(), remote });
        drop(state);
        let guard = Box::new(Guard { fabric: Arc::clone(&self.fabric), key });
        Ok(Region::registered(memory, Registration { remote, descriptor: std::ptr::null_mut(), guard }))
    }

    fn allocate(&mut self, len: usize) -> Result<Region, Error> {
        self.register(Memory::map(len)?)
    }

    unsafe fn put(&mut self, put: &Put<'_>) -> Result<Posted, Error> {
        let (len, address) = put.check(&self.limits, self.peers.len())?;
        let to = self.peers[put.to.0 as usize];
        let config = &self.fabric.config;
        let sources = if len <= self.limits.max_copied {
            let bytes = |source: &Source<'_>| {
                let mut bytes = vec![0; source.len()];
                // SAFETY: a put's sources are at rest.
                unsafe { source.region().read(source.offset(), &mut bytes) }.map(|()| bytes)
            };
            Sources::Copied(put.sources.iter().map(bytes).collect::<Result<Vec<_>, _>>()?.concat())
        } else {
            let part = |source: &Source<'_>| (source.region().clone(), source.offset(), source.len());
            Sources::Kept(put.sources.iter().map(part).collect())
        };

        let mut guard = self.fabric.lock();
        let state = &mut *guard;
        let port = &mut state.endpoints[self.index];
        if let Some(failure) = &port.broken {
            return Err(failure.clone().into());
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
        let token = put.notifies(&self.limits).then_some(put.token);
        let (immediate, from) = (put.immediate, self.index);
        let delivery = Delivery { from, to, peer: put.to, sources, len, key, address, immediate, token };
        state.schedule(at, Pending::Delivery(delivery));
        drop(guard);
        self.fabric.changed.notify_all();
        Ok(Posted::Yes)
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), Error> {
        let mut guard = self.fabric.lock();
        let state = &mut *guard;
        let port = &state.endpoints[self.index];
        let idle = port.events.is_empty() && port.broken.is_none();
        if idle
            && self.seen == Some(state.epoch)
            && let Some(Reverse((at, _))) = state.due.peek()
        {
            state.now = state.now.max(*at);
        }
        let done = state.deliver(&self.fabric.config);
        let delivered = !done.is_empty();
        let port = &mut state.endpoints[self.index];
        let failure = port.broken.clone();
        self.seen = port.events.is_empty().then_some(state.epoch);
        events.extend(port.events.drain(..));
        port.waiting.clear();
        port.arrivals = 0;
        drop(guard);
        if delivered {
            self.fabric.changed.notify_all();
        }
        drop(done);
        failure.map_or(Ok(()), |failure| Err(failure.into()))
    }

    // This transport naps, and does not watch the descriptors.
    fn park(&mut self, timeout: Duration, _: &[BorrowedFd<'_>], _: Ready<'_>) -> Result<(), Error> {
        let mut state = self.fabric.lock();
        let port = &state.endpoints[self.index];
        let idle = port.events.is_empty() && port.broken.is_none() && !port.woken;
        if idle && state.due.is_empty() {
            let nap = timeout.min(NAP);
            state = self.fabric.changed.wait_timeout(state, nap).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.endpoints[self.index].woken = false;
        Ok(())
    }

    fn waker(&self) -> Arc<dyn Wake> {
        Arc::new(Sleeper { fabric: Arc::clone(&self.fabric), index: self.index })
    }
}

/// An endpoint that may be asleep.
struct Sleeper {
    fabric: Arc<Shared>,
    index: usize,
}

impl Wake for Sleeper {
    fn wake(&self) {
        self.fabric.lock().endpoints[self.index].woken = true;
        self.fabric.changed.notify_all();
    }
}

impl Drop for Endpoint {
    /// Puts that it has begun and that were not delivered are lost; a put under way to it breaks its sender.
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
        state.endpoints[mine].closed = true;
        state.endpoints[mine].events.clear();
        drop(state);
        // The regions are dropped only now, because that takes the lock.
        drop(lost);
    }
}
