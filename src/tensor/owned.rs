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
use crate::dtype::{Dtype, Element};

/// Elements of one of the twelve types in row-major order, and their shape.
///
/// Typed vectors become tensors and tensors become typed vectors without a copy. Two tensors are equal if their
/// types and shapes are and their elements are equal as numbers.
#[derive(Clone, PartialEq)]
pub struct Tensor {
    storage: Storage,
    shape: Vec<usize>,
}

macro_rules! storage {
    ($($dtype:ident: $rust:ty),* $(,)?) => {
        /// A vector of elements of whatever type, so that memory has the type it was allocated with.
        #[derive(Clone, PartialEq)]
        enum Storage {
            $($dtype(Vec<$rust>),)*
        }

        impl Storage {
            /// `None` if there is no memory for so many elements.
            fn zeros(dtype: Dtype, len: usize) -> Option<Self> {
                Some(match dtype {
                    $(Dtype::$dtype => Self::$dtype(try_zeroed_vec(len).ok()?),)*
                })
            }

            /// None yet, and room for so many; `None` if there is no memory for them.
            fn room(dtype: Dtype, len: usize) -> Option<Self> {
                Some(match dtype {
                    $(Dtype::$dtype => {
                        let mut vec = Vec::new();
                        vec.try_reserve_exact(len).ok()?;
                        Self::$dtype(vec)
                    })*
                })
            }

            /// With zeros behind those that there are, up to so many.
            fn grow(&mut self, len: usize) {
                match self {
                    $(Self::$dtype(vec) => vec.resize(len.max(vec.len()), Zeroable::zeroed()),)*
                }
            }

            /// How many there are, which touches none of them.
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

            /// The casts are from a type to itself: `T` is the one that its dtype names.
            fn from_vec<T: Element>(vec: Vec<T>) -> Self {
                match T::DTYPE {
                    $(Dtype::$dtype => Self::$dtype(cast_vec(vec)),)*
                }
            }

            /// Of the type that the storage has, or another of its size.
            fn into_vec<T: Element>(self) -> Vec<T> {
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
    /// All zeros.
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

    /// No elements yet, and room for so many in one dimension; `None` where there is no memory for them.
    pub(crate) fn room(dtype: Dtype, count: usize) -> Option<Self> {
        Some(Self { storage: Storage::room(dtype, count)?, shape: vec![0] })
    }

    /// Adds zeros, up to `count` elements in one dimension. As long as there is [room](Self::room), nothing moves and what
    /// is there is not touched.
    pub(crate) fn grow(&mut self, count: usize) {
        self.storage.grow(count);
        self.shape = vec![self.storage.len()];
    }

    /// Where the elements begin, those too for which there is only room.
    pub(crate) fn start(&mut self) -> *mut u8 {
        self.storage.start()
    }

    /// The elements of a vector, in row-major order. Nothing is copied.
    ///
    /// # Errors
    ///
    /// [`TensorError::Length`] if the shape takes more or fewer, [`TensorError::TooLarge`].
    pub fn from_vec<T: Element>(vec: Vec<T>, shape: &[usize]) -> Result<Self, TensorError> {
        Layout::exact(T::DTYPE, vec.len(), shape)?;
        Ok(Self { storage: Storage::from_vec(vec), shape: shape.to_vec() })
    }

    /// The elements in row-major order. Nothing is copied.
    ///
    /// # Errors
    ///
    /// [`TensorError::Dtype`] if they are of another type; the tensor is gone then, so look at
    /// [`Tensor::dtype`] first where that can be.
    pub fn into_vec<T: Element>(self) -> Result<Vec<T>, TensorError> {
        self.holds::<T>()?;
        Ok(self.storage.into_vec())
    }

    /// The elements in row-major order.
    ///
    /// # Errors
    ///
    /// [`TensorError::Dtype`] if they are of another type.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], TensorError> {
        self.holds::<T>()?;
        Ok(bytemuck::cast_slice(self.storage.bytes()))
    }

    /// The elements in row-major order, to be changed.
    ///
    /// # Errors
    ///
    /// [`TensorError::Dtype`] if they are of another type.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T], TensorError> {
        self.holds::<T>()?;
        Ok(bytemuck::cast_slice_mut(self.storage.bytes_mut()))
    }

    fn holds<T: Element>(&self) -> Result<(), TensorError> {
        let holds = self.dtype();
        if holds == T::DTYPE { Ok(()) } else { Err(TensorError::Dtype { holds, wanted: T::DTYPE }) }
    }

    /// The bytes of the elements in row-major order, each as this machine has it in memory.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.storage.bytes()
    }

    /// The bytes of the elements, to be changed: any bits are an element.
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

    /// How many elements there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    /// All elements, to be read.
    #[must_use]
    pub fn view(&self) -> TensorView<'_> {
        TensorView::of(self.dtype(), self.storage.bytes(), Layout::row_major(&self.shape))
    }

    /// All elements, to be changed.
    #[must_use]
    pub fn view_mut(&mut self) -> TensorViewMut<'_> {
        let (dtype, layout) = (self.dtype(), Layout::row_major(&self.shape));
        TensorViewMut::of(dtype, self.storage.bytes_mut(), layout)
    }

    /// The same elements in another shape. Nothing is copied.
    ///
    /// # Errors
    ///
    /// [`TensorError::Reshape`] if the shape takes more or fewer elements, [`TensorError::TooLarge`]; the tensor is
    /// gone then.
    pub fn reshape(self, shape: &[usize]) -> Result<Self, TensorError> {
        if count(self.dtype(), shape)? != self.len() {
            return Err(TensorError::Reshape { from: self.shape, to: shape.to_vec() });
        }
        Ok(Self { storage: self.storage, shape: shape.to_vec() })
    }
}

impl TensorView<'_> {
    /// A copy whose elements lie in row-major order.
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
