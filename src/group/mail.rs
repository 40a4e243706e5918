//! Objects and tensors from point to point: messages whose receivers need to know nothing beforehand.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    ProcessGroup,
    messages::{Source, sender},
    tensors::{Label, Meta, packed, runs},
};
use crate::{
    buffer::Lent,
    dtype::Dtype,
    engine::{Form, Inbound, Place, What},
    error::{Error, Failure, Result},
    object::{ObjectError, decode, encode},
    schedule::Rank,
    tensor::{Tensor, TensorError, TensorView},
};

/// What goes ahead of tensors' elements: what they are, and the tag under which the elements come.
#[derive(Serialize, Deserialize)]
struct Labels {
    inner: u32,
    tensors: Vec<Label>,
}

impl ProcessGroup {
    /// Sends a value of any serde type to a rank, which receives it by [`recv_object`](Self::recv_object) with the same tag.
    /// Otherwise as [`send`](Self::send).
    ///
    /// # Errors
    /// As [`send`](Self::send), and [`Error::Object`] if the value cannot be sent: nothing was then.
    pub fn send_object<T: Serialize + ?Sized>(&self, value: &T, to: Rank, tag: u32) -> Result<()> {
        let bytes = self.encoded::<T>("send_object", value)?;
        let lent = Lent::apart(&bytes, &mut []);
        self.wait(self.outbound::<u8>(&lent, to, tag, Form::Object)?).map(drop)
    }

    /// Receives a value of any serde type, and tells who sent it. Otherwise as [`recv`](Self::recv).
    ///
    /// # Errors
    /// As [`recv`](Self::recv); [`Error::Object`] if what came is not a `T`: the group goes on; [`Error::Failed`] if it is
    /// longer than [`Config::object_limit`](crate::Config::object_limit), or something else than an object.
    pub fn recv_object<T: DeserializeOwned>(&self, from: impl Into<Source>, tag: u32) -> Result<(T, Rank)> {
        let (bytes, from) = self.fresh("recv_object", from.into(), tag, Form::Object)?;
        decode(&bytes).map(|value| (value, from)).map_err(|problem| Error::Object {
            call: "recv_object",
            rank: self.global(from),
            type_name: std::any::type_name::<T>(),
            problem,
        })
    }

