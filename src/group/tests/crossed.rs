//! Ranks that wait for each other in different groups, calls or messages: all get the failure at once. A rank that may still continue gets
//! none.

use super::*;
use crate::Source;

/// The time within which all ranks must know; on an idle machine it is two seconds.
const SOON: Duration = Duration::from_secs(4);

/// Runs this on every rank, with the world and two groups of all ranks. Returns the failure, which is soon the same on all.
fn failure_of(ranks: usize, act: impl Fn(&ProcessGroup, &[ProcessGroup; 2]) -> Result<()> + Sync) -> String {
    let message = world(ranks, small, |group| {
        let all: Vec<Rank> = (0..ranks).collect();
        let groups = [(); 2].map(|()| group.new_group(&all).unwrap().unwrap());
        for group in groups.iter().chain([&group]) {
            group.barrier().unwrap();
        }
        let begun = Instant::now();
        let message = act(&group, &groups).and_then(|()| hear(&group)).unwrap_err().to_string();
        assert!(begun.elapsed() < SOON, "{:?}: {message}", begun.elapsed());
        message
    });
    assert!(message.iter().all(|it| *it == message[0]), "{message:?}");
    message[0].clone()
}

fn sum(group: &ProcessGroup) -> Result<()> {
    group.all_reduce(&mut [1_u32; 10], ReduceOp::Sum)
}

#[test]
fn groups_called_in_different_order_are_named() {
    for ranks in [2, 3, 5] {
        let message = failure_of(ranks, |group, [one, other]| {
            let turned = group.rank() == ranks - 1;
            let (one, other) = if turned { (other, one) } else { (one, other) };
            one.barrier().and_then(|()| sum(other))
        });
        assert!(message.starts_with("ranks wait for each other: rank "), "{message}");
        let last = ranks - 1;
        for words in [
            "op 1 barrier() of group world/0 of ranks 0".to_owned(),
            format!("rank {last} in op 1 barrier() of group world/1 of ranks 0"),
        ] {
            assert!(message.contains(&words), "{message}");
        }
    }
}

#[test]
fn a_group_called_beside_the_world_is_named() {
    let message = failure_of(4, |group, [one, _]| if group.rank() == 2 { sum(one) } else { sum(group) });
    assert!(message.contains("rank 2 in op 1 all_reduce(u32, sum) of group world/0"), "{message}");
    assert!(message.contains(" in op 5 all_reduce(u32, sum) for rank "), "{message}");
}

#[test]
fn different_roots_without_a_message_are_a_mismatch() {
    // Rank 0 waits only for ranks that wait for another.
    let message = failure_of(4, |group, [one, _]| {
        let root = usize::from(group.rank() == 0);
        let input = if group.rank() == root { vec![1_u8; 40] } else { Vec::new() };
        one.scatter((&input, &mut [0; 10]), root)
    });
    // The rank that sees the mismatch first reports it.
    let sides = ["rank 0 calls scatter(u8, root 1), rank ", " calls scatter(u8, root 0)"];
    assert!(sides.iter().all(|side| message.contains(side)), "{message}");
}

#[test]
fn crossing_messages_are_a_deadlock() {
    let tags = failure_of(2, |group, _| {
        let other = 1 - group.rank();
        group.recv(&mut [0_u8; 3], (other, group.rank() as u32)).map(drop)
    });
    let wanted = "ranks wait for each other: rank 0 in recv(u8, from 1, tag 0) for rank 1, rank 1 in recv(u8, from 0, tag 1) \
                  for rank 0";
    assert_eq!(tags, wanted);
    let any = failure_of(3, |group, [one, _]| match group.rank() {
        0 => sum(one),
        _ => one.recv(&mut [0_u8; 3], (Source::Any, 7)).map(drop),
    });
    assert!(any.contains("rank 1 in recv(u8, from any, tag 7) of group world/0"), "{any}");
    let alone = failure_of(1, |group, _| group.recv(&mut [0_u8; 3], (0, 7)).map(drop));
    assert_eq!(alone, "ranks wait for each other: rank 0 in recv(u8, from 0, tag 7) for rank 0");
}

/// A wait for a rank that computes ends well, however long it takes and in whatever order threads call.
#[test]
fn a_slow_rank_is_not_reported() {
    let slow = Duration::from_millis(2500);
    world(3, small, |group| {
        let groups = [(); 2].map(|()| group.new_group(&[0, 1, 2]).unwrap().unwrap());
        let [one, other] = &groups;
        match group.rank() {
            // The operation of rank 2 progresses by itself, and no thread waits for it.
            2 => {
                let work = one.begin().all_reduce(vec![1_u32; 10], ReduceOp::Sum).unwrap();
                std::thread::sleep(slow);
                sum(other).unwrap();
                assert_eq!(work.wait().unwrap(), [3; 10]);
            }
            // Rank 0 waits in both groups; rank 1 waits in one, until another of its threads calls the other.
            rank => std::thread::scope(|scope| {
                scope.spawn(|| sum(one).unwrap());
                scope.spawn(move || {
                    let _calls = other.usage().operations;
                    if rank == 1 {
                        std::thread::sleep(slow);
                    }
                    sum(other).unwrap();
                });
            }),
        }
        sum(&group).unwrap();
        group.leave().unwrap();
    });
}
