//! The journal beside a partial file: the checksum of each piece that arrived.
//!
//! The journal is a hint. After a crash of the host it may list pieces that never reached the disk, or hold random bytes. So each
//! entry is compared with the piece itself and with the source.

use std::{fs::File, io, os::unix::fs::FileExt, path::Path};

use super::own;
use crate::plan::FilePlan;

/// The beginning of a journal, with the version of its format.
const MAGIC: &[u8; 16] = b"unisono journal1";
/// Bytes before the first checksum: the magic and the identity of the file.
const HEAD: usize = 32;

/// An open journal.
#[derive(Debug)]
pub(super) struct Journal(File);

impl Journal {
    /// Opens the journal of this file, and returns the checksums of its pieces. If there is none, or it belongs to another file,
    /// makes a new one with zeros.
    ///
    /// # Errors
    /// As [`own::open`], and those of a write.
    pub(super) fn open(path: &Path, plan: &FilePlan) -> io::Result<(Self, Vec<u128>)> {
        let (file, _) = own::open(path, 0o600)?;
        let pieces = usize::try_from(plan.pieces()).unwrap_or(usize::MAX);
        let mut bytes = vec![0; pieces.saturating_mul(16).saturating_add(HEAD)];
        let read = file.read_exact_at(&mut bytes, 0);
        let sums = if let (Ok(()), Some(sums)) = (read, sums(&bytes, plan)) {
            sums
        } else {
            file.set_len(0)?;
            file.write_all_at(&head(plan), 0)?;
            file.set_len(bytes.len() as u64)?;
            vec![0; pieces]
        };
        Ok((Self(file), sums))
    }

    /// Notes that a piece arrived.
    pub(super) fn note(&self, piece: u64, sum: u128) -> io::Result<()> {
        self.0.write_all_at(&sum.to_le_bytes(), piece.saturating_mul(16).saturating_add(HEAD as u64))
    }
}

/// The beginning of the journal of this file.
fn head(plan: &FilePlan) -> Vec<u8> {
    [*MAGIC, plan.identity().to_le_bytes()].concat()
}

/// The checksums in the bytes of a journal, one for each piece; `None` if it is not of this file.
pub(crate) fn sums(bytes: &[u8], plan: &FilePlan) -> Option<Vec<u128>> {
    let sums = bytes.strip_prefix(&*head(plan))?.as_chunks().0;
    let sums = sums.get(..usize::try_from(plan.pieces()).ok()?)?;
    Some(sums.iter().map(|&bytes| u128::from_le_bytes(bytes)).collect())
}
