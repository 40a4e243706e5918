//! Messages between two ranks of a group: blocking and asynchronous, one or several at once.

use std::sync::Arc;

use unisono_schedule::Rank;

use crate::{
    buffer::{Borrowed, Fresh, Operand, Owned},
    call::{Form, Kind},
    dtype::{Alias, Dtype, Element},
    engine::{Action, Done, Inbound, Memory, Outbound, Outcome, Place, Receipts, What},
    error::{Error, Result},
    group::{ProcessGroup, plan::spec::CallOptions, sequence::Sequence, shared::Shared},
    tensor::Tensor,
    work::Work,
};

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

/// One message of a [`ProcessGroup::batch_isend_irecv`].
#[derive(Debug)]
pub enum Message<B> {
    /// A send.
    Send {
        /// The elements to send.
        data: B,
        /// The receiver.
        to: Rank,
        /// As in [`ProcessGroup::send`].
        tag: u32,
    },
    /// A receive.
    Recv {
        /// The memory to receive into.
        data: B,
        /// The sender.
        from: Source,
        /// As in [`ProcessGroup::recv`].
        tag: u32,
    },
}

impl ProcessGroup {
    /// Sends `data` to a rank, which receives it by [`recv`](Self::recv) with the same tag. Returns when `data` may be
    /// changed; the message may not have been received then.
    ///
    /// Messages from one rank to another with the same tag are received in the order in which they were sent; messages with
    /// different tags in any order. Messages and collectives do not wait for each other.
    ///
    /// A message of up to [`crate::Config::eager`] bytes is sent at once. A larger one is sent when the receiver has posted the
    /// receive. If the receiver is blocked meanwhile, in a send, in a collective or in the receive of another message, it
    /// buffers the message instead, as an unexpected message: up to 256 MiB in each group, and without that limit if the two
    /// ranks send to each other. So ranks that all send before they receive do not deadlock. For more, post the receive first
    /// ([`irecv`](Self::irecv)).
    ///
    /// ```
    /// # use unisono::{Config, ProcessGroup, Source};
    /// # use unisono_transport::inproc::Hub;
    /// # fn main() -> unisono::Result<()> {
    /// # let group = ProcessGroup::with(Config::default(), Box::new(Hub::new().open()), None)?;
    /// let (right, size) = ((group.rank() + 1) % group.size(), group.size());
    /// group.send(&[group.rank() as i32], right, 7)?;
    /// let mut data = [0];
    /// let from = group.recv(&mut data, Source::Any, 7)?;
    /// assert_eq!((data, from), ([from as i32], (group.rank() + size - 1) % size));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such rank; [`Error::Failed`] if the receiver asked for another length or type, if a
    /// large message is not received before the deadline, or if the group has failed.
    pub fn send<T: Element>(&self, data: &[T], to: Rank, tag: u32) -> Result<()> {
        let borrowed = Borrowed::apart(data, &mut []);
        self.wait(self.outbound(T::DTYPE, &borrowed.input, to, tag, Form::Plain)?).map(drop)
    }

    /// Receives the earliest message with this tag from that rank, or from any ([`Source::Any`]). `data` must be as long as the
    /// message. Returns the sender.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such rank; [`Error::Failed`] if the message has another length or type, if none
    /// arrives before the deadline, or if the group has failed.
    pub fn recv<T: Element>(&self, data: &mut [T], from: impl Into<Source>, tag: u32) -> Result<Rank> {
        let borrowed = Borrowed::apart(&[], data);
        Ok(sender(&self.wait(self.inbound(T::DTYPE, &borrowed.output, from.into(), tag)?)?.received))
    }

    /// Receives a message of `T` of any length. Returns its elements and its sender.
    ///
    /// # Errors
    /// As [`recv`](Self::recv), but for any length; [`Error::Failed`] also if memory is short.
    pub fn recv_vec<T: Element>(&self, from: impl Into<Source>, tag: u32) -> Result<(Vec<T>, Rank)> {
        elements(self.wait(self.fresh_elements(T::DTYPE, from.into(), tag)?)?.received)
    }

