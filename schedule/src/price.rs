//! The price of a plan on a fabric: simulates its schedules in the cost model, of one rank or of all, whole or in part.

use crate::algorithm::Plan;
use crate::{
    Job,
    cost::{Alike, Cost, Fabric, Load, Setup, Unpriced, lower_bound, memory, simulate, simulate_one},
    windows::{BULK_SLOTS, CHUNK_BYTES, EAGER_BYTES, EAGER_SLOTS, LANES, stride, writes_in_flight},
};

/// How exactly prices are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// From how many steps on, of all simulated ranks together, two smaller counts are simulated and the rest is
    /// extrapolated: pipelines take longer in proportion, once they are full, for which there may be ten times as many.
    pub steps: u64,
    /// With more steps than that there is no price.
    pub limit: u64,
}

impl Effort {
    /// A second of real time or so, and some seconds where it cannot be less.
    pub const EXACT: Self = Self { steps: 1_000_000, limit: 8_000_000 };
    /// A tenth of that, where it can be: for many prices at once.
    pub const QUICK: Self = Self { steps: 100_000, ..Self::EXACT };
}

/// What a job costs by this plan, whoever's rank it names, for elements of so many bytes. Windows are those of the
/// default configuration, or as large as the job and the plan need them at least.
///
/// # Errors
/// If it would take too long to simulate, or the schedules come to no end.
pub fn price(plan: &Plan, job: &Job<'_>, element_size: usize, fabric: &Fabric) -> Result<Cost, Unpriced> {
    price_with(plan, job, element_size, fabric, Effort::EXACT)
}

/// As [`price`], with so much effort.
///
/// # Errors
/// As [`price`].
pub fn price_with(
    plan: &Plan,
    job: &Job<'_>,
    element_size: usize,
    fabric: &Fabric,
    effort: Effort,
) -> Result<Cost, Unpriced> {
    price_among(plan, job, element_size, fabric, None, effort)
}

/// As [`price_with`], with `hosts` telling the host of each rank, counted from 0, if consecutive ranks do not share one.
///
/// # Errors
/// As [`price`].
pub fn price_among(
    plan: &Plan,
    job: &Job<'_>,
    element_size: usize,
    fabric: &Fabric,
    hosts: Option<&[u32]>,
    effort: Effort,
) -> Result<Cost, Unpriced> {
    let setup = Setup { hosts, ..setup(plan, job, element_size, fabric, effort.limit) };
    let one = alike(plan, job.ranks, fabric).is_some();
    let parts = parts(plan, job, one, effort);
    let longest = Job { count: parts.map_or(job.count, |(_, more)| more), ..*job };
    // Refused at once rather than after so many steps.
    if is_long(plan, &longest, one, effort.limit) {
        return Err(Unpriced::TooLong { limit: effort.limit });
    }
    let Some((few, more)) = parts else {
        return whole(plan, job, &setup);
    };
    let first = whole(plan, &Job { count: few, ..*job }, &setup)?;
    let second = whole(plan, &Job { count: more, ..*job }, &setup)?;
    let cost = extrapolate((few, first), (more, second), job.count);
    // A pipeline's first turns may cost a little less than the later ones.
    let bound = lower_bound(job.collective, job.ranks, job.count.saturating_mul(element_size), fabric);
    // Scratch is that of the whole.
    let ranks = if one { 1 } else { job.ranks };
    let each = (0..ranks).map(|rank| memory(&*plan.make(&Job { rank, ..*job }), job.ranks, &setup));
    Ok(Cost { seconds: cost.seconds.max(bound), memory: each.max().unwrap_or(0), ..cost })
}

/// What the engine would run the job with.
fn setup<'a>(plan: &Plan, job: &Job<'_>, element: usize, fabric: &'a Fabric, limit: u64) -> Setup<'a> {
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
    Setup { fabric, hosts: None, element, slots, window, writes: writes_in_flight(most), limit }
}

