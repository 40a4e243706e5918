//! One operation, which all ranks draw from the same seed, and its expected result.

use half::{bf16, f16};
use unisono::{ProcessGroup, ReduceOp, Source};

use crate::{
    collectives::{Room, expect},
    ensure,
    numbers::{Number, operations, small},
    random::Random,
    rank,
};

/// Waits for an operation that is under way, and checks its result.
pub(super) type Pending = Box<dyn FnOnce() -> rank::Outcome>;

#[derive(Clone, Copy, Debug)]
enum What {
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
    ReduceScatterV,
    AllToAllV,
    BroadcastObject,
    GatherObject,
    AllGatherObject,
    ScatterObject,
    Message,
    ObjectMessage,
    Ring,
}

const ALL: [What; 21] = [
    What::AllReduce,
    What::Reduce,
    What::Broadcast,
    What::AllGather,
    What::Gather,
    What::Scatter,
    What::ReduceScatter,
    What::AllToAll,
    What::Barrier,
    What::AllGatherV,
    What::GatherV,
    What::ScatterV,
    What::ReduceScatterV,
    What::AllToAllV,
    What::BroadcastObject,
    What::GatherObject,
    What::AllGatherObject,
    What::ScatterObject,
    What::Message,
    What::ObjectMessage,
    What::Ring,
];

/// An operation, the same on all ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    what: What,
    dtype: usize,
    /// The approximate bytes of the largest operand.
    bytes: usize,
    root: usize,
    /// For a message: the distance of its receiver from its sender, the root.
    distance: usize,
    op: usize,
    asynchronous: bool,
    in_place: bool,
    /// The ranks whose memory is registered, a bit for each.
    registered: u64,
    /// For a message: true if its receiver names no sender.
    any: bool,
    seed: u64,
}

impl Call {
    pub(super) fn any(chance: &mut Random, number: u64, ranks: usize) -> Self {
        let most = match chance.below(64) {
            0 => 64 << 10,
            1..=6 => 4 << 10,
            _ => 200,
        };
        Self {
            what: ALL[chance.below(ALL.len())],
            dtype: chance.below(10),
            bytes: chance.below(most + 1),
            root: chance.below(ranks),
            distance: 1 + chance.below(ranks - 1),
            op: chance.below(9),
            asynchronous: chance.below(3) == 0,
            in_place: chance.below(2) == 0,
            registered: if chance.below(4) == 0 { chance.bits() } else { 0 },
            any: chance.below(3) == 0,
            seed: number,
        }
    }

    /// Makes the call. Returns the rest of it if it is asynchronous.
    pub(super) fn run(self, group: &ProcessGroup) -> Result<Option<Pending>, Box<dyn std::error::Error>> {
        match self.dtype {
            0 => self.of::<f32>(group),
            1 => self.of::<f64>(group),
            2 => self.of::<i8>(group),
            3 => self.of::<u8>(group),
            4 => self.of::<i32>(group),
            5 => self.of::<u32>(group),
            6 => self.of::<i64>(group),
            7 => self.of::<u64>(group),
            8 => self.of::<f16>(group),
            _ => self.of::<bf16>(group),
        }
    }

    fn of<T: Number>(self, group: &ProcessGroup) -> Result<Option<Pending>, Box<dyn std::error::Error>> {
        let ops = operations::<T>();
        let (rank, ranks) = (group.rank(), group.size());
        let typed = Typed { call: self, group, rank, ranks, op: ops[self.op % ops.len()] };
        match self.what {
            What::AllReduce | What::Reduce | What::ReduceScatter | What::ReduceScatterV => {
                typed.reduction::<T>()
            }
            What::Broadcast | What::AllGather | What::Gather | What::Scatter | What::AllToAll => {
                typed.blocks::<T>()
            }
            What::AllGatherV | What::GatherV | What::ScatterV | What::AllToAllV => typed.uneven::<T>(),
            What::BroadcastObject | What::GatherObject | What::AllGatherObject | What::ScatterObject => {
                typed.objects()
            }
            What::Message | What::ObjectMessage | What::Ring => typed.messages::<T>(),
            What::Barrier if self.asynchronous => {
                let work = group.begin().barrier()?;
                Ok(Some(Box::new(move || Ok(work.wait()?))))
            }
            What::Barrier => Ok(group.barrier().map(|()| None)?),
        }
    }
}

