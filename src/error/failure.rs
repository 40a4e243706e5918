//! Why a group ended. The first failure is told to every rank.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use unisono_schedule::Rank;

use super::text::{MAX_TEXT, clean};

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

/// `rank 0 in op 3 barrier() for rank 1, rank 1 in …`.
fn each(waits: &[(Rank, String, Rank)]) -> String {
    let each = waits.iter().map(|(rank, call, other)| format!("rank {rank} in {call} for rank {other}"));
    each.collect::<Vec<_>>().join(", ")
}

/// `group world/0:1 of ranks 1, 3: `; nothing of the world.
fn within(group: &str) -> String {
    if group.is_empty() { String::new() } else { format!("group {group}: ") }
}
