//! The sizes of windows, and the memory and the number of puts in flight that follow from them.

use unisono_schedule::windows::{self, stride};

use crate::wire::{MAX_COMMS, WindowClass};

/// The sizes of windows, the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bytes of elements in a slot for small messages.
    pub eager_bytes: usize,
    /// The number of those slots of a flow.
    pub eager_slots: usize,
    /// Bytes of elements in a slot for chunks.
    pub chunk_bytes: usize,
    /// The number of those slots of each lane's flow.
    pub bulk_slots: usize,
    /// The most lanes of a pipeline.
    pub lanes: usize,
    /// Bounds that tests lower.
    pub bounds: Bounds,
}

/// Limits that no configuration changes. Tests use smaller ones, so that few and small messages reach every path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The most communicators that a process may be a member of at once.
    pub comms: usize,
    /// The most bytes of unexpected messages that are copied out of their slots. Further ones stay in their slots, and their
    /// senders wait. A large message from a rank that waits for a large message of this rank is received in any case, and so are
    /// messages that arrived before the parts of a message with a receive.
    pub unexpected_bytes: usize,
    /// The largest piece of a message that is written to fresh memory: its bytes, as a power of two. The receiver zeroes the pieces
    /// that may be in flight before it clears the message to send, and further ones while these arrive. A piece is so small that
    /// the first need not wait for long, and that its zeros are still in the core's own cache when it arrives.
    pub fresh_piece: u8,
    /// The most ranks of a world that get the roster from the store; among more it is spread by themselves.
    pub listed: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { comms: MAX_COMMS, unexpected_bytes: 256 << 20, fresh_piece: 18, listed: 64 }
    }
}

/// The size of a window.
pub(crate) struct WindowSize {
    pub lanes: usize,
    /// The slots of a lane.
    pub slots: usize,
    /// The bytes of elements in a slot.
    pub slot_bytes: usize,
    /// The bytes of a lane.
    pub lane_bytes: usize,
}

impl Settings {
    /// The size of a window.
    pub(crate) fn window(&self, class: WindowClass) -> WindowSize {
        let (lanes, slots, slot_bytes) = match class {
            WindowClass::Eager | WindowClass::Message => (1, self.eager_slots, self.eager_bytes),
            WindowClass::Bulk => (self.lanes, self.bulk_slots, self.chunk_bytes),
        };
        WindowSize { lanes, slots, slot_bytes, lane_bytes: slots * stride(slot_bytes) }
    }

    /// The bytes to register for staging and for windows through which this many ranks send, in classes eager and bulk.
    pub fn estimate(&self, eager: usize, bulk: usize) -> usize {
        let windows = |class, sources: usize| {
            let WindowSize { lanes, lane_bytes, .. } = self.window(class);
            sources * lanes * lane_bytes
        };
        windows(WindowClass::Eager, eager)
            + windows(WindowClass::Bulk, bulk)
            + self.staging() * stride(self.chunk_bytes.max(self.eager_bytes))
    }

    /// The most puts of one peer in flight because of a window of this class: messages; two credits for each flow in the other
    /// direction; the control messages that describe its window, probe for a mismatch and say that our probe was read. In classes
    /// bulk and message also writes and their credits, and in bulk a clear to send.
    pub(crate) fn arrivals(&self, class: WindowClass) -> usize {
        let WindowSize { lanes, slots, .. } = self.window(class);
        let writes = match class {
            WindowClass::Eager => 0,
            WindowClass::Bulk | WindowClass::Message => lanes * self.writes() + 2 * lanes + 1,
        };
        lanes * slots + 2 * lanes + 3 + writes
    }

    /// The most puts in flight to a rank if this many ranks send to it in every class.
    pub fn arrivals_among(&self, ranks: usize) -> usize {
        let each: usize = WindowClass::ALL.iter().map(|&class| self.arrivals(class)).sum();
        each.saturating_mul(ranks)
    }

    /// The most writes straight into an output in flight on a lane. They take no memory, so there may be enough that credit is
    /// rarely needed, but each takes room in completion queues.
    pub(crate) fn writes(&self) -> usize {
        windows::writes_in_flight(self.lanes)
    }

    /// The number of staging slots: two for each lane, so that one is filled while the other is sent.
    pub(crate) fn staging(&self) -> usize {
        2 * self.lanes.max(2)
    }
}
