//! The memory of calls: registered buffers, elements, and memory from outside of this library.

mod elements;
mod foreign;
mod registered;
#[cfg(test)]
pub(crate) mod tests;

pub use unisono_transport::Memory;

pub use self::{
    elements::{Elements, ElementsMut, Owned},
    foreign::Foreign,
    registered::Buffer,
};
