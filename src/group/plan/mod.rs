//! How calls are to be done: by which algorithm, by what schedule, and what ranks compare. What was found for a call
//! serves the next one like it.

pub(crate) mod spec;

use std::sync::{Mutex, PoisonError};

use unisono_schedule::{CallSchedule, Collective, Job, Rank, Recorded, algorithm::Algorithm};

use crate::{
    buffer::Borrowed,
    dtype::Dtype,
    engine::{Cargo, Signature},
    error::{Error, Result},
    group::{
        plan::spec::{CallOptions, CallSpec, Shape},
        shared::Shared,
    },
    reduce::{Kernel, ReduceOp},
};

/// How many calls' plans are kept, and the most steps of a schedule that is. Programs call a few collectives in turn; where
/// there are more steps, making them is little beside doing them.
const KEPT: usize = 8;
const STEPS: usize = 32;

/// A collective, but for its number and its memory.
pub(crate) struct Plan {
    pub known: Known,
    pub schedule: CallSchedule,
}

/// What a plan is but for its schedule.
#[derive(Clone, Copy)]
pub(crate) struct Known {
    pub collective: Collective,
    pub signature: Signature,
    pub kernel: Kernel,
    pub average: bool,
    /// Bytes of an element.
    pub size: usize,
    /// Whether others write into the output for granted.
    pub long: bool,
}

impl Known {
    /// Whether input and output must have no byte in common, and have.
    pub(crate) fn needs_apart(&self, borrowed: &Borrowed<'_>) -> bool {
        self.long && self.collective.exchanges() && !borrowed.is_apart()
    }

    pub(crate) fn argument(&self, problem: String) -> Error {
        Error::Argument { call: self.collective.name(), problem }
    }
}

/// The plans of the latest calls that differed.
#[derive(Default)]
pub(crate) struct Plans(Mutex<Latest>);

#[derive(Default)]
struct Latest {
    kept: Vec<(Key, Known, Recorded)>,
    /// The one that goes next.
    oldest: usize,
}

/// All that a plan depends on and that is not the same for all calls of a group.
#[derive(Clone, Copy, PartialEq)]
struct Key {
    collective: Collective,
    count: usize,
    root: Rank,
    op: ReduceOp,
    cargo: Cargo,
    coalesced: bool,
    dtype: Dtype,
    options: CallOptions,
}

impl Key {
    /// Nothing, where blocks are uneven or a call only prepares another: these are not kept.
    fn of(request: &CallSpec<'_>, dtype: Dtype, options: &CallOptions) -> Option<Self> {
        let CallSpec { collective, count, uneven: None, root, op, cargo, coalesced, prepares: None } =
            *request
        else {
            return None;
        };
        Some(Self { collective, count, root, op, cargo, coalesced, dtype, options: *options })
    }
}

impl Latest {
    fn find(&self, key: &Key) -> Option<Plan> {
        let (_, known, recorded) = self.kept.iter().find(|(kept, ..)| kept == key)?;
        Some(Plan { known: *known, schedule: CallSchedule::Recorded(recorded.clone()) })
    }

    fn keep(&mut self, key: Key, known: Known, recorded: Recorded) {
        let kept = (key, known, recorded);
        match self.kept.get_mut(self.oldest) {
            Some(oldest) => *oldest = kept,
            None => self.kept.push(kept),
        }
        self.oldest = (self.oldest + 1) % KEPT;
    }
}

