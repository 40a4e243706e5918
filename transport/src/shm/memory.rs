//! The memory of an endpoint that its peers write to: what was registered, and what was allocated for peers to map.
//!
//! Its keys are the endpoint's own, or those of another transport that has registered the same memory. That transport may use a key
//! for several registrations at once (libfabric caches registrations of overlapping memory), which the address of a put
//! distinguishes, and may use it again as soon as a registration is closed. So the board first tells each peer that has mapped the
//! memory.
#![allow(unsafe_code)]

use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    ptr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{
    board::{Board, PLACES},
    control::{Given, WriteRefusal},
    numa,
    segment::{self, Access, Segment},
    socket::SendOutcome,
};
use crate::{
    Error, Memory, Region, Registration, RemoteRegion, file::Memfd, fork::Process, keys::Keys, local::Span,
};

/// Memory of fewer bytes is not shared: puts to it fit a few records.
const SHARED_FROM: usize = 16 << 10;

/// Memory that peers can map.
#[derive(Debug)]
struct Shared {
    memfd: Arc<Memfd>,
    /// The mapping of memory to which peers write too. They only read all other memory, which is sealed against writing or has a
    /// descriptor for reading.
    writable: Option<Arc<Segment>>,
}

/// Memory before it is registered.
#[derive(Debug)]
pub(super) struct Allocated {
    memory: Memory,
    shared: Option<Shared>,
}

impl From<Memory> for Allocated {
    fn from(memory: Memory) -> Self {
        let shared = memory.memfd().filter(|_| memory.len() >= SHARED_FROM && segment::may_share());
        let shared = shared.map(|memfd| Shared { memfd: Arc::clone(memfd), writable: None });
        Self { memory, shared }
    }
}

#[derive(Debug)]
struct Entry {
    /// A number that no other registration of this endpoint has.
    number: u64,
    span: Span,
    /// Its memory if peers can map it, and its place on the board.
    shared: Option<(Shared, u32)>,
    /// The connections by which peers were given the memory.
    given: Vec<usize>,
    /// True if any of them may write to it.
    written: bool,
}

/// What is registered.
#[derive(Debug)]
pub(super) struct Entries {
    entries: HashMap<u64, Vec<Entry>>,
    /// Regions that are gone, with the connections that were given their memory.
    gone: Vec<(RemoteRegion, Vec<usize>)>,
    board: Arc<Board>,
    /// The free places on the board: each place that is taken keeps a descriptor open.
    free: Vec<u32>,
    closed: bool,
    keys: Keys,
    /// The number of the latest entry.
    number: u64,
}

impl Entries {
    /// Writes bytes to a region.
    ///
    /// # Safety
    /// The sources are valid and together `len` bytes long. Nothing else reads or writes these bytes of the region.
    pub(super) unsafe fn write(
        &self,
        key: u64,
        offset: u64,
        sources: impl Iterator<Item = (*const u8, usize)>,
        len: usize,
    ) -> Result<(), WriteRefusal> {
        let entries = self.entries.get(&key).ok_or(WriteRefusal::Unregistered)?;
        let contains = |entry: &&Entry| entry.span.start(offset, len as u64).is_some();
        let entry = entries.iter().find(contains).ok_or(WriteRefusal::Outside)?;
        // SAFETY: it is registered, as its entry exists while the table is locked; the rest by the caller's promise.
        unsafe { entry.span.write(offset, sources, len) }.map_err(|_| WriteRefusal::Outside)
    }

    /// The place of `len` bytes of a region to which a peer writes.
    pub(super) fn place(&self, key: u64, offset: u64, len: usize) -> Result<*mut u8, WriteRefusal> {
        let entries = self.entries.get(&key).ok_or(WriteRefusal::Unregistered)?;
        let mut places = entries.iter().filter_map(|entry| {
            let start = entry.span.start(offset, len as u64)?;
            // SAFETY: it lies in the memory, which is registered while the table is locked.
            Some(unsafe { entry.span.base.add(start) })
        });
        places.next().ok_or(WriteRefusal::Outside)
    }

