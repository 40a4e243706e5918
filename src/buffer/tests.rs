//! Memory that tests give to erased calls, in one piece or several, and look at afterwards; and memory of memfds.
#![allow(unsafe_code)]

use std::{
    cell::UnsafeCell,
    fs::File,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::{Memory, foreign::Foreign};

/// Pieces of memory, and how many owners were dropped.
#[derive(Clone)]
pub(crate) struct TestMemory(Arc<Inner>);

struct Inner {
    /// Each piece, and its bytes.
    pieces: Vec<(UnsafeCell<Box<[u128]>>, usize)>,
    given: AtomicUsize,
    dropped: AtomicUsize,
}

// SAFETY: only operations access the memory, until `bytes` is called, and tests call that when no operation works on it.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// Keeps the memory, and counts its drop.
struct Owner(TestMemory);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.0.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

impl TestMemory {
    /// These bytes, in pieces of these lengths; one more piece has the rest.
    pub(crate) fn new(bytes: &[u8], cuts: impl IntoIterator<Item = usize>) -> Self {
        let mut rest = bytes;
        let mut pieces = Vec::new();
        for cut in cuts.into_iter().map(Some).chain([None]) {
            let len = cut.unwrap_or(rest.len()).min(rest.len());
            let (piece, after) = rest.split_at(len);
            rest = after;
            let mut words = vec![0_u128; len.div_ceil(16)].into_boxed_slice();
            bytemuck::cast_slice_mut(&mut words)[..len].copy_from_slice(piece);
            pieces.push((UnsafeCell::new(words), len));
        }
        Self(Arc::new(Inner { pieces, given: AtomicUsize::new(0), dropped: AtomicUsize::new(0) }))
    }

    /// The bytes now.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        // SAFETY: no operation works on the memory, as said above.
        let all = self.0.pieces.iter().map(|(piece, len)| unsafe {
            let words: &[u128] = &*piece.get();
            bytemuck::cast_slice::<_, u8>(words)[..*len].to_vec()
        });
        all.flatten().collect()
    }

    /// An operand of some of the bytes.
    pub(crate) fn part(&self, range: Range<usize>) -> Foreign {
        let mut start = 0;
        let mut parts = Vec::new();
        for (piece, len) in &self.0.pieces {
            let from = range.start.clamp(start, start + len) - start;
            let to = range.end.clamp(start, start + len) - start;
            // SAFETY: within the piece.
            let base = unsafe { (*piece.get()).as_mut_ptr().cast::<u8>().add(from) };
            parts.push((base, to - from));
            start += len;
        }
        self.0.given.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the owner keeps the pieces; nothing but operations accesses them, as said above.
        unsafe { Foreign::pieces(parts, Owner(self.clone())) }
    }

    /// An operand of all the bytes.
    pub(crate) fn all(&self) -> Foreign {
        self.part(0..usize::MAX)
    }

    /// The numbers of operands that were made and whose owners are kept, and of those whose owners were dropped.
    pub(crate) fn owners(&self) -> (usize, usize) {
        let dropped = self.0.dropped.load(Ordering::SeqCst);
        (self.0.given.load(Ordering::SeqCst) - dropped, dropped)
    }
}

/// An operand at an address, which nothing keeps and nothing may access.
pub(crate) fn nowhere(address: usize, bytes: usize) -> Foreign {
    // SAFETY: for calls that are refused.
    unsafe { Foreign::new(std::ptr::without_provenance_mut(address), bytes, ()) }
}

/// A memfd of this name.
pub(crate) fn memfd(name: &str, len: usize) -> File {
    let file = memfd_create(name, MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, len as u64).unwrap();
    file.into()
}

/// A part of a memfd, at which tests look, and which they change, while no operation works on it.
pub(crate) fn memory_of(file: &File, offset: usize, len: usize) -> Memory {
    // SAFETY: as said.
    unsafe { Memory::of_memfd(file, offset as u64, len).unwrap() }
}
