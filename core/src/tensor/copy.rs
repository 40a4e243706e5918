//! Copies elements from one layout to another: the one loop behind packing, unpacking and assembling.
//!
//! Elements are copied as bytes, so any alignment is allowed. Dimensions that are adjacent on both sides are merged. Runs of adjacent
//! elements are copied by `memcpy`; planes of which each side has short strides where the other has long ones, as of a transposed
//! matrix, in tiles, so that both sides stay in the first-level cache.

use super::layout::Layout;
use crate::dtype::Dtype;

/// The side of a tile: 32 x 32 elements of 8 bytes on both sides are 16 KiB.
const TILE: usize = 32;

/// A dimension of a copy: its length, and its stride on either side.
#[derive(Clone, Copy, Debug)]
struct Dim {
    len: usize,
    to: isize,
    from: isize,
}

/// An index on either side, in elements.
#[derive(Clone, Copy, Debug)]
struct At {
    to: usize,
    from: usize,
}

impl At {
    /// `steps` steps along a dimension. An index that wraps is caught by the bounds of the slices.
    fn along(self, dim: Dim, steps: usize) -> Self {
        let step = |at: usize, stride: isize| at.wrapping_add(stride.cast_unsigned().wrapping_mul(steps));
        Self { to: step(self.to, dim.to), from: step(self.from, dim.from) }
    }
}

/// Copies every element of `from` to its place in `to`. Both layouts have the same shape and are within their data, which may have any
/// address.
pub(super) fn copy(dtype: Dtype, to: &mut [u8], to_layout: &Layout, from: &[u8], from_layout: &Layout) {
    debug_assert_eq!(to_layout.shape(), from_layout.shape());
    if to_layout.shape().contains(&0) {
        return;
    }
    let (at, dims) = plan(to_layout, from_layout);
    match dtype.size() {
        1 => walk::<1>(to, from, at, &dims),
        2 => walk::<2>(to, from, at, &dims),
        4 => walk::<4>(to, from, at, &dims),
        _ => walk::<8>(to, from, at, &dims),
    }
}

/// The first indices, and the fewest dimensions that give the same pairs of elements, those with the shortest strides of `to` last.
fn plan(to: &Layout, from: &Layout) -> (At, Vec<Dim>) {
    let mut at = At { to: to.offset(), from: from.offset() };
    let strides = to.strides().iter().zip(from.strides());
    let dims = to.shape().iter().zip(strides).map(|(&len, (&to, &from))| Dim { len, to, from });
    let mut dims: Vec<_> = dims.filter(|dim| dim.len > 1).collect();
    for dim in &mut dims {
        if dim.to < 0 {
            at = at.along(*dim, dim.len - 1);
            (dim.to, dim.from) = (-dim.to, -dim.from);
        }
    }
    dims.sort_by_key(|dim| std::cmp::Reverse(dim.to));
    let mut merged: Vec<Dim> = Vec::with_capacity(dims.len());
    for dim in dims {
        let whole = |stride: isize| isize::try_from(dim.len).ok().and_then(|len| stride.checked_mul(len));
        match merged.last_mut() {
            Some(last) if whole(dim.to) == Some(last.to) && whole(dim.from) == Some(last.from) => {
                *last = Dim { len: last.len * dim.len, ..dim };
            }
            _ => merged.push(dim),
        }
    }
    (at, merged)
}

/// Copies elements of `N` bytes.
fn walk<const N: usize>(to: &mut [u8], from: &[u8], at: At, dims: &[Dim]) {
    nest::<N>(to.as_chunks_mut().0, from.as_chunks().0, at, dims);
}

fn nest<const N: usize>(to: &mut [[u8; N]], from: &[[u8; N]], at: At, dims: &[Dim]) {
    match *dims {
        [] => to[at.to] = from[at.from],
        [inner] => line(to, from, at, inner),
        [outer, inner]
            if inner.to == 1 && inner.from != 1 && outer.from.unsigned_abs() < inner.from.unsigned_abs() =>
        {
            tiles(to, from, at, outer, inner);
        }
        [outer, ref inner @ ..] => (0..outer.len).for_each(|i| nest(to, from, at.along(outer, i), inner)),
    }
}

/// Copies elements along one dimension.
fn line<const N: usize>(to: &mut [[u8; N]], from: &[[u8; N]], at: At, dim: Dim) {
    if (dim.to, dim.from) == (1, 1) {
        to[at.to..at.to + dim.len].copy_from_slice(&from[at.from..at.from + dim.len]);
        return;
    }
    for i in 0..dim.len {
        let at = at.along(dim, i);
        to[at.to] = from[at.from];
    }
}

/// Copies a plane of which each side has short strides where the other has long ones.
fn tiles<const N: usize>(to: &mut [[u8; N]], from: &[[u8; N]], at: At, outer: Dim, inner: Dim) {
    for row in (0..outer.len).step_by(TILE) {
        for column in (0..inner.len).step_by(TILE) {
            let at = at.along(outer, row).along(inner, column);
            let tile = Dim { len: TILE.min(inner.len - column), ..inner };
            for i in 0..TILE.min(outer.len - row) {
                line(to, from, at.along(outer, i), tile);
            }
        }
    }
}
