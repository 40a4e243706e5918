//! Packs the elements of tensors into messages, and unpacks them; and the header that precedes them, a tensor's type and shape.

use std::{borrow::Cow, ops::Range};

use serde::{Deserialize, Serialize};

use crate::{
    dtype::Dtype,
    tensor::{Tensor, TensorError, TensorView, TensorViewMut, count},
};

/// The tensors of these sizes that go in one message or operation: runs of neighbours with at most `most` bytes in all, and every longer
/// tensor alone. Empty tensors are in no run.
pub(crate) fn runs(sizes: impl Iterator<Item = usize>, most: usize) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let mut room = 0_usize;
    for (index, size) in sizes.enumerate().filter(|(_, size)| *size > 0) {
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

/// The type and shape of a tensor in a header.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TensorHeader {
    dtype: u8,
    shape: Vec<u64>,
}

/// The type and shape of a tensor, which decoding a [`TensorHeader`] checks.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "TensorHeader")]
pub(crate) struct TensorInfo {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// The number of bytes of its elements.
    pub bytes: usize,
}

impl TensorHeader {
    pub(crate) fn of(tensor: &TensorView<'_>) -> Self {
        Self { dtype: tensor.dtype().code(), shape: tensor.shape().iter().map(|&len| len as u64).collect() }
    }
}

impl TryFrom<TensorHeader> for TensorInfo {
    type Error = String;

    fn try_from(header: TensorHeader) -> Result<Self, String> {
        let dtype = Dtype::from_code(header.dtype).ok_or_else(|| format!("dtype number {}", header.dtype))?;
        let shape = header.shape.into_iter().map(usize::try_from).collect::<Result<Vec<_>, _>>();
        let shape = shape.map_err(|error| format!("the length of a dimension: {error}"))?;
        let bytes = count(dtype, &shape).map_err(|error| error.to_string())? * dtype.size();
        Ok(Self { dtype, shape, bytes })
    }
}
