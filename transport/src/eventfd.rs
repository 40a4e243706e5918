//! Sleeps until a descriptor becomes readable or another thread ends the sleep.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io::Errno,
};

use crate::{Error, Wake};

/// The purpose of calls, for errors.
const TO_SLEEP: &str = "to sleep";

/// A time in the form that system calls take.
pub(crate) fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// A descriptor that another thread makes readable.
#[derive(Debug)]
pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    pub(crate) fn new() -> Result<Self, Error> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        fd.map(Self).map_err(|error| Error::system("eventfd", TO_SLEEP, error))
    }

    /// Sleeps until it is woken, any of these is readable, or the time is over.
    pub(crate) fn sleep<'fd>(
        &'fd self,
        others: impl IntoIterator<Item = BorrowedFd<'fd>>,
        timeout: Duration,
    ) -> Result<(), Error> {
        let all = std::iter::once(self.0.as_fd()).chain(others);
        let mut fds: Vec<_> = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match poll(&mut fds, Some(&timespec(timeout))) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(Error::system("poll", TO_SLEEP, error)),
        }
        if fds.first().is_none_or(|mine| mine.revents().is_empty()) { Ok(()) } else { self.reset() }
    }

    /// Forgets all wakes until now.
    pub(crate) fn reset(&self) -> Result<(), Error> {
        // One read resets the counter of all wakes.
        match rustix::io::read(&self.0, &mut [0; 8]) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(Error::system("read of an eventfd", TO_SLEEP, error)),
        }
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Wake for EventFd {
    fn wake(&self) {
        // This fails only if it was woken 2^64 - 2 times since the last sleep.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}
