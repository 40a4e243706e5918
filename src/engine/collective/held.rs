//! The operation of a run: its own, or its caller's.

use std::ops::{Deref, DerefMut};

use crate::engine::request::Operation;

/// An operation. Most small calls end before one of its own is worth an allocation.
pub(crate) enum Held<'o> {
    Owned(Box<Operation>),
    Lent(&'o mut Operation),
}

impl Deref for Held<'_> {
    type Target = Operation;

    fn deref(&self) -> &Operation {
        match self {
            Self::Owned(operation) => operation,
            Self::Lent(operation) => operation,
        }
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Operation {
        match self {
            Self::Owned(operation) => operation,
            Self::Lent(operation) => operation,
        }
    }
}
