//! The result of a pass over an operation.

/// The result of one pass over an operation.
pub(crate) enum Pass {
    /// The operation has ended.
    Ended,
    /// Something moved; a poll is next. That elements are shown is none: the ranks of a host wait for the last of them, and if they are more
    /// than the cores, a wait for each would seem short and make [`Wait`](crate::wait::Wait) spin longer.
    Moved,
    /// Nothing moved.
    Idle,
}
