//! How far this rank has left a communicator.

/// How far this rank has left a communicator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ShutdownState {
    /// It has not.
    #[default]
    Open,
    /// It leaves the group as soon as nothing is under way in it.
    Leaving,
    /// It has told the members of the world its end; the barriers of shutdown follow.
    EndTold,
    /// It is in the last barrier of shutdown: no rank needs credit any more, and every put must be completed before the endpoint closes.
    LastBarrier,
    /// It has left the group before other members.
    Left,
    /// It has left the group with the world.
    LeftWithWorld,
    /// It has left the group, and has exchanged nothing with the members that remain: they may not have left, and what they send by mistake
    /// must find the mailbox. A new group may take its place. When all members make another group, all have left.
    Vacant,
    /// The same; and a group without all its members has asked for its place.
    Kept,
}

/// How far this rank has left a communicator, and whether the engine is to look at it.
#[derive(Default)]
pub(crate) struct Shutdown {
    pub(crate) state: ShutdownState,
    /// True if something has happened since the engine last looked at the group.
    changed: bool,
}

impl Shutdown {
    /// True if the engine is to look at the communicator when something has happened in it.
    fn is_looked_at(&self) -> bool {
        matches!(self.state, ShutdownState::Leaving | ShutdownState::Left)
    }

    /// Something has happened in the communicator. True if the engine is to look at it, and does not know that yet.
    pub(super) fn mark_changed(&mut self) -> bool {
        self.is_looked_at() && !std::mem::replace(&mut self.changed, true)
    }

    /// The engine looks at the communicator. True if this rank leaves it.
    pub(super) fn look(&mut self) -> bool {
        self.changed &= !self.is_looked_at();
        self.is_looked_at()
    }

    /// True if this rank has left the group.
    #[inline]
    pub(crate) fn has_left(&self) -> bool {
        matches!(
            self.state,
            ShutdownState::Left | ShutdownState::LeftWithWorld | ShutdownState::Vacant | ShutdownState::Kept
        )
    }

    /// True if no member that has not left knows the group by anything but its mailbox.
    pub(crate) fn is_vacant(&self) -> bool {
        matches!(self.state, ShutdownState::Vacant | ShutdownState::Kept)
    }

    #[inline]
    pub(crate) fn is_last_barrier(&self) -> bool {
        self.state == ShutdownState::LastBarrier
    }

    /// True if a member may be gone: it knows the end.
    pub(crate) fn is_end_known(&self) -> bool {
        !matches!(self.state, ShutdownState::Open | ShutdownState::Leaving)
    }
}
