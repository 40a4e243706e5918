//! A call of the campaign, and its expected result.

use unisono::{ProcessGroup, ReduceOp, Tensor};

use super::plan::{Plan, one};
use crate::{
    collectives::{Room, expect},
    numbers::{Number, small},
    random::Random,
    rank,
};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Call {
    pub(super) what: What,
    pub(super) dtype: Dtype,
    pub(super) count: usize,
    /// A number that selects a member, modulo their number.
    pub(super) root: usize,
    pub(super) op: ReduceOp,
    /// True if the plan's group makes the call, and not the world.
    pub(super) some: bool,
    pub(super) asynchronous: bool,
    /// The ranks of the call whose memory is registered, a bit for each; only for blocking calls.
    pub(super) registered: u64,
    pub(super) tag: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum What {
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
    BroadcastObject,
    AllGatherObject,
    BroadcastTensors,
    /// The ranks in the world.
    Message {
        from: usize,
        to: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Dtype {
    F32,
    I32,
    U64,
}

impl What {
    pub(super) const PLAIN: [Self; 9] = [
        Self::AllReduce,
        Self::Reduce,
        Self::Broadcast,
        Self::AllGather,
        Self::Gather,
        Self::Scatter,
        Self::ReduceScatter,
        Self::AllToAll,
        Self::Barrier,
    ];
    /// All of these but the barrier.
    pub(super) const COUNTED: &[Self] = Self::PLAIN.split_at(Self::PLAIN.len() - 1).0;
    pub(super) const ROOTED: [Self; 5] =
        [Self::Reduce, Self::Broadcast, Self::Gather, Self::Scatter, Self::BroadcastObject];
    pub(super) const REDUCING: [Self; 3] = [Self::AllReduce, Self::Reduce, Self::ReduceScatter];
    const OTHERS: [Self; 4] =
        [Self::AllGatherV, Self::BroadcastObject, Self::AllGatherObject, Self::BroadcastTensors];
}

impl Call {
    pub(super) fn any(chance: &mut Random, ranks: usize, members: &[usize]) -> Self {
        let from = chance.below(ranks);
        let message = What::Message { from, to: (from + 1 + chance.below(ranks - 1)) % ranks };
        let what = match chance.below(8) {
            0 => message,
            1 | 2 => one(chance, &What::OTHERS),
            _ => one(chance, &What::PLAIN),
        };
        let some = chance.below(3) == 0 && !matches!(what, What::Message { .. }) && members.len() > 1;
        Self {
            what,
            dtype: one(chance, &[Dtype::F32, Dtype::I32, Dtype::U64]),
            count: one(chance, &[1, 9, 1000, 9000, 40_000, 100_000]),
            root: chance.below(ranks),
            op: one(chance, &[ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min]),
            some,
            asynchronous: chance.below(3) == 0,
            registered: one(chance, &[0, !0, !0, !2]),
            tag: 7,
        }
    }

    /// The number of ranks that make the call.
    pub(super) fn size(&self, plan: &Plan) -> usize {
        if self.some { plan.members.len() } else { plan.ranks }
    }

    /// The part of this rank's call that other ranks compare; `None` if this rank makes no call.
    pub(super) fn seen(&self, rank: usize, plan: &Plan) -> Option<Self> {
        let Self { what, some, .. } = *self;
        let members = if some { &plan.members[..] } else { &[] };
        let size = self.size(plan);
        let root =
            if What::ROOTED.contains(&what) || what == What::BroadcastTensors { self.root % size } else { 0 };
        let is_root = members.get(root).map_or(root, |&member| member) == rank;
        let op = if What::REDUCING.contains(&what) { self.op } else { ReduceOp::Sum };
        let mut seen = Self { asynchronous: false, registered: 0, tag: 0, root, op, ..*self };
        match what {
            What::Message { from, to } if from == to || (from != rank && to != rank) => return None,
            What::Message { .. } => seen.tag = self.tag,
            What::Barrier => (seen.dtype, seen.count) = (Dtype::F32, 0),
            What::BroadcastObject | What::AllGatherObject => seen.dtype = Dtype::F32,
            _ => {}
        }
        // Broadcast objects and tensors carry their types.
        if matches!(what, What::BroadcastObject | What::BroadcastTensors) && !is_root {
            (seen.dtype, seen.count) = (Dtype::F32, 0);
        }
        // And other ranks expect no type.
        if what == What::BroadcastTensors {
            seen.dtype = Dtype::F32;
        }
        Some(seen)
    }

    /// Makes the call, if this rank takes part. An error from outside the library is a wrong result.
    pub(super) fn run(&self, world: &ProcessGroup, some: Option<&ProcessGroup>) -> rank::Outcome {
        let Some(group) = (if self.some { some } else { Some(world) }) else { return Ok(()) };
        match self.dtype {
            Dtype::F32 => self.of::<f32>(group),
            Dtype::I32 => self.of::<i32>(group),
            Dtype::U64 => self.of::<u64>(group),
        }
    }

    fn of<T: Number>(&self, group: &ProcessGroup) -> rank::Outcome {
        let (rank, ranks, op) = (group.rank(), group.size(), self.op);
        let (count, root, asynchronous) = (self.count, self.root % ranks, self.asynchronous);
        // The data is the same in every call, so that calls are equal if ranks cannot see a difference.
        let of = |rank: usize, len: usize| -> Vec<T> {
            (0..len).map(|index| small(0, ReduceOp::Sum, rank, index)).collect()
        };
        let reduced = |from: usize, len: usize| -> Vec<T> {
            let all = |index| (0..ranks).map(|rank| small(0, ReduceOp::Sum, rank, index)).collect::<Vec<T>>();
            (from..from + len).map(|index| T::reduce(op, &all(index))).collect()
        };
        let concat = |len: usize| -> Vec<T> { (0..ranks).flat_map(|rank| of(rank, len)).collect() };
        let name = format!("{self:?}");
        let registered = self.registered >> rank & 1 != 0;
        let room = |data: Vec<T>| Room::of(group, data, registered);
        match self.what {
            What::AllReduce => {
                let data = of(rank, count);
                if asynchronous {
                    let data = group.begin().all_reduce(data, op)?.wait()?;
                    return expect(&name, &data, &reduced(0, count));
                }
                let mut data = room(data)?;
                group.all_reduce(&mut data[..], op)?;
                expect(&name, &data, &reduced(0, count))
            }
            What::Reduce => {
                let mut data = of(rank, count);
                group.reduce(&mut data, op, root)?;
                let wanted = if rank == root { reduced(0, count) } else { of(rank, count) };
                expect(&name, &data, &wanted)
            }
            What::Broadcast => {
                let data = if rank == root { of(root, count) } else { vec![T::of(99); count] };
                if asynchronous {
                    let data = group.begin().broadcast(data, root)?.wait()?;
                    return expect(&name, &data, &of(root, count));
                }
                let mut data = room(data)?;
                group.broadcast(&mut data[..], root)?;
                expect(&name, &data, &of(root, count))
            }
            What::AllGather => {
                let all = vec![T::of(99); count * ranks];
                if asynchronous {
                    let (_, all) = group.begin().all_gather((of(rank, count), all))?.wait()?;
                    return expect(&name, &all, &concat(count));
                }
                let mut all = room(all)?;
                group.all_gather((&room(of(rank, count))?[..], &mut all[..]))?;
                expect(&name, &all, &concat(count))
            }
            What::Gather => {
                let mut all = vec![T::of(99); if rank == root { count * ranks } else { 0 }];
                group.gather((&of(rank, count), &mut all), root)?;
                expect(&name, &all, &if rank == root { concat(count) } else { Vec::new() })
            }
            What::Scatter => {
                let input = if rank == root { concat(count) } else { Vec::new() };
                let mut block = vec![T::of(99); count];
                group.scatter((&input, &mut block), root)?;
                expect(&name, &block, &of(rank, count))
            }
            What::ReduceScatter => {
                let mut block = room(vec![T::of(99); count])?;
                group.reduce_scatter((&room(of(rank, count * ranks))?[..], &mut block[..]), op)?;
                expect(&name, &block, &reduced(rank * count, count))
            }
            What::AllToAll => {
                let mut all = room(vec![T::of(99); count * ranks])?;
                group.all_to_all((&room(of(rank, count * ranks))?[..], &mut all[..]))?;
                let wanted: Vec<T> = (0..ranks)
                    .flat_map(|from| of(from, count * ranks)[rank * count..(rank + 1) * count].to_vec())
                    .collect();
                expect(&name, &all, &wanted)
            }
            What::Barrier if asynchronous => Ok(group.begin().barrier()?.wait()?),
            What::Barrier => Ok(group.barrier()?),
            What::AllGatherV => {
                let (all, _) = group.all_gather_v(&of(rank, count + rank))?;
                let wanted: Vec<T> = (0..ranks).flat_map(|rank| of(rank, count + rank)).collect();
                expect(&name, &all, &wanted)
            }
            What::BroadcastObject => {
                let value = (rank == root).then(|| words(root, count));
                let got = group.broadcast_object(value, root)?;
                whole(&name, &got, &words(root, count))
            }
            What::AllGatherObject => {
                let all = group.all_gather_object(&words(rank, count))?;
                let wanted: Vec<Vec<u64>> = (0..ranks).map(|rank| words(rank, count)).collect();
                whole(&name, &all, &wanted)
            }
            What::BroadcastTensors => {
                let tensor = Tensor::from_vec(of(root, count), &[count])?;
                let views = [tensor.view()];
                let got = group.broadcast_tensors((rank == root).then_some(&views[..]), root)?;
                match got {
                    Some(got) => whole(&name, &got.len(), &1),
                    None => Ok(()),
                }
            }
            What::Message { from, to } if rank == from && from != to => {
                let data = of(from, count);
                if asynchronous {
                    group.begin().send(data, (to, self.tag))?.wait()?;
                    return Ok(());
                }
                Ok(group.send(&data, (to, self.tag))?)
            }
            What::Message { from, to } if rank == to && from != to => {
                let mut data = vec![T::of(99); count];
                if asynchronous {
                    (data, _) = group.begin().recv(data, (from, self.tag))?.wait()?;
                } else {
                    group.recv(&mut data, (from, self.tag))?;
                }
                expect(&name, &data, &of(from, count))
            }
            What::Message { .. } => Ok(()),
        }
    }
}

/// The object that a rank sends.
fn words(rank: usize, count: usize) -> Vec<u64> {
    (0..count.min(5000)).map(|index| small(0, ReduceOp::Sum, rank, index)).collect()
}

fn whole<T: PartialEq>(name: &str, got: &T, wanted: &T) -> rank::Outcome {
    if got == wanted { Ok(()) } else { Err(format!("{name} is not what was sent").into()) }
}
