//! Several pieces of memory, used as one.
#![allow(unsafe_code)]

use std::{cell::Cell, marker::PhantomData, sync::Arc};

use unisono_transport::Region;

use super::{
    bytes::{Bytes, SpanError},
    raw::borrow_raw,
    registry::Registry,
    stretch::Stretch,
};

/// Several pieces of memory, used as one. No piece is empty. They are not regions but lie next to each other in one allocation, so
/// that going from one to the next needs few cache lines.
#[derive(Clone, Debug)]
pub struct Pieces(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    all: Arc<[Piece]>,
    /// Each piece as a part of the registered buffer that contains it, if one does; empty if none is contained in one.
    registered: Vec<Option<Stretch>>,
}

/// A piece of memory.
#[derive(Debug)]
struct Piece {
    /// The number of bytes in the pieces before it.
    start: usize,
    base: *mut u8,
    len: usize,
}

// SAFETY: the memory is exclusively borrowed, and only the driver accesses it, as it does regions.
unsafe impl Send for Piece {}
// SAFETY: as above.
unsafe impl Sync for Piece {}

impl Pieces {
    /// Memory in these pieces, one after the other: of each the address and the number of bytes. The duty is that of
    /// [`Borrowed::apart`](super::Borrowed::apart).
    pub fn of(pieces: impl Iterator<Item = (*mut u8, usize)>) -> Self {
        let mut end = 0_usize;
        let pieces = pieces.filter(|(_, len)| *len > 0).map(|(base, len)| {
            let start = end;
            end = start.saturating_add(len);
            Piece { start, base, len }
        });
        Self(Arc::new(Inner { all: pieces.collect(), registered: Vec::new() }))
    }

    /// The bytes of all pieces.
    pub(crate) fn len(&self) -> usize {
        self.0.all.last().map_or(0, |last| last.start.saturating_add(last.len))
    }

    /// Finds the registered buffers that contain pieces.
    pub(super) fn find_in(&mut self, registry: &Registry) {
        let all = Arc::clone(&self.0.all);
        let registered: Vec<_> = all.iter().map(|piece| registry.find(&piece.region().into())).collect();
        if registered.iter().any(Option::is_some) {
            self.0 = Arc::new(Inner { all, registered });
        }
    }

    /// The bytes from `at` on, as far as they are contiguous, at most `most`. `near` is the piece of the last call, where the search
    /// begins, and becomes the piece of this call.
    #[inline] // A result that is returned through memory waits for earlier copies: 3 % of the time of a thousand tensors.
    pub(crate) fn stretch(&self, at: usize, most: usize, near: &Cell<usize>) -> Result<Bytes<'_>, SpanError> {
        let has = |index: usize| {
            let piece = self.0.all.get(index)?;
            let offset = at.checked_sub(piece.start).filter(|offset| *offset < piece.len)?;
            Some((index, piece, offset))
        };
        let search = || self.0.all.partition_point(|piece| piece.start <= at).checked_sub(1);
        let found = has(near.get()).or_else(|| has(near.get() + 1)).or_else(|| has(search()?));
        let Some((index, piece, offset)) = found else {
            return Err(SpanError::Bounds { offset: at, len: most, place: self.len() });
        };
        near.set(index);
        let (base, len) = (piece.base.wrapping_add(offset), most.min(piece.len - offset));
        Ok(Bytes { base, len, place: PhantomData })
    }

    /// `len` bytes from `at` on, if they are contiguous. `near` as for [`stretch`](Self::stretch).
    pub(crate) fn together(&self, at: usize, len: usize, near: &Cell<usize>) -> Option<Stretch> {
        let bytes = self.stretch(at, len, near).ok().filter(|bytes| bytes.len == len)?;
        if let Some(Some(whole)) = self.0.registered.get(near.get()) {
            return Some(whole.part(at - self.0.all.get(near.get())?.start, len));
        }
        // SAFETY: the memory is borrowed like that of `Borrowed::apart`, whose duty covers this region. Peers learn of the region
        // only if it lies in an output (`expose`).
        Some(unsafe { borrow_raw(bytes.base, bytes.len) }.into())
    }
}

impl Piece {
    fn region(&self) -> Region {
        // SAFETY: as in `Pieces::together`; the region only tells where the piece lies.
        unsafe { borrow_raw(self.base, self.len) }
    }
}
