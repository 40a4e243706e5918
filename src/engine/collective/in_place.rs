//! Runs an operation in place, on memory that the other ranks of the host have mapped: each reads what it needs of the others' operands
//! where they lie, and writes to its own memory alone. There is no message and no copy but that into the output.
//!
//! Which memory is registered only its rank knows. So each rank publishes where its operands lie. A rank whose memory is plain copies its
//! input to its slot, and the others read it there; what does not fit goes in [rounds](Round), each of which has a slot. Where
//! schedules are faster, it publishes that instead, and all run the schedule; that rank need not wait to know it. Mapping may fail for
//! want of memory: where an operand is new to the others, all vote after they have mapped it, and run the schedule if any could not.

use std::ops::Range;

use smallvec::SmallVec;
use unisono_schedule::{Collective, Rank, SLICE};
use unisono_transport::{Mapping, Region, RemoteRegion};

use super::{
    one_shot::{self, Passed, Ranks},
    round::Round,
};
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
    round: Round,
    /// The number of the round among the operations that share slots.
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
    /// This rank copies its input to its slot.
    Staging,
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
        let block = usize::try_from(operation.signature.count).ok()?.checked_mul(operation.size)?;
        let round = Round::new(collective, (comm.me, operation.ranks), block);
        let offer = offer(collective, operation);
        let (stage, done) = (Stage::Opening, (0, 0));
        let mut in_place = Self { collective, stage, round, number: 0, offer, others, done, votes: false };
        if in_place.is_staged(comm, operation) {
            in_place.round.cut(operation.staged);
        }
        Some(in_place)
    }

    /// Whether this rank copies its input to its slot.
    fn is_staged(&self, comm: &Comm, operation: &Operation) -> bool {
        self.offer.kind == Offer::STAGED && self.is_read(comm, operation)
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
                if self.offer.kind == Offer::NEW && self.are_known(core.comm, operation) {
                    self.offer.kind = Offer::KNOWN;
                }
                let all = self.others.len() + 1 == operation.ranks;
                let unchecked = (!all).then_some((operation.number, operation.signature));
                self.number = core.enter_shared(&operation.info(0), unchecked)?;
                if let Some(own) = core.comm.shared.own() {
                    access::store(own, slots::slot(self.number) + slots::OFFER, &self.offer)?;
                }
                self.stage = Stage::Staging;
            }
            Stage::Staging => {
                if self.is_staged(core.comm, operation) {
                    core.comm.shared.stages(self.round.in_slot(self.round.blocks() - 1, self.round.len()));
                    let end = self.stage_input(core.comm, operation);
                    if !end.map_err(|error| self.broken(core, operation, &error))? {
                        return Ok(Some(Passed::Moved));
                    }
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
                        Offer::PLAIN if self.round.index() == 0 => return Ok(Some(Passed::NoSlots)),
                        Offer::PLAIN => {
                            let (rank, what) =
                                (other.rank, "plain memory in the middle of an operation in place");
                            return Err(core.violation(rank, what.to_owned()));
                        }
                        Offer::STAGED if self.round.index() == 0 => self.round.cut(operation.staged),
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
                let len = given(self.collective, operation).len() as u64;
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
                if self.offer.kind == Offer::NEW && self.is_read(core.comm, operation) {
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
                    self.stage = self.ends(core)?;
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
                self.stage = self.ends(core)?;
            }
            Stage::Ending => {
                if let Some(next) = self.round.next() {
                    (self.round, self.stage) = (next, Stage::Entering);
                    return Ok(None);
                }
                // What is staged is written over no sooner than in the operation after the next, which no rank enters before all have
                // ended this one.
                let waits = self.offer.kind != Offer::STAGED && self.is_read(core.comm, operation);
                if waits && core.comm.shared.late(slots::DONE, self.number).next().is_some() {
                    return idle;
                }
                return Ok(Some(Passed::Ended));
            }
        }
        Ok(None)
    }

    /// Tells the others that this rank no longer reads their operands, if any of them waits for that.
    fn ends(&self, core: &mut Core<'_>) -> Result<Stage, Stop> {
        let awaited = self.others.iter().any(|other| other.offer.kind != Offer::STAGED);
        if awaited && self.round.next().is_none() {
            core.tell_shared(slots::DONE, self.number)?;
        }
        Ok(Stage::Ending)
    }

    /// Copies a slice of this rank's input to its slot. True at the end.
    fn stage_input(&mut self, comm: &Comm, operation: &Operation) -> Result<bool, SpanError> {
        let (Some(own), input) = (comm.shared.own(), &given(self.collective, operation).region) else {
            return Ok(true);
        };
        let (blocks, mut left) = (self.round.blocks(), SLICE);
        while self.done.0 < blocks && left > 0 {
            let (block, at) = self.done;
            let len = (self.round.len() - at).min(left);
            let from = Bytes::new(input, self.round.in_operand(block, at), len)?;
            buffer::copy(from, self.staged(own, block, at, len)?)?;
            left -= len;
            self.done = if at + len < self.round.len() { (block, at + len) } else { (block + 1, 0) };
        }
        Ok(self.done.0 == blocks)
    }

    /// Bytes of the round in a block of what a rank has staged in these slots.
    fn staged<'s>(
        &self,
        slots: &'s Region,
        block: usize,
        at: usize,
        len: usize,
    ) -> Result<Bytes<'s>, SpanError> {
        Bytes::new(slots, slots::staged(self.number) + self.round.in_slot(block, at), len)
    }

    /// Bytes of the round in a block of another rank's operand.
    fn theirs<'c>(
        &'c self,
        comm: &'c Comm,
        other: &'c Other,
        mapped: Option<&'c Region>,
        (block, bytes): (usize, Range<usize>),
    ) -> Result<Bytes<'c>, SpanError> {
        let len = bytes.len();
        let nowhere = || SpanError::Bounds { offset: bytes.start, len, place: 0 };
        if other.offer.kind == Offer::STAGED {
            let view = comm.shared.view(other.rank).ok_or_else(nowhere)?;
            return self.staged(view, block, bytes.start, len);
        }
        Bytes::new(mapped.ok_or_else(nowhere)?, self.round.in_operand(block, bytes.start), len)
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

    /// Reduces a slice of this rank's part. True at its end.
    fn reduce(&mut self, comm: &Comm, operation: &Operation) -> Result<bool, SpanError> {
        let (part, block) = (self.round.part(comm.me), self.round.reduced_block());
        let from = part.start + self.done.1;
        let bytes = from..from + (part.end - from).min(SLICE);
        let own = Bytes::new(&operation.input.region, self.round.in_operand(block, from), bytes.len())?;
        let into = match comm.shared.own() {
            // Nobody else reads this part of the input there.
            Some(own) if self.reduces_in_slot() => self.staged(own, 0, from, bytes.len())?,
            _ => Bytes::new(&operation.output.region, self.round.in_operand(0, from), bytes.len())?,
        };
        let mut all = Ranks::new();
        let mut others = self.others.iter();
        for rank in 0..operation.ranks {
            let other = if rank == comm.me { None } else { others.next() };
            let theirs = other.map(|it| self.theirs(comm, it, it.input.as_ref(), (block, bytes.clone())));
            all.push(theirs.unwrap_or(Ok(own))?);
        }
        one_shot::reduce(operation, &all, into)?;
        drop(all);
        self.done.1 += bytes.len();
        Ok(bytes.end >= part.end)
    }

    /// Whether this rank's part of an all_reduce is reduced to where the others read it, in its slot, and copied from there.
    fn reduces_in_slot(&self) -> bool {
        self.collective == Collective::AllReduce && self.offer.kind == Offer::STAGED
    }

    /// Copies a slice of what others have for this rank. True at the end.
    fn copy(&mut self, comm: &Comm, operation: &Operation) -> Result<bool, SpanError> {
        let (root, mut left) = (operation.signature.root as usize, SLICE);
        while let Some(copy) = self.round.copy(self.done.0, root) {
            let at = copy.bytes.start + self.done.1;
            let len = (copy.bytes.end - at).min(left);
            let other = self.others.iter().find(|other| other.rank == copy.from);
            let source = match (other, comm.shared.own()) {
                (Some(other), _) => {
                    let reduced = self.collective == Collective::AllReduce;
                    let mapped = if reduced { other.output.as_ref() } else { other.input.as_ref() };
                    Some(self.theirs(comm, other, mapped, (copy.block, at..at + len))?)
                }
                (None, Some(own)) if self.reduces_in_slot() => Some(self.staged(own, 0, at, len)?),
                // Its own part lies there.
                (None, _) if self.collective == Collective::AllReduce => None,
                (None, _) => {
                    Some(Bytes::new(&operation.input.region, self.round.in_operand(copy.block, at), len)?)
                }
            };
            if let Some(source) = source {
                buffer::copy(source, Bytes::new(&operation.output.region, copy.to + self.done.1, len)?)?;
                left -= len;
            }
            self.done.1 += len;
            if at + len >= copy.bytes.end {
                self.done = (self.done.0 + 1, 0);
            }
            if left == 0 {
                break;
            }
        }
        Ok(self.round.copy(self.done.0, root).is_none())
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
            Stage::Staging | Stage::Mapping | Stage::Reducing | Stage::Copying => Vec::new(),
        }
    }

    /// The number of stages that are done.
    pub(super) fn steps(&self) -> u64 {
        self.round.index() as u64 * (Stage::Ending as u64 + 1) + self.stage as u64
    }
}

