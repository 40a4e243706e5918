//! The memory that collectives work on: registered buffers, and borrowed slices for the time of a call.
//! The one room of this crate where raw memory is touched.
#![allow(unsafe_code)]

use std::{
    cell::Cell,
    collections::BTreeMap,
    fmt,
    marker::PhantomData,
    ops::{Deref, DerefMut},
    ptr::NonNull,
    slice,
    sync::{
        Arc, LazyLock, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use unisono_transport::{Memory, Region};

use crate::{
    dtype::{Dtype, Element},
    reduce::{Kernel, KernelError},
    tensor::Tensor,
};

/// Elements in memory that the transport knows: puts read it without a copy on every provider. Zeroed at
/// first. It is a slice, and every call that takes a slice takes it, whole or in part.
///
/// Made by [`crate::ProcessGroup::buffer`]; may outlive the group.
pub struct Buffer<T> {
    region: Region,
    len: usize,
    registry: Arc<Registry>,
    element: PhantomData<T>,
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        self.registry.lock().remove(&(self.region.base() as usize));
    }
}

/// The registered buffers of a group, by address, so that a slice of one is known for what it is.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    regions: Mutex<BTreeMap<usize, Region>>,
    /// Whether there ever was one, so that who has none need not lock.
    used: AtomicBool,
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Region>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, region: &Region) {
        self.lock().insert(region.base() as usize, region.clone());
        self.used.store(true, Ordering::Release);
    }

    /// The registered region that borrowed memory lies in, and where in it.
    pub(crate) fn find(&self, borrowed: &Region) -> Option<(Region, usize)> {
        if !self.used.load(Ordering::Acquire) {
            return None;
        }
        let start = borrowed.base() as usize;
        let regions = self.lock();
        let (base, region) = regions.range(..=start).next_back()?;
        let offset = start - base;
        (offset + borrowed.len() <= region.len()).then(|| (region.clone(), offset))
    }
}

impl<T: Element> Buffer<T> {
    /// The first `len` elements of a region that is all zeros and all this buffer's; `None` if they do not
    /// fit or are not aligned.
    pub(crate) fn new(region: Region, len: usize, registry: &Arc<Registry>) -> Option<Self> {
        let fits = len.checked_mul(size_of::<T>())? <= region.len();
        let aligned = (region.base() as usize).is_multiple_of(align_of::<T>());
        if !(fits && aligned) {
            return None;
        }
        registry.insert(&region);
        Some(Self { region, len, registry: Arc::clone(registry), element: PhantomData })
    }
}

impl<T: Element> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `new` checked length and alignment; the region is a mapping that lives as long as
        // `self`; any bits are a `T` (`Element: Pod`). Nobody writes to it but through `deref_mut` and in
        // calls that borrow this buffer exclusively: peers are told of the region by those alone, and such a
        // call ends only when all that they were to write has landed, or with the endpoint.
        unsafe { slice::from_raw_parts(self.region.base().cast::<T>(), self.len) }
    }
}

impl<T: Element> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above; `&mut self` makes it exclusive.
        unsafe { slice::from_raw_parts_mut(self.region.base().cast::<T>(), self.len) }
    }
}

impl<T: Element + fmt::Debug> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// A caller's slices, borrowed to the engine for one operation. Input and output may be the same memory
/// (in place), wholly or so that the one is a part of the other, as the collective says.
pub(crate) struct Borrowed<'a> {
    pub input: Region,
    pub output: Region,
    /// Whether the output, too, is only read.
    pub fixed: bool,
    /// Instead of both: what is input and output and lies in several places.
    pub pieces: Option<Pieces>,
    slices: PhantomData<&'a mut [u8]>,
}

impl<'a> Borrowed<'a> {
    fn of(input: Region, output: Region) -> Self {
        Self { input, output, fixed: false, pieces: None, slices: PhantomData }
    }

