//! A simulated fabric: a virtual clock, latency, bandwidth and reordering, all drawn from a seed.
//!
//! It uses all the freedom that the contract of [`Transport`](unisono_transport::Transport) gives: the bytes of a put are read when it is
//! delivered, not when it is begun, deliveries overtake each other, and a completion queue that has to hold more than its limits
//! say breaks the endpoint.
//!
//! Time passes only when nothing else can happen: if an endpoint's poll finds nothing twice in a row, with no put and no delivery
//! anywhere in between, it moves the clock to the next delivery. So a thread that polls its endpoints in a fixed order replays the
//! same run from the same seed. If several threads drive endpoints, each delivery's delay still follows from the seed, but the order
//! of calls does not.
#![allow(dead_code, reason = "each test program uses a part")]

mod config;
mod endpoint;
mod time;

use std::sync::{
    Arc, Condvar, Mutex,
    atomic::{AtomicU64, Ordering},
};

use time::{Port, Shared};

pub(crate) use {config::Config, endpoint::Endpoint};

/// The provider's name in addresses and errors.
const PROVIDER: &str = "sim";

/// The fabric. Cloning copies a handle.
#[derive(Clone, Debug)]
pub(crate) struct Fabric(Arc<Shared>);

impl Fabric {
    /// A fabric with no endpoint yet.
    #[must_use]
    pub(crate) fn new(config: Config) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(Arc::new(Shared { number, config, state: Mutex::default(), changed: Condvar::new() }))
    }

    /// A new endpoint, which may move to another thread.
    #[must_use]
    pub(crate) fn open(&self) -> Endpoint {
        let mut state = self.0.lock();
        state.endpoints.push(Port::default());
        let index = state.endpoints.len() - 1;
        drop(state);
        Endpoint::new(&self.0, index)
    }

    /// The number of puts that did not land because their sender's or receiver's endpoint was closed.
    #[must_use]
    pub(crate) fn lost(&self) -> usize {
        self.0.lock().lost
    }
}
