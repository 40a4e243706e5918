//! Why a group ended. Every rank gets the first failure.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use unisono_schedule::Rank;

use super::text::{MAX_TEXT, clean};

/// Why a group ended. The store sends the first failure to every rank, and every rank returns the same failure. Ranks are
/// ranks in the world.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// Two ranks made different calls.
    #[error("{}op {op}{}{call}: rank {} {}, rank {} {}", within(.group), if .call.is_empty() { "" } else { " " },
        .left.0, .left.1, .right.0, .right.1)]
    Mismatch {
        /// The group's name and its ranks, for instance `world/0:1 of ranks 1, 3`; empty for the world.
        group: Box<str>,
        /// The number of the operation in its group, counted from 0.
        op: u64,
        /// The call, if both ranks made the same one, for instance `all_reduce(f32, sum)`; empty otherwise.
        call: String,
        /// The lower rank and its side of the difference, for instance `has 409600 elements`.
        left: (Rank, String),
        /// The higher rank and its side.
        right: (Rank, String),
    },
    /// A rank's process is known to have ended, or it dropped its group, without leaving.
    #[error("rank {rank} died ({how})")]
    Died {
        /// The rank.
        rank: Rank,
        /// How it was noticed, for instance `pid 17 on node03: its process ended before it left the group`.
        how: String,
    },
    /// A rank reached the store but could not join.
    #[error("rank {rank} could not join: {why}")]
    Joining {
        /// The rank.
        rank: Rank,
        /// The error that the rank itself returns.
        why: String,
    },
    /// The ranks have different settings, or settings that do not fit their hosts.
    #[error("{name}: {problem}")]
    Settings {
        /// What does not fit: a setting, the provider, the version of the protocol.
        name: String,
        /// Which ranks have what, and what to do.
        problem: String,
    },
    /// The connection between a rank and the store has ended and was not made again, or nothing arrived from the rank for longer than the
    /// group waits. Its process may live.
    #[error("rank {rank} is not reachable ({how})")]
    Unreachable {
        /// The rank.
        rank: Rank,
        /// The process, and what was seen of its connection.
        how: String,
    },
    /// A signal ended a rank's process, which reported it.
    #[error("rank {rank} was ended by {signal}")]
    Ended {
        /// The rank.
        rank: Rank,
        /// The signal's name: `SIGTERM`.
        signal: String,
    },
    /// A collective operation did not finish before its deadline.
    #[error("{}op {op} {call} did not finish within {waited:.1?} on rank {rank}: {report}", within(.group))]
    Deadline {
        /// The group's name and its ranks; empty for the world.
        group: Box<str>,
        /// The operation's number.
        op: u64,
        /// The call.
        call: String,
        /// The rank on which the deadline passed.
        rank: Rank,
        /// How long it had waited.
        waited: Duration,
        /// The positions of all ranks: which have not entered the operation, and which wait for which.
        report: String,
    },
    /// A deadlock: ranks wait for each other, each in another call or for another message.
    #[error("ranks wait for each other: {}", each(.waits))]
    Deadlock {
        /// Each of these ranks, the call that it is in, for instance `op 3 barrier() of group world/0 of ranks 0, 1`, and the rank
        /// that it waits for.
        waits: Vec<(Rank, String, Rank)>,
    },
    /// A rank waits for one that has left or is leaving.
    #[error("rank {rank} has left, and rank {} waits for it in {}", .waits.0, .waits.1)]
    Left {
        /// The rank that has left.
        rank: Rank,
        /// The rank that waits for it, and the call: as in [`Deadlock`](Self::Deadlock).
        waits: (Rank, String),
    },
    /// A send and the receive that it matches differ.
    #[error("message {number} from rank {} to rank {}, tag {tag}: rank {} sends {}, rank {} receives {}",
        .sender.0, .receiver.0, .sender.0, .sender.1, .receiver.0, .receiver.1)]
    Message {
        /// Its number among the messages from the sender to the receiver, counted from 0.
        number: u64,
        /// Its tag.
        tag: u64,
        /// The sender and what it sends, for instance `5 f32 elements`.
        sender: (Rank, String),
        /// The receiver and what it asked for.
        receiver: (Rank, String),
    },
    /// A send or receive did not finish before its deadline.
    #[error("{call} did not finish within {waited:.1?} on rank {rank}: {report}")]
    Undelivered {
        /// The call, for instance `recv(f32, from 3, tag 7)`.
        call: String,
        /// The rank on which the deadline passed.
        rank: Rank,
        /// How long it had waited.
        waited: Duration,
        /// The positions of all ranks.
        report: String,
    },
    /// A rank's transport broke.
    #[error("rank {rank}, {doing}: {reason}")]
    Transport {
        /// The rank whose transport it is.
        rank: Rank,
        /// What the rank was doing.
        doing: String,
        /// The error of the transport.
        reason: String,
    },
    /// A peer sent what the protocol does not allow.
    #[error("rank {rank} received something from rank {from} that the protocol does not allow: {what}")]
    Protocol {
        /// The rank that noticed it.
        rank: Rank,
        /// The rank that sent it.
        from: Rank,
        /// What arrived and what was expected.
        what: String,
    },
    /// The store has ended, so that no rank can learn which ranks live.
    #[error("the store is gone: {how}")]
    StoreLost {
        /// How it was noticed, and which process served the store.
        how: String,
    },
    /// The store does not answer, so that no rank can learn the positions of the others.
    #[error("the store at {store} does not answer: {}, whose process serves it, is stopped or cut off",
        .host.map_or_else(|| "the launcher".to_owned(), |rank| format!("rank {rank}")))]
    StoreSilent {
        /// The store, for instance `tcp://10.0.0.1:29500`.
        store: String,
        /// The rank whose process serves it; `None` if a launcher does.
        host: Option<Rank>,
    },
    /// While ranks joined, a message from one did not reach another.
    #[error("rank {from} does not reach rank {to}: {how}")]
    NoPath {
        /// The rank that sent it.
        from: Rank,
        /// The rank that was to receive it.
        to: Rank,
        /// The addresses and interfaces on both sides, what was seen, and what to do.
        how: String,
    },
    /// A rank aborted the group.
    #[error("rank {rank} aborted the group: {why}")]
    Aborted {
        /// The rank.
        rank: Rank,
        /// The reason that it gave.
        why: String,
    },
    /// A message arrived that no rank can have sent: a program outside this job reaches a rank's endpoint.
    #[error(
        "rank {rank} got a message that no rank sent: {what}; a program outside this job reaches {at}; give \
        only the job's hosts access to it, by a firewall or a separate network (docs/security.md)"
    )]
    Forged {
        /// The rank that received it.
        rank: Rank,
        /// Its endpoint, for instance `tcp at 10.0.0.5:40711`.
        at: String,
        /// What arrived.
        what: String,
    },
    /// The group has ended in good order: it was left, or its last handle was dropped. Only calls that use it afterwards get this
    /// failure.
    #[error("the group has ended")]
    Closed,
    /// Two ranks gave different lists of members to `create_group`, with the same tag.
    #[error("{}create_group(tag {tag}): rank {} has the ranks {}, rank {} has the ranks {}", within(.group),
        .left.0, .left.1, .right.0, .right.1)]
    Members {
        /// The name and the ranks of the parent group; empty for the world.
        group: Box<str>,
        /// The tag.
        tag: u64,
        /// The lower rank and the ranks that it has.
        left: (Rank, String),
        /// The higher rank and the ranks that it has.
        right: (Rank, String),
    },
    /// All ranks have left, and none had sent the message that a receive waits for.
    #[error("rank {rank} waits in {call} for a message, but all ranks have left, and none had sent it")]
    Unsent {
        /// The call, for instance `recv(f32, from 3, tag 7)`.
        call: String,
        /// The rank of the receive.
        rank: Rank,
    },
    /// A process that belongs to the job and does not know its rank could not join.
    #[error("a process of this job that does not know its rank could not join: {why}")]
    NoRank {
        /// The process, and the error that it returns itself.
        why: String,
    },
}

