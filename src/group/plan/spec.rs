//! A call as the planner gets it: the collective and its arguments ([`CallSpec`]), and the options of the handle ([`CallOptions`]).

use std::time::Duration;

use unisono_engine::{Cargo, Pairs, Signature};
use unisono_schedule::{Collective, Job, Rank, Uneven, select::Selection};

use crate::{
    dtype::{Alias, Dtype},
    reduce::{ReduceOp, Reduction},
};

/// The options of a handle of a group, which hold for its calls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CallOptions {
    pub plan: PlanOptions,
    /// The timeout of a call; `None` for [`Config::timeout`](crate::Config::timeout).
    pub timeout: Option<Duration>,
}

/// The options on which a plan depends.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct PlanOptions {
    pub selection: Selection,
    pub reduction: Reduction,
    /// Overrides the tables.
    pub pipeline: Option<Pipeline>,
}

/// How the elements of a call move, instead of the way that the tables give
/// ([`ProcessGroup::with_pipeline`](crate::ProcessGroup::with_pipeline)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pipeline {
    /// In messages. On one lane, these have at most [`Config::eager`](crate::Config::eager) bytes.
    Messages {
        /// The most bytes of a message, from 1 to [`Config::chunk`](crate::Config::chunk).
        chunk_bytes: usize,
        /// The most lanes, from 1 to [`Config::lanes`](crate::Config::lanes).
        lanes: usize,
    },
    /// If the ranks share memory, each copies the elements that lie in plain memory to its slots, where the others read them. Calls that
    /// cannot do that send messages as the tables say. Elements in registered buffers are read where they lie.
    Slots {
        /// The most bytes that a rank copies at once, a power of two up to 1 MiB; 0 for messages. Calls of direct in which a rank gives
        /// at most 16 KiB go through slots in one round with any value.
        bytes: usize,
    },
    /// If the ranks share memory and the system lets each read that of the others, they read the elements of plain memory where they lie, in
    /// collectives that do not reduce. Other calls move them as the tables say.
    Reads,
}

/// A collective and its arguments; most fields are those of a [`Job`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CallSpec<'a> {
    pub collective: Collective,
    pub dtype: Dtype,
    pub count: usize,
    pub uneven: Option<Uneven<'a>>,
    pub root: Rank,
    /// Used only if elements are reduced.
    pub op: ReduceOp,
    pub cargo: Cargo,
    /// True if it reduces many tensors as one.
    pub coalesced: bool,
    /// True if each two ranks know only the lengths of their blocks for each other: then `count` is the longest of this rank's.
    pub pairwise: bool,
    /// A hash of the types and shapes of many tensors, of a bucket's gradients, or of the lengths of blocks that all ranks know; 0
    /// for other calls.
    pub contents: u32,
    /// The caller's name for the type of elements.
    pub alias: Alias,
    /// The call that this operation is a part of, which ranks compare instead of the operation.
    pub part_of: Option<CallId>,
}

/// What a plan that is kept depends on: the arguments of its call, and the options.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PlanKey {
    count: usize,
    collective: Collective,
    dtype: Dtype,
    cargo: Cargo,
    coalesced: bool,
    alias: Alias,
    contents: u32,
    root: Rank,
    op: ReduceOp,
    /// The algorithms that the user allows for this collective, and the other options.
    options: (u32, Reduction, Option<Pipeline>),
}

/// The part of a call of several operations that ranks compare.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CallId {
    pub collective: Collective,
    pub dtype: Dtype,
    pub root: Rank,
    pub cargo: Cargo,
}

impl<'a> CallSpec<'a> {
    /// A collective with equal blocks, root 0 and no reduction but a sum.
    pub(crate) fn new(collective: Collective, dtype: Dtype, count: usize) -> Self {
        Self {
            collective,
            dtype,
            count,
            uneven: None,
            root: 0,
            op: ReduceOp::Sum,
            cargo: Cargo::Elements,
            coalesced: false,
            pairwise: false,
            contents: 0,
            alias: Alias::NONE,
            part_of: None,
        }
    }

    /// What its plan depends on, if that is kept: blocks are even, and it is no part of another call.
    #[inline]
    pub(super) fn key(&self, options: &PlanOptions) -> Option<PlanKey> {
        let Self { collective, dtype, count, root, op, cargo, coalesced, contents, alias, .. } = *self;
        if self.uneven.is_some() || self.pairwise || self.part_of.is_some() {
            return None;
        }
        let PlanOptions { selection, reduction, pipeline } = options;
        let options = (selection.of(collective), *reduction, *pipeline);
        Some(PlanKey { count, collective, dtype, cargo, coalesced, alias, contents, root, op, options })
    }

    /// The job of one of `ranks` ranks, in one chunk on one lane.
    pub(super) fn job(&self, rank: Rank, ranks: usize) -> Job<'a> {
        let job = Job::new(self.collective, rank, ranks, self.count);
        Job { uneven: self.uneven, pairwise: self.pairwise, root: self.root, ..job }
    }

    /// The lengths of blocks that this rank compares with each other rank separately.
    pub(crate) fn pairs(&self, rank: Rank, ranks: usize) -> Option<Box<Pairs>> {
        let Uneven { input, output } = self.uneven.filter(|_| self.pairwise)?;
        let (none, own) =
            (vec![0; ranks], |lengths: &[usize]| lengths.get(rank).copied().unwrap_or_default());
        let from_root = |len| (0..ranks).map(|other| if other == self.root { len } else { 0 }).collect();
        let at_root = rank == self.root;
        let (sends, gets) = match self.collective {
            Collective::AllToAll => (input.to_vec(), output.to_vec()),
            Collective::Gather if at_root => (none, output.to_vec()),
            Collective::Gather => (from_root(own(output)), none),
            _ if at_root => (input.to_vec(), none),
            _ => (none, from_root(own(input))),
        };
        Some(Box::new(Pairs { sends, gets }))
    }

    /// The signature that ranks compare.
    pub(crate) fn signature(&self, job: &Job<'_>, algorithm: u8) -> Signature {
        let Some(CallId { collective, dtype, root, cargo }) = self.part_of else {
            // If not all ranks know the count, each two ranks compare lengths.
            let job = Job { count: if self.pairwise { 0 } else { job.count }, ..*job };
            let signature = Signature::new(&job, self.dtype, self.op, algorithm).carrying(self.cargo);
            return signature.of_contents(self.contents, self.coalesced).named(self.alias);
        };
        let job = Job { collective, uneven: Some(Uneven { input: &[], output: &[] }), root, ..*job };
        Signature::new(&job, dtype, ReduceOp::Sum, algorithm).carrying(cargo)
    }
}
