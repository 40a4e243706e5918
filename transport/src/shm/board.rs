//! The page of an endpoint that its peers only read: a word that says whether it sleeps (`sleep.rs`), a word that says whether it is closed,
//! and a word for each region that peers can map, which says whether that region is still there (`memory.rs`).
//!
//! As soon as a region is gone, another region may get its key. A peer that knows the new region sees that the old one is gone,
//! because the owner took that off the board first.

use std::{
    os::fd::OwnedFd,
    sync::atomic::{AtomicU64, Ordering, fence},
};

use super::{
    error::StopCause,
    segment::{self, Access, Segment},
};
use crate::Error;

/// The length of the page.
const LEN: usize = 4 << 10;
/// The words before those of regions: a cache line for the word of the sleep.
const BEFORE: usize = 8;
/// The most regions that are on a board.
pub(super) const PLACES: u32 = 256;

/// A board of this endpoint, or of a peer.
#[derive(Debug)]
pub(super) struct Board(Segment);

impl Board {
    /// A new board of this endpoint, and the descriptor for its peers.
    pub(super) fn new() -> Result<(OwnedFd, Self), Error> {
        let (file, segment) = segment::create(LEN, Access::Read)?;
        Ok((file, Self(segment)))
    }

    pub(super) fn of_peer(file: &OwnedFd) -> Result<Self, StopCause> {
        Ok(Self(Segment::of_peer(file, 0, LEN, Access::Read)?))
    }

    /// The word of the sleep.
    pub(super) fn sleep(&self) -> &AtomicU64 {
        &self.0.words()[0]
    }

    /// The endpoint is closed: what peers read of its process from now on may be other memory. Only its owner does that.
    pub(super) fn close(&self) {
        self.0.words()[1].store(1, Ordering::Relaxed);
        // What follows does not come before it.
        fence(Ordering::SeqCst);
    }

    /// True if what was read of the process until now may be other memory.
    pub(super) fn is_closed(&self) -> bool {
        // The bytes were read before this word is.
        fence(Ordering::SeqCst);
        self.0.words()[1].load(Ordering::Relaxed) != 0
    }

    fn word(&self, place: u32) -> Option<&AtomicU64> {
        let place = usize::try_from(place).ok().filter(|_| place < PLACES)?;
        self.0.words().get(BEFORE + place)
    }

    /// Puts the region of this number at a place, or none if it is 0. Only its owner does that.
    pub(super) fn put(&self, place: u32, number: u64) {
        if let Some(word) = self.word(place) {
            word.store(number, Ordering::Release);
        }
    }

    /// True if the region of this number is at that place.
    pub(super) fn has(&self, place: u32, number: u64) -> bool {
        number != 0 && self.word(place).is_some_and(|word| word.load(Ordering::Acquire) == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_see_what_is_there_and_what_is_gone() {
        let (file, ours) = Board::new().unwrap();
        let theirs = Board::of_peer(&file).unwrap();
        for place in [0, 7, PLACES - 1] {
            ours.put(place, 5);
            assert!(theirs.has(place, 5) && !theirs.has(place, 6) && !theirs.has(place, 0));
            ours.put(place, 0);
            assert!(!theirs.has(place, 5) && !theirs.has(place, 0));
        }
        ours.put(PLACES, 5);
        assert!(!theirs.has(PLACES, 5) && !theirs.has(u32::MAX, 5));
        assert_eq!(theirs.sleep().load(Ordering::Relaxed), 0);
        assert!(!theirs.is_closed());
        ours.close();
        assert!(theirs.is_closed() && !theirs.has(1, 1));
    }
}