impl Failure {
    /// The same with all texts made safe for a log and a terminal: another process may have made them.
    #[doc(hidden)]
    pub fn cleaned(mut self) -> Self {
        let (group, texts): (Option<&mut Box<str>>, Vec<&mut String>) = match &mut self {
            Self::Mismatch { group, call, left, right, .. } => {
                (Some(group), vec![call, &mut left.1, &mut right.1])
            }
            Self::Members { group, left, right, .. } => (Some(group), vec![&mut left.1, &mut right.1]),
            Self::Deadline { group, call, report, .. } => (Some(group), vec![call, report]),
            Self::Deadlock { waits } => (None, waits.iter_mut().map(|(_, call, _)| call).collect()),
            Self::Left { waits, .. } => (None, vec![&mut waits.1]),
            Self::Closed => (None, Vec::new()),
            Self::Message { sender, receiver, .. } => (None, vec![&mut sender.1, &mut receiver.1]),
            Self::Undelivered { call: one, report: other, .. }
            | Self::Transport { doing: one, reason: other, .. }
            | Self::Forged { at: one, what: other, .. }
            | Self::Settings { name: one, problem: other } => (None, vec![one, other]),
            Self::Died { how: text, .. }
            | Self::Joining { why: text, .. }
            | Self::NoRank { why: text }
            | Self::Ended { signal: text, .. }
            | Self::Unreachable { how: text, .. }
            | Self::NoPath { how: text, .. }
            | Self::Protocol { what: text, .. }
            | Self::StoreLost { how: text }
            | Self::StoreSilent { store: text, .. }
            | Self::Unsent { call: text, .. }
            | Self::Aborted { why: text, .. } => (None, vec![text]),
        };
        group.into_iter().for_each(|group| *group = clean(group, MAX_TEXT).into());
        texts.into_iter().for_each(|text| *text = clean(text, MAX_TEXT));
        self
    }
}

/// `rank 0 in op 3 barrier() for rank 1, rank 1 in …`.
fn each(waits: &[(Rank, String, Rank)]) -> String {
    let each = waits.iter().map(|(rank, call, other)| format!("rank {rank} in {call} for rank {other}"));
    each.collect::<Vec<_>>().join(", ")
}

/// `group world/0:1 of ranks 1, 3: `; empty for the world.
fn within(group: &str) -> String {
    if group.is_empty() { String::new() } else { format!("group {group}: ") }
}
