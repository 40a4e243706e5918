//! How a watch learns where this rank positions.

use std::{
    fmt,
    sync::{Mutex, PoisonError},
};

use crate::position::Position;

/// Says where this rank positions, once somebody knows.
#[derive(Default)]
pub struct PositionSource(Mutex<Option<Box<Says>>>);

type Says = dyn Fn() -> Position + Send;

impl fmt::Debug for PositionSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PositionSource").finish_non_exhaustive()
    }
}

impl PositionSource {
    /// Of a rank that has not joined yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on this says it, from the watch's thread, and soon. What said it before does so no more when this returns.
    pub fn set(&self, says: impl Fn() -> Position + Send + 'static) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(says));
    }

    /// Where this rank positions.
    #[must_use]
    pub fn position(&self) -> Position {
        let says = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        says.as_ref().map(|says| says()).unwrap_or_default()
    }
}
