//! Asynchronous operations: `unisono._native.Work`.

use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        mpsc::{Receiver, RecvTimeoutError},
    },
    task::{Context, Wake, Waker},
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use pyo3::{IntoPyObjectExt, prelude::*};
use unisono::Error as Cause;

use crate::{
    errors::{Class, exception, failure, of_call, timed_out},
    finisher,
    operands::seconds,
};

/// How often a thread that waits lets Python handle signals, such as that of Ctrl-C.
pub(crate) const SIGNALS: Duration = Duration::from_millis(50);

/// Waits for a value from another thread, and lets Python handle signals meanwhile; `None` if that thread has ended without one.
pub(crate) fn received<T: Send>(py: Python<'_>, receiver: &mut Receiver<T>) -> PyResult<Option<T>> {
    py.detach(move || {
        loop {
            match receiver.recv_timeout(SIGNALS) {
                Ok(received) => return Ok(Some(received)),
                Err(RecvTimeoutError::Timeout) => Python::attach(|py| py.check_signals())?,
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
            }
        }
    })
}

/// Calls `run` with a function that lets Python handle signals, and is false if this has raised an exception, which is returned too.
pub(crate) fn with_signals<T>(run: impl FnOnce(&mut (dyn FnMut() -> bool + Send)) -> T) -> (T, PyResult<()>) {
    let mut signals = Ok(());
    let result = run(&mut || {
        signals = Python::attach(|py| py.check_signals());
        signals.is_ok()
    });
    (result, signals)
}

/// The library's handle of an operation.
pub(crate) struct PendingWork(Box<dyn Handle>);

impl PendingWork {
    /// `result` makes the work's result of what the operation returns, and drops the rest.
    pub(crate) fn new<T: Send + 'static>(
        work: unisono::Work<T>,
        result: fn(Python<'_>, T) -> PyResult<Py<PyAny>>,
    ) -> Self {
        Self(Box::new(Awaited { work, result }))
    }
}

