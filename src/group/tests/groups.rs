//! Groups of some of a group's ranks: their members, that they work concurrently, and that they leave nothing behind.

use std::thread;

use unisono_schedule::select::shown::COPIED_BYTES;

use super::*;
use crate::sim::{self, Fabric};

/// Sums the members' ranks in the world: the sum shows which ranks took part.
fn sum(group: &ProcessGroup) -> u64 {
    let mut data = [1_u64 << group.members()[group.rank()]; 3];
    group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
    assert!(data.iter().all(|&it| it == data[0]));
    data[0]
}

#[test]
fn a_split_puts_ranks_in_the_order_of_their_keys() {
    for ranks in [1, 2, 5, 8] {
        world(ranks, small, |group| {
            let rank = group.rank();
            // Of each three ranks the last is in no group; keys are negative, and some are equal.
            let color = (rank % 3 < 2).then_some(rank as u64 % 3);
            let part = group.split(color, -(rank as i64 / 2)).unwrap();
            let Some(part) = part else {
                assert_eq!(color, None);
                return;
            };
            let mut wanted: Vec<Rank> = (0..ranks).filter(|other| other % 3 == rank % 3).collect();
            wanted.sort_by_key(|&other| (-(other as i64 / 2), other));
            assert_eq!(part.members()[..], wanted);
            assert_eq!((part.size(), part.members()[part.rank()]), (wanted.len(), rank));
            assert_eq!(part.members()[part.rank()], rank);
            let members = part.members();
            assert_eq!((members.global(part.rank()), members.local(rank)), (Some(rank), Some(part.rank())));
            assert_eq!((members.global(ranks), members.local(ranks)), (None, None));
            assert_eq!(part.name(), format!("world/0:{}", rank % 3));
            assert_eq!(sum(&part), wanted.iter().map(|&member| 1 << member).sum::<u64>());
        });
    }
}

#[test]
fn a_new_group_keeps_the_order_given() {
    world(5, small, |group| {
        let order = [4, 0, 3];
        let part = group.new_group(&order).unwrap();
        assert_eq!(part.is_some(), order.contains(&group.rank()));
        let Some(part) = part else { return };
        assert_eq!((&part.members()[..], part.name()), (&order[..], "world/0"));
        let mut all = [0_u8; 3];
        part.all_gather((&[group.rank() as u8], &mut all)).unwrap();
        assert_eq!(all, [4, 0, 3]);
        let mut data = if part.rank() == 2 { vec![7_i16; 500] } else { vec![0; 500] };
        part.broadcast(&mut data, 2).unwrap();
        assert_eq!(data, vec![7; 500]);
        // This makes a group of a group.
        let pair = part.new_group(&[2, 0]).unwrap();
        assert_eq!(pair.is_some(), part.rank() != 1);
        if let Some(pair) = pair {
            assert_eq!((&pair.members()[..], pair.name()), (&[3, 4][..], "world/0/0"));
            assert_eq!(sum(&pair), 1 << 3 | 1 << 4);
        }
    });
}

#[test]
fn groups_that_overlap_work_side_by_side() {
    world(4, small, |group| {
        let rows = group.split(Some(group.rank() as u64 / 2), 0).unwrap().unwrap();
        let columns = group.split(Some(group.rank() as u64 % 2), 0).unwrap().unwrap();
        let twin = group.new_group(&[0, 1, 2, 3]).unwrap().unwrap();
        // There is a thread for each group, so the order of groups differs from rank to rank.
        thread::scope(|scope| {
            for (which, part) in [&group, &rows, &columns, &twin].into_iter().enumerate() {
                scope.spawn(move || {
                    let wanted: u64 = part.members().iter().map(|&member| 1 << member).sum();
                    for round in 0..200 {
                        if (round + part.members()[part.rank()] * which) % 7 == 0 {
                            thread::yield_now();
                        }
                        assert_eq!(sum(part), wanted);
                        let mut data = vec![part.rank() as i32; 40 * round];
                        part.all_reduce(&mut data, ReduceOp::Max).unwrap();
                        assert!(data.iter().all(|&it| it == part.size() as i32 - 1));
                    }
                });
            }
        });
    });
}

