//! Small collectives of ranks that share memory, done in one shot: with sizes around the limits, every type and reduction, in place, apart
//! and scattered, beside other operations and in several groups.

use std::sync::Barrier;

use unisono_schedule::Step;
use unisono_schedule::select::shown::COPIED_BYTES;

use super::{in_place, reproducible::reduces, *};
use crate::{
    Foreign, Request, TensorViewMut, Work,
    buffer::tests::TestMemory,
    observed::{Observed, Withheld},
    random::Random,
};

/// A handle whose calls are done in one shot if they fit the slots.
fn direct(group: &ProcessGroup) -> ProcessGroup {
    group.with_algorithms("direct").unwrap()
}

/// Runs this. True if it shows elements and sends no message.
pub(super) fn in_one_shot<R>(group: &ProcessGroup, act: impl FnOnce() -> R) -> (bool, R) {
    let sends =
        |step| matches!(step, Step::Put { .. } | Step::Take { .. } | Step::Write { .. } | Step::Await { .. });
    group.keep_trace();
    let result = act();
    (!group.keep_trace().into_iter().any(|traced| sends(traced.step)), result)
}

/// True if plain memory of this many bytes is read in shared slots, where it does not fit one shot, or where it lies, by ranks that share
/// cores.
pub(super) fn is_staged(what: &str, ranks: usize, gives: usize) -> bool {
    let most = match what {
        "broadcast" if ranks == 2 => 128 << 10,
        "reduce_scatter" | "all_to_all" if ranks > 2 => 256 << 10,
        "all_reduce" | "all_reduce_into" | "all_gather" | "broadcast" => usize::MAX,
        "reduce_scatter" | "all_to_all" => usize::MAX,
        _ => 0,
    };
    gives <= most
}

/// A byte of a rank.
fn byte(rank: Rank, at: usize) -> u8 {
    (rank * 37 + at * 11 + at / 251) as u8
}

pub(super) fn bytes(rank: Rank, range: std::ops::Range<usize>) -> Vec<u8> {
    range.map(|at| byte(rank, at)).collect()
}

