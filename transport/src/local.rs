//! The common parts of the transports without a library: their limits, registered memory, and failures of puts.
#![allow(unsafe_code)]

use crate::{Error, Limits, Peer, RemoteRegion, region};

/// `EINVAL`, for puts that the peer's memory refuses.
const INVALID: i64 = 22;
/// `ECONNRESET`, for a peer that has ended without closing its endpoint.
const DIED: i64 = 104;
/// `ENOTCONN`, for puts to an endpoint that was dropped.
const GONE: i64 = 107;

impl Default for Limits {
    /// The limits of a transport that has no library, no device and no wire, and no name yet.
    fn default() -> Self {
        Self {
            provider: String::new(),
            version: String::new(),
            device: String::new(),
            max_put: isize::MAX.unsigned_abs(),
            max_inject: 0,
            max_copied: 0,
            max_sources: 4,
            local_registration: false,
            cheap_registration: true,
            sockets: false,
            one_host: false,
            maps: false,
            shares: None,
            arrivals: 1024,
            arrivals_per_peer: 1024,
            more_arrivals: "",
            listens: String::new(),
            wakes: false,
            connect_all: false,
        }
    }
}

/// Memory that an endpoint has registered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) base: *mut u8,
    pub(crate) remote: RemoteRegion,
}

// SAFETY: a pointer that is followed only by `Span::write`, whose contract says when.
unsafe impl Send for Span {}
// SAFETY: as above.
unsafe impl Sync for Span {}

impl Span {
    /// The position of `len` bytes at this address of the owner, if they lie in this memory.
    pub(crate) fn start(&self, address: u64, len: u64) -> Option<usize> {
        let start = address.checked_sub(self.remote.base)?;
        let inside = start.checked_add(len)? <= self.remote.len;
        usize::try_from(start).ok().filter(|_| inside)
    }

    /// Writes `sources`, joined, `len` bytes, to this address of the owner.
    ///
    /// # Safety
    /// The memory is registered; nothing else reads or writes these bytes meanwhile; the sources are valid and at rest.
    pub(crate) unsafe fn write(
        &self,
        address: u64,
        sources: impl Iterator<Item = (*const u8, usize)>,
        len: usize,
    ) -> Result<(), Failure> {
        let start = self.start(address, len as u64).ok_or_else(Failure::outside)?;
        // SAFETY: in bounds, as was just seen; the rest by the caller's promise.
        unsafe { region::gather(sources, self.base.add(start)) };
        Ok(())
    }
}

/// Why a put failed after it was begun.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    peer: Option<Peer>,
    code: i64,
    reason: String,
}

impl Failure {
    pub(crate) fn new(code: i64, reason: impl Into<String>) -> Self {
        Self { peer: None, code, reason: reason.into() }
    }

    /// The error of a put to this peer.
    pub(crate) fn to(self, peer: Peer) -> Self {
        Self { peer: Some(peer), ..self }
    }

    /// The peer has no memory with this key.
    pub(crate) fn unregistered() -> Self {
        Self::new(INVALID, "the peer has no memory registered under this key")
    }

    /// The place does not lie in the memory that its key names.
    pub(crate) fn outside() -> Self {
        Self::new(INVALID, "the put would leave the peer's registered memory")
    }

    /// The peer's memory cannot be read.
    pub(crate) fn unreadable() -> Self {
        Self::new(INVALID, "the peer's memory cannot be read here")
    }

    /// The peer has ended without closing its endpoint.
    pub(crate) fn died() -> Self {
        Self::new(DIED, "the peer's process has ended without closing its endpoint")
    }

    pub(crate) fn gone() -> Self {
        Self::new(GONE, "the peer's endpoint is closed")
    }
}

impl From<Failure> for Error {
    fn from(Failure { peer, code, reason }: Failure) -> Self {
        Self::Completion { peer, code, reason, provider_code: 0, detail: String::new() }
    }
}
