//! Splitting, against simple implementations of torch's definitions, and joining what was split.

use proptest::prelude::*;

use super::{Change, Model, changes, data, dtype, shape, tensor, typed};
use crate::{
    dtype::{Dtype, Scalar},
    tensor::{Tensor, TensorError, TensorView, assemble, concat},
};

/// `torch.chunk`: takes pieces of the rounded-up length until nothing is left.
fn chunked(size: usize, parts: usize) -> Vec<usize> {
    if size == 0 {
        return vec![0; parts];
    }
    let (piece, mut left, mut lengths) = (size.div_ceil(parts), size, Vec::new());
    while left > 0 {
        lengths.push(piece.min(left));
        left -= piece.min(left);
    }
    lengths
}

/// `torch.tensor_split`: gives elements to the pieces, one to each in turn.
fn dealt(size: usize, parts: usize) -> Vec<usize> {
    let mut lengths = vec![0; parts];
    (0..size).for_each(|element| lengths[element % parts] += 1);
    lengths
}

/// Python's `x[start:end]` of `0..size`.
fn sliced(size: usize, start: isize, end: isize) -> Vec<usize> {
    let size = size.cast_signed();
    let place = |index: isize| (if index < 0 { index + size } else { index }).clamp(0, size);
    (place(start)..place(end)).map(isize::cast_unsigned).collect()
}

/// Checks that pieces of these lengths are consecutive in the whole.
fn lie_in_order(whole: &TensorView<'_>, dim: usize, pieces: &[TensorView<'_>], lengths: &[usize]) {
    assert_eq!(pieces.iter().map(|piece| piece.shape()[dim]).collect::<Vec<_>>(), lengths);
    let mut at = 0;
    for (piece, &len) in pieces.iter().zip(lengths) {
        assert_eq!(piece.pack().unwrap(), whole.narrow(dim, at, len).unwrap().pack().unwrap());
        at += len;
    }
    assert_eq!(concat(pieces, dim).unwrap(), whole.pack().unwrap());
}

/// Splits and assembles a changed view in every way.
fn splits<T: Scalar>(elements: &[T], shape: &[usize], changes: &[Change], dim: usize, parts: usize) {
    let (mut model, mut view) = (Model::new(shape), TensorView::new(elements, shape).unwrap());
    for change in changes {
        view = model.change(view, elements, change);
    }
    let dim = dim % shape.len();
    let size = view.shape()[dim];
    lie_in_order(&view, dim, &view.chunk(dim, parts).unwrap(), &chunked(size, parts));
    lie_in_order(&view, dim, &view.tensor_split(dim, parts).unwrap(), &dealt(size, parts));
    let Some(row) = shape.len().checked_sub(2) else { return };
    let (rows, columns) = (parts, dim + 1);
    let blocks = view.blocks(rows, columns).unwrap();
    let heights = dealt(view.shape()[row], rows);
    let widths = dealt(view.shape()[row + 1], columns);
    for (number, block) in blocks.iter().enumerate() {
        let (r, c) = (number / columns, number % columns);
        let strip = view.narrow(row, heights[..r].iter().sum(), heights[r]).unwrap();
        let wanted = strip.narrow(row + 1, widths[..c].iter().sum(), widths[c]).unwrap();
        assert_eq!(block.pack().unwrap().bytes(), wanted.pack().unwrap().bytes());
    }
    assert_eq!(blocks.len(), rows * columns);
    assert_eq!(assemble(&blocks, rows, columns).unwrap().bytes(), view.pack().unwrap().bytes());
}

proptest! {
    #[test]
    fn parts_are_those_of_torch(
        dtype in prop_oneof![Just(Dtype::U8), Just(Dtype::I16), Just(Dtype::U32), Just(Dtype::I64)],
        shape in shape(7, 1..5),
        changes in changes(),
        dim in 0_usize..4,
        parts in 1_usize..9,
    ) {
        typed!(dtype, T => splits(&data::<T>(shape.iter().product()), &shape, &changes, dim, parts));
    }

    #[test]
    fn cuts_are_slices(
        size in 0_usize..8,
        indices in proptest::collection::vec(
            prop_oneof![10 => -10_isize..10, 1 => Just(isize::MIN), 1 => Just(isize::MAX)], 0..5),
    ) {
        let elements: Vec<_> = (0..size as u64).collect();
        let view = TensorView::new(&elements, &[size]).unwrap();
        let pieces = view.tensor_split_at(0, &indices).unwrap();
        prop_assert_eq!(pieces.len(), indices.len() + 1);
        let limit = |index: isize| index.clamp(-100, 100);
        for (number, piece) in pieces.iter().enumerate() {
            let start = number.checked_sub(1).map_or(0, |last| limit(indices[last]));
            let end = indices.get(number).map_or(100, |&index| limit(index));
            let wanted: Vec<_> = sliced(size, start, end).into_iter().map(|place| place as u64).collect();
            prop_assert_eq!(piece.as_slice::<u64>().unwrap(), wanted);
        }
    }

    #[test]
    fn what_was_split_comes_together(dtype in dtype(), rows in 1_usize..5, columns in 1_usize..5) {
        let whole = tensor(dtype, &[2, 9, 7]);
        let blocks = whole.view().blocks(rows, columns).unwrap();
        let again = assemble(&blocks, rows, columns).unwrap();
        prop_assert_eq!((again.shape(), again.bytes()), (whole.shape(), whole.bytes()));
    }
}

