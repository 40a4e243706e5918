//! Objects: values of any serde type, whose sizes only their owners know.

use serde::{Serialize, de::DeserializeOwned};
use unisono_engine::{Borrowed, Cargo, Form};
use unisono_schedule::{Collective, Rank};

use super::mode::Mode;
use crate::{
    dtype::Dtype,
    error::{Error, Result},
    group::{
        ProcessGroup,
        collective::{UnevenCall, UnevenSteps},
        handle::Handle,
        message::{Receiver, Sender},
        plan::argument,
        sequence::{Operations, Sequence},
        typed::{Blob, Collected, cut},
    },
    object::{decode, encode},
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
/// [`Error::Object`]. If a value is not of the type that a rank asked for, that rank alone gets it. In both cases the group
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
/// Each call returns [`Error::Argument`] if there is no such rank, or if a root gives nothing or not one value for
/// each rank; the other ranks then get [`Error::Object`]. [`Error::Failed`] says that the ranks
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
        let call = self.handle.carrier("gather_object", Collective::Gather, Cargo::Objects, root)?;
        self.gathered(call, value, |values| values)
    }

    /// Gathers the values of all ranks on every rank, in the order of ranks.
    ///
    /// # Errors
    /// As for all calls of objects.
    pub fn all_gather_object<T>(&self, value: &T) -> Result<M::Returns<Vec<T>>>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
    {
        let call = self.handle.carrier("all_gather_object", Collective::AllGather, Cargo::Objects, 0)?;
        self.gathered(call, value, Option::unwrap_or_default)
    }

    /// Gathers values; `open` makes the result.
    fn gathered<T, R>(
        &self,
        call: UnevenCall,
        value: &T,
        open: fn(Option<Vec<T>>) -> R,
    ) -> Result<M::Returns<R>>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        R: Send + 'static,
    {
        let (name, blob) = (call.name, encode(value));
        let steps = |sequence| async move {
            let all = call.on(sequence).gather_values(blob).await?;
            Ok((all, call))
        };
        let open = move |(all, call): (_, UnevenCall)| call.gathered_values(all).map(open);
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
    /// As [`send`](Self::send), and [`Error::Object`] if the value cannot be sent; then nothing was sent.
    pub fn send_object<T: Serialize + ?Sized>(
        &self,
        value: &T,
        to: impl Into<Receiver>,
    ) -> Result<M::Returns<()>> {
        let (bytes, to) = (self.handle.encoded::<T>("send_object", value)?, to.into());
        let steps = |sequence: Sequence| async move {
            let borrowed = Borrowed::apart(&bytes, &mut []);
            let what = sequence.group.outbound(Dtype::U8, &borrowed.input, to, Form::Object)?;
            sequence.messages(what).await.map(drop)
        };
        self.handle.run_steps::<M, _, _, _>("send_object", Operations::Messages, steps, Ok)
    }

    /// Receives a value. Returns it and its sender. Otherwise as [`recv`](Self::recv).
    ///
    /// # Errors
    /// As [`recv`](Self::recv); [`Error::Object`] if the value is not a `T`, and the group still works;
    /// [`Error::Failed`] if the message is longer than [`Config::object_limit`](crate::Config::object_limit), or is
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
        let open = |((bytes, from), group): ((Vec<u8>, Rank), Handle)| {
            let value = decode(&bytes);
            Ok((value.map_err(|problem| group.not_a::<T>("recv_object", from, problem))?, from))
        };
        self.handle.run_steps::<M, _, _, _>("recv_object", Operations::Messages, steps, open)
    }
}

/// The root's value, or the error of the root's argument; `None` on the other ranks.
pub(crate) type OwnValue<T> = Result<Option<T>>;

/// The concatenated encodings of values, and their lengths.
pub(crate) type EncodedValues = Blob<(Vec<u8>, Vec<usize>)>;

/// Encodes values, with an empty one for the root.
fn encode_each<T: Serialize>(values: &[T], root: Rank) -> EncodedValues {
    let (mut bytes, mut lengths) = (Vec::new(), Vec::with_capacity(values.len() + 1));
    for value in values {
        let blob = encode(value)?;
        lengths.push(blob.len());
        bytes.extend(blob);
    }
    lengths.insert(root, 0);
    Ok((bytes, lengths))
}

