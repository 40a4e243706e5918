//! Opens the hidden files of a transfer, where other users may have created something under the same names.
//!
//! A file that another user made, or gave a second name, that user can still write to; a device or a link leads elsewhere. So
//! what is there is judged by its open descriptor, before a byte is read from it or written to it.

use std::{
    fs::{File, Metadata, OpenOptions},
    hash::{BuildHasher, RandomState},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
};

use rustix::{fs::OFlags, io::Errno, process::geteuid};

use super::marker::Marker;

/// A symbolic link in the way is not followed, and a FIFO not waited for.
pub(super) const GUARDED: i32 = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits().cast_signed();

/// What there is under a name.
pub(super) enum Found {
    /// Nothing was; this is new.
    Made(File),
    /// An earlier attempt's.
    Ours(File, Metadata),
    /// What is not ours to write to, and why.
    Foreign(String),
}

/// Opens a file of ours for reading and writing, and makes it if there is nothing of that name.
pub(super) fn open(path: &Path, mode: u32) -> io::Result<Found> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(mode).custom_flags(GUARDED);
    match options.clone().create_new(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made.map(Found::Made),
    }
    let foreign = [Errno::LOOP, Errno::MLINK, Errno::ISDIR, Errno::NXIO, Errno::ACCESS, Errno::PERM];
    let file = match options.open(path) {
        Err(error) if foreign.iter().any(|it| error.raw_os_error() == Some(it.raw_os_error())) => {
            return Ok(Found::Foreign(error.to_string()));
        }
        opened => opened?,
    };
    let about = file.metadata()?;
    Ok(match foreign_by(&about, path) {
        Some(why) => Found::Foreign(why),
        None => Found::Ours(file, about),
    })
}

/// Why a file is not ours alone, if it is not.
fn foreign_by(about: &Metadata, path: &Path) -> Option<String> {
    if !about.is_file() {
        return Some("it is no regular file".to_owned());
    }
    if about.uid() != geteuid().as_raw() && Some(about.uid()) != owner(path.parent()?) {
        return Some(format!("user {} owns it", about.uid()));
    }
    (about.nlink() > 1).then(|| format!("it has {} names", about.nlink()))
}

/// The owner of files that this process makes in a directory: on some file systems another user than its own.
fn owner(directory: &Path) -> Option<u32> {
    Marker::leave(directory, RandomState::new().hash_one(0), 0).ok().map(|mark| mark.owner())
}
