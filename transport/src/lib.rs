//! Moves bytes between registered regions of peers. It knows no ranks, groups or collectives.
//!
//! There is one verb, the **put**: a one-sided write into a peer's registered [`Region`] that carries a
//! 32-bit immediate. [`Event::Arrived`] is the only notification at the target. Targets do not poll the last byte, and rely neither
//! on counters nor on the order of writes, because providers differ in their guarantees for these.
//!
//! Every transport implements [`Transport`], and one conformance suite (`tests/conformance/`) tests them all:
//!
//! - [`inproc`]: ranks as threads of one process, for doctests and unit tests;
//! - [`shm`]: ranks of one host over memory that they share;
//! - [`ofi`]: endpoints of libfabric;
//! - [`mux`]: [`shm`] and another of these, mostly [`ofi`], as one transport.

#[cfg(test)]
extern crate self as unisono_transport;

mod activity;
mod check;
mod eventfd;
mod file;
pub mod fork;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod inproc;
mod keys;
mod local;
#[doc(hidden)]
pub mod log;
pub mod mux;
#[cfg(test)]
#[path = "../tests/observed/mod.rs"]
mod observed;
pub mod ofi;
mod peer_memory;
mod region;
pub mod shm;
#[cfg(test)]
#[path = "../tests/sim/mod.rs"]
mod sim;
pub mod streaming;

use std::{fmt, os::fd::BorrowedFd, sync::Arc, time::Duration};

use rustix::io::Errno;

pub use activity::{Activity, LibraryCall, Stay};
#[doc(hidden)]
pub use keys::random_bytes;
pub use region::{Memory, Region, Registration, RemoteRegion, WeakRegion};

/// Moves bytes. The methods with a default body are those of a transport that calls no library and maps no memory of peers.
///
/// One thread at a time owns and drives a transport. `put` and `poll` never block; `park` blocks for at most the given time.
///
/// # Safety
/// Callers rely on an implementation's events when they access memory. It must
/// - report an arrival only after the bytes have landed, and a put as sent only after its sources are no longer read;
/// - write only where puts say, and read only their sources;
/// - make regions of exactly the memory that it was given to register, and let no peer write to it after the region's last clone or
///   the endpoint is gone.
#[allow(unsafe_code)]
pub unsafe trait Transport: Send {
    /// The capabilities and limits of this transport. They do not change.
    fn limits(&self) -> &Limits;

    /// The address under which peers reach this endpoint, to be handed to their [`Transport::connect`].
    fn address(&self) -> &Address;

    /// Makes a peer known by its address. This does not wait for the peer: the first put may make the connection. The same address
    /// gives the same peer.
    ///
    /// # Errors
    /// [`Error::BadAddress`] if it is not an address of this transport.
    fn connect(&mut self, address: &Address) -> Result<Peer, Error>;

    /// Registers memory. Afterwards peers that were given its [`Region::remote`] may write to it, and puts may read from it on
    /// transports with [`Limits::local_registration`]. Memory [of a memfd](Memory::of_memfd) they may [map](Self::map) too.
    ///
    /// # Errors
    /// [`Error::Register`] if it cannot be registered, for instance because the limit on locked memory is too small.
    fn register(&mut self, memory: Memory) -> Result<Region, Error>;

    /// Allocates zeroed, page-aligned memory and registers it. Where peers can map it, their puts cost one copy less than into
    /// memory that was only [registered](Self::register).
    ///
    /// # Errors
    /// [`Error::Map`] if the system refuses, and those of [`Self::register`].
    fn allocate(&mut self, len: usize) -> Result<Region, Error>;

    /// Allocates zeroed memory that peers of this host can [map](Self::map), and that no put reads or writes: no NIC need pin it.
    ///
    /// # Errors
    /// Those of [`allocate`](Self::allocate).
    fn share(&mut self, len: usize) -> Result<Region, Error> {
        self.allocate(len)
    }

    /// Maps the memory of a peer's region, to be read in place, if the peer has [allocated](Self::allocate) it, or it lies in a
    /// [memfd](Memory::of_memfd), and it can be mapped here. It stays mapped as long as the returned region exists. Both processes
    /// may access it at any time, so they must agree which of them does: a process that reads a word which the peer wrote
    /// atomically sees all that the peer wrote before.
    ///
    /// # Errors
    /// Those of [`poll`](Self::poll).
    fn map(&mut self, peer: Peer, region: &RemoteRegion) -> Result<Mapping, Error> {
        let _ = (peer, region);
        Ok(Mapping::No)
    }

