//! One tensor whose parts are on the ranks: scatters and gathers it.

use serde::{Deserialize, Serialize};
use unisono_engine::Borrowed;
use unisono_schedule::Rank;

use crate::{
    dtype::Dtype,
    error::{Error, Result},
    group::{
        collective::{UnevenCall, UnevenSteps, longest, outside},
        plan::argument,
        typed::{
            cut,
            tensors::{TensorHeader, TensorInfo},
        },
    },
    object::encode,
    tensor::{Parts, Tensor, TensorView},
};

/// The message before the elements: how the tensor is split, and the [`TensorHeader`] of the whole tensor or of a rank's part.
#[derive(Serialize, Deserialize)]
struct PartHeader<H> {
    parts: OwnedParts,
    header: H,
}

/// [`Parts`] as a message carries them, and as an asynchronous call keeps them.
#[derive(PartialEq, Serialize, Deserialize)]
pub(crate) enum OwnedParts {
    Split(u64),
    Chunk(u64),
    Blocks(u64, u64),
    SplitAt(u64, Vec<isize>),
}

impl OwnedParts {
    pub(crate) fn of(parts: Parts<'_>) -> Self {
        match parts {
            Parts::Split(dim) => Self::Split(dim as u64),
            Parts::Chunk(dim) => Self::Chunk(dim as u64),
            Parts::Blocks { rows, columns } => Self::Blocks(rows as u64, columns as u64),
            Parts::SplitAt { dim, indices } => Self::SplitAt(dim as u64, indices.to_vec()),
        }
    }

    pub(crate) fn read(&self) -> Parts<'_> {
        // A number that does not fit stands for no dimension of a tensor.
        let number = |number: &u64| usize::try_from(*number).unwrap_or(usize::MAX);
        match self {
            Self::Split(dim) => Parts::Split(number(dim)),
            Self::Chunk(dim) => Parts::Chunk(number(dim)),
            Self::Blocks(rows, columns) => Parts::Blocks { rows: number(rows), columns: number(columns) },
            Self::SplitAt(dim, indices) => Parts::SplitAt { dim: number(dim), indices },
        }
    }
}

impl UnevenCall {
    /// Decodes a rank's header.
    fn read(&self, from: Rank, header: &[u8]) -> Result<(OwnedParts, TensorInfo)> {
        let PartHeader { parts, header } = self.decoded(from, header)?;
        Ok((parts, header))
    }

    /// The shape of the joined tensor; or an error, the same on all ranks, if the ranks differ in `parts` or in type, or if the
    /// parts do not fit together.
    fn joined_shape(&self, all_parts: &[OwnedParts], infos: &[TensorInfo]) -> Result<Vec<usize>> {
        let (Some(first_parts), Some(first)) = (all_parts.first(), infos.first()) else {
            return Err(outside(self.name, 0));
        };
        let (zero, global) = (self.group.global(0), |rank| self.group.global(rank));
        if let Some((rank, other)) = all_parts.iter().enumerate().find(|(_, other)| *other != first_parts) {
            let (mine, rank, theirs) = (first_parts.read(), global(rank), other.read());
            let problem = format!("rank {zero} joins parts by {mine:?}, rank {rank} by {theirs:?}");
            return Err(argument(self.name, problem));
        }
        if let Some((rank, other)) = infos.iter().enumerate().find(|(_, other)| other.dtype != first.dtype) {
            let (mine, theirs) = (first.dtype, other.dtype);
            let problem = format!("rank {zero} has elements of {mine}, rank {} of {theirs}", global(rank));
            return Err(argument(self.name, problem));
        }
        let shapes: Vec<&[usize]> = infos.iter().map(|info| &info.shape[..]).collect();
        Ok(first_parts.read().joined(first.dtype, &shapes, self.name, &self.group.shared.members)?)
    }
}

