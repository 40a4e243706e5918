//! Ranks that leave early: no rank waits for them, and an operation that they leave undone is an error on all ranks.

use super::{work::block_on, *};
use crate::{Source, Tensor};

/// Runs this on every rank, which then leaves. Returns the failure, which is the same on all, and the time until all knew it.
fn failure_of(
    ranks: usize,
    act: impl Fn(&ProcessGroup, &ProcessGroup) -> Result<()> + Sync,
) -> (String, Duration) {
    let all = world(ranks, small, |group| {
        let part = group.new_group(&(0..ranks).collect::<Vec<_>>()).unwrap().unwrap();
        part.barrier().unwrap();
        let begun = Instant::now();
        let message = act(&group, &part).and_then(|()| group.leave()).unwrap_err().to_string();
        assert!(begun.elapsed() < Duration::from_secs(4), "{:?}: {message}", begun.elapsed());
        (message, begun.elapsed())
    });
    assert!(all.iter().all(|(message, _)| *message == all[0].0), "{all:?}");
    (all[0].0.clone(), all.iter().map(|(_, took)| *took).max().unwrap())
}

#[test]
fn a_rank_that_has_left_is_not_waited_for() {
    type Call = fn(&ProcessGroup, &ProcessGroup) -> Result<()>;
    let calls: [(Call, &str); 5] = [
        (|_, part| part.barrier(), "op 1 barrier() of group world/0 of ranks 0–2"),
        (
            |_, part| part.begin().all_reduce(vec![1_u8; 5], ReduceOp::Sum)?.wait().map(drop),
            "op 1 all_reduce(u8, sum)",
        ),
        (|group, _| group.recv(&mut [0_u8; 3], (0, 7)).map(drop), "recv(u8, from 0, tag 7)"),
        (|group, _| group.recv_object::<u8>((0, 7)).map(drop), "recv(u8, from 0, tag 7)"),
        (|_, part| part.split(Some(0), 0).map(drop), "op 1 split() of group world/0"),
    ];
    let mut fastest = Duration::MAX;
    for (late, (call, words)) in calls.into_iter().enumerate() {
        let (message, took) = failure_of(3, |group, part| {
            if group.rank() == 0 {
                return Ok(());
            }
            // This rank calls before rank 0 has left, or after.
            std::thread::sleep(Duration::from_millis(300 * (late as u64 % 2)));
            call(group, part)
        });
        assert!(message.starts_with("rank 0 has left, and rank ") && message.contains(words), "{message}");
        fastest = fastest.min(took);
    }
    // Ranks ask for the positions of others after one second if no rank leaves; here no rank waits that long.
    assert!(fastest < Duration::from_millis(900), "{fastest:?}");
}

#[test]
fn what_another_thread_will_send_is_waited_for_though_all_others_leave() {
    world(2, small, |group| {
        group.barrier().unwrap();
        if group.rank() == 1 {
            let mut got = [0_u8; 3];
            std::thread::scope(|scope| {
                let receives = scope.spawn(|| group.recv(&mut got, (Source::Any, 7)).unwrap());
                std::thread::sleep(Duration::from_millis(1500));
                group.send(&[5_u8; 3], (1, 7)).unwrap();
                assert_eq!(receives.join().unwrap(), 1);
            });
            assert_eq!(got, [5; 3]);
        }
        group.leave().unwrap();
    });
}

#[test]
fn a_message_for_a_receive_that_was_kept_comes_however_late_though_its_rank_leaves() {
    world(3, small, |group| {
        let part = group.new_group(&[0, 1, 2]).unwrap().unwrap();
        if group.rank() == 0 {
            let works =
                [&group, &part].map(|group| group.begin().recv(vec![0_u8; 3], (Source::Any, 7)).unwrap());
            let tensors = part.begin().recv_tensors((2, 8)).unwrap();
            // The group's handle goes first, or with the world.
            drop(part);
            group.leave().unwrap();
            assert_eq!(works.map(|work| work.wait().unwrap().0), [[1; 3], [2; 3]]);
            assert_eq!(tensors.wait().unwrap().0.len(), 2);
            return;
        }
        std::thread::sleep(Duration::from_millis(1500));
        if group.rank() == 1 {
            group.send(&[1_u8; 3], (0, 7)).unwrap();
        } else {
            part.send(&[2_u8; 3], (0, 7)).unwrap();
            let tensors = [3, 5000].map(|len| Tensor::from_vec(vec![7_u8; len], &[len]).unwrap());
            part.send_tensors(&tensors.each_ref().map(Tensor::view), (0, 8)).unwrap();
        }
        drop(part);
        group.leave().unwrap();
    });
}

#[test]
fn a_rank_that_leaves_keeps_nobody_from_going_on_with_others() {
    let slow = Duration::from_millis(300);
    world(3, small, |group| {
        let pair = group.new_group(&[1, 2]).unwrap();
        if let Some(pair) = pair {
            for round in 0..5_u8 {
                std::thread::sleep(slow);
                pair.all_reduce(&mut [1_u8; 40], ReduceOp::Sum).unwrap();
                let mut got = [0; 3];
                pair.send_recv((&[round; 3], &mut got), 1 - pair.rank(), Source::Any).unwrap();
                assert_eq!(got, [round; 3]);
            }
        }
        group.leave().unwrap();
    });
}

