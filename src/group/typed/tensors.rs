//! Collectives of lists of tensors, whose number, types and shapes only their owners know.
//!
//! Descriptions go first, as a blob; then every rank knows all lengths, and the elements follow: each large tensor by itself, from
//! where it lies, and runs of small ones in one message.

use std::{borrow::Cow, ops::Range};

use serde::{Deserialize, Serialize};
use unisono_schedule::{Collective, Rank};

use crate::{
    buffer::Borrowed,
    dtype::Dtype,
    engine::Cargo,
    error::{Error, Failure, Result},
    group::{
        ProcessGroup,
        collective::lengths::UnevenCall,
        sequence::Sequence,
        typed::blobs::{Blob, cut},
    },
    object::{ObjectError, decode, encode},
    tensor::{Tensor, TensorError, TensorView, TensorViewMut, count},
    work::Work,
};

/// What a tensor is, as it travels.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Label {
    dtype: u8,
    shape: Vec<u64>,
}

/// What a tensor is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// How many bytes its elements take.
    pub bytes: usize,
}

impl Label {
    pub(crate) fn of(tensor: &TensorView<'_>) -> Self {
        Self { dtype: tensor.dtype().code(), shape: tensor.shape().iter().map(|&len| len as u64).collect() }
    }

    /// What it says, if that can be.
    pub(crate) fn read(self) -> std::result::Result<Meta, String> {
        let dtype = Dtype::from_code(self.dtype).ok_or_else(|| format!("dtype number {}", self.dtype))?;
        let shape = self.shape.into_iter().map(usize::try_from).collect::<std::result::Result<Vec<_>, _>>();
        let shape = shape.map_err(|error| format!("the length of a dimension: {error}"))?;
        let bytes = count(dtype, &shape).map_err(|error| error.to_string())? * dtype.size();
        Ok(Meta { dtype, shape, bytes })
    }
}

