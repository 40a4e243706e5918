//! Registered memory: `unisono._native.Buffer`.
#![allow(unsafe_code, reason = "Python's buffer protocol is a C interface")]

use std::ffi::{c_int, c_void};

use pyo3::{exceptions::PyBufferError, ffi, prelude::*};

/// Zeroed memory that the NIC reads and writes without a copy. It has Python's buffer protocol, and is freed with the last object
/// that uses it.
#[pyclass(frozen, module = "unisono._native")]
pub(crate) struct Buffer(unisono::Buffer<u8>);

impl Buffer {
    pub(crate) fn new(buffer: unisono::Buffer<u8>) -> Self {
        Self(buffer)
    }
}

#[pymethods]
impl Buffer {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// The address of the first byte.
    #[getter]
    fn address(&self) -> usize {
        self.0.base().expose_provenance()
    }

    /// # Safety
    /// Called by Python with a view to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let (base, len) = (slf.get().0.base(), slf.get().0.len());
        let len = isize::try_from(len).map_err(|error| PyBufferError::new_err(error.to_string()))?;
        // SAFETY: `view` is Python's to fill; the memory lives as long as `slf`, to which the view gets a reference.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), base.cast::<c_void>(), len, 0, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}
