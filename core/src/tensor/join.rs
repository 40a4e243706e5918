//! Joins views: along a dimension, or as the blocks of a grid.

use super::{error::TensorError, owned::Tensor, view::TensorView};

/// Concatenates tensors along a dimension, as `torch.cat` does. Their types and all other dimensions must be equal.
///
/// # Errors
///
/// [`TensorError::Empty`] if there are none, [`TensorError::Dimension`], [`TensorError::Dtype`] and
/// [`TensorError::Shape`] if one does not fit the first, [`TensorError::TooLarge`], [`TensorError::Memory`].
pub fn concat(tensors: &[TensorView<'_>], dim: usize) -> Result<Tensor, TensorError> {
    let shape = along(tensors, dim, Noun { call: "concat", noun: "tensor", numbers: None })?;
    let first = tensors.first().ok_or(TensorError::Empty { call: "concat" })?;
    let mut whole = Tensor::zeros(first.dtype(), &shape)?;
    let mut at = 0;
    for tensor in tensors {
        let size = tensor.layout().size(dim)?;
        whole.view_mut().narrow(dim, at, size)?.copy_from(tensor)?;
        at += size;
    }
    Ok(whole)
}

/// Joins a grid of blocks: the inverse of [`TensorView::blocks`]. `blocks` has `rows * columns` blocks, row by row. The blocks of a
/// row of the grid must have the same height (the last dimension but one), those of a column the same width (the last dimension),
/// and all blocks the same leading dimensions.
///
/// # Errors
///
/// [`TensorError::Empty`] and [`TensorError::Grid`] if there are not as many, [`TensorError::NoMatrix`] if they have
/// fewer than two dimensions, [`TensorError::Dtype`] and [`TensorError::Shape`] if one does not fit those in its
/// row and column, [`TensorError::TooLarge`], [`TensorError::Memory`].
pub fn assemble(blocks: &[TensorView<'_>], rows: usize, columns: usize) -> Result<Tensor, TensorError> {
    let Grid { shape, heights, widths } =
        grid(blocks, rows, columns, Noun { call: "assemble", noun: "block", numbers: None })?;
    let first = blocks.first().ok_or(TensorError::Empty { call: "assemble" })?;
    let column = shape.len().saturating_sub(1);
    let row = column.saturating_sub(1);
    let mut whole = Tensor::zeros(first.dtype(), &shape)?;
    let mut down = 0;
    for (strip, &height) in blocks.chunks_exact(columns).zip(&heights) {
        let mut right = 0;
        for (block, &width) in strip.iter().zip(&widths) {
            let place = whole.view_mut().narrow(row, down, height)?;
            place.narrow(column, right, width)?.copy_from(block)?;
            right += width;
        }
        down += height;
    }
    Ok(whole)
}

/// The names in errors: of the call, and of one of its tensors.
#[derive(Clone, Copy)]
pub(super) struct Noun<'n> {
    pub call: &'static str,
    pub noun: &'static str,
    /// The number of each tensor, if it is not its index.
    pub numbers: Option<&'n [usize]>,
}

/// The shape of the tensors concatenated along a dimension, if they fit.
pub(super) fn along(
    tensors: &[TensorView<'_>],
    dim: usize,
    noun: Noun<'_>,
) -> Result<Vec<usize>, TensorError> {
    let first = tensors.first().ok_or(TensorError::Empty { call: noun.call })?;
    first.layout().size(dim)?;
    let mut total = 0_usize;
    for (index, tensor) in tensors.iter().enumerate() {
        let size = tensor.shape().get(dim).copied().unwrap_or(0);
        fits(noun, index, tensor, first, &with(first.shape(), &[(dim, size)]))?;
        total = total.saturating_add(size);
    }
    Ok(with(first.shape(), &[(dim, total)]))
}

/// A grid of blocks: the shape of the whole, the heights of the rows and the widths of the columns.
pub(super) struct Grid {
    pub shape: Vec<usize>,
    heights: Vec<usize>,
    widths: Vec<usize>,
}

/// The grid that the blocks make, if they fit.
pub(super) fn grid(
    blocks: &[TensorView<'_>],
    rows: usize,
    columns: usize,
    noun: Noun<'_>,
) -> Result<Grid, TensorError> {
    let first = blocks.first().ok_or(TensorError::Empty { call: noun.call })?;
    if rows.checked_mul(columns) != Some(blocks.len()) {
        return Err(TensorError::Grid { given: blocks.len(), rows, columns });
    }
    let rank = first.shape().len();
    let Some(row) = rank.checked_sub(2) else { return Err(TensorError::NoMatrix { rank }) };
    let column = row + 1;
    let strips = || blocks.chunks_exact(columns);
    let size = |block: &TensorView<'_>, dim: usize| block.shape().get(dim).copied().unwrap_or(0);
    let heights: Vec<_> = strips().filter_map(<[_]>::first).map(|block| size(block, row)).collect();
    let widths: Vec<_> = blocks.iter().take(columns).map(|block| size(block, column)).collect();
    for (r, (strip, &height)) in strips().zip(&heights).enumerate() {
        for (c, (block, &width)) in strip.iter().zip(&widths).enumerate() {
            let wanted = with(first.shape(), &[(row, height), (column, width)]);
            fits(noun, r * columns + c, block, first, &wanted)?;
        }
    }
    let total = |sizes: &[usize]| sizes.iter().fold(0_usize, |sum, &size| sum.saturating_add(size));
    let shape = with(first.shape(), &[(row, total(&heights)), (column, total(&widths))]);
    Ok(Grid { shape, heights, widths })
}

/// A shape with other lengths in some of its dimensions.
fn with(shape: &[usize], lengths: &[(usize, usize)]) -> Vec<usize> {
    let mut shape = shape.to_vec();
    for &(dim, len) in lengths {
        if let Some(old) = shape.get_mut(dim) {
            *old = len;
        }
    }
    shape
}

/// Checks that tensor `index` has the type of the first and this shape.
fn fits(
    Noun { call, noun, numbers }: Noun<'_>,
    index: usize,
    tensor: &TensorView<'_>,
    first: &TensorView<'_>,
    wanted: &[usize],
) -> Result<(), TensorError> {
    if tensor.dtype() != first.dtype() {
        return Err(TensorError::Dtype { holds: tensor.dtype(), wanted: first.dtype() });
    }
    if tensor.shape() != wanted {
        let (given, wanted) = (tensor.shape().to_vec(), wanted.to_vec());
        let number = numbers.and_then(|numbers| numbers.get(index)).unwrap_or(&index);
        return Err(TensorError::Shape { call, what: format!("{noun} {number}"), given, wanted });
    }
    Ok(())
}
