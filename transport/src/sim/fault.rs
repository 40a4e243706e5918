//! A transport that fails as a test tells it to, around one that works.
#![allow(unsafe_code)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use crate::{
    Activity, Address, Error, Event, LibraryCall, Limits, Memory, Peer, Posted, Put, Region, Transport, Wake,
};

/// A transport that stops returning from one of its calls, as a library does that waits for a lock which nobody will ever
/// release.
pub struct Stuck {
    inner: Box<dyn Transport>,
    at: LibraryCall,
    stuck: Arc<AtomicBool>,
    activity: Arc<Activity>,
}

impl Stuck {
    /// As `inner`; but while `stuck` is set, polling does not return, or closing, as `at` says.
    #[must_use]
    pub fn new(inner: Box<dyn Transport>, at: LibraryCall, stuck: Arc<AtomicBool>) -> Self {
        Self { inner, at, stuck, activity: Arc::default() }
    }

    fn stick(&self, call: LibraryCall) {
        self.activity.enter(call);
        while call == self.at && self.stuck.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        self.stick(LibraryCall::Close);
    }
}

// SAFETY: as the transport within, until it is stuck.
unsafe impl Transport for Stuck {
    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn address(&self) -> &Address {
        self.inner.address()
    }

    fn connect(&mut self, address: &Address) -> Result<Peer, Error> {
        self.inner.connect(address)
    }

    fn register(&mut self, memory: Memory) -> Result<Region, Error> {
        self.inner.register(memory)
    }

    unsafe fn put(&mut self, put: &Put<'_>) -> Result<Posted, Error> {
        // SAFETY: by the caller's promise.
        unsafe { self.inner.put(put) }
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), Error> {
        self.stick(LibraryCall::Poll);
        let polled = self.inner.poll(events);
        self.activity.leave();
        polled
    }

    fn park(&mut self, timeout: Duration) -> Result<(), Error> {
        self.inner.park(timeout)
    }

    fn waker(&self) -> Arc<dyn Wake> {
        self.inner.waker()
    }

    fn activity(&self) -> Arc<Activity> {
        Arc::clone(&self.activity)
    }
}
