//! Collectives of objects: values of any serde type, whose sizes no rank needs to know.

use serde::{Serialize, de::DeserializeOwned};
use unisono_schedule::{Collective, Rank};

use crate::{
    engine::Cargo,
    error::{Error, Result},
    group::{
        ProcessGroup,
        collective::lengths::UnevenCall,
        sequence::Sequence,
        typed::blobs::{Blob, Collected, cut},
    },
    object::{ObjectError, decode, encode},
    work::Work,
};

/// Objects are for what is small or of many kinds: settings, file names, statistics. Elements by the million go faster
/// as slices and tensors.
///
/// Lists need no calls of their own: a `Vec` is a value like any other, and every rank may have another number in it,
/// or none. `all_gather_object(&vec)?.concat()` is all ranks' values in one list, and `scatter_object` of a
/// `Vec<Vec<T>>` gives every rank a list.
///
/// A value that cannot be sent, because its `Serialize` fails, it lies too deep, or it takes more bytes than
/// [`Config::object_limit`](crate::Config::object_limit), is an [`Error::Object`] on every rank that was to get it and on
/// its own; a value that is not of the type that a rank wants is one on that rank alone. After either the group goes
/// on, with all ranks at the same place. Types are told apart by the shape of their values, not by their names: whole
/// numbers are of the same type if their value fits, a struct may be read as a map, and more, as [`decode()`] says.
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
    /// Every rank gets the root's value, which is given there and comes back from there; elsewhere `value` is not looked
    /// at, so that `(group.rank() == 0).then(load)` is a way to give it.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such root, or at the root if it gives nothing; [`Error::Object`] elsewhere then,
    /// and if the value cannot be sent, or is not a `T` here; [`Error::Failed`] if the ranks disagree on the call, one of
    /// them has no memory for the value, or the group is over.
    pub fn broadcast_object<T>(&self, value: Option<T>, root: Rank) -> Result<T>
    where
        T: Serialize + DeserializeOwned,
    {
        let call = self.carrier("broadcast_object", Collective::Broadcast, Cargo::Objects, root)?;
        let (own, blob) = call.one(value);
        let blob = self.now(async |sequence| call.hand_value(sequence, blob).await)?;
        call.come(own, blob)
    }

    /// Begins a [`broadcast_object`](Self::broadcast_object). The value is encoded before this returns, and decoded by
    /// whoever waits.
    ///
    /// # Errors
    /// As [`broadcast_object`](Self::broadcast_object), here or from the wait.
    pub fn broadcast_object_async<T>(&self, value: Option<T>, root: Rank) -> Result<Work<T>>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
    {
        let call = self.carrier("broadcast_object", Collective::Broadcast, Cargo::Objects, root)?;
        let (own, blob) = call.one(value);
        let steps = |mut sequence| async move { Ok((call.hand_value(&mut sequence, blob).await?, call)) };
        self.later("broadcast_object", steps, |(blob, call)| call.come(own, blob))
    }

    /// The root gets all ranks' values, in the order of ranks; the others get `None`.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such root; [`Error::Object`] on all ranks if one's value cannot be sent, and at
    /// the root if one is not a `T`; [`Error::Failed`] if the ranks disagree on the call, the root has no memory for the
    /// values, or the group is over.
    pub fn gather_object<T>(&self, value: &T, root: Rank) -> Result<Option<Vec<T>>>
    where
        T: Serialize + DeserializeOwned,
    {
        let call = self.carrier("gather_object", Collective::Gather, Cargo::Objects, root)?;
        let blob = encode(value);
        let all = self.now(async |sequence| call.collect_values(sequence, blob).await)?;
        call.everyones(all)
    }

    /// Begins a [`gather_object`](Self::gather_object). The value is encoded before this returns, and those that come are
    /// decoded by whoever waits.
    ///
    /// # Errors
    /// As [`gather_object`](Self::gather_object), here or from the wait.
    pub fn gather_object_async<T>(&self, value: &T, root: Rank) -> Result<Work<Option<Vec<T>>>>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
    {
        let call = self.carrier("gather_object", Collective::Gather, Cargo::Objects, root)?;
        let blob = encode(value);
        let steps = |mut sequence| async move { Ok((call.collect_values(&mut sequence, blob).await?, call)) };
        self.later("gather_object", steps, |(all, call)| call.everyones(all))
    }

    /// Every rank gets all ranks' values, in the order of ranks.
    ///
    /// # Errors
    /// [`Error::Object`] on all ranks if one's value cannot be sent, and where one is not a `T`; [`Error::Failed`] if the
    /// ranks disagree on the call, one of them has no memory for the values, or the group is over.
    pub fn all_gather_object<T>(&self, value: &T) -> Result<Vec<T>>
    where
        T: Serialize + DeserializeOwned,
    {
        let call = self.carrier("all_gather_object", Collective::AllGather, Cargo::Objects, 0)?;
        let blob = encode(value);
        let all = self.now(async |sequence| call.collect_values(sequence, blob).await)?;
        Ok(call.everyones(all)?.unwrap_or_default())
    }

    /// Begins an [`all_gather_object`](Self::all_gather_object), as
    /// [`gather_object_async`](Self::gather_object_async) does.
    ///
    /// # Errors
    /// As [`all_gather_object`](Self::all_gather_object), here or from the wait.
    pub fn all_gather_object_async<T>(&self, value: &T) -> Result<Work<Vec<T>>>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
    {
        let call = self.carrier("all_gather_object", Collective::AllGather, Cargo::Objects, 0)?;
        let blob = encode(value);
        let steps = |mut sequence| async move { Ok((call.collect_values(&mut sequence, blob).await?, call)) };
        let open = |(all, call): (_, UnevenCall)| Ok(call.everyones(all)?.unwrap_or_default());
        self.later("all_gather_object", steps, open)
    }

    /// Rank r gets the r-th of the root's values, which are one for each rank; elsewhere `values` is not looked at.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such root, or, at the root, unless it gives as many values as there are ranks;
    /// [`Error::Object`] elsewhere then, on all ranks if one of the values cannot be sent, and where one is not a `T`;
    /// [`Error::Failed`] if the ranks disagree on the call, one of them has no memory for its value, or the group is over.
    pub fn scatter_object<T>(&self, values: Option<Vec<T>>, root: Rank) -> Result<T>
    where
        T: Serialize + DeserializeOwned,
    {
        let call = self.carrier("scatter_object", Collective::Scatter, Cargo::Objects, root)?;
        let (own, blobs) = call.each(values);
        let blob = self.now(async |sequence| call.hand_values(sequence, blobs).await)?;
        call.come(own, blob)
    }

    /// Begins a [`scatter_object`](Self::scatter_object). The values are encoded before this returns, and decoded by
    /// whoever waits.
    ///
    /// # Errors
    /// As [`scatter_object`](Self::scatter_object), here or from the wait.
    pub fn scatter_object_async<T>(&self, values: Option<Vec<T>>, root: Rank) -> Result<Work<T>>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
    {
        let call = self.carrier("scatter_object", Collective::Scatter, Cargo::Objects, root)?;
        let (own, blobs) = call.each(values);
        let steps = |mut sequence| async move { Ok((call.hand_values(&mut sequence, blobs).await?, call)) };
        self.later("scatter_object", steps, |(blob, call)| call.come(own, blob))
    }
}

