//! Process groups: `unisono._native.Group`. Python checks and describes the arguments; the library does the rest without the GIL.

#![expect(clippy::too_many_arguments, reason = "what Python gives, one by one, since that is cheapest")]

use std::sync::{Arc, PoisonError, RwLock};

use pyo3::{IntoPyObjectExt, prelude::*, types::PyDict};
use unisono::{Error as Cause, Foreign, MessageRequest, ProcessGroup, Request, Source, schedule::Uneven};

use crate::{
    buffer::{self, Buffer},
    errors::{Class, exception, failure, text},
    finisher::{self, Keep},
    operands::{self, Operand, seconds},
    plain::Plain,
    work::{Operation, Pending, SIGNALS, Work},
};

/// Lengths of blocks in elements: of the input and of the output.
type Lengths = (Vec<usize>, Vec<usize>);

/// A group of ranks, as one rank sees it.
#[pyclass(frozen, weakref, module = "unisono._native")]
pub(crate) struct Group {
    /// `None` after `leave`.
    handle: RwLock<Option<Arc<ProcessGroup>>>,
    /// The class of the exceptions of failures.
    class: Class,
}

impl Group {
    pub(crate) fn new(group: ProcessGroup, class: Class) -> Self {
        Self { handle: RwLock::new(Some(Arc::new(group))), class }
    }

    pub(crate) fn group(&self, py: Python<'_>, call: &'static str) -> PyResult<Arc<ProcessGroup>> {
        let handle = self.handle.read().unwrap_or_else(PoisonError::into_inner).clone();
        handle.ok_or_else(|| self.error(py, &Cause::Left { call }))
    }

    pub(crate) fn error(&self, py: Python<'_>, error: &Cause) -> PyErr {
        exception(py, self.class.as_ref(), error)
    }

    /// The exception of what is no error of the library's core.
    pub(crate) fn failed(&self, py: Python<'_>, text: String) -> PyErr {
        failure(py, self.class.as_ref(), text)
    }

    fn class(&self, py: Python<'_>) -> Class {
        self.class.as_ref().map(|class| class.clone_ref(py))
    }

    fn begun(&self, py: Python<'_>, begun: Result<Pending, Cause>) -> PyResult<Work> {
        let work = |pending| Work(Operation::new(pending, self.class(py)));
        begun.map(work).map_err(|error| self.error(py, &error))
    }

    /// Runs a collective, and lets Python handle signals meanwhile.
    fn run(&self, py: Python<'_>, request: &Request<'_>, input: Foreign, output: Foreign) -> PyResult<()> {
        let group = self.group(py, request.collective.name())?;
        let mut signals = Ok(());
        let ended = py.detach(|| {
            group.collective_while(request, input, output, SIGNALS, || {
                signals = Python::attach(|py| py.check_signals());
                signals.is_ok()
            })
        });
        match ended {
            Ok(memory) => finisher::dropped(py, memory.ok()),
            Err(error) => return Err(self.error(py, &error)),
        }
        signals
    }

    /// Begins a collective.
    fn begin_collective(
        &self,
        py: Python<'_>,
        request: &Request<'_>,
        input: Foreign,
        output: Foreign,
    ) -> PyResult<Work> {
        let group = self.group(py, request.collective.name())?;
        let begun = py.detach(|| group.collective_async(request, input, output));
        let ended = |py: Python<'_>, memory: (Foreign, Foreign)| {
            finisher::dropped(py, memory);
            Ok(py.None())
        };
        self.begun(py, begun.map(|work| Pending::new(work, ended)))
    }

    /// Begins an operation with a handle whose calls have this timeout, without the GIL: a thread that waits may need it.
    pub(crate) fn begin(
        &self,
        py: Python<'_>,
        call: &'static str,
        timeout: Option<f64>,
        begin: impl FnOnce(&ProcessGroup) -> Result<Pending, Cause> + Send,
    ) -> PyResult<Work> {
        let group = self.group(py, call)?;
        let timeout = timeout.map(seconds).transpose()?;
        let begun = py.detach(|| match timeout {
            Some(timeout) => group.with_timeout(timeout).and_then(|group| begin(&group)),
            None => begin(&group),
        });
        self.begun(py, begun)
    }

    /// A new group, if this rank is a member.
    fn part(&self, py: Python<'_>, made: Result<Option<ProcessGroup>, Cause>) -> PyResult<Option<Self>> {
        let made = made.map_err(|error| self.error(py, &error))?;
        Ok(made.map(|group| Self::new(group, self.class(py))))
    }

    /// Begins a message.
    fn begin_message(
        &self,
        py: Python<'_>,
        request: MessageRequest,
        data: Operand,
        keep: Option<Py<PyAny>>,
    ) -> PyResult<Work> {
        let group = self.group(py, "a message")?;
        let data = data.memory(Keep::new(keep));
        let begun = py.detach(|| group.message_async(&request, data));
        let sent = |py: Python<'_>, (memory, peer): (Foreign, usize)| {
            finisher::dropped(py, memory);
            peer.into_py_any(py)
        };
        self.begun(py, begun.map(|work| Pending::new(work, sent)))
    }
}

