//! The result of a pass over an operation.

/// The result of one pass over an operation.
pub(crate) enum Pass {
    /// The operation has ended.
    Ended,
    /// Something moved; a poll is next. Steps that show or view elements do not count: a rank waits for the last of its host, and if it
    /// counted each rank, [`Wait`](crate::wait::Wait) would take this for several short waits and spin longer.
    Moved,
    /// Nothing moved.
    Idle,
}
