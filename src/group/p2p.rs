//! Messages between two ranks of a group: blocking and asynchronous, one or several at once.

use std::sync::Arc;

use unisono_schedule::Rank;

use crate::{
    buffer::{Borrowed, Owned},
    dtype::Element,
    engine::{Asked, Come, Done, Form, Held, Inbound, Kept, Kind, Outbound, Place, Task, Ticket, What},
    error::{Error, Result},
    group::{ProcessGroup, sequence::Sequence},
    tensor::Tensor,
    work::Work,
};

/// From whom a message is received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// From this rank of the group.
    Rank(Rank),
    /// From whichever rank's comes first.
    Any,
}

impl From<Rank> for Source {
    fn from(rank: Rank) -> Self {
        Self::Rank(rank)
    }
}

/// One of several messages: see [`ProcessGroup::batch_isend_irecv`].
#[derive(Debug)]
pub enum Message<B> {
    /// `data` is sent to rank `to`.
    Send {
        /// What is sent.
        data: B,
        /// To whom.
        to: Rank,
        /// See [`ProcessGroup::send`].
        tag: u32,
    },
    /// `data` is received.
    Recv {
        /// Where to.
        data: B,
        /// From whom.
        from: Source,
        /// See [`ProcessGroup::send`].
        tag: u32,
    },
}

impl ProcessGroup {
    /// Sends `data` to a rank, which receives it by [`recv`](Self::recv) with the same tag. Returns when `data` may be
    /// changed, which says nothing of whether it has been received.
    ///
    /// Messages from one rank to another that bear the same tag are received in the order in which they were sent;
    /// those with different tags in any. They do not wait for collectives, nor these for them. Up to [`crate::Config::eager`]
    /// bytes go at once, if the receiver makes any call of this library; more goes when the receiver asks for it. Ranks
    /// that all send before they receive do not wait for each other for ever, nor for one that waits in a collective or for
    /// another message: what is large is then kept aside by the receiver, if it has the memory, and up to 256 MiB in each
    /// group; of two that send to each other, however much. To receive what is larger, or more, ask for it first
    /// ([`irecv`](Self::irecv)).
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such rank; [`Error::Failed`] if the receiver asked for another length or
    /// type, if nobody has received a large message before the deadline, or if the group is over.
    pub fn send<T: Element>(&self, data: &[T], to: Rank, tag: u32) -> Result<()> {
        let borrowed = Borrowed::apart(data, &mut []);
        self.wait(self.outbound::<T>(&borrowed, to, tag, Form::Plain)?).map(drop)
    }

    /// Receives a message with this tag: the earliest of that rank, or of any ([`Source::Any`]). Fills `data`, which must be
    /// exactly as long as the message, and tells who sent it.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such rank; [`Error::Failed`] if the message has another length or type,
    /// if none has come before the deadline, or if the group is over.
    pub fn recv<T: Element>(&self, data: &mut [T], from: impl Into<Source>, tag: u32) -> Result<Rank> {
        let borrowed = Borrowed::apart(&[], data);
        Ok(sender(&self.wait(self.inbound::<T>(&borrowed, from.into(), tag)?)?.received))
    }

    /// Receives a message of `T` whose length is not known. Tells who sent it.
    ///
    /// # Errors
    /// As [`recv`](Self::recv), but that any length will do; and if there is no memory for it.
    pub fn recv_vec<T: Element>(&self, from: impl Into<Source>, tag: u32) -> Result<(Vec<T>, Rank)> {
        elements(self.wait(self.fresh_elements::<T>(from.into(), tag)?)?.received)
    }

