//! Random programs in which one rank's call differs in one field: all ranks soon get the same failure, or all results are right.

use std::fmt::Write as _;

use super::*;
use crate::{Source, Tensor, random::Random};

/// The time after the last call of the last rank within which all ranks must know. On an idle machine it is two seconds; here the threads
/// of all ranks and of other tests share the machine.
const SOON: Duration = Duration::from_secs(if cfg!(debug_assertions) { 5 } else { 3 });

/// The default number of cases; `UNISONO_TEST_DISAGREEMENTS` sets another, and `UNISONO_TEST_SEED` the first seed.
const CASES: u64 = 60;

/// The kinds of calls. The last ones, messages, have no order with the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
    Gather,
    Scatter,
    ReduceScatter,
    AllToAll,
    Barrier,
    AllGatherV,
    GatherV,
    ScatterV,
    BroadcastObject,
    AllGatherObject,
    GatherObject,
    ScatterObject,
    BroadcastTensors,
    Coalesced,
    Split,
    /// Each rank sends to the next, and receives from the previous one.
    SendRecv,
    /// The root sends to the rank after it.
    Message,
    ObjectMessage,
}

const KINDS: [Kind; 22] = {
    use Kind::*;
    [
        AllReduce,
        Reduce,
        Broadcast,
        AllGather,
        Gather,
        Scatter,
        ReduceScatter,
        AllToAll,
        Barrier,
        AllGatherV,
        GatherV,
        ScatterV,
        BroadcastObject,
        AllGatherObject,
        GatherObject,
        ScatterObject,
        BroadcastTensors,
        Coalesced,
        Split,
        SendRecv,
        Message,
        ObjectMessage,
    ]
};

/// One call, as a rank makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    kind: Kind,
    /// The index of the group: the world, or one of two other groups of all ranks.
    group: usize,
    count: usize,
    root: usize,
    /// The elements are `f64`, instead of `u32`.
    wide: bool,
    /// The operation is the maximum, instead of the sum.
    max: bool,
    tag: u32,
    later: bool,
}

fn step(random: &mut Random, ranks: usize) -> Step {
    Step {
        kind: KINDS[random.below(KINDS.len())],
        group: random.below(3),
        count: [1, 7, 40, 300][random.below(4)],
        root: random.below(ranks),
        wide: random.below(2) == 1,
        max: random.below(2) == 1,
        tag: random.below(3) as u32,
        later: random.below(3) == 0,
    }
}

/// How one rank's program differs from the others'.
#[derive(Clone, Copy, Debug)]
enum Change {
    Kind,
    Group,
    Count,
    Root,
    Type,
    Operation,
    Tag,
    Later,
    /// The call is swapped with the next one.
    Order,
    More,
    Less,
    /// The rank leaves instead.
    Leave,
}

const CHANGES: [Change; 12] = {
    use Change::*;
    [Kind, Group, Count, Root, Type, Operation, Tag, Later, Order, More, Less, Leave]
};

/// The program of the rank that differs.
fn changed(program: &[Step], at: usize, change: Change, random: &mut Random, ranks: usize) -> Vec<Step> {
    let mut all = program.to_vec();
    let step = &mut all[at];
    match change {
        Change::Kind => step.kind = KINDS[random.below(KINDS.len())],
        Change::Group => step.group = (step.group + 1 + random.below(2)) % 3,
        Change::Count => step.count += 1 + random.below(500),
        Change::Root => step.root = (step.root + 1 + random.below(ranks - 1)) % ranks,
        Change::Type => step.wide = !step.wide,
        Change::Operation => step.max = !step.max,
        Change::Tag => step.tag += 1,
        Change::Later => step.later = !step.later,
        Change::Order => {
            let next = (at + 1) % all.len();
            all.swap(at, next);
        }
        Change::More => all.insert(at, program[at]),
        Change::Less => drop(all.remove(at)),
        Change::Leave => all.truncate(at),
    }
    all
}

