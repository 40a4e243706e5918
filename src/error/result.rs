//! What a call returns if it fails.

use std::{path::PathBuf, sync::Arc, time::Duration};

use unisono_schedule::Rank;

use super::{
    failure::Failure,
    refusal::Refusal,
    text::{list, shown},
};
use crate::{object::ObjectError, tensor::TensorError};

/// A result of this library.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The group has failed, here or elsewhere. Every rank of it gets the same failure, now and on every
    /// later call.
    #[error("{0}")]
    Failed(Failure),
    /// An argument does not fit, or there are no calls any more because this rank has left; the group still works. Where
    /// only this rank finds it, the others wait for a call of this rank's that fits theirs, until their deadline.
    #[error("{call}: {problem}")]
    Argument {
        /// The method called.
        call: &'static str,
        /// What was given and what was wanted.
        problem: String,
    },
    /// This process is a child of the one that joined, which alone may call: its connections and threads are not here.
    #[error(
        "this process was forked from process {parent}, rank {rank}, whose groups only that process can use: execute \
        another program here, or join as a rank of its own"
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
    /// A setting or a variable of the environment is missing or has no sense.
    #[error("{name}{}: {problem}", .value.as_ref().map(|value| format!("={value}")).unwrap_or_default())]
    Config {
        /// The variable or field.
        name: String,
        /// What it was set to, if it was.
        value: Option<String>,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// The rendezvous failed before there was a group.
    #[error("rendezvous at {store}: {problem}")]
    Rendezvous {
        /// The store, for instance `tcp://10.0.0.1:29500`.
        store: String,
        /// What happened and what to do.
        problem: String,
    },
    /// Ranks that should have come did not come in time.
    #[error("rendezvous at {store}: after {waited:.1?} rank {rank} still waits for {} of {ranks} ranks: {}; \
        start them with the same address, or give them longer by UNISONO_JOIN_TIMEOUT", .missing.len(), list(.missing))]
    Missing {
        /// The store.
        store: String,
        /// Who says so.
        rank: Rank,
        /// The world size.
        ranks: usize,
        /// Who has not come.
        missing: Vec<Rank>,
        /// How long it waited.
        waited: Duration,
    },
    /// The store does not want this process.
    #[error("the store at {store} refuses rank {rank}: {refusal}")]
    Refused {
        /// The store.
        store: String,
        /// Who wanted to join.
        rank: Rank,
        /// Why not, and what to do.
        refusal: Refusal,
    },
    /// The transport failed before there was a group, or it has no memory for what was asked of it.
    #[error("transport: {0}")]
    Transport(Arc<unisono_transport::Error>),
    /// A tensor or a view of one cannot be had, or parts of one do not fit together; the group still works.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A rank's object cannot be sent, or is not of the type that was wanted here. The group still works.
    #[error("{call}: the {type_name} of rank {rank}: {}", shown(.problem))]
    Object {
        /// The method called.
        call: &'static str,
        /// Whose object it is: its rank in the world.
        rank: Rank,
        /// The type that was wanted.
        type_name: &'static str,
        /// What is wrong with it.
        problem: ObjectError,
    },
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
