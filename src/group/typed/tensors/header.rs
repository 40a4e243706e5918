//! The header that precedes a tensor's elements: its type and shape.

use serde::{Deserialize, Serialize};

use crate::{
    dtype::Dtype,
    tensor::{TensorView, count},
};

/// The type and shape of a tensor in a header.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TensorHeader {
    dtype: u8,
    shape: Vec<u64>,
}

/// The type and shape of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
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

    /// Checks the header. The error says what is wrong with it.
    pub(crate) fn read(self) -> Result<TensorInfo, String> {
        let dtype = Dtype::from_code(self.dtype).ok_or_else(|| format!("dtype number {}", self.dtype))?;
        let shape = self.shape.into_iter().map(usize::try_from).collect::<Result<Vec<_>, _>>();
        let shape = shape.map_err(|error| format!("the length of a dimension: {error}"))?;
        let bytes = count(dtype, &shape).map_err(|error| error.to_string())? * dtype.size();
        Ok(TensorInfo { dtype, shape, bytes })
    }
}
