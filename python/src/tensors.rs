//! Calls of tensors whose types and shapes only their owners know.

use pyo3::{IntoPyObjectExt, buffer::PyBuffer, prelude::*};
use unisono::{Tensor, tensor::Parts};

use crate::{
    buffer::MemoryBuffer,
    errors::exception,
    group::{self, Group, nothing},
    operands,
    work::Work,
};

/// A tensor from Python: its dtype's code, shape, and contiguous bytes.
type Given = (u8, Vec<usize>, PyBuffer<u8>);

/// A copy, which the call owns.
fn owned(py: Python<'_>, (dtype, shape, bytes): Given) -> PyResult<Tensor> {
    let mut tensor = Tensor::zeros(operands::dtype(dtype)?, &shape)
        .map_err(|error| exception(py, None, &unisono::Error::Tensor(error)))?;
    bytes.copy_to_slice(py, tensor.bytes_mut())?;
    Ok(tensor)
}

fn all_owned(py: Python<'_>, tensors: Vec<Given>) -> PyResult<Vec<Tensor>> {
    tensors.into_iter().map(|tensor| owned(py, tensor)).collect()
}

/// A tensor for Python: its dtype's code, shape and memory.
fn taken(py: Python<'_>, tensor: Tensor) -> PyResult<Py<PyAny>> {
    let (dtype, shape) = (tensor.dtype().code(), tensor.shape().to_vec());
    (dtype, shape, MemoryBuffer::elements(tensor)).into_py_any(py)
}

fn all_taken(py: Python<'_>, tensors: Vec<Tensor>) -> PyResult<Vec<Py<PyAny>>> {
    tensors.into_iter().map(|tensor| taken(py, tensor)).collect()
}

/// How a tensor is split, as Python describes it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct TensorSplit {
    axis: usize,
    indices: Option<Vec<isize>>,
    /// Rows and columns of the grid.
    blocks: Option<(usize, usize)>,
}

impl TensorSplit {
    fn parts(&self) -> Parts<'_> {
        match (&self.indices, self.blocks) {
            (_, Some((rows, columns))) => Parts::Blocks { rows, columns },
            (Some(indices), None) => Parts::SplitAt { dim: self.axis, indices },
            (None, None) => Parts::Split(self.axis),
        }
    }
}

/// Sends tensors.
#[pyfunction]
pub(crate) fn send_tensors(
    group: &Bound<'_, Group>,
    tensors: Vec<Given>,
    to: usize,
    tag: u32,
    timeout: Option<f64>,
) -> PyResult<Work> {
    let tensors = all_owned(group.py(), tensors)?;
    group
        .get()
        .begin(group.py(), "send_tensors", timeout, nothing, |begin| begin.send_tensors(tensors, (to, tag)))
}

/// Receives tensors, from a rank or, if `source` is `None`, from any. The work's result is their list and the sender.
#[pyfunction]
pub(crate) fn recv_tensors(
    group: &Bound<'_, Group>,
    source: Option<usize>,
    tag: u32,
    timeout: Option<f64>,
) -> PyResult<Work> {
    let pair = |py: Python<'_>, (tensors, from)| (all_taken(py, tensors)?, from).into_py_any(py);
    group.get().begin(group.py(), "recv_tensors", timeout, pair, |begin| {
        begin.recv_tensors((group::source(source), tag))
    })
}

/// Broadcasts the root's tensors; on other ranks `tensors` is `None`. The work's result is their list.
#[pyfunction]
pub(crate) fn broadcast_tensors(
    group: &Bound<'_, Group>,
    tensors: Option<Vec<Given>>,
    root: usize,
    timeout: Option<f64>,
) -> PyResult<Work> {
    let tensors = tensors.map(|tensors| all_owned(group.py(), tensors)).transpose()?;
    let list = |py: Python<'_>, tensors| all_taken(py, tensors)?.into_py_any(py);
    group
        .get()
        .begin(group.py(), "broadcast_tensors", timeout, list, |begin| begin.broadcast_tensors(tensors, root))
}

/// Lists of tensors, one for each rank.
fn lists(py: Python<'_>, lists: Vec<Vec<Tensor>>) -> PyResult<Py<PyAny>> {
    let lists: Vec<_> = lists.into_iter().map(|list| all_taken(py, list)).collect::<PyResult<_>>()?;
    lists.into_py_any(py)
}

/// Gathers all ranks' tensors. The work's result is a list for each rank, or `None` except on the root.
#[pyfunction]
pub(crate) fn gather_tensors(
    group: &Bound<'_, Group>,
    tensors: Vec<Given>,
    root: usize,
    timeout: Option<f64>,
) -> PyResult<Work> {
    let tensors = all_owned(group.py(), tensors)?;
    let gathered = |py: Python<'_>, (_, gathered): (_, Option<_>)| {
        gathered.map(|gathered| lists(py, gathered)).transpose()?.into_py_any(py)
    };
    group
        .get()
        .begin(group.py(), "gather_tensors", timeout, gathered, |begin| begin.gather_tensors(tensors, root))
}

/// Gathers all ranks' tensors on every rank. The work's result is a list for each rank.
#[pyfunction]
pub(crate) fn all_gather_tensors(
    group: &Bound<'_, Group>,
    tensors: Vec<Given>,
    timeout: Option<f64>,
) -> PyResult<Work> {
    let tensors = all_owned(group.py(), tensors)?;
    let gathered = |py: Python<'_>, (_, gathered)| lists(py, gathered);
    group
        .get()
        .begin(group.py(), "all_gather_tensors", timeout, gathered, |begin| begin.all_gather_tensors(tensors))
}

/// Splits the root's tensor; on other ranks `tensor` is `None`. The work's result is this rank's part.
#[pyfunction]
pub(crate) fn scatter_tensor(
    group: &Bound<'_, Group>,
    tensor: Option<Given>,
    split: TensorSplit,
    root: usize,
    timeout: Option<f64>,
) -> PyResult<Work> {
    let tensor = tensor.map(|tensor| owned(group.py(), tensor)).transpose()?;
    let part = |py: Python<'_>, (_, part)| taken(py, part);
    group.get().begin(group.py(), "scatter_tensor", timeout, part, |begin| {
        begin.scatter_tensor(tensor, split.parts(), root)
    })
}

/// Joins the parts of all ranks. The work's result is the tensor, or `None` except on the root.
#[pyfunction]
pub(crate) fn gather_tensor(
    group: &Bound<'_, Group>,
    part: Given,
    split: TensorSplit,
    root: usize,
    timeout: Option<f64>,
) -> PyResult<Work> {
    let part = owned(group.py(), part)?;
    let whole = |py: Python<'_>, (_, whole): (_, Option<_>)| {
        whole.map(|whole| taken(py, whole)).transpose()?.into_py_any(py)
    };
    group.get().begin(group.py(), "gather_tensor", timeout, whole, |begin| {
        begin.gather_tensor(part, split.parts(), root)
    })
}

/// Joins the parts of all ranks on every rank. The work's result is the tensor.
#[pyfunction]
pub(crate) fn all_gather_tensor(
    group: &Bound<'_, Group>,
    part: Given,
    split: TensorSplit,
    timeout: Option<f64>,
) -> PyResult<Work> {
    let part = owned(group.py(), part)?;
    let whole = |py: Python<'_>, (_, whole)| taken(py, whole);
    group.get().begin(group.py(), "all_gather_tensor", timeout, whole, |begin| {
        begin.all_gather_tensor(part, split.parts())
    })
}
