//! Memory of the library that Python uses: `unisono._native.Buffer`.
#![allow(unsafe_code, reason = "Python's buffer protocol is a C interface")]

use std::{
    ffi::{c_int, c_void},
    os::fd::{BorrowedFd, RawFd},
};

use pyo3::{exceptions::PyBufferError, ffi, prelude::*};
use unisono::{Error, Memory, Tensor};

/// Bytes with Python's buffer protocol, freed with the last object that uses them: registered memory, which the NIC reads and writes
/// without a copy, or the elements of a received tensor.
#[pyclass(name = "Buffer", frozen, module = "unisono._native")]
pub(crate) struct MemoryBuffer {
    base: usize,
    len: usize,
    /// `None` while it is dropped.
    owner: Option<Owner>,
}

enum Owner {
    Registered(#[expect(dead_code, reason = "kept for its drop")] unisono::Buffer<u8>),
    Tensor(#[expect(dead_code, reason = "kept for its drop")] Tensor),
}

impl MemoryBuffer {
    pub(crate) fn registered(buffer: unisono::Buffer<u8>) -> Self {
        let (base, len) = (buffer.base().expose_provenance(), buffer.len());
        Self { base, len, owner: Some(Owner::Registered(buffer)) }
    }

    /// The elements of a tensor. They stay where they are when the tensor is moved.
    pub(crate) fn elements(mut tensor: Tensor) -> Self {
        let bytes = tensor.bytes_mut();
        let (base, len) = (bytes.as_mut_ptr().expose_provenance(), bytes.len());
        Self { base, len, owner: Some(Owner::Tensor(tensor)) }
    }
}

/// A part of the memfd with this descriptor. The caller in Python promises that nothing else touches it meanwhile.
pub(crate) fn memory_of(file: RawFd, offset: u64, bytes: usize) -> unisono::Result<Memory> {
    if file < 0 {
        return Err(Error::Argument {
            call: "buffer_from",
            problem: format!("{file} is not a file descriptor"),
        });
    }
    // SAFETY: not -1. If it is closed meanwhile, or no descriptor at all, the system says so.
    let file = unsafe { BorrowedFd::borrow_raw(file) };
    // SAFETY: no reference is made to these bytes. If others write to them at the wrong time, only the numbers change.
    Ok(unsafe { Memory::of_memfd(file, offset, bytes) }?)
}

impl Drop for MemoryBuffer {
    /// Drops the owner without the GIL: other threads use the list of registered memory, and the last memory of a world may be
    /// freed here.
    fn drop(&mut self) {
        let owner = self.owner.take();
        Python::attach(|py| py.detach(|| drop(owner)));
    }
}

#[pymethods]
impl MemoryBuffer {
    fn __len__(&self) -> usize {
        self.len
    }

    /// The address of the first byte.
    #[getter]
    fn address(&self) -> usize {
        self.base
    }

    /// # Safety
    /// Called by Python with a view to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let base = std::ptr::with_exposed_provenance_mut::<c_void>(slf.get().base);
        let len =
            isize::try_from(slf.get().len).map_err(|error| PyBufferError::new_err(error.to_string()))?;
        // SAFETY: `view` is Python's to fill; no one else owns the memory, and it lives as long as `slf`, to which the view gets a
        // reference.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), base, len, 0, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}
