//! Errors of the library as exceptions: wrong arguments are a `ValueError`, all others a `unisono.Error` or the class with which a
//! group was joined.

use std::time::Duration;

use pyo3::{
    create_exception, exceptions::PyRuntimeError, exceptions::PyValueError, prelude::*, types::PyType,
};
use unisono::{Error as Cause, Failure};

create_exception!(
    unisono,
    Error,
    PyRuntimeError,
    "A group has failed or could not be joined. The text is the same on all ranks: who, where, what was given and wanted, what to do."
);

/// The class of the exceptions of a group's failures; `None` is [`Error`].
pub(crate) type Class = Option<Py<PyType>>;

/// The exception of an error.
pub(crate) fn exception(py: Python<'_>, class: Option<&Py<PyType>>, error: &Cause) -> PyErr {
    let text = text(error);
    match error {
        Cause::Argument { .. } | Cause::Tensor(_) => PyValueError::new_err(text),
        _ => failure(py, class, text),
    }
}

/// The exception of an error of this call. A problem of a tensor does not name the call itself.
pub(crate) fn of_call(py: Python<'_>, class: Option<&Py<PyType>>, call: &str, error: &Cause) -> PyErr {
    match error {
        Cause::Tensor(_) => PyValueError::new_err(format!("{call}: {error}")),
        error => exception(py, class, error),
    }
}

/// An exception for an error that is not a wrong argument.
pub(crate) fn failure(py: Python<'_>, class: Option<&Py<PyType>>, text: String) -> PyErr {
    match class {
        Some(class) => PyErr::from_type(class.bind(py).clone(), text),
        None => Error::new_err(text),
    }
}

/// The sentence of an error. That of a deadline holds ` Timed out `, by which PyTorch and its users recognise timeouts.
pub(crate) fn text(error: &Cause) -> String {
    let waited = match error {
        Cause::Failed(Failure::Deadline { waited, .. } | Failure::Undelivered { waited, .. })
        | Cause::Missing { waited, .. } => Some(*waited),
        _ => None,
    };
    match (waited, error) {
        (Some(waited), _) => format!("{} {error}", timed_out(waited)),
        // The name of a type in Rust says nothing to Python's users.
        (None, Cause::Object { call, rank, problem, .. }) => {
            Cause::Object { call, rank: *rank, type_name: "object", problem: problem.clone() }.to_string()
        }
        (None, _) => error.to_string(),
    }
}

/// The sentence of the first failure with which this process left a world and that no call had raised before, or `None`.
#[pyfunction]
pub(crate) fn late_failure() -> Option<String> {
    unisono::late_failure().map(|failure| text(&Cause::Failed(failure)))
}

/// The beginning of a sentence about a deadline.
pub(crate) fn timed_out(waited: Duration) -> String {
    format!("unisono: Timed out waiting {}ms:", waited.as_millis())
}
