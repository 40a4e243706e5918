//! The file that is sent: read piece by piece, as it is or as some of its tensors.
//!
//! It is read and not mapped: if somebody truncates a file, access through a map is a SIGBUS, and a read is only shorter. A
//! file whose length is not what the system reports is refused: in /proc all report 0, in /sys 4096.

use std::{
    fs::{File, Metadata, OpenOptions},
    io,
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::fs::{Advice, OFlags, fadvise};
use serde::{Deserialize, Serialize};

use super::holes::{self, Zeros};
use crate::{
    checksum::summed,
    error::{FileResult, Problem},
    plan::{Pieces, Plan},
};

/// A part of the source that lies in one piece in it and in what is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// Where it begins in what is sent.
    pub to: u64,
    /// Where it begins in the file.
    pub from: u64,
    pub len: u64,
}

/// Which file it is, in numbers that are the same on all hosts of a network's file system; that of the device is not. A
/// file that is alike in all of them is taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Origin {
    inode: u64,
    len: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
}

impl Origin {
    /// Whether the file at that path is the one.
    pub(crate) fn is(&self, other: &Path) -> bool {
        let of = |about: &Metadata| Self {
            inode: about.ino(),
            len: about.len(),
            modified: (about.mtime(), about.mtime_nsec()),
        };
        other.metadata().is_ok_and(|about| about.is_file() && of(&about) == *self)
    }
}

/// What is sent.
#[derive(Debug)]
pub(crate) struct Source {
    file: File,
    path: PathBuf,
    /// Length and time of modification when it was opened.
    seen: (u64, i64, i64),
    /// Which file it is.
    inode: (u64, u64),
    mode: u32,
    /// Whether it has less room on the disk than bytes: it may have holes.
    sparse: bool,
    /// What precedes the parts: a header made anew.
    head: Vec<u8>,
    /// In the order in which they are sent, without gaps.
    parts: Vec<Part>,
}

impl Source {
    /// Opens a file, to be sent as it is.
    pub(crate) fn open(path: &Path) -> FileResult<Self> {
        let opening = |error| Problem::io("opening it", &error);
        // A FIFO without a writer would block the open for ever.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(opening)?;
        let about = file.metadata().map_err(opening)?;
        if !about.is_file() {
            return Err(Problem::NotRegular);
        }
        ends_at(&file, about.len())?;
        // Only advice.
        let _ = fadvise(&file, 0, None, Advice::Sequential);
        Ok(Self {
            file,
            path: path.to_owned(),
            seen: (about.len(), about.mtime(), about.mtime_nsec()),
            inode: (about.dev(), about.ino()),
            mode: about.mode() & 0o777,
            sparse: about.blocks().saturating_mul(512) < about.len(),
            head: Vec::new(),
            parts: vec![Part { to: 0, from: 0, len: about.len() }],
        })
    }

    /// Sends of it, from now on, a header and these parts.
    #[cfg(feature = "safetensors")]
    pub(super) fn select(&mut self, head: Vec<u8>, parts: Vec<Part>) {
        (self.head, self.parts) = (head, parts);
    }

    /// Bytes of the file.
    #[cfg(feature = "safetensors")]
    pub(super) const fn file_len(&self) -> u64 {
        self.seen.0
    }

    /// Reads bytes of the file, wherever they lie.
    #[cfg(feature = "safetensors")]
    pub(super) fn read_file(&self, from: u64, into: &mut [u8]) -> FileResult<()> {
        read(&self.file, from, into)
    }

    /// How it is to be handed over, in pieces of so many bytes.
    pub(crate) fn plan(&self, piece: u64) -> FileResult<Plan> {
        let name = self.path.file_name().unwrap_or_default().to_owned();
        let len = self.parts.last().map_or(self.head.len() as u64, |part| part.to + part.len);
        let (_, seconds, nanoseconds) = self.seen;
        let mut plan = Plan::new(name, len, piece)?;
        (plan.mode, plan.modified) = (self.mode, (seconds, nanoseconds));
        if self.sparse {
            plan.data = self.data(0, len).map(|(start, end)| end - start).sum();
        }
        Ok(plan)
    }

    /// Where there is data, and no hole, between two places of what is sent: beginnings and ends, in order.
    fn data(&self, from: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
        let head = (from, end.min(self.head.len() as u64));
        let first = self.parts.partition_point(|part| part.to + part.len <= from);
        let parts = self.parts.get(first..).unwrap_or_default().iter().take_while(move |part| part.to < end);
        let parts = parts.flat_map(move |part| {
            let [mut at, stop] = [from, end].map(|place| place.clamp(part.to, part.to + part.len));
            std::iter::from_fn(move || {
                let within = |place: u64| place - part.to + part.from;
                let (start, end) = holes::data(&self.file, within(at), within(stop))?;
                let [start, end] = [start, end].map(|place| place - part.from + part.to);
                at = end;
                Some((start, end))
            })
        });
        Some(head).filter(|(start, end)| start < end).into_iter().chain(parts)
    }

