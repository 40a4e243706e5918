//! The erased entry against an oracle: every collective, every type, memory in one piece, in several pieces and in place, blocks of equal
//! lengths and of given lengths.

use std::ops::Range;

use half::{bf16, f16};

use super::{small, world};
use crate::{
    ProcessGroup, ReduceOp, Request,
    buffer::tests::TestMemory,
    dtype::Dtype,
    schedule::{Collective, Step, Uneven},
};

/// How the operands lie.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Layout {
    OnePiece,
    /// There is a piece for each block.
    Blocks,
    /// There are pieces of odd lengths, in a coalesced call.
    Ragged,
    /// Input and output are the same memory, in one piece.
    InPlace,
    /// The same, with a piece for each block.
    InPlaceBlocks,
    /// The same, in pieces of odd lengths, in a coalesced call.
    InPlaceRagged,
    /// The output begins one element after the input.
    Crossed,
}

const LAYOUTS: [Layout; 7] = [
    Layout::OnePiece,
    Layout::Blocks,
    Layout::Ragged,
    Layout::InPlace,
    Layout::InPlaceBlocks,
    Layout::InPlaceRagged,
    Layout::Crossed,
];

/// Small numbers as elements of any type.
pub(super) fn encode(dtype: Dtype, numbers: &[i64]) -> Vec<u8> {
    let one = |&number: &i64| {
        let (int, float) = (number.to_le_bytes(), number as f32);
        match dtype {
            Dtype::F16 => f16::from_f32(float).to_le_bytes().to_vec(),
            Dtype::BF16 => bf16::from_f32(float).to_le_bytes().to_vec(),
            Dtype::F32 => float.to_le_bytes().to_vec(),
            Dtype::F64 => f64::from(float).to_le_bytes().to_vec(),
            _ => int[..dtype.size()].to_vec(),
        }
    };
    numbers.iter().flat_map(one).collect()
}

/// An element of the block that one rank has for another.
fn element(seed: usize, from: usize, to: usize, at: usize) -> i64 {
    ((seed + from * 5 + to * 3 + at * 7) % 11) as i64
}

/// A case: a collective, its blocks, and how its memory lies.
struct Case<'g> {
    group: &'g ProcessGroup,
    collective: Collective,
    dtype: Dtype,
    layout: Layout,
    uneven: bool,
    op: ReduceOp,
    root: usize,
    len: usize,
    seed: usize,
}

