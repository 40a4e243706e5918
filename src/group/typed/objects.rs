//! How ranks send objects: values of any serde type, whose sizes only their owners know.

use serde::{Serialize, de::DeserializeOwned};
use unisono_engine::{call::Form, memory::Borrowed};
use unisono_schedule::Rank;

use crate::{
    dtype::Dtype,
    error::{Error, Result},
    group::{
        collective::lengths::{UnevenCall, UnevenSteps},
        handle::Handle,
        message::Receiver,
        sequence::Sequence,
        typed::blobs::{Blob, Collected, cut},
    },
    object::{ObjectError, decode, encode},
};

impl Handle {
    /// Decodes a received object.
    pub(crate) fn decoded<T: DeserializeOwned>(&self, (bytes, from): (Vec<u8>, Rank)) -> Result<(T, Rank)> {
        decode(&bytes).map(|value| (value, from)).map_err(|problem| Error::Object {
            call: "recv_object",
            rank: self.global(from),
            type_name: std::any::type_name::<T>(),
            problem,
        })
    }
}

impl Sequence {
    pub(crate) async fn send_bytes(&self, bytes: &[u8], to: Receiver) -> Result<()> {
        let borrowed = Borrowed::apart(bytes, &mut []);
        let what = self.group.outbound(Dtype::U8, &borrowed.input, to, Form::Object)?;
        self.messages(what).await.map(drop)
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
                (Err(Error::Argument { call: self.name, problem }), None)
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
        let (bytes, lengths) = collected.or_else(|(rank, problem)| self.wrong::<T, _>(rank, problem))?;
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