#[test]
fn groups_come_and_go_and_leave_nothing_behind() {
    world(3, small, |group| {
        let direct = group.with_algorithms("direct").unwrap();
        direct.barrier().unwrap();
        let mut memory = Vec::new();
        for round in 0..600 {
            let part = group.split(Some(group.rank() as u64 % 2), 0).unwrap().unwrap();
            if round % 3 > 0 {
                sum(&part);
                let mut data = vec![1_i32; 400];
                part.all_reduce(&mut data, ReduceOp::Sum).unwrap();
                assert_eq!(data[399], part.size() as i32);
            }
            drop(part);
            if round % 50 == 49 {
                group.barrier().unwrap();
                memory.push(group.usage().memory);
            }
        }
        // On a rank that comes last a group may end after a later call, but not after many, even if these take no messages.
        let mut part = group.split(Some(group.rank() as u64 % 2), 0).unwrap();
        sum(part.as_ref().unwrap());
        for round in 0..100 {
            if group.rank() == 0 {
                thread::sleep(Duration::from_millis(1));
            }
            if round == group.rank() {
                drop(part.take());
            }
            direct.barrier().unwrap();
        }
        memory.push(group.usage().memory);
        let least = memory.iter().min().unwrap();
        assert!(memory[12] <= least + 20_000, "{memory:?}");
    });
}

#[test]
fn more_groups_than_there_may_be_are_an_error_and_nothing_else() {
    world(2, small, |group| {
        let mut groups = Vec::new();
        let error = loop {
            match group.split(Some(0), 0) {
                Ok(part) => groups.push(part.unwrap()),
                Err(error) => break error,
            }
        };
        assert_eq!(groups.len(), 1023);
        assert!(matches!(error, Error::Argument { call: "split", .. }), "{error}");
        assert_eq!(sum(&groups[1022]), 3);
        groups.truncate(100);
        group.barrier().unwrap();
        assert_eq!(sum(&group.split(Some(0), 0).unwrap().unwrap()), 3);
        assert_eq!(sum(&group), 3);
    });
}

/// Makes groups of 8 ranks, uses each, and some of them again in another order. Returns the most registered memory of a rank.
fn uses_groups(groups: usize, again: usize, open: impl Fn() -> Box<dyn Transport>) -> usize {
    let tweak = |config: &mut Config| {
        small(config);
        config.lanes = 2;
    };
    let most = world_over(8, open, tweak, |group| {
        let orders = (0..groups).map(|which| {
            let mut order: Vec<Rank> = (0..8).collect();
            order.rotate_left(which % 8);
            order
        });
        let made: Vec<_> = orders.map(|order| group.new_group(&order).unwrap().unwrap()).collect();
        let mut most = 0;
        for sequence in 0..groups + again {
            // 389 is a prime.
            let part = &made[sequence * [1, 389][usize::from(sequence >= groups)] % groups];
            let (root, sequence) = (sequence % 8, sequence as u64);
            match sequence % 5 {
                0 => {
                    let mut data = vec![part.rank() as u32; 300];
                    part.all_reduce(&mut data, ReduceOp::Sum).unwrap();
                    assert_eq!(data, vec![28; 300]);
                }
                1 => {
                    let mut data = if part.rank() == root { vec![sequence; 70] } else { vec![0; 70] };
                    part.broadcast(&mut data, root).unwrap();
                    assert_eq!(data, vec![sequence; 70]);
                }
                2 => {
                    let (next, previous) = ((part.rank() + 1) % 8, (part.rank() + 7) % 8);
                    let mut got = [0; 90];
                    part.send_recv((&[sequence; 90], &mut got), next, previous).unwrap();
                    assert_eq!(got, [sequence; 90]);
                }
                _ => assert_eq!(sum(part), 255),
            }
            most = most.max(group.usage().memory);
        }
        most
    });
    most.into_iter().max().unwrap()
}

