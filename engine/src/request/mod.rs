//! Requests to the engine: collectives and messages.

mod message;
mod operation;

use unisono_core::dtype::Alias;

pub use self::{
    message::{Inbound, Outbound, Place},
    operation::{CallPlan, Operation, OutputAccess, Pairs, ShownPlan},
};

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
