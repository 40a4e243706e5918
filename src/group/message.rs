//! Messages as a caller gives them: the data, and the rank and the tag that it is sent to or received from.

use unisono_engine::{Fresh, Receipts};
use unisono_schedule::Rank;

use crate::{dtype::Element, error::Result, tensor::Tensor};

/// The sender of a message to be received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// This rank of the group.
    Rank(Rank),
    /// Any rank: the earliest message with the tag.
    Any,
}

impl From<Rank> for Source {
    fn from(rank: Rank) -> Self {
        Self::Rank(rank)
    }
}

/// The receiver of a message, and the message's tag. A rank alone means tag 0; `(rank, tag)` gives another tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Receiver {
    /// The receiver.
    pub rank: Rank,
    /// The tag: a number that separates messages of one purpose from others.
    pub tag: u32,
}

impl From<Rank> for Receiver {
    fn from(rank: Rank) -> Self {
        Self { rank, tag: 0 }
    }
}

impl From<(Rank, u32)> for Receiver {
    fn from((rank, tag): (Rank, u32)) -> Self {
        Self { rank, tag }
    }
}

/// The sender of a message, and its tag. A rank or a [`Source`] alone means tag 0; `(source, tag)` gives another tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sender {
    /// The sender.
    pub source: Source,
    /// The tag that the sender has given.
    pub tag: u32,
}

impl<S: Into<Source>> From<S> for Sender {
    fn from(source: S) -> Self {
        Self { source: source.into(), tag: 0 }
    }
}

impl<S: Into<Source>> From<(S, u32)> for Sender {
    fn from((source, tag): (S, u32)) -> Self {
        Self { source: source.into(), tag }
    }
}

/// One message of a [`batch`](crate::ProcessGroup::batch).
#[derive(Debug)]
pub enum Message<B> {
    /// Elements to send, and the receiver.
    Send(B, Receiver),
    /// The memory to receive into, and the sender.
    Recv(B, Sender),
}

impl<B> Message<B> {
    /// A message to be sent.
    pub fn send(data: B, to: impl Into<Receiver>) -> Self {
        Self::Send(data, to.into())
    }

    /// A message to be received into `data`, which must have the same length.
    pub fn recv(data: B, from: impl Into<Sender>) -> Self {
        Self::Recv(data, from.into())
    }
}

/// The received elements and their sender.
pub(crate) fn elements<T: Element>(mut all: Receipts) -> Result<(Vec<T>, Rank)> {
    let Some(received) = all.pop() else { return Ok((Vec::new(), 0)) };
    let tensor = received.message.map(Fresh::into_elements);
    Ok((tensor.map_or(Ok(Vec::new()), Tensor::into_vec)?, received.from))
}

/// The sender of the received message.
pub(crate) fn sender(received: &Receipts) -> Rank {
    received.first().map_or(0, |received| received.from)
}
