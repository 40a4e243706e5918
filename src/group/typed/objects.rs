//! Collectives and messages of objects: values of any serde type, whose sizes only their owners know.

use serde::{Serialize, de::DeserializeOwned};
use unisono_schedule::{Collective, Rank};

use crate::{
    buffer::Borrowed,
    call::{Cargo, Form},
    dtype::Dtype,
    error::{Error, Result},
    group::{
        ProcessGroup,
        collective::lengths::{UnevenCall, UnevenSteps},
        p2p::Source,
        sequence::Sequence,
        typed::blobs::{Blob, Collected, cut},
    },
    object::{ObjectError, decode, encode},
    work::Work,
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
/// that holds it, a struct as a map; [`decode()`] has the rules.
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
impl ProcessGroup {
    /// Broadcasts the root's value and returns it on every rank. `value` is ignored on the other ranks, so that a call may give
    /// `(group.rank() == 0).then(load)`.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such root, or on the root if it gives `None`; then the other ranks get
    /// [`Error::Object`]. [`Error::Object`] on all ranks if the value cannot be sent, and on a rank where it is not a `T`.
    /// [`Error::Failed`] if the ranks disagree on the call, if memory is short on a rank, or if the group has failed.
    pub fn broadcast_object<T>(&self, value: Option<T>, root: Rank) -> Result<T>
    where
        T: Serialize + DeserializeOwned,
    {
        let call = self.carrier("broadcast_object", Collective::Broadcast, Cargo::Objects, root)?;
        let (own, blob) = call.root_value(value);
        let blob = self.now(async |sequence| call.on(sequence).broadcast_value(blob).await)?;
        call.received_value(own, blob)
    }

    /// Begins a [`broadcast_object`](Self::broadcast_object). The value is encoded before this returns, and decoded by
    /// [`Work::wait`].
    ///
    /// # Errors
    /// As [`broadcast_object`](Self::broadcast_object), here or from the wait.
    pub fn broadcast_object_async<T>(&self, value: Option<T>, root: Rank) -> Result<Work<T>>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
    {
        let call = self.carrier("broadcast_object", Collective::Broadcast, Cargo::Objects, root)?;
        let (own, blob) = call.root_value(value);
        let steps = |sequence| async move {
            let blob = call.on(sequence).broadcast_value(blob).await?;
            Ok((blob, call))
        };
        self.later("broadcast_object", steps, |(blob, call)| call.received_value(own, blob))
    }

    /// Gathers the values of all ranks on the root, in the order of ranks; the other ranks get `None`.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such root; [`Error::Object`] on all ranks if a rank's value cannot be sent, and on the
    /// root if a value is not a `T`; [`Error::Failed`] if the ranks disagree on the call, if memory is short on the root, or if
    /// the group has failed.
    pub fn gather_object<T>(&self, value: &T, root: Rank) -> Result<Option<Vec<T>>>
    where
        T: Serialize + DeserializeOwned,
    {
        let call = self.carrier("gather_object", Collective::Gather, Cargo::Objects, root)?;
        let blob = encode(value);
        let all = self.now(async |sequence| call.on(sequence).gather_values(blob).await)?;
        call.gathered_values(all)
    }

    /// Begins a [`gather_object`](Self::gather_object). The value is encoded before this returns, and the gathered values are
    /// decoded by [`Work::wait`].
    ///
    /// # Errors
    /// As [`gather_object`](Self::gather_object), here or from the wait.
    pub fn gather_object_async<T>(&self, value: &T, root: Rank) -> Result<Work<Option<Vec<T>>>>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
    {
        let call = self.carrier("gather_object", Collective::Gather, Cargo::Objects, root)?;
        let blob = encode(value);
        let steps = |sequence| async move {
            let all = call.on(sequence).gather_values(blob).await?;
            Ok((all, call))
        };
        self.later("gather_object", steps, |(all, call)| call.gathered_values(all))
    }

    /// Gathers the values of all ranks on every rank, in the order of ranks.
    ///
    /// # Errors
    /// [`Error::Object`] on all ranks if a rank's value cannot be sent, and on a rank where a value is not a `T`;
    /// [`Error::Failed`] if the ranks disagree on the call, if memory is short on a rank, or if the group has failed.
    pub fn all_gather_object<T>(&self, value: &T) -> Result<Vec<T>>
    where
        T: Serialize + DeserializeOwned,
    {
        let call = self.carrier("all_gather_object", Collective::AllGather, Cargo::Objects, 0)?;
        let blob = encode(value);
        let all = self.now(async |sequence| call.on(sequence).gather_values(blob).await)?;
        Ok(call.gathered_values(all)?.unwrap_or_default())
    }

    /// Begins an [`all_gather_object`](Self::all_gather_object). The value is encoded before this returns, and the gathered
    /// values are decoded by [`Work::wait`].
    ///
    /// # Errors
    /// As [`all_gather_object`](Self::all_gather_object), here or from the wait.
    pub fn all_gather_object_async<T>(&self, value: &T) -> Result<Work<Vec<T>>>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
    {
        let call = self.carrier("all_gather_object", Collective::AllGather, Cargo::Objects, 0)?;
        let blob = encode(value);
        let steps = |sequence| async move {
            let all = call.on(sequence).gather_values(blob).await?;
            Ok((all, call))
        };
        let open = |(all, call): (_, UnevenCall)| Ok(call.gathered_values(all)?.unwrap_or_default());
        self.later("all_gather_object", steps, open)
    }

    /// Scatters the root's values, one for each rank: rank r gets `values[r]`. `values` is ignored on the other ranks.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such root, or on the root if the number of values is not the number of ranks; then the
    /// other ranks get [`Error::Object`]. [`Error::Object`] on all ranks if one of the values cannot be sent, and on a rank whose
    /// value is not a `T`. [`Error::Failed`] if the ranks disagree on the call, if memory is short on a rank, or if the group
    /// has failed.
    pub fn scatter_object<T>(&self, values: Option<Vec<T>>, root: Rank) -> Result<T>
    where
        T: Serialize + DeserializeOwned,
    {
        let call = self.carrier("scatter_object", Collective::Scatter, Cargo::Objects, root)?;
        let (own, blobs) = call.root_values(values);
        let blob = self.now(async |sequence| call.on(sequence).scatter_values(blobs).await)?;
        call.received_value(own, blob)
    }

    /// Begins a [`scatter_object`](Self::scatter_object). The values are encoded before this returns, and decoded by
    /// [`Work::wait`].
    ///
    /// # Errors
    /// As [`scatter_object`](Self::scatter_object), here or from the wait.
    pub fn scatter_object_async<T>(&self, values: Option<Vec<T>>, root: Rank) -> Result<Work<T>>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
    {
        let call = self.carrier("scatter_object", Collective::Scatter, Cargo::Objects, root)?;
        let (own, blobs) = call.root_values(values);
        let steps = |sequence| async move {
            let blob = call.on(sequence).scatter_values(blobs).await?;
            Ok((blob, call))
        };
        self.later("scatter_object", steps, |(blob, call)| call.received_value(own, blob))
    }
}

impl ProcessGroup {
    /// Sends a value of any serde type to a rank, which receives it by [`recv_object`](Self::recv_object) with the same tag.
    /// Otherwise as [`send`](Self::send).
    ///
    /// # Errors
    /// As [`send`](Self::send), and [`Error::Object`] if the value cannot be sent; then nothing was sent.
    pub fn send_object<T: Serialize + ?Sized>(&self, value: &T, to: Rank, tag: u32) -> Result<()> {
        let bytes = self.encoded::<T>("send_object", value)?;
        self.beside(async |sequence| sequence.send_bytes(&bytes, to, tag).await)
    }

    /// Begins a [`send_object`](Self::send_object). The value is encoded before this returns.
    ///
    /// # Errors
    /// As [`send_object`](Self::send_object), here or from the wait.
    pub fn send_object_async<T: Serialize + ?Sized>(
        &self,
        value: &T,
        to: Rank,
        tag: u32,
    ) -> Result<Work<()>> {
        let bytes = self.encoded::<T>("send_object", value)?;
        let steps = |sequence: Sequence<'static>| async move { sequence.send_bytes(&bytes, to, tag).await };
        self.later("send_object", steps, Ok)
    }

    /// Receives a value of any serde type. Returns it and its sender. Otherwise as [`recv`](Self::recv).
    ///
    /// # Errors
    /// As [`recv`](Self::recv); [`Error::Object`] if the value is not a `T`, and the group still works; [`Error::Failed`] if the
    /// message is longer than [`Config::object_limit`](crate::Config::object_limit), or is not an object.
    pub fn recv_object<T: DeserializeOwned>(&self, from: impl Into<Source>, tag: u32) -> Result<(T, Rank)> {
        let from = self.source("recv_object", from.into())?;
        let receive = async |sequence: Sequence<'_>| sequence.receive_blob(from, tag, Form::Object).await;
        self.decoded(self.beside(receive)?)
    }

    /// Begins a [`recv_object`](Self::recv_object). The value is decoded by [`Work::wait`].
    ///
    /// # Errors
    /// As [`recv_object`](Self::recv_object), here or from the wait.
    pub fn recv_object_async<T: DeserializeOwned + Send + 'static>(
        &self,
        from: impl Into<Source>,
        tag: u32,
    ) -> Result<Work<(T, Rank)>> {
        let from = self.source("recv_object", from.into())?;
        let steps = |sequence: Sequence<'static>| async move {
            let received = sequence.receive_blob(from, tag, Form::Object).await?;
            Ok((received, sequence.group))
        };
        self.later("recv_object", steps, |(received, group)| group.decoded(received))
    }

    /// Decodes a received object.
    fn decoded<T: DeserializeOwned>(&self, (bytes, from): (Vec<u8>, Rank)) -> Result<(T, Rank)> {
        decode(&bytes).map(|value| (value, from)).map_err(|problem| Error::Object {
            call: "recv_object",
            rank: self.global(from),
            type_name: std::any::type_name::<T>(),
            problem,
        })
    }
}

