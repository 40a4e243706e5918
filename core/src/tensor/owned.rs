//! Tensors that own their elements: contiguous, in row-major order.

use std::fmt;

use bytemuck::{
    Zeroable,
    allocation::{cast_vec, try_zeroed_vec},
};
use half::{bf16, f16};

use super::{
    error::TensorError,
    layout::{Layout, count},
    view::TensorView,
    view_mut::TensorViewMut,
};
use crate::dtype::{Dtype, Scalar};

/// Elements of one of the twelve types in row-major order, and their shape.
///
/// A typed vector becomes a tensor, and a tensor a typed vector, without a copy. Two tensors are equal if their types, their shapes
/// and their elements, as numbers, are equal.
#[derive(Clone, PartialEq)]
pub struct Tensor {
    storage: Storage,
    shape: Vec<usize>,
}

macro_rules! storage {
    ($($dtype:ident: $rust:ty),* $(,)?) => {
        /// A vector of elements of any of the types, so that memory is freed as the type with which it was allocated.
        #[derive(Clone, PartialEq)]
        enum Storage {
            $($dtype(Vec<$rust>),)*
        }

        impl Storage {
            /// `None` if there is no memory for this many elements.
            fn zeros(dtype: Dtype, len: usize) -> Option<Self> {
                Some(match dtype {
                    $(Dtype::$dtype => Self::$dtype(try_zeroed_vec(len).ok()?),)*
                })
            }

            /// No elements, but capacity for `len`; `None` if there is no memory for them.
            fn room(dtype: Dtype, len: usize) -> Option<Self> {
                Some(match dtype {
                    $(Dtype::$dtype => {
                        let mut vec = Vec::new();
                        vec.try_reserve_exact(len).ok()?;
                        Self::$dtype(vec)
                    })*
                })
            }

            /// Appends zeros up to `len` elements.
            fn grow(&mut self, len: usize) {
                match self {
                    $(Self::$dtype(vec) => vec.resize(len.max(vec.len()), Zeroable::zeroed()),)*
                }
            }

            /// The number of elements.
            const fn len(&self) -> usize {
                match self {
                    $(Self::$dtype(vec) => vec.len(),)*
                }
            }

            fn start(&mut self) -> *mut u8 {
                match self {
                    $(Self::$dtype(vec) => vec.as_mut_ptr().cast(),)*
                }
            }

            /// Each cast is from a type to itself, because `T` is the type of its dtype.
            fn from_vec<T: Scalar>(vec: Vec<T>) -> Self {
                match T::DTYPE {
                    $(Dtype::$dtype => Self::$dtype(cast_vec(vec)),)*
                }
            }

            /// `T` must be the type of the elements, or another of the same size and alignment.
            fn into_vec<T: Scalar>(self) -> Vec<T> {
                match self {
                    $(Self::$dtype(vec) => cast_vec(vec),)*
                }
            }

            const fn dtype(&self) -> Dtype {
                match self {
                    $(Self::$dtype(_) => Dtype::$dtype,)*
                }
            }

            fn bytes(&self) -> &[u8] {
                match self {
                    $(Self::$dtype(vec) => bytemuck::cast_slice(vec),)*
                }
            }

            fn bytes_mut(&mut self) -> &mut [u8] {
                match self {
                    $(Self::$dtype(vec) => bytemuck::cast_slice_mut(vec),)*
                }
            }
        }
    };
}

storage! {
    F16: f16, BF16: bf16, F32: f32, F64: f64,
    I8: i8, I16: i16, I32: i32, I64: i64,
    U8: u8, U16: u16, U32: u32, U64: u64,
}

impl Tensor {
    /// A tensor of zeros.
    ///
    /// # Errors
    ///
    /// [`TensorError::TooLarge`], [`TensorError::Memory`].
    pub fn zeros(dtype: Dtype, shape: &[usize]) -> Result<Self, TensorError> {
        let len = count(dtype, shape)?;
        let storage =
            Storage::zeros(dtype, len).ok_or_else(|| TensorError::Memory { bytes: len * dtype.size() })?;
        Ok(Self { storage, shape: shape.to_vec() })
    }

    /// An empty tensor of one dimension with room for `count` elements; `None` if there is no memory.
    #[doc(hidden)]
    pub fn room(dtype: Dtype, count: usize) -> Option<Self> {
        Some(Self { storage: Storage::room(dtype, count)?, shape: vec![0] })
    }

