//! Reproducible reductions: whatever the algorithm, the bits are those of a loop over the ranks.

use half::{bf16, f16};
use proptest::prelude::*;
use unisono_schedule::algorithm::ALGORITHMS;

use super::world;
use crate::{Config, Pipeline, ProcessGroup, ReduceOp, Reduction, dtype::Element, uneven};

/// An element type for the oracle.
pub(super) trait Real: Element + Send + Sync {
    fn of(value: f64) -> Self;
    fn bits(self) -> u64;
    /// Reduces in the given order, in `f32` if the type has 16 bits, and rounds once.
    fn oracle(op: ReduceOp, all: &[Self]) -> Self;
}

macro_rules! reals {
    ($($real:ty as $work:ty: $of:expr, $widen:expr, $narrow:expr;)*) => {$(
        impl Real for $real {
            #[allow(clippy::cast_possible_truncation, reason = "rounding is what is wanted")]
            fn of(value: f64) -> Self {
                $of(value)
            }
            fn bits(self) -> u64 {
                self.to_bits().into()
            }
            fn oracle(op: ReduceOp, all: &[Self]) -> Self {
                let mut work: Vec<$work> = all.iter().map(|&x| $widen(x)).collect();
                if let ReduceOp::PreMulSum(factor) = op {
                    // The product is rounded, too.
                    work.iter_mut().for_each(|x| *x = $widen($narrow(*x * factor as $work)));
                }
                let fold = |apply: fn($work, $work) -> $work| work[1..].iter().fold(work[0], |a, &b| apply(a, b));
                let any_nan = work.iter().any(|x| x.is_nan());
                let whole = match op {
                    ReduceOp::Product => fold(|a, b| a * b),
                    ReduceOp::Avg => fold(|a, b| a + b) / work.len() as $work,
                    ReduceOp::Min | ReduceOp::Max if any_nan => <$work>::NAN,
                    ReduceOp::Min => fold(|a, b| if a.total_cmp(&b).is_le() { a } else { b }),
                    ReduceOp::Max => fold(|a, b| if a.total_cmp(&b).is_ge() { a } else { b }),
                    _ => fold(|a, b| a + b),
                };
                $narrow(if whole.is_nan() { <$work>::NAN } else { whole })
            }
        }
    )*};
}
reals! {
    f16 as f32: f16::from_f64, f16::to_f32, f16::from_f32;
    bf16 as f32: bf16::from_f64, bf16::to_f32, bf16::from_f32;
    f32 as f32: |value| value as f32, std::convert::identity, std::convert::identity;
    f64 as f64: std::convert::identity, std::convert::identity, std::convert::identity;
}