impl ProcessGroup {
    /// Every rank gets the root's tensors, of which it need know nothing beforehand; the root, which has them, gets
    /// `None`. Elsewhere `tensors` is not looked at.
    ///
    /// Tensors that are contiguous are sent from where they lie, and all are received where they stay; those that are not
    /// are packed first, and so are small ones, many into a message.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such root, or at the root if it gives no list; [`Error::Object`] elsewhere then,
    /// and if there are so many that their shapes alone are more than may be sent; [`Error::Failed`] if the ranks disagree
    /// on the call, one of them has no memory for the tensors, or the group is over.
    pub fn broadcast_tensors(
        &self,
        tensors: Option<&[TensorView<'_>]>,
        root: Rank,
    ) -> Result<Option<Vec<Tensor>>> {
        let call = self.carrier("broadcast_tensors", Collective::Broadcast, Cargo::Tensors, root)?;
        self.now(async |sequence| call.broadcast_list(sequence, tensors).await)
    }

    /// Begins a [`broadcast_tensors`](Self::broadcast_tensors). Every rank gets the root's tensors, which come back there.
    ///
    /// # Errors
    /// As [`broadcast_tensors`](Self::broadcast_tensors), here or from the wait.
    pub fn broadcast_tensors_async(
        &self,
        tensors: Option<Vec<Tensor>>,
        root: Rank,
    ) -> Result<Work<Vec<Tensor>>> {
        let call = self.carrier("broadcast_tensors", Collective::Broadcast, Cargo::Tensors, root)?;
        let steps = |mut sequence| async move {
            let given = tensors.as_deref().map(views);
            let got = call.broadcast_list(&mut sequence, given.as_deref()).await?;
            Ok(got.or(tensors).unwrap_or_default())
        };
        self.later("broadcast_tensors", steps, Ok)
    }

    /// The root gets all ranks' tensors, a list for each rank; the others get `None`. The lists may be of different
    /// lengths, or empty, and the tensors of different types and shapes.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such root; [`Error::Object`] as [`broadcast_tensors`](Self::broadcast_tensors);
    /// [`Error::Failed`] if the ranks disagree on the call, there is no memory for the tensors, or the group is over.
    pub fn gather_tensors(&self, tensors: &[TensorView<'_>], root: Rank) -> Result<Option<Vec<Vec<Tensor>>>> {
        let call = self.carrier("gather_tensors", Collective::Gather, Cargo::Tensors, root)?;
        self.now(async |sequence| call.lists(sequence, tensors).await)
    }

    /// Begins a [`gather_tensors`](Self::gather_tensors); `tensors` comes back too, first.
    ///
    /// # Errors
    /// As [`gather_tensors`](Self::gather_tensors), here or from the wait.
    #[expect(clippy::type_complexity, reason = "what goes in, and what comes of it")]
    pub fn gather_tensors_async(
        &self,
        tensors: Vec<Tensor>,
        root: Rank,
    ) -> Result<Work<(Vec<Tensor>, Option<Vec<Vec<Tensor>>>)>> {
        let call = self.carrier("gather_tensors", Collective::Gather, Cargo::Tensors, root)?;
        let steps = |mut sequence| async move {
            let lists = call.lists(&mut sequence, &views(&tensors)).await?;
            Ok((tensors, lists))
        };
        self.later("gather_tensors", steps, Ok)
    }

    /// Every rank gets all ranks' tensors, as the root of [`gather_tensors`](Self::gather_tensors) does.
    ///
    /// # Errors
    /// As [`gather_tensors`](Self::gather_tensors).
    pub fn all_gather_tensors(&self, tensors: &[TensorView<'_>]) -> Result<Vec<Vec<Tensor>>> {
        let call = self.carrier("all_gather_tensors", Collective::AllGather, Cargo::Tensors, 0)?;
        Ok(self.now(async |sequence| call.lists(sequence, tensors).await)?.unwrap_or_default())
    }

    /// Begins an [`all_gather_tensors`](Self::all_gather_tensors); `tensors` comes back too, first.
    ///
    /// # Errors
    /// As [`all_gather_tensors`](Self::all_gather_tensors), here or from the wait.
    #[expect(clippy::type_complexity, reason = "what goes in, and what comes of it")]
    pub fn all_gather_tensors_async(
        &self,
        tensors: Vec<Tensor>,
    ) -> Result<Work<(Vec<Tensor>, Vec<Vec<Tensor>>)>> {
        let call = self.carrier("all_gather_tensors", Collective::AllGather, Cargo::Tensors, 0)?;
        let steps = |mut sequence| async move {
            let lists = call.lists(&mut sequence, &views(&tensors)).await?;
            Ok((tensors, lists.unwrap_or_default()))
        };
        self.later("all_gather_tensors", steps, Ok)
    }
}

/// What goes in one message, or one operation: runs of neighbours which together are not longer than `most`, and every
/// longer one by itself. What is empty goes in none.
pub(crate) fn runs(sizes: &[usize], most: usize) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let mut room = 0_usize;
    for (index, &size) in sizes.iter().enumerate().filter(|(_, size)| **size > 0) {
        match (runs.last_mut(), room.checked_sub(size)) {
            (Some(run), Some(left)) => (run.end, room) = (index + 1, left),
            _ => {
                runs.push(index..index + 1);
                room = most.saturating_sub(size);
            }
        }
    }
    runs
}

pub(crate) fn views(tensors: &[Tensor]) -> Vec<TensorView<'_>> {
    tensors.iter().map(Tensor::view).collect()
}

/// The elements of tensors in row-major order, one after the other: where they lie, if they lie so.
pub(crate) fn packed<'t>(tensors: &[TensorView<'t>]) -> std::result::Result<Cow<'t, [u8]>, TensorError> {
    let mut long = tensors.iter().filter(|tensor| !tensor.is_empty());
    let Some(first) = long.next() else { return Ok(Cow::Borrowed(&[])) };
    if let (None, Ok(bytes)) = (long.next(), first.bytes()) {
        return Ok(Cow::Borrowed(bytes));
    }
    let sizes = tensors.iter().map(|tensor| tensor.len().saturating_mul(tensor.dtype().size()));
    let len = sizes.clone().fold(0_usize, usize::saturating_add);
    let mut all = zeroed(len)?;
    let mut rest = &mut all[..];
    for (tensor, size) in tensors.iter().zip(sizes) {
        let (place, after) = rest.split_at_mut_checked(size).unwrap_or_default();
        tensor.pack_into(place)?;
        rest = after;
    }
    Ok(Cow::Owned(all))
}

