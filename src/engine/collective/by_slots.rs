//! An operation that needs no messages, because its ranks share slots.

use unisono_schedule::Rank;

use super::{
    in_place::InPlace,
    one_shot::{OneShot, Passed},
};
use crate::engine::{
    comm::{Comm, Core},
    request::Operation,
    stop::Stop,
};

/// An operation through shared slots.
pub(crate) enum BySlots {
    OneShot(OneShot),
    InPlace(Box<InPlace>),
}

impl BySlots {
    /// Does what can be done now.
    pub(super) fn pass(&mut self, core: &mut Core<'_>, operation: &Operation) -> Result<Passed, Stop> {
        match self {
            Self::OneShot(one_shot) => one_shot.pass(core, operation),
            Self::InPlace(in_place) => in_place.pass(core, operation),
        }
    }

    /// The number of steps that are done, and the ranks that it waits for.
    pub(super) fn progress(&self, comm: &Comm) -> (u64, Vec<Rank>) {
        match self {
            Self::OneShot(one_shot) => (one_shot.steps(), one_shot.waits(comm).collect()),
            Self::InPlace(in_place) => (in_place.steps(), in_place.waits(comm)),
        }
    }

    /// Whether what peers have published lets it go on.
    pub(super) fn is_ready(&self, comm: &Comm) -> bool {
        match self {
            Self::OneShot(one_shot) => one_shot.is_ready(comm),
            Self::InPlace(in_place) => in_place.is_ready(comm),
        }
    }
}
