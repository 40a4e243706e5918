//! The collectives that are begun and waited for later: calls that own what they work on while they do.

use std::ops::Range;

use unisono_schedule::{Collective, Rank};

use crate::{
    buffer::{Borrowed, Owned},
    dtype::Element,
    error::Result,
    group::{
        ProcessGroup,
        collective::equal::{outside, same_length, scaled},
        plan::spec::CallSpec,
        sequence::Sequence,
    },
    reduce::ReduceOp,
    work::Work,
};

impl ProcessGroup {
    /// Begins an [`all_reduce`](Self::all_reduce); `data`, reduced, comes back from [`Work::wait`].
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce), here or from the wait.
    pub fn all_reduce_async<B: Owned>(&self, data: B, op: ReduceOp) -> Result<Work<B>> {
        self.begin_within(Collective::AllReduce, data, op, 0, |data, _| data)
    }

    /// Begins an [`all_reduce_into`](Self::all_reduce_into); both come back, `input` as it was.
    ///
    /// # Errors
    /// As [`all_reduce_into`](Self::all_reduce_into), here or from the wait.
    pub fn all_reduce_into_async<I, O>(
        &self,
        mut input: I,
        mut output: O,
        op: ReduceOp,
    ) -> Result<Work<(I, O)>>
    where
        I: Owned,
        O: Owned<Element = I::Element>,
    {
        let count = output.elements().len();
        same_length(Collective::AllReduce, input.elements().len(), count)?;
        if let ReduceOp::PreMulSum(_) = op {
            output.elements().copy_from_slice(input.elements());
            return self.begin_within(Collective::AllReduce, output, op, 0, |output, _| (input, output));
        }
        self.begin_apart(&CallSpec { op, ..CallSpec::new(Collective::AllReduce, count) }, input, output)
    }

    /// Begins a [`reduce`](Self::reduce); `data` comes back, elsewhere than at the root as it was.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce), here or from the wait.
    pub fn reduce_async<B: Owned>(&self, mut data: B, op: ReduceOp, root: Rank) -> Result<Work<B>> {
        self.known(Collective::Reduce, root)?;
        let len = data.elements().len();
        if self.rank() != root
            && let Some(scaled) = scaled(Collective::Reduce, data.elements(), op)?
        {
            let request = CallSpec { root, op, ..CallSpec::new(Collective::Reduce, len) };
            return self.begin_scaled(request, scaled, Vec::<B::Element>::new(), |_| data);
        }
        self.begin_within(Collective::Reduce, data, op, root, |data, _| data)
    }

    /// Begins a [`reduce_into`](Self::reduce_into); both come back, `input` as it was. Elsewhere than at the root the
    /// output may be empty.
    ///
    /// # Errors
    /// As [`reduce_into`](Self::reduce_into), here or from the wait.
    pub fn reduce_into_async<I, O>(
        &self,
        mut input: I,
        mut output: O,
        op: ReduceOp,
        root: Rank,
    ) -> Result<Work<(I, O)>>
    where
        I: Owned,
        O: Owned<Element = I::Element>,
    {
        self.known(Collective::Reduce, root)?;
        let count = input.elements().len();
        if self.rank() == root {
            same_length(Collective::Reduce, count, output.elements().len())?;
        }
        let request = CallSpec { root, op, ..CallSpec::new(Collective::Reduce, count) };
        self.begin_reduction(request, input, output)
    }

    /// Begins a [`broadcast`](Self::broadcast).
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast), here or from the wait.
    pub fn broadcast_async<B: Owned>(&self, data: B, root: Rank) -> Result<Work<B>> {
        self.begin_within(Collective::Broadcast, data, ReduceOp::Sum, root, |data, _| data)
    }

    /// Begins an [`all_gather`](Self::all_gather); both come back.
    ///
    /// # Errors
    /// As [`all_gather`](Self::all_gather), here or from the wait.
    pub fn all_gather_async<I, O>(&self, mut input: I, mut output: O) -> Result<Work<(I, O)>>
    where
        I: Owned,
        O: Owned<Element = I::Element>,
    {
        let count = input.elements().len();
        self.blocks(Collective::AllGather, count, output.elements().len())?;
        self.begin_apart(&CallSpec::new(Collective::AllGather, count), input, output)
    }

    /// Begins an [`all_gather_in_place`](Self::all_gather_in_place).
    ///
    /// # Errors
    /// As [`all_gather_in_place`](Self::all_gather_in_place), here or from the wait.
    pub fn all_gather_in_place_async<B: Owned>(&self, data: B) -> Result<Work<B>> {
        self.begin_within(Collective::AllGather, data, ReduceOp::Sum, 0, |data, _| data)
    }

    /// Begins a [`reduce_scatter`](Self::reduce_scatter); both come back, `input` as it was.
    ///
    /// # Errors
    /// As [`reduce_scatter`](Self::reduce_scatter), here or from the wait.
    pub fn reduce_scatter_async<I, O>(
        &self,
        mut input: I,
        mut output: O,
        op: ReduceOp,
    ) -> Result<Work<(I, O)>>
    where
        I: Owned,
        O: Owned<Element = I::Element>,
    {
        let count = output.elements().len();
        self.blocks(Collective::ReduceScatter, count, input.elements().len())?;
        let request = CallSpec { op, ..CallSpec::new(Collective::ReduceScatter, count) };
        self.begin_reduction(request, input, output)
    }

    /// Begins a [`reduce_scatter_in_place`](Self::reduce_scatter_in_place); `data` comes back, and which of its elements are
    /// this rank's block.
    ///
    /// # Errors
    /// As [`reduce_scatter_in_place`](Self::reduce_scatter_in_place), here or from the wait.
    pub fn reduce_scatter_in_place_async<B: Owned>(
        &self,
        data: B,
        op: ReduceOp,
    ) -> Result<Work<(B, Range<usize>)>> {
        self.begin_within(Collective::ReduceScatter, data, op, 0, |data, block| (data, block))
    }

    /// Begins an [`all_to_all`](Self::all_to_all); both come back.
    ///
    /// # Errors
    /// As [`all_to_all`](Self::all_to_all), here or from the wait.
    pub fn all_to_all_async<I, O>(&self, mut input: I, mut output: O) -> Result<Work<(I, O)>>
    where
        I: Owned,
        O: Owned<Element = I::Element>,
    {
        let len = input.elements().len();
        same_length(Collective::AllToAll, len, output.elements().len())?;
        let count = self.own_block(Collective::AllToAll, len)?.len();
        self.begin_apart(&CallSpec::new(Collective::AllToAll, count), input, output)
    }

    /// Begins an [`all_to_all_in_place`](Self::all_to_all_in_place).
    ///
    /// # Errors
    /// As [`all_to_all_in_place`](Self::all_to_all_in_place), here or from the wait.
    pub fn all_to_all_in_place_async<B: Owned>(&self, data: B) -> Result<Work<B>> {
        self.begin_within(Collective::AllToAll, data, ReduceOp::Sum, 0, |data, _| data)
    }

    /// Begins a [`gather`](Self::gather); both come back. Elsewhere than at the root the output may be empty.
    ///
    /// # Errors
    /// As [`gather`](Self::gather), here or from the wait.
    pub fn gather_async<I, O>(&self, mut input: I, mut output: O, root: Rank) -> Result<Work<(I, O)>>
    where
        I: Owned,
        O: Owned<Element = I::Element>,
    {
        self.known(Collective::Gather, root)?;
        let count = input.elements().len();
        if self.rank() == root {
            self.blocks(Collective::Gather, count, output.elements().len())?;
        }
        self.begin_apart(&CallSpec { root, ..CallSpec::new(Collective::Gather, count) }, input, output)
    }

    /// Begins a [`gather_in_place`](Self::gather_in_place); `data` comes back, elsewhere than at the root as it was.
    ///
    /// # Errors
    /// As [`gather_in_place`](Self::gather_in_place), here or from the wait.
    pub fn gather_in_place_async<B: Owned>(&self, data: B, root: Rank) -> Result<Work<B>> {
        self.begin_within(Collective::Gather, data, ReduceOp::Sum, root, |data, _| data)
    }

    /// Begins a [`scatter`](Self::scatter); both come back. Elsewhere than at the root the input may be empty.
    ///
    /// # Errors
    /// As [`scatter`](Self::scatter), here or from the wait.
    pub fn scatter_async<I, O>(&self, mut input: I, mut output: O, root: Rank) -> Result<Work<(I, O)>>
    where
        I: Owned,
        O: Owned<Element = I::Element>,
    {
        self.known(Collective::Scatter, root)?;
        let count = output.elements().len();
        if self.rank() == root {
            self.blocks(Collective::Scatter, count, input.elements().len())?;
        }
        self.begin_apart(&CallSpec { root, ..CallSpec::new(Collective::Scatter, count) }, input, output)
    }

    /// Begins a [`scatter_in_place`](Self::scatter_in_place); `data` comes back, and which of its elements are this rank's
    /// block: elsewhere than at the root all.
    ///
    /// # Errors
    /// As [`scatter_in_place`](Self::scatter_in_place), here or from the wait.
    pub fn scatter_in_place_async<B: Owned>(&self, data: B, root: Rank) -> Result<Work<(B, Range<usize>)>> {
        self.begin_within(Collective::Scatter, data, ReduceOp::Sum, root, |data, block| (data, block))
    }

    /// Begins a [`barrier`](Self::barrier): its work has ended when every rank has begun it.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier), here or from the wait.
    pub fn barrier_async(&self) -> Result<Work<()>> {
        let borrowed = Borrowed::kept(&mut Vec::<u8>::new(), &mut Vec::<u8>::new());
        self.begin::<u8, ()>(&CallSpec::new(Collective::Barrier, 0), borrowed, ())
    }

    fn begin_apart<I, O>(&self, request: &CallSpec<'_>, mut input: I, mut output: O) -> Result<Work<(I, O)>>
    where
        I: Owned,
        O: Owned<Element = I::Element>,
    {
        let borrowed = Borrowed::kept(&mut input, &mut output);
        self.begin::<I::Element, _>(request, borrowed, (input, output))
    }

    /// The same of a reduction, whose input stays as it is where it is scaled.
    fn begin_reduction<I, O>(
        &self,
        request: CallSpec<'static>,
        mut input: I,
        output: O,
    ) -> Result<Work<(I, O)>>
    where
        I: Owned,
        O: Owned<Element = I::Element>,
    {
        match scaled(request.collective, input.elements(), request.op)? {
            Some(scaled) => self.begin_scaled(request, scaled, output, |output| (input, output)),
            None => self.begin_apart(&request, input, output),
        }
    }

    /// Begins a reduction of a scaled copy, and makes what comes back of the output.
    fn begin_scaled<O: Owned, R: Send + 'static>(
        &self,
        request: CallSpec<'static>,
        scaled: Vec<O::Element>,
        mut output: O,
        back: impl FnOnce(O) -> R + Send + 'static,
    ) -> Result<Work<R>> {
        let group = self.under_way();
        let steps = move |mut turn: Sequence<'static>| async move {
            // Of the copy and the output, both of which stay with this call's future.
            turn.run(&group, O::Element::DTYPE, &request, Borrowed::apart(&scaled, output.elements()))
                .await?;
            Ok(output)
        };
        self.later(request.collective.name(), steps, |output| Ok(back(output)))
    }

    /// Begins a collective in place, and makes what comes back of the data and where the output lies in it.
    pub(crate) fn begin_within<B: Owned, R: Send + 'static>(
        &self,
        collective: Collective,
        mut data: B,
        op: ReduceOp,
        root: Rank,
        back: impl FnOnce(B, Range<usize>) -> R,
    ) -> Result<Work<R>> {
        let (request, [input, output]) = self.in_place(collective, data.elements(), op, root)?;
        let len = data.elements().len();
        let borrowed = Borrowed::kept_within(&mut data, input, output.clone());
        let borrowed = borrowed.ok_or_else(|| outside(collective.name(), len))?;
        self.begin::<B::Element, R>(&request, borrowed, back(data, output))
    }

    fn begin<T: Element, B: Send + 'static>(
        &self,
        request: &CallSpec<'_>,
        borrowed: Borrowed<'static>,
        held: B,
    ) -> Result<Work<B>> {
        let ticket = self.shared.begin(T::DTYPE, request, borrowed, held, &self.options)?;
        Ok(Work::begun(ticket, &self.driver()))
    }
}
