//! Collectives and messages of tensors, whose number, types and shapes only their owners know.

use unisono_engine::Cargo;
use unisono_schedule::{Collective, Rank};

use super::mode::{Asynchronous, Blocking, Mode};
use crate::{
    error::Result,
    group::{
        ProcessGroup,
        collective::{UnevenCall, outside},
        message::{Receiver, Sender},
        sequence::{Operations, Sequence},
        typed::{
            NAME, list,
            tensors::{OwnedParts, views},
        },
    },
    reduce::ReduceOp,
    tensor::{Parts, Tensor, TensorView, TensorViewMut},
    work::Work,
};

/// Lists of tensors, one for each rank.
pub type TensorLists = Vec<Vec<Tensor>>;

/// How calls take tensors: borrowed views if they block, otherwise the tensors by value, which the [`Work`] returns.
pub trait TensorMode: Mode {
    /// A tensor: a [`TensorView`], or a [`Tensor`].
    type One<'t>;
    /// Tensors: a slice of views, or a vector of tensors.
    type List<'t>;
    /// Tensors that the call writes: a slice of mutable views, or a vector of tensors.
    type ListMut<'l, 't: 'l>;
    /// What a call returns that was given a `G` and whose result is an `R`: the result, or a [`Work`] that returns both.
    type With<G, R>;
    /// What a call returns that has no result besides what it was given, a `G`: nothing, or a [`Work`] that returns it.
    type Given<G>;
    /// What a broadcast returns: the received tensors, and `None` at the root; or a [`Work`] that returns the root's tensors.
    type Broadcast;

    #[doc(hidden)]
    fn broadcast(
        group: &ProcessGroup<Self>,
        call: UnevenCall,
        tensors: Option<Self::List<'_>>,
    ) -> Result<Self::Broadcast>;
    #[doc(hidden)]
    fn lists<'t, R: Send + 'static>(
        group: &ProcessGroup<Self>,
        call: UnevenCall,
        tensors: Self::List<'t>,
        open: fn(Option<TensorLists>) -> R,
    ) -> Result<Self::With<Vec<Tensor>, R>>;
    #[doc(hidden)]
    fn scatter_parts<'t>(
        group: &ProcessGroup<Self>,
        call: UnevenCall,
        tensor: Option<Self::One<'t>>,
        parts: Parts<'_>,
    ) -> Result<Self::With<Option<Tensor>, Tensor>>;
    #[doc(hidden)]
    fn join_parts<'t, R: Send + 'static>(
        group: &ProcessGroup<Self>,
        call: UnevenCall,
        part: Self::One<'t>,
        parts: Parts<'_>,
        open: fn(Option<Tensor>) -> Result<R>,
    ) -> Result<Self::With<Tensor, R>>;
    #[doc(hidden)]
    fn send<'t>(
        group: &ProcessGroup<Self>,
        tensors: Self::List<'t>,
        to: Receiver,
    ) -> Result<Self::Given<Vec<Tensor>>>;
    #[doc(hidden)]
    fn recv_into<'l, 't>(
        group: &ProcessGroup<Self>,
        tensors: Self::ListMut<'l, 't>,
        from: Sender,
    ) -> Result<Self::With<Vec<Tensor>, Rank>>;
    #[doc(hidden)]
    fn all_reduce<'l, 't>(
        group: &ProcessGroup<Self>,
        tensors: Self::ListMut<'l, 't>,
        op: ReduceOp,
    ) -> Result<Self::Given<Vec<Tensor>>>;
}

