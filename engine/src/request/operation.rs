//! One collective operation as the engine runs it, and the part of it that ranks compare.

use std::sync::Arc;

use unisono_core::reduce::{Kernel, ReduceOp};
use unisono_schedule::{
    CallSchedule, Collective, Job, Rank, Recorded, SLICE,
    algorithm::Plan,
    select::shown::{PlainWays, in_place_job},
};

use crate::{
    call::Signature,
    memory::{Borrowed, Operand, Overlap},
    wire::low,
};

/// One operation. It is made where it begins and rarely moved: in a small call each move takes a hundredth of the time.
pub struct Operation {
    /// Its number in the group, from 0; it gets the number when it begins.
    pub number: u64,
    /// The number of its ranks.
    pub ranks: usize,
    /// How it is run.
    pub plan: Arc<CallPlan>,
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
    /// True if contributions are reduced in the order of ranks.
    pub(crate) ordered: bool,
    /// Bytes of an element.
    pub size: usize,
    /// The most elements that a step does at once.
    pub(crate) slice: usize,
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
        let (ordered, slice) = (signature.is_ordered(), SLICE / size);
        Self { collective, signature, kernel, average, ordered, size, slice, long, shown: None }
    }

    /// The same collective, whose ranks read each other's operands in place if all share memory.
    #[must_use]
    pub fn showing(mut self, shown: ShownPlan) -> Self {
        self.signature = self.signature.in_place(shown.plain.copies);
        self.shown = Some(Arc::new(shown));
        self
    }
}

impl OutputAccess {
    /// The ranks that may write to the output of an operation with this plan and this memory.
    #[inline]
    pub(crate) fn of(plan: &CallPlan, memory: &Borrowed<'_>) -> Self {
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
    /// How elements of plain memory move.
    pub plain: PlainWays,
    /// The schedule of this rank, if no rank copies elements to a slot: each shows all its elements at once.
    pub(crate) whole: Recorded,
}

impl ShownPlan {
    /// The ranks show the elements of this job in place by this plan.
    #[must_use]
    pub fn new(plan: &'static Plan, job: &Job<'_>, size: usize, plain: PlainWays) -> Self {
        let job = in_place_job(job, size, None);
        Self { plan, job, plain, whole: Recorded::in_place(plan, &job) }
    }
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
    /// An operation of this plan and schedule among `ranks` ranks, which works on this memory. `pairs` as in the field.
    #[inline]
    pub fn new(
        (plan, schedule): (Arc<CallPlan>, CallSchedule),
        ranks: usize,
        memory: Borrowed<'_>,
        pairs: Option<Box<Pairs>>,
    ) -> Self {
        let access = OutputAccess::of(&plan, &memory);
        let Borrowed { input, output, .. } = memory;
        Self { number: 0, ranks, plan, schedule, input, output, access, pairs }
    }

    /// Its number as headers carry it: the low 32 bits.
    #[inline]
    pub(crate) fn op(&self) -> u32 {
        low(self.number)
    }

    /// The operation as it is compared with that of rank `to` of the group.
    #[inline]
    pub(crate) fn info(&self, to: Rank) -> Signature {
        let sent = self.pairs.as_ref().map(|pairs| pairs.sends.get(to).map_or(0, |&len| len as u64));
        let count = sent.unwrap_or(self.plan.signature.count);
        Signature { number: self.op(), count, ..self.plan.signature }
    }
}
