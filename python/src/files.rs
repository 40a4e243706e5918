//! Files from one rank to others, by the crate `unisono-files`.

use std::path::PathBuf;

use pyo3::prelude::*;
use unisono::ProcessGroup;
use unisono_files::{Delivered, Error, Options, Result};

use crate::group::{self, Group};

/// The path, the bytes, the bytes that were sent, and true if this rank has written the file.
type Summary = (PathBuf, u64, u64, bool);

fn summary(Delivered { file, bytes, sent, wrote, .. }: Delivered) -> Summary {
    (file, bytes, sent, wrote)
}

/// Runs a transfer, and lets Python handle signals meanwhile.
fn run<T: Send + 'static>(
    group: &Bound<'_, Group>,
    call: &'static str,
    transfer: impl FnOnce(&ProcessGroup) -> Result<T> + Send + 'static,
) -> PyResult<T> {
    let py = group.py();
    group.get().elsewhere(py, call, transfer)?.map_err(|error| match error {
        Error::Group(cause) => group.get().error(py, &cause),
        error => group.get().failed(py, format!("{call}: {error}")),
    })
}

/// Copies a file of the root to all ranks.
#[pyfunction]
pub(crate) fn broadcast_file(
    group: &Bound<'_, Group>,
    file: PathBuf,
    directory: PathBuf,
    root: usize,
) -> PyResult<Summary> {
    run(group, "broadcast_file", move |handle| {
        unisono_files::broadcast(handle, &file, &directory, root, Options::default()).map(summary)
    })
}

/// Sends a file to another rank.
#[pyfunction]
pub(crate) fn send_file(group: &Bound<'_, Group>, file: PathBuf, to: usize, tag: u32) -> PyResult<Summary> {
    run(group, "send_file", move |handle| {
        unisono_files::send(handle, &file, to, tag, Options::default()).map(summary)
    })
}

/// Receives a file, from a rank or, if `source` is `None`, from any. Returns the sender too.
#[pyfunction]
pub(crate) fn recv_file(
    group: &Bound<'_, Group>,
    directory: PathBuf,
    source: Option<usize>,
    tag: u32,
) -> PyResult<(Summary, usize)> {
    run(group, "recv_file", move |handle| {
        let from = group::source(source);
        let (delivered, from) = unisono_files::recv(handle, &directory, from, tag, Options::default())?;
        Ok((summary(delivered), from))
    })
}