/// # Tensors
/// Values of [`Tensor`] and its views: lists whose number, types and shapes only their owners know, and one tensor whose parts are on the
/// ranks. A blocking call borrows views; a call that [`begin`](Self::begin) makes takes tensors by value, and its [`Work`] returns them
/// before the result.
impl<M: TensorMode> ProcessGroup<M> {
    /// Broadcasts the root's tensors. The other ranks need not know their number, types and shapes, and their `tensors` is
    /// ignored. The root gets `None`.
    ///
    /// Large tensors that are contiguous are sent and received without a copy. Other tensors are packed first; many small ones
    /// share an operation.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if there is no such root, or if the root gives `None`; then the other ranks get [`Error::Object`](crate::Error::Object).
    /// [`Error::Object`](crate::Error::Object) on all ranks if the shapes alone take more than
    /// [`Config::object_limit`](crate::Config::object_limit). [`Error::Failed`](crate::Error::Failed) if the ranks disagree on the call, if memory is
    /// short on a rank, or if the group has failed.
    pub fn broadcast_tensors(&self, tensors: Option<M::List<'_>>, root: Rank) -> Result<M::Broadcast> {
        let call = self.handle.carrier("broadcast_tensors", Collective::Broadcast, Cargo::Tensors, root)?;
        M::broadcast(self, call, tensors)
    }

    /// Gathers the tensors of all ranks on the root: a list for each rank; the other ranks get `None`. The lists may differ in
    /// length or be empty, and the tensors may have any types and shapes.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if there is no such root; [`Error::Object`](crate::Error::Object) as [`broadcast_tensors`](Self::broadcast_tensors);
    /// [`Error::Failed`](crate::Error::Failed) if the ranks disagree on the call, if memory is short on a rank, or if the group has failed.
    pub fn gather_tensors(
        &self,
        tensors: M::List<'_>,
        root: Rank,
    ) -> Result<M::With<Vec<Tensor>, Option<TensorLists>>> {
        let call = self.handle.carrier("gather_tensors", Collective::Gather, Cargo::Tensors, root)?;
        M::lists(self, call, tensors, |lists| lists)
    }

    /// As [`gather_tensors`](Self::gather_tensors), with the result on every rank.
    ///
    /// # Errors
    /// As [`gather_tensors`](Self::gather_tensors).
    pub fn all_gather_tensors(&self, tensors: M::List<'_>) -> Result<M::With<Vec<Tensor>, TensorLists>> {
        let call = self.handle.carrier("all_gather_tensors", Collective::AllGather, Cargo::Tensors, 0)?;
        M::lists(self, call, tensors, Option::unwrap_or_default)
    }

    /// Splits the root's tensor and gives each rank its part. Only the root's `tensor` and `parts` count; the other ranks need
    /// not know type and shape.
    ///
    /// A contiguous tensor whose parts are consecutive in memory, as blocks of rows are, is sent without a copy. Another one is
    /// packed first, part by part.
    ///
    /// ```
    /// # use unisono::{Config, ProcessGroup, Tensor, tensor::Parts};
    /// # use unisono_transport::inproc::Hub;
    /// # fn main() -> unisono::Result<()> {
    /// # let group = ProcessGroup::with(Config::default(), Box::new(Hub::new().open()), None)?;
    /// // The root has a matrix with two rows for each rank; every rank gets its two rows, and gives them back.
    /// let matrix = (group.rank() == 0).then(|| Tensor::zeros(unisono::dtype::Dtype::F32, &[2 * group.size(), 5]));
    /// let matrix = matrix.transpose()?;
    /// let rows = group.scatter_tensor(matrix.as_ref().map(Tensor::view), Parts::Chunk(0), 0)?;
    /// assert_eq!(rows.shape(), [2, 5]);
    /// let whole = group.gather_tensor(rows.view(), Parts::Chunk(0), 0)?;
    /// # assert_eq!(whole.map(|whole| whole.shape().to_vec()), Some(vec![2 * group.size(), 5]));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if there is no such root, or on the root if it gives no tensor; [`Error::Tensor`](crate::Error::Tensor) on the root if the
    /// tensor cannot be split so: there is no such dimension, or the number of blocks or of pieces is not the number of ranks.
    /// In both cases the other ranks get [`Error::Object`](crate::Error::Object). [`Error::Failed`](crate::Error::Failed) if the ranks disagree on the call, if memory is
    /// short on a rank, or if the group has failed.
    pub fn scatter_tensor(
        &self,
        tensor: Option<M::One<'_>>,
        parts: Parts<'_>,
        root: Rank,
    ) -> Result<M::With<Option<Tensor>, Tensor>> {
        let call = self.handle.carrier("scatter_tensor", Collective::Scatter, Cargo::Parts, root)?;
        M::scatter_parts(self, call, tensor, parts)
    }

