//! The price of a job on a fabric: simulates the schedules of one rank or of all ranks in the cost model. If the job is too long,
//! two smaller counts are simulated, and the price is extrapolated from these.

use crate::algorithm::Plan;
use crate::{
    Job, Spread,
    cost::{Alike, Cost, Fabric, Load, Simulation, SimulationSetup, Unpriced, lower_bound, memory},
    windows::{BULK_SLOTS, CHUNK_BYTES, EAGER_BYTES, EAGER_SLOTS, LANES, stride, writes_in_flight},
};

/// How much is simulated for a price.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// If the simulated ranks have more steps than this together, two smaller counts are simulated and the price is
    /// extrapolated: once a pipeline is full, its time is linear in the count. To fill a pipeline, up to ten times as many steps
    /// are simulated.
    pub steps: u64,
    /// If they still have more steps than this, there is no price ([`Unpriced::TooLong`]).
    pub limit: u64,
}

impl Effort {
    /// About a second of real time; some seconds if filling a pipeline takes so long.
    pub const EXACT: Self = Self { steps: 1_000_000, limit: 8_000_000 };
    /// About a tenth of that, for many prices at once.
    pub const QUICK: Self = Self { steps: 100_000, ..Self::EXACT };
}

/// The cost of a job by this plan, if an element has `element_size` bytes. The job's `rank` does not matter. If its `spread` does not name
/// the host of each rank, consecutive ranks share the hosts of the fabric. Windows have the default sizes
/// ([`windows`](crate::windows)), or larger ones if the job or the plan needs these.
///
/// ```
/// use unisono_schedule::{
///     Collective, Job,
///     algorithm::find,
///     cost::Fabric,
///     price::{Effort, price},
/// };
///
/// // An all_reduce of 1 Mi elements of 4 bytes among 16 ranks, in messages of at most 64 Ki elements.
/// let job = Job { chunk: 64 << 10, lanes: 2, ..Job::new(Collective::AllReduce, 0, 16, 1 << 20) };
/// let plan = find("ring").and_then(|it| it.plan(job.collective)).ok_or("no such plan")?;
/// let cost = price(plan, &job, 4, &Fabric::HDR, Effort::EXACT)?;
/// println!("{:.1} us, {} messages", cost.seconds * 1e6, cost.messages.total);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Unpriced::TooLong`] if the simulation would take more steps than the effort allows. The other variants do not occur for the plans of
/// this crate.
pub fn price(
    plan: &Plan,
    job: &Job<'_>,
    element_size: usize,
    fabric: &Fabric,
    effort: Effort,
) -> Result<Cost, Unpriced> {
    let (spread, hosts) = match job.spread {
        Spread::Of(hosts) => (job.spread, Some(hosts)),
        _ => (Spread::Even(fabric.ranks_per_host), None),
    };
    let job = &Job { spread, ..*job };
    let shown = job.shown.or_else(|| plan.inside(job, element_size, fabric.network().shared_memory));
    let job = &Job { shown, ..*job };
    let fabric = &evened(plan, job.ranks, fabric);
    let setup = SimulationSetup { hosts, ..setup(plan, job, element_size, fabric, effort.limit) };
    let one = alike(plan, job.ranks, fabric).is_some();
    let parts = parts(plan, job, one, effort);
    let longest = Job { count: parts.map_or(job.count, |(_, more)| more), ..*job };
    // A job that is too long is refused before any step is simulated.
    if is_long(plan, &longest, one, effort.limit) {
        return Err(Unpriced::TooLong { limit: effort.limit });
    }
    let Some((few, more)) = parts else {
        return whole(plan, job, &setup);
    };
    let first = whole(plan, &Job { count: few, ..*job }, &setup)?;
    let second = whole(plan, &Job { count: more, ..*job }, &setup)?;
    let cost = extrapolate((few, first), (more, second), job.count);
    // The extrapolated time may be a little too short, because a pipeline's first turns may cost less than the later ones.
    let bound = lower_bound(job.collective, job.ranks, job.count.saturating_mul(element_size), fabric);
    // Scratch is not extrapolated.
    let ranks = if one { 1 } else { job.ranks };
    let each = (0..ranks).map(|rank| memory(&*plan.make(&Job { rank, ..*job }), job.ranks, &setup));
    Ok(Cost { seconds: cost.seconds.max(bound), memory: each.max().unwrap_or(0), ..cost })
}

