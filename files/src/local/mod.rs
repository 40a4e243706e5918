//! One rank's part of a transfer: the source that is read, the partial file that is written beside a journal of the pieces that
//! arrived, and the rename that makes it the file. Knows nothing of other ranks.

mod flusher;
mod holes;
mod journal;
mod marker;
mod own;
#[cfg(feature = "safetensors")]
mod select;
mod source;
mod target;
#[cfg(test)]
mod tests;

#[cfg(any(test, fuzzing))]
pub(crate) use self::journal::sums as noted;
pub(crate) use self::{
    marker::Marker,
    source::{Origin, Source},
    target::{Target, sums},
};