/// Such are the groups of data, tensor, pipeline and expert parallelism, and of their combinations.
#[test]
fn a_thousand_groups_of_eight_ranks_work() {
    let hub = Hub::new();
    let most = uses_groups(1000, 100, || Box::new(hub.open()));
    // Each has a mailbox, the control messages to others' mailboxes, and shared slots; some have windows.
    let each = 8 * 2 * 440 + 2 * COPIED_BYTES + 1024;
    assert!(most < 1000 * each + (2 << 20), "{most} bytes");
}

/// This fabric breaks if more puts arrive than it has room for. It has room for less than three groups need, or hardly for one call, so
/// that calls wait.
#[test]
fn windows_are_given_back_before_more_may_arrive_than_there_is_room_for() {
    for (seed, arrivals) in [(33, 1300), (1, 400), (2, 400), (3, 300), (4, 300)] {
        println!("seed {seed}, {arrivals} arrivals");
        let fabric = Fabric::new(sim::Config { seed, arrivals, ..sim::Config::default() });
        uses_groups(16, 32, || Box::new(fabric.open()));
    }
}

/// Rank 5 has windows for messages of all ranks, and no room for one more. The ranks that could give windows back compute: that is no
/// deadlock of rank 5 and the rank that it receives from.
#[test]
fn ranks_that_wait_for_room_are_not_in_a_deadlock() {
    let fabric = Fabric::new(sim::Config { seed: 1, arrivals: 200, ..sim::Config::default() });
    let open = || -> Box<dyn Transport> { Box::new(fabric.open()) };
    let tweak = |config: &mut Config| {
        small(config);
        config.lanes = 2;
    };
    world_over(8, open, tweak, |group| {
        let other = group.split(Some(0), 0).unwrap().unwrap();
        for apart in 1..8 {
            let (next, previous) = ((group.rank() + apart) % 8, (group.rank() + 8 - apart) % 8);
            group.send_recv((&[7_u64; 90], &mut [0; 90]), next, previous).unwrap();
        }
        group.barrier().unwrap();
        match group.rank() {
            4 => other.send(&[7_u64; 90], 5).unwrap(),
            5 => assert_eq!(other.recv(&mut [0_u64; 90], 4).unwrap(), 4),
            // The store looks for a deadlock each second.
            _ => thread::sleep(Duration::from_secs(2)),
        }
        assert_eq!(sum(&other), 255);
    });
}

/// Small and large messages of one group come through separate windows, and there is not room for all windows.
#[test]
fn a_call_may_need_the_room_of_windows_that_its_group_used_before() {
    for seed in 1..4 {
        println!("seed {seed}");
        let fabric = Fabric::new(sim::Config { seed, arrivals: 300, ..sim::Config::default() });
        let tweak = |config: &mut Config| {
            small(config);
            config.lanes = 2;
        };
        let open = || -> Box<dyn Transport> { Box::new(fabric.open()) };
        world_over(8, open, tweak, |group| {
            for _ in 0..5 {
                assert_eq!(sum(&group), 255);
                let mut data = vec![group.rank() as u32; 300];
                group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
                assert_eq!(data, vec![28; 300]);
            }
        });
    }
}

/// Each rank begins in a different order, so peers are ahead in many groups at once.
#[test]
fn calls_of_many_groups_may_be_under_way_in_any_order() {
    for seed in 33..37 {
        println!("seed {seed}");
        let fabric = Fabric::new(sim::Config { seed, arrivals: 1300, ..sim::Config::default() });
        let open = || -> Box<dyn Transport> { Box::new(fabric.open()) };
        world_over(8, open, small, |group| {
            let made: Vec<ProcessGroup> =
                (0..16).map(|_| group.split(Some(0), 0).unwrap().unwrap()).collect();
            let order = |sequence: usize| (sequence * 5 + 3 * group.rank()) % 16;
            let works: Vec<_> = (0..16)
                .map(|sequence| {
                    made[order(sequence)]
                        .begin()
                        .all_reduce(vec![order(sequence) as u64; 300], ReduceOp::Sum)
                        .unwrap()
                })
                .collect();
            for (sequence, work) in works.into_iter().enumerate() {
                assert_eq!(work.wait().unwrap(), vec![8 * order(sequence) as u64; 300]);
            }
        });
    }
}

