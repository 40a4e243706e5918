//! Another rank of a communicator, as this rank knows it.

use unisono_schedule::Rank;
use unisono_transport::RemoteRegion;

/// The index of a flow that does not exist yet.
pub(crate) const NONE: u32 = u32::MAX;

/// A member of the group: another rank, or this one.
#[derive(Debug)]
pub(crate) struct Member {
    /// Its rank in the world.
    pub(crate) world: Rank,
    /// Its mailbox: one [`Entry`] for every rank of the group.
    pub(crate) mailbox: RemoteRegion,
    /// The first flow of each class to and from it; [`NONE`] while there is none.
    pub(crate) outgoing: [u32; 3],
    pub(crate) incoming: [u32; 3],
    pub(crate) greeted: bool,
    /// Whether there ever was a flow.
    pub(crate) met: bool,
    /// Whether its large message is due, which goes with its greeting.
    pub(crate) large_due: bool,
    /// How many operations it had begun when it left the group, if it has.
    pub(crate) ended: Option<u64>,
    /// The latest operation in which it was told, for each class, of a message that waits.
    pub(crate) probed_classes: [Option<u32>; 3],
    /// Whether a mismatch probe went to it that it has not told to have read.
    pub(crate) unread: bool,
    /// The operation of its latest mismatch probe.
    pub(crate) probed: Option<u32>,
    /// How many clears to send of it there are in [`Comm::clear_to_sends`].
    pub(crate) clear_to_sends: u8,
}

impl Member {
    /// Whether messages went to it or came from it.
    pub(crate) fn met(&self) -> bool {
        self.met
    }
}
