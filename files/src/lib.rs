//! Copies files between the ranks of a [`unisono`] group: [`broadcast`] copies a file of one rank to all ranks; [`send`] and
//! [`recv`] copy it to one other rank, and the remaining ranks take no part.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use unisono::ProcessGroup;
//! use unisono_files::Options;
//!
//! # fn main() -> unisono_files::Result<()> {
//! let group = ProcessGroup::from_env()?;
//! // Rank 0 has the file. Every rank gets it in a directory of its host.
//! let (file, directory) = (Path::new("/shared/model.safetensors"), Path::new("/local/models"));
//! let delivered = unisono_files::broadcast(&group, file, directory, 0, Options::default())?;
//! println!("{} has {} bytes", delivered.file.display(), delivered.bytes);
//! # Ok(()) }
//! ```
//!
//! A file is sent in pieces, each with a checksum. A rank needs memory for four pieces, however large the file is. During the
//! transfer the receiver writes to `.NAME.unisono-part` in the directory, beside a journal, `.NAME.unisono-journal` (a NAME of
//! more than 238 bytes is replaced by a checksum). When the file is complete on the disks of all ranks, it is renamed to NAME and
//! replaces an existing file. An interrupted call leaves the two files, and the next call with the same file resumes: it sends
//! only the pieces that a rank lacks or that differ from the root's. An existing file with the same length and modification
//! time is compared in the same way, and keeps its owner. If another user has created or linked something under a hidden name, it
//! is left alone, and this process's user id is added to both names. Holes in the file are not sent, and become holes.
//!
//! If an operation on a file fails at one rank, all participating ranks return the same [`Error::File`], and the group still
//! works.
//!
//! With the feature `safetensors`, `Options::tensors` selects tensors of a .safetensors file.

mod checksum;
mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod handover;
mod local;
mod options;
mod plan;

use std::{hash::BuildHasher as _, path::Path};

use unisono::{ProcessGroup, Source, schedule::Rank};

pub use self::{
    error::{Error, Problem, Result},
    options::{Delivered, Options, PIECE, Progress},
};

/// Copies a file of the root to all ranks. When the call returns, each rank has it in its `directory`, with the same name,
/// modification time and permissions (read, write and execute, less this process's umask).
///
/// Every rank of the group must call it. Only the root's `file` counts. `directory` may differ between ranks and is created if it
/// does not exist. If ranks share a directory, one of them writes. The root's directory gets the file too, unless the file is
/// already there. No other thread may use the group meanwhile.
///
/// # Errors
/// [`Error::File`], the same on all ranks, if the file cannot be read or written on some rank, if a disk is full, if the file is
/// modified meanwhile, if a piece arrives damaged, or if selected tensors would replace the file that they come from.
/// [`Error::Group`] with [`unisono::Error::Argument`] if there is no such root, and with [`unisono::Error::Failed`] if the ranks
/// disagree on the call or the group has failed.
pub fn broadcast(
    group: &ProcessGroup,
    file: &Path,
    directory: &Path,
    root: Rank,
    options: Options<'_>,
) -> Result<Delivered> {
    handover::run(group, file, Some(directory), root, options)
}

/// Sends a file to another rank, which receives it by [`recv`] with the same tag. Returns when the file is on that rank's disk.
///
/// Only these two ranks take part: they [make a group](ProcessGroup::create_group) for the transfer. Other ranks, and other threads
/// of the two, may make any calls meanwhile, also other transfers. If two ranks send each other files at the same time, each
/// direction needs a thread. This rank's `options` hold for both ranks, except `progress`.
///
/// ```no_run
/// # use std::path::Path;
/// # use unisono_files::Options;
/// # fn main() -> unisono_files::Result<()> {
/// # let group = unisono::ProcessGroup::from_env()?;
/// if group.rank() == 0 {
///     unisono_files::send(&group, Path::new("checkpoint.bin"), 3, 7, Options::default())?;
/// } else if group.rank() == 3 {
///     let (delivered, _) = unisono_files::recv(&group, Path::new("/local"), 0, 7, Options::default())?;
///     assert_eq!(delivered.file, Path::new("/local/checkpoint.bin"));
/// }
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`Error::File`], on both ranks the same, as for [`broadcast`]. [`Error::Group`] with [`unisono::Error::Argument`] if there is no
/// such rank or if it is this one, and otherwise as for [`ProcessGroup::create_group`].
pub fn send(
    group: &ProcessGroup,
    file: &Path,
    to: Rank,
    tag: u32,
    options: Options<'_>,
) -> Result<Delivered> {
    other(group, "send", to)?;
    // The tag by which the two make their group. It is random: other threads of both may send files to each other meanwhile.
    let number: u64 = std::hash::RandomState::new().hash_one(tag);
    // The receiver may accept a file from any rank, and learns from this message who sends one.
    group.send_object(&number, (to, tag))?;
    let pair = group.create_group(&[group.rank(), to], number)?;
    handover::run(&pair, file, None, 0, options)
}

/// Receives a file into a directory, which is created if it does not exist. Returns the file and its sender. The file has the
/// name and the modification time that it has at the sender. See [`send`].
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
    let from = from.into();
    if let Source::Rank(rank) = from {
        other(group, "recv", rank)?;
    }
    let (number, from) = group.recv_object::<u64>((from, tag))?;
    let pair = group.create_group(&[from, group.rank()], number)?;
    let delivered = handover::run(&pair, Path::new(""), Some(directory), 0, options)?;
    Ok((delivered, from))
}

/// Checks that the other rank of a transfer is not this one.
fn other(group: &ProcessGroup, call: &'static str, rank: Rank) -> unisono::Result<()> {
    if rank != group.rank() {
        return Ok(());
    }
    let problem = format!("rank {rank} is this rank; a file is sent to another one");
    Err(unisono::Error::Argument { call, problem })
}
