//! The module `unisono._native`.

use pyo3::prelude::*;

mod buffer;
mod errors;
mod files;
mod finisher;
mod group;
mod join;
mod log;
mod marks;
mod objects;
mod operands;
mod plain;
mod program;
mod tensors;
mod value;
mod view;
mod work;

/// The native part of the package `unisono`; not for use by others.
#[pymodule]
mod _native {
    use pyo3::prelude::*;
    use unisono::{
        dtype::{Alias, Dtype},
        reduce::ReduceOp,
        schedule::Collective,
    };

    #[pymodule_export]
    use super::{
        buffer::MemoryBuffer,
        errors::{Error, late_failure},
        files::{broadcast_file, recv_file, send_file},
        finisher::{Calls, call_soon, end_calls, unraisable},
        group::Group,
        join::{ServedStore, init_world, join},
        objects::{
            all_gather_object, broadcast_object, gather_object, recv_object, scatter_object, send_object,
        },
        program::main,
        tensors::{
            all_gather_tensor, all_gather_tensors, broadcast_tensors, gather_tensor, gather_tensors,
            recv_tensors, scatter_tensor, send_tensors,
        },
        value::{Pickled, Unsendable},
        view::View,
        work::Work,
    };

    /// The version of the package.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    /// The code of the name of a type that the library moves as another type.
    #[pyfunction]
    fn alias(name: &str) -> u16 {
        Alias::of(name).code()
    }

    /// The names of collectives, dtypes and operations, in the order of their codes.
    #[pymodule_init]
    fn names(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("COLLECTIVES", Collective::ALL.map(Collective::name).to_vec())?;
        module.add("DTYPES", Dtype::ALL.map(Dtype::name).to_vec())?;
        let mut operations = ReduceOp::PLAIN.map(ReduceOp::name).to_vec();
        operations.push(ReduceOp::PreMulSum(1.0).name());
        module.add("OPERATIONS", operations)
    }
}
