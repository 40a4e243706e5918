//! Messages between two ranks of a group.

use unisono_schedule::Rank;

use super::{
    mode::{Asynchronous, Mode},
    operands::{Apart, InPlace, Input},
};
use crate::{
    buffer::Owned,
    dtype::Element,
    error::Result,
    group::{
        ProcessGroup,
        message::{Message, Receiver, Sender},
        p2p::elements,
        sequence::Sequence,
    },
    work::Work,
};

/// # Messages
/// Sends and receives between two ranks. Messages and collectives do not wait for each other.
impl<M: Mode> ProcessGroup<M> {
    /// Sends `data` to a rank, which receives it by [`recv`](Self::recv) with the same tag: `to` is the rank, or the rank and a tag
    /// other than 0. Returns when `data` may be changed; the message may not have been received then.
    ///
    /// Messages from one rank to another with the same tag are received in the order in which they were sent; messages with
    /// different tags in any order.
    ///
    /// A message of up to [`crate::Config::eager`] bytes is sent at once. A larger one is sent when the receiver has posted the
    /// receive. If the receiver is blocked meanwhile, in a send, in a collective or in the receive of another message, it
    /// buffers the message instead, as an unexpected message: up to 256 MiB in each group, and without that limit if the two
    /// ranks send to each other. So ranks that all send before they receive do not deadlock. For more, begin the receive first.
    ///
    /// ```
    /// # use unisono::{Config, ProcessGroup, Source};
    /// # use unisono_transport::inproc::Hub;
    /// # fn main() -> unisono::Result<()> {
    /// # let group = ProcessGroup::with(Config::default(), Box::new(Hub::new().open()), None)?;
    /// let (right, size) = ((group.rank() + 1) % group.size(), group.size());
    /// group.send(&[group.rank() as i32], (right, 7))?;
    /// let mut data = [0];
    /// let from = group.recv(&mut data, (Source::Any, 7))?;
    /// assert_eq!((data, from), ([from as i32], (group.rank() + size - 1) % size));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if there is no such rank; [`Error::Failed`](crate::Error::Failed) if the receiver asked for
    /// another length or type, if a large message is not received before the deadline, or if the group has failed.
    pub fn send<D: Input<M>>(&self, data: D, to: impl Into<Receiver>) -> Result<D::Sent> {
        data.send(self, to.into())
    }

    /// Receives the earliest message of that rank, or of any ([`Source::Any`](crate::Source::Any)), with that tag: 0, unless `from` is a pair. `data` must
    /// be as long as the message. Returns the sender.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if there is no such rank; [`Error::Failed`](crate::Error::Failed) if the message has another
    /// length or type, if none arrives before the deadline, or if the group has failed.
    pub fn recv<D: InPlace<M>>(&self, data: D, from: impl Into<Sender>) -> Result<D::Received> {
        data.recv(self, from.into())
    }

    /// Receives a message of `T` of any length. Returns its elements and its sender.
    ///
    /// # Errors
    /// As [`recv`](Self::recv), but for any length; [`Error::Failed`](crate::Error::Failed) also if memory is short.
    pub fn recv_vec<T: Element>(&self, from: impl Into<Sender>) -> Result<M::Returns<(Vec<T>, Rank)>> {
        let handle = &self.handle;
        let what = handle.fresh_elements(T::DTYPE, from.into())?;
        let begin = |what| {
            let steps = |sequence: Sequence| async move { sequence.messages(what).await };
            handle.later("recv_vec", steps, elements)
        };
        M::run(what, |what| elements(handle.wait(what)?.received), begin)
    }

    /// Sends the first operand to a rank and concurrently receives a message into the second, `(&data, &mut into)`: for two ranks that
    /// exchange data, or for a ring. Returns the sender of the received message.
    ///
    /// # Errors
    /// As [`send`](Self::send) and [`recv`](Self::recv).
    pub fn send_recv<D: Apart<M>>(
        &self,
        data: D,
        to: impl Into<Receiver>,
        from: impl Into<Sender>,
    ) -> Result<D::Received> {
        data.send_recv(self, to.into(), from.into())
    }
}

impl ProcessGroup<Asynchronous> {
    /// Begins several messages; if one of them is invalid, none begins. Returns a [`Work`] for each, in the given order; its
    /// [`wait`](Work::wait) returns the data and the receiver or sender. The messages do not wait for each other, in whatever
    /// order the two ranks give them.
    ///
    /// # Errors
    /// As [`send`](Self::send) and [`recv`](Self::recv), here or from the waits.
    pub fn batch<B: Owned>(
        &self,
        messages: impl IntoIterator<Item = Message<B>>,
    ) -> Result<Vec<Work<(B, Rank)>>> {
        self.handle.begin_messages(messages)
    }
}
