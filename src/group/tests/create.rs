//! Groups that their members make without the other ranks.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{messages::worlds, *};
use crate::Source;
use crate::random::Random;

/// Sums the members' ranks in the world, as bits: the sum shows which ranks took part.
fn sum(group: &ProcessGroup) -> u64 {
    let mut data = [1_u64 << group.members()[group.rank()]; 3];
    group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
    data[0]
}

fn bits(ranks: &[Rank]) -> u64 {
    ranks.iter().map(|&rank| 1 << rank).sum()
}

#[test]
fn members_make_a_group_without_the_others() {
    // Up to 16 members send to the first one.
    for members in [1, 2, 3, 8, 17, 35] {
        world(members + 1, small, |group| {
            // The highest rank comes first.
            let ranks: Vec<Rank> = (0..members).map(|it| members - it).collect();
            if !ranks.contains(&group.rank()) {
                return;
            }
            let part = group.create_group(&ranks, 7).unwrap();
            assert_eq!((&part.members()[..], part.name()), (&ranks[..], "world/tag 7"));
            assert_eq!((part.rank(), part.size()), (members - group.rank(), members));
            assert_eq!((sum(&part), group.usage().operations), (bits(&ranks), 0));
            // This makes a group of a group, whose ranks have other numbers.
            let half: Vec<Rank> = (0..members).step_by(2).collect();
            if half.contains(&part.rank()) {
                let wanted: Vec<Rank> = half.iter().map(|&it| members - it).collect();
                let half = part.create_group(&half, 7).unwrap();
                assert_eq!((&half.members()[..], sum(&half)), (&wanted[..], bits(&wanted)));
            }
        });
    }
}

/// The test makes more groups than may exist at a time.
#[test]
fn groups_are_made_one_after_the_other_and_end_in_any_order() {
    let seed = 35;
    world(3, small, |group| {
        // This seed is the same on all ranks, so that they make the same groups.
        let mut random = Random(seed);
        // This seed differs, so that each rank ends its groups at other times.
        let mut own = Random(seed + 1 + group.rank() as u64);
        let mut held: Vec<ProcessGroup> = Vec::new();
        for number in 0..1500 {
            let ranks: &[Rank] = [&[0, 1][..], &[2, 0], &[1, 2], &[2, 1, 0]][random.below(4)];
            if !ranks.contains(&group.rank()) {
                continue;
            }
            let part = group.create_group(ranks, 0).unwrap();
            if number % 10 == 0 {
                assert_eq!(sum(&part), bits(ranks), "seed {seed}, group {number}");
            }
            held.push(part);
            while held.len() > 20 || !held.is_empty() && own.below(2) == 0 {
                held.swap_remove(own.below(held.len()));
            }
        }
        drop(held);
        assert_eq!(sum(&group), 0b111);
        group.leave().unwrap();
    });
}

#[test]
fn threads_make_groups_of_the_same_ranks_at_once() {
    world(3, small, |group| {
        // Most ids are taken, so the threads often try the same ids.
        let _taken: Vec<_> = (0..220).map(|tag| group.create_group(&[0, 1, 2], tag).unwrap()).collect();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // The tags differ only in one half.
            let tags = (1..5_u64).flat_map(|it| [it, it << 32]);
            let threads: Vec<_> = tags
                .map(|tag| {
                    let group = &group;
                    scope.spawn(move || {
                        for round in 0..12 {
                            let part = group.create_group(&[1, 0, 2], tag).unwrap();
                            let mut value = [tag + round];
                            part.broadcast(&mut value, 0).unwrap();
                            assert_eq!(value, [tag + round]);
                        }
                    })
                })
                .collect();
            // Meanwhile another thread calls the parent, with messages of the same tags.
            scope.spawn(|| {
                let mut all = [0_u8];
                while all[0] == 0 {
                    all = [done.load(Ordering::Relaxed).into()];
                    group.all_reduce(&mut all, ReduceOp::Min).unwrap();
                    let (to, mut got) = ((group.rank() + 1) % 3, [0; 64]);
                    group
                        .send_recv((&[group.rank() as u64; 64], &mut got), (to, 1), (Source::Any, 1))
                        .unwrap();
                    assert_eq!(got, [(group.rank() as u64 + 2) % 3; 64]);
                }
            });
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            done.store(true, Ordering::Relaxed);
        });
        group.leave().unwrap();
    });
}

#[test]
fn a_group_is_no_message_of_its_tag() {
    worlds(2, |group| {
        let other = 1 - group.rank();
        let receives = [(Source::Any, 5), (Source::Rank(other), 6)]
            .map(|(from, tag)| group.begin().recv(vec![0_u64; 80], (from, tag)).unwrap());
        for tag in [5, 6] {
            assert_eq!(sum(&group.create_group(&[0, 1], tag).unwrap()), 0b11);
            group.send(&[u64::from(tag as u32); 80], (other, tag as u32)).unwrap();
        }
        for (receive, tag) in receives.into_iter().zip([5, 6]) {
            assert_eq!(receive.wait().unwrap(), (vec![tag; 80], other));
        }
        group.leave().unwrap();
    });
}

