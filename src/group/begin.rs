//! The collectives that are begun and waited for later: calls that own what they work on while they do.

use std::ops::Range;

use super::{
    ProcessGroup,
    calls::{premultiply, same_length, scaled},
    request::Request,
    turn::Turn,
};
use crate::{
    buffer::{Lent, Owned},
    dtype::Element,
    engine::Held,
    error::{Error, Result},
    reduce::ReduceOp,
    schedule::{Collective, Rank},
    work::Work,
};

impl ProcessGroup {
    /// Begins an [`all_reduce`](Self::all_reduce); `data`, reduced, comes back from [`Work::wait`].
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce), here or from the wait.
    pub fn all_reduce_async<B: Owned>(&self, data: B, op: ReduceOp) -> Result<Work<B>> {
        self.begin_all_reduce(data, op, 0)
    }

    /// The same of what many tensors make, which have these [`shapes`](crate::engine::shapes).
    pub(super) fn begin_all_reduce<B: Owned>(
        &self,
        mut data: B,
        op: ReduceOp,
        shapes: Rank,
    ) -> Result<Work<B>> {
        let op = premultiply(Collective::AllReduce, data.elements(), op)?;
        let whole = 0..data.elements().len();
        self.begin_within(Collective::AllReduce, data, whole.clone(), whole, shapes, op)
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
            let request = Request { root, op, ..Request::new(Collective::Reduce, len) };
            return self.begin_scaled(request, scaled, Vec::<B::Element>::new(), |_| data);
        }
        let op = premultiply(Collective::Reduce, data.elements(), op)?;
        let output = if self.rank() == root { 0..len } else { 0..0 };
        self.begin_within(Collective::Reduce, data, 0..len, output, root, op)
    }

    /// Begins a [`broadcast`](Self::broadcast).
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast), here or from the wait.
    pub fn broadcast_async<B: Owned>(&self, mut data: B, root: Rank) -> Result<Work<B>> {
        self.known(Collective::Broadcast, root)?;
        let whole = 0..data.elements().len();
        self.begin_within(Collective::Broadcast, data, whole.clone(), whole, root, ReduceOp::Sum)
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
        self.begin_apart(&Request::new(Collective::AllGather, count), input, output)
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
        let request = Request { op, ..Request::new(Collective::ReduceScatter, count) };
        match scaled(Collective::ReduceScatter, input.elements(), op)? {
            Some(scaled) => self.begin_scaled(request, scaled, output, |output| (input, output)),
            None => self.begin_apart(&request, input, output),
        }
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
        self.begin_apart(&Request::new(Collective::AllToAll, count), input, output)
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
        self.begin_apart(&Request { root, ..Request::new(Collective::Gather, count) }, input, output)
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
        self.begin_apart(&Request { root, ..Request::new(Collective::Scatter, count) }, input, output)
    }

    /// Begins a [`barrier`](Self::barrier): its work has ended when every rank has begun it.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier), here or from the wait.
    pub fn barrier_async(&self) -> Result<Work<()>> {
        let lent = Lent::kept(&mut Vec::<u8>::new(), &mut Vec::<u8>::new());
        self.begin::<u8, ()>(&Request::new(Collective::Barrier, 0), &lent, ())
    }

    fn begin_apart<I, O>(&self, request: &Request<'_>, mut input: I, mut output: O) -> Result<Work<(I, O)>>
    where
        I: Owned,
        O: Owned<Element = I::Element>,
    {
        let lent = Lent::kept(&mut input, &mut output);
        self.begin::<I::Element, _>(request, &lent, (input, output))
    }

    /// Begins a reduction of a scaled copy, and makes what comes back of the output.
    fn begin_scaled<O: Owned, R: Send + 'static>(
        &self,
        request: Request<'static>,
        scaled: Vec<O::Element>,
        mut output: O,
        back: impl FnOnce(O) -> R + Send + 'static,
    ) -> Result<Work<R>> {
        let group = self.under_way();
        let steps = move |mut turn: Turn<'static>| async move {
            // Of the copy and the output, both of which stay with this call's future.
            turn.run(&group, O::Element::DTYPE, &request, &Lent::apart(&scaled, output.elements())).await?;
            Ok(output)
        };
        self.later(request.collective.name(), steps, |output| Ok(back(output)))
    }

    fn begin_within<B: Owned>(
        &self,
        collective: Collective,
        mut data: B,
        input: Range<usize>,
        output: Range<usize>,
        root: Rank,
        op: ReduceOp,
    ) -> Result<Work<B>> {
        let count = self.count(collective, input.len(), output.len(), root);
        let len = data.elements().len();
        let lent = Lent::kept_within(&mut data, input, output).ok_or_else(|| Error::Argument {
            call: collective.name(),
            problem: format!("the blocks leave the {len} elements given"),
        })?;
        let request = Request { root, op, ..Request::new(collective, count) };
        self.begin::<B::Element, B>(&request, &lent, data)
    }

    fn begin<T: Element, B: Send + 'static>(
        &self,
        request: &Request<'_>,
        lent: &Lent<'static>,
        held: B,
    ) -> Result<Work<B>> {
        let held = Held::Back(Some(Box::new(held)));
        let ticket = self.shared.begin(T::DTYPE, request, lent, held, &self.wishes)?;
        Ok(Work::new(ticket, self.driver()))
    }
}
