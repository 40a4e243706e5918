//! What a caller may ask for, and what it learns.

use std::{fmt, path::PathBuf, time::Duration};

/// Bytes of a piece if nothing else is asked for.
pub const PIECE: u64 = 4 << 20;

/// How a file is handed over. The root's or the sender's options hold for all, except `progress`, which is each rank's own.
pub struct Options<'a> {
    /// Of a .safetensors file only these tensors: names, in which `*` stands for any characters and `?` for any one. The
    /// receivers get a .safetensors file of them alone, with the metadata of the whole. If empty, they get the file as
    /// it is. With the feature `safetensors`.
    #[cfg(feature = "safetensors")]
    pub tensors: &'a [String],
    /// Bytes of a piece, the unit in which it is sent, checked and resumed: from 1 to 256 MiB. A rank that takes part
    /// has memory for four. A file of more than 2^20 pieces is cut into larger ones.
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

/// How much of a file has been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the file that every receiver has been sent, those that all had before among them.
    pub done: u64,
    /// Bytes of the file.
    pub whole: u64,
}

/// A file that was handed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// Where the file lies here; of one that was sent to another rank, what was given.
    pub file: PathBuf,
    /// Its length in bytes.
    pub bytes: u64,
    /// Bytes of it that were sent: all but the pieces that every receiver had, and those that are nothing but holes.
    pub sent: u64,
    /// Whether this rank has written it; if not, it was there, or another rank that shares the directory has.
    pub wrote: bool,
    /// How many ranks have.
    pub writers: usize,
    /// From the call until the last piece was handed to the system, on this rank.
    pub moving: Duration,
    /// From then until it was safe on the disks of all ranks.
    pub syncing: Duration,
}
