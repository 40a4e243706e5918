//! Reads the small files in which the kernel tells of the machine. They are data: what is absent or odd is
//! `None`.

use std::{
    fs::{self, File},
    io::Read,
    path::PathBuf,
    str::FromStr,
};

/// No such file is longer that is of use here.
const MOST: u64 = 4 << 20;

/// A tree of such files.
#[derive(Debug)]
pub(super) struct Files {
    root: PathBuf,
}

impl Files {
    /// The tree below `root`: `/`, or a test's.
    pub(super) fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Where the file of this absolute path is.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// What a file says, without white space around it.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        let mut bytes = Vec::new();
        File::open(self.path(path)).ok()?.take(MOST).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// The number that a file holds.
    pub(super) fn number<T: FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// The names in a directory, sorted; none if there is no such directory.
    pub(super) fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(path)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Whether there is such a file or directory.
    pub(super) fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }
}
