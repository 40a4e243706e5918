//! How collectives run: `check` checks and runs, for every type, those to which all ranks give the same number of elements, and `lengths` those
//! whose ranks learn each other's lengths first.

mod check;
mod lengths;

pub(crate) use self::{
    check::{Checked, CollectiveCall, check_root, in_place_sides, outside, read, sides, write},
    lengths::{UNSENT, UnevenCall, UnevenSteps, check_lengths, longest, own_part},
};