/// Every collective of blocks of `len` bytes, blocking and not, in place and not, against loops; checks whether it was done in one shot.
fn every_collective(group: &ProcessGroup, len: usize) {
    let (me, ranks, root) = (group.rank(), group.size(), len % group.size());
    let at_root = me == root;
    let (mine, whole) = (bytes(me, 0..len), bytes(me, 0..ranks * len));
    let all: Vec<u8> = (0..ranks).flat_map(|from| bytes(from, 0..len)).collect();
    let to_me: Vec<u8> = (0..ranks).flat_map(|from| bytes(from, me * len..(me + 1) * len)).collect();
    let sum = |at: usize| (0..ranks).fold(0_u8, |sum, rank| sum.wrapping_add(byte(rank, at)));
    let sums = |range: std::ops::Range<usize>| range.map(sum).collect::<Vec<_>>();
    let none = |there: bool, len: usize| vec![99; if there { len } else { 0 }];
    // `gives`: the bytes that a rank gives to all others together.
    let check = |what: &str, gives: usize, act: &mut dyn FnMut()| {
        let (by_slots, ()) = in_one_shot(group, act);
        // An all_reduce in two shots is another algorithm.
        let wanted = gives <= COPIED_BYTES || (what != "all_reduce" && is_staged(what, ranks, gives));
        assert!(ranks == 1 || by_slots == wanted, "{what} of {len}: {by_slots}");
    };
    check("barrier", 0, &mut || group.barrier().unwrap());
    check("barrier", 0, &mut || group.begin().barrier().unwrap().wait().unwrap());
    check("all_reduce", len, &mut || {
        let mut data = mine.clone();
        group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
        assert!(data == sums(0..len), "all_reduce of {len}");
        data.fill(99);
        group.all_reduce((&mine, &mut data), ReduceOp::Sum).unwrap();
        assert!(data == sums(0..len), "all_reduce_into of {len}");
        let data = group.begin().all_reduce(mine.clone(), ReduceOp::Sum).unwrap().wait().unwrap();
        assert!(data == sums(0..len), "all_reduce_async of {len}");
    });
    check("reduce", len, &mut || {
        let mut data = mine.clone();
        group.reduce(&mut data, ReduceOp::Sum, root).unwrap();
        assert!(data == if at_root { sums(0..len) } else { mine.clone() }, "reduce of {len}");
        let mut data = none(at_root, len);
        group.reduce((&mine, &mut data), ReduceOp::Sum, root).unwrap();
        assert!(!at_root || data == sums(0..len), "reduce_into of {len}");
    });
    check("broadcast", len, &mut || {
        let mut data = if at_root { mine.clone() } else { vec![99; len] };
        group.broadcast(&mut data, root).unwrap();
        assert!(data == bytes(root, 0..len), "broadcast of {len}");
        let data = if at_root { mine.clone() } else { vec![99; len] };
        let data = group.begin().broadcast(data, root).unwrap().wait().unwrap();
        assert!(data == bytes(root, 0..len), "broadcast_async of {len}");
    });
    check("all_gather", len, &mut || {
        let mut data = vec![99; ranks * len];
        group.all_gather((&mine, &mut data)).unwrap();
        assert!(data == all, "all_gather of {len}");
        data.fill(98);
        data[me * len..][..len].copy_from_slice(&mine);
        group.all_gather(&mut data).unwrap();
        assert!(data == all, "all_gather_in_place of {len}");
    });
    check("gather", len, &mut || {
        let mut data = none(at_root, ranks * len);
        group.gather((&mine, &mut data), root).unwrap();
        assert!(!at_root || data == all, "gather of {len}");
    });
    check("scatter", ranks * len, &mut || {
        let mut data = vec![99; len];
        group.scatter((if at_root { &whole[..] } else { &[] }, &mut data), root).unwrap();
        assert!(data == bytes(root, me * len..(me + 1) * len), "scatter of {len}");
    });
    check("reduce_scatter", ranks * len, &mut || {
        let mut data = vec![99; len];
        group.reduce_scatter((&whole, &mut data), ReduceOp::Sum).unwrap();
        assert!(data == sums(me * len..(me + 1) * len), "reduce_scatter of {len}");
        let mut work = whole.clone();
        let got = group.reduce_scatter(&mut work, ReduceOp::Sum).unwrap();
        assert!(got == sums(me * len..(me + 1) * len), "reduce_scatter_in_place of {len}");
    });
    check("all_to_all", ranks * len, &mut || {
        let mut data = vec![99; ranks * len];
        group.all_to_all((&whole, &mut data)).unwrap();
        assert!(data == to_me, "all_to_all of {len}");
    });
    check("all_to_all_in_place", ranks * len, &mut || {
        let mut work = whole.clone();
        group.all_to_all(&mut work).unwrap();
        assert!(work == to_me, "all_to_all_in_place of {len}");
    });
}

#[test]
fn every_collective_of_every_size_about_the_limits() {
    for ranks in 1..=9 {
        world(
            ranks,
            |_| {},
            |group| {
                let group = direct(&group);
                let limits = [COPIED_BYTES / ranks, COPIED_BYTES];
                // 24 bytes fit the cache line of their description.
                let sizes = [0, 1, 8, 23, 24, 25, 63, 64, 65, 1000];
                let about = limits.into_iter().flat_map(|limit| [limit - 1, limit, limit + 1]);
                sizes.into_iter().chain(about).for_each(|len| every_collective(&group, len));
                [0, 1, 3, 4, 500].into_iter().for_each(|len| in_place::all(&group, len));
            },
        );
    }
}

#[test]
fn every_type_and_reduction_in_one_shot() {
    for ranks in [2, 3, 5] {
        world(ranks, |_| {}, |group| of_every_type(&direct(&group)));
    }
}

#[test]
fn reproducible_sums_have_the_same_bits_in_one_shot_as_otherwise() {
    for ranks in [1, 2, 3, 4, 7] {
        let tweak = |config: &mut Config| config.reduction = Reduction::Reproducible;
        world(ranks, tweak, |group| {
            for algorithm in ["direct", "ring"] {
                let group = group.with_algorithms(algorithm).unwrap();
                for (seed, count) in [(1, 0), (2, 1), (3, 3), (4, 7), (5, 250)] {
                    let (one_shot, ()) = in_one_shot(&group, || {
                        reduces::<f16>(&group, seed, count);
                        reduces::<bf16>(&group, seed, count);
                        reduces::<f32>(&group, seed, count);
                        reduces::<f64>(&group, seed, count);
                    });
                    // Uneven blocks are never shown in one shot.
                    assert!(!one_shot || ranks == 1 || count == 0, "{algorithm}, {count}");
                }
            }
        });
    }
}