    /// Lends two slices.
    ///
    /// The engine must have dropped every clone of the two regions, or torn its transport down, before
    /// the borrow `'a` ends. A call that waits does so before it returns; in a call that does not wait, the borrow is
    /// of the call's future or of what that owns, which the engine keeps with the operation.
    pub(crate) fn apart<T: Element>(input: &'a [T], output: &'a mut [T]) -> Self {
        // SAFETY: both are valid for `'a`, which by the duty above is longer than the regions live. The
        // input is only read: it is never registered for peers, and steps write to outputs and landed
        // slots alone (`Engine` refuses others). The output is exclusively borrowed.
        unsafe {
            Self::of(
                lend(input.as_ptr().cast_mut().cast(), size_of_val(input)),
                lend(output.as_mut_ptr().cast(), size_of_val(output)),
            )
        }
    }

    /// Lends a slice that is input and output, where a rank only gives: at the root of a broadcast. The same duty.
    pub(crate) fn given<T: Element>(data: &'a [T]) -> Self {
        // SAFETY: as in `apart`; the output is only read, since it is fixed: it is never registered for peers, and
        // the engine refuses steps that write there.
        let data = unsafe { lend(data.as_ptr().cast_mut().cast(), size_of_val(data)) };
        Self { fixed: true, ..Self::of(data.clone(), data) }
    }

    /// Lends slices that are input and output as one, one after the other. The same duty.
    pub(crate) fn scattered(slices: impl Iterator<Item = &'a mut [u8]>) -> Self {
        let mut end = 0;
        let pieces = slices.filter(|slice| !slice.is_empty()).map(|slice| {
            let start = end;
            end += slice.len();
            Piece { start, base: slice.as_mut_ptr(), len: slice.len() }
        });
        let pieces = Some(Pieces(pieces.collect()));
        Self { pieces, ..Self::apart::<u8>(&[], &mut []) }
    }

    /// Lends one slice of which `input` and `output` are parts (ranges of elements). The same duty.
    pub(crate) fn within<T: Element>(
        data: &'a mut [T],
        input: std::ops::Range<usize>,
        output: std::ops::Range<usize>,
    ) -> Option<Self> {
        let base = data.as_mut_ptr();
        data.get(input.clone())?;
        data.get(output.clone())?;
        let part = |range: &std::ops::Range<usize>| {
            // SAFETY: both ranges were found to lie in `data`, which is exclusively borrowed; otherwise as above.
            unsafe { lend(base.add(range.start).cast(), range.len() * size_of::<T>()) }
        };
        let borrowed = part(&output);
        Some(Self::of(if input == output { borrowed.clone() } else { part(&input) }, borrowed))
    }
}

#[expect(unnameable_types, reason = "that is what seals it")]
mod sealed {
    /// Keeps [`super::Owned`] to what is known to stay where it is.
    pub trait Sealed {}
}

/// What an operation can keep while it is under way: elements that stay where they are when their owner moves. Sealed:
/// `Vec` and [`Buffer`].
pub trait Owned: sealed::Sealed + Send + 'static {
    /// What it holds.
    type Element: Element;

    /// The elements.
    fn elements(&mut self) -> &mut [Self::Element];
}

impl<T: Element> sealed::Sealed for Vec<T> {}
impl<T: Element> Owned for Vec<T> {
    type Element = T;

    fn elements(&mut self) -> &mut [T] {
        self
    }
}

impl<T: Element> sealed::Sealed for Buffer<T> {}
impl<T: Element> Owned for Buffer<T> {
    type Element = T;

    fn elements(&mut self) -> &mut [T] {
        self
    }
}