impl Sequence<'_> {
    async fn send_bytes(&self, bytes: &[u8], to: Rank, tag: u32) -> Result<()> {
        let what =
            self.group.outbound(Dtype::U8, &Borrowed::apart(bytes, &mut []).input, to, tag, Form::Object)?;
        self.messages(what).await.map(drop)
    }
}

/// The root's own value, or what is wrong with the root's argument; `None` on the other ranks.
type OwnValue<T> = Result<Option<T>>;

/// The concatenated encodings of values, and their lengths.
type EncodedValues = Blob<(Vec<u8>, Vec<usize>)>;

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

/// The blob that a collective returned, or this rank's own error, which has more detail.
fn own_error_first<G, T>(given: Option<Blob<G>>, received: Blob<T>) -> Blob<T> {
    match given {
        Some(Err(problem)) => Err(problem),
        _ => received,
    }
}

impl UnevenCall {
    /// A rank's value, or the call's error if there is none.
    fn open<T>(&self, from: Rank, value: Blob<T>) -> Result<T> {
        value.or_else(|problem| self.wrong::<T, _>(from, problem))
    }

    /// The call's error about a rank's value, which should have been a `T`.
    fn wrong<T, R>(&self, from: Rank, problem: ObjectError) -> Result<R> {
        let rank = self.group.global(from);
        Err(Error::Object { call: self.name, rank, type_name: std::any::type_name::<T>(), problem })
    }

