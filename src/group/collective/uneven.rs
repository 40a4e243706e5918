//! Collectives whose blocks may differ in length: the calls whose names end in `_v`, each blocking call beside its `_async`
//! twin. Both run the same steps of [`UnevenCall`].

use std::ops::Range;

use unisono_schedule::{Collective, Rank};

use crate::{
    buffer::Owned,
    call::Cargo,
    dtype::Element,
    error::Result,
    group::{ProcessGroup, collective::lengths::UnevenCall, plan::spec::CallId},
    reduce::ReduceOp,
    work::Work,
};

impl ProcessGroup {
    /// Every rank gets all ranks' `input`, in the order of ranks, and the length of each. The lengths may differ, and no rank
    /// needs to know the others'.
    ///
    /// # Errors
    /// [`Error::Failed`](crate::Error::Failed) if the ranks disagree, one of them has no memory for the result, or the group has failed.
    pub fn all_gather_v<T: Element>(&self, input: &[T]) -> Result<(Vec<T>, Vec<usize>)> {
        let call = self.uneven::<T>(Collective::AllGather, ReduceOp::Sum, 0)?;
        self.now(async |sequence| call.on(sequence).apart(input, &[]).await)
    }

    /// Begins an [`all_gather_v`](Self::all_gather_v); [`Work::wait`] returns `input` too, first.
    ///
    /// # Errors
    /// As [`all_gather_v`](Self::all_gather_v), here or from the wait.
    #[expect(clippy::type_complexity, reason = "the input and the result")]
    pub fn all_gather_v_async<B: Owned>(&self, input: B) -> Result<Work<(B, Vec<B::Element>, Vec<usize>)>> {
        let call = self.uneven::<B::Element>(Collective::AllGather, ReduceOp::Sum, 0)?;
        self.begin_uneven(call, input, &[])
    }

    /// As [`all_gather_v`](Self::all_gather_v), in place, where every rank knows all lengths: `data` has a block for each rank,
    /// and this rank's own is already filled.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) unless `lengths` has one for each rank and `data` is as long as their sum;
    /// [`Error::Failed`](crate::Error::Failed) if the ranks do not know the same lengths, disagree otherwise, or the group has failed.
    pub fn all_gather_v_in_place<T: Element>(&self, data: &mut [T], lengths: &[usize]) -> Result<()> {
        let call = self.uneven::<T>(Collective::AllGather, ReduceOp::Sum, 0)?;
        self.now(async |sequence| call.on(sequence).in_place(data, lengths).await.map(drop))
    }

    /// Begins an [`all_gather_v_in_place`](Self::all_gather_v_in_place).
    ///
    /// # Errors
    /// As [`all_gather_v_in_place`](Self::all_gather_v_in_place), here or from the wait.
    pub fn all_gather_v_in_place_async<B: Owned>(&self, data: B, lengths: &[usize]) -> Result<Work<B>> {
        let call = self.uneven::<B::Element>(Collective::AllGather, ReduceOp::Sum, 0)?;
        self.begin_uneven_in_place(call, data, lengths, |data, _| data)
    }

    /// The root gets all ranks' `input`, in the order of ranks, and the length of each; the others get an empty vector and the
    /// lengths. The lengths may differ, and no rank needs to know the others'.
    ///
    /// # Errors
    /// As [`all_gather_v`](Self::all_gather_v), and [`Error::Argument`](crate::Error::Argument) if there is no such root.
    pub fn gather_v<T: Element>(&self, input: &[T], root: Rank) -> Result<(Vec<T>, Vec<usize>)> {
        let call = self.uneven::<T>(Collective::Gather, ReduceOp::Sum, root)?;
        self.now(async |sequence| call.on(sequence).apart(input, &[]).await)
    }

    /// Begins a [`gather_v`](Self::gather_v); [`Work::wait`] returns `input` too, first.
    ///
    /// # Errors
    /// As [`gather_v`](Self::gather_v), here or from the wait.
    #[expect(clippy::type_complexity, reason = "the input and the result")]
    pub fn gather_v_async<B: Owned>(
        &self,
        input: B,
        root: Rank,
    ) -> Result<Work<(B, Vec<B::Element>, Vec<usize>)>> {
        let call = self.uneven::<B::Element>(Collective::Gather, ReduceOp::Sum, root)?;
        self.begin_uneven(call, input, &[])
    }

