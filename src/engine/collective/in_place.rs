//! Runs a large operation in place, on registered memory that the other ranks of the host have mapped: each reads what it needs of the
//! others' operands where they lie, and writes to its own output alone. There is no message and no copy but that into the output.
//!
//! Which memory is registered only its rank knows. So each rank publishes where its operands lie, or that they cannot be mapped; if any
//! cannot, all run the schedule. A rank whose memory is plain need not wait to know that. Mapping may fail for want of memory: where an
//! operand is new to the others, all vote after they have mapped it, and run the schedule if any could not.

use std::ops::Range;

use smallvec::SmallVec;
use unisono_schedule::{Collective, Rank, SLICE, partition};
use unisono_transport::{Mapping, Region, RemoteRegion};

use super::one_shot::Passed;
use crate::{
    buffer::{self, Bytes, Operand, SpanError},
    engine::{
        access,
        comm::{Comm, Core, Sharing, expose_part},
        request::Operation,
        stop::Stop,
        wire::slots::{self, Front, Offer},
    },
};

/// An operation in place.
pub(crate) struct InPlace {
    collective: Collective,
    stage: Stage,
    /// The number of the operation among those that share slots.
    number: u64,
    offer: Offer,
    /// The other ranks whose operands this one reads, with these operands once they are mapped.
    others: SmallVec<[Other; 8]>,
    /// Of the ranks that are waited for, or of the copies of a stage: the number that are done, and of the bytes of the next one.
    done: (usize, usize),
    /// Whether the others may have to map an operand first.
    votes: bool,
}

struct Other {
    rank: Rank,
    offer: Offer,
    input: Option<Region>,
    output: Option<Region>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It is being found out whether the ranks share slots.
    Opening,
    /// Another rank has not entered the operation before.
    Entering,
    /// The others have not all published where their operands lie.
    Meeting,
    /// Their operands are not all mapped.
    Mapping,
    /// The others have not all mapped.
    Voting,
    /// This rank reduces its part.
    Reducing,
    /// The others have not all reduced theirs.
    Reduced,
    /// This rank copies what others have for it.
    Copying,
    /// The others still read this rank's operands.
    Ending,
}

/// A copy: from a rank's input or output, bytes of it, to a place in the output.
struct Copy {
    from: Rank,
    bytes: Range<usize>,
    to: usize,
}

impl InPlace {
    /// Begins an operation, if it may be one.
    pub(super) fn begin(comm: &Comm, operation: &Operation) -> Option<Self> {
        let collective = operation.signature.collective().filter(|_| operation.in_place)?;
        if !comm.shared.may_share() {
            return None;
        }
        let root = operation.signature.root as usize;
        let reads = |rank: &Rank| *rank != comm.me && (collective != Collective::Broadcast || *rank == root);
        let other = |rank| Other { rank, offer: Offer::default(), input: None, output: None };
        let others = (0..operation.ranks).filter(reads).map(other).collect();
        let offer = offer(collective, operation);
        let (stage, done) = (Stage::Opening, (0, 0));
        Some(Self { collective, stage, number: 0, offer, others, done, votes: false })
    }

    /// Does what can be done now: at most a slice.
    pub(super) fn pass(&mut self, core: &mut Core<'_>, operation: &Operation) -> Result<Passed, Stop> {
        loop {
            let before = self.stage;
            if let Some(passed) = self.step(core, operation)? {
                return Ok(passed);
            }
            if self.stage != before {
                self.done = (0, 0);
            }
        }
    }

