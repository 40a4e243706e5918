//! What all crates of `unisono` speak of: the types of elements and their reductions, tensors, objects, errors, and the positions of
//! ranks. Programs use it by the crate `unisono`, which gives its public modules on.
//!
//! Items that are hidden from the documentation are for the other crates of `unisono`; they may change with every version.

pub mod dtype;
pub mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod object;
#[doc(hidden)]
pub mod outside;
pub mod position;
pub mod reduce;
pub mod tensor;

pub use error::{Error, Failure, Result};
pub use reduce::{ReduceOp, Reduction};
pub use tensor::{Tensor, TensorView, TensorViewMut};
