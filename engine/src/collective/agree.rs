//! The agreement of ranks before they show elements: whether they share slots, and how they read operands that may be read in place.
//!
//! Only its rank knows which memory is registered. So each rank publishes in its first round where its operands lie. A rank whose memory is
//! plain copies the elements that it shows to its slot; if any rank does, all show chunks that fit a slot. If messages are faster, such a
//! rank publishes that instead, and all send messages; the rank itself need not wait for what the others publish. Mapping may fail because
//! memory is short: if an operand is new to the others, all vote after they have mapped it, and send messages if any rank could not.

use std::sync::Arc;

use smallvec::SmallVec;
use unisono_schedule::{
    CallSchedule, Collective, Rank, Schedule, Shown, Step,
    select::shown::{all_copied, in_place_job},
};
use unisono_transport::{Mapping, Region, RemoteRegion};

use super::rounds::{OperandReads, Other, ShowRounds, copy_slice};
use crate::{
    access,
    comm::{
        Comm, Core, Sharing,
        layout::{self, Front, Offer},
    },
    memory::Operand,
    request::{Operation, ShownPlan},
    stop::Result,
};

/// The matters that ranks still have to agree on.
pub(crate) struct Agreement {
    stage: Stage,
    read: Read,
    /// The place of this rank's memory.
    own: Offer,
    /// What the ranks read, as far as it is known.
    reads: OperandReads,
    /// The round in which the places are published.
    round: u64,
    /// The number of elements of this rank that are copied to its slot, or of other ranks that are done.
    done: usize,
    /// True if the others may have to map an operand first.
    votes: bool,
    /// The schedule whose first elements this rank has copied to its slot, and these elements.
    copied: Option<(Box<dyn Schedule>, Shown)>,
}

/// The memory that others read.
enum Read {
    /// Slots, to which ranks copy all elements.
    Slots,
    /// Operands, by this plan.
    Operands(Arc<ShownPlan>),
    /// The scratch of ranks of a host. Ranks can always read it if they can map it.
    Scratch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The ranks find out whether they share slots.
    Opening,
    /// Another rank has not begun the previous round.
    Entering,
    /// This rank copies elements to its slot.
    Copying,
    /// The others have not all published where their operands lie.
    Meeting,
    /// Their operands are not all mapped.
    Mapping,
    /// The others have not all mapped.
    Voting,
}

/// The result of a pass.
pub(super) enum Agreed {
    /// They have not agreed yet. `moved` is true if something moved.
    Not { moved: bool },
    /// Messages are sent: the ranks do not share slots, or not all memory is mapped.
    Messages,
    /// Ranks copy all elements to slots.
    Copied,
    /// Operands are read in place by this schedule, whose first elements are shown already.
    InPlace(CallSchedule, ShowRounds),
    /// The ranks of this host read each other's scratch, and messages go between hosts.
    Inside(ShowRounds),
}

impl Agreement {
    /// The agreement that an operation needs before it shows elements; `None` if it needs none.
    pub(super) fn begin(comm: &Comm, operation: &Operation) -> Option<Box<Self>> {
        let Some(plan) = &operation.plan.shown else {
            let opens = comm.shared.sharing != Sharing::Yes;
            return opens.then(|| Self::of(Read::Slots, Offer::default(), false, 0..0));
        };
        let (collective, root) = (plan.job.collective, plan.job.root);
        let whole = collective != Collective::Broadcast;
        let reads = |rank: &Rank| *rank != comm.identity.me && (whole || *rank == root);
        let own = offer(comm, operation, plan);
        let is_read = whole || comm.identity.me == root;
        Some(Self::of(Read::Operands(Arc::clone(plan)), own, is_read, (0..operation.ranks).filter(reads)))
    }

    /// The agreement that the ranks of a host need before they read each other's scratch.
    pub(super) fn inside(comm: &Comm, host: &[Rank]) -> Box<Self> {
        let new = |input| Offer { kind: Offer::NEW, input, ..Offer::default() };
        let own = match comm.workspace.scratch.as_ref().map(Region::remote) {
            // There is nothing to read.
            None => new([0; 3]),
            Some(Some(remote)) if remote.mappable => new(remote.words()),
            Some(_) => Offer::default(),
        };
        Self::of(Read::Scratch, own, true, host.iter().copied().filter(|&rank| rank != comm.identity.me))
    }