/// So many bytes in which elements go.
pub(crate) fn zeroed(bytes: usize) -> std::result::Result<Vec<u8>, TensorError> {
    bytemuck::allocation::try_zeroed_vec(bytes).map_err(|()| TensorError::Memory { bytes })
}

impl UnevenCall {
    /// What a rank says of its tensors, or why it cannot.
    pub(crate) fn unlabelled<T>(&self, from: Rank, labels: Blob<T>) -> Result<T> {
        let rank = self.group.global(from);
        labels.map_err(|problem: ObjectError| Error::Object {
            call: self.name,
            rank,
            type_name: "list of shapes",
            problem,
        })
    }

    /// What is no label is nothing that this library sends: all is over.
    pub(crate) fn strange(&self, from: Rank, what: String) -> Error {
        let (rank, from) = (self.group.global_rank(), self.group.global(from));
        Error::Failed(Failure::Protocol { rank, from, what: format!("{}: {what}", self.name) })
    }

    /// The others go on, and this rank cannot: all is over.
    pub(crate) fn lacks(&self, error: &TensorError) -> Error {
        let why = format!("{}: {error}", self.name);
        Error::Failed(Failure::Aborted { rank: self.group.global_rank(), why })
    }

    /// Labels, read.
    fn metas(&self, from: Rank, labels: &[u8]) -> Result<Vec<Meta>> {
        let labels: Vec<Label> = decode(labels).map_err(|error| self.strange(from, error.to_string()))?;
        labels.into_iter().map(|label| label.read().map_err(|what| self.strange(from, what))).collect()
    }

    /// The most bytes that small tensors share a message of.
    fn small(&self) -> usize {
        self.group.config().eager
    }

    /// The root's tensors, elsewhere.
    async fn broadcast_list(
        &self,
        sequence: &mut Sequence<'_>,
        tensors: Option<&[TensorView<'_>]>,
    ) -> Result<Option<Vec<Tensor>>> {
        let root = self.id.root;
        if !self.at_root() {
            let labels = self.hand_out(sequence, None).await?;
            let metas = self.metas(root, &self.unlabelled(root, labels)?)?;
            return self.receive(sequence, &metas).await.map(Some);
        }
        let Some(tensors) = tensors else {
            let _told = self.hand_out(sequence, None).await?;
            return Err(self.nothing("a list of tensors"));
        };
        let labels = encode(&tensors.iter().map(Label::of).collect::<Vec<_>>());
        let handed = self.hand_out(sequence, labels.as_deref().ok()).await?;
        self.unlabelled(root, labels.and(handed))?;
        self.send(sequence, tensors).await?;
        Ok(None)
    }

    /// The elements, from the root.
    async fn send(&self, sequence: &mut Sequence<'_>, tensors: &[TensorView<'_>]) -> Result<()> {
        let sizes: Vec<usize> = tensors.iter().map(|it| it.len() * it.dtype().size()).collect();
        for run in runs(&sizes, self.small()) {
            let all = packed(tensors.get(run).unwrap_or_default()).map_err(|error| self.lacks(&error))?;
            self.run_broadcast(sequence, all.len(), Borrowed::given(&all)).await?;
        }
        Ok(())
    }

    /// Zeros in which received elements go.
    pub(crate) fn empty(&self, meta: &Meta) -> Result<Tensor> {
        Tensor::zeros(meta.dtype, &meta.shape).map_err(|error| self.lacks(&error))
    }

