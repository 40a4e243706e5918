//! The collectives, as calls on slices.

use std::ops::Range;

use bytemuck::Zeroable;
use unisono_schedule::{Collective, Rank};

use crate::{
    buffer::Borrowed,
    dtype::Element,
    error::{Error, Result},
    group::{ProcessGroup, plan::spec::CallSpec},
    reduce::{Kernel, ReduceOp},
};

impl ProcessGroup {
    /// Every rank gets the reduction of all ranks' `data`, in place.
    ///
    /// # Errors
    /// [`Error::Argument`] if the operation does not fit the type; [`Error::Failed`] if the ranks disagree
    /// or the group is over.
    pub fn all_reduce<T: Element>(&self, data: &mut [T], op: ReduceOp) -> Result<()> {
        self.within(Collective::AllReduce, data, op, 0).map(drop)
    }

    /// Every rank gets the reduction of all ranks' `input` in `output`, which has the same length.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce), and [`Error::Argument`] if the lengths differ.
    pub fn all_reduce_into<T: Element>(&self, input: &[T], output: &mut [T], op: ReduceOp) -> Result<()> {
        same_length(Collective::AllReduce, input.len(), output.len())?;
        if let ReduceOp::PreMulSum(_) = op {
            output.copy_from_slice(input);
            return self.all_reduce(output, op);
        }
        let count = output.len();
        self.run::<T>(
            &CallSpec { op, ..CallSpec::new(Collective::AllReduce, count) },
            Borrowed::apart(input, output),
        )
    }

    /// Rank r gets, in `output`, the r-th of `size` equal blocks of the reduction of all ranks' `input`.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce), and [`Error::Argument`] unless `input` is `size` times as long
    /// as `output`.
    pub fn reduce_scatter<T: Element>(&self, input: &[T], output: &mut [T], op: ReduceOp) -> Result<()> {
        self.blocks(Collective::ReduceScatter, output.len(), input.len())?;
        let scaled = scaled(Collective::ReduceScatter, input, op)?;
        let count = output.len();
        self.run::<T>(
            &CallSpec { op, ..CallSpec::new(Collective::ReduceScatter, count) },
            Borrowed::apart(scaled.as_deref().unwrap_or(input), output),
        )
    }