/// A call in a group.
#[derive(Clone, Copy)]
struct Typed<'g> {
    call: Call,
    group: &'g ProcessGroup,
    rank: usize,
    ranks: usize,
    op: ReduceOp,
}

type Ran = Result<Option<Pending>, Box<dyn std::error::Error>>;

impl Typed<'_> {
    fn name(&self) -> String {
        format!("{:?}", self.call)
    }

    /// The number of elements; if each rank has a block, of all blocks together.
    fn count<T: Number>(&self, blocks: usize) -> usize {
        self.call.bytes / T::DTYPE.size() / blocks
    }

    /// The data of one rank for another, or for all (`to` is 0).
    fn given<T: Number>(&self, from: usize, to: usize, len: usize) -> Vec<T> {
        let seed = self.call.seed + 1_000_003 * to as u64;
        (0..len).map(|index| small(seed, self.op, from, index)).collect()
    }

    fn reduced<T: Number>(&self, from: usize, len: usize) -> Vec<T> {
        let all: Vec<Vec<T>> = (0..self.ranks).map(|rank| self.given(rank, 0, from + len)).collect();
        (from..from + len)
            .map(|at| T::reduce(self.op, &all.iter().map(|of| of[at]).collect::<Vec<_>>()))
            .collect()
    }

    fn room<T: Number>(&self, data: Vec<T>) -> unisono::Result<Room<T>> {
        Room::of(self.group, data, self.call.registered >> self.rank & 1 == 1)
    }

    fn reduction<T: Number>(self) -> Ran {
        let Self { call: Call { what, root, asynchronous, in_place, .. }, group, rank, ranks, op } = self;
        let name = self.name();
        let blocks = if matches!(what, What::ReduceScatter | What::ReduceScatterV) { ranks } else { 1 };
        let count = self.count::<T>(blocks);
        let mine: Vec<T> = self.given(rank, 0, count * blocks);
        let blank = vec![T::of(99); count];
        match what {
            What::AllReduce if asynchronous => {
                let (work, wanted) = (group.begin().all_reduce(mine, op)?, self.reduced(0, count));
                return Ok(Some(Box::new(move || expect(&name, &work.wait()?, &wanted))));
            }
            What::AllReduce if in_place => {
                let mut data = self.room(mine)?;
                group.all_reduce(&mut data[..], op)?;
                expect(&name, &data, &self.reduced(0, count))?;
            }
            What::AllReduce => {
                let (input, mut output) = (self.room(mine)?, self.room(blank)?);
                group.all_reduce((&input[..], &mut output[..]), op)?;
                expect(&name, &output, &self.reduced(0, count))?;
            }
            What::Reduce => {
                let mut data = self.room(mine.clone())?;
                group.reduce(&mut data[..], op, root)?;
                expect(&name, &data, &if rank == root { self.reduced(0, count) } else { mine })?;
            }
            What::ReduceScatter if asynchronous => {
                let (work, wanted) =
                    (group.begin().reduce_scatter((mine, blank), op)?, self.reduced(rank * count, count));
                return Ok(Some(Box::new(move || expect(&name, &work.wait()?.1, &wanted))));
            }
            What::ReduceScatter => {
                let (input, mut output) = (self.room(mine)?, self.room(blank)?);
                group.reduce_scatter((&input[..], &mut output[..]), op)?;
                expect(&name, &output, &self.reduced(rank * count, count))?;
            }
            _ => {
                let lengths: Vec<usize> = (0..ranks).map(|rank| self.uneven_length(rank, count)).collect();
                let before: usize = lengths[..rank].iter().sum();
                let (input, mut output) =
                    (self.given(rank, 0, lengths.iter().sum()), vec![T::of(99); lengths[rank]]);
                group.reduce_scatter(unisono::uneven((&input, &mut output), &lengths), op)?;
                expect(&name, &output, &self.reduced(before, lengths[rank]))?;
            }
        }
        Ok(None)
    }

    /// The length of a rank's block, up to `count`.
    fn uneven_length(&self, rank: usize, count: usize) -> usize {
        (self.call.root + 3 * rank) % 5 * count / 4
    }

    fn blocks<T: Number>(self) -> Ran {
        let Self { call: Call { what, root, asynchronous, in_place, .. }, group, rank, ranks, .. } = self;
        let name = self.name();
        let count = self.count::<T>(if matches!(what, What::Broadcast) { 1 } else { ranks });
        let mine: Vec<T> = self.given(rank, 0, count);
        let together = || (0..ranks).flat_map(|rank| self.given(rank, 0, count)).collect::<Vec<T>>();
        let blank = |blocks| vec![T::of(99); count * blocks];
        match what {
            What::Broadcast => {
                let (data, wanted) = (if rank == root { mine } else { blank(1) }, self.given(root, 0, count));
                if asynchronous {
                    let work = group.begin().broadcast(data, root)?;
                    return Ok(Some(Box::new(move || expect(&name, &work.wait()?, &wanted))));
                }
                let mut data = self.room(data)?;
                group.broadcast(&mut data[..], root)?;
                expect(&name, &data, &wanted)?;
            }
            What::AllGather if asynchronous => {
                let (work, wanted) = (group.begin().all_gather((mine, blank(ranks)))?, together());
                return Ok(Some(Box::new(move || expect(&name, &work.wait()?.1, &wanted))));
            }
            What::AllGather => {
                let (input, mut output) = (self.room(mine)?, self.room(blank(ranks))?);
                if in_place {
                    output[rank * count..][..count].copy_from_slice(&input);
                    group.all_gather(&mut output[..])?;
                } else {
                    group.all_gather((&input[..], &mut output[..]))?;
                }
                expect(&name, &output, &together())?;
            }
            What::Gather => {
                let mut output = self.room(if rank == root { blank(ranks) } else { Vec::new() })?;
                group.gather((&mine[..], &mut output[..]), root)?;
                expect(&name, &output, &if rank == root { together() } else { Vec::new() })?;
            }
            What::Scatter => {
                let mut output = self.room(blank(1))?;
                group
                    .scatter((&if rank == root { together() } else { Vec::new() }, &mut output[..]), root)?;
                expect(&name, &output, &mine)?;
            }
            _ => {
                let input: Vec<T> = (0..ranks).flat_map(|to| self.given(rank, to, count)).collect();
                let wanted: Vec<T> = (0..ranks).flat_map(|from| self.given(from, rank, count)).collect();
                if asynchronous {
                    let work = group.begin().all_to_all((input, blank(ranks)))?;
                    return Ok(Some(Box::new(move || expect(&name, &work.wait()?.1, &wanted))));
                }
                let (mut input, mut output) = (self.room(input)?, self.room(blank(ranks))?);
                let output = if in_place {
                    group.all_to_all(&mut input[..])?;
                    input
                } else {
                    group.all_to_all((&input[..], &mut output[..]))?;
                    output
                };
                expect(&name, &output, &wanted)?;
            }
        }
        Ok(None)
    }

    fn uneven<T: Number>(self) -> Ran {
        let Self { call: Call { what, root, asynchronous, .. }, group, rank, ranks, .. } = self;
        let (name, count) = (self.name(), self.count::<T>(ranks));
        let length = |rank| self.uneven_length(rank, count);
        let mine: Vec<T> = self.given(rank, 0, length(rank));
        let together: Vec<T> = (0..ranks).flat_map(|rank| self.given(rank, 0, length(rank))).collect();
        let lengths: Vec<usize> = (0..ranks).map(length).collect();
        match what {
            What::AllGatherV if asynchronous => {
                let work = group.begin().all_gather_v(mine)?;
                return Ok(Some(Box::new(move || expect(&name, &work.wait()?.1.0, &together))));
            }
            What::AllGatherV => {
                let (output, learned) = group.all_gather_v(&mine)?;
                expect(&name, &output, &together)?;
                ensure!(learned == lengths, "{name}: lengths {learned:?}, not {lengths:?}");
            }
            What::GatherV => {
                let wanted = if rank == root { together } else { Vec::new() };
                if asynchronous {
                    let work = group.begin().gather_v(mine, root)?;
                    return Ok(Some(Box::new(move || expect(&name, &work.wait()?.1.0, &wanted))));
                }
                expect(&name, &group.gather_v(&mine, root)?.0, &wanted)?;
            }
            What::ScatterV => {
                let (whole, known) =
                    if rank == root { (together, lengths) } else { (Vec::new(), Vec::new()) };
                expect(&name, &group.scatter_v(&whole, &known, root)?, &mine)?;
            }
            _ => {
                let length = |from: usize, to: usize| self.uneven_length(from + 2 * to, count);
                let gives: Vec<usize> = (0..ranks).map(|to| length(rank, to)).collect();
                let input: Vec<T> = (0..ranks).flat_map(|to| self.given(rank, to, gives[to])).collect();
                let wanted: Vec<T> =
                    (0..ranks).flat_map(|from| self.given(from, rank, length(from, rank))).collect();
                if asynchronous {
                    let work = group.begin().all_to_all_v(input, &gives)?;
                    return Ok(Some(Box::new(move || expect(&name, &work.wait()?.1.0, &wanted))));
                }
                expect(&name, &group.all_to_all_v(&input, &gives)?.0, &wanted)?;
            }
        }
        Ok(None)
    }

    /// The object that a rank sends.
    fn object(&self, rank: usize) -> (String, Vec<Option<u64>>) {
        let numbers = self.given::<u64>(rank, 0, self.call.bytes / 64);
        (
            format!("{} of {rank}", self.call.seed),
            numbers.into_iter().map(|it| (it % 3 > 0).then_some(it)).collect(),
        )
    }

    fn objects(self) -> Ran {
        let Self { call: Call { what, root, asynchronous, .. }, group, rank, ranks, .. } = self;
        let name = self.name();
        let together = || (0..ranks).map(|rank| self.object(rank)).collect::<Vec<_>>();
        match what {
            What::BroadcastObject => {
                let got = group.broadcast_object((rank == root).then(|| self.object(root)), root)?;
                same(&name, &got, &self.object(root))?;
            }
            What::GatherObject => {
                let got = group.gather_object(&self.object(rank), root)?;
                same(&name, &got, &(rank == root).then(together))?;
            }
            What::AllGatherObject if asynchronous => {
                let (work, wanted) = (group.begin().all_gather_object(&self.object(rank))?, together());
                return Ok(Some(Box::new(move || same(&name, &work.wait()?, &wanted))));
            }
            What::AllGatherObject => same(&name, &group.all_gather_object(&self.object(rank))?, &together())?,
            _ => {
                let got = group.scatter_object((rank == root).then(together), root)?;
                same(&name, &got, &self.object(rank))?;
            }
        }
        Ok(None)
    }

    fn messages<T: Number>(self) -> Ran {
        let Self {
            call: Call { what, root, distance, asynchronous, any, seed, .. }, group, rank, ranks, ..
        } = self;
        let (name, count, to) = (self.name(), self.count::<T>(1), (root + distance) % ranks);
        // No other message of any group has this tag.
        let tag = u32::try_from(seed % (1 << 32))?;
        let source = |from| if any { Source::Any } else { Source::Rank(from) };
        let blank = vec![T::of(99); count];
        match what {
            What::Ring => {
                let (next, before) = ((rank + distance) % ranks, (rank + ranks - distance) % ranks);
                let (mine, wanted) = (self.given::<T>(rank, 0, count), self.given::<T>(before, 0, count));
                if asynchronous {
                    let work = group.begin().send_recv((mine, blank), (next, tag), (source(before), tag))?;
                    return Ok(Some(Box::new(move || expect(&name, &work.wait()?.0.1, &wanted))));
                }
                let (input, mut output) = (self.room(mine)?, self.room(blank)?);
                let from =
                    group.send_recv((&input[..], &mut output[..]), (next, tag), (source(before), tag))?;
                ensure!(from == before, "{name} comes from {from}");
                expect(&name, &output, &wanted)?;
            }
            What::ObjectMessage if rank == root => group.send_object(&self.object(root), (to, tag))?,
            What::ObjectMessage if rank == to => {
                let (got, from) = group.recv_object((source(root), tag))?;
                ensure!(from == root, "{name} comes from {from}");
                same(&name, &got, &self.object(root))?;
            }
            What::Message if rank == root => {
                let mine = self.given::<T>(root, 0, count);
                if asynchronous {
                    let work = group.begin().send(mine, (to, tag))?;
                    return Ok(Some(Box::new(move || Ok(work.wait().map(drop)?))));
                }
                group.send(&self.room(mine)?[..], (to, tag))?;
            }
            What::Message if rank == to => {
                let wanted = self.given::<T>(root, 0, count);
                if asynchronous {
                    let work = group.begin().recv(blank, (source(root), tag))?;
                    return Ok(Some(Box::new(move || expect(&name, &work.wait()?.0, &wanted))));
                }
                let mut data = self.room(blank)?;
                group.recv(&mut data[..], (source(root), tag))?;
                expect(&name, &data, &wanted)?;
            }
            _ => {}
        }
        Ok(None)
    }
}

fn same<T: PartialEq>(name: &str, got: &T, wanted: &T) -> rank::Outcome {
    if got == wanted { Ok(()) } else { Err(format!("{name} is not what was sent").into()) }
}
