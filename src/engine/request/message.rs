//! A message from point to point, as it is asked for.

use crate::{
    call::{Form, Kind},
    dtype::Dtype,
};
use unisono_schedule::Rank;
use unisono_transport::Region;

/// A message that somebody sends.
pub(crate) struct Outbound {
    pub to: Rank,
    pub tag: u32,
    pub kind: Kind,
    pub source: Region,
    /// The registered buffer that it lies in, if it does, and where.
    pub registered: Option<(Region, usize)>,
}

impl Outbound {
    /// Where its elements lie, and whether that is registered.
    pub(crate) fn place(&self) -> (Region, usize, bool) {
        match &self.registered {
            Some((region, at)) => (region.clone(), *at, true),
            None => (self.source.clone(), 0, false),
        }
    }
}

/// A message that somebody asks for.
pub(crate) struct Inbound {
    /// From any rank, if from none.
    pub from: Option<Rank>,
    pub tag: u32,
    pub form: Form,
    pub dtype: Dtype,
    pub place: Place,
}

/// Where a message goes.
pub(crate) enum Place {
    /// There, and it must have that many elements.
    There { output: Region, count: usize, registered: Option<(Region, usize)> },
    /// To fresh memory, however long it is up to so many bytes.
    Fresh { most: usize },
    /// To fresh memory for so many elements of this type, which the message must fill.
    New { dtype: Dtype, count: usize },
}
