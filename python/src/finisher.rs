//! What is left for the one thread that runs Python code for the library: to drop the Python objects of operations that nobody waited
//! for, to call back who asked to be told of an end, to log. The threads that drive operations only leave it a note, and never wait
//! for the GIL.
//!
//! The thread is one of Python's, and takes from here what it calls and drops itself: `unisono/_finisher.py` says why.

use std::{
    cell::Cell,
    sync::{
        Mutex, OnceLock, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
};

use pyo3::{IntoPyObjectExt, prelude::*, types::PyTuple};

use crate::view::View;

/// What the thread calls, or `None`, and with what; then it drops both.
type Call = (Py<PyAny>, Py<PyAny>);

/// Makes a call, with the GIL.
type Note = Box<dyn FnOnce(Python<'_>) -> PyResult<Call> + Send>;

/// Where a process leaves notes.
struct Notes {
    process: u32,
    /// `None` tells the thread to end.
    sender: Sender<Option<Note>>,
    /// Those of a forked child, which has no thread of its parent's. No lock is held while a process forks.
    child: OnceLock<Box<Self>>,
}

static NOTES: OnceLock<Box<Notes>> = OnceLock::new();

/// Where the notes of this process belong.
fn place() -> &'static OnceLock<Box<Notes>> {
    let mut place = &NOTES;
    while let Some(notes) = place.get()
        && notes.process != std::process::id()
    {
        place = &notes.child;
    }
    place
}

/// The calls, in the order of their notes.
#[pyclass(frozen, module = "unisono._native")]
pub(crate) struct Calls(Mutex<Receiver<Option<Note>>>);

#[pymethods]
impl Calls {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    /// Waits for the next one; `None` at the end.
    fn __next__(&self, py: Python<'_>) -> Option<Call> {
        // One thread iterates.
        let next = || self.0.lock().unwrap_or_else(PoisonError::into_inner).recv();
        loop {
            match py.detach(next).ok()??(py) {
                Ok(call) => return Some(call),
                Err(error) => error.write_unraisable(py, None),
            }
        }
    }
}

/// Starts the thread, unless this process has it.
pub(crate) fn begin(py: Python<'_>) -> PyResult<()> {
    let place = place();
    if place.get().is_some() {
        return Ok(());
    }
    let (sender, receiver) = channel();
    py.import("unisono._finisher")?.call_method1("start", (Calls(Mutex::new(receiver)),))?;
    let notes = Notes { process: std::process::id(), sender, child: OnceLock::new() };
    // If another thread has set it meanwhile, the thread of these notes ends with them.
    drop(place.set(Box::new(notes)));
    Ok(())
}

/// Has the thread make a call soon.
pub(crate) fn soon(note: impl FnOnce(Python<'_>) -> PyResult<Call> + Send + 'static) {
    let note: Note = Box::new(note);
    let left = match place().get() {
        Some(notes) => notes.sender.send(Some(note)).map_err(|unsent| unsent.0),
        None => Err(Some(note)),
    };
    if let Err(note) = left {
        // The interpreter ends, or was forked: without the GIL its objects must not be touched.
        std::mem::forget(note);
    }
}

/// Has the thread do what is left to do, and end.
#[pyfunction]
pub(crate) fn end_calls() {
    if let Some(notes) = place().get() {
        // An error: it has ended.
        let _ = notes.sender.send(None);
    }
}

/// Reports an exception of what the thread has called.
#[pyfunction]
pub(crate) fn unraisable(py: Python<'_>, error: Bound<'_, PyAny>, call: &Bound<'_, PyAny>) {
    PyErr::from_value(error).write_unraisable(py, Some(call));
}

/// Keeps an object alive; any thread may drop it, and none waits for the GIL.
pub(crate) struct Keep(Option<Py<PyAny>>);

impl Keep {
    pub(crate) fn new(object: Option<Py<PyAny>>) -> Self {
        Self(object)
    }
}

thread_local! {
    /// Whether this thread has the GIL, as far as [`dropped`] knows.
    static ATTACHED: Cell<bool> = const { Cell::new(false) };
}

/// Drops what may own a [`Keep`] at once, on a thread that has the GIL.
pub(crate) fn dropped<T>(_: Python<'_>, owner: T) {
    let before = ATTACHED.replace(true);
    drop(owner);
    ATTACHED.set(before);
}

/// What owns the memory of views, since a view that is dropped last frees it under a native frame; of another object, itself.
fn owners(object: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    if let Ok(view) = object.cast::<View>() {
        Ok(view.get().object().clone_ref(object.py()))
    } else if let Ok(several) = object.cast::<PyTuple>() {
        several.iter().map(|each| owners(&each)).collect::<PyResult<Vec<_>>>()?.into_py_any(object.py())
    } else {
        Ok(object.clone().unbind())
    }
}

impl Drop for Keep {
    fn drop(&mut self) {
        match self.0.take() {
            Some(object) if ATTACHED.get() => drop(object),
            Some(object) => soon(move |py| Ok((py.None(), owners(object.bind(py))?))),
            None => {}
        }
    }
}
