//! The program `unisono` for `python -m unisono`.

use std::{ffi::OsString, process::ExitCode};

use pyo3::prelude::*;
use unisono_cli::Invocation;

/// Runs the program and returns its exit status. `again` is the command that starts this program once more, without `arguments`.
///
/// It takes over the process: signals that end a job, its log, standard output and error. To be called once, on the main thread.
#[pyfunction]
pub(crate) fn main(py: Python<'_>, again: Vec<OsString>, arguments: Vec<OsString>) -> u8 {
    let exit = py.detach(|| unisono_cli::main(Invocation::new(again, arguments)));
    // The standard library has no way to read an `ExitCode`.
    (0..=u8::MAX).find(|&status| ExitCode::from(status) == exit).unwrap_or(u8::MAX)
}
