//! Collectives: calls that all ranks of a group make.

use unisono_schedule::{Collective, Rank};

use super::{
    mode::Mode,
    operands::{Blocks, Gathered, InPlace, Input, Operands},
};
use crate::{
    error::Result,
    group::{ProcessGroup, collective::CollectiveCall},
    reduce::ReduceOp,
};

/// # Collectives
/// Every rank of the group makes the same calls in the same order. Operands are [in place](Operands), `&mut data`, or apart,
/// `(&input, &mut output)`; blocks of several lengths are [`uneven(…, &counts)`](crate::uneven). Operands of a call that
/// [`begin`](ProcessGroup::begin) makes are given by value.
///
/// Each call returns [`Error::Argument`](crate::Error::Argument) if its arguments do not fit each other or there is no such root, and
/// [`Error::Failed`](crate::Error::Failed) if the ranks disagree (other length, type, operation or call), the timeout passes, or the group
/// has failed.
impl<M: Mode> ProcessGroup<M> {
    /// Reduces all ranks' elements, one by one; every rank gets the result.
    ///
    /// ```
    /// # use unisono::{Config, ProcessGroup, ReduceOp};
    /// # use unisono_transport::inproc::Hub;
    /// # fn main() -> unisono::Result<()> {
    /// # let group = ProcessGroup::with(Config::default(), Box::new(Hub::new().open()), None)?;
    /// let mut data = vec![1.0_f32; 1000];
    /// group.all_reduce(&mut data, ReduceOp::Sum)?;
    /// let work = group.begin().all_reduce(data, ReduceOp::Max)?;
    /// // Compute something else meanwhile.
    /// let data = work.wait()?;
    /// assert_eq!(data[0], group.size() as f32);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As for all collectives; [`Error::Argument`](crate::Error::Argument) also if the operation does not fit the type.
    #[inline]
    pub fn all_reduce<D: Operands<M>>(&self, data: D, op: ReduceOp) -> Result<D::Returns> {
        data.call(self, CollectiveCall::new(Collective::AllReduce, op, 0))
    }

