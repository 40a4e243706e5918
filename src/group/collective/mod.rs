//! How collectives run. `check` checks and runs them for every type; on slices, `equal` runs those to which all ranks give the same number
//! of elements, and `lengths` those whose ranks learn each other's lengths first.

pub(crate) mod check;
pub(crate) mod lengths;
