//! Large collectives of ranks that share memory, in place on registered buffers: with sizes around the limits, every type and reduction,
//! parts of buffers, ranks whose memory is plain or cannot be mapped, other operations beside them, and ranks that make different calls.

use unisono_engine::SHARED_SLOTS_BYTES;

use super::{
    one_shot::{bytes, in_one_shot, is_staged},
    one_shot_differ::told_alike,
    reproducible::{Real, wild},
    *,
};
use crate::{
    Buffer,
    buffer::tests::{memfd, memory_of},
    dtype::Element,
    observed::{Observed, Withheld},
    random::Random,
};

/// A registered buffer, or plain memory.
enum Data<T> {
    Registered(Buffer<T>),
    Plain(Vec<T>),
}

impl<T: Element> Data<T> {
    fn of(group: &ProcessGroup, registered: bool, values: &[T]) -> Self {
        if !registered {
            return Self::Plain(values.to_vec());
        }
        let mut buffer = group.buffer(values.len()).unwrap();
        buffer.copy_from_slice(values);
        Self::Registered(buffer)
    }

    /// The same data in a memfd.
    fn in_memfd(group: &ProcessGroup, values: &[T]) -> Self {
        let bytes = size_of_val(values);
        let mut buffer = Buffer::of(group, memory_of(&memfd("operand", 4096 + bytes), 4096, bytes)).unwrap();
        buffer.copy_from_slice(values);
        Self::Registered(buffer)
    }
}

impl<T: Element> std::ops::Deref for Data<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Registered(buffer) => buffer,
            Self::Plain(plain) => plain,
        }
    }
}

impl<T: Element> std::ops::DerefMut for Data<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::Registered(buffer) => buffer,
            Self::Plain(plain) => plain,
        }
    }
}

/// The ranks whose memory is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    All,
    /// All ranks except this one.
    AllBut(Rank),
    AllInputs,
    /// All, and their memory lies in memfds.
    Memfds,
    None,
}

/// Every collective that can be in place, of `whole` bytes that a rank gives, against loops.
fn every_collective(group: &ProcessGroup, whole: usize, whose: Whose) {
    let (me, ranks) = (group.rank(), group.size());
    let (len, root) = (whole / ranks, whole % ranks);
    let here = !(whose == Whose::None || matches!(whose, Whose::AllBut(rank) if rank == me));
    let data = |registered, values: &[u8]| match whose {
        Whose::Memfds => Data::in_memfd(group, values),
        _ => Data::of(group, registered, values),
    };
    let input = |range| data(here, &bytes(me, range));
    let output = |len| data(here && whose != Whose::AllInputs, &vec![99; len]);
    let sums = |range: std::ops::Range<usize>| {
        let mut sums = vec![0_u8; range.len()];
        for rank in 0..ranks {
            let theirs = bytes(rank, range.clone());
            sums.iter_mut().zip(theirs).for_each(|(sum, byte)| *sum = sum.wrapping_add(byte));
        }
        sums
    };
    let check = |what: &str, reads_output: bool, gives: usize, act: &mut dyn FnMut()| {
        let (in_place, ()) = in_one_shot(group, act);
        let registered = match whose {
            Whose::All | Whose::Memfds => true,
            Whose::AllBut(rank) => what == "broadcast" && rank != root,
            Whose::AllInputs => !reads_output,
            Whose::None => false,
        };
        // Smaller operands are cut into messages, or shown in one shot.
        let wanted = registered || is_staged(what, ranks, gives);
        assert!(
            ranks == 1 || whole < 16 << 10 || in_place == wanted,
            "{what} of {whole}, {whose:?}: {in_place}"
        );
    };
    check("all_reduce", false, whole, &mut || {
        let mut data = input(0..whole);
        group.all_reduce(&mut *data, ReduceOp::Sum).unwrap();
        assert!(data[..] == sums(0..whole), "all_reduce of {whole}, {whose:?}");
    });
    check("all_reduce_into", true, whole, &mut || {
        let mut data = output(whole);
        group.all_reduce((&input(0..whole)[..], &mut *data), ReduceOp::Sum).unwrap();
        assert!(data[..] == sums(0..whole), "all_reduce_into of {whole}, {whose:?}");
    });
    check("broadcast", false, whole, &mut || {
        let mut data = if me == root { input(0..whole) } else { output(whole) };
        group.broadcast(&mut *data, root).unwrap();
        assert!(data[..] == bytes(root, 0..whole), "broadcast of {whole}, {whose:?}");
    });
    check("all_gather", false, len, &mut || {
        let mut data = output(ranks * len);
        group.all_gather((&input(0..len)[..], &mut *data)).unwrap();
        let all: Vec<u8> = (0..ranks).flat_map(|from| bytes(from, 0..len)).collect();
        assert!(data[..] == all, "all_gather of {whole}, {whose:?}");
        data.fill(98);
        data[me * len..][..len].copy_from_slice(&bytes(me, 0..len));
        if whose != Whose::AllInputs {
            group.all_gather(&mut *data).unwrap();
            assert!(data[..] == all, "all_gather_in_place of {whole}, {whose:?}");
        }
    });
    check("reduce_scatter", false, ranks * len, &mut || {
        let mut data = output(len);
        group.reduce_scatter((&input(0..ranks * len)[..], &mut *data), ReduceOp::Sum).unwrap();
        assert!(data[..] == sums(me * len..(me + 1) * len), "reduce_scatter of {whole}, {whose:?}");
        let mut work = input(0..ranks * len);
        let got = group.reduce_scatter(&mut *work, ReduceOp::Sum).unwrap();
        assert!(got == sums(me * len..(me + 1) * len), "reduce_scatter_in_place of {whole}, {whose:?}");
    });
    let to_me: Vec<u8> = (0..ranks).flat_map(|from| bytes(from, me * len..(me + 1) * len)).collect();
    check("all_to_all", false, ranks * len, &mut || {
        let mut data = output(ranks * len);
        group.all_to_all((&input(0..ranks * len)[..], &mut *data)).unwrap();
        assert!(data[..] == to_me, "all_to_all of {whole}, {whose:?}");
    });
    // Blocks change places, which takes messages.
    let mut work = input(0..ranks * len);
    group.all_to_all(&mut *work).unwrap();
    assert!(work[..] == to_me, "all_to_all_in_place of {whole}, {whose:?}");
}

