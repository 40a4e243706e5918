//! What a call returns if it fails.

use std::{path::PathBuf, sync::Arc, time::Duration};

use unisono_schedule::Rank;

use super::{
    failure::Failure,
    refusal::Refusal,
    text::{list, shown},
};
use crate::{object::ObjectError, tensor::TensorError};

/// The result of a call of this library.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The group has failed, on this rank or another. Every rank gets the same failure, from this call and from every later one.
    #[error("{0}")]
    Failed(Failure),
    /// An argument is not valid. The group still works. If only this rank has the error, the other ranks wait for a matching call
    /// of this rank until their deadline.
    #[error("{call}: {problem}")]
    Argument {
        /// The method called.
        call: &'static str,
        /// What was given and what was wanted.
        problem: String,
    },
    /// This rank has left the world, and with it all groups: it can make no call.
    #[error("{call}: this rank has left the world, and with it all groups")]
    Left {
        /// The method called.
        call: &'static str,
    },
    /// A thread that this library needs cannot be started, or not on the processors that it is configured for. The group still
    /// works.
    #[error("cannot start {thread}: {problem}")]
    Thread {
        /// What the thread is for.
        thread: &'static str,
        /// What the system says, and what to do.
        problem: String,
    },
    /// This process was forked from the one that joined. Only that process can use the group: it has the connections and the
    /// threads.
    #[error(
        "this process was forked from process {parent}, rank {rank}, and cannot use the groups of that process: execute \
        another program here, or join as a separate rank"
    )]
    Forked {
        /// The rank in the world of the process that joined.
        rank: Rank,
        /// That process.
        parent: u32,
    },
    /// A tuning file cannot be used.
    #[error("tuning file {}: {problem}", .file.display())]
    Tuning {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A setting or an environment variable is missing or not valid.
    #[error("{name}{}: {problem}", .value.as_ref().map(|value| format!("={value}")).unwrap_or_default())]
    Config {
        /// The variable or field.
        name: String,
        /// Its value, if it is set.
        value: Option<String>,
        /// What is wrong with it, and which values are valid.
        problem: String,
    },
    /// The rendezvous failed; there is no group.
    #[error("rendezvous at {store}: {problem}")]
    Rendezvous {
        /// The store, for instance `tcp://10.0.0.1:29500`.
        store: String,
        /// What happened and what to do.
        problem: String,
    },
    /// Some ranks did not come to the rendezvous in time.
    #[error("rendezvous at {store}: after {waited:.1?} rank {rank} still waits for {} of {ranks} ranks: {}; {}",
        .missing.len(), list(.missing), advice(.refused))]
    Missing {
        /// The store.
        store: String,
        /// The rank that waited.
        rank: Rank,
        /// The world size.
        ranks: usize,
        /// The ranks that have not come.
        missing: Vec<Rank>,
        /// How long it waited.
        waited: Duration,
        /// The processes that the store has refused meanwhile, with the reasons; empty if there are none.
        refused: String,
    },
    /// The store does not admit this process.
    #[error("the store at {store} refuses rank {rank}: {refusal}")]
    Refused {
        /// The store.
        store: String,
        /// The rank that tried to join.
        rank: Rank,
        /// The reason, and what to do.
        refusal: Refusal,
    },
    /// The transport failed while the group was made, or it has no memory for a buffer.
    #[error("transport: {0}")]
    Transport(Arc<unisono_transport::Error>),
    /// A tensor or a view cannot be made, or parts of a tensor do not fit together. The group still works.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// An object cannot be sent, or is not of the type that this rank asked for. The group still works.
    #[error("{call}: the {type_name} of rank {rank}: {}", shown(.problem))]
    Object {
        /// The method called.
        call: &'static str,
        /// The rank, in the world, whose object it is.
        rank: Rank,
        /// The type that was asked for.
        type_name: &'static str,
        /// What is wrong with it.
        problem: ObjectError,
    },
}

/// What to do about ranks that have not come.
fn advice(refused: &str) -> String {
    let longer = "start them with the same address, or set a longer UNISONO_JOIN_TIMEOUT";
    if refused.is_empty() { longer.to_owned() } else { format!("the store has refused {}", shown(refused)) }
}

impl Error {
    /// The error of a rendezvous at the store of this name.
    #[doc(hidden)]
    pub fn rendezvous(store: &str, problem: impl Into<String>) -> Self {
        Self::Rendezvous { store: store.to_owned(), problem: problem.into() }
    }
}

impl From<unisono_transport::Error> for Error {
    fn from(error: unisono_transport::Error) -> Self {
        Self::Transport(Arc::new(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_say_is_shown_in_one_line() {
        let nasty = "\u{1b}[2J\nERROR all is lost".to_owned();
        let problem = ObjectError::Value { problem: nasty.clone() };
        let object = Error::Object { call: "recv_object", rank: 1, type_name: "u8", problem };
        let failure = Error::Failed(Failure::StoreLost { how: nasty }.cleaned());
        for error in [object, failure] {
            let text = error.to_string();
            assert!(!text.contains(char::is_control) && text.contains("ERROR all is lost"), "{text:?}");
        }
    }
}