impl Borrowed<'static> {
    /// Lends what two owners hold.
    ///
    /// Whoever calls this keeps both owners, and touches neither, until the engine has dropped every clone of the two
    /// regions or its transport was torn down: a `Task` holds them, and gives them back only then.
    pub(crate) fn kept<I: Owned, O: Owned>(input: &mut I, output: &mut O) -> Self {
        let (input, output) = (input.elements(), output.elements());
        // SAFETY: an owner's elements stay where they are when it moves (`Owned` is sealed); both outlive the regions
        // and are not touched meanwhile, by the duty above. Otherwise as `apart`.
        unsafe {
            Self::of(
                lend(input.as_mut_ptr().cast(), size_of_val(input)),
                lend(output.as_mut_ptr().cast(), size_of_val(output)),
            )
        }
    }

    /// Lends what one owner holds, of which `input` and `output` are parts (ranges of elements). The same duty.
    pub(crate) fn kept_within<B: Owned>(
        owner: &mut B,
        input: std::ops::Range<usize>,
        output: std::ops::Range<usize>,
    ) -> Option<Self> {
        let Borrowed { input, output, .. } = Borrowed::within(owner.elements(), input, output)?;
        Some(Self::of(input, output))
    }
}

/// Memory of its own for a message whose place is not known when it comes.
///
/// Bytes are zeros before anybody may write there: nothing but what peers say tells whether they have written what
/// they were to write, and what they have not must be bytes all the same. [`Fresh::provide`] makes them, a piece at a
/// time, so that it is done while others are under way.
///
/// The engine drops every clone of its region before it drops this or takes its bytes.
pub(crate) struct Fresh {
    region: Region,
    /// Its room is borrowed to `region`.
    elements: Tensor,
}

impl Fresh {
    /// For so many elements; `None` where so much memory is not to be had. None is there yet.
    pub(crate) fn new(dtype: Dtype, count: usize) -> Option<Self> {
        let mut elements = Tensor::room(dtype, count)?;
        let (start, bytes) = (elements.start(), count * dtype.size());
        // SAFETY: a tensor's room stays where it is when it moves or grows within it. Of the region only that is
        // touched which is there: the engine reads and writes what it has provided, and tells peers of no more. What is
        // there is not touched through the tensor before the region and its clones are gone, by the duty above.
        let region = unsafe { lend(start, bytes) };
        advise(&region);
        Some(Self { region, elements })
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    pub(crate) fn dtype(&self) -> Dtype {
        self.elements.dtype()
    }

    /// Makes zeros of what is not there yet of the first so many bytes, or of all if there are fewer.
    pub(crate) fn provide(&mut self, bytes: usize) {
        let count = bytes.min(self.region.len()).div_ceil(self.dtype().size());
        if count > self.elements.len() {
            self.elements.grow(count);
        }
    }

    /// The elements, after the last clone of the region has gone.
    pub(crate) fn into_elements(mut self) -> Tensor {
        self.provide(usize::MAX);
        self.elements
    }
}

/// From so many bytes on memory is worth huge pages: one of them, and what lies beside it.
const HUGE: usize = 4 << 20;

/// Asks for huge pages, where there is much memory and nobody has touched it: with small ones its first touch costs more than
/// twice what a message costs that comes there.
fn advise(memory: &Region) {
    let page = rustix::param::page_size();
    let start = (memory.base() as usize).next_multiple_of(page);
    let end = (memory.base() as usize + memory.len()) / page * page;
    if memory.len() >= HUGE && start < end {
        let start = memory.base().with_addr(start).cast();
        // SAFETY: whole pages of memory that is borrowed to us; advice changes no byte of it. Where the system has no huge pages
        // to give, it stays as it is.
        let _ = unsafe { rustix::mm::madvise(start, end - start.addr(), rustix::mm::Advice::LinuxHugepage) };
    }
}

impl Borrowed<'_> {
    /// The same with the input copied to `aside`, so that it lies apart from the output.
    pub(crate) fn aside<'b>(&'b self, aside: &'b mut Vec<u8>) -> Result<Borrowed<'b>, SpanError> {
        let len = self.input.len();
        aside.resize(len, 0);
        // SAFETY: `aside` is exclusively borrowed for as long as what is made here; otherwise as `apart`.
        let input = unsafe { lend(aside.as_mut_ptr(), len) };
        copy(Bytes::new(&self.input, 0, len)?, Bytes::new(&input, 0, len)?)?;
        Ok(Borrowed { fixed: self.fixed, ..Borrowed::of(input, self.output.clone()) })
    }