    /// Sends `data` to a rank and concurrently receives a message into `into`: for two ranks that exchange data, or for a ring.
    /// Returns the sender of the received message.
    ///
    /// # Errors
    /// As [`send`](Self::send) and [`recv`](Self::recv).
    pub fn send_recv<T: Element>(
        &self,
        data: &[T],
        to: Rank,
        into: &mut [T],
        from: impl Into<Source>,
        tag: u32,
    ) -> Result<Rank> {
        let what = self.both(T::DTYPE, &Borrowed::apart(data, into), to, from.into(), tag)?;
        Ok(sender(&self.wait(what)?.received))
    }

    /// Begins a [`send`](Self::send). [`Work::wait`] returns `data`.
    ///
    /// # Errors
    /// As [`send`](Self::send), here or from the wait.
    pub fn isend<B: Owned>(&self, mut data: B, to: Rank, tag: u32) -> Result<Work<B>> {
        let borrowed = Borrowed::kept(&mut data, &mut Vec::<u8>::new());
        let what = self.outbound(B::Element::DTYPE, &borrowed.input, to, tag, Form::Plain)?;
        let outcome = self.start(what, Some(Box::new(data)))?;
        Ok(Work::new(outcome, &self.shared.driver()))
    }

    /// Begins a [`recv`](Self::recv). [`Work::wait`] returns `data`, filled, and the sender.
    ///
    /// # Errors
    /// As [`recv`](Self::recv), here or from the wait.
    pub fn irecv<B: Owned>(&self, mut data: B, from: impl Into<Source>, tag: u32) -> Result<Work<(B, Rank)>> {
        let borrowed = Borrowed::kept(&mut Vec::<u8>::new(), &mut data);
        let what = self.inbound(B::Element::DTYPE, &borrowed.output, from.into(), tag)?;
        let outcome = self.start(what, Some(Box::new(data)))?;
        Ok(Work::received(outcome, &self.shared.driver()))
    }

    /// Begins a [`recv_vec`](Self::recv_vec).
    ///
    /// # Errors
    /// As [`recv_vec`](Self::recv_vec), here or from the wait.
    pub fn recv_vec_async<T: Element>(
        &self,
        from: impl Into<Source>,
        tag: u32,
    ) -> Result<Work<(Vec<T>, Rank)>> {
        let what = self.fresh_elements(T::DTYPE, from.into(), tag)?;
        let steps = |sequence: Sequence<'static>| async move { sequence.messages(what).await };
        self.later("recv_vec", steps, elements)
    }

