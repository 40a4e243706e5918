//! The large messages that were cleared to send ([`Landings`]), found by sender and number, and by the age of their receives.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use unisono_schedule::Rank;
use unisono_transport::Region;

use super::queue::look;
use crate::{
    call::MessageKind,
    completion::Completion,
    memory::{Fresh, Stretch},
    request::Inbound,
    settings::Bounds,
};

/// The bytes of the largest piece of a message that is written at once, as a power of two: less than every provider's limit.
pub(crate) const PIECE: u8 = 26;

/// A receive that has begun.
pub(crate) struct Receiving {
    pub(crate) inbound: Inbound,
    pub(crate) completion: Completion,
}

/// A large message that was cleared to send.
pub(crate) struct Landing {
    pub(crate) kind: MessageKind,
    /// Its receive; `None` as long as it is received unexpected.
    pub(crate) receiving: Option<Receiving>,
    /// The memory that it is received into.
    pub(crate) into: Stretch,
    /// The owner of that memory, if it is new.
    pub(crate) fresh: Option<Fresh>,
    /// The region that the sender writes to, kept registered until the message has arrived.
    pub(crate) exposed: Option<Region>,
    /// The number under which [`Matching`](super::matching::Matching) keeps the message, if it is received unexpected. Then its memory
    /// counts among unexpected messages.
    pub(crate) kept: Option<u64>,
    /// The bytes of the pieces that the sender writes, as a power of two.
    pub(crate) piece: u8,
    /// The number of elements that have arrived in parts, or of pieces that were written.
    pub(crate) arrived: usize,
}

impl Landing {
    /// A message of which nothing has arrived.
    pub(crate) fn new(
        kind: MessageKind,
        receiving: Option<Receiving>,
        into: Stretch,
        fresh: Option<Fresh>,
        bounds: Bounds,
    ) -> Self {
        let piece = if fresh.is_some() { bounds.fresh_piece } else { PIECE };
        Self { kind, receiving, into, fresh, exposed: None, kept: None, piece, arrived: 0 }
    }

    /// Provides new memory: for `ahead` pieces after those that have arrived, or for the whole message.
    pub(crate) fn provide(&mut self, ahead: Option<usize>) {
        if let Some(fresh) = &mut self.fresh {
            let pieces = ahead.map_or(usize::MAX, |ahead| self.arrived + ahead);
            fresh.provide(pieces.saturating_mul(1 << self.piece));
        }
    }
}

/// The sender of a message, and its number among those of the sender.
type Key = (Rank, u32);

/// The large messages that were cleared to send.
#[derive(Default)]
pub(crate) struct Landings {
    pub(crate) all: BTreeMap<Key, Landing>,
    /// The messages with a receive, by the time when the receive was submitted.
    by_age: BTreeSet<(Instant, Key)>,
}

impl Landings {
    pub(crate) fn insert(&mut self, key: Key, mut landing: Landing) {
        let receiving = landing.receiving.take();
        self.all.insert(key, landing);
        if let Some(receiving) = receiving {
            self.receive(key, receiving);
        }
    }

    /// A receive has begun that takes this message.
    pub(crate) fn receive(&mut self, key: Key, receiving: Receiving) {
        let Some(landing) = self.all.get_mut(&key) else { return };
        self.by_age.insert((receiving.completion.submitted, key));
        landing.receiving = Some(receiving);
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<Landing> {
        let landing = self.all.remove(&key)?;
        if let Some(receiving) = &landing.receiving {
            self.by_age.remove(&(receiving.completion.submitted, key));
        }
        Some(landing)
    }

    /// The receives, each with its sender: the one that was submitted first comes first.
    pub(crate) fn receives(&self) -> impl Iterator<Item = (Rank, &Receiving)> {
        let landings = self.by_age.iter().inspect(|_| look());
        landings.filter_map(|(_, key)| Some((key.0, self.all.get(key)?.receiving.as_ref()?)))
    }

    /// True if a message of this rank comes in parts and has a receive.
    pub(crate) fn comes_in_parts(&self, from: Rank) -> bool {
        let mut all = self.all.range((from, 0)..=(from, u32::MAX));
        all.any(|(_, landing)| landing.receiving.is_some() && landing.exposed.is_none())
    }

    pub(crate) fn into_receives(self) -> impl Iterator<Item = Receiving> {
        self.all.into_values().filter_map(|landing| landing.receiving)
    }
}
