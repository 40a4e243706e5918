//! The endpoint: one thread at a time drives it, with one completion queue in one domain.
#![allow(unsafe_code)]

use std::{
    collections::HashMap,
    mem::{ManuallyDrop, MaybeUninit},
    os::fd::BorrowedFd,
    sync::Arc,
    time::Duration,
};

use unisono_libfabric_sys as sys;

use super::{
    address, call, completion,
    handle::{Av, Cq, Domain, Endpoint},
    info,
    keepalive::KeepAlive,
    memory::Registrar,
    post::{Pool, UnderWay, Vectors},
    provider::Provider,
    workarounds::{self, FirstPuts},
};
use crate::{
    Activity, Address, Error, Event, LibraryCall, Limits, Memory, Peer, Posted, Put, Ready, Region, Source,
    Transport, Wake,
    eventfd::EventFd,
    region::{bytes, gather},
};

/// The most completions that are read at once.
pub(super) const BATCH: usize = 64;
/// The longest sleep of `park` if there is no descriptor to wait on.
const NAP: Duration = Duration::from_micros(50);
/// The most times in a row that the library may forbid to sleep without reporting an event, before `park` sleeps for a short time
/// nevertheless: `ofi_rxm` does so for milliseconds while a connection is being made.
const FUTILE: u32 = 32;
/// The longest such sleep.
const LONG_NAP: Duration = Duration::from_millis(1);

/// An endpoint of a libfabric provider.
pub struct Ofi {
    pub(super) live: ManuallyDrop<Live>,
    pub(super) cq: Arc<Cq>,
    pub(super) av: Arc<Av>,
    pub(super) domain: Arc<Domain>,
    pub(super) registrar: Registrar,
    pub(super) facts: Provider,
    pub(super) limits: Limits,
    pub(super) address: Address,
    /// Every address given to the library, and the peer that was made of it.
    pub(super) known: HashMap<Address, (u64, Option<Peer>)>,
    pub(super) peers: Vec<u64>,
    pub(super) firsts: FirstPuts,
    pub(super) completions: Box<[MaybeUninit<sys::fi_cq_data_entry>; BATCH]>,
    /// The buffer in which the sources of a put that the library copies are joined ([`Limits::max_copied`] bytes at most).
    pub(super) joined: Vec<u8>,
    /// The number of times in a row that the library has forbidden to sleep and then reported nothing.
    pub(super) futile: u32,
    pub(super) waker: Arc<EventFd>,
    /// Keeps connections alive, for a provider over TCP.
    pub(super) alive: Option<KeepAlive>,
}

/// The endpoint, and the memory that must not be freed before it is closed.
pub(super) struct Live {
    // The order of the fields matters: the endpoint is closed before the memory that it may read is freed.
    pub(super) endpoint: Endpoint,
    pub(super) pool: Pool,
}

// SAFETY: the completion entries hold pointers that are never followed; everything else is `Send` by itself.
unsafe impl Send for Ofi {}

impl std::fmt::Debug for Ofi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ofi")
            .field("limits", &self.limits)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Ofi {
    /// The part of an address that libfabric made, if the address is of this kind.
    fn name_in<'a>(&self, address: &'a Address) -> Result<&'a [u8], Error> {
        let bad = |reason: String| Error::bad_address(address, &self.limits.provider, reason);
        let (format, provider, name) =
            address::parts(address).ok_or_else(|| bad("it is not one of libfabric's".into()))?;
        if provider != self.limits.provider.as_bytes() {
            return Err(bad(format!("it belongs to provider {:?}", String::from_utf8_lossy(provider))));
        }
        let (own, own_len) =
            address::parts(&self.address).map_or((0, 0), |(format, _, name)| (format, name.len()));
        if own != format {
            return Err(bad(format!("its format is {format}, this endpoint's is {own}")));
        }
        // The library does not know a name's length. Names of fixed formats are as long as this endpoint's; strings end with a zero.
        let complete = if format == sys::FI_ADDR_STR {
            name.iter().position(|byte| *byte == 0).is_some_and(|end| end + 1 == name.len())
        } else {
            name.len() == own_len
        };
        if complete { Ok(name) } else { Err(bad(format!("a name of {} bytes is not whole", name.len()))) }
    }

    /// The result of posting a put.
    fn posted(&mut self, call: &'static str, result: isize, put: &Put<'_>) -> Result<Posted, Error> {
        let posted = match i64::try_from(result) {
            Ok(0) => Posted::Yes,
            Ok(code) if code == -call::AGAIN => Posted::Full,
            Ok(code) if code < 0 => {
                return Err(call::failure(call, code, "to begin a put", Some(put.to)));
            }
            _ => return Err(Error::Unexpected { call, value: result.to_string() }),
        };
        self.firsts.posted(put.to, posted);
        Ok(posted)
    }
}

// SAFETY: libfabric reports a remote write when its bytes have landed, and a write of this endpoint when it no longer reads the
// sources; it writes to registered memory, until the registration or the endpoint is closed. It is given what the put says.
unsafe impl Transport for Ofi {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn address(&self) -> &Address {
        &self.address
    }

    fn connect(&mut self, address: &Address) -> Result<Peer, Error> {
        let known = match self.known.get(address) {
            Some((_, Some(peer))) => return Ok(*peer),
            Some((known, None)) => Some(*known),
            None => None,
        };
        let name = self.name_in(address)?;
        let full = |_| Error::bad_address(address, &self.limits.provider, "there are too many peers");
        let peer = Peer(u32::try_from(self.peers.len()).map_err(full)?);
        let known = known.map_or_else(|| self.av.insert(name), Ok)?;
        let format = address::parts(address).map_or(0, |(format, ..)| format);
        if let (Some(alive), Some(at)) = (&self.alive, info::socket_in(format, name)) {
            alive.add(at);
        }
        self.peers.push(known);
        self.known.insert(address.clone(), (known, Some(peer)));
        Ok(peer)
    }

