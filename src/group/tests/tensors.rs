//! Collectives of tensors, against views and joins of local tensors; and tensors that do not fit together.

use super::{hear, small, world};
use crate::{
    Error, ProcessGroup, Tensor, TensorView,
    dtype::Dtype,
    error::Result,
    tensor::{self, Parts},
};

/// A tensor whose bytes every rank can compute, including NaN.
pub(super) fn tensor(seed: usize, dtype: Dtype, shape: &[usize]) -> Tensor {
    let mut tensor = Tensor::zeros(dtype, shape).unwrap();
    let mut state = seed.wrapping_mul(0x9e37_79b9).wrapping_add(shape.len());
    for byte in tensor.bytes_mut() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *byte = (state >> 40) as u8;
    }
    tensor
}

/// Type, shape and bits.
fn bits(tensor: &Tensor) -> (Dtype, Vec<usize>, Vec<u8>) {
    (tensor.dtype(), tensor.shape().to_vec(), tensor.bytes().to_vec())
}

pub(super) fn all_bits<'t>(
    tensors: impl IntoIterator<Item = &'t Tensor>,
) -> Vec<(Dtype, Vec<usize>, Vec<u8>)> {
    tensors.into_iter().map(bits).collect()
}

/// The tensors of a rank: of every type, without dimensions, without elements, small and large.
pub(super) fn owned(seed: usize, count: usize) -> Vec<Tensor> {
    const SHAPES: &[&[usize]] =
        &[&[], &[0], &[3], &[5, 7], &[2, 0, 4], &[1, 1], &[40, 30], &[2, 3, 4, 5], &[700]];
    (0..count)
        .map(|index| {
            let dtype = Dtype::ALL[(index + seed) % Dtype::ALL.len()];
            tensor(seed + index, dtype, SHAPES[(index * 7 + seed) % SHAPES.len()])
        })
        .collect()
}

/// Views of them; every second one with more than one dimension is transposed or narrowed.
pub(super) fn views(tensors: &[Tensor]) -> Vec<TensorView<'_>> {
    tensors.iter().enumerate().map(|(index, tensor)| view(index, tensor)).collect()
}

fn view(index: usize, tensor: &Tensor) -> TensorView<'_> {
    let view = tensor.view();
    match (index % 3, view.shape()) {
        (1, [_, .., _]) => view.transpose(0, 1).unwrap(),
        (2, &[height, width, ..]) => {
            view.narrow(1, 0, width / 2).unwrap().narrow(0, height / 2, height.min(1)).unwrap()
        }
        _ => view,
    }
}

/// The bits of views as a rank that has them packs them.
pub(super) fn packed(views: &[TensorView<'_>]) -> Vec<(Dtype, Vec<usize>, Vec<u8>)> {
    views.iter().map(|view| bits(&view.pack().unwrap())).collect()
}

#[test]
fn lists_of_all_types_and_shapes_arrive() {
    for ranks in 1..=5 {
        world(ranks, small, |group| {
            let me = group.rank();
            for (seed, count) in [(0, 15), (1, 0), (2, 1), (3, 12)] {
                let root = seed % ranks;
                // The lists of ranks are of different lengths, and one may be empty.
                let of = |rank: usize| owned(seed + rank, if rank == 2 { 0 } else { count + rank % 2 });
                let (mine, roots) = (of(me), of(root));
                let given = views(&mine);
                let got = group.broadcast_tensors((me == root).then_some(&given), root).unwrap();
                assert_eq!(got.is_none(), me == root);
                if let Some(got) = got {
                    assert_eq!(all_bits(&got), packed(&views(&roots)));
                }
                let wanted: Vec<_> = (0..ranks).map(|rank| packed(&views(&of(rank)))).collect();
                let got = group.all_gather_tensors(&given).unwrap();
                assert_eq!(got.iter().map(all_bits).collect::<Vec<_>>(), wanted);
                let got = group.gather_tensors(&given, root).unwrap();
                let got = got.map(|lists| lists.iter().map(all_bits).collect::<Vec<_>>());
                assert_eq!(got, (me == root).then_some(wanted));
            }
        });
    }
    // Large tensors are written straight into place.
    world(
        3,
        |_| {},
        |group| {
            let large = tensor(7, Dtype::F32, &[300, 1000]);
            let given = [large.view(), large.view().transpose(0, 1).unwrap()];
            if let Some(got) = group.broadcast_tensors(Some(&given), 1).unwrap() {
                assert_eq!(all_bits(&got), packed(&given));
            }
            let got = group.all_gather_tensors(&given).unwrap();
            assert!(got.iter().all(|list| all_bits(list) == packed(&given)));
        },
    );
}

/// The ways to split a tensor among this many ranks.
fn ways(ranks: usize) -> Vec<Parts<'static>> {
    let mut ways = vec![Parts::Split(0), Parts::Chunk(0), Parts::Split(1), Parts::Chunk(1)];
    let cuts: [&[isize]; 2] = [&[1, 1, 6, 90], &[-90, -4, -3, -1]];
    let indices = |dim: usize| &cuts[dim][..ranks - 1];
    ways.extend([0, 1].map(|dim| Parts::SplitAt { dim, indices: indices(dim) }));
    let grids = (1..=ranks).filter(|rows| ranks.is_multiple_of(*rows));
    ways.extend(grids.map(|rows| Parts::Blocks { rows, columns: ranks / rows }));
    ways
}