    /// Like [`reduce_scatter`](Self::reduce_scatter), leaving this rank's block where it lies in `data`
    /// (the r-th of `size` equal blocks), which is returned. The other blocks keep their contents, but for
    /// [`ReduceOp::PreMulSum`], which scales all of `data`.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce), and [`Error::Argument`] unless `size` divides the length.
    pub fn reduce_scatter_in_place<'d, T: Element>(
        &self,
        data: &'d mut [T],
        op: ReduceOp,
    ) -> Result<&'d mut [T]> {
        let block = self.within(Collective::ReduceScatter, data, op, 0)?;
        Ok(data.get_mut(block).unwrap_or_default())
    }

    /// Every rank gets all ranks' `input`, one after the other in the order of ranks, in `output`.
    ///
    /// # Errors
    /// [`Error::Argument`] unless `output` is `size` times as long as `input`; [`Error::Failed`] if the
    /// ranks disagree or the group is over.
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        self.blocks(Collective::AllGather, input.len(), output.len())?;
        let count = input.len();
        self.run::<T>(&CallSpec::new(Collective::AllGather, count), Borrowed::apart(input, output))
    }

    /// Like [`all_gather`](Self::all_gather), with this rank's contribution already in its place in `data`
    /// (the r-th of `size` equal blocks).
    ///
    /// # Errors
    /// As [`all_gather`](Self::all_gather); `size` must divide the length.
    pub fn all_gather_in_place<T: Element>(&self, data: &mut [T]) -> Result<()> {
        self.within(Collective::AllGather, data, ReduceOp::Sum, 0).map(drop)
    }

    /// Rank r gets, in `output`, the r-th of `size` equal blocks of every rank's `input`, one after the other in the
    /// order of ranks.
    ///
    /// # Errors
    /// [`Error::Argument`] unless `size` divides the length, which is the same for both; [`Error::Failed`] if the
    /// ranks disagree or the group is over.
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        same_length(Collective::AllToAll, input.len(), output.len())?;
        let count = self.own_block(Collective::AllToAll, input.len())?.len();
        self.run::<T>(&CallSpec::new(Collective::AllToAll, count), Borrowed::apart(input, output))
    }

    /// Like [`all_to_all`](Self::all_to_all), where what a rank gets takes the place of what it gave.
    ///
    /// # Errors
    /// As [`all_to_all`](Self::all_to_all).
    pub fn all_to_all_in_place<T: Element>(&self, data: &mut [T]) -> Result<()> {
        self.within(Collective::AllToAll, data, ReduceOp::Sum, 0).map(drop)
    }

    /// The root gets the reduction of all ranks' `data`, in place; elsewhere `data` is only read.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce), and [`Error::Argument`] if there is no such root.
    pub fn reduce<T: Element>(&self, data: &mut [T], op: ReduceOp, root: Rank) -> Result<()> {
        if self.rank() != root {
            return self.reduce_into(data, &mut [], op, root);
        }
        self.within(Collective::Reduce, data, op, root).map(drop)
    }

    /// The root gets the reduction of all ranks' `input` in `output`, which has the same length there and is not
    /// looked at elsewhere: it may be empty.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce), and [`Error::Argument`] if the lengths differ at the root.
    pub fn reduce_into<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
        root: Rank,
    ) -> Result<()> {
        self.known(Collective::Reduce, root)?;
        let output = if self.rank() == root { output } else { &mut [] };
        if self.rank() == root {
            same_length(Collective::Reduce, input.len(), output.len())?;
        }
        let request = CallSpec { root, op, ..CallSpec::new(Collective::Reduce, input.len()) };
        let scaled = scaled(Collective::Reduce, input, op)?;
        self.run::<T>(&request, Borrowed::apart(scaled.as_deref().unwrap_or(input), output))
    }

    /// The root gets all ranks' `input`, one after the other in the order of ranks, in `output`, which is not looked
    /// at elsewhere: it may be empty.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such root, or, at the root, unless `output` is `size` times as long as
    /// `input`; [`Error::Failed`] if the ranks disagree or the group is over.
    pub fn gather<T: Element>(&self, input: &[T], output: &mut [T], root: Rank) -> Result<()> {
        self.known(Collective::Gather, root)?;
        let output = if self.rank() == root { output } else { &mut [] };
        if self.rank() == root {
            self.blocks(Collective::Gather, input.len(), output.len())?;
        }
        let request = CallSpec { root, ..CallSpec::new(Collective::Gather, input.len()) };
        self.run::<T>(&request, Borrowed::apart(input, output))
    }

    /// Like [`gather`](Self::gather). At the root `data` is the whole, with its own contribution already in its place
    /// (the r-th of `size` equal blocks); elsewhere it is the contribution, and only read.
    ///
    /// # Errors
    /// As [`gather`](Self::gather); at the root `size` must divide the length.
    pub fn gather_in_place<T: Element>(&self, data: &mut [T], root: Rank) -> Result<()> {
        self.within(Collective::Gather, data, ReduceOp::Sum, root).map(drop)
    }

    /// Rank r gets, in `output`, the r-th of `size` equal blocks of the root's `input`, which is not looked at
    /// elsewhere: it may be empty.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such root, or, at the root, unless `input` is `size` times as long as
    /// `output`; [`Error::Failed`] if the ranks disagree or the group is over.
    pub fn scatter<T: Element>(&self, input: &[T], output: &mut [T], root: Rank) -> Result<()> {
        self.known(Collective::Scatter, root)?;
        let input = if self.rank() == root { input } else { &[] };
        if self.rank() == root {
            self.blocks(Collective::Scatter, output.len(), input.len())?;
        }
        let request = CallSpec { root, ..CallSpec::new(Collective::Scatter, output.len()) };
        self.run::<T>(&request, Borrowed::apart(input, output))
    }

    /// Like [`scatter`](Self::scatter), leaving the root's own block where it lies in `data`, which is the whole
    /// there, unchanged. Elsewhere `data` is the block, and filled. The rank's block is returned.
    ///
    /// # Errors
    /// As [`scatter`](Self::scatter); at the root `size` must divide the length.
    pub fn scatter_in_place<'d, T: Element>(&self, data: &'d mut [T], root: Rank) -> Result<&'d mut [T]> {
        let block = self.within(Collective::Scatter, data, ReduceOp::Sum, root)?;
        Ok(data.get_mut(block).unwrap_or_default())
    }

    /// Every rank gets the root's `data`.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such root; [`Error::Failed`] if the ranks disagree or the group
    /// is over.
    pub fn broadcast<T: Element>(&self, data: &mut [T], root: Rank) -> Result<()> {
        self.within(Collective::Broadcast, data, ReduceOp::Sum, root).map(drop)
    }

    /// Returns when every rank has come here.
    ///
    /// # Errors
    /// [`Error::Failed`] if the ranks disagree or the group is over.
    pub fn barrier(&self) -> Result<()> {
        self.within::<u8>(Collective::Barrier, &mut [], ReduceOp::Sum, 0).map(drop)
    }

    /// Does it in place, and tells where its output lies.
    fn within<T: Element>(
        &self,
        collective: Collective,
        data: &mut [T],
        op: ReduceOp,
        root: Rank,
    ) -> Result<Range<usize>> {
        let (request, [input, output]) = self.in_place(collective, data, op, root)?;
        let len = data.len();
        let borrowed =
            Borrowed::within(data, input, output.clone()).ok_or_else(|| outside(collective.name(), len))?;
        self.run::<T>(&request, borrowed)?;
        Ok(output)
    }

    /// What a call in place asks for, whose data is multiplied if it is to be; and which of it is input, and which output.
    pub(crate) fn in_place<T: Element>(
        &self,
        collective: Collective,
        data: &mut [T],
        op: ReduceOp,
        root: Rank,
    ) -> Result<(CallSpec<'static>, [Range<usize>; 2])> {
        self.known(collective, root)?;
        let whole = 0..data.len();
        let elsewhere = collective.has_root() && self.rank() != root;
        let block = match collective.has_blocks() && !elsewhere {
            true => self.own_block(collective, data.len())?,
            false => whole.clone(),
        };
        let count = block.len();
        let (input, output) = match collective {
            Collective::Reduce | Collective::Gather if elsewhere => (whole, 0..0),
            Collective::Scatter if elsewhere => (0..0, whole),
            Collective::AllGather | Collective::Gather => (block, whole),
            Collective::ReduceScatter | Collective::Scatter => (whole, block),
            _ => (whole.clone(), whole),
        };
        let op = premultiply(collective, data, op)?;
        Ok((CallSpec { root, op, ..CallSpec::new(collective, count) }, [input, output]))
    }

    pub(crate) fn known(&self, collective: Collective, root: Rank) -> Result<()> {
        if root < self.size() || !collective.has_root() {
            return Ok(());
        }
        Err(Error::Argument {
            call: collective.name(),
            problem: format!("the root is rank {root}; there are ranks 0 to {}", self.size() - 1),
        })
    }

    pub(crate) fn blocks(&self, collective: Collective, block: usize, whole: usize) -> Result<()> {
        let wanted = block.checked_mul(self.size());
        if wanted == Some(whole) {
            return Ok(());
        }
        Err(Error::Argument {
            call: collective.name(),
            problem: format!(
                "{whole} elements on the long side and {block} on the other; with {} ranks the long side must have {}",
                self.size(),
                wanted.map_or_else(|| "more than can be addressed".to_owned(), |wanted| wanted.to_string())
            ),
        })
    }

    pub(crate) fn own_block(&self, collective: Collective, len: usize) -> Result<Range<usize>> {
        if !len.is_multiple_of(self.size()) {
            return Err(Error::Argument {
                call: collective.name(),
                problem: format!("{len} elements cannot be cut into {} equal blocks", self.size()),
            });
        }
        let block = len / self.size();
        Ok(self.rank() * block..(self.rank() + 1) * block)
    }
}

