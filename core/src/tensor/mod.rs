//! Tensors: elements of a type that is known at run time, with a shape; views of tensors with any strides; packing, splitting and
//! joining. Pure data: nothing here communicates.
//!
//! Shapes, offsets and strides are in elements; dimensions are counted from 0. A shape without dimensions has a single element; a
//! shape with a dimension of length 0 has none. Shapes and strides from any source are safe: a shape whose elements take more than
//! `isize::MAX` bytes (dimensions of length 0 are ignored) and a view that reaches outside its data are errors.
//!
//! ```
//! # use unisono_core as unisono;
//! use unisono::{Tensor, TensorView, tensor};
//!
//! # fn main() -> unisono::Result<()> {
//! let matrix = Tensor::from_vec(vec![1_i32, 2, 3, 4, 5, 6], &[2, 3])?;
//! let turned = matrix.view().transpose(0, 1)?.pack()?;
//! assert_eq!(turned.as_slice::<i32>()?, [1, 4, 2, 5, 3, 6]);
//! assert_eq!(turned.to_string(), "[[1, 4], [2, 5], [3, 6]]");
//!
//! let columns = matrix.view().tensor_split(1, 2)?;
//! assert_eq!([columns[0].shape(), columns[1].shape()], [[2, 2], [2, 1]]);
//! assert_eq!(tensor::concat(&columns, 1)?, matrix);
//! # Ok(()) }
//! ```

#[cfg(all(feature = "safetensors", target_endian = "big"))]
compile_error!(
    "safetensors are little-endian, and their bytes are not swapped: build without the feature `safetensors`"
);

mod copy;
mod error;
mod join;
mod layout;
#[cfg(feature = "ndarray")]
mod ndarray;
mod owned;
mod parts;
#[cfg(feature = "safetensors")]
mod safetensors;
mod show;
mod split;
#[cfg(test)]
mod tests;
mod view;
mod view_mut;

pub use error::TensorError;
pub use join::{assemble, concat};
#[doc(hidden)]
pub use layout::count;
pub use owned::Tensor;
pub use parts::Parts;
pub use view::{StridedView, TensorView};
pub use view_mut::TensorViewMut;