/// The methods of a handle that do not depend on what its operation returns.
trait Handle: Send + Sync {
    fn is_done(&self) -> bool;
    fn wait_done_while(&self, go_on: &mut dyn FnMut() -> bool) -> Result<bool, Cause>;
    fn wait_done_timeout(&self, timeout: Duration) -> Result<bool, Cause>;
    fn poll_done(&self, context: &mut Context<'_>) -> bool;
    fn take(&self, py: Python<'_>) -> Result<Py<PyAny>, Problem>;
}

struct Awaited<T> {
    work: unisono::Work<T>,
    result: fn(Python<'_>, T) -> PyResult<Py<PyAny>>,
}

impl<T: Send + 'static> Handle for Awaited<T> {
    fn is_done(&self) -> bool {
        self.work.is_done()
    }

    fn wait_done_while(&self, go_on: &mut dyn FnMut() -> bool) -> Result<bool, Cause> {
        self.work.wait_done_while(SIGNALS, go_on)
    }

    fn wait_done_timeout(&self, timeout: Duration) -> Result<bool, Cause> {
        self.work.wait_done_timeout(timeout)
    }

    fn poll_done(&self, context: &mut Context<'_>) -> bool {
        self.work.poll_done(context).is_ready()
    }

    fn take(&self, py: Python<'_>) -> Result<Py<PyAny>, Problem> {
        let returned = py.detach(|| self.work.take()).map_err(Problem::Cause)?;
        (self.result)(py, returned).map_err(Problem::Raised)
    }
}

/// Why an operation has no result.
enum Problem {
    Cause(Cause),
    Raised(PyErr),
}

/// An operation, and its result once it has ended.
pub(crate) struct Operation {
    call: &'static str,
    pending: PendingWork,
    class: Class,
    result: OnceLock<Result<Py<PyAny>, Problem>>,
    /// The thread that makes the result. It runs Python's code, so no thread waits for it with the GIL.
    maker: Mutex<Option<ThreadId>>,
    made: Condvar,
    /// The functions to call at the end, each with the kind of that call.
    callbacks: Mutex<Vec<(Py<PyAny>, u8)>>,
}

impl Operation {
    pub(crate) fn new(call: &'static str, pending: PendingWork, class: Class) -> Arc<Self> {
        let (result, maker, made) = (OnceLock::new(), Mutex::default(), Condvar::new());
        Arc::new(Self { call, pending, class, result, maker, made, callbacks: Mutex::default() })
    }

    /// This asks the library without the GIL, because the library may drop the last handle of a world.
    fn is_done(&self, py: Python<'_>) -> bool {
        self.result.get().is_some() || py.detach(|| self.pending.0.is_done())
    }

    /// The result of an operation that has ended. One thread makes it; others wait for that, and let Python handle signals meanwhile.
    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        loop {
            match self.result.get() {
                Some(Ok(result)) => return Ok(result.clone_ref(py)),
                Some(Err(Problem::Cause(error))) => {
                    return Err(of_call(py, self.class.as_ref(), self.call, error));
                }
                Some(Err(Problem::Raised(error))) => return Err(error.clone_ref(py)),
                None => {}
            }
            let this = thread::current().id();
            let maker = *self.maker();
            match maker {
                None => self.make(py, this),
                Some(maker) if maker == this => {
                    let text = "Work: code that runs while its result is made waits for that result";
                    return Err(failure(py, self.class.as_ref(), text.to_owned()));
                }
                Some(_) => {
                    py.detach(|| self.wait_made());
                    py.check_signals()?;
                }
            }
        }
    }

    /// Makes the result, unless another thread does.
    fn make(&self, py: Python<'_>, this: ThreadId) {
        {
            let mut maker = self.maker();
            if maker.is_some() || self.result.get().is_some() {
                return;
            }
            *maker = Some(this);
        }
        let ended = Made(self);
        // The result is set only here.
        let _set = self.result.set(self.pending.0.take(py));
        drop(ended);
    }

    /// Waits a while until no thread makes the result.
    fn wait_made(&self) {
        let waited = self.made.wait_timeout_while(self.maker(), SIGNALS, |maker| maker.is_some());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// The lock, which is never held while Python's code runs.
    fn maker(&self) -> MutexGuard<'_, Option<ThreadId>> {
        self.maker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the operation has ended, and lets Python handle signals meanwhile.
    pub(crate) fn wait(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        if self.result.get().is_none() {
            let (ended, signals) = with_signals(|go_on| py.detach(|| self.pending.0.wait_done_while(go_on)));
            ended.map_err(|error| exception(py, self.class.as_ref(), &error))?;
            signals?;
        }
        self.result(py)
    }

    /// Waits in the same way, for at most `timeout`.
    fn wait_timeout(&self, py: Python<'_>, timeout: Duration) -> PyResult<Py<PyAny>> {
        let until = Instant::now().checked_add(timeout);
        while !self.is_done(py) {
            let left = until.map_or(SIGNALS, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                let text = format!("{} the operation has not ended; it goes on", timed_out(timeout));
                return Err(failure(py, self.class.as_ref(), text));
            }
            let ended = py.detach(|| self.pending.0.wait_done_timeout(left.min(SIGNALS)));
            ended.map_err(|error| exception(py, self.class.as_ref(), &error))?;
            py.check_signals()?;
        }
        self.result(py)
    }

    /// Registers `callback` to be called when the operation has ended.
    fn on_end(self: &Arc<Self>, py: Python<'_>, callback: Py<PyAny>, kind: u8) {
        self.callbacks().push((callback, kind));
        py.detach(|| {
            let waker = Waker::from(Arc::clone(self));
            let mut context = Context::from_waker(&waker);
            if self.result.get().is_some() || self.pending.0.poll_done(&mut context) {
                Arc::clone(self).wake();
            }
        });
    }

    /// The lock, which is never held while Python's code runs.
    fn callbacks(&self) -> MutexGuard<'_, Vec<(Py<PyAny>, u8)>> {
        self.callbacks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks, when it is dropped, that no thread makes the result any more.
struct Made<'o>(&'o Operation);

impl Drop for Made<'_> {
    fn drop(&mut self) {
        *self.0.maker() = None;
        self.0.made.notify_all();
    }
}

impl Wake for Operation {
    fn wake(self: Arc<Self>) {
        let callbacks = std::mem::take(&mut *self.callbacks());
        for (callback, kind) in callbacks {
            let work = Work(Arc::clone(&self));
            finisher::leave(kind, move |py| Ok((callback, (work,).into_py_any(py)?)));
        }
    }
}

/// An operation under way.
#[pyclass(frozen, module = "unisono._native")]
pub(crate) struct Work(pub Arc<Operation>);

#[pymethods]
impl Work {
    /// True if the operation has ended, well or not.
    fn is_done(&self, py: Python<'_>) -> bool {
        self.0.is_done(py)
    }

    /// Waits until it has ended, at most `timeout` seconds. Returns its result. May be called again, and by several threads.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        match timeout {
            Some(timeout) => self.0.wait_timeout(py, seconds(timeout)?),
            None => self.0.wait(py),
        }
    }

    /// The error of an operation that has ended, or `None`.
    fn exception(&self, py: Python<'_>) -> Option<PyErr> {
        if self.is_done(py) { self.0.result(py).err() } else { None }
    }

    /// Calls `callback` with this work when the operation has ended, on a thread of this package. The
    /// kind of call is one of those of `unisono/_finisher.py`.
    #[pyo3(signature = (callback, kind=finisher::SOON))]
    fn on_end(&self, py: Python<'_>, callback: Py<PyAny>, kind: u8) {
        self.0.on_end(py, callback, kind);
    }
}
