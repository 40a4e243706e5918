//! Writes to one peer: by a connection, a ring, and the peer's memory that is mapped here (`mapped.rs`).
#![allow(unsafe_code)]

use std::{
    collections::{HashSet, VecDeque},
    ptr,
    sync::{
        Arc,
        atomic::{Ordering, fence},
    },
};

use super::{
    board::Board,
    control::ConnectionMessage,
    error::{Nonsense, StopCause},
    mapped::Mappings,
    ring::{self, Record, RecordKind, Writer},
    segment::{self, Access, Segment},
    sleep::PeerSleep,
    socket::{self, Link, PeerState},
};
use crate::{
    Mapping, Memory, Posted, Put, Region, RemoteRegion,
    local::Failure,
    peer_memory::{PeerMemory, ReadPermit},
    region,
};

/// Puts of at most this many bytes are copied into the ring, all in one record.
pub(super) const INLINE: usize = 4 << 10;
/// Longer puts than this are written straight into memory that the peer has shared.
const DIRECT_FROM: usize = 1 << 10;
/// The most puts whose bytes wait for room in the ring.
const MOST_PENDING: usize = 64;

/// A connection to a peer that is written to.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) link: Link,
    writer: Writer,
    /// The peer's sleep, as this end knows it, and its board.
    sleep: PeerSleep,
    /// The peer's whole memory, if this process can read it.
    memory: Option<PeerMemory>,
    /// True if the peer can read this process's memory.
    is_read: bool,
    /// The peer's memory that is mapped for puts to write to, and for [`Self::map`] to read.
    targets: Mappings,
    views: Mappings,
    /// The regions that [`Self::map`] has asked for, by key and base, until it says whether they are mapped.
    asked: HashSet<(u64, u64)>,
    pending: VecDeque<Pending>,
    /// The puts whose bytes the peer fetches, with the position behind their last record.
    fetched: VecDeque<(u64, Pending)>,
    /// True if a put was turned down because there was no room.
    starved: bool,
}

/// A put whose bytes are not all in the ring yet.
#[derive(Debug)]
struct Pending {
    sources: Vec<(Region, usize, usize)>,
    written: usize,
    len: usize,
    /// All of it as one record.
    whole: Record,
    token: Option<u64>,
    /// True if the peer fetches the bytes.
    is_fetched: bool,
}

/// The connection to a peer that this endpoint writes to.
#[derive(Debug)]
pub(super) enum ConnectionState {
    /// The endpoint has not connected to the peer.
    None,
    /// The peer has not accepted the connection, or not received the ring yet. It is written to when it has answered, and so has proved
    /// that it is the peer. Then its board is known.
    Connecting(Link, Option<(Arc<Board>, ReadPermit)>),
    Open(Box<Outgoing>),
    /// The peer has ended, has closed its endpoint or has broken the protocol.
    Gone,
}

impl ConnectionState {
    #[inline]
    pub(super) fn open(&mut self) -> Option<&mut Outgoing> {
        if let Self::Open(outgoing) = self { Some(outgoing) } else { None }
    }

    pub(super) fn link(&self) -> Option<&Link> {
        match self {
            Self::Connecting(link, _) => Some(link),
            Self::Open(outgoing) => Some(&outgoing.link),
            Self::None | Self::Gone => None,
        }
    }

    /// Makes the peer take nothing more from the memory of puts, which may then be freed.
    pub(super) fn withdraw(&mut self) {
        if let Some(outgoing) = self.open() {
            outgoing.withdraw();
        }
    }

    /// Receives what the peer has sent, and returns its state.
    pub(super) fn receive(&mut self) -> Result<PeerState, StopCause> {
        match self {
            Self::Open(outgoing) => outgoing.receive(),
            Self::Connecting(link, answer) => link.receive_all(|message, file| match (message, file) {
                (ConnectionMessage::Accept(permit), Some(Ok(file))) if answer.is_none() => {
                    *answer = Some((Arc::new(Board::of_peer(&file)?), permit));
                    Ok(())
                }
                _ => Err(Nonsense("a message that is no answer").into()),
            }),
            Self::None | Self::Gone => Ok(PeerState::Open),
        }
    }

