//! Opens the hidden files of a transfer, where other users may have created something under the same names.
//!
//! If another user made a file, or gave it a second name, that user can still write to it; and a device or a link leads elsewhere. So
//! an existing file is checked by its open descriptor before a byte is read or written.

use std::{
    fs::{File, Metadata, OpenOptions},
    hash::{BuildHasher, RandomState},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
};

use rustix::{fs::OFlags, io::Errno, process::geteuid};

use super::marker::Marker;

/// Flags for opening: a symbolic link is not followed, and opening a FIFO does not block.
pub(super) const GUARDED: i32 = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits().cast_signed();

/// Opens a file for reading and writing, and creates it if there is none. Returns what the system says of a file that was there.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`] if something is there that must not be written to; the error says why.
pub(super) fn open(path: &Path, mode: u32) -> io::Result<(File, Option<Metadata>)> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(mode).custom_flags(GUARDED);
    match options.clone().create_new(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made.map(|file| (file, None)),
    }
    let foreign = |why: String| io::Error::new(io::ErrorKind::AlreadyExists, why);
    let refusals = [Errno::LOOP, Errno::MLINK, Errno::ISDIR, Errno::NXIO, Errno::ACCESS, Errno::PERM];
    let file = match options.open(path) {
        Err(error) if refusals.iter().any(|it| error.raw_os_error() == Some(it.raw_os_error())) => {
            return Err(foreign(error.to_string()));
        }
        opened => opened?,
    };
    let about = file.metadata()?;
    foreign_by(&about, path).map_or(Ok((file, Some(about))), |why| Err(foreign(why)))
}

/// Why another user can write to a file; `None` if none can.
fn foreign_by(about: &Metadata, path: &Path) -> Option<String> {
    if !about.is_file() {
        return Some("it is not a regular file".to_owned());
    }
    if about.uid() != geteuid().as_raw() && Some(about.uid()) != owner(path.parent()?) {
        return Some(format!("user {} owns it", about.uid()));
    }
    (about.nlink() > 1).then(|| format!("it has {} names", about.nlink()))
}

/// The owner of files that this process creates in a directory: on some file systems another user than its own.
fn owner(directory: &Path) -> Option<u32> {
    Marker::leave(directory, RandomState::new().hash_one(0), 0).ok().map(|mark| mark.owner)
}
