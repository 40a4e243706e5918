//! How far this rank has left a communicator.

/// A communicator that this rank has left, and with whose remaining members it has exchanged nothing: they may not have left, and what they
/// send by mistake must find the mailbox. When all members make another group, all have left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vacant {
    /// A new group may take its place.
    Offered,
    /// A group without all its members has asked for its place.
    Kept,
}

/// How far this rank has left a communicator, and whether all ranks shut down.
#[derive(Default)]
pub(crate) struct Shutdown {
    /// True if this rank leaves the group, or has left it before other members.
    pub(crate) leaves: bool,
    /// True if something has happened since the engine last looked at the group.
    changed: bool,
    /// True if this rank has left the group.
    pub(crate) left: bool,
    /// Set if this rank has left, and has exchanged nothing with the members that remain.
    pub(crate) vacant: Option<Vacant>,
    /// True if this rank has told the members its end; also in the world, where the barriers of shutdown follow.
    pub(crate) end_told: bool,
    /// True if this rank is in the last barrier of shutdown: then no rank needs credit any more, and every put must be completed
    /// before the endpoint closes.
    pub(crate) last_barrier: bool,
}

impl Shutdown {
    /// Something has happened in the communicator. True if the engine is to look at it, and does not know that yet.
    pub(super) fn mark_changed(&mut self) -> bool {
        self.leaves && !std::mem::replace(&mut self.changed, true)
    }

    /// The engine looks at the communicator. True if this rank leaves it.
    pub(super) fn look(&mut self) -> bool {
        if self.leaves {
            self.changed = false;
        }
        self.leaves
    }

    /// True if a member needs no credit: it may have dropped the communicator, or all ranks are in the last barrier.
    pub(super) fn needs_no_credit(&self) -> bool {
        self.last_barrier || self.left
    }

    /// True if a member may be gone: it knows the end.
    pub(super) fn is_end_known(&self) -> bool {
        self.left || self.end_told || self.last_barrier
    }
}