    /// True if this endpoint can [read](Self::read) all memory of a peer's process. False before they are connected.
    ///
    /// # Errors
    /// Those of [`poll`](Self::poll).
    fn reads(&mut self, peer: Peer) -> Result<bool, Error> {
        let _ = peer;
        Ok(false)
    }

    /// Copies `len` bytes from this address in a peer's process, whose memory need be neither registered nor mapped, to `into`.
    ///
    /// # Safety
    /// `into` is valid for writes of `len` bytes, which nothing else accesses meanwhile. The peer has said that its bytes are there and at
    /// rest; if they are not, the bytes are wrong, or it is an error.
    ///
    /// # Errors
    /// [`Error::Completion`] if the peer has closed its endpoint, even while the bytes were read, has ended, does not have these bytes, or
    /// [cannot be read](Self::reads). What was read may be wrong then.
    unsafe fn read(&mut self, peer: Peer, address: u64, into: *mut u8, len: usize) -> Result<(), Error> {
        let _ = (address, into, len);
        Err(local::Failure::unreadable().to(peer).into())
    }

    /// Ends the sleep of peers whose memory is [mapped](Self::map), so that they look at what this process has written to its
    /// memory.
    ///
    /// # Errors
    /// Those of [`poll`](Self::poll).
    fn notify(&mut self, peers: &[Peer]) -> Result<(), Error> {
        let _ = peers;
        Ok(())
    }

