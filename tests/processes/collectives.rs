//! Every collective against an oracle: types, operations, counts, algorithms, kinds of memory.

use std::ops::{Deref, DerefMut};

use half::{bf16, f16};
use unisono::{Buffer, Config, ProcessGroup, ReduceOp, Reduction};
use unisono_schedule::{Collective, algorithm};

use crate::{
    Outcome, Verdict, blocks, ensure,
    numbers::{Number, numbers, operations, small, wild},
    rank::{self, Role, config, say},
    suite::brief,
    world::{End, TestJob, same},
};

pub(crate) const ROLES: &[Role] = &[("collectives", play)];

/// The seed of all data, shown with every failure.
const SEED: u64 = 20_251_120;

/// All checks with a number of ranks.
pub(crate) fn case(provider: &str, ranks: usize) -> Outcome {
    let mut world = TestJob::new(provider, ranks, rounds().len())?;
    world.start_all("collectives", &[])?;
    let ends = world.end_all()?;
    End::all_well(&ends)?;
    let ends: Vec<&End> = ends.iter().collect();
    for round in rounds() {
        // Bit by bit the same on every rank.
        same(&ends, &format!("bits of {}:", round.name))?;
    }
    Ok(Verdict::Measured(format!("{} calls on each rank", same(&ends, "calls")?)))
}

/// A group with its own settings.
struct Round {
    name: &'static str,
    algorithm: Option<&'static str>,
    /// True if chunks and slots are so small that little data exercises every pattern.
    small: bool,
}

/// A group for each algorithm, one with the table's choice, and one with the default settings.
fn rounds() -> Vec<Round> {
    let forced =
        algorithm::ALGORITHMS.iter().map(|it| Round { name: it.name, algorithm: Some(it.name), small: true });
    let mut rounds: Vec<_> = forced.collect();
    rounds.push(Round { name: "small chunks", algorithm: None, small: true });
    rounds.push(Round { name: "defaults", algorithm: None, small: false });
    rounds
}

/// The bytes of a chunk and of an eager slot in rounds with small ones.
const CHUNK: usize = 1024;
const LANES: usize = 3;

fn play(_: &str) -> rank::Outcome {
    let mut calls = 0;
    for (number, round) in rounds().into_iter().enumerate() {
        let mut config = config(number)?;
        config.algorithm = round.algorithm.map(str::to_owned);
        if round.small {
            config = Config { chunk: CHUNK, lanes: LANES, ..config };
        }
        let group = rank::join_with(config)?;
        let mut check = Check { group, round, seed: SEED, bits: 0 };
        check.all().map_err(|error| {
            format!("{} with seed {SEED}, at {}: {error}", check.round.name, check.seed - SEED)
        })?;
        say(&format!("bits of {}:", check.round.name), format!("{:016x}", check.bits));
        calls += check.group.usage().operations;
    }
    say("calls", calls);
    Ok(())
}

/// Elements of 4 bytes that take several slots.
const LARGE: usize = 10_007;

/// Every collective once with the default algorithms and the first `kinds` kinds of data: little in plain memory, much in registered
/// buffers, and the other way round. Returns the number of calls.
pub(crate) fn short(group: ProcessGroup, kinds: usize) -> Result<u64, Box<dyn std::error::Error>> {
    let round = Round { name: "defaults", algorithm: None, small: false };
    let mut check = Check { group, round, seed: SEED, bits: 0 };
    let all = [(37, false), (LARGE, true), (37, true), (LARGE, false)];
    for (count, registered) in all.into_iter().take(kinds) {
        check.reductions::<f32>(count, ReduceOp::Sum, registered)?;
        check.moves::<f32>(count, registered)?;
    }
    check.rounding::<bf16>(&[700])?;
    Ok(check.group.usage().operations)
}

pub(crate) struct Check {
    pub(crate) group: ProcessGroup,
    round: Round,
    /// A seed that differs for every piece of data.
    seed: u64,
    /// A hash of all rounded results.
    bits: u64,
}

/// For every type.
macro_rules! types {
    ($self:ident.$check:ident($($argument:expr),*)) => {
        $self.$check::<f16>($($argument),*)?;
        $self.$check::<bf16>($($argument),*)?;
        $self.$check::<f32>($($argument),*)?;
        $self.$check::<f64>($($argument),*)?;
        $self.$check::<i8>($($argument),*)?;
        $self.$check::<i16>($($argument),*)?;
        $self.$check::<i32>($($argument),*)?;
        $self.$check::<i64>($($argument),*)?;
        $self.$check::<u8>($($argument),*)?;
        $self.$check::<u16>($($argument),*)?;
        $self.$check::<u32>($($argument),*)?;
        $self.$check::<u64>($($argument),*)?;
    };
}