    /// Hands a ring over to a peer that has answered, if it can receive it now. `permit` is this endpoint's.
    pub(super) fn hand_over(self, permit: ReadPermit) -> Result<Self, StopCause> {
        let Self::Connecting(link, Some((board, theirs))) = self else { return Ok(self) };
        let (file, segment) = segment::create(ring::SEGMENT, Access::ReadWrite)?;
        match link.send(&ConnectionMessage::Ring(permit), Some(&file)) {
            socket::SendOutcome::Yes => {}
            socket::SendOutcome::Full => return Ok(Self::Connecting(link, Some((board, theirs)))),
            socket::SendOutcome::Gone => return Err(Failure::gone().into()),
        }
        Ok(Self::Open(Box::new(Outgoing {
            link,
            writer: Writer::new(segment),
            sleep: PeerSleep { board, woken: 0 },
            memory: theirs.of_peer(permit),
            is_read: false,
            targets: Mappings::default(),
            views: Mappings::default(),
            asked: HashSet::new(),
            pending: VecDeque::new(),
            fetched: VecDeque::new(),
            starved: false,
        })))
    }
}

impl Outgoing {
    /// Begins a put of `len` bytes to this address. `sent` gets `token`, if there is one, when the put is sent.
    ///
    /// # Safety
    /// As for [`crate::Transport::put`].
    pub(super) unsafe fn put(
        &mut self,
        put: &Put<'_>,
        (len, offset): (usize, u64),
        token: Option<u64>,
        sent: &mut Vec<u64>,
    ) -> Result<Posted, StopCause> {
        let (key, total) = (put.target.region.key, len as u64);
        let mut record =
            Record { kind: RecordKind::Put, immediate: put.immediate, len: total, total, key, offset };
        let place = if len > DIRECT_FROM && put.target.region.mappable {
            self.mapped(key, offset, len)?
        } else {
            None
        };
        if place.is_none() && len > INLINE {
            if self.pending.len() + self.fetched.len() >= MOST_PENDING {
                self.starved = true;
                return Ok(Posted::Full);
            }
            let all = put.sources.iter();
            let sources =
                all.map(|source| (source.region().clone(), source.offset(), source.len())).collect();
            let is_fetched = self.is_read && put.fetch;
            self.pending.push_back(Pending { sources, written: 0, len, whole: record, token, is_fetched });
            self.pump(sent)?;
            return Ok(Posted::Yes);
        }
        if !self.writer.has_room(if place.is_some() { 0 } else { len })? {
            self.starved = true;
            return Ok(Posted::Full);
        }
        let sources = put.sources.iter().map(region::bytes);
        if let Some(place) = place {
            record.kind = RecordKind::Landed;
            // SAFETY: `len` bytes of mapped memory, which by the caller's promise nothing accesses; the sources are at rest. What a
            // peer does to its memory meanwhile changes bytes, and nothing else.
            unsafe {
                region::gather(sources, place);
                self.writer.push(&record, std::iter::empty());
            }
        } else {
            // SAFETY: the sources are valid and at rest, and `len` bytes together.
            unsafe { self.writer.push(&record, sources) };
        }
        sent.extend(token);
        self.wake();
        Ok(Posted::Yes)
    }

    /// The memory of a region of the peer, to be read here.
    pub(super) fn map(&mut self, region: &RemoteRegion) -> Result<Mapping, StopCause> {
        let RemoteRegion { base, key, len, mappable } = *region;
        let Some(len) = usize::try_from(len).ok().filter(|_| mappable) else { return Ok(Mapping::No) };
        if self.views.is_wanted(key) {
            // The answer may have come.
            self.receive()?;
        }
        Ok(match self.views.find(key, base, len) {
            Some(Some((place, segment))) => {
                // SAFETY: these bytes lie in the segment, which is kept. The peer may access them too, as `Transport::map` says.
                let memory = unsafe { Memory::owned(place, len, Arc::clone(segment)) };
                self.asked.remove(&(key, base));
                Mapping::Yes(Region::unregistered(memory))
            }
            None if self.views.is_wanted(key) => Mapping::NotYet,
            None if !self.asked.contains(&(key, base)) => {
                if self.want(key, base, Access::Read) {
                    self.asked.insert((key, base));
                }
                Mapping::NotYet
            }
            // The peer has answered, and this cannot be mapped.
            _ => {
                self.asked.remove(&(key, base));
                Mapping::No
            }
        })
    }

