//! Collectives to which all ranks give the same number of elements, on slices: checked by [`Checked::in_place`] or [`Checked::apart`]. A
//! blocking call waits for the operation; an asynchronous one keeps the memory. Nothing below these methods depends on the type of the
//! elements.

use std::ops::Range;

use bytemuck::cast_slice_mut;
use unisono_engine::memory::Borrowed;

use super::check::{Checked, CollectiveCall, outside, read, write};
use crate::{
    buffer::Owned,
    dtype::{Element, Scalar as _},
    error::{Error, Result},
    group::{handle::Handle, plan::spec::CallSpec},
    work::Work,
};

impl Handle {
    /// Runs a collective in place, and returns the range of its output in `data`.
    pub(crate) fn in_place<T: Element>(&self, call: CollectiveCall, data: &mut [T]) -> Result<Range<usize>> {
        let Checked { spec, input, output } = Checked::in_place(self, call, data.len())?;
        let len = data.len();
        let borrowed = Borrowed::within(data, input, output.clone());
        self.run(T::DTYPE, &spec, borrowed.ok_or_else(|| outside(call.name(), len))?)?;
        Ok(output)
    }

    /// Runs a collective without blocks in place, on slices that are used one after the other as one.
    pub(crate) fn in_pieces<T: Element>(&self, call: CollectiveCall, slices: &mut [&mut [T]]) -> Result<()> {
        if call.collective.has_blocks() {
            let problem =
                "an operand of several slices has no blocks: all_reduce and reduce take it".to_owned();
            return Err(Error::Argument { call: call.name(), problem });
        }
        let len = slices.iter().try_fold(0, |sum: usize, slice| sum.checked_add(slice.len()));
        let len = len.ok_or_else(|| outside(call.name(), usize::MAX))?;
        let Checked { spec, output, .. } = Checked::in_place(self, call, len)?;
        let all = Borrowed::scattered(slices.iter_mut().map(|slice| cast_slice_mut(slice)));
        self.run(T::DTYPE, &spec, if output.is_empty() { all.only_read() } else { all })
    }

    /// Begins a collective in place; ranks also compare `contents`. `back` makes the work's result of the data and of the range of the
    /// output in it.
    pub(crate) fn begin_in_place<B: Owned, R: Send + 'static>(
        &self,
        call: CollectiveCall,
        mut data: B,
        contents: u32,
        back: impl FnOnce(B, Range<usize>) -> R,
    ) -> Result<Work<R>> {
        let elements = write(call.name(), &mut data)?;
        let len = elements.len();
        let Checked { spec, input, output } = Checked::in_place(self, call, len)?;
        let spec = CallSpec { contents, ..spec };
        let borrowed = Borrowed::kept_within(elements, input, output.clone());
        let borrowed = borrowed.ok_or_else(|| outside(call.name(), len))?;
        self.begin(B::Element::DTYPE, &spec, borrowed, back(data, output))
    }

    /// Runs a collective that reads one slice and writes another.
    pub(crate) fn apart<T: Element>(
        &self,
        call: CollectiveCall,
        input: &[T],
        output: &mut [T],
    ) -> Result<()> {
        let checked = Checked::apart(self, call, (input.len(), output.len()))?;
        let borrowed = Borrowed::apart(&input[checked.input], &mut output[checked.output]);
        self.run(T::DTYPE, &checked.spec, borrowed)
    }

    /// Begins a collective that reads the elements of `input` and writes those of `output`; the work returns both.
    pub(crate) fn begin_apart<I, O>(
        &self,
        call: CollectiveCall,
        (input, mut output): (I, O),
    ) -> Result<Work<(I, O)>>
    where
        I: Owned,
        O: Owned<Element = I::Element>,
    {
        let (from, into) = (read(call.name(), &input)?, write(call.name(), &mut output)?);
        let Checked { spec, .. } = Checked::apart(self, call, (from.len(), into.len()))?;
        let borrowed = Borrowed::kept(from, into);
        self.begin(I::Element::DTYPE, &spec, borrowed, (input, output))
    }
}