#[test]
fn tensors_that_lie_scattered_are_reduced_in_one_shot() {
    type Total = fn(&[f32]) -> f32;
    let ops: [(ReduceOp, Total); 5] = [
        (ReduceOp::Sum, |all| all.iter().sum()),
        (ReduceOp::Avg, |all| all.iter().sum::<f32>() / all.len() as f32),
        (ReduceOp::Max, |all| all.iter().copied().fold(f32::MIN, f32::max)),
        (ReduceOp::Product, |all| all.iter().product()),
        (ReduceOp::PreMulSum(2.0), |all| all.iter().map(|x| 2.0 * x).sum()),
    ];
    for ranks in [1, 2, 3, 4] {
        world(
            ranks,
            |_| {},
            |group| {
                let group = direct(&group);
                let of = |rank: Rank, which: usize, at: usize| ((rank + 2) * (which + at % 7 + 1)) as f32;
                for (op, total) in ops {
                    for lengths in [&[1, 2][..], &[3, 3], &[1, 0, 5, 1], &[100, 1, 1000, 2], &[4000, 96]] {
                        let mut all: Vec<Vec<f32>> = lengths
                            .iter()
                            .enumerate()
                            .map(|(which, &len)| (0..len).map(|at| of(group.rank(), which, at)).collect())
                            .collect();
                        let mut views: Vec<_> = all
                            .iter_mut()
                            .map(|data| {
                                let shape = [data.len()];
                                TensorViewMut::new(data, &shape).unwrap()
                            })
                            .collect();
                        let (one_shot, result) =
                            in_one_shot(&group, || group.all_reduce_coalesced(&mut views, op));
                        result.unwrap();
                        assert!(one_shot || ranks == 1, "{lengths:?}");
                        drop(views);
                        for (which, data) in all.iter().enumerate() {
                            for (at, &got) in data.iter().enumerate() {
                                let given: Vec<f32> = (0..ranks).map(|it| of(it, which, at)).collect();
                                let wanted = total(&given);
                                assert!((got - wanted).abs() <= wanted * 1e-6, "{op}: {got}, not {wanted}");
                            }
                        }
                    }
                }
            },
        );
    }
}

#[test]
fn blocks_that_lie_apart_come_and_go_in_one_shot() {
    for ranks in [2, 3, 5] {
        world(
            ranks,
            |_| {},
            |group| {
                let (me, group) = (group.rank(), direct(&group));
                for len in [1, 5, 24, 300] {
                    let cuts = || vec![len; ranks];
                    let room = || TestMemory::new(&vec![99; ranks * len], cuts());
                    let (mine, whole) =
                        (bytes(me, 0..len), TestMemory::new(&bytes(me, 0..ranks * len), cuts()));
                    let all: Vec<u8> = (0..ranks).flat_map(|from| bytes(from, 0..len)).collect();
                    let call = |collective, root, input: Foreign, output: Foreign| {
                        let request = Request { root, ..Request::new(collective, Dtype::U8) };
                        let (one_shot, called) =
                            in_one_shot(&group, || group.erased().collective(&request, &input, &output));
                        called.unwrap();
                        assert!(one_shot, "{collective:?} of {len}");
                    };
                    let (mine, got) = (TestMemory::new(&mine, []), room());
                    call(Collective::AllGather, 0, mine.all(), got.all());
                    assert_eq!(got.bytes(), all);
                    let got = room();
                    call(Collective::AllToAll, 0, whole.all(), got.all());
                    let to_me = |from| bytes(from, me * len..(me + 1) * len);
                    assert_eq!(got.bytes(), (0..ranks).flat_map(to_me).collect::<Vec<_>>());
                    for root in 0..ranks {
                        let got = if me == root { room() } else { TestMemory::new(&[], []) };
                        call(Collective::Gather, root, mine.all(), got.all());
                        assert_eq!(got.bytes(), if me == root { all.clone() } else { Vec::new() });
                        let (none, got) = (TestMemory::new(&[], []), TestMemory::new(&vec![99; len], []));
                        let given = if me == root { &whole } else { &none };
                        call(Collective::Scatter, root, given.all(), got.all());
                        assert_eq!(got.bytes(), to_me(root));
                    }
                    let got = TestMemory::new(&vec![99; len], []);
                    call(Collective::ReduceScatter, 0, whole.all(), got.all());
                    let sum = |at| (0..ranks).fold(0_u8, |sum, rank| sum.wrapping_add(byte(rank, at)));
                    assert_eq!(got.bytes(), (me * len..(me + 1) * len).map(sum).collect::<Vec<_>>());
                }
            },
        );
    }
}

