//! Process groups: `unisono._native.Group`. Python checks and describes the arguments; the library does the rest without the GIL.

#![expect(clippy::too_many_arguments, reason = "what Python gives, one by one, since that is cheapest")]

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak,
        mpsc::{Receiver, channel},
    },
    thread,
    time::Duration,
};

use pyo3::{IntoPyObjectExt, prelude::*, types::PyDict};
use unisono::{Error as Cause, Foreign, MessageRequest, ProcessGroup, Request, Source, schedule::Uneven};

use crate::{
    buffer::{self, Buffer},
    errors::{Class, exception, failure, of_call, text},
    finisher::{self, Keep},
    operands::{self, Operand, seconds},
    plain::Plain,
    work::{Operation, Pending, SIGNALS, Work, received},
};

/// Lengths of blocks in elements: of the input and of the output.
type Lengths = (Vec<usize>, Vec<usize>);

/// The name of messages' calls in errors.
const MESSAGE: &str = "a message";

/// A group of ranks, as one rank sees it.
#[pyclass(frozen, weakref, module = "unisono._native")]
pub(crate) struct Group {
    /// `None` after `leave`.
    handle: RwLock<Option<Arc<ProcessGroup>>>,
    /// The `leave` that Ctrl-C has interrupted, if there is one.
    leaving: Mutex<Option<Leaving>>,
    /// The class of the exceptions of failures.
    class: Class,
}

/// A thread that leaves the world.
struct Leaving {
    left: Receiver<Result<(), Cause>>,
    /// A handle to end the world meanwhile. The thread holds the handle, and drops it at its end: the last handle serves the ranks
    /// that have not left.
    world: Weak<ProcessGroup>,
}

impl Leaving {
    /// Runs without the GIL.
    fn begin(group: Arc<ProcessGroup>) -> Result<Option<Self>, Cause> {
        // If this fails, another thread is in a call and drops the last handle.
        let Ok(group) = Arc::try_unwrap(group) else { return Ok(None) };
        // The timeout of a handle whose calls have none.
        let held = Arc::new(group.with_timeout(Duration::from_secs(1))?);
        let world = Arc::downgrade(&held);
        let (tell, left) = channel();
        let leave = move || {
            let left = group.leave();
            drop(held);
            // Perhaps no thread waits for it any more.
            drop(tell.send(left));
        };
        let thread = thread::Builder::new().name("unisono-leave".to_owned()).spawn(leave);
        thread.map_err(|error| Cause::Argument {
            call: "leave",
            problem: format!("no thread can be started: {error}"),
        })?;
        Ok(Some(Self { left, world }))
    }

    fn has_left(&self) -> bool {
        self.world.strong_count() == 0
    }
}

impl Group {
    pub(crate) fn new(group: ProcessGroup, class: Class) -> Self {
        Self { handle: RwLock::new(Some(Arc::new(group))), leaving: Mutex::default(), class }
    }

    /// The lock, which is never held while Python's or the library's code runs.
    fn leaving(&self) -> MutexGuard<'_, Option<Leaving>> {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another handle, which must not be dropped by a thread that has the GIL: the last one leaves the world, and waits for all ranks.
    pub(crate) fn handle(&self, py: Python<'_>, call: &'static str) -> PyResult<Arc<ProcessGroup>> {
        let handle = self.handle.read().unwrap_or_else(PoisonError::into_inner).clone();
        handle.ok_or_else(|| self.error(py, &Cause::Left { call }))
    }

    /// Calls `run` with a handle, and drops that handle, both without the GIL.
    fn detached<T: Send>(
        &self,
        py: Python<'_>,
        call: &'static str,
        run: impl FnOnce(&ProcessGroup) -> T + Send,
    ) -> PyResult<T> {
        let group = self.handle(py, call)?;
        Ok(py.detach(move || {
            let result = run(&group);
            drop(group);
            result
        }))
    }