/// Up to so many ranks that share cores are all simulated.
const CROWD: usize = 64;

/// In what way all ranks do the same at the same time, if they do. Those that share cores or ports take turns: one that
/// waits has its core taken, and pays to get it back, which one rank alone, whose messages are always there, never does.
fn alike(plan: &Plan, ranks: usize, fabric: &Fabric) -> Option<Alike> {
    plan.alike(ranks).filter(|_| fabric.is_even(ranks) && (ranks > CROWD || fabric.crowd(ranks) <= 1.0))
}

/// Runs the job as it is.
fn whole(plan: &Plan, job: &Job<'_>, setup: &Setup<'_>) -> Result<Cost, Unpriced> {
    match alike(plan, job.ranks, setup.fabric) {
        // Nobody has to wait longer than rank 0 for those whose contributions come first.
        Some(alike) => simulate_one(0, job.ranks, alike, plan.make(&Job { rank: 0, ..*job }), setup),
        None => simulate(job.ranks, &mut |rank| plan.make(&Job { rank, ..*job }), setup),
    }
}

/// Two smaller counts whose chunks are as long and whose steps are few enough, or as few as can be; `None` if the job's
/// are few enough as they are, or it is hardly longer.
fn parts(plan: &Plan, job: &Job<'_>, one: bool, effort: Effort) -> Option<(usize, usize)> {
    let long = |count, most| is_long(plan, &Job { count, ..*job }, one, most);
    if !long(job.count, effort.steps) {
        return None;
    }
    // A turn of every lane; two where a chunk is two messages, and as many for every rank where each has a piece of its
    // own. Not quite full ones, because blocks that differ by an element may make one chunk more.
    let shape = |count| {
        let schedule = plan.make(&Job { count, ..*job });
        (schedule.lanes(), schedule.max_message())
    };
    let (lanes, longest) = shape(job.count);
    let turn = job.chunk.saturating_mul(job.lanes);
    let turn = turn - turn / 32;
    let units = [1, 2, job.ranks].map(|turns| turn.saturating_mul(turns).max(1));
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
    // Before a pipeline is full a round more costs less than afterwards. Where all do the same at the same time, or would
    // if they were a power of two, no rounds are on their way but those that lanes work on.
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

/// Whether the ranks that would be simulated, one or all, have more steps than that together, judged by a few of them.
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
    // On the ranks of the sample together.
    let most = u128::from(wanted - root) * sample as u128 / others.max(1) as u128;
    let most = u64::try_from(most).unwrap_or(u64::MAX);
    let mut steps = 0;
    for index in 0..sample {
        // Neither the root nor powers of two alone.
        let distance = 1 + others / sample * index + index.min(others % sample);
        steps += count((job.root + distance) % job.ranks, most);
    }
    steps > most
}

