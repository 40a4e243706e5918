//! The sizes of windows, and what follows from them: memory, and how much may be under way at once.

use unisono_schedule::windows::{self, stride};

use crate::engine::wire::{Class, MAX_COMMS};

/// The sizes of windows, alike on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Bytes of elements in a slot for small messages.
    pub eager_bytes: usize,
    /// How many of those slots a flow has.
    pub eager_slots: usize,
    /// Bytes of elements in a slot for chunks.
    pub chunk_bytes: usize,
    /// How many of those slots a lane's flow has.
    pub bulk_slots: usize,
    /// How many lanes pipelines may use.
    pub lanes: usize,
    /// Whether windows ask for huge pages.
    pub huge_pages: bool,
    pub bounds: Bounds,
}

/// What no configuration changes. Tests take less, so that few and small messages reach every path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// The most communicators that a process may be a member of at once.
    pub comms: usize,
    /// The most bytes of unexpected messages in memory of their own. Others wait in their slots, and their senders with them; but
    /// a large one from a rank that waits for a large one of this rank's comes in any case, and so do those in front of the parts
    /// of one that was asked for.
    pub unexpected_bytes: usize,
    /// The largest piece of a message that is written to fresh memory, as a power of two. The pieces that may be in flight at first
    /// are made zeros before, the others while these come: so few bytes that the first need not wait and that zeros are still in
    /// the core's own cache.
    pub fresh_piece: u8,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { comms: MAX_COMMS, unexpected_bytes: 256 << 20, fresh_piece: 18 }
    }
}

impl Settings {
    /// Lanes, slots and bytes in a slot of a window.
    pub(crate) fn window(&self, class: Class) -> (usize, usize, usize) {
        match class {
            Class::Eager | Class::Message => (1, self.eager_slots, self.eager_bytes),
            Class::Bulk => (self.lanes, self.bulk_slots, self.chunk_bytes),
        }
    }
}

impl Settings {
    /// Bytes to register for windows from so many ranks of each class, and for staging.
    pub(crate) fn estimate(&self, eager: usize, bulk: usize) -> usize {
        let windows = |class, sources: usize| {
            let (lanes, slots, bytes) = self.window(class);
            sources * lanes * slots * stride(bytes)
        };
        windows(Class::Eager, eager)
            + windows(Class::Bulk, bulk)
            + self.staging() * stride(self.chunk_bytes.max(self.eager_bytes))
    }

    /// How many puts of one peer may be under way at once because of a window of this class: messages; at most two
    /// credits for each flow the other way; the message about its window; a mismatch probe, and word that ours was read. In
    /// bulk and of messages from point to point also writes, their credits, and in bulk a clear to send.
    pub(crate) fn arrivals(&self, class: Class) -> usize {
        let (lanes, slots, _) = self.window(class);
        let writes = match class {
            Class::Eager => 0,
            Class::Bulk | Class::Message => lanes * self.writes() + 2 * lanes + 1,
        };
        lanes * slots + 2 * lanes + 3 + writes
    }

    /// How many puts may be under way at once to one of so many ranks, if all send to it in every class.
    pub(crate) fn arrivals_among(&self, ranks: usize) -> usize {
        let each: usize = Class::ALL.iter().map(|&class| self.arrivals(class)).sum();
        each.saturating_mul(ranks)
    }

    /// How many puts of one peer may be under way at once: messages of its flows, credits for ours (at most
    /// two each before the second is owed), and its other control messages.
    pub(crate) fn arrivals_per_peer(&self) -> usize {
        let messages = 2 * self.eager_slots + self.writes() + self.lanes * (self.bulk_slots + self.writes());
        messages + 2 * (3 + 2 * self.lanes) + 3 * Class::ALL.len() + 3
    }

    /// How many writes straight into an output may be under way on a lane: they take no memory, so there may be
    /// enough to make credit rare, but they do take room in completion queues.
    pub(crate) fn writes(&self) -> usize {
        windows::writes_in_flight(self.lanes)
    }

    /// How many staging slots there are: two for each lane keep one filling while the other leaves.
    pub(crate) fn staging(&self) -> usize {
        2 * self.lanes.max(2)
    }
}
