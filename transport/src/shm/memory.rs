//! The memory of an endpoint that its peers write to: what was registered, and what was allocated for peers to map.
#![allow(unsafe_code)]

use std::{
    collections::{HashMap, hash_map::RandomState},
    hash::BuildHasher,
    os::fd::OwnedFd,
    ptr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{
    control::Refusal,
    segment::{self, Segment},
};
use crate::{Error, Memory, Region, Registration, RemoteRegion, fork::Process, local::Span};

/// Memory of fewer bytes is not shared: what is put there fits a few records.
const SHARED_FROM: usize = 16 << 10;
/// The most memories of an endpoint that are shared: each keeps a descriptor open.
const MOST_SHARED: usize = 256;

/// Memory that peers can map.
#[derive(Debug)]
struct Shared {
    segment: Segment,
    file: OwnedFd,
}

#[derive(Debug)]
struct Entry {
    span: Span,
    shared: Option<Arc<Shared>>,
    /// The connections by which peers were given the memory.
    given: Vec<usize>,
}

/// What is registered.
#[derive(Debug, Default)]
pub(super) struct Entries {
    entries: HashMap<u64, Entry>,
    /// Keys that are gone, with the connections that were given their memory.
    gone: Vec<(u64, Vec<usize>)>,
    /// The number of entries whose memory is shared.
    shared: usize,
    closed: bool,
    /// The random source of keys, so that these cannot be guessed.
    keys: RandomState,
    drawn: u64,
}

impl Entries {
    /// Writes bytes to a region.
    ///
    /// # Safety
    /// The sources are valid and together `len` bytes long. Nobody else reads or writes these bytes of the region.
    pub(super) unsafe fn write(
        &self,
        key: u64,
        offset: u64,
        sources: impl Iterator<Item = (*const u8, usize)>,
        len: usize,
    ) -> Result<(), Refusal> {
        let entry = self.entries.get(&key).ok_or(Refusal::Unregistered)?;
        // SAFETY: it is registered, as its entry exists while the table is locked; the rest by the caller's promise.
        unsafe { entry.span.write(offset, sources, len) }.map_err(|_| Refusal::Outside)
    }

    /// Whether a peer that has mapped a region may say that it has written so many bytes to it.
    pub(super) fn check(&self, key: u64, offset: u64, len: u64) -> Result<(), Refusal> {
        let entry = self.entries.get(&key).filter(|entry| entry.shared.is_some());
        let entry = entry.ok_or(Refusal::Unregistered)?;
        entry.span.start(offset, len).map(drop).map_err(|_| Refusal::Outside)
    }
}

/// The memory of one endpoint.
#[derive(Debug)]
pub(super) struct Table {
    entries: Mutex<Entries>,
    process: Process,
}

/// Closes a registration when it is dropped.
#[derive(Debug)]
struct Guard {
    table: Arc<Table>,
    key: u64,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.table.remove(self.key);
    }
}

impl Table {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { entries: Mutex::default(), process: Process::this() })
    }

    /// While this is held, no registration is closed.
    pub(super) fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers memory of whatever kind.
    pub(super) fn register(self: &Arc<Self>, memory: Memory) -> Region {
        self.enter(memory, None)
    }

    /// New memory, which peers can map if it is large enough and the system has room for it.
    pub(super) fn allocate(self: &Arc<Self>, len: usize, huge: bool) -> Result<Region, Error> {
        if len < SHARED_FROM || self.lock().shared >= MOST_SHARED {
            return Ok(self.register(Memory::map(len, huge)?));
        }
        let made = || {
            let (file, whole) = segment::create(len)?;
            let segment = Segment::own(&file, whole)?;
            if huge {
                segment.ask_for_huge_pages();
            }
            Ok::<_, Error>(Arc::new(Shared { segment, file }))
        };
        let shared = match made() {
            Ok(shared) => shared,
            Err(error) => {
                tracing::debug!(bytes = len, %error, "memory that peers cannot map serves");
                return Ok(self.register(Memory::map(len, huge)?));
            }
        };
        let base = shared.segment.base();
        // SAFETY: the memory is mapped for `len` bytes or more as long as its owner lives.
        let memory = unsafe { Memory::owned(base, len, Arc::<Shared>::clone(&shared)) };
        Ok(self.enter(memory, Some(shared)))
    }

    fn enter(self: &Arc<Self>, memory: Memory, shared: Option<Arc<Shared>>) -> Region {
        let mut entries = self.lock();
        let key = loop {
            entries.drawn += 1;
            let key = entries.keys.hash_one(entries.drawn);
            if !entries.entries.contains_key(&key) {
                break key;
            }
        };
        let remote = RemoteRegion { base: 0, key, len: memory.len() as u64, mappable: shared.is_some() };
        let span = Span { base: memory.base(), remote };
        entries.shared += usize::from(shared.is_some());
        entries.entries.insert(key, Entry { span, shared, given: Vec::new() });
        drop(entries);
        let guard = Box::new(Guard { table: Arc::clone(self), key });
        Region::registered(memory, Registration { remote, descriptor: ptr::null_mut(), guard })
    }

    fn remove(&self, key: u64) {
        // In a forked child, the lock may be held by a thread that the child does not have.
        if !self.process.is_this() {
            return;
        }
        let mut entries = self.lock();
        let removed = entries.entries.remove(&key);
        if let Some(entry) = &removed {
            entries.shared -= usize::from(entry.shared.is_some());
            if !entry.given.is_empty() && !entries.closed {
                let given = entry.given.clone();
                entries.gone.push((key, given));
            }
        }
        drop(entries);
        // Only now: memory is unmapped with no lock held.
        drop(removed);
    }

    /// Hands the memory of a region over to the peer at this connection: `send` is given its descriptor and the region's length.
    /// False if there is no such memory.
    pub(super) fn give(&self, key: u64, connection: usize, send: impl FnOnce(&OwnedFd, u64) -> bool) -> bool {
        let mut entries = self.lock();
        let Some(Entry { span, shared: Some(shared), given }) = entries.entries.get_mut(&key) else {
            return false;
        };
        if send(&shared.file, span.remote.len) {
            given.push(connection);
        }
        true
    }

    /// The keys that are gone, each with the connections whose peers may still have its memory mapped.
    pub(super) fn gone(&self) -> Vec<(u64, Vec<usize>)> {
        std::mem::take(&mut self.lock().gone)
    }

    /// The endpoint closes: from now on no peer writes to its regions.
    pub(super) fn close(&self) {
        let mut locked = self.lock();
        locked.closed = true;
        let entries = std::mem::take(&mut locked.entries);
        drop(locked);
        for (_, Entry { shared, given, .. }) in entries {
            let Some(shared) = shared.filter(|_| !given.is_empty()) else { continue };
            if let Err(error) = shared.segment.make_private(&shared.file) {
                tracing::error!(%error, "memory that outlives its endpoint can still be written by peers");
            }
        }
    }
}
