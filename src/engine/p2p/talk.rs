//! Point to point: messages between two ranks of a group that only these two know of.
//!
//! All of them to one rank go through one flow of slots, in the order in which they were sent, but for the parts of large
//! ones, which go before what was sent later. A small one is in its slot whole. Of a large one a request to
//! send comes first; when its receive is there, the receiver answers with a clear to send, and the sender writes straight into the
//! receiver's memory, or sends it in parts through slots where one of the two cannot be registered. A small message that no receive
//! waits for is unexpected: it is copied out of its slot, so that others get past it.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use unisono_schedule::Rank;
use unisono_transport::{Region, RemoteRegion};

use super::matching::{Matching, Want};
use crate::{
    buffer::Fresh,
    call::{Kind, Signature},
    engine::{
        completion::{Completion, Received},
        request::{Inbound, Outbound},
        settings::Bounds,
        wire::MessageInfo,
    },
};

/// The largest piece of a message that is written at once, as a power of two: below what every provider takes.
pub(super) const PIECE: u8 = 26;

/// How long large messages have waited for each other before one of them is received unexpected: far longer than a receive
/// takes to be asked for right after a send.
pub(super) const STALE: Duration = Duration::from_millis(1);

/// How long a collective or a receive has waited before it may be for a rank whose large message waits to be taken: far
/// longer than they take, since what is received unexpected is copied once more.
pub(crate) const LONG: Duration = Duration::from_millis(100);

/// A message that leaves.
pub(super) struct Sending {
    pub(super) outbound: Outbound,
    pub(super) completion: Completion,
    /// Its number among those to this rank; the low 32 bits.
    pub(super) number: u32,
    /// How many elements were handed to the transport, or bytes of it written.
    pub(super) gone: usize,
    /// Puts of it under way.
    pub(super) under_way: usize,
    pub(super) stage: Stage,
}

impl Sending {
    /// Whether it has waited for so long, and nothing of it has gone.
    pub(super) fn stuck(&self, now: Instant, how_long: Duration) -> bool {
        matches!(self.stage, Stage::Queued | Stage::Requested) && now >= self.completion.submitted + how_long
    }

