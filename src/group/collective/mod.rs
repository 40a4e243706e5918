//! Collectives on slices. `equal` has those to which all ranks give equally much, `uneven` those whose names end in `_v`,
//! `lengths` how ranks learn each other's lengths first.

pub(crate) mod equal;
pub(crate) mod lengths;
mod uneven;
