//! Conversions from and to ndarray's arrays and views. They do not copy elements, unless they say so.
//!
//! A [`TensorView`] borrows all memory from its lowest element to its highest. An array of ndarray that has gaps, such as some columns
//! of a matrix, does not own the memory between its elements, so it is refused: [`TensorError::Gaps`].

use ::ndarray::{
    Array, ArrayD, ArrayView, ArrayViewD, ArrayViewMut, ArrayViewMutD, Axis, Dimension, IxDyn, ShapeBuilder,
    StrideShape,
};

use super::{error::TensorError, layout::Layout, owned::Tensor, view::TensorView, view_mut::TensorViewMut};
use crate::dtype::Scalar;

/// The whole of an array's memory is borrowed, whatever the order, direction or repetition of its dimensions.
///
/// Fails with [`TensorError::Gaps`] if there are gaps between the elements.
impl<'a, T: Scalar, D: Dimension> TryFrom<ArrayView<'a, T, D>> for TensorView<'a> {
    type Error = TensorError;

    fn try_from(array: ArrayView<'a, T, D>) -> Result<Self, TensorError> {
        let (shape, strides) = (array.shape().to_vec(), array.strides().to_vec());
        if array.is_empty() {
            return Self::with_strides::<T>(&[], 0, &shape, &strides);
        }
        let mut once = array.into_dyn();
        for (axis, &stride) in strides.iter().enumerate() {
            if stride == 0 {
                once.collapse_axis(Axis(axis), 0);
            }
        }
        match once.to_slice_memory_order() {
            Some(elements) => Self::with_strides(elements, first(&shape, &strides), &shape, &strides),
            None => Err(TensorError::Gaps { shape, strides }),
        }
    }
}

/// The whole of an array's memory is borrowed, whatever the order or direction of its dimensions.
///
/// Fails with [`TensorError::Gaps`] if there are gaps between the elements.
impl<'a, T: Scalar, D: Dimension> TryFrom<ArrayViewMut<'a, T, D>> for TensorViewMut<'a> {
    type Error = TensorError;

    fn try_from(array: ArrayViewMut<'a, T, D>) -> Result<Self, TensorError> {
        let (shape, strides) = (array.shape().to_vec(), array.strides().to_vec());
        if array.is_empty() {
            return Self::with_strides::<T>(&mut [], 0, &shape, &strides);
        }
        match array.into_slice_memory_order() {
            Some(elements) => Self::with_strides(elements, first(&shape, &strides), &shape, &strides),
            None => Err(TensorError::Gaps { shape, strides }),
        }
    }
}

/// Elements in row-major order are not copied; others are.
///
/// Fails with [`TensorError::TooLarge`] if the array is empty and the product of its other dimensions is too large.
impl<T: Scalar, D: Dimension> TryFrom<Array<T, D>> for Tensor {
    type Error = TensorError;

    fn try_from(array: Array<T, D>) -> Result<Self, TensorError> {
        let shape = array.shape().to_vec();
        if !array.is_standard_layout() {
            return Self::from_vec(array.iter().copied().collect(), &shape);
        }
        let len = array.len();
        let (mut elements, offset) = array.into_raw_vec_and_offset();
        elements.truncate(offset.unwrap_or(0).saturating_add(len));
        elements.drain(..offset.unwrap_or(0).min(elements.len()));
        Self::from_vec(elements, &shape)
    }
}

/// Fails with [`TensorError::Dtype`] if the tensor is of another type.
impl<T: Scalar> TryFrom<Tensor> for ArrayD<T> {
    type Error = TensorError;

    fn try_from(tensor: Tensor) -> Result<Self, TensorError> {
        let shape = tensor.shape().to_vec();
        let dtype = tensor.dtype();
        let refused = TensorError::TooLarge { shape: shape.clone(), dtype };
        Self::from_shape_vec(IxDyn(&shape), tensor.into_vec()?).map_err(|_| refused)
    }
}

/// Fails with [`TensorError::Dtype`] if the view is of another type, with [`TensorError::Misaligned`].
impl<'a, T: Scalar> TryFrom<&TensorView<'a>> for ArrayViewD<'a, T> {
    type Error = TensorError;

    fn try_from(view: &TensorView<'a>) -> Result<Self, TensorError> {
        // The layout was checked before, so ndarray accepts it.
        let layout = view.layout();
        Self::from_shape(strided(layout), view.reached_as()?).map_err(|_| layout.outside(layout.len()))
    }
}

/// Fails with [`TensorError::Dtype`] if the view is of another type, with [`TensorError::Misaligned`].
impl<'a, T: Scalar> TryFrom<TensorViewMut<'a>> for ArrayViewMutD<'a, T> {
    type Error = TensorError;

    fn try_from(view: TensorViewMut<'a>) -> Result<Self, TensorError> {
        let layout = view.layout().clone();
        Self::from_shape(strided(&layout), view.reached_as()?).map_err(|_| layout.outside(layout.len()))
    }
}

/// The index of the first element of an array without gaps in its memory.
fn first(shape: &[usize], strides: &[isize]) -> usize {
    let backward = shape.iter().zip(strides).filter(|(len, stride)| **len > 1 && **stride < 0);
    backward.map(|(len, stride)| (len - 1).wrapping_mul(stride.unsigned_abs())).fold(0, usize::wrapping_add)
}

/// Shape and strides as ndarray takes them, negative strides as their bits. The strides of dimensions of length 1, or of an empty view,
/// are 0, because they may have any value here, and ndarray would check them.
fn strided(layout: &Layout) -> StrideShape<IxDyn> {
    let empty = layout.shape().contains(&0);
    let steps = layout.shape().iter().zip(layout.strides());
    let strides: Vec<_> =
        steps.map(|(&len, stride)| if empty || len == 1 { 0 } else { stride.cast_unsigned() }).collect();
    IxDyn(layout.shape()).strides(IxDyn(&strides))
}