    /// Calls `run` on a separate thread, and lets Python handle signals meanwhile. After Ctrl-C, `run` continues there.
    pub(crate) fn elsewhere<T: Send + 'static>(
        &self,
        py: Python<'_>,
        call: &'static str,
        run: impl FnOnce(&ProcessGroup) -> T + Send + 'static,
    ) -> PyResult<T> {
        let mut signals = Ok(());
        let ended = self.detached(py, call, |group| {
            group.erased().elsewhere_while(call, run, SIGNALS, || {
                signals = Python::attach(|py| py.check_signals());
                signals.is_ok()
            })
        })?;
        signals?;
        let ended = ended.map_err(|error| self.error(py, &error))?;
        ended.ok_or_else(|| self.failed(py, format!("{call}: nobody waits for it")))
    }

    /// A property of the handle, which is read without waiting.
    fn says<T>(
        &self,
        py: Python<'_>,
        call: &'static str,
        read: impl FnOnce(&ProcessGroup) -> T,
    ) -> PyResult<T> {
        let handle = self.handle.read().unwrap_or_else(PoisonError::into_inner);
        handle.as_deref().map(read).ok_or_else(|| self.error(py, &Cause::Left { call }))
    }

    pub(crate) fn error(&self, py: Python<'_>, error: &Cause) -> PyErr {
        exception(py, self.class.as_ref(), error)
    }

    /// The exception for an error that does not come from the library's core.
    pub(crate) fn failed(&self, py: Python<'_>, text: String) -> PyErr {
        failure(py, self.class.as_ref(), text)
    }

    fn class(&self, py: Python<'_>) -> Class {
        self.class.as_ref().map(|class| class.clone_ref(py))
    }

    fn begun(&self, py: Python<'_>, call: &'static str, begun: Result<Pending, Cause>) -> PyResult<Work> {
        let work = |pending| Work(Operation::new(call, pending, self.class(py)));
        begun.map(work).map_err(|error| of_call(py, self.class.as_ref(), call, &error))
    }

    /// Runs a collective, and lets Python handle signals meanwhile.
    fn run(&self, py: Python<'_>, request: &Request<'_>, input: Foreign, output: Foreign) -> PyResult<()> {
        let mut signals = Ok(());
        let ended = self.detached(py, request.collective.name(), |group| {
            group.erased().collective_while(request, input, output, SIGNALS, || {
                signals = Python::attach(|py| py.check_signals());
                signals.is_ok()
            })
        })?;
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
        let begun = self.detached(py, request.collective.name(), |group| {
            group.erased().begin_collective(request, input, output)
        })?;
        let ended = |py: Python<'_>, memory: (Foreign, Foreign)| {
            finisher::dropped(py, memory);
            Ok(py.None())
        };
        self.begun(py, request.collective.name(), begun.map(|work| Pending::new(work, ended)))
    }

    /// Begins an operation with a handle whose calls have this timeout, without the GIL: a thread that waits may need it.
    pub(crate) fn begin(
        &self,
        py: Python<'_>,
        call: &'static str,
        timeout: Option<f64>,
        begin: impl FnOnce(&ProcessGroup) -> Result<Pending, Cause> + Send,
    ) -> PyResult<Work> {
        let timeout = timeout.map(seconds).transpose()?;
        let begun = self.detached(py, call, |group| match timeout {
            Some(timeout) => group.with_timeout(timeout).and_then(|group| begin(&group)),
            None => begin(group),
        })?;
        self.begun(py, call, begun)
    }

    /// A new group, if this rank is a member.
    fn part(&self, py: Python<'_>, made: Result<Option<ProcessGroup>, Cause>) -> PyResult<Option<Self>> {
        let made = made.map_err(|error| self.error(py, &error))?;
        Ok(made.map(|group| Self::new(group, self.class(py))))
    }

    /// Begins messages: all, or none if one of them is invalid.
    fn begin_messages<const N: usize>(
        &self,
        py: Python<'_>,
        batch: [(MessageRequest, &Operand); N],
        keep: Option<Py<PyAny>>,
    ) -> PyResult<Vec<Work>> {
        let batch = batch.map(|(request, data)| {
            let keep = keep.as_ref().map(|keep| keep.clone_ref(py));
            (request, data.memory(Keep::new(keep)))
        });
        let begun = self.detached(py, MESSAGE, |group| group.erased().begin_messages(batch))?;
        let sent = |py: Python<'_>, (memory, peer): (Foreign, usize)| {
            finisher::dropped(py, memory);
            peer.into_py_any(py)
        };
        let begun = begun.map_err(|error| self.error(py, &error))?;
        begun.into_iter().map(|work| self.begun(py, MESSAGE, Ok(Pending::new(work, sent)))).collect()
    }

    /// Begins a message.
    fn begin_message(
        &self,
        py: Python<'_>,
        request: MessageRequest,
        data: &Operand,
        keep: Option<Py<PyAny>>,
    ) -> PyResult<Work> {
        let data = data.memory(Keep::new(keep));
        let begun = self.detached(py, MESSAGE, |group| group.erased().begin_message(&request, data))?;
        let sent = |py: Python<'_>, (memory, peer): (Foreign, usize)| {
            finisher::dropped(py, memory);
            peer.into_py_any(py)
        };
        self.begun(py, MESSAGE, begun.map(|work| Pending::new(work, sent)))
    }
}

