//! The memory of a caller, borrowed for one operation.
#![allow(unsafe_code)]

use std::{marker::PhantomData, ops::Range};

use unisono_core::{dtype::Scalar, reduce::Kernel};
use unisono_transport::{Memory, Region};

use super::{
    bytes::{SpanError, scale},
    operand::{Aside, Operand, Overlap},
    pieces::Pieces,
    raw::borrow_raw,
    registry::Registry,
};

/// Memory of a caller that the engine borrows for one operation. Input and output may be the same memory (in place), or one may be
/// a part of the other, as the collective allows.
pub struct Borrowed<'a> {
    /// What the operation reads.
    pub input: Operand,
    /// What it writes.
    pub output: Operand,
    /// How the two lie to each other.
    pub overlap: Overlap,
    /// True if the output is only read.
    pub fixed: bool,
    slices: PhantomData<&'a mut [u8]>,
}

impl<'a> Borrowed<'a> {
    fn of(input: Operand, output: Operand, overlap: Overlap) -> Self {
        Self { input, output, overlap, fixed: false, slices: PhantomData }
    }

    /// Borrows two slices.
    ///
    /// The engine must have dropped every clone of the two regions, or its transport, before the borrow `'a` ends. A blocking call does so
    /// before it returns; an asynchronous call borrows from its future or from memory that the future owns, which the engine keeps with the
    /// operation.
    pub fn apart<T: Scalar>(input: &'a [T], output: &'a mut [T]) -> Self {
        // SAFETY: both are valid for `'a`, which by the duty above is longer than the regions live. The
        // input is only read: it is never registered for peers, and steps write to outputs and landed
        // slots alone (`Engine` refuses others). The output is exclusively borrowed.
        let (input, output) = unsafe {
            (
                borrow_raw(input.as_ptr().cast_mut().cast(), size_of_val(input)),
                borrow_raw(output.as_mut_ptr().cast(), size_of_val(output)),
            )
        };
        Self::of(input.into(), output.into(), Overlap::Apart)
    }

    /// Borrows a slice that is both input and output and is only read, as at the root of a broadcast. The duty is that of
    /// [`apart`](Self::apart).
    pub fn given<T: Scalar>(data: &'a [T]) -> Self {
        // SAFETY: as in `apart`; the output is only read, since it is fixed: it is never registered for peers, and
        // the engine refuses steps that write there.
        let data = Operand::from(unsafe { borrow_raw(data.as_ptr().cast_mut().cast(), size_of_val(data)) });
        Self { fixed: true, ..Self::of(data.clone(), data, Overlap::InPlace) }
    }

    /// Borrows slices that together are input and output, one after the other. The duty is that of [`apart`](Self::apart).
    pub fn scattered(slices: impl Iterator<Item = &'a mut [u8]>) -> Self {
        let pieces = Pieces::of(slices.map(|slice| (slice.as_mut_ptr(), slice.len())));
        let data = Operand::several(pieces);
        Self::of(data.clone(), data, Overlap::InPlace)
    }

    /// The same input, and no output.
    pub fn only_read(self) -> Self {
        Self { output: Operand::none(), overlap: Overlap::Apart, ..self }
    }

    /// Borrows one slice of which `input` and `output` are parts (ranges of elements), as the collective allows. The duty is that of
    /// [`apart`](Self::apart).
    pub fn within<T: Scalar>(data: &'a mut [T], input: Range<usize>, output: Range<usize>) -> Option<Self> {
        let base = data.as_mut_ptr();
        data.get(input.clone())?;
        data.get(output.clone())?;
        let part = |range: &Range<usize>| {
            // SAFETY: both ranges were found to lie in `data`, which is exclusively borrowed; otherwise as above.
            Operand::from(unsafe { borrow_raw(base.add(range.start).cast(), range.len() * size_of::<T>()) })
        };
        let overlap = if input.is_empty() || output.is_empty() { Overlap::Apart } else { Overlap::InPlace };
        let borrowed = part(&output);
        Some(Self::of(if input == output { borrowed.clone() } else { part(&input) }, borrowed, overlap))
    }

    /// Borrows memory that was allocated outside of this library. The duty is that of [`apart`](Self::apart). `at` as in `Overlap::of`.
    pub fn foreign(input: Option<&'a Operand>, output: Option<&'a Operand>, at: (usize, usize)) -> Self {
        let operand = |operand: Option<&Operand>| operand.map_or_else(Operand::none, Operand::clone);
        let (input, output) = (operand(input), operand(output));
        let overlap = Overlap::of(&input, &output, at);
        Self::of(input, output, overlap)
    }
}

impl Borrowed<'_> {
    /// Finds the registered buffers that contain it.
    #[inline]
    pub fn find_in(&mut self, registry: &Registry) {
        if registry.is_used() {
            self.input.find_in(registry);
            self.output.find_in(registry);
        }
    }

    /// The same memory, which the caller keeps and does not access until the engine has dropped every clone of its regions or its
    /// transport: the completion of the task owns the memory, and returns it only then.
    pub fn kept(self) -> Borrowed<'static> {
        let Self { input, output, overlap, fixed, .. } = self;
        Borrowed { input, output, overlap, fixed, slices: PhantomData }
    }

    /// Copies the input to `aside` and uses the copy instead, so that the input does not overlap the output. The duty of
    /// [`apart`](Self::apart) holds for `aside` too.
    pub fn set_aside(&mut self, aside: &mut Aside) -> Result<(), SpanError> {
        let input = self.input.copied_to(aside)?;
        (self.input, self.overlap) = (input.into(), Overlap::Apart);
        Ok(())
    }

    /// Multiplies the input of a pre-multiplied sum by this rank's factor.
    pub fn scale(&self, kernel: &Kernel) -> Result<(), SpanError> {
        self.input.stretches().try_for_each(|stretch| scale(kernel, stretch))
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
