//! Types of elements: the twelve types, their names, sizes and codes on the wire, and the Rust types that calls take.

use half::{bf16, f16};
pub use unisono_core::dtype::{Alias, Dtype, Scalar};

/// A Rust type that calls take. Sealed, as [`Scalar`]: the twelve of [`Dtype`], and usize and isize; not bool, since a byte of another rank may be neither
/// 0 nor 1, and a bool must be. A trait of this crate, and not [`Scalar`] itself,
/// because a slice of elements and a slice of slices are operands both, and the compiler tells these apart only by a trait of the same
/// crate.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an element type of unisono",
    label = "no element type",
    note = "the element types are f32, f64, i8 to i64, u8 to u64, usize and isize, and f16 and bf16 of the crate `half`",
    note = "values of other types travel as objects, by `broadcast_object`, `send_object` and their like"
)]
pub trait Element: Scalar {}

macro_rules! elements {
    ($($rust:ty),* $(,)?) => {
        $(impl Element for $rust {})*
    };
}

elements!(f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, usize, isize);
