//! The one thread that takes the GIL for the library: it drops the Python objects of operations that nobody waited for, and calls
//! back who asked to be told of an end. The threads that drive operations only leave it a note, and never wait for the GIL.
//!
//! It ends before the interpreter does: a thread that comes back to Python code while the interpreter ends aborts the process.

use std::{
    cell::Cell,
    sync::{
        LazyLock,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

use pyo3::prelude::*;

/// How long the end of the interpreter waits for the thread: a callback may be in a wait of its own.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the thread is to do.
enum Note {
    /// With the GIL.
    Task(Box<dyn FnOnce(Python<'_>) + Send>),
    /// To end, and to say so when it does not come back to Python.
    End(Sender<()>),
}

/// Where notes are left, and the process that has the thread: a forked child has none.
static NOTES: LazyLock<(Sender<Note>, u32)> = LazyLock::new(|| {
    let (sender, receiver) = channel();
    // Without the thread the tasks wait for ever: objects are not dropped, and nobody is called back.
    if let Err(error) = thread::Builder::new().name("unisono-python".to_owned()).spawn(|| run(receiver)) {
        unisono::log::error!(%error, "cannot start the thread that completes futures");
    }
    (sender, std::process::id())
});

fn run(notes: Receiver<Note>) {
    while let Ok(first) = notes.recv() {
        let mut ends = None;
        // `None` while the interpreter ends: it frees nothing more.
        let done = Python::try_attach(|py| {
            for note in std::iter::once(first).chain(notes.try_iter()) {
                match note {
                    Note::Task(task) => task(py),
                    Note::End(ended) => ends = Some(ended),
                }
            }
        });
        if let Some(ended) = ends {
            // The process may not wait any more.
            let _ = ended.send(());
            return;
        }
        if done.is_none() {
            return;
        }
    }
}

/// Has the thread do this soon.
pub(crate) fn soon(task: impl FnOnce(Python<'_>) + Send + 'static) {
    if let Err(note) = NOTES.0.send(Note::Task(Box::new(task))) {
        // The interpreter ends: without the GIL its objects must not be touched.
        std::mem::forget(note);
    }
}

/// Has the thread do what is left to do, and end.
#[pyfunction]
pub(crate) fn end_thread(py: Python<'_>) {
    let (ended, end) = channel();
    if NOTES.1 == std::process::id() && NOTES.0.send(Note::End(ended)).is_ok() {
        // An error: the thread has ended, or is in a callback that does not return.
        let _ = py.detach(move || end.recv_timeout(PATIENCE));
    }
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

impl Drop for Keep {
    fn drop(&mut self) {
        match self.0.take() {
            Some(object) if ATTACHED.get() => drop(object),
            Some(object) => soon(move |_| drop(object)),
            None => {}
        }
    }
}
