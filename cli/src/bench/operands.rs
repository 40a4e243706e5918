//! The memory of the calls that are measured: an input and an output, or one vector that holds both (`--in-place`).

use std::ops::Range;

use unisono::{
    ProcessGroup,
    group::{Blocking, Operands},
};
use unisono_schedule::{Collective, Job};

use super::{
    Result,
    check::RankPart,
    data::{OperandMemory, Sample},
};

/// True if a collective can be called in place and out of place.
pub(super) const fn has_both(collective: Collective) -> bool {
    !matches!(collective, Collective::Broadcast | Collective::Barrier)
}

/// The memory of one rank.
pub(crate) enum CallMemory<M> {
    /// The input keeps its values from call to call.
    Apart { input: M, output: M },
    /// Input and output are parts of the data. It is all zeros until a call is checked: every reduction leaves these as they are,
    /// while sums of sums would overflow and products of small factors would become numbers that are slow to compute with.
    InPlace { data: M, input: Range<usize>, output: Range<usize> },
}

impl<M: OperandMemory> CallMemory<M> {
    /// Takes memory for a call from `zeros`.
    pub(crate) fn new(part: &RankPart, in_place: bool, zeros: impl Fn(usize) -> Result<M>) -> Result<Self> {
        let (inputs, outputs) = part.lengths()?;
        if in_place {
            let len = inputs.max(outputs);
            // The rank's block, if the other operand has a block for every rank.
            let range = |part_len: usize| {
                let start = if part_len == len || part_len == 0 { 0 } else { part.job.rank * part_len };
                start..start + part_len
            };
            return Ok(Self::InPlace { data: zeros(len)?, input: range(inputs), output: range(outputs) });
        }
        let (mut input, output) = (zeros(inputs)?, zeros(outputs)?);
        part.fill(&mut input);
        Ok(Self::Apart { input, output })
    }

    /// Calls the collective.
    pub(crate) fn call(&mut self, group: &ProcessGroup, part: &RankPart) -> Result<()> {
        match self {
            Self::Apart { output, .. } if part.job.collective == Collective::Broadcast => {
                group.broadcast(&mut **output, part.job.root)?;
            }
            Self::Apart { input, output } => call(group, part, (&**input, &mut **output))?,
            Self::InPlace { data, .. } => call(group, part, &mut **data)?,
        }
        Ok(())
    }

    /// Prepares the memory for a call that is checked, so that no old value passes for the result.
    pub(super) fn prepare(&mut self, part: &RankPart) {
        match self {
            Self::Apart { input, output } => part.spoil(input, output),
            Self::InPlace { data, input, .. } => {
                data.fill(M::Element::SPOILT);
                part.fill(&mut data[input.clone()]);
            }
        }
    }

    /// The number of elements of the output that are wrong after that call.
    pub(super) fn wrong(&self, part: &RankPart) -> u64 {
        match self {
            Self::Apart { input, output } => part.wrong(input.len(), output),
            Self::InPlace { data, input, output } => part.wrong(input.len(), &data[output.clone()]),
        }
    }
}

/// Calls a collective in place or out of place; a broadcast has other operands.
fn call<D: Operands<Blocking>>(group: &ProcessGroup, part: &RankPart, data: D) -> unisono::Result<()> {
    let RankPart { op, job: Job { collective, root, .. } } = *part;
    match collective {
        Collective::AllReduce => group.all_reduce(data, op).map(drop),
        Collective::ReduceScatter => group.reduce_scatter(data, op).map(drop),
        Collective::AllGather => group.all_gather(data).map(drop),
        Collective::Reduce => group.reduce(data, op, root).map(drop),
        Collective::Gather => group.gather(data, root).map(drop),
        Collective::Scatter => group.scatter(data, root).map(drop),
        Collective::AllToAll => group.all_to_all(data).map(drop),
        Collective::Broadcast | Collective::Barrier => group.barrier(),
    }
}

#[cfg(test)]
mod tests {
    use unisono::reduce::ReduceOp;

    use super::*;

    fn in_place(collective: Collective, rank: usize) -> (RankPart, CallMemory<Vec<f32>>) {
        let part = RankPart { op: ReduceOp::Sum, job: Job { root: 1, ..Job::new(collective, rank, 3, 4) } };
        (part, CallMemory::new(&part, true, |len| Ok(vec![0.0; len])).unwrap())
    }

    #[test]
    fn parts_lie_where_the_calls_in_place_have_them() {
        let ranges = |collective, rank| match in_place(collective, rank).1 {
            CallMemory::InPlace { data, input, output } => (data.len(), input, output),
            CallMemory::Apart { .. } => panic!("apart"),
        };
        for rank in 0..3 {
            let own = rank * 4..rank * 4 + 4;
            assert_eq!(ranges(Collective::AllReduce, rank), (4, 0..4, 0..4));
            assert_eq!(ranges(Collective::AllToAll, rank), (12, 0..12, 0..12));
            assert_eq!(ranges(Collective::AllGather, rank), (12, own.clone(), 0..12));
            assert_eq!(ranges(Collective::ReduceScatter, rank), (12, 0..12, own));
        }
        assert_eq!(ranges(Collective::Gather, 1), (12, 4..8, 0..12));
        assert_eq!(ranges(Collective::Scatter, 1), (12, 0..12, 4..8));
        assert_eq!(ranges(Collective::Gather, 2), (4, 0..4, 0..0));
        assert_eq!(ranges(Collective::Reduce, 2), (4, 0..4, 0..0));
        assert_eq!(ranges(Collective::Scatter, 2), (4, 0..0, 0..4));
    }

    #[test]
    fn a_call_that_does_nothing_is_wrong() {
        let all = Collective::ALL.into_iter().filter(|&collective| has_both(collective));
        for (collective, rank) in all.flat_map(|collective| [(collective, 0), (collective, 1)]) {
            let (part, mut operands) = in_place(collective, rank);
            operands.prepare(&part);
            let CallMemory::InPlace { output, .. } = &operands else { panic!("apart") };
            // The block that a rank has for itself is in its place already.
            let kept = match collective {
                Collective::Scatter if rank == part.job.root => 4,
                Collective::AllGather | Collective::AllToAll | Collective::Gather if !output.is_empty() => 4,
                _ => 0,
            };
            assert_eq!(operands.wrong(&part), (output.len() - kept) as u64, "{collective:?} on rank {rank}");
        }
    }
}
