//! Files from one rank to others, by the crate `unisono-files`.

use std::{path::PathBuf, sync::mpsc::channel, thread};

use pyo3::prelude::*;
use unisono::ProcessGroup;
use unisono_files::{Delivered, Error, Options, Result};

use crate::{
    group::{self, Group},
    work::received,
};

/// Path, bytes, the bytes that were sent, and whether this rank has written the file.
type Told = (PathBuf, u64, u64, bool);

fn told(Delivered { file, bytes, sent, wrote, .. }: Delivered) -> Told {
    (file, bytes, sent, wrote)
}

/// Runs a transfer on a thread of its own, since it may take long, and lets Python handle signals meanwhile.
fn run<T: Send + 'static>(
    group: &Bound<'_, Group>,
    call: &'static str,
    transfer: impl FnOnce(&ProcessGroup) -> Result<T> + Send + 'static,
) -> PyResult<T> {
    let (py, handle) = (group.py(), group.get().handle(group.py(), call)?);
    let (sender, mut receiver) = channel();
    let run = move || {
        let ended = transfer(&handle);
        // Before the caller goes on, who may leave with the last handle.
        drop(handle);
        // Nobody receives it after Ctrl-C.
        let _unheard = sender.send(ended);
    };
    // Without the GIL, since the handle is dropped here if no thread can be started.
    py.detach(|| thread::Builder::new().name("unisono-file".to_owned()).spawn(run))?;
    let ended = received(py, &mut receiver)?
        .ok_or_else(|| group.get().failed(py, format!("{call}: its thread has ended")))?;
    ended.map_err(|error| match error {
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
) -> PyResult<Told> {
    run(group, "broadcast_file", move |handle| {
        unisono_files::broadcast(handle, &file, &directory, root, Options::default()).map(told)
    })
}

/// Sends a file to another rank.
#[pyfunction]
pub(crate) fn send_file(group: &Bound<'_, Group>, file: PathBuf, to: usize, tag: u32) -> PyResult<Told> {
    run(group, "send_file", move |handle| {
        unisono_files::send(handle, &file, to, tag, Options::default()).map(told)
    })
}

/// Receives a file, from a rank or, if `source` is `None`, from any. Returns the sender too.
#[pyfunction]
pub(crate) fn recv_file(
    group: &Bound<'_, Group>,
    directory: PathBuf,
    source: Option<usize>,
    tag: u32,
) -> PyResult<(Told, usize)> {
    run(group, "recv_file", move |handle| {
        let from = group::source(source);
        let (delivered, from) = unisono_files::recv(handle, &directory, from, tag, Options::default())?;
        Ok((told(delivered), from))
    })
}
