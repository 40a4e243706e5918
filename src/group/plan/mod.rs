//! Plans a group's calls: chooses the algorithm and the chunks, and makes the schedule and the signature that ranks compare. The planner
//! keeps the plans of the latest calls, for calls with the same arguments.

mod spec;

use std::sync::{Arc, Mutex, PoisonError};

use unisono_engine::{CallPlan, Settings, ShownPlan};
use unisono_schedule::{
    CallSchedule, Job, Kind, Rank, Recorded, Topology,
    algorithm::{Algorithm, Plan},
    select::{self, Choice, Chooser, shown::PlainWays, table::Table},
};
use unisono_transport::Limits;

pub use self::spec::Pipeline;
use self::spec::PlanKey;
pub(crate) use self::spec::{CallId, CallOptions, CallSpec, PlanOptions};
use crate::{
    error::{Error, Result},
    reduce::{Kernel, Reduction},
};

/// The number of plans that are kept. Programs repeat a few calls.
const KEPT: usize = 8;

/// The most steps of a schedule that is kept: the first number among few ranks, and among many the second one for each rank, which are the
/// steps of one chunk. A schedule with more steps takes much longer to run than to make.
const STEPS: usize = 32;
const STEPS_PER_RANK: usize = 8;

/// The error of a call whose arguments do not fit.
pub(crate) fn argument(call: &'static str, problem: impl Into<String>) -> Error {
    Error::Argument { call, problem: problem.into() }
}

/// How a collective is run, and its schedule.
pub(crate) type Planned = (Arc<CallPlan>, CallSchedule);

/// The plans of the latest calls, which all differ.
#[derive(Default)]
struct Latest {
    kept: Vec<(PlanKey, Arc<CallPlan>, Recorded)>,
    /// The index of the plan that is replaced next.
    oldest: usize,
}

impl Latest {
    fn find(&self, key: &PlanKey) -> Option<Planned> {
        let (_, plan, recorded) = self.kept.iter().find(|(of, ..)| of == key)?;
        Some((Arc::clone(plan), CallSchedule::Recorded(recorded.clone())))
    }

    fn keep(&mut self, kept: (PlanKey, Arc<CallPlan>, Recorded)) {
        match self.kept.get_mut(self.oldest) {
            Some(oldest) => *oldest = kept,
            None => self.kept.push(kept),
        }
        self.oldest = (self.oldest + 1) % KEPT;
    }
}

/// Everything that all plans of a group depend on, and its latest plans.
pub(crate) struct Planner {
    pub rank: Rank,
    pub topology: Topology,
    /// Chooses if the tuning file has no row.
    chooser: Chooser,
    /// The rows of the tuning file for groups of this size.
    tuned: Table,
    settings: Settings,
    /// True if registering memory costs nothing.
    cheap_registration: bool,
    /// True if all ranks may share slots.
    shares_slots: bool,
    latest: Mutex<Latest>,
}

impl Planner {
    pub(crate) fn new(
        rank: Rank,
        chooser: Chooser,
        tuned: Table,
        settings: Settings,
        limits: &Limits,
    ) -> Self {
        let topology = *chooser.topology();
        let inside = limits.one_host || topology.network.kind == Kind::SharedMemory;
        let shares_slots = limits.maps && inside && topology.ranks > 1;
        let (cheap_registration, latest) = (limits.cheap_registration, Mutex::default());
        Self { rank, topology, chooser, tuned, settings, cheap_registration, shares_slots, latest }
    }

    /// Plans a collective: all of its operation but the number and the memory, and its schedule.
    pub(crate) fn plan(&self, spec: &CallSpec<'_>, options: &CallOptions) -> Result<Planned> {
        let latest = || self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let key = spec.key(&options.plan);
        if let Some(planned) = key.as_ref().and_then(|key| latest().find(key)) {
            return Ok(planned);
        }
        let (plan, algorithm, job, copied) = self.make(spec, options)?;
        let plan = Arc::new(plan);
        if let Some(copied) = copied {
            let recorded = Recorded::shown(copied, &job.even());
            if let Some(key) = key {
                latest().keep((key, Arc::clone(&plan), recorded.clone()));
            }
            return Ok((plan, CallSchedule::Recorded(recorded)));
        }
        let shared = self.topology.network.shared_memory;
        let inside = algorithm.plan(job.collective);
        if let Some(schedule) =
            inside.and_then(|inside| CallSchedule::inside(inside, &job, plan.size, shared))
        {
            return Ok((plan, schedule));
        }
        let make = || {
            let unable = || format!("algorithm {} cannot do it", algorithm.name);
            algorithm.make(&job).ok_or_else(|| argument(spec.collective.name(), unable()))
        };
        let schedule = make()?;
        if let Some(key) = key.filter(|_| schedule.lanes() == 1)
            && let Some(recorded) = Recorded::of(make()?, STEPS.max(STEPS_PER_RANK * self.topology.ranks))
        {
            latest().keep((key, Arc::clone(&plan), recorded));
        }
        Ok((plan, CallSchedule::Made(schedule)))
    }

