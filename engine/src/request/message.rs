//! Requests for messages from point to point.

use unisono_core::dtype::{Alias, Dtype};
use unisono_schedule::Rank;

use crate::{
    call::{Form, MessageKind},
    memory::Stretch,
};

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
    /// What the message must carry.
    pub form: Form,
    /// The type of its elements.
    pub dtype: Dtype,
    /// The caller's name for the type.
    pub alias: Alias,
    /// Where it goes.
    pub place: Place,
}

/// The memory for a message.
pub enum Place {
    /// Memory of the caller, for a message of exactly `count` elements.
    There {
        /// The caller's memory.
        output: Stretch,
        /// The elements of the message.
        count: usize,
    },
    /// New memory, for a message of up to `most` bytes.
    Fresh {
        /// The most bytes of the message.
        most: usize,
    },
    /// New memory for this many elements of this type, which the message must fill.
    New {
        /// The type of its elements.
        dtype: Dtype,
        /// Their number.
        count: usize,
    },
}

impl Place {
    /// The most bytes that a message may bring here.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::There { output, .. } => output.len,
            Self::Fresh { most } => *most,
            Self::New { dtype, count } => dtype.size().saturating_mul(*count),
        }
    }
}