    /// Whether input and output have no byte in common.
    pub(crate) fn is_apart(&self) -> bool {
        let range = |region: &Region| (region.base() as usize, region.base() as usize + region.len());
        let ((a, a_end), (b, b_end)) = (range(&self.input), range(&self.output));
        a_end <= b || b_end <= a
    }
}

/// Memory that lies in several places, taken as one. None is empty. Side by side, and no regions, so that going from
/// one to the next waits for no memory but theirs.
#[derive(Clone, Debug)]
pub(crate) struct Pieces(Arc<[Piece]>);

/// One of them, and where it begins among all bytes.
#[derive(Debug)]
struct Piece {
    start: usize,
    base: *mut u8,
    len: usize,
}

// SAFETY: memory that was borrowed, exclusively, and is touched as regions are, by the one thread that drives the engine.
unsafe impl Send for Piece {}
// SAFETY: as above.
unsafe impl Sync for Piece {}

impl Pieces {
    /// The bytes from `at` on, as far as they lie together, but no more than `most`. `near` is the piece of the latest call,
    /// from which this one's is seldom far, and becomes this one's.
    #[inline] // What comes back through memory waits for all that was copied before it: 3 % of a thousand tensors' time.
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

    /// The bytes from `at` on as a region, to be put from, if so many lie together.
    pub(crate) fn together(&self, at: usize, len: usize) -> Option<Region> {
        let bytes = self.stretch(at, len, &Cell::new(0)).ok().filter(|bytes| bytes.len == len)?;
        // SAFETY: of memory that was borrowed as that of `Borrowed::apart`, whose duty covers what is made of it here; nobody is
        // told of this region, and nothing writes through it.
        Some(unsafe { lend(bytes.base, bytes.len) })
    }

    /// Copies the bytes from `at` on to where they lie together.
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

/// # Safety
/// As [`Memory::borrowed`].
unsafe fn lend(base: *mut u8, len: usize) -> Region {
    /// All of no bytes: a barrier, and whoever only gives or only gets, need no memory for a handle.
    static NOTHING: LazyLock<Region> = LazyLock::new(|| {
        let nowhere = NonNull::<u128>::dangling().as_ptr().cast();
        // SAFETY: there is no byte that could be touched.
        Region::unregistered(unsafe { Memory::borrowed(nowhere, 0) })
    });
    if len == 0 {
        return NOTHING.clone();
    }
    // SAFETY: by the caller's promise.
    Region::unregistered(unsafe { Memory::borrowed(base, len) })
}

/// A borrowed output once more, to be registered so that peers may write into it.
///
/// Only the engine calls this, and drops what it makes of it before the operation returns, or is torn down before
/// the memory is given back: the duty of [`Borrowed::apart`].
pub(crate) fn expose(output: &Region) -> Memory {
    // SAFETY: `Borrowed` made `output` of exclusively borrowed memory that outlives what is made here, by the duty
    // above. Peers write only where they have been told that this rank awaits it, and schedules are checked for
    // steps that touch what was not awaited.
    unsafe { Memory::borrowed(output.base(), output.len()) }
}

/// Bytes of a region or of pieces: what a step reads or writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes<'a> {
    base: *mut u8,
    pub len: usize,
    place: PhantomData<&'a Region>,
}

/// A step whose spans make no sense: a defect of an algorithm, which the checker would have found.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SpanError {
    #[error("{len} bytes from {offset} leave a place of {place} bytes")]
    Bounds { offset: usize, len: usize, place: usize },
    #[error("a step's spans have different lengths, or overlap in part")]
    Overlap,
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

impl<'a> Bytes<'a> {
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

