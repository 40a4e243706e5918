//! Calls on a separate thread, for bindings to languages that must look at other things while a call waits, such as signals.

use std::{
    panic::resume_unwind,
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
    time::Duration,
};

use crate::{
    error::{Error, Result},
    group::ProcessGroup,
};

impl ProcessGroup {
    /// Runs `calls` with another handle of this group on a separate thread, and asks `go_on` every `every` whether to wait for it on.
    /// Returns what it returns, or `None` if this thread does not wait any more: the other one then goes on, until its calls end or the
    /// world is left. Meanwhile this thread counts as one that waits, so that deadlocks are found.
    ///
    /// # Errors
    /// [`Error::Argument`] if no thread can be started.
    pub fn elsewhere_while<T: Send + 'static>(
        &self,
        call: &'static str,
        calls: impl FnOnce(&Self) -> T + Send + 'static,
        every: Duration,
        mut go_on: impl FnMut() -> bool,
    ) -> Result<Option<T>> {
        let handle = self.with_options(self.options);
        let (sender, receiver) = channel();
        let run = move || {
            let ended = calls(&handle);
            // The handle is dropped before the caller goes on: the caller may leave, which needs the last handle.
            drop(handle);
            // The send fails if the caller has stopped waiting.
            let _unheard = sender.send(ended);
        };
        let thread = thread::Builder::new().name("unisono-call".to_owned()).spawn(run).map_err(|error| {
            Error::Argument { call, problem: format!("no thread can be started: {error}") }
        })?;
        let _waiting = self.shared.runtime.callers.wait();
        loop {
            match receiver.recv_timeout(every) {
                Ok(ended) => return Ok(Some(ended)),
                Err(RecvTimeoutError::Timeout) if go_on() => {}
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                // The thread sent nothing, so it has panicked.
                Err(RecvTimeoutError::Disconnected) => {
                    return thread.join().map(|()| None).or_else(|panic| resume_unwind(panic));
                }
            }
        }
    }
}
