//! The collectives of uneven blocks that are begun and waited for later.

use std::ops::Range;

use unisono_schedule::{Collective, Rank};

use crate::{
    buffer::Owned,
    error::Result,
    group::{ProcessGroup, collective::equal::scaled},
    reduce::ReduceOp,
    work::Work,
};

impl ProcessGroup {
    /// Begins an [`all_gather_v`](Self::all_gather_v); `input` comes back too, first.
    ///
    /// # Errors
    /// As [`all_gather_v`](Self::all_gather_v), here or from the wait.
    #[expect(clippy::type_complexity, reason = "what goes in, and what comes of it")]
    pub fn all_gather_v_async<B: Owned>(
        &self,
        mut input: B,
    ) -> Result<Work<(B, Vec<B::Element>, Vec<usize>)>> {
        let call = self.call::<B::Element>(Collective::AllGather, "all_gather_v", ReduceOp::Sum, 0)?;
        let steps = |mut turn| async move {
            let (output, lengths) = call.gather_all(&mut turn, input.elements()).await?;
            Ok((input, output, lengths))
        };
        self.later("all_gather_v", steps, Ok)
    }

    /// Begins an [`all_gather_v_in_place`](Self::all_gather_v_in_place).
    ///
    /// # Errors
    /// As [`all_gather_v_in_place`](Self::all_gather_v_in_place), here or from the wait.
    pub fn all_gather_v_in_place_async<B: Owned>(&self, mut data: B, lengths: &[usize]) -> Result<Work<B>> {
        let call = self.call::<B::Element>(Collective::AllGather, "all_gather_v", ReduceOp::Sum, 0)?;
        let lengths = lengths.to_vec();
        let steps = |mut turn| async move {
            call.gather_in_place(&mut turn, data.elements(), &lengths).await?;
            Ok(data)
        };
        self.later("all_gather_v", steps, Ok)
    }

    /// Begins a [`gather_v`](Self::gather_v); `input` comes back too, first.
    ///
    /// # Errors
    /// As [`gather_v`](Self::gather_v), here or from the wait.
    #[expect(clippy::type_complexity, reason = "what goes in, and what comes of it")]
    pub fn gather_v_async<B: Owned>(
        &self,
        mut input: B,
        root: Rank,
    ) -> Result<Work<(B, Vec<B::Element>, Vec<usize>)>> {
        let call = self.call::<B::Element>(Collective::Gather, "gather_v", ReduceOp::Sum, root)?;
        let steps = |mut turn| async move {
            let (output, lengths) = call.gather_all(&mut turn, input.elements()).await?;
            Ok((input, output, lengths))
        };
        self.later("gather_v", steps, Ok)
    }

    /// Begins a [`gather_v_in_place`](Self::gather_v_in_place); `data` comes back, elsewhere than at the root as it was.
    ///
    /// # Errors
    /// As [`gather_v_in_place`](Self::gather_v_in_place), here or from the wait.
    pub fn gather_v_in_place_async<B: Owned>(
        &self,
        mut data: B,
        lengths: &[usize],
        root: Rank,
    ) -> Result<Work<B>> {
        let call = self.call::<B::Element>(Collective::Gather, "gather_v", ReduceOp::Sum, root)?;
        let lengths = lengths.to_vec();
        let steps = |mut turn| async move {
            call.gather_in_place(&mut turn, data.elements(), &lengths).await?;
            Ok(data)
        };
        self.later("gather_v", steps, Ok)
    }

    /// Begins a [`scatter_v`](Self::scatter_v); `input`, which may be empty elsewhere than at the root, comes back, and
    /// this rank's block.
    ///
    /// # Errors
    /// As [`scatter_v`](Self::scatter_v), here or from the wait.
    pub fn scatter_v_async<B: Owned>(
        &self,
        mut input: B,
        lengths: &[usize],
        root: Rank,
    ) -> Result<Work<(B, Vec<B::Element>)>> {
        let call = self.call::<B::Element>(Collective::Scatter, "scatter_v", ReduceOp::Sum, root)?;
        let lengths = lengths.to_vec();
        let steps = |mut turn| async move {
            let output = call.scatter_all(&mut turn, input.elements(), &lengths).await?;
            Ok((input, output))
        };
        self.later("scatter_v", steps, Ok)
    }