    /// What the message is; and whether its elements could be written from where they lie.
    pub(super) fn info(&self, writes: bool) -> MessageInfo {
        let Outbound { tag, kind, .. } = self.outbound;
        let (dtype, form, count) = (kind.dtype.code(), kind.form.code(), kind.count as u64);
        MessageInfo { tag, dtype, form, writes: writes.into(), reserved: 0, count, unused: 0 }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Stage {
    /// Waits for its turn.
    Queued,
    /// Waits for a clear to send.
    Requested,
    /// Is written there, in pieces of so many bytes.
    Writing(RemoteRegion, usize),
    /// Goes in parts.
    InParts,
    /// All has been handed to the transport.
    Gone,
}

/// What goes to a rank through slots.
#[derive(Clone, Copy, Debug)]
pub(super) enum Item {
    /// A message or its request to send.
    Message(u64),
    /// The message's next parts.
    Parts(u64),
    /// A clear to send for that message; in pieces, if it may be written.
    ClearToSend { number: u32, place: Option<RemoteRegion>, piece: u8 },
}

/// A message that has come, or a request to send it, before its receive.
pub(super) enum Early {
    Whole {
        kind: Kind,
        number: u32,
        bytes: Fresh,
    },
    Requested {
        kind: Kind,
        number: u32,
        writes: bool,
        since: Instant,
    },
    /// It is coming into memory of its own.
    Coming {
        kind: Kind,
        number: u32,
    },
}

impl Early {
    /// What it is, and its number.
    pub(super) fn known(&self) -> (Kind, u32) {
        match self {
            Self::Whole { kind, number, .. }
            | Self::Requested { kind, number, .. }
            | Self::Coming { kind, number } => (*kind, *number),
        }
    }
}

/// A receive that waits.
pub(super) struct Receiving {
    pub(super) inbound: Inbound,
    pub(super) completion: Completion,
}

/// A large message that comes.
pub(super) struct Landing {
    pub(super) tag: u32,
    pub(super) kind: Kind,
    /// Whose it is; nobody's, if it is received unexpected.
    pub(super) receiving: Option<Receiving>,
    pub(super) into: Region,
    /// The memory, where it is unexpected or its length was not known.
    pub(super) fresh: Option<Fresh>,
    /// Whether that counts among unexpected messages.
    pub(super) unexpected: bool,
    /// What the sender writes to, registered for the time.
    pub(super) exposed: Option<Region>,
    /// In which pieces it does: a power of two.
    pub(super) piece: u8,
    /// Elements that have come in parts, or pieces that were written.
    pub(super) come: usize,
}

impl Landing {
    /// One that is cleared to be sent: nothing has come of it.
    pub(super) fn new(
        tag: u32,
        kind: Kind,
        receiving: Option<Receiving>,
        into: Region,
        fresh: Option<Fresh>,
        bounds: Bounds,
    ) -> Self {
        let (unexpected, piece) =
            (receiving.is_none(), if fresh.is_some() { bounds.fresh_piece } else { PIECE });
        Self { tag, kind, receiving, into, fresh, unexpected, exposed: None, piece, come: 0 }
    }

    /// Makes ready what may be written when this many pieces may be under way behind those that have come; or all of it.
    pub(super) fn provide(&mut self, ahead: Option<usize>) {
        if let Some(fresh) = &mut self.fresh {
            let pieces = ahead.map_or(usize::MAX, |ahead| self.come + ahead);
            fresh.provide(pieces.saturating_mul(1 << self.piece));
        }
    }
}

/// What a group has of it.
#[derive(Default)]
pub(crate) struct Talk {
    /// By the order in which they were asked for.
    pub(super) sendings: BTreeMap<u64, Sending>,
    pub(super) asked: u64,
    /// How many messages went to each rank.
    pub(super) numbers: BTreeMap<Rank, u32>,
    /// What waits for a slot, for each rank; and messages to be written, in the order of their clears to send.
    pub(super) queues: BTreeMap<Rank, VecDeque<Item>>,
    pub(super) writes: BTreeMap<Rank, VecDeque<u64>>,
    pub(super) matching: Matching<Receiving, Early>,
    pub(super) landings: BTreeMap<(Rank, u32), Landing>,
    /// Those that are written, in the order of their clears to send.
    pub(super) clear_to_send: BTreeMap<Rank, VecDeque<u32>>,
    /// Flows with messages that nobody has looked at.
    pub(crate) arrived: Vec<usize>,
    pub(crate) written: Vec<usize>,
    /// Bytes of unexpected messages.
    pub(super) unexpected: usize,
    /// Puts under way.
    pub(crate) under_way: usize,
    /// Who has asked for what cannot be, to be told when all is over.
    pub(super) lost: Vec<Completion>,
    /// What has ended, to be told to those who asked, and what it has received.
    pub(crate) ended: VecDeque<(Completion, Option<Received>)>,
    /// No deadline is before this; `None` where nobody waits.
    pub(super) soonest: Option<Instant>,
}

impl Talk {
    /// Whether anything that was asked for is on its way, or has ended and nobody was told.
    pub(super) fn busy(&self) -> bool {
        let landing = self.landings.values().any(|landing| landing.receiving.is_some());
        !self.sendings.is_empty() || landing || !self.ended.is_empty()
    }

    /// Whether anybody waits for the end of a send or a receive.
    pub(crate) fn open(&self) -> bool {
        self.busy() || self.matching.receives().next().is_some()
    }

    /// Whether anything waits to be sent.
    pub(crate) fn has_more(&self) -> bool {
        !self.queues.is_empty() || !self.writes.is_empty()
    }

    /// Whether all that is under way are receives whose message has not come, and of no message that belongs to another: its
    /// sender goes on with that.
    pub(crate) fn only_receives(&self) -> bool {
        !self.busy() && !self.matching.receives().any(|(want, _)| want.inner)
    }

    /// Gives up the receives that have got no message, and that nobody waits for any more, if this is so of them and of the
    /// rank they take one from.
    pub(crate) fn give_up(&mut self, so: impl Fn(&Completion, Option<Rank>) -> bool) {
        let so = |want: Want, receiving: &Receiving| {
            receiving.completion.is_forsaken() && so(&receiving.completion, want.from)
        };
        for Receiving { mut completion, inbound } in self.matching.take_back(so) {
            tracing::debug!(from = ?inbound.from, tag = inbound.tag, "a receive that nobody waits for is given up");
            completion.cancel();
            self.ended.push_back((completion, None));
        }
    }

    /// Whether nothing is left of it on the way.
    pub(crate) fn over(&self) -> bool {
        !self.open() && self.landings.is_empty() && self.queues.is_empty() && self.under_way == 0
    }

    /// Whose deadline has passed: since when it waits, and its call.
    pub(crate) fn late(&mut self, now: Instant) -> Option<(Instant, Signature)> {
        if self.soonest.is_none_or(|soonest| now < soonest) {
            return None;
        }
        self.give_up(|completion, _| completion.deadline <= now);
        let first = self.waits().min_by_key(|waits| waits.completion().deadline);
        let found =
            first.map(|first| (first.completion().deadline, first.completion().submitted, first.signature()));
        self.soonest = found.map(|(deadline, ..)| deadline);
        found.filter(|(deadline, ..)| *deadline <= now).map(|(_, at, signature)| (at, signature))
    }

    /// The earliest deadline, or an earlier moment.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.soonest
    }

    /// When to look whether something is to be received unexpected; `None` if nothing is.
    pub(crate) fn patience(&mut self) -> Option<Instant> {
        let waits = |sending: &&Sending| matches!(sending.stage, Stage::Queued | Stage::Requested);
        // They are in the order in which they were asked for.
        let oldest = self.sendings.values().find(waits)?.completion.submitted;
        let requested = self.matching.messages().any(|(_, early)| matches!(early, Early::Requested { .. }));
        requested.then_some(oldest + STALE)
    }

    /// Gives all up.
    pub(crate) fn abandon(&mut self) -> Vec<Completion> {
        let sendings = std::mem::take(&mut self.sendings).into_values().map(|sending| sending.completion);
        let landings = std::mem::take(&mut self.landings).into_values();
        let landings = landings.filter_map(|landing| landing.receiving.map(|receiving| receiving.completion));
        let receives = self.matching.give_up().map(|receiving| receiving.completion);
        let ended = self.ended.drain(..).map(|(completion, _)| completion);
        sendings.chain(landings).chain(receives).chain(self.lost.drain(..)).chain(ended).collect()
    }
}

/// Whether a large message to this rank has waited so long that the rank may wait for something from here.
pub(super) fn wait_for(sendings: &BTreeMap<u64, Sending>, to: Rank, now: Instant) -> bool {
    sendings.values().any(|sending| sending.outbound.to == to && sending.stuck(now, LONG))
}

impl Talk {
    pub(super) fn wait_until(&mut self, deadline: Instant) {
        self.soonest = Some(self.soonest.map_or(deadline, |soonest| soonest.min(deadline)));
    }
}
