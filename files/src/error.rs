//! Errors, typed and serializable: all ranks of a transfer return the same one.

use std::{fmt, io, path::PathBuf};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use unisono::schedule::Rank;

/// The most characters of a text from another rank that an error shows.
const SHOWN: usize = 4000;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A result, or what is wrong with a file.
pub(crate) type FileResult<T> = std::result::Result<T, Problem>;

/// Why a call failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read, sent or written. Every participating rank gets the same error, and the group still works.
    #[error("{} on rank {rank}: {}", shown(.file.display()), shown(.problem))]
    File {
        /// The rank, in the world, at which it failed.
        rank: Rank,
        /// The file, or the directory for it.
        file: PathBuf,
        /// What is wrong with it.
        problem: Problem,
    },
    /// An error of the group: an argument is invalid, or the group has failed.
    #[error(transparent)]
    Group(#[from] unisono::Error),
}

/// Why a transfer failed; the same on every participating rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// A system call failed.
    #[error("{doing}: {reason}")]
    Io {
        /// The operation, for instance `opening it`.
        doing: String,
        /// The system's message.
        reason: String,
        /// The `errno`, if there is one.
        code: Option<i32>,
    },
    /// The disk is full, or a limit on this process forbids a file of this size.
    #[error("there is no room for {wanted} bytes: {reason}")]
    NoSpace {
        /// Bytes to be written.
        wanted: u64,
        /// The system's message.
        reason: String,
    },
    /// The source is a directory, a pipe or a device.
    #[error("is not a regular file")]
    NotRegular,
    /// The source is longer or shorter than the length that the system reports.
    #[error(
        "the system says that it has {promised} bytes, and reading it gives {}: it is made while it is read, as files of /proc \
         and /sys are; copy it to a file first (`cat FILE > COPY`)", if *.more { "more" } else { "fewer" }
    )]
    Length {
        /// The length that the system reports, in bytes.
        promised: u64,
        /// True if reading gives more bytes; otherwise it gives fewer.
        more: bool,
    },
    /// The source was modified during the transfer.
    #[error("changed while it was being sent: {how}")]
    Changed {
        /// What is different.
        how: String,
    },
    /// A piece did not arrive as it was sent.
    #[error("piece {piece} arrived damaged: its checksum is {got:032x} and not {wanted:032x}")]
    Damaged {
        /// The number of the piece, from 0.
        piece: u64,
        /// The checksum of what was sent.
        wanted: u128,
        /// The checksum of what arrived.
        got: u128,
    },
    /// The name is invalid, or leads out of the directory.
    #[error("{name:?} is not the name of a file in a directory")]
    Name {
        /// The name, as far as it can be shown.
        name: String,
    },
    /// The size of pieces is invalid.
    #[error("pieces of {given} bytes were asked for; there may be from 1 to {most}")]
    Piece {
        /// The size that was asked for.
        given: u64,
        /// The largest valid size.
        most: u64,
    },
    /// Another process is writing the same file.
    #[error("another process is writing it")]
    Busy,
    /// There is no memory for the pieces in flight.
    #[error("there is no memory for pieces of {bytes} bytes: {reason}")]
    Memory {
        /// The size of each piece.
        bytes: u64,
        /// The system's message.
        reason: String,
    },
    /// The ranks that need pieces cannot form a group.
    #[error("the ranks that lack it cannot form a group: {reason}")]
    Group {
        /// The reason.
        reason: String,
    },
    /// The source is not a .safetensors file, or lacks tensors that were asked for.
    #[error("{problem}")]
    Tensors {
        /// What is wrong, and which tensors there are.
        problem: String,
    },
}

impl Problem {
    /// The system's refusal of an operation.
    pub(crate) fn io(doing: &str, error: &io::Error) -> Self {
        Self::Io { doing: doing.to_owned(), reason: error.to_string(), code: error.raw_os_error() }
    }

    /// This process's own refusal of an operation.
    pub(crate) fn refused(doing: &str, reason: &str) -> Self {
        Self::Io { doing: doing.to_owned(), reason: reason.to_owned(), code: None }
    }

    /// As [`Self::io`] for a write, where a full disk is a separate case.
    pub(crate) fn writing(doing: &str, wanted: u64, error: &io::Error) -> Self {
        let full = [Errno::NOSPC, Errno::DQUOT, Errno::FBIG].map(Errno::raw_os_error);
        match error.raw_os_error() {
            Some(code) if full.contains(&code) => Self::NoSpace { wanted, reason: error.to_string() },
            _ => Self::io(doing, error),
        }
    }
}

/// A file's name, and what another rank said, in one line that disturbs no terminal: characters that would move a cursor or change
/// the direction of writing are escaped.
fn shown(what: impl fmt::Display) -> String {
    let shown = |c: char| if c.is_ascii_graphic() { c.to_string() } else { c.escape_debug().to_string() };
    what.to_string().chars().take(SHOWN).map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_say_is_shown_in_one_line() {
        let nasty = "\u{1b}[2J\nERROR all is \u{202e}lost";
        let problem = Problem::Changed { how: nasty.to_owned() };
        let text = Error::File { rank: 1, file: nasty.into(), problem }.to_string();
        assert!(!text.contains(|c: char| c.is_control() || c == '\u{202e}'), "{text:?}");
        assert!(text.contains("ERROR all is"), "{text:?}");
        let named = Error::File { rank: 1, file: "it's \"ä\".bin".into(), problem: Problem::Busy };
        assert_eq!(named.to_string(), "it's \"ä\".bin on rank 1: another process is writing it");
    }
}
