//! A simulated fabric: a virtual clock, latency, bandwidth and reordering, all drawn from a seed.
//!
//! It is meaner than a real one where the contract allows it: the bytes of a put are read when it is delivered, not when it is
//! begun, deliveries overtake one another, and a completion queue that is asked to hold more than its limits say breaks.
//!
//! Time passes only when nothing else can happen. An endpoint whose poll finds nothing, twice in a row with
//! no put and no delivery anywhere in between, moves the clock to the next delivery. So one thread that
//! polls its endpoints in a fixed order replays the same run from the same seed; several threads may drive
//! them too, and then each delivery's delay is still the seed's, though the order of calls is the threads'.

mod config;
mod endpoint;
pub mod fault;
mod time;

use std::{
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use time::{Port, Shared};

use crate::local::Names;

pub use {config::Config, endpoint::Endpoint};

/// What its addresses and errors say.
const PROVIDER: &str = "sim";

/// The fabric. Cloning copies a handle.
#[derive(Clone, Debug)]
pub struct Fabric(Arc<Shared>);

impl Fabric {
    /// A fabric with no endpoint yet.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let names = Names::new(PROVIDER);
        Self(Arc::new(Shared { names, config, state: Mutex::default(), changed: Condvar::new() }))
    }

    /// A new endpoint, which may move to another thread.
    #[must_use]
    pub fn open(&self) -> Endpoint {
        let mut state = self.0.lock();
        state.endpoints.push(Port::default());
        let index = state.endpoints.len() - 1;
        drop(state);
        Endpoint::new(&self.0, index)
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
