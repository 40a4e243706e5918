//! Point-to-point messages of objects and tensors, of which the receiver needs to know nothing beforehand.

use std::{fmt::Display, ops::Range};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use unisono_schedule::Rank;

use crate::{
    buffer::Borrowed,
    dtype::Dtype,
    engine::{Form, Inbound, Place, What},
    error::{Error, Failure, Result},
    group::{
        ProcessGroup,
        p2p::{Source, elements},
        sequence::Sequence,
        typed::tensors::{Label, Meta, deal, packed, runs, views, zeroed},
    },
    object::{ObjectError, decode, encode},
    tensor::{Tensor, TensorError, TensorView, TensorViewMut},
    work::Work,
};

/// What goes ahead of tensors' elements: what they are, and the tag under which the elements come.
#[derive(Serialize, Deserialize)]
struct Labels {
    inner: u32,
    tensors: Vec<Label>,
}

/// What was said of tensors that come, under which tag they do, and who sends them.
struct Announced {
    metas: Vec<Meta>,
    inner: u32,
    from: Rank,
}

impl ProcessGroup {
    /// Sends a value of any serde type to a rank, which receives it by [`recv_object`](Self::recv_object) with the same tag.
    /// Otherwise as [`send`](Self::send).
    ///
    /// # Errors
    /// As [`send`](Self::send), and [`Error::Object`] if the value cannot be sent: nothing was then.
    pub fn send_object<T: Serialize + ?Sized>(&self, value: &T, to: Rank, tag: u32) -> Result<()> {
        let bytes = self.encoded::<T>("send_object", value)?;
        self.beside(async |sequence| self.send_bytes(sequence, &bytes, to, tag).await)
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
        let group = self.under_way();
        let steps = |mut sequence| async move { group.send_bytes(&mut sequence, &bytes, to, tag).await };
        self.later("send_object", steps, Ok)
    }

    async fn send_bytes(&self, sequence: &mut Sequence<'_>, bytes: &[u8], to: Rank, tag: u32) -> Result<()> {
        let what = self.outbound::<u8>(&Borrowed::apart(bytes, &mut []), to, tag, Form::Object)?;
        sequence.messages(self, what).await.map(drop)
    }

    /// Receives a value of any serde type, and tells who sent it. Otherwise as [`recv`](Self::recv).
    ///
    /// # Errors
    /// As [`recv`](Self::recv); [`Error::Object`] if what came is not a `T`: the group goes on; [`Error::Failed`] if it is
    /// longer than [`Config::object_limit`](crate::Config::object_limit), or something else than an object.
    pub fn recv_object<T: DeserializeOwned>(&self, from: impl Into<Source>, tag: u32) -> Result<(T, Rank)> {
        let from = self.source("recv_object", from.into())?;
        self.decoded(self.beside(async |sequence| self.fresh(sequence, from, tag, Form::Object).await)?)
    }

