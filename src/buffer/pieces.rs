//! Several pieces of memory, used as one.
#![allow(unsafe_code)]

use std::{cell::Cell, marker::PhantomData, sync::Arc};

use unisono_transport::Region;

use super::{
    bytes::{Bytes, SpanError, copy},
    raw::borrow_raw,
};

/// Several pieces of memory, used as one. No piece is empty. They are not regions but lie next to each other in one allocation, so
/// that going from one to the next needs few cache lines.
#[derive(Clone, Debug)]
pub(crate) struct Pieces(Arc<[Piece]>);

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
    /// The slices, one after the other. The duty is that of [`Borrowed::apart`](super::Borrowed::apart).
    pub(super) fn of<'a>(slices: impl Iterator<Item = &'a mut [u8]>) -> Self {
        let mut end = 0;
        let pieces = slices.filter(|slice| !slice.is_empty()).map(|slice| {
            let start = end;
            end += slice.len();
            Piece { start, base: slice.as_mut_ptr(), len: slice.len() }
        });
        Self(pieces.collect())
    }

    /// The bytes from `at` on, as far as they are contiguous, at most `most`. `near` is the piece of the last call, where the search
    /// begins, and becomes the piece of this call.
    #[inline] // A result that is returned through memory waits for earlier copies: 3 % of the time of a thousand tensors.
    pub(crate) fn stretch(&self, at: usize, most: usize, near: &Cell<usize>) -> Result<Bytes<'_>, SpanError> {
        let has = |index: usize| {
            let piece = self.0.get(index)?;
            let offset = at.checked_sub(piece.start).filter(|offset| *offset < piece.len)?;
            Some((index, piece, offset))
        };
        let search = || self.0.partition_point(|piece| piece.start <= at).checked_sub(1);
        let found = has(near.get()).or_else(|| has(near.get() + 1)).or_else(|| has(search()?));
        let Some((index, piece, offset)) = found else {
            let place = self.0.last().map_or(0, |last| last.start + last.len);
            return Err(SpanError::Bounds { offset: at, len: most, place });
        };
        near.set(index);
        let (base, len) = (piece.base.wrapping_add(offset), most.min(piece.len - offset));
        Ok(Bytes { base, len, place: PhantomData })
    }

    /// `len` bytes from `at` on as a region, to be put from, if they are contiguous.
    pub(crate) fn together(&self, at: usize, len: usize) -> Option<Region> {
        let bytes = self.stretch(at, len, &Cell::new(0)).ok().filter(|bytes| bytes.len == len)?;
        // SAFETY: the memory is borrowed like that of `Borrowed::apart`, whose duty covers this region; no peer learns of the region,
        // and nothing writes through it.
        Some(unsafe { borrow_raw(bytes.base, bytes.len) })
    }

    /// Copies the bytes from `at` on into contiguous memory.
    pub(crate) fn gather(&self, mut at: usize, mut into: Bytes<'_>) -> Result<(), SpanError> {
        let near = Cell::new(0);
        while into.len > 0 {
            let stretch = self.stretch(at, into.len, &near)?;
            copy(stretch, into.part(0, stretch.len))?;
            into = into.part(stretch.len, into.len);
            at += stretch.len;
        }
        Ok(())
    }
}
