//! Errors of tensors: what was given, what was wanted and what to do.

use crate::dtype::Dtype;

/// Why a tensor or a view of one cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The elements are of another type than asked for.
    #[error("the tensor holds {holds} and {wanted} was asked for; ask for {holds}, or convert the elements")]
    Dtype {
        /// What it holds.
        holds: Dtype,
        /// What was asked for.
        wanted: Dtype,
    },
    /// The elements are of a type that this library does not have.
    #[error("elements of type {name} are none of {}; convert them first", names())]
    ForeignDtype {
        /// Its name where it comes from.
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
        /// How many were wanted.
        bytes: usize,
    },
    /// The data has another length than the shape.
    #[error("{given} {unit} were given, and the shape {shape:?} takes {wanted}; give exactly these")]
    Length {
        /// How many there are.
        given: usize,
        /// How many the shape takes.
        wanted: usize,
        /// Of what: `elements` or `bytes`.
        unit: &'static str,
        /// The shape.
        shape: Vec<usize>,
    },
    /// Shape and strides have different numbers of dimensions.
    #[error("{strides} strides were given for {rank} dimensions; give one stride for each dimension")]
    Strides {
        /// How many strides.
        strides: usize,
        /// How many dimensions.
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
        /// Its first element.
        offset: usize,
        /// How many elements there are.
        len: usize,
    },
    /// A view to write through would reach an element twice, or its strides do not nest, so that it may.
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
    /// No such dimension.
    #[error("there is no dimension {dim} in a tensor of {rank}; they are counted from 0")]
    Dimension {
        /// The one given.
        dim: usize,
        /// How many there are.
        rank: usize,
    },
    /// Too few dimensions for blocks of matrices.
    #[error("a grid of blocks needs matrices, and the tensor has {rank} dimensions; reshape it to 2 or more")]
    NoMatrix {
        /// How many there are.
        rank: usize,
    },
    /// The order does not name each dimension once.
    #[error("{given:?} is no order of {rank} dimensions; name each of them once, from 0 on")]
    Permutation {
        /// What was given.
        given: Vec<usize>,
        /// How many dimensions there are.
        rank: usize,
    },
    /// A part that does not lie inside its dimension.
    #[error(
        "{len} elements from {start} on were wanted of dimension {dim}, which has {size}; stay inside it"
    )]
    Narrow {
        /// The dimension.
        dim: usize,
        /// Where the part begins.
        start: usize,
        /// How long it is.
        len: usize,
        /// How long the dimension is.
        size: usize,
    },
    /// A division into no parts.
    #[error("{call}: nothing can be divided into 0 parts; ask for 1 or more")]
    NoParts {
        /// The method called.
        call: &'static str,
    },
    /// The shape does not fit.
    #[error("{call}: {what} has the shape {given:?} and {wanted:?} was wanted; reshape or narrow it")]
    Shape {
        /// The method or function called.
        call: &'static str,
        /// What has that shape, for instance `tensor 2`.
        what: String,
        /// The shape it has.
        given: Vec<usize>,
        /// The shape that fits.
        wanted: Vec<usize>,
    },
    /// The new shape has another number of elements.
    #[error("the shape {from:?} cannot become {to:?}: that is another number of elements")]
    Reshape {
        /// The shape it has.
        from: Vec<usize>,
        /// The one asked for.
        to: Vec<usize>,
    },
    /// The elements do not lie one after the other.
    #[error("a view of shape {shape:?} with strides {strides:?} is not contiguous; pack it first")]
    NotContiguous {
        /// The shape of the view.
        shape: Vec<usize>,
        /// Its strides, in elements.
        strides: Vec<isize>,
    },
    /// The bytes do not lie where a slice of this type may begin.
    #[error("the bytes are not aligned for {dtype}, which needs multiples of {}; pack them first", .dtype.size())]
    Misaligned {
        /// The type asked for.
        dtype: Dtype,
    },
    /// An array of another crate has elements between its own that are not its own.
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
        /// How many indices were given.
        given: usize,
        /// How many parts there are to be.
        parts: usize,
    },
    /// The number of blocks does not fit the grid.
    #[error("{given} blocks do not fill a grid of {rows} x {columns}; give one for each place, row by row")]
    Grid {
        /// How many blocks were given.
        given: usize,
        /// The rows of the grid.
        rows: usize,
        /// Its columns.
        columns: usize,
    },
}

/// The names of our types: `f16, bf16, ...`.
fn names() -> String {
    Dtype::ALL.map(Dtype::name).join(", ")
}
