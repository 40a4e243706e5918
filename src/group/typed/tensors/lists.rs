//! Collectives of lists of tensors, whose number, types and shapes only their owners know.
//!
//! The headers travel first, as a blob. Then every rank knows all lengths, and the elements follow: each large tensor in a
//! separate operation, without a copy, and runs of small tensors packed together.

use unisono_engine::Borrowed;
use unisono_schedule::Rank;

use crate::{
    error::{Error, Failure, Result},
    group::{
        collective::lengths::{UnevenCall, UnevenSteps},
        typed::{
            blobs::{Blob, cut},
            tensors::packing::{TensorHeader, TensorInfo, packed, runs, unpack_each},
        },
    },
    object::{ObjectError, decode, encode},
    tensor::{Tensor, TensorError, TensorView},
};

impl UnevenCall {
    /// A rank's headers, or the error that says why there are none.
    pub(crate) fn received_header<T>(&self, from: Rank, headers: Blob<T>) -> Result<T> {
        let rank = self.group.global(from);
        headers.map_err(|problem: ObjectError| Error::Object {
            call: self.name,
            rank,
            type_name: "list of shapes",
            problem,
        })
    }

    /// A header is malformed: the group fails.
    pub(crate) fn protocol_error(&self, from: Rank, what: String) -> Error {
        let (rank, from) = (self.group.global_rank(), self.group.global(from));
        Error::Failed(Failure::Protocol { rank, from, what: format!("{}: {what}", self.name) })
    }

    /// This rank cannot continue an operation that the others have begun: the group fails.
    pub(crate) fn abort_error(&self, error: &TensorError) -> Error {
        let why = format!("{}: {error}", self.name);
        Error::Failed(Failure::Aborted { rank: self.group.global_rank(), why })
    }

    /// The types and shapes of a rank's tensors, from its headers.
    fn infos(&self, from: Rank, headers: &[u8]) -> Result<Vec<TensorInfo>> {
        let headers: Vec<TensorHeader> =
            decode(headers).map_err(|error| self.protocol_error(from, error.to_string()))?;
        headers
            .into_iter()
            .map(|header| header.read().map_err(|what| self.protocol_error(from, what)))
            .collect()
    }

    /// The most bytes of tensors that share an operation.
    fn small(&self) -> usize {
        self.group.config().eager()
    }

    /// A tensor of zeros that elements are received into.
    pub(crate) fn empty(&self, info: &TensorInfo) -> Result<Tensor> {
        Tensor::zeros(info.dtype, &info.shape).map_err(|error| self.abort_error(&error))
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
            let infos = self.infos(root, &self.received_header(root, headers)?)?;
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
        let sizes: Vec<usize> = tensors.iter().map(|it| it.len() * it.dtype().size()).collect();
        for run in runs(&sizes, self.small()) {
            let all =
                packed(tensors.get(run).unwrap_or_default()).map_err(|error| self.abort_error(&error))?;
            self.run_broadcast(all.len(), Borrowed::given(&all)).await?;
        }
        Ok(())
    }

    /// Receives the elements; called on the other ranks.
    async fn receive(&mut self, infos: &[TensorInfo]) -> Result<Vec<Tensor>> {
        let mut tensors = infos.iter().map(|info| self.empty(info)).collect::<Result<Vec<_>>>()?;
        let sizes: Vec<usize> = infos.iter().map(|info| info.bytes).collect();
        for run in runs(&sizes, self.small()) {
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
        let infos = all.iter().enumerate().map(|(rank, headers)| self.infos(rank, headers));
        let infos = infos.collect::<Result<Vec<_>>>()?;
        let gets = self.gets();
        let mut lists = Vec::new();
        if gets {
            let lists_of = |infos: &Vec<TensorInfo>| infos.iter().map(|info| self.empty(info)).collect();
            lists = infos.iter().map(lists_of).collect::<Result<Vec<Vec<_>>>>()?;
        }
        let longest = infos.iter().map(Vec::len).max().unwrap_or_default();
        let size = |infos: &Vec<TensorInfo>, index: usize| infos.get(index).map_or(0, |info| info.bytes);
        let largest = |index| infos.iter().map(|infos| size(infos, index)).max().unwrap_or_default();
        for run in runs(&(0..longest).map(largest).collect::<Vec<_>>(), self.small()) {
            let within = |len: usize| run.start.min(len)..run.end.min(len);
            let mine = tensors.get(within(tensors.len())).unwrap_or_default();
            let mine = packed(mine).map_err(|error| self.abort_error(&error))?;
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
