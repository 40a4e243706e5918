//! What can go wrong, typed. Every message names what was given and what was wanted, and what to do.

mod clean;

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use unisono_schedule::Rank;

pub(crate) use self::clean::{MAX_TEXT, clean};
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

/// Why a group ended, in a form that travels: the first failure is told to every rank through the store,
/// and every rank returns it in the same words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// Two ranks do not call the same thing.
    #[error("{}op {op}{}{call}: rank {} {}, rank {} {}", within(.group), if .call.is_empty() { "" } else { " " },
        .left.0, .left.1, .right.0, .right.1)]
    Mismatch {
        /// The group's name and its ranks in the world, for instance `world/0:1 of ranks 1, 3`; empty if it is the world.
        group: Box<str>,
        /// The number of the operation in its group, counted from 0.
        op: u64,
        /// What both agree on, for instance `all_reduce(f32, sum)`; empty if not even that.
        call: String,
        /// The lower of the two ranks and what it does, for instance `has 409600 elements`.
        left: (Rank, String),
        /// The higher of the two ranks and what it does.
        right: (Rank, String),
    },
    /// A process is gone.
    #[error("rank {rank} died ({how})")]
    Died {
        /// Which.
        rank: Rank,
        /// How that was seen, for instance `its connection to the store closed without a farewell`.
        how: String,
    },
    /// A rank came, but could not join.
    #[error("rank {rank} could not join: {why}")]
    Joining {
        /// Which.
        rank: Rank,
        /// In the words of the error that it returns itself.
        why: String,
    },
    /// Ranks that would join are configured differently, or in a way that does not fit where they are.
    #[error("{name}: {problem}")]
    Settings {
        /// What does not fit: a setting, the provider, the version of the wire.
        name: String,
        /// Which ranks have what, and what to do.
        problem: String,
    },
    /// Nothing has come from a process for as long as the group has patience: it may live, but cannot be reached.
    #[error("rank {rank} is not reachable ({how})")]
    Unreachable {
        /// Which.
        rank: Rank,
        /// Which process that is, and since when nothing has come from it.
        how: String,
    },
    /// A process was ended by a signal, and said so.
    #[error("rank {rank} was ended by {signal}")]
    Ended {
        /// Which.
        rank: Rank,
        /// The signal's name: `SIGTERM`.
        signal: String,
    },
    /// An operation was not done before its deadline.
    #[error("{}op {op} {call} was not done within {waited:.1?}, says rank {rank}: {report}", within(.group))]
    Deadline {
        /// The group's name and its ranks in the world; empty if it is the world.
        group: Box<str>,
        /// The operation's number.
        op: u64,
        /// What it is.
        call: String,
        /// Who says so.
        rank: Rank,
        /// How long it had waited.
        waited: Duration,
        /// Where every rank stands: who has not entered, who waits for whom.
        report: String,
    },
    /// Ranks wait for each other, each in another call or for another message, so that none can go on.
    #[error("ranks wait for each other: {}", each(.waits))]
    Deadlock {
        /// Each of them, what it is in, for instance `op 3 barrier() of group world/0 of ranks 0, 1`, and for whom it waits.
        waits: Vec<(Rank, String, Rank)>,
    },
    /// A rank waits for one that has left, or leaves, and makes no other call.
    #[error("rank {rank} has left, and rank {} waits for it in {}", .waits.0, .waits.1)]
    Left {
        /// Who has left.
        rank: Rank,
        /// Who waits for it, and in what: as in [`Deadlock`](Self::Deadlock).
        waits: (Rank, String),
    },
    /// What is sent is not what is received.
    #[error("message {number} from rank {} to rank {}, tag {tag}: rank {} sends {}, rank {} receives {}",
        .sender.0, .receiver.0, .sender.0, .sender.1, .receiver.0, .receiver.1)]
    Message {
        /// Its number among the messages from the one to the other, counted from 0.
        number: u64,
        /// Its tag.
        tag: u32,
        /// Who sends it, and what, for instance `5 f32 elements`.
        sender: (Rank, String),
        /// Who receives it, and what it has asked for.
        receiver: (Rank, String),
    },
    /// A message was not there before its deadline.
    #[error("{call} was not done within {waited:.1?}, says rank {rank}: {report}")]
    Undelivered {
        /// The call that waited for it, for instance `recv(f32, from 3, tag 7)`.
        call: String,
        /// Who says so.
        rank: Rank,
        /// How long it had waited.
        waited: Duration,
        /// Where every rank stands.
        report: String,
    },
    /// A rank's transport broke.
    #[error("rank {rank}, {doing}: {reason}")]
    Transport {
        /// Whose.
        rank: Rank,
        /// What it was doing.
        doing: String,
        /// What the transport says.
        reason: String,
    },
    /// A peer sent what the protocol does not allow.
    #[error("rank {rank} got from rank {from} what the protocol does not allow: {what}")]
    Protocol {
        /// Who noticed.
        rank: Rank,
        /// Who sent it.
        from: Rank,
        /// What was seen and what was expected.
        what: String,
    },
    /// The rendezvous is gone, and with it the means to tell who lives.
    #[error("the store is gone: {how}")]
    StoreLost {
        /// How that was seen and whose process held it.
        how: String,
    },
    /// The store does not answer: nobody can learn where the others position.
    #[error("the store at {store} does not answer: {}, whose process serves it, is stopped or cut off",
        .host.map_or_else(|| "the launcher".to_owned(), |rank| format!("rank {rank}")))]
    StoreSilent {
        /// The store, for instance `tcp://10.0.0.1:29500`.
        store: String,
        /// The rank in whose process it is, if it is one's.
        host: Option<Rank>,
    },
    /// When ranks met, what one sent did not reach another.
    #[error("rank {from} does not reach rank {to}: {how}")]
    NoWay {
        /// Who sent.
        from: Rank,
        /// To whom.
        to: Rank,
        /// From which address and interface to which, what was seen, and what to do.
        how: String,
    },
    /// A rank gave up of its own accord.
    #[error("rank {rank} aborted the group: {why}")]
    Aborted {
        /// Who.
        rank: Rank,
        /// In its own words.
        why: String,
    },
    /// Something arrived that no rank can have sent: a program that is not of this job reaches a rank's endpoint.
    #[error(
        "rank {rank} got a message that no rank sent: {what}; a program that is not of this job reaches {at}: let \
        nobody but the job's hosts reach it, by a firewall or a network of their own (docs/security.md)"
    )]
    Forged {
        /// Who got it.
        rank: Rank,
        /// Where, for instance `tcp at 10.0.0.5:40711`.
        at: String,
        /// What was seen.
        what: String,
    },
}

