//! How messages between two ranks of a group run: one or several at once, blocking or asynchronous.

use std::sync::Arc;

use unisono_engine::{
    CompletionAction, Done, Inbound, Memory, Outbound, Outcome, Place, Receipts, What,
    call::{Form, Kind},
    memory::{Borrowed, Fresh, Operand},
};
use unisono_schedule::Rank;

use crate::{
    buffer::Owned,
    dtype::{Alias, Dtype, Element, Scalar as _},
    error::{Error, Result},
    group::{
        collective::check::{read, write},
        handle::Handle,
        message::{Message, Receiver, Sender, Source},
        plan::spec::CallOptions,
        sequence::Sequence,
        shared::GroupState,
    },
    tensor::Tensor,
    work::Work,
};

impl Handle {
    pub(crate) fn send<T: Element>(&self, data: &[T], to: Receiver) -> Result<()> {
        let borrowed = Borrowed::apart(data, &mut []);
        self.wait(self.outbound(T::DTYPE, &borrowed.input, to, Form::Plain)?).map(drop)
    }

    pub(crate) fn recv<T: Element>(&self, data: &mut [T], from: Sender) -> Result<Rank> {
        let borrowed = Borrowed::apart(&[], data);
        Ok(sender(&self.wait(self.inbound(T::DTYPE, &borrowed.output, from)?)?.received))
    }

    pub(crate) fn send_recv<T: Element>(
        &self,
        data: &[T],
        to: Receiver,
        into: &mut [T],
        from: Sender,
    ) -> Result<Rank> {
        let what = self.both(T::DTYPE, &Borrowed::apart(data, into), to, from)?;
        Ok(sender(&self.wait(what)?.received))
    }

    pub(crate) fn begin_send<B: Owned>(&self, data: B, to: Receiver) -> Result<Work<B>> {
        let borrowed = Borrowed::kept(read("send", &data)?, &mut [0_u8; 0]);
        let what = self.outbound(B::Element::DTYPE, &borrowed.input, to, Form::Plain)?;
        let outcome = self.start(what, Some(Box::new(data)))?;
        Ok(Work::new(outcome, &self.shared.driver()))
    }

    pub(crate) fn begin_recv<B: Owned>(&self, mut data: B, from: Sender) -> Result<Work<(B, Rank)>> {
        let borrowed = Borrowed::kept(&[0_u8; 0], write("recv", &mut data)?);
        let what = self.inbound(B::Element::DTYPE, &borrowed.output, from)?;
        let outcome = self.start(what, Some(Box::new(data)))?;
        Ok(Work::received(outcome, &self.shared.driver()))
    }

    pub(crate) fn begin_send_recv<I, O>(
        &self,
        (data, mut into): (I, O),
        to: Receiver,
        from: Sender,
    ) -> Result<Work<((I, O), Rank)>>
    where
        I: Owned,
        O: Owned<Element = I::Element>,
    {
        let steps = |sequence: Sequence| async move {
            let borrowed = Borrowed::apart(read("send_recv", &data)?, write("send_recv", &mut into)?);
            let both = sequence.group.both(I::Element::DTYPE, &borrowed, to, from)?;
            let from = sender(&sequence.messages(both).await?);
            Ok(((data, into), from))
        };
        self.later("send_recv", steps, Ok)
    }

    /// Begins several messages; if one of them is invalid, none begins.
    pub(crate) fn begin_messages<B: Owned>(
        &self,
        messages: impl IntoIterator<Item = Message<B>>,
    ) -> Result<Vec<Work<(B, Rank)>>> {
        let mut ready = Vec::new();
        for message in messages {
            let dtype = B::Element::DTYPE;
            ready.push(match message {
                Message::Send(data, to) => {
                    let borrowed = Borrowed::kept(read("send", &data)?, &mut [0_u8; 0]);
                    (self.outbound(dtype, &borrowed.input, to, Form::Plain)?, data, Some(to.rank))
                }
                Message::Recv(mut data, from) => {
                    let borrowed = Borrowed::kept(&[0_u8; 0], write("recv", &mut data)?);
                    (self.inbound(dtype, &borrowed.output, from)?, data, None)
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
        let action = CompletionAction::Return(Some(Box::new(kept)));
        let outcome = self.shared.submit(MESSAGE, what, action, options)?;
        Ok(Work::either(outcome, &self.shared.driver()))
    }

    /// A send of memory in one piece.
    pub(crate) fn outbound(
        &self,
        dtype: Dtype,
        memory: &Operand,
        Receiver { rank: to, tag }: Receiver,
        form: Form,
    ) -> Result<What> {
        self.partner("send", to)?;
        let Operand { region: source, registered, .. } =
            memory.clone().found_in(&self.shared.runtime.registry);
        let kind = Kind { form, dtype, alias: Alias::NONE, count: source.len() / dtype.size() };
        Ok(What::Send(Outbound { to, tag: tag.into(), kind, source, registered }))
    }

    /// A receive into memory in one piece.
    pub(crate) fn inbound(&self, dtype: Dtype, memory: &Operand, from: Sender) -> Result<What> {
        let (source, tag) = (self.source("recv", from.source)?, from.tag);
        let Operand { region: output, registered, .. } =
            memory.clone().found_in(&self.shared.runtime.registry);
        let count = output.len() / dtype.size();
        let place = Place::There { output, count, registered };
        Ok(receive(dtype, source, tag, place))
    }

    /// A receive into new memory.
    pub(crate) fn fresh_elements(&self, dtype: Dtype, from: Sender) -> Result<What> {
        let place = Place::Fresh { most: isize::MAX.unsigned_abs() };
        Ok(receive(dtype, self.source("recv_vec", from.source)?, from.tag, place))
    }

    /// A receive and a send that run concurrently.
    fn both(&self, dtype: Dtype, borrowed: &Borrowed<'_>, to: Receiver, from: Sender) -> Result<What> {
        let inbound = self.inbound(dtype, &borrowed.output, from)?;
        Ok(What::Several(vec![inbound, self.outbound(dtype, &borrowed.input, to, Form::Plain)?]))
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

    /// Runs messages and waits for their end, with other options than those of this handle.
    pub(crate) fn wait_with(&self, what: What, options: &CallOptions) -> Result<Done> {
        let GroupState { runtime, comm_id, .. } = &*self.shared;
        runtime.check_calls(MESSAGE)?;
        runtime.call(*comm_id, what, self.shared.timeout(options))
    }

    /// Begins messages, to be waited for by a [`Work`].
    fn start(&self, what: What, memory: Memory) -> Result<Arc<Outcome>> {
        self.shared.submit(MESSAGE, what, CompletionAction::Return(memory), &self.options)
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