impl Check {
    fn all(&mut self) -> rank::Outcome {
        if self.round.small && brief() {
            self.every_operation::<f32>(37)?;
            self.every_operation::<bf16>(37)?;
            self.every_operation::<u8>(37)?;
            self.counts::<f32>(&[])?;
            self.rounding::<bf16>(&[700])?;
        } else if self.round.small {
            types!(self.every_operation(37));
            self.counts::<f32>(&[])?;
            if self.round.algorithm.is_none() {
                self.counts::<u8>(&[])?;
            }
            self.rounding::<f16>(&[1, 700])?;
            self.rounding::<bf16>(&[1, 700])?;
            self.rounding::<f32>(&[1, 700, 5003])?;
            self.rounding::<f64>(&[1, 700])?;
        } else {
            // The sizes of every row of the table: one message, several, a full pipeline, and an odd number.
            self.counts::<f32>(&[1000, 5000, 20_000, (1 << 20) / 4, 300_007])?;
            self.rounding::<f32>(&[10, 5000, 100_003])?;
            self.rounding::<bf16>(&[5000, 200_003])?;
        }
        Ok(())
    }

    pub(crate) fn does(&self, collective: Collective) -> bool {
        let named = self.round.algorithm.and_then(algorithm::find);
        named.is_none_or(|algorithm| algorithm.supports(collective))
    }

    fn every_operation<T: Number>(&mut self, count: usize) -> rank::Outcome {
        for op in operations::<T>() {
            self.reductions::<T>(count, op, false)?;
        }
        self.moves::<T>(count, false)
    }

    /// Sums and moves of these counts, or of all counts that may be special if chunks are small; in plain memory and
    /// in registered buffers.
    fn counts<T: Number>(&mut self, counts: &[usize]) -> rank::Outcome {
        let ranks = self.group.size();
        let mut all = counts.to_vec();
        if self.round.small {
            // The larger ones are written straight into outputs.
            all.extend([0, 1, ranks - 1, ranks, ranks + 1, 97, 1009, 5003]);
            let few = ranks > 4 || brief();
            // Around a slot, a chunk, a chunk for each rank, and one for each lane and rank.
            for bytes in [CHUNK, CHUNK * ranks, CHUNK * ranks * LANES] {
                let elements = bytes / size_of::<T>();
                all.extend(if few { vec![elements + 1] } else { vec![elements - 1, elements, elements + 1] });
            }
        }
        all.sort_unstable();
        all.dedup();
        for count in all {
            // With many ranks, one kind is enough.
            let kinds: &[bool] = if ranks > 4 || brief() { &[true] } else { &[false, true] };
            for &registered in kinds {
                self.reductions::<T>(count, ReduceOp::Sum, registered)?;
                self.moves::<T>(count, registered)?;
            }
        }
        Ok(())
    }

    /// These elements in memory of either kind.
    pub(crate) fn room<T: Number>(&self, elements: Vec<T>, registered: bool) -> unisono::Result<Room<T>> {
        Room::of(&self.group, elements, registered)
    }

    /// The elements of a block: fewer than `count` if all ranks' blocks would be too many for a quick test.
    pub(crate) fn block(&self, count: usize) -> usize {
        if count > 10_000 { count / self.group.size() } else { count }
    }

