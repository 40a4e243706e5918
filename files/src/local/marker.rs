//! Finds which ranks share a directory: each creates its own file there, and looks for the others' files.
//!
//! Device and inode numbers cannot be used: those of a network file system differ from host to host, and those of local disks may
//! be the same on hosts that were set up alike.

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use rustix::process::geteuid;

use crate::error::{FileResult, Problem};

/// Marks that are older were left by ranks that were killed.
const OLD: Duration = Duration::from_secs(24 * 60 * 60);

/// A rank's mark in a directory: a file that is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Marker {
    path: PathBuf,
    /// The owner of files that this process creates there.
    pub(super) owner: u32,
}

impl Marker {
    /// Creates this rank's mark in a directory, which is created if it does not exist. `transfer` identifies the transfer.
    pub(crate) fn leave(directory: &Path, transfer: u64, rank: usize) -> FileResult<Self> {
        let there = directory.is_dir();
        fs::create_dir_all(directory).map_err(|error| Problem::io("making the directory", &error))?;
        if !there {
            unisono::log::info!(directory = %directory.display(), "made the directory");
        }
        let path = name(directory, transfer, rank);
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let made = made.map_err(|error| Problem::writing("writing to the directory", 0, &error))?;
        let mut mark = Self { path, owner: geteuid().as_raw() };
        if let Ok(about) = made.metadata() {
            mark.owner = about.uid();
            // The time is that of the file system's host, which may be another one.
            if let Ok(now) = about.modified() {
                clear(directory, now);
            }
        }
        Ok(mark)
    }

    /// True if rank `rank` has a mark in the same directory. A file that another user created or linked there does not count:
    /// otherwise this rank would rely on a rank that does not exist to write the file.
    pub(crate) fn seen(directory: &Path, transfer: u64, rank: usize, own: Option<&Self>) -> bool {
        let owner = own.map_or_else(|| geteuid().as_raw(), |own| own.owner);
        let about = name(directory, transfer, rank).symlink_metadata();
        about.is_ok_and(|about| about.is_file() && about.uid() == owner && about.nlink() == 1)
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            unisono::log::warn!(file = %self.path.display(), %error, "a marker stays behind");
        }
    }
}

/// Removes old marks. A failure is ignored, because they do no harm.
fn clear(directory: &Path, now: SystemTime) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_mark)) {
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        if modified.is_ok_and(|modified| now.duration_since(modified).is_ok_and(|age| age > OLD)) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn is_mark(name: &str) -> bool {
    let parts = name.strip_prefix(".unisono-").and_then(|parts| parts.split_once('-'));
    parts.is_some_and(|(transfer, rank)| {
        transfer.len() == 16
            && transfer.bytes().all(|byte| byte.is_ascii_hexdigit())
            && !rank.is_empty()
            && rank.bytes().all(|byte| byte.is_ascii_digit())
    })
}

fn name(directory: &Path, transfer: u64, rank: usize) -> PathBuf {
    directory.join(format!(".unisono-{transfer:016x}-{rank}"))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn only_old_marks_are_cleared_away() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let names = [
            ".unisono-00112233445566ff-0",
            ".unisono-00112233445566ff-12",
            ".unisono-00112233445566ff-",
            ".unisono-0011-0",
            ".unisono-model.partial",
            "mine",
        ];
        for name in names {
            let file = File::create(path(name)).unwrap();
            file.set_modified(SystemTime::now() - 2 * OLD).unwrap();
        }
        let other = Marker::leave(directory.path(), 1, 0).unwrap();
        let own = Marker::leave(directory.path(), 2, 0).unwrap();
        let there: Vec<_> = names.map(|name| path(name).exists()).to_vec();
        assert_eq!(there, [false, false, true, true, true, true]);
        let seen = |transfer| Marker::seen(directory.path(), transfer, 0, None);
        assert!(seen(1) && seen(2));
        drop((other, own));
        assert!(!seen(1));
        // A link or a second name of this rank's file, which other users can make, is no mark.
        let own = Marker::leave(directory.path(), 3, 7).unwrap();
        std::os::unix::fs::symlink("mine", name(directory.path(), 3, 0)).unwrap();
        fs::hard_link(path("mine"), name(directory.path(), 3, 1)).unwrap();
        fs::create_dir(name(directory.path(), 3, 2)).unwrap();
        for rank in 0..3 {
            assert!(!Marker::seen(directory.path(), 3, rank, Some(&own)), "{rank}");
        }
    }
}
