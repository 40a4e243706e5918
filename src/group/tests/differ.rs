//! Ranks whose calls differ only in the algorithm or pipeline, or in the call that the operation is a part of: they find the mismatch
//! before they use an element.

use super::*;
use crate::{
    GradientBuckets, MessageRequest, Request, Source, Tensor, TensorViewMut, buffer::tests::TestMemory,
    dtype::Alias, schedule::Collective,
};

/// Runs this on two ranks. Returns their failure, which is the same.
fn failure_of(act: impl Fn(&ProcessGroup) -> Result<()> + Sync) -> String {
    let patient = |config: &mut Config| {
        small(config);
        config.timeout = Duration::from_secs(60);
    };
    let begun = Instant::now();
    let message = world(2, patient, |group| act(&group).and_then(|()| hear(&group)).unwrap_err().to_string());
    assert_eq!(message[0], message[1]);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}: {}", begun.elapsed(), message[0]);
    message[0].clone()
}

#[test]
fn handles_with_other_pipelines_are_a_mismatch() {
    // The calls differ in the lanes of the same messages, in one lane of small slots and several of large ones, or in the messages.
    for (count, ours, theirs) in [
        (4000, (128, 1), (128, 2)),
        (4000, (256, 2), (256, 3)),
        (60, (128, 1), (64, 1)),
        (60, (64, 1), (64, 2)),
        (1, (128, 1), (64, 2)),
    ] {
        for algorithm in ["ring", "two_shot", "rabenseifner"] {
            let message = failure_of(|group| {
                let (chunk, lanes) = if group.rank() == 0 { ours } else { theirs };
                let group = group
                    .with_algorithms(algorithm)?
                    .with_pipeline(Pipeline::Messages { chunk_bytes: chunk, lanes })?;
                group.all_reduce(&mut vec![1_i32; count], ReduceOp::Sum)
            });
            for (rank, (chunk, lanes)) in [ours, theirs].into_iter().enumerate() {
                let wanted =
                    format!("rank {rank} cuts it into messages of {} elements on {lanes} lanes", chunk / 4);
                assert!(message.contains(&wanted), "{algorithm}, {count}: {message}");
            }
        }
    }
}

#[test]
fn tensors_in_another_order_are_a_mismatch() {
    for lens in [[2, 3], [200, 3000]] {
        let other = [lens[1], lens[0]];
        let lens = |group: &ProcessGroup| if group.rank() == 0 { lens } else { other };
        let blocking = failure_of(|group| {
            let mut all = lens(group).map(|len| vec![1_f32; len]);
            let views = all.iter_mut().map(|data| {
                let len = data.len();
                TensorViewMut::new(data, &[len]).unwrap()
            });
            group.all_reduce_coalesced(&mut views.collect::<Vec<_>>(), ReduceOp::Sum)
        });
        let begun = failure_of(|group| {
            let all = lens(group).map(|len| Tensor::zeros(Dtype::F32, &[len]).unwrap());
            group.begin().all_reduce_coalesced(all.into(), ReduceOp::Sum)?.wait().map(drop)
        });
        let buckets = failure_of(|group| {
            let lens = lens(group);
            let mut buckets = GradientBuckets::new(group, &lens, ReduceOp::Sum, 1 << 20)?;
            for (parameter, len) in lens.into_iter().enumerate() {
                buckets.ready(parameter, &vec![1_f32; len])?;
            }
            buckets.finish()
        });
        for message in [blocking, begun, buckets] {
            assert!(message.contains("rank 0 has tensors whose types and shapes hash to "), "{message}");
        }
    }
    // The numbers of elements are the same, and the shapes differ.
    let message = failure_of(|group| {
        let shape = if group.rank() == 0 { [2, 3] } else { [3, 2] };
        let mut data = [1_i32; 6];
        group.all_reduce_coalesced(&mut [TensorViewMut::new(&mut data, &shape).unwrap()], ReduceOp::Max)
    });
    assert!(message.contains("all_reduce_coalesced(i32, max)") && message.contains("shapes"), "{message}");
}

/// A tensor of a type and a number of elements.
type Like = (Dtype, usize);

/// The failure of two ranks that reduce these lists, blocking and asynchronously.
fn told_of_lists(ours: &[Like], theirs: &[Like], op: ReduceOp) -> [String; 2] {
    let tensors = |group: &ProcessGroup| -> Vec<Tensor> {
        let list = if group.rank() == 0 { ours } else { theirs };
        list.iter().map(|&(dtype, len)| Tensor::zeros(dtype, &[len]).unwrap()).collect()
    };
    let now = failure_of(|group| {
        let mut tensors = tensors(group);
        let mut views: Vec<_> = tensors.iter_mut().map(Tensor::view_mut).collect();
        group.all_reduce_coalesced(&mut views, op)
    });
    let later = failure_of(|group| group.begin().all_reduce_coalesced(tensors(group), op)?.wait().map(drop));
    [now, later]
}

