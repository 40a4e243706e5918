//! Sleeps until a descriptor becomes readable or another thread ends the sleep.

use std::{
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io::Errno,
};

use crate::{Error, Wake};

fn failed(call: &'static str, error: Errno) -> Error {
    Error::Call {
        call,
        context: "to sleep".into(),
        peer: None,
        code: error.raw_os_error().into(),
        reason: error.to_string(),
    }
}

/// A descriptor that another thread makes readable.
#[derive(Debug)]
pub(super) struct EventFd(OwnedFd);

impl EventFd {
    pub(super) fn new() -> Result<Self, Error> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        fd.map(Self).map_err(|error| failed("eventfd", error))
    }

    /// Sleeps until it is woken, `other` becomes readable, or the time is over.
    pub(super) fn sleep(&self, other: Option<&dyn AsFd>, timeout: Duration) -> Result<(), Error> {
        let timeout = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let mine = PollFd::new(&self.0, PollFlags::IN);
        let mut fds =
            [mine.clone(), other.map_or(mine, |fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN))];
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(failed("poll", error)),
        }
        let [mine, _] = fds;
        if !mine.revents().is_empty() {
            // One read resets the counter, however often the sleep was ended.
            let mut count = [0; 8];
            match rustix::io::read(&self.0, &mut count) {
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(failed("read of an eventfd", error)),
            }
        }
        Ok(())
    }
}

impl Wake for EventFd {
    fn wake(&self) {
        // Fails only if it was woken 2^64 - 2 times since the last sleep.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}