    /// `all_reduce`, `reduce` and `reduce_scatter`, in place and out of place.
    fn reductions<T: Number>(&mut self, count: usize, op: ReduceOp, registered: bool) -> rank::Outcome {
        let (rank, ranks) = (self.group.rank(), self.group.size());
        self.seed += 1;
        let seed = self.seed;
        let mine = |len: usize| numbers(0..len, |index| small::<T>(seed, op, rank, index));
        let mut all = vec![T::of(0); ranks];
        let mut reduced = |range: std::ops::Range<usize>| {
            numbers(range, |index| {
                all.iter_mut().enumerate().for_each(|(rank, number)| *number = small(seed, op, rank, index));
                T::reduce(op, &all)
            })
        };
        let what = |call: &str| format!("{call}({}, {op}) of {count}, registered: {registered}", T::DTYPE);
        if self.does(Collective::AllReduce) {
            let (mine, wanted) = (mine(count), reduced(0..count));
            let input = self.room(mine.clone(), registered)?;
            let mut output = self.room(vec![T::of(99); count], registered)?;
            self.group.all_reduce((&input[..], &mut output[..]), op)?;
            expect(&what("all_reduce"), &output, &wanted)?;
            expect(&what("the input of all_reduce"), &input, &mine)?;
            let mut data = input;
            self.group.all_reduce(&mut data[..], op)?;
            expect(&what("all_reduce in place"), &data, &wanted)?;
        }
        if self.does(Collective::Reduce) {
            let root = usize::try_from(seed)? % ranks;
            let (mine, wanted) = (mine(count), reduced(0..count));
            let input = self.room(mine.clone(), registered)?;
            let mut output = self.room(vec![T::of(99); if rank == root { count } else { 1 }], registered)?;
            self.group.reduce((&input[..], &mut output[..]), op, root)?;
            let untouched = [T::of(99)];
            expect(&what("reduce"), &output, if rank == root { &wanted } else { &untouched })?;
            let mut data = input;
            self.group.reduce(&mut data[..], op, root)?;
            expect(&what("reduce in place"), &data, if rank == root { &wanted } else { &mine })?;
        }
        if self.does(Collective::ReduceScatter) {
            let count = self.block(count);
            let wanted = reduced(rank * count..(rank + 1) * count);
            let mut mine = mine(ranks * count);
            let input = self.room(mine.clone(), registered)?;
            let mut output = self.room(vec![T::of(99); count], registered)?;
            self.group.reduce_scatter((&input[..], &mut output[..]), op)?;
            expect(&what("reduce_scatter"), &output, &wanted)?;
            expect(&what("the input of reduce_scatter"), &input, &mine)?;
            let mut data = input;
            let block = self.group.reduce_scatter(&mut data[..], op)?;
            expect(&what("reduce_scatter in place"), block, &wanted)?;
            if !matches!(op, ReduceOp::PreMulSum(_)) {
                mine[rank * count..(rank + 1) * count].copy_from_slice(&wanted);
                expect(&what("the other blocks of reduce_scatter"), &data, &mine)?;
            }
        }
        Ok(())
    }

    /// `all_gather`, in place and out of place, `broadcast` and `barrier`.
    fn moves<T: Number>(&mut self, count: usize, registered: bool) -> rank::Outcome {
        let (rank, ranks) = (self.group.rank(), self.group.size());
        self.seed += 1;
        let seed = self.seed;
        let of =
            |rank: usize, len: usize| numbers(0..len, |index| small::<T>(seed, ReduceOp::Sum, rank, index));
        let what = |call: &str| format!("{call}({}) of {count}, registered: {registered}", T::DTYPE);
        if self.does(Collective::AllGather) {
            let count = self.block(count);
            let wanted: Vec<T> = (0..ranks).map(|rank| of(rank, count)).collect::<Vec<_>>().concat();
            let mine = &wanted[rank * count..(rank + 1) * count];
            let input = self.room(mine.to_vec(), registered)?;
            let mut output = self.room(vec![T::of(99); ranks * count], registered)?;
            self.group.all_gather((&input[..], &mut output[..]))?;
            expect(&what("all_gather"), &output, &wanted)?;
            expect(&what("the input of all_gather"), &input, mine)?;
            output.fill(T::of(98));
            output[rank * count..(rank + 1) * count].copy_from_slice(&input);
            self.group.all_gather(&mut output[..])?;
            expect(&what("all_gather in place"), &output, &wanted)?;
        }
        if self.does(Collective::Broadcast) {
            let root = usize::try_from(seed)? % ranks;
            let wanted = of(root, count);
            let data = if rank == root { wanted.clone() } else { vec![T::of(99); count] };
            let mut data = self.room(data, registered)?;
            self.group.broadcast(&mut data[..], root)?;
            expect(&what("broadcast"), &data, &wanted)?;
        }
        if self.does(Collective::Barrier) {
            self.group.barrier()?;
        }
        blocks::check::<T>(self, count, seed, registered)
    }

