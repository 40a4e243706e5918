//! Objects: values of any serde type, whose sizes no rank need know beforehand.

use serde::{Serialize, de::DeserializeOwned};

use super::{
    ProcessGroup,
    parcels::{Parcel, cut},
    uneven::Call,
};
use crate::{
    engine::Cargo,
    error::{Error, Result},
    object::{ObjectError, decode, encode},
    schedule::{Collective, Rank},
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
/// on, with all ranks at the same place. Numbers are of the same type if their value fits.
///
/// ```
/// # use unisono::{Config, ProcessGroup};
/// # use unisono_transport::memory::Hub;
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
    /// [`Error::Argument`] if there is no such root, or it gives nothing; [`Error::Object`] if the value cannot be sent, or
    /// is not a `T` here; [`Error::Failed`] if the ranks disagree on the call, one of them has no memory for the value, or
    /// the group is over.
    pub fn broadcast_object<T>(&self, value: Option<T>, root: Rank) -> Result<T>
    where
        T: Serialize + DeserializeOwned,
    {
        let call = self.carrier("broadcast_object", Collective::Broadcast, Cargo::Objects, root)?;
        if self.rank() != root {
            let parcel = call.hand_out(&mut self.shared.state(), None)?;
            return call.open(root, parcel.and_then(|bytes| decode(&bytes)));
        }
        let parcel = value.as_ref().map(encode);
        let lent = parcel.as_ref().and_then(|it| it.as_deref().ok());
        let handed = call.hand_out(&mut self.shared.state(), lent)?;
        match (value, parcel) {
            (Some(value), Some(parcel)) => call.open(root, parcel.and(handed).map(|_| value)),
            _ => Err(call.nothing("a value")),
        }
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
        let all = call.everyones(value)?;
        Ok(call.at_root().then_some(all))
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
        self.carrier("all_gather_object", Collective::AllGather, Cargo::Objects, 0)?.everyones(value)
    }

    /// Rank r gets the r-th of the root's values, which are one for each rank; elsewhere `values` is not looked at.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such root, or, at the root, unless it gives as many values as there are ranks;
    /// [`Error::Object`] if one of the values cannot be sent, on all ranks, or is not a `T` here; [`Error::Failed`] if the
    /// ranks disagree on the call, one of them has no memory for its value, or the group is over.
    pub fn scatter_object<T>(&self, values: Option<Vec<T>>, root: Rank) -> Result<T>
    where
        T: Serialize + DeserializeOwned,
    {
        let call = self.carrier("scatter_object", Collective::Scatter, Cargo::Objects, root)?;
        if self.rank() != root {
            let parcel = call.hand_each(&mut self.shared.state(), None)?;
            return call.open(root, parcel.and_then(|bytes| decode(&bytes)));
        }
        let given = values.as_ref().map(Vec::len);
        let Some(mut values) = values.filter(|values| values.len() == self.size()) else {
            let _told = call.hand_each(&mut self.shared.state(), None)?;
            let Some(given) = given else { return Err(call.nothing("values")) };
            let problem = format!("{given} values were given; there are {} ranks", self.size());
            return Err(Error::Argument { call: call.name, problem });
        };
        // The root's own value stays where it is.
        let own = values.remove(root);
        let parcels = each(&values, root);
        let lent = parcels.as_ref().ok().map(|(bytes, lengths)| (&bytes[..], &lengths[..]));
        let handed = call.hand_each(&mut self.shared.state(), lent)?;
        call.open(root, parcels.and(handed).map(|_| own))
    }
}

/// The bytes of the values, one after the other, and their lengths, with an empty one for the root.
fn each<T: Serialize>(values: &[T], root: Rank) -> Parcel<(Vec<u8>, Vec<usize>)> {
    let (mut bytes, mut lengths) = (Vec::new(), Vec::with_capacity(values.len() + 1));
    for value in values {
        let parcel = encode(value)?;
        lengths.push(parcel.len());
        bytes.extend(parcel);
    }
    lengths.insert(root, 0);
    Ok((bytes, lengths))
}

impl Call {
    /// A rank's value, or what is wrong with it.
    fn open<T>(&self, from: Rank, value: Parcel<T>) -> Result<T> {
        value.or_else(|problem| self.wrong::<T, _>(from, problem))
    }

    /// What is wrong with a rank's value, which was to be a `T`.
    fn wrong<T, R>(&self, from: Rank, problem: ObjectError) -> Result<R> {
        let rank = self.group.global(from);
        Err(Error::Object { call: self.name, rank, type_name: std::any::type_name::<T>(), problem })
    }

    pub(super) fn nothing(&self, what: &str) -> Error {
        let problem = format!("this rank is the root, and gave None; give {what} there");
        Error::Argument { call: self.name, problem }
    }

    /// All ranks' values, where they are gathered.
    fn everyones<T: Serialize + DeserializeOwned>(&self, value: &T) -> Result<Vec<T>> {
        let parcel = encode(value);
        let collected = self.collect(&mut self.group.shared.state(), parcel.as_deref().ok(), false)?;
        let (bytes, lengths) = match (parcel, collected) {
            // Nobody knows better why.
            (Err(problem), _) => return self.wrong::<T, _>(self.group.rank(), problem),
            (Ok(_), Err((rank, problem))) => return self.wrong::<T, _>(rank, problem),
            (Ok(_), Ok(collected)) => collected,
        };
        if !self.gets() {
            return Ok(Vec::new());
        }
        let parcels = cut(&bytes, &lengths).enumerate();
        parcels.map(|(rank, parcel)| self.open(rank, decode(parcel))).collect()
    }
}
