//! Which algorithm does a call, in what chunks and on how many lanes: tables of what was measured, and what users allow.

mod choose;
mod filter;
pub mod table;

#[cfg(test)]
pub(crate) use choose::borders;
pub use choose::{Choice, choose, direct, long, neighbours, reason};
pub use filter::Selection;