#[test]
fn what_cannot_be_divided_is_refused() {
    let whole = tensor(Dtype::F32, &[4]);
    let view = whole.view();
    assert_eq!(view.chunk(0, 0).err(), Some(TensorError::NoParts { call: "chunk" }));
    assert_eq!(view.tensor_split(0, 0).err(), Some(TensorError::NoParts { call: "tensor_split" }));
    assert_eq!(view.chunk(1, 2).err(), Some(TensorError::Dimension { dim: 1, rank: 1 }));
    assert_eq!(view.tensor_split_at(3, &[1]).err(), Some(TensorError::Dimension { dim: 3, rank: 1 }));
    assert_eq!(view.blocks(1, 1).err(), Some(TensorError::NoMatrix { rank: 1 }));
    assert!(matches!(view.tensor_split(0, usize::MAX), Err(TensorError::Memory { .. })));
    assert_eq!(view.chunk(0, usize::MAX).unwrap().len(), 4);
    let matrix = view.reshape(&[2, 2]).unwrap();
    assert_eq!(matrix.blocks(0, 1).err(), Some(TensorError::NoParts { call: "blocks" }));
    assert!(matches!(matrix.blocks(usize::MAX, 2), Err(TensorError::Memory { .. })));
    let scalar = view.narrow(0, 0, 1).unwrap().reshape(&[]).unwrap();
    assert_eq!(scalar.chunk(0, 1).err(), Some(TensorError::Dimension { dim: 0, rank: 0 }));
}

#[test]
fn what_does_not_fit_is_not_put_together() {
    let (a, b, other) =
        (tensor(Dtype::F32, &[2, 3]), tensor(Dtype::F32, &[2, 4]), tensor(Dtype::I32, &[2, 3]));
    assert_eq!(concat(&[], 0), Err(TensorError::Empty { call: "concat" }));
    assert_eq!(assemble(&[], 0, 3), Err(TensorError::Empty { call: "assemble" }));
    assert_eq!(concat(&[a.view()], 2), Err(TensorError::Dimension { dim: 2, rank: 2 }));
    assert_eq!(concat(&[a.view(), b.view()], 1).unwrap().shape(), [2, 7]);
    let refused = concat(&[a.view(), b.view()], 0);
    assert!(matches!(refused, Err(TensorError::Shape { call: "concat", .. })), "{refused:?}");
    let scalar = Tensor::zeros(Dtype::F32, &[]).unwrap();
    assert!(matches!(concat(&[a.view(), scalar.view()], 0), Err(TensorError::Shape { .. })));
    let wrong = TensorError::Dtype { holds: Dtype::I32, wanted: Dtype::F32 };
    assert_eq!(concat(&[a.view(), other.view()], 0), Err(wrong.clone()));
    assert_eq!(assemble(&[a.view(), other.view()], 1, 2), Err(wrong));
    let grid = assemble(&[a.view(), b.view()], 2, 2);
    assert_eq!(grid, Err(TensorError::Grid { given: 2, rows: 2, columns: 2 }));
    assert!(matches!(assemble(&[a.view(), b.view()], 2, 1), Err(TensorError::Shape { .. })));
    assert!(matches!(assemble(&[a.view()], usize::MAX, 2), Err(TensorError::Grid { .. })));
    let line = tensor(Dtype::F32, &[2]);
    assert_eq!(assemble(&[line.view()], 1, 1), Err(TensorError::NoMatrix { rank: 1 }));
    // Empty, and each as long as can be: together they are too long.
    let long = TensorView::from_bytes(Dtype::U8, &[], &[0, isize::MAX.cast_unsigned()]).unwrap();
    let refused = concat(&[long.clone(), long.clone(), long], 1);
    assert!(matches!(refused, Err(TensorError::TooLarge { .. })), "{refused:?}");
}
