//! The memory of a caller, borrowed for one operation.
#![allow(unsafe_code)]

use std::marker::PhantomData;

use unisono_transport::{Memory, Region};

use super::{
    bytes::{Bytes, SpanError, copy},
    pieces::Pieces,
    raw::borrow_raw,
    registered::Buffer,
};
use crate::dtype::Element;

/// Slices of a caller that the engine borrows for one operation. Input and output may be the same memory (in place), or one may be
/// a part of the other, as the collective allows.
pub(crate) struct Borrowed<'a> {
    pub input: Region,
    pub output: Region,
    /// Whether the output is only read.
    pub fixed: bool,
    /// Instead of both: several pieces of memory that are input and output.
    pub pieces: Option<Pieces>,
    slices: PhantomData<&'a mut [u8]>,
}

impl<'a> Borrowed<'a> {
    fn of(input: Region, output: Region) -> Self {
        Self { input, output, fixed: false, pieces: None, slices: PhantomData }
    }

    /// Borrows two slices.
    ///
    /// The engine must have dropped every clone of the two regions, or its transport, before the borrow `'a` ends. A blocking call does
    /// so before it returns; an asynchronous call borrows from its future or from what that owns, which the engine keeps with the
    /// operation.
    pub(crate) fn apart<T: Element>(input: &'a [T], output: &'a mut [T]) -> Self {
        // SAFETY: both are valid for `'a`, which by the duty above is longer than the regions live. The
        // input is only read: it is never registered for peers, and steps write to outputs and landed
        // slots alone (`Engine` refuses others). The output is exclusively borrowed.
        unsafe {
            Self::of(
                borrow_raw(input.as_ptr().cast_mut().cast(), size_of_val(input)),
                borrow_raw(output.as_mut_ptr().cast(), size_of_val(output)),
            )
        }
    }

    /// Borrows a slice that is input and output and is only read: at the root of a broadcast. The same duty.
    pub(crate) fn given<T: Element>(data: &'a [T]) -> Self {
        // SAFETY: as in `apart`; the output is only read, since it is fixed: it is never registered for peers, and
        // the engine refuses steps that write there.
        let data = unsafe { borrow_raw(data.as_ptr().cast_mut().cast(), size_of_val(data)) };
        Self { fixed: true, ..Self::of(data.clone(), data) }
    }

    /// Borrows slices that together are input and output, one after the other. The same duty.
    pub(crate) fn scattered(slices: impl Iterator<Item = &'a mut [u8]>) -> Self {
        let pieces = Some(Pieces::of(slices));
        Self { pieces, ..Self::apart::<u8>(&[], &mut []) }
    }

    /// Borrows one slice of which `input` and `output` are parts (ranges of elements). The same duty.
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
            unsafe { borrow_raw(base.add(range.start).cast(), range.len() * size_of::<T>()) }
        };
        let borrowed = part(&output);
        Some(Self::of(if input == output { borrowed.clone() } else { part(&input) }, borrowed))
    }
}

impl Borrowed<'static> {
    /// Borrows the elements of two owners.
    ///
    /// The caller keeps both owners, and accesses neither, until the engine has dropped every clone of the two regions or its
    /// transport: the completion of the task owns them, and returns them only then.
    pub(crate) fn kept<I: Owned, O: Owned>(input: &mut I, output: &mut O) -> Self {
        let (input, output) = (input.elements(), output.elements());
        // SAFETY: an owner's elements stay where they are when it moves (`Owned` is sealed); both outlive the regions
        // and are not touched meanwhile, by the duty above. Otherwise as `apart`.
        unsafe {
            Self::of(
                borrow_raw(input.as_mut_ptr().cast(), size_of_val(input)),
                borrow_raw(output.as_mut_ptr().cast(), size_of_val(output)),
            )
        }
    }

    /// Borrows the elements of one owner, of which `input` and `output` are parts (ranges of elements). The same duty.
    pub(crate) fn kept_within<B: Owned>(
        owner: &mut B,
        input: std::ops::Range<usize>,
        output: std::ops::Range<usize>,
    ) -> Option<Self> {
        let Borrowed { input, output, .. } = Borrowed::within(owner.elements(), input, output)?;
        Some(Self::of(input, output))
    }
}

impl Borrowed<'_> {
    /// The same with the input copied to `aside`, so that it lies apart from the output.
    pub(crate) fn aside<'b>(&'b self, aside: &'b mut Vec<u8>) -> Result<Borrowed<'b>, SpanError> {
        let len = self.input.len();
        aside.resize(len, 0);
        // SAFETY: `aside` is exclusively borrowed for as long as what is made here; otherwise as `apart`.
        let input = unsafe { borrow_raw(aside.as_mut_ptr(), len) };
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

#[expect(unnameable_types, reason = "that is what seals it")]
mod sealed {
    /// Limits [`super::Owned`] to types whose elements do not move.
    pub trait Sealed {}
}

/// An owner of elements that an asynchronous operation can keep: the elements do not move when their owner moves. Sealed: `Vec`
/// and [`Buffer`].
pub trait Owned: sealed::Sealed + Send + 'static {
    /// The type of the elements.
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

/// A borrowed output as memory to register, so that peers may write into it.
///
/// Only the engine calls this. It drops the result before the operation returns, or its transport before the memory returns to
/// the caller: the duty of [`Borrowed::apart`].
pub(crate) fn expose(output: &Region) -> Memory {
    // SAFETY: `Borrowed` made `output` of exclusively borrowed memory that outlives the result, by the duty above. Peers write only
    // where a clear to send allows it, and the checker of schedules finds steps that access elements before these are awaited.
    unsafe { Memory::borrowed(output.base(), output.len()) }
}
