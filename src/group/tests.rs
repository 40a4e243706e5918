//! Groups of threads over the in-process transport and a real store: the calls, their arguments, and how a
//! group ends.
#![allow(clippy::cast_possible_truncation, reason = "small numbers, and integers wrap as the oracle does")]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use half::{bf16, f16};
use unisono_engine::Bounds;
use unisono_transport::{Transport, inproc::Hub};

use super::*;
use crate::{ReduceOp, rendezvous::Store};

mod buckets;
mod create;
mod crossed;
mod differ;
mod disagree;
mod elsewhere;
mod erased;
mod follow;
mod foreign;
mod groups;
mod in_place;
mod later;
mod leaving;
mod mapped;
mod memfd;
mod messages;
mod objects;
mod one_shot;
mod one_shot_differ;
mod operands;
mod order;
mod p2p;
mod reproducible;
mod shutdown;
mod stuck;
mod tensors;
mod tuned;
mod uneven;
mod wakers;
mod work;

/// To begin with: four ranks, which are threads of this process, add their numbers. Most tests of groups are made like this one.
#[test]
fn four_ranks_add() {
    let sums = world(
        4,
        |_config| {},
        |group| {
            let mut data = [group.rank(), 1];
            group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
            data
        },
    );
    assert_eq!(sums, [[6, 4]; 4]);
}

impl ProcessGroup {
    /// Starts to keep the steps of this process's operations, and returns those that were kept so far.
    fn keep_trace(&self) -> Vec<unisono_engine::Traced> {
        self.handle.shared.runtime.with(|engine| engine.keep_trace()).unwrap()
    }
}

/// A reduction, and its result for the numbers of all ranks.
type Oracle = (ReduceOp, fn(&[i32]) -> i32);

/// Limits that are low enough for tests to reach them.
const BOUNDS: Bounds = Bounds { comms: 1 << 10, unexpected_bytes: 1 << 20, fresh_piece: 6, listed: 3 };

/// Runs `each` on every rank's group, in threads.
pub(super) fn world<R: Send>(
    ranks: usize,
    tweak: impl Fn(&mut Config),
    each: impl Fn(ProcessGroup) -> R + Sync,
) -> Vec<R> {
    let hub = Hub::new();
    world_over(ranks, || Box::new(hub.open()), tweak, each)
}