    /// The address to which a put writes, if the peer's region is mapped for that; asks for the region if that is unknown.
    fn mapped(&mut self, key: u64, address: u64, len: usize) -> Result<Option<*mut u8>, StopCause> {
        let place = |found: Option<(*mut u8, &Arc<Segment>)>| found.map(|(place, _)| place);
        if let Some(found) = self.targets.find(key, address, len) {
            return Ok(place(found));
        }
        if self.targets.is_wanted(key) {
            // The answer may have come.
            self.receive()?;
            return Ok(self.targets.find(key, address, len).and_then(place));
        }
        self.want(key, address, Access::ReadWrite);
        Ok(None)
    }

    /// Asks for the memory of a region. False if the peer has not yet received earlier messages.
    fn want(&mut self, key: u64, address: u64, access: Access) -> bool {
        let sent = self.link.send(&ConnectionMessage::Want { key, address, access }, None)
            == socket::SendOutcome::Yes;
        if sent {
            let mappings = if access == Access::Read { &mut self.views } else { &mut self.targets };
            mappings.want(key, address);
        }
        sent
    }

    /// Writes as many of the waiting bytes as there is room for. True if there was room for some. `sent` gets the tokens of puts that no
    /// longer need their sources.
    pub(super) fn pump(&mut self, sent: &mut Vec<u64>) -> Result<bool, StopCause> {
        while let Some((position, _)) = self.fetched.front()
            && self.writer.is_read(*position)?
        {
            sent.extend(self.fetched.pop_front().and_then(|(_, put)| put.token));
        }
        let mut any = false;
        while let Some(first) = self.pending.front_mut() {
            let most = if first.is_fetched { size_of::<u64>() } else { ring::MOST };
            if !self.writer.has_room(most.min(first.len - first.written))? {
                break;
            }
            // SAFETY: the regions are kept by the put, and their bytes are at rest until its token is reported.
            unsafe { first.push(&mut self.writer) };
            any = true;
            if first.written == first.len
                && let Some(done) = self.pending.pop_front()
            {
                if done.is_fetched {
                    self.fetched.push_back((self.writer.tail(), done));
                } else {
                    sent.extend(done.token);
                }
            }
            self.wake();
        }
        Ok(any)
    }

    /// The peer has closed its endpoint, and may have read before what was written. A failure if puts are left.
    pub(super) fn end(&mut self, sent: &mut Vec<u64>) -> Result<(), StopCause> {
        self.pump(sent)?;
        if self.has_pending() { Err(Failure::gone().into()) } else { Ok(()) }
    }

    /// True if this process can read the peer's memory.
    pub(super) fn reads(&self) -> bool {
        self.memory.is_some()
    }

    /// Reads the peer's memory.
    ///
    /// # Safety
    /// As for [`crate::Transport::read`].
    pub(super) unsafe fn read(&self, address: u64, into: *mut u8, len: usize) -> Result<(), Failure> {
        let memory = self.memory.ok_or_else(Failure::unreadable)?;
        // SAFETY: by the caller's promise.
        unsafe { memory.read(address, into, len) }?;
        if self.sleep.board.is_closed() { Err(Failure::gone()) } else { Ok(()) }
    }

    /// Makes the peer take nothing more from the memory of puts, which may then be freed.
    pub(super) fn withdraw(&self) {
        if !(self.fetched.is_empty() && self.pending.is_empty()) {
            self.writer.withdraw();
        }
    }

    /// Wakes the peer, if it sleeps.
    pub(super) fn wake(&mut self) {
        // As in `Sleeper::begin`.
        fence(Ordering::SeqCst);
        self.wake_behind_fence();
    }