#[pymethods]
impl Group {
    /// This rank's number in the group.
    #[getter]
    fn rank(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.group(py, "rank")?.rank())
    }

    /// The number of ranks.
    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.group(py, "size")?.size())
    }

    /// The ranks in the world of all members.
    #[getter]
    fn members(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        Ok(self.group(py, "members")?.members().to_vec())
    }

    /// The group's name in errors.
    #[getter]
    fn name(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.group(py, "name")?.name().to_owned())
    }

    /// The libfabric provider and its version.
    #[getter]
    fn provider(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.group(py, "provider")?.limits().provider.clone())
    }

    /// The number of collective operations that this rank has begun.
    #[getter]
    fn operations(&self, py: Python<'_>) -> PyResult<u64> {
        let group = self.group(py, "operations")?;
        Ok(py.detach(|| group.operations()))
    }

    /// Runs a collective; returns when it has ended.
    #[pyo3(signature = (collective, dtype, op, factor, root, input, output, lengths=None, coalesced=false, timeout=None, keep=None))]
    fn collective(
        &self,
        py: Python<'_>,
        collective: usize,
        dtype: u8,
        op: usize,
        factor: f64,
        root: usize,
        input: Operand,
        output: Operand,
        lengths: Option<Lengths>,
        coalesced: bool,
        timeout: Option<f64>,
        keep: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let request = request(collective, dtype, (op, factor), root, lengths.as_ref(), coalesced, timeout)?;
        self.run(py, &request, input.memory(()), output.memory(Keep::new(keep)))
    }

    /// Runs or begins a collective of tensors as torch's options describe it, if it is a plain one: its tensors are contiguous and in main
    /// memory, and its kind is in `kinds`. Returns the work, `True` if it has ended, or `False` if it is not plain and nothing has begun.
    fn run_plain<'py>(
        &self,
        py: Python<'py>,
        collective: usize,
        given: Option<&Bound<'py, PyAny>>,
        wanted: &Bound<'py, PyAny>,
        opts: &Bound<'py, PyAny>,
        kinds: &Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match Plain::new(operands::collective(collective)?, (given, wanted), opts, kinds)? {
            None => false.into_bound_py_any(py),
            Some(Plain { request, input, output, waits: true }) => {
                self.run(py, &request, input, output)?;
                true.into_bound_py_any(py)
            }
            Some(Plain { request, input, output, waits: false }) => {
                self.begin_collective(py, &request, input, output)?.into_bound_py_any(py)
            }
        }
    }

    /// Begins a collective. `keep` keeps its memory alive until it has ended.
    #[pyo3(signature = (collective, dtype, op, factor, root, input, output, lengths=None, coalesced=false, timeout=None, keep=None))]
    fn collective_async(
        &self,
        py: Python<'_>,
        collective: usize,
        dtype: u8,
        op: usize,
        factor: f64,
        root: usize,
        input: Operand,
        output: Operand,
        lengths: Option<Lengths>,
        coalesced: bool,
        timeout: Option<f64>,
        keep: Option<Py<PyAny>>,
    ) -> PyResult<Work> {
        let request = request(collective, dtype, (op, factor), root, lengths.as_ref(), coalesced, timeout)?;
        self.begin_collective(py, &request, input.memory(()), output.memory(Keep::new(keep)))
    }

    /// Begins to send memory to a rank.
    #[pyo3(signature = (dtype, data, to, tag, timeout=None, keep=None))]
    fn send_async(
        &self,
        py: Python<'_>,
        dtype: u8,
        data: Operand,
        to: usize,
        tag: u32,
        timeout: Option<f64>,
        keep: Option<Py<PyAny>>,
    ) -> PyResult<Work> {
        let timeout = timeout.map(seconds).transpose()?;
        let request = MessageRequest { timeout, ..MessageRequest::send(operands::dtype(dtype)?, to, tag) };
        self.begin_message(py, request, data, keep)
    }

    /// Begins to receive into memory, from a rank or, if `source` is `None`, from any. The work's result is the sender.
    #[pyo3(signature = (dtype, data, source, tag, timeout=None, keep=None))]
    fn recv_async(
        &self,
        py: Python<'_>,
        dtype: u8,
        data: Operand,
        source: Option<usize>,
        tag: u32,
        timeout: Option<f64>,
        keep: Option<Py<PyAny>>,
    ) -> PyResult<Work> {
        let timeout = timeout.map(seconds).transpose()?;
        let from = self::source(source);
        let request = MessageRequest { timeout, ..MessageRequest::recv(operands::dtype(dtype)?, from, tag) };
        self.begin_message(py, request, data, keep)
    }

    /// Makes a group of these ranks of this group. Only they call it, all with the same ranks and tag.
    fn create_group(&self, py: Python<'_>, ranks: Vec<usize>, tag: u64) -> PyResult<Self> {
        let parent = self.group(py, "create_group")?;
        let made = py.detach(|| parent.create_group(&ranks, tag));
        made.map(|group| Self::new(group, self.class(py))).map_err(|error| self.error(py, &error))
    }

    /// Makes a group of these ranks of this group. All ranks of this group call it; the others get `None`.
    fn new_group(&self, py: Python<'_>, ranks: Vec<usize>) -> PyResult<Option<Self>> {
        let parent = self.group(py, "new_group")?;
        self.part(py, py.detach(|| parent.new_group(&ranks)))
    }

    /// Makes groups of the ranks that give the same color, ordered by key. A rank without a color gets `None`.
    fn split(&self, py: Python<'_>, color: Option<u64>, key: i64) -> PyResult<Option<Self>> {
        let parent = self.group(py, "split")?;
        self.part(py, py.detach(|| parent.split(color, key)))
    }

    /// Another handle of the group whose calls have this timeout, in seconds.
    fn with_timeout(&self, py: Python<'_>, timeout: f64) -> PyResult<Self> {
        let group = self.group(py, "with_timeout")?.with_timeout(seconds(timeout)?);
        group.map(|group| Self::new(group, self.class(py))).map_err(|error| self.error(py, &error))
    }

    /// Zeroed memory that the NIC knows.
    fn buffer(&self, py: Python<'_>, bytes: usize) -> PyResult<Buffer> {
        let group = self.group(py, "buffer")?;
        let buffer = py.detach(|| group.buffer::<u8>(bytes));
        buffer.map(Buffer::registered).map_err(|error| self.error(py, &error))
    }

    /// A part of a memfd, which the NIC and the ranks of the host know from now on.
    fn buffer_from(&self, py: Python<'_>, file: i32, offset: u64, bytes: usize) -> PyResult<Buffer> {
        let group = self.group(py, "buffer_from")?;
        let buffer = py.detach(|| group.buffer_from::<u8>(buffer::memory_of(file, offset, bytes)?));
        buffer.map(Buffer::registered).map_err(|error| self.error(py, &error))
    }

    /// Ends the world, with this reason for all ranks. Returns the sentence that every later call raises.
    fn abort(&self, py: Python<'_>, why: &str) -> PyResult<String> {
        let group = self.group(py, "abort")?;
        Ok(py.detach(|| group.abort(why)).to_string())
    }

    /// Leaves the world with all other ranks; on another group: drops this handle.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let handle = self.handle.write().unwrap_or_else(PoisonError::into_inner).take();
        let Some(group) = handle else { return Ok(()) };
        let left = py.detach(|| match Arc::try_unwrap(group) {
            Ok(group) => group.leave(),
            // Another thread is in a call: it drops the last handle.
            Err(_) => Ok(()),
        });
        left.map_err(|error| self.error(py, &error))
    }

    /// Drops this handle; the last handle of a world leaves it.
    fn close(&self, py: Python<'_>) {
        let handle = self.handle.write().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(handle));
    }

    /// Whether `leave` or `close` was called.
    #[getter]
    fn left(&self) -> bool {
        self.handle.read().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// The failure that has ended the world, as its sentence, or `None`.
    fn failure(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let group = self.group(py, "failure")?;
        Ok(group.failure().map(|failure| text(&Cause::Failed(failure))))
    }
}

/// From whom to receive: from this rank, or from any.
pub(crate) fn source(rank: Option<usize>) -> Source {
    rank.map_or(Source::Any, Source::Rank)
}

/// A collective as Python describes it.
fn request(
    collective: usize,
    dtype: u8,
    (op, factor): (usize, f64),
    root: usize,
    lengths: Option<&Lengths>,
    coalesced: bool,
    timeout: Option<f64>,
) -> PyResult<Request<'_>> {
    Ok(Request {
        op: operands::operation(op, factor)?,
        root,
        lengths: lengths.map(|(input, output)| Uneven { input, output }),
        coalesced,
        timeout: timeout.map(seconds).transpose()?,
        ..Request::new(operands::collective(collective)?, operands::dtype(dtype)?)
    })
}

impl Drop for Group {
    /// The last handle of a world waits for the other ranks.
    fn drop(&mut self) {
        let handle = self.handle.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(group) = handle {
            Python::attach(|py| py.detach(|| drop(group)));
        }
    }
}