/// The part of a rank, computed by views.
fn part<'t>(whole: &TensorView<'t>, way: Parts<'_>, ranks: usize, rank: usize) -> TensorView<'t> {
    let parts = match way {
        Parts::Split(dim) => whole.tensor_split(dim, ranks),
        Parts::Chunk(dim) => whole.chunk(dim, ranks),
        Parts::SplitAt { dim, indices } => whole.tensor_split_at(dim, indices),
        Parts::Blocks { rows, columns } => whole.blocks(rows, columns),
    };
    let parts = parts.unwrap();
    let none = || match way {
        Parts::Chunk(dim) => whole.narrow(dim, 0, 0).unwrap(),
        _ => panic!("too few parts"),
    };
    parts.get(rank).cloned().unwrap_or_else(none)
}

fn parts(group: &ProcessGroup, whole: &TensorView<'_>) {
    let (me, ranks) = (group.rank(), group.size());
    for (number, way) in ways(ranks).into_iter().enumerate() {
        let root = number % ranks;
        let wanted = part(whole, way, ranks, me).pack().unwrap();
        let given = (me == root).then(|| whole.clone());
        // Only the root needs to say how the tensor is cut.
        let said = if me == root { way } else { Parts::Split(9) };
        let got = group.scatter_tensor(given, said, root).unwrap();
        assert_eq!(bits(&got), bits(&wanted), "{way:?} of {:?}", whole.shape());
        let whole = bits(&whole.pack().unwrap());
        let back = group.gather_tensor(got.view(), way, root).unwrap();
        assert_eq!(back.as_ref().map(bits), (me == root).then_some(whole.clone()), "{way:?}");
        assert_eq!(bits(&group.all_gather_tensor(got.view(), way).unwrap()), whole, "{way:?}");
    }
}

#[test]
fn parts_of_a_tensor_come_back_as_the_whole() {
    for ranks in 1..=5 {
        world(ranks, small, |group| {
            // Each number of ranks tests some types; together they test every type.
            let some =
                Dtype::ALL.into_iter().enumerate().filter(|(seed, _)| (seed + ranks).is_multiple_of(4));
            for (seed, dtype) in some {
                let tall = tensor(seed, dtype, &[7, 5]);
                parts(&group, &tall.view());
                parts(&group, &tall.view().transpose(0, 1).unwrap());
            }
            for shape in [&[0, 3][..], &[3, 0], &[1, 11], &[2, 3, 4], &[33, 9]] {
                parts(&group, &tensor(1, Dtype::I16, shape).view());
            }
        });
    }
    world(4, |_| {}, |group| parts(&group, &tensor(1, Dtype::F64, &[301, 203]).view()));
}

#[test]
fn pieces_may_have_elements_in_common() {
    world(3, small, |group| {
        for (dim, indices) in [(0, [5, 2]), (1, [-1, 0])] {
            let whole = tensor(1, Dtype::I16, &[7, 5]);
            let wanted = whole.view().tensor_split_at(dim, &indices).unwrap()[group.rank()].pack().unwrap();
            let way = Parts::SplitAt { dim, indices: &indices };
            let got = group.scatter_tensor(Some(whole.view()), way, 2).unwrap();
            assert_eq!(bits(&got), bits(&wanted));
            let all = group.all_gather_tensor(got.view(), way).unwrap();
            let cut = whole.view().tensor_split_at(dim, &indices).unwrap();
            assert_eq!(bits(&all), bits(&tensor::concat(&cut, dim).unwrap()));
        }
    });
}