    /// Joins the parts of all ranks, in the order of ranks, to one tensor on the root: the inverse of
    /// [`scatter_tensor`](Self::scatter_tensor). The other ranks get `None`. Along the dimension that is joined, the parts may
    /// differ in length.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if there is no such root. On all ranks: [`Error::Tensor`](crate::Error::Tensor) if the parts do not fit together, and
    /// [`Error::Argument`](crate::Error::Argument) if their types or the values of `parts` differ; then the group still works. [`Error::Failed`](crate::Error::Failed) if the
    /// ranks disagree on the call, if memory is short on a rank, or if the group has failed.
    pub fn gather_tensor(
        &self,
        part: M::One<'_>,
        parts: Parts<'_>,
        root: Rank,
    ) -> Result<M::With<Tensor, Option<Tensor>>> {
        let call = self.handle.carrier("gather_tensor", Collective::Gather, Cargo::Parts, root)?;
        M::join_parts(self, call, part, parts, Ok)
    }

    /// As [`gather_tensor`](Self::gather_tensor), with the tensor on every rank. With [`Parts::Split`], it concatenates the
    /// tensors of all ranks along a dimension.
    ///
    /// # Errors
    /// As [`gather_tensor`](Self::gather_tensor).
    pub fn all_gather_tensor(&self, part: M::One<'_>, parts: Parts<'_>) -> Result<M::With<Tensor, Tensor>> {
        let call = self.handle.carrier("all_gather_tensor", Collective::AllGather, Cargo::Parts, 0)?;
        M::join_parts(self, call, part, parts, |whole| whole.ok_or_else(|| outside("all_gather_tensor", 0)))
    }

    /// Sends tensors of any types and shapes to a rank, which receives them by [`recv_tensors`](Self::recv_tensors) with the
    /// same tag and need not know types and shapes.
    ///
    /// Large tensors that are contiguous are sent and received without a copy. Other tensors are packed first; many small ones
    /// share a message.
    ///
    /// # Errors
    /// As [`send`](Self::send); [`Error::Tensor`](crate::Error::Tensor) if there is no memory to pack a tensor that is not contiguous;
    /// [`Error::Object`](crate::Error::Object) if the shapes alone take more than [`Config::object_limit`](crate::Config::object_limit). In these two
    /// cases nothing was sent.
    pub fn send_tensors(
        &self,
        tensors: M::List<'_>,
        to: impl Into<Receiver>,
    ) -> Result<M::Given<Vec<Tensor>>> {
        M::send(self, tensors, to.into())
    }

    /// Receives tensors. Returns them and their sender.
    ///
    /// # Errors
    /// As [`recv`](Self::recv), but any types and shapes are received; [`Error::Failed`](crate::Error::Failed) also if memory is short.
    pub fn recv_tensors(&self, from: impl Into<Sender>) -> Result<M::Returns<(Vec<Tensor>, Rank)>> {
        let Sender { source, tag } = from.into();
        let from = self.handle.source("recv_tensors", source)?;
        let steps = |sequence: Sequence| async move { sequence.receive_list(from, tag).await };
        self.handle.run_steps::<M, _, _, _>("recv_tensors", Operations::Messages, steps, Ok)
    }

    /// Receives tensors into existing ones, which must have the same number, types and shapes. Returns the sender.
    ///
    /// A program that receives the same tensors repeatedly, for instance new weights, allocates no memory for them. Large
    /// tensors that are contiguous are received in place; other tensors are unpacked.
    ///
    /// # Errors
    /// As [`recv_tensors`](Self::recv_tensors); [`Error::Failed`](crate::Error::Failed) also if number, types or shapes differ. Then `tensors` is
    /// unchanged.
    pub fn recv_tensors_into(
        &self,
        tensors: M::ListMut<'_, '_>,
        from: impl Into<Sender>,
    ) -> Result<M::With<Vec<Tensor>, Rank>> {
        M::recv_into(self, tensors, from.into())
    }

