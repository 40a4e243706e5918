//! Collectives of lists of tensors, whose number, types and shapes only their owners know.
//!
//! The headers travel first, as a blob. Then every rank knows all lengths, and the elements follow: each large tensor in a
//! separate operation, without a copy, and runs of small tensors packed together.

use std::borrow::Cow;

use serde::de::DeserializeOwned;
use unisono_engine::Borrowed;
use unisono_schedule::Rank;

use crate::{
    dtype::Dtype,
    error::{Error, Result},
    group::{
        collective::{UnevenCall, UnevenSteps},
        typed::{
            Blob, cut,
            tensors::{TensorHeader, TensorInfo, packed, runs, unpack_each},
        },
    },
    object::{decode, encode},
    tensor::{Tensor, TensorView},
};

impl UnevenCall {
    /// A rank's headers, or the error that says why there are none.
    pub(crate) fn received_header<T>(&self, from: Rank, headers: Blob<T>) -> Result<T> {
        let (call, rank, type_name) = (self.name, self.group.global(from), "list of shapes");
        headers.map_err(|problem| Error::Object { call, rank, type_name, problem })
    }

    /// The headers of a rank. If they are malformed, the group fails.
    pub(crate) fn decoded<T: DeserializeOwned>(&self, from: Rank, headers: &[u8]) -> Result<T> {
        decode(headers).map_err(|error| self.group.malformed(self.name, from, error))
    }

    /// A tensor of zeros that elements are received into.
    pub(crate) fn empty(&self, dtype: Dtype, shape: &[usize]) -> Result<Tensor> {
        Tensor::zeros(dtype, shape).map_err(|error| self.group.aborted(self.name, error))
    }

    /// The elements of tensors, [packed](packed).
    pub(crate) fn packed<'t>(&self, tensors: &[TensorView<'t>]) -> Result<Cow<'t, [u8]>> {
        packed(tensors).map_err(|error| self.group.aborted(self.name, error))
    }
}

impl UnevenSteps<'_> {
    /// Broadcasts the root's tensors, and returns them on the other ranks.
    pub(crate) async fn broadcast_list(
        &mut self,
        tensors: Option<&[TensorView<'_>]>,
    ) -> Result<Option<Vec<Tensor>>> {
        let root = self.id.root;
        if !self.at_root() {
            let headers = self.broadcast_blob(None).await?;
            let infos: Vec<_> = self.decoded(root, &self.received_header(root, headers)?)?;
            return self.receive(&infos).await.map(Some);
        }
        let Some(tensors) = tensors else {
            let _unsent = self.broadcast_blob(None).await?;
            return Err(self.missing("a list of tensors"));
        };
        let headers = encode(&tensors.iter().map(TensorHeader::of).collect::<Vec<_>>());
        let sent = self.broadcast_blob(headers.as_deref().ok()).await?;
        self.received_header(root, headers.and(sent))?;
        self.send(tensors).await?;
        Ok(None)
    }

    /// Broadcasts the elements; called on the root.
    async fn send(&mut self, tensors: &[TensorView<'_>]) -> Result<()> {
        let sizes = tensors.iter().map(|it| it.len() * it.dtype().size());
        for run in runs(sizes, self.group.config().eager()) {
            let all = self.packed(tensors.get(run).unwrap_or_default())?;
            self.run_broadcast(all.len(), Borrowed::given(&all)).await?;
        }
        Ok(())
    }

    /// Receives the elements; called on the other ranks.
    async fn receive(&mut self, infos: &[TensorInfo]) -> Result<Vec<Tensor>> {
        let empty = |info: &TensorInfo| self.empty(info.dtype, &info.shape);
        let mut tensors = infos.iter().map(empty).collect::<Result<Vec<_>>>()?;
        for run in runs(infos.iter().map(|info| info.bytes), self.group.config().eager()) {
            let tensors = tensors.get_mut(run).unwrap_or_default();
            if let [tensor] = tensors {
                self.fill(tensor.bytes_mut()).await?;
                continue;
            }
            let mut all = vec![0; tensors.iter().map(|tensor| tensor.bytes().len()).sum()];
            self.fill(&mut all).await?;
            unpack_each(&all, tensors.iter_mut().map(Tensor::view_mut))?;
        }
        Ok(tensors)
    }

    /// Gathers the lists of all ranks, on all ranks or the root.
    pub(crate) async fn lists(&mut self, tensors: &[TensorView<'_>]) -> Result<Option<Vec<Vec<Tensor>>>> {
        let headers = encode(&tensors.iter().map(TensorHeader::of).collect::<Vec<_>>());
        let all = self.all_headers(headers).await?;
        let infos = all.iter().enumerate().map(|(rank, headers)| self.decoded(rank, headers));
        let infos: Vec<Vec<TensorInfo>> = infos.collect::<Result<_>>()?;
        let gets = self.gets();
        let mut lists = Vec::new();
        if gets {
            let empty = |info: &TensorInfo| self.empty(info.dtype, &info.shape);
            let lists_of = |infos: &Vec<_>| infos.iter().map(empty).collect();
            lists = infos.iter().map(lists_of).collect::<Result<Vec<Vec<_>>>>()?;
        }
        let longest = infos.iter().map(Vec::len).max().unwrap_or_default();
        let size = |infos: &Vec<TensorInfo>, index: usize| infos.get(index).map_or(0, |info| info.bytes);
        let largest = |index| infos.iter().map(|infos| size(infos, index)).max().unwrap_or_default();
        for run in runs((0..longest).map(largest), self.group.config().eager()) {
            let within = |len: usize| run.start.min(len)..run.end.min(len);
            let mine = self.packed(tensors.get(within(tensors.len())).unwrap_or_default())?;
            let lengths: Vec<usize> = infos
                .iter()
                .map(|infos| run.clone().fold(0_usize, |sum, index| sum.saturating_add(size(infos, index))))
                .collect();
            let mut all = self.room::<u8>(if gets { &lengths } else { &[] })?;
            self.gather(&lengths, Borrowed::apart(&mine, &mut all)).await?;
            let places = lists.iter_mut().flat_map(|list| {
                let within = within(list.len());
                list.get_mut(within).unwrap_or_default()
            });
            unpack_each(&all, places.map(Tensor::view_mut))?;
        }
        Ok(gets.then_some(lists))
    }

    /// The headers of all ranks. Even a rank that gets no elements gets them, because it must know all lengths.
    pub(crate) async fn all_headers(&mut self, headers: Blob<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
        let collected = self.gather_blobs(headers.as_deref().ok(), true).await?;
        self.received_header(self.group.rank(), headers)?;
        let (bytes, lengths) =
            collected.or_else(|(rank, problem)| self.received_header(rank, Err(problem)))?;
        Ok(cut(&bytes, &lengths).map(<[u8]>::to_vec).collect())
    }
}
