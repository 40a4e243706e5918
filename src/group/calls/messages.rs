//! Messages between two ranks of a group: the calls, and how one or several run at once, blocking or asynchronous.

use unisono_engine::{
    Borrowed, CompletionAction, Done, Form, Inbound, MessageKind, Operand, Outbound, Place, RequestKind,
};
use unisono_schedule::Rank;

use super::{
    mode::{Asynchronous, Mode},
    operands::{Apart, InPlace, Input},
};
use crate::{
    buffer::Owned,
    dtype::{Dtype, Element, Scalar as _},
    error::Result,
    group::{
        ProcessGroup,
        collective::{read, write},
        handle::Handle,
        message::{Message, Receiver, Sender, Source, elements},
        plan::{CallOptions, argument},
        sequence::Sequence,
        shared::GroupState,
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

    /// Receives the earliest message of that rank, or of any ([`Source::Any`]), with that tag: 0, unless `from` is a pair. `data` must
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
        let Sender { source, tag } = from.into();
        let kind = MessageKind::new(Form::Plain, T::DTYPE, isize::MAX.unsigned_abs());
        let from = handle.source("recv_vec", source)?;
        let what = RequestKind::Receive(Inbound { from, tag: tag.into(), kind, place: Place::Fresh });
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
        let handle = &self.handle;
        let mut ready = Vec::new();
        for message in messages {
            ready.push(match message {
                Message::Send(data, to) => (handle.sends(&data, to)?, (data, Some(to.rank))),
                Message::Recv(mut data, from) => (handle.receives(&mut data, from)?, (data, None)),
            });
        }
        ready.into_iter().map(|(what, kept)| handle.begin_message(what, kept, &handle.options)).collect()
    }
}

impl Handle {
    pub(crate) fn begin_send<B: Owned>(&self, data: B, to: Receiver) -> Result<Work<B>> {
        let what = self.sends(&data, to)?;
        let kept = CompletionAction::Return(Some(Box::new(data)));
        let outcome = self.shared.submit(MESSAGE, what, kept, &self.options)?;
        Ok(Work::new(outcome, &self.shared.runtime))
    }

    /// A send of memory that the operation keeps.
    fn sends<B: Owned>(&self, data: &B, to: Receiver) -> Result<RequestKind> {
        let borrowed = Borrowed::apart(read("send", data)?, &mut []).kept();
        self.outbound(B::Element::DTYPE, &borrowed.input, to, Form::Plain)
    }

    /// A receive into memory that the operation keeps.
    pub(crate) fn receives<B: Owned>(&self, data: &mut B, from: Sender) -> Result<RequestKind> {
        let borrowed = Borrowed::apart(&[], write("recv", data)?).kept();
        self.inbound(B::Element::DTYPE, &borrowed.output, from)
    }

    /// Begins a message. `kept` is its data, and the receiver if it is a send.
    pub(crate) fn begin_message<B: Send + 'static>(
        &self,
        what: RequestKind,
        kept: (B, Option<Rank>),
        options: &CallOptions,
    ) -> Result<Work<(B, Rank)>> {
        let action = CompletionAction::Return(Some(Box::new(kept)));
        let outcome = self.shared.submit(MESSAGE, what, action, options)?;
        Ok(Work::either(outcome, &self.shared.runtime))
    }

    /// A send of memory in one piece.
    pub(crate) fn outbound(
        &self,
        dtype: Dtype,
        memory: &Operand,
        Receiver { rank: to, tag }: Receiver,
        form: Form,
    ) -> Result<RequestKind> {
        self.partner("send", to)?;
        let Operand { memory: source, .. } = memory.clone().found_in(&self.shared.runtime.registry);
        let kind = MessageKind::new(form, dtype, source.len / dtype.size());
        Ok(RequestKind::Send(Outbound { to, tag: tag.into(), kind, source }))
    }

    /// A receive into memory in one piece.
    pub(crate) fn inbound(&self, dtype: Dtype, memory: &Operand, from: Sender) -> Result<RequestKind> {
        let (from, tag) = (self.source("recv", from.source)?, from.tag.into());
        let Operand { memory: output, .. } = memory.clone().found_in(&self.shared.runtime.registry);
        let kind = MessageKind::new(Form::Plain, dtype, output.len / dtype.size());
        Ok(RequestKind::Receive(Inbound { from, tag, kind, place: Place::There(output) }))
    }

    /// A receive into these elements, which outlive it.
    pub(crate) fn receive_into<T: Element>(
        &self,
        form: Form,
        from: Rank,
        tag: impl Into<u64>,
        elements: &mut [T],
    ) -> RequestKind {
        let kind = MessageKind::new(form, T::DTYPE, elements.len());
        let output = Borrowed::apart(&[], elements).output.found_in(&self.shared.runtime.registry);
        let place = Place::There(output.memory);
        RequestKind::Receive(Inbound { from: Some(from), tag: tag.into(), kind, place })
    }

    /// A receive and a send that run concurrently.
    pub(crate) fn both(
        &self,
        dtype: Dtype,
        borrowed: &Borrowed<'_>,
        to: Receiver,
        from: Sender,
    ) -> Result<RequestKind> {
        let inbound = self.inbound(dtype, &borrowed.output, from)?;
        Ok(RequestKind::Several(vec![inbound, self.outbound(dtype, &borrowed.input, to, Form::Plain)?]))
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
        Err(argument(call, format!("there is no rank {rank}; there are ranks 0 to {}", self.size() - 1)))
    }

    /// Runs messages and waits for their end.
    pub(crate) fn wait(&self, what: RequestKind) -> Result<Done> {
        self.wait_with(what, &self.options)
    }

    /// Runs messages and waits for their end, with other options than those of this handle.
    pub(crate) fn wait_with(&self, what: RequestKind, options: &CallOptions) -> Result<Done> {
        let GroupState { runtime, comm_id, .. } = &*self.shared;
        runtime.check_calls(MESSAGE)?;
        runtime.call(*comm_id, what, self.shared.timeout(options))
    }
}

/// The name of message calls in errors.
const MESSAGE: &str = "a message";