/// The operand that a rank gives to the others.
fn given(collective: Collective, operation: &Operation) -> &Operand {
    match collective {
        Collective::Broadcast => &operation.output,
        _ => &operation.input,
    }
}

/// Where this rank's operands lie that others read; plain if they cannot be mapped and the schedule is faster than slots.
fn offer(collective: Collective, operation: &Operation) -> Offer {
    let part = |operand: &Operand| {
        let (region, at) = operand.registered.as_ref().filter(|_| operand.pieces.is_none())?;
        expose_part(region, *at, operand.len()).map(|(remote, _)| remote).filter(|remote| remote.mappable)
    };
    let apart = operation.input.pieces.is_none() && operation.output.pieces.is_none() && !operation.overlaps;
    if !apart {
        return Offer::default();
    }
    let input = given(collective, operation);
    let output = if collective == Collective::AllReduce { part(&operation.output) } else { Some(NOWHERE) };
    match part(input).zip(output) {
        Some((input, output)) => Offer { kind: Offer::NEW, input: input.words(), output: output.words() },
        None if operation.staged > 0 => Offer { kind: Offer::STAGED, ..Offer::default() },
        None => Offer::default(),
    }
}

/// No memory.
const NOWHERE: RemoteRegion = RemoteRegion { base: 0, key: 0, len: 0, mappable: false };
