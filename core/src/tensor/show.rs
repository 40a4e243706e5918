//! Prints tensors as nested lists of numbers.

use std::fmt::{self, Display};

use super::{owned::Tensor, view::TensorView};
use crate::dtype::{Dtype, Scalar};

/// The most elements that are printed in full; above it, the middle of long dimensions is omitted.
const MOST: usize = 1000;
/// How many elements of a long dimension are printed at either end.
const ENDS: usize = 3;
/// The most elements and lists that are printed, for tensors of very many dimensions.
const ALL: usize = 10_000;

/// Prints the elements as nested lists, `[[1, 2], [3, 4]]`, each with the given precision and width. Of more than a thousand elements,
/// only three are printed at either end of every long dimension; after ten thousand elements and lists, `, ...` replaces the rest. A
/// dimension of length 0 is printed as `[]`, a tensor without dimensions as its element.
impl Display for TensorView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lists = self.shape().split(|&len| len == 0).next().unwrap_or_default();
        let empty = lists.len() < self.shape().len();
        let long = lists.iter().fold(1, |count: usize, &len| count.saturating_mul(len)) > MOST;
        let mut index = vec![0; lists.len()];
        let mut opens = lists.len();
        let mut shown = 0;
        loop {
            (0..opens).try_for_each(|_| f.write_str("["))?;
            match empty {
                true => f.write_str("[]"),
                false => self.print(&index, f),
            }?;
            let (mut ended, mut skipped) = (0, false);
            for (at, &len) in index.iter_mut().zip(lists).rev() {
                *at += 1;
                if long && *at == ENDS && len > 2 * ENDS {
                    (*at, skipped) = (len - ENDS, true);
                }
                if *at < len {
                    break;
                }
                *at = 0;
                ended += 1;
                f.write_str("]")?;
            }
            if ended == lists.len() {
                return Ok(());
            }
            shown += 1 + ended;
            if shown > ALL {
                f.write_str(", ...")?;
                return (ended..lists.len()).try_for_each(|_| f.write_str("]"));
            }
            f.write_str(if skipped { ", ..., " } else { ", " })?;
            opens = ended;
        }
    }
}

/// As [`TensorView`] prints them.
impl Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view().fmt(f)
    }
}

impl TensorView<'_> {
    /// Prints the element at an index, which is inside.
    fn print(&self, index: &[usize], f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.dtype() {
            Dtype::F16 => self.element::<half::f16>(index).fmt(f),
            Dtype::BF16 => self.element::<half::bf16>(index).fmt(f),
            Dtype::F32 => self.element::<f32>(index).fmt(f),
            Dtype::F64 => self.element::<f64>(index).fmt(f),
            Dtype::I8 => self.element::<i8>(index).fmt(f),
            Dtype::I16 => self.element::<i16>(index).fmt(f),
            Dtype::I32 => self.element::<i32>(index).fmt(f),
            Dtype::I64 => self.element::<i64>(index).fmt(f),
            Dtype::U8 => self.element::<u8>(index).fmt(f),
            Dtype::U16 => self.element::<u16>(index).fmt(f),
            Dtype::U32 => self.element::<u32>(index).fmt(f),
            Dtype::U64 => self.element::<u64>(index).fmt(f),
        }
    }

    fn element<T: Scalar>(&self, index: &[usize]) -> T {
        let steps = index.iter().zip(self.strides());
        let offset = steps.fold(self.layout().offset(), |at, (&index, &stride)| {
            at.wrapping_add(stride.cast_unsigned().wrapping_mul(index))
        });
        // The layout is within the data.
        bytemuck::pod_read_unaligned(self.bytes_at(offset))
    }
}