    /// As [`gather_v`](Self::gather_v), in place, where the root knows all lengths. At the root `data` has a block for each rank,
    /// and its own is already filled; on other ranks `data` is the block that this rank gives, only read, and `lengths` is not used.
    ///
    /// # Errors
    /// As [`gather_v`](Self::gather_v); at the root [`Error::Argument`](crate::Error::Argument) unless `lengths` has one for each rank and
    /// `data` is as long as their sum, and [`Error::Failed`](crate::Error::Failed) if they are not those of the ranks' blocks.
    pub fn gather_v_in_place<T: Element>(&self, data: &mut [T], lengths: &[usize], root: Rank) -> Result<()> {
        let call = self.uneven::<T>(Collective::Gather, ReduceOp::Sum, root)?;
        self.now(async |sequence| call.on(sequence).in_place(data, lengths).await.map(drop))
    }

    /// Begins a [`gather_v_in_place`](Self::gather_v_in_place); [`Work::wait`] returns `data`, unchanged
    /// except at the root.
    ///
    /// # Errors
    /// As [`gather_v_in_place`](Self::gather_v_in_place), here or from the wait.
    pub fn gather_v_in_place_async<B: Owned>(
        &self,
        data: B,
        lengths: &[usize],
        root: Rank,
    ) -> Result<Work<B>> {
        let call = self.uneven::<B::Element>(Collective::Gather, ReduceOp::Sum, root)?;
        self.begin_uneven_in_place(call, data, lengths, |data, _| data)
    }

    /// Rank r gets the r-th block of the root's `input`, which has one for each rank, of these `lengths`. On other ranks neither is used:
    /// they may be empty.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if there is no such root, or, at the root, unless `lengths` has one for each rank and
    /// `input` is as long as their sum; [`Error::Failed`](crate::Error::Failed) if the ranks disagree, one of them has no memory for its
    /// block, or the group has failed.
    pub fn scatter_v<T: Element>(&self, input: &[T], lengths: &[usize], root: Rank) -> Result<Vec<T>> {
        let call = self.uneven::<T>(Collective::Scatter, ReduceOp::Sum, root)?;
        self.now(async |sequence| call.on(sequence).scatter_all(input, lengths).await)
    }

    /// Begins a [`scatter_v`](Self::scatter_v); [`Work::wait`] returns `input`, which may be empty except at the
    /// root, and this rank's block.
    ///
    /// # Errors
    /// As [`scatter_v`](Self::scatter_v), here or from the wait.
    pub fn scatter_v_async<B: Owned>(
        &self,
        mut input: B,
        lengths: &[usize],
        root: Rank,
    ) -> Result<Work<(B, Vec<B::Element>)>> {
        let call = self.uneven::<B::Element>(Collective::Scatter, ReduceOp::Sum, root)?;
        let lengths = lengths.to_vec();
        self.later(
            call.name,
            |sequence| async move {
                let output = call.on(sequence).scatter_all(input.elements(), &lengths).await?;
                Ok((input, output))
            },
            Ok,
        )
    }

