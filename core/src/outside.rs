//! Reads files from outside: only regular files, which never block, and only up to a bound.
//!
//! A FIFO without a writer would block the open for ever, /dev/zero has no end, and a file may be longer than memory.

use std::{
    fs::{File, Metadata, OpenOptions},
    io::{self, Read},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::Path,
};

use rustix::fs::OFlags;

/// Opens a file for reading. Anything but a regular file is [`io::ErrorKind::InvalidInput`]; the error says what it is.
pub fn open(path: &Path) -> io::Result<(File, Metadata)> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let about = file.metadata()?;
    match kind(&about) {
        None => Ok((file, about)),
        Some(kind) => {
            let problem = format!("it is {kind}, and a regular file is wanted");
            Err(io::Error::new(io::ErrorKind::InvalidInput, problem))
        }
    }
}

/// The contents of a file of at most `most` bytes; of a longer one, [`io::ErrorKind::FileTooLarge`].
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let (file, _) = open(path)?;
    read_open(file, most)
}

/// As [`read`], of an open file.
pub fn read_open(file: File, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let got = file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if got as u64 > most {
        let problem = format!("it is longer than {most} bytes, the most that such a file may have");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, problem));
    }
    Ok(bytes)
}

/// As [`read`], of a text in UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    text(read(path, most)?)
}

/// Bytes as a text in UTF-8.
pub fn text(bytes: Vec<u8>) -> io::Result<String> {
    let invalid = |error: std::string::FromUtf8Error| {
        io::Error::new(io::ErrorKind::InvalidData, format!("it is not UTF-8: {}", error.utf8_error()))
    };
    String::from_utf8(bytes).map_err(invalid)
}

/// The kind of a file; `None` for a regular one.
pub fn kind(about: &Metadata) -> Option<&'static str> {
    let kind = about.file_type();
    Some(match () {
        () if kind.is_file() => return None,
        () if kind.is_dir() => "a directory",
        () if kind.is_symlink() => "a symbolic link",
        () if kind.is_fifo() => "a FIFO",
        () if kind.is_socket() => "a socket",
        () if kind.is_block_device() => "a block device",
        () if kind.is_char_device() => "a character device",
        () => "a file of an unknown kind",
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::{CWD, FileType, mknodat};

    use super::*;

    #[test]
    fn what_never_ends_or_never_begins_is_refused_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, 0o600.into(), 0).unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&fifo, &link).unwrap();
        for (path, kind) in [
            (&*fifo, "a FIFO"),
            (&*link, "a FIFO"),
            (Path::new("/dev/zero"), "a character device"),
            (directory.path(), "a directory"),
        ] {
            let refused = read_text(path, 100).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{}", path.display());
            assert_eq!(refused.to_string(), format!("it is {kind}, and a regular file is wanted"));
        }
        // A socket cannot be opened at all.
        let socket = directory.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(read(&socket, 100).is_err());
    }

    #[test]
    fn files_are_read_up_to_a_bound() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, "12345").unwrap();
        assert_eq!(read_text(&path, 5).unwrap(), "12345");
        assert_eq!(read(&path, 4).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        // Longer than memory, and without a byte on the disk.
        File::create(&path).unwrap().set_len(1 << 42).unwrap();
        assert_eq!(read(&path, 1 << 10).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        // The length that such a file tells is 0.
        assert!(read_text(Path::new("/proc/self/status"), 1 << 20).unwrap().starts_with("Name:"));
        fs::write(&path, [0xff]).unwrap();
        assert_eq!(read_text(&path, 5).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
