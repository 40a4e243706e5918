//! Moves bytes between registered regions of peers. It has never heard of ranks, groups or all_reduce.
//!
//! There is one verb, the **put**: a one-sided write into a peer's registered [`Region`] that carries a
//! 32-bit immediate. [`Event::Arrived`] is the only notification at the target. Polling the last byte, counters and the order of
//! writes would not do: providers differ in what they promise of these.
//!
//! Every transport implements [`Transport`] and is judged by one conformance suite
//! (`tests/conformance/`):
//!
//! - [`inproc`]: ranks as threads of one process, for doctests and unit tests;
//! - [`sim`]: a virtual clock, latency, bandwidth and reordering, deterministic by its seed;
//! - [`ofi`]: libfabric, the real thing.
//!
//! [`sim::fault`] wraps any of them, to observe its calls and to hold them up.

mod activity;
mod check;
pub mod fork;
pub mod inproc;
mod local;
pub mod ofi;
pub mod region;
pub mod sim;

use std::{fmt, sync::Arc, time::Duration};

pub use activity::{Activity, LibraryCall, Stay};
pub use region::{Memory, Region, Registration, RemoteRegion};

/// Moves bytes. No method has a default body, so that a new transport decides on each.
///
/// A transport is owned and driven by one thread at a time; `put`, `poll` and `park` never block except
/// for `park`, which says for how long.
///
/// # Safety
/// Callers access memory on the strength of an implementation's events. It must
/// - report an arrival only after the bytes have landed, and a put as sent only after its sources are no longer read;
/// - write only where puts say, and read only their sources;
/// - make regions of exactly the memory that it was given to register, and let no peer write to it after the region's last clone or
///   the endpoint is gone.
#[allow(unsafe_code)]
pub unsafe trait Transport: Send {
    /// What this transport can do and how much of it; fixed from its opening on.
    fn limits(&self) -> &Limits;

    /// The address under which peers reach this endpoint, to be handed to their [`Transport::connect`].
    fn address(&self) -> &Address;

    /// Makes a peer known by its address. Does not wait for the peer: the wire may be set up by the first
    /// put. The same address gives the same peer.
    ///
    /// # Errors
    /// [`Error::BadAddress`] if it is no address of this transport's.
    fn connect(&mut self, address: &Address) -> Result<Peer, Error>;

    /// Registers memory. Afterwards peers that were given its [`Region::remote`] may write to it, and puts may read from it on
    /// transports with [`Limits::local_registration`].
    ///
    /// # Errors
    /// [`Error::Register`] if it cannot be, for instance where the limit on locked memory is too small.
    fn register(&mut self, memory: Memory) -> Result<Region, Error>;

    /// Begins a put. [`Posted::Full`] means that nothing was begun: poll, then try again.
    /// The transport keeps the source regions alive as long as it reads them.
    ///
    /// # Safety
    /// A put accesses memory without synchronisation. The caller promises:
    /// - Nobody writes to the source bytes until [`Event::Sent`] with the put's token, if it [comes](Put::notifies), or
    ///   else until this returns.
    /// - Nobody reads, writes or puts to the target's bytes, which may be of this process, until the peer sees the arrival. So the
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
    /// unknown peer, and [`Error::Bounds`] for a target outside of its region: of these nothing is begun. Others are
    /// final, as of [`poll`](Self::poll).
    unsafe fn put(&mut self, put: &Put<'_>) -> Result<Posted, Error>;

    /// Makes progress in both directions and appends what happened to `events`.
    ///
    /// # Errors
    /// [`Error::Completion`] if a put has failed, and what else the provider reports: the transport is broken then, and
    /// every later call may fail.
    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), Error>;

    /// Sleeps until something may have happened, somebody [wakes](Wake::wake) it or `timeout` has passed; may return
    /// early.
    fn park(&mut self, timeout: Duration) -> Result<(), Error>;

    /// What ends a [`park`](Self::park) from another thread.
    fn waker(&self) -> Arc<dyn Wake>;