    fn register(&mut self, memory: Memory) -> Result<Region, Error> {
        self.registrar.register(memory, &self.live.endpoint)
    }

    fn allocate(&mut self, len: usize) -> Result<Region, Error> {
        self.register(Memory::map(len)?)
    }

    unsafe fn put(&mut self, put: &Put<'_>) -> Result<Posted, Error> {
        let (len, target) = put.check(&self.limits, self.peers.len())?;
        let to = self.peers[put.to.0 as usize];
        let key = put.target.region.key;
        if !put.notifies(&self.limits) {
            let start = if let [source] = put.sources {
                bytes(source).0
            } else {
                // SAFETY: there is room for `max_copied` bytes; the sources are at rest by the contract of
                // `Transport::put`.
                unsafe { gather(put.sources.iter().map(bytes), self.joined.as_mut_ptr()) };
                self.joined.as_ptr()
            };
            let (endpoint, start, data) = (self.live.endpoint.as_ptr(), start.cast(), put.immediate.into());
            let result = self.domain.during(LibraryCall::Inject, || {
                // SAFETY: the endpoint is open; `len` bytes are readable; the library copies them.
                unsafe { sys::fi_inject_writedata(endpoint, start, len, data, to, target, key) }
            });
            return self.posted("fi_inject_writedata", result, put);
        }
        // If the library copies the bytes, it gives the kernel one piece instead of three: over tcp a broadcast of 8 B between 2 ranks
        // takes 8.7 µs instead of 9.8.
        let copied = len <= self.limits.max_copied;
        // Bytes that are copied need no registration.
        let registered = self.limits.local_registration && !copied;
        if registered {
            let foreign = |source: &&Source<'_>| !source.is_empty() && !self.registrar.made(source.region());
            if put.sources.iter().any(|source| foreign(&source)) {
                return Err(Error::BadPut { reason: "a source is registered with another transport".into() });
            }
        }
        let Some((number, context)) = self.live.pool.reserve() else {
            return Ok(Posted::Full);
        };
        let mut vectors = Vectors::new(put.sources, registered);
        let remote = sys::fi_rma_iov { addr: target, len, key };
        let endpoint = self.live.endpoint.as_ptr();
        // SAFETY: the endpoint is open; the source memory is kept by the pool, and the context stays in place, until the
        // completion or the endpoint's end.
        let (call, result) = self.domain.during(LibraryCall::Write, || unsafe {
            if self.facts.one_source {
                vectors.write_data(endpoint, to, &remote, put.immediate, context)
            } else {
                vectors.write_message(endpoint, to, &remote, put.immediate, context, copied)
            }
        });
        let outcome = self.posted(call, result, put);
        match outcome {
            Ok(Posted::Yes) => self.live.pool.keep(number, UnderWay::new(put)),
            _ => self.live.pool.release(number),
        }
        outcome
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), Error> {
        let result = self.domain.during(LibraryCall::Poll, || {
            // SAFETY: the queue is open and its format is `FI_CQ_FORMAT_DATA`; at most `BATCH` entries are written.
            unsafe { sys::fi_cq_read(self.cq.as_ptr(), self.completions.as_mut_ptr().cast(), BATCH) }
        });
        let Ok(count) = usize::try_from(result) else {
            return match i64::try_from(result).unwrap_or(i64::MIN) {
                code if code == -call::AGAIN => Ok(()),
                code if code == -call::ERROR_AVAILABLE => {
                    Err(completion::failure(&self.cq, &self.domain, &self.live.pool))
                }
                code => Err(call::failure("fi_cq_read", code, "", None)),
            };
        };
        self.futile = 0;
        for entry in self.completions.iter().take(count) {
            // SAFETY: the library has written the first `count` entries.
            let entry = unsafe { entry.assume_init_ref() };
            events.push(completion::judge(&mut self.live.pool, entry)?);
        }
        Ok(())
    }

    fn park(&mut self, timeout: Duration, others: &[BorrowedFd<'_>], _: Ready<'_>) -> Result<(), Error> {
        let others = others.iter().copied();
        let Some(fd) = self.cq.wait() else {
            return self.waker.sleep(others, timeout.min(NAP));
        };
        if !self.cq.may_sleep()? {
            self.futile += 1;
            if self.futile > FUTILE {
                let nap = (NAP * (self.futile - FUTILE)).min(LONG_NAP).min(timeout);
                self.futile %= 2 * FUTILE;
                return self.waker.sleep(others, nap);
            }
            return Ok(());
        }
        self.futile = 0;
        self.waker.sleep(others.chain([fd]), timeout)
    }

    fn waker(&self) -> Arc<dyn Wake> {
        Arc::<EventFd>::clone(&self.waker)
    }

    fn activity(&self) -> Arc<Activity> {
        self.domain.activity()
    }
}

impl Drop for Ofi {
    fn drop(&mut self) {
        // In a forked child all stays open: connections and queues are the parent's too.
        if !self.domain.is_ours() {
            return;
        }
        // A peer that was asked for a connection may still answer.
        if self.facts.drains_before_close || self.firsts.unanswered() {
            workarounds::drain(self);
        }
        self.registrar.unbind();
        // SAFETY: taken out once, here, and not touched again.
        let live = unsafe { ManuallyDrop::take(&mut self.live) };
        if self.facts.crashes_on_close {
            // It stays open until the process ends, and is not driven: nothing lands any more.
            std::mem::forget(live);
        }
    }
}
