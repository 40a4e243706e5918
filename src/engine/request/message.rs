//! Requests for messages from point to point.

use crate::{
    call::{Form, Kind},
    dtype::{Alias, Dtype},
};
use unisono_schedule::Rank;
use unisono_transport::Region;

/// A send.
pub(crate) struct Outbound {
    pub to: Rank,
    /// Tags of the caller have 32 bits, except those of a group that is being made.
    pub tag: u64,
    pub kind: Kind,
    pub source: Region,
    /// The registered buffer that the source lies in, if any, and the offset there.
    pub registered: Option<(Region, usize)>,
}

impl Outbound {
    /// The region and offset of its elements, and whether that region is registered.
    pub(crate) fn place(&self) -> (Region, usize, bool) {
        match &self.registered {
            Some((region, at)) => (region.clone(), *at, true),
            None => (self.source.clone(), 0, false),
        }
    }
}

/// A receive.
pub(crate) struct Inbound {
    /// The sender; `None` for any rank.
    pub from: Option<Rank>,
    pub tag: u64,
    pub form: Form,
    pub dtype: Dtype,
    /// The caller's name for the type.
    pub alias: Alias,
    pub place: Place,
}

/// The memory for a message.
pub(crate) enum Place {
    /// Memory of the caller, for a message of exactly `count` elements.
    There { output: Region, count: usize, registered: Option<(Region, usize)> },
    /// New memory, for a message of up to `most` bytes.
    Fresh { most: usize },
    /// New memory for this many elements of this type, which the message must fill.
    New { dtype: Dtype, count: usize },
}

impl Place {
    /// The most bytes that a message may bring here.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::There { output, .. } => output.len(),
            Self::Fresh { most } => *most,
            Self::New { dtype, count } => dtype.size().saturating_mul(*count),
        }
    }
}
