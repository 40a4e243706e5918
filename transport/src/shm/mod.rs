//! Ranks of one host over shared memory, without a library or a file. Nothing outlives the processes.
//!
//! An endpoint listens at an abstract Unix socket with a random name (`address.rs`, `socket.rs`). Before a pair's first put, the writer
//! connects to the reader there, the reader accepts, and the writer hands over a memfd with a ring (`ring.rs`, `segment.rs`): one ring
//! for each direction, with one writer and one reader. Puts wait until the reader has accepted the connection. Each end knows
//! a token by which it sees that the other is a rank: packets of other processes do not arrive.
//!
//! A put takes one of four ways:
//! - up to 4 KiB: its bytes are copied into the ring, and from there to the target;
//! - longer, into memory that the peer has [allocated](crate::Transport::allocate): the writer maps it when it first writes there,
//!   and copies straight to the target. The bytes are copied once. If it cannot map it, the next way serves;
//! - longer, into memory that was only [registered](crate::Transport::register): through the ring in records of 16 KiB, which the
//!   reader copies to the target while the writer fills the next. Memory that lies in a [memfd](crate::Memory::of_memfd) or was
//!   [shared](crate::Transport::share) takes this way too: peers map it to read it in place, and cannot write to it;
//! - longer, into such memory, if the put [says so](crate::Put::fetch): the record names the sources, and the reader copies them to the
//!   target (`peer_memory.rs`). The bytes are copied once. The put is sent when they have been copied.
//!
//! An endpoint that sleeps says so in a word that its peers map for reading (`sleep.rs`), and a peer that writes to it then wakes it by a
//! message on the socket. The socket also shows that a peer has ended: an endpoint that closes says so first, so the end of a
//! connection without that is a failure of that peer, reported after everything it had written.
//!
//! Everything that a peer writes is data: each position, kind, length, key and descriptor is checked (`ring.rs`, `control.rs`,
//! `segment.rs`). If a [connected](crate::Transport::connect) peer sends what no endpoint sends, that is an error with its name, and
//! the peer gets a message that the connection is dropped.
//!
//! **Memory.** Each direction of a pair takes 260 KiB from when it is first used, in pages that count once for both processes; for
//! n ranks that all exchange messages, each rank makes (n - 1) × 260 KiB of it. An endpoint has 4 KiB besides. Descriptors: two
//! for each peer that it talks to in both directions, one for each of at most 256 memories of 16 KiB or more that were allocated or
//! lie in memfds, and five others. Nothing of it lies in /dev/shm or another directory. A forked child shares allocated memory with
//! its parent. Where the system keeps strict account of memory (vm.overcommit_memory=2), peers do not map allocated memory
//! (`segment.rs`): it is like registered memory.
//!
//! ```
//! use unisono_transport::{Event, Notify, Posted, Put, Source, Target, Transport, shm::Endpoint};
//! # fn main() -> Result<(), unisono_transport::Error> {
//! let (mut here, mut there) = (Endpoint::open()?, Endpoint::open()?);
//! let (source, window) = (here.allocate(5)?, there.allocate(1 << 20)?);
//! let Some(region) = window.remote() else { unreachable!("it is registered") };
//! // SAFETY: no put reads the source yet.
//! unsafe { source.write(0, b"hello")? };
//! let peer = here.connect(there.address())?;
//! let (sources, target) = ([Source::new(&source, 0, 5)?], Target { region, offset: 8 });
//! let put = Put { to: peer, sources: &sources, target, immediate: 7, token: 0, notify: Notify::IfNotInjected, fetch: false };
//! let mut events = Vec::new();
//! // SAFETY: the window is read when the put has arrived, and the source is not written again.
//! while unsafe { here.put(&put)? } == Posted::Full {
//!     here.poll(&mut events)?;
//!     there.poll(&mut events)?; // which accepts
//! }
//! while events.is_empty() {
//!     there.poll(&mut events)?;
//! }
//! assert_eq!(events, [Event::Arrived { immediate: 7, len: Some(5) }]);
//! # Ok(()) }
//! ```
#![allow(unsafe_code)]