/// Numbers of very different sizes, so that every order gives other bits; sometimes an infinity or a NaN.
pub(super) fn wild(seed: u64, rank: usize, index: usize) -> f64 {
    let mix = (seed ^ (rank as u64) << 40 ^ index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mix = (mix ^ mix >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let fraction = f64::from((mix >> 40) as u32) / f64::from(1 << 24) - 0.5;
    match mix % 97 {
        0 => f64::INFINITY,
        1 => f64::NAN,
        2 => -0.0,
        _ => fraction * 2_f64.powi((mix >> 8) as i32 % 12),
    }
}

const OPS: [ReduceOp; 6] =
    [ReduceOp::Sum, ReduceOp::Product, ReduceOp::Avg, ReduceOp::Min, ReduceOp::Max, ReduceOp::PreMulSum(0.3)];

/// Every collective that reduces, on one rank: each in a form that depends on the operation and the seed.
pub(super) fn reduces<T: Real>(group: &ProcessGroup, seed: u64, count: usize) {
    let (rank, ranks) = (group.rank(), group.size());
    let given =
        |rank: usize, len: usize| (0..len).map(|index| T::of(wild(seed, rank, index))).collect::<Vec<T>>();
    let bits = |values: &[T]| values.iter().map(|value| value.bits()).collect::<Vec<_>>();
    for (number, op) in OPS.into_iter().enumerate() {
        let wanted = |index: usize| {
            let all: Vec<T> = (0..ranks).map(|rank| T::of(wild(seed, rank, index))).collect();
            let untouched = ranks == 1 && !matches!(op, ReduceOp::PreMulSum(_));
            if untouched { all[0].bits() } else { T::oracle(op, &all).bits() }
        };
        let range = |range: std::ops::Range<usize>| range.map(wanted).collect::<Vec<_>>();
        let way = (seed % 3) as usize + number;
        let what = |call: &str, way: usize| format!("{call}({}, {op}), way {}", T::DTYPE, way % 3);

        let mut data = given(rank, count);
        match way % 3 {
            0 => group.all_reduce(&mut data, op).unwrap(),
            1 => data = group.begin().all_reduce(data, op).unwrap().wait().unwrap(),
            _ => {
                let input = std::mem::replace(&mut data, vec![T::of(7.0); count]);
                for part in [0..count / 3, count / 3..count] {
                    group.all_reduce((&input[part.clone()], &mut data[part]), op).unwrap();
                }
            }
        }
        assert_eq!(bits(&data), range(0..count), "{}", what("all_reduce", way));

        let way = way + 1;
        let (input, mut output) = (given(rank, count * ranks), vec![T::of(7.0); count]);
        match way % 3 {
            0 => group.reduce_scatter((&input, &mut output), op).unwrap(),
            1 => output = group.begin().reduce_scatter((input, output), op).unwrap().wait().unwrap().1,
            _ => output = group.reduce_scatter(&mut { input }, op).unwrap().to_vec(),
        }
        assert_eq!(bits(&output), range(rank * count..(rank + 1) * count), "{}", what("reduce_scatter", way));

        let (before, own, counts) = (rank * (rank + 1) / 2, rank + 1, (1..=ranks).collect::<Vec<_>>());
        let (input, mut output) = (given(rank, ranks * (ranks + 1) / 2), vec![T::of(7.0); own]);
        match way % 3 {
            0 => output = group.reduce_scatter(uneven(&mut { input }, &counts), op).unwrap().to_vec(),
            1 => group.reduce_scatter(uneven((&input, &mut output), &counts), op).unwrap(),
            _ => {
                output = group
                    .begin()
                    .reduce_scatter(uneven((input, output), &counts), op)
                    .unwrap()
                    .wait()
                    .unwrap()
                    .1
            }
        }
        assert_eq!(bits(&output), range(before..before + own), "{}", what("reduce_scatter_v", way));

        let way = way + 1;
        let root = count % ranks;
        let mut data = given(rank, count);
        match way % 3 {
            0 => group.reduce(&mut data, op, root).unwrap(),
            1 => data = group.begin().reduce(data, op, root).unwrap().wait().unwrap(),
            _ => {
                let mut output = vec![T::of(7.0); if rank == root { count } else { 0 }];
                group.reduce((&data, &mut output), op, root).unwrap();
                data = if rank == root { output } else { data };
            }
        }
        let wanted = if rank == root { range(0..count) } else { bits(&given(rank, count)) };
        assert_eq!(bits(&data), wanted, "{}", what("reduce", way));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn bits_are_the_same_however_it_is_done(
        ranks in 1_usize..6, count in 0_usize..900, seed: u64, algorithm in 0..=ALGORITHMS.len(),
        chunk in prop_oneof![Just(16_usize), Just(256), Just(4096)], lanes in 1_usize..5, pipeline: Option<(prop::sample::Index, prop::sample::Index)>,
    ) {
        let tweak = |config: &mut Config| {
            (config.chunk, config.lanes) = (chunk, lanes);
            config.algorithm = ALGORITHMS.get(algorithm).map(|algorithm| algorithm.name.to_owned());
            config.reduction = Reduction::Reproducible;
        };
        world(ranks, tweak, |group| {
            let group = match pipeline {
                Some((bytes, most)) => group.with_pipeline(Pipeline::Messages { chunk_bytes: 1 + bytes.index(chunk), lanes: 1 + most.index(lanes) }).unwrap(),
                None => group,
            };
            reduces::<f16>(&group, seed, count);
            reduces::<bf16>(&group, seed, count);
            reduces::<f32>(&group, seed, count);
            reduces::<f64>(&group, seed, count);
        });
    }
}

#[test]
fn a_handle_may_ask_for_it_and_all_ranks_must() {
    let mut results = world(2, super::small, |group| {
        let mut data = [1.0_f32];
        group.with_reduction(Reduction::Reproducible).all_reduce(&mut data, ReduceOp::Sum).unwrap();
        assert_eq!(data, [2.0]);
        let reduction = if group.rank() == 0 { Reduction::Reproducible } else { Reduction::Fastest };
        group.with_reduction(reduction).all_reduce(&mut data, ReduceOp::Sum).unwrap_err().to_string()
    });
    let wanted = "op 1: rank 0 calls all_reduce(f32, sum, reproducible), rank 1 calls all_reduce(f32, sum)";
    results.dedup();
    assert_eq!(results, [wanted]);
}
