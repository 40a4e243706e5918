//! Writes the file that is received: a partial file, beside a journal, which gets its name when it is complete.
//!
//! At any time the name belongs either to the file that was there before or to the complete new one: bytes go to the partial file,
//! which is synced before it is renamed, and the journal is removed after the rename.

use std::{
    ffi::OsString,
    fs::{self, File, Metadata, OpenOptions, Permissions},
    io,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::{
    fs::{
        FallocateFlags, FlockOperation, Timespec, Timestamps, UTIME_OMIT, fallocate, flock, fstatvfs,
        futimens,
    },
    io::Errno,
    process::{Resource, geteuid, getrlimit},
};

use super::{
    flusher::{Flusher, STRIDE},
    holes::{self, Zeros},
    journal::Journal,
    own::{self, GUARDED},
};
use crate::{
    checksum::{BLOCK, Checksum, digest, summed},
    error::{FileResult, Problem},
    plan::{FilePlan, MAX_NAME, PieceSet, of_piece},
};

/// The ends of the hidden names.
const PARTIAL: &str = ".unisono-part";
const JOURNAL: &str = ".unisono-journal";

/// A file that is being received.
#[derive(Debug)]
pub(crate) struct Target {
    plan: FilePlan,
    directory: PathBuf,
    pub(crate) partial: File,
    journal: Journal,
    /// The paths of the partial file and of the journal.
    paths: [PathBuf; 2],
    /// True if the partial file is new, so that bytes that are not written are zeros.
    fresh: bool,
    /// `None` if the file is short.
    flusher: Option<Flusher>,
    /// True if the partial file holds a piece that another attempt can use.
    holds: AtomicBool,
    done: bool,
}

impl Target {
    /// The file that is there, if it has the length and the modification time of the one to be received. Its contents may differ.
    pub(crate) fn whole(directory: &Path, plan: &FilePlan) -> FileResult<Option<File>> {
        let path = directory.join(plan.name());
        let looking = |error| Problem::io("looking at the existing file", &error);
        let about = match path.symlink_metadata() {
            Ok(about) => about,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(looking(error)),
        };
        if about.is_dir() {
            return Err(Problem::refused("replacing it", "there is a directory of that name"));
        }
        if !about.is_file() {
            return Ok(None);
        }
        // A file that cannot be read is replaced.
        let opened = OpenOptions::new().read(true).custom_flags(GUARDED).open(path);
        let alike = |about: Metadata| {
            about.is_file() && about.len() == plan.len && (about.mtime(), about.mtime_nsec()) == plan.modified
        };
        Ok(opened.ok().filter(|file| file.metadata().is_ok_and(alike)))
    }

    /// Opens the partial file, reserves room for the complete file, and returns the checksums of pieces in the journal. If another
    /// user has created something under one of the two names, both get this process's user id at their ends.
    pub(crate) fn open(directory: &Path, plan: &FilePlan) -> FileResult<(Self, Vec<u128>)> {
        let mut foreign = Vec::new();
        for user in [String::new(), format!("-{}", geteuid().as_raw())] {
            let paths = [PARTIAL, JOURNAL].map(|what| hidden(directory, plan, &format!("{what}{user}")));
            if let Some(opened) = Self::open_at(directory, plan, paths, &mut foreign)? {
                return Ok(opened);
            }
        }
        let foreign = foreign.join(" and ");
        let reason = format!("{foreign} are in the way; remove them, or name another directory");
        Err(Problem::refused("opening the partial file", &reason))
    }

    /// As [`Self::open`] under these names; `None` if one of them belongs to another user, which is added to `foreign` with the reason.
    fn open_at(
        directory: &Path,
        plan: &FilePlan,
        paths: [PathBuf; 2],
        foreign: &mut Vec<String>,
    ) -> FileResult<Option<(Self, Vec<u128>)>> {
        let [path, journal] = &paths;
        let mut leave = |path: &Path, why: &io::Error| {
            unisono::log::warn!(file = %path.display(), %why, "not written by unisono, and left unchanged");
            foreign.push(format!("{} ({why})", path.display()));
            Ok(None)
        };
        let opening = |error| Problem::writing("opening the partial file", plan.len, &error);
        let (file, before) = match own::open(path, plan.mode | 0o600) {
            // Another process may have finished and renamed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound && directory.is_dir() => {
                return Err(Problem::Busy);
            }
            Err(why) if why.kind() == io::ErrorKind::AlreadyExists => return leave(path, &why),
            opened => opened.map_err(opening)?,
        };
        // Some network file systems have no locks.
        if flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
            return Err(Problem::Busy);
        }
        // The process that held the lock may have finished and renamed it.
        if !is_at(&file, path) {
            return Err(Problem::Busy);
        }
        if let Some(before) = &before {
            narrow(&file, before, plan)?;
        }
        let about = file.metadata().map_err(opening)?;
        let opened = Journal::open(journal, plan);
        if opened.is_err() && about.len() == 0 {
            // No `Target` exists yet that would remove it.
            remove(path);
        }
        let (journal, sums) = match opened {
            Err(why) if why.kind() == io::ErrorKind::AlreadyExists => return leave(journal, &why),
            opened => opened.map_err(|error| Problem::writing("opening the journal", plan.len, &error))?,
        };
        let holds = AtomicBool::new(about.len() == plan.len && sums.iter().any(|&sum| sum != 0));
        let target = Self {
            plan: plan.clone(),
            directory: directory.to_owned(),
            partial: file,
            journal,
            flusher: Flusher::start(path, plan.len, STRIDE),
            fresh: before.is_none(),
            holds,
            done: false,
            paths,
        };
        target.reserve()?;
        Ok(Some((target, sums)))
    }

    /// Reserves room on the disk, so that the disk is not full later.
    fn reserve(&self) -> FileResult<()> {
        let (len, wanted) = (self.plan.len, self.plan.data);
        // Writing beyond this limit kills the process (SIGXFSZ).
        if let Some(limit) = getrlimit(Resource::Fsize).current.filter(|&limit| len > limit) {
            let wanted = len;
            let reason = format!("files of this process may have {limit} (ulimit -f)");
            return Err(Problem::NoSpace { wanted, reason });
        }
        // Free room is checked first, because an attempt that fails may fill the disk for others meanwhile.
        let taken = self.partial.metadata().map_or(0, |about| about.blocks().saturating_mul(512));
        let free = fstatvfs(&self.partial).map(|about| about.f_bavail.saturating_mul(about.f_frsize));
        // Some network file systems say that nothing is free, or do not know.
        if let Ok(free @ 1..) = free
            && wanted.saturating_sub(taken) > free
        {
            return Err(Problem::NoSpace { wanted, reason: format!("{free} are free") });
        }
        let full = |error: &io::Error| Problem::writing("making room for it", wanted, error);
        // Removes bytes after the end.
        self.partial.set_len(len).map_err(|error| full(&error))?;
        // The positions of holes are not known yet.
        if len == 0 || self.plan.is_sparse() {
            return Ok(());
        }
        match fallocate(&self.partial, FallocateFlags::empty(), 0, len) {
            // If the file system cannot reserve room, a full disk is found when bytes are written.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
            Err(error) => Err(full(&error.into())),
        }
    }

    /// Writes a piece and notes its checksum.
    pub(crate) fn write(&self, piece: u64, bytes: &[u8], sum: u128) -> FileResult<()> {
        self.put(piece, bytes, |_| {})?;
        self.note(piece, sum)
    }

    /// Writes a piece that has arrived, and notes its checksum if it is `wanted`. A piece whose checksum is not noted counts as
    /// missing.
    pub(crate) fn receive(&self, piece: u64, bytes: &[u8], wanted: u128) -> FileResult<()> {
        let mut sum = Checksum::new();
        self.put(piece, bytes, |block| sum.add(block))?;
        match sum.end() {
            got if got == wanted => self.note(piece, wanted),
            got => Err(Problem::Damaged { piece, wanted, got }),
        }
    }

    /// Writes a piece block by block, each after `look` has seen it. The page cache makes one folio of the bytes of one write, and
    /// may wait long for memory for a large one.
    fn put(&self, piece: u64, bytes: &[u8], mut look: impl FnMut(&[u8])) -> FileResult<()> {
        if self.plan.is_sparse() {
            self.clear(piece)?;
        }
        let mut at = self.plan.range(piece).0;
        for block in bytes.chunks(BLOCK) {
            look(block);
            self.lay(block, at).map_err(|error| self.writing(&error))?;
            at += block.len() as u64;
        }
        Ok(())
    }

    /// Writes bytes. If the source has holes, the place reads as zeros, and zeros are not written.
    fn lay(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        if !self.plan.is_sparse() {
            return self.partial.write_all_at(bytes, at);
        }
        let mut runs = holes::runs(bytes, at).filter(|(.., zeros)| !zeros);
        runs.try_for_each(|(at, run, _)| self.partial.write_all_at(run, at))
    }

    /// Makes a hole of a piece.
    fn clear(&self, piece: u64) -> FileResult<()> {
        let (start, len) = self.plan.range(piece);
        // A new file is a hole.
        let cleared = if self.fresh { Ok(()) } else { holes::clear(&self.partial, start, len as u64) };
        cleared.map_err(|error| self.writing(&error))
    }

    /// Makes holes of these pieces, and notes their checksums in the journal and in `sums`. Returns early when told to `stop`.
    pub(crate) fn punch(&self, pieces: &PieceSet, sums: &mut [u128], stop: &AtomicBool) -> FileResult<()> {
        let mut zeros = Zeros::default();
        for piece in pieces.iter().take_while(|_| !stop.load(Ordering::Relaxed)) {
            self.clear(piece)?;
            let sum = zeros.sum(self.plan.range(piece).1);
            self.note(piece, sum)?;
            if let Some(noted) = usize::try_from(piece).ok().and_then(|piece| sums.get_mut(piece)) {
                *noted = sum;
            }
        }
        Ok(())
    }

    fn note(&self, piece: u64, sum: u128) -> FileResult<()> {
        self.journal.note(piece, sum).map_err(|error| self.writing(&error))?;
        self.holds.store(true, Ordering::Relaxed);
        if let Some(flusher) = &self.flusher {
            flusher.wrote(self.plan.range(piece).1 as u64);
        }
        Ok(())
    }

    fn writing(&self, error: &io::Error) -> Problem {
        Problem::writing("writing it", self.plan.len, error)
    }

    /// Sets the source's modification time, and syncs the file to the disk.
    pub(crate) fn sync(&self) -> FileResult<()> {
        let (tv_sec, tv_nsec) = self.plan.modified;
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec, tv_nsec },
        };
        futimens(&self.partial, &times).map_err(|error| Problem::io("dating it", &error.into()))?;
        self.partial.sync_all().map_err(|error| Problem::writing("syncing it", self.plan.len, &error))
    }

    /// Renames the partial file to the file's name, replacing an existing file.
    pub(crate) fn rename(&mut self) -> FileResult<()> {
        let renaming = |error| Problem::io("renaming the partial file", &error);
        let [partial, _] = &self.paths;
        let name = self.directory.join(self.plan.name());
        let still_ours = |path: &Path| match is_at(&self.partial, path) {
            true => Ok(()),
            false => Err(renaming(io::Error::other(format!("{} is another file now", path.display())))),
        };
        still_ours(partial)?;
        fs::rename(partial, &name).map_err(renaming)?;
        self.done = true;
        still_ours(&name)?;
        self.protect();
        // Some file systems cannot sync a directory.
        let synced = File::open(&self.directory).and_then(|directory| directory.sync_all());
        if let Err(error) = synced {
            unisono::log::debug!(directory = %self.directory.display(), %error, "the directory was not synced");
        }
        Ok(())
    }

    /// Removes the owner's permission to write if the source has none. This is done after the rename, because another attempt has to
    /// open the partial file for writing.
    fn protect(&self) {
        if self.plan.mode & 0o200 != 0 {
            return;
        }
        let protected = self.partial.metadata().and_then(|about| {
            self.partial.set_permissions(Permissions::from_mode(about.mode() & 0o7777 & !0o200))
        });
        // Some file systems have no permissions.
        if let Err(error) = protected.and_then(|()| self.partial.sync_all()) {
            unisono::log::debug!(directory = %self.directory.display(), %error, "the file stays writable");
        }
    }
}

