//! The module `unisono._native`.

use pyo3::prelude::*;

mod program;

/// The native part of the package `unisono`; not for use by others.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::program::main;

    /// The version of the package.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
