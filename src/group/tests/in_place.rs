//! Collectives of equal blocks in place, and `reduce_into`, against a loop.

use super::{small, world};
use crate::{ProcessGroup, ReduceOp};

/// The block of one rank for another.
fn block(from: usize, to: usize, len: usize) -> Vec<i64> {
    (0..len).map(|at| i64::try_from(from * 1_000_000 + to * 100_000 + at).unwrap()).collect()
}

/// Every collective in place.
pub(super) fn all(group: &ProcessGroup, len: usize) {
    let (me, ranks) = (group.rank(), group.size());
    let mine = block(me, 0, len);
    let together: Vec<i64> = (0..ranks).flat_map(|from| block(from, 0, len)).collect();
    for root in [0, ranks - 1] {
        let mut data = mine.clone();
        if me == root {
            data = vec![-1; ranks * len];
            data[me * len..][..len].copy_from_slice(&mine);
        }
        group.gather(&mut data, root).unwrap();
        assert_eq!(data, if me == root { together.clone() } else { mine.clone() });

        let work: Vec<i64> = (0..ranks).flat_map(|to| block(root, to, len)).collect();
        let mut data = if me == root { work.clone() } else { vec![-1; len] };
        assert_eq!(group.scatter(&mut data, root).unwrap(), block(root, me, len));
        assert!(me != root || data == work, "the root keeps the whole");

        let mut output = vec![-1; if me == root { len } else { 1 }];
        group.reduce((&mine, &mut output), ReduceOp::Sum, root).unwrap();
        let sum = |at: usize| (0..ranks).map(|rank| together[rank * len + at]).sum();
        assert_eq!(output, if me == root { (0..len).map(sum).collect() } else { vec![-1] });
    }
    let given: Vec<i64> = (0..ranks).flat_map(|to| block(me, to, len)).collect();
    let wanted: Vec<i64> = (0..ranks).flat_map(|from| block(from, me, len)).collect();
    let mut data = given.clone();
    group.all_to_all(&mut data).unwrap();
    assert_eq!(data, wanted);
    // Some ranks call out of place, and do not wait at once.
    let work = match me % 2 {
        0 => group.begin().all_to_all(given.clone()).unwrap(),
        _ => {
            data.fill(-1);
            group.all_to_all((&given, &mut data)).unwrap();
            assert_eq!(data, wanted);
            return;
        }
    };
    assert_eq!(work.wait().unwrap(), wanted);
}

#[test]
fn blocks_arrive_where_others_lay() {
    for ranks in [1, 2, 3, 5] {
        world(ranks, small, |group| [0, 1, 7, 100, 1000].into_iter().for_each(|len| all(&group, len)));
        world(ranks, |_| {}, |group| all(&group, 20_000));
    }
}