#[pymethods]
impl Group {
    /// This rank's number in the group.
    #[getter]
    fn rank(&self, py: Python<'_>) -> PyResult<usize> {
        self.says(py, "rank", ProcessGroup::rank)
    }

    /// The number of ranks.
    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<usize> {
        self.says(py, "size", ProcessGroup::size)
    }

    /// The ranks in the world of all members.
    #[getter]
    fn members(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        self.says(py, "members", |group| group.members().to_vec())
    }

    /// The group's name in errors.
    #[getter]
    fn name(&self, py: Python<'_>) -> PyResult<String> {
        self.says(py, "name", |group| group.name().to_owned())
    }

    /// The libfabric provider and its version.
    #[getter]
    fn provider(&self, py: Python<'_>) -> PyResult<String> {
        self.says(py, "provider", |group| group.limits().provider.clone())
    }

    /// The number of collective operations that this rank has begun.
    #[getter]
    fn operations(&self, py: Python<'_>) -> PyResult<u64> {
        self.detached(py, "operations", |group| group.usage().operations)
    }

    /// Runs a collective; returns when it has ended.
    #[pyo3(signature = (collective, element, op, factor, root, input, output, lengths=None, coalesced=false, timeout=None, keep=None))]
    fn collective(
        &self,
        py: Python<'_>,
        collective: usize,
        element: u32,
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
        let request = request(collective, element, (op, factor), root, lengths.as_ref(), coalesced, timeout)?;
        let (input, output) = operands::kept(&input, &output, Keep::new(keep));
        self.run(py, &request, input, output)
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
    #[pyo3(signature = (collective, element, op, factor, root, input, output, lengths=None, coalesced=false, timeout=None, keep=None))]
    fn collective_async(
        &self,
        py: Python<'_>,
        collective: usize,
        element: u32,
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
        let request = request(collective, element, (op, factor), root, lengths.as_ref(), coalesced, timeout)?;
        let (input, output) = operands::kept(&input, &output, Keep::new(keep));
        self.begin_collective(py, &request, input, output)
    }

    /// Begins to send memory to a rank.
    #[pyo3(signature = (element, data, to, tag, timeout=None, keep=None))]
    fn send_async(
        &self,
        py: Python<'_>,
        element: u32,
        data: Operand,
        to: usize,
        tag: u32,
        timeout: Option<f64>,
        keep: Option<Py<PyAny>>,
    ) -> PyResult<Work> {
        let timeout = timeout.map(seconds).transpose()?;
        let (dtype, alias) = operands::element(element)?;
        let request = MessageRequest { alias, timeout, ..MessageRequest::send(dtype, to, tag) };
        self.begin_message(py, request, &data, keep)
    }

    /// Begins to receive into memory, from a rank or, if `source` is `None`, from any. The work's result is the sender.
    #[pyo3(signature = (element, data, source, tag, timeout=None, keep=None))]
    fn recv_async(
        &self,
        py: Python<'_>,
        element: u32,
        data: Operand,
        source: Option<usize>,
        tag: u32,
        timeout: Option<f64>,
        keep: Option<Py<PyAny>>,
    ) -> PyResult<Work> {
        let timeout = timeout.map(seconds).transpose()?;
        let from = self::source(source);
        let (dtype, alias) = operands::element(element)?;
        let request = MessageRequest { alias, timeout, ..MessageRequest::recv(dtype, from, tag) };
        self.begin_message(py, request, &data, keep)
    }

    /// Begins to send memory to a rank, and to receive into memory from one, as if the two were apart. If one of the two is invalid,
    /// neither has begun. The works are those of the send and of the receive.
    #[pyo3(signature = (given, to, wanted, source, tag, timeout=None, keep=None))]
    fn send_recv_async(
        &self,
        py: Python<'_>,
        given: (u32, Operand),
        to: usize,
        wanted: (u32, Operand),
        source: Option<usize>,
        tag: u32,
        timeout: Option<f64>,
        keep: Option<Py<PyAny>>,
    ) -> PyResult<Vec<Work>> {
        let timeout = timeout.map(seconds).transpose()?;
        let from = self::source(source);
        let ((sent, alias), (received, other)) = (operands::element(given.0)?, operands::element(wanted.0)?);
        let send = MessageRequest { alias, timeout, ..MessageRequest::send(sent, to, tag) };
        let recv = MessageRequest { alias: other, timeout, ..MessageRequest::recv(received, from, tag) };
        self.begin_messages(py, [(send, &given.1), (recv, &wanted.1)], keep)
    }

    /// Makes a group of these ranks of this group. Only they call it, all with the same ranks and tag.
    fn create_group(&self, py: Python<'_>, ranks: Vec<usize>, tag: u64) -> PyResult<Self> {
        let made = self.elsewhere(py, "create_group", move |parent| parent.create_group(&ranks, tag))?;
        made.map(|group| Self::new(group, self.class(py))).map_err(|error| self.error(py, &error))
    }

    /// Makes a group of these ranks of this group. All ranks of this group call it; the others get `None`.
    fn new_group(&self, py: Python<'_>, ranks: Vec<usize>) -> PyResult<Option<Self>> {
        let made = self.elsewhere(py, "new_group", move |parent| parent.new_group(&ranks))?;
        self.part(py, made)
    }

    /// Makes groups of the ranks that give the same color, ordered by key. A rank without a color gets `None`.
    fn split(&self, py: Python<'_>, color: Option<u64>, key: i64) -> PyResult<Option<Self>> {
        let made = self.elsewhere(py, "split", move |parent| parent.split(color, key))?;
        self.part(py, made)
    }

    /// Another handle of the group whose calls have this timeout, in seconds.
    fn with_timeout(&self, py: Python<'_>, timeout: f64) -> PyResult<Self> {
        let timeout = seconds(timeout)?;
        let group = self.detached(py, "with_timeout", |group| group.with_timeout(timeout))?;
        group.map(|group| Self::new(group, self.class(py))).map_err(|error| self.error(py, &error))
    }

    /// Zeroed memory that the NIC knows.
    fn buffer(&self, py: Python<'_>, bytes: usize) -> PyResult<Buffer> {
        let buffer = self.detached(py, "buffer", |group| group.buffer::<u8>(bytes))?;
        buffer.map(Buffer::registered).map_err(|error| self.error(py, &error))
    }

    /// A part of a memfd, which the NIC and the ranks of the host know from now on.
    fn buffer_from(&self, py: Python<'_>, file: i32, offset: u64, bytes: usize) -> PyResult<Buffer> {
        let buffer = self.detached(py, "buffer_from", |group| {
            unisono::Buffer::<u8>::of(group, buffer::memory_of(file, offset, bytes)?)
        })?;
        buffer.map(Buffer::registered).map_err(|error| self.error(py, &error))
    }

    /// Ends the world, with this reason for all ranks. Returns the sentence that every later call raises.
    fn abort(&self, py: Python<'_>, why: &str) -> PyResult<String> {
        let world = self.leaving().as_ref().and_then(|leaving| leaving.world.upgrade());
        let world = world.map_or_else(|| self.handle(py, "abort"), Ok)?;
        let aborted = py.detach(move || {
            let aborted = world.abort(why);
            drop(world);
            aborted
        });
        Ok(aborted.to_string())
    }

    /// Begins to leave the world: `leave` waits for it. On another group: drops this handle.
    fn begin_leave(&self, py: Python<'_>) -> PyResult<()> {
        let handle = self.handle.write().unwrap_or_else(PoisonError::into_inner).take();
        let Some(group) = handle else { return Ok(()) };
        let leaving = py.detach(|| Leaving::begin(group)).map_err(|error| self.error(py, &error))?;
        *self.leaving() = leaving;
        Ok(())
    }

    /// Leaves the world with all other ranks, and lets Python handle signals meanwhile: Ctrl-C ends the wait, and the next call goes on
    /// with it. On another group: drops this handle.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        self.begin_leave(py)?;
        let leaving = self.leaving().take();
        let Some(mut leaving) = leaving else { return Ok(()) };
        match received(py, &mut leaving.left) {
            Ok(left) => {
                py.detach(|| drop(leaving));
                match left {
                    Some(left) => left.map_err(|error| self.error(py, &error)),
                    None => Err(self.failed(py, "leave: its thread has ended".to_owned())),
                }
            }
            Err(signal) => {
                *self.leaving() = Some(leaving);
                Err(signal)
            }
        }
    }