    /// Checks that a peer that has mapped a region may say that it has written this many bytes to it.
    pub(super) fn check(&self, key: u64, offset: u64, len: u64) -> Result<(), WriteRefusal> {
        let entries = self.entries.get(&key).into_iter().flatten();
        let writable = |entry: &&Entry| matches!(entry.shared, Some((Shared { writable: Some(_), .. }, _)));
        let mut shared = entries.filter(writable).peekable();
        shared.peek().ok_or(WriteRefusal::Unregistered)?;
        let inside = shared.any(|entry| entry.span.start(offset, len).is_some());
        if inside { Ok(()) } else { Err(WriteRefusal::Outside) }
    }

    /// Enters memory, and returns the number of its entry, and whether peers can map it.
    fn enter(&mut self, span: Span, shared: Option<Shared>) -> (u64, bool) {
        self.number += 1;
        let shared = shared.and_then(|shared| Some((shared, self.free.pop()?)));
        if let Some((_, place)) = &shared {
            self.board.put(*place, self.number);
        }
        let mappable = shared.is_some();
        let remote = RemoteRegion { mappable, ..span.remote };
        let entry = Entry {
            number: self.number,
            span: Span { remote, ..span },
            shared,
            given: Vec::new(),
            written: false,
        };
        self.entries.entry(remote.key).or_default().push(entry);
        (self.number, mappable)
    }

    fn remove(&mut self, key: u64, number: u64) -> Option<Entry> {
        let same = self.entries.get_mut(&key)?;
        let at = same.iter().position(|entry| entry.number == number)?;
        let removed = same.swap_remove(at);
        if same.is_empty() {
            self.entries.remove(&key);
        }
        if let Some((_, place)) = &removed.shared {
            self.board.put(*place, 0);
            self.free.push(*place);
        }
        Some(removed)
    }
}

/// The memory of one endpoint.
#[derive(Debug)]
pub(super) struct MemoryTable {
    entries: Mutex<Entries>,
    process: Process,
}

/// Closes a registration when it is dropped.
#[derive(Debug)]
struct Guard {
    table: Arc<MemoryTable>,
    key: u64,
    number: u64,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.table.remove(self.key, self.number);
    }
}

impl MemoryTable {
    /// The table of the endpoint whose board this is.
    pub(super) fn new(board: Arc<Board>) -> Arc<Self> {
        let entries = Entries {
            entries: HashMap::new(),
            gone: Vec::new(),
            board,
            free: (0..PLACES).collect(),
            closed: false,
            keys: Keys::new(size_of::<u64>()),
            number: 0,
        };
        Arc::new(Self { entries: Mutex::new(entries), process: Process::this() })
    }

    /// While this is held, no registration is closed.
    pub(super) fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// New memory, which peers can map for this access if it is large enough and the system has room for it.
    pub(super) fn allocate(&self, len: usize, access: Access) -> Result<Allocated, Error> {
        let has_room = len >= SHARED_FROM && !self.lock().free.is_empty();
        let created = has_room.then(|| segment::create_for_region(len, access)).transpose();
        let created = created.unwrap_or_else(|error| {
            crate::log::debug!(bytes = len, %error, "using memory that peers cannot map");
            None
        });
        let Some((file, segment)) = created else {
            return Ok(Allocated { memory: Memory::map(len)?, shared: None });
        };
        numa::keep_here(&segment);
        let segment = Arc::new(segment);
        // SAFETY: the memory is mapped for `len` bytes or more as long as its owner lives.
        let memory = unsafe { Memory::owned(segment.base(), len, Arc::<Segment>::clone(&segment)) };
        let writable = Some(segment).filter(|_| access == Access::ReadWrite);
        Ok(Allocated {
            memory,
            shared: Some(Shared { memfd: Arc::new(Memfd { file, offset: 0 }), writable }),
        })
    }

