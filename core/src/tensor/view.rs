//! Views of elements: borrowed bytes with a layout.

use std::ops::Range;

use super::{copy::copy, error::TensorError, layout::Layout};
use crate::dtype::{Dtype, Scalar};

/// A view of elements in memory that `B` borrows, at any alignment and with any strides: a [`TensorView`] or a [`TensorViewMut`](super::TensorViewMut).
#[derive(Clone, Debug)]
pub struct StridedView<B> {
    pub(super) dtype: Dtype,
    pub(super) bytes: B,
    pub(super) layout: Layout,
}

/// A view of elements in borrowed memory, at any alignment and with any strides. A stride may be negative, or 0, which repeats an
/// element.
pub type TensorView<'a> = StridedView<&'a [u8]>;

impl<B> StridedView<B> {
    pub(super) const fn of(dtype: Dtype, bytes: B, layout: Layout) -> Self {
        Self { dtype, bytes, layout }
    }

    /// The type of the elements.
    #[must_use]
    pub const fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The length of each dimension.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        self.layout.shape()
    }

    /// The stride of each dimension, in elements.
    #[must_use]
    pub fn strides(&self) -> &[isize] {
        self.layout.strides()
    }

    /// The number of elements; repeated elements count each time.
    #[must_use]
    pub fn len(&self) -> usize {
        self.layout.len()
    }

    /// True if there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if the elements are contiguous, in row-major order.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        self.layout.is_contiguous()
    }

    pub(super) const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// An error unless the elements are contiguous.
    pub(super) fn check_contiguous(&self) -> Result<(), TensorError> {
        if self.is_contiguous() { Ok(()) } else { Err(self.layout.not_contiguous()) }
    }

    /// The range of bytes from the lowest element that is reached to the end of the highest.
    pub(super) fn reach(&self) -> Range<usize> {
        let (reach, size) = (self.layout.reach(), self.dtype.size());
        reach.start * size..reach.end * size
    }
}

impl<'a> TensorView<'a> {
    /// A view of all elements of a slice, in row-major order.
    ///
    /// # Errors
    ///
    /// [`TensorError::Length`] if the shape takes more or fewer, [`TensorError::TooLarge`].
    pub fn new<T: Scalar>(elements: &'a [T], shape: &[usize]) -> Result<Self, TensorError> {
        let layout = Layout::exact(T::DTYPE, elements.len(), shape)?;
        Ok(Self::of(T::DTYPE, bytemuck::cast_slice(elements), layout))
    }

    /// A view of some elements of a slice: the first has index `offset`, and the next one along a dimension is `strides` elements
    /// further. If the shape has no elements, the offset is ignored.
    ///
    /// # Errors
    ///
    /// [`TensorError::Outside`] if an element would lie outside the slice, [`TensorError::Strides`],
    /// [`TensorError::TooLarge`].
    pub fn with_strides<T: Scalar>(
        elements: &'a [T],
        offset: usize,
        shape: &[usize],
        strides: &[isize],
    ) -> Result<Self, TensorError> {
        let layout = Layout::strided(T::DTYPE, elements.len(), offset, shape, strides)?;
        Ok(Self::of(T::DTYPE, bytemuck::cast_slice(elements), layout))
    }

    /// A view of elements given as bytes, in row-major order and this machine's byte order, at any address.
    ///
    /// # Errors
    ///
    /// [`TensorError::Length`] if the shape takes more or fewer bytes, [`TensorError::TooLarge`].
    pub fn from_bytes(dtype: Dtype, bytes: &'a [u8], shape: &[usize]) -> Result<Self, TensorError> {
        Ok(Self::of(dtype, bytes, Layout::exact_bytes(dtype, bytes.len(), shape)?))
    }