    /// As [`scatter_v`](Self::scatter_v), in place. At the root `data` has a block for each rank and stays unchanged; on other ranks
    /// `data` must be exactly as long as the block, and is filled, and `lengths` is not used. This rank's block is returned.
    ///
    /// # Errors
    /// As [`scatter_v`](Self::scatter_v), and [`Error::Failed`](crate::Error::Failed) if a rank's `data` is not as long as its block.
    pub fn scatter_v_in_place<'d, T: Element>(
        &self,
        data: &'d mut [T],
        lengths: &[usize],
        root: Rank,
    ) -> Result<&'d mut [T]> {
        let call = self.uneven::<T>(Collective::Scatter, ReduceOp::Sum, root)?;
        let own = self.now(async |sequence| call.on(sequence).in_place(data, lengths).await)?;
        Ok(data.get_mut(own).unwrap_or_default())
    }

    /// Begins a [`scatter_v_in_place`](Self::scatter_v_in_place); [`Work::wait`] returns `data` and the
    /// range of this rank's block in it, which is all of it except at the root.
    ///
    /// # Errors
    /// As [`scatter_v_in_place`](Self::scatter_v_in_place), here or from the wait.
    pub fn scatter_v_in_place_async<B: Owned>(
        &self,
        data: B,
        lengths: &[usize],
        root: Rank,
    ) -> Result<Work<(B, Range<usize>)>> {
        let call = self.uneven::<B::Element>(Collective::Scatter, ReduceOp::Sum, root)?;
        self.begin_uneven_in_place(call, data, lengths, |data, block| (data, block))
    }

    /// Reduces all ranks' `input` and cuts the result into one block per rank, in the order of ranks, each as long as that rank's
    /// `output`: rank r gets the r-th. No rank needs to know how long the others' outputs are.
    ///
    /// # Errors
    /// As [`reduce_scatter`](Self::reduce_scatter), and [`Error::Failed`](crate::Error::Failed) unless every rank's `input` is as long as all
    /// ranks' outputs together.
    pub fn reduce_scatter_v<T: Element>(&self, input: &[T], output: &mut [T], op: ReduceOp) -> Result<()> {
        let call = self.uneven::<T>(Collective::ReduceScatter, op, 0)?;
        self.now(async |sequence| call.on(sequence).reduce_all(input, output).await)
    }

    /// Begins a [`reduce_scatter_v`](Self::reduce_scatter_v); [`Work::wait`] returns both, `input` unchanged.
    ///
    /// # Errors
    /// As [`reduce_scatter_v`](Self::reduce_scatter_v), here or from the wait.
    pub fn reduce_scatter_v_async<I, O>(
        &self,
        mut input: I,
        mut output: O,
        op: ReduceOp,
    ) -> Result<Work<(I, O)>>
    where
        I: Owned,
        O: Owned<Element = I::Element>,
    {
        let call = self.uneven::<I::Element>(Collective::ReduceScatter, op, 0)?;
        self.later(
            call.name,
            |sequence| async move {
                call.on(sequence).reduce_all(input.elements(), output.elements()).await?;
                Ok((input, output))
            },
            Ok,
        )
    }

    /// As [`reduce_scatter_v`](Self::reduce_scatter_v), in place: the result replaces this rank's block of `data`, which has `own`
    /// elements and is returned. The other blocks keep their contents, except that [`ReduceOp::PreMulSum`] scales all of
    /// `data`.
    ///
    /// # Errors
    /// As [`reduce_scatter_v`](Self::reduce_scatter_v).
    pub fn reduce_scatter_v_in_place<'d, T: Element>(
        &self,
        data: &'d mut [T],
        own: usize,
        op: ReduceOp,
    ) -> Result<&'d mut [T]> {
        let call = self.uneven::<T>(Collective::ReduceScatter, op, 0)?;
        let block = self.now(async |sequence| call.on(sequence).in_place(data, &[own]).await)?;
        Ok(data.get_mut(block).unwrap_or_default())
    }

    /// Begins a [`reduce_scatter_v_in_place`](Self::reduce_scatter_v_in_place); [`Work::wait`] returns
    /// `data` and the range of this rank's block in it.
    ///
    /// # Errors
    /// As [`reduce_scatter_v_in_place`](Self::reduce_scatter_v_in_place), here or from the wait.
    pub fn reduce_scatter_v_in_place_async<B: Owned>(
        &self,
        data: B,
        own: usize,
        op: ReduceOp,
    ) -> Result<Work<(B, Range<usize>)>> {
        let call = self.uneven::<B::Element>(Collective::ReduceScatter, op, 0)?;
        self.begin_uneven_in_place(call, data, &[own], |data, block| (data, block))
    }

    /// Every rank sends a block to every rank: rank r gets the r-th of the blocks of each rank's `input`, whose `lengths` its owner
    /// gives. Returns the blocks that this rank gets, in the order of ranks, and the length of each. No rank needs to know these.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) unless `lengths` has one for each rank and `input` is as long as their sum;
    /// [`Error::Failed`](crate::Error::Failed) if the ranks disagree, one of them has no memory for the result, or the group has failed.
    pub fn all_to_all_v<T: Element>(&self, input: &[T], lengths: &[usize]) -> Result<(Vec<T>, Vec<usize>)> {
        let call = self.uneven::<T>(Collective::AllToAll, ReduceOp::Sum, 0)?;
        self.now(async |sequence| call.on(sequence).apart(input, lengths).await)
    }

    /// Begins an [`all_to_all_v`](Self::all_to_all_v); [`Work::wait`] returns `input` too, first.
    ///
    /// # Errors
    /// As [`all_to_all_v`](Self::all_to_all_v), here or from the wait.
    #[expect(clippy::type_complexity, reason = "the input and the result")]
    pub fn all_to_all_v_async<B: Owned>(
        &self,
        input: B,
        lengths: &[usize],
    ) -> Result<Work<(B, Vec<B::Element>, Vec<usize>)>> {
        let call = self.uneven::<B::Element>(Collective::AllToAll, ReduceOp::Sum, 0)?;
        self.begin_uneven(call, input, lengths)
    }

    /// As [`all_to_all_v`](Self::all_to_all_v), in place: the blocks that a rank gets replace those that it gives, so the blocks of
    /// any two ranks for each other must have the same length.
    ///
    /// # Errors
    /// As [`all_to_all_v`](Self::all_to_all_v), and [`Error::Failed`](crate::Error::Failed) if the blocks of two ranks for each other differ in length.
    pub fn all_to_all_v_in_place<T: Element>(&self, data: &mut [T], lengths: &[usize]) -> Result<()> {
        let call = self.uneven::<T>(Collective::AllToAll, ReduceOp::Sum, 0)?;
        self.now(async |sequence| call.on(sequence).in_place(data, lengths).await.map(drop))
    }

    /// Begins an [`all_to_all_v_in_place`](Self::all_to_all_v_in_place).
    ///
    /// # Errors
    /// As [`all_to_all_v_in_place`](Self::all_to_all_v_in_place), here or from the wait.
    pub fn all_to_all_v_in_place_async<B: Owned>(&self, data: B, lengths: &[usize]) -> Result<Work<B>> {
        let call = self.uneven::<B::Element>(Collective::AllToAll, ReduceOp::Sum, 0)?;
        self.begin_uneven_in_place(call, data, lengths, |data, _| data)
    }

    /// Begins a call that returns new memory: the blocks that this rank gets, and their lengths.
    #[expect(clippy::type_complexity, reason = "the input and the result")]
    fn begin_uneven<B: Owned>(
        &self,
        call: UnevenCall,
        mut input: B,
        lengths: &[usize],
    ) -> Result<Work<(B, Vec<B::Element>, Vec<usize>)>> {
        let lengths = lengths.to_vec();
        self.later(
            call.name,
            |sequence| async move {
                let (output, gets) = call.on(sequence).apart(input.elements(), &lengths).await?;
                Ok((input, output, gets))
            },
            Ok,
        )
    }

    /// Begins a call in place. `result` makes the work's result of `data` and the range of this rank's block in it.
    fn begin_uneven_in_place<B: Owned, T: Send + 'static>(
        &self,
        call: UnevenCall,
        mut data: B,
        lengths: &[usize],
        result: fn(B, Range<usize>) -> T,
    ) -> Result<Work<T>> {
        let lengths = lengths.to_vec();
        self.later(
            call.name,
            |sequence| async move {
                let block = call.on(sequence).in_place(data.elements(), &lengths).await?;
                Ok(result(data, block))
            },
            Ok,
        )
    }

    /// Checks one of these calls, which is named after its collective.
    pub(crate) fn uneven<T: Element>(
        &self,
        collective: Collective,
        op: ReduceOp,
        root: Rank,
    ) -> Result<UnevenCall> {
        let name = match collective {
            Collective::AllGather => "all_gather_v",
            Collective::Gather => "gather_v",
            Collective::Scatter => "scatter_v",
            Collective::ReduceScatter => "reduce_scatter_v",
            _ => "all_to_all_v",
        };
        self.uneven_call(name, CallId { collective, dtype: T::DTYPE, op, root, cargo: Cargo::Elements })
    }
}
