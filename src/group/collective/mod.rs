//! Collectives. `check` checks and runs them whatever the type; on slices, `equal` has those to which all ranks give equally much, `uneven` those whose names end in `_v`,
//! `lengths` how ranks learn each other's lengths first.

pub(crate) mod check;
mod equal;
pub(crate) mod lengths;
mod uneven;