    /// Begins a [`send_recv`](Self::send_recv). [`Work::wait`] returns `data`, `into`, filled, and the sender.
    ///
    /// # Errors
    /// As [`send_recv`](Self::send_recv), here or from the wait.
    pub fn send_recv_async<I, O>(
        &self,
        mut data: I,
        to: Rank,
        mut into: O,
        from: impl Into<Source>,
        tag: u32,
    ) -> Result<Work<(I, O, Rank)>>
    where
        I: Owned,
        O: Owned<Element = I::Element>,
    {
        let from = from.into();
        let steps = |sequence: Sequence<'static>| async move {
            let borrowed = Borrowed::apart(data.elements(), into.elements());
            let both = sequence.group.both(I::Element::DTYPE, &borrowed, to, from, tag)?;
            let from = sender(&sequence.messages(both).await?);
            Ok((data, into, from))
        };
        self.later("send_recv", steps, Ok)
    }

    /// Begins several messages; if one of them is invalid, none begins. Returns a [`Work`] for each, in the given order; its
    /// [`wait`](Work::wait) returns the data and the receiver or sender. The messages do not wait for each other, in whatever
    /// order the two ranks give them.
    ///
    /// # Errors
    /// As [`send`](Self::send) and [`recv`](Self::recv), here or from the waits.
    pub fn batch_isend_irecv<B: Owned>(
        &self,
        batch: impl IntoIterator<Item = Message<B>>,
    ) -> Result<Vec<Work<(B, Rank)>>> {
        let mut ready = Vec::new();
        for message in batch {
            let nothing = &mut Vec::<u8>::new();
            ready.push(match message {
                Message::Send { mut data, to, tag } => {
                    let borrowed = Borrowed::kept(&mut data, nothing);
                    let dtype = B::Element::DTYPE;
                    (self.outbound(dtype, &borrowed.input, to, tag, Form::Plain)?, data, Some(to))
                }
                Message::Recv { mut data, from, tag } => {
                    let borrowed = Borrowed::kept(nothing, &mut data);
                    (self.inbound(B::Element::DTYPE, &borrowed.output, from, tag)?, data, None)
                }
            });
        }
        ready
            .into_iter()
            .map(|(what, data, to)| self.begin_message(what, (data, to), &self.options))
            .collect()
    }

    /// Begins a message. `kept` is its data, and the receiver if it is a send.
    pub(crate) fn begin_message<B: Send + 'static>(
        &self,
        what: What,
        kept: (B, Option<Rank>),
        options: &CallOptions,
    ) -> Result<Work<(B, Rank)>> {
        let action = Action::Return(Some(Box::new(kept)));
        let outcome = self.shared.submit(MESSAGE, what, action, options)?;
        Ok(Work::either(outcome, &self.shared.driver()))
    }

    /// A send of memory in one piece.
    pub(crate) fn outbound(
        &self,
        dtype: Dtype,
        memory: &Operand,
        to: Rank,
        tag: u32,
        form: Form,
    ) -> Result<What> {
        self.partner("send", to)?;
        let Operand { region: source, registered, .. } =
            memory.clone().found_in(&self.shared.runtime.registry);
        let kind = Kind { form, dtype, alias: Alias::NONE, count: source.len() / dtype.size() };
        Ok(What::Send(Outbound { to, tag: tag.into(), kind, source, registered }))
    }

    /// A receive into memory in one piece.
    pub(crate) fn inbound(&self, dtype: Dtype, memory: &Operand, from: Source, tag: u32) -> Result<What> {
        let from = self.source("recv", from)?;
        let Operand { region: output, registered, .. } =
            memory.clone().found_in(&self.shared.runtime.registry);
        let count = output.len() / dtype.size();
        let place = Place::There { output, count, registered };
        Ok(receive(dtype, from, tag, place))
    }

    /// A receive into new memory.
    fn fresh_elements(&self, dtype: Dtype, from: Source, tag: u32) -> Result<What> {
        let place = Place::Fresh { most: isize::MAX.unsigned_abs() };
        let from = self.source("recv_vec", from)?;
        Ok(receive(dtype, from, tag, place))
    }

    /// A receive and a send that run concurrently.
    fn both(&self, dtype: Dtype, borrowed: &Borrowed<'_>, to: Rank, from: Source, tag: u32) -> Result<What> {
        let inbound = self.inbound(dtype, &borrowed.output, from, tag)?;
        Ok(What::Several(vec![inbound, self.outbound(dtype, &borrowed.input, to, tag, Form::Plain)?]))
    }

    /// The sender, if it is a rank of this group; `None` for any.
    pub(crate) fn source(&self, call: &'static str, from: Source) -> Result<Option<Rank>> {
        match from {
            Source::Any => Ok(None),
            Source::Rank(rank) => self.partner(call, rank).map(|()| Some(rank)),
        }
    }

    fn partner(&self, call: &'static str, rank: Rank) -> Result<()> {
        if rank < self.size() {
            return Ok(());
        }
        let problem = format!("there is no rank {rank}; there are ranks 0 to {}", self.size() - 1);
        Err(Error::Argument { call, problem })
    }

    /// Runs messages and waits for their end.
    pub(crate) fn wait(&self, what: What) -> Result<Done> {
        self.wait_with(what, &self.options)
    }

    /// The same with other options than those of this handle.
    pub(crate) fn wait_with(&self, what: What, options: &CallOptions) -> Result<Done> {
        let Shared { runtime, comm_id, .. } = &*self.shared;
        runtime.check_calls(MESSAGE)?;
        runtime.call(*comm_id, what, self.shared.timeout(options))
    }

    /// Begins messages, to be waited for by a [`Work`].
    fn start(&self, what: What, memory: Memory) -> Result<Arc<Outcome>> {
        self.shared.submit(MESSAGE, what, Action::Return(memory), &self.options)
    }
}

/// The name of message calls in errors.
const MESSAGE: &str = "a message";

/// A receive of a message of elements.
fn receive(dtype: Dtype, from: Option<Rank>, tag: u32, place: Place) -> What {
    let (tag, form, alias) = (tag.into(), Form::Plain, Alias::NONE);
    What::Receive(Inbound { from, tag, form, dtype, alias, place })
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