    /// Appends zeros, up to `count` elements in one dimension. Within the [room](Self::room) nothing moves, and existing elements
    /// are not touched.
    #[doc(hidden)]
    pub fn grow(&mut self, count: usize) {
        self.storage.grow(count);
        self.shape = vec![self.storage.len()];
    }

    /// The address of the first element, also if there is only room for it.
    #[doc(hidden)]
    pub fn start(&mut self) -> *mut u8 {
        self.storage.start()
    }

    /// A tensor of the elements of a vector, in row-major order, without a copy.
    ///
    /// # Errors
    ///
    /// [`TensorError::Length`] if the shape takes more or fewer, [`TensorError::TooLarge`].
    pub fn from_vec<T: Scalar>(vec: Vec<T>, shape: &[usize]) -> Result<Self, TensorError> {
        Layout::exact(T::DTYPE, vec.len(), shape)?;
        Ok(Self { storage: Storage::from_vec(vec), shape: shape.to_vec() })
    }

    /// The elements in row-major order, without a copy.
    ///
    /// # Errors
    ///
    /// [`TensorError::Dtype`] if they are of another type. The tensor is dropped then: if that can happen, check
    /// [`Tensor::dtype`] first.
    pub fn into_vec<T: Scalar>(self) -> Result<Vec<T>, TensorError> {
        TensorError::check_dtype::<T>(self.dtype())?;
        Ok(self.storage.into_vec())
    }

    /// The elements in row-major order.
    ///
    /// # Errors
    ///
    /// [`TensorError::Dtype`] if they are of another type.
    pub fn as_slice<T: Scalar>(&self) -> Result<&[T], TensorError> {
        TensorError::check_dtype::<T>(self.dtype())?;
        Ok(bytemuck::cast_slice(self.storage.bytes()))
    }

    /// The elements in row-major order, mutable.
    ///
    /// # Errors
    ///
    /// [`TensorError::Dtype`] if they are of another type.
    pub fn as_mut_slice<T: Scalar>(&mut self) -> Result<&mut [T], TensorError> {
        TensorError::check_dtype::<T>(self.dtype())?;
        Ok(bytemuck::cast_slice_mut(self.storage.bytes_mut()))
    }

    /// The bytes of the elements in row-major order, in this machine's byte order.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.storage.bytes()
    }

    /// The bytes of the elements, mutable: any bits are a valid element.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.storage.bytes_mut()
    }

    /// The type of the elements.
    #[must_use]
    pub const fn dtype(&self) -> Dtype {
        self.storage.dtype()
    }

    /// The length of each dimension.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// True if there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    /// A view of all elements.
    #[must_use]
    pub fn view(&self) -> TensorView<'_> {
        TensorView::of(self.dtype(), self.storage.bytes(), Layout::row_major(&self.shape))
    }

    /// A mutable view of all elements.
    #[must_use]
    pub fn view_mut(&mut self) -> TensorViewMut<'_> {
        let (dtype, layout) = (self.dtype(), Layout::row_major(&self.shape));
        TensorViewMut::of(dtype, self.storage.bytes_mut(), layout)
    }

    /// The same elements in another shape, without a copy.
    ///
    /// # Errors
    ///
    /// [`TensorError::Reshape`] if the shape has another number of elements, [`TensorError::TooLarge`]. The tensor is dropped then.
    pub fn reshape(self, shape: &[usize]) -> Result<Self, TensorError> {
        if count(self.dtype(), shape)? != self.len() {
            return Err(TensorError::Reshape { from: self.shape, to: shape.to_vec() });
        }
        Ok(Self { storage: self.storage, shape: shape.to_vec() })
    }
}

impl TensorView<'_> {
    /// A contiguous copy.
    ///
    /// # Errors
    ///
    /// [`TensorError::Memory`].
    pub fn pack(&self) -> Result<Tensor, TensorError> {
        let mut tensor = Tensor::zeros(self.dtype(), self.shape())?;
        self.write(tensor.bytes_mut());
        Ok(tensor)
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tensor")
            .field("dtype", &self.dtype())
            .field("shape", &self.shape)
            .finish_non_exhaustive()
    }
}