    /// Sends `data` to a rank and receives a message into `into`, at once: with a partner that does the same, or around a ring.
    /// Tells who sent what was received.
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
        let what = self.both::<T>(&Borrowed::apart(data, into), to, from.into(), tag)?;
        Ok(sender(&self.wait(what)?.received))
    }

    /// Begins a [`send`](Self::send); `data` comes back from [`Work::wait`].
    ///
    /// # Errors
    /// As [`send`](Self::send), here or from the wait.
    pub fn isend<B: Owned>(&self, mut data: B, to: Rank, tag: u32) -> Result<Work<B>> {
        let what = self.outbound::<B::Element>(
            &Borrowed::kept(&mut data, &mut Vec::<u8>::new()),
            to,
            tag,
            Form::Plain,
        )?;
        let ticket = self.start(what, Some(Box::new(data)))?;
        Ok(Work::new(ticket, &self.shared.driver()))
    }

    /// Begins a [`recv`](Self::recv); `data`, filled, and who sent it come back from [`Work::wait`].
    ///
    /// # Errors
    /// As [`recv`](Self::recv), here or from the wait.
    pub fn irecv<B: Owned>(&self, mut data: B, from: impl Into<Source>, tag: u32) -> Result<Work<(B, Rank)>> {
        let borrowed = Borrowed::kept(&mut Vec::<u8>::new(), &mut data);
        let what = self.inbound::<B::Element>(&borrowed, from.into(), tag)?;
        let ticket = self.start(what, Some(Box::new(data)))?;
        Ok(Work::received(ticket, &self.shared.driver()))
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
        let what = self.fresh_elements::<T>(from.into(), tag)?;
        let group = self.under_way();
        let steps = |mut sequence: Sequence<'static>| async move { sequence.messages(&group, what).await };
        self.later("recv_vec", steps, elements)
    }

    /// Begins a [`send_recv`](Self::send_recv); `data`, `into`, filled, and who sent it come back from [`Work::wait`].
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
        let group = self.under_way();
        let steps = |mut sequence: Sequence<'static>| async move {
            let borrowed = Borrowed::apart(data.elements(), into.elements());
            let come = sequence.messages(&group, group.both::<I::Element>(&borrowed, to, from, tag)?).await?;
            let from = sender(&come);
            Ok((data, into, from))
        };
        self.later("send_recv", steps, Ok)
    }

    /// Begins several messages, all or, if one of them makes no sense, none. Of each the data comes back, and the rank
    /// that it went to or came from, in the order given. However they are ordered on either side, they do not wait for
    /// each other.
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
                    (self.outbound::<B::Element>(&borrowed, to, tag, Form::Plain)?, data, Some(to))
                }
                Message::Recv { mut data, from, tag } => {
                    let borrowed = Borrowed::kept(nothing, &mut data);
                    (self.inbound::<B::Element>(&borrowed, from, tag)?, data, None)
                }
            });
        }
        let works = ready.into_iter().map(|(what, data, to)| {
            let ticket = self.start(what, Some(Box::new((data, to))))?;
            Ok(Work::either(ticket, &self.shared.driver()))
        });
        works.collect()
    }

    pub(crate) fn outbound<T: Element>(
        &self,
        borrowed: &Borrowed<'_>,
        to: Rank,
        tag: u32,
        form: Form,
    ) -> Result<What> {
        self.partner("send", to)?;
        let kind = Kind { form, dtype: T::DTYPE, count: borrowed.input.len() / size_of::<T>() };
        let registered = self.shared.runtime.registry.find(&borrowed.input);
        Ok(What::Send(Outbound { to, tag, kind, source: borrowed.input.clone(), registered }))
    }

    fn inbound<T: Element>(&self, borrowed: &Borrowed<'_>, from: Source, tag: u32) -> Result<What> {
        let from = self.source("recv", from)?;
        let count = borrowed.output.len() / size_of::<T>();
        let registered = self.shared.runtime.registry.find(&borrowed.output);
        let place = Place::There { output: borrowed.output.clone(), count, registered };
        Ok(What::Receive(Inbound { from, tag, form: Form::Plain, dtype: T::DTYPE, place }))
    }

    /// A receive into memory of its own.
    fn fresh_elements<T: Element>(&self, from: Source, tag: u32) -> Result<What> {
        let place = Place::Fresh { most: isize::MAX.unsigned_abs() };
        let from = self.source("recv_vec", from)?;
        Ok(What::Receive(Inbound { from, tag, form: Form::Plain, dtype: T::DTYPE, place }))
    }

    /// A receive and a send, side by side.
    fn both<T: Element>(&self, borrowed: &Borrowed<'_>, to: Rank, from: Source, tag: u32) -> Result<What> {
        let inbound = self.inbound::<T>(borrowed, from, tag)?;
        Ok(What::Several(vec![inbound, self.outbound::<T>(borrowed, to, tag, Form::Plain)?]))
    }

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

    /// Does it, now.
    pub(crate) fn wait(&self, what: What) -> Result<Done> {
        let runtime = &self.shared.runtime;
        runtime.check_calls(MESSAGE)?;
        let asked = Asked::now(runtime.config.timeout, Held::Back(None));
        runtime.call(self.shared.comm_id, Task { what, asked })
    }

    /// Begins it.
    fn start(&self, what: What, kept: Kept) -> Result<Arc<Ticket>> {
        self.shared.hand_in(MESSAGE, what, Held::Back(kept))
    }
}

/// What stands for the name of a call of messages.
const MESSAGE: &str = "a message";

/// What was received in memory of its own, and who sent it.
pub(crate) fn elements<T: Element>(mut come: Come) -> Result<(Vec<T>, Rank)> {
    let Some(received) = come.pop() else { return Ok((Vec::new(), 0)) };
    Ok((received.elements.map_or(Ok(Vec::new()), Tensor::into_vec)?, received.from))
}

/// Who sent what was received.
pub(crate) fn sender(come: &Come) -> Rank {
    come.first().map_or(0, |received| received.from)
}
