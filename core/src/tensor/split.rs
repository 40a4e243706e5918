//! Splits views as torch does. The arithmetic is in `partition`.

use std::ops::Range;

use unisono_schedule::partition;

use super::{error::TensorError, view::TensorView};

impl<'a> TensorView<'a> {
    /// Splits a dimension into at most `parts` pieces, as `torch.chunk` does: each has `size / parts` elements, rounded up, except
    /// the last, which has the rest. There may be fewer pieces: 5 elements in 4 parts are 2, 2 and 1. A dimension of length 0 gives
    /// `parts` empty pieces.
    ///
    /// # Errors
    ///
    /// [`TensorError::NoParts`], [`TensorError::Dimension`], [`TensorError::Memory`].
    pub fn chunk(&self, dim: usize, parts: usize) -> Result<Vec<Self>, TensorError> {
        let size = self.divided("chunk", dim, parts)?;
        self.pieces(dim, partition::alike(size, parts))
    }

    /// Splits a dimension into exactly `parts` pieces, as `torch.tensor_split` does: the first `size % parts` have one element more
    /// than the others.
    ///
    /// # Errors
    ///
    /// [`TensorError::NoParts`], [`TensorError::Dimension`], [`TensorError::Memory`].
    pub fn tensor_split(&self, dim: usize, parts: usize) -> Result<Vec<Self>, TensorError> {
        let size = self.divided("tensor_split", dim, parts)?;
        self.pieces(dim, (0..parts).map(|index| partition::block(size, parts, index)))
    }

    /// Splits a dimension before each of these indices, as `torch.tensor_split` does, into one piece more than there are indices.
    /// Negative indices count from the end; an index outside the dimension is replaced by the nearest end. If an index is not above
    /// the one before, the piece between them is empty.
    ///
    /// # Errors
    ///
    /// [`TensorError::Dimension`], [`TensorError::Memory`].
    pub fn tensor_split_at(&self, dim: usize, indices: &[isize]) -> Result<Vec<Self>, TensorError> {
        let size = self.layout().size(dim)?;
        self.pieces(dim, partition::cuts(size, indices))
    }

    /// Splits the last two dimensions into a grid of blocks, each dimension as [`TensorView::tensor_split`] does. The block in row
    /// `r` and column `c` has index `r * columns + c`. The inverse is [`super::assemble`].
    ///
    /// # Errors
    ///
    /// [`TensorError::NoMatrix`] if there are fewer than two dimensions, [`TensorError::NoParts`],
    /// [`TensorError::Memory`].
    pub fn blocks(&self, rows: usize, columns: usize) -> Result<Vec<Self>, TensorError> {
        let rank = self.shape().len();
        let Some(row) = rank.checked_sub(2) else { return Err(TensorError::NoMatrix { rank }) };
        if rows == 0 || columns == 0 {
            return Err(TensorError::NoParts { call: "blocks" });
        }
        let mut blocks = room(rows.saturating_mul(columns))?;
        for strip in self.tensor_split(row, rows)? {
            blocks.extend(strip.tensor_split(row + 1, columns)?);
        }
        Ok(blocks)
    }

    /// The length of a dimension that is to be divided.
    fn divided(&self, call: &'static str, dim: usize, parts: usize) -> Result<usize, TensorError> {
        let size = self.layout().size(dim)?;
        if parts == 0 { Err(TensorError::NoParts { call }) } else { Ok(size) }
    }

    fn pieces(
        &self,
        dim: usize,
        ranges: impl ExactSizeIterator<Item = Range<usize>>,
    ) -> Result<Vec<Self>, TensorError> {
        let mut pieces = room(ranges.len())?;
        for range in ranges {
            pieces.push(self.narrow(dim, range.start, range.len())?);
        }
        Ok(pieces)
    }
}

/// An empty vector with room for this many views. Their number may come from another rank.
fn room<'a>(views: usize) -> Result<Vec<TensorView<'a>>, TensorError> {
    let mut room = Vec::new();
    let bytes = views.saturating_mul(size_of::<TensorView<'a>>());
    room.try_reserve_exact(views).map_err(|_| TensorError::Memory { bytes })?;
    Ok(room)
}