impl Failure {
    /// The same with texts that disturb no log and no terminal, whoever has made them.
    pub(crate) fn cleaned(mut self) -> Self {
        let texts: [Option<&mut String>; 2] = match &mut self {
            Self::Mismatch { group, call, left, right, .. } => {
                *group = clean(group, MAX_TEXT).into();
                *call = clean(call, MAX_TEXT);
                [Some(&mut left.1), Some(&mut right.1)]
            }
            Self::Deadline { group, call, report, .. } => {
                *group = clean(group, MAX_TEXT).into();
                [Some(call), Some(report)]
            }
            Self::Deadlock { waits } => {
                waits.iter_mut().for_each(|(_, call, _)| *call = clean(call, MAX_TEXT));
                [None, None]
            }
            Self::Left { waits, .. } => [Some(&mut waits.1), None],
            Self::Message { sender, receiver, .. } => [Some(&mut sender.1), Some(&mut receiver.1)],
            Self::Undelivered { call, report, .. } => [Some(call), Some(report)],
            Self::Transport { doing, reason, .. } => [Some(doing), Some(reason)],
            Self::Forged { at, what, .. } => [Some(at), Some(what)],
            Self::Settings { name, problem } => [Some(name), Some(problem)],
            Self::Died { how: text, .. }
            | Self::Joining { why: text, .. }
            | Self::Ended { signal: text, .. }
            | Self::Unreachable { how: text, .. }
            | Self::NoWay { how: text, .. }
            | Self::Protocol { what: text, .. }
            | Self::StoreLost { how: text }
            | Self::StoreSilent { store: text, .. }
            | Self::Aborted { why: text, .. } => [Some(text), None],
        };
        texts.into_iter().flatten().for_each(|text| *text = clean(text, MAX_TEXT));
        self
    }
}

/// What another rank may have said, as it is shown: in one line that disturbs no terminal.
fn shown(what: impl fmt::Display) -> String {
    clean(&what.to_string(), MAX_TEXT)
}

/// A job's id in a sentence.
fn job(id: &str) -> String {
    if id.is_empty() { "a job that no launcher has named".to_owned() } else { format!("job {id:?}") }
}

/// `rank 0 in op 3 barrier() for rank 1, rank 1 in …`.
fn each(waits: &[(Rank, String, Rank)]) -> String {
    let each = waits.iter().map(|(rank, call, other)| format!("rank {rank} in {call} for rank {other}"));
    each.collect::<Vec<_>>().join(", ")
}

/// `group world/0:1 of ranks 1, 3: `; nothing of the world.
fn within(group: &str) -> String {
    if group.is_empty() { String::new() } else { format!("group {group}: ") }
}

/// `0, 3, 5–9`: ranks as people read them.
pub(crate) fn list(ranks: &[Rank]) -> String {
    let mut out = String::new();
    let mut i = 0;
    while i < ranks.len() {
        let mut j = i;
        while j + 1 < ranks.len() && ranks[j].checked_add(1) == Some(ranks[j + 1]) {
            j += 1;
        }
        if !out.is_empty() {
            out.push_str(", ");
        }
        match j - i {
            0 => out.push_str(&ranks[i].to_string()),
            1 => out.push_str(&format!("{}, {}", ranks[i], ranks[j])),
            _ => out.push_str(&format!("{}–{}", ranks[i], ranks[j])),
        }
        i = j + 1;
    }
    out
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