#[test]
fn members_with_other_lists_are_told() {
    for (zero, one) in [(&[0, 1][..], &[0, 1, 2][..]), (&[0, 1], &[1, 0]), (&[2, 0, 1], &[2, 1])] {
        let messages = world(3, small, |group| {
            let made = match group.rank() {
                0 => group.create_group(zero, 3),
                1 => group.create_group(one, 3),
                _ if zero.contains(&2) => group.create_group(zero, 3),
                _ => return hear(&group).unwrap_err().to_string(),
            };
            match made.map(drop).map_err(|error| match error {
                Error::Failed(Failure::Members { tag: 3, .. } | Failure::Deadlock { .. }) => error,
                error => panic!("{error}"),
            }) {
                Err(error) => error.to_string(),
                Ok(()) => hear(&group).unwrap_err().to_string(),
            }
        });
        assert!(messages.iter().all(|it| *it == messages[0]), "{messages:?}");
        // If each rank waits for another one, they do not compare their lists.
        let differ = "create_group(tag 3): rank 0 has the ranks 0, 1, rank 1 has the ranks 0–2";
        let wanted = match (zero, one) {
            ([0, 1], [0, 1, 2]) => differ,
            ([0, 1], _) => {
                "ranks wait for each other: rank 0 in create_group(with 1, tag 3) for rank 1, rank 1 in \
                 create_group(with 0, tag 3) for rank 0"
            }
            _ => "create_group(tag 3): rank 1 has the ranks 2, 1, rank 2 has the ranks 2, 0, 1",
        };
        assert_eq!(messages[0], wanted);
    }
}

#[test]
fn a_list_is_of_ranks_that_there_are_and_this_one() {
    world(3, small, |group| {
        let others: Vec<Rank> = (0..3).filter(|&it| it != group.rank()).collect();
        let me = group.rank();
        let cases = [
            (vec![], "the list of ranks is empty".to_owned()),
            (vec![me, 3], "there is no rank 3; there are 0 to 2".to_owned()),
            (vec![me, me], format!("rank {me} is named twice")),
            (others, format!("rank {me}, which is this rank, is not one of ")),
        ];
        for (ranks, wanted) in cases {
            match group.create_group(&ranks, 0) {
                Err(Error::Argument { call: "create_group", problem }) if problem.contains(&wanted) => {}
                other => panic!("{ranks:?}: {other:?}"),
            }
        }
        assert_eq!(sum(&group.create_group(&[me], 0).unwrap()), bits(&[me]));
        group.leave().unwrap();
    });
}

/// Five members make a group; rank 3 does something else.
fn without_3(timeout: Duration, act: impl Fn(ProcessGroup) -> String + Sync) -> String {
    let impatient = |config: &mut Config| {
        small(config);
        config.timeout = timeout;
    };
    let messages = world(6, impatient, |group| {
        group.barrier().unwrap();
        match group.rank() {
            3 => act(group),
            5 => hear(&group).unwrap_err().to_string(),
            _ => group.create_group(&[0, 1, 2, 3, 4], 9).unwrap_err().to_string(),
        }
    });
    assert!(messages.iter().all(|it| it.is_empty() || *it == messages[0]), "{messages:?}");
    messages[0].clone()
}

#[test]
fn a_member_that_does_not_come_is_named() {
    let late = Duration::from_millis(400);
    let message = without_3(late, |group| hear(&group).unwrap_err().to_string());
    assert!(message.starts_with("create_group(with "), "{message}");
    assert!(
        message.contains("tag 9) did not finish within ")
            && message.contains("ranks 3, 5 finished barrier() and called nothing since"),
        "{message}"
    );

    // The rank waits for a member that is in another call.
    let message =
        without_3(Duration::from_secs(60), |group| group.recv(&mut [0_u8], (0, 9)).unwrap_err().to_string());
    assert!(message.starts_with("ranks wait for each other: rank 0 in create_group(with "), "{message}");
    assert!(message.contains("rank 3 in recv(u8, from 0, tag 9) for rank 0"), "{message}");

    // Rank 3 leaves.
    let message = without_3(Duration::from_secs(60), |group| group.leave().unwrap_err().to_string());
    assert!(
        message.contains("rank 3 has left, and rank 0 waits for it in create_group(with 3, tag 9)"),
        "{message}"
    );

    // Rank 3 fails.
    let message = without_3(Duration::from_secs(60), |group| group.abort("it cannot").to_string());
    assert_eq!(message, "rank 3 aborted the group: it cannot");
}
