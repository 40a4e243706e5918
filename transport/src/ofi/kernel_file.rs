//! Reads files of `/proc` and `/sys`.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

/// The contents of such a file, up to 1 MiB.
pub(super) fn read(path: impl AsRef<Path>) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(1 << 20).read_to_string(&mut text).map(|_| text)
}
