//! What a call asks for, and how it is to be done.

use unisono_schedule::{
    Collective, Job, Rank, Uneven,
    algorithm::{Algorithm, Plan},
    select::{self, Choice, Selection},
};

use crate::{
    dtype::Dtype,
    engine::{Cargo, Signature},
    error::{Error, Result},
    group::shared::Shared,
    reduce::{ReduceOp, Reduction},
};

/// What the caller wants of the way it is done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct CallOptions {
    pub selection: Selection,
    pub reduction: Reduction,
    /// Instead of what the tables say.
    pub pipeline: Option<Pipeline>,
}

/// Into what it is cut.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pipeline {
    /// The most bytes of a message.
    pub chunk_bytes: usize,
    pub lanes: usize,
}

/// The part of a [`Job`] that is chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Elements.
    pub chunk: usize,
    pub lanes: usize,
    pub direct: bool,
    pub long: bool,
    pub ordered: bool,
}

/// What a collective is asked to do; the fields are those of a [`Job`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallSpec<'a> {
    pub collective: Collective,
    pub count: usize,
    pub uneven: Option<Uneven<'a>>,
    pub root: Rank,
    /// Matters where elements are reduced.
    pub op: ReduceOp,
    pub cargo: Cargo,
    /// Whether it is of many tensors, on all ranks.
    pub coalesced: bool,
    /// The call that it only prepares: ranks compare that.
    pub prepares: Option<Prepared>,
}

/// A call whose lengths have to be learned first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prepared {
    pub collective: Collective,
    pub dtype: Dtype,
    pub op: ReduceOp,
    pub root: Rank,
    pub cargo: Cargo,
}

impl<'a> CallSpec<'a> {
    /// Of a collective with even blocks, no root and nothing to reduce.
    pub(crate) fn new(collective: Collective, count: usize) -> Self {
        Self {
            collective,
            count,
            uneven: None,
            root: 0,
            op: ReduceOp::Sum,
            cargo: Cargo::Elements,
            coalesced: false,
            prepares: None,
        }
    }

    /// The job, in one piece on one lane.
    pub(crate) fn job(&self, group: &Shared) -> Job<'a> {
        let job = Job::new(self.collective, group.rank, group.world.ranks, self.count);
        Job { uneven: self.uneven, root: self.root, ..job }
    }

    /// What ranks compare.
    pub(crate) fn signature(&self, job: &Job<'_>, dtype: Dtype, algorithm: u8) -> Signature {
        let Some(Prepared { collective, dtype, op, root, cargo }) = self.prepares else {
            let signature = Signature::new(job, dtype, self.op, algorithm).carrying(self.cargo);
            return if self.coalesced { signature.coalesced() } else { signature };
        };
        let uneven = Some(Uneven { input: &[], output: &[] });
        Signature::new(&Job { collective, uneven, root, ..*job }, dtype, op, algorithm).carrying(cargo)
    }

    /// The algorithm, and how it is to go about it: from the table, unless the table's is not to be taken.
    pub(crate) fn choose(
        &self,
        group: &Shared,
        size: usize,
        options: &CallOptions,
    ) -> Result<(&'static Algorithm, Shape)> {
        let Self { collective, count, .. } = *self;
        let argument = |problem: String| Error::Argument { call: collective.name(), problem };
        let fits = |(inputs, outputs): (usize, usize)| inputs.max(outputs).checked_mul(size).is_some();
        let bytes = count.checked_mul(size).filter(|_| self.job(group).lengths().is_some_and(fits));
        let bytes = bytes.ok_or_else(|| {
            argument(format!("{count} elements of {size} bytes are more than can be addressed"))
        })?;
        let ordered = options.reduction == Reduction::Reproducible && collective.reduces();
        let fits = |plan: &Plan| (plan.uneven || self.uneven.is_none()) && (plan.ordered || !ordered);
        let able = |algorithm: &Algorithm| algorithm.plan(collective).is_some_and(fits);
        // What is selected may be for even blocks only, or not for reductions in order.
        let selected =
            |algorithm: &Algorithm| able(algorithm) && options.selection.allows(collective, algorithm);
        let choice = group.tuned.choose(collective, group.world.ranks, bytes, selected);
        let choice = choice
            .or_else(|| select::choose(collective, group.world, bytes, selected))
            .or_else(|| select::choose(collective, group.world, bytes, able));
        let choice = choice.ok_or_else(|| argument("no algorithm can do it".to_owned()))?;
        let direct = select::direct(collective, group.world.ranks, bytes, group.runtime.settings.chunk_bytes);
        let choice = match direct && self.coalesced {
            true => choice.coalesced(group.world.ranks, selected),
            false => choice,
        };
        let choice = match options.pipeline {
            Some(Pipeline { chunk_bytes, lanes }) => Choice { chunk_bytes, lanes, ..choice },
            None => choice,
        };
        let choice = choice.within(
            group.runtime.settings.chunk_bytes,
            group.runtime.settings.eager_bytes,
            group.runtime.settings.lanes,
        );
        // Uneven blocks are never written whole; nothing need be put aside for them.
        let long = group.runtime.limits.cheap_registration
            && self.uneven.is_none()
            && select::long(choice.algorithm, bytes);
        let shape = Shape {
            chunk: (choice.chunk_bytes / size).max(1),
            lanes: choice.lanes,
            direct: direct || long,
            long,
            ordered,
        };
        Ok((choice.algorithm, shape))
    }
}