#[test]
fn every_collective_of_every_size_about_the_limits() {
    for ranks in [1, 2, 3, 6] {
        world(
            ranks,
            |_| {},
            |group| {
                let (line, least) = (64 * ranks, 16 << 10);
                for whole in [least - 1, least, least + 1, least + line, 40_007, 700_001] {
                    every_collective(&group, whole, Whose::All);
                }
                every_collective(&group, 300_000, Whose::Memfds);
                // This takes several rounds, and the last one is short.
                let rounds = (ranks == 3).then_some((1 << 20) + 4000);
                for whole in [least + ranks, 300_000].into_iter().chain(rounds) {
                    every_collective(&group, whole, Whose::None);
                    every_collective(&group, whole, Whose::AllInputs);
                    for rank in [0, ranks - 1] {
                        every_collective(&group, whole, Whose::AllBut(rank));
                    }
                }
            },
        );
    }
}

#[test]
fn a_rank_that_cannot_map_operands_makes_all_take_messages() {
    for (ranks, blind) in [(2, 0), (2, 1), (3, 1), (4, 3)] {
        let (hub, opened) = (Hub::new(), std::cell::Cell::new(0));
        let open = || -> Box<dyn Transport> {
            let inner = Box::new(hub.open());
            let withheld = Withheld::Views { but: SHARED_SLOTS_BYTES as u64 };
            let this = opened.replace(opened.get() + 1) == blind;
            if this { Box::new(Observed::withholding(inner, withheld)) } else { inner }
        };
        world_over(
            ranks,
            open,
            |_| {},
            |group| {
                let mut data = Data::of(&group, true, &vec![group.rank() as u32 + 1; 20_000]);
                // The second time the others still have not mapped this memory.
                for _ in 0..2 {
                    data.fill(group.rank() as u32 + 1);
                    let (in_place, ()) =
                        in_one_shot(&group, || group.all_reduce(&mut *data, ReduceOp::Sum).unwrap());
                    assert!(!in_place);
                    assert!(data.iter().all(|&it| it as usize == ranks * (ranks + 1) / 2));
                }
                group.barrier().unwrap();
            },
        );
    }
}