/// Waits for the failure that another rank is about to find, without a call: a root may return before it learns that the others call
/// something else.
fn hear(group: &ProcessGroup) -> Result<()> {
    for _ in 0..20_000 {
        group.choice(Collective::Barrier, 0, Dtype::U8)?;
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// The same over any transport.
fn world_over<R: Send>(
    ranks: usize,
    open: impl Fn() -> Box<dyn Transport>,
    tweak: impl Fn(&mut Config),
    each: impl Fn(ProcessGroup) -> R + Sync,
) -> Vec<R> {
    let results: Vec<std::sync::Mutex<Option<R>>> = (0..ranks).map(|_| std::sync::Mutex::default()).collect();
    in_threads(ranks, &open, &tweak, &|rank, group| {
        let result = each(group);
        *results[rank].lock().unwrap() = Some(result);
    });
    results.into_iter().map(|result| result.into_inner().unwrap().unwrap()).collect()
}

/// The same without results. It is not generic, because every test has a different closure, and this code takes long to compile.
fn in_threads(
    ranks: usize,
    open: &dyn Fn() -> Box<dyn Transport>,
    tweak: &dyn Fn(&mut Config),
    each: &(dyn Fn(usize, ProcessGroup) + Sync),
) {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut listener = Some(listener);
    // A rank that fails while another still joins ends the other's join.
    let joined = std::sync::Barrier::new(ranks);
    let joined = &joined;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks)
            .map(|rank| {
                let mut config = Config { rank, ranks, token: "test".into(), ..Config::default() };
                config.store =
                    Some(crate::config::StoreAddress::parse(&format!("tcp://127.0.0.1:{port}")).unwrap());
                tweak(&mut config);
                let transport = open();
                let listener = listener.take();
                scope.spawn(move || {
                    let deadline = Instant::now() + Duration::from_secs(20);
                    let store = match listener {
                        Some(listener) => Store::host_on(listener, &config.member(), deadline),
                        None => Store::join("127.0.0.1", port, &config.member(), deadline),
                    };
                    let join = |store| ProcessGroup::bounded(config, transport, Some(store), BOUNDS);
                    let group = store.and_then(join);
                    joined.wait();
                    each(rank, group.unwrap());
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

pub(super) fn small(config: &mut Config) {
    (config.chunk, config.lanes) = (256, 3);
}

/// Every operation that fits the type, in place and out of place, against results computed by hand.
fn operations<T: Element + PartialEq + fmt::Debug>(group: &ProcessGroup, of: fn(i32) -> T, integer: bool) {
    let (rank, ranks) = (group.rank(), group.size());
    let value = |rank: usize, i: usize| i32::try_from((rank + i) % 3 + 1).unwrap();
    let mut ops: Vec<Oracle> = vec![
        (ReduceOp::Sum, |all| all.iter().sum()),
        (ReduceOp::Product, |all| all.iter().product()),
        (ReduceOp::Min, |all| *all.iter().min().unwrap()),
        (ReduceOp::Max, |all| *all.iter().max().unwrap()),
        (ReduceOp::PreMulSum(3.0), |all| all.iter().map(|x| 3 * x).sum()),
    ];
    if integer {
        ops.push((ReduceOp::BitAnd, |all| all.iter().fold(-1, |a, b| a & b)));
        ops.push((ReduceOp::BitOr, |all| all.iter().fold(0, |a, b| a | b)));
        ops.push((ReduceOp::BitXor, |all| all.iter().fold(0, |a, b| a ^ b)));
        ops.push((ReduceOp::Avg, |all| all.iter().sum::<i32>() / i32::try_from(all.len()).unwrap()));
    }
    for (op, oracle) in ops {
        for count in [0, 1, 5, 1000] {
            let reduced = |i: usize| of(oracle(&(0..ranks).map(|rank| value(rank, i)).collect::<Vec<_>>()));
            let input: Vec<T> = (0..count).map(|i| of(value(rank, i))).collect();
            let wanted: Vec<T> = (0..count).map(reduced).collect();
            let mut output = vec![of(0); count];
            group.all_reduce((&input, &mut output), op).unwrap();
            assert_eq!(output, wanted, "{op} of {}", T::DTYPE);
            let mut data = input;
            group.all_reduce(&mut data, op).unwrap();
            assert_eq!(data, wanted, "{op} of {} in place", T::DTYPE);

            let input: Vec<T> = (0..ranks * count).map(|i| of(value(rank, i))).collect();
            let wanted: Vec<T> = (0..count).map(|i| reduced(rank * count + i)).collect();
            let mut output = vec![of(0); count];
            group.reduce_scatter((&input, &mut output), op).unwrap();
            assert_eq!(output, wanted, "reduce_scatter {op} of {}", T::DTYPE);
            let mut data = input;
            assert_eq!(group.reduce_scatter(&mut data, op).unwrap(), wanted);
        }
    }
}

/// Every operation of every type.
fn of_every_type(group: &ProcessGroup) {
    operations::<f16>(group, |x| f16::from_f32(x as f32), false);
    operations::<bf16>(group, |x| bf16::from_f32(x as f32), false);
    operations::<f32>(group, |x| x as f32, false);
    operations::<f64>(group, f64::from, false);
    operations::<i8>(group, |x| x as i8, true);
    operations::<i16>(group, |x| x as i16, true);
    operations::<i32>(group, |x| x, true);
    operations::<i64>(group, i64::from, true);
    operations::<u8>(group, |x| x as u8, true);
    operations::<u16>(group, |x| x as u16, true);
    operations::<u32>(group, |x| x as u32, true);
    operations::<u64>(group, |x| x as u64, true);
}

#[test]
fn every_type_and_operation() {
    for ranks in [1, 3, 4] {
        world(ranks, small, |group| of_every_type(&group));
    }
}

#[test]
fn averages_gathers_broadcasts_and_buffers() {
    world(3, small, |group| {
        let rank = group.rank();
        let mut data = group.buffer::<f32>(500).unwrap();
        data.iter_mut().enumerate().for_each(|(i, x)| *x = (rank * i) as f32);
        group.all_reduce(&mut data[10..], ReduceOp::Avg).unwrap();
        assert!(data.iter().enumerate().skip(10).all(|(i, &x)| x == i as f32));
        assert_eq!(data[9], (rank * 9) as f32, "outside of the slice nothing changes");

        let mut all = vec![0_u16; 3 * 77];
        group.all_gather((&[rank as u16; 77], &mut all)).unwrap();
        assert!(all.chunks(77).enumerate().all(|(from, block)| block.iter().all(|&x| x == from as u16)));
        all.fill(9);
        all[rank * 77..][..77].fill(40 + rank as u16);
        group.all_gather(&mut all).unwrap();
        assert!(all.chunks(77).enumerate().all(|(from, block)| block.iter().all(|&x| x == 40 + from as u16)));

        for root in 0..3 {
            let mut data = vec![if rank == root { 7_i64 } else { 0 }; 333];
            group.broadcast(&mut data, root).unwrap();
            assert_eq!(data, [7; 333]);
        }
        group.barrier().unwrap();
    });
}

#[test]
fn chunks_may_be_smaller_than_eager_messages() {
    for (ranks, reproducible) in [(2, false), (4, false), (9, false), (9, true)] {
        let tweak = |config: &mut Config| {
            config.chunk = 64;
            if reproducible {
                config.reduction = Reduction::Reproducible;
            }
        };
        world(ranks, tweak, |group| {
            let rank = group.rank();
            for len in [1, 60, 100, 128, 129, 200, 400, 2500] {
                let root = len % ranks;
                let mut data = vec![if rank == root { 7_u8 } else { 0 }; len];
                group.broadcast(&mut data, root).unwrap();
                assert!(data.iter().all(|&it| it == 7), "broadcast of {len}");
                let mut all = vec![0; if rank == root { ranks * len } else { 0 }];
                group.gather((&vec![rank as u8; len], &mut all), root).unwrap();
                assert!(
                    all.iter().enumerate().all(|(at, &it)| usize::from(it) == at / len),
                    "gather of {len}"
                );
                let mut block = vec![99; len];
                group.scatter((&all, &mut block), root).unwrap();
                assert!(block.iter().all(|&it| usize::from(it) == rank), "scatter of {len}");
                let mut all = vec![0; ranks * len];
                group.all_to_all((&vec![rank as u8; ranks * len], &mut all)).unwrap();
                assert!(
                    all.iter().enumerate().all(|(at, &it)| usize::from(it) == at / len),
                    "all_to_all of {len}"
                );
                let mut data = vec![1_u8; len];
                group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
                assert!(data.iter().all(|&it| usize::from(it) == ranks), "all_reduce of {len}");
            }
        });
    }
}

#[test]
fn bad_arguments_are_errors_and_the_group_goes_on() {
    world(2, small, |group| {
        let mut ten = [0.0_f32; 10];
        let errors = [
            group.all_reduce(&mut ten, ReduceOp::BitOr).unwrap_err(),
            group.all_reduce((&[1.0_f32; 9], &mut ten), ReduceOp::Sum).unwrap_err(),
            group.reduce_scatter((&[1.0_f32; 19], &mut ten), ReduceOp::Sum).unwrap_err(),
            group.reduce_scatter(&mut ten[..9], ReduceOp::Sum).unwrap_err(),
            group.all_gather((&[1.0_f32; 6], &mut ten)).unwrap_err(),
            group.broadcast(&mut ten, 2).unwrap_err(),
            group.buffer::<u64>(usize::MAX / 4).unwrap_err(),
        ];
        assert!(errors.iter().all(|error| matches!(error, Error::Argument { .. })), "{errors:?}");
        group.all_reduce(&mut ten, ReduceOp::Sum).unwrap();
    });
}

#[test]
fn a_mismatch_has_the_same_words_on_every_rank() {
    type Call = fn(&ProcessGroup) -> Result<()>;
    let odd: [(&str, Call); 5] = [
        ("has 9 elements", |group| group.all_reduce(&mut [0.0_f32; 9], ReduceOp::Sum)),
        ("all_reduce(f64, sum)", |group| group.all_reduce(&mut [0.0_f64; 10], ReduceOp::Sum)),
        ("all_reduce(f32, max)", |group| group.all_reduce(&mut [0.0_f32; 10], ReduceOp::Max)),
        ("barrier()", |group| group.barrier()),
        ("has 1000000 elements", |group| group.all_reduce(&mut vec![0.0_f32; 1_000_000], ReduceOp::Sum)),
    ];
    for (what, odd) in odd {
        let failures = world(
            4,
            |_| {},
            |group| {
                group.barrier().unwrap();
                let mut data = [1.0_f32; 10];
                let result =
                    if group.rank() == 2 { odd(&group) } else { group.all_reduce(&mut data, ReduceOp::Sum) };
                let Err(Error::Failed(failure @ Failure::Mismatch { op: 1, .. })) = result else {
                    panic!("rank {}: {result:?}", group.rank());
                };
                // Every later call fails in the same way.
                assert!(matches!(group.barrier(), Err(Error::Failed(again)) if again == failure));
                failure.to_string()
            },
        );
        assert!(
            failures.iter().all(|failure| *failure == failures[0] && failure.contains(what)),
            "{failures:?}"
        );
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_at_the_deadline() {
    let failures = world(
        3,
        |config| config.timeout = Duration::from_millis(300),
        |group| {
            group.barrier().unwrap();
            if group.rank() == 1 {
                std::thread::sleep(Duration::from_millis(900));
                return None;
            }
            match group.all_reduce(&mut [1.0_f32; 100_000], ReduceOp::Sum) {
                Err(Error::Failed(failure @ Failure::Deadline { op: 1, .. })) => Some(failure.to_string()),
                other => panic!("{other:?}"),
            }
        },
    );
    let messages: Vec<_> = failures.into_iter().flatten().collect();
    assert!(
        messages.len() == 2 && messages[0] == messages[1] && messages[0].contains("rank 1 has not entered"),
        "{messages:?}"
    );
}

#[test]
fn an_abort_ends_the_call_of_every_rank() {
    world(
        3,
        |_| {},
        |group| {
            group.barrier().unwrap();
            if group.rank() == 0 {
                std::thread::sleep(Duration::from_millis(100));
                group.abort("the loss is NaN");
            }
            let begun = Instant::now();
            let error = group.all_reduce(&mut [1.0_f32; 10], ReduceOp::Sum).unwrap_err();
            assert!(
                matches!(&error, Error::Failed(Failure::Aborted { rank: 0, why }) if why == "the loss is NaN")
            );
            assert!(begun.elapsed() < Duration::from_secs(2));
        },
    );
}

#[test]
fn an_abort_ends_a_call_of_another_thread() {
    world(
        2,
        |_| {},
        |group| {
            group.barrier().unwrap();
            if group.rank() == 1 {
                // This rank calls only after the other rank has given up.
                std::thread::sleep(Duration::from_millis(400));
                assert!(group.barrier().is_err());
                return;
            }
            let begun = Instant::now();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(50));
                    group.abort("somebody pressed the button");
                });
                let error = group.barrier().unwrap_err();
                assert!(matches!(&error, Error::Failed(Failure::Aborted { rank: 0, .. })), "{error}");
            });
            assert!(begun.elapsed() < Duration::from_millis(350), "{:?}", begun.elapsed());
        },
    );
}

#[test]
fn a_late_message_for_a_rank_that_has_gone_on_is_noticed() {
    let errors = world(
        8,
        |config| config.timeout = Duration::from_secs(20),
        |group| {
            let late = group.rank() == 3;
            if late {
                // By then the root that this rank names has ended the call, and waits for others in the next one.
                std::thread::sleep(Duration::from_millis(100));
            }
            let group = group.with_algorithms("reduce:direct;barrier:dissemination").unwrap();
            let root = if late { 0 } else { 5 };
            let done = group.reduce(&mut [1_u64], ReduceOp::Sum, root);
            done.and_then(|()| group.barrier()).unwrap_err().to_string()
        },
    );
    let one = &errors[0];
    assert!(one.contains("rank 3") && one.contains("reduce(u64, sum, root 0)"), "{one}");
    assert!(errors.iter().all(|it| it == one), "{errors:?}");
}

#[test]
fn different_roots_are_noticed_when_the_ranks_part() {
    let errors = world(
        2,
        |_| {},
        |group| {
            // Both only send. The next call, or leaving, finds the message that no rank took.
            let root = group.rank();
            group.broadcast(&mut [root as u8; 10], root).and_then(|()| group.leave()).unwrap_err().to_string()
        },
    );
    assert!(errors[0] == errors[1] && errors[0].contains("root"), "{errors:?}");
}

#[test]
fn ranks_that_disagree_about_one_long_write_find_out() {
    const LONG: usize = 1 << 20;
    type Call = fn(&ProcessGroup) -> Result<()>;
    let long: [(Call, Call); 5] = [
        (|it| it.broadcast(&mut vec![1_u8; LONG], 0), |it| it.broadcast(&mut [1_u8; 8], 0)),
        (|it| it.broadcast(&mut vec![1_u8; LONG], 0), |it| it.broadcast(&mut vec![1_u8; LONG], 1)),
        (
            |it| it.scatter((&vec![1_u8; 2 * LONG], &mut vec![0; LONG]), 0),
            |it| it.scatter((&[], &mut [0_u8; 8]), 0),
        ),
        (|it| it.gather((&[1_u8; 8], &mut [0; 16]), 0), |it| it.gather((&vec![1_u8; LONG], &mut []), 0)),
        (|it| it.all_gather((&vec![1_u8; LONG], &mut vec![0; 2 * LONG])), |it| it.barrier()),
    ];
    for (number, (one, other)) in long.into_iter().enumerate() {
        let messages = world(
            2,
            |_| {},
            |group| {
                // Windows of both kinds are open, so that no message has to wait for one.
                group.all_reduce(&mut vec![1.0_f32; LONG], ReduceOp::Sum).unwrap();
                group.barrier().unwrap();
                let begun = Instant::now();
                let result = if group.rank() == 0 { one(&group) } else { other(&group) };
                let Err(Error::Failed(failure @ Failure::Mismatch { op: 2, .. })) = result else {
                    panic!("case {number}, rank {}: {result:?}", group.rank());
                };
                assert!(begun.elapsed() < Duration::from_secs(5), "long before the deadline");
                failure.to_string()
            },
        );
        assert_eq!(messages[0], messages[1]);
    }
}

#[test]
fn leaving_early_is_a_mismatch_for_the_others() {
    let messages = world(
        2,
        |_| {},
        |group| {
            group.barrier().unwrap();
            (group.rank() == 0)
                .then(|| group.all_reduce(&mut [1.0_f32; 10], ReduceOp::Sum).unwrap_err().to_string())
        },
    );
    let messages = messages.into_iter().flatten().next().unwrap();
    assert!(
        messages.contains("rank 0 calls all_reduce(f32, sum)")
            && messages.contains("rank 1 has left before it"),
        "{messages}"
    );
}

#[test]
fn impossible_settings_are_refused_at_once() {
    let alone = |tweak: fn(&mut Config)| {
        let mut config = Config::default();
        tweak(&mut config);
        ProcessGroup::with(config, Box::new(Hub::new().open()), None).map(|_| ()).unwrap_err().to_string()
    };
    assert!(alone(|config| config.algorithm = Some("rign".into())).contains("UNISONO_ALGORITHM=rign"));
    assert!(alone(|config| (config.rank, config.ranks) = (1, 1)).contains("world size"));
}

#[test]
fn a_handle_may_have_its_own_pipeline() {
    world(3, small, |group| {
        let messages = |chunk_bytes, lanes| {
            let group = group
                .with_algorithms("ring")
                .and_then(|it| it.with_pipeline(Pipeline::Messages { chunk_bytes, lanes }))
                .unwrap();
            let mut data = vec![1_i32; 300];
            group.keep_trace();
            group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
            assert_eq!(data, [3; 300]);
            let trace = group.keep_trace();
            let lanes: std::collections::BTreeSet<_> = trace.iter().map(|traced| traced.lane).collect();
            (trace.len(), lanes.len())
        };
        let (whole, cut) = (messages(256, 2), messages(64, 3));
        assert!(whole.1 == 2 && cut.1 == 3 && cut.0 > 2 * whole.0, "{whole:?} {cut:?}");
        for (chunk, lanes, words) in [
            (0, 1, "chunk_bytes is 0; with this configuration it must be from 1 to 256"),
            (257, 1, "chunk_bytes is 257"),
            (64, 0, "lanes is 0"),
            (64, 4, "lanes is 4; with this configuration it must be from 1 to 3"),
        ] {
            let error = group.with_pipeline(Pipeline::Messages { chunk_bytes: chunk, lanes }).unwrap_err();
            assert!(matches!(&error, Error::Argument { call: "with_pipeline", .. }), "{error:?}");
            assert!(error.to_string().contains(words), "{error}");
        }
    });
}

#[test]
fn different_settings_are_refused_at_join() {
    let hub = Hub::new();
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let join = |rank: usize, listener: Option<std::net::TcpListener>| {
        let chunk = if rank == 0 { 65536 } else { 32768 };
        let config = Config { rank, ranks: 2, chunk, store: None, ..Config::default() };
        let config = Config {
            store: Some(crate::config::StoreAddress::parse(&format!("tcp://127.0.0.1:{port}")).unwrap()),
            ..config
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        let store = match listener {
            Some(listener) => Store::host_on(listener, &config.member(), deadline),
            None => Store::join("127.0.0.1", port, &config.member(), deadline),
        };
        let store = store.unwrap();
        ProcessGroup::with(config, Box::new(hub.open()), Some(store)).unwrap_err()
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| join(1, None));
        for error in [join(0, Some(listener)), other.join().unwrap()] {
            assert!(matches!(error, Error::Failed(Failure::Settings { .. })), "{error:?}");
        }
    });
}
