//! Views to be changed: as those to be read, but no element is reached twice.

use super::{copy::copy, error::TensorError, layout::Layout, view::TensorView};
use crate::dtype::{Dtype, Element};

/// Elements to be changed that lie in borrowed memory, at any alignment, with any strides that reach each of them
/// once; these may be negative.
///
/// What makes another view of it takes it; [`TensorViewMut::reborrow`] before keeps it.
#[derive(Debug)]
pub struct TensorViewMut<'a> {
    dtype: Dtype,
    bytes: &'a mut [u8],
    layout: Layout,
}

impl<'a> TensorViewMut<'a> {
    pub(super) const fn of(dtype: Dtype, bytes: &'a mut [u8], layout: Layout) -> Self {
        Self { dtype, bytes, layout }
    }

    /// All elements of a slice, in row-major order.
    ///
    /// # Errors
    ///
    /// [`TensorError::Length`] if the shape takes more or fewer, [`TensorError::TooLarge`].
    pub fn new<T: Element>(elements: &'a mut [T], shape: &[usize]) -> Result<Self, TensorError> {
        let layout = Layout::exact(T::DTYPE, elements.len(), shape)?;
        Ok(Self::of(T::DTYPE, bytemuck::cast_slice_mut(elements), layout))
    }

    /// Some elements of a slice: the first one is number `offset`, and one step along a dimension is as many
    /// elements as its stride says. Where there are no elements, the offset does not matter.
    ///
    /// # Errors
    ///
    /// [`TensorError::Overlap`] unless every dimension steps over all that those of shorter strides reach, so that
    /// no element is reached twice; [`TensorError::Outside`] if an element would lie outside the slice,
    /// [`TensorError::Strides`], [`TensorError::TooLarge`].
    pub fn with_strides<T: Element>(
        elements: &'a mut [T],
        offset: usize,
        shape: &[usize],
        strides: &[isize],
    ) -> Result<Self, TensorError> {
        let layout = Layout::strided(T::DTYPE, elements.len(), offset, shape, strides)?;
        layout.distinct()?;
        Ok(Self::of(T::DTYPE, bytemuck::cast_slice_mut(elements), layout))
    }

    /// All elements whose bytes these are, as this machine has them in memory, in row-major order. They may lie at
    /// any address.
    ///
    /// # Errors
    ///
    /// [`TensorError::Length`] if the shape takes more or fewer bytes, [`TensorError::TooLarge`].
    pub fn from_bytes(dtype: Dtype, bytes: &'a mut [u8], shape: &[usize]) -> Result<Self, TensorError> {
        let layout = Layout::exact_bytes(dtype, bytes.len(), shape)?;
        Ok(Self::of(dtype, bytes, layout))
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

    /// How many elements one step along each dimension is.
    #[must_use]
    pub fn strides(&self) -> &[isize] {
        self.layout.strides()
    }

    /// How many elements there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.layout.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the elements lie one after the other in row-major order.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        self.layout.is_contiguous()
    }

    #[cfg(feature = "ndarray")]
    pub(super) const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The same elements, to be read.
    #[must_use]
    pub fn view(&self) -> TensorView<'_> {
        TensorView::of(self.dtype, self.bytes, self.layout.clone())
    }

    /// The same elements, for a shorter time.
    #[must_use]
    pub fn reborrow(&mut self) -> TensorViewMut<'_> {
        TensorViewMut::of(self.dtype, self.bytes, self.layout.clone())
    }

    /// Whether the elements lie as those of a slice do: contiguous and aligned.
    pub(crate) fn lies_in_place(&self) -> bool {
        let begins = (self.bytes.as_ptr() as usize).wrapping_add(self.layout.offset() * self.dtype.size());
        self.is_contiguous() && (self.is_empty() || begins.is_multiple_of(self.dtype.size()))
    }

    /// The bytes of the elements, if they [lie so](Self::lies_in_place).
    pub(crate) fn in_place(&mut self) -> Option<&mut [u8]> {
        if !self.lies_in_place() {
            return None;
        }
        let size = self.dtype.size();
        let (start, len) = (self.layout.offset() * size, self.len() * size);
        self.bytes.get_mut(start..start + len)
    }

    /// The bytes of the elements, to be changed: any bits are an element.
    ///
    /// # Errors
    ///
    /// [`TensorError::NotContiguous`].
    pub fn into_bytes(self) -> Result<&'a mut [u8], TensorError> {
        if !self.is_contiguous() {
            return Err(self.layout.not_contiguous());
        }
        Ok(self.reached())
    }

    /// The bytes from the lowest element that is reached to the end of the highest.
    fn reached(self) -> &'a mut [u8] {
        let (reach, size) = (self.layout.reach(), self.dtype.size());
        &mut self.bytes[reach.start * size..reach.end * size]
    }

    /// [`TensorViewMut::reached`], as elements.
    pub(super) fn reached_as<T: Element>(self) -> Result<&'a mut [T], TensorError> {
        if self.dtype != T::DTYPE {
            return Err(TensorError::Dtype { holds: self.dtype, wanted: T::DTYPE });
        }
        match self.reached() {
            // Nothing has no alignment: an empty slice may point anywhere.
            [] => Ok(&mut []),
            bytes => {
                bytemuck::try_cast_slice_mut(bytes).map_err(|_| TensorError::Misaligned { dtype: T::DTYPE })
            }
        }
    }

    /// The elements, to be changed.
    ///
    /// # Errors
    ///
    /// [`TensorError::Dtype`] if they are of another type, [`TensorError::NotContiguous`],
    /// [`TensorError::Misaligned`].
    pub fn into_slice<T: Element>(self) -> Result<&'a mut [T], TensorError> {
        if !self.is_contiguous() {
            return Err(self.layout.not_contiguous());
        }
        self.reached_as()
    }

    /// The same elements with the dimensions in another order: dimension `i` of the result is `order[i]` of this.
    ///
    /// # Errors
    ///
    /// [`TensorError::Permutation`] if `order` does not name each dimension once.
    pub fn permute(self, order: &[usize]) -> Result<Self, TensorError> {
        let layout = self.layout.permute(order)?;
        Ok(Self { layout, ..self })
    }

    /// The same elements with two dimensions in each other's place.
    ///
    /// # Errors
    ///
    /// [`TensorError::Dimension`].
    pub fn transpose(self, first: usize, second: usize) -> Result<Self, TensorError> {
        let layout = self.layout.transpose(first, second)?;
        Ok(Self { layout, ..self })
    }

    /// The part of a dimension that has `len` elements from `start` on.
    ///
    /// # Errors
    ///
    /// [`TensorError::Narrow`] if it does not lie inside, [`TensorError::Dimension`].
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

    /// Copies packed elements, in row-major order, to their places: the inverse of [`TensorView::pack_into`]. The
    /// bytes may lie at any address.
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
