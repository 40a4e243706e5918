//! What handing over a file is on one rank: the plan of its pieces, the source that is read, the partial file that
//! grows beside a journal of what has come, and the rename that makes it the file. Knows nothing of other ranks.

mod journal;
mod marker;
mod options;
mod plan;
mod problem;
#[cfg(feature = "safetensors")]
mod select;
mod source;
mod target;
#[cfg(test)]
mod tests;

pub(crate) use self::{
    marker::Marker,
    plan::{Pieces, Plan},
    source::Source,
    target::{Target, sums},
};
pub use self::{
    options::{Delivered, FileOptions, FileProgress, PIECE},
    problem::FileProblem,
};

/// What went well, or what is wrong with a file.
pub(crate) type Result<T> = std::result::Result<T, FileProblem>;

/// The checksum of a piece, by XXH3 with 128 bits: it finds what wires, disks and other programs do to a file, not what
/// somebody does who wants it not to be found. Never 0, which stands for none.
pub(crate) fn digest(bytes: &[u8]) -> u128 {
    twox_hash::XxHash3_128::oneshot(bytes).max(1)
}