#[test]
fn receives_that_nobody_answers_keep_nobody_from_leaving_though_their_work_is_kept() {
    let begun = Instant::now();
    let ends = world(2, small, |group| {
        let other = 1 - group.rank();
        let part = group.new_group(&[0, 1]).unwrap().unwrap();
        let works = [
            group.begin().recv(vec![0_u8; 64], (other, 7)).unwrap(),
            part.begin().recv(vec![0_u8; 64], (Source::Any, 7)).unwrap(),
        ];
        let tensors = group.begin().recv_tensors((other, 8)).unwrap();
        group.leave().unwrap();
        let failed = works.map(|work| work.wait().unwrap_err());
        assert!(failed.iter().all(|error| matches!(error, Error::Failed(_))), "{failed:?}");
        tensors.wait().unwrap_err().to_string()
    });
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}: {ends:?}", begun.elapsed());
}

#[test]
fn a_rank_that_comes_late_may_leave_with_receives_that_nobody_answers() {
    world(2, small, |group| {
        let work = group.begin().recv(vec![0_u8; 64], (1 - group.rank(), 7)).unwrap();
        if group.rank() == 1 {
            std::thread::sleep(Duration::from_millis(1200));
        }
        group.leave().unwrap();
        assert!(matches!(work.wait(), Err(Error::Failed(_))));
    });
}

#[test]
fn a_rank_that_awaits_a_message_of_a_rank_that_has_left_is_told() {
    let begun = Instant::now();
    let messages = world(2, small, |group| {
        if group.rank() == 0 {
            return group.leave().unwrap_err().to_string();
        }
        // Another runtime's thread awaits the work, and no thread is blocked in this library.
        block_on(group.begin().recv(vec![0_u8; 64], (0, 7)).unwrap()).unwrap_err().to_string()
    });
    assert!(
        messages.iter().all(|it| it.starts_with("rank 0 has left, and rank 1 waits for it")),
        "{messages:?}"
    );
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[test]
fn an_extra_call_in_a_group_is_a_mismatch_at_its_end() {
    type Call = fn(&ProcessGroup) -> Result<()>;
    let calls: [(Call, &str); 6] = [
        (
            |part| part.broadcast_object((part.rank() == 0).then_some(1), 0).map(drop),
            "calls broadcast_object(root 0)",
        ),
        (|part| part.broadcast(&mut [1_u8; 3], 0), "calls broadcast(u8, root 0)"),
        (
            |part| part.broadcast_tensors((part.rank() == 0).then_some(&[][..]), 0).map(drop),
            "calls broadcast_tensors(root 0)",
        ),
        (|part| part.scatter((&[1_u8; 30], &mut [0; 10]), 0), "calls scatter(u8, root 0)"),
        (|part| part.scatter_object(Some(vec![1_u8; 3]), 0).map(drop), "calls scatter_object(root 0)"),
        (|part| part.reduce(&mut [1_u8; 3], ReduceOp::Sum, 1), "calls reduce(u8, sum, root 1)"),
    ];
    for (call, words) in calls {
        for drops in [false, true] {
            let messages = world(3, small, |group| {
                let part = group.new_group(&[0, 1, 2]).unwrap().unwrap();
                let mut done = call(&part);
                if part.rank() == 0 {
                    done = done.and_then(|()| call(&part));
                }
                // The group is dropped with the world, or before it.
                let held = (!drops).then_some(part);
                let messages = done.and_then(|()| group.leave()).unwrap_err().to_string();
                drop(held);
                messages
            });
            assert!(messages.iter().all(|it| *it == messages[0]), "{messages:?}");
            let wanted = format!("rank 0 {words}");
            // A rank that waits for others gets the failure that they have left.
            let waits = messages[0].contains("has left, and rank 0 waits for it in op 1 ");
            assert!(
                messages[0].contains(&wanted) || messages[0].contains("rank 0 has begun") || waits,
                "{}",
                messages[0]
            );
        }
    }
}

#[test]
fn a_message_that_no_rank_receives_is_reported_to_all_when_its_group_ends() {
    for of_world in [true, false] {
        let (message, _) = failure_of(3, |group, part| {
            let through = if of_world { group } else { part };
            if group.rank() == 2 { through.send(&[1_u8; 3], (1, 5)) } else { Ok(()) }
        });
        let wanted = "message 0 from rank 2 to rank 1, tag 5: rank 2 sends 3 u8 elements, rank 1 receives nothing, and leaves";
        assert_eq!(message, wanted);
    }
}

/// Otherwise the drop of the group reports the failure once more, as one that the program does not know.
#[test]
fn a_failure_is_known_whatever_call_returns_it() {
    let calls: [fn(&ProcessGroup) -> Option<Error>; 4] = [
        |group| group.buffer::<u8>(8).err(),
        |group| Buffer::<u8>::of(group, Memory::map(8).unwrap()).err(),
        |group| group.split(Some(0), 0).err(),
        |group| group.barrier().err(),
    ];
    for call in calls {
        world(2, small, |group| {
            let runtime = &group.handle.shared.runtime;
            if group.rank() == 0 {
                drop(runtime.fail(Failure::Aborted { rank: 0, why: "a test".into() }));
            }
            while !runtime.monitor.latch.raised() {
                std::thread::yield_now();
            }
            assert!(!runtime.knows());
            assert!(matches!(call(&group), Some(Error::Failed(Failure::Aborted { .. }))));
            assert!(runtime.knows());
        });
    }
}
