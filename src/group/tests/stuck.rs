//! Programs in which ranks wait for each other in ways that must nevertheless end.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{messages::worlds, *};
use crate::{Source, Tensor};

/// Enough elements that they are sent after a clear to send.
fn large(rank: Rank) -> Vec<u64> {
    vec![rank as u64; 5000]
}

/// Tensors of `bytes` bytes in all.
fn tensors(rank: Rank, bytes: usize) -> Vec<Tensor> {
    let each = 40 << 10;
    (0..bytes.div_ceil(each)).map(|_| Tensor::from_vec(vec![rank as u8; each], &[each]).unwrap()).collect()
}

#[test]
fn receives_that_were_dropped_keep_nobody_from_leaving() {
    let begun = Instant::now();
    worlds(3, |group| {
        let part = group.new_group(&[0, 2]).unwrap();
        for group in part.iter().chain([&group]) {
            for from in [Source::Any, Source::Rank(1)] {
                drop(group.begin().recv(vec![0_u8; 64], (from, 7)).unwrap());
                drop(group.begin().recv_tensors((from, 8)).unwrap());
                drop(group.begin().recv_object::<String>((from, 9)).unwrap());
            }
        }
        drop(part);
        group.leave().unwrap();
    });
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
}

/// The peer has left the group before, without a call in it.
#[test]
fn a_receive_that_was_dropped_hurts_nobody_where_the_other_has_left() {
    worlds(2, |group| {
        let other = 1 - group.rank();
        let part = group.new_group(&[0, 1]).unwrap().unwrap();
        if group.rank() == 0 {
            std::thread::sleep(Duration::from_millis(100));
            drop(part.begin().recv(vec![0_u8; 64], (other, 7)).unwrap());
        }
        drop(part);
        // The world still works, and so does another group.
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(20));
            group.barrier().unwrap();
        }
        group.new_group(&[0, 1]).unwrap().unwrap().barrier().unwrap();
        group.leave().unwrap();
    });
}

/// The endpoint closes before others learn the failure. Meanwhile they may ask for the position of this rank, for the text of the same
/// failure.
#[test]
fn a_rank_that_has_closed_its_endpoint_still_says_where_it_was() {
    let impatient = |config: &mut Config| {
        small(config);
        config.timeout = Duration::from_millis(300);
    };
    world(2, impatient, |group| {
        group.barrier().unwrap();
        if group.rank() == 0 {
            let failure = group.barrier().unwrap_err().to_string();
            assert!(failure.contains("did not finish within"), "{failure}");
            let position = group.handle.shared.runtime.position();
            assert_eq!(position.groups[0].begun, 2, "{position:?}");
            assert_eq!(position.groups[0].latest[0].call, "barrier()", "{position:?}");
        } else {
            hear(&group).unwrap_err();
        }
    });
}

/// The timeout of an operation begins when it is the next of its group.
#[test]
fn what_waits_behind_others_has_its_time_yet() {
    let impatient = |config: &mut Config| {
        small(config);
        config.timeout = Duration::from_secs(1);
    };
    world(2, impatient, |group| {
        if group.rank() == 0 {
            let all: Vec<_> =
                (0..6).map(|_| group.begin().all_reduce(vec![1_u32; 10], ReduceOp::Sum).unwrap()).collect();
            for work in all {
                assert_eq!(work.wait().unwrap(), [2; 10]);
            }
        } else {
            for _ in 0..6 {
                std::thread::sleep(Duration::from_millis(250));
                group.all_reduce(&mut [1_u32; 10], ReduceOp::Sum).unwrap();
            }
        }
        group.leave().unwrap();
    });
}

/// A thread that catches the panic continues with the world, and may make as many groups as before.
#[test]
fn a_group_is_left_by_a_thread_that_panics() {
    worlds(2, |group| {
        for _ in 0..300 {
            let part = group.new_group(&[0, 1]).unwrap().unwrap();
            part.barrier().unwrap();
            let thread = std::thread::spawn(move || {
                let _held = part;
                std::panic::resume_unwind(Box::new("as this test wants"));
            });
            assert!(thread.join().is_err());
        }
        group.leave().unwrap();
    });
}

/// More messages than there are slots, and a large one in more pieces than may be in flight.
#[test]
fn receives_that_were_dropped_get_what_comes_for_them() {
    worlds(2, |group| {
        let other = 1 - group.rank();
        if group.rank() == 0 {
            (0..100).for_each(|tag| drop(group.begin().recv(vec![0_u8; 8], (other, tag)).unwrap()));
            drop(group.begin().recv_vec::<u64>((other, 100)).unwrap());
        } else {
            std::thread::sleep(Duration::from_millis(100));
            (0..100).for_each(|tag| group.send(&[0_u8; 8], (other, tag)).unwrap());
            group.send(&large(1), (other, 100)).unwrap();
        }
        group.leave().unwrap();
    });
}

