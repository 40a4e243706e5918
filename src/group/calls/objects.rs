//! Collectives and messages of objects: values of any serde type.

use serde::{Serialize, de::DeserializeOwned};
use unisono_engine::call::{Cargo, Form};
use unisono_schedule::{Collective, Rank};

use super::mode::Mode;
use crate::{
    error::Result,
    group::{
        ProcessGroup,
        collective::lengths::UnevenCall,
        message::{Receiver, Sender},
        sequence::{Operations, Sequence},
    },
    object::encode,
};

/// # Objects
/// Objects are for small or structured values: settings, file names, statistics. Slices and tensors are faster for millions
/// of elements.
///
/// A list is an object too, and may have another length on every rank: `all_gather_object(&vec)?.concat()` is one list of all
/// ranks' elements, and `scatter_object` of a `Vec<Vec<T>>` gives every rank a list.
///
/// If a value cannot be sent, because its `Serialize` fails, it is nested too deeply, or it takes more bytes than
/// [`Config::object_limit`](crate::Config::object_limit), its owner and all ranks that should have received it get
/// [`Error::Object`](crate::Error::Object). If a value is not of the type that a rank asked for, that rank alone gets it. In both cases the group
/// still works. Types are compared by the structure of their values, not by name: an integer may be decoded as any integer type
/// that holds it, a struct as a map; [`decode()`](crate::object::decode()) has the rules.
///
/// ```
/// # use unisono::{Config, ProcessGroup};
/// # use unisono_transport::inproc::Hub;
/// # fn main() -> unisono::Result<()> {
/// # let group = ProcessGroup::with(Config::default(), Box::new(Hub::new().open()), None)?;
/// let names = group.broadcast_object((group.rank() == 0).then(|| vec!["train", "test"].join(",")), 0)?;
/// let lengths = group.all_gather_object(&names.len())?;
/// assert_eq!(lengths, vec![10; group.size()]);
/// # Ok(()) }
/// ```
///
/// A call that [`begin`](Self::begin) makes encodes its values before it returns, and [`Work::wait`](crate::Work::wait) decodes those that
/// this rank gets.
///
/// # Errors of objects
/// Each call returns [`Error::Argument`](crate::Error::Argument) if there is no such rank, or if a root gives nothing or not one value for
/// each rank; the other ranks then get [`Error::Object`](crate::Error::Object). [`Error::Failed`](crate::Error::Failed) says that the ranks
/// disagree on the call, that memory is short on a rank, or that the group has failed.
impl<M: Mode> ProcessGroup<M> {
    /// Broadcasts the root's value and returns it on every rank. `value` is ignored on the other ranks, so that a call may give
    /// `(group.rank() == 0).then(load)`.
    ///
    /// # Errors
    /// As for all calls of objects.
    pub fn broadcast_object<T>(&self, value: Option<T>, root: Rank) -> Result<M::Returns<T>>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
    {
        let name = "broadcast_object";
        let call = self.handle.carrier(name, Collective::Broadcast, Cargo::Objects, root)?;
        let (own, blob) = call.root_value(value);
        let steps = |sequence| async move {
            let blob = call.on(sequence).broadcast_value(blob).await?;
            Ok((blob, call))
        };
        self.handle.run_steps::<M, _, _, _>(name, Operations::Collectives, steps, |(blob, call)| {
            call.received_value(own, blob)
        })
    }

    /// Gathers the values of all ranks on the root, in the order of ranks; the other ranks get `None`.
    ///
    /// # Errors
    /// As for all calls of objects.
    pub fn gather_object<T>(&self, value: &T, root: Rank) -> Result<M::Returns<Option<Vec<T>>>>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
    {
        let name = "gather_object";
        let call = self.handle.carrier(name, Collective::Gather, Cargo::Objects, root)?;
        let blob = encode(value);
        let steps = |sequence| async move {
            let all = call.on(sequence).gather_values(blob).await?;
            Ok((all, call))
        };
        self.handle.run_steps::<M, _, _, _>(name, Operations::Collectives, steps, |(all, call)| {
            call.gathered_values(all)
        })
    }

    /// Gathers the values of all ranks on every rank, in the order of ranks.
    ///
    /// # Errors
    /// As for all calls of objects.
    pub fn all_gather_object<T>(&self, value: &T) -> Result<M::Returns<Vec<T>>>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
    {
        let name = "all_gather_object";
        let call = self.handle.carrier(name, Collective::AllGather, Cargo::Objects, 0)?;
        let blob = encode(value);
        let steps = |sequence| async move {
            let all = call.on(sequence).gather_values(blob).await?;
            Ok((all, call))
        };
        let open = |(all, call): (_, UnevenCall)| Ok(call.gathered_values(all)?.unwrap_or_default());
        self.handle.run_steps::<M, _, _, _>(name, Operations::Collectives, steps, open)
    }

    /// Scatters the root's values, one for each rank: rank r gets `values[r]`. `values` is ignored on the other ranks.
    ///
    /// # Errors
    /// As for all calls of objects.
    pub fn scatter_object<T>(&self, values: Option<Vec<T>>, root: Rank) -> Result<M::Returns<T>>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
    {
        let name = "scatter_object";
        let call = self.handle.carrier(name, Collective::Scatter, Cargo::Objects, root)?;
        let (own, blobs) = call.root_values(values);
        let steps = |sequence| async move {
            let blob = call.on(sequence).scatter_values(blobs).await?;
            Ok((blob, call))
        };
        self.handle.run_steps::<M, _, _, _>(name, Operations::Collectives, steps, |(blob, call)| {
            call.received_value(own, blob)
        })
    }

    /// Sends a value to a rank, which receives it by [`recv_object`](Self::recv_object) with the same tag. Otherwise as
    /// [`send`](Self::send).
    ///
    /// # Errors
    /// As [`send`](Self::send), and [`Error::Object`](crate::Error::Object) if the value cannot be sent; then nothing was sent.
    pub fn send_object<T: Serialize + ?Sized>(
        &self,
        value: &T,
        to: impl Into<Receiver>,
    ) -> Result<M::Returns<()>> {
        let (bytes, to) = (self.handle.encoded::<T>("send_object", value)?, to.into());
        let steps = |sequence: Sequence| async move { sequence.send_bytes(&bytes, to).await };
        self.handle.run_steps::<M, _, _, _>("send_object", Operations::Messages, steps, Ok)
    }

    /// Receives a value. Returns it and its sender. Otherwise as [`recv`](Self::recv).
    ///
    /// # Errors
    /// As [`recv`](Self::recv); [`Error::Object`](crate::Error::Object) if the value is not a `T`, and the group still works;
    /// [`Error::Failed`](crate::Error::Failed) if the message is longer than [`Config::object_limit`](crate::Config::object_limit), or is
    /// not an object.
    pub fn recv_object<T: DeserializeOwned + Send + 'static>(
        &self,
        from: impl Into<Sender>,
    ) -> Result<M::Returns<(T, Rank)>> {
        let Sender { source, tag } = from.into();
        let from = self.handle.source("recv_object", source)?;
        let steps = |sequence: Sequence| async move {
            let received = sequence.receive_blob(from, tag, Form::Object).await?;
            Ok((received, sequence.group))
        };
        self.handle.run_steps::<M, _, _, _>(
            "recv_object",
            Operations::Messages,
            steps,
            |(received, group)| group.decoded(received),
        )
    }
}
