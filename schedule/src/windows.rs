//! The sizes of windows, the memory in which a rank receives messages.

/// The default size of a slot for small messages, in bytes of elements.
pub const EAGER_BYTES: usize = 32 << 10;
/// The least size of such a slot.
const LEAST_EAGER: usize = 128;
/// The default number of slots of a flow of small messages.
pub const EAGER_SLOTS: usize = 8;
/// The default size of a slot for chunks, in bytes of elements.
pub const CHUNK_BYTES: usize = 256 << 10;
/// The default number of slots of each lane's flow of chunks.
pub const BULK_SLOTS: usize = 2;
/// The default number of lanes of a pipeline.
pub const LANES: usize = 2;

/// The offset of a message's elements in a slot, in bytes: they follow the header, which has a cache line.
pub const PAYLOAD: usize = 64;

/// The bytes that a slot for messages of `message` bytes takes in a window: the header, then whole cache lines.
#[must_use]
pub const fn stride(message: usize) -> usize {
    match message.checked_next_multiple_of(64) {
        Some(bytes) => bytes.saturating_add(PAYLOAD),
        None => usize::MAX,
    }
}

/// The size of a slot for small messages beside slots for chunks of `chunk` bytes: no larger than these.
#[must_use]
pub const fn eager_bytes(chunk: usize) -> usize {
    match chunk {
        ..LEAST_EAGER => LEAST_EAGER,
        LEAST_EAGER..EAGER_BYTES => chunk,
        _ => EAGER_BYTES,
    }
}

/// The most writes into an output that may be in flight on each of `lanes` lanes: from 2 to 8. They take no memory, so that there can
/// be enough to need credit seldom; but each takes an entry of a completion queue.
#[must_use]
pub fn writes_in_flight(lanes: usize) -> usize {
    (16 / lanes.max(1)).clamp(2, 8)
}
