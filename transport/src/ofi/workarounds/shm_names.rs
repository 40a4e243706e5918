//! The names of shared memory in /dev/shm, and what killed processes leave there.
//!
//! libfabric's `shm` names an endpoint's memory after the process, `PID:UID:NUMBER`. In containers that share /dev/shm, processes may
//! have the same numbers, and one removes the memory of another (prov/shm/src/smr_util.c, `smr_retry_map`). And a process that is
//! killed does not remove its memory. So endpoints get random names here, and beside the memory lies a file on which the process holds
//! a lock (`flock`) while it lives. A file of this user that is not locked was left by a killed process. It is removed with the memory
//! by the next process that opens such an endpoint, or by the one that started the killed process.

use std::{
    fs,
    io::{self, Write as _},
    os::{
        fd::OwnedFd,
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FlockOperation, OFlags, flock, fstat},
    rand::{GetRandomFlags, getrandom},
};

use super::withdrawn_puts::Word;
use crate::Error;

/// The directory in which libfabric's `shm_open` creates memory.
const DIRECTORY: &str = "/dev/shm";
/// The beginning of names, and the number of random bytes that follow, in hexadecimal digits.
const OURS: &str = "unisono-";
const RANDOM: usize = 12;
/// The end of the names of locked files.
const LOCK: &str = ".lock";

/// The name of an endpoint's memory. No other process uses it while this lives.
#[derive(Debug)]
pub(in crate::ofi) struct Name {
    name: String,
    marker: PathBuf,
    /// Holds the lock.
    _locked: OwnedFd,
    /// In the locked file.
    word: Word,
}

impl Name {
    /// A name that is free. The name of the memory is this one, or this one followed by a colon and more.
    pub(in crate::ofi) fn take() -> Result<Self, Error> {
        Self::take_in(Path::new(DIRECTORY)).map_err(|error| Error::SharedMemory {
            reason: format!("no file can be made in {DIRECTORY}: {error}{}", state()),
        })
    }

    fn take_in(directory: &Path) -> io::Result<Self> {
        loop {
            let mut bytes = [0_u8; RANDOM];
            getrandom(&mut bytes, GetRandomFlags::empty())?;
            let name: String = bytes.iter().fold(OURS.to_owned(), |name, byte| format!("{name}{byte:02x}"));
            let marker = directory.join(format!("{name}{LOCK}"));
            let mut file =
                fs::OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&marker)?;
            // Another process's sweep may have removed the file before it was locked.
            if try_lock(&file)? && is_at(&file, &marker) {
                // Written, so that a page is taken now if there is room for one.
                let word = file.write_all(&Word::UNSET).and_then(|()| Word::map(&file));
                let word = word.inspect_err(|_| drop(fs::remove_file(&marker)))?;
                return Ok(Self { name, marker, _locked: file.into(), word });
            }
        }
    }

    pub(in crate::ofi) fn as_str(&self) -> &str {
        &self.name
    }

    /// [Withdraws](Word::withdraw) the puts of the endpoint of this name.
    pub(in crate::ofi) fn withdraw(&self) {
        self.word.withdraw();
    }
}

/// The word of the peer with this name of libfabric's.
pub(in crate::ofi) fn word_of(peer: &[u8]) -> Result<Word, Error> {
    let failed = |what: String| Error::SharedMemory { reason: format!("a peer's {what}") };
    let marker = marker_of(peer).ok_or_else(|| {
        failed(format!("address, {:?}, names no memory of unisono's", String::from_utf8_lossy(peer)))
    })?;
    Word::open(&marker)
        .map_err(|error| failed(format!("file {} cannot be mapped: {error}", marker.display())))
}

/// The locked file of the endpoint with this name of libfabric's, if the name contains one of ours.
fn marker_of(name: &[u8]) -> Option<PathBuf> {
    let at = name.windows(OURS.len()).position(|part| part == OURS.as_bytes())?;
    let ours = name.get(at..at + OURS.len() + 2 * RANDOM)?;
    let random = ours.get(OURS.len()..)?.iter().all(u8::is_ascii_hexdigit);
    let ours = std::str::from_utf8(ours).ok().filter(|_| random)?;
    Some(Path::new(DIRECTORY).join(format!("{ours}{LOCK}")))
}

impl Drop for Name {
    fn drop(&mut self) {
        // The child of a fork does not own it.
        if let Err(error) = fs::remove_file(&self.marker) {
            tracing::debug!(marker = ?self.marker, %error, "the mark of shared memory cannot be removed");
        }
    }
}

/// Removes the shared memory that killed processes of this user have left in /dev/shm. Returns the number of files that were removed.
/// Files that cannot be read or removed are left.
pub fn sweep() -> usize {
    sweep_in(Path::new(DIRECTORY))
}