    /// Begins a [`recv_object`](Self::recv_object). The value is decoded by whoever waits.
    ///
    /// # Errors
    /// As [`recv_object`](Self::recv_object), here or from the wait.
    pub fn recv_object_async<T: DeserializeOwned + Send + 'static>(
        &self,
        from: impl Into<Source>,
        tag: u32,
    ) -> Result<Work<(T, Rank)>> {
        let from = self.source("recv_object", from.into())?;
        let group = self.under_way();
        let steps = |mut sequence| async move {
            let come = group.fresh(&mut sequence, from, tag, Form::Object).await?;
            Ok((come, group))
        };
        self.later("recv_object", steps, |(come, group)| group.decoded(come))
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
        self.beside(async |sequence| self.send_list(sequence, tensors, to, tag).await)
    }

    /// Begins a [`send_tensors`](Self::send_tensors); `tensors` comes back from [`Work::wait`].
    ///
    /// # Errors
    /// As [`send_tensors`](Self::send_tensors), here or from the wait.
    pub fn send_tensors_async(&self, tensors: Vec<Tensor>, to: Rank, tag: u32) -> Result<Work<Vec<Tensor>>> {
        let group = self.under_way();
        let steps = |mut sequence| async move {
            group.send_list(&mut sequence, &views(&tensors), to, tag).await?;
            Ok(tensors)
        };
        self.later("send_tensors", steps, Ok)
    }

    async fn send_list(
        &self,
        sequence: &mut Sequence<'_>,
        tensors: &[TensorView<'_>],
        to: Rank,
        tag: u32,
    ) -> Result<()> {
        let inner = self.shared.runtime.inner();
        let labels = Labels { inner, tensors: tensors.iter().map(Label::of).collect() };
        let labels = self.encoded("send_tensors", &labels)?;
        let sizes: Vec<usize> = tensors.iter().map(|it| it.len() * it.dtype().size()).collect();
        let parts = runs(&sizes, self.config().eager).into_iter();
        let parts = parts.map(|run| packed(tensors.get(run).unwrap_or_default()));
        let parts = parts.collect::<std::result::Result<Vec<_>, _>>()?;
        let head = Borrowed::apart(&labels, &mut []);
        let mut all = vec![self.outbound::<u8>(&head, to, tag, Form::Tensors)?];
        for part in &parts {
            all.push(self.outbound::<u8>(&Borrowed::apart(part, &mut []), to, inner, Form::Inner)?);
        }
        sequence.messages(self, What::Several(all)).await.map(drop)
    }

    /// Receives tensors, and tells who sent them.
    ///
    /// # Errors
    /// As [`recv`](Self::recv), but that nothing has to fit; [`Error::Failed`] also if there is no memory for them.
    pub fn recv_tensors(&self, from: impl Into<Source>, tag: u32) -> Result<(Vec<Tensor>, Rank)> {
        let from = self.source("recv_tensors", from.into())?;
        self.beside(async |sequence| self.receive_list(sequence, from, tag).await)
    }

    /// Begins a [`recv_tensors`](Self::recv_tensors).
    ///
    /// # Errors
    /// As [`recv_tensors`](Self::recv_tensors), here or from the wait.
    pub fn recv_tensors_async(&self, from: impl Into<Source>, tag: u32) -> Result<Work<(Vec<Tensor>, Rank)>> {
        let from = self.source("recv_tensors", from.into())?;
        let group = self.under_way();
        let steps = |mut sequence| async move { group.receive_list(&mut sequence, from, tag).await };
        self.later("recv_tensors", steps, Ok)
    }

    /// Receives tensors into memory that is there, and tells who sent them: as many as come, of the same types and shapes.
    ///
    /// Whoever receives the same tensors again and again, new weights for instance, touches no fresh memory by it. Large ones
    /// that are contiguous come straight to their places; others are unpacked, and so are small ones, many out of a message.
    ///
    /// # Errors
    /// As [`recv_tensors`](Self::recv_tensors); [`Error::Failed`] also if other tensors come than these. What was there is then
    /// as it was.
    pub fn recv_tensors_into(
        &self,
        tensors: &mut [TensorViewMut<'_>],
        from: impl Into<Source>,
        tag: u32,
    ) -> Result<Rank> {
        let from = self.source("recv_tensors_into", from.into())?;
        self.beside(async |sequence| self.receive_into(sequence, tensors, from, tag).await)
    }

    /// Begins a [`recv_tensors_into`](Self::recv_tensors_into); `tensors` come back from [`Work::wait`].
    ///
    /// # Errors
    /// As [`recv_tensors_into`](Self::recv_tensors_into), here or from the wait.
    pub fn recv_tensors_into_async(
        &self,
        mut tensors: Vec<Tensor>,
        from: impl Into<Source>,
        tag: u32,
    ) -> Result<Work<(Vec<Tensor>, Rank)>> {
        let from = self.source("recv_tensors_into", from.into())?;
        let group = self.under_way();
        let steps = |mut sequence| async move {
            let mut places: Vec<_> = tensors.iter_mut().map(Tensor::view_mut).collect();
            let from = group.receive_into(&mut sequence, &mut places, from, tag).await?;
            Ok((tensors, from))
        };
        self.later("recv_tensors_into", steps, Ok)
    }

    async fn receive_list(
        &self,
        sequence: &mut Sequence<'_>,
        from: Option<Rank>,
        tag: u32,
    ) -> Result<(Vec<Tensor>, Rank)> {
        let Announced { metas, inner, from } = self.announced("recv_tensors", sequence, from, tag).await?;
        // The sender goes on, and this rank cannot.
        let lacks = |error: TensorError| self.gives_up("recv_tensors", &error);
        // Large ones are by themselves, and come with memory of their own.
        let large = |meta: &&Meta| meta.bytes > self.config().eager;
        let none: &[usize] = &[0];
        let shape = |meta| if large(&meta) { none } else { &meta.shape };
        let tensors = metas.iter().map(|meta| Tensor::zeros(meta.dtype, shape(meta)));
        let mut tensors = tensors.collect::<std::result::Result<Vec<_>, _>>().map_err(lacks)?;
        let runs = runs(&sizes(&metas), self.config().eager);
        // Small ones share a message, and come to their places from there.
        let mut shared: Vec<Vec<u8>> = Vec::new();
        let mut all = Vec::new();
        for run in &runs {
            if let Some(meta) = metas.get(run.start).filter(large) {
                let place = Place::New { dtype: meta.dtype, count: meta.bytes / meta.dtype.size() };
                all.push(self.part(place, from, inner));
                continue;
            }
            match tensors.get_mut(run.clone()).unwrap_or_default() {
                [tensor] => all.push(self.part(self.there(tensor.bytes_mut()), from, inner)),
                several => {
                    let mut bytes = vec![0; several.iter().map(|tensor| tensor.bytes().len()).sum()];
                    all.push(self.part(self.there(&mut bytes), from, inner));
                    shared.push(bytes);
                }
            }
        }
        let come = sequence.messages(self, What::Several(all)).await?;
        for (run, received) in runs.iter().zip(come) {
            if let (Some(come), Some(tensor), Some(meta)) =
                (received.elements, tensors.get_mut(run.start), metas.get(run.start))
            {
                *tensor = come.reshape(&meta.shape).map_err(lacks)?;
            }
        }
        let together = runs.into_iter().filter(|run| run.len() > 1);
        for (run, bytes) in together.zip(&shared) {
            deal(bytes, tensors.get_mut(run).unwrap_or_default().iter_mut().map(Tensor::view_mut))?;
        }
        Ok((tensors, from))
    }

    async fn receive_into(
        &self,
        sequence: &mut Sequence<'_>,
        tensors: &mut [TensorViewMut<'_>],
        from: Option<Rank>,
        tag: u32,
    ) -> Result<Rank> {
        let Announced { metas, inner, from } =
            self.announced("recv_tensors_into", sequence, from, tag).await?;
        if let Some(what) = unlike(&metas, tensors) {
            return Err(
                self.gives_up("recv_tensors_into", &format!("rank {} sends {what}", self.global(from)))
            );
        }
        // What does not come to its place at once, and whose it is.
        let mut aside: Vec<(Range<usize>, Vec<u8>)> = Vec::new();
        let mut all = Vec::new();
        let sizes = sizes(&metas);
        for run in runs(&sizes, self.config().eager) {
            if let [tensor] = tensors.get_mut(run.clone()).unwrap_or_default()
                && let Ok(bytes) = tensor.reborrow().into_bytes()
            {
                all.push(self.part(self.there(bytes), from, inner));
                continue;
            }
            let len = sizes.get(run.clone()).unwrap_or_default().iter().sum();
            let mut bytes = zeroed(len).map_err(|error| self.gives_up("recv_tensors_into", &error))?;
            all.push(self.part(self.there(&mut bytes), from, inner));
            aside.push((run, bytes));
        }
        sequence.messages(self, What::Several(all)).await?;
        for (run, bytes) in aside {
            deal(&bytes, tensors.get_mut(run).unwrap_or_default().iter_mut().map(TensorViewMut::reborrow))?;
        }
        Ok(from)
    }

    /// What goes ahead of tensors.
    async fn announced(
        &self,
        call: &'static str,
        sequence: &mut Sequence<'_>,
        from: Option<Rank>,
        tag: u32,
    ) -> Result<Announced> {
        let (bytes, from) = self.fresh(sequence, from, tag, Form::Tensors).await?;
        let strange = |what: String| {
            let (rank, from) = (self.global_rank(), self.global(from));
            Error::Failed(Failure::Protocol { rank, from, what: format!("{call}: {what}") })
        };
        let Labels { inner, tensors } = decode(&bytes).map_err(|error| strange(error.to_string()))?;
        let metas = tensors.into_iter().map(|label| label.read().map_err(&strange)).collect::<Result<_>>()?;
        Ok(Announced { metas, inner, from })
    }

    /// The sender goes on, and this rank cannot: all is over.
    fn gives_up(&self, call: &'static str, why: &dyn Display) -> Error {
        Error::Failed(Failure::Aborted { rank: self.global_rank(), why: format!("{call}: {why}") })
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
    async fn fresh(
        &self,
        sequence: &mut Sequence<'_>,
        from: Option<Rank>,
        tag: u32,
        form: Form,
    ) -> Result<(Vec<u8>, Rank)> {
        let place = Place::Fresh { most: self.config().object_limit };
        let what = What::Receive(Inbound { from, tag, form, dtype: Dtype::U8, place });
        elements(sequence.messages(self, what).await?)
    }

    /// The object that came in these bytes.
    fn decoded<T: DeserializeOwned>(&self, (bytes, from): (Vec<u8>, Rank)) -> Result<(T, Rank)> {
        decode(&bytes).map(|value| (value, from)).map_err(|problem| Error::Object {
            call: "recv_object",
            rank: self.global(from),
            type_name: std::any::type_name::<T>(),
            problem,
        })
    }

    /// Where a part goes: to memory that outlives the receive.
    fn there(&self, bytes: &mut [u8]) -> Place {
        let output = Borrowed::apart::<u8>(&[], bytes).output;
        Place::There { count: output.len(), registered: self.shared.runtime.registry.find(&output), output }
    }

    /// A part of what was announced.
    fn part(&self, place: Place, from: Rank, inner: u32) -> What {
        What::Receive(Inbound { from: Some(from), tag: inner, form: Form::Inner, dtype: Dtype::U8, place })
    }
}

fn sizes(metas: &[Meta]) -> Vec<usize> {
    metas.iter().map(|meta| meta.bytes).collect()
}

/// What comes, and what for, if it does not fit there.
fn unlike(metas: &[Meta], tensors: &[TensorViewMut<'_>]) -> Option<String> {
    if metas.len() != tensors.len() {
        return Some(format!("{} tensors where {} are wanted", metas.len(), tensors.len()));
    }
    metas.iter().zip(tensors).enumerate().find_map(|(index, (meta, tensor))| {
        let (given, wanted) = ((meta.dtype, &meta.shape[..]), (tensor.dtype(), tensor.shape()));
        let words = |(dtype, shape): (Dtype, &[usize])| format!("{dtype} {shape:?}");
        (given != wanted)
            .then(|| format!("tensor {index} as {}, and {} is wanted", words(given), words(wanted)))
    })
}