    /// The elements, elsewhere.
    async fn receive(&self, sequence: &mut Sequence<'_>, metas: &[Meta]) -> Result<Vec<Tensor>> {
        let mut tensors = metas.iter().map(|meta| self.empty(meta)).collect::<Result<Vec<_>>>()?;
        let sizes: Vec<usize> = metas.iter().map(|meta| meta.bytes).collect();
        for run in runs(&sizes, self.small()) {
            let tensors = tensors.get_mut(run).unwrap_or_default();
            if let [tensor] = tensors {
                self.fill(sequence, tensor.bytes_mut()).await?;
                continue;
            }
            let mut all = vec![0; tensors.iter().map(|tensor| tensor.bytes().len()).sum()];
            self.fill(sequence, &mut all).await?;
            deal(&all, tensors.iter_mut().map(Tensor::view_mut))?;
        }
        Ok(tensors)
    }

    async fn fill(&self, sequence: &mut Sequence<'_>, bytes: &mut [u8]) -> Result<()> {
        let len = bytes.len();
        let borrowed = Borrowed::within(bytes, 0..len, 0..len).ok_or_else(|| self.nowhere())?;
        self.run_broadcast(sequence, len, borrowed).await
    }

    /// What all ranks have, to all of them or the root.
    async fn lists(
        &self,
        sequence: &mut Sequence<'_>,
        tensors: &[TensorView<'_>],
    ) -> Result<Option<Vec<Vec<Tensor>>>> {
        let labels = encode(&tensors.iter().map(Label::of).collect::<Vec<_>>());
        let all = self.labels(sequence, labels).await?;
        let metas = all.iter().enumerate().map(|(rank, labels)| self.metas(rank, labels));
        let metas = metas.collect::<Result<Vec<_>>>()?;
        let gets = self.gets();
        let mut lists = Vec::new();
        if gets {
            let lists_of = |metas: &Vec<Meta>| metas.iter().map(|meta| self.empty(meta)).collect();
            lists = metas.iter().map(lists_of).collect::<Result<Vec<Vec<_>>>>()?;
        }
        let longest = metas.iter().map(Vec::len).max().unwrap_or_default();
        let size = |metas: &Vec<Meta>, index: usize| metas.get(index).map_or(0, |meta| meta.bytes);
        let largest = |index| metas.iter().map(|metas| size(metas, index)).max().unwrap_or_default();
        for run in runs(&(0..longest).map(largest).collect::<Vec<_>>(), self.small()) {
            let within = |len: usize| run.start.min(len)..run.end.min(len);
            let mine = tensors.get(within(tensors.len())).unwrap_or_default();
            let mine = packed(mine).map_err(|error| self.lacks(&error))?;
            let lengths: Vec<usize> = metas
                .iter()
                .map(|metas| run.clone().fold(0_usize, |sum, index| sum.saturating_add(size(metas, index))))
                .collect();
            let mut all = self.room::<u8>(if gets { &lengths } else { &[] })?;
            self.gather(sequence, &lengths, Borrowed::apart(&mine, &mut all)).await?;
            let places = lists.iter_mut().flat_map(|list| {
                let within = within(list.len());
                list.get_mut(within).unwrap_or_default()
            });
            deal(&all, places.map(Tensor::view_mut))?;
        }
        Ok(gets.then_some(lists))
    }

    /// Everyone's labels, to everyone, whoever gets the elements: all have to know how long everything is.
    pub(crate) async fn labels(
        &self,
        sequence: &mut Sequence<'_>,
        labels: Blob<Vec<u8>>,
    ) -> Result<Vec<Vec<u8>>> {
        let collected = self.collect(sequence, labels.as_deref().ok(), true).await?;
        self.unlabelled(self.group.rank(), labels)?;
        let (bytes, lengths) = collected.or_else(|(rank, problem)| self.unlabelled(rank, Err(problem)))?;
        Ok(cut(&bytes, &lengths).map(<[u8]>::to_vec).collect())
    }
}

/// Hands out bytes, one after the other, to the tensors that they are the elements of.
pub(crate) fn deal<'t>(
    mut bytes: &[u8],
    tensors: impl Iterator<Item = TensorViewMut<'t>>,
) -> std::result::Result<(), TensorError> {
    for mut tensor in tensors {
        let size = tensor.len().saturating_mul(tensor.dtype().size());
        if let Some((own, rest)) = bytes.split_at_checked(size) {
            tensor.unpack_from(own)?;
            bytes = rest;
        }
    }
    Ok(())
}
