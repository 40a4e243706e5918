//! An endpoint of the simulated fabric.
#![allow(unsafe_code)]

use std::{
    cmp::Reverse,
    os::fd::BorrowedFd,
    sync::{Arc, PoisonError},
    time::Duration,
};

use super::{
    PROVIDER,
    time::{Delivery, Pending, Shared, draw, nanoseconds},
};
use crate::{
    Address, Error, Event, Limits, Memory, Peer, Posted, Put, Ready, Region, Registration, RemoteRegion,
    Transport, Wake, check,
    local::{self, Peers, Span},
    region,
};

/// The longest sleep of `park`, in real time, when nothing is under way.
const NAP: Duration = Duration::from_micros(100);

/// One endpoint of the fabric.
#[derive(Debug)]
pub struct Endpoint {
    fabric: Arc<Shared>,
    index: usize,
    address: Address,
    peers: Peers<()>,
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
            address: fabric.names.address(index),
            peers: Peers::default(),
            seen: None,
            limits: Limits {
                max_put: config.max_put,
                max_inject: config.max_inject,
                max_copied: config.max_copied.max(config.max_inject),
                max_sources: config.max_sources.max(1),
                local_registration: config.local_registration,
                cheap_registration: config.cheap_registration,
                arrivals: config.arrivals,
                arrivals_per_peer: config.arrivals_per_peer.min(config.arrivals),
                ..local::limits(PROVIDER)
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
        let count = self.fabric.lock().endpoints.len();
        self.peers.connect(&self.fabric.names, address, |index| (index < count).then_some(()))
    }

    fn register(&mut self, memory: Memory) -> Result<Region, Error> {
        let mut state = self.fabric.lock();
        state.next_key += 1;
        let key = draw([self.fabric.config.seed, u64::MAX, state.next_key, 0]); // The seed is secret.
        let start = memory.base().addr() as u64;
        let base = if self.fabric.config.virtual_addresses { start } else { 0 };
        let remote = RemoteRegion { base, key, len: memory.len() as u64, mappable: false };
        state.spans.insert(key, (self.index, Span { base: memory.base(), remote }));
        drop(state);
        let guard = Box::new(Guard { fabric: Arc::clone(&self.fabric), key });
        Ok(Region::registered(memory, Registration { remote, descriptor: std::ptr::null_mut(), guard }))
    }

    fn allocate(&mut self, len: usize) -> Result<Region, Error> {
        self.register(Memory::map(len)?)
    }

    unsafe fn put(&mut self, put: &Put<'_>) -> Result<Posted, Error> {
        let (len, address) = check::put(put, &self.limits, self.peers.len())?;
        let (to, ()) = *self.peers.get(put.to)?;
        let config = &self.fabric.config;
        let sources = if len <= self.limits.max_copied {
            let mut copy = vec![0; len];
            let base = copy.as_mut_ptr();
            // SAFETY: a put's sources are at rest, and `len` bytes together.
            unsafe { region::gather(put.sources.iter().map(region::bytes), base) };
            // SAFETY: the copy's bytes, which stay where they are.
            vec![(Region::unregistered(unsafe { Memory::owned(base, len, copy) }), 0, len)]
        } else {
            let all = put.sources.iter();
            all.map(|source| (source.region().clone(), source.offset(), source.len())).collect()
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