    /// In which call of its library it is, to be read from another thread: a library may fail to return.
    fn activity(&self) -> Arc<Activity>;
}

/// Ends a transport's sleep.
pub trait Wake: Send + Sync {
    /// The [`Transport::park`] under way returns; if there is none, the next one does at once.
    fn wake(&self);
}

/// What a transport can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The provider's name, for instance `inproc`, `tcp`, `net`, `verbs;ofi_rxm`.
    pub provider: String,
    /// The version of the library under it, for instance `libfabric 1.17`; empty where there is none.
    pub version: String,
    /// The network device in use, for instance `eth0` or `mlx5_0`; empty where there is none.
    pub device: String,
    /// The largest put in bytes.
    pub max_put: usize,
    /// Puts of at most this many bytes are copied at once: their source may change as soon as `put`
    /// returns, and [`Event::Sent`] comes only with [`Notify::Always`].
    pub max_inject: usize,
    /// With [`Notify::IfNotCopied`] puts of at most this many bytes are copied at once too. Those longer than `max_inject` may wait
    /// in the library until somebody polls. At least `max_inject`.
    pub max_copied: usize,
    /// How many sources one put may gather; at least 1.
    pub max_sources: usize,
    /// Whether puts larger than `max_inject` must read from a registered region (libfabric's `FI_MR_LOCAL`).
    pub local_registration: bool,
    /// Whether registering costs next to nothing (an entry in a table; no page is pinned), so that it may be done per call. Where
    /// it costs more, only what was registered beforehand can be written to.
    pub cheap_registration: bool,
    /// Whether bytes go through the kernel's sockets: putting takes system calls, and what a socket does not take waits in a queue
    /// of the provider until somebody polls.
    pub sockets: bool,
    /// Whether peers must be on this host, where they share memory.
    pub one_host: bool,
    /// How many puts into this endpoint may be under way at once, from all peers together, before its
    /// completion queue could overrun.
    pub arrivals: usize,
    /// What would raise that, in words; may be empty.
    pub more_arrivals: &'static str,
    /// Where other programs can reach this endpoint, in words: `10.0.0.5:40711`; empty where they cannot by an address.
    pub listens: String,
    /// How many puts from one peer may be under way at once (the posted receives of `ofi_rxm`).
    pub arrivals_per_peer: usize,
    /// Whether [`Transport::park`] wakes as soon as something happens, rather than by a short timer.
    pub wakes: bool,
    /// A known defect that only another provider or version avoids, in words; may be empty.
    pub caution: &'static str,
    /// Whether all peers should have put to each other before any of them is dropped: an endpoint that has yet to answer the first
    /// put of one that is gone may crash.
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
    /// Who is written to.
    pub to: Peer,
    /// What is written: gathered in order, 1 to [`Limits::max_sources`] of them, together at least one
    /// byte and at most [`Limits::max_put`]. A source may be empty if it is not the only one.
    pub sources: &'a [Source<'a>],
    /// Where to, in the peer's memory.
    pub target: Target,
    /// The number that the peer receives in [`Event::Arrived`] once the bytes have landed.
    pub immediate: u32,
    /// Comes back in [`Event::Sent`].
    pub token: u64,
    /// When that event is wanted.
    pub notify: Notify,
}

/// For which puts [`Event::Sent`] comes, by their length, all bytes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// For every put. Closing the endpoint before it comes may lose the put.
    Always,
    /// For those longer than [`Limits::max_inject`].
    IfNotInjected,
    /// For those longer than [`Limits::max_copied`]. The caller knows that the put leaves at once, or will poll.
    IfNotCopied,
}

impl Put<'_> {
    /// The bytes of all sources together.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sources.iter().map(|source| source.len).sum()
    }

    /// Whether there is nothing to write, which no transport accepts.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether [`Event::Sent`] comes for it on a transport with these limits.
    #[must_use]
    pub fn notifies(&self, limits: &Limits) -> bool {
        match self.notify {
            Notify::Always => true,
            Notify::IfNotInjected => self.len() > limits.max_inject,
            Notify::IfNotCopied => self.len() > limits.max_copied,
        }
    }
}