/// Objects come with the word of their length, and some calls exchange only lengths.
#[test]
fn parts_of_other_calls_are_done_in_one_shot() {
    for ranks in [2, 3, 5] {
        world(
            ranks,
            |_| {},
            |group| {
                let (me, group) = (group.rank(), direct(&group));
                for root in 0..ranks {
                    let value = (me == root).then(|| format!("of {root}"));
                    let (one_shot, got) = in_one_shot(&group, || group.broadcast_object(value, root));
                    assert_eq!((one_shot, got.unwrap()), (true, format!("of {root}")));
                }
                let wanted: Vec<_> = (0..ranks).map(|rank| vec![rank as u32; 3 * rank]).collect();
                let got = group.all_gather_object(&wanted[me]).unwrap();
                assert_eq!(got, wanted);
                let (one_shot, part) = in_one_shot(&group, || group.split(Some(0), 0));
                assert!(one_shot);
                assert_eq!(part.unwrap().unwrap().size(), ranks);
            },
        );
    }
}

/// An operation of a random program, the same on all ranks; each rank that waits for it checks the result.
fn begin(group: &ProcessGroup, random: &mut Random) -> Box<dyn FnOnce()> {
    fn checked<T: Send + PartialEq + fmt::Debug + 'static>(work: Work<T>, wanted: T) -> Box<dyn FnOnce()> {
        Box::new(move || assert_eq!(work.wait().unwrap(), wanted))
    }
    let (me, ranks) = (group.rank(), group.size());
    // Some operands do not fit a slot, and some operations take messages.
    let len = [0, 1, 3, 40, 2000, 5000][random.below(6)];
    let algorithm = ["direct", "direct", "ring", "binomial"][random.below(4)];
    let (kind, root) = (random.below(6), random.below(ranks));
    let group = group.with_algorithms(algorithm).unwrap();
    let of = |rank: Rank| (0..len).map(|at| (rank * 100 + at) as u64).collect::<Vec<_>>();
    let sums = (0..len).map(|at| (0..ranks).map(|rank| (rank * 100 + at) as u64).sum()).collect::<Vec<_>>();
    let all: Vec<u64> = (0..ranks).flat_map(of).collect();
    match kind {
        0 => checked(group.begin().all_reduce(of(me), ReduceOp::Sum).unwrap(), sums),
        1 => {
            let wanted = if me == root { sums } else { of(me) };
            checked(group.begin().reduce(of(me), ReduceOp::Sum, root).unwrap(), wanted)
        }
        2 => {
            let data = if me == root { of(root) } else { vec![9; len] };
            checked(group.begin().broadcast(data, root).unwrap(), of(root))
        }
        3 => checked(group.begin().all_gather((of(me), vec![9; ranks * len])).unwrap(), (of(me), all)),
        4 => {
            let data = if me == root { all } else { Vec::new() };
            checked(group.begin().scatter((data.clone(), vec![9; len]), root).unwrap(), (data, of(me)))
        }
        _ => checked(group.begin().barrier().unwrap(), ()),
    }
}

