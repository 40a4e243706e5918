//! What processes that regroup say to each other, and how a regroup ends.

use serde::{Deserialize, Serialize};

use super::{Epoch, RegroupOptions};

/// A message from one process to another.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum EpochMessage<N> {
    /// The sender regroups, and wants to be in the next epoch. `committed` is `None` for a newcomer.
    Ask {
        /// The last epoch that it knows to be committed.
        committed: Option<Epoch<N>>,
        /// The proposals that it has promised since.
        promised: Vec<Epoch<N>>,
        /// What it wants.
        options: RegroupOptions,
    },
    /// The sender coordinates, and the receiver, which is in this epoch, has not asked.
    Come {
        /// The last epoch that the sender knows to be committed.
        committed: Epoch<N>,
    },
    /// The sender lives. For a newcomer: the processes of the sender's epoch; otherwise nothing.
    Hold {
        /// The processes.
        members: Vec<N>,
    },
    /// The sender follows this process.
    See {
        /// Another process, or the receiver.
        other: N,
    },
    /// The next epoch, if all of it promise.
    Propose(Epoch<N>),
    /// The sender has promised the proposal of this number.
    Promise {
        /// The number.
        number: u64,
    },
    /// The sender cannot promise, because it has promised a higher number.
    Deny {
        /// The last epoch that it knows to be committed.
        committed: Option<Epoch<N>>,
        /// The proposals that it has promised since.
        promised: Vec<Epoch<N>>,
    },
    /// This epoch is committed.
    Commit(Epoch<N>),
    /// There is no next epoch.
    Refuse(RegroupRefusal<N>),
}

/// Why a regroup ended without a next epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, thiserror::Error)]
pub enum RegroupRefusal<N> {
    /// These processes live and have not asked in time.
    #[error("{0:?} have not called regroup")]
    Missing(Vec<N>),
    /// Those that have asked may not decide.
    #[error("{present} of the {all} processes of epoch {epoch} are no quorum; {silent:?} are silent")]
    NoQuorum {
        /// The number of the epoch of which a quorum is needed.
        epoch: u64,
        /// The number of its processes.
        all: usize,
        /// The number of those that have asked.
        present: usize,
        /// Processes that do not answer.
        silent: Vec<N>,
    },
    /// Fewer processes have come than were wanted.
    #[error("{present} processes have come, and at least {least} are wanted")]
    TooFew {
        /// The number that has come.
        present: usize,
        /// The number that was wanted.
        least: usize,
    },
    /// Two processes want different things.
    #[error("{:?} wants {:?}, and {:?} wants {:?}", .one.0, .one.1, .other.0, .other.1)]
    Differ {
        /// The coordinator.
        one: (N, RegroupOptions),
        /// Another process.
        other: (N, RegroupOptions),
    },
    /// The process that coordinates, or is asked, has not answered in time.
    #[error("{0:?} has not answered in time")]
    NoAnswer(N),
    /// A newcomer reaches none of the processes that it knows.
    #[error("no process of the running world can be reached")]
    Nobody,
}

/// How a regroup has ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RegroupOutcome<N> {
    /// This process is in the next epoch.
    Joined(Epoch<N>),
    /// The others have gone on without this process, which can only join again as a newcomer.
    LeftBehind(Epoch<N>),
    /// There is no next epoch, as far as this process knows. If `promised` is true it has promised one, so that it cannot go on in the last
    /// one either.
    Refused {
        /// The reason.
        why: RegroupRefusal<N>,
        /// Whether it has promised a proposal.
        promised: bool,
    },
}

/// What a member does in answer to an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effects<N> {
    /// Messages to send.
    pub messages: Vec<(N, EpochMessage<N>)>,
    /// The end of the regroup, if it has ended.
    pub outcome: Option<RegroupOutcome<N>>,
}

impl<N> Default for Effects<N> {
    fn default() -> Self {
        Self { messages: Vec::new(), outcome: None }
    }
}
