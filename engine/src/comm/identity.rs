//! What a communicator is: its ids, its name and its members.

use std::sync::Arc;

use unisono_schedule::Rank;
use unisono_transport::RemoteRegion;

use crate::wire::{CommId, ControlKind, Immediate};

/// The id, the name and the members of a communicator.
pub(crate) struct Identity {
    /// Its id on the wire, which control messages of its members name.
    pub comm_id: CommId,
    /// The id of the group: the same on all members, and unique; 0 for the world.
    pub(crate) id: u64,
    /// The name of the group in errors; `None` for the world.
    pub(crate) label: Option<Arc<str>>,
    /// The rank of this process in it.
    pub me: Rank,
    /// All ranks of it, once they are known.
    pub(crate) members: Vec<CommMember>,
}

/// A member of the communicator, as this rank knows it: another rank, or this one.
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

impl Identity {
    /// A communicator without members and a name, in which this process is rank `me`.
    pub(super) fn new(comm_id: CommId, me: Rank) -> Self {
        Self { comm_id, id: 0, label: None, me, members: Vec::new() }
    }

    /// The immediate of a control message of this rank.
    pub(crate) fn immediate(&self, about: ControlKind) -> Immediate {
        Immediate::ControlMessage { comm_id: self.comm_id, from: self.me, about }
    }

    /// The name of the group in failures; empty for the world.
    pub(super) fn group_name(&self) -> Box<str> {
        self.label.as_deref().unwrap_or_default().into()
    }

    /// A member's rank in the world.
    #[inline]
    pub(crate) fn world(&self, rank: Rank) -> Rank {
        self.members.get(rank).map_or(rank, |member| member.world)
    }

    /// True if all members that this rank has exchanged messages with have told their end: then everything that they sent has arrived.
    pub(crate) fn all_ended(&self) -> bool {
        self.members.iter().all(|member| member.ended.is_some() || !member.has_flow)
    }

    /// True if a rank has told its end, or is this one.
    pub(super) fn is_gone(&self, rank: Rank) -> bool {
        rank == self.me || self.members.get(rank).is_some_and(|member| member.ended.is_some())
    }

    /// True if there are members that this rank has exchanged nothing with, which may not have left.
    pub(super) fn has_strangers(&self) -> bool {
        self.members.iter().enumerate().any(|(rank, member)| !self.is_gone(rank) && !member.has_flow)
    }
}