    /// # Safety
    /// See [`reduce`].
    unsafe fn read(self) -> &'a [u8] {
        // SAFETY: in bounds, by `new` and `stretch`, of a region or pieces that live for `'a`; at rest by the caller's promise.
        unsafe { slice::from_raw_parts(self.base, self.len) }
    }

    /// # Safety
    /// See [`reduce`].
    unsafe fn write(self) -> &'a mut [u8] {
        // SAFETY: as in `read`, and exclusive by the caller's promise.
        unsafe { slice::from_raw_parts_mut(self.base, self.len) }
    }
}

/// `into = a ⊕ b`. `into` may be `a` or `b`, but not overlap either otherwise.
///
/// Only the engine calls this and [`copy`], from the one thread that drives it, with bytes that are at rest:
/// a landed slot between its take and its free (its writer has no credit to write there again), or the
/// operation's input and output, which the caller has borrowed. A put may be reading them, which is why
/// schedules are checked for writes under a put.
pub(crate) fn reduce(kernel: &Kernel, a: Bytes<'_>, b: Bytes<'_>, into: Bytes<'_>) -> Result<(), SpanError> {
    if a.len != into.len || b.len != into.len {
        return Err(SpanError::Overlap);
    }
    if into.len == 0 {
        return Ok(());
    }
    // SAFETY: at rest, as said above; every `&mut` below is apart from the `&` beside it by the tests.
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

/// `into = ((x0 ⊕ x1) ⊕ x2) ...`, as [`Kernel::total`]. `into` may be one of the contributions, but not overlap any
/// otherwise.
pub(crate) fn total(kernel: &Kernel, contributions: &[Bytes<'_>], into: Bytes<'_>) -> Result<(), SpanError> {
    /// What is in hand at once, and lies apart from all contributions until they have been read.
    #[repr(align(64))]
    struct Block([u8; 2048]);
    let fits = |one: &Bytes<'_>| one.len == into.len && (into.same(*one) || into.apart(*one));
    if !contributions.iter().all(fits) {
        return Err(SpanError::Overlap);
    }
    let mut block = Block([0; 2048]);
    let mut slices = Vec::with_capacity(contributions.len());
    for from in (0..into.len).step_by(block.0.len()) {
        let len = block.0.len().min(into.len - from);
        let Some(sums) = block.0.get_mut(..len) else { continue };
        slices.clear();
        // SAFETY: at rest, as `reduce` says; nothing is written while these are read but the block, which is ours.
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

/// `into = from`, unless they are the same memory.
pub(crate) fn copy(from: Bytes<'_>, into: Bytes<'_>) -> Result<(), SpanError> {
    if from.len != into.len || !(from.same(into) || from.apart(into)) {
        return Err(SpanError::Overlap);
    }
    if into.len > 0 && !from.same(into) {
        // SAFETY: as in `reduce`.
        unsafe { into.write().copy_from_slice(from.read()) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_memory_is_there_as_far_as_it_was_provided() {
        for dtype in Dtype::ALL {
            let (size, count) = (dtype.size(), HUGE / dtype.size() + 5);
            let mut fresh = Fresh::new(dtype, count).unwrap();
            let base = fresh.region().base();
            assert_eq!((fresh.region().len(), fresh.elements.len()), (count * size, 0));
            fresh.provide(size * 99 + 1);
            // SAFETY: no put is under way.
            unsafe { fresh.region().write(0, &vec![7; size * 100]).unwrap() };
            // What has come stays, and where it is.
            for bytes in [0, 500, size * 1000, HUGE] {
                fresh.provide(bytes);
                assert_eq!(fresh.elements.len(), count.min(100.max(bytes.div_ceil(size))));
            }
            let elements = fresh.into_elements();
            assert_eq!((elements.dtype(), elements.shape()), (dtype, &[count][..]));
            let (come, zeros) = elements.bytes().split_at(size * 100);
            assert!(come.iter().all(|&byte| byte == 7) && zeros.iter().all(|&byte| byte == 0));
            assert!(elements.bytes().as_ptr() == base && zeros.len() == (count - 100) * size);
        }
        assert!(Fresh::new(Dtype::F64, usize::MAX / 8).is_none());
    }
}