/// What stays at the root, or what is wrong with what was given there; nothing elsewhere.
type Own<T> = Result<Option<T>>;

/// The bytes of values, one after the other, and their lengths.
type Blobs = Blob<(Vec<u8>, Vec<usize>)>;

/// The values as they travel, with an empty one for the root.
fn encode_each<T: Serialize>(values: &[T], root: Rank) -> Blobs {
    let (mut bytes, mut lengths) = (Vec::new(), Vec::with_capacity(values.len() + 1));
    for value in values {
        let blob = encode(value)?;
        lengths.push(blob.len());
        bytes.extend(blob);
    }
    lengths.insert(root, 0);
    Ok((bytes, lengths))
}

/// What was handed out; but who could not give it knows best why.
fn first_hand<G, T>(given: Option<Blob<G>>, handed: Blob<T>) -> Blob<T> {
    match given {
        Some(Err(problem)) => Err(problem),
        _ => handed,
    }
}

impl UnevenCall {
    /// A rank's value, or what is wrong with it.
    fn open<T>(&self, from: Rank, value: Blob<T>) -> Result<T> {
        value.or_else(|problem| self.wrong::<T, _>(from, problem))
    }

    /// What is wrong with a rank's value, which was to be a `T`.
    fn wrong<T, R>(&self, from: Rank, problem: ObjectError) -> Result<R> {
        let rank = self.group.global(from);
        Err(Error::Object { call: self.name, rank, type_name: std::any::type_name::<T>(), problem })
    }

