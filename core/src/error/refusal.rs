//! Why a store does not admit a process.

use serde::{Deserialize, Serialize};

use super::failure::Failure;

/// Why a store does not admit a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The process speaks another version of the protocol.
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
    /// The store belongs to another job, by the name that the launcher gave it.
    #[error(
        "it belongs to {}, and this process to {}; start all ranks of a job by one launcher, and give jobs \
        different ports", job(.store), job(.ours)
    )]
    Job {
        /// The store's job; empty if no launcher has named it.
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
    /// The process has another world size than the store.
    #[error(
        "this process has world size {ours}, the store {store}; start all ranks with the same world size"
    )]
    WorldSize {
        /// The store's.
        store: usize,
        /// This process's.
        ours: usize,
    },
    /// The rank is not less than the world size.
    #[error("there is no such rank: the world size is {ranks}; ranks are counted from 0")]
    NoSuchRank {
        /// The world size.
        ranks: usize,
    },
    /// Another process has this rank.
    #[error("that rank is taken by {holder}; give every process its own rank")]
    Duplicate {
        /// The process that has it: `pid 17 on node03`.
        holder: String,
    },
    /// This rank has left, and other ranks have not yet. When all have left, a new group can meet at the store.
    #[error("that rank has left the group, and the group has not ended; wait until all ranks have left")]
    Left,
    /// The group has failed.
    #[error("the group has failed: {0}")]
    Failed(Box<Failure>),
}

/// The job in a sentence.
fn job(id: &str) -> String {
    if id.is_empty() { "a job that no launcher has named".to_owned() } else { format!("job {id:?}") }
}
