//! Verifies a collective: fills a rank's operands before the call and compares them with the expected result after it.

use unisono::reduce::ReduceOp;
use unisono_schedule::{Collective, Job};

use super::{
    Result,
    data::{self, Sample},
};

/// This rank's part of a collective.
#[derive(Clone, Copy)]
pub(crate) struct RankPart {
    pub job: Job<'static>,
    pub op: ReduceOp,
}

impl RankPart {
    /// The numbers of elements of the input and of the output.
    pub(super) fn lengths(&self) -> Result<(usize, usize)> {
        Ok(self.job.lengths().ok_or("the sizes overflow")?)
    }

    /// Fills the input.
    pub(super) fn fill<T: Sample>(&self, input: &mut [T]) {
        if self.job.collective.reduces() {
            data::fill_reduced(self.op, self.job.rank, self.job.ranks, input);
        } else {
            data::fill_copied(self.job.rank, 0, input);
        }
    }

    /// Fills the output before a call whose result is checked, so that no old value passes for the result.
    pub(super) fn spoil<T: Sample>(&self, input: &[T], output: &mut [T]) {
        if self.job.collective == Collective::Broadcast && self.job.rank == self.job.root {
            output.copy_from_slice(input);
        } else {
            output.fill(T::SPOILT);
        }
    }

    /// The number of elements of the output that are wrong, where the input has `inputs` elements.
    pub(super) fn wrong<T: Sample>(&self, inputs: usize, output: &[T]) -> u64 {
        let Self { op, job: Job { collective, root, rank, ranks, .. } } = *self;
        // Each block comes from another rank: from element `first` of its data on.
        let blocks = |len: usize, first: usize| {
            let blocks = output.chunks(len.max(1)).enumerate();
            blocks.map(|(from, block)| data::wrong_copied(from, first, block)).sum()
        };
        match collective {
            Collective::AllReduce | Collective::Reduce => data::wrong_reduced(op, ranks, 0, output),
            Collective::ReduceScatter => data::wrong_reduced(op, ranks, rank * output.len(), output),
            Collective::AllGather | Collective::Gather => blocks(inputs, 0),
            Collective::AllToAll => blocks(inputs / ranks, rank * (inputs / ranks)),
            Collective::Scatter => data::wrong_copied(root, rank * output.len(), output),
            Collective::Broadcast => data::wrong_copied(root, 0, output),
            Collective::Barrier => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANKS: usize = 4;
    const COUNT: usize = 6;
    const ROOT: usize = 2;

    fn part(collective: Collective, rank: usize) -> RankPart {
        let job = Job { root: ROOT, ..Job::new(collective, rank, RANKS, COUNT) };
        RankPart { op: ReduceOp::Sum, job }
    }

    /// What every rank has before a collective, and a right output of each.
    fn world(collective: Collective) -> (Vec<Vec<f32>>, Vec<Vec<f32>>) {
        let lengths: Vec<_> = (0..RANKS).map(|rank| part(collective, rank).lengths().unwrap()).collect();
        let mut inputs: Vec<Vec<f32>> = lengths.iter().map(|(input, _)| vec![0.0; *input]).collect();
        inputs.iter_mut().enumerate().for_each(|(rank, input)| part(collective, rank).fill(input));
        let sums = |len: usize| (0..len).map(|at| inputs.iter().map(|input| input[at]).sum::<f32>());
        let output = |rank: usize, len: usize| -> Vec<f32> {
            let own = rank * COUNT..(rank + 1) * COUNT;
            match collective {
                _ if len == 0 => vec![],
                Collective::AllReduce | Collective::Reduce => sums(COUNT).collect(),
                Collective::ReduceScatter => sums(RANKS * COUNT).collect::<Vec<_>>()[own].to_vec(),
                Collective::AllGather | Collective::Gather => inputs.concat(),
                Collective::AllToAll => inputs.iter().flat_map(|input| input[own.clone()].to_vec()).collect(),
                Collective::Scatter => inputs[ROOT][own].to_vec(),
                Collective::Broadcast => inputs[ROOT].clone(),
                Collective::Barrier => vec![],
            }
        };
        let outputs = lengths.iter().enumerate().map(|(rank, (_, len))| output(rank, *len)).collect();
        (inputs, outputs)
    }

    #[test]
    fn every_element_of_every_collective_is_looked_at() {
        for collective in Collective::ALL {
            let (inputs, outputs) = world(collective);
            for (rank, (input, mut output)) in inputs.iter().zip(outputs).enumerate() {
                let part = part(collective, rank);
                assert_eq!(part.wrong(input.len(), &output), 0, "{collective:?} on rank {rank}");
                for at in 0..output.len() {
                    let right = std::mem::replace(&mut output[at], f32::SPOILT);
                    assert_eq!(part.wrong(input.len(), &output), 1, "{collective:?} on rank {rank}: {at}");
                    output[at] = right + 1.0;
                    assert_eq!(part.wrong(input.len(), &output), 1, "{collective:?} on rank {rank}: {at}");
                    output[at] = right;
                }
                let mut untouched = output.clone();
                part.spoil(input, &mut untouched);
                let given = collective == Collective::Broadcast && rank == ROOT;
                let wanted = if given { 0 } else { output.len() as u64 };
                assert_eq!(part.wrong(input.len(), &untouched), wanted, "{collective:?} on rank {rank}");
            }
        }
    }

    #[test]
    fn what_belongs_to_another_rank_or_in_another_place_is_wrong() {
        for collective in [Collective::ReduceScatter, Collective::AllToAll, Collective::Scatter] {
            let (inputs, outputs) = world(collective);
            for (rank, input) in inputs.iter().enumerate() {
                for other in (0..RANKS).filter(|&other| other != rank) {
                    let wrong = part(collective, rank).wrong(input.len(), &outputs[other]);
                    assert!(wrong > 0, "{collective:?}: rank {other}'s output on rank {rank}");
                }
            }
        }
        for collective in [Collective::AllGather, Collective::AllToAll, Collective::Gather] {
            let (inputs, mut outputs) = world(collective);
            let part = part(collective, 2);
            outputs[2].rotate_left(COUNT);
            assert_eq!(part.wrong(inputs[2].len(), &outputs[2]), (RANKS * COUNT) as u64, "{collective:?}");
        }
    }
}