    /// Registers memory under its own key.
    pub(super) fn register(
        self: &Arc<Self>,
        Allocated { memory, shared }: Allocated,
    ) -> Result<Region, Error> {
        let mut guard = self.lock();
        let entries = &mut *guard;
        let key = entries.keys.next(|key| entries.entries.contains_key(&key))?;
        let remote = RemoteRegion { base: 0, key, len: memory.len() as u64, mappable: false };
        let (number, mappable) = entries.enter(Span { base: memory.base(), remote }, shared);
        drop(guard);
        let remote = RemoteRegion { mappable, ..remote };
        let guard = Box::new(Guard { table: Arc::clone(self), key, number });
        Ok(Region::registered(memory, Registration { remote, descriptor: ptr::null_mut(), guard }))
    }

    /// Registers memory under the key of another transport, with which `register` registers it.
    pub(super) fn register_again(
        self: &Arc<Self>,
        Allocated { memory, shared }: Allocated,
        register: impl FnOnce(Memory) -> Result<Region, Error>,
    ) -> Result<Region, Error> {
        let region = register(memory)?;
        let Some(remote) = region.remote().filter(|remote| remote.len > 0) else {
            // No peer can write to it. Such regions may all have the same key.
            return Ok(region);
        };
        let (number, mappable) = self.lock().enter(Span { base: region.base(), remote }, shared);
        region.registered_again(mappable, Guard { table: Arc::clone(self), key: remote.key, number })
    }

    fn remove(&self, key: u64, number: u64) {
        // In a forked child, the lock may be held by a thread that the child does not have.
        if !self.process.is_this() {
            return;
        }
        let mut entries = self.lock();
        let removed = entries.remove(key, number);
        if let Some(entry) = removed.as_ref().filter(|entry| !entry.given.is_empty() && !entries.closed) {
            entries.gone.push((entry.span.remote, entry.given.clone()));
        }
        drop(entries);
        // The memory is unmapped only now, with no lock held.
        drop(removed);
    }

    /// Hands the memory of the region of this key with this address over to the peer at this connection, for this access: `send`
    /// gets its descriptor and its description. `None` if there is no such memory.
    pub(super) fn give(
        &self,
        (key, address, access): (u64, u64, Access),
        connection: usize,
        send: impl FnOnce(&OwnedFd, Given) -> SendOutcome,
    ) -> Option<SendOutcome> {
        let mut entries = self.lock();
        let mut same = entries.entries.get_mut(&key)?.iter_mut();
        let entry = same.find(|entry| entry.shared.is_some() && entry.span.start(address, 1).is_some())?;
        let (shared, place) = entry.shared.as_ref()?;
        let RemoteRegion { base, len, .. } = entry.span.remote;
        let (Memfd { file, offset }, writable) = (&*shared.memfd, shared.writable.is_some());
        let (place, number, offset) = (*place, entry.number, *offset);
        let posted = send(file, Given { key, base, len, offset, place, number, access, writable });
        if posted == SendOutcome::Yes {
            entry.written |= writable && access == Access::ReadWrite;
            if !entry.given.contains(&connection) {
                entry.given.push(connection);
            }
        }
        Some(posted)
    }

    /// The regions that are gone, each with the connections whose peers may still have its memory mapped.
    pub(super) fn gone(&self) -> Vec<(RemoteRegion, Vec<usize>)> {
        std::mem::take(&mut self.lock().gone)
    }

    /// Closes the table: from now on no peer writes to the endpoint's regions.
    pub(super) fn close(&self) {
        let mut locked = self.lock();
        locked.closed = true;
        let entries = std::mem::take(&mut locked.entries);
        drop(locked);
        for Entry { shared, written, .. } in entries.into_values().flatten() {
            let Some((Shared { memfd, writable: Some(segment) }, _)) = shared.filter(|_| written) else {
                continue;
            };
            if let Err(error) = segment.make_private(&memfd.file) {
                crate::log::error!(%error, "memory that outlives its endpoint can still be written by peers");
            }
        }
    }
}
