//! The files of one rank: the source that is read; the partial file that is written, and renamed when it is complete; and the journal
//! of the pieces that arrived. It knows nothing of other ranks.

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
    source::{FileIdentity, SentFile},
    target::{Target, sums},
};