    /// Does the present stage, and goes on to the next one unless something is returned.
    fn step(&mut self, core: &mut Core<'_>, operation: &Operation) -> Result<Option<Passed>, Stop> {
        let idle = Ok(Some(Passed::Idle));
        match self.stage {
            Stage::Opening => match core.open_shared()? {
                Sharing::Yes => self.stage = Stage::Entering,
                Sharing::Opening => return idle,
                Sharing::No => return Ok(Some(Passed::NoSlots)),
            },
            Stage::Entering => {
                if core.comm.shared.behind().next().is_some() {
                    return idle;
                }
                if self.offer.kind != Offer::PLAIN && self.are_known(core.comm, operation) {
                    self.offer.kind = Offer::KNOWN;
                }
                let all = self.others.len() + 1 == operation.ranks;
                let unchecked = (!all).then_some((operation.number, operation.signature));
                self.number = core.enter_shared(&operation.info(0), unchecked)?;
                if let Some(own) = core.comm.shared.own() {
                    access::store(own, slots::slot(self.number) + slots::OFFER, &self.offer)?;
                }
                core.publish_shared()?;
                // The others find that out without an answer.
                if self.offer.kind == Offer::PLAIN && self.is_read(core.comm, operation) {
                    return Ok(Some(Passed::NoSlots));
                }
                self.votes = self.offer.kind == Offer::NEW && self.is_read(core.comm, operation);
                self.stage = Stage::Meeting;
            }
            Stage::Meeting => {
                while let Some(other) = self.others.get_mut(self.done.0) {
                    if !core.comm.shared.has_published(other.rank, self.number) {
                        return idle;
                    }
                    let Some(view) = core.comm.shared.view(other.rank) else { return idle };
                    let front: Front = access::load(view, slots::slot(self.number))?;
                    other.offer = access::load(view, slots::slot(self.number) + slots::OFFER)?;
                    let from = (other.rank, core.comm.world(other.rank));
                    operation.agree(core.port.me, from, &front.operation).map_err(Stop::from)?;
                    match other.offer.kind {
                        Offer::PLAIN => return Ok(Some(Passed::NoSlots)),
                        kind => self.votes |= kind == Offer::NEW,
                    }
                    self.done.0 += 1;
                }
                if operation.fixed && !self.others.is_empty() {
                    let call = operation.signature.call();
                    return Err(core.stop(format!("{call} writes to memory that is only read")));
                }
                self.stage = Stage::Mapping;
            }
            Stage::Mapping => {
                let mut refused = false;
                let len = match self.collective {
                    Collective::Broadcast => operation.output.len(),
                    _ => operation.input.len(),
                } as u64;
                for other in &mut self.others {
                    let peer = core.port.peer(core.comm.world(other.rank))?;
                    for (words, view) in
                        [(other.offer.input, &mut other.input), (other.offer.output, &mut other.output)]
                    {
                        let remote = RemoteRegion::from_words(words);
                        if view.is_some() || words == [0; 3] {
                            continue;
                        }
                        if remote.len != len {
                            let what = format!("an operand of {} bytes where {len} were due", remote.len);
                            return Err(core.violation(other.rank, what));
                        }
                        let mapped = core.port.transport.map(peer, &remote);
                        match mapped.map_err(|error| core.port.broken(error))? {
                            Mapping::Yes(region) => *view = Some(region),
                            Mapping::NotYet => return idle,
                            Mapping::No => refused = true,
                        }
                    }
                }
                if !self.votes {
                    if refused {
                        return Err(
                            core.stop("memory that was mapped before cannot be mapped again".to_owned())
                        );
                    }
                    self.stage = self.works();
                } else {
                    core.tell_shared(slots::vote(self.number), self.number << 1 | u64::from(!refused))?;
                    if refused {
                        return Ok(Some(Passed::NoSlots));
                    }
                    self.stage = Stage::Voting;
                }
            }
            Stage::Voting => {
                let (at, refusal) = (slots::vote(self.number), self.number << 1);
                if core.comm.shared.late(at, refusal).next().is_some() {
                    return idle;
                }
                if core.comm.shared.has_told(at, refusal) {
                    return Ok(Some(Passed::NoSlots));
                }
                if self.is_read(core.comm, operation) {
                    for region in self.read(operation) {
                        core.comm.shared.set_mapped_by_all(region);
                    }
                }
                self.stage = self.works();
            }
            Stage::Reducing => {
                let end = self.reduce(core.comm, operation);
                if !end.map_err(|error| self.broken(core, operation, &error))? {
                    return Ok(Some(Passed::Moved));
                }
                if self.collective == Collective::ReduceScatter {
                    core.tell_shared(slots::DONE, self.number)?;
                    self.stage = Stage::Ending;
                } else {
                    core.tell_shared(slots::REDUCED, self.number)?;
                    self.stage = Stage::Reduced;
                }
            }
            Stage::Reduced => {
                if core.comm.shared.late(slots::REDUCED, self.number).next().is_some() {
                    return idle;
                }
                self.stage = Stage::Copying;
            }
            Stage::Copying => {
                let end = self.copy(core.comm, operation);
                if !end.map_err(|error| self.broken(core, operation, &error))? {
                    return Ok(Some(Passed::Moved));
                }
                core.tell_shared(slots::DONE, self.number)?;
                self.stage = Stage::Ending;
            }
            Stage::Ending => {
                let read = self.is_read(core.comm, operation);
                if read && core.comm.shared.late(slots::DONE, self.number).next().is_some() {
                    return idle;
                }
                return Ok(Some(Passed::Ended));
            }
        }
        Ok(None)
    }

