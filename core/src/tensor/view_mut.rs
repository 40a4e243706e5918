//! Mutable views, which reach no element twice.

use super::{
    copy::copy,
    error::TensorError,
    layout::Layout,
    view::{StridedView, TensorView},
};
use crate::dtype::{Dtype, Scalar};

/// A mutable view of elements in borrowed memory, at any alignment, with any strides, also negative, that reach each element once.
///
/// Methods that make another view consume this one; call [`TensorViewMut::reborrow`] first to keep it.
pub type TensorViewMut<'a> = StridedView<&'a mut [u8]>;

impl<'a> TensorViewMut<'a> {
    /// A view of all elements of a slice, in row-major order.
    ///
    /// # Errors
    ///
    /// [`TensorError::Length`] if the shape takes more or fewer, [`TensorError::TooLarge`].
    pub fn new<T: Scalar>(elements: &'a mut [T], shape: &[usize]) -> Result<Self, TensorError> {
        let layout = Layout::exact(T::DTYPE, elements.len(), shape)?;
        Ok(Self::of(T::DTYPE, bytemuck::cast_slice_mut(elements), layout))
    }

    /// A view of some elements of a slice: the first has index `offset`, and the next one along a dimension is `strides` elements
    /// further. If the shape has no elements, the offset is ignored.
    ///
    /// # Errors
    ///
    /// [`TensorError::Overlap`] unless every stride exceeds the extent of all dimensions with shorter strides, so that no element is
    /// reached twice; [`TensorError::Outside`] if an element would be outside the slice, [`TensorError::Strides`],
    /// [`TensorError::TooLarge`].
    pub fn with_strides<T: Scalar>(
        elements: &'a mut [T],
        offset: usize,
        shape: &[usize],
        strides: &[isize],
    ) -> Result<Self, TensorError> {
        let layout = Layout::strided(T::DTYPE, elements.len(), offset, shape, strides)?;
        layout.distinct()?;
        Ok(Self::of(T::DTYPE, bytemuck::cast_slice_mut(elements), layout))
    }

    /// A view of elements given as bytes, in row-major order and this machine's byte order, at any address.
    ///
    /// # Errors
    ///
    /// [`TensorError::Length`] if the shape takes more or fewer bytes, [`TensorError::TooLarge`].
    pub fn from_bytes(dtype: Dtype, bytes: &'a mut [u8], shape: &[usize]) -> Result<Self, TensorError> {
        let layout = Layout::exact_bytes(dtype, bytes.len(), shape)?;
        Ok(Self::of(dtype, bytes, layout))
    }