    /// The bytes of the elements.
    ///
    /// # Errors
    ///
    /// [`TensorError::NotContiguous`].
    pub fn bytes(&self) -> Result<&'a [u8], TensorError> {
        self.check_contiguous()?;
        Ok(self.reached())
    }

    /// The bytes from the lowest element that is reached to the end of the highest.
    pub(super) fn reached(&self) -> &'a [u8] {
        &self.bytes[self.reach()]
    }

    /// The bytes of the element at an index of the data, which must be within the data.
    pub(super) fn bytes_at(&self, place: usize) -> &'a [u8] {
        let size = self.dtype.size();
        &self.bytes[place * size..][..size]
    }

    /// [`TensorView::reached`], as elements.
    pub(super) fn reached_as<T: Scalar>(&self) -> Result<&'a [T], TensorError> {
        TensorError::check_dtype::<T>(self.dtype)?;
        match self.reached() {
            // An empty slice may have any address.
            [] => Ok(&[]),
            bytes => bytemuck::try_cast_slice(bytes).map_err(|_| TensorError::Misaligned { dtype: T::DTYPE }),
        }
    }

    /// The elements.
    ///
    /// # Errors
    ///
    /// [`TensorError::Dtype`] if they are of another type, [`TensorError::NotContiguous`],
    /// [`TensorError::Misaligned`].
    pub fn as_slice<T: Scalar>(&self) -> Result<&'a [T], TensorError> {
        let elements = self.reached_as()?;
        self.check_contiguous()?;
        Ok(elements)
    }

    /// The view with its dimensions in another order: dimension `i` of the result is dimension `order[i]` of this view.
    ///
    /// # Errors
    ///
    /// [`TensorError::Permutation`] if `order` does not name each dimension once.
    pub fn permute(&self, order: &[usize]) -> Result<Self, TensorError> {
        Ok(self.with(self.layout.permute(order)?))
    }

    /// The view with two dimensions exchanged.
    ///
    /// # Errors
    ///
    /// [`TensorError::Dimension`].
    pub fn transpose(&self, first: usize, second: usize) -> Result<Self, TensorError> {
        Ok(self.with(self.layout.transpose(first, second)?))
    }

    /// The view restricted to `len` elements of a dimension, from `start` on.
    ///
    /// # Errors
    ///
    /// [`TensorError::Narrow`] if the range is not within the dimension, [`TensorError::Dimension`].
    pub fn narrow(&self, dim: usize, start: usize, len: usize) -> Result<Self, TensorError> {
        Ok(self.with(self.layout.narrow(dim, start, len)?))
    }

    /// The same elements, which must be contiguous, in another shape.
    ///
    /// # Errors
    ///
    /// [`TensorError::Reshape`] if the shape takes more or fewer elements, [`TensorError::NotContiguous`],
    /// [`TensorError::TooLarge`].
    pub fn reshape(&self, shape: &[usize]) -> Result<Self, TensorError> {
        Ok(self.with(self.layout.reshape(self.dtype, shape)?))
    }

    /// A view of the same data with another layout.
    pub(super) const fn with(&self, layout: Layout) -> Self {
        Self::of(self.dtype, self.bytes, layout)
    }

    /// Copies the elements, in row-major order, to bytes of the same total length, at any alignment.
    ///
    /// # Errors
    ///
    /// [`TensorError::Length`]; nothing is written then.
    pub fn pack_into(&self, bytes: &mut [u8]) -> Result<(), TensorError> {
        Layout::exact_bytes(self.dtype, bytes.len(), self.shape())?;
        self.write(bytes);
        Ok(())
    }

    /// Copies the elements to bytes whose length is known to be right.
    pub(super) fn write(&self, bytes: &mut [u8]) {
        copy(self.dtype, bytes, &Layout::row_major(self.shape()), self.bytes, &self.layout);
    }

    /// Copies the elements to other data of the same dtype, whose layout has the same shape.
    pub(super) fn write_to(&self, bytes: &mut [u8], layout: &Layout) {
        copy(self.dtype, bytes, layout, self.bytes, &self.layout);
    }
}