mod address;
mod board;
mod connections;
mod control;
mod descriptor;
mod error;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod incoming;
mod mapped;
mod memory;
mod numa;
mod outgoing;
mod ring;
mod segment;
mod sleep;
mod socket;
#[cfg(test)]
pub(crate) mod tests;

use std::{
    collections::HashMap,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc,
        atomic::{Ordering, fence},
    },
    time::Duration,
};

use address::EndpointPlace;
pub use address::PROVIDER;
use control::ConnectionMessage;
use descriptor::Owner;
use incoming::Incoming;
use memory::MemoryTable;
#[cfg(test)]
use outgoing::Outgoing;
use outgoing::{ConnectionState, INLINE};
use segment::Access;
use sleep::{Poller, Sleeper};
use socket::{Accepted, Listener, PeerState};

use crate::{
    Address, Error, Event, Limits, Mapping, Memory, Peer, Posted, Put, Ready, Region, RemoteRegion,
    Transport, Wake, eventfd::EventFd, fork::Process, local::Failure, peer_memory::OwnPermit,
};

/// The most records that one poll reads of one peer.
const BATCH: usize = 64;
/// At least the number of records that a ring holds.
const ALL: usize = ring::SEGMENT / 64;
/// The endpoint looks at its sockets, by a system call, once in this many polls that found nothing: ever more rarely while nothing
/// comes.
const LOOK_IDLE: [u32; 2] = [16, 256];
/// It also looks once in this many of all polls.
const LOOK: u32 = 256;
/// The number of looks at the sockets for messages that a failed peer has left.
const LOOKS: usize = 16;
/// The longest sleep while a peer is too busy to be connected to.
const NAP: Duration = Duration::from_millis(1);
/// The most arrivals at once that the limits name. None is lost if there are more: they wait in the rings.
const ARRIVALS: usize = 1 << 16;

/// A peer that was made known.
#[derive(Debug)]
struct Known {
    place: EndpointPlace,
    state: ConnectionState,
}

/// One thread's endpoint.
#[derive(Debug)]
pub struct Endpoint {
    place: EndpointPlace,
    address: Address,
    limits: Limits,
    table: Arc<MemoryTable>,
    memory: OwnPermit,
    peers: Vec<Known>,
    known: HashMap<EndpointPlace, Peer>,
    incoming: Vec<Option<Incoming>>,
    sent: Vec<u64>,
    /// The number of polls since sockets were looked at, of all and of those that found nothing, and the most of the latter.
    polls: [u32; 2],
    patience: u32,
    /// The first failure, until all that arrived before it has been reported.
    failing: Option<Failure>,
    /// The first failure, which every call returns.
    broken: Option<Failure>,
    /// True if a connection could not be begun or accepted yet.
    busy: bool,
    /// True if a peer can be written to since the last sleep.
    opened: bool,
    /// The number of connections that were refused.
    refused: u64,
    sleeper: Sleeper,
    waker: Arc<EventFd>,
    listener: Listener,
    poller: Poller,
    process: Process,
}

impl Endpoint {
    /// A new endpoint, which may move to another thread. It and its peers may [read](Transport::read) each other's processes.
    ///
    /// # Errors
    /// [`Error::SharedMemory`] or [`Error::Call`] if the system or the container refuses memory or sockets.
    pub fn open() -> Result<Self, Error> {
        Self::open_with(true)
    }

