//! How a watch learns where this rank stands.

use std::{
    fmt,
    sync::{Mutex, PoisonError},
};

use crate::position::Stand;

/// Says where this rank stands, once somebody knows.
#[derive(Default)]
pub struct Position(Mutex<Option<Box<Says>>>);

type Says = dyn Fn() -> Stand + Send;

impl fmt::Debug for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Position").finish_non_exhaustive()
    }
}

impl Position {
    /// Of a rank that has not joined yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on this says it, from the watch's thread, and soon. What said it before does so no more when this returns.
    pub fn told_by(&self, says: impl Fn() -> Stand + Send + 'static) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(says));
    }

    /// Where this rank stands.
    #[must_use]
    pub fn stand(&self) -> Stand {
        let says = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        says.as_ref().map(|says| says()).unwrap_or_default()
    }
}
