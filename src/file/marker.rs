//! Which ranks share a directory: each puts a file of a name of its own into it, and looks whose it sees.
//!
//! Numbers of devices and inodes would not do: those of a network's file system differ from host to host, and those of
//! local disks are the same where hosts were set up alike.

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use super::{FileProblem, Result};

/// A rank's mark in a directory, removed with it.
#[derive(Debug)]
pub(crate) struct Marker(PathBuf);

impl Marker {
    /// Leaves this rank's mark, in a directory that is made if there is none. `transfer` is a number of this transfer alone.
    pub(crate) fn leave(directory: &Path, transfer: u64, rank: usize) -> Result<Self> {
        let there = directory.is_dir();
        fs::create_dir_all(directory).map_err(|error| FileProblem::io("making the directory", &error))?;
        if !there {
            tracing::info!(directory = %directory.display(), "made the directory");
        }
        let path = name(directory, transfer, rank);
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        made.map_err(|error| FileProblem::writing("writing to the directory", 0, &error))?;
        Ok(Self(path))
    }

    /// Whether the rank of that number has left its mark in the same directory.
    pub(crate) fn seen(directory: &Path, transfer: u64, rank: usize) -> bool {
        name(directory, transfer, rank).symlink_metadata().is_ok()
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::warn!(file = %self.0.display(), %error, "a marker stays behind");
        }
    }
}

fn name(directory: &Path, transfer: u64, rank: usize) -> PathBuf {
    directory.join(format!(".unisono-{transfer:016x}-{rank}"))
}