/// The blocks would leave the data, which its length rules out.
pub(crate) fn outside(call: &'static str, len: usize) -> Error {
    Error::Argument { call, problem: format!("the blocks leave the {len} elements given") }
}

pub(crate) fn same_length(collective: Collective, input: usize, output: usize) -> Result<()> {
    if input == output {
        return Ok(());
    }
    Err(Error::Argument {
        call: collective.name(),
        problem: format!(
            "the input has {input} elements and the output {output}; they must have equally many"
        ),
    })
}

/// Scales the data of a pre-multiplied sum, whose factor is each rank's own affair; what remains is a sum
/// that keeps its name, so that ranks which do not pre-multiply are noticed.
pub(crate) fn premultiply<T: Element + Zeroable>(
    collective: Collective,
    data: &mut [T],
    op: ReduceOp,
) -> Result<ReduceOp> {
    if let ReduceOp::PreMulSum(_) = op {
        let argument = |error: String| Error::Argument { call: collective.name(), problem: error };
        let kernel = Kernel::new(T::DTYPE, op).map_err(|error| argument(error.to_string()))?;
        kernel.scale_in_place(bytemuck::cast_slice_mut(data)).map_err(|error| argument(error.to_string()))?;
    }
    Ok(op)
}

/// A scaled copy of the data of a pre-multiplied sum, where the caller's is only read; nothing for other operations.
pub(crate) fn scaled<T: Element>(collective: Collective, data: &[T], op: ReduceOp) -> Result<Option<Vec<T>>> {
    let ReduceOp::PreMulSum(_) = op else { return Ok(None) };
    let mut scaled = data.to_vec();
    premultiply(collective, &mut scaled, op)?;
    Ok(Some(scaled))
}