    fn broken(&self, core: &Core<'_>, operation: &Operation, error: &SpanError) -> Stop {
        core.stop(format!("{} in place: {error}", operation.signature.call()))
    }

    /// Whether others read this rank's operands.
    fn is_read(&self, comm: &Comm, operation: &Operation) -> bool {
        self.collective != Collective::Broadcast || comm.me == operation.signature.root as usize
    }

    /// The registered memory that others read.
    fn read<'o>(&self, operation: &'o Operation) -> impl Iterator<Item = &'o Region> {
        let output = matches!(self.collective, Collective::AllReduce | Collective::Broadcast);
        let input = self.collective != Collective::Broadcast;
        let operands = [(input, &operation.input), (output, &operation.output)];
        operands.into_iter().filter_map(|(is_read, operand)| {
            operand.registered.as_ref().filter(|_| is_read).map(|(region, _)| region)
        })
    }

    /// Whether the others have mapped the memory of this rank that they read.
    fn are_known(&self, comm: &Comm, operation: &Operation) -> bool {
        self.read(operation).all(|region| comm.shared.is_mapped_by_all(region))
    }

    /// The first stage of the work.
    fn works(&self) -> Stage {
        match self.collective {
            Collective::AllReduce | Collective::ReduceScatter => Stage::Reducing,
            _ => Stage::Copying,
        }
    }

    /// The bytes of a rank's input that a rank reduces; the same of its output in an all_reduce.
    fn part(&self, operation: &Operation, rank: Rank) -> Range<usize> {
        let (count, size) = (count(operation), operation.size);
        let part = match self.collective {
            Collective::ReduceScatter => rank * count..(rank + 1) * count,
            // Parts begin at cache lines.
            _ => {
                let line = (LINE / size).max(1);
                let lines = partition::block(count.div_ceil(line), operation.ranks, rank);
                (lines.start * line).min(count)..(lines.end * line).min(count)
            }
        };
        part.start * size..part.end * size
    }

    /// Reduces a slice of this rank's part. True at its end.
    fn reduce(&mut self, comm: &Comm, operation: &Operation) -> Result<bool, SpanError> {
        let part = self.part(operation, comm.me);
        let from = part.start + self.done.1;
        let len = (part.end - from).min(SLICE);
        let own = Bytes::new(&operation.input.region, from, len)?;
        let to = if self.collective == Collective::ReduceScatter { self.done.1 } else { from };
        let into = Bytes::new(&operation.output.region, to, len)?;
        let mut all: SmallVec<[Bytes<'_>; 16]> = SmallVec::new();
        let mut others = self.others.iter();
        for rank in 0..operation.ranks {
            let theirs = if rank == comm.me { None } else { others.next().and_then(|it| it.input.as_ref()) };
            all.push(theirs.map_or(Ok(own), |theirs| Bytes::new(theirs, from, len))?);
        }
        match all[..] {
            [a, b] if !operation.average && !operation.signature.is_ordered() => {
                buffer::reduce(&operation.kernel, a, b, into)?;
            }
            _ => buffer::total(&operation.kernel, &all, into)?,
        }
        self.done.1 += len;
        Ok(from + len >= part.end)
    }

    /// Copies a slice of what others have for this rank. True at the end.
    fn copy(&mut self, comm: &Comm, operation: &Operation) -> Result<bool, SpanError> {
        let mut left = SLICE;
        while let Some(copy) = self.copies(comm, operation, self.done.0) {
            let from = copy.bytes.start + self.done.1;
            let len = (copy.bytes.end - from).min(left);
            let theirs = self.others.iter().find(|other| other.rank == copy.from);
            let source = match (theirs, self.collective) {
                (None, _) => Some(&operation.input.region),
                (Some(other), Collective::AllReduce) => other.output.as_ref(),
                (Some(other), _) => other.input.as_ref(),
            };
            if let Some(source) = source {
                let into = Bytes::new(&operation.output.region, copy.to + self.done.1, len)?;
                buffer::copy(Bytes::new(source, from, len)?, into)?;
            }
            left -= len;
            self.done.1 += len;
            if from + len >= copy.bytes.end {
                self.done = (self.done.0 + 1, 0);
            }
            if left == 0 {
                return Ok(self.copies(comm, operation, self.done.0).is_none());
            }
        }
        Ok(true)
    }

    /// The copies of this rank, by number. They begin with its own and that of the next rank, so that not all read from one.
    fn copies(&self, comm: &Comm, operation: &Operation, number: usize) -> Option<Copy> {
        let ranks = operation.ranks;
        let from = (comm.me + number) % ranks;
        let block = count(operation) * operation.size;
        if self.collective == Collective::Broadcast {
            let other = self.others.get(number)?;
            return Some(Copy { from: other.rank, bytes: 0..block, to: 0 });
        }
        (number < ranks).then(|| match self.collective {
            // Its own part lies there.
            Collective::AllReduce if from == comm.me => Copy { from, bytes: 0..0, to: 0 },
            Collective::AllReduce => {
                let bytes = self.part(operation, from);
                Copy { from, to: bytes.start, bytes }
            }
            Collective::AllToAll => {
                Copy { from, bytes: comm.me * block..(comm.me + 1) * block, to: from * block }
            }
            _ => Copy { from, bytes: 0..block, to: from * block },
        })
    }

    /// Whether the next pass may get further.
    pub(super) fn is_ready(&self, comm: &Comm) -> bool {
        self.stage != Stage::Mapping && self.waits(comm).is_empty()
    }

    /// The ranks that it waits for.
    pub(super) fn waits(&self, comm: &Comm) -> Vec<Rank> {
        let late = |at, least| comm.shared.late(at, least).collect();
        match self.stage {
            Stage::Opening => comm.shared.undecided(comm.me).collect(),
            Stage::Entering => comm.shared.behind().collect(),
            Stage::Meeting => {
                let left = self.others.get(self.done.0..).unwrap_or_default().iter().map(|other| other.rank);
                left.filter(|&rank| !comm.shared.has_published(rank, self.number)).collect()
            }
            Stage::Voting => late(slots::vote(self.number), self.number << 1),
            Stage::Reduced => late(slots::REDUCED, self.number),
            Stage::Ending => late(slots::DONE, self.number),
            Stage::Mapping | Stage::Reducing | Stage::Copying => Vec::new(),
        }
    }

    /// The number of stages that are done.
    pub(super) fn steps(&self) -> u64 {
        self.stage as u64
    }
}