impl Drop for Target {
    /// Keeps what another attempt can use, and removes the rest.
    fn drop(&mut self) {
        let kept = !self.done && self.holds.load(Ordering::Relaxed);
        for path in self.paths.iter().skip(usize::from(self.done)).filter(|_| !kept) {
            remove(path);
        }
    }
}

/// Removes the permissions that the source does not have from a partial file that was there, before a byte is written to it.
fn narrow(file: &File, about: &Metadata, plan: &FilePlan) -> FileResult<()> {
    let (has, may) = (about.mode() & 0o7777, plan.mode | 0o600);
    if has & !may == 0 {
        return Ok(());
    }
    match file.set_permissions(Permissions::from_mode(has & may)) {
        // Some file systems have no permissions; and this process's own user made the file.
        Err(error) if about.uid() == geteuid().as_raw() => {
            unisono::log::debug!(%error, "the partial file keeps its permissions");
            Ok(())
        }
        narrowed => narrowed.map_err(|error| {
            let doing =
                format!("narrowing the partial file's permissions from {has:03o} to {:03o}", has & may);
            Problem::io(&doing, &error)
        }),
    }
}

/// True if this path leads to this file.
fn is_at(file: &File, path: &Path) -> bool {
    let same = |one: &Metadata, other: &Metadata| (one.dev(), one.ino()) == (other.dev(), other.ino());
    path.symlink_metadata().is_ok_and(|there| file.metadata().is_ok_and(|about| same(&there, &about)))
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        unisono::log::warn!(file = %path.display(), %error, "a file stays behind");
    }
}

