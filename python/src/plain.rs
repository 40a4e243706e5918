//! The collectives that most programs of PyTorch call: of contiguous tensors in main memory. Python's code for them takes five times as
//! long as the library for 8 bytes, so they are read from torch's objects here; all others go through that code.

use pyo3::{
    intern,
    prelude::*,
    sync::PyOnceLock,
    types::{PyDict, PyString},
};
use unisono::{Foreign, Request, schedule::Collective};

use crate::{
    finisher::Keep,
    operands::{self, Operand},
};

/// A collective that is ready to run.
pub(crate) struct Plain {
    pub request: Request<'static>,
    /// The input and the output.
    pub operands: (Foreign, Foreign),
    /// True if the call returns only when it has ended.
    pub waits: bool,
}

impl Plain {
    /// The collective that torch's options describe; `None` if it is not a plain one. `given` may be the same tensor as `wanted`. `kinds`
    /// has the library's codes of the type and of the operation, by the hash of torch's operation and by the dtype.
    pub(crate) fn new(
        collective: Collective,
        (given, wanted): (Option<&Bound<'_, PyAny>>, &Bound<'_, PyAny>),
        opts: &Bound<'_, PyAny>,
        kinds: &Bound<'_, PyDict>,
    ) -> PyResult<Option<Self>> {
        let py = opts.py();
        // A negative timeout is torch's "not set".
        if opts.getattr(intern!(py, "timeout"))?.getattr(intern!(py, "days"))?.extract::<i32>()? >= 0 {
            return Ok(None);
        }
        let operation = match collective.reduces() {
            true => Some(opts.getattr(intern!(py, "reduceOp"))?.hash()?),
            false => None,
        };
        let kind = kinds.get_item((operation, wanted.getattr(intern!(py, "dtype"))?))?;
        let (Some(kind), Some(output)) = (kind, flat(wanted)?) else { return Ok(None) };
        let (element, op): (u32, usize) = kind.extract()?;
        let input = match given {
            None => Foreign::none(),
            Some(given) if given.is(wanted) => output.memory(()),
            Some(given) => match flat(given)? {
                Some(input) => input.memory(keep(given)),
                None => return Ok(None),
            },
        };
        let root = match collective.has_root() {
            true => opts.getattr(intern!(py, "rootRank"))?.extract::<i64>()?,
            false => 0,
        };
        // Python's code reports a negative root.
        let Ok(root) = usize::try_from(root) else { return Ok(None) };
        let op = operands::operation(op, 1.0)?;
        let (dtype, alias) = operands::element(element)?;
        let request = Request { alias, op, root, ..Request::new(collective, dtype) };
        let waits = !opts.getattr(intern!(py, "asyncOp"))?.is_truthy()?;
        Ok(Some(Self { request, operands: (input, output.memory(keep(wanted))), waits }))
    }
}

fn keep(tensor: &Bound<'_, PyAny>) -> Keep {
    Keep::new(Some(tensor.clone().unbind()))
}

/// The memory of a tensor that can be used where it lies, as `is_flat` of the package has it; its dtype is not complex.
fn flat(tensor: &Bound<'_, PyAny>) -> PyResult<Option<Operand>> {
    static STRIDED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = tensor.py();
    let says = |question: &Bound<'_, PyString>| tensor.call_method0(question)?.is_truthy();
    let is_flat = tensor.getattr(intern!(py, "is_cpu"))?.is_truthy()?
        && tensor.getattr(intern!(py, "layout"))?.is(STRIDED.import(py, "torch", "strided")?)
        && says(intern!(py, "is_contiguous"))?
        && !says(intern!(py, "is_neg"))?;
    if !is_flat {
        return Ok(None);
    }
    let address = tensor.call_method0(intern!(py, "data_ptr"))?.extract()?;
    Ok(Some(Operand::One(address, tensor.getattr(intern!(py, "nbytes"))?.extract()?)))
}
