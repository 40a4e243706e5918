//! Operands of calls, and operands that calls refuse.

use super::{small, world};
use crate::{Error, ProcessGroup, ReduceOp};

#[test]
fn several_slices_are_one_operand() {
    for ranks in [1, 2, 3] {
        world(ranks, small, |group| {
            let (mut one, mut other, mut none) = (vec![1_u32; 70], [2_u32; 3000], [0_u32; 0]);
            group.all_reduce(&mut [&mut one[..], &mut none, &mut other[5..]], ReduceOp::Sum).unwrap();
            let ranks = ranks as u32;
            assert!(one.iter().all(|&it| it == ranks));
            assert!(other[..5] == [2; 5] && other[5..].iter().all(|&it| it == 2 * ranks));
            // On one rank the operand is in two pieces, on the others in one.
            let mut whole = [group.rank() as u32 + 1; 8];
            let (left, right) = whole.split_at_mut(3);
            match group.rank() {
                0 => group.all_reduce(&mut vec![left, right], ReduceOp::Max).unwrap(),
                _ => group.all_reduce(&mut whole, ReduceOp::Max).unwrap(),
            }
            assert_eq!(whole, [ranks; 8]);
            let (mut left, mut right) = ([1_u32], [2_u32]);
            group.reduce(&mut [&mut left[..], &mut right], ReduceOp::Sum, 0).unwrap();
            assert_eq!((left, right), if group.rank() == 0 { ([ranks], [2 * ranks]) } else { ([1], [2]) });
        });
    }
}

#[test]
fn numbers_of_the_machine_are_elements() {
    world(3, small, |group| {
        let (mut sizes, mut steps) =
            ([usize::MAX / 8, group.rank()], [-isize::try_from(group.rank()).unwrap()]);
        group.all_reduce(&mut sizes, ReduceOp::Sum).unwrap();
        group.all_reduce(&mut steps, ReduceOp::Min).unwrap();
        assert_eq!((sizes, steps), ([usize::MAX / 8 * 3, 3], [-2]));
        let mut all = vec![0; 3];
        group.all_gather((&[group.rank()], &mut all)).unwrap();
        assert_eq!(all, [0, 1, 2]);
        assert_eq!(
            group.all_gather_v(&[group.rank()][..group.rank() % 2]).unwrap(),
            (vec![1], vec![0, 1, 0])
        );
    });
}

#[test]
fn owners_of_all_kinds_are_kept_and_returned() {
    world(2, small, |group| {
        let boxed: Box<[f32]> = vec![1.0; 9].into();
        assert_eq!(
            group.begin().all_reduce(boxed, ReduceOp::Sum).unwrap().wait().unwrap(),
            vec![2.0; 9].into()
        );
        let buffer = group.buffer::<f32>(9).unwrap();
        let pair = group.begin().all_reduce((vec![1.0_f32; 9], buffer), ReduceOp::Sum).unwrap();
        let (input, buffer) = pair.wait().unwrap();
        assert_eq!((&input[..], &buffer[..]), (&[1.0; 9][..], &[2.0; 9][..]));
    });
}

#[cfg(feature = "ndarray")]
#[test]
fn arrays_are_operands_where_they_are_contiguous() {
    world(2, small, |group: ProcessGroup| {
        let mut array = ndarray::Array2::<f64>::from_elem((3, 4), 1.5);
        group.all_reduce(&mut array, ReduceOp::Sum).unwrap();
        assert!(array.iter().all(|&it| it == 3.0));
        group.all_reduce(&mut array.row_mut(1), ReduceOp::Sum).unwrap();
        assert_eq!((array[[0, 0]], array[[1, 3]], array[[2, 0]]), (3.0, 6.0, 3.0));
        let array = group.begin().all_reduce(array, ReduceOp::Max).unwrap().wait().unwrap();
        let mut array = array.reversed_axes();
        match group.all_reduce(&mut array, ReduceOp::Sum).unwrap_err() {
            Error::Argument { call: "all_reduce", problem } => {
                assert!(problem.contains("not contiguous"), "{problem}")
            }
            other => panic!("{other}"),
        }
        group.barrier().unwrap();
    });
}

#[test]
fn several_slices_have_no_blocks() {
    let refused =
        |group: &ProcessGroup| group.all_gather(&mut [&mut [1_u8; 2][..], &mut [1; 2]]).unwrap_err();
    world(2, small, |group| match refused(&group) {
        Error::Argument { call: "all_gather", problem } => {
            assert!(problem.contains("no blocks"), "{problem}")
        }
        other => panic!("{other}"),
    });
}