impl Case<'_> {
    /// The length of the block that one rank has for another.
    fn length(&self, from: usize, to: usize) -> usize {
        let symmetric = self.collective == Collective::AllToAll
            && matches!(self.layout, Layout::InPlace | Layout::InPlaceBlocks | Layout::InPlaceRagged);
        let (from, to) = if symmetric { (from.min(to), from.max(to)) } else { (from, to) };
        match self.uneven {
            true => self.len * ((self.seed + 3 * from + 2 * to) % 4) / 2,
            false => self.len,
        }
    }

    /// The length of a rank's block, if the rank has one block for all.
    fn own(&self, rank: usize) -> usize {
        self.length(rank, rank)
    }

    fn block(&self, from: usize, to: usize, len: usize) -> Vec<i64> {
        (0..len).map(|at| element(self.seed, from, to, at)).collect()
    }

    /// The blocks that a rank gives.
    fn gives(&self, rank: usize) -> Vec<Vec<i64>> {
        let ranks = 0..self.group.size();
        match self.collective {
            Collective::AllReduce | Collective::Reduce => vec![self.block(rank, 0, self.len)],
            Collective::Broadcast => vec![self.block(self.root, 0, self.len)],
            Collective::AllGather | Collective::Gather => vec![self.block(rank, 0, self.own(rank))],
            Collective::ReduceScatter | Collective::Scatter => {
                ranks.map(|to| self.block(rank, to, self.own(to))).collect()
            }
            Collective::AllToAll => ranks.map(|to| self.block(rank, to, self.length(rank, to))).collect(),
            Collective::Barrier => vec![],
        }
    }

    fn reduced(&self, block: usize) -> Vec<i64> {
        let all: Vec<_> = (0..self.group.size()).map(|rank| self.gives(rank)[block].clone()).collect();
        let sum = |at: usize| match self.op {
            ReduceOp::Max => all.iter().map(|it| it[at]).max().unwrap(),
            ReduceOp::PreMulSum(_) => all.iter().map(|it| 2 * it[at]).sum(),
            _ => all.iter().map(|it| it[at]).sum(),
        };
        (0..all[0].len()).map(sum).collect()
    }

    /// The blocks that this rank gets; empty if it gets none.
    fn gets(&self) -> Vec<Vec<i64>> {
        let (rank, at_root, ranks) =
            (self.group.rank(), self.group.rank() == self.root, 0..self.group.size());
        match self.collective {
            Collective::AllReduce => vec![self.reduced(0)],
            Collective::Reduce if at_root => vec![self.reduced(0)],
            Collective::Broadcast => self.gives(self.root),
            Collective::AllGather => ranks.map(|from| self.gives(from).remove(0)).collect(),
            Collective::Gather if at_root => ranks.map(|from| self.gives(from).remove(0)).collect(),
            Collective::ReduceScatter => vec![self.reduced(rank)],
            Collective::Scatter => vec![self.gives(self.root).remove(rank)],
            Collective::AllToAll => ranks.map(|from| self.gives(from).remove(rank)).collect(),
            _ => vec![],
        }
    }

    fn check(&self, waits: bool) {
        let (rank, size) = (self.group.rank(), self.dtype.size());
        let at_root = rank == self.root;
        let mut given = self.gives(rank);
        if self.collective == Collective::Scatter && !at_root || self.collective == Collective::Broadcast {
            given.clear();
        }
        let wanted = self.gets();
        let lengths = |blocks: &[Vec<i64>]| blocks.iter().map(|block| block.len() * size).collect::<Vec<_>>();
        let bytes = |blocks: &[Vec<i64>]| encode(self.dtype, &blocks.concat());
        // Each block is cut into some odd pieces, and a last piece.
        let ragged = |blocks: &[Vec<i64>]| {
            let cut = |mut rest: usize| {
                let mut cuts: Vec<_> =
                    [1, 0, 3, 2, 11].iter().map(|piece| (piece * size).min(rest)).collect();
                cuts.iter_mut().for_each(|cut| {
                    *cut = rest.min(*cut);
                    rest -= *cut;
                });
                cuts.push(rest);
                cuts
            };
            lengths(blocks).into_iter().flat_map(cut).collect()
        };
        let cuts = |layout: Layout, blocks: &[Vec<i64>]| -> Vec<usize> {
            match layout {
                Layout::Blocks | Layout::InPlaceBlocks => lengths(blocks),
                Layout::Ragged | Layout::InPlaceRagged => ragged(blocks),
                _ => Vec::new(),
            }
        };
        // In place, the input or the output is a part of the other.
        let in_place = matches!(
            self.layout,
            Layout::InPlace | Layout::InPlaceBlocks | Layout::InPlaceRagged | Layout::Crossed
        );
        let (input_bytes, output_bytes) = (bytes(&given), bytes(&wanted));
        let before = |blocks: &[Vec<i64>]| lengths(blocks).iter().take(rank).sum::<usize>();
        let (input, output, memory);
        let both = !given.is_empty() && !wanted.is_empty();
        let crossed = both && self.layout == Layout::Crossed;
        if crossed {
            let (gives, gets) = (input_bytes.len(), output_bytes.len());
            let mut all = input_bytes.clone();
            all.resize(gives.max(gets + size), 0xee);
            memory = [TestMemory::new(&all, []), TestMemory::new(&[], [])];
            (input, output) = (memory[0].part(0..gives), memory[0].part(size..size + gets));
        } else if in_place && both {
            let gathers = wanted.len() > given.len();
            let (whole, at, part) = match gathers {
                true => (&wanted, before(&wanted), &input_bytes),
                false => (&given, before(&given), &output_bytes),
            };
            let (whole_bytes, len) = (bytes(whole), part.len());
            let same = wanted.len() == given.len();
            let at: Range<usize> = if same { 0..whole_bytes.len() } else { at..at + len };
            let mut start = if gathers { vec![0xee; whole_bytes.len()] } else { input_bytes.clone() };
            if gathers {
                start[at.clone()].copy_from_slice(&input_bytes);
            }
            memory = [TestMemory::new(&start, cuts(self.layout, whole)), TestMemory::new(&[], [])];
            let (all, part) = (memory[0].all(), memory[0].part(at));
            (input, output) = if gathers { (part, all) } else { (all, part) };
        } else {
            let start = match self.collective == Collective::Broadcast && at_root {
                true => output_bytes.clone(),
                false => vec![0xee; output_bytes.len()],
            };
            memory = [
                TestMemory::new(&input_bytes, cuts(self.layout, &given)),
                TestMemory::new(&start, cuts(self.layout, &wanted)),
            ];
            (input, output) = (memory[0].all(), memory[1].all());
        }
        let ranks = 0..self.group.size();
        let own: Vec<usize> = ranks.clone().map(|rank| self.own(rank)).collect();
        let sends: Vec<usize> = ranks.clone().map(|to| self.length(rank, to)).collect();
        let gets: Vec<usize> = ranks.map(|from| self.length(from, rank)).collect();
        let known = match self.collective {
            Collective::AllToAll => Uneven { input: &sends, output: &gets },
            Collective::Gather | Collective::Scatter if !at_root => Uneven { input: &[], output: &[] },
            _ => Uneven { input: &own, output: &own },
        };
        let request = Request {
            op: self.op,
            root: self.root,
            lengths: self.uneven.then_some(known),
            coalesced: matches!(self.layout, Layout::Ragged | Layout::InPlaceRagged),
            ..Request::new(self.collective, self.dtype)
        };
        let result = match waits {
            true => self.group.erased().collective(&request, &input, &output).map(|()| (input, output)),
            false => {
                self.group.erased().begin_collective(&request, input, output).and_then(crate::Work::wait)
            }
        };
        let what = || {
            let Self { collective, dtype, layout, uneven, op, root, len, seed, .. } = self;
            format!(
                "{} {dtype} {layout:?} uneven {uneven} {op} root {root} len {len} seed {seed}",
                collective.name()
            )
        };
        let (input, output) = result.unwrap_or_else(|error| panic!("{}: {error}", what()));
        let whole = [memory[0].bytes(), memory[1].bytes()];
        let found: &[u8] = if crossed {
            &whole[0][size..size + output_bytes.len()]
        } else if in_place && both {
            let at = if wanted.len() >= given.len() { 0 } else { before(&given) };
            &whole[0][at..at + output_bytes.len()]
        } else {
            &whole[1]
        };
        assert!(found == output_bytes, "{}: {found:?} is not {output_bytes:?}", what());
        if !in_place {
            assert!(whole[0] == input_bytes, "{}: the input has changed", what());
        }
        drop((input, output));
        assert_eq!(memory[0].owners().0 + memory[1].owners().0, 0, "{}", what());
    }
}