fn takes_part(step: Step, rank: usize, ranks: usize) -> bool {
    let message = matches!(step.kind, Kind::Message | Kind::ObjectMessage);
    !message || rank == step.root || rank == (step.root + 1) % ranks
}

/// True if a change must be an error; for other changes all ranks only have to agree.
fn must_be_told(change: Change, program: &[Step], (at, odd): (usize, usize), ranks: usize) -> bool {
    use Kind::*;
    match change {
        Change::More | Change::Less | Change::Group => takes_part(program[at], odd, ranks),
        Change::Leave => program[at..].iter().any(|&step| takes_part(step, odd, ranks)),
        Change::Root => matches!(
            program[at].kind,
            Reduce
                | Broadcast
                | Gather
                | Scatter
                | GatherV
                | ScatterV
                | BroadcastObject
                | GatherObject
                | ScatterObject
        ),
        Change::Type => {
            matches!(program[at].kind, AllReduce | Reduce | Broadcast | AllGather | AllToAll | Coalesced)
        }
        Change::Operation => matches!(program[at].kind, AllReduce | Reduce | ReduceScatter | Coalesced),
        Change::Count => {
            matches!(program[at].kind, AllReduce | Reduce | AllGather | ReduceScatter | SendRecv)
        }
        _ => false,
    }
}

/// The data of a root or sender. Other ranks learn the length from it.
type Object = (usize, usize, String);

fn object(rank: usize, count: usize) -> Object {
    (rank, count, "x".repeat(count * 3))
}

/// True if the object is complete and that of this rank.
fn is_of(got: &Object, rank: usize) -> bool {
    *got == object(rank, got.1)
}

