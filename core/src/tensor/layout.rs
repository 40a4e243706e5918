//! The layout of a view: shape, strides and first element, checked once, so that no later access is outside the data.

use std::ops::Range;

use smallvec::SmallVec;

use super::error::TensorError;
use crate::dtype::Dtype;

/// The most dimensions that need no allocation, because programs make thousands of views.
const INLINE: usize = 4;

/// The elements of a view, in units of elements from the beginning of its data.
///
/// Invariants: as many strides as dimensions; the lengths other than 0, times the size of an element, multiply
/// to at most `isize::MAX`; every element that the shape reaches lies inside the data. A layout without elements
/// begins at 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    shape: SmallVec<[usize; INLINE]>,
    strides: SmallVec<[isize; INLINE]>,
    offset: usize,
}

/// The number of elements of a shape, if their bytes can be addressed.
pub fn count(dtype: Dtype, shape: &[usize]) -> Result<usize, TensorError> {
    let lengths = shape.iter().filter(|&&len| len > 0);
    match lengths.copied().try_fold(dtype.size(), usize::checked_mul) {
        Some(bytes) if isize::try_from(bytes).is_ok() => Ok(shape.iter().product()),
        _ => Err(TensorError::TooLarge { shape: shape.to_vec(), dtype }),
    }
}

impl Layout {
    /// Elements in row-major order, one after the other.
    pub(super) fn contiguous(dtype: Dtype, shape: &[usize]) -> Result<Self, TensorError> {
        count(dtype, shape)?;
        Ok(Self::row_major(shape))
    }

    /// As [`contiguous`](Self::contiguous), for a shape that [`count`] is known to allow.
    pub(super) fn row_major(shape: &[usize]) -> Self {
        let mut strides = SmallVec::with_capacity(shape.len());
        let mut stride = 1_isize;
        for &len in shape.iter().rev() {
            strides.push(stride);
            stride *= len.max(1).cast_signed();
        }
        strides.reverse();
        Self { shape: shape.into(), strides, offset: 0 }
    }

    /// Elements in row-major order, exactly as many as the data has.
    pub(super) fn exact(dtype: Dtype, len: usize, shape: &[usize]) -> Result<Self, TensorError> {
        let layout = Self::contiguous(dtype, shape)?;
        let wanted = layout.len();
        if wanted != len {
            let shape = shape.to_vec();
            return Err(TensorError::Length { given: len, wanted, unit: "elements", shape });
        }
        Ok(layout)
    }

    /// Elements in row-major order, of exactly as many bytes as the data has.
    pub(super) fn exact_bytes(dtype: Dtype, bytes: usize, shape: &[usize]) -> Result<Self, TensorError> {
        let layout = Self::contiguous(dtype, shape)?;
        let wanted = layout.len() * dtype.size();
        if wanted != bytes {
            return Err(TensorError::Length { given: bytes, wanted, unit: "bytes", shape: shape.to_vec() });
        }
        Ok(layout)
    }

    /// Any elements of data of `len` elements.
    pub(super) fn strided(
        dtype: Dtype,
        len: usize,
        offset: usize,
        shape: &[usize],
        strides: &[isize],
    ) -> Result<Self, TensorError> {
        if shape.len() != strides.len() {
            return Err(TensorError::Strides { strides: strides.len(), rank: shape.len() });
        }
        let mut layout = Self { shape: shape.into(), strides: strides.into(), offset };
        if count(dtype, shape)? == 0 {
            layout.offset = 0;
        } else if reach(offset, shape, strides).is_none_or(|reach| reach.end > len) {
            return Err(layout.outside(len));
        }
        Ok(layout)
    }

    pub(super) fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub(super) fn strides(&self) -> &[isize] {
        &self.strides
    }

    pub(super) const fn offset(&self) -> usize {
        self.offset
    }

    /// The number of elements.
    pub(super) fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// The range from the lowest to the highest element that it reaches.
    pub(super) fn reach(&self) -> Range<usize> {
        if self.shape.contains(&0) {
            return 0..0;
        }
        reach(self.offset, &self.shape, &self.strides).unwrap_or(0..0)
    }

    /// True if the elements lie one after the other in row-major order.
    pub(super) fn is_contiguous(&self) -> bool {
        let mut wanted = 1_usize;
        self.shape.contains(&0)
            || self.shape.iter().zip(&self.strides).rev().all(|(&len, &stride)| {
                let fits = len == 1 || usize::try_from(stride) == Ok(wanted);
                wanted *= len;
                fits
            })
    }