#[test]
fn lists_that_differ_are_a_mismatch() {
    let failures = world(3, small, |group| {
        let list: &[Rank] = if group.rank() == 1 { &[0, 1] } else { &[0, 2] };
        group.new_group(list).err()
    });
    for error in failures {
        let Some(Error::Failed(Failure::Mismatch { left, right, .. })) = error else {
            panic!("{error:?}");
        };
        assert!([left.0, right.0].contains(&1), "{left:?} {right:?}");
    }
}

#[test]
fn a_split_beside_another_call_is_a_mismatch() {
    let failures = world(2, small, |group| {
        if group.rank() == 0 {
            group.split(Some(1), 0).err()
        } else {
            group.all_gather((&[0_u64], &mut [0; 2])).err()
        }
    });
    for error in failures {
        let Some(Error::Failed(Failure::Mismatch { left, right, .. })) = error else {
            panic!("{error:?}");
        };
        assert_eq!((&*left.1, &*right.1), ("calls split()", "calls all_gather(u64)"));
    }
}

#[test]
fn a_group_of_invalid_ranks_is_refused() {
    world(2, small, |group| {
        for ranks in [&[][..], &[0, 0], &[2]] {
            let refused = group.new_group(ranks);
            assert!(matches!(refused, Err(Error::Argument { call: "new_group", .. })), "{ranks:?}");
        }
        assert_eq!(sum(&group), 3);
    });
}

#[test]
fn a_failure_in_one_group_ends_all() {
    world(4, small, |group| {
        // The others may have failed before this rank has its new group.
        let failed = group.split(Some(group.rank() as u64 / 2), 0).and_then(|part| match part.unwrap() {
            part if group.rank() == 3 => part.broadcast(&mut [0_i8], 0),
            part => part.all_reduce(&mut [0_i8], ReduceOp::Sum).and_then(|()| group.barrier()),
        });
        let failed = failed.unwrap_err().to_string();
        // The failure names ranks of the world.
        let wanted = "group world/0:1 of ranks 2, 3: op 0: rank 2 calls all_reduce(i8, sum), rank 3 calls broadcast(i8, root 0)";
        assert_eq!(failed, wanted, "rank {}", group.rank());
        assert!(matches!(group.barrier(), Err(Error::Failed(_))));
    });
}

#[test]
fn a_group_is_named_if_its_calls_differ_or_do_not_end() {
    let ranks = world(3, small, |group| {
        let part = group.new_group(&[2, 0]).unwrap();
        let failed = match &part {
            // The other rank finds no difference in the lengths that it learns.
            Some(part) if part.rank() == 0 => part.all_gather(uneven(&mut [0_u8; 2], &[2, 0])),
            Some(part) => part.all_gather(uneven(&mut [0_u8; 1], &[1, 0])),
            None => group.barrier(),
        };
        failed.and_then(|()| hear(&group)).unwrap_err().to_string()
    });
    let wanted = "group world/0 of ranks 2, 0: op 0 all_gather_v(u8): rank 0 was given lengths of blocks that hash to 405bb5dd, the \
                  longest of 1 elements, rank 2 was given lengths of blocks that hash to 23f0b957, the longest of 2 elements";
    assert_eq!(ranks, [wanted; 3]);

    let timeout = |config: &mut Config| config.timeout = Duration::from_millis(300);
    let ranks = world(2, timeout, |group| {
        let part = group.new_group(&[1, 0]).unwrap().unwrap();
        let failed = match part.rank() {
            0 => part.barrier().unwrap_err(),
            _ => hear(&group).unwrap_err(),
        };
        failed.to_string()
    });
    for ranks in ranks {
        let begins = "group world/0 of ranks 1, 0: op 0 barrier() did not finish within ";
        let ends = "rank 0 has not entered it (finished new_group() and called nothing since); rank 1 is in it: rank 1 \
                    waits for rank 0 (0 steps done); rank 1 is stuck behind rank 0";
        assert!(ranks.starts_with(begins) && ranks.ends_with(ends), "{ranks}");
    }
}