#[test]
fn pieces_of_any_length_become_one() {
    for ranks in 1..=5 {
        world(ranks, small, |group| {
            let pieces: Vec<_> =
                (0..ranks).map(|rank| tensor(rank, Dtype::BF16, &[2, rank * 3 % 5, 3])).collect();
            let pieces: Vec<_> = pieces.iter().map(Tensor::view).collect();
            let wanted = bits(&tensor::concat(&pieces, 1).unwrap());
            let mine = &pieces[group.rank()];
            assert_eq!(bits(&group.all_gather_tensor(mine.clone(), Parts::Split(1)).unwrap()), wanted);
            let root = ranks - 1;
            let got = group.gather_tensor(mine.clone(), Parts::Split(1), root).unwrap();
            assert_eq!(got.as_ref().map(bits), (group.rank() == root).then_some(wanted));
        });
    }
}

/// Checks that all ranks get the same error, and that the group still works.
fn refused<T: std::fmt::Debug>(ranks: usize, of: impl Fn(&ProcessGroup) -> Result<T> + Sync, wanted: &str) {
    for words in world(ranks, small, |group| {
        let error = of(&group).unwrap_err();
        assert!(!matches!(error, Error::Failed(_)), "{error}");
        group.barrier().unwrap();
        error.to_string()
    }) {
        assert_eq!(words, wanted);
    }
}

#[test]
fn what_does_not_fit_together_is_said_on_all_ranks() {
    let odd = |group: &ProcessGroup, usual: Tensor, odd: Tensor| if group.rank() == 2 { odd } else { usual };
    refused(
        3,
        |group| {
            let mine = odd(group, tensor(1, Dtype::F32, &[2, 4]), tensor(1, Dtype::F32, &[2, 5]));
            group.all_gather_tensor(mine.view(), Parts::Split(0))
        },
        "all_gather_tensor: the tensor of rank 2 has the shape [2, 5] and [2, 4] was wanted; reshape or narrow it",
    );
    refused(
        3,
        |group| {
            let mine = odd(group, tensor(1, Dtype::F32, &[2]), tensor(1, Dtype::I32, &[2]));
            group.gather_tensor(mine.view(), Parts::Split(0), 1)
        },
        "gather_tensor: rank 0 has elements of f32, rank 2 of i32",
    );
    refused(
        3,
        |group| {
            let way = if group.rank() == 1 { Parts::Split(1) } else { Parts::Split(0) };
            group.gather_tensor(tensor(1, Dtype::F32, &[2, 2]).view(), way, 1)
        },
        "gather_tensor: rank 0 joins parts by Split(0), rank 1 by Split(1)",
    );
    refused(
        2,
        |group| {
            let indices = [isize::try_from(group.rank()).unwrap()];
            let way = Parts::SplitAt { dim: 0, indices: &indices };
            group.all_gather_tensor(tensor(1, Dtype::F32, &[2]).view(), way)
        },
        "all_gather_tensor: rank 0 joins parts by SplitAt { dim: 0, indices: [0] }, \
         rank 1 by SplitAt { dim: 0, indices: [1] }",
    );
    refused(
        2,
        |group| group.all_gather_tensor(tensor(1, Dtype::F32, &[]).view(), Parts::Split(0)),
        "there is no dimension 0 in a tensor of 0; they are counted from 0",
    );
    let grid = Parts::Blocks { rows: 2, columns: 2 };
    refused(
        3,
        |group| group.all_gather_tensor(tensor(1, Dtype::F32, &[1, 1]).view(), grid),
        "3 blocks do not fill a grid of 2 x 2; give one for each place, row by row",
    );
    // The tensor is larger than any memory, though no rank has much of it.
    refused(
        3,
        |group| group.all_gather_tensor(tensor(1, Dtype::F64, &[0, 1 << 59]).view(), Parts::Split(1)),
        "the shape [0, 1729382256910270464] of f64 takes more than 9223372036854775807 bytes; give a smaller one",
    );
}

