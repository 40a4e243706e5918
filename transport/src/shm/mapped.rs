//! The memory of one peer's regions that is mapped here, for reading or for writing. Several regions may have one key, and a put
//! may name a part of a region by that key. So a region is found by its key and an address in it.

use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    sync::{Arc, Once},
};

use super::{
    board::Board,
    control::Given,
    error::{Nonsense, StopCause},
    segment::{Access, Segment},
};
use crate::Error;

/// A region of the peer.
#[derive(Debug)]
struct Mapped {
    given: Given,
    /// The peer's board.
    board: Arc<Board>,
    /// `None` if it cannot be mapped here: puts then go through the ring.
    segment: Option<Arc<Segment>>,
}

impl Mapped {
    /// Where `len` bytes at this address begin, counted from the region's first byte, if they lie in the region.
    fn start(&self, address: u64, len: u64) -> Option<u64> {
        let start = address.checked_sub(self.given.base)?;
        (start.checked_add(len)? <= self.given.len).then_some(start)
    }

    fn contains(&self, address: u64) -> bool {
        self.start(address, 1).is_some()
    }

    /// True if the peer still has it.
    fn is_there(&self) -> bool {
        self.board.has(self.given.place, self.given.number)
    }
}

/// The regions of one peer that are mapped, or asked for.
#[derive(Debug, Default)]
pub(super) struct Mappings {
    regions: HashMap<u64, Vec<Mapped>>,
    /// By key, the address in the region that was asked for.
    wanted: HashMap<u64, u64>,
}

impl Mappings {
    /// Where these bytes of the peer are mapped, and in which segment, if they are; `None` if that is unknown.
    pub(super) fn find(
        &self,
        key: u64,
        address: u64,
        len: usize,
    ) -> Option<Option<(*mut u8, &Arc<Segment>)>> {
        let regions = self.regions.get(&key)?.iter().filter(|region| region.is_there());
        let mut found = regions.filter_map(|region| Some((region, region.start(address, len as u64)?)));
        let (region, start) = found.next()?;
        Some(region.segment.as_ref().and_then(|segment| {
            let place = segment.at(usize::try_from(start).ok()?, len)?;
            Some((place, segment))
        }))
    }

    /// True if a region of this key was asked for, and the peer has not answered yet.
    pub(super) fn is_wanted(&self, key: u64) -> bool {
        self.wanted.contains_key(&key)
    }

    /// Records that the region of this key with this address was asked for, and unmaps others of the key that are gone.
    pub(super) fn want(&mut self, key: u64, address: u64) {
        self.wanted.insert(key, address);
        self.keep(key, |_| true);
    }

    /// Maps the memory of the region that was asked for, by its descriptor, unless there is a reason why none came. `board` is the
    /// peer's.
    ///
    /// # Errors
    /// A failure of the peer, if it is no memory of such a region.
    pub(super) fn take(
        &mut self,
        given: &Given,
        board: &Arc<Board>,
        file: Result<OwnedFd, Error>,
    ) -> Result<(), StopCause> {
        let Given { key, base, .. } = *given;
        let region = Mapped { given: *given, board: Arc::clone(board), segment: None };
        if !self.wanted.get(&key).is_some_and(|address| region.contains(*address)) {
            // It was not asked for, or was forgotten meanwhile.
            return Ok(());
        }
        let segment = match file.map_err(StopCause::from).and_then(|file| map(&file, given)) {
            Ok(segment) => segment.map(Arc::new),
            Err(StopCause::Error(error)) => {
                tell_unmapped(&error);
                None
            }
            Err(nonsense) => return Err(nonsense),
        };
        self.wanted.remove(&key);
        self.keep(key, |other| !other.contains(base));
        self.regions.entry(key).or_default().push(Mapped { segment, ..region });
        Ok(())
    }

    /// Records that the peer has no region of this key with this address that can be mapped, or no longer has one.
    pub(super) fn forget(&mut self, key: u64, address: u64) {
        if self.wanted.get(&key) == Some(&address) {
            self.wanted.remove(&key);
        }
        self.keep(key, |region| !region.contains(address));
    }

    /// Keeps the regions of a key that are there and for which `holds` is true.
    fn keep(&mut self, key: u64, holds: impl Fn(&Mapped) -> bool) {
        let Some(regions) = self.regions.get_mut(&key) else { return };
        regions.retain(|region| region.is_there() && holds(region));
        if regions.is_empty() {
            self.regions.remove(&key);
        }
    }

    /// The number of regions that are mapped or asked for.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.wanted.len() + self.regions.values().map(Vec::len).sum::<usize>()
    }
}

/// Maps a peer's memory of a region for the purpose for which it was asked for: not for writing if it may only be read.
fn map(file: &OwnedFd, given: &Given) -> Result<Option<Segment>, StopCause> {
    let len = usize::try_from(given.len).map_err(|_| Nonsense("memory of another length"))?;
    if given.access == Access::ReadWrite && !given.writable {
        return Ok(None);
    }
    Segment::of_peer(file, given.offset, len, given.access).map(Some)
}

/// Logs that a peer's memory cannot be mapped, as a warning only once, since this happens often when the process may map no more.
fn tell_unmapped(error: &Error) {
    static TOLD: Once = Once::new();
    TOLD.call_once(
        || crate::log::warn!(%error, "memory of peers is written through rings, which copies twice"),
    );
    crate::log::debug!(%error, "a peer's memory is not mapped");
}
