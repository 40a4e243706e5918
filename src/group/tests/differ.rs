//! Ranks whose calls agree in all but how they are to be done, or in what their elements belong to: they find out before
//! an element is used.

use super::*;
use crate::{GradientBuckets, Tensor, TensorViewMut};

/// What two ranks that do this are told: the same.
fn told(act: impl Fn(&ProcessGroup) -> Result<()> + Sync) -> String {
    let patient = |config: &mut Config| {
        small(config);
        config.timeout = Duration::from_secs(60);
    };
    let begun = Instant::now();
    let told = world(2, patient, |group| act(&group).and_then(|()| hear(&group)).unwrap_err().to_string());
    assert_eq!(told[0], told[1]);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}: {}", begun.elapsed(), told[0]);
    told[0].clone()
}

#[test]
fn handles_that_cut_otherwise_are_said() {
    // Other lanes of the same messages; one lane of small slots beside several of large ones; other messages.
    for (count, ours, theirs) in [
        (4000, (128, 1), (128, 2)),
        (4000, (256, 2), (256, 3)),
        (60, (128, 1), (64, 1)),
        (60, (64, 1), (64, 2)),
        (1, (128, 1), (64, 2)),
    ] {
        for algorithm in ["ring", "two_shot", "rabenseifner"] {
            let told = told(|group| {
                let (chunk, lanes) = if group.rank() == 0 { ours } else { theirs };
                let group = group.with_algorithms(algorithm)?.with_pipeline(chunk, lanes)?;
                group.all_reduce(&mut vec![1_i32; count], ReduceOp::Sum)
            });
            for (rank, (chunk, lanes)) in [ours, theirs].into_iter().enumerate() {
                let wanted =
                    format!("rank {rank} cuts it into messages of {} elements on {lanes} lanes", chunk / 4);
                assert!(told.contains(&wanted), "{algorithm}, {count}: {told}");
            }
        }
    }
}

#[test]
fn tensors_in_another_order_are_said() {
    for lens in [[2, 3], [200, 3000]] {
        let other = [lens[1], lens[0]];
        let lens = |group: &ProcessGroup| if group.rank() == 0 { lens } else { other };
        let blocking = told(|group| {
            let mut all = lens(group).map(|len| vec![1_f32; len]);
            let views = all.iter_mut().map(|data| {
                let len = data.len();
                TensorViewMut::new(data, &[len]).unwrap()
            });
            group.all_reduce_coalesced(&mut views.collect::<Vec<_>>(), ReduceOp::Sum)
        });
        let begun = told(|group| {
            let all = lens(group).map(|len| Tensor::zeros(Dtype::F32, &[len]).unwrap());
            group.all_reduce_coalesced_async(all.into(), ReduceOp::Sum)?.wait().map(drop)
        });
        let buckets = told(|group| {
            let lens = lens(group);
            let mut buckets = GradientBuckets::new(group, &lens, ReduceOp::Sum, 1 << 20)?;
            for (parameter, len) in lens.into_iter().enumerate() {
                buckets.ready(parameter, &vec![1_f32; len])?;
            }
            buckets.finish()
        });
        for told in [blocking, begun, buckets] {
            assert!(told.contains("rank 0 has tensors whose shapes hash to "), "{told}");
        }
    }
    // As many elements in other shapes.
    let told = told(|group| {
        let shape = if group.rank() == 0 { [2, 3] } else { [3, 2] };
        let mut data = [1_i32; 6];
        group.all_reduce_coalesced(&mut [TensorViewMut::new(&mut data, &shape).unwrap()], ReduceOp::Max)
    });
    assert!(told.contains("all_reduce_coalesced(i32, max)") && told.contains("shapes"), "{told}");
}
