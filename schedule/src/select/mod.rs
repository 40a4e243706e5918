//! Chooses the algorithm of a call, the length of its messages and the number of its lanes: by tables, by the cost model where no
//! table applies, and within what the user allows.

mod built_in;
mod choice;
mod choose;
mod filter;
mod model;
pub mod shown;
pub mod table;

pub use choice::{Choice, neighbours, writes};
pub use choose::Chooser;
pub use filter::Selection;