    /// The same sums in the order of ranks, for all ranks, for one, and in blocks: bit by bit the result of a loop that rounds once.
    fn reproducible<T: Number>(&self, seed: u64, count: usize, op: ReduceOp) -> rank::Outcome {
        let (rank, ranks) = (self.group.rank(), self.group.size());
        let group = self.group.with_reduction(Reduction::Reproducible);
        let given: Vec<T> = (0..count).map(|index| wild(seed, rank, index)).collect();
        let wanted: Vec<T> = (0..count)
            .map(|index| {
                let all: Vec<T> = (0..ranks).map(|rank| wild(seed, rank, index)).collect();
                if ranks > 1 { T::in_order(op, &all) } else { all[0] }
            })
            .collect();
        let what = |call: &str| format!("reproducible {call}({}, {op}) of {count}", T::DTYPE);
        let mut data = given.clone();
        group.all_reduce(&mut data[..], op)?;
        expect(&what("all_reduce"), &data, &wanted)?;
        let root = usize::try_from(seed)? % ranks;
        let mut data = given.clone();
        group.reduce(&mut data[..], op, root)?;
        expect(&what("reduce"), &data, if rank == root { &wanted } else { &given })?;
        let block = count / ranks;
        let mut output = vec![T::of(99); block];
        group.reduce_scatter((&given[..ranks * block], &mut output), op)?;
        expect(&what("reduce_scatter"), &output, &wanted[rank * block..(rank + 1) * block])
    }

    /// Sums and averages whose rounding depends on the order: they must be near the exact result, and are added to the hash by which
    /// the ranks are compared.
    fn rounding<T: Number>(&mut self, counts: &[usize]) -> rank::Outcome {
        if !self.does(Collective::AllReduce) {
            return Ok(());
        }
        let (rank, ranks) = (self.group.rank(), self.group.size());
        let size = f64::from(u32::try_from(ranks)?);
        for (&count, op) in counts.iter().flat_map(|count| [(count, ReduceOp::Sum), (count, ReduceOp::Avg)]) {
            self.seed += 1;
            let seed = self.seed;
            let mut data: Vec<T> = (0..count).map(|index| wild(seed, rank, index)).collect();
            self.group.all_reduce(&mut data[..], op)?;
            let share = if op == ReduceOp::Avg { size } else { 1.0 };
            for (index, got) in data.iter().enumerate() {
                let all = (0..ranks).map(|rank| wild::<T>(seed, rank, index).value());
                let wanted = all.clone().sum::<f64>() / share;
                // Each of this many roundings is off by at most half a last place of the largest sum there can be;
                // the last term is for numbers that are too small for f16.
                let off = (size + 1.0) * T::ROUNDING * all.map(f64::abs).sum::<f64>() / share + 1e-7;
                let near = (got.value() - wanted).abs() <= off;
                ensure!(
                    near,
                    "all_reduce({}, {op}) of {count} is {got:?} at {index}, more than {off:e} from {wanted:e}",
                    T::DTYPE
                );
            }
            self.reproducible::<T>(seed, count, op)?;
            for byte in bytemuck::cast_slice::<T, u8>(&data) {
                self.bits = (self.bits ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
        Ok(())
    }
}

/// Elements in memory of either kind.
pub(crate) enum Room<T> {
    Plain(Vec<T>),
    Registered(Buffer<T>),
}

impl<T: Number> Room<T> {
    pub(crate) fn of(group: &ProcessGroup, elements: Vec<T>, registered: bool) -> unisono::Result<Self> {
        if !registered {
            return Ok(Self::Plain(elements));
        }
        let mut buffer = group.buffer(elements.len())?;
        buffer.copy_from_slice(&elements);
        Ok(Self::Registered(buffer))
    }
}

impl<T: Number> Deref for Room<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Plain(plain) => plain,
            Self::Registered(buffer) => buffer,
        }
    }
}

impl<T: Number> DerefMut for Room<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::Plain(plain) => plain,
            Self::Registered(buffer) => buffer,
        }
    }
}

/// Fails with the first element that is wrong.
pub(crate) fn expect<T: Number>(what: &str, got: &[T], wanted: &[T]) -> rank::Outcome {
    ensure!(got.len() == wanted.len(), "{what}: {} elements, not {}", got.len(), wanted.len());
    // Usually all bits are equal, and this comparison is faster.
    if bytemuck::cast_slice::<T, u8>(got) == bytemuck::cast_slice::<T, u8>(wanted) {
        return Ok(());
    }
    let wrong = got.iter().zip(wanted).position(|(got, wanted)| got != wanted);
    match wrong {
        Some(at) => Err(format!("{what} is {:?} at {at}, not {:?}", got[at], wanted[at]).into()),
        None => Ok(()),
    }
}