    fn of(read: Read, own: Offer, is_read: bool, others: impl Iterator<Item = Rank>) -> Box<Self> {
        let offer = Offer::default();
        let others =
            others.map(|rank| Other { rank, offer, input: None, output: None, shown: Shown::NOTHING });
        let copies = own.kind == Offer::STAGED && is_read;
        let (stage, reads) = (Stage::Opening, OperandReads { copies, is_read, others: others.collect() });
        Box::new(Self { stage, read, own, reads, round: 0, done: 0, votes: false, copied: None })
    }

    /// Advances the agreement as far as possible now, by at most a slice.
    pub(super) fn pass(&mut self, core: &mut Core<'_>, operation: &Operation) -> Result<Agreed> {
        loop {
            let before = self.stage;
            if let Some(agreed) = self.step(core, operation)? {
                return Ok(agreed);
            }
            if self.stage != before {
                self.done = 0;
            }
        }
    }

    /// True if the next pass may get further.
    pub(super) fn is_ready(&self, comm: &Comm) -> bool {
        self.stage != Stage::Mapping && self.waits(comm).is_empty()
    }

    /// The ranks that it waits for.
    pub(super) fn waits(&self, comm: &Comm) -> Vec<Rank> {
        match self.stage {
            Stage::Opening => comm.shared.undecided(comm.identity.me).collect(),
            Stage::Entering => comm.shared.behind().collect(),
            Stage::Meeting => {
                let left =
                    self.reads.others.get(self.done..).unwrap_or_default().iter().map(|other| other.rank);
                left.filter(|&rank| !comm.shared.has_published(rank, self.round)).collect()
            }
            Stage::Voting => comm.shared.late(layout::vote(self.round), self.round << 1).collect(),
            Stage::Copying | Stage::Mapping => Vec::new(),
        }
    }

    /// The number of stages that are done.
    pub(super) fn steps(&self) -> u64 {
        self.stage as u64
    }

    /// This rank's regions that others read.
    fn regions(&self, comm: &Comm, operation: &Operation) -> SmallVec<[Region; 2]> {
        match &self.read {
            Read::Slots => SmallVec::new(),
            Read::Operands(plan) => {
                let (input, output) = operands(plan.job.collective);
                let operands = [(input, &operation.input), (output, &operation.output)];
                let read = operands.iter().filter(|(is_read, it)| *is_read && it.memory.registered);
                read.map(|(_, operand)| operand.memory.region.clone()).collect()
            }
            Read::Scratch => comm.workspace.scratch.iter().cloned().collect(),
        }
    }