/// Bytes of a local region. Constructed with a check, so that a transport need not check again.
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

    /// Where in the region the bytes begin.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// How many bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no byte is meant.
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

/// Whether a put was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Posted {
    /// It was.
    Yes,
    /// The transport has no room now: poll, then try again.
    Full,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer's put with this immediate has landed whole; its bytes may be read.
    Arrived {
        /// What the peer sent along.
        immediate: u32,
        /// The number of bytes, where the provider reports it.
        len: Option<usize>,
    },
    /// The put with this token no longer needs its source bytes, nor this endpoint: it has landed, or is with what
    /// outlives the endpoint (over TCP, the kernel).
    Sent {
        /// The put's own token.
        token: u64,
    },
}

/// What can go wrong below the collectives.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A library call failed.
    #[error("{call}{}: {reason} (code {code})", context_suffix(.context))]
    Call {
        /// The function, for instance `fi_endpoint`.
        call: &'static str,
        /// What for; may be empty.
        context: String,
        /// The peer concerned, where there is one. Messages for people name its rank instead.
        peer: Option<Peer>,
        /// The code it gave, positive.
        code: i64,
        /// What the library says of that code.
        reason: String,
    },
    /// A put begun earlier, or one from a peer, failed.
    #[error("a completion reports an error: {reason} (code {code}, provider code {provider_code}){}",
        context_suffix(.detail))]
    Completion {
        /// The peer concerned, where it is known; as in [`Self::Call`].
        peer: Option<Peer>,
        /// libfabric's code, positive.
        code: i64,
        /// What the library says of it.
        reason: String,
        /// The provider's own code.
        provider_code: i64,
        /// What the provider says of that; may be empty.
        detail: String,
    },
    /// No provider fits; every candidate with the requirement that excluded it.
    #[error("no libfabric provider fits{}: {report}", context_suffix(.asked))]
    NoProvider {
        /// What was asked for, for instance `provider "tcp"`.
        asked: String,
        /// One line for every candidate: why it was refused and what would help.
        report: String,
    },
    /// A provider that fits on paper failed its self-test.
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
        /// How much was to be registered.
        bytes: usize,
        /// What the provider says.
        reason: String,
        /// The limit on locked memory, in words.
        limit: String,
    },
    /// Memory that processes share could not be had.
    #[error("shared memory: {reason}")]
    SharedMemory {
        /// Where, what the system says, and how much there is.
        reason: String,
    },
    /// Memory could not be had.
    #[error("mapping {bytes} bytes of memory failed: {reason}")]
    Map {
        /// How much was wanted.
        bytes: usize,
        /// What the system says.
        reason: String,
    },
    /// A put would leave its region.
    #[error("{len} bytes from offset {offset} do not lie in a region of {region} bytes")]
    Bounds {
        /// Where it begins.
        offset: usize,
        /// How long it is.
        len: usize,
        /// How long the region is.
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
    #[error("{address:?} is no address of a {provider} endpoint: {reason}")]
    BadAddress {
        /// The address given.
        address: Address,
        /// The transport's provider.
        provider: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The library said something that its documentation does not know.
    #[error("{call} gave {value}, which is not expected here")]
    Unexpected {
        /// The function.
        call: &'static str,
        /// What it gave.
        value: String,
    },
}

impl Error {
    /// The peer with which something failed, as far as that is known.
    #[must_use]
    pub fn peer(&self) -> Option<Peer> {
        match self {
            Self::Call { peer, .. } | Self::Completion { peer, .. } => *peer,
            _ => None,
        }
    }
}

fn context_suffix(context: &str) -> String {
    if context.is_empty() { String::new() } else { format!(" ({context})") }
}