/// The windows with which the engine would run the job.
fn setup<'a>(
    plan: &Plan,
    job: &Job<'_>,
    element: usize,
    fabric: &'a Fabric,
    limit: u64,
) -> SimulationSetup<'a> {
    let schedule = plan.make(&Job { rank: 0, ..*job });
    let message = schedule.max_message().saturating_mul(element);
    let most = job.lanes.max(LANES);
    let (lanes, slots, bytes) = if schedule.is_small(element, EAGER_BYTES) {
        (1, EAGER_SLOTS, EAGER_BYTES)
    } else {
        (most, BULK_SLOTS, message.max(CHUNK_BYTES))
    };
    let slots = slots.max(plan.depth);
    let window = lanes.saturating_mul(slots).saturating_mul(stride(bytes));
    let (writes, showing) = (writes_in_flight(most), job.shown.filter(|_| plan.flat.is_none()));
    SimulationSetup { fabric, hosts: None, element, slots, window, showing, writes, limit }
}

/// The most ranks of which all are simulated because they share cores.
const CROWD: usize = 64;

/// How the ranks' schedules follow from one, if one may be simulated for all. Ranks that share cores or ports take turns: a rank
/// that waits loses its core and pays to get it back. A rank that is simulated alone never waits, so it would never pay.
fn alike(plan: &Plan, ranks: usize, fabric: &Fabric) -> Option<Alike> {
    plan.alike(ranks).filter(|_| fabric.is_even(ranks) && (ranks > CROWD || fabric.crowd(ranks) <= 1.0))
}

/// The fabric on which this many ranks are simulated. With a port each, and schedules that are alike, they reach the ranks of the same host
/// through it, too: then one can be simulated for all. It has to send between hosts in any case.
fn evened(plan: &Plan, ranks: usize, fabric: &Fabric) -> Fabric {
    let one = ranks > CROWD && fabric.has_port_each(ranks) && plan.alike(ranks).is_some();
    if one { Fabric { inside: None, ..*fabric } } else { *fabric }
}

/// Simulates the job without extrapolation.
fn whole(plan: &Plan, job: &Job<'_>, setup: &SimulationSetup<'_>) -> Result<Cost, Unpriced> {
    match alike(plan, job.ranks, setup.fabric) {
        // If contributions are taken in the order of ranks, no rank waits longer for the first ones than rank 0.
        Some(alike) => Simulation::one(job.ranks, alike, plan.make(&Job { rank: 0, ..*job }), setup),
        None => Simulation::all(job.ranks, &mut |rank| plan.make(&Job { rank, ..*job }), setup),
    }
    .run()
}

/// Two smaller counts from which the job's cost is extrapolated. Their messages are as long as the job's, and they have no more steps
/// than wanted, or as few as possible. `None` if the job itself has no more steps than wanted, or is not much longer.
fn parts(plan: &Plan, job: &Job<'_>, one: bool, effort: Effort) -> Option<(usize, usize)> {
    let long = |count, most| is_long(plan, &Job { count, ..*job }, one, most);
    if !long(job.count, effort.steps) {
        return None;
    }
    // The unit is a chunk on every lane, or two if a chunk is two messages, or one for each rank if each has its own piece. It is
    // a little less than full, because blocks that differ by an element may need one chunk more.
    let shape = |count| {
        let schedule = plan.make(&Job { count, ..*job });
        (schedule.lanes(), schedule.max_message())
    };
    let (lanes, longest) = shape(job.count);
    let chunks = job.chunk.saturating_mul(job.lanes);
    let chunks = chunks - chunks / 32;
    let units = [1, 2, job.ranks].map(|times| chunks.saturating_mul(times).max(1));
    let like = |unit: usize| {
        let part = shape(unit.min(job.count));
        part.0 == lanes && part.1 >= longest - longest / 8
    };
    let unit = units.into_iter().find(|&unit| like(unit)).unwrap_or(units[2]);
    let least = unit.checked_mul(2).filter(|&least| least < job.count)?;
    let mut more = job.count;
    while more > least {
        more = (more / 4 / unit * unit).max(least);
        if !long(more, effort.steps) {
            break;
        }
    }
    // Until a pipeline is full, one more round costs less than afterwards. If all ranks do the same at the same time, or would if
    // their number were a power of two, no more rounds are under way than there are lanes.
    if plan.alike(job.ranks.next_power_of_two()).is_none() {
        let most = effort.limit.min(effort.steps.saturating_mul(10));
        let mut full = unit.saturating_mul((4 * plan.hops(job.ranks)).div_ceil(lanes));
        if full >= job.count / 2 && !long(job.count, most) {
            return None;
        }
        while full > more && (full >= job.count || long(full, most)) {
            full = full / 2 / unit * unit;
        }
        more = more.max(full);
    }
    Some((more / unit / 2 * unit, more))
}

