//! Coalesced reductions and gradient buckets, against an all_reduce for each tensor.

use std::collections::BTreeSet;

use proptest::prelude::*;
use unisono_schedule::{Step, algorithm::ALGORITHMS};

use super::{
    reproducible::{Real, wild},
    *,
};
use crate::{GradientBuckets, Reduction, Tensor, TensorViewMut, sim};

fn floats(rank: Rank, which: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| f32::from(((rank + 1) * (which + 3) + i) as u8 % 50)).collect()
}

fn sums(ranks: usize, which: usize, len: usize) -> Vec<f32> {
    let all: Vec<_> = (0..ranks).map(|rank| floats(rank, which, len)).collect();
    (0..len).map(|i| all.iter().map(|floats| floats[i]).sum()).collect()
}

#[test]
fn tensors_are_reduced_together() {
    for ranks in [1, 2, 3] {
        world(ranks, small, |group| {
            let rank = group.rank();
            // Tensors of two types in turn, of all lengths; one more is transposed.
            let lengths: Vec<usize> = (0..40).chain([30_000]).collect();
            let mut floating: Vec<Vec<f32>> =
                lengths.iter().enumerate().map(|(which, &len)| floats(rank, which, len)).collect();
            let mut whole: Vec<Vec<i16>> = lengths.iter().map(|&len| vec![rank as i16 + 1; len]).collect();
            let mut turned = floats(rank, 77, 12);
            let mut tensors = Vec::new();
            for (floating, whole) in floating.iter_mut().zip(&mut whole) {
                let shape = [floating.len()];
                tensors.push(TensorViewMut::new(floating, &shape).unwrap());
                tensors.push(TensorViewMut::new(whole, &shape).unwrap());
            }
            tensors.push(TensorViewMut::new(&mut turned, &[3, 4]).unwrap().transpose(0, 1).unwrap());
            group.all_reduce_coalesced(&mut tensors, ReduceOp::Sum).unwrap();
            drop(tensors);
            for (which, floating) in floating.iter().enumerate() {
                assert_eq!(*floating, sums(ranks, which, lengths[which]));
            }
            let sum: i16 = (1..=ranks as i16).sum();
            assert!(whole.iter().flatten().all(|&it| it == sum));
            assert_eq!(turned, sums(ranks, 77, 12));
            // There are far fewer operations than tensors.
            assert!(group.usage().operations < 8, "{}", group.usage().operations);
            group.all_reduce_coalesced(&mut [], ReduceOp::Sum).unwrap();
            let mut scaled = [2.0_f64, 4.0];
            let mut one = [TensorViewMut::new(&mut scaled, &[2]).unwrap()];
            group.all_reduce_coalesced(&mut one, ReduceOp::PreMulSum(0.5)).unwrap();
            assert_eq!(scaled, [1.0, 2.0].map(|it| it * ranks as f64));
        });
    }
}

/// The layout of a rank's tensor: row-major, transposed, or not aligned.
fn lies(rank: Rank, which: usize) -> usize {
    (rank * 5 + which * 3) % 4
}

/// Numbers whose sum has different bits in every order.
fn wild_floats(rank: Rank, which: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| wild(which as u64, rank, i) as f32).collect()
}