/// The checksums of the pieces of a file. If some are `wanted`: 0 for each piece whose checksum is not the wanted one, or for which
/// 0 is wanted. When told to `stop`, returns 0 for the rest.
pub(crate) fn sums(file: &File, plan: &FilePlan, wanted: Option<&[u128]>, stop: &AtomicBool) -> Vec<u128> {
    let (mut bytes, mut zeros) = (vec![0; plan.longest()], Zeros::default());
    let whole = file.metadata().map_or(0, |about| about.len());
    let mut sum = |piece| {
        let ((start, len), wanted) = (plan.range(piece), wanted.map(|wanted| of_piece(wanted, piece)));
        let bytes = bytes.get_mut(..len)?;
        if wanted == Some(0) || stop.load(Ordering::Relaxed) {
            return None;
        }
        let end = start + len as u64;
        let hole = plan.is_sparse() && end <= whole && holes::data(file, start, end).is_none();
        // A piece that cannot be read must be sent again.
        let read = |at, block: &mut [u8]| file.read_exact_at(block, at);
        let sum = if hole { zeros.sum(len) } else { summed(start, bytes, read).ok()? };
        Some(sum).filter(|&sum| wanted.is_none_or(|wanted| wanted == sum))
    };
    (0..plan.pieces()).map(|piece| sum(piece).unwrap_or_default()).collect()
}

fn hidden(directory: &Path, plan: &FilePlan, what: &str) -> PathBuf {
    let name = plan.name();
    let long = 1 + name.len() + what.len().max(JOURNAL.len()) > MAX_NAME;
    let name = if long { format!("{:032x}", digest(name.as_bytes())).into() } else { name };
    let mut hidden = OsString::from(".");
    hidden.extend([name, what.into()]);
    directory.join(hidden)
}
