//! Another rank of a communicator, as this rank knows it.

use unisono_schedule::Rank;
use unisono_transport::RemoteRegion;

/// Stands for the index of a flow that does not exist yet.
pub(crate) const NONE: u32 = u32::MAX;

/// A member of the communicator: another rank, or this one.
#[derive(Debug)]
pub(crate) struct CommMember {
    /// Its rank in the world.
    pub(crate) world: Rank,
    /// Its mailbox: one [`MailboxEntry`](crate::wire::MailboxEntry) for every rank of the communicator.
    pub(crate) mailbox: RemoteRegion,
    /// Its shared slots, if it has told where they are.
    pub(crate) slots: Option<RemoteRegion>,
    /// The first flow to it of each class; [`NONE`] if there is none.
    pub(crate) outgoing: [u32; 3],
    /// The first flow from it of each class; [`NONE`] if there is none.
    pub(crate) incoming: [u32; 3],
    /// True if the pattern of its handshake has arrived.
    pub(crate) handshake_arrived: bool,
    /// True if there has been a flow to it or from it.
    pub(crate) met: bool,
    /// True if its large handshake is awaited.
    pub(crate) large_due: bool,
    /// If it has left the communicator, the number of operations that it had begun.
    pub(crate) ended: Option<u64>,
    /// For each class, the operation of the latest mismatch probe to it.
    pub(crate) probed_classes: [Option<u32>; 3],
    /// True if it has not yet read the latest mismatch probe to it.
    pub(crate) unread: bool,
    /// The operation of the latest mismatch probe from it.
    pub(crate) probed: Option<u32>,
    /// The number of its clears to send in [`Comm::clear_to_sends`](super::Comm::clear_to_sends).
    pub(crate) clear_to_sends: u8,
}
