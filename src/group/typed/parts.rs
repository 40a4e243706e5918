//! One tensor whose parts lie on the ranks: scattered and gathered.

use serde::{Deserialize, Serialize};
use unisono_schedule::{Collective, Rank};

use crate::{
    buffer::Borrowed,
    engine::Cargo,
    error::{Error, Result},
    group::{
        ProcessGroup,
        collective::lengths::{UnevenCall, longest},
        sequence::Sequence,
        typed::{
            blobs::cut,
            tensors::{Label, Meta, packed},
        },
    },
    object::{decode, encode},
    tensor::{Parts, Tensor, TensorView},
    work::Work,
};

/// What goes ahead: how the parts lie, and the whole or a rank's part.
#[derive(Serialize, Deserialize)]
struct Ahead {
    parts: Lie,
    label: Label,
}

/// [`Parts`] as they travel, and as a call under way keeps them.
#[derive(PartialEq, Serialize, Deserialize)]
enum Lie {
    Split(u64),
    Chunk(u64),
    Blocks(u64, u64),
    SplitAt(u64, Vec<isize>),
}

impl Lie {
    fn of(parts: Parts<'_>) -> Self {
        match parts {
            Parts::Split(dim) => Self::Split(dim as u64),
            Parts::Chunk(dim) => Self::Chunk(dim as u64),
            Parts::Blocks { rows, columns } => Self::Blocks(rows as u64, columns as u64),
            Parts::SplitAt { dim, indices } => Self::SplitAt(dim as u64, indices.to_vec()),
        }
    }

    fn read(&self) -> Parts<'_> {
        // What does not fit is no dimension here either.
        let number = |number: &u64| usize::try_from(*number).unwrap_or(usize::MAX);
        match self {
            Self::Split(dim) => Parts::Split(number(dim)),
            Self::Chunk(dim) => Parts::Chunk(number(dim)),
            Self::Blocks(rows, columns) => Parts::Blocks { rows: number(rows), columns: number(columns) },
            Self::SplitAt(dim, indices) => Parts::SplitAt { dim: number(dim), indices },
        }
    }
}

impl ProcessGroup {
    /// Every rank gets its part of the root's tensor, of which it need know nothing beforehand. Elsewhere `tensor` is not
    /// looked at. How it is cut counts at the root alone.
    ///
    /// A tensor that is contiguous and whose parts lie one after the other, as rows do, is sent from where it lies; another
    /// one is packed first, part by part.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such root, or at the root if it gives no tensor; at the root [`Error::Tensor`] if
    /// it cannot be cut so, and [`Error::Object`] elsewhere in both cases: there is no such dimension, or the grid has not
    /// as many blocks, or the indices make not as many pieces, as there are ranks; [`Error::Failed`] if the ranks disagree
    /// on the call, one of them has no memory for its part, or the group is over.
    pub fn scatter_tensor(
        &self,
        tensor: Option<&TensorView<'_>>,
        parts: Parts<'_>,
        root: Rank,
    ) -> Result<Tensor> {
        let call = self.carrier("scatter_tensor", Collective::Scatter, Cargo::Parts, root)?;
        self.now(async |sequence| call.scatter_parts(sequence, tensor, parts).await)
    }

    /// Begins a [`scatter_tensor`](Self::scatter_tensor); `tensor` comes back too, first.
    ///
    /// # Errors
    /// As [`scatter_tensor`](Self::scatter_tensor), here or from the wait.
    pub fn scatter_tensor_async(
        &self,
        tensor: Option<Tensor>,
        parts: Parts<'_>,
        root: Rank,
    ) -> Result<Work<(Option<Tensor>, Tensor)>> {
        let call = self.carrier("scatter_tensor", Collective::Scatter, Cargo::Parts, root)?;
        let parts = Lie::of(parts);
        let steps = |mut sequence| async move {
            let given = tensor.as_ref().map(Tensor::view);
            let part = call.scatter_parts(&mut sequence, given.as_ref(), parts.read()).await?;
            Ok((tensor, part))
        };
        self.later("scatter_tensor", steps, Ok)
    }

