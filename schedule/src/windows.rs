//! The sizes of windows, the memory in which a rank receives messages: default values, and what follows from them.

/// Bytes of elements in a slot for small messages, unless configured.
pub const EAGER_BYTES: usize = 32 << 10;
/// Slots of a flow of small messages, unless configured.
pub const EAGER_SLOTS: usize = 8;
/// Bytes of elements in a slot for chunks, unless configured.
pub const CHUNK_BYTES: usize = 256 << 10;
/// Slots of each lane's flow of chunks, unless configured.
pub const BULK_SLOTS: usize = 2;
/// Lanes of a pipeline, unless configured.
pub const LANES: usize = 2;

/// Where in a slot a message's elements begin: after a cache line for its header.
pub const PAYLOAD: usize = 64;

/// Bytes that a slot for messages of so many bytes takes in a window: the header, and whole cache lines.
#[must_use]
pub const fn stride(message: usize) -> usize {
    match message.checked_next_multiple_of(64) {
        Some(bytes) => bytes.saturating_add(PAYLOAD),
        None => usize::MAX,
    }
}

/// How many writes into an output may be in flight on each of so many lanes. They take no memory, so there may be enough to
/// make credit rare, but each takes an entry of a completion queue.
#[must_use]
pub fn writes_in_flight(lanes: usize) -> usize {
    (16 / lanes.max(1)).clamp(2, 8)
}
