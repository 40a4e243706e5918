//! Writes the tuning file: again after each collective, each time atomically.

use std::{
    fs::{self, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{FileTypeExt, PermissionsExt},
    path::Path,
};

/// Checks that the file can be written, without changing it.
pub(super) fn check(path: &Path) -> Result<(), String> {
    if is_fifo(path) {
        return Ok(());
    }
    let there = path.symlink_metadata().is_ok();
    let opened = OpenOptions::new().append(true).create(true).open(path);
    opened.map_err(|error| unwritable(path, &error))?;
    if !there {
        fs::remove_file(path).map_err(|error| unwritable(path, &error))?;
    }
    Ok(())
}

/// True if a new file can replace it. /dev/stdout and pipes cannot be replaced; they are written to.
pub(super) fn is_plain(path: &Path) -> bool {
    path.metadata().map_or(true, |about| about.is_file())
}

/// True if it is a named pipe, whose reader would see its end if it were opened and closed.
pub(crate) fn is_fifo(path: &Path) -> bool {
    path.metadata().is_ok_and(|about| about.file_type().is_fifo())
}

/// Replaces the contents of the file.
pub(super) fn write(path: &Path, text: &str) -> Result<(), String> {
    let written = if is_plain(path) { replace(path, text) } else { fs::write(path, text) };
    written.map_err(|error| unwritable(path, &error))
}

/// Replaces a file atomically: at any time it has the old contents or the whole text.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    // A symbolic link stays, and its target is replaced.
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    // The permissions of the old file, or those of a new file of this user.
    let permissions = path.metadata().map_or_else(|_| Permissions::from_mode(0o666), |old| old.permissions());
    let partial = tempfile::Builder::new()
        .permissions(permissions.clone())
        .tempfile_in(directory.unwrap_or_else(|| Path::new(".")));
    let written = partial.and_then(|mut partial| {
        if path.exists() {
            partial.as_file().set_permissions(permissions)?;
        }
        partial.write_all(text.as_bytes())?;
        partial.as_file().sync_all()?;
        Ok(partial.persist(path).map(drop)?)
    });
    match written {
        // If the directory is not writable, the file may be; a file that is mounted by itself, as in a container, cannot be replaced.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::PermissionDenied
                    | io::ErrorKind::ReadOnlyFilesystem
                    | io::ErrorKind::ResourceBusy
            ) =>
        {
            fs::write(path, text)
        }
        written => written,
    }
}

fn unwritable(path: &Path, error: &io::Error) -> String {
    format!("--output {}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        os::unix::fs::{MetadataExt, symlink},
    };

    use super::*;

    #[test]
    fn a_file_is_replaced_and_nothing_stays_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("table"), directory.path().join("link"));
        write(&file, "one").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        symlink("table", &link).unwrap();
        let mut reader = File::open(&file).unwrap();
        write(&link, "two").unwrap();
        assert_eq!(io::read_to_string(&mut reader).unwrap(), "one", "its reader goes on");
        assert_eq!(fs::read_to_string(&file).unwrap(), "two");
        assert!(link.is_symlink());
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
    }

    #[test]
    fn what_is_no_plain_file_is_written_to() {
        assert!(!is_plain(Path::new("/dev/null")));
        write(Path::new("/dev/null"), "text").unwrap();
        assert!(!is_plain(Path::new("/dev/null")), "it is where it was");
    }

    #[test]
    fn the_reader_of_a_pipe_does_not_see_the_check() {
        use rustix::{
            event::{PollFd, PollFlags, poll},
            fs::{CWD, FileType, Mode, OFlags, mknodat, open},
        };
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let reader = open(&pipe, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).unwrap();
        check(&pipe).unwrap();
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut polled = [PollFd::new(&reader, PollFlags::IN)];
        poll(&mut polled, Some(&now)).unwrap();
        assert_eq!(polled[0].revents(), PollFlags::empty(), "it was opened and closed");
    }

    #[test]
    fn what_cannot_be_written_is_told_and_stays() {
        let directory = tempfile::tempdir().unwrap();
        for path in [directory.path(), &directory.path().join("none/table")] {
            let error = check(path).unwrap_err();
            assert!(error.starts_with(&format!("--output {}: ", path.display())), "{error}");
            write(path, "text").unwrap_err();
        }
        let file = directory.path().join("table");
        check(&file).unwrap();
        assert!(!file.exists());
        fs::write(&file, "old").unwrap();
        check(&file).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "old");
    }
}