    /// The root gets the tensor that all ranks' parts make, in the order of ranks: the inverse of
    /// [`scatter_tensor`](Self::scatter_tensor). The others get `None`. Along a dimension the parts may be of any length.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such root; on all ranks [`Error::Tensor`] if the parts do not fit together, and
    /// [`Error::Argument`] if their types, or the ways to put them together, differ: the group goes on; [`Error::Failed`] if
    /// the ranks disagree on the call, there is no memory for the tensor, or the group is over.
    pub fn gather_tensor(
        &self,
        part: &TensorView<'_>,
        parts: Parts<'_>,
        root: Rank,
    ) -> Result<Option<Tensor>> {
        let call = self.carrier("gather_tensor", Collective::Gather, Cargo::Parts, root)?;
        self.now(async |sequence| call.put_together(sequence, part, parts).await)
    }

    /// Begins a [`gather_tensor`](Self::gather_tensor); `part` comes back too, first.
    ///
    /// # Errors
    /// As [`gather_tensor`](Self::gather_tensor), here or from the wait.
    pub fn gather_tensor_async(
        &self,
        part: Tensor,
        parts: Parts<'_>,
        root: Rank,
    ) -> Result<Work<(Tensor, Option<Tensor>)>> {
        let call = self.carrier("gather_tensor", Collective::Gather, Cargo::Parts, root)?;
        let parts = Lie::of(parts);
        let steps = |mut sequence| async move {
            let whole = call.put_together(&mut sequence, &part.view(), parts.read()).await?;
            Ok((part, whole))
        };
        self.later("gather_tensor", steps, Ok)
    }

    /// Every rank gets the tensor that all ranks' parts make, as the root of [`gather_tensor`](Self::gather_tensor) does:
    /// with [`Parts::Split`], all ranks' tensors one after the other along a dimension.
    ///
    /// # Errors
    /// As [`gather_tensor`](Self::gather_tensor).
    pub fn all_gather_tensor(&self, part: &TensorView<'_>, parts: Parts<'_>) -> Result<Tensor> {
        let call = self.carrier("all_gather_tensor", Collective::AllGather, Cargo::Parts, 0)?;
        let whole = self.now(async |sequence| call.put_together(sequence, part, parts).await)?;
        whole.ok_or_else(|| call.nowhere())
    }

    /// Begins an [`all_gather_tensor`](Self::all_gather_tensor); `part` comes back too, first.
    ///
    /// # Errors
    /// As [`all_gather_tensor`](Self::all_gather_tensor), here or from the wait.
    pub fn all_gather_tensor_async(&self, part: Tensor, parts: Parts<'_>) -> Result<Work<(Tensor, Tensor)>> {
        let call = self.carrier("all_gather_tensor", Collective::AllGather, Cargo::Parts, 0)?;
        let parts = Lie::of(parts);
        let steps = |mut sequence| async move {
            let whole = call.put_together(&mut sequence, &part.view(), parts.read()).await?;
            Ok((part, whole.ok_or_else(|| call.nowhere())?))
        };
        self.later("all_gather_tensor", steps, Ok)
    }
}

impl UnevenCall {
    fn read(&self, from: Rank, ahead: &[u8]) -> Result<(Lie, Meta)> {
        let ahead: Ahead = decode(ahead).map_err(|error| self.strange(from, error.to_string()))?;
        let meta = ahead.label.read().map_err(|what| self.strange(from, what))?;
        Ok((ahead.parts, meta))
    }

    /// This rank's part of the root's tensor.
    async fn scatter_parts(
        &self,
        sequence: &mut Sequence<'_>,
        tensor: Option<&TensorView<'_>>,
        parts: Parts<'_>,
    ) -> Result<Tensor> {
        let root = self.id.root;
        if !self.at_root() {
            let told = self.hand_out(sequence, None).await?;
            let (parts, whole) = self.read(root, &self.unlabelled(root, told)?)?;
            let shapes = parts.read().shapes(&whole.shape, self.group.size());
            let shapes = shapes.map_err(|error| self.strange(root, error.to_string()))?;
            return self.hand_parts(sequence, &whole, &shapes, &[]).await;
        }
        let cut = tensor.map(|tensor| parts.cut(tensor, self.group.size()));
        let (tensor, cut) = match (tensor, cut) {
            (Some(tensor), Some(Ok(cut))) => (tensor, cut),
            (_, wrong) => {
                let _told = self.hand_out(sequence, None).await?;
                return Err(wrong
                    .and_then(std::result::Result::err)
                    .map_or_else(|| self.nothing("a tensor"), Error::Tensor));
            }
        };
        let label = Label::of(tensor);
        let told = encode(&Ahead { parts: Lie::of(parts), label });
        let handed = self.hand_out(sequence, told.as_deref().ok()).await?;
        self.unlabelled(root, told.and(handed))?;
        let shapes: Vec<_> = cut.iter().map(|part| part.shape().to_vec()).collect();
        let bytes = match tensor.bytes() {
            Ok(bytes) if parts.follow(tensor.shape()) => bytes.into(),
            _ => packed(&cut).map_err(|error| self.lacks(&error))?,
        };
        let whole = Meta { dtype: tensor.dtype(), shape: tensor.shape().to_vec(), bytes: bytes.len() };
        self.hand_parts(sequence, &whole, &shapes, &bytes).await
    }

