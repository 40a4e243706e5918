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
use unisono::{
    Direction, Error as Cause, Foreign, MessageRequest, ProcessGroup, Request, Source, group::Asynchronous,
    schedule::Uneven,
};

use crate::{
    buffer::{self, MemoryBuffer},
    errors::{Class, exception, failure, of_call, text},
    finisher::{self, Keep},
    operands::{self, Operand, seconds},
    plain::Plain,
    work::{Operation, PendingWork, SIGNALS, Work, received, with_signals},
};

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
        let problem = |error: std::io::Error| format!("no thread can be started: {error}");
        thread.map_err(|error| Cause::Argument { call: "leave", problem: problem(error) })?;
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

    /// This handle's group, from now on none.
    fn taken(&self) -> Option<Arc<ProcessGroup>> {
        self.handle.write().unwrap_or_else(PoisonError::into_inner).take()
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
        let (ended, signals) = with_signals(|go_on| {
            self.detached(py, call, |group| group.erased().elsewhere_while(call, run, SIGNALS, go_on))
        });
        let ended = ended?;
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

    /// The work of an operation that has begun; `result` makes its result.
    fn begun<T: Send + 'static>(
        &self,
        py: Python<'_>,
        call: &'static str,
        begun: Result<unisono::Work<T>, Cause>,
        result: fn(Python<'_>, T) -> PyResult<Py<PyAny>>,
    ) -> PyResult<Work> {
        let work = |work| Work(Operation::new(call, PendingWork::new(work, result), self.class(py)));
        begun.map(work).map_err(|error| of_call(py, self.class.as_ref(), call, &error))
    }

    /// Runs a collective, and lets Python handle signals meanwhile; or begins it, and returns its work.
    fn call(
        &self,
        py: Python<'_>,
        waits: bool,
        request: &Request<'_>,
        (input, output): (Foreign, Foreign),
    ) -> PyResult<Option<Work>> {
        let call = request.collective.name();
        if !waits {
            let begin = |group: &ProcessGroup| group.erased().begin_collective(request, input, output);
            let begun = self.detached(py, call, begin)?;
            let ended = |py: Python<'_>, memory| {
                finisher::dropped(py, memory);
                Ok(py.None())
            };
            return self.begun(py, call, begun, ended).map(Some);
        }
        let (ended, signals) = with_signals(|go_on| {
            self.detached(py, call, |group| {
                group.erased().collective_while(request, input, output, SIGNALS, go_on)
            })
        });
        finisher::dropped(py, ended?.map_err(|error| self.error(py, &error))?.ok());
        signals.map(|()| None)
    }

    /// Begins an operation with a handle whose calls have this timeout, without the GIL: a thread that waits may need it.
    pub(crate) fn begin<T: Send + 'static>(
        &self,
        py: Python<'_>,
        call: &'static str,
        timeout: Option<f64>,
        result: fn(Python<'_>, T) -> PyResult<Py<PyAny>>,
        begin: impl FnOnce(&ProcessGroup<Asynchronous>) -> Result<unisono::Work<T>, Cause> + Send,
    ) -> PyResult<Work> {
        let timeout = timeout.map(seconds).transpose()?;
        let begun = self.detached(py, call, |group| match timeout {
            Some(timeout) => group.with_timeout(timeout).and_then(|group| begin(&group.begin())),
            None => begin(&group.begin()),
        })?;
        self.begun(py, call, begun, result)
    }

    /// A handle of a group that was made from this one.
    fn made(&self, py: Python<'_>, made: Result<ProcessGroup, Cause>) -> PyResult<Self> {
        made.map(|group| Self::new(group, self.class(py))).map_err(|error| self.error(py, &error))
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
        let begun = begun.map_err(|error| self.error(py, &error))?;
        begun.into_iter().map(|work| self.begun(py, MESSAGE, Ok(work), peer)).collect()
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
        self.begun(py, MESSAGE, begun, peer)
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

    /// Runs a collective and returns when it has ended, or begins it and returns its work. `keep` keeps its memory alive until it has
    /// ended.
    #[pyo3(signature = (waits, collective, element, op, factor, root, input, output, lengths=None, coalesced=false, timeout=None, keep=None))]
    fn collective(
        &self,
        py: Python<'_>,
        waits: bool,
        collective: usize,
        element: u32,
        op: usize,
        factor: f64,
        root: usize,
        input: Operand,
        output: Operand,
        lengths: Option<(Vec<usize>, Vec<usize>)>,
        coalesced: bool,
        timeout: Option<f64>,
        keep: Option<Py<PyAny>>,
    ) -> PyResult<Option<Work>> {
        let (dtype, alias) = operands::element(element)?;
        let request = Request {
            alias,
            op: operands::operation(op, factor)?,
            root,
            lengths: lengths.as_ref().map(|(input, output)| Uneven { input, output }),
            coalesced,
            timeout: timeout.map(seconds).transpose()?,
            ..Request::new(operands::collective(collective)?, dtype)
        };
        self.call(py, waits, &request, operands::kept(&input, &output, Keep::new(keep)))
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
        let plain = Plain::new(operands::collective(collective)?, (given, wanted), opts, kinds)?;
        let Some(Plain { request, operands, waits }) = plain else { return false.into_bound_py_any(py) };
        match self.call(py, waits, &request, operands)? {
            Some(work) => work.into_bound_py_any(py),
            None => true.into_bound_py_any(py),
        }
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
        self.begin_message(py, message(element, Direction::Send(to), tag, timeout)?, &data, keep)
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
        let direction = Direction::Recv(self::source(source));
        self.begin_message(py, message(element, direction, tag, timeout)?, &data, keep)
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
        let send = message(given.0, Direction::Send(to), tag, timeout)?;
        let recv = message(wanted.0, Direction::Recv(self::source(source)), tag, timeout)?;
        self.begin_messages(py, [(send, &given.1), (recv, &wanted.1)], keep)
    }

    /// Makes a group of these ranks of this group. Only they call it, all with the same ranks and tag.
    fn create_group(&self, py: Python<'_>, ranks: Vec<usize>, tag: u64) -> PyResult<Self> {
        let made = self.elsewhere(py, "create_group", move |parent| parent.create_group(&ranks, tag))?;
        self.made(py, made)
    }

    /// Makes a group of these ranks of this group. All ranks of this group call it; the others get `None`.
    fn new_group(&self, py: Python<'_>, ranks: Vec<usize>) -> PyResult<Option<Self>> {
        let made = self.elsewhere(py, "new_group", move |parent| parent.new_group(&ranks))?;
        made.transpose().map(|made| self.made(py, made)).transpose()
    }

    /// Makes groups of the ranks that give the same color, ordered by key. A rank without a color gets `None`.
    fn split(&self, py: Python<'_>, color: Option<u64>, key: i64) -> PyResult<Option<Self>> {
        let made = self.elsewhere(py, "split", move |parent| parent.split(color, key))?;
        made.transpose().map(|made| self.made(py, made)).transpose()
    }

    /// Another handle of the group whose calls have this timeout, in seconds.
    fn with_timeout(&self, py: Python<'_>, timeout: f64) -> PyResult<Self> {
        let timeout = seconds(timeout)?;
        let group = self.detached(py, "with_timeout", |group| group.with_timeout(timeout))?;
        self.made(py, group)
    }

    /// Zeroed memory that the NIC knows.
    fn buffer(&self, py: Python<'_>, bytes: usize) -> PyResult<MemoryBuffer> {
        let buffer = self.detached(py, "buffer", |group| group.buffer::<u8>(bytes))?;
        buffer.map(MemoryBuffer::registered).map_err(|error| self.error(py, &error))
    }

    /// A part of a memfd, which the NIC and the ranks of the host know from now on.
    fn buffer_from(&self, py: Python<'_>, file: i32, offset: u64, bytes: usize) -> PyResult<MemoryBuffer> {
        let buffer = self.detached(py, "buffer_from", |group| {
            unisono::Buffer::<u8>::of(group, buffer::memory_of(file, offset, bytes)?)
        })?;
        buffer.map(MemoryBuffer::registered).map_err(|error| self.error(py, &error))
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
        let Some(group) = self.taken() else { return Ok(()) };
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
        let handle = self.taken();
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

/// The result of an operation that has none.
pub(crate) fn nothing<T>(py: Python<'_>, _: T) -> PyResult<Py<PyAny>> {
    Ok(py.None())
}

/// The rank to receive from: this one, or any.
pub(crate) fn source(rank: Option<usize>) -> Source {
    rank.map_or(Source::Any, Source::Rank)
}

/// A message as Python describes it.
fn message(element: u32, direction: Direction, tag: u32, timeout: Option<f64>) -> PyResult<MessageRequest> {
    let ((dtype, alias), timeout) = (operands::element(element)?, timeout.map(seconds).transpose()?);
    Ok(MessageRequest { direction, dtype, alias, tag, timeout })
}

/// The result of a message: the other rank.
fn peer(py: Python<'_>, (memory, peer): (Foreign, usize)) -> PyResult<Py<PyAny>> {
    finisher::dropped(py, memory);
    peer.into_py_any(py)
}

impl Drop for Group {
    /// The last handle of a world waits for the other ranks.
    fn drop(&mut self) {
        let (handle, leaving) = (self.taken(), self.leaving().take());
        if handle.is_some() || leaving.is_some() {
            Python::attach(|py| py.detach(|| drop((handle, leaving))));
        }
    }
}
