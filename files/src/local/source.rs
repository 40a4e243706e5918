//! Reads the file that is sent, piece by piece: the complete file, or some of its tensors.
//!
//! The file is read and not mapped: if another process truncates it, an access through a mapping raises SIGBUS, and a read is only
//! shorter. A file whose length differs from the length that the system reports is refused, as in /proc (0) and /sys (4096).

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
    plan::{FilePlan, PieceSet},
};

/// A range of bytes that is contiguous in the file and in the bytes that are sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// Its position in the bytes that are sent.
    pub to: u64,
    /// Its position in the file.
    pub from: u64,
    /// Its length in bytes.
    pub len: u64,
}

/// The identity of a file, in numbers that are the same on all hosts of a network file system (the device number is not). A file
/// with the same numbers is taken for the same file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileIdentity {
    inode: u64,
    len: u64,
    /// The modification time: seconds and nanoseconds.
    modified: (i64, i64),
}

impl FileIdentity {
    fn of(about: &Metadata) -> Self {
        Self { inode: about.ino(), len: about.len(), modified: (about.mtime(), about.mtime_nsec()) }
    }

    /// True if the file at this path has this identity.
    pub(crate) fn is(&self, other: &Path) -> bool {
        other.metadata().is_ok_and(|about| about.is_file() && Self::of(&about) == *self)
    }
}

/// The file that is sent.
#[derive(Debug)]
pub(crate) struct SentFile {
    pub(super) file: File,
    path: PathBuf,
    /// What the system said of it when it was opened.
    pub(super) about: Metadata,
    /// The bytes that are sent before the parts: the new header of selected tensors.
    pub(super) head: Vec<u8>,
    /// The parts in the order in which they are sent, without gaps.
    pub(super) parts: Vec<Extent>,
}

impl SentFile {
    /// Opens a file, which is sent completely.
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
        // This is only advice, so that an error does not matter.
        let _ = fadvise(&file, 0, None, Advice::Sequential);
        Ok(Self {
            file,
            path: path.to_owned(),
            head: Vec::new(),
            parts: vec![Extent { to: 0, from: 0, len: about.len() }],
            about,
        })
    }

    /// The plan of its transfer, in pieces of this many bytes.
    pub(crate) fn plan(&self, piece: u64) -> FileResult<FilePlan> {
        let name = self.path.file_name().unwrap_or_default().to_owned();
        let len = self.parts.last().map_or(self.head.len() as u64, |part| part.to + part.len);
        let mut plan = FilePlan::new(name, len, piece)?;
        (plan.mode, plan.modified) = (self.about.mode() & 0o777, self.origin().modified);
        // It occupies less room on the disk than it has bytes, so that it may have holes.
        if self.about.blocks().saturating_mul(512) < self.about.len() {
            plan.data = self.data(0, len).map(|(start, end)| end - start).sum();
        }
        Ok(plan)
    }

    /// The ranges between two positions of the bytes that are sent that are data and no holes: beginnings and ends, in order.
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

    /// The pieces that lie in holes.
    pub(crate) fn holes(&self, plan: &FilePlan) -> PieceSet {
        let mut holes = PieceSet::of(plan.pieces(), |_| true);
        for (start, end) in self.data(0, plan.len) {
            (start / plan.piece..end.div_ceil(plan.piece)).for_each(|piece| holes.remove(piece));
        }
        holes
    }

    /// Reads the bytes that are sent from position `at` on.
    pub(crate) fn read(&self, mut at: u64, mut into: &mut [u8]) -> FileResult<()> {
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

    /// Reads the bytes that are sent from position `at` on, and returns their checksum.
    pub(crate) fn read_summed(&self, at: u64, into: &mut [u8]) -> FileResult<u128> {
        summed(at, into, |at, block| self.read(at, block))
    }

    /// The checksums of these pieces, and 0 for the others. When told to `stop`, returns 0 for the rest.
    pub(crate) fn sums(
        &self,
        plan: &FilePlan,
        pieces: &PieceSet,
        stop: &AtomicBool,
    ) -> FileResult<Vec<u128>> {
        let (mut bytes, mut zeros) = (vec![0; plan.longest()], Zeros::default());
        let mut sum = |piece| {
            let (start, len) = plan.range(piece);
            let bytes = bytes.get_mut(..len).unwrap_or_default();
            if !pieces.has(piece) || stop.load(Ordering::Relaxed) {
                return Ok(0);
            }
            if plan.is_sparse() && self.data(start, start + len as u64).next().is_none() {
                return Ok(zeros.sum(len));
            }
            self.read_summed(start, bytes)
        };
        (0..plan.pieces()).map(&mut sum).collect()
    }

    /// True if only some tensors of the file are sent.
    pub(crate) const fn is_part(&self) -> bool {
        !self.head.is_empty()
    }

    /// The identity of the file when it was opened.
    pub(crate) fn origin(&self) -> FileIdentity {
        FileIdentity::of(&self.about)
    }

    /// Fails if the file was modified after it was opened.
    pub(crate) fn unchanged(&self) -> FileResult<()> {
        let now = self.file.metadata().map_err(|error| Problem::io("looking at it", &error))?;
        let FileIdentity { len, modified, .. } = self.origin();
        if now.len() != len {
            let how = format!("it had {len} bytes and has {}", now.len());
            return Err(Problem::Changed { how });
        }
        if (now.mtime(), now.mtime_nsec()) != modified {
            return Err(Problem::Changed { how: "it was modified".to_owned() });
        }
        ends_at(&self.file, len)
    }

    /// True if this path leads to the same file.
    pub(crate) fn is(&self, other: &Path) -> bool {
        other.metadata().is_ok_and(|about| (about.dev(), about.ino()) == (self.about.dev(), self.about.ino()))
    }
}

/// Fails if a file has more or fewer bytes than the system reports.
fn ends_at(file: &File, promised: u64) -> FileResult<()> {
    let has = |at| {
        let got = file.read_at(&mut [0], at).map_err(|error| Problem::io("reading it", &error));
        got.map(|got| got > 0)
    };
    if has(promised)? {
        return Err(Problem::Length { promised, more: true });
    }
    match promised.checked_sub(1) {
        Some(last) if !has(last)? => Err(Problem::Length { promised, more: false }),
        _ => Ok(()),
    }
}

/// Reads bytes of a file, whether they are sent or not.
pub(super) fn read(file: &File, from: u64, into: &mut [u8]) -> FileResult<()> {
    file.read_exact_at(into, from).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            Problem::Changed { how: format!("it ends before byte {}", from + into.len() as u64) }
        }
        _ => Problem::io("reading it", &error),
    })
}
