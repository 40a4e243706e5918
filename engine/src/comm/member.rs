//! Another rank of a communicator, as this rank knows it.

use unisono_schedule::Rank;
use unisono_transport::RemoteRegion;

/// A member of the communicator: another rank, or this one.
#[derive(Debug, Default)]
pub(crate) struct CommMember {
    /// Its rank in the world.
    pub(crate) world: Rank,
    /// Its shared slots, if it has told where they are.
    pub(crate) slots: Option<RemoteRegion>,
    /// True if the pattern of its handshake has arrived.
    pub(crate) handshake_arrived: bool,
    /// True if there has been a flow to it or from it.
    pub(crate) has_flow: bool,
    /// True if its large handshake is awaited.
    pub(crate) large_due: bool,
    /// If it has left the communicator, the number of operations that it had begun.
    pub(crate) ended: Option<u64>,
}
