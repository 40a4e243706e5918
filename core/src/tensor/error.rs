//! Errors of tensors: what was given, what was wanted and what to do.

use crate::dtype::{Dtype, Scalar};

/// Why a tensor or a view of one cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The elements are of another type than asked for.
    #[error("the tensor holds {holds} and {wanted} was asked for; ask for {holds}, or convert the elements")]
    Dtype {
        /// The type of its elements.
        holds: Dtype,
        /// The type that was asked for.
        wanted: Dtype,
    },
    /// The elements are of a type that this library does not have.
    #[error("elements of type {name} are not supported; convert them to one of {}", names())]
    ForeignDtype {
        /// Its name in the other crate.
        name: String,
    },
    /// The shape takes more than `isize::MAX` bytes; dimensions of length 0 are left out of the product.
    #[error("the shape {shape:?} of {dtype} takes more than {} bytes; give a smaller one", isize::MAX)]
    TooLarge {
        /// The shape.
        shape: Vec<usize>,
        /// The type of its elements.
        dtype: Dtype,
    },
    /// The system has too little memory.
    #[error("there is no memory for {bytes} bytes; split the tensor, or free some")]
    Memory {
        /// The number of bytes that were needed.
        bytes: usize,
    },
    /// The data has another length than the shape.
    #[error("{given} {unit} were given, and the shape {shape:?} takes {wanted}; give exactly as many")]
    Length {
        /// The length of the data.
        given: usize,
        /// The length that the shape takes.
        wanted: usize,
        /// The unit of both lengths: `elements` or `bytes`.
        unit: &'static str,
        /// The shape.
        shape: Vec<usize>,
    },
    /// Shape and strides have different numbers of dimensions.
    #[error("{strides} strides were given for {rank} dimensions; give one stride for each dimension")]
    Strides {
        /// The number of strides.
        strides: usize,
        /// The number of dimensions.
        rank: usize,
    },
    /// An element of the view would lie outside the data.
    #[error(
        "a view of shape {shape:?} with strides {strides:?} from element {offset} on reaches outside the {len} \
        elements given; give all of them, or a view that lies inside"
    )]
    Outside {
        /// The shape of the view.
        shape: Vec<usize>,
        /// Its strides, in elements.
        strides: Vec<isize>,
        /// The index of its first element.
        offset: usize,
        /// The number of elements of the data.
        len: usize,
    },
    /// A mutable view may reach an element twice, because its strides do not nest.
    #[error(
        "a mutable view of shape {shape:?} with strides {strides:?} may reach one element twice; \
        give every dimension a stride longer than what all dimensions of shorter strides reach"
    )]
    Overlap {
        /// The shape of the view.
        shape: Vec<usize>,
        /// Its strides, in elements.
        strides: Vec<isize>,
    },
    /// There is no such dimension.
    #[error("there is no dimension {dim} in a tensor of {rank}; they are counted from 0")]
    Dimension {
        /// The dimension that was given.
        dim: usize,
        /// The number of dimensions.
        rank: usize,
    },
    /// The tensor has too few dimensions to be split into a grid of blocks.
    #[error("a grid of blocks needs matrices, and the tensor has {rank} dimensions; reshape it to 2 or more")]
    NoMatrix {
        /// The number of dimensions.
        rank: usize,
    },
    /// A permutation does not name each dimension once.
    #[error("{given:?} is not a permutation of {rank} dimensions; name each of them once, counted from 0")]
    Permutation {
        /// The permutation that was given.
        given: Vec<usize>,
        /// The number of dimensions.
        rank: usize,
    },
    /// A range is not within its dimension.
    #[error(
        "{len} elements from {start} on were wanted of dimension {dim}, which has {size}; stay inside it"
    )]
    Narrow {
        /// The dimension.
        dim: usize,
        /// The first index of the range.
        start: usize,
        /// The length of the range.
        len: usize,
        /// The length of the dimension.
        size: usize,
    },
    /// The number of parts is 0.
    #[error("{call}: nothing can be divided into 0 parts; ask for 1 or more")]
    NoParts {
        /// The method called.
        call: &'static str,
    },
    /// A tensor does not have the shape that is needed.
    #[error("{call}: {what} has the shape {given:?} and {wanted:?} was wanted; reshape or narrow it")]
    Shape {
        /// The method or function called.
        call: &'static str,
        /// Which tensor has the wrong shape, for instance `tensor 2`.
        what: String,
        /// Its shape.
        given: Vec<usize>,
        /// The shape that is needed.
        wanted: Vec<usize>,
    },
    /// The new shape has another number of elements.
    #[error("the shape {from:?} cannot become {to:?}: that is another number of elements")]
    Reshape {
        /// The shape of the tensor.
        from: Vec<usize>,
        /// The shape that was asked for.
        to: Vec<usize>,
    },
    /// The elements are not contiguous in row-major order.
    #[error("a view of shape {shape:?} with strides {strides:?} is not contiguous; pack it first")]
    NotContiguous {
        /// The shape of the view.
        shape: Vec<usize>,
        /// Its strides, in elements.
        strides: Vec<isize>,
    },
    /// The address of the bytes is not a multiple of the size of an element.
    #[error("the bytes are not aligned for {dtype}, which needs multiples of {}; pack them first", .dtype.size())]
    Misaligned {
        /// The type that was asked for.
        dtype: Dtype,
    },
    /// Between the elements of an array of another crate lies memory that does not belong to it.
    #[error(
        "an array of shape {shape:?} with strides {strides:?} has gaps, and what lies in them may be \
        borrowed elsewhere; make a view of the whole array and narrow that, or copy it into a Tensor"
    )]
    Gaps {
        /// The shape of the array.
        shape: Vec<usize>,
        /// Its strides, in elements.
        strides: Vec<isize>,
    },
    /// No tensors were given.
    #[error("{call}: no tensors were given; give at least 1, which says dtype and shape")]
    Empty {
        /// The function called.
        call: &'static str,
    },
    /// The number of indices does not fit the number of parts.
    #[error("{given} indices cut a dimension into {} parts, and {parts} are wanted; give one index fewer than parts", .given + 1)]
    Cuts {
        /// The number of indices that were given.
        given: usize,
        /// The number of parts that are needed.
        parts: usize,
    },
    /// The number of blocks does not fit the grid.
    #[error("{given} blocks do not fill a grid of {rows} x {columns}; give one for each place, row by row")]
    Grid {
        /// The number of blocks that were given.
        given: usize,
        /// The number of rows of the grid.
        rows: usize,
        /// The number of columns.
        columns: usize,
    },
}

impl TensorError {
    /// An error unless elements of the type `holds` are of type `T`.
    pub(super) fn check_dtype<T: Scalar>(holds: Dtype) -> Result<(), Self> {
        if holds == T::DTYPE { Ok(()) } else { Err(Self::Dtype { holds, wanted: T::DTYPE }) }
    }
}

/// The names of all types: `f16, bf16, ...`.
fn names() -> String {
    Dtype::ALL.map(Dtype::name).join(", ")
}
