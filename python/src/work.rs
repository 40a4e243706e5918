//! Asynchronous operations: `unisono._native.Work`.

use std::{
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    task::{Context, Wake, Waker},
    time::{Duration, Instant},
};

use pyo3::prelude::*;
use unisono::{Error as Cause, Foreign};

use crate::{
    errors::{Class, exception, failure, timed_out},
    finisher,
    operands::seconds,
};

/// How often a thread that waits lets Python handle signals, such as that of Ctrl-C.
const SIGNALS: Duration = Duration::from_millis(50);

/// The library's handle of an operation.
pub(crate) enum Pending {
    Collective(unisono::Work<(Foreign, Foreign)>),
    Message(unisono::Work<(Foreign, usize)>),
}

/// An operation, and its result once it has ended.
pub(crate) struct Operation {
    pending: Pending,
    class: Class,
    /// The peer of a message, or the error.
    result: OnceLock<Result<Option<usize>, Cause>>,
    /// Who asked to be called at the end.
    callbacks: Mutex<Vec<Py<PyAny>>>,
}

impl Operation {
    pub(crate) fn new(pending: Pending, class: Class) -> Arc<Self> {
        Arc::new(Self { pending, class, result: OnceLock::new(), callbacks: Mutex::default() })
    }

    fn is_done(&self) -> bool {
        self.result.get().is_some()
            || match &self.pending {
                Pending::Collective(work) => work.is_done(),
                Pending::Message(work) => work.is_done(),
            }
    }

    /// The result of an operation that has ended.
    fn result(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        let result = self.result.get_or_init(|| match &self.pending {
            Pending::Collective(work) => work.take().map(|memory| {
                finisher::dropped(py, memory);
                None
            }),
            Pending::Message(work) => work.take().map(|(memory, peer)| {
                finisher::dropped(py, memory);
                Some(peer)
            }),
        });
        result.as_ref().copied().map_err(|error| exception(py, self.class.as_ref(), error))
    }

    /// Waits until the operation has ended, and lets Python handle signals meanwhile.
    pub(crate) fn wait(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        let mut signals = Ok(());
        if self.result.get().is_none() {
            let go_on = || {
                signals = Python::attach(|py| py.check_signals());
                signals.is_ok()
            };
            let ended = py.detach(|| match &self.pending {
                Pending::Collective(work) => work.wait_done_while(SIGNALS, go_on),
                Pending::Message(work) => work.wait_done_while(SIGNALS, go_on),
            });
            ended.map_err(|error| exception(py, self.class.as_ref(), &error))?;
        }
        signals?;
        self.result(py)
    }

    /// The same, at most for `timeout`.
    fn wait_timeout(&self, py: Python<'_>, timeout: Duration) -> PyResult<Option<usize>> {
        let until = Instant::now().checked_add(timeout);
        while !self.is_done() {
            let left = until.map_or(SIGNALS, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                let text = format!("{} the operation has not ended; it goes on", timed_out(timeout));
                return Err(failure(py, self.class.as_ref(), text));
            }
            let ended = py.detach(|| match &self.pending {
                Pending::Collective(work) => work.wait_done_timeout(left.min(SIGNALS)),
                Pending::Message(work) => work.wait_done_timeout(left.min(SIGNALS)),
            });
            ended.map_err(|error| exception(py, self.class.as_ref(), &error))?;
            py.check_signals()?;
        }
        self.result(py)
    }

    /// Has `callback` called when the operation has ended.
    fn on_end(self: &Arc<Self>, callback: Py<PyAny>) {
        self.callbacks().push(callback);
        let waker = Waker::from(Arc::clone(self));
        let mut context = Context::from_waker(&waker);
        let ended = self.result.get().is_some()
            || match &self.pending {
                Pending::Collective(work) => work.poll_done(&mut context).is_ready(),
                Pending::Message(work) => work.poll_done(&mut context).is_ready(),
            };
        if ended {
            Arc::clone(self).wake();
        }
    }

    fn callbacks(&self) -> MutexGuard<'_, Vec<Py<PyAny>>> {
        self.callbacks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Operation {
    fn wake(self: Arc<Self>) {
        let callbacks = std::mem::take(&mut *self.callbacks());
        for callback in callbacks {
            let work = Work(Arc::clone(&self));
            finisher::soon(move |py| {
                if let Err(error) = callback.call1(py, (work,)) {
                    error.write_unraisable(py, Some(callback.bind(py)));
                }
            });
        }
    }
}

/// An operation under way.
#[pyclass(frozen, module = "unisono._native")]
pub(crate) struct Work(pub Arc<Operation>);

#[pymethods]
impl Work {
    /// Whether the operation has ended, well or not.
    fn is_done(&self) -> bool {
        self.0.is_done()
    }

    /// Waits until it has ended, at most `timeout` seconds. Returns the peer of a message. May be called again, and by several threads.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<usize>> {
        match timeout {
            Some(timeout) => self.0.wait_timeout(py, seconds(timeout)?),
            None => self.0.wait(py),
        }
    }

    /// The error of an operation that has ended, or `None`.
    fn exception(&self, py: Python<'_>) -> Option<PyErr> {
        if self.is_done() { self.0.result(py).err() } else { None }
    }

    /// Calls `callback` with this work when the operation has ended, on a thread of this package.
    fn on_end(&self, callback: Py<PyAny>) {
        self.0.on_end(callback);
    }
}