    /// Plans a call that is not kept. Returns its plan, the algorithm and the job that make the schedule, and the algorithm's plan if ranks
    /// show all elements in slots.
    fn make<'r>(
        &'r self,
        spec: &CallSpec<'r>,
        options: &CallOptions,
    ) -> Result<(CallPlan, &'static Algorithm, Job<'r>, Option<&'static Plan>)> {
        let CallSpec { collective, dtype, op, .. } = *spec;
        let kernel =
            Kernel::new(dtype, op).map_err(|error| argument(collective.name(), error.to_string()))?;
        let (algorithm, job) = self.choose_job(spec, options)?;
        let plan = CallPlan::new(collective, spec.signature(&job, algorithm.code), kernel, job.long);
        let shares = self.shares_slots && !plan.signature.is_leaving();
        let copied =
            algorithm.plan(collective).filter(|it| shares && select::shown::copied(it, &job, plan.size));
        let shown = match copied {
            None if shares => self.in_place(spec, plan.size, &job, options),
            _ => None,
        };
        let plan = match shown {
            Some(shown) => plan.showing(shown),
            None => plan,
        };
        Ok((plan, algorithm, job, copied))
    }

    /// How ranks that share slots read each other's operands in place; `None` if they do not. An algorithm that the caller selected is used
    /// as it is.
    fn in_place(
        &self,
        spec: &CallSpec<'_>,
        size: usize,
        job: &Job<'_>,
        options: &CallOptions,
    ) -> Option<ShownPlan> {
        let whole = spec.part_of.is_none() && !spec.coalesced;
        if !whole || matches!(options.plan.pipeline, Some(Pipeline::Messages { .. })) {
            return None;
        }
        let allows = |algorithm: &Algorithm| options.plan.selection.allows(job.collective, algorithm);
        let plan = select::shown::in_place(job, size, allows)?;
        let given = select::shown::given(job, size);
        let rows = || {
            let tuned = self.tuned.shown(job.collective, job.ranks, given);
            tuned.chain(self.chooser.shown(job.collective, given))
        };
        let ways = match options.plan.pipeline {
            Some(Pipeline::Slots { bytes }) => PlainWays { reads: false, copies: bytes },
            Some(Pipeline::Reads) => PlainWays { reads: !job.collective.reduces(), ..PlainWays::of(rows()) },
            _ => PlainWays::of(rows()),
        };
        Some(ShownPlan::new(plan, job, size, ways))
    }

    /// The choice for a collective.
    pub(crate) fn choose(&self, spec: &CallSpec<'_>, options: &CallOptions) -> Result<Choice> {
        let (plan, algorithm, job, _) = self.make(spec, options)?;
        let shown = plan.shown.map(|shown| shown.plain.first());
        Ok(Choice { algorithm, chunk_bytes: job.chunk * plan.size, lanes: job.lanes, shown })
    }

    /// Chooses the algorithm, among the selected ones that can do the call, and its chunks. Returns it and its job.
    fn choose_job<'r>(
        &'r self,
        spec: &CallSpec<'r>,
        options: &CallOptions,
    ) -> Result<(&'static Algorithm, Job<'r>)> {
        let CallSpec { collective, count, .. } = *spec;
        let (size, ranks) = (spec.dtype.size(), self.topology.ranks);
        let job = spec.job(self.rank, ranks);
        let fits = |(inputs, outputs): (usize, usize)| inputs.max(outputs).checked_mul(size).is_some();
        let bytes = count.checked_mul(size).filter(|_| job.lengths().is_some_and(fits));
        let beyond = || format!("{count} elements of {size} bytes are more than can be addressed");
        let bytes = bytes.ok_or_else(|| argument(collective.name(), beyond()))?;
        let ordered = options.plan.reduction == Reduction::Reproducible && collective.reduces();
        let fits = |plan: &Plan| {
            (plan.uneven || spec.uneven.is_none())
                && (plan.pairwise || !spec.pairwise)
                && (plan.ordered || !ordered)
        };
        let able = |algorithm: &Algorithm| algorithm.plan(collective).is_some_and(fits);
        // A selected algorithm may not support uneven blocks or reductions in the order of ranks.
        let selected =
            |algorithm: &Algorithm| able(algorithm) && options.plan.selection.allows(collective, algorithm);
        // The lengths of single ranks must not decide, because the other ranks do not know them.
        let bytes = if spec.pairwise { self.settings.chunk_bytes } else { bytes };
        let choice = self.tuned.choose(collective, ranks, bytes, selected);
        let choice = choice
            .or_else(|| self.chooser.choose(collective, bytes, selected))
            .or_else(|| self.chooser.choose(collective, bytes, able));
        let choice = choice.ok_or_else(|| argument(collective.name(), "no algorithm can do it"))?;
        let chunk_bytes = self.settings.chunk_bytes;
        let writes = |plan| select::writes(plan, ranks, bytes, chunk_bytes, self.cheap_registration);
        let writes = |choice: Choice| choice.algorithm.plan(collective).map_or((false, false), writes);
        let choice = match spec.coalesced && writes(choice).0 {
            true => choice.coalesced(collective, ranks, selected),
            false => choice,
        };
        let choice = match spec.pairwise {
            true => Choice { chunk_bytes, lanes: self.settings.lanes, ..choice },
            false => choice,
        };
        let choice = match options.plan.pipeline {
            Some(Pipeline::Messages { chunk_bytes, lanes }) => Choice { chunk_bytes, lanes, ..choice },
            Some(Pipeline::Slots { .. } | Pipeline::Reads) | None => choice,
        };
        let choice = choice.within(chunk_bytes, self.settings.eager_bytes, self.settings.lanes);
        let (direct, long) = writes(choice);
        // Peers never write uneven blocks in one piece, so input and output may overlap. So may those of many tensors, which peers write
        // only if they lie in one piece.
        let long = long && spec.uneven.is_none() && !spec.coalesced;
        let (chunk, lanes, spread) =
            ((choice.chunk_bytes / size).max(1), choice.lanes, self.chooser.spread());
        Ok((choice.algorithm, Job { chunk, lanes, direct, long, ordered, spread, ..job }))
    }
}