fn sweep_in(directory: &Path) -> usize {
    let names = |directory: &Path| -> Vec<String> {
        let all = fs::read_dir(directory).into_iter().flatten().flatten();
        all.filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| name.starts_with(OURS))
            .collect()
    };
    let all = names(directory);
    let mut removed = 0;
    for name in all.iter().filter_map(|name| name.strip_suffix(LOCK)) {
        let marker = directory.join(format!("{name}{LOCK}"));
        let Some(_locked) = abandoned(&marker) else { continue };
        // The locked file is removed last, because memory without one is never removed.
        let memory = names(directory).into_iter().filter(|file| {
            file.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
        });
        for file in memory.map(|file| directory.join(file)).chain([marker]) {
            match fs::remove_file(&file) {
                Ok(()) => removed += 1,
                Err(error) => tracing::warn!(?file, %error, "cannot remove what a killed process has left"),
            }
        }
    }
    if removed > 0 {
        tracing::info!(removed, "removed what killed processes had left in {}", directory.display());
    }
    removed
}

/// The lock on a locked file, if the file is this user's and no process has the lock.
fn abandoned(marker: &Path) -> Option<fs::File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).ok()?;
    let file = fs::OpenOptions::new().write(true).custom_flags(flags).open(marker).ok()?;
    let metadata = file.metadata().ok()?;
    let own = metadata.is_file() && metadata.uid() == rustix::process::geteuid().as_raw();
    (own && try_lock(&file).ok()? && is_at(&file, marker)).then_some(file)
}

fn try_lock(file: &fs::File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether an open file is the one at a path.
fn is_at(file: &fs::File, path: &Path) -> bool {
    let here = fs::symlink_metadata(path).ok().map(|there| (there.dev(), there.ino()));
    fstat(file).ok().map(|it| (it.st_dev, it.st_ino)) == here
}

/// The free room for shared memory, in words that follow a reason.
pub(in crate::ofi) fn state() -> String {
    let Ok(room) = rustix::fs::statvfs(DIRECTORY) else {
        return format!("; {DIRECTORY} cannot be looked at");
    };
    let bytes = |blocks: u64| blocks.saturating_mul(room.f_frsize) >> 10;
    let kind = if room.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY) {
        "; it is mounted read-only: mount a tmpfs there that may be written to"
    } else {
        ""
    };
    format!("; of {} KiB in {DIRECTORY} {} are free{kind}", bytes(room.f_blocks), bytes(room.f_bavail))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(directory)
            .unwrap()
            .map(|it| it.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn what_is_locked_stays_and_what_a_killed_process_left_goes() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let lives = Name::take_in(directory).unwrap();
        fs::write(directory.join(format!("{}:0:0", lives.as_str())), "memory").unwrap();
        // As a process that was killed leaves it: not removed, and locked by nobody.
        let dead = "unisono-00112233445566778899aabb";
        for name in [format!("{dead}.lock"), format!("{dead}:0:0"), format!("{dead}:0:1")] {
            fs::write(directory.join(name), "").unwrap();
        }
        // Those of others.
        let others = ["71:0:0", "psm_71", "unisono-ff:0:0", "unisono-ffff", &format!("{dead}f:0:0")];
        for name in others {
            fs::write(directory.join(name), "").unwrap();
        }
        // Nor is a link followed.
        std::os::unix::fs::symlink(directory.join("71:0:0"), directory.join("unisono-aa.lock")).unwrap();
        assert_eq!(sweep_in(directory), 3);
        let mut left: Vec<String> = others.iter().map(ToString::to_string).collect();
        left.extend(["unisono-aa.lock".to_owned(), format!("{}:0:0", lives.as_str())]);
        left.push(format!("{}.lock", lives.as_str()));
        left.sort();
        assert_eq!(files(directory), left);
        drop(lives);
        assert_eq!(sweep_in(directory), 0, "who goes in good order takes its mark along");
        assert_eq!(sweep_in(&directory.join("nowhere")), 0);
    }

    #[test]
    fn a_peer_is_found_by_its_name_alone() {
        let own = "unisono-00112233445566778899aabb";
        let found = marker_of(format!("fi_shm://{own}:0:1").as_bytes());
        assert_eq!(found, Some(Path::new(DIRECTORY).join(format!("{own}.lock"))));
        for other in ["", "fi_shm://71:0:0", "fi_shm://unisono-../../../etc/passwd#####", "unisono-0011"] {
            assert_eq!(marker_of(other.as_bytes()), None, "{other}");
            assert!(matches!(word_of(other.as_bytes()), Err(Error::SharedMemory { .. })), "{other}");
        }
        assert!(matches!(word_of(own.as_bytes()), Err(Error::SharedMemory { .. })), "there is no such file");
    }

    #[test]
    fn names_differ() {
        let directory = tempfile::tempdir().unwrap();
        let names: Vec<_> = (0..100).map(|_| Name::take_in(directory.path()).unwrap()).collect();
        for (at, name) in names.iter().enumerate() {
            assert!(names[..at].iter().all(|other| other.name != name.name));
            assert!(abandoned(&name.marker).is_none(), "it is locked");
        }
    }
}