/// Sums must be those in the order of ranks, bit by bit; averages are rounded once.
fn reduces<T: Real>(group: &ProcessGroup, op: ReduceOp) {
    let (ranks, count) = (group.size(), 20_011);
    let given = |rank: Rank, at: usize| T::of(wild(7, rank, at));
    let mine: Vec<T> = (0..count).map(|at| given(group.rank(), at)).collect();
    let mut data = Data::of(group, true, &mine);
    let (in_place, ()) = in_one_shot(group, || group.all_reduce(&mut *data, op).unwrap());
    assert!(in_place || matches!(op, ReduceOp::PreMulSum(_)), "{op:?}");
    for (at, &got) in data.iter().enumerate() {
        let all: Vec<T> = (0..ranks).map(|rank| given(rank, at)).collect();
        assert_eq!(got.bits(), T::oracle(op, &all).bits(), "{op:?} of {} at {at}", T::DTYPE);
    }
}

#[test]
fn reproducible_sums_have_the_bits_of_a_loop_over_the_ranks() {
    for ranks in [2, 3, 6] {
        world(
            ranks,
            |config| config.reduction = Reduction::Reproducible,
            |group| {
                use ReduceOp::{Avg, Max, Min, PreMulSum, Product, Sum};
                for op in [Sum, Product, Min, Max, Avg, PreMulSum(1.7)] {
                    reduces::<f32>(&group, op);
                    reduces::<f64>(&group, op);
                    reduces::<f16>(&group, op);
                    reduces::<bf16>(&group, op);
                }
            },
        );
    }
}

#[test]
fn parts_of_one_buffer_are_operands() {
    world(
        3,
        |_| {},
        |group| {
            let me = group.rank();
            let mut buffer = group.buffer::<u32>(100_000).unwrap();
            for start in [0, 1, 7, 333] {
                let (inputs, outputs) = buffer.split_at_mut(50_000);
                let (input, output) = (&mut inputs[start..][..9_000], &mut outputs[2 * start..][..9_000]);
                for (at, it) in input.iter_mut().enumerate() {
                    *it = (at * (me + 1)) as u32;
                }
                let (in_place, ()) =
                    in_one_shot(&group, || group.all_reduce((&*input, &mut *output), ReduceOp::Sum).unwrap());
                assert!(in_place && output.iter().enumerate().all(|(at, &it)| it as usize == at * 6));
                let (in_place, ()) =
                    in_one_shot(&group, || group.all_to_all((&*input, &mut *output)).unwrap());
                let right =
                    (0..9_000).all(|at| output[at] as usize == (me * 3000 + at % 3000) * (at / 3000 + 1));
                assert!(in_place && right, "{start}");
            }
            // Ranks' operands lie in different places. One output overlaps its input, which is copied first.
            let whole = &mut buffer[me * 10..][..30_000];
            whole.fill(me as u32 + 1);
            group.all_reduce(&mut *whole, ReduceOp::Sum).unwrap();
            assert!(whole.iter().all(|&it| it == 6));
        },
    );
}

#[test]
fn buffers_may_come_and_go() {
    world(
        3,
        |_| {},
        |group| {
            let mut kept = Vec::new();
            for round in 0..200_u32 {
                let mut data =
                    Data::of(&group, true, &vec![round + group.rank() as u32; 5_000 + 9 * round as usize]);
                let (in_place, ()) =
                    in_one_shot(&group, || group.all_reduce(&mut *data, ReduceOp::Sum).unwrap());
                assert!(in_place && data.iter().all(|&it| it == 3 * round + 3), "{round}");
                // Ranks drop the buffers in different orders.
                kept.push(data);
                if kept.len() > 4 {
                    kept.swap_remove((round as usize * (group.rank() + 1)) % 5);
                }
            }
        },
    );
}

