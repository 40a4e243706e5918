//! Why a store does not admit a process.

use serde::{Deserialize, Serialize};

use super::failure::Failure;

/// Why a store does not want a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Another version of this library.
    #[error(
        "the store speaks version {store} of the protocol, this process version {ours}; \
        run the same build on all ranks"
    )]
    Version {
        /// The store's.
        store: u16,
        /// This process's.
        ours: u16,
    },
    /// The store of another job, as launchers name them.
    #[error(
        "it belongs to {}, and this process to {}; start all ranks of a job by one launcher, and give jobs \
        different ports", job(.store), job(.ours)
    )]
    Job {
        /// The store's; empty where no launcher has named it.
        store: String,
        /// This process's.
        ours: String,
    },
    /// This process does not know the token of the store's job.
    #[error(
        "the tokens differ: it belongs to another job, or the UNISONO_TOKEN of this one is not the same on all ranks; \
        give jobs different ports, and all ranks of one job the same token"
    )]
    Token,
    /// Another world size.
    #[error(
        "this process was told that there are {ours} ranks, the store that there are {store}; \
        start all ranks with the same world size"
    )]
    WorldSize {
        /// The store's.
        store: usize,
        /// This process's.
        ours: usize,
    },
    /// A rank that cannot be.
    #[error("there is no such rank in a world of {ranks}")]
    NoSuchRank {
        /// The world size.
        ranks: usize,
    },
    /// Another process is this rank.
    #[error("that rank is taken by {holder}; give every process a rank of its own")]
    Duplicate {
        /// Who.
        holder: String,
    },
    /// This rank has left, and others are still there: a new round can begin when they have left too.
    #[error("that rank has left the group, and the group has not ended; wait until all ranks have left")]
    Left,
    /// The group has failed.
    #[error("the group has failed: {0}")]
    Failed(Box<Failure>),
}

/// A job's id in a sentence.
fn job(id: &str) -> String {
    if id.is_empty() { "a job that no launcher has named".to_owned() } else { format!("job {id:?}") }
}