    /// Reduces each tensor over all ranks, in place. The tensors may have any types, shapes and strides, but all ranks must give
    /// the same types and shapes in the same order. Tensors of one type are reduced together, without a copy: a thousand small
    /// tensors take little longer than one large one. Tensors that are not contiguous are packed first. Ranks compare the types
    /// and shapes, also of empty lists.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); [`Error::Tensor`](crate::Error::Tensor) if there is no memory to pack one.
    pub fn all_reduce_coalesced(
        &self,
        tensors: M::ListMut<'_, '_>,
        op: ReduceOp,
    ) -> Result<M::Given<Vec<Tensor>>> {
        M::all_reduce(self, tensors, op)
    }
}

impl TensorMode for Blocking {
    type One<'t> = TensorView<'t>;
    type List<'t> = &'t [TensorView<'t>];
    type ListMut<'l, 't: 'l> = &'l mut [TensorViewMut<'t>];
    type With<G, R> = R;
    type Given<G> = ();
    type Broadcast = Option<Vec<Tensor>>;

    fn broadcast(
        group: &ProcessGroup,
        call: UnevenCall,
        tensors: Option<&[TensorView<'_>]>,
    ) -> Result<Option<Vec<Tensor>>> {
        group.handle.now(async |sequence| call.on(sequence).broadcast_list(tensors).await)
    }

    fn lists<'t, R: Send + 'static>(
        group: &ProcessGroup,
        call: UnevenCall,
        tensors: &'t [TensorView<'t>],
        open: fn(Option<TensorLists>) -> R,
    ) -> Result<R> {
        group.handle.now(async |sequence| call.on(sequence).lists(tensors).await).map(open)
    }

    fn scatter_parts<'t>(
        group: &ProcessGroup,
        call: UnevenCall,
        tensor: Option<TensorView<'t>>,
        parts: Parts<'_>,
    ) -> Result<Tensor> {
        group.handle.now(async |sequence| call.on(sequence).scatter_parts(tensor.as_ref(), parts).await)
    }

    fn join_parts<'t, R: Send + 'static>(
        group: &ProcessGroup,
        call: UnevenCall,
        part: TensorView<'t>,
        parts: Parts<'_>,
        open: fn(Option<Tensor>) -> Result<R>,
    ) -> Result<R> {
        group.handle.now(async |sequence| call.on(sequence).join_parts(&part, parts).await).and_then(open)
    }

    fn send<'t>(group: &ProcessGroup, tensors: &'t [TensorView<'t>], to: Receiver) -> Result<()> {
        group.handle.beside(async |sequence| sequence.send_list(tensors, to).await)
    }

    fn recv_into<'l, 't>(
        group: &ProcessGroup,
        tensors: &'l mut [TensorViewMut<'t>],
        from: Sender,
    ) -> Result<Rank> {
        let source = group.handle.source("recv_tensors_into", from.source)?;
        group.handle.beside(async |sequence| sequence.receive_into(tensors, source, from.tag).await)
    }

    fn all_reduce<'l, 't>(
        group: &ProcessGroup,
        tensors: &'l mut [TensorViewMut<'t>],
        op: ReduceOp,
    ) -> Result<()> {
        let kernels = group.handle.kernels(tensors.iter().map(TensorViewMut::dtype), op)?;
        let list = list(tensors.iter().map(|tensor| (tensor.dtype(), tensor.shape())));
        group.handle.now(async |mut sequence| sequence.reduce_views(kernels, tensors, op, list).await)
    }
}