/// True if the simulated ranks, one or all, have more than `wanted` steps together. The estimate samples the root and at most eight
/// others.
fn is_long(plan: &Plan, job: &Job<'_>, one: bool, wanted: u64) -> bool {
    let count = |rank, most| {
        let mut schedule = plan.make(&Job { rank, ..*job });
        let mut steps = 0_u64;
        for lane in 0..schedule.lanes() {
            while steps <= most && schedule.next(lane).is_some() {
                steps += 1;
            }
        }
        steps
    };
    let root = count(job.root, wanted);
    if root > wanted || one {
        return root > wanted;
    }
    let others = job.ranks.saturating_sub(1);
    let sample = others.min(8);
    // The steps that the sampled ranks may have together.
    let most = u128::from(wanted - root) * sample as u128 / others.max(1) as u128;
    let most = u64::try_from(most).unwrap_or(u64::MAX);
    let mut steps = 0;
    for index in 0..sample {
        // Spread over all distances from the root, of which not all are powers of two.
        let distance = 1 + others / sample * index + index.min(others % sample);
        steps += count((job.root + distance) % job.ranks, most);
    }
    steps > most
}

/// The cost of `count` elements, extrapolated linearly from the costs of two smaller counts.
#[allow(clippy::cast_possible_truncation, reason = "a price, and one beyond all numbers is the greatest")]
fn extrapolate((few, first): (usize, Cost), (more, second): (usize, Cost), count: usize) -> Cost {
    let factor = (count - more) as f64 / (more - few) as f64;
    let number = |first: u64, second: u64| {
        let slope = second as f64 - first as f64;
        (second as f64 + factor * slope).round() as u64
    };
    let load = |first: Load, second: Load| Load {
        most: number(first.most, second.most),
        total: number(first.total, second.total),
    };
    Cost {
        seconds: second.seconds + factor * (second.seconds - first.seconds),
        messages: load(first.messages, second.messages),
        bytes: load(first.bytes, second.bytes),
        reduced: load(first.reduced, second.reduced),
        memory: second.memory,
        steps: first.steps + second.steps,
        extrapolated: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Collective,
        algorithm::{ALGORITHMS, find},
        select::{Chooser, writes},
    };

    fn job(collective: Collective, ranks: usize, count: usize) -> Job<'static> {
        let count = if collective == Collective::Barrier { 0 } else { count };
        Job { chunk: 1 << 15, lanes: 3, ..Job::new(collective, 0, ranks, count) }
    }

    #[test]
    fn every_plan_has_a_price() {
        for algorithm in ALGORITHMS {
            for plan in algorithm.plans {
                for fabric in &Fabric::ALL {
                    for ranks in [1, 2, 7, 100] {
                        let cost = price(plan, &job(plan.collective, ranks, 1000), 4, fabric, Effort::EXACT);
                        assert!(cost.is_ok_and(|cost| cost.seconds < 1.0), "{} {cost:?}", algorithm.name);
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_extrapolated_is_near_to_what_is_not() {
        let few = Effort { steps: 10_000, ..Effort::EXACT };
        for algorithm in ALGORITHMS {
            for plan in algorithm.plans.iter().filter(|plan| plan.collective != Collective::Barrier) {
                let job = job(plan.collective, 6, 50_000_000);
                let whole = price(plan, &job, 4, &Fabric::TCP, Effort::EXACT).unwrap();
                let part = price(plan, &job, 4, &Fabric::TCP, few).unwrap();
                let case = format!("{} {:?}: {whole:?} and {part:?}", algorithm.name, plan.collective);
                assert!(part.extrapolated && !whole.extrapolated && part.steps < whole.steps / 2, "{case}");
                assert!((part.seconds / whole.seconds - 1.0).abs() < 0.05, "{case}");
                for (part, whole) in [(part.messages, whole.messages), (part.bytes, whole.bytes)] {
                    assert!((part.total as f64 / whole.total as f64 - 1.0).abs() < 0.05, "{case}");
                }
            }
        }
    }

    #[test]
    fn trees_are_extrapolated_from_full_pipelines() {
        let few = Effort { steps: 20_000, ..Effort::EXACT };
        for collective in [Collective::AllReduce, Collective::Broadcast, Collective::Reduce] {
            let plan = find("tree").and_then(|it| it.plan(collective)).unwrap();
            let job = Job { chunk: 1 << 16, lanes: 2, ..Job::new(collective, 0, 100, 1 << 26) };
            let whole = price(plan, &job, 4, &Fabric::NDR400, Effort::EXACT).unwrap();
            let part = price(plan, &job, 4, &Fabric::NDR400, few).unwrap();
            let case = format!("{collective:?}: {whole:?} and {part:?}");
            assert!(part.extrapolated && !whole.extrapolated, "{case}");
            assert!((part.seconds / whole.seconds - 1.0).abs() < 0.05, "{case}");
        }
    }

    #[test]
    fn chunks_of_few_elements_are_extrapolated_from_whole_ones() {
        let plan = find("two_shot").and_then(|it| it.plan(Collective::AllReduce)).unwrap();
        let job = Job { chunk: 8, lanes: 1, ..Job::new(Collective::AllReduce, 0, 6, 200_000) };
        let few = Effort { steps: 10_000, ..Effort::EXACT };
        let (less, more) = parts(plan, &job, true, few).unwrap();
        assert!(less.is_multiple_of(8) && more.is_multiple_of(8), "{less} and {more} are no whole chunks");
        let whole = price(plan, &job, 4, &Fabric::NDR400, Effort::EXACT).unwrap();
        let part = price(plan, &job, 4, &Fabric::NDR400, few).unwrap();
        assert!((part.seconds / whole.seconds - 1.0).abs() < 0.05, "{whole:?} and {part:?}");
    }

    #[test]
    fn a_huge_size_has_a_price_or_a_reason() {
        for algorithm in ALGORITHMS {
            for plan in algorithm.plans {
                for ranks in [2, 1000] {
                    let job = job(plan.collective, ranks, usize::MAX / 4 / ranks);
                    let few = Effort { steps: 30_000, limit: 1_000_000 };
                    let cost = price(plan, &job, 4, &Fabric::NDR400, few);
                    let is_priced = matches!(cost, Ok(cost) if cost.seconds.is_finite());
                    assert!(
                        is_priced || matches!(cost, Err(Unpriced::TooLong { .. })),
                        "{} {cost:?}",
                        algorithm.name
                    );
                }
            }
        }
    }

    #[test]
    fn ten_thousand_ranks() {
        let cheap = |name, collective| {
            let plan = find(name).and_then(|algorithm| algorithm.plan(collective)).unwrap();
            price(plan, &job(collective, 10_000, 25_000), 4, &Fabric::NDR400, Effort::QUICK).unwrap()
        };
        let ring = cheap("ring", Collective::AllReduce);
        // Twice 9999 hops of 0.9 µs; reductions of a few bytes are nothing beside that.
        assert!((17.9e-3..19e-3).contains(&ring.seconds), "{ring:?}");
        let doubling = cheap("recursive_doubling", Collective::AllReduce);
        assert!(doubling.seconds < ring.seconds / 10.0, "{doubling:?}");
        let tree = cheap("binomial", Collective::Broadcast);
        assert!(tree.seconds < 1e-3 && tree.messages.total == 9999, "{tree:?}");
    }

    /// What the table chooses, in a group with the default configuration.
    fn chosen(collective: Collective, bytes: usize, chooser: &Chooser) -> (&'static str, f64) {
        let (fabric, ranks) = (chooser.fabric(), chooser.topology().ranks);
        let choice =
            chooser.choose(collective, bytes, |_| true).unwrap().within(CHUNK_BYTES, EAGER_BYTES, LANES);
        let plan = choice.algorithm.plan(collective).unwrap();
        let (direct, long) = writes(plan, ranks, bytes, CHUNK_BYTES, fabric.cheap_registration);
        let job = Job {
            chunk: choice.chunk_bytes / 4,
            lanes: choice.lanes,
            direct,
            long,
            ..Job::new(collective, 0, ranks, bytes / 4)
        };
        (choice.algorithm.name, price(plan, &job, 4, fabric, Effort::QUICK).unwrap().seconds)
    }

    /// Fails where twice as many bytes, or hardly more at a border of the table, take less time or much more.
    fn look_for_cliffs(collective: Collective, fabric: &Fabric, ranks: usize) {
        let compare = |bytes, before: (&str, f64), now: (&str, f64), (least, most): (f64, f64)| {
            let name = collective.name();
            let case =
                format!("{name} of {bytes} B among {ranks} on {}: {before:?}, then {now:?}", fabric.name);
            assert!(now.1 >= least * before.1, "less for more: {case}");
            assert!(now.1 <= most * before.1, "a cliff: {case}");
        };
        let chooser = Chooser::on(fabric, ranks);
        let borders = chooser.borders(collective);
        // Up to 8 ranks the table follows measurements, elsewhere the model. What is a little longer than a message may take much
        // less, for it is written straight into outputs or goes by more lanes.
        let limits = if ranks > 8 { (0.6, 1.25) } else { (0.4, 1.75) };
        for &bytes in &borders {
            let [before, now] = [bytes, bytes + 4].map(|bytes| chosen(collective, bytes, &chooser));
            compare(bytes, before, now, limits);
        }
        let most = borders.last().map_or(0, |last| 2 * last).max(if ranks > 64 { 1 << 16 } else { 1 << 24 });
        let sizes =
            std::iter::successors(Some(8), |bytes| Some(2 * bytes)).take_while(|&bytes| bytes <= most);
        let mut before = None;
        for bytes in sizes {
            let now = chosen(collective, bytes, &chooser);
            if let Some(before) = before.replace(now) {
                compare(bytes, before, now, (if ranks > 8 { 0.8 } else { 0.4 }, 2.5));
            }
        }
    }

    #[test]
    fn more_bytes_take_longer_and_nowhere_much_longer() {
        let alone = Fabric { ranks_per_host: 1, ..Fabric::NDR400 };
        for collective in Collective::ALL.into_iter().filter(|&it| it != Collective::Barrier) {
            for ranks in [2, 4, 8] {
                look_for_cliffs(collective, &Fabric::TCP, ranks);
            }
            // If every rank forwards every block, a thousand ranks take long; the borders are the same for fewer. Rows for up to 8
            // were measured over TCP.
            let slow = matches!(collective, Collective::ReduceScatter | Collective::AllGather);
            for ranks in [16, 64, 256, 1024].into_iter().filter(|&ranks| ranks <= 256 || !slow) {
                look_for_cliffs(collective, &alone, ranks);
            }
        }
        look_for_cliffs(Collective::AllReduce, &alone, 1 << 14);
    }

    #[test]
    fn memory_is_what_a_rank_registers() {
        let control = |ranks: usize| 880 * ranks + 10_240;
        let of = |name, job: &Job<'_>| {
            let plan = find(name).and_then(|it| it.plan(job.collective)).unwrap();
            price(plan, job, 4, &Fabric::NDR400, Effort::QUICK).unwrap().memory
        };
        let (eager, bulk) = (EAGER_SLOTS * (EAGER_BYTES + 64), LANES * BULK_SLOTS * (CHUNK_BYTES + 64));
        let one_round = Job {
            chunk: CHUNK_BYTES / 4,
            lanes: LANES,
            ..Job::new(Collective::AllReduce, 0, 10_000, 1 << 22)
        };
        assert_eq!(of("ring", &one_round), eager + control(10_000), "short messages on one lane");
        let rounds = Job { ranks: 100, count: 20_000_000, ..one_round };
        assert_eq!(of("ring", &rounds), bulk + control(100), "slots for chunks, however long the messages");
        let small = Job { chunk: EAGER_BYTES / 4, ..Job::new(Collective::AllReduce, 0, 8, 2) };
        assert_eq!(of("direct", &small), 7 * eager + control(8));
        // The hub holds the elements of all ranks for all, most of which are not simulated.
        let blocks = Job { chunk: EAGER_BYTES / 4, ..Job::new(Collective::AllToAll, 0, 8, 1 << 20) };
        assert_eq!(of("star", &blocks), 7 * eager + control(8) + 8 * 8 * (4 << 20));
    }

    #[test]
    fn few_chunks_go_through_the_slots_that_the_engine_gives_them() {
        let slots = |job: &Job<'_>| {
            let plan = find("ring").and_then(|it| it.plan(job.collective)).unwrap();
            setup(plan, job, 4, &Fabric::NDR400, 1).slots
        };
        let job = Job { chunk: CHUNK_BYTES / 4, lanes: LANES, ..Job::new(Collective::Broadcast, 0, 8, 1000) };
        assert_eq!(slots(&job), EAGER_SLOTS, "one small message, whatever lanes there might be");
        assert_eq!(slots(&Job { count: EAGER_BYTES / 4 + 1, ..job }), BULK_SLOTS, "one larger one");
        let one_lane = Job { chunk: EAGER_BYTES / 4, lanes: 1, count: 1 << 20, ..job };
        assert_eq!(slots(&one_lane), EAGER_SLOTS);
        assert_eq!(slots(&Job { direct: true, ..one_lane }), BULK_SLOTS, "written straight into outputs");
    }
}