/// Asynchronous operations of all kinds on one thread, in several groups at once, beside messages.
#[test]
fn operations_of_all_kinds_in_several_groups_at_once() {
    const RANKS: usize = 4;
    let seed = 5;
    println!("seed {seed}");
    world(
        RANKS,
        |_| {},
        |group| {
            let me = group.rank();
            let twin = group.new_group(&[3, 2, 1, 0]).unwrap().unwrap();
            let half = group.split(Some(me as u64 / 2), 0).unwrap().unwrap();
            // All ranks draw the same numbers.
            let mut random = Random(seed);
            let mut works = Vec::new();
            for round in 0..120 {
                let (kind, which, registered) = (random.below(4), random.below(3), random.below(8));
                let part = [&group, &twin, &half][which];
                let (mine, size) = (part.rank(), part.size());
                let value = |rank: Rank| (round * 10 + rank) as u32;
                let total: u32 = (0..size).map(value).sum();
                let fresh = |len: usize, value| {
                    let mut buffer = part.buffer::<u32>(len).unwrap();
                    buffer.fill(value);
                    buffer
                };
                match kind {
                    0 => {
                        let work = part.begin().all_reduce(fresh(6_000, value(mine)), ReduceOp::Sum).unwrap();
                        works.push((work, vec![total; 6_000]));
                    }
                    // In some calls the memory of one rank is plain.
                    1 if registered == mine => {
                        let mut data = vec![value(mine); 6_000];
                        part.all_reduce(&mut *data, ReduceOp::Sum).unwrap();
                        assert_eq!(data, vec![total; 6_000]);
                    }
                    1 => {
                        let mut data = fresh(6_000, value(mine));
                        part.all_reduce(&mut *data, ReduceOp::Sum).unwrap();
                        assert_eq!(data[..], vec![total; 6_000]);
                    }
                    2 => {
                        let root = round % size;
                        let data = fresh(5_000, if mine == root { value(root) } else { 9 });
                        works.push((part.begin().broadcast(data, root).unwrap(), vec![value(root); 5_000]));
                    }
                    _ => {
                        let (next, previous) = ((mine + 1) % size, (mine + size - 1) % size);
                        let mut got = vec![0_u32; 3_000];
                        part.send_recv((&vec![value(mine); 3_000], &mut got), next, previous).unwrap();
                        assert_eq!(got, vec![value(previous); 3_000]);
                    }
                }
                while works.len() > 6 {
                    let (work, wanted) = works.swap_remove(round % 5);
                    assert_eq!(work.wait().unwrap()[..], wanted);
                }
            }
            for (work, wanted) in works {
                assert_eq!(work.wait().unwrap()[..], wanted);
            }
        },
    );
}

type Call = fn(&ProcessGroup) -> Result<()>;

/// A buffer; the failure of the group, if another rank has found the mismatch already.
fn filled(group: &ProcessGroup, count: usize) -> Result<Buffer<f32>> {
    group.buffer(count)
}

/// Calls, each with the words for it in a mismatch.
const CALLS: [(&str, Call); 9] = [
    ("all_reduce(f32, sum)", |it| it.all_reduce(&mut filled(it, 30_000)?, ReduceOp::Sum)),
    ("all_reduce(f32, max)", |it| it.all_reduce(&mut filled(it, 30_000)?, ReduceOp::Max)),
    ("all_reduce(f32, sum)", |it| it.all_reduce(&mut filled(it, 29_999)?, ReduceOp::Sum)),
    ("all_gather(f32)", |it| it.all_gather((&filled(it, 9_000)?, &mut filled(it, 9_000 * it.size())?))),
    ("broadcast(f32, root 0)", |it| it.broadcast(&mut filled(it, 30_000)?, 0)),
    ("broadcast(f32, root 1)", |it| it.broadcast(&mut filled(it, 30_000)?, 1)),
    // This call has plain memory; others use one shot or messages.
    ("reduce_scatter(f32, sum)", |it| {
        it.reduce_scatter((&vec![0.0; 9_000 * it.size()], &mut vec![0.0; 9_000]), ReduceOp::Sum)
    }),
    ("barrier()", |it| it.with_algorithms("direct")?.barrier()),
    ("gather(f32, root 0)", |it| {
        it.gather((&[0_f32; 9_000], &mut vec![0.0; if it.rank() == 0 { 9_000 * it.size() } else { 0 }]), 0)
    }),
];

#[test]
fn whatever_is_called_beside_a_call_in_place_all_are_told() {
    for (first, ours) in CALLS.iter().enumerate() {
        for (second, theirs) in CALLS.iter().enumerate() {
            if first == second {
                continue;
            }
            let ranks = 2 + (first + second) % 2;
            let message = told_alike(ranks, |group| {
                group.barrier()?;
                if group.rank() == ranks - 1 { theirs.1(group) } else { ours.1(group) }
            });
            let words = [ours.0, theirs.0];
            assert!(words.iter().any(|words| message.contains(words)), "{words:?}: {}", message);
        }
    }
}
