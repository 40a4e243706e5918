//! A transport whose calls a test sees and may hold up, around one that works.
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

/// What a test sees of a transport.
#[derive(Clone, Copy, Debug)]
pub enum Call<'a> {
    /// This put was begun, or there was no room for it.
    Put(&'a Put<'a>, Posted),
    /// It polls next.
    Poll,
    /// It is closed next.
    Close,
}

/// A transport whose calls are seen.
pub struct Observed {
    inner: Box<dyn Transport>,
    see: Box<dyn FnMut(Call<'_>) + Send>,
    activity: Arc<Activity>,
}

impl Observed {
    /// As `inner`; `see` is called for each of its calls, and may block.
    #[must_use]
    pub fn new(inner: Box<dyn Transport>, see: impl FnMut(Call<'_>) + Send + 'static) -> Self {
        Self { inner, see: Box::new(see), activity: Arc::default() }
    }

    /// A transport that stops returning from one of its calls, polling or closing, while `stuck` is set: as a library that waits
    /// for a lock that is never released.
    #[must_use]
    pub fn stuck(inner: Box<dyn Transport>, at: LibraryCall, stuck: Arc<AtomicBool>) -> Self {
        Self::new(inner, move |call| {
            let here = match call {
                Call::Poll => at == LibraryCall::Poll,
                Call::Close => at == LibraryCall::Close,
                Call::Put(..) => false,
            };
            while here && stuck.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(1));
            }
        })
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        self.activity.enter(LibraryCall::Close);
        (self.see)(Call::Close);
    }
}

// SAFETY: as the transport within, until it is stuck.
unsafe impl Transport for Observed {
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
        let posted = unsafe { self.inner.put(put)? };
        (self.see)(Call::Put(put, posted));
        Ok(posted)
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), Error> {
        self.activity.enter(LibraryCall::Poll);
        (self.see)(Call::Poll);
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
