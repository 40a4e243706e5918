//! How collectives run. `check` checks and runs them whatever the type; on slices, `equal` has those to which all ranks give equally much,
//! and `lengths` those whose ranks learn each other's lengths first.

pub(crate) mod check;
mod equal;
pub(crate) mod lengths;