#[test]
fn operations_of_all_kinds_in_several_groups_at_once() {
    for (ranks, seed) in [(2, 1), (3, 2), (3, 3), (4, 4), (5, 5)] {
        world(ranks, small_slots, |group| {
            let me = group.rank();
            let groups = [
                group.new_group(&(0..ranks).rev().collect::<Vec<_>>()).unwrap().unwrap(),
                group.split(Some(me as u64 % 2), 0).unwrap().unwrap(),
                group,
            ];
            // Members of a group have the same program for it, whatever they do in other groups.
            let names: Vec<u64> = groups.iter().map(|it| it.members().iter().map(|m| 1 << m).sum()).collect();
            let mut programs: Vec<_> =
                (0..3_u64).map(|at| Random(seed * 100 + at * 10 + names[at as usize])).collect();
            let mut own = Random(seed + me as u64);
            let mut left = Vec::new();
            for round in 0..60 {
                for (group, program) in groups.iter().zip(&mut programs) {
                    left.push(begin(group, program));
                }
                // Ranks wait at different places, and some are late.
                if own.below(4) == 0 {
                    left.drain(..).for_each(|wait| wait());
                }
                if round % 20 == me {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            left.into_iter().for_each(|wait| wait());
            groups[2].barrier().unwrap();
        });
    }
}

fn small_slots(config: &mut Config) {
    (config.chunk, config.lanes) = (4096, 2);
}

#[test]
fn a_rank_that_cannot_share_memory_makes_all_take_messages() {
    for ranks in [2, 3, 4] {
        for withheld in [Withheld::Views { but: 0 }, Withheld::Memory] {
            for odd in 0..ranks {
                let (hub, opened) = (Hub::new(), std::cell::Cell::new(0));
                let open = || -> Box<dyn Transport> {
                    let inner = Box::new(hub.open());
                    if opened.replace(opened.get() + 1) != odd {
                        return inner;
                    }
                    Box::new(Observed::withholding(inner, withheld))
                };
                world_over(ranks, open, small_slots, |group| {
                    let group = direct(&group);
                    let (one_shot, ()) = in_one_shot(&group, || {
                        for len in [1, 100] {
                            let mut data = bytes(group.rank(), 0..len);
                            group.broadcast(&mut data, odd).unwrap();
                            assert_eq!(data, bytes(odd, 0..len));
                            let mut all = vec![0; ranks * len];
                            group.all_gather((&bytes(group.rank(), 0..len), &mut all)).unwrap();
                            let wanted: Vec<u8> = (0..ranks).flat_map(|from| bytes(from, 0..len)).collect();
                            assert_eq!(all, wanted);
                        }
                    });
                    assert!(!one_shot, "{withheld:?} of rank {odd}");
                    group.barrier().unwrap();
                });
            }
        }
    }
}

#[test]
fn a_rank_that_needs_nothing_of_a_late_rank_goes_on() {
    let went_on = Barrier::new(3);
    world(
        3,
        |_| {},
        |group| {
            let (me, group) = (group.rank(), direct(&group));
            group.barrier().unwrap();
            if me == 2 {
                // Rank 2 calls only after the others have ended the operation.
                went_on.wait();
            }
            let mut data = [me as u8 + 1; 10];
            group.broadcast(&mut data, 0).unwrap();
            assert_eq!(data, [1; 10]);
            let mut data = [me as u8 + 1; 10];
            if me != 2 {
                went_on.wait();
            }
            group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
            assert_eq!(data, [6; 10]);
        },
    );
}

#[test]
fn a_rank_that_does_not_come_is_named_whatever_others_wait_for() {
    // The rank is missing in the operation itself, in the one before, or when slots are opened.
    for (calls, first) in [(1, false), (2, false), (1, true)] {
        let messages = world(
            3,
            |config| config.timeout = Duration::from_millis(300),
            |group| {
                let group = direct(&group);
                if !first {
                    group.barrier().unwrap();
                }
                if group.rank() == 1 {
                    std::thread::sleep(Duration::from_millis(900));
                    return None;
                }
                let mut data = [group.rank(); 3].map(|rank| rank as u64);
                let done = match calls {
                    1 => group.all_reduce(&mut data, ReduceOp::Sum),
                    // No rank waits for rank 1 in the first broadcast.
                    _ => group.broadcast(&mut data, 0).and_then(|()| group.broadcast(&mut data, 0)),
                };
                match done {
                    Err(Error::Failed(failure @ Failure::Deadline { .. })) => Some(failure.to_string()),
                    other => panic!("{calls}, {first}: {other:?}"),
                }
            },
        );
        let messages: Vec<_> = messages.into_iter().flatten().collect();
        assert!(messages.len() == 2 && messages[0] == messages[1], "{messages:?}");
        assert!(messages[0].contains("rank 1 has not entered"), "{}", messages[0]);
    }
}

#[test]
fn an_abort_ends_a_wait_for_shared_slots() {
    world(
        3,
        |_| {},
        |group| {
            let group = direct(&group);
            group.barrier().unwrap();
            if group.rank() == 0 {
                std::thread::sleep(Duration::from_millis(100));
                group.abort("the loss is NaN");
            }
            let begun = Instant::now();
            let error = group.all_reduce(&mut [1.0_f32; 10], ReduceOp::Sum).unwrap_err();
            assert!(matches!(&error, Error::Failed(Failure::Aborted { rank: 0, .. })), "{error}");
            assert!(begun.elapsed() < Duration::from_secs(2));
        },
    );
}
