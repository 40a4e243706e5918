//! The bytes that a step reads or writes, and the work of steps: copy, reduce, divide.
#![allow(unsafe_code)]

use std::{marker::PhantomData, slice};

use smallvec::SmallVec;
use unisono_core::reduce::{Kernel, KernelError};
use unisono_transport::{Error, Peer, Region, Transport};

/// Bytes of a region or of pieces, which a step reads or writes.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a> {
    pub(super) base: *mut u8,
    /// Their number.
    pub len: usize,
    pub(super) place: PhantomData<&'a Region>,
}

/// Spans of a step that do not fit their memory or each other: a defect of an algorithm, which the checker should have found.
#[derive(Debug, thiserror::Error)]
pub enum SpanError {
    /// A span leaves its place.
    #[error("{len} bytes from {offset} leave a place of {place} bytes")]
    Bounds {
        /// Where the span begins, in bytes.
        offset: usize,
        /// Its bytes.
        len: usize,
        /// The bytes of the place.
        place: usize,
    },
    /// Spans have different lengths, or overlap in part.
    #[error("a step's spans have different lengths, or overlap in part")]
    Overlap,
    /// The step writes to memory that is only read.
    #[error("the step writes to memory that is only read")]
    Fixed,
    /// The step uses scratch that its schedule did not ask for.
    #[error("the step uses scratch that its schedule never asked for")]
    Scratch,
    /// The step reads what another rank has not sent or shown.
    #[error("the step reads what its rank has not sent or shown")]
    Landed,
    /// The step does not belong in its schedule, or reads what was not viewed.
    #[error("the step does not belong in its schedule, or reads what was not viewed")]
    Step,
    /// The kernel refuses the bytes.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

impl<'a> Bytes<'a> {
    #[inline]
    pub(crate) fn new(region: &'a Region, offset: usize, len: usize) -> Result<Self, SpanError> {
        match offset.checked_add(len) {
            Some(end) if end <= region.len() => {
                Ok(Self { base: region.base().wrapping_add(offset), len, place: PhantomData })
            }
            _ => Err(SpanError::Bounds { offset, len, place: region.len() }),
        }
    }

    /// `len` bytes from `from` on.
    pub(crate) fn part(self, from: usize, len: usize) -> Self {
        let from = from.min(self.len);
        Self { base: self.base.wrapping_add(from), len: len.min(self.len - from), ..self }
    }

    fn same(self, other: Self) -> bool {
        self.base == other.base && self.len == other.len
    }

    fn apart(self, other: Self) -> bool {
        let (a, b) = (self.base as usize, other.base as usize);
        a + self.len <= b || b + other.len <= a
    }

    /// If the memory is mapped from another rank, that rank makes the promise: its process could write there at any time. Ranks of a job
    /// run as one user and trust each other (docs/security.md). This rank makes only numbers and copies of such bytes: no length, place or
    /// choice depends on them, so a rank that breaks the promise gets wrong results, and nothing is read or written elsewhere. Words that
    /// decide something are read by atomics, and descriptions of calls are copied out before they are used (`engine/access.rs`).
    ///
    /// # Safety
    /// See [`reduce`].
    unsafe fn read(self) -> &'a [u8] {
        // SAFETY: in bounds, by `new` and `stretch`, of a region or pieces that live for `'a`; not written by the caller's promise.
        unsafe { slice::from_raw_parts(self.base, self.len) }
    }

    /// # Safety
    /// See [`reduce`].
    unsafe fn write(self) -> &'a mut [u8] {
        // SAFETY: as in `read`, and exclusive by the caller's promise.
        unsafe { slice::from_raw_parts_mut(self.base, self.len) }
    }
}

/// `into = a ⊕ b`. `into` may be `a` or `b`, but must not overlap either otherwise.
///
/// Only the engine calls this and [`copy`], from the driver (and a call before its operation begins), with bytes that nothing else writes:
/// a slot between its take and its free (its writer has no credit to write there again), or the operation's input and output, which are
/// borrowed from the caller. A put may read them, so schedules are checked for writes to the source of a put.
pub(crate) fn reduce(kernel: &Kernel, a: Bytes<'_>, b: Bytes<'_>, into: Bytes<'_>) -> Result<(), SpanError> {
    if a.len != into.len || b.len != into.len {
        return Err(SpanError::Overlap);
    }
    if into.len == 0 {
        return Ok(());
    }
    // SAFETY: nothing else writes these bytes, as said above; every `&mut` below is apart from the `&` beside it by the conditions.
    unsafe {
        if into.same(a) && into.apart(b) {
            kernel.fold(into.write(), b.read())?;
        } else if into.same(b) && into.apart(a) {
            kernel.fold(into.write(), a.read())?;
        } else if into.apart(a) && into.apart(b) {
            kernel.combine(a.read(), b.read(), into.write())?;
        } else {
            return Err(SpanError::Overlap);
        }
    }
    Ok(())
}

