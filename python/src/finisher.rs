//! The one thread that takes the GIL for the library: it drops the Python objects of operations that nobody waited for, and calls
//! back who asked to be told of an end. The threads that drive operations only leave it a note, and never wait for the GIL.

use std::{
    cell::Cell,
    sync::{
        LazyLock,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

use pyo3::prelude::*;

/// What the thread is to do with the GIL.
type Task = Box<dyn FnOnce(Python<'_>) + Send>;

static TASKS: LazyLock<Sender<Task>> = LazyLock::new(|| {
    let (sender, receiver) = channel();
    // Without the thread the tasks wait for ever: objects are not dropped, and nobody is called back.
    if let Err(error) = thread::Builder::new().name("unisono-python".to_owned()).spawn(|| run(receiver)) {
        unisono::log::error!(%error, "cannot start the thread that completes futures");
    }
    sender
});

fn run(tasks: Receiver<Task>) {
    while let Ok(first) = tasks.recv() {
        // `None` while the interpreter ends: it frees nothing more.
        let done = Python::try_attach(|py| {
            std::iter::once(first).chain(tasks.try_iter()).for_each(|task| task(py));
        });
        if done.is_none() {
            return;
        }
    }
}

/// Has the thread do this soon.
pub(crate) fn soon(task: impl FnOnce(Python<'_>) + Send + 'static) {
    if let Err(task) = TASKS.send(Box::new(task)) {
        // The interpreter ends: without the GIL its objects must not be touched.
        std::mem::forget(task);
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