    /// Begins a [`scatter_v_in_place`](Self::scatter_v_in_place); `data` comes back, and which of its elements are this rank's
    /// block: elsewhere than at the root all.
    ///
    /// # Errors
    /// As [`scatter_v_in_place`](Self::scatter_v_in_place), here or from the wait.
    pub fn scatter_v_in_place_async<B: Owned>(
        &self,
        mut data: B,
        lengths: &[usize],
        root: Rank,
    ) -> Result<Work<(B, Range<usize>)>> {
        let call = self.call::<B::Element>(Collective::Scatter, "scatter_v", ReduceOp::Sum, root)?;
        let lengths = lengths.to_vec();
        let steps = |mut turn| async move {
            let block = call.scatter_in_place(&mut turn, data.elements(), &lengths).await?;
            Ok((data, block))
        };
        self.later("scatter_v", steps, Ok)
    }

    /// Begins a [`reduce_scatter_v`](Self::reduce_scatter_v); both come back, `input` as it was.
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
        let call = self.call::<I::Element>(Collective::ReduceScatter, "reduce_scatter_v", op, 0)?;
        let scaled = scaled(Collective::ReduceScatter, input.elements(), op)?;
        let steps = |mut turn| async move {
            let given: &[I::Element] = match &scaled {
                Some(scaled) => scaled,
                None => input.elements(),
            };
            call.reduce_all(&mut turn, given, output.elements()).await?;
            Ok((input, output))
        };
        self.later("reduce_scatter_v", steps, Ok)
    }

    /// Begins a [`reduce_scatter_v_in_place`](Self::reduce_scatter_v_in_place); `data` comes back, and which of its elements
    /// are this rank's block.
    ///
    /// # Errors
    /// As [`reduce_scatter_v_in_place`](Self::reduce_scatter_v_in_place), here or from the wait.
    pub fn reduce_scatter_v_in_place_async<B: Owned>(
        &self,
        mut data: B,
        own: usize,
        op: ReduceOp,
    ) -> Result<Work<(B, Range<usize>)>> {
        let call = self.call::<B::Element>(Collective::ReduceScatter, "reduce_scatter_v", op, 0)?;
        let steps = |mut turn| async move {
            let block = call.reduce_in_place(&mut turn, data.elements(), own).await?;
            Ok((data, block))
        };
        self.later("reduce_scatter_v", steps, Ok)
    }

    /// Begins an [`all_to_all_v`](Self::all_to_all_v); `input` comes back too, first.
    ///
    /// # Errors
    /// As [`all_to_all_v`](Self::all_to_all_v), here or from the wait.
    #[expect(clippy::type_complexity, reason = "what goes in, and what comes of it")]
    pub fn all_to_all_v_async<B: Owned>(
        &self,
        mut input: B,
        lengths: &[usize],
    ) -> Result<Work<(B, Vec<B::Element>, Vec<usize>)>> {
        let call = self.call::<B::Element>(Collective::AllToAll, "all_to_all_v", ReduceOp::Sum, 0)?;
        let lengths = lengths.to_vec();
        let steps = |mut turn| async move {
            let (output, gets) = call.all_to_all(&mut turn, input.elements(), &lengths).await?;
            Ok((input, output, gets))
        };
        self.later("all_to_all_v", steps, Ok)
    }

    /// Begins an [`all_to_all_v_in_place`](Self::all_to_all_v_in_place).
    ///
    /// # Errors
    /// As [`all_to_all_v_in_place`](Self::all_to_all_v_in_place), here or from the wait.
    pub fn all_to_all_v_in_place_async<B: Owned>(&self, mut data: B, lengths: &[usize]) -> Result<Work<B>> {
        let call = self.call::<B::Element>(Collective::AllToAll, "all_to_all_v", ReduceOp::Sum, 0)?;
        let lengths = lengths.to_vec();
        let steps = |mut turn| async move {
            call.all_to_all_in_place(&mut turn, data.elements(), &lengths).await?;
            Ok(data)
        };
        self.later("all_to_all_v", steps, Ok)
    }
}
