//! The memory of Python objects that have the buffer protocol: `unisono._native.View`.

use pyo3::{buffer::PyUntypedBuffer, exceptions::PyValueError, prelude::*};

/// The memory of an object with the buffer protocol: contiguous, in row-major order. As long as the view lives, the memory stays
/// where it is.
#[pyclass(frozen, module = "unisono._native")]
pub(crate) struct View {
    // This is dropped first.
    buffer: PyUntypedBuffer,
    object: Py<PyAny>,
}

impl View {
    /// Address and bytes.
    pub(crate) fn memory(&self) -> (usize, usize) {
        (self.buffer.buf_ptr().expose_provenance(), self.buffer.len_bytes())
    }

    /// The object that owns the memory.
    pub(crate) fn object(&self) -> &Py<PyAny> {
        &self.object
    }
}

#[pymethods]
impl View {
    /// The memory of `object`, which is written if it is `writable`.
    #[new]
    fn new(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(object)?;
        if !buffer.is_c_contiguous() {
            return Err(wrong(object, "not contiguous"));
        }
        if writable && buffer.readonly() {
            return Err(wrong(object, "read-only"));
        }
        Ok(Self { buffer, object: object.clone().unbind() })
    }

    /// The number of bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.buffer.len_bytes()
    }
}

fn wrong(object: &Bound<'_, PyAny>, what: &str) -> PyErr {
    let kind = object.get_type().name().map_or_else(|_| "object".to_owned(), |name| name.to_string());
    PyValueError::new_err(format!("the memory of this {kind} is {what}"))
}