/// The blob that a collective returned; or this rank's error about its blob, which has more detail.
fn own_error_first<G, T>(given: Option<Blob<G>>, received: Blob<T>) -> Blob<T> {
    match given {
        Some(Err(problem)) => Err(problem),
        _ => received,
    }
}

impl UnevenCall {
    /// A rank's value, or the call's error if there is none.
    fn open<T>(&self, from: Rank, value: Blob<T>) -> Result<T> {
        value.map_err(|problem| self.group.not_a::<T>(self.name, from, problem))
    }

    /// The error of a root that gives nothing.
    pub(crate) fn missing(&self, what: &str) -> Error {
        argument(self.name, format!("this rank is the root and gave None; the root must give {what}"))
    }

    /// The root's value and its encoding.
    pub(crate) fn root_value<T: Serialize>(&self, value: Option<T>) -> (OwnValue<T>, Option<Blob<Vec<u8>>>) {
        match value {
            _ if !self.at_root() => (Ok(None), None),
            None => (Err(self.missing("a value")), None),
            Some(value) => {
                let blob = encode(&value);
                (Ok(Some(value)), Some(blob))
            }
        }
    }

    /// The root's value of a scatter, and the encodings of the other values.
    pub(crate) fn root_values<T: Serialize>(
        &self,
        values: Option<Vec<T>>,
    ) -> (OwnValue<T>, Option<EncodedValues>) {
        let (ranks, root) = (self.group.size(), self.id.root);
        match values {
            _ if !self.at_root() => (Ok(None), None),
            None => (Err(self.missing("values")), None),
            Some(values) if values.len() != ranks => {
                let problem = format!("{} values were given; there are {ranks} ranks", values.len());
                (Err(argument(self.name, problem)), None)
            }
            Some(mut values) => {
                // The root's value is not sent, but if it cannot be encoded, that is an error of all ranks, as for any other value.
                let own = values.remove(root);
                let blobs = encode(&own).and_then(|_| encode_each(&values, root));
                (Ok(Some(own)), Some(blobs))
            }
        }
    }

    /// This rank's value: the root has it already, another rank decodes the blob.
    pub(crate) fn received_value<T: DeserializeOwned>(
        &self,
        own: OwnValue<T>,
        blob: Blob<Vec<u8>>,
    ) -> Result<T> {
        let value = match own? {
            Some(own) => blob.map(|_| own),
            None => blob.and_then(|bytes| decode(&bytes)),
        };
        self.open(self.id.root, value)
    }

    /// The values of all ranks, on the ranks that get them.
    pub(crate) fn gathered_values<T: DeserializeOwned>(
        &self,
        collected: Collected,
    ) -> Result<Option<Vec<T>>> {
        let (bytes, lengths) =
            collected.map_err(|(rank, problem)| self.group.not_a::<T>(self.name, rank, problem))?;
        if !self.gets() {
            return Ok(None);
        }
        let blobs = cut(&bytes, &lengths).enumerate();
        blobs.map(|(rank, blob)| self.open(rank, decode(blob))).collect::<Result<_>>().map(Some)
    }
}

impl UnevenSteps<'_> {
    pub(crate) async fn broadcast_value(&mut self, blob: Option<Blob<Vec<u8>>>) -> Result<Blob<Vec<u8>>> {
        let borrowed = blob.as_ref().and_then(|it| it.as_deref().ok());
        let received = self.broadcast_blob(borrowed).await?;
        Ok(own_error_first(blob, received))
    }

    pub(crate) async fn scatter_values(&mut self, blobs: Option<EncodedValues>) -> Result<Blob<Vec<u8>>> {
        let borrowed = blobs.as_ref().and_then(|it| it.as_ref().ok());
        let borrowed = borrowed.map(|(bytes, lengths)| (&bytes[..], &lengths[..]));
        let received = self.scatter_blobs(borrowed).await?;
        Ok(own_error_first(blobs, received))
    }

    pub(crate) async fn gather_values(&mut self, blob: Blob<Vec<u8>>) -> Result<Collected> {
        let collected = self.gather_blobs(blob.as_deref().ok(), false).await?;
        Ok(match blob {
            Err(problem) => Err((self.group.rank(), problem)),
            Ok(_) => collected,
        })
    }
}