/// Averages tensors of three columns and this many rows, with a different layout on every rank: the bits are those of a loop over the
/// ranks.
fn reduces_where_they_lie(group: &ProcessGroup, rows: &[usize], given: fn(Rank, usize, usize) -> Vec<f32>) {
    let (rank, ranks) = (group.rank(), group.size());
    let (mut aligned, mut bytes): (Vec<Vec<f32>>, Vec<Vec<u8>>) = Default::default();
    for (which, &len) in rows.iter().enumerate() {
        let values = given(rank, which, 3 * len);
        bytes.push([0].into_iter().chain(values.iter().flat_map(|it| it.to_ne_bytes())).collect());
        let turned = (0..3 * len).map(|i| values[(i % len) * 3 + i / len]).collect();
        aligned.push(if lies(rank, which) == 1 { turned } else { values });
    }
    let parts = rows.iter().enumerate().zip(aligned.iter_mut().zip(&mut bytes));
    let mut tensors: Vec<_> = parts
        .map(|((which, &len), (aligned, bytes))| match lies(rank, which) {
            0 => TensorViewMut::new(aligned, &[len, 3]).unwrap(),
            1 => TensorViewMut::new(aligned, &[3, len]).unwrap().transpose(0, 1).unwrap(),
            _ => TensorViewMut::from_bytes(Dtype::F32, &mut bytes[1..], &[len, 3]).unwrap(),
        })
        .collect();
    group.all_reduce_coalesced(&mut tensors, ReduceOp::Avg).unwrap();
    for (which, tensor) in tensors.iter().enumerate() {
        let all: Vec<_> = (0..ranks).map(|rank| given(rank, which, 3 * rows[which])).collect();
        let average = |i| f32::oracle(ReduceOp::Avg, &all.iter().map(|it| it[i]).collect::<Vec<_>>()).bits();
        let wanted: Vec<_> = (0..3 * rows[which]).map(average).collect();
        let packed = tensor.view().pack().unwrap();
        let bits: Vec<_> = packed.as_slice::<f32>().unwrap().iter().map(|it| it.bits()).collect();
        assert_eq!(bits, wanted, "tensor {which}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn tensors_are_reduced_where_they_lie_however_it_is_done(
        ranks in 1_usize..6, rows in prop::collection::vec(0_usize..90, 0..12), algorithm in 0..=ALGORITHMS.len(),
        chunk in prop_oneof![Just(16_usize), Just(256), Just(4096)], lanes in 1_usize..4,
        reduction in prop_oneof![Just(Reduction::Fastest), Just(Reduction::Reproducible)],
    ) {
        let tweak = |config: &mut Config| {
            (config.chunk, config.lanes) = (chunk, lanes);
            config.algorithm = ALGORITHMS.get(algorithm).map(|algorithm| algorithm.name.to_owned());
            config.reduction = reduction;
        };
        let given = if reduction == Reduction::Reproducible { wild_floats } else { floats };
        world(ranks, tweak, |group| reduces_where_they_lie(&group, &rows, given));
    }
}

/// The transport's puts read registered memory only.
#[test]
fn tensors_are_reduced_where_they_lie_by_way_of_registered_memory() {
    let fabric = sim::Fabric::new(sim::Config::default());
    world_over(
        3,
        || Box::new(fabric.open()),
        small,
        |group| {
            for algorithm in ALGORITHMS.iter().filter(|algorithm| algorithm.supports(Collective::AllReduce)) {
                reduces_where_they_lie(
                    &group.with_algorithms(algorithm.name).unwrap(),
                    &[0, 1, 90, 33, 7, 300],
                    floats,
                );
            }
        },
    );
}

/// If two_shot would be chosen for many tensors that are large together, a ring reduces them, because two_shot needs one piece of memory;
/// unless the caller selects another algorithm, or a ring cannot reduce them.
#[test]
fn large_tensors_go_round_a_ring() {
    for ranks in 2..5 {
        let tweak = |config: &mut Config| (config.chunk, config.lanes) = (32 << 10, 2);
        world(ranks, tweak, |group| {
            let next = BTreeSet::from([(group.rank() + 1) % ranks]);
            let all: BTreeSet<_> = (0..ranks).filter(|&rank| rank != group.rank()).collect();
            let receivers = |group: &ProcessGroup, rows: &[usize]| {
                group.keep_trace();
                reduces_where_they_lie(group, rows, floats);
                let traced = group.keep_trace().into_iter().filter_map(|traced| match traced.step {
                    Step::Put { to, .. } | Step::Write { to, .. } => Some(to),
                    _ => None,
                });
                traced.collect::<BTreeSet<_>>()
            };
            let (large, small) = (&[20_000, 1, 0, 12_501][..], &[8000, 1, 0, 5001][..]);
            assert_eq!(receivers(&group, large), next, "among {ranks} ranks");
            assert_eq!(receivers(&group, small), all, "among {ranks} ranks");
            let piped = group.with_pipeline(Pipeline::Messages { chunk_bytes: 8 << 10, lanes: 2 }).unwrap();
            assert_eq!(receivers(&piped, large), next, "among {ranks} ranks");
            for other in [
                group.with_algorithms("^ring").unwrap(),
                group.with_algorithms("two_shot").unwrap(),
                group.with_reduction(Reduction::Reproducible),
            ] {
                assert_eq!(receivers(&other, large), all, "among {ranks} ranks");
            }
        });
    }
}

#[test]
fn tensors_are_reduced_together_while_others_are() {
    for ranks in [1, 3] {
        world(ranks, small, |group| {
            let twin = group.new_group(&(0..ranks).collect::<Vec<_>>()).unwrap().unwrap();
            // There are tensors of two types, and those of each type are reduced as one.
            let lengths = [3, 0, 200_000, 7, 150_000, 1];
            let mut tensors = Vec::new();
            for (which, len) in lengths.into_iter().enumerate() {
                tensors.push(Tensor::from_vec(floats(group.rank(), which, len), &[len]).unwrap());
                tensors.push(Tensor::from_vec(vec![group.rank() as u8; len / 2], &[1, len / 2]).unwrap());
            }
            for op in [ReduceOp::Sum, ReduceOp::PreMulSum(2.0), ReduceOp::Max] {
                let works = [&group, &twin].map(|group| {
                    let works =
                        [0, 1].map(|_| group.begin().all_reduce_coalesced(tensors.clone(), op).unwrap());
                    group.barrier().unwrap();
                    works
                });
                let before = group.usage().operations;
                let mut wanted = tensors.clone();
                let mut views: Vec<_> = wanted.iter_mut().map(Tensor::view_mut).collect();
                group.all_reduce_coalesced(&mut views, op).unwrap();
                drop(views);
                assert_eq!(group.usage().operations - before, 2);
                for work in works.into_iter().flatten() {
                    assert!(work.wait().unwrap() == wanted);
                }
            }
            for op in ReduceOp::PLAIN.into_iter().chain([ReduceOp::PreMulSum(0.5)]) {
                let before = group.usage().operations;
                group.all_reduce_coalesced(&mut [], op).unwrap();
                // If there are other ranks, one operation compares the lists.
                assert_eq!(group.usage().operations - before, u64::from(ranks > 1));
                let nothing = group.begin().all_reduce_coalesced(Vec::new(), op).unwrap();
                assert!(ranks > 1 || nothing.is_done());
                assert!(nothing.wait().unwrap().is_empty());
            }
            drop(group.begin().all_reduce_coalesced(tensors, ReduceOp::Sum).unwrap());
        });
    }
}

#[test]
fn what_cannot_be_reduced_is_refused() {
    world(2, small, |group| {
        let mut data = [1.0_f32];
        let mut tensors = [TensorViewMut::new(&mut data, &[1]).unwrap()];
        let error = group.all_reduce_coalesced(&mut tensors, ReduceOp::BitXor).unwrap_err();
        assert!(matches!(error, Error::Argument { call: "all_reduce_coalesced", .. }), "{error}");
        let tensors = vec![Tensor::from_vec(vec![1.0_f32], &[1]).unwrap()];
        let error = group.begin().all_reduce_coalesced(tensors, ReduceOp::BitXor).unwrap_err();
        assert!(matches!(error, Error::Argument { call: "all_reduce_coalesced", .. }), "{error}");
        let error = GradientBuckets::<f32>::new(&group, &[1], ReduceOp::BitXor, 1).unwrap_err();
        assert!(matches!(error, Error::Argument { .. }), "{error}");
        assert_eq!(group.usage().operations, 0);
    });
}

/// Gradients become ready in a different order on each rank.
#[test]
fn gradients_are_summed_in_buckets() {
    let lengths = [5, 0, 300, 2, 2000, 1, 64, 64, 64];
    for (ranks, bucket_bytes) in [(1, 0), (2, 0), (3, 300), (4, 1 << 20)] {
        world(ranks, small, |group| {
            let rank = group.rank();
            let mut buckets = GradientBuckets::new(&group, &lengths, ReduceOp::Sum, bucket_bytes).unwrap();
            for round in 0..5 {
                for index in 0..lengths.len() {
                    // The steps have no divisor in common with 9, so the order differs on every rank and in every round.
                    let step = [1, 2, 4, 5, 7, 8][(rank + round) % 6];
                    let parameter = (index * step + rank) % lengths.len();
                    let len = buckets.len_of(parameter);
                    assert_eq!(len, lengths[parameter]);
                    buckets.ready(parameter, &floats(rank, parameter + round, len)).unwrap();
                }
                buckets.finish().unwrap();
                for (parameter, &len) in lengths.iter().enumerate() {
                    assert_eq!(buckets.gradient(parameter), sums(ranks, parameter + round, len));
                }
            }
            let count = [9, 9, 7, 1][ranks - 1];
            assert_eq!(group.usage().operations, 5 * count, "{ranks}");
        });
    }
}

#[test]
fn invalid_gradients_are_refused() {
    world(1, small, |group| {
        let mut buckets = GradientBuckets::<f64>::new(&group, &[2, 3], ReduceOp::Avg, 1).unwrap();
        let text_of = |error: Result<()>| error.unwrap_err().to_string();
        let error = text_of(buckets.ready(2, &[]));
        assert!(error.ends_with("there is no parameter 2; there are 2"), "{error}");
        let error = text_of(buckets.ready(0, &[1.0]));
        assert!(error.ends_with("parameter 0 has 2 elements, and the gradient 1"), "{error}");
        buckets.ready(0, &[1.0, 2.0]).unwrap();
        let error = text_of(buckets.ready(0, &[1.0, 2.0]));
        assert!(error.contains("was already given in this step"), "{error}");
        let error = text_of(buckets.finish());
        assert!(error.contains("the gradient of parameter 1 has not been given"), "{error}");
        buckets.ready(1, &[0.0; 3]).unwrap();
        buckets.finish().unwrap();
        assert_eq!((buckets.gradient(0), buckets.gradient(2)), (&[1.0, 2.0][..], &[][..]));
        GradientBuckets::<f64>::new(&group, &[], ReduceOp::Avg, 1).unwrap().finish().unwrap();
    });
}

/// The sum would be infinite, so the ranks sum gradients that are already divided.
#[test]
fn averages_of_large_gradients_of_16_bits_are_finite() {
    for reduction in [Reduction::Fastest, Reduction::Reproducible] {
        for ranks in [1, 2, 3] {
            let tweak = |config: &mut Config| (config.reduction, config.chunk) = (reduction, 128);
            world(ranks, tweak, |group| {
                let mut buckets = GradientBuckets::new(&group, &[3, 700], ReduceOp::Avg, 0).unwrap();
                let large = f16::from_f32(40_000.0);
                for _ in 0..2 {
                    for parameter in [0, 1] {
                        buckets.ready(parameter, &vec![large; buckets.len_of(parameter)]).unwrap();
                    }
                    buckets.finish().unwrap();
                    for parameter in [0, 1] {
                        let near = |it: &f16| (it.to_f32() - 40_000.0).abs() <= 32.0 * (ranks - 1) as f32;
                        let averages = buckets.gradient(parameter);
                        assert!(averages.iter().all(near), "{ranks} ranks: {:?}", averages.first());
                        assert!(ranks != 2 || averages.iter().all(|it| *it == large));
                    }
                }
            });
        }
    }
}