    /// The pieces that are nothing but holes.
    pub(crate) fn holes(&self, plan: &Plan) -> Pieces {
        let mut holes = Pieces::of(plan.pieces(), |_| true);
        for (start, end) in self.data(0, plan.len) {
            (start / plan.piece..end.div_ceil(plan.piece)).for_each(|piece| holes.remove(piece));
        }
        holes
    }

    /// Reads what is sent from `at` on.
    pub(crate) fn read(&self, at: u64, into: &mut [u8]) -> FileResult<()> {
        let mut at = at;
        let mut into = into;
        if let Some(rest) = usize::try_from(at).ok().and_then(|at| self.head.get(at..)) {
            let (here, after) = into.split_at_mut(rest.len().min(into.len()));
            here.copy_from_slice(rest.get(..here.len()).unwrap_or_default());
            at += here.len() as u64;
            into = after;
        }
        let first = self.parts.partition_point(|part| part.to + part.len <= at);
        for part in self.parts.get(first..).unwrap_or_default() {
            if into.is_empty() {
                break;
            }
            let within = at.saturating_sub(part.to);
            let rest = usize::try_from(part.len - within.min(part.len)).unwrap_or(usize::MAX);
            let (here, after) = into.split_at_mut(rest.min(into.len()));
            read(&self.file, part.from + within, here)?;
            at += here.len() as u64;
            into = after;
        }
        Ok(())
    }

    /// Reads what is sent from `at` on, and gives its checksum.
    pub(crate) fn read_summed(&self, at: u64, into: &mut [u8]) -> FileResult<u128> {
        summed(at, into, |at, block| self.read(at, block))
    }

    /// The checksums of these pieces; 0 of the others. Ends early, with zeros, when told to `stop`.
    pub(crate) fn sums(&self, plan: &Plan, pieces: &Pieces, stop: &AtomicBool) -> FileResult<Vec<u128>> {
        let (mut bytes, mut zeros) = (vec![0; plan.longest()], Zeros::default());
        let mut sum = |piece| {
            let (start, len) = plan.range(piece);
            let bytes = bytes.get_mut(..len).unwrap_or_default();
            if !pieces.has(piece) || stop.load(Ordering::Relaxed) {
                return Ok(0);
            }
            if self.sparse && self.data(start, start + len as u64).next().is_none() {
                return Ok(zeros.sum(len));
            }
            self.read_summed(start, bytes)
        };
        (0..plan.pieces()).map(&mut sum).collect()
    }

    /// Whether some tensors of the file are sent, and not the file.
    pub(crate) const fn is_part(&self) -> bool {
        !self.head.is_empty()
    }

    /// Which file it was when it was opened.
    pub(crate) const fn origin(&self) -> Origin {
        let (len, seconds, nanoseconds) = self.seen;
        Origin { inode: self.inode.1, len, modified: (seconds, nanoseconds) }
    }

    /// Makes sure that nobody has written to it since it was opened.
    pub(crate) fn unchanged(&self) -> FileResult<()> {
        let now = self.file.metadata().map_err(|error| Problem::io("looking at it", &error))?;
        let (len, seconds, nanoseconds) = self.seen;
        if now.len() != len {
            let how = format!("it had {len} bytes and has {}", now.len());
            return Err(Problem::Changed { how });
        }
        if (now.mtime(), now.mtime_nsec()) != (seconds, nanoseconds) {
            return Err(Problem::Changed { how: "it was modified".to_owned() });
        }
        ends_at(&self.file, len)
    }

    /// Whether this is the very file.
    pub(crate) fn is(&self, other: &Path) -> bool {
        other.metadata().is_ok_and(|about| (about.dev(), about.ino()) == self.inode)
    }
}

/// Makes sure that a file has as many bytes as the system says.
fn ends_at(file: &File, told: u64) -> FileResult<()> {
    let has = |at| match file.read_at(&mut [0], at) {
        Ok(got) => Ok(got > 0),
        Err(error) => Err(Problem::io("reading it", &error)),
    };
    if has(told)? {
        return Err(Problem::Length { told, more: true });
    }
    match told.checked_sub(1) {
        Some(last) if !has(last)? => Err(Problem::Length { told, more: false }),
        _ => Ok(()),
    }
}

fn read(file: &File, from: u64, into: &mut [u8]) -> FileResult<()> {
    file.read_exact_at(into, from).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            Problem::Changed { how: format!("it ends before byte {}", from + into.len() as u64) }
        }
        _ => Problem::io("reading it", &error),
    })
}