    /// Does the present stage, and continues with the next one unless it returns something.
    fn step(&mut self, core: &mut Core<'_>, operation: &Operation) -> Result<Option<Agreed>> {
        match self.stage {
            Stage::Opening => match core.open_shared()? {
                Sharing::Yes if matches!(self.read, Read::Slots) => return Ok(Some(Agreed::Copied)),
                Sharing::Yes => self.stage = Stage::Entering,
                Sharing::Opening => return Ok(Some(Agreed::Not { moved: false })),
                Sharing::No => return Ok(Some(Agreed::Messages)),
            },
            Stage::Entering => {
                if core.comm.shared.any_behind() {
                    return Ok(Some(Agreed::Not { moved: false }));
                }
                self.enter(core, operation)?;
                self.stage = Stage::Copying;
            }
            Stage::Copying => {
                if let Some((_, shown)) = &self.copied
                    && self.done < shown.len()
                {
                    let end = copy_slice(core, operation, shown, self.done)?;
                    self.done = end;
                    return Ok((end < shown.len()).then_some(Agreed::Not { moved: true }));
                }
                core.publish_shared(&operation.info(0))?;
                // The others find that out without an answer.
                if self.own.kind == Offer::PLAIN && self.reads.is_read {
                    return Ok(Some(Agreed::Messages));
                }
                self.votes = self.own.kind == Offer::NEW && self.reads.is_read;
                self.stage = Stage::Meeting;
            }
            Stage::Meeting => match self.meet(core, operation)? {
                Some(agreed) => return Ok(Some(agreed)),
                None => self.stage = Stage::Mapping,
            },
            Stage::Mapping => {
                let Some(mapped) = self.map(core, operation)? else {
                    return Ok(Some(Agreed::Not { moved: false }));
                };
                if !self.votes {
                    if !mapped {
                        return Err(core.stop("memory that was mapped before cannot be mapped again"));
                    }
                    return Ok(Some(self.agreed(core, operation)?));
                }
                core.tell_shared(layout::vote(self.round), self.round << 1 | u64::from(mapped))?;
                if !mapped {
                    return Ok(Some(Agreed::Messages));
                }
                self.stage = Stage::Voting;
            }
            Stage::Voting => {
                let (at, refusal) = (layout::vote(self.round), self.round << 1);
                if core.comm.shared.late(at, refusal).next().is_some() {
                    return Ok(Some(Agreed::Not { moved: false }));
                }
                if core.comm.shared.words(at).any(|(_, word)| word == Some(refusal)) {
                    return Ok(Some(Agreed::Messages));
                }
                if self.own.kind == Offer::NEW && self.reads.is_read {
                    for region in self.regions(core.comm, operation) {
                        core.comm.shared.set_mapped_by_all(&region);
                    }
                }
                return Ok(Some(self.agreed(core, operation)?));
            }
        }
        Ok(None)
    }

    /// Reads where the operands of the others lie. `None` if all have published that, and messages are not faster.
    fn meet(&mut self, core: &Core<'_>, operation: &Operation) -> Result<Option<Agreed>> {
        while let Some(other) = self.reads.others.get_mut(self.done) {
            let shared = &core.comm.shared;
            let view = shared.view(other.rank).filter(|_| shared.has_published(other.rank, self.round));
            let Some(view) = view else { return Ok(Some(Agreed::Not { moved: false })) };
            let front: Front = access::load(view, layout::slot(self.round))?;
            let offer: Offer = access::load(view, layout::slot(self.round) + layout::OFFER)?;
            core.comm.agree(operation, other.rank, &front.operation)?;
            if offer.kind == Offer::PLAIN {
                return Ok(Some(Agreed::Messages));
            }
            self.votes |= offer.kind == Offer::NEW;
            other.offer = offer;
            self.done += 1;
        }
        Ok(None)
    }

    /// Begins the round in which ranks publish where their operands lie.
    fn enter(&mut self, core: &mut Core<'_>, operation: &Operation) -> Result<()> {
        let known = |region: &Region| core.comm.shared.is_mapped_by_all(region);
        if self.own.kind == Offer::NEW && self.regions(core.comm, operation).iter().all(known) {
            self.own.kind = Offer::KNOWN;
        }
        let all = matches!(self.read, Read::Scratch) || self.reads.others.len() + 1 == operation.ranks;
        self.round = core.enter_shared(operation, !all)?;
        if let Some(own) = core.comm.shared.own.as_ref() {
            access::store(own, layout::slot(self.round) + layout::OFFER, &self.own)?;
        }
        if let Read::Operands(plan) = &self.read
            && self.reads.copies
        {
            self.copied = Some(cut(core, plan, operation, true)?);
        }
        Ok(())
    }