#[test]
fn an_additional_type_is_a_mismatch() {
    // Each type is reduced by a separate operation: the first operation that differs reports the difference.
    for more in [Dtype::F64, Dtype::F16] {
        for message in told_of_lists(&[(Dtype::F32, 3)], &[(Dtype::F32, 3), (more, 2)], ReduceOp::Sum) {
            let words = match more {
                Dtype::F16 => "rank 1 calls all_reduce_coalesced(f16, sum)",
                _ => "rank 1 has tensors whose types and shapes hash to ",
            };
            assert!(
                message.contains("all_reduce_coalesced(f32, sum)") && message.contains(words),
                "{message}"
            );
        }
    }
    // The rest of a longer list does not pass for a list either.
    let both = [(Dtype::F32, 3), (Dtype::F64, 2)];
    let message = failure_of(|group| {
        for list in if group.rank() == 0 { [&both[..1], &both[1..]] } else { [&both[..], &both[1..]] } {
            let tensors = list.iter().map(|&(dtype, len)| Tensor::zeros(dtype, &[len]).unwrap()).collect();
            group.begin().all_reduce_coalesced(tensors, ReduceOp::Sum)?.wait()?;
        }
        Ok(())
    });
    assert!(message.contains("all_reduce_coalesced(f32, sum)") && message.contains("hash to "), "{message}");
}

#[test]
fn tensors_of_the_same_types_in_another_order_are_a_mismatch() {
    let ours = [(Dtype::F32, 3), (Dtype::F64, 3), (Dtype::F32, 5)];
    for theirs in [[0, 2, 1], [1, 0, 2]] {
        for message in told_of_lists(&ours, &theirs.map(|which| ours[which]), ReduceOp::Sum) {
            assert!(message.contains("rank 0 has tensors whose types and shapes hash to "), "{message}");
        }
    }
}

#[test]
fn an_empty_list_beside_others_is_a_mismatch() {
    for (dtype, len) in [(Dtype::F32, 3), (Dtype::U8, 3), (Dtype::U8, 0), (Dtype::F64, 0)] {
        for op in [ReduceOp::Sum, ReduceOp::PreMulSum(2.0)] {
            for message in told_of_lists(&[(dtype, len)], &[], op) {
                let theirs = format!("rank 1 calls all_reduce_coalesced(no tensors, {})", op.name());
                assert!(message.contains(&theirs), "{message}");
                let ours = format!("rank 0 calls all_reduce_coalesced({dtype}, {})", op.name());
                assert!(message.contains(&ours), "{message}");
            }
        }
    }
}

/// The failure of two ranks that call this with types of these names, in memory of one length, and the names that it must give to both.
fn told_of_types(collective: Option<Collective>, (ours, theirs): (&str, &str), len: usize) -> String {
    failure_of(|group| {
        let name = if group.rank() == 0 { ours } else { theirs };
        let alias = if name == "u8" { Alias::NONE } else { Alias::of(name) };
        let blocks = [1, group.size()];
        let [input, output] = match collective {
            Some(Collective::AllGather | Collective::Gather) => [blocks[0], blocks[1]],
            Some(Collective::ReduceScatter | Collective::Scatter) => [blocks[1], blocks[0]],
            Some(Collective::AllToAll) => [blocks[1]; 2],
            _ => [1; 2],
        };
        let (input, output) =
            (TestMemory::new(&vec![1; input * len], []), TestMemory::new(&vec![0; output * len], []));
        let Some(collective) = collective else {
            let request = match group.rank() {
                0 => MessageRequest::send(Dtype::U8, 1, 7),
                _ => MessageRequest::recv(Dtype::U8, Source::Any, 7),
            };
            return group.erased().message(&MessageRequest { alias, ..request }, &input.all()).map(drop);
        };
        let request = Request { alias, ..Request::new(collective, Dtype::U8) };
        group.erased().collective(&request, &input.all(), &output.all())
    })
}

#[test]
fn types_that_are_moved_alike_are_a_mismatch() {
    let pairs = [
        ("bool", "u8"),
        ("float8_e4m3fn", "float8_e5m2"),
        ("datetime64[s]", "datetime64[ms]"),
        ("S40", "U10"),
    ];
    let moving = Collective::ALL.into_iter().filter(|collective| *collective != Collective::Barrier);
    for (at, collective) in moving.map(Some).chain([None]).enumerate() {
        for len in [40, 40_000] {
            let (mut ours, mut theirs) = pairs[(at + len) % pairs.len()];
            if at % 2 == 0 {
                (ours, theirs) = (theirs, ours);
            }
            let message = told_of_types(collective, (ours, theirs), len);
            let (one, other) = match collective {
                Some(it) => (
                    format!("rank 0 calls {}({ours}", it.name()),
                    format!("rank 1 calls {}({theirs}", it.name()),
                ),
                None => (format!("{ours} elements"), format!("{theirs} elements")),
            };
            assert!(message.contains(&one) && message.contains(&other), "{message}");
        }
    }
}

#[test]
fn types_of_one_name_are_one_type() {
    world(2, small, |group| {
        for (name, len) in [("S5", 10), ("{'a' i4 at 0}", 12), ("complex64", 8)] {
            let memory = TestMemory::new(&vec![group.rank() as u8 + 1; len], []);
            let request =
                Request { alias: Alias::of(name), ..Request::new(Collective::Broadcast, Dtype::U8) };
            group.erased().collective(&request, &memory.all(), &memory.all()).unwrap();
            assert_eq!(memory.bytes(), vec![1; len]);
        }
    });
}