fn cases(group: &ProcessGroup, dtypes: &[Dtype], lens: &[usize]) {
    let mut seed = 0;
    for collective in Collective::ALL {
        for (&dtype, &len) in dtypes.iter().flat_map(|dtype| lens.iter().map(move |len| (dtype, len))) {
            for layout in LAYOUTS {
                for uneven in [false, true] {
                    let even_only = !collective.has_blocks();
                    // With one rank there is one block, so input and output cannot be crossed.
                    if uneven && even_only || collective == Collective::Barrier && layout != Layout::OnePiece
                    {
                        continue;
                    }
                    seed += 1;
                    let op = match seed % 3 {
                        0 => ReduceOp::Max,
                        1 => ReduceOp::PreMulSum(2.0),
                        _ => ReduceOp::Sum,
                    };
                    let root = seed % group.size();
                    let case = Case { group, collective, dtype, layout, uneven, op, root, len, seed };
                    case.check((seed + group.rank()).is_multiple_of(2));
                }
            }
        }
    }
}

#[test]
fn every_collective_and_type_in_all_layouts() {
    for ranks in [1, 2, 3] {
        world(ranks, small, |group| cases(&group, &Dtype::ALL, &[13]));
    }
    world(5, small, |group| cases(&group, &[Dtype::I32, Dtype::BF16], &[0, 1, 300]));
}

/// The blocks are so large that they are written into outputs whole, or in chunks after a head.
#[test]
fn large_blocks_are_written_into_their_pieces() {
    for ranks in [2, 3] {
        world(ranks, |_| {}, |group| cases(&group, &[Dtype::I16], &[40_000]));
        world(
            ranks,
            |_| {},
            |group| {
                let (collective, dtype, layout) = (Collective::AllGather, Dtype::I16, Layout::Blocks);
                let (op, root, len) = (ReduceOp::Sum, 0, 40_000);
                let group = &group;
                group.keep_trace();
                Case { group, collective, dtype, layout, uneven: false, op, root, len, seed: 1 }.check(true);
                let steps: Vec<_> = group.keep_trace().into_iter().map(|it| it.step).collect();
                let landed = steps.iter().filter(|step| matches!(step, Step::Await { .. })).count();
                assert_eq!(landed, ranks - 1, "{steps:?}");
                assert!(!steps.iter().any(|step| matches!(step, Step::Take { .. })), "{steps:?}");
            },
        );
        let chunked = |config: &mut crate::Config| config.chunk = 4096;
        world(ranks, chunked, |group| cases(&group, &[Dtype::I16], &[10_000]));
    }
}