impl UnevenSteps<'_> {
    /// This rank's part of the root's tensor.
    pub(crate) async fn scatter_parts(
        &mut self,
        tensor: Option<&TensorView<'_>>,
        parts: Parts<'_>,
    ) -> Result<Tensor> {
        let root = self.id.root;
        if !self.at_root() {
            let received = self.broadcast_blob(None).await?;
            let (parts, whole) = self.read(root, &self.received_header(root, received)?)?;
            let shapes = parts.read().shapes(&whole.shape, self.group.size());
            let shapes = shapes.map_err(|error| self.group.malformed(self.name, root, error))?;
            return self.scatter_bytes(whole.dtype, &shapes, &[]).await;
        }
        let cut = tensor.map(|tensor| parts.cut(tensor, self.group.size()));
        let (tensor, cut) = match (tensor, cut) {
            (Some(tensor), Some(Ok(cut))) => (tensor, cut),
            (_, wrong) => {
                let _unsent = self.broadcast_blob(None).await?;
                return Err(wrong
                    .and_then(std::result::Result::err)
                    .map_or_else(|| self.missing("a tensor"), Error::Tensor));
            }
        };
        let header = TensorHeader::of(tensor);
        let header = encode(&PartHeader { parts: OwnedParts::of(parts), header });
        let sent = self.broadcast_blob(header.as_deref().ok()).await?;
        self.received_header(root, header.and(sent))?;
        let shapes: Vec<_> = cut.iter().map(|part| part.shape().to_vec()).collect();
        let bytes = match tensor.bytes() {
            Ok(bytes) if parts.follow(tensor.shape()) => bytes.into(),
            _ => self.packed(&cut)?,
        };
        self.scatter_bytes(tensor.dtype(), &shapes, &bytes).await
    }

    /// Scatters the parts of a tensor, which have these shapes. On the root, `bytes` has their elements, concatenated.
    async fn scatter_bytes(&mut self, dtype: Dtype, shapes: &[Vec<usize>], bytes: &[u8]) -> Result<Tensor> {
        let bytes_of = |shape: &Vec<usize>| shape.iter().product::<usize>() * dtype.size();
        let lengths: Vec<usize> = shapes.iter().map(bytes_of).collect();
        let mut part = self.empty(dtype, shapes.get(self.group.rank()).map_or(&[], Vec::as_slice))?;
        self.scatter(&lengths, longest(&lengths), Borrowed::apart(bytes, part.bytes_mut())).await?;
        Ok(part)
    }

    /// The tensor that the parts of all ranks make, on the ranks that get it.
    pub(crate) async fn join_parts(
        &mut self,
        part: &TensorView<'_>,
        parts: Parts<'_>,
    ) -> Result<Option<Tensor>> {
        let header = encode(&PartHeader { parts: OwnedParts::of(parts), header: TensorHeader::of(part) });
        let headers = self.all_headers(header).await?;
        let headers = headers.iter().enumerate().map(|(rank, header)| self.read(rank, header));
        let (all_parts, infos): (Vec<_>, Vec<_>) = headers.collect::<Result<Vec<_>>>()?.into_iter().unzip();
        let shape = self.joined_shape(&all_parts, &infos)?;
        let mine = self.packed(std::slice::from_ref(part))?;
        let lengths: Vec<usize> = infos.iter().map(|info| info.bytes).collect();
        if !self.gets() {
            self.gather(&lengths, Borrowed::apart(&mine, &mut [])).await?;
            return Ok(None);
        }
        let dtype = part.dtype();
        if parts.follow(&shape) {
            let mut whole = self.empty(dtype, &shape)?;
            self.gather(&lengths, Borrowed::apart(&mine, whole.bytes_mut())).await?;
            return Ok(Some(whole));
        }
        let mut all = self.room::<u8>(&lengths)?;
        self.gather(&lengths, Borrowed::apart(&mine, &mut all)).await?;
        let views = cut(&all, &lengths).zip(&infos);
        let views = views.map(|(bytes, info)| TensorView::from_bytes(dtype, bytes, &info.shape));
        let whole = views.collect::<std::result::Result<Vec<_>, _>>().and_then(|views| parts.join(&views));
        whole.map(Some).map_err(|error| self.group.aborted(self.name, error))
    }
}
