//! Forwards the ranks' output by whole lines, each prefixed with its rank.

use std::{
    io::{self, Read},
    os::fd::AsFd,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
};

/// The longest line that is written in one piece, in bytes. A longer line is broken, so that a program that never ends its line does
/// not fill the memory.
const LONGEST: usize = 1 << 20;

/// The stream of this process to which a rank's stream goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stream {
    Out,
    Err,
}

/// This process's standard output and error, to which one rank writes at a time.
#[derive(Debug, Default)]
pub(super) struct Sink {
    lock: Mutex<()>,
    writing: AtomicUsize,
    reads: AtomicU64,
}

impl Sink {
    /// Whether a rank's output is being written, perhaps to a slow reader.
    pub(super) fn is_writing(&self) -> bool {
        self.writing.load(Ordering::Acquire) > 0
    }

    /// How many pieces of the ranks' output have been read.
    pub(super) fn reads(&self) -> u64 {
        self.reads.load(Ordering::Acquire)
    }

    fn write(&self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.writing.fetch_add(1, Ordering::AcqRel);
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        // Locked, so that this process's own messages do not mix with it.
        let written = match stream {
            Stream::Out => write_all(&io::stdout().lock(), bytes),
            Stream::Err => write_all(&io::stderr().lock(), bytes),
        };
        drop(guard);
        self.writing.fetch_sub(1, Ordering::AcqRel);
        written
    }

    /// Copies `source` to `stream` until it ends, line by line behind `prefix`.
    /// Fails if this process's stream cannot be written; a source that cannot be read counts as ended.
    pub(super) fn forward(&self, mut source: impl Read, stream: Stream, prefix: &[u8]) -> io::Result<()> {
        let mut lines = Lines { prefix, begun: Vec::new() };
        let (mut buffer, mut out) = (vec![0; 64 * 1024], Vec::new());
        loop {
            let count = match source.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Ok(count) => count,
                Err(_) => 0,
            };
            out.clear();
            if count == 0 {
                lines.end(&mut out);
                return self.write(stream, &out);
            }
            self.reads.fetch_add(1, Ordering::AcqRel);
            lines.feed(&buffer[..count], &mut out);
            self.write(stream, &out)?;
        }
    }
}

/// Writes all bytes, and waits if the stream would block: another process that shares the pipe or terminal may have made it
/// non-blocking. `std` would not say how much it had written by then.
fn write_all(stream: &impl AsFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(stream, bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => match poll(&mut [PollFd::new(stream, PollFlags::OUT)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            },
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Cuts bytes into lines and puts a prefix before each.
struct Lines<'a> {
    prefix: &'a [u8],
    /// The beginning of a line whose end has not been read.
    begun: Vec<u8>,
}

impl Lines<'_> {
    /// Appends to `out` the lines that `bytes` completes.
    fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.begun.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.begun.len() >= LONGEST {
                self.end(out);
            }
        }
    }

    /// Appends the line that has begun to `out`, with a line end if it has none.
    fn end(&mut self, out: &mut Vec<u8>) {
        if self.begun.is_empty() {
            return;
        }
        out.extend_from_slice(self.prefix);
        out.append(&mut self.begun);
        if !out.ends_with(b"\n") {
            out.push(b'\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(pieces: &[&[u8]]) -> Vec<u8> {
        let mut lines = Lines { prefix: b"[3] ", begun: Vec::new() };
        let mut out = Vec::new();
        pieces.iter().for_each(|piece| lines.feed(piece, &mut out));
        lines.end(&mut out);
        out
    }

    #[test]
    fn the_cuts_between_reads_do_not_show() {
        let text = b"one\n\n\xff\0two\r\nlast";
        let wanted = b"[3] one\n[3] \n[3] \xff\0two\r\n[3] last\n";
        for first in 0..text.len() {
            for second in first..text.len() {
                assert_eq!(
                    all(&[&text[..first], &text[first..second], &text[second..]]),
                    wanted,
                    "{first} {second}"
                );
            }
        }
        assert_eq!(all(&[]), b"");
        assert_eq!(all(&[b"\n"]), b"[3] \n");
    }

    #[test]
    fn a_line_without_end_is_broken() {
        let piece = vec![b'x'; LONGEST / 4];
        let out = all(&[&piece[..]; 6]);
        let lines: Vec<_> = out.split(|&byte| byte == b'\n').map(<[u8]>::len).collect();
        assert_eq!(lines, [LONGEST + 4, LONGEST / 2 + 4, 0]);
    }
}