impl TensorMode for Asynchronous {
    type One<'t> = Tensor;
    type List<'t> = Vec<Tensor>;
    type ListMut<'l, 't: 'l> = Vec<Tensor>;
    type With<G, R> = Work<(G, R)>;
    type Given<G> = Work<G>;
    type Broadcast = Work<Vec<Tensor>>;

    fn broadcast(
        group: &ProcessGroup<Self>,
        call: UnevenCall,
        tensors: Option<Vec<Tensor>>,
    ) -> Result<Work<Vec<Tensor>>> {
        let name = call.name;
        let steps = |sequence| async move {
            let given = tensors.as_deref().map(views);
            let got = call.on(sequence).broadcast_list(given.as_deref()).await?;
            Ok(got.or(tensors).unwrap_or_default())
        };
        group.handle.later(name, steps, Ok)
    }

    fn lists<'t, R: Send + 'static>(
        group: &ProcessGroup<Self>,
        call: UnevenCall,
        tensors: Vec<Tensor>,
        open: fn(Option<TensorLists>) -> R,
    ) -> Result<Work<(Vec<Tensor>, R)>> {
        let name = call.name;
        let steps = |sequence| async move {
            let lists = call.on(sequence).lists(&views(&tensors)).await?;
            Ok((tensors, open(lists)))
        };
        group.handle.later(name, steps, Ok)
    }

    fn scatter_parts<'t>(
        group: &ProcessGroup<Self>,
        call: UnevenCall,
        tensor: Option<Tensor>,
        parts: Parts<'_>,
    ) -> Result<Work<(Option<Tensor>, Tensor)>> {
        let (name, parts) = (call.name, OwnedParts::of(parts));
        let steps = |sequence| async move {
            let given = tensor.as_ref().map(Tensor::view);
            let part = call.on(sequence).scatter_parts(given.as_ref(), parts.read()).await?;
            Ok((tensor, part))
        };
        group.handle.later(name, steps, Ok)
    }

    fn join_parts<'t, R: Send + 'static>(
        group: &ProcessGroup<Self>,
        call: UnevenCall,
        part: Tensor,
        parts: Parts<'_>,
        open: fn(Option<Tensor>) -> Result<R>,
    ) -> Result<Work<(Tensor, R)>> {
        let (name, parts) = (call.name, OwnedParts::of(parts));
        let steps = |sequence| async move {
            let whole = call.on(sequence).join_parts(&part.view(), parts.read()).await?;
            Ok((part, open(whole)?))
        };
        group.handle.later(name, steps, Ok)
    }

    fn send(group: &ProcessGroup<Self>, tensors: Vec<Tensor>, to: Receiver) -> Result<Work<Vec<Tensor>>> {
        let steps = |sequence: Sequence| async move {
            sequence.send_list(&views(&tensors), to).await?;
            Ok(tensors)
        };
        group.handle.later("send_tensors", steps, Ok)
    }

    fn recv_into(
        group: &ProcessGroup<Self>,
        mut tensors: Vec<Tensor>,
        from: Sender,
    ) -> Result<Self::With<Vec<Tensor>, Rank>> {
        let source = group.handle.source("recv_tensors_into", from.source)?;
        let steps = |sequence: Sequence| async move {
            let mut places: Vec<_> = tensors.iter_mut().map(Tensor::view_mut).collect();
            let from = sequence.receive_into(&mut places, source, from.tag).await?;
            Ok((tensors, from))
        };
        group.handle.later("recv_tensors_into", steps, Ok)
    }

    fn all_reduce(
        group: &ProcessGroup<Self>,
        mut tensors: Vec<Tensor>,
        op: ReduceOp,
    ) -> Result<Work<Vec<Tensor>>> {
        let kernels = group.handle.kernels(tensors.iter().map(Tensor::dtype), op)?;
        let list = list(tensors.iter().map(|tensor| (tensor.dtype(), tensor.shape())));
        let steps = |mut sequence: Sequence| async move {
            sequence.reduce_tensors(kernels, &mut tensors, op, list).await?;
            Ok(tensors)
        };
        group.handle.later(NAME, steps, Ok)
    }
}
