//! Requests to the engine: collectives and messages.

mod operation;

use unisono_core::dtype::{Alias, Dtype};
use unisono_schedule::Rank;

pub use self::operation::{CallPlan, Operation, OutputAccess, Pairs, ShownPlan};
use crate::{call::MessageKind, memory::Stretch};

/// A request to the engine.
pub enum RequestKind {
    /// A collective.
    Collective(Box<Operation>),
    /// A send.
    Send(Outbound),
    /// A receive.
    Receive(Inbound),
    /// Messages side by side: the request ends when all have ended.
    Several(Vec<Self>),
}

impl RequestKind {
    /// The bytes that it may move, as far as this rank knows.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Collective(operation) => operation.input.len().max(operation.output.len()),
            Self::Send(outbound) => outbound.source.len,
            Self::Receive(inbound) => inbound.kind.bytes(),
            Self::Several(all) => all.iter().map(Self::bytes).fold(0, usize::saturating_add),
        }
    }

    /// The same message, with the caller's name for the type of its elements.
    pub fn named(mut self, alias: Alias) -> Self {
        match &mut self {
            Self::Send(outbound) => outbound.kind.alias = alias,
            Self::Receive(inbound) => inbound.kind.alias = alias,
            Self::Collective(..) | Self::Several(_) => {}
        }
        self
    }
}

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
