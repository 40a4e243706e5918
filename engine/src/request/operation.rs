//! One collective operation as the engine runs it, and the part of it that ranks compare.

use std::{sync::Arc, time::Instant};

use unisono_core::{
    error::Failure,
    position::CallRecord,
    reduce::{Kernel, ReduceOp},
};
use unisono_schedule::{CallSchedule, Collective, Job, Rank, algorithm::Plan};

use crate::{
    call::{Signature, narrow},
    memory::{Borrowed, Operand, Overlap},
    stop::{Halt, StalledOperation, Stop},
    wire::{CollectiveHeader, FlowHeader, low},
};

/// One operation. It is moved as rarely as possible before it begins: in a small call each move takes a hundredth of the time.
pub struct Operation {
    /// Its number in the group, from 0; it gets the number when it begins.
    pub number: u64,
    /// The group that runs it.
    pub group: OperationGroup,
    /// How it is run.
    pub plan: CallPlan,
    /// Its steps on this rank.
    pub schedule: CallSchedule,
    /// What it reads.
    pub input: Operand,
    /// What it writes.
    pub output: Operand,
    /// The ranks that may write to the output.
    pub access: OutputAccess,
    /// The lengths of blocks, if each two ranks know only those of their blocks for each other.
    pub pairs: Option<Box<Pairs>>,
}

/// The group that runs an operation.
#[derive(Clone, Debug, Default)]
pub struct OperationGroup {
    /// Its name in errors; `None` for the world.
    pub name: Option<Arc<str>>,
    /// Its id, the same on all members; 0 for the world.
    pub id: u64,
    /// The number of its ranks.
    pub ranks: usize,
}

/// How a collective is run: what follows from the call's arguments alone, so that it serves each call with these arguments.
#[derive(Clone)]
pub struct CallPlan {
    /// The collective.
    pub collective: Collective,
    /// What all ranks must call alike.
    pub signature: Signature,
    /// How to reduce; for collectives that do not reduce, any kernel of the dtype.
    pub kernel: Kernel,
    /// True if a finished sum is to be divided by the number of ranks.
    pub average: bool,
    /// Bytes of an element.
    pub size: usize,
    /// True if the schedule needs peers to write into the output.
    pub long: bool,
    /// How its ranks read each other's operands in place, if all share memory.
    pub shown: Option<Arc<ShownPlan>>,
}

/// The ranks that may write to the output of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputAccess {
    /// This rank, and peers too.
    All,
    /// No rank: it is the input, and only this rank gives it.
    Nobody,
    /// This rank alone: the input of a collective that exchanges blocks lies there and is still needed.
    ThisRank,
    /// This rank, and peers too: the input of a collective that exchanges blocks lies there, so all blocks of it but this rank's own are
    /// put aside first. Blocks are equally long then.
    AllAfterCopy,
}

impl CallPlan {
    /// The plan of a collective; `long`: true if its schedule needs peers to write into the output. It shows no operands in place.
    pub fn new(collective: Collective, signature: Signature, kernel: Kernel, long: bool) -> Self {
        let (average, size) = (kernel.op() == ReduceOp::Avg, kernel.dtype().size());
        Self { collective, signature, kernel, average, size, long, shown: None }
    }

    /// The same collective, whose ranks read each other's operands in place if all share memory.
    #[must_use]
    pub fn showing(mut self, shown: ShownPlan) -> Self {
        self.signature = self.signature.in_place(shown.copies);
        self.shown = Some(Arc::new(shown));
        self
    }
}

impl OutputAccess {
    /// The ranks that may write to the output of an operation with this plan and this memory.
    #[inline]
    pub fn of(plan: &CallPlan, memory: &Borrowed<'_>) -> Self {
        let exchanges = plan.collective.exchanges() && memory.overlap != Overlap::Apart;
        match (memory.fixed, exchanges) {
            (true, _) => Self::Nobody,
            (false, false) => Self::All,
            (false, true) if plan.long => Self::AllAfterCopy,
            (false, true) => Self::ThisRank,
        }
    }

    /// True if input and output overlap in a collective that exchanges blocks.
    pub(crate) fn overlaps(self) -> bool {
        matches!(self, Self::ThisRank | Self::AllAfterCopy)
    }

    /// True if peers may write there.
    pub(crate) fn is_open(self) -> bool {
        matches!(self, Self::All | Self::AllAfterCopy)
    }
}

