//! How one tensor is split into parts, one for each rank, and joined again.

use unisono_schedule::partition;

use super::{
    assemble, concat,
    error::TensorError,
    join::{Noun, along, grid},
    layout::count,
    owned::Tensor,
    view::TensorView,
};
use crate::dtype::Dtype;

/// How a tensor is split among ranks: rank r has part r.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parts<'a> {
    /// Split a dimension as [`TensorView::tensor_split`] does: into lengths that differ by at most 1. When parts are joined, they
    /// may have any lengths.
    Split(usize),
    /// Split a dimension as [`TensorView::chunk`] does: into equal lengths, except for the last part; ranks beyond it have empty
    /// parts. When parts are joined, they may have any lengths.
    Chunk(usize),
    /// Split a dimension as [`TensorView::tensor_split_at`] does: before each of these indices, one fewer than the number of ranks.
    /// When parts are joined, they may have any lengths.
    SplitAt {
        /// The dimension.
        dim: usize,
        /// The indices before which it is split.
        indices: &'a [isize],
    },
    /// Split a matrix into the [`TensorView::blocks`] of a grid, row by row; the number of blocks is the number of ranks.
    Blocks {
        /// The rows of the grid.
        rows: usize,
        /// Its columns.
        columns: usize,
    },
}

impl Parts<'_> {
    /// Splits a tensor into `parts` parts.
    #[doc(hidden)]
    pub fn cut<'a>(self, whole: &TensorView<'a>, parts: usize) -> Result<Vec<TensorView<'a>>, TensorError> {
        match self {
            Self::Split(dim) => whole.tensor_split(dim, parts),
            Self::Chunk(dim) => {
                let mut pieces = whole.chunk(dim, parts)?;
                let end = whole.layout().size(dim)?;
                let rest = whole.narrow(dim, end, 0)?;
                pieces.resize(parts, rest);
                Ok(pieces)
            }
            Self::SplitAt { indices, .. } if indices.len() + 1 != parts => {
                Err(TensorError::Cuts { given: indices.len(), parts })
            }
            Self::SplitAt { dim, indices } => whole.tensor_split_at(dim, indices),
            Self::Blocks { rows, columns } if rows.checked_mul(columns) != Some(parts) => {
                Err(TensorError::Grid { given: parts, rows, columns })
            }
            Self::Blocks { rows, columns } => whole.blocks(rows, columns),
        }
    }

    /// The shapes of the parts of a tensor of this shape.
    #[doc(hidden)]
    pub fn shapes(self, shape: &[usize], parts: usize) -> Result<Vec<Vec<usize>>, TensorError> {
        let parts = self.cut(&shaped(shape)?, parts)?;
        Ok(parts.iter().map(|part| part.shape().to_vec()).collect())
    }

    /// The shape of the joined tensor, checked not to exceed the address space.
    #[doc(hidden)]
    pub fn joined(
        self,
        dtype: Dtype,
        shapes: &[&[usize]],
        call: &'static str,
        ranks: &[usize],
    ) -> Result<Vec<usize>, TensorError> {
        let parts = shapes.iter().map(|shape| shaped(shape)).collect::<Result<Vec<_>, _>>()?;
        let noun = Noun { call, noun: "the tensor of rank", numbers: Some(ranks) };
        let shape = match self {
            Self::Split(dim) | Self::Chunk(dim) | Self::SplitAt { dim, .. } => along(&parts, dim, noun)?,
            Self::Blocks { rows, columns } => grid(&parts, rows, columns, noun)?.shape,
        };
        count(dtype, &shape)?;
        Ok(shape)
    }

    /// Joins parts.
    #[doc(hidden)]
    pub fn join(self, parts: &[TensorView<'_>]) -> Result<Tensor, TensorError> {
        match self {
            Self::Split(dim) | Self::Chunk(dim) | Self::SplitAt { dim, .. } => concat(parts, dim),
            Self::Blocks { rows, columns } => assemble(parts, rows, columns),
        }
    }

    /// True if the concatenated elements of the parts are the elements of the whole tensor, in row-major order.
    #[doc(hidden)]
    pub fn follow(self, shape: &[usize]) -> bool {
        let dim = match self {
            Self::Split(dim) | Self::Chunk(dim) => dim,
            Self::SplitAt { dim, indices } => {
                // If an index is below the one before it, pieces have elements in common.
                let mut end = 0;
                let mut pieces = partition::cuts(shape.get(dim).copied().unwrap_or_default(), indices);
                if !pieces.all(|piece| std::mem::replace(&mut end, piece.end) == piece.start) {
                    return false;
                }
                dim
            }
            Self::Blocks { columns: 1, .. } => shape.len().saturating_sub(2),
            Self::Blocks { .. } => return false,
        };
        shape.iter().take(dim).all(|&len| len == 1)
    }
}

/// A view of this shape, all of whose elements are the same byte.
fn shaped(shape: &[usize]) -> Result<TensorView<'static>, TensorError> {
    TensorView::with_strides(&[0_u8], 0, shape, &vec![0; shape.len()])
}