    /// Hands out the parts of a tensor, which are of these shapes and, at the root, lie one after the other.
    async fn hand_parts(
        &self,
        sequence: &mut Sequence<'_>,
        whole: &Meta,
        shapes: &[Vec<usize>],
        bytes: &[u8],
    ) -> Result<Tensor> {
        let size = whole.dtype.size();
        let lengths: Vec<usize> = shapes.iter().map(|shape| shape.iter().product::<usize>() * size).collect();
        let shape = shapes.get(self.group.rank()).cloned().unwrap_or_default();
        let mut part = self.empty(&Meta { dtype: whole.dtype, shape, bytes: 0 })?;
        self.scatter(sequence, &lengths, longest(&lengths), Borrowed::apart(bytes, part.bytes_mut())).await?;
        Ok(part)
    }

    /// The tensor that all ranks' parts make, where they are gathered.
    async fn put_together(
        &self,
        sequence: &mut Sequence<'_>,
        part: &TensorView<'_>,
        parts: Parts<'_>,
    ) -> Result<Option<Tensor>> {
        let ahead = encode(&Ahead { parts: Lie::of(parts), label: Label::of(part) });
        let everyones = self.labels(sequence, ahead).await?;
        let everyones = everyones.iter().enumerate().map(|(rank, ahead)| self.read(rank, ahead));
        let (lies, metas): (Vec<_>, Vec<_>) = everyones.collect::<Result<Vec<_>>>()?.into_iter().unzip();
        let shape = self.fit(&lies, &metas)?;
        let mine = packed(std::slice::from_ref(part)).map_err(|error| self.lacks(&error))?;
        let lengths: Vec<usize> = metas.iter().map(|meta| meta.bytes).collect();
        if !self.gets() {
            self.gather(sequence, &lengths, Borrowed::apart(&mine, &mut [])).await?;
            return Ok(None);
        }
        let dtype = part.dtype();
        if parts.follow(&shape) {
            let mut whole = self.empty(&Meta { dtype, shape, bytes: 0 })?;
            self.gather(sequence, &lengths, Borrowed::apart(&mine, whole.bytes_mut())).await?;
            return Ok(Some(whole));
        }
        let mut all = self.room::<u8>(&lengths)?;
        self.gather(sequence, &lengths, Borrowed::apart(&mine, &mut all)).await?;
        let views = cut(&all, &lengths).zip(&metas);
        let views = views.map(|(bytes, meta)| TensorView::from_bytes(dtype, bytes, &meta.shape));
        let whole = views.collect::<std::result::Result<Vec<_>, _>>().and_then(|views| parts.join(&views));
        whole.map(Some).map_err(|error| self.lacks(&error))
    }

    /// The shape of what the parts make, if all ranks want the same and it can be had; otherwise the same error on all.
    fn fit(&self, lies: &[Lie], metas: &[Meta]) -> Result<Vec<usize>> {
        let argument = |problem: String| Error::Argument { call: self.name, problem };
        let (Some(lie), Some(first)) = (lies.first(), metas.first()) else { return Err(self.nowhere()) };
        let (zero, global) = (self.group.global(0), |rank| self.group.global(rank));
        if let Some((rank, other)) = lies.iter().enumerate().find(|(_, other)| *other != lie) {
            let problem = format!(
                "rank {zero} puts parts together by {:?}, rank {} by {:?}",
                lie.read(),
                global(rank),
                other.read()
            );
            return Err(argument(problem));
        }
        if let Some((rank, other)) = metas.iter().enumerate().find(|(_, other)| other.dtype != first.dtype) {
            let (mine, theirs) = (first.dtype, other.dtype);
            let problem = format!("rank {zero} has elements of {mine}, rank {} of {theirs}", global(rank));
            return Err(argument(problem));
        }
        let shapes: Vec<&[usize]> = metas.iter().map(|meta| &meta.shape[..]).collect();
        Ok(lie.read().joined(first.dtype, &shapes, self.name, self.group.members())?)
    }
}