    /// Drops this handle; the last handle of a world leaves it.
    fn close(&self, py: Python<'_>) {
        let handle = self.handle.write().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(handle));
    }

    /// True if the world has been left, or `close` was called.
    #[getter]
    fn left(&self) -> bool {
        let closed = self.handle.read().unwrap_or_else(PoisonError::into_inner).is_none();
        closed && self.leaving().as_ref().is_none_or(Leaving::has_left)
    }

    /// The failure that has ended the world, as its sentence, or `None`.
    fn failure(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let failure = self.detached(py, "failure", ProcessGroup::failure)?;
        Ok(failure.map(|failure| text(&Cause::Failed(failure))))
    }
}

/// The rank to receive from: this one, or any.
pub(crate) fn source(rank: Option<usize>) -> Source {
    rank.map_or(Source::Any, Source::Rank)
}

/// A collective as Python describes it.
fn request(
    collective: usize,
    element: u32,
    (op, factor): (usize, f64),
    root: usize,
    lengths: Option<&Lengths>,
    coalesced: bool,
    timeout: Option<f64>,
) -> PyResult<Request<'_>> {
    let (dtype, alias) = operands::element(element)?;
    Ok(Request {
        alias,
        op: operands::operation(op, factor)?,
        root,
        lengths: lengths.map(|(input, output)| Uneven { input, output }),
        coalesced,
        timeout: timeout.map(seconds).transpose()?,
        ..Request::new(operands::collective(collective)?, dtype)
    })
}

impl Drop for Group {
    /// The last handle of a world waits for the other ranks.
    fn drop(&mut self) {
        let handle = self.handle.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let leaving = self.leaving().take();
        if handle.is_some() || leaving.is_some() {
            Python::attach(|py| py.detach(|| drop((handle, leaving))));
        }
    }
}