/// The bytes of a cache line.
const LINE: usize = 64;

/// The number of elements of the operation; its caller has shown that it can be addressed.
fn count(operation: &Operation) -> usize {
    usize::try_from(operation.signature.count).unwrap_or(0)
}

/// Where this rank's operands lie that others read; plain if they cannot be mapped.
fn offer(collective: Collective, operation: &Operation) -> Offer {
    let part = |operand: &Operand| {
        let (region, at) = operand.registered.as_ref().filter(|_| operand.pieces.is_none())?;
        expose_part(region, *at, operand.len()).map(|(remote, _)| remote).filter(|remote| remote.mappable)
    };
    let apart = operation.input.pieces.is_none() && operation.output.pieces.is_none() && !operation.overlaps;
    let input = match collective {
        Collective::Broadcast => &operation.output,
        _ => &operation.input,
    };
    let output = if collective == Collective::AllReduce { part(&operation.output) } else { Some(NOWHERE) };
    match part(input).filter(|_| apart).zip(output) {
        Some((input, output)) => Offer { kind: Offer::NEW, input: input.words(), output: output.words() },
        None => Offer::default(),
    }
}

/// No memory.
const NOWHERE: RemoteRegion = RemoteRegion { base: 0, key: 0, len: 0, mappable: false };
