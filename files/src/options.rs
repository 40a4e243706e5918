//! The options of a transfer, its progress and its result.

use std::{fmt, path::PathBuf, time::Duration};

/// The default size of a piece, in bytes: 4 MiB.
pub const PIECE: u64 = 4 << 20;

/// The options of a transfer. Those of the root or the sender hold for all ranks, except `progress`.
///
/// ```
/// # use unisono_files::{Options, Progress};
/// let mut print = |Progress { done, whole }| println!("{done} of {whole} bytes");
/// let options = Options { piece: 16 << 20, progress: Some(&mut print), ..Options::default() };
/// # drop(options);
/// ```
pub struct Options<'a> {
    /// Copy only these tensors of a .safetensors file: names, in which `*` stands for any characters and `?` for any one
    /// character. The receivers get a .safetensors file with these tensors and the metadata of the original. If empty, the file
    /// is copied as it is. Only with the feature `safetensors`.
    #[cfg(feature = "safetensors")]
    pub tensors: &'a [String],
    /// The size of a piece, the unit of sending, checking and resuming: from 1 byte to 256 MiB. A rank needs memory for four
    /// pieces. A file of more than 2^20 pieces is cut into larger ones.
    pub piece: u64,
    /// Called on ranks that send or receive, after each piece.
    pub progress: Option<&'a mut dyn FnMut(Progress)>,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            #[cfg(feature = "safetensors")]
            tensors: &[],
            piece: PIECE,
            progress: None,
        }
    }
}

impl fmt::Debug for Options<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("piece", &self.piece).finish_non_exhaustive()
    }
}

/// The progress of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The bytes of the file that all receivers have, including those that they had before.
    pub done: u64,
    /// The length of the file, in bytes.
    pub whole: u64,
}

/// A completed transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// The file's path on this rank; for [`send`](crate::send) the path that was given.
    pub file: PathBuf,
    /// Its length in bytes.
    pub bytes: u64,
    /// The bytes that were sent: all except pieces that every receiver had, and pieces that are holes.
    pub sent: u64,
    /// True if this rank has written the file. If not, it existed, or another rank with the same directory has written it.
    pub wrote: bool,
    /// The number of ranks that have written it.
    pub writers: usize,
    /// The time from the call until this rank had written the last piece.
    pub moving: Duration,
    /// The time from then until the file was synced to the disks of all ranks.
    pub syncing: Duration,
}
