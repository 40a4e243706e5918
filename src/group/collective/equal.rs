//! Collectives to which all ranks give equally much: each blocking call beside its `_async` twin. Both are checked by
//! [`Checked::in_place`] or [`Checked::apart`]; one then waits for the operation, the other keeps what it works on. Nothing below
//! these methods depends on the type of the elements.

use std::ops::Range;

use unisono_schedule::{Collective, Rank};

use super::check::{Checked, outside};
use crate::{
    buffer::{Borrowed, Owned},
    dtype::Element,
    error::Result,
    group::{ProcessGroup, plan::spec::CallSpec},
    reduce::ReduceOp,
    work::Work,
};

impl ProcessGroup {
    /// Reduces all ranks' `data`, element by element; every rank gets the result, in place.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if the operation does not fit the type; [`Error::Failed`](crate::Error::Failed) if the ranks disagree (other length,
    /// type, operation or call) or the group has failed.
    pub fn all_reduce<T: Element>(&self, data: &mut [T], op: ReduceOp) -> Result<()> {
        self.in_place(Collective::AllReduce, data, op, 0).map(drop)
    }

    /// Begins an [`all_reduce`](Self::all_reduce); [`Work::wait`] returns `data`, reduced.
    ///
    /// ```
    /// # use unisono::{Config, ProcessGroup, ReduceOp};
    /// # use unisono_transport::inproc::Hub;
    /// # fn main() -> unisono::Result<()> {
    /// # let group = ProcessGroup::with(Config::default(), Box::new(Hub::new().open()), None)?;
    /// let work = group.all_reduce_async(vec![1.0_f32; 1000], ReduceOp::Sum)?;
    /// // Compute something else meanwhile.
    /// let data = work.wait()?;
    /// assert_eq!(data[0], group.size() as f32);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce), here or from the wait.
    pub fn all_reduce_async<B: Owned>(&self, data: B, op: ReduceOp) -> Result<Work<B>> {
        self.begin_in_place(Collective::AllReduce, data, op, 0, |data, _| data)
    }

    /// Reduces all ranks' `input`; every rank gets the result in `output`, which must be as long.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce), and [`Error::Argument`](crate::Error::Argument) if the lengths differ.
    pub fn all_reduce_into<T: Element>(&self, input: &[T], output: &mut [T], op: ReduceOp) -> Result<()> {
        self.apart(Collective::AllReduce, input, output, op, 0)
    }

    /// Begins an [`all_reduce_into`](Self::all_reduce_into); [`Work::wait`] returns both, `input` unchanged.
    ///
    /// # Errors
    /// As [`all_reduce_into`](Self::all_reduce_into), here or from the wait.
    pub fn all_reduce_into_async<I, O>(&self, input: I, output: O, op: ReduceOp) -> Result<Work<(I, O)>>
    where
        I: Owned,
        O: Owned<Element = I::Element>,
    {
        self.begin_apart(Collective::AllReduce, input, output, op, 0)
    }

    /// Reduces all ranks' `data`; the root gets the result, in place. On other ranks `data` is only read.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce), and [`Error::Argument`](crate::Error::Argument) if there is no such root.
    pub fn reduce<T: Element>(&self, data: &mut [T], op: ReduceOp, root: Rank) -> Result<()> {
        self.in_place(Collective::Reduce, data, op, root).map(drop)
    }

    /// Begins a [`reduce`](Self::reduce); [`Work::wait`] returns `data`, unchanged except at the root.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce), here or from the wait.
    pub fn reduce_async<B: Owned>(&self, data: B, op: ReduceOp, root: Rank) -> Result<Work<B>> {
        self.begin_in_place(Collective::Reduce, data, op, root, |data, _| data)
    }