#[test]
fn two_threads_may_make_groups_of_two_groups_at_once() {
    world(3, small, |group| {
        let twin = group.new_group(&[0, 1, 2]).unwrap().unwrap();
        thread::scope(|scope| {
            for parent in [&group, &twin] {
                scope.spawn(move || {
                    for sequence in 0..40 {
                        let part =
                            parent.split(Some(u64::from(parent.rank() == sequence % 3)), 0).unwrap().unwrap();
                        let wanted = part.members().iter().map(|&member| 1 << member).sum::<u64>();
                        assert_eq!(sum(&part), wanted, "sequence {sequence} of {}", parent.name());
                    }
                });
            }
        });
    });
}

#[test]
fn threads_that_make_groups_in_the_same_place_do_not_get_in_each_others_way() {
    world(3, small, |group| {
        let twins: Vec<_> = (0..3).map(|_| group.new_group(&[0, 1, 2]).unwrap().unwrap()).collect();
        // So few ids are left that all threads try the same ones.
        let others: Vec<_> = (0..1000).map(|_| group.new_group(&[0, 1, 2]).unwrap().unwrap()).collect();
        thread::scope(|scope| {
            for parent in [&group].into_iter().chain(&twins) {
                scope.spawn(move || {
                    for sequence in 0..40 {
                        let color = (parent.rank() != 2).then_some(u64::from(parent.rank() == sequence % 2));
                        let part = parent.split(color, 0).unwrap();
                        assert_eq!(part.is_some(), color.is_some());
                        let order = [sequence % 3, (sequence + 1) % 3];
                        let pair = parent.new_group(&order).unwrap();
                        for made in part.iter().chain(&pair) {
                            let wanted = made.members().iter().map(|&member| 1 << member).sum::<u64>();
                            assert_eq!(sum(made), wanted, "sequence {sequence} of {}", parent.name());
                        }
                    }
                });
            }
        });
        assert_eq!(sum(&others[999]), 7);
    });
}

/// If groups are dropped together, this rank looks at each when something happens in it, not whenever another one is dropped.
#[test]
fn a_group_is_as_much_work_to_leave_however_many_are_left() {
    const GROUPS: usize = 400;
    let looks = world(2, small, |group| {
        let parts: Vec<_> = (0..GROUPS).map(|_| group.new_group(&[0, 1]).unwrap().unwrap()).collect();
        parts.iter().for_each(|part| part.barrier().unwrap());
        let looks = |group: &ProcessGroup| group.handle.shared.runtime.with(|engine| engine.looks()).unwrap();
        let before = looks(&group);
        if group.rank() == 1 {
            // This rank first gets the ends of all groups from the other rank.
            group.recv(&mut [0_u8], 0).unwrap();
        }
        drop(parts);
        if group.rank() == 0 {
            group.send(&[0_u8], 1).unwrap();
        }
        for _ in 0..20 {
            group.barrier().unwrap();
        }
        let each = (looks(&group) - before) as f64 / GROUPS as f64;
        let left = group.handle.shared.runtime.with(|engine| engine.communicators());
        assert_eq!(left.unwrap(), (1, 0), "communicators of the engine, and those that it leaves");
        group.leave().unwrap();
        each
    });
    println!("{looks:?} looks for each group");
    assert!(looks.iter().all(|&each| (1.0..20.0).contains(&each)), "{looks:?} looks for each group");
}
