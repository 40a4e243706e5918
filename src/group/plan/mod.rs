//! Plans a group's calls: chooses the algorithm and the chunks, and makes the schedule and the signature that ranks compare. The planner
//! keeps the plans of the latest calls, for calls with the same arguments.

pub(crate) mod spec;

use std::sync::{Arc, Mutex, PoisonError};

use unisono_engine::{
    Settings, ShownPlan,
    call::{Cargo, Signature},
};
use unisono_schedule::{
    CallSchedule, Collective, Job, Kind, Rank, Recorded, Topology,
    algorithm::{self, Algorithm},
    select::{self, Choice, Chooser, table::Table},
};
use unisono_transport::Limits;

use self::spec::{CallOptions, CallSpec, Pipeline, PlanOptions};
use crate::{
    dtype::{Alias, Dtype},
    error::{Error, Result},
    reduce::{Kernel, ReduceOp, Reduction},
};

/// The number of plans that are kept. Programs repeat a few calls.
const KEPT: usize = 8;

/// The most steps of a schedule that is kept: the first number among few ranks, and among many the second one for each rank, which are the
/// steps of one chunk. A schedule with more steps takes much longer to run than to make.
const STEPS: usize = 32;
const STEPS_PER_RANK: usize = 8;

/// A collective that is ready to run, except for its number and its memory.
pub(crate) struct PlannedCall {
    pub traits: CallTraits,
    pub schedule: CallSchedule,
}

/// A planned call without its schedule.
#[derive(Clone)]
pub(crate) struct CallTraits {
    pub collective: Collective,
    pub signature: Signature,
    pub kernel: Kernel,
    pub average: bool,
    /// Bytes of an element.
    pub size: usize,
    /// True if peers write results straight into the output.
    pub long: bool,
    /// How ranks that share memory read each other's operands in place.
    pub shown: Option<Arc<ShownPlan>>,
}

impl CallTraits {
    pub(crate) fn argument(&self, problem: String) -> Error {
        Error::Argument { call: self.collective.name(), problem }
    }
}

/// The part of a [`Job`] that the planner chooses.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// The most elements of a message.
    chunk: usize,
    lanes: usize,
    direct: bool,
    long: bool,
    ordered: bool,
}

/// The plans of the latest calls, which all differ.
#[derive(Default)]
struct Latest {
    kept: Vec<(Key, CallTraits, Recorded)>,
    /// The index of the plan that is replaced next.
    oldest: usize,
}

/// Everything that a plan depends on and that may differ between the calls of a group.
#[derive(Clone, Copy, PartialEq)]
struct Key {
    collective: Collective,
    count: usize,
    root: Rank,
    op: ReduceOp,
    cargo: Cargo,
    coalesced: bool,
    contents: u32,
    alias: Alias,
    dtype: Dtype,
    options: PlanOptions,
}

impl Key {
    /// `None` if blocks are uneven or the operation is a part of another call: such plans are not kept.
    fn of(spec: &CallSpec<'_>, dtype: Dtype, options: &CallOptions) -> Option<Self> {
        let CallSpec {
            collective,
            count,
            uneven: None,
            root,
            op,
            cargo,
            coalesced,
            contents,
            alias,
            part_of: None,
            ..
        } = *spec
        else {
            return None;
        };
        let options = options.plan;
        Some(Self { collective, count, root, op, cargo, coalesced, contents, alias, dtype, options })
    }
}

impl Latest {
    fn find(&self, key: &Key) -> Option<PlannedCall> {
        let (_, traits, recorded) = self.kept.iter().find(|(kept, ..)| kept == key)?;
        Some(PlannedCall { traits: traits.clone(), schedule: CallSchedule::Recorded(recorded.clone()) })
    }

    fn keep(&mut self, key: Key, traits: CallTraits, recorded: Recorded) {
        let kept = (key, traits, recorded);
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
        let (shares_slots, cheap_registration) =
            (limits.maps && inside && topology.ranks > 1, limits.cheap_registration);
        Self {
            rank,
            topology,
            chooser,
            tuned,
            settings,
            cheap_registration,
            shares_slots,
            latest: Mutex::default(),
        }
    }

