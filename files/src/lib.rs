//! Hands over files among the ranks of a [`unisono`] group: [`broadcast`] gives a file of one rank to all, [`send`] and
//! [`recv`] give it to one other rank while the rest do something else.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use unisono::ProcessGroup;
//! use unisono_files::Options;
//!
//! # fn main() -> unisono_files::Result<()> {
//! let group = ProcessGroup::from_env()?;
//! // Rank 0 has the file; all find it in a directory of their own host.
//! let (file, directory) = (Path::new("/shared/model.safetensors"), Path::new("/local/models"));
//! let delivered = unisono_files::broadcast(&group, file, directory, 0, Options::default())?;
//! println!("{} has {} bytes", delivered.file.display(), delivered.bytes);
//! # Ok(()) }
//! ```
//!
//! A file goes in pieces, each with a checksum, and however long it is a rank needs memory for four of them. While it comes it
//! lies in the directory as `.NAME.unisono-part`, beside a journal, `.NAME.unisono-journal` (both with a checksum in place of a
//! NAME of more than 238 bytes). When the whole is on the disks of all ranks it takes its name, in place of what had it. A call
//! that was cut short leaves the two behind, and the next one of the same file goes on from there: it sends only what a rank
//! lacks, or has otherwise than the root. A file that is there already, as long and as old, is compared likewise, and keeps its
//! owner. Where another user has made or linked something under one of the hidden names, that is left alone, and the number of
//! this process's user is added to both. Holes of the file are not sent, and arrive as holes.
//!
//! What goes wrong with a file at one rank, all who take part return as the same [`Error::File`], and the group works on.
//!
//! The feature `safetensors` hands over some tensors of a .safetensors file (`Options::tensors`).

mod checksum;
mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod handover;
mod local;
mod options;
mod plan;

use std::path::Path;

use unisono::{ProcessGroup, Source, schedule::Rank};

use self::handover::Handover;
pub use self::{
    error::{Error, Problem, Result},
    options::{Delivered, Options, PIECE, Progress},
};

/// Gives a file of the root's to all ranks: when the call returns, each finds it in its `directory`, under the same name, as
/// old, and with its permissions (those of reading, writing and running it, less this process's umask).
///
/// Every rank of the group calls it. `file` matters at the root alone; `directory` is each rank's own, and made if there is
/// none. Where ranks share a directory, one of them writes. The root's gets the file too, unless it lies there already. No other
/// thread may use the group meanwhile.
///
/// # Errors
/// [`Error::File`], on all ranks the same, if the file cannot be read or written somewhere, there is no room for it, it changes
/// meanwhile, a piece arrives damaged, or some tensors of a file would take the place of the whole. [`Error::Group`] with
/// [`unisono::Error::Argument`] if there is no such root, and with [`unisono::Error::Failed`] if the ranks disagree or the group
/// is over.
pub fn broadcast(
    group: &ProcessGroup,
    file: &Path,
    directory: &Path,
    root: Rank,
    options: Options<'_>,
) -> Result<Delivered> {
    Handover::new(group, file, Some(directory), root).run(options)
}

/// Sends a file to another rank, which receives it by [`recv`] with the same tag. Returns when it is safe on that rank's disk.
///
/// Only the two take part: they [make a group](ProcessGroup::open_pair) of their own for it, and leave it at the end. The
/// others, and other threads of these two, may do anything meanwhile, also send each other files; two ranks that do so at the
/// same time need a thread for each direction. This rank writes nothing, and its `options` hold for both.
///
/// # Errors
/// [`Error::File`], on both ranks the same, as of [`broadcast`]. [`Error::Group`] as of [`ProcessGroup::open_pair`].
pub fn send(
    group: &ProcessGroup,
    file: &Path,
    to: Rank,
    tag: u32,
    options: Options<'_>,
) -> Result<Delivered> {
    let pair = group.open_pair(to, tag)?;
    Handover::new(&pair, file, None, 0).run(options)
}

/// Receives a file into a directory, which is made if there is none, and tells who sent it. It has the name and the age that it
/// has at the sender. See [`send`].
///
/// # Errors
/// As [`send`].
pub fn recv(
    group: &ProcessGroup,
    directory: &Path,
    from: impl Into<Source>,
    tag: u32,
    options: Options<'_>,
) -> Result<(Delivered, Rank)> {
    let (pair, from) = group.join_pair(from, tag)?;
    let delivered = Handover::new(&pair, Path::new(""), Some(directory), 0).run(options)?;
    Ok((delivered, from))
}
