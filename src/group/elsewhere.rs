//! Calls on a separate thread, for bindings to languages whose main thread must handle other things, such as signals, while a call waits.

use std::{
    panic::resume_unwind,
    sync::{
        Arc,
        mpsc::{RecvTimeoutError, channel},
    },
    thread,
    time::Duration,
};

use crate::{
    error::{Error, Result},
    group::ProcessGroup,
};

/// Runs `calls` with this handle on a separate thread, and asks `go_on` every `every` whether to wait longer.
pub(super) fn elsewhere_while<T: Send + 'static>(
    group: ProcessGroup,
    (call, calls): (&'static str, impl FnOnce(&ProcessGroup) -> T + Send + 'static),
    (every, mut go_on): (Duration, impl FnMut() -> bool),
) -> Result<Option<T>> {
    let runtime = Arc::clone(&group.handle.shared.runtime);
    let (sender, receiver) = channel();
    let run = move || {
        let ended = calls(&group);
        // The handle is dropped before the caller continues: the caller may leave, which needs the last handle.
        drop(group);
        // The send fails if the caller has stopped waiting.
        let _unheard = sender.send(ended);
    };
    let thread = thread::Builder::new()
        .name("unisono-call".to_owned())
        .spawn(run)
        .map_err(|error| Error::Argument { call, problem: format!("no thread can be started: {error}") })?;
    let _waiting = runtime.callers.wait();
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