    /// A read-only view of the same elements.
    #[must_use]
    pub fn view(&self) -> TensorView<'_> {
        TensorView::of(self.dtype, self.bytes, self.layout.clone())
    }

    /// The same view with a shorter lifetime.
    #[must_use]
    pub fn reborrow(&mut self) -> TensorViewMut<'_> {
        TensorViewMut::of(self.dtype, self.bytes, self.layout.clone())
    }

    /// True if the elements are contiguous and aligned, as those of a slice.
    #[doc(hidden)]
    pub fn lies_in_place(&self) -> bool {
        let begins = (self.bytes.as_ptr() as usize).wrapping_add(self.layout.offset() * self.dtype.size());
        self.is_contiguous() && (self.is_empty() || begins.is_multiple_of(self.dtype.size()))
    }

    /// The bytes of the elements, if they are [contiguous and aligned](Self::lies_in_place).
    #[doc(hidden)]
    pub fn in_place(&mut self) -> Option<&mut [u8]> {
        if !self.lies_in_place() {
            return None;
        }
        let size = self.dtype.size();
        let (start, len) = (self.layout.offset() * size, self.len() * size);
        self.bytes.get_mut(start..start + len)
    }

    /// The bytes of the elements, mutable: any bits are a valid element.
    ///
    /// # Errors
    ///
    /// [`TensorError::NotContiguous`].
    pub fn into_bytes(self) -> Result<&'a mut [u8], TensorError> {
        self.check_contiguous()?;
        Ok(self.reached())
    }

    /// The bytes from the lowest element that is reached to the end of the highest.
    fn reached(self) -> &'a mut [u8] {
        let reach = self.reach();
        &mut self.bytes[reach]
    }

    /// [`TensorViewMut::reached`], as elements.
    pub(super) fn reached_as<T: Scalar>(self) -> Result<&'a mut [T], TensorError> {
        TensorError::check_dtype::<T>(self.dtype)?;
        match self.reached() {
            // An empty slice may have any address.
            [] => Ok(&mut []),
            bytes => {
                bytemuck::try_cast_slice_mut(bytes).map_err(|_| TensorError::Misaligned { dtype: T::DTYPE })
            }
        }
    }

    /// The elements, mutable.
    ///
    /// # Errors
    ///
    /// [`TensorError::Dtype`] if they are of another type, [`TensorError::NotContiguous`],
    /// [`TensorError::Misaligned`].
    pub fn into_slice<T: Scalar>(self) -> Result<&'a mut [T], TensorError> {
        self.check_contiguous()?;
        self.reached_as()
    }

    /// The view with its dimensions in another order: dimension `i` of the result is dimension `order[i]` of this view.
    ///
    /// # Errors
    ///
    /// [`TensorError::Permutation`] if `order` does not name each dimension once.
    pub fn permute(self, order: &[usize]) -> Result<Self, TensorError> {
        let layout = self.layout.permute(order)?;
        Ok(Self { layout, ..self })
    }

    /// The view with two dimensions exchanged.
    ///
    /// # Errors
    ///
    /// [`TensorError::Dimension`].
    pub fn transpose(self, first: usize, second: usize) -> Result<Self, TensorError> {
        let layout = self.layout.transpose(first, second)?;
        Ok(Self { layout, ..self })
    }

    /// The view restricted to `len` elements of a dimension, from `start` on.
    ///
    /// # Errors
    ///
    /// [`TensorError::Narrow`] if the range is not within the dimension, [`TensorError::Dimension`].
    pub fn narrow(self, dim: usize, start: usize, len: usize) -> Result<Self, TensorError> {
        let layout = self.layout.narrow(dim, start, len)?;
        Ok(Self { layout, ..self })
    }

    /// The same elements, which must be contiguous, in another shape.
    ///
    /// # Errors
    ///
    /// [`TensorError::Reshape`] if the shape takes more or fewer elements, [`TensorError::NotContiguous`],
    /// [`TensorError::TooLarge`].
    pub fn reshape(self, shape: &[usize]) -> Result<Self, TensorError> {
        let layout = self.layout.reshape(self.dtype, shape)?;
        Ok(Self { layout, ..self })
    }

    /// Copies packed elements, in row-major order, into this view: the inverse of [`TensorView::pack_into`]. The bytes may be at any
    /// address.
    ///
    /// # Errors
    ///
    /// [`TensorError::Length`] if there are more or fewer bytes than the elements have; nothing is written then.
    pub fn unpack_from(&mut self, bytes: &[u8]) -> Result<(), TensorError> {
        let packed = Layout::exact_bytes(self.dtype, bytes.len(), self.layout.shape())?;
        copy(self.dtype, self.bytes, &self.layout, bytes, &packed);
        Ok(())
    }

    /// Copies all elements of a view of the same type and shape.
    ///
    /// # Errors
    ///
    /// [`TensorError::Dtype`], [`TensorError::Shape`]; nothing is written then.
    pub fn copy_from(&mut self, from: &TensorView<'_>) -> Result<(), TensorError> {
        if from.dtype() != self.dtype {
            return Err(TensorError::Dtype { holds: from.dtype(), wanted: self.dtype });
        }
        if from.shape() != self.shape() {
            return Err(TensorError::Shape {
                call: "copy_from",
                what: "the source".into(),
                given: from.shape().to_vec(),
                wanted: self.shape().to_vec(),
            });
        }
        from.write_to(self.bytes, &self.layout);
        Ok(())
    }
}