/// Makes a call. Each rank gives its number, and this checks that it gets the number of a rank, or a sum of them. A root may give any
/// number of elements if the others learn that number from it.
fn make<T: Element + PartialEq + fmt::Debug>(
    group: &ProcessGroup,
    step: Step,
    of: fn(usize) -> T,
) -> Result<()> {
    let Step { kind, count, root, max, tag, later, .. } = step;
    let (me, ranks) = (group.rank(), group.size());
    let op = if max { ReduceOp::Max } else { ReduceOp::Sum };
    let reduced = of(if max { ranks - 1 } else { ranks * (ranks - 1) / 2 });
    let (mine, all) = (vec![of(me); count], vec![of(me); ranks * count]);
    let by_rank = |it: &[T]| {
        it.chunks(count).enumerate().for_each(|(rank, it)| assert!(it.iter().all(|x| *x == of(rank))))
    };
    // Ranks may have different numbers of elements, and learn how many.
    let by_length = |it: &[T], lengths: &[usize]| {
        let ranks = lengths.iter().enumerate().flat_map(|(rank, len)| std::iter::repeat_n(of(rank), *len));
        assert!(it.iter().copied().eq(ranks));
    };
    let room = |there: bool| vec![of(99); if there { ranks * count } else { 0 }];
    match kind {
        Kind::AllReduce if later => {
            assert_eq!(group.begin().all_reduce(mine, op)?.wait()?, vec![reduced; count])
        }
        Kind::AllReduce => {
            let mut data = mine;
            group.all_reduce(&mut data, op)?;
            assert_eq!(data, vec![reduced; count]);
        }
        Kind::Reduce => {
            let mut data = mine;
            group.reduce(&mut data, op, root)?;
            assert_eq!(data[0], if me == root { reduced } else { of(me) });
        }
        Kind::Broadcast if later => {
            assert_eq!(group.begin().broadcast(mine, root)?.wait()?, vec![of(root); count]);
        }
        Kind::Broadcast => {
            let mut data = mine;
            group.broadcast(&mut data, root)?;
            assert_eq!(data, vec![of(root); count]);
        }
        Kind::AllGather => {
            let mut got = room(true);
            group.all_gather((&mine, &mut got))?;
            by_rank(&got);
        }
        Kind::Gather => {
            let mut got = room(me == root);
            group.gather((&mine, &mut got), root)?;
            by_rank(&got);
        }
        Kind::Scatter => {
            let mut got = vec![of(99); count];
            group.scatter((if me == root { &all[..] } else { &[] }, &mut got), root)?;
            assert_eq!(got, vec![of(root); count]);
        }
        Kind::ReduceScatter => {
            let mut got = vec![of(99); count];
            group.reduce_scatter((&all, &mut got), op)?;
            assert_eq!(got, vec![reduced; count]);
        }
        Kind::AllToAll => {
            let mut got = room(true);
            group.all_to_all((&all, &mut got))?;
            by_rank(&got);
        }
        Kind::Barrier if later => group.begin().barrier()?.wait()?,
        Kind::Barrier => group.barrier()?,
        Kind::AllGatherV if later => {
            let (_, (got, lengths)) = group.begin().all_gather_v(mine)?.wait()?;
            by_length(&got, &lengths);
        }
        Kind::AllGatherV => {
            let (got, lengths) = group.all_gather_v(&mine)?;
            by_length(&got, &lengths);
        }
        Kind::GatherV => {
            let (got, lengths) = group.gather_v(&mine, root)?;
            by_length(&got, if me == root { &lengths } else { &[] });
        }
        Kind::ScatterV => {
            let (input, lengths) =
                if me == root { (&all[..], vec![count; ranks]) } else { (&[][..], Vec::new()) };
            assert!(group.scatter_v(input, &lengths, root)?.iter().all(|x| *x == of(root)));
        }
        Kind::BroadcastObject if later => {
            let value = (me == root).then(|| object(root, count));
            assert!(is_of(&group.begin().broadcast_object(value, root)?.wait()?, root));
        }
        Kind::BroadcastObject => {
            let value = (me == root).then(|| object(root, count));
            assert!(is_of(&group.broadcast_object(value, root)?, root));
        }
        Kind::AllGatherObject => {
            let got = group.all_gather_object(&object(me, count))?;
            assert!(got.len() == ranks && got.iter().enumerate().all(|(rank, it)| is_of(it, rank)));
        }
        Kind::GatherObject => {
            let got = group.gather_object(&object(me, count), root)?;
            assert_eq!(got.as_ref().map(Vec::len), (me == root).then_some(ranks));
            assert!(got.iter().flatten().enumerate().all(|(rank, it)| is_of(it, rank)));
        }
        Kind::ScatterObject => {
            let values = (me == root).then(|| (0..ranks).map(|rank| object(rank, count)).collect());
            assert!(is_of(&group.scatter_object(values, root)?, me));
        }
        Kind::BroadcastTensors => {
            let tensors = [Tensor::from_vec(mine, &[count]).unwrap()];
            let views: Vec<_> = tensors.iter().map(Tensor::view).collect();
            let got = group.broadcast_tensors((me == root).then_some(&views[..]), root)?;
            // A tensor says what it is, so types and shapes are not compared.
            let right = |got: &Tensor| match got.dtype() {
                Dtype::U32 => got.bytes() == bytemuck::cast_slice::<u32, u8>(&vec![root as u32; got.len()]),
                _ => got.bytes() == bytemuck::cast_slice::<f64, u8>(&vec![root as f64; got.len()]),
            };
            assert!(got.is_none_or(|got| got.iter().all(right)));
        }
        Kind::Coalesced => {
            let tensors = vec![Tensor::from_vec(mine, &[count]).unwrap()];
            let got = group.begin().all_reduce_coalesced(tensors, op)?.wait()?;
            assert_eq!(got[0].bytes(), bytemuck::cast_slice::<T, u8>(&vec![reduced; count]));
        }
        Kind::Split => drop(group.split(Some(0), 0)?),
        Kind::SendRecv => {
            let (next, before) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
            let mut got = vec![of(99); count];
            group.send_recv((&mine, &mut got), (next, tag), (before, tag))?;
            assert_eq!(got, vec![of(before); count]);
        }
        Kind::Message => {
            let to = (root + 1) % ranks;
            if me == root {
                group.send(&mine, (to, tag))?;
            }
            if me == to {
                let mut got = mine;
                let source = if later { Source::Any } else { Source::Rank(root) };
                let from = group.recv(&mut got, (source, tag))?;
                assert!(later || from == root);
                assert_eq!(got, vec![of(from); count]);
            }
        }
        Kind::ObjectMessage => {
            let to = (root + 1) % ranks;
            if me == root {
                group.send_object(&object(root, count), (to, tag))?;
            }
            if me == to {
                assert!(is_of(&group.recv_object((root, tag))?.0, root));
            }
        }
    }
    Ok(())
}

