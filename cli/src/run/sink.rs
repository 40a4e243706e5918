//! This process's standard output and error, to which all ranks write ([`Sink`]).

use std::{
    io::{self, Read},
    os::fd::AsFd,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::fstat,
    io::{Errno, retry_on_intr, write},
};

use serde::{Deserialize, Serialize};

use super::{
    frames::{failure, frame},
    lines::{Lines, OpenLine},
};

/// A part of a line is shown if nothing follows it for this time: a line that is written in several pieces is not torn, and a
/// reader sees no delay.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Where the ranks' standard output and error go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) enum Output {
    /// They go line by line to this process's, each line behind `[rank] `.
    Prefixed,
    /// They go line by line to this process's, without a prefix.
    Plain,
    /// The ranks inherit this process's.
    Passed,
}

/// The stream of this process to which a rank's stream goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stream {
    Out,
    Err,
}

/// This process's standard output and error, to which one rank writes at a time.
#[derive(Debug)]
pub(super) struct Sink {
    /// The open lines of standard output and standard error.
    open: Mutex<[OpenLine; 2]>,
    /// True if both lead to the same terminal, pipe or file, so that they have one open line.
    joined: bool,
    /// True if standard output is made of frames, for a launcher on another host.
    framed: bool,
    writing: AtomicUsize,
    reads: AtomicU64,
}

impl Sink {
    pub(super) fn new(framed: bool) -> Self {
        let joined = match (fstat(io::stdout()), fstat(io::stderr())) {
            (Ok(out), Ok(err)) => (out.st_dev, out.st_ino) == (err.st_dev, err.st_ino),
            _ => false,
        };
        Self {
            joined,
            framed,
            open: Mutex::default(),
            writing: AtomicUsize::new(0),
            reads: AtomicU64::new(0),
        }
    }

    /// True if a rank's output is being written, perhaps to a slow reader.
    pub(super) fn is_writing(&self) -> bool {
        self.writing.load(Ordering::Acquire) > 0
    }

    /// How many pieces of the ranks' output have been read.
    pub(super) fn reads(&self) -> u64 {
        self.reads.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, [OpenLine; 2]> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what `make` makes of the stream's open line.
    fn write(&self, stream: Stream, make: impl FnOnce(&mut OpenLine, &mut Vec<u8>)) -> io::Result<()> {
        self.writing.fetch_add(1, Ordering::AcqRel);
        let mut all = self.lock();
        let open = match stream {
            Stream::Err if !self.joined => &mut all[1],
            _ => &mut all[0],
        };
        let mut bytes = Vec::new();
        make(open, &mut bytes);
        // Locked, so that this process's own messages do not mix with it.
        let written = match stream {
            _ if bytes.is_empty() => Ok(()),
            Stream::Out if self.framed => write_all(&io::stdout().lock(), &frame(&bytes)),
            Stream::Out => write_all(&io::stdout().lock(), &bytes),
            Stream::Err => write_all(&io::stderr().lock(), &bytes),
        };
        drop(all);
        self.writing.fetch_sub(1, Ordering::AcqRel);
        written
    }

    /// Writes a message of this process to standard error, in a separate line.
    pub(super) fn say(&self, message: &str) {
        // If it cannot be written, there is no reader.
        let _ = self.write(Stream::Err, |open, out| {
            if open.take().is_some() {
                out.push(b'\n');
            }
            out.extend_from_slice(message.as_bytes());
            out.push(b'\n');
        });
    }

    /// Tells the launcher on another host that a rank has failed, and with which status the job will end.
    pub(super) fn tell_failure(&self, status: i32) {
        let _others_wait = self.lock();
        // Without a launcher, it has no reader.
        let _ = write_all(&io::stdout().lock(), &failure(status));
    }

    /// Copies the source with this number to `stream` until it ends, each line behind `prefix`.
    /// Fails if this process's stream cannot be written; a source that cannot be read counts as ended.
    pub(super) fn forward(
        &self,
        mut source: impl Read + AsFd,
        number: usize,
        stream: Stream,
        prefix: &[u8],
    ) -> io::Result<()> {
        let mut lines = Lines::new(number, prefix);
        let mut buffer = vec![0; 64 * 1024];
        loop {
            if lines.has_begun() && pauses(&source) {
                self.write(stream, |open, out| lines.show_begun(open, out))?;
            }
            let count = match source.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Ok(count) => count,
                Err(_) => 0,
            };
            if count == 0 {
                return self.write(stream, |open, out| lines.end(open, out));
            }
            self.reads.fetch_add(1, Ordering::AcqRel);
            self.write(stream, |open, out| lines.feed(&buffer[..count], open, out))?;
        }
    }
}

/// True if nothing can be read of the source for a while.
fn pauses(source: &impl AsFd) -> bool {
    matches!(poll(&mut [PollFd::new(source, PollFlags::IN)], Some(&PAUSE)), Ok(0))
}

/// Writes all bytes, and waits if the stream would block: another process that shares the pipe or terminal may have made it
/// non-blocking. `std` would not say how much it had written by then.
fn write_all(stream: &impl AsFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match retry_on_intr(|| write(stream, bytes)) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(Errno::AGAIN) => {
                retry_on_intr(|| poll(&mut [PollFd::new(stream, PollFlags::OUT)], None))?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