    /// Sends tensors of any types and shapes to a rank, which receives them by [`recv_tensors`](Self::recv_tensors) with the
    /// same tag and need know nothing of them.
    ///
    /// What they are goes ahead, and all else right behind it. Large tensors that are contiguous are sent from where they lie,
    /// and received where they stay; others are packed first, and small ones go many in a message.
    ///
    /// # Errors
    /// As [`send`](Self::send); [`Error::Tensor`] if there is no memory to pack one that is not contiguous; [`Error::Object`]
    /// if there are so many that their shapes alone are more than may be sent. Nothing was sent then.
    pub fn send_tensors(&self, tensors: &[TensorView<'_>], to: Rank, tag: u32) -> Result<()> {
        let inner = self.shared.node.inner();
        let labels = Labels { inner, tensors: tensors.iter().map(Label::of).collect() };
        let labels = self.encoded("send_tensors", &labels)?;
        let sizes: Vec<usize> = tensors.iter().map(|it| it.len() * it.dtype().size()).collect();
        let parts = runs(&sizes, self.config().eager).into_iter();
        let parts = parts.map(|run| packed(tensors.get(run).unwrap_or_default()));
        let parts = parts.collect::<std::result::Result<Vec<_>, _>>()?;
        let head = Lent::apart(&labels, &mut []);
        let mut all = vec![self.outbound::<u8>(&head, to, tag, Form::Tensors)?];
        for part in &parts {
            all.push(self.outbound::<u8>(&Lent::apart(part, &mut []), to, inner, Form::Inner)?);
        }
        self.wait_all(all).map(drop)
    }

    /// Receives tensors, and tells who sent them.
    ///
    /// # Errors
    /// As [`recv`](Self::recv), but that nothing has to fit; [`Error::Failed`] also if there is no memory for them.
    pub fn recv_tensors(&self, from: impl Into<Source>, tag: u32) -> Result<(Vec<Tensor>, Rank)> {
        let (bytes, from) = self.fresh("recv_tensors", from.into(), tag, Form::Tensors)?;
        let strange = |what: String| {
            let (rank, from) = (self.global_rank(), self.global(from));
            self.shared.fail(Failure::Protocol { rank, from, what: format!("recv_tensors: {what}") })
        };
        let labels: Labels = decode(&bytes).map_err(|error| strange(error.to_string()))?;
        let metas = labels.tensors.into_iter().map(|label| label.read().map_err(&strange));
        let metas = metas.collect::<Result<Vec<_>>>()?;
        // The sender goes on, and this rank cannot.
        let lacks = |error: TensorError| {
            let why = format!("recv_tensors: {error}");
            self.shared.fail(Failure::Aborted { rank: self.global_rank(), why })
        };
        // Large ones are by themselves, and come with memory of their own.
        let large = |meta: &&Meta| meta.bytes > self.config().eager;
        let none: &[usize] = &[0];
        let shape = |meta| if large(&meta) { none } else { &meta.shape };
        let tensors = metas.iter().map(|meta| Tensor::zeros(meta.dtype, shape(meta)));
        let mut tensors = tensors.collect::<std::result::Result<Vec<_>, _>>().map_err(lacks)?;
        let sizes: Vec<usize> = metas.iter().map(|meta| meta.bytes).collect();
        let runs = runs(&sizes, self.config().eager);
        // Small ones share a message, and come to their places from there.
        let mut shared: Vec<Vec<u8>> = Vec::new();
        let mut all = Vec::new();
        for run in &runs {
            if let Some(meta) = metas.get(run.start).filter(large) {
                let place = Place::New { dtype: meta.dtype, count: meta.bytes / meta.dtype.size() };
                all.push(self.part(place, from, labels.inner));
                continue;
            }
            match tensors.get_mut(run.clone()).unwrap_or_default() {
                [tensor] => all.push(self.part(there(tensor.bytes_mut()), from, labels.inner)),
                several => {
                    let mut bytes = vec![0; several.iter().map(|tensor| tensor.bytes().len()).sum()];
                    all.push(self.part(there(&mut bytes), from, labels.inner));
                    shared.push(bytes);
                }
            }
        }
        let done = self.wait_all(all)?;
        for (run, done) in runs.iter().zip(done) {
            let elements = done.received.and_then(|received| received.elements);
            if let (Some(elements), Some(tensor), Some(meta)) =
                (elements, tensors.get_mut(run.start), metas.get(run.start))
            {
                *tensor = elements.reshape(&meta.shape).map_err(lacks)?;
            }
        }
        let together = runs.into_iter().filter(|run| run.len() > 1);
        for (run, bytes) in together.zip(&shared) {
            super::tensors::deal(bytes, tensors.get_mut(run).unwrap_or_default().iter_mut());
        }
        Ok((tensors, from))
    }

    fn encoded<T: Serialize + ?Sized>(&self, call: &'static str, value: &T) -> Result<Vec<u8>> {
        let limit = self.config().object_limit;
        let bytes = encode(value).and_then(|bytes| match bytes.len() {
            len if len > limit => Err(ObjectError::TooLarge { bytes: len as u64, limit }),
            _ => Ok(bytes),
        });
        let (rank, type_name) = (self.global_rank(), std::any::type_name::<T>());
        bytes.map_err(|problem| Error::Object { call, rank, type_name, problem })
    }

    /// A message of unknown length, and who sent it.
    fn fresh(&self, call: &'static str, from: Source, tag: u32, form: Form) -> Result<(Vec<u8>, Rank)> {
        let place = Place::Fresh { most: self.config().object_limit };
        let from = self.source(call, from)?;
        let done = self.wait(What::Receive(Inbound { from, tag, form, dtype: Dtype::U8, place }))?;
        let from = sender(&done);
        match done.received.and_then(|received| received.elements) {
            Some(elements) => Ok((elements.into_vec()?, from)),
            None => Ok((Vec::new(), from)),
        }
    }

    /// A part of what was announced.
    fn part(&self, place: Place, from: Rank, inner: u32) -> What {
        What::Receive(Inbound { from: Some(from), tag: inner, form: Form::Inner, dtype: Dtype::U8, place })
    }
}

/// Where a part goes: to memory that outlives the receive.
fn there(bytes: &mut [u8]) -> Place {
    let output = Lent::apart::<u8>(&[], bytes).output;
    Place::There { count: output.len(), output, registered: None }
}
