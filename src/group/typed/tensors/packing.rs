//! Packs the elements of tensors into messages, and unpacks them.

use std::{borrow::Cow, ops::Range};

use crate::tensor::{Tensor, TensorError, TensorView, TensorViewMut};

/// The tensors that go in one message or operation: runs of neighbours with at most `most` bytes in all, and every longer tensor alone.
/// Empty tensors are in no run.
pub(crate) fn runs(sizes: &[usize], most: usize) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let mut room = 0_usize;
    for (index, &size) in sizes.iter().enumerate().filter(|(_, size)| **size > 0) {
        match (runs.last_mut(), room.checked_sub(size)) {
            (Some(run), Some(left)) => (run.end, room) = (index + 1, left),
            _ => {
                runs.push(index..index + 1);
                room = most.saturating_sub(size);
            }
        }
    }
    runs
}

pub(crate) fn views(tensors: &[Tensor]) -> Vec<TensorView<'_>> {
    tensors.iter().map(Tensor::view).collect()
}

/// The elements of tensors in row-major order, concatenated; borrowed if they already are one piece of memory.
pub(crate) fn packed<'t>(tensors: &[TensorView<'t>]) -> Result<Cow<'t, [u8]>, TensorError> {
    let mut long = tensors.iter().filter(|tensor| !tensor.is_empty());
    let Some(first) = long.next() else { return Ok(Cow::Borrowed(&[])) };
    if let (None, Ok(bytes)) = (long.next(), first.bytes()) {
        return Ok(Cow::Borrowed(bytes));
    }
    let sizes = tensors.iter().map(|tensor| tensor.len().saturating_mul(tensor.dtype().size()));
    let len = sizes.clone().fold(0_usize, usize::saturating_add);
    let mut all = zeroed(len)?;
    let mut rest = &mut all[..];
    for (tensor, size) in tensors.iter().zip(sizes) {
        let (place, after) = rest.split_at_mut_checked(size).unwrap_or_default();
        tensor.pack_into(place)?;
        rest = after;
    }
    Ok(Cow::Owned(all))
}

/// `bytes` zeros.
pub(crate) fn zeroed(bytes: usize) -> Result<Vec<u8>, TensorError> {
    bytemuck::allocation::try_zeroed_vec(bytes).map_err(|()| TensorError::Memory { bytes })
}

/// Unpacks concatenated elements into their tensors.
pub(crate) fn unpack_each<'t>(
    mut bytes: &[u8],
    tensors: impl Iterator<Item = TensorViewMut<'t>>,
) -> Result<(), TensorError> {
    for mut tensor in tensors {
        let size = tensor.len().saturating_mul(tensor.dtype().size());
        if let Some((own, rest)) = bytes.split_at_checked(size) {
            tensor.unpack_from(own)?;
            bytes = rest;
        }
    }
    Ok(())
}