    /// The error of a root that gives nothing.
    pub(crate) fn missing(&self, what: &str) -> Error {
        let problem = format!("this rank is the root and gave None; the root must give {what}");
        Error::Argument { call: self.name, problem }
    }

    /// The root's value and its encoding.
    fn root_value<T: Serialize>(&self, value: Option<T>) -> (OwnValue<T>, Option<Blob<Vec<u8>>>) {
        match value {
            _ if !self.at_root() => (Ok(None), None),
            None => (Err(self.missing("a value")), None),
            Some(value) => {
                let blob = encode(&value);
                (Ok(Some(value)), Some(blob))
            }
        }
    }

    /// The root's own value of a scatter, and the encodings of the others.
    fn root_values<T: Serialize>(&self, values: Option<Vec<T>>) -> (OwnValue<T>, Option<EncodedValues>) {
        let (ranks, root) = (self.group.size(), self.id.root);
        match values {
            _ if !self.at_root() => (Ok(None), None),
            None => (Err(self.missing("values")), None),
            Some(values) if values.len() != ranks => {
                let problem = format!("{} values were given; there are {ranks} ranks", values.len());
                (Err(Error::Argument { call: self.name, problem }), None)
            }
            Some(mut values) => {
                // The root's own value is not sent, but one that cannot be is an error of all ranks wherever it belongs.
                let own = values.remove(root);
                let blobs = encode(&own).and_then(|_| encode_each(&values, root));
                (Ok(Some(own)), Some(blobs))
            }
        }
    }

    /// This rank's value: the root's own, or decoded from the blob.
    fn received_value<T: DeserializeOwned>(&self, own: OwnValue<T>, blob: Blob<Vec<u8>>) -> Result<T> {
        let value = match own? {
            Some(own) => blob.map(|_| own),
            None => blob.and_then(|bytes| decode(&bytes)),
        };
        self.open(self.id.root, value)
    }

    /// The values of all ranks, on the ranks that get them.
    fn gathered_values<T: DeserializeOwned>(&self, collected: Collected) -> Result<Option<Vec<T>>> {
        let (bytes, lengths) = collected.or_else(|(rank, problem)| self.wrong::<T, _>(rank, problem))?;
        if !self.gets() {
            return Ok(None);
        }
        let blobs = cut(&bytes, &lengths).enumerate();
        blobs.map(|(rank, blob)| self.open(rank, decode(blob))).collect::<Result<_>>().map(Some)
    }
}

impl UnevenSteps<'_, '_> {
    async fn broadcast_value(&mut self, blob: Option<Blob<Vec<u8>>>) -> Result<Blob<Vec<u8>>> {
        let borrowed = blob.as_ref().and_then(|it| it.as_deref().ok());
        let received = self.broadcast_blob(borrowed).await?;
        Ok(own_error_first(blob, received))
    }

    async fn scatter_values(&mut self, blobs: Option<EncodedValues>) -> Result<Blob<Vec<u8>>> {
        let borrowed = blobs.as_ref().and_then(|it| it.as_ref().ok());
        let borrowed = borrowed.map(|(bytes, lengths)| (&bytes[..], &lengths[..]));
        let received = self.scatter_blobs(borrowed).await?;
        Ok(own_error_first(blobs, received))
    }

    async fn gather_values(&mut self, blob: Blob<Vec<u8>>) -> Result<Collected> {
        let collected = self.gather_blobs(blob.as_deref().ok(), false).await?;
        Ok(match blob {
            Err(problem) => Err((self.group.rank(), problem)),
            Ok(_) => collected,
        })
    }
}