    /// Begins a put. [`Posted::Full`] means that nothing was begun: poll, then try again.
    /// The transport keeps the source regions alive as long as it reads them.
    ///
    /// # Safety
    /// A put accesses memory without synchronisation. The caller promises:
    /// - Nothing writes to the source bytes until [`Event::Sent`] with the put's token, if it [comes](Put::notifies), or else until
    ///   this returns.
    /// - Nothing reads, writes or puts to the target's bytes, which may be of this process, until the peer sees the arrival. So the
    ///   peer must have cleared this put to be sent, and not revoked that.
    ///
    /// Without that promise a put would race with readers of the target, for instance another thread of this process:
    ///
    /// ```compile_fail,E0133
    /// # use unisono_transport::{Error, Posted, Put, Transport, inproc::Endpoint};
    /// fn begin(endpoint: &mut Endpoint, put: &Put<'_>) -> Result<Posted, Error> {
    ///     endpoint.put(put)
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::BadPut`] for no or too many sources, one that had to be registered and is not, too many bytes or an
    /// unknown peer, and [`Error::Bounds`] for a target outside of its region: with these nothing is begun. Others are final, as
    /// those of [`poll`](Self::poll).
    unsafe fn put(&mut self, put: &Put<'_>) -> Result<Posted, Error>;

    /// Makes progress in both directions and appends what happened to `events`.
    ///
    /// # Errors
    /// [`Error::Completion`] if a put has failed, and other errors that the provider reports: the transport is broken then, and
    /// every later call may fail.
    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), Error>;

    /// Sleeps until something may have happened, a peer [notifies](Self::notify) it, another thread [wakes](Wake::wake) it, any of
    /// `others` is readable or `timeout` has passed; may return early. Once peers would notify it, it calls `ready`, and does not sleep
    /// if that is true. A transport that does not [wake](Limits::wakes) may sleep for a short while instead.
    ///
    /// # Errors
    /// An error of the provider or the system; the transport is broken then.
    fn park(&mut self, timeout: Duration, others: &[BorrowedFd<'_>], ready: Ready<'_>) -> Result<(), Error>;

    /// The handle by which another thread ends a [`park`](Self::park).
    fn waker(&self) -> Arc<dyn Wake>;

    /// The library call that the transport is in, for a watchdog on another thread: a library call may never return.
    fn activity(&self) -> Arc<Activity> {
        Arc::default()
    }
}

/// Returns true if the mapped memory of peers shows that the wait of a caller of [`Transport::park`] is over.
pub type Ready<'r> = &'r mut dyn FnMut() -> bool;

/// The answer to a request to [map](Transport::map) a peer's memory.
#[derive(Debug)]
pub enum Mapping {
    /// The mapped memory.
    Yes(Region),
    /// The peer was asked for it: ask again after the next poll.
    NotYet,
    /// It cannot be mapped.
    No,
}

/// Ends a transport's sleep.
pub trait Wake: Send + Sync {
    /// Makes the current [`Transport::park`] return; if there is none, the next one returns at once.
    fn wake(&self);
}

/// The capabilities and limits of a transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The provider's name, for instance `inproc`, `tcp`, `net`, `verbs;ofi_rxm`.
    pub provider: String,
    /// The version of the library that moves the bytes, for instance `libfabric 1.17`; empty in tests' transports.
    pub version: String,
    /// The network device in use, for instance `eth0` or `mlx5_0`; empty where there is none.
    pub device: String,
    /// The largest put in bytes.
    pub max_put: usize,
    /// Puts of at most this many bytes are copied at once: their source may change as soon as `put`
    /// returns, and [`Event::Sent`] comes only with [`Notify::Always`].
    pub max_inject: usize,
    /// With [`Notify::IfNotCopied`] puts of at most this many bytes are copied at once too. Those longer than `max_inject` may wait
    /// in the library until the next poll. At least `max_inject`.
    pub max_copied: usize,
    /// The most sources that one put may gather; at least 1.
    pub max_sources: usize,
    /// True if puts larger than `max_inject` must read from a registered region (libfabric's `FI_MR_LOCAL`).
    pub local_registration: bool,
    /// True if registering costs next to nothing (an entry in a table; no page is pinned), so that it may be done per call. Where
    /// it costs more, only memory that was registered beforehand can be written to.
    pub cheap_registration: bool,
    /// True if bytes go through the kernel's sockets: a put takes system calls, and bytes that a socket does not accept wait in a
    /// queue of the provider until this endpoint polls.
    pub sockets: bool,
    /// True if peers must be on this host, where they share memory.
    pub one_host: bool,
    /// True if this endpoint can [map](Transport::map) memory of at least some peers.
    pub maps: bool,
    /// Identifies the endpoints with which this one shares memory, if it reaches others by a fabric ([`mux`]): those with the same
    /// number. `None` if there are none.
    pub shares: Option<u128>,
    /// The most puts into this endpoint that may be under way at once, from all peers together, so that its
    /// completion queue does not overrun.
    pub arrivals: usize,
    /// How a user can raise `arrivals`, in words; may be empty.
    pub more_arrivals: &'static str,
    /// The IP address and port at which this endpoint listens, for instance `10.0.0.5:40711`; empty if it has none.
    pub listens: String,
    /// The most puts from one peer that may be under way at once (the posted receives of `ofi_rxm`).
    pub arrivals_per_peer: usize,
    /// True if [`Transport::park`] wakes as soon as something happens; otherwise it wakes by a short timer.
    pub wakes: bool,
    /// True if all peers should have put to each other before any of them is dropped: an endpoint may crash if it answers the first
    /// put of a peer that is gone.
    pub connect_all: bool,
}

/// An endpoint's address: bytes that mean something only to transports of the same kind.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address(pub Vec<u8>);

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({} bytes:", self.0.len())?;
        self.0.iter().take(32).try_for_each(|byte| write!(f, " {byte:02x}"))?;
        f.write_str(if self.0.len() > 32 { " …)" } else { ")" })
    }
}

/// A peer that [`Transport::connect`] made known; an index counted from 0 in order of connecting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Peer(pub u32);

/// One put: `sources`, joined, are written to `target` at peer `to`, which then receives `immediate`.
#[derive(Clone, Copy, Debug)]
pub struct Put<'a> {
    /// The peer that is written to.
    pub to: Peer,
    /// The bytes that are written: 1 to [`Limits::max_sources`] sources, gathered in order, with at least one byte
    /// and at most [`Limits::max_put`] bytes together. A source may be empty if it is not the only one.
    pub sources: &'a [Source<'a>],
    /// The place in the peer's memory.
    pub target: Target,
    /// The number that the peer receives in [`Event::Arrived`] once the bytes have landed.
    pub immediate: u32,
    /// A number that the caller chooses, and that [`Event::Sent`] returns.
    pub token: u64,
    /// The condition under which that event comes.
    pub notify: Notify,
    /// True if the peer's process should fetch the bytes from this one, if it [can](Transport::reads), so that this one need not copy them:
    /// faster if the peer has time for it.
    pub fetch: bool,
}

/// The puts for which [`Event::Sent`] comes, by the length of all their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// For every put. Closing the endpoint before it comes may lose the put.
    Always,
    /// For those longer than [`Limits::max_inject`].
    IfNotInjected,
    /// For those longer than [`Limits::max_copied`]. The caller knows that the put leaves at once, or polls until it has left.
    IfNotCopied,
}

impl Put<'_> {
    /// The bytes of all sources together.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sources.iter().map(|source| source.len).sum()
    }

    /// True if there is no byte to write. No transport accepts such a put.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if [`Event::Sent`] comes for it on a transport with these limits.
    #[must_use]
    pub fn notifies(&self, limits: &Limits) -> bool {
        match self.notify {
            Notify::Always => true,
            Notify::IfNotInjected => self.len() > limits.max_inject,
            Notify::IfNotCopied => self.len() > limits.max_copied,
        }
    }
}

/// Bytes of a local region. [`Self::new`] checks the bounds, so that a transport need not.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    region: &'a Region,
    offset: usize,
    len: usize,
}

impl<'a> Source<'a> {
    /// `len` bytes of `region` from `offset`.
    ///
    /// # Errors
    /// [`Error::Bounds`] if they do not lie within the region.
    pub fn new(region: &'a Region, offset: usize, len: usize) -> Result<Self, Error> {
        region.check(offset, len)?;
        Ok(Self { region, offset, len })
    }

    /// The region read from.
    #[must_use]
    pub fn region(&self) -> &'a Region {
        self.region
    }

    /// The offset of the first byte in the region.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if it has no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A place in a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The peer's region, as the peer gave it.
    pub region: RemoteRegion,
    /// Bytes from the region's beginning.
    pub offset: u64,
}

/// The result of [posting](Transport::put) a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Posted {
    /// The put was begun.
    Yes,
    /// The put was not begun, because the transport has no room now: poll, then try again.
    Full,
}

/// What [`Transport::poll`] reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// All bytes of a peer's put have landed and may be read.
    Arrived {
        /// The put's immediate.
        immediate: u32,
        /// The number of bytes, where the provider reports it.
        len: Option<usize>,
    },
    /// The put with this token no longer needs its source bytes or this endpoint: it has landed, or something that outlives the
    /// endpoint has its bytes (over TCP, the kernel).
    Sent {
        /// The put's own token.
        token: u64,
    },
}

/// Why a transport failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A library call failed.
    #[error("{call}{}: {reason} (code {code})", context_suffix(.context))]
    Call {
        /// The function, for instance `fi_endpoint`.
        call: &'static str,
        /// The purpose of the call; may be empty.
        context: String,
        /// The peer concerned, where there is one. It is not in the message, because users know peers by their ranks.
        peer: Option<Peer>,
        /// The error code, positive.
        code: i64,
        /// The library's text for that code.
        reason: String,
    },
    /// A system call failed in this process.
    #[error("{call}{}: {reason} (code {code})", context_suffix(.context))]
    System {
        /// The function, for instance `accept`.
        call: &'static str,
        /// The purpose of the call; may be empty.
        context: String,
        /// The error number, positive.
        code: i64,
        /// The system's text for that number, and what to do.
        reason: String,
    },
    /// A put begun earlier, or one from a peer, failed.
    #[error("a completion reports an error: {reason} (code {code}, provider code {provider_code}){}",
        context_suffix(.detail))]
    Completion {
        /// The peer concerned, where it is known; as in [`Self::Call`].
        peer: Option<Peer>,
        /// libfabric's error code, positive.
        code: i64,
        /// libfabric's text for that code.
        reason: String,
        /// The provider's own code.
        provider_code: i64,
        /// The provider's text for its code; may be empty.
        detail: String,
    },
    /// No provider fits.
    #[error("no libfabric provider fits{}: {report}", context_suffix(.asked))]
    NoProvider {
        /// The request, for instance `provider "tcp"`.
        asked: String,
        /// For every candidate, the reason why it was refused and what would help.
        report: String,
    },
    /// A provider that reports all that is required failed its self-test.
    #[error("provider {provider} failed its self-test: {reason}")]
    SelfTest {
        /// The provider.
        provider: String,
        /// What was wanted and what was seen.
        reason: String,
    },
    /// Memory could not be registered.
    #[error("registering {bytes} bytes failed: {reason}; the limit on locked memory is {limit} (ulimit -l)")]
    Register {
        /// The length of the memory.
        bytes: usize,
        /// The provider's message.
        reason: String,
        /// The limit on locked memory, in words.
        limit: String,
    },
    /// Memory that processes share could not be obtained.
    #[error("shared memory: {reason}")]
    SharedMemory {
        /// The call, the system's message, and what would help.
        reason: String,
    },
    /// Memory could not be mapped.
    #[error("mapping {bytes} bytes of memory failed: {reason}")]
    Map {
        /// The length that was wanted.
        bytes: usize,
        /// The system's message.
        reason: String,
    },
    /// A part of a memfd cannot be used.
    #[error("{len} bytes from offset {offset} of this descriptor cannot be used: {reason}")]
    Memfd {
        /// The offset of the part in bytes.
        offset: u64,
        /// The length of the part in bytes.
        len: usize,
        /// The reason, and what to do.
        reason: String,
    },
    /// A source, a target or an access does not lie within its region.
    #[error("{len} bytes from offset {offset} do not lie in a region of {region} bytes")]
    Bounds {
        /// Its offset in the region, in bytes.
        offset: usize,
        /// Its length in bytes.
        len: usize,
        /// The region's length in bytes.
        region: usize,
    },
    /// A put that no transport accepts (no source, too many sources, no byte, too many bytes, an
    /// unregistered source where registration is needed, an unknown peer).
    #[error("this put cannot be done: {reason}")]
    BadPut {
        /// What is wrong with it.
        reason: String,
    },
    /// An address of another kind of transport, or a broken one.
    #[error("{address:?} is not an address of a {provider} endpoint: {reason}")]
    BadAddress {
        /// The address given.
        address: Address,
        /// The transport's provider.
        provider: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The library returned a value that its documentation does not mention.
    #[error("{call} gave {value}, which is not expected here")]
    Unexpected {
        /// The function.
        call: &'static str,
        /// The value.
        value: String,
    },
}

impl Error {
    /// It is no address of this provider's endpoints, and the reason.
    pub(crate) fn bad_address(address: &Address, provider: &str, reason: impl Into<String>) -> Self {
        Self::BadAddress { address: address.clone(), provider: provider.into(), reason: reason.into() }
    }

    /// A system call failed; `context` says for what it was made.
    pub(crate) fn system(call: &'static str, context: &str, error: Errno) -> Self {
        Self::System {
            call,
            context: context.into(),
            code: error.raw_os_error().into(),
            reason: format!("{error}{}", Self::advice(error)),
        }
    }

    /// What to do about an error of the system, in words that follow it; may be empty.
    pub(crate) fn advice(error: Errno) -> &'static str {
        match error {
            Errno::MFILE | Errno::NFILE => "; raise the limit on open files (ulimit -n)",
            _ => "",
        }
    }

    /// True if its cause is in this process and not in a peer.
    #[must_use]
    pub fn is_own(&self) -> bool {
        matches!(
            self,
            Self::System { .. } | Self::SharedMemory { .. } | Self::Map { .. } | Self::Register { .. }
        )
    }

    /// The peer concerned, if it is known.
    #[must_use]
    pub fn peer(&self) -> Option<Peer> {
        match self {
            Self::Call { peer, .. } | Self::Completion { peer, .. } => *peer,
            _ => None,
        }
    }

    /// The same error with another number of the peer concerned.
    pub(crate) fn renumbered(mut self, number: impl FnOnce(Peer) -> Peer) -> Self {
        if let Self::Call { peer: Some(peer), .. } | Self::Completion { peer: Some(peer), .. } = &mut self {
            *peer = number(*peer);
        }
        self
    }
}

fn context_suffix(context: &str) -> String {
    if context.is_empty() { String::new() } else { format!(" ({context})") }
}
