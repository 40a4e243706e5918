//! Arguments of calls: memory by address, codes of collectives, types and operations.
#![allow(unsafe_code, reason = "memory that Python owns is given by its address")]

use std::time::Duration;

use pyo3::{exceptions::PyValueError, prelude::*, types::PyTuple};
use unisono::{
    Foreign, ReduceOp,
    dtype::{Alias, Dtype},
    schedule::Collective,
};

use crate::view::View;

/// An operand: nothing, memory (a view, or address and bytes), or several pieces of memory.
pub(crate) enum Operand {
    None,
    One(usize, usize),
    Pieces(Vec<(usize, usize)>),
}

impl<'py> FromPyObject<'_, 'py> for Operand {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if object.is_none() {
            return Ok(Self::None);
        }
        if let Ok(view) = object.cast::<View>() {
            let (address, bytes) = view.get().memory();
            return Ok(Self::One(address, bytes));
        }
        if let Ok(pair) = object.cast::<PyTuple>() {
            let (address, bytes) = pair.extract()?;
            return Ok(Self::One(address, bytes));
        }
        Ok(Self::Pieces(object.extract()?))
    }
}

impl Operand {
    /// The memory, kept alive by `owner`.
    ///
    /// The package calls this with the addresses of tensors and buffers that it holds until a blocking call has returned, or that
    /// `owner` holds.
    pub(crate) fn memory(&self, owner: impl Send + 'static) -> Foreign {
        let pointer = |address: usize| std::ptr::with_exposed_provenance_mut::<u8>(address);
        match self {
            Self::None => Foreign::none(),
            // SAFETY: by the promise of the callers in this package, above.
            Self::One(address, bytes) => unsafe { Foreign::new(pointer(*address), *bytes, owner) },
            // SAFETY: likewise.
            Self::Pieces(pieces) => unsafe {
                Foreign::pieces(pieces.iter().map(|(address, bytes)| (pointer(*address), *bytes)), owner)
            },
        }
    }
}

/// The memory of a call's input and output, kept alive by `owner` as long as the library has them: a rank that gets nothing has no output.
pub(crate) fn kept(input: &Operand, output: &Operand, owner: impl Send + 'static) -> (Foreign, Foreign) {
    match output {
        Operand::None => (input.memory(owner), Foreign::none()),
        output => (input.memory(()), output.memory(owner)),
    }
}

/// The collective of this code, as in `_native.COLLECTIVES`.
pub(crate) fn collective(code: usize) -> PyResult<Collective> {
    let unknown = || PyValueError::new_err(format!("there is no collective {code}"));
    Collective::ALL.get(code).copied().ok_or_else(unknown)
}

/// The type of this code, as in `_native.DTYPES`.
pub(crate) fn dtype(code: u8) -> PyResult<Dtype> {
    Dtype::from_code(code).ok_or_else(|| PyValueError::new_err(format!("there is no dtype {code}")))
}

/// The type of elements: a code as in `_native.DTYPES`, and 256 times what `_native.alias` says of the caller's type.
pub(crate) fn element(code: u32) -> PyResult<(Dtype, Alias)> {
    let [of, low, high, _] = code.to_le_bytes();
    Ok((dtype(of)?, Alias::from_code(u16::from_le_bytes([low, high]))))
}

/// The operation of this code, as in `_native.OPERATIONS`; the last one multiplies by a factor.
pub(crate) fn operation(code: usize, factor: f64) -> PyResult<ReduceOp> {
    match ReduceOp::PLAIN.get(code) {
        Some(&op) => Ok(op),
        None if code == ReduceOp::PLAIN.len() => Ok(ReduceOp::PreMulSum(factor)),
        None => Err(PyValueError::new_err(format!("there is no operation {code}"))),
    }
}

/// A time in seconds.
pub(crate) fn seconds(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|error| PyValueError::new_err(format!("a time of {seconds} s: {error}")))
}