    /// As [`wake`](Self::wake), if a fence already follows what was written.
    pub(super) fn wake_behind_fence(&mut self) {
        if self.sleep.must_be_woken() {
            // If it is full, the peer has not yet received earlier ones; if it is gone, `receive` says so.
            self.link.say(&ConnectionMessage::Wake);
        }
    }

    /// Receives what the peer has sent, and returns its state.
    fn receive(&mut self) -> Result<PeerState, StopCause> {
        let Self { link, sleep, views, targets, is_read, .. } = self;
        link.receive_all(|message, file| match (message, file) {
            (ConnectionMessage::Memory(given), Some(file)) => {
                let mappings = if given.access == Access::Read { &mut *views } else { &mut *targets };
                mappings.take(&given, &sleep.board, file)
            }
            (ConnectionMessage::Forget { key, address }, None) => {
                targets.forget(key, address);
                views.forget(key, address);
                Ok(())
            }
            (ConnectionMessage::Refused(refusal), None) => Err(Failure::from(refusal).into()),
            (ConnectionMessage::Reads, None) => {
                *is_read = true;
                Ok(())
            }
            _ => Err(Nonsense("a message that a reader does not send").into()),
        })
    }

    /// True if puts wait for room, or were turned down because there was none.
    pub(super) fn is_waiting(&self) -> bool {
        self.starved || self.has_pending()
    }

    /// True if puts still need their sources.
    pub(super) fn has_pending(&self) -> bool {
        !(self.pending.is_empty() && self.fetched.is_empty())
    }

    /// True if a region is mapped for puts.
    #[cfg(test)]
    pub(super) fn writes_straight_to(&self, region: &RemoteRegion) -> bool {
        self.targets.find(region.key, region.base, 1).flatten().is_some()
    }

    /// The number of regions of the peer that are mapped or asked for.
    #[cfg(test)]
    pub(super) fn mappings(&self) -> usize {
        self.targets.len() + self.views.len()
    }

    /// Tells the peer that this endpoint sleeps until there is room. True if there is some already.
    pub(super) fn wait(&mut self, epoch: u64) -> Result<bool, StopCause> {
        let moved = self.writer.wait(epoch)?;
        if moved {
            self.starved = false;
        }
        Ok(moved)
    }
}

impl Pending {
    /// Publishes the next record, for which there is room.
    ///
    /// # Safety
    /// The sources are valid and at rest until the record is read.
    unsafe fn push(&mut self, writer: &mut Writer) {
        let left = self.len - self.written;
        let mut record =
            Record { offset: self.whole.offset.saturating_add(self.written as u64), ..self.whole };
        let len = if self.is_fetched {
            let mut next = pieces(&self.sources, self.written, left.min(ring::MOST_FETCHED));
            // A put has as many bytes as its sources.
            let (from, len) = next.find(|(_, len)| *len > 0).unwrap_or((ptr::null(), left));
            record.kind = if len == left { RecordKind::Fetch } else { RecordKind::FetchPart };
            record.len = len as u64;
            let address = (from.addr() as u64).to_ne_bytes();
            // SAFETY: the address lies in `address`.
            unsafe { writer.push(&record, std::iter::once((address.as_ptr(), address.len()))) };
            len
        } else {
            let len = left.min(ring::MOST);
            record.kind = if len == left { RecordKind::Put } else { RecordKind::Part };
            record.len = len as u64;
            // SAFETY: by the caller's promise.
            unsafe { writer.push(&record, pieces(&self.sources, self.written, len)) };
            len
        };
        self.written += len;
    }
}

/// `len` bytes of these sources, joined, from `from` on.
fn pieces(
    sources: &[(Region, usize, usize)],
    from: usize,
    len: usize,
) -> impl Iterator<Item = (*const u8, usize)> {
    let (mut skip, mut left) = (from, len);
    sources.iter().map_while(move |(region, offset, whole)| {
        if left == 0 {
            return None;
        }
        let before = skip.min(*whole);
        skip -= before;
        let len = (whole - before).min(left);
        left -= len;
        // SAFETY: a source lies within its region, and this part within the source.
        Some((unsafe { region.base().add(offset + before) }.cast_const(), len))
    })
}
