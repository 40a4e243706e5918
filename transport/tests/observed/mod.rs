//! A transport around another one, whose calls a test observes and may delay.
#![allow(unsafe_code)]
#![allow(dead_code, reason = "each test program uses a part")]

use std::{
    os::fd::BorrowedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use unisono_transport::{
    Activity, Address, Error, Event, LibraryCall, Limits, Mapping, Memory, Peer, Posted, Put, Ready, Region,
    Registration, RemoteRegion, Transport, Wake,
};

/// A call of an observed transport.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call<'a> {
    /// A put was begun, or there was no room for it.
    Put(&'a Put<'a>, Posted),
    /// The transport polls next.
    Poll,
    /// The transport is closed next.
    Close,
}

/// What a transport does not share with peers, though it says that it maps memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Withheld {
    /// It maps only their regions of this length.
    Views {
        /// The length in bytes.
        but: u64,
    },
    /// Peers cannot map what it allocates.
    Memory,
}

/// A transport around another one, which reports its calls.
pub(crate) struct Observed {
    inner: Box<dyn Transport>,
    see: Box<dyn FnMut(Call<'_>) + Send>,
    activity: Arc<Activity>,
    withheld: Option<Withheld>,
}

impl Observed {
    /// Forwards to `inner`, and reports each call to `see`, which may block.
    #[must_use]
    pub(crate) fn new(inner: Box<dyn Transport>, see: impl FnMut(Call<'_>) + Send + 'static) -> Self {
        Self { inner, see: Box::new(see), activity: Arc::default(), withheld: None }
    }

    /// A transport that shares less memory with peers than `inner` would.
    #[must_use]
    pub(crate) fn withholding(inner: Box<dyn Transport>, withheld: Withheld) -> Self {
        let mut all = Self::new(inner, |_| ());
        all.withheld = Some(withheld);
        all
    }

    /// A transport that does not return from polling or closing, whichever `at` is, while `stuck` is set: like a library that waits
    /// for a lock that is never released.
    #[must_use]
    pub(crate) fn stuck(inner: Box<dyn Transport>, at: LibraryCall, stuck: Arc<AtomicBool>) -> Self {
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
        match self.withheld {
            Some(Withheld::Memory) => {
                // SAFETY: the memory outlives this registration of it, and is accessed as the caller has promised.
                let unshared = unsafe { Memory::borrowed(memory.base(), memory.len()) };
                let region = self.inner.register(unshared)?;
                let (remote, descriptor) = (region.remote().unwrap_or_default(), region.descriptor());
                Ok(Region::registered(memory, Registration { remote, descriptor, guard: Box::new(region) }))
            }
            _ => self.inner.register(memory),
        }
    }

    fn allocate(&mut self, len: usize) -> Result<Region, Error> {
        match self.withheld {
            Some(Withheld::Memory) => self.inner.register(Memory::map(len)?),
            _ => self.inner.allocate(len),
        }
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

    fn reads(&mut self, peer: Peer) -> Result<bool, Error> {
        self.inner.reads(peer)
    }

    unsafe fn read(&mut self, peer: Peer, address: u64, into: *mut u8, len: usize) -> Result<(), Error> {
        // SAFETY: by the caller's promise.
        unsafe { self.inner.read(peer, address, into, len) }
    }

    fn map(&mut self, peer: Peer, region: &RemoteRegion) -> Result<Mapping, Error> {
        match self.withheld {
            Some(Withheld::Views { but }) if region.len != but => Ok(Mapping::No),
            _ => self.inner.map(peer, region),
        }
    }

    fn notify(&mut self, peers: &[Peer]) -> Result<(), Error> {
        self.inner.notify(peers)
    }

    fn park(&mut self, timeout: Duration, others: &[BorrowedFd<'_>], ready: Ready<'_>) -> Result<(), Error> {
        self.inner.park(timeout, others, ready)
    }

    fn waker(&self) -> Arc<dyn Wake> {
        self.inner.waker()
    }

    fn activity(&self) -> Arc<Activity> {
        Arc::clone(&self.activity)
    }
}
