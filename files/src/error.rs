//! What can go wrong, typed, in a form that travels: all ranks return the same.

use std::{fmt, io, path::PathBuf};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use unisono::schedule::Rank;

/// How much of a text from another rank an error shows, in characters.
const SHOWN: usize = 4000;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What went well, or what is wrong with a file.
pub(crate) type FileResult<T> = std::result::Result<T, Problem>;

/// Why a call failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read, sent or written. Every rank that takes part gets the same, and the group still works.
    #[error("{} on rank {rank}: {}", shown(.file.display()), shown(.problem))]
    File {
        /// Where, by its rank in the world.
        rank: Rank,
        /// The file, or the directory for it.
        file: PathBuf,
        /// What is wrong with it.
        problem: Problem,
    },
    /// What the group says: an argument makes no sense, or the group is over.
    #[error(transparent)]
    Group(#[from] unisono::Error),
}

/// Why a file could not be handed over: every rank is told the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The system refuses.
    #[error("{doing}: {reason}")]
    Io {
        /// What was tried, for instance `opening it`.
        doing: String,
        /// What the system says.
        reason: String,
        /// The system's number for that, `errno`, if there is one.
        code: Option<i32>,
    },
    /// There is no room for it, on the disk or within the limits on this process.
    #[error("there is no room for {wanted} bytes: {reason}")]
    NoSpace {
        /// Bytes to be written.
        wanted: u64,
        /// What says so.
        reason: String,
    },
    /// What is to be sent is a directory, a pipe, a device.
    #[error("is no regular file")]
    NotRegular,
    /// What is to be sent is longer or shorter than the system says.
    #[error(
        "the system says that it has {told} bytes, and reading it gives {}: it is made while it is read, as files of /proc \
         and /sys are; copy it to a file first (`cat FILE > COPY`)", if *.more { "more" } else { "fewer" }
    )]
    Length {
        /// The bytes that the system tells.
        told: u64,
        /// Whether there are more; otherwise there are fewer.
        more: bool,
    },
    /// The file that is sent was written to meanwhile.
    #[error("changed while it was being sent: {how}")]
    Changed {
        /// What is different.
        how: String,
    },
    /// A piece did not arrive as it was sent.
    #[error("piece {piece} arrived damaged: its checksum is {got:032x} and not {wanted:032x}")]
    Damaged {
        /// Which, from 0.
        piece: u64,
        /// What was sent.
        wanted: u128,
        /// What arrived.
        got: u128,
    },
    /// A name that is none, or that leads out of the directory.
    #[error("{name:?} is no name of a file in a directory")]
    Name {
        /// The name, as far as it can be shown.
        name: String,
    },
    /// Pieces of a size that cannot be.
    #[error("pieces of {given} bytes were asked for; there may be from 1 to {most}")]
    Piece {
        /// What was asked for.
        given: u64,
        /// The most.
        most: u64,
    },
    /// Another process is writing the same file there.
    #[error("another process is writing it")]
    Busy,
    /// There is no memory for the pieces under way.
    #[error("there is no memory for pieces of {bytes} bytes: {reason}")]
    Memory {
        /// Of each.
        bytes: u64,
        /// What says so.
        reason: String,
    },
    /// The ranks that lack something cannot be a group of their own.
    #[error("those who lack it cannot be a group: {reason}")]
    Group {
        /// Why not.
        reason: String,
    },
    /// It is no .safetensors file, or has not the tensors that were asked for.
    #[error("{problem}")]
    Tensors {
        /// What is wrong, and what there is.
        problem: String,
    },
}

impl Problem {
    /// The system's refusal of what was tried.
    pub(crate) fn io(doing: &str, error: &io::Error) -> Self {
        Self::Io { doing: doing.to_owned(), reason: error.to_string(), code: error.raw_os_error() }
    }

    /// The same of a write, where a full disk is a case of its own.
    pub(crate) fn writing(doing: &str, wanted: u64, error: &io::Error) -> Self {
        let full = [Errno::NOSPC, Errno::DQUOT, Errno::FBIG].map(Errno::raw_os_error);
        match error.raw_os_error() {
            Some(code) if full.contains(&code) => Self::NoSpace { wanted, reason: error.to_string() },
            _ => Self::io(doing, error),
        }
    }
}

/// A file's name, and what another rank said, in one line that disturbs no terminal: what would move a cursor or turn the
/// direction of writing is escaped.
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