    /// Reduces all ranks' elements; the root gets the result. On other ranks an operand in place is only read, and an output is not used
    /// and may be empty.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn reduce<D: Operands<M>>(&self, data: D, op: ReduceOp, root: Rank) -> Result<D::Returns> {
        data.call(self, CollectiveCall::new(Collective::Reduce, op, root))
    }

    /// Reduces all ranks' elements and cuts the result into one block for each rank: rank r gets the r-th. The input has the blocks of all
    /// ranks, the output one. In place the result replaces this rank's block, which is returned; the other blocks keep their contents,
    /// except that [`ReduceOp::PreMulSum`] scales all of them.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn reduce_scatter<D: Blocks<M>>(&self, data: D, op: ReduceOp) -> Result<D::Block> {
        data.block(self, CollectiveCall::new(Collective::ReduceScatter, op, 0))
    }

    /// Every rank gets the blocks of all ranks, in the order of ranks. The input is one block, the output has the blocks of all ranks. In
    /// place this rank's block is already where it belongs.
    ///
    /// # Errors
    /// As for all collectives.
    pub fn all_gather<D: Blocks<M>>(&self, data: D) -> Result<D::Returns> {
        data.call(self, CollectiveCall::new(Collective::AllGather, ReduceOp::Sum, 0))
    }

    /// Every rank gives a block to every rank: rank r gets the r-th block of each, in the order of ranks. In place the blocks that a rank
    /// gets replace those that it gives; uneven blocks that two ranks give each other then have the same length.
    ///
    /// # Errors
    /// As for all collectives.
    pub fn all_to_all<D: Blocks<M>>(&self, data: D) -> Result<D::Returns> {
        data.call(self, CollectiveCall::new(Collective::AllToAll, ReduceOp::Sum, 0))
    }

    /// The root gets the blocks of all ranks, in the order of ranks. The input is one block, the output has the blocks of all ranks at the
    /// root; on other ranks it is not used and may be empty. In place the root's own block is already where it belongs, and on other
    /// ranks the operand is the block that this rank gives, and is only read.
    ///
    /// # Errors
    /// As for all collectives.
    pub fn gather<D: Blocks<M>>(&self, data: D, root: Rank) -> Result<D::Returns> {
        data.call(self, CollectiveCall::new(Collective::Gather, ReduceOp::Sum, root))
    }

    /// Rank r gets the r-th block of the root's input; on other ranks the input is not used and may be empty. The output is one block. In
    /// place the root's blocks stay where they are, and on other ranks the operand is the block, and is filled; this rank's block is
    /// returned.
    ///
    /// # Errors
    /// As for all collectives.
    pub fn scatter<D: Blocks<M>>(&self, data: D, root: Rank) -> Result<D::Block> {
        data.block(self, CollectiveCall::new(Collective::Scatter, ReduceOp::Sum, root))
    }

    /// Every rank gets the root's elements.
    ///
    /// # Errors
    /// As for all collectives.
    pub fn broadcast<D: InPlace<M>>(&self, data: D, root: Rank) -> Result<D::Returns> {
        data.call(self, CollectiveCall::new(Collective::Broadcast, ReduceOp::Sum, root))
    }

    /// Ends when every rank has called it.
    ///
    /// # Errors
    /// As for all collectives.
    pub fn barrier(&self) -> Result<M::Returns<()>> {
        let call = CollectiveCall::new(Collective::Barrier, ReduceOp::Sum, 0);
        M::run(
            &self.handle,
            |handle| handle.in_place::<u8>(&call, &mut []).map(drop),
            |handle| handle.begin_in_place(call, Vec::<u8>::new(), 0, |_, _| ()),
        )
    }

    /// Every rank gets the elements of all ranks, in the order of ranks, and how many each gave. No rank needs to know how many the
    /// others give.
    ///
    /// # Errors
    /// As for all collectives; [`Error::Failed`](crate::Error::Failed) also if a rank has no memory for the result.
    pub fn all_gather_v<D: Input<M>>(&self, input: D) -> Result<D::With<Gathered<D::Element>>> {
        input.exchange(self, CollectiveCall::new(Collective::AllGather, ReduceOp::Sum, 0), &[], |all| all)
    }

    /// The root gets the elements of all ranks, in the order of ranks; the others get none. All get how many each gave.
    ///
    /// # Errors
    /// As [`all_gather_v`](Self::all_gather_v).
    pub fn gather_v<D: Input<M>>(&self, input: D, root: Rank) -> Result<D::With<Gathered<D::Element>>> {
        input.exchange(self, CollectiveCall::new(Collective::Gather, ReduceOp::Sum, root), &[], |all| all)
    }

    /// Rank r gets the r-th block of the root's input; the blocks have these numbers of elements. On other ranks input and counts are
    /// not used and may be empty.
    ///
    /// # Errors
    /// As [`all_gather_v`](Self::all_gather_v).
    pub fn scatter_v<D: Input<M>>(
        &self,
        input: D,
        counts: &[usize],
        root: Rank,
    ) -> Result<D::With<Vec<D::Element>>> {
        let call = CollectiveCall::new(Collective::Scatter, ReduceOp::Sum, root);
        input.exchange(self, call, counts, |(block, _)| block)
    }

    /// Every rank gives a block to every rank, of these numbers of elements. Returns the blocks that this rank gets, in the order of ranks,
    /// and how many elements each has. No rank needs to know these.
    ///
    /// # Errors
    /// As [`all_gather_v`](Self::all_gather_v).
    pub fn all_to_all_v<D: Input<M>>(
        &self,
        input: D,
        counts: &[usize],
    ) -> Result<D::With<Gathered<D::Element>>> {
        input.exchange(self, CollectiveCall::new(Collective::AllToAll, ReduceOp::Sum, 0), counts, |all| all)
    }
}