#[cfg(test)]
mod tests {
    use unisono_engine::Signature;
    use unisono_schedule::Collective;

    use super::*;
    use crate::{
        dtype::Dtype,
        group::tests::{small, world},
        reduce::ReduceOp,
    };

    /// The contents of a plan: the signature that ranks compare, and its steps on each lane.
    fn said(
        plan: &CallPlan,
        mut schedule: CallSchedule,
    ) -> (Signature, bool, bool, Vec<Vec<unisono_schedule::Step>>) {
        let lanes = 0..schedule.lanes();
        let steps = lanes.map(|lane| std::iter::from_fn(|| schedule.next(lane)).collect()).collect();
        (plan.signature, plan.average, plan.long, steps)
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
                group.with_pipeline(Pipeline::Messages { chunk_bytes: 64, lanes: 1 }).unwrap(),
                group.with_pipeline(Pipeline::Slots { bytes: 4096 }).unwrap(),
                group.with_pipeline(Pipeline::Reads).unwrap(),
            ];
            for options in
                [&group.handle.options].into_iter().chain(others.iter().map(|other| &other.handle.options))
            {
                for &(collective, count) in &all {
                    for (root, op, dtype, coalesced) in [
                        (0, ReduceOp::Sum, Dtype::F32, false),
                        (2, ReduceOp::Sum, Dtype::F32, false),
                        (0, ReduceOp::Avg, Dtype::F32, false),
                        (0, ReduceOp::Sum, Dtype::F64, false),
                        (0, ReduceOp::PreMulSum(2.0), Dtype::F32, false),
                        (0, ReduceOp::Sum, Dtype::F32, true),
                    ] {
                        let spec =
                            CallSpec { root, op, coalesced, ..CallSpec::new(collective, dtype, count) };
                        let (plan, algorithm, job, copied) =
                            group.handle.shared.planner.make(&spec, options).unwrap();
                        let wanted = {
                            let copied = copied
                                .map(|copied| CallSchedule::Recorded(Recorded::shown(copied, &job.even())));
                            let made = || CallSchedule::Made(algorithm.make(&job).unwrap());
                            said(&plan, copied.unwrap_or_else(made))
                        };
                        // The first plan is made, the second may be the kept one; a different call comes between.
                        for _ in 0..3 {
                            let (plan, schedule) = group.handle.shared.planner.plan(&spec, options).unwrap();
                            assert_eq!(said(&plan, schedule), wanted, "{spec:?}");
                            let other = CallSpec::new(Collective::Barrier, Dtype::U8, 0);
                            group.handle.shared.planner.plan(&other, options).unwrap();
                        }
                    }
                }
            }
            let latest = group.handle.shared.planner.latest.lock().unwrap();
            assert_eq!(latest.kept.len(), KEPT);
            drop(latest);
            group.leave().unwrap();
        });
    }
}
