//! Reads the small files of /proc and /sys that describe the machine. A missing or malformed value is `None`.

use std::{
    fs::{self, OpenOptions},
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    str::FromStr,
};

use rustix::fs::OFlags;

/// The most bytes that are read of a file.
const MOST: u64 = 4 << 20;

/// A tree of such files.
#[derive(Debug)]
pub(super) struct Files {
    root: PathBuf,
}

impl Files {
    /// The tree below `root`: `/`, or that of a test.
    pub(super) fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Where the file of this absolute path is.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// The text of a file, trimmed.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        read(&self.path(path)).ok().map(|text| text.trim().to_owned())
    }

    /// The number that a file holds.
    pub(super) fn number<T: FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// Where a symbolic link leads.
    pub(super) fn link(&self, path: &str) -> Option<String> {
        fs::read_link(self.path(path)).ok().map(|to| to.to_string_lossy().into_owned())
    }

    /// The names in a directory, sorted; none if there is no such directory.
    pub(super) fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(path)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    pub(super) fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }
}

/// The text of a file, of which it reads 4 MiB at most.
pub(super) fn read(path: &Path) -> io::Result<String> {
    // A FIFO without a writer would block.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(MOST).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, mknodat};

    use super::*;

    #[test]
    fn what_is_no_file_or_never_ends_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        mknodat(CWD, directory.path().join("fifo"), FileType::Fifo, 0o600.into(), 0).unwrap();
        let files = Files::below(directory.path());
        assert_eq!(files.text("/fifo"), None);
        fs::File::create(directory.path().join("long")).unwrap().set_len(1 << 42).unwrap();
        assert_eq!(files.text("/long").map(|text| text.len() as u64), Some(MOST));
        let files = Files::below("/");
        assert_eq!([files.text("/dev/zero"), files.text("/proc")], [None, None]);
    }
}