#[test]
fn receives_that_were_dropped_fail_nobody_at_their_deadline() {
    let impatient = |config: &mut Config| {
        small(config);
        config.timeout = Duration::from_millis(1500);
    };
    world(2, impatient, |group| {
        let other = 1 - group.rank();
        let part = group.new_group(&[0, 1]).unwrap().unwrap();
        let _later = [&group, &part].map(|group| {
            drop(group.begin().recv(vec![0_u8; 64], (other, 7)).unwrap());
            drop(group.begin().recv_tensors((Source::Any, 8)).unwrap());
        });
        drop(part);
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(100));
            group.barrier().unwrap();
        }
        // Other messages are still received.
        group.send(&large(other), (other, 1)).unwrap();
        assert_eq!(group.recv_vec::<u64>((other, 1)).unwrap().0, large(group.rank()));
        group.leave().unwrap();
    });
}

/// The ranks send more bytes than the limit of unexpected messages.
#[test]
fn ranks_may_both_send_more_first_than_is_kept_aside() {
    worlds(2, |group| {
        let other = 1 - group.rank();
        // Three lists exceed the limit.
        let mine = tensors(group.rank(), 512 << 10);
        let views: Vec<_> = mine.iter().map(Tensor::view).collect();
        // Small tensors stand between the large ones.
        (0..3).for_each(|_| group.send_tensors(&views, (other, 4)).unwrap());
        for _ in 0..3 {
            let (theirs, _) = group.recv_tensors((other, 4)).unwrap();
            let wanted = tensors(other, 512 << 10);
            assert!(theirs.iter().zip(&wanted).all(|(got, wanted)| got.bytes() == wanted.bytes()));
            assert_eq!(theirs.len(), wanted.len());
        }
        group.leave().unwrap();
    });
}

/// In this chain each rank but the last sends a large message before the one that another rank waits for.
#[test]
fn a_rank_that_waits_in_a_receive_takes_in_what_others_must_send_before() {
    worlds(3, |group| {
        match group.rank() {
            0 => {
                group.send(&large(0), 1).unwrap();
                group.send(&large(0), 2).unwrap();
            }
            1 => {
                assert_eq!(group.recv_vec::<u64>(2).unwrap().0, large(2));
                assert_eq!(group.recv_vec::<u64>(0).unwrap().0, large(0));
            }
            _ => {
                assert_eq!(group.recv_vec::<u64>(0).unwrap().0, large(0));
                group.send(&large(2), 1).unwrap();
            }
        }
        group.leave().unwrap();
    });
}

/// A rank sends a message before the barrier, and the other receives it after that, while other threads make one fast collective after the
/// other.
#[test]
fn a_rank_that_waits_beside_fast_collectives_takes_in_what_comes() {
    worlds(2, |group| {
        let twin = group.new_group(&[0, 1]).unwrap().unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut all = [0_u8];
                while all[0] == 0 {
                    all = [done.load(Ordering::Relaxed).into()];
                    twin.all_reduce(&mut all, ReduceOp::Min).unwrap();
                }
            });
            for _ in 0..3 {
                if group.rank() == 0 {
                    group.send(&large(0), (1, 4)).unwrap();
                    group.barrier().unwrap();
                } else {
                    group.barrier().unwrap();
                    assert_eq!(group.recv_vec::<u64>((0, 4)).unwrap().0, large(0));
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        group.leave().unwrap();
    });
}

/// The header of a list of tensors has arrived when its receive begins, and the rank leaves the group at once.
#[test]
fn a_group_that_is_left_first_gets_what_was_begun() {
    worlds(2, |group| {
        for _ in 0..3 {
            let part = group.new_group(&[0, 1]).unwrap().unwrap();
            if group.rank() == 0 {
                let work = part.begin().send_tensors(tensors(0, 400 << 10), (1, 4)).unwrap();
                std::thread::sleep(Duration::from_millis(50));
                group.barrier().unwrap();
                drop(part);
                work.wait().unwrap();
            } else {
                group.barrier().unwrap();
                let shared = Arc::clone(&group.handle.shared);
                let (held, is_held) = std::sync::mpsc::channel();
                let holder = std::thread::spawn(move || {
                    shared.runtime.with(|_| {
                        held.send(()).unwrap();
                        std::thread::sleep(Duration::from_millis(100));
                    })
                });
                is_held.recv().unwrap();
                let work = part.begin().recv_tensors((0, 4)).unwrap();
                drop(part);
                let (theirs, _) = work.wait().unwrap();
                assert_eq!(theirs.len(), 10);
                holder.join().unwrap().unwrap();
            }
            group.barrier().unwrap();
        }
        group.leave().unwrap();
    });
}

#[test]
fn a_wait_with_a_limit_ends_in_time() {
    world(1, small, |group| {
        let mut work = group.begin().recv(vec![0_u8; 8], (0, 1)).unwrap();
        let begun = Instant::now();
        for _ in 0..100 {
            work = work.wait_timeout(Duration::from_millis(1)).unwrap().unwrap_err();
        }
        // The driver looks at the failure latch at least every 20 ms.
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        group.send(&[3_u8; 8], (0, 1)).unwrap();
        assert_eq!(work.wait().unwrap(), (vec![3; 8], 0));
    });
}