    /// A new endpoint. Without `peer_reads`, its peers cannot read memory of this process that it does not share, and it does not read theirs.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_with(peer_reads: bool) -> Result<Self, Error> {
        // Without room for a ring no peer can be reached.
        segment::check_limit(ring::SEGMENT)?;
        let place = EndpointPlace::new()?;
        let (waker, poller) = (Arc::new(EventFd::new()?), Poller::new()?);
        let (listener, sleeper) = (Listener::open(&place)?, Sleeper::new()?);
        poller.add(&*waker, Owner::Waker.number())?;
        poller.add(&listener, Owner::Listener.number())?;
        Ok(Self {
            place,
            address: place.address(),
            limits: Limits {
                provider: PROVIDER.to_owned(),
                max_inject: INLINE,
                max_copied: INLINE,
                arrivals: ARRIVALS,
                arrivals_per_peer: ARRIVALS,
                one_host: true,
                maps: true,
                wakes: true,
                version: concat!("unisono ", env!("CARGO_PKG_VERSION")).to_owned(),
                ..Limits::default()
            },
            table: MemoryTable::new(Arc::clone(&sleeper.board)),
            memory: OwnPermit::of_process(peer_reads)?,
            peers: Vec::new(),
            known: HashMap::new(),
            incoming: Vec::new(),
            sent: Vec::new(),
            polls: [0; 2],
            patience: LOOK_IDLE[0],
            failing: None,
            broken: None,
            busy: false,
            opened: false,
            refused: 0,
            sleeper,
            waker,
            listener,
            poller,
            process: Process::this(),
        })
    }

    /// True if the endpoint of this address is on this host and in this network namespace. It need not poll for that.
    ///
    /// ```
    /// # use unisono_transport::{Transport, shm::Endpoint};
    /// # fn main() -> Result<(), unisono_transport::Error> {
    /// let here = Endpoint::open()?;
    /// assert!(Endpoint::is_near(here.address())?);
    /// let address = here.address().clone();
    /// drop(here);
    /// assert!(!Endpoint::is_near(&address)?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::BadAddress`] if it is not an address of such an endpoint, and [`Error::System`] if the system lets this process connect to
    /// none.
    pub fn is_near(address: &Address) -> Result<bool, Error> {
        socket::is_open(&EndpointPlace::of(address)?)
    }

    /// Registers memory that another transport registers too, by `register`: peers write to it by that transport's key.
    ///
    /// # Errors
    /// Those of `register`.
    pub(crate) fn register_again(
        &self,
        memory: Memory,
        register: impl FnOnce(Memory) -> Result<Region, Error>,
    ) -> Result<Region, Error> {
        self.table.register_again(memory.into(), register)
    }

    /// The same for new memory, as in [`Transport::allocate`].
    ///
    /// # Errors
    /// [`Error::Map`] if the system refuses, and those of `register`.
    pub(crate) fn allocate_again(
        &self,
        len: usize,
        register: impl FnOnce(Memory) -> Result<Region, Error>,
    ) -> Result<Region, Error> {
        self.table.register_again(self.table.allocate(len, Access::ReadWrite)?, register)
    }

    /// From now on peers wake this endpoint, by a descriptor that becomes readable ([`Self::descriptor`]). Returns how long the sleep
    /// may last: `timeout`, or less if there is something already, or it is `ready`. [`Self::end_sleep`] must follow.
    ///
    /// # Errors
    /// Those of [`Transport::park`].
    pub(crate) fn begin_sleep(&mut self, timeout: Duration, ready: Ready<'_>) -> Result<Duration, Error> {
        self.checked()?;
        let epoch = self.sleeper.begin();
        // From now on a peer wakes this endpoint when it writes; what it wrote before is found here.
        let mut ready = ready()
            || std::mem::take(&mut self.opened)
            || !self.sent.is_empty()
            || self.incoming.iter().flatten().any(|it| it.ended.is_some() || it.has_next());
        for peer in 0..self.peers.len() {
            let Some(outgoing) = self.peers[peer].state.open() else { continue };
            if outgoing.is_waiting() {
                let moved = outgoing.wait(epoch).or_else(|stop| self.fail(peer, stop).map(|()| false));
                ready |= moved.inspect_err(|_| self.sleeper.end())?;
            }
        }
        Ok(if ready || self.failing.is_some() {
            Duration::ZERO
        } else if std::mem::take(&mut self.busy) {
            timeout.min(NAP)
        } else {
            timeout
        })
    }

    /// The descriptor that is readable while a peer wakes this endpoint, between the beginning and the end of a sleep.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }

    /// Waits for at most this time, and ends the sleep.
    ///
    /// # Errors
    /// Those of [`Transport::park`].
    pub(crate) fn end_sleep(&mut self, timeout: Duration) -> Result<(), Error> {
        let looked = self.look(timeout, true);
        self.sleeper.end();
        looked.map(drop)
    }

    /// Connects to a peer if that was not done. The connection is not open if the peer has not answered yet, or is too busy for that now.
    #[inline]
    fn ensure_connected(&mut self, peer: Peer) -> Result<(), Error> {
        let known = self.peers.get(peer.0 as usize);
        if known.is_some_and(|known| matches!(known.state, ConnectionState::Open(_))) {
            Ok(())
        } else {
            self.connect_to(peer)
        }
    }

    /// The connection to a peer, which is made if there is none.
    #[cfg(test)]
    fn outgoing(&mut self, peer: Peer) -> Result<Option<&mut Outgoing>, Error> {
        self.ensure_connected(peer)?;
        Ok(self.peers[peer.0 as usize].state.open())
    }

    /// Reads what peers have written, at most `most` records of each.
    fn read(&mut self, events: &mut Vec<Event>, most: usize) {
        let mut entries = None;
        // If there are several, the next calls find the others.
        let mut stopped = None;
        for connection in 0..self.incoming.len() {
            let Some(incoming) = &mut self.incoming[connection] else { continue };
            if !incoming.has_next() && incoming.ended.is_none() {
                continue;
            }
            let entries = entries.get_or_insert_with(|| self.table.lock());
            let failure = match (incoming.read(entries, events, most), incoming.ended) {
                (Ok(true), Some(state)) => (state == PeerState::Died).then(Failure::died),
                (Ok(_), _) => continue,
                (Err(failure), _) => Some(failure),
            };
            stopped.get_or_insert((connection, failure));
        }
        drop(entries);
        if let Some((connection, failure)) = stopped {
            self.drop_incoming(connection, failure);
        }
    }

    /// Writes the bytes that waited for room.
    fn pump(&mut self) -> Result<(), Error> {
        for peer in 0..self.peers.len() {
            let Some(outgoing) = self.peers[peer].state.open() else { continue };
            if outgoing.has_pending()
                && let Err(stop) = outgoing.pump(&mut self.sent)
            {
                self.fail(peer, stop)?;
            }
        }
        Ok(())
    }

    /// The error that every call returns, once there was a failure.
    #[inline]
    fn checked(&self) -> Result<(), Error> {
        match &self.broken {
            None => Ok(()),
            Some(failure) => Err(again(failure)),
        }
    }

    /// Reports all that had arrived before the failure, and then, in the next call, the failure.
    fn end(&mut self, events: &mut Vec<Event>, before: usize) -> Result<(), Error> {
        // What the peer wrote last may be behind a connection that was not accepted yet, or whose end was not seen.
        for _ in 0..LOOKS {
            if !self.look(Duration::ZERO, false)? {
                break;
            }
        }
        self.read(events, ALL);
        self.broken = self.failing.take();
        if events.len() == before { self.checked() } else { Ok(()) }
    }
}

