//! The collectives that move blocks, and those of uneven blocks, in place and out of place, against a loop.

use std::ops::Range;

use unisono::ReduceOp;
use unisono_schedule::Collective;

use crate::{
    collectives::{Check, expect},
    numbers::{Number, numbers, small},
    rank,
};

/// `gather`, `scatter` and `all_to_all` of blocks of `count` elements, and all that may be uneven of about this many.
pub(crate) fn check<T: Number>(check: &Check, count: usize, seed: u64, registered: bool) -> rank::Outcome {
    let blocks = Blocks { check, count: check.block(count), seed, registered };
    if check.does(Collective::Gather) {
        blocks.gather::<T>()?;
    }
    if check.does(Collective::Scatter) {
        blocks.scatter::<T>()?;
    }
    if check.does(Collective::AllToAll) {
        blocks.all_to_all::<T>()?;
    }
    // An algorithm that cannot do them is skipped; others are tested in their turn.
    if check.does(Collective::AllGather) || check.does(Collective::ReduceScatter) {
        blocks.uneven::<T>()?;
    }
    Ok(())
}

struct Blocks<'a> {
    check: &'a Check,
    count: usize,
    seed: u64,
    registered: bool,
}

impl Blocks<'_> {
    fn root(&self) -> usize {
        usize::try_from(self.seed).unwrap_or(0) % self.check.group.size()
    }

    fn what<T: Number>(&self, call: &str) -> String {
        format!("{call}({}) of {}, registered: {}", T::DTYPE, self.count, self.registered)
    }

    /// `len` elements of one rank for another.
    fn of<T: Number>(&self, from: usize, to: usize, len: usize) -> Vec<T> {
        let seed = self.seed + 1000 * to as u64;
        numbers(0..len, |index| small(seed, ReduceOp::Sum, from, index))
    }

    /// The concatenation of `of` for each rank.
    fn all<T: Number>(&self, of: impl Fn(usize) -> Vec<T>) -> Vec<T> {
        (0..self.check.group.size()).map(of).collect::<Vec<_>>().concat()
    }

    fn gather<T: Number>(&self) -> rank::Outcome {
        let (group, root, count) = (&self.check.group, self.root(), self.count);
        let (rank, ranks) = (group.rank(), group.size());
        let wanted = self.all(|from| self.of(from, 0, count));
        let mine = wanted[rank * count..(rank + 1) * count].to_vec();
        let input = self.check.room(mine.clone(), self.registered)?;
        let mut output = self.check.room(vec![T::of(99); ranks * count], self.registered)?;
        group.gather((&input[..], &mut output[..]), root)?;
        let untouched = vec![T::of(99); ranks * count];
        expect(&self.what::<T>("gather"), &output, if rank == root { &wanted } else { &untouched })?;
        output[rank * count..(rank + 1) * count].copy_from_slice(&mine);
        let mut data = if rank == root { output } else { input };
        group.gather(&mut data[..], root)?;
        expect(&self.what::<T>("gather in place"), &data, if rank == root { &wanted } else { &mine })?;
        Ok(())
    }

    fn scatter<T: Number>(&self) -> rank::Outcome {
        let (group, root, count) = (&self.check.group, self.root(), self.count);
        let rank = group.rank();
        let whole = self.all(|to| self.of(root, to, count));
        let wanted = &whole[rank * count..(rank + 1) * count];
        let input =
            self.check.room(if rank == root { whole.clone() } else { Vec::new() }, self.registered)?;
        let mut output = self.check.room(vec![T::of(99); count], self.registered)?;
        group.scatter((&input[..], &mut output[..]), root)?;
        expect(&self.what::<T>("scatter"), &output, wanted)?;
        output.fill(T::of(98));
        let mut data = if rank == root { input } else { output };
        let block = group.scatter(&mut data[..], root)?;
        expect(&self.what::<T>("scatter in place"), block, wanted)?;
        expect(
            &self.what::<T>("all of scatter in place"),
            &data,
            if rank == root { &whole } else { wanted },
        )?;
        Ok(())
    }

    fn all_to_all<T: Number>(&self) -> rank::Outcome {
        let (group, count) = (&self.check.group, self.count);
        let (rank, ranks) = (group.rank(), group.size());
        let mine = self.all(|to| self.of(rank, to, count));
        let wanted = self.all(|from| self.of(from, rank, count));
        let input = self.check.room(mine.clone(), self.registered)?;
        let mut output = self.check.room(vec![T::of(99); ranks * count], self.registered)?;
        group.all_to_all((&input[..], &mut output[..]))?;
        expect(&self.what::<T>("all_to_all"), &output, &wanted)?;
        expect(&self.what::<T>("the input of all_to_all"), &input, &mine)?;
        let mut data = input;
        group.all_to_all(&mut data[..])?;
        expect(&self.what::<T>("all_to_all in place"), &data, &wanted)?;
        Ok(())
    }

    /// The length of one rank's block for another: from 0 to twice the count.
    fn length(&self, from: usize, to: usize) -> usize {
        let mix = (usize::try_from(self.seed).unwrap_or(0) + 7 * from + 3 * to) % 5;
        self.count * mix / 2
    }

    fn uneven<T: Number>(&self) -> rank::Outcome {
        let group = &self.check.group;
        let (rank, ranks, root) = (group.rank(), group.size(), self.root());
        let own = |rank: usize| self.length(rank, rank);
        let lengths: Vec<usize> = (0..ranks).map(own).collect();
        let together = self.all(|from| self.of(from, 0, own(from)));
        let mine: Vec<T> = self.of(rank, 0, own(rank));
        let (whole, known): (&[T], &[usize]) = if rank == root { (&together, &lengths) } else { (&[], &[]) };
        // All of them are under way during the blocking calls below.
        let gathered = group.begin().all_gather_v(mine.clone())?;
        let at_root = group.begin().gather_v(mine.clone(), root)?;
        let scattered = group.begin().scatter_v(whole.to_vec(), known, root)?;
        let (output, learned) = group.all_gather_v(&mine)?;
        expect(&self.what::<T>("all_gather_v"), &output, &together)?;
        crate::ensure!(learned == lengths, "all_gather_v: lengths {learned:?}, not {lengths:?}");
        let (output, _) = group.gather_v(&mine, root)?;
        expect(&self.what::<T>("gather_v"), &output, if rank == root { &together } else { &[] })?;
        expect(&self.what::<T>("scatter_v"), &group.scatter_v(whole, known, root)?, &mine)?;
        expect(&self.what::<T>("all_gather_v, begun"), &gathered.wait()?.1.0, &together)?;
        let here: &[T] = if rank == root { &together } else { &[] };
        expect(&self.what::<T>("gather_v, begun"), &at_root.wait()?.1.0, here)?;
        expect(&self.what::<T>("scatter_v, begun"), &scattered.wait()?.1, &mine)?;

        // Calls with known lengths.
        let before: usize = lengths[..rank].iter().sum();
        let block = before..before + own(rank);
        let mut data = self.check.room(vec![T::of(99); together.len()], self.registered)?;
        data[block.clone()].copy_from_slice(&mine);
        group.all_gather(unisono::uneven(&mut data[..], &lengths))?;
        expect(&self.what::<T>("all_gather_v in place"), &data, &together)?;
        let mut data = if rank == root { vec![T::of(99); together.len()] } else { mine.clone() };
        if rank == root {
            data[block.clone()].copy_from_slice(&mine);
        }
        let mut data = self.check.room(data, self.registered)?;
        group.gather(unisono::uneven(&mut data[..], known), root)?;
        let here = if rank == root { &together } else { &mine };
        expect(&self.what::<T>("gather_v in place"), &data, here)?;
        let data = if rank == root { together.clone() } else { vec![T::of(99); own(rank)] };
        let mut data = self.check.room(data, self.registered)?;
        let got = group.scatter(unisono::uneven(&mut data[..], known), root)?;
        expect(&self.what::<T>("scatter_v in place"), got, &mine)?;
        expect(&self.what::<T>("all of scatter_v in place"), &data, here)?;
        self.uneven_sums::<T>(&lengths, block)?;

        let gives: Vec<usize> = (0..ranks).map(|to| self.length(rank, to)).collect();
        let input: Vec<T> = self.all(|to| self.of(rank, to, gives[to]));
        let wanted = self.all(|from| self.of(from, rank, self.length(from, rank)));
        let turned = group.begin().all_to_all_v(input.clone(), &gives)?;
        let (output, _) = group.all_to_all_v(&input, &gives)?;
        expect(&self.what::<T>("all_to_all_v"), &output, &wanted)?;
        expect(&self.what::<T>("all_to_all_v, begun"), &turned.wait()?.1.0, &wanted)?;

        // In place, two ranks have blocks of equal length for each other.
        let pair = |one: usize, other: usize| self.length(one.min(other), one.max(other));
        let lengths: Vec<usize> = (0..ranks).map(|other| pair(rank, other)).collect();
        let mine: Vec<T> = self.all(|to| self.of(rank, to, lengths[to]));
        let wanted = self.all(|from| self.of(from, rank, lengths[from]));
        let mut data = self.check.room(mine, self.registered)?;
        group.all_to_all(unisono::uneven(&mut data[..], &lengths))?;
        expect(&self.what::<T>("all_to_all_v in place"), &data, &wanted)
    }

    /// `reduce_scatter_v` of blocks of these lengths, of which `block` is this rank's, by one operation or another.
    fn uneven_sums<T: Number>(&self, lengths: &[usize], block: Range<usize>) -> rank::Outcome {
        let (group, seed) = (&self.check.group, self.seed);
        let ops = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::PreMulSum(T::factor())];
        let op = ops[usize::try_from(seed)? % ops.len()];
        let given = |rank: usize, at: usize| small::<T>(seed, op, rank, at);
        let sum = |at| T::reduce(op, &(0..group.size()).map(|rank| given(rank, at)).collect::<Vec<_>>());
        let wanted: Vec<T> = numbers(block.clone(), sum);
        let mine: Vec<T> = numbers(0..lengths.iter().sum(), |at| given(group.rank(), at));
        let what = |call: &str| self.what::<T>(&format!("{call}, {op},"));

        let input = self.check.room(mine.clone(), self.registered)?;
        let mut output = self.check.room(vec![T::of(99); block.len()], self.registered)?;
        let reduced =
            group.begin().reduce_scatter(unisono::uneven((mine.clone(), output.to_vec()), lengths), op)?;
        group.reduce_scatter(unisono::uneven((&input[..], &mut output[..]), lengths), op)?;
        expect(&what("reduce_scatter_v"), &output, &wanted)?;
        expect(&what("the input of reduce_scatter_v"), &input, &mine)?;
        expect(&what("reduce_scatter_v, begun"), &reduced.wait()?.1, &wanted)?;
        let mut data = input;
        let got = group.reduce_scatter(unisono::uneven(&mut data[..], lengths), op)?;
        expect(&what("reduce_scatter_v in place"), got, &wanted)
    }
}