    /// Checks that no element is reached twice: every stride is longer than what all dimensions of shorter strides reach. Some
    /// strides that do not nest so also reach no element twice, but no permutation, part or reversal of row-major elements has them.
    pub(super) fn distinct(&self) -> Result<(), TensorError> {
        if self.shape.contains(&0) {
            return Ok(());
        }
        let longer = self.shape.iter().zip(&self.strides).filter(|(len, _)| **len > 1);
        let mut dims: Vec<_> = longer.map(|(&len, stride)| (stride.unsigned_abs(), len)).collect();
        dims.sort_unstable();
        let mut reached = 0;
        for (stride, len) in dims {
            if stride <= reached {
                return Err(TensorError::Overlap {
                    shape: self.shape.to_vec(),
                    strides: self.strides.to_vec(),
                });
            }
            // No overflow: both are within the data.
            reached += stride * (len - 1);
        }
        Ok(())
    }

    /// The length of a dimension.
    pub(super) fn size(&self, dim: usize) -> Result<usize, TensorError> {
        self.shape.get(dim).copied().ok_or(TensorError::Dimension { dim, rank: self.shape.len() })
    }

    /// The dimensions in another order.
    pub(super) fn permute(&self, order: &[usize]) -> Result<Self, TensorError> {
        let rank = self.shape.len();
        let mut sorted = order.to_vec();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..rank) {
            return Err(TensorError::Permutation { given: order.to_vec(), rank });
        }
        Ok(Self {
            shape: order.iter().filter_map(|&dim| self.shape.get(dim).copied()).collect(),
            strides: order.iter().filter_map(|&dim| self.strides.get(dim).copied()).collect(),
            offset: self.offset,
        })
    }

    /// Exchanges two dimensions.
    pub(super) fn transpose(&self, first: usize, second: usize) -> Result<Self, TensorError> {
        self.size(first)?;
        self.size(second)?;
        let mut layout = self.clone();
        layout.shape.swap(first, second);
        layout.strides.swap(first, second);
        Ok(layout)
    }

    /// The part of a dimension that has `len` elements from `start` on.
    pub(super) fn narrow(&self, dim: usize, start: usize, len: usize) -> Result<Self, TensorError> {
        let size = self.size(dim)?;
        let outside = || TensorError::Narrow { dim, start, len, size };
        if start > size || len > size - start {
            return Err(outside());
        }
        let mut layout = self.clone();
        if let Some(narrowed) = layout.shape.get_mut(dim) {
            *narrowed = len;
        }
        if layout.shape.contains(&0) {
            layout.offset = 0;
        } else if start > 0 {
            let stride = self.strides.get(dim).copied().unwrap_or(0);
            layout.offset = step(self.offset, start, stride).ok_or_else(outside)?;
        }
        Ok(layout)
    }

    /// The same elements, which must be contiguous, in another shape.
    pub(super) fn reshape(&self, dtype: Dtype, shape: &[usize]) -> Result<Self, TensorError> {
        let mut layout = Self::contiguous(dtype, shape)?;
        if layout.len() != self.len() {
            return Err(TensorError::Reshape { from: self.shape.to_vec(), to: shape.to_vec() });
        }
        if !self.is_contiguous() {
            return Err(self.not_contiguous());
        }
        layout.offset = self.offset;
        Ok(layout)
    }

    pub(super) fn not_contiguous(&self) -> TensorError {
        TensorError::NotContiguous { shape: self.shape.to_vec(), strides: self.strides.to_vec() }
    }

    /// The error if an element lies outside of data of `len` elements.
    pub(super) fn outside(&self, len: usize) -> TensorError {
        let (shape, strides) = (self.shape.to_vec(), self.strides.to_vec());
        TensorError::Outside { shape, strides, offset: self.offset, len }
    }
}

/// The index `steps` strides after `offset`, if it can be represented.
fn step(offset: usize, steps: usize, stride: isize) -> Option<usize> {
    offset.checked_add_signed(isize::try_from(steps).ok()?.checked_mul(stride)?)
}

/// The range from the lowest to the highest element of a shape without dimensions of length 0; `None` if an index is below 0 or cannot
/// be represented.
fn reach(offset: usize, shape: &[usize], strides: &[isize]) -> Option<Range<usize>> {
    let (mut low, mut high) = (offset, offset);
    for (&len, &stride) in shape.iter().zip(strides) {
        let end = if stride < 0 { &mut low } else { &mut high };
        *end = step(*end, len.checked_sub(1)?, stride)?;
    }
    Some(low..high.checked_add(1)?)
}
