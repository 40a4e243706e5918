//! How a watch asks for the position of its rank.

use std::{
    fmt,
    sync::{Mutex, PoisonError},
};

use unisono_core::position::Position;

/// Returns the position of this rank, by a function that is set once the rank has joined.
#[derive(Default)]
pub struct PositionSource(Mutex<Option<Box<Source>>>);

type Source = dyn Fn() -> Position + Send;

impl fmt::Debug for PositionSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PositionSource").finish_non_exhaustive()
    }
}

impl PositionSource {
    /// Makes the source of a rank that has not joined yet, whose position is the default one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the function. The watch's thread calls it, and it must return soon. The function set before is not called after
    /// this returns.
    pub fn set(&self, source: impl Fn() -> Position + Send + 'static) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(source));
    }

    /// The position of this rank.
    #[must_use]
    pub fn position(&self) -> Position {
        let source = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        source.as_ref().map(|source| source()).unwrap_or_default()
    }
}