/// `into = ((x0 ⊕ x1) ⊕ x2) ...`, as [`Kernel::total`]. `into` may be one of the contributions, but must not overlap any otherwise.
pub(crate) fn total(kernel: &Kernel, contributions: &[Bytes<'_>], into: Bytes<'_>) -> Result<(), SpanError> {
    let fits = |one: &Bytes<'_>| one.len == into.len && (into.same(*one) || into.apart(*one));
    if !contributions.iter().all(fits) {
        return Err(SpanError::Overlap);
    }
    if into.len == 0 {
        return Ok(());
    }
    let mut slices = SmallVec::<[&[u8]; 16]>::new();
    if contributions.iter().all(|one| into.apart(*one)) {
        // SAFETY: nothing else writes these bytes, as `reduce` says, and those that are written here lie apart.
        slices.extend(contributions.iter().map(|one| unsafe { one.read() }));
        // SAFETY: as in `reduce`.
        return Ok(kernel.total(&slices, unsafe { into.write() })?);
    }
    // A block is zeroed first, which takes as long as all else for a few elements.
    if into.len <= 1024 {
        return total_by_blocks::<1024>(kernel, contributions, into);
    }
    total_by_blocks::<8192>(kernel, contributions, into)
}

/// As [`total`], where `into` is one of the contributions, in blocks of `LEN` bytes.
fn total_by_blocks<const LEN: usize>(
    kernel: &Kernel,
    contributions: &[Bytes<'_>],
    into: Bytes<'_>,
) -> Result<(), SpanError> {
    /// The sums of a block, which lie apart from all contributions until these have been read.
    #[repr(align(64))]
    struct Block<const LEN: usize>([u8; LEN]);
    let mut block = Block([0; LEN]);
    let mut slices = SmallVec::<[&[u8]; 16]>::new();
    for from in (0..into.len).step_by(block.0.len()) {
        let len = block.0.len().min(into.len - from);
        let Some(sums) = block.0.get_mut(..len) else { continue };
        slices.clear();
        // SAFETY: nothing else writes these bytes, as `reduce` says; while they are read, only the local block is written.
        slices.extend(contributions.iter().map(|one| unsafe { one.part(from, len).read() }));
        kernel.total(&slices, sums)?;
        slices.clear();
        // SAFETY: as in `reduce`; nothing reads the contributions any more.
        unsafe { into.part(from, len).write() }.copy_from_slice(sums);
    }
    Ok(())
}

/// Divides a finished sum by the number of ranks.
pub(crate) fn divide(kernel: &Kernel, into: Bytes<'_>, ranks: usize) -> Result<(), SpanError> {
    if into.len == 0 {
        return Ok(());
    }
    // SAFETY: as in `reduce`.
    Ok(kernel.divide(unsafe { into.write() }, ranks)?)
}

/// Multiplies the contribution to a pre-multiplied sum by this rank's factor; does nothing for other operations.
pub(crate) fn scale(kernel: &Kernel, into: Bytes<'_>) -> Result<(), SpanError> {
    if into.len == 0 {
        return Ok(());
    }
    // SAFETY: as in `reduce`.
    Ok(kernel.scale_in_place(unsafe { into.write() })?)
}

/// `into` gets the bytes at this address of a peer's process, where they are at rest.
pub(crate) fn fetch(
    transport: &mut dyn Transport,
    peer: Peer,
    address: u64,
    into: Bytes<'_>,
) -> Result<(), Error> {
    // SAFETY: as in `reduce`. The rank that has shown these elements promises that they are there.
    unsafe { transport.read(peer, address, into.base, into.len) }
}

/// A way to copy bytes between slices of one length.
pub(crate) type CopyBytes = fn(from: &[u8], into: &mut [u8]);

/// Copies bytes as usual: those that are written come to the caches of this core.
pub(crate) fn copy_through_caches(from: &[u8], into: &mut [u8]) {
    into.copy_from_slice(from);
}

/// `into = from`, unless they are the same memory.
pub(crate) fn copy(from: Bytes<'_>, into: Bytes<'_>) -> Result<(), SpanError> {
    copy_by(copy_through_caches, from, into)
}

/// As [`copy`], in this way.
#[inline]
pub(super) fn copy_by(copy: CopyBytes, from: Bytes<'_>, into: Bytes<'_>) -> Result<(), SpanError> {
    if from.len != into.len || !(from.same(into) || from.apart(into)) {
        return Err(SpanError::Overlap);
    }
    if into.len > 0 && !from.same(into) {
        // SAFETY: as in `reduce`.
        unsafe { copy(from.read(), into.write()) };
    }
    Ok(())
}
