//! An operand of an operation: memory in one piece, or in several that are used as one.
#![allow(unsafe_code)]

use std::cell::Cell;

use unisono_core::dtype::Dtype;
use unisono_transport::Region;

use super::{
    bytes::{Bytes, CopyBytes, SpanError, copy_by, copy_through_caches},
    pieces::Pieces,
    raw::borrow_raw,
    registry::Registry,
    stretch::Stretch,
};

/// A copy of an input, aligned for every type; empty if none was made.
pub type Aside = Vec<u128>;

/// The input or the output of an operation.
#[derive(Clone, Debug)]
pub struct Operand {
    /// The memory if it is one piece; otherwise empty.
    pub memory: Stretch,
    /// The memory if it is several pieces.
    pub pieces: Option<Pieces>,
}

impl From<Region> for Operand {
    #[inline]
    fn from(region: Region) -> Self {
        Self { memory: region.into(), pieces: None }
    }
}

impl Operand {
    /// Memory in several pieces.
    pub fn several(pieces: Pieces) -> Self {
        Self { pieces: Some(pieces), ..Self::none() }
    }

    /// A registered region.
    pub fn registered(region: Region) -> Self {
        Self { memory: Stretch { registered: true, ..region.into() }, pieces: None }
    }

    /// Several operands as one. The duty is that of each.
    pub fn joined<'a>(operands: impl Iterator<Item = &'a Self>) -> Self {
        Self::several(Pieces::of(operands.flat_map(Self::stretches).map(|it| (it.base, it.len))))
    }

    /// Copies it to `aside`, which must then live as long as the region that is returned, and be accessed by nothing else.
    pub fn copied_to(&self, aside: &mut Aside) -> Result<Region, SpanError> {
        let len = self.len();
        aside.resize(len.div_ceil(size_of::<u128>()), 0);
        // SAFETY: it has as many bytes, and by the duty above nothing else accesses them as long as the region lives.
        let region = unsafe { borrow_raw(aside.as_mut_ptr().cast(), len) };
        self.copy_to(0, Bytes::new(&region, 0, len)?)?;
        Ok(region)
    }

    /// Copies the bytes from `at` on into contiguous memory.
    pub(crate) fn copy_to(&self, at: usize, into: Bytes<'_>) -> Result<(), SpanError> {
        self.copy_by(copy_through_caches, at, into)
    }

    /// As [`copy_to`](Self::copy_to), in this way.
    #[inline]
    pub(crate) fn copy_by(
        &self,
        copy: CopyBytes,
        mut at: usize,
        mut into: Bytes<'_>,
    ) -> Result<(), SpanError> {
        let near = Cell::new(0);
        while into.len > 0 {
            let stretch = self.stretch(at, into.len, &near)?;
            if stretch.len == 0 {
                return Err(SpanError::Bounds { offset: at, len: into.len, place: self.len() });
            }
            copy_by(copy, stretch, into.part(0, stretch.len))?;
            into = into.part(stretch.len, into.len);
            at += stretch.len;
        }
        Ok(())
    }

    /// No memory.
    #[inline]
    pub fn none() -> Self {
        // SAFETY: there is no byte that could be accessed.
        unsafe { borrow_raw(std::ptr::null_mut(), 0) }.into()
    }

    /// The bytes of all pieces.
    pub fn len(&self) -> usize {
        self.pieces.as_ref().map_or(self.memory.len, Pieces::len)
    }

    /// True if it has no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Finds the registered buffers that contain it.
    pub(super) fn find_in(&mut self, registry: &Registry) {
        match &mut self.pieces {
            None => self.memory = registry.find(&self.memory).unwrap_or_else(|| self.memory.clone()),
            Some(pieces) => pieces.find_in(registry),
        }
    }

    /// The same, with the registered buffers that contain it.
    #[inline]
    pub fn found_in(mut self, registry: &Registry) -> Self {
        if registry.is_used() {
            self.find_in(registry);
        }
        self
    }

    /// The bytes from `at` on, as far as they are contiguous, at most `most`; arguments as for [`Pieces::stretch`].
    #[inline]
    pub(crate) fn stretch(&self, at: usize, most: usize, near: &Cell<usize>) -> Result<Bytes<'_>, SpanError> {
        match &self.pieces {
            Some(pieces) => pieces.stretch(at, most, near),
            None => self.memory.bytes(at, most.min(self.memory.len.saturating_sub(at))),
        }
    }

    /// All bytes, a contiguous stretch at a time.
    pub fn stretches(&self) -> impl Iterator<Item = Bytes<'_>> {
        let (near, len, mut at) = (Cell::new(0), self.len(), 0);
        std::iter::from_fn(move || {
            let stretch = self.stretch(at, len - at, &near).ok().filter(|stretch| stretch.len > 0)?;
            at += stretch.len;
            Some(stretch)
        })
    }

    /// True if these bytes are contiguous.
    pub fn is_together(&self, at: usize, len: usize, near: &Cell<usize>) -> bool {
        len == 0 || self.stretch(at, len, near).is_ok_and(|stretch| stretch.len == len)
    }

    /// `len` bytes from `at` on, if they are contiguous; arguments as for [`Pieces::stretch`].
    pub(crate) fn together(&self, at: usize, len: usize, near: &Cell<usize>) -> Option<Stretch> {
        match &self.pieces {
            Some(pieces) if len > 0 => pieces.together(at, len, near),
            _ => (len == 0 || at + len <= self.memory.len).then(|| self.memory.part(at, len)),
        }
    }

    /// True if it is the memory of `whole` from byte `at` on.
    fn is_part_of(&self, whole: &Self, at: usize) -> bool {
        let near = Cell::new(0);
        let mut end = at;
        self.stretches().all(|mut stretch| {
            while stretch.len > 0 {
                let there = whole.stretch(end, stretch.len, &near);
                let Ok(there) = there.map(|there| there.part(0, stretch.len)) else { return false };
                if there.len == 0 || there.base != stretch.base {
                    return false;
                }
                end += there.len;
                stretch = stretch.part(there.len, stretch.len);
            }
            true
        })
    }

    /// The addresses at which each piece begins and ends, in the order of addresses.
    fn extents(&self) -> Vec<(usize, usize)> {
        let mut all: Vec<_> = self.stretches().map(|it| (it.base.addr(), it.base.addr() + it.len)).collect();
        all.sort_unstable();
        all
    }

    /// True if two pieces have a byte in common.
    pub fn overlaps_itself(&self) -> bool {
        self.pieces.is_some() && !self.extents().is_sorted_by(|one, other| one.1 <= other.0)
    }

    /// True if it has a byte in common with another operand, whose pieces do not overlap each other.
    pub fn touches(&self, other: &Self) -> bool {
        if self.pieces.is_none() && other.pieces.is_none() {
            let range = |memory: &Stretch| (memory.base().addr(), memory.base().addr() + memory.len);
            let ((a, a_end), (b, b_end)) = (range(&self.memory), range(&other.memory));
            return a < b_end && b < a_end && a < a_end && b < b_end;
        }
        let others = other.extents();
        self.stretches().any(|Bytes { base, len, .. }| {
            let last = others.partition_point(|(from, _)| *from < base.addr() + len).checked_sub(1);
            last.and_then(|last| others.get(last)).is_some_and(|(_, to)| *to > base.addr())
        })
    }

    /// The reason why it cannot be elements of this type, if there is one.
    pub fn misfit(&self, dtype: Dtype) -> Option<String> {
        let size = dtype.size();
        self.stretches().find_map(|Bytes { base, len, .. }| {
            let at = base.addr();
            if base.is_null() {
                return Some(format!("{len} bytes at a null address"));
            }
            if !at.is_multiple_of(size) {
                return Some(format!("memory at {at:#x}; elements of {dtype} lie at multiples of {size}"));
            }
            if !len.is_multiple_of(size) {
                return Some(format!("a piece of {len} bytes; elements of {dtype} have {size} each"));
            }
            let most = isize::MAX.unsigned_abs();
            (len > most || at.checked_add(len).is_none())
                .then(|| format!("{len} bytes at {at:#x}: more than can be addressed"))
        })
    }
}

/// The relation between the input and the output of an operation in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// They have no byte in common.
    Apart,
    /// One is the other, or the part of it that the collective allows.
    InPlace,
    /// They have bytes in common, in another way.
    Crossed,
}

impl Overlap {
    /// How an input and an output lie to each other. They are in place if the input begins at byte `input_at` of the output, or the output
    /// at byte `output_at` of the input; one of the two is 0.
    pub(super) fn of(input: &Operand, output: &Operand, (input_at, output_at): (usize, usize)) -> Self {
        if !input.touches(output) {
            return Self::Apart;
        }
        let fits = match output_at {
            0 => input.is_part_of(output, input_at),
            at => output.is_part_of(input, at),
        };
        if fits || output_at == 0 && input_at == 0 && output.is_part_of(input, 0) {
            Self::InPlace
        } else {
            Self::Crossed
        }
    }
}