impl Shared {
    /// How a collective is to be done.
    pub(crate) fn plan(&self, dtype: Dtype, request: &CallSpec<'_>, options: &CallOptions) -> Result<Plan> {
        let key = Key::of(request, dtype, options);
        let latest = || self.plans.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plan) = key.and_then(|key| latest().find(&key)) {
            return Ok(plan);
        }
        let (known, algorithm, job) = self.think(dtype, request, options)?;
        let make = || {
            let schedule = algorithm.make(&job);
            schedule.ok_or_else(|| known.argument(format!("algorithm {} cannot do it", algorithm.name)))
        };
        let schedule = make()?;
        if let Some(key) = key.filter(|_| schedule.lanes() == 1)
            && let Some(recorded) = Recorded::of(make()?, STEPS)
        {
            latest().keep(key, known, recorded);
        }
        Ok(Plan { known, schedule: CallSchedule::Made(schedule) })
    }

    /// The same, of a call that is not known: with the algorithm that makes its schedule, and what of.
    fn think<'r>(
        &self,
        dtype: Dtype,
        request: &CallSpec<'r>,
        options: &CallOptions,
    ) -> Result<(Known, &'static Algorithm, Job<'r>)> {
        let CallSpec { collective, op, .. } = *request;
        let kernel = Kernel::new(dtype, op)
            .map_err(|error| Error::Argument { call: collective.name(), problem: error.to_string() })?;
        let (algorithm, shape) = request.choose(self, dtype.size(), options)?;
        let Shape { chunk, lanes, direct, long, ordered } = shape;
        let job = Job { chunk, lanes, direct, long, ordered, ..request.job(self) };
        // What has no root has other calls' names for it: the shutdown is a barrier.
        let planned = Job { root: if collective.has_root() { job.root } else { 0 }, ..job };
        let signature = request.signature(&job, dtype, algorithm.code);
        let average = op == ReduceOp::Avg;
        let known = Known { collective, signature, kernel, average, size: dtype.size(), long };
        Ok((known, algorithm, planned))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        group::tests::{small, world},
        reduce::Reduction,
    };

    /// What a plan says: what ranks compare, and its steps on each lane.
    fn said(
        known: Known,
        mut schedule: CallSchedule,
    ) -> (Signature, bool, bool, Vec<Vec<unisono_schedule::Step>>) {
        let lanes = 0..schedule.lanes();
        let steps = lanes.map(|lane| std::iter::from_fn(|| schedule.next(lane)).collect()).collect();
        (known.signature, known.average, known.long, steps)
    }

    #[test]
    fn what_is_kept_serves_the_same_call_and_no_other() {
        let all = [1, 2, 5, 40, 4000].into_iter().flat_map(|count| {
            [Collective::AllReduce, Collective::Reduce, Collective::AllGather, Collective::Broadcast]
                .map(|collective| (collective, count))
        });
        let all: Vec<_> = all.collect();
        world(3, small, |group| {
            let others = [
                group.with_algorithms("ring").unwrap(),
                group.with_reduction(Reduction::Reproducible),
                group.with_pipeline(64, 1).unwrap(),
            ];
            for options in [&group.options].into_iter().chain(others.iter().map(|other| &other.options)) {
                for &(collective, count) in &all {
                    for (root, op, dtype, coalesced) in [
                        (0, ReduceOp::Sum, Dtype::F32, false),
                        (2, ReduceOp::Sum, Dtype::F32, false),
                        (0, ReduceOp::Avg, Dtype::F32, false),
                        (0, ReduceOp::Sum, Dtype::F64, false),
                        (0, ReduceOp::PreMulSum(2.0), Dtype::F32, false),
                        (0, ReduceOp::Sum, Dtype::F32, true),
                    ] {
                        let request = CallSpec { root, op, coalesced, ..CallSpec::new(collective, count) };
                        let (known, algorithm, job) = group.shared.think(dtype, &request, options).unwrap();
                        let wanted = said(known, CallSchedule::Made(algorithm.make(&job).unwrap()));
                        // The first is made, the second may be what was kept; another call comes between.
                        for _ in 0..3 {
                            let plan = group.shared.plan(dtype, &request, options).unwrap();
                            assert_eq!(said(plan.known, plan.schedule), wanted, "{request:?}");
                            let other = CallSpec::new(Collective::Barrier, 0);
                            group.shared.plan(Dtype::U8, &other, options).unwrap();
                        }
                    }
                }
            }
            let latest = group.shared.plans.0.lock().unwrap();
            assert_eq!(latest.kept.len(), KEPT);
            drop(latest);
            group.leave().unwrap();
        });
    }
}