/// How ranks that share memory read each other's operands where they lie. Elements of other memory are copied to slots.
pub struct ShownPlan {
    /// The plan that shows them.
    pub plan: &'static Plan,
    /// The job, whose elements are shown in place.
    pub job: Job<'static>,
    /// The most bytes that a rank copies to a slot at once, a power of two; 0 if messages are faster than copies.
    pub copies: usize,
}

/// The lengths of blocks in elements, by rank of the group: of those that this rank sends, and of those that it gets. 0 where there
/// is no block.
pub struct Pairs {
    /// To each rank.
    pub sends: Vec<usize>,
    /// From each rank.
    pub gets: Vec<usize>,
}

impl Operation {
    /// Why the engine stops at it. It was submitted at `since`.
    pub(crate) fn halt(&self, stop: Stop, since: Instant) -> Halt {
        let OperationGroup { name: group, id, .. } = self.group.clone();
        let stalled = StalledOperation::new(self.plan.signature, since);
        Halt::at(stop, StalledOperation { number: Some(self.number), group, id, ..stalled })
    }

    /// Its number as headers carry it: the low 32 bits.
    pub(crate) fn op(&self) -> u32 {
        low(self.number)
    }

    /// The operation as it is compared with that of rank `to` of the group.
    pub(crate) fn info(&self, to: Rank) -> Signature {
        let sent = self.pairs.as_ref().map(|pairs| pairs.sends.get(to).map_or(0, |&len| len as u64));
        let count = sent.unwrap_or(self.plan.signature.count);
        Signature { number: self.op(), count, ..self.plan.signature }
    }

    /// The header of a message of `len` elements to rank `to` of the group.
    pub(crate) fn header(&self, flow: FlowHeader, to: Rank, len: usize) -> CollectiveHeader {
        CollectiveHeader { flow, len: narrow(len), operation: self.info(to) }
    }

    fn group_name(&self) -> Box<str> {
        self.group.name.as_deref().unwrap_or_default().into()
    }

    /// Compares the operation of a peer, rank `from` of the group and `world` of the world, with this one of rank `me` of the world.
    pub(crate) fn agree(
        &self,
        me: Rank,
        (from, world): (Rank, Rank),
        info: &Signature,
    ) -> Result<(), Failure> {
        let mut theirs = info.unnumbered();
        let number = self.op();
        if info.number != number {
            // The full number is the one nearest to ours.
            let ahead = info.number.wrapping_sub(number);
            let op = if ahead < 1 << 31 {
                self.number + u64::from(ahead)
            } else {
                self.number.saturating_sub(u64::from(ahead.wrapping_neg()))
            };
            let mut sides = [
                (me, format!("is at op {} {}", self.number, self.plan.signature.call())),
                (world, format!("is at op {op} {}", theirs.call())),
            ];
            sides.sort();
            let [left, right] = sides;
            let (op, call) = (self.number.min(op), String::new());
            return Err(Failure::Mismatch { group: self.group_name(), op, call, left, right });
        }
        // If the peer's call is of this kind, its count is the length of its block for this rank.
        let pairs = self.pairs.as_ref().filter(|_| theirs.contents == self.plan.signature.contents);
        let has = pairs.map(|_| std::mem::replace(&mut theirs.count, self.plan.signature.count));
        if theirs != self.plan.signature {
            let (ours, theirs) = (self.plan.signature.record(), theirs.record());
            return Err(CallRecord::differ(self.group_name(), self.number, (me, &ours), (world, &theirs)));
        }
        let gets = pairs.map(|pairs| pairs.gets.get(from).map_or(0, |&len| len as u64));
        match (gets, has) {
            (Some(gets), Some(has)) if gets != has => Err(self.misfit((me, gets), (world, has))),
            _ => Ok(()),
        }
    }

    /// The failure of a rank that expects another length of a block than its peer has for it.
    #[cold]
    fn misfit(&self, (me, gets): (Rank, u64), (from, has): (Rank, u64)) -> Failure {
        let mut sides = [
            (me, format!("expects {gets} elements of rank {from}")),
            (from, format!("has {has} elements for rank {me}")),
        ];
        sides.sort();
        let [left, right] = sides;
        let (group, op, call) = (self.group_name(), self.number, self.plan.signature.call());
        Failure::Mismatch { group, op, call, left, right }
    }
}