/// The error of a failure after which the endpoint does nothing more.
#[cold]
fn again(failure: &Failure) -> Error {
    failure.clone().into()
}

// SAFETY: bytes are copied to the target before the record or the event that reports them is made; what is reported as sent was copied
// out of its sources, which are kept until then. A record is written where its key and offset say, if that is registered, with the
// table locked. Closing an endpoint takes its regions out of the table, and makes those that peers have mapped private to their owner.
unsafe impl Transport for Endpoint {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn address(&self) -> &Address {
        &self.address
    }

    fn connect(&mut self, address: &Address) -> Result<Peer, Error> {
        let place = EndpointPlace::of(address)?;
        if let Some(peer) = self.known.get(&place) {
            return Ok(*peer);
        }
        let peer = u32::try_from(self.peers.len()).map(Peer);
        let peer = peer.map_err(|_| Error::bad_address(address, PROVIDER, "there are too many peers"))?;
        self.peers.push(Known { place, state: ConnectionState::None });
        self.known.insert(place, peer);
        Ok(peer)
    }

    fn register(&mut self, memory: Memory) -> Result<Region, Error> {
        self.table.register(memory.into())
    }

    fn allocate(&mut self, len: usize) -> Result<Region, Error> {
        self.table.register(self.table.allocate(len, Access::ReadWrite)?)
    }