    /// Plans a collective.
    pub(crate) fn plan(
        &self,
        dtype: Dtype,
        spec: &CallSpec<'_>,
        options: &CallOptions,
    ) -> Result<PlannedCall> {
        let key = Key::of(spec, dtype, options);
        let latest = || self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plan) = key.and_then(|key| latest().find(&key)) {
            return Ok(plan);
        }
        let (traits, algorithm, job) = self.make(dtype, spec, options)?;
        if let Some(recorded) = self.copied(&traits, algorithm, &job) {
            if let Some(key) = key {
                latest().keep(key, traits.clone(), recorded.clone());
            }
            return Ok(PlannedCall { traits, schedule: CallSchedule::Recorded(recorded) });
        }
        let shared = self.topology.network.shared_memory;
        let plan = algorithm.plan(job.collective);
        if let Some(schedule) = plan.and_then(|plan| CallSchedule::inside(plan, &job, traits.size, shared)) {
            return Ok(PlannedCall { traits, schedule });
        }
        let make = || {
            let schedule = algorithm.make(&job);
            schedule.ok_or_else(|| traits.argument(format!("algorithm {} cannot do it", algorithm.name)))
        };
        let schedule = make()?;
        if let Some(key) = key.filter(|_| schedule.lanes() == 1)
            && let Some(recorded) = Recorded::of(make()?, STEPS.max(STEPS_PER_RANK * self.topology.ranks))
        {
            latest().keep(key, traits.clone(), recorded);
        }
        Ok(PlannedCall { traits, schedule: CallSchedule::Made(schedule) })
    }

    /// Plans a call that is not kept. Returns all of the plan but the schedule, and the algorithm and the job that make the schedule.
    fn make<'r>(
        &'r self,
        dtype: Dtype,
        spec: &CallSpec<'r>,
        options: &CallOptions,
    ) -> Result<(CallTraits, &'static Algorithm, Job<'r>)> {
        let CallSpec { collective, op, .. } = *spec;
        let kernel = Kernel::new(dtype, op)
            .map_err(|error| Error::Argument { call: collective.name(), problem: error.to_string() })?;
        let (algorithm, shape) = self.choose_shape(spec, dtype.size(), options)?;
        let Shape { chunk, lanes, direct, long, ordered } = shape;
        let spread = self.chooser.spread();
        let job =
            Job { chunk, lanes, direct, long, ordered, spread, ..spec.job(self.rank, self.topology.ranks) };
        let signature = spec.signature(&job, dtype, algorithm.code);
        let (average, size) = (op == ReduceOp::Avg, dtype.size());
        let traits = CallTraits { collective, signature, kernel, average, size, long, shown: None };
        let shown = match self.copies(&traits, algorithm, &job) {
            true => None,
            false => self.in_place(spec, &traits, &job, options).map(Arc::new),
        };
        let signature = if shown.is_some() { signature.in_place() } else { signature };
        Ok((CallTraits { signature, shown, ..traits }, algorithm, job))
    }

    /// True if ranks show all elements of a call in slots.
    fn copies(&self, traits: &CallTraits, algorithm: &Algorithm, job: &Job<'_>) -> bool {
        let plan =
            algorithm.plan(job.collective).filter(|_| self.shares_slots && !traits.signature.is_leaving());
        plan.is_some_and(|plan| select::shown::copied(plan, job, traits.size))
    }

    /// The schedule of a call whose ranks show all elements in slots; `None` if they do not.
    fn copied(&self, traits: &CallTraits, algorithm: &'static Algorithm, job: &Job<'_>) -> Option<Recorded> {
        let plan = algorithm.plan(job.collective).filter(|_| self.copies(traits, algorithm, job))?;
        Some(Recorded::shown(plan, &job.even()))
    }

    /// How ranks read each other's operands in place; `None` if they do not. An algorithm that the caller selected is used as it is.
    fn in_place(
        &self,
        spec: &CallSpec<'_>,
        traits: &CallTraits,
        job: &Job<'_>,
        options: &CallOptions,
    ) -> Option<ShownPlan> {
        let whole = spec.part_of.is_none() && !spec.coalesced && options.plan.pipeline.is_none();
        if !self.shares_slots || !whole || traits.signature.is_leaving() {
            return None;
        }
        let allows = |algorithm: &Algorithm| options.plan.selection.allows(job.collective, algorithm);
        let (plan, copies) = select::shown::in_place(job, traits.size, self.topology.cores, allows)?;
        Some(ShownPlan { plan, job: select::shown::in_place_job(job, traits.size, None), copies })
    }

    /// The choice for a collective of elements of `size` bytes.
    pub(crate) fn choose(&self, spec: &CallSpec<'_>, size: usize, options: &CallOptions) -> Result<Choice> {
        let (algorithm, shape) = self.choose_shape(spec, size, options)?;
        Ok(Choice { algorithm, chunk_bytes: shape.chunk * size, lanes: shape.lanes })
    }

    /// Chooses the algorithm and the chunks, among the selected algorithms that can do the call.
    fn choose_shape(
        &self,
        spec: &CallSpec<'_>,
        size: usize,
        options: &CallOptions,
    ) -> Result<(&'static Algorithm, Shape)> {
        let CallSpec { collective, count, .. } = *spec;
        let ranks = self.topology.ranks;
        let argument = |problem: String| Error::Argument { call: collective.name(), problem };
        let fits = |(inputs, outputs): (usize, usize)| inputs.max(outputs).checked_mul(size).is_some();
        let bytes =
            count.checked_mul(size).filter(|_| spec.job(self.rank, ranks).lengths().is_some_and(fits));
        let bytes = bytes.ok_or_else(|| {
            argument(format!("{count} elements of {size} bytes are more than can be addressed"))
        })?;
        let ordered = options.plan.reduction == Reduction::Reproducible && collective.reduces();
        let fits = |plan: &algorithm::Plan| {
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
        let choice = choice.ok_or_else(|| argument("no algorithm can do it".to_owned()))?;
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
            Some(Pipeline { chunk_bytes, lanes }) => Choice { chunk_bytes, lanes, ..choice },
            None => choice,
        };
        let choice = choice.within(chunk_bytes, self.settings.eager_bytes, self.settings.lanes);
        let (direct, long) = writes(choice);
        // Peers never write uneven blocks in one piece, so input and output may overlap. So may those of many tensors, which peers write
        // only if they lie in one piece.
        let long = long && spec.uneven.is_none() && !spec.coalesced;
        let shape =
            Shape { chunk: (choice.chunk_bytes / size).max(1), lanes: choice.lanes, direct, long, ordered };
        Ok((choice.algorithm, shape))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::tests::{small, world};

    /// The contents of a plan: the signature that ranks compare, and its steps on each lane.
    fn said(
        traits: CallTraits,
        mut schedule: CallSchedule,
    ) -> (Signature, bool, bool, Vec<Vec<unisono_schedule::Step>>) {
        let lanes = 0..schedule.lanes();
        let steps = lanes.map(|lane| std::iter::from_fn(|| schedule.next(lane)).collect()).collect();
        (traits.signature, traits.average, traits.long, steps)
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
                        let spec = CallSpec { root, op, coalesced, ..CallSpec::new(collective, count) };
                        let (traits, algorithm, job) =
                            group.handle.shared.planner.make(dtype, &spec, options).unwrap();
                        let wanted = {
                            let planner = &group.handle.shared.planner;
                            let copied = planner.copied(&traits, algorithm, &job).map(CallSchedule::Recorded);
                            let made = || CallSchedule::Made(algorithm.make(&job).unwrap());
                            said(traits, copied.unwrap_or_else(made))
                        };
                        // The first plan is made, the second may be the kept one; a different call comes between.
                        for _ in 0..3 {
                            let plan = group.handle.shared.planner.plan(dtype, &spec, options).unwrap();
                            assert_eq!(said(plan.traits, plan.schedule), wanted, "{spec:?}");
                            let other = CallSpec::new(Collective::Barrier, 0);
                            group.handle.shared.planner.plan(Dtype::U8, &other, options).unwrap();
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
