//! A call as the planner gets it: the collective and its arguments ([`CallSpec`]), and the options of the handle ([`CallOptions`]).

use unisono_schedule::{Collective, Job, Rank, Uneven, select::Selection};

use crate::{
    call::{Cargo, Signature},
    dtype::Dtype,
    reduce::{ReduceOp, Reduction},
};

/// The options of a handle of a group, which hold for its calls.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct CallOptions {
    pub selection: Selection,
    pub reduction: Reduction,
    /// Overrides the chunk and the lanes of the tables.
    pub pipeline: Option<Pipeline>,
}

/// How a call is divided into messages and lanes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pipeline {
    /// The most bytes of a message.
    pub chunk_bytes: usize,
    pub lanes: usize,
}

/// A collective and its arguments; most fields are those of a [`Job`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallSpec<'a> {
    pub collective: Collective,
    pub count: usize,
    pub uneven: Option<Uneven<'a>>,
    pub root: Rank,
    /// Used only if elements are reduced.
    pub op: ReduceOp,
    pub cargo: Cargo,
    /// Whether it reduces many tensors as one.
    pub coalesced: bool,
    /// A hash of the types and shapes of many tensors or of a bucket's gradients; 0 for other calls.
    pub contents: u32,
    /// The call that this operation is a part of, which ranks compare instead of the operation.
    pub part_of: Option<CallId>,
}

/// What ranks compare of a call of several operations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallId {
    pub collective: Collective,
    pub dtype: Dtype,
    pub op: ReduceOp,
    pub root: Rank,
    pub cargo: Cargo,
}

impl<'a> CallSpec<'a> {
    /// A collective with equal blocks, root 0 and no reduction but a sum.
    pub(crate) fn new(collective: Collective, count: usize) -> Self {
        Self {
            collective,
            count,
            uneven: None,
            root: 0,
            op: ReduceOp::Sum,
            cargo: Cargo::Elements,
            coalesced: false,
            contents: 0,
            part_of: None,
        }
    }

    /// The job of one of `ranks` ranks, in one chunk on one lane.
    pub(super) fn job(&self, rank: Rank, ranks: usize) -> Job<'a> {
        let job = Job::new(self.collective, rank, ranks, self.count);
        Job { uneven: self.uneven, root: self.root, ..job }
    }

    /// The signature that ranks compare.
    pub(crate) fn signature(&self, job: &Job<'_>, dtype: Dtype, algorithm: u8) -> Signature {
        let Some(CallId { collective, dtype, op, root, cargo }) = self.part_of else {
            let signature = Signature::new(job, dtype, self.op, algorithm).carrying(self.cargo);
            return signature.of_contents(self.contents, self.coalesced);
        };
        let uneven = Some(Uneven { input: &[], output: &[] });
        Signature::new(&Job { collective, uneven, root, ..*job }, dtype, op, algorithm).carrying(cargo)
    }
}
