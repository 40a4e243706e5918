//! Requests for messages from point to point.

use unisono_core::dtype::Dtype;
use unisono_schedule::Rank;

use crate::{call::MessageKind, memory::Stretch};

/// A send.
pub struct Outbound {
    /// The receiver.
    pub to: Rank,
    /// Tags of the caller have 32 bits, except those of a group that is being made.
    pub tag: u64,
    /// What it carries.
    pub kind: MessageKind,
    /// Its elements.
    pub source: Stretch,
}

/// A receive.
pub struct Inbound {
    /// The sender; `None` for any rank.
    pub from: Option<Rank>,
    /// The tag of the message.
    pub tag: u64,
    /// What the message must carry. For [`Place::Fresh`], the most elements that it may have.
    pub kind: MessageKind,
    /// Where it goes.
    pub place: Place,
}

/// The memory for a message.
pub enum Place {
    /// Memory of the caller, which the message must fill.
    There(Stretch),
    /// New memory, for a message of any length up to that of its receive.
    Fresh,
    /// New memory for elements of this type, whose bytes the message must fill.
    New(Dtype),
}
