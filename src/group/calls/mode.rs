//! Whether a call waits for its end or returns at once.

use crate::{error::Result, work::Work};

#[expect(unnameable_types, reason = "that is what seals it")]
mod sealed {
    /// Limits [`super::Mode`] to the two that there are.
    pub trait Sealed {}
}

/// Whether calls wait for their end: [`Blocking`] or [`Asynchronous`].
pub trait Mode: sealed::Sealed + Sized + 'static {
    /// What a call returns whose result is an `R`.
    type Returns<R>;

    /// Calls one of the two with `parts`.
    #[doc(hidden)]
    fn run<P, R>(
        parts: P,
        wait: impl FnOnce(P) -> Result<R>,
        begin: impl FnOnce(P) -> Result<Work<R>>,
    ) -> Result<Self::Returns<R>>;
}

/// A call returns when this rank's part is done: its output is complete, and its input may be changed. Operands are borrowed.
#[derive(Debug)]
pub enum Blocking {}

/// A call returns a [`Work`] at once. It keeps its operands, which it takes by value, and the work returns them.
#[derive(Debug)]
pub enum Asynchronous {}

impl sealed::Sealed for Blocking {}
impl Mode for Blocking {
    type Returns<R> = R;

    fn run<P, R>(
        parts: P,
        wait: impl FnOnce(P) -> Result<R>,
        _: impl FnOnce(P) -> Result<Work<R>>,
    ) -> Result<R> {
        wait(parts)
    }
}

impl sealed::Sealed for Asynchronous {}
impl Mode for Asynchronous {
    type Returns<R> = Work<R>;

    fn run<P, R>(
        parts: P,
        _: impl FnOnce(P) -> Result<R>,
        begin: impl FnOnce(P) -> Result<Work<R>>,
    ) -> Result<Work<R>> {
        begin(parts)
    }
}