    /// Maps the operands of the others. `None` if one is not there yet, false if one cannot be mapped.
    fn map(&mut self, core: &mut Core<'_>, operation: &Operation) -> Result<Option<bool>> {
        let mut mapped = true;
        for other in &mut self.reads.others {
            if other.offer.kind == Offer::READABLE {
                continue;
            }
            let (peer, _) = core.port.peer(core.comm.identity.world(other.rank))?;
            let operands = [
                (other.offer.input, &mut other.input, operation.input.len()),
                (other.offer.output, &mut other.output, operation.output.len()),
            ];
            for (words, view, len) in operands {
                let remote = RemoteRegion::from_words(words);
                if view.is_some() || words == [0; 3] {
                    continue;
                }
                if matches!(self.read, Read::Operands(_)) && remote.len != len as u64 {
                    let what = format!("an operand of {} bytes where {len} were due", remote.len);
                    return Err(core.violation(other.rank, what));
                }
                let found = core.port.transport.map(peer, &remote);
                match found.map_err(|error| core.port.broken(error))? {
                    Mapping::Yes(region) => *view = Some(region),
                    Mapping::NotYet => return Ok(None),
                    Mapping::No => mapped = false,
                }
            }
        }
        Ok(Some(mapped))
    }

    /// The schedule that all have agreed on.
    fn agreed(&mut self, core: &Core<'_>, operation: &Operation) -> Result<Agreed> {
        let reads = std::mem::take(&mut self.reads);
        let plan = match &self.read {
            Read::Slots => return Ok(Agreed::Copied),
            Read::Operands(plan) => plan,
            Read::Scratch => return Ok(Agreed::Inside(ShowRounds::inside(reads))),
        };
        let schedule = match self.copied.take() {
            Some((schedule, _)) if reads.others.iter().all(Other::copies) => CallSchedule::Made(schedule),
            None if !reads.others.iter().any(Other::copies) => CallSchedule::Recorded(plan.whole.clone()),
            // All show the same first elements whether all copy or not.
            _ => CallSchedule::Made(cut(core, plan, operation, false)?.0),
        };
        // The calls of those that this rank reads from have been compared.
        Ok(Agreed::InPlace(schedule, ShowRounds::in_place(reads)))
    }
}

/// The schedule in which ranks show as many elements at once as fit a slot, after its first step, and the elements that this step shows.
/// `all`: true if all ranks copy their elements.
fn cut(
    core: &Core<'_>,
    shown: &ShownPlan,
    operation: &Operation,
    all: bool,
) -> Result<(Box<dyn Schedule>, Shown)> {
    let ShownPlan { plan, job, plain, .. } = shown;
    let size = operation.plan.size;
    let (plan, job) = match all {
        true => all_copied(plan, job, size, plain.copies),
        false => (*plan, in_place_job(job, size, Some(plain.copies))),
    };
    let mut schedule = plan.make(&job);
    match schedule.next(0) {
        Some(Step::Show { shown }) => Ok((schedule, shown)),
        step => Err(core.stop(format!("a schedule that should show elements begins with {step:?}"))),
    }
}

/// True, for a rank's input and for its output, if others read it.
const fn operands(collective: Collective) -> (bool, bool) {
    match collective {
        Collective::Broadcast => (false, true),
        Collective::AllReduce => (true, true),
        _ => (true, false),
    }
}

/// The places of this rank's operands that others read; plain if they can be neither mapped nor read, and messages are faster than slots.
fn offer(comm: &Comm, operation: &Operation, plan: &ShownPlan) -> Offer {
    let collective = plan.job.collective;
    let part = |is_read: bool, operand: &Operand| {
        if !is_read {
            return Some([0; 3]);
        }
        let (remote, _) = operand.memory.remote()?;
        remote.mappable.then(|| remote.words())
    };
    let apart =
        operation.input.pieces.is_none() && operation.output.pieces.is_none() && !operation.access.overlaps();
    if !apart {
        return Offer::default();
    }
    let (input, output) = operands(collective);
    match part(input, &operation.input).zip(part(output, &operation.output)) {
        Some((input, output)) => Offer { kind: Offer::NEW, input, output },
        None if plan.plain.reads && comm.shared.reads => {
            let part = |is_read: bool, operand: &Operand| match is_read {
                true => [operand.memory.base().addr() as u64, operand.len() as u64, 0],
                false => [0; 3],
            };
            let (input, output) = (part(input, &operation.input), part(output, &operation.output));
            Offer { kind: Offer::READABLE, input, output }
        }
        None if plan.plain.copies > 0 => Offer { kind: Offer::STAGED, ..Offer::default() },
        None => Offer::default(),
    }
}
