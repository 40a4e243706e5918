//! The shutdown: no message is lost when an endpoint closes, and no rank puts to one that has closed.

use unisono_schedule::{Job, Step, algorithm};

use super::*;
use crate::sim::{self, Fabric};

/// Fabrics on which any put may overtake any other, and on which the puts of an endpoint are lost when it closes.
fn fabric(seed: u64) -> Fabric {
    let jitter = Duration::from_micros([10, 300][seed as usize % 2]);
    let max_inject = [64, 0][seed as usize / 2 % 2];
    Fabric::new(sim::Config { seed, jitter, max_inject, ..sim::Config::default() })
}

/// Runs this on ranks, which then leave; no message may be lost.
fn parts(ranks: usize, fabric: &Fabric, tweak: impl Fn(&mut Config), each: impl Fn(&ProcessGroup) + Sync) {
    world_over(
        ranks,
        || Box::new(fabric.open()),
        tweak,
        |group| {
            each(&group);
            group.leave().unwrap();
        },
    );
    assert_eq!(fabric.lost(), 0, "puts lost");
}

#[test]
fn no_message_is_lost_at_shutdown() {
    for algorithm in ["star", "direct", "dissemination"] {
        for (ranks, seed) in [(2, 0), (2, 1), (3, 2), (4, 3), (5, 4), (6, 5)] {
            let tweak = |config: &mut Config| {
                small(config);
                config.algorithm = Some(format!("barrier:{algorithm}"));
            };
            parts(ranks, &fabric(seed), tweak, |group| {
                group.all_reduce(&mut [1_u32; 10], ReduceOp::Sum).unwrap();
            });
        }
    }
}

/// Credits and the messages of a shutdown are control messages, which no operation waits for.
#[test]
fn control_messages_are_not_lost_either() {
    for seed in 10..16 {
        parts(3, &fabric(seed), small, |group| {
            let pair = group.new_group(&[0, 1]).unwrap();
            for root in 0..3 {
                // There are more broadcasts than slots.
                for _ in 0..20 {
                    group.broadcast(&mut [seed; 3], root).unwrap();
                }
            }
            for group in pair.iter() {
                group.broadcast(&mut [seed; 3], 1).unwrap();
            }
        });
    }
}

/// When ranks leave, there is credit for one message, and they give no more.
#[test]
fn no_barrier_sends_twice_to_the_same_rank() {
    let mut barriers = 0;
    for algorithm in algorithm::ALGORITHMS {
        for ranks in 1..=33 {
            for rank in 0..ranks {
                let Some(mut schedule) = algorithm.make(&Job::new(Collective::Barrier, rank, ranks, 0))
                else {
                    continue;
                };
                barriers += 1;
                assert!(!schedule.direct(), "{} asks for leave to write", algorithm.name);
                let mut to = Vec::new();
                for lane in 0..schedule.lanes() {
                    while let Some(step) = schedule.next(lane) {
                        if let Step::Put { to: rank, .. } = step {
                            assert!(
                                !to.contains(&rank),
                                "{}, {ranks} ranks: twice to {rank}",
                                algorithm.name
                            );
                            to.push(rank);
                        }
                    }
                }
            }
        }
    }
    assert!(barriers >= 3 * 33 * 34 / 2, "{barriers} schedules");
}

#[test]
fn a_rank_that_panics_with_something_under_way_is_heard_of_at_once() {
    for waits in [false, true] {
        let begun = Instant::now();
        world(
            2,
            |_| {},
            |group| {
                if group.rank() == 0 {
                    let died = group.recv_vec::<u8>(1).map(drop);
                    assert!(matches!(died, Err(Error::Failed(Failure::Died { rank: 1, .. }))), "{died:?}");
                    return;
                }
                let work = group.begin().recv(vec![0_u8; 5], (0, 7)).unwrap();
                let unwinds = move || {
                    let _group = group;
                    panic!("as this test wants");
                };
                let caught = std::panic::AssertUnwindSafe(unwinds);
                if waits {
                    // Another thread drives.
                    let waiter = std::thread::spawn(move || work.wait().map(drop));
                    std::thread::sleep(Duration::from_millis(50));
                    assert!(std::panic::catch_unwind(caught).is_err());
                    assert!(waiter.join().unwrap().is_err());
                } else {
                    assert!(std::panic::catch_unwind(caught).is_err());
                }
            },
        );
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    }
}