/// What `count` elements cost, if each costs as much more as between these two counts.
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
                        let cost = price(plan, &job(plan.collective, ranks, 1000), 4, fabric);
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
                let whole = price(plan, &job, 4, &Fabric::TCP).unwrap();
                let part = price_with(plan, &job, 4, &Fabric::TCP, few).unwrap();
                let told = format!("{} {:?}: {whole:?} and {part:?}", algorithm.name, plan.collective);
                assert!(part.extrapolated && !whole.extrapolated && part.steps < whole.steps / 2, "{told}");
                assert!((part.seconds / whole.seconds - 1.0).abs() < 0.05, "{told}");
                for (part, whole) in [(part.messages, whole.messages), (part.bytes, whole.bytes)] {
                    assert!((part.total as f64 / whole.total as f64 - 1.0).abs() < 0.05, "{told}");
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
            let whole = price(plan, &job, 4, &Fabric::NDR400).unwrap();
            let part = price_with(plan, &job, 4, &Fabric::NDR400, few).unwrap();
            let told = format!("{collective:?}: {whole:?} and {part:?}");
            assert!(part.extrapolated && !whole.extrapolated, "{told}");
            assert!((part.seconds / whole.seconds - 1.0).abs() < 0.05, "{told}");
        }
    }

    #[test]
    fn chunks_of_few_elements_are_extrapolated_from_whole_ones() {
        let plan = find("two_shot").and_then(|it| it.plan(Collective::AllReduce)).unwrap();
        let job = Job { chunk: 8, lanes: 1, ..Job::new(Collective::AllReduce, 0, 6, 200_000) };
        let few = Effort { steps: 10_000, ..Effort::EXACT };
        let (less, more) = parts(plan, &job, true, few).unwrap();
        assert!(less.is_multiple_of(8) && more.is_multiple_of(8), "{less} and {more} are no whole chunks");
        let whole = price(plan, &job, 4, &Fabric::NDR400).unwrap();
        let part = price_with(plan, &job, 4, &Fabric::NDR400, few).unwrap();
        assert!((part.seconds / whole.seconds - 1.0).abs() < 0.05, "{whole:?} and {part:?}");
    }

    #[test]
    fn a_huge_size_has_a_price_or_a_reason() {
        for algorithm in ALGORITHMS {
            for plan in algorithm.plans {
                for ranks in [2, 1000] {
                    let job = job(plan.collective, ranks, usize::MAX / 4 / ranks);
                    let few = Effort { steps: 100_000, limit: 1_000_000 };
                    let cost = price_with(plan, &job, 4, &Fabric::NDR400, few);
                    let told = matches!(cost, Ok(cost) if cost.seconds.is_finite());
                    assert!(
                        told || matches!(cost, Err(Unpriced::TooLong { .. })),
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
            price_with(plan, &job(collective, 10_000, 25_000), 4, &Fabric::NDR400, Effort::QUICK).unwrap()
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
        (choice.algorithm.name, price_with(plan, &job, 4, fabric, Effort::QUICK).unwrap().seconds)
    }

    /// Says so where twice as many bytes or, at a border of the table, hardly more take less time or much more.
    fn look_for_cliffs(collective: Collective, fabric: &Fabric, ranks: usize) {
        let compare = |bytes, before: (&str, f64), now: (&str, f64), (least, most): (f64, f64)| {
            let name = collective.name();
            let told =
                format!("{name} of {bytes} B among {ranks} on {}: {before:?}, then {now:?}", fabric.name);
            assert!(now.1 >= least * before.1, "less for more: {told}");
            assert!(now.1 <= most * before.1, "a cliff: {told}");
        };
        let chooser = Chooser::on(fabric, ranks);
        let borders = chooser.borders(collective);
        // Up to 8 ranks the table follows what was measured, elsewhere the model. What is a little longer than a message
        // may take much less, for it is written straight into outputs or goes by more lanes.
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
        for collective in Collective::ALL.into_iter().filter(|&it| it != Collective::Barrier) {
            for ranks in [2, 4, 8] {
                look_for_cliffs(collective, &Fabric::TCP, ranks);
            }
            // Where every rank sends every block on, a thousand take long; their borders are alike for all. Rows for up to 8 were
            // measured over TCP.
            let slow = matches!(collective, Collective::ReduceScatter | Collective::AllGather);
            for ranks in [16, 64, 256, 1024].into_iter().filter(|&ranks| ranks <= 256 || !slow) {
                look_for_cliffs(collective, &Fabric::NDR400, ranks);
            }
        }
        look_for_cliffs(Collective::AllReduce, &Fabric::NDR400, 1 << 14);
    }

    #[test]
    fn memory_is_what_a_rank_registers() {
        let control = |ranks: usize| 736 * ranks + 10_240;
        let of = |name, job: &Job<'_>| {
            let plan = find(name).and_then(|it| it.plan(job.collective)).unwrap();
            price_with(plan, job, 4, &Fabric::NDR400, Effort::QUICK).unwrap().memory
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
        // The hub holds what all have for all, of which most is not simulated.
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