    pub(crate) fn nothing(&self, what: &str) -> Error {
        let problem = format!("this rank is the root, and gave None; give {what} there");
        Error::Argument { call: self.name, problem }
    }

    /// What the root of a broadcast has: what stays, and what goes.
    fn one<T: Serialize>(&self, value: Option<T>) -> (Own<T>, Option<Blob<Vec<u8>>>) {
        match value {
            _ if !self.at_root() => (Ok(None), None),
            None => (Err(self.nothing("a value")), None),
            Some(value) => {
                let blob = encode(&value);
                (Ok(Some(value)), Some(blob))
            }
        }
    }

    /// The same of a scatter.
    fn each<T: Serialize>(&self, values: Option<Vec<T>>) -> (Own<T>, Option<Blobs>) {
        let (ranks, root) = (self.group.size(), self.id.root);
        match values {
            _ if !self.at_root() => (Ok(None), None),
            None => (Err(self.nothing("values")), None),
            Some(values) if values.len() != ranks => {
                let problem = format!("{} values were given; there are {ranks} ranks", values.len());
                (Err(Error::Argument { call: self.name, problem }), None)
            }
            Some(mut values) => {
                // The root's own value stays where it is.
                let own = values.remove(root);
                (Ok(Some(own)), Some(encode_each(&values, root)))
            }
        }
    }

    async fn hand_value(
        &self,
        sequence: &mut Sequence<'_>,
        blob: Option<Blob<Vec<u8>>>,
    ) -> Result<Blob<Vec<u8>>> {
        let borrowed = blob.as_ref().and_then(|it| it.as_deref().ok());
        let handed = self.hand_out(sequence, borrowed).await?;
        Ok(first_hand(blob, handed))
    }

    async fn hand_values(&self, sequence: &mut Sequence<'_>, blobs: Option<Blobs>) -> Result<Blob<Vec<u8>>> {
        let borrowed = blobs.as_ref().and_then(|it| it.as_ref().ok());
        let borrowed = borrowed.map(|(bytes, lengths)| (&bytes[..], &lengths[..]));
        let handed = self.hand_each(sequence, borrowed).await?;
        Ok(first_hand(blobs, handed))
    }

    /// This rank's value, of what the root had or of what came from there.
    fn come<T: DeserializeOwned>(&self, own: Own<T>, blob: Blob<Vec<u8>>) -> Result<T> {
        let value = match own? {
            Some(own) => blob.map(|_| own),
            None => blob.and_then(|bytes| decode(&bytes)),
        };
        self.open(self.id.root, value)
    }

    async fn collect_values(&self, sequence: &mut Sequence<'_>, blob: Blob<Vec<u8>>) -> Result<Collected> {
        let collected = self.collect(sequence, blob.as_deref().ok(), false).await?;
        Ok(match blob {
            Err(problem) => Err((self.group.rank(), problem)),
            Ok(_) => collected,
        })
    }

    /// All ranks' values, where they are gathered.
    fn everyones<T: DeserializeOwned>(&self, collected: Collected) -> Result<Option<Vec<T>>> {
        let (bytes, lengths) = collected.or_else(|(rank, problem)| self.wrong::<T, _>(rank, problem))?;
        if !self.gets() {
            return Ok(None);
        }
        let blobs = cut(&bytes, &lengths).enumerate();
        blobs.map(|(rank, blob)| self.open(rank, decode(blob))).collect::<Result<_>>().map(Some)
    }
}
