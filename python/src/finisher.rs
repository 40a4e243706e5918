//! Work for the threads that run Python code for the library: they drop the Python objects of operations for which no thread
//! waited, call the callbacks of operations that have ended, and log. The threads that drive operations only leave a note, and
//! never wait for the GIL.
//!
//! The threads are Python's, and take from here the functions that they call and the objects that they drop: `unisono/_finisher.py`
//! says why. One of them takes the notes, in their order; for a call that may wait for another one, it leaves that to the next thread.

use std::{
    cell::Cell,
    sync::{
        Mutex, OnceLock, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
};

use pyo3::{IntoPyObjectExt, prelude::*, types::PyTuple};

use crate::view::View;

/// A function that a thread calls, or `None`, and its argument; then the thread drops both.
type Call = (Py<PyAny>, Py<PyAny>);

/// Makes a call, with the GIL; and the kind of call, as in `unisono/_finisher.py`.
type Note = (Box<dyn FnOnce(Python<'_>) -> PyResult<Call> + Send>, u8);

/// A call that waits for no other, in `unisono/_finisher.py`.
pub(crate) const SOON: u8 = 0;

/// The place where a process leaves notes.
struct Notes {
    process: u32,
    /// `None` tells the thread that takes it to end.
    sender: Sender<Option<Note>>,
    /// The notes of a forked child, which has none of its parent's threads. No lock is held while a process forks.
    child: OnceLock<Box<Self>>,
}

static NOTES: OnceLock<Box<Notes>> = OnceLock::new();

/// The place of this process's notes.
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
    fn __next__(&self, py: Python<'_>) -> Option<(Py<PyAny>, Py<PyAny>, u8)> {
        // One thread at a time iterates.
        let next = || self.0.lock().unwrap_or_else(PoisonError::into_inner).recv();
        loop {
            let (make, kind) = py.detach(next).ok()??;
            match make(py) {
                Ok((call, arguments)) => return Some((call, arguments, kind)),
                Err(error) => error.write_unraisable(py, None),
            }
        }
    }
}

/// Starts the threads, unless this process has them.
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

/// Asks a thread to make a call soon, after the earlier calls of this kind.
pub(crate) fn soon(make: impl FnOnce(Python<'_>) -> PyResult<Call> + Send + 'static) {
    leave(SOON, make);
}

/// Asks a thread to make a call of another kind.
pub(crate) fn leave(kind: u8, make: impl FnOnce(Python<'_>) -> PyResult<Call> + Send + 'static) {
    let note: Note = (Box::new(make), kind);
    let left = match place().get() {
        Some(notes) => notes.sender.send(Some(note)).map_err(|unsent| unsent.0),
        None => Err(Some(note)),
    };
    if let Err(note) = left {
        // The interpreter ends, or was forked: without the GIL its objects must not be touched.
        std::mem::forget(note);
    }
}

/// Asks a thread to make a call of this kind.
#[pyfunction]
pub(crate) fn call_soon(call: Py<PyAny>, arguments: Py<PyAny>, kind: u8) {
    leave(kind, move |_| Ok((call, arguments)));
}

/// Makes the thread that takes the notes finish the remaining ones, and end.
#[pyfunction]
pub(crate) fn end_calls() {
    if let Some(notes) = place().get() {
        // An error means that the thread has ended.
        let _ = notes.sender.send(None);
    }
}

/// Reports an exception of a function that a thread has called.
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
    /// True if this thread has the GIL, as far as [`dropped`] knows.
    static ATTACHED: Cell<bool> = const { Cell::new(false) };
}

/// Drops what may own a [`Keep`] at once, on a thread that has the GIL.
pub(crate) fn dropped<T>(_: Python<'_>, owner: T) {
    let before = ATTACHED.replace(true);
    drop(owner);
    ATTACHED.set(before);
}

/// The owner of a view's memory, since a view that is dropped last frees it under a native frame; for another object, the object
/// itself.
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
