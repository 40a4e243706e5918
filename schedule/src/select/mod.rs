//! Which algorithm does a call, in messages of what length and on how many lanes: tables, the cost model where no table
//! reaches, and what users allow.

mod built_in;
mod choice;
mod choose;
mod filter;
mod model;
pub mod table;

pub use choice::{Choice, neighbours, writes};
pub use choose::Chooser;
pub use filter::Selection;