/// The result of every rank's program, and the time after which all others knew once the last rank had ended or failed.
fn run(ranks: usize, odd: usize, programs: [&[Step]; 2]) -> (Vec<Option<String>>, Duration) {
    let patient = |config: &mut Config| {
        small(config);
        config.timeout = Duration::from_secs(60);
    };
    let ends = world(ranks, patient, |group| {
        let all: Vec<Rank> = (0..ranks).collect();
        let mut begun = Instant::now();
        let mut go = || {
            // Here the others may already meet the change, and report it.
            let others = [group.new_group(&all)?.unwrap(), group.new_group(&all)?.unwrap()];
            let groups: Vec<&ProcessGroup> = [&group].into_iter().chain(&others).collect();
            programs[usize::from(group.rank() == odd)].iter().try_for_each(|&step| {
                begun = Instant::now();
                if step.wide {
                    make::<f64>(groups[step.group], step, |x| x as f64)
                } else {
                    make::<u32>(groups[step.group], step, |x| x as u32)
                }
            })
        };
        let done = go();
        if done.is_ok() {
            begun = Instant::now();
        }
        let done = done.and_then(|()| group.leave());
        (done.err().map(|error| error.to_string()), begun, Instant::now())
    });
    let last_call = ends.iter().map(|(_, begun, _)| *begun).max().unwrap();
    let last_end = ends.iter().map(|(.., end)| *end).max().unwrap();
    (ends.into_iter().map(|(end, ..)| end).collect(), last_end - last_call)
}

#[test]
fn whatever_one_rank_does_otherwise_all_are_told_the_same_and_soon() {
    let number = |name: &str| std::env::var(name).ok().and_then(|it| it.parse::<u64>().ok());
    let cases = number("UNISONO_TEST_DISAGREEMENTS").unwrap_or(CASES);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let first = number("UNISONO_TEST_SEED").unwrap_or_else(|| u64::from(now.subsec_nanos()));
    println!("{cases} disagreements, from UNISONO_TEST_SEED={first} on");
    let (mut wrong, mut slowest, mut failed) = (String::new(), Duration::ZERO, 0);
    for seed in first..first + cases {
        let mut random = Random(seed);
        let ranks = 2 + random.below(4);
        let program: Vec<Step> = (0..3 + random.below(4)).map(|_| step(&mut random, ranks)).collect();
        let (odd, at, change) =
            (random.below(ranks), random.below(program.len()), CHANGES[random.below(CHANGES.len())]);
        let other = changed(&program, at, change, &mut random, ranks);
        let (ends, took) = run(ranks, odd, [&program, &other]);
        (slowest, failed) = (slowest.max(took), failed + u32::from(ends[0].is_some()));
        let late = took > SOON || ends.iter().flatten().any(|end| end.contains("did not finish within"));
        let silent = ends[0].is_none() && must_be_told(change, &program, (at, odd), ranks);
        if late || silent || ends.iter().any(|end| *end != ends[0]) {
            let _ = writeln!(
                wrong,
                "seed {seed}: rank {odd} of {ranks} does {change:?} at {at}, {took:?}: {ends:#?}\n{program:#?}\nand {:?}",
                other.get(at)
            );
        }
    }
    println!("{failed} were told, after {slowest:?} at most");
    assert!(wrong.is_empty(), "{wrong}");
}
