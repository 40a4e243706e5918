//! Calls of objects: plain values, or values that Python has turned into bytes.

use pyo3::{IntoPyObjectExt, prelude::*};

use crate::{
    group::{self, Group, nothing},
    value::Value,
    work::Work,
};

fn one(py: Python<'_>, value: Value) -> PyResult<Py<PyAny>> {
    value.into_python(py)
}

/// Broadcasts the root's object; `value` counts only there. The work's result is the object.
#[pyfunction]
pub(crate) fn broadcast_object(
    group: &Bound<'_, Group>,
    value: &Bound<'_, PyAny>,
    root: usize,
    timeout: Option<f64>,
) -> PyResult<Work> {
    let value = Value::of(value);
    group.get().begin(group.py(), "broadcast_object", timeout, one, |begin| {
        begin.broadcast_object(Some(value), root)
    })
}

/// Gathers all ranks' objects. The work's result is their list, or `None` except on the root.
#[pyfunction]
pub(crate) fn gather_object(
    group: &Bound<'_, Group>,
    value: &Bound<'_, PyAny>,
    root: usize,
    timeout: Option<f64>,
) -> PyResult<Work> {
    let value = Value::of(value);
    let list =
        |py: Python<'_>, values: Option<Vec<_>>| values.map_or(Value::None, Value::List).into_python(py);
    group.get().begin(group.py(), "gather_object", timeout, list, |begin| begin.gather_object(&value, root))
}

/// Gathers all ranks' objects on every rank. The work's result is their list.
#[pyfunction]
pub(crate) fn all_gather_object(
    group: &Bound<'_, Group>,
    value: &Bound<'_, PyAny>,
    timeout: Option<f64>,
) -> PyResult<Work> {
    let value = Value::of(value);
    let list = |py: Python<'_>, values| Value::List(values).into_python(py);
    group.get().begin(group.py(), "all_gather_object", timeout, list, |begin| begin.all_gather_object(&value))
}

/// Scatters the root's objects; `values` counts only there: a list, or `None` if there is none. The work's result is this rank's.
#[pyfunction]
pub(crate) fn scatter_object(
    group: &Bound<'_, Group>,
    values: Option<Vec<Bound<'_, PyAny>>>,
    root: usize,
    timeout: Option<f64>,
) -> PyResult<Work> {
    let values = values.map(|values| values.iter().map(Value::of).collect());
    group.get().begin(group.py(), "scatter_object", timeout, one, |begin| begin.scatter_object(values, root))
}

/// Sends an object.
#[pyfunction]
pub(crate) fn send_object(
    group: &Bound<'_, Group>,
    value: &Bound<'_, PyAny>,
    to: usize,
    tag: u32,
    timeout: Option<f64>,
) -> PyResult<Work> {
    let value = Value::of(value);
    group
        .get()
        .begin(group.py(), "send_object", timeout, nothing, |begin| begin.send_object(&value, (to, tag)))
}

/// Receives an object, from a rank or, if `source` is `None`, from any. The work's result is the object and its sender.
#[pyfunction]
pub(crate) fn recv_object(
    group: &Bound<'_, Group>,
    source: Option<usize>,
    tag: u32,
    timeout: Option<f64>,
) -> PyResult<Work> {
    let pair = |py: Python<'_>, (value, from): (Value, usize)| (value.into_python(py)?, from).into_py_any(py);
    group.get().begin(group.py(), "recv_object", timeout, pair, |begin| {
        begin.recv_object((group::source(source), tag))
    })
}