#[test]
fn what_the_root_cannot_give_is_said_on_all_ranks() {
    world(3, small, |group| {
        let me = group.rank();
        let whole = tensor(1, Dtype::U8, &[4, 4]);
        let whole = whole.view();
        let refused = |result: Result<Tensor>, wanted: &str| {
            let words = result.unwrap_err().to_string();
            let unsent = "scatter_tensor: the list of shapes of rank 1: that rank did not send it; its own error says why";
            assert_eq!(words, if me == 1 { wanted } else { unsent });
        };
        let wanted = "scatter_tensor: this rank is the root and gave None; the root must give a tensor";
        refused(group.scatter_tensor(None, Parts::Split(0), 1), wanted);
        let wanted = "there is no dimension 2 in a tensor of 2; they are counted from 0";
        refused(group.scatter_tensor(Some(whole.clone()), Parts::Chunk(2), 1), wanted);
        let wanted = "3 blocks do not fill a grid of 2 x 2; give one for each place, row by row";
        refused(group.scatter_tensor(Some(whole.clone()), Parts::Blocks { rows: 2, columns: 2 }, 1), wanted);
        let wanted =
            "1 indices cut a dimension into 2 parts, and 3 are wanted; give one index fewer than parts";
        refused(
            group.scatter_tensor(Some(whole.clone()), Parts::SplitAt { dim: 0, indices: &[2] }, 1),
            wanted,
        );
        match (me, group.broadcast_tensors(None, 1).unwrap_err()) {
            (1, Error::Argument { call: "broadcast_tensors", .. }) | (_, Error::Object { rank: 1, .. }) => {}
            (_, other) => panic!("{other}"),
        }
        let error = group.scatter_tensor(Some(whole.clone()), Parts::Split(0), 3).unwrap_err().to_string();
        assert_eq!(error, "scatter_tensor: the root is rank 3; there are ranks 0 to 2");
        group.barrier().unwrap();
    });
}

#[test]
fn who_calls_something_else_is_named() {
    type Call = fn(&ProcessGroup) -> Result<()>;
    let broadcast: Call =
        |group| group.broadcast_tensors(Some(&[TensorView::new(&[1_u8], &[1])?]), 0).map(drop);
    let object: Call = |group| group.broadcast_object(Some(1), 0).map(drop);
    let lists: Call = |group| group.all_gather_tensors(&[]).map(drop);
    let whole: Call =
        |group| group.all_gather_tensor(TensorView::new(&[1_u8], &[1])?, Parts::Split(0)).map(drop);
    let scatter: Call =
        |group| group.scatter_tensor(Some(TensorView::new(&[1_u8], &[1])?), Parts::Split(0), 0).map(drop);
    for (one, other, wanted) in [
        (
            broadcast,
            object,
            "op 0: rank 0 calls broadcast_tensors(root 0), rank 1 calls broadcast_object(root 0)",
        ),
        (lists, whole, "op 0: rank 0 calls all_gather_tensors(), rank 1 calls all_gather_tensor()"),
        (
            scatter,
            broadcast,
            "op 0: rank 0 calls scatter_tensor(root 0), rank 1 calls broadcast_tensors(root 0)",
        ),
    ] {
        for result in world(2, small, |group| {
            let call = if group.rank() == 0 { one } else { other };
            call(&group).and_then(|()| hear(&group))
        }) {
            assert_eq!(result.unwrap_err().to_string(), wanted);
        }
    }
}

#[test]
fn small_ones_go_together_and_large_ones_from_where_they_lie() {
    use crate::group::typed::tensors::{packed, runs};
    assert_eq!(runs([3, 0, 4, 9, 2, 0, 0, 8, 1].into_iter(), 10), [0..3, 3..4, 4..8, 8..9]);
    assert!(runs([0, 0].into_iter(), 10).is_empty());
    assert_eq!(runs([20, 20, 1].into_iter(), 10), [0..1, 1..2, 2..3]);
    let large = tensor(1, Dtype::U32, &[10, 10]);
    let empty = tensor(1, Dtype::U32, &[0]);
    let same = packed(&[empty.view(), large.view()]).unwrap();
    assert!(std::ptr::eq(same.as_ptr(), large.bytes().as_ptr()) && same.len() == 400);
    let turned = packed(&[large.view().transpose(0, 1).unwrap()]).unwrap();
    assert_eq!(turned.len(), 400);
    assert_ne!(turned, same);
}

#[test]
fn malformed_headers_are_refused() {
    use crate::{
        group::typed::tensors::TensorInfo,
        object::{decode, encode},
    };
    #[derive(serde::Serialize)]
    struct Fake {
        dtype: u8,
        shape: Vec<u64>,
    }
    let read = |dtype: u8, shape: &[u64]| {
        let bytes = encode(&Fake { dtype, shape: shape.to_vec() }).unwrap();
        decode::<TensorInfo>(&bytes).map_err(|error| error.to_string())
    };
    assert_eq!(read(Dtype::F64.code(), &[3, 2]).unwrap().bytes, 48);
    assert_eq!(read(12, &[1]).unwrap_err(), "dtype number 12");
    for shape in [&[u64::MAX][..], &[1 << 40, 1 << 40], &[0, 1 << 61], &[1 << 60]] {
        assert!(read(Dtype::F64.code(), shape).unwrap_err().contains("more than"), "{shape:?}");
    }
}
