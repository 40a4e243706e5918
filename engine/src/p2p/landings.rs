//! The large messages that were cleared to send ([`Landings`]), found by sender and number, and by the age of their receives.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use unisono_schedule::Rank;
use unisono_transport::Region;

use super::queue::look;
use crate::{call::Kind, completion::Completion, memory::Fresh, request::Inbound, settings::Bounds};

/// The bytes of the largest piece of a message that is written at once, as a power of two: less than every provider's limit.
pub(super) const PIECE: u8 = 26;

/// A receive that has begun.
pub(super) struct Receiving {
    pub(super) inbound: Inbound,
    pub(super) completion: Completion,
}

/// A large message that was cleared to send.
pub(super) struct Landing {
    pub(super) kind: Kind,
    /// Its receive; `None` as long as it is received unexpected.
    pub(super) receiving: Option<Receiving>,
    /// The memory that it is received into.
    pub(super) into: Region,
    /// The owner of that memory, if it is new.
    pub(super) fresh: Option<Fresh>,
    /// True if the memory counts among unexpected messages.
    pub(super) unexpected: bool,
    /// The region that the sender writes to, kept registered until the message has arrived.
    pub(super) exposed: Option<Region>,
    /// The number under which [`Matching`] keeps the message, if it is received unexpected.
    pub(super) kept: Option<u64>,
    /// The bytes of the pieces that the sender writes, as a power of two.
    pub(super) piece: u8,
    /// The number of elements that have arrived in parts, or of pieces that were written.
    pub(super) arrived: usize,
}

impl Landing {
    /// A message of which nothing has arrived.
    pub(super) fn new(
        kind: Kind,
        receiving: Option<Receiving>,
        into: Region,
        fresh: Option<Fresh>,
        bounds: Bounds,
    ) -> Self {
        let (unexpected, piece) =
            (receiving.is_none(), if fresh.is_some() { bounds.fresh_piece } else { PIECE });
        Self { kind, receiving, into, fresh, unexpected, exposed: None, kept: None, piece, arrived: 0 }
    }

    /// Provides new memory: for `ahead` pieces after those that have arrived, or for the whole message.
    pub(super) fn provide(&mut self, ahead: Option<usize>) {
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
pub(super) struct Landings {
    all: BTreeMap<Key, Landing>,
    /// The messages with a receive, by the time when the receive was submitted.
    by_age: BTreeSet<(Instant, Key)>,
    /// For each rank, how many of those with a receive come in parts.
    in_parts: BTreeMap<Rank, usize>,
}

impl Landings {
    pub(super) fn insert(&mut self, key: Key, mut landing: Landing) {
        let receiving = landing.receiving.take();
        self.all.insert(key, landing);
        if let Some(receiving) = receiving {
            self.receive(key, receiving);
        }
    }

    /// A receive has begun that takes this message.
    pub(super) fn receive(&mut self, key: Key, receiving: Receiving) {
        let Some(landing) = self.all.get_mut(&key) else { return };
        self.by_age.insert((receiving.completion.submitted, key));
        if landing.exposed.is_none() {
            *self.in_parts.entry(key.0).or_default() += 1;
        }
        landing.receiving = Some(receiving);
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<Landing> {
        let landing = self.all.remove(&key)?;
        if let Some(receiving) = &landing.receiving {
            self.by_age.remove(&(receiving.completion.submitted, key));
            if landing.exposed.is_none()
                && let Some(parts) = self.in_parts.get_mut(&key.0)
            {
                *parts -= 1;
                if *parts == 0 {
                    self.in_parts.remove(&key.0);
                }
            }
        }
        Some(landing)
    }

    pub(super) fn get(&self, key: Key) -> Option<&Landing> {
        self.all.get(&key)
    }

    /// The message, to note the parts of it that have arrived.
    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Landing> {
        self.all.get_mut(&key)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// True if a message of this rank that has a receive comes in parts.
    pub(super) fn come_in_parts(&self, from: Rank) -> bool {
        self.in_parts.contains_key(&from)
    }

    /// The receive that was submitted first, and its sender.
    pub(super) fn oldest(&self) -> Option<(Rank, &Receiving)> {
        self.receives().next()
    }

    /// The receives, each with its sender: the one that was submitted first comes first.
    pub(super) fn receives(&self) -> impl Iterator<Item = (Rank, &Receiving)> {
        let landings = self.by_age.iter().inspect(|_| look());
        landings.filter_map(|(_, key)| Some((key.0, self.all.get(key)?.receiving.as_ref()?)))
    }

    pub(super) fn into_receives(self) -> impl Iterator<Item = Receiving> {
        self.all.into_values().filter_map(|landing| landing.receiving)
    }
}