    /// Reduces all ranks' `input`; the root gets the result in `output`, which must be as long there. On other ranks `output`
    /// is not used and may be empty.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce), and [`Error::Argument`](crate::Error::Argument) if the lengths differ at the root.
    pub fn reduce_into<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
        root: Rank,
    ) -> Result<()> {
        self.apart(Collective::Reduce, input, output, op, root)
    }

    /// Begins a [`reduce_into`](Self::reduce_into); [`Work::wait`] returns both, `input` unchanged.
    ///
    /// # Errors
    /// As [`reduce_into`](Self::reduce_into), here or from the wait.
    pub fn reduce_into_async<I, O>(
        &self,
        input: I,
        output: O,
        op: ReduceOp,
        root: Rank,
    ) -> Result<Work<(I, O)>>
    where
        I: Owned,
        O: Owned<Element = I::Element>,
    {
        self.begin_apart(Collective::Reduce, input, output, op, root)
    }

    /// Reduces all ranks' `input` and cuts the result into one block per rank: rank r gets the r-th in `output`. `input` is
    /// as long as all ranks' outputs together: `size` times `output`.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce), and [`Error::Argument`](crate::Error::Argument) unless `input` is `size` times as long as `output`.
    pub fn reduce_scatter<T: Element>(&self, input: &[T], output: &mut [T], op: ReduceOp) -> Result<()> {
        self.apart(Collective::ReduceScatter, input, output, op, 0)
    }

    /// Begins a [`reduce_scatter`](Self::reduce_scatter); [`Work::wait`] returns both, `input` unchanged.
    ///
    /// # Errors
    /// As [`reduce_scatter`](Self::reduce_scatter), here or from the wait.
    pub fn reduce_scatter_async<I, O>(&self, input: I, output: O, op: ReduceOp) -> Result<Work<(I, O)>>
    where
        I: Owned,
        O: Owned<Element = I::Element>,
    {
        self.begin_apart(Collective::ReduceScatter, input, output, op, 0)
    }

    /// As [`reduce_scatter`](Self::reduce_scatter), in place: the result replaces this rank's block of `data`, the r-th of
    /// `size` equal ones, which is returned. The other blocks keep their contents, except that [`ReduceOp::PreMulSum`]
    /// scales all of `data`.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce), and [`Error::Argument`](crate::Error::Argument) unless `size` divides the length.
    pub fn reduce_scatter_in_place<'d, T: Element>(
        &self,
        data: &'d mut [T],
        op: ReduceOp,
    ) -> Result<&'d mut [T]> {
        let block = self.in_place(Collective::ReduceScatter, data, op, 0)?;
        Ok(data.get_mut(block).unwrap_or_default())
    }

    /// Begins a [`reduce_scatter_in_place`](Self::reduce_scatter_in_place); [`Work::wait`] returns `data` and the range of
    /// this rank's block in it.
    ///
    /// # Errors
    /// As [`reduce_scatter_in_place`](Self::reduce_scatter_in_place), here or from the wait.
    pub fn reduce_scatter_in_place_async<B: Owned>(
        &self,
        data: B,
        op: ReduceOp,
    ) -> Result<Work<(B, Range<usize>)>> {
        self.begin_in_place(Collective::ReduceScatter, data, op, 0, |data, block| (data, block))
    }

    /// Every rank gets all ranks' `input` in `output`, in the order of ranks; `output` is `size` times as long as `input`.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) unless `output` is `size` times as long as `input`; [`Error::Failed`](crate::Error::Failed) if the ranks disagree or
    /// the group has failed.
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        self.apart(Collective::AllGather, input, output, ReduceOp::Sum, 0)
    }

    /// Begins an [`all_gather`](Self::all_gather); [`Work::wait`] returns both.
    ///
    /// # Errors
    /// As [`all_gather`](Self::all_gather), here or from the wait.
    pub fn all_gather_async<I, O>(&self, input: I, output: O) -> Result<Work<(I, O)>>
    where
        I: Owned,
        O: Owned<Element = I::Element>,
    {
        self.begin_apart(Collective::AllGather, input, output, ReduceOp::Sum, 0)
    }

    /// As [`all_gather`](Self::all_gather), in place: `data` has a block for each rank, and this rank's own, the r-th of
    /// `size` equal ones, is already filled.
    ///
    /// # Errors
    /// As [`all_gather`](Self::all_gather), and [`Error::Argument`](crate::Error::Argument) unless `size` divides the length.
    pub fn all_gather_in_place<T: Element>(&self, data: &mut [T]) -> Result<()> {
        self.in_place(Collective::AllGather, data, ReduceOp::Sum, 0).map(drop)
    }

    /// Begins an [`all_gather_in_place`](Self::all_gather_in_place); [`Work::wait`] returns `data`.
    ///
    /// # Errors
    /// As [`all_gather_in_place`](Self::all_gather_in_place), here or from the wait.
    pub fn all_gather_in_place_async<B: Owned>(&self, data: B) -> Result<Work<B>> {
        self.begin_in_place(Collective::AllGather, data, ReduceOp::Sum, 0, |data, _| data)
    }

    /// Every rank sends a block to every rank: rank r gets the r-th of `size` equal blocks of each rank's `input`, in the
    /// order of ranks, in `output`. Both have the same length.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) unless both are equally long and `size` divides the length; [`Error::Failed`](crate::Error::Failed) if the ranks
    /// disagree or the group has failed.
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        self.apart(Collective::AllToAll, input, output, ReduceOp::Sum, 0)
    }

    /// Begins an [`all_to_all`](Self::all_to_all); [`Work::wait`] returns both.
    ///
    /// # Errors
    /// As [`all_to_all`](Self::all_to_all), here or from the wait.
    pub fn all_to_all_async<I, O>(&self, input: I, output: O) -> Result<Work<(I, O)>>
    where
        I: Owned,
        O: Owned<Element = I::Element>,
    {
        self.begin_apart(Collective::AllToAll, input, output, ReduceOp::Sum, 0)
    }

    /// As [`all_to_all`](Self::all_to_all), in place: what a rank gets replaces what it gave.
    ///
    /// # Errors
    /// As [`all_to_all`](Self::all_to_all).
    pub fn all_to_all_in_place<T: Element>(&self, data: &mut [T]) -> Result<()> {
        self.in_place(Collective::AllToAll, data, ReduceOp::Sum, 0).map(drop)
    }

    /// Begins an [`all_to_all_in_place`](Self::all_to_all_in_place); [`Work::wait`] returns `data`.
    ///
    /// # Errors
    /// As [`all_to_all_in_place`](Self::all_to_all_in_place), here or from the wait.
    pub fn all_to_all_in_place_async<B: Owned>(&self, data: B) -> Result<Work<B>> {
        self.begin_in_place(Collective::AllToAll, data, ReduceOp::Sum, 0, |data, _| data)
    }

    /// The root gets all ranks' `input` in `output`, in the order of ranks: there `output` is `size` times as long as
    /// `input`. On other ranks it is not used and may be empty.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if there is no such root, or, at the root, unless `output` is `size` times as long as
    /// `input`; [`Error::Failed`](crate::Error::Failed) if the ranks disagree or the group has failed.
    pub fn gather<T: Element>(&self, input: &[T], output: &mut [T], root: Rank) -> Result<()> {
        self.apart(Collective::Gather, input, output, ReduceOp::Sum, root)
    }

    /// Begins a [`gather`](Self::gather); [`Work::wait`] returns both.
    ///
    /// # Errors
    /// As [`gather`](Self::gather), here or from the wait.
    pub fn gather_async<I, O>(&self, input: I, output: O, root: Rank) -> Result<Work<(I, O)>>
    where
        I: Owned,
        O: Owned<Element = I::Element>,
    {
        self.begin_apart(Collective::Gather, input, output, ReduceOp::Sum, root)
    }

    /// As [`gather`](Self::gather), in place. At the root `data` has a block for each rank, and the root's own, the r-th of
    /// `size` equal ones, is already filled. On other ranks `data` is the block that this rank gives, and is only read.
    ///
    /// # Errors
    /// As [`gather`](Self::gather), and at the root [`Error::Argument`](crate::Error::Argument) unless `size` divides the length.
    pub fn gather_in_place<T: Element>(&self, data: &mut [T], root: Rank) -> Result<()> {
        self.in_place(Collective::Gather, data, ReduceOp::Sum, root).map(drop)
    }

    /// Begins a [`gather_in_place`](Self::gather_in_place); [`Work::wait`] returns `data`, unchanged except at the root.
    ///
    /// # Errors
    /// As [`gather_in_place`](Self::gather_in_place), here or from the wait.
    pub fn gather_in_place_async<B: Owned>(&self, data: B, root: Rank) -> Result<Work<B>> {
        self.begin_in_place(Collective::Gather, data, ReduceOp::Sum, root, |data, _| data)
    }

    /// Rank r gets the r-th of `size` equal blocks of the root's `input` in `output`. `input` is `size` times as long as
    /// `output` at the root; on other ranks it is not used and may be empty.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if there is no such root, or, at the root, unless `input` is `size` times as long as
    /// `output`; [`Error::Failed`](crate::Error::Failed) if the ranks disagree or the group has failed.
    pub fn scatter<T: Element>(&self, input: &[T], output: &mut [T], root: Rank) -> Result<()> {
        self.apart(Collective::Scatter, input, output, ReduceOp::Sum, root)
    }

    /// Begins a [`scatter`](Self::scatter); [`Work::wait`] returns both.
    ///
    /// # Errors
    /// As [`scatter`](Self::scatter), here or from the wait.
    pub fn scatter_async<I, O>(&self, input: I, output: O, root: Rank) -> Result<Work<(I, O)>>
    where
        I: Owned,
        O: Owned<Element = I::Element>,
    {
        self.begin_apart(Collective::Scatter, input, output, ReduceOp::Sum, root)
    }

    /// As [`scatter`](Self::scatter), in place. At the root `data` has a block for each rank and stays unchanged; on
    /// other ranks `data` is the block, and is filled. Returns this rank's block.
    ///
    /// # Errors
    /// As [`scatter`](Self::scatter), and at the root [`Error::Argument`](crate::Error::Argument) unless `size` divides the length.
    pub fn scatter_in_place<'d, T: Element>(&self, data: &'d mut [T], root: Rank) -> Result<&'d mut [T]> {
        let block = self.in_place(Collective::Scatter, data, ReduceOp::Sum, root)?;
        Ok(data.get_mut(block).unwrap_or_default())
    }

    /// Begins a [`scatter_in_place`](Self::scatter_in_place); [`Work::wait`] returns `data` and the range of this rank's
    /// block in it, which is all of it except at the root.
    ///
    /// # Errors
    /// As [`scatter_in_place`](Self::scatter_in_place), here or from the wait.
    pub fn scatter_in_place_async<B: Owned>(&self, data: B, root: Rank) -> Result<Work<(B, Range<usize>)>> {
        self.begin_in_place(Collective::Scatter, data, ReduceOp::Sum, root, |data, block| (data, block))
    }

    /// Every rank gets the root's `data`, which is equally long on all.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if there is no such root; [`Error::Failed`](crate::Error::Failed) if the ranks disagree or the group has failed.
    pub fn broadcast<T: Element>(&self, data: &mut [T], root: Rank) -> Result<()> {
        self.in_place(Collective::Broadcast, data, ReduceOp::Sum, root).map(drop)
    }

    /// Begins a [`broadcast`](Self::broadcast); [`Work::wait`] returns `data`.
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast), here or from the wait.
    pub fn broadcast_async<B: Owned>(&self, data: B, root: Rank) -> Result<Work<B>> {
        self.begin_in_place(Collective::Broadcast, data, ReduceOp::Sum, root, |data, _| data)
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// [`Error::Failed`](crate::Error::Failed) if the ranks disagree or the group has failed.
    pub fn barrier(&self) -> Result<()> {
        self.in_place::<u8>(Collective::Barrier, &mut [], ReduceOp::Sum, 0).map(drop)
    }

    /// Begins a [`barrier`](Self::barrier): its work ends when every rank has begun it.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier), here or from the wait.
    pub fn barrier_async(&self) -> Result<Work<()>> {
        self.begin_in_place(Collective::Barrier, Vec::<u8>::new(), ReduceOp::Sum, 0, |_, _| ())
    }

    /// Runs a collective in place, and returns the range of its output in `data`.
    fn in_place<T: Element>(
        &self,
        collective: Collective,
        data: &mut [T],
        op: ReduceOp,
        root: Rank,
    ) -> Result<Range<usize>> {
        let Checked { spec, input, output } = Checked::in_place(self, collective, data.len(), op, root)?;
        let len = data.len();
        let borrowed = Borrowed::within(data, input, output.clone());
        self.run(T::DTYPE, &spec, borrowed.ok_or_else(|| outside(collective.name(), len))?)?;
        Ok(output)
    }

    /// Begins a collective in place. `back` makes the work's result of the data and of the range of the output in it.
    fn begin_in_place<B: Owned, R: Send + 'static>(
        &self,
        collective: Collective,
        data: B,
        op: ReduceOp,
        root: Rank,
        back: impl FnOnce(B, Range<usize>) -> R,
    ) -> Result<Work<R>> {
        self.begin_matching(collective, data, op, (root, 0), back)
    }

    /// As [`begin_in_place`](Self::begin_in_place); ranks also compare `contents`.
    pub(crate) fn begin_matching<B: Owned, R: Send + 'static>(
        &self,
        collective: Collective,
        mut data: B,
        op: ReduceOp,
        (root, contents): (Rank, u32),
        back: impl FnOnce(B, Range<usize>) -> R,
    ) -> Result<Work<R>> {
        let len = data.elements().len();
        let Checked { spec, input, output } = Checked::in_place(self, collective, len, op, root)?;
        let spec = CallSpec { contents, ..spec };
        let borrowed = Borrowed::kept_within(&mut data, input, output.clone());
        let borrowed = borrowed.ok_or_else(|| outside(collective.name(), len))?;
        self.begin(B::Element::DTYPE, &spec, borrowed, back(data, output))
    }

    /// Runs a collective that reads one slice and writes another.
    fn apart<T: Element>(
        &self,
        collective: Collective,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
        root: Rank,
    ) -> Result<()> {
        let checked = Checked::apart(self, collective, (input.len(), output.len()), op, root)?;
        let borrowed = Borrowed::apart(&input[checked.input], &mut output[checked.output]);
        self.run(T::DTYPE, &checked.spec, borrowed)
    }

    /// Begins a collective that reads the elements of `input` and writes those of `output`; the work returns both.
    fn begin_apart<I, O>(
        &self,
        collective: Collective,
        mut input: I,
        mut output: O,
        op: ReduceOp,
        root: Rank,
    ) -> Result<Work<(I, O)>>
    where
        I: Owned,
        O: Owned<Element = I::Element>,
    {
        let lengths = (input.elements().len(), output.elements().len());
        let Checked { spec, .. } = Checked::apart(self, collective, lengths, op, root)?;
        let borrowed = Borrowed::kept(&mut input, &mut output);
        self.begin(I::Element::DTYPE, &spec, borrowed, (input, output))
    }
}