    fn share(&mut self, len: usize) -> Result<Region, Error> {
        self.table.register(self.table.allocate(len, Access::Read)?)
    }

    fn map(&mut self, peer: Peer, region: &RemoteRegion) -> Result<Mapping, Error> {
        self.checked()?;
        self.ensure_connected(peer)?;
        let Some(outgoing) = self.peers[peer.0 as usize].state.open() else { return Ok(Mapping::NotYet) };
        outgoing.map(region).map_err(|stop| stop.of(peer))
    }

    fn reads(&mut self, peer: Peer) -> Result<bool, Error> {
        self.checked()?;
        self.ensure_connected(peer)?;
        Ok(self.peers[peer.0 as usize].state.open().is_some_and(|outgoing| outgoing.reads()))
    }

    unsafe fn read(&mut self, peer: Peer, address: u64, into: *mut u8, len: usize) -> Result<(), Error> {
        let outgoing = self.peers.get_mut(peer.0 as usize).and_then(|known| known.state.open());
        let read = match outgoing {
            // SAFETY: by the caller's promise.
            Some(outgoing) => unsafe { outgoing.read(address, into, len) },
            None => Err(Failure::unreadable()),
        };
        read.map_err(|failure| failure.to(peer).into())
    }

    fn notify(&mut self, peers: &[Peer]) -> Result<(), Error> {
        self.checked()?;
        // As in `Sleeper::begin`.
        fence(Ordering::SeqCst);
        for &peer in peers {
            if let Some(Known { state: ConnectionState::Open(outgoing), .. }) =
                self.peers.get_mut(peer.0 as usize)
            {
                outgoing.wake_behind_fence();
            }
        }
        Ok(())
    }

    unsafe fn put(&mut self, put: &Put<'_>) -> Result<Posted, Error> {
        let (len, offset) = put.check(&self.limits, self.peers.len())?;
        self.checked()?;
        self.ensure_connected(put.to)?;
        let Some(outgoing) = self.peers[put.to.0 as usize].state.open() else { return Ok(Posted::Full) };
        let token = put.notifies(&self.limits).then_some(put.token);
        // SAFETY: by the caller's promise.
        unsafe { outgoing.put(put, (len, offset), token, &mut self.sent) }.map_err(|stop| stop.of(put.to))
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), Error> {
        self.checked()?;
        let before = events.len();
        self.read(events, BATCH);
        self.pump()?;
        events.extend(self.sent.drain(..).map(|token| Event::Sent { token }));
        let [all, idle] = &mut self.polls;
        *all += 1;
        *idle += u32::from(events.len() == before);
        if *idle >= self.patience || *all >= LOOK {
            self.look(Duration::ZERO, false)?;
        }
        if self.failing.is_some() { self.end(events, before) } else { Ok(()) }
    }

    fn park(&mut self, timeout: Duration, others: &[BorrowedFd<'_>], ready: Ready<'_>) -> Result<(), Error> {
        let timeout = self.begin_sleep(timeout, ready)?;
        if others.is_empty() {
            return self.end_sleep(timeout);
        }
        let slept = self.waker.sleep(others.iter().copied().chain([self.descriptor()]), timeout);
        let ended = self.end_sleep(Duration::ZERO);
        slept.and(ended)
    }

    fn waker(&self) -> Arc<dyn Wake> {
        Arc::<EventFd>::clone(&self.waker)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // In a forked child the parent owns all of it.
        if !self.process.is_this() {
            return;
        }
        // Peers take nothing any more from memory that others get now.
        self.sleeper.board.close();
        self.peers.iter_mut().for_each(|known| known.state.withdraw());
        let outgoing = self.peers.iter().filter_map(|known| known.state.link());
        let incoming = self.incoming.iter().flatten().map(|it| &it.link);
        outgoing.chain(incoming).for_each(|link| link.say(&ConnectionMessage::Bye));
        for _ in 0..socket::BATCH {
            let Ok(Accepted::From(_, link)) = self.listener.accept() else { break };
            link.say(&ConnectionMessage::Bye);
        }
        self.table.close();
    }
}
