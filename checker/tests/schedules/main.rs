//! Checks every algorithm with many numbers of ranks, counts, chunks, lanes, depths and adversaries; and schedules that are broken on
//! purpose, each of which the checker must catch.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod hosts;
mod mutants;
mod mutants_all;
mod mutants_bruck;
mod mutants_hosts;
mod mutants_near;
mod mutants_rabenseifner;
mod mutants_star;
mod mutants_tree;
mod near;
mod openings;
mod papers;
mod papers_hosts;
mod shown;
mod writes;

use std::{
    fmt,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use unisono_checker::{Fault, Policy, Report, Setup, Traffic, Violation, check};
use unisono_schedule::{
    Collective, Job, Schedule, Step, Uneven,
    algorithm::{ALGORITHMS, Algorithm, Plan},
};

use self::openings::openings;

/// One run of one plan.
#[derive(Clone, Copy)]
struct Case {
    algorithm: &'static Algorithm,
    plan: &'static Plan,
    setup: Setup<'static>,
}

impl Case {
    fn schedules(&self) -> Vec<Box<dyn Schedule>> {
        (0..self.setup.job.ranks).map(|rank| self.plan.make(&self.setup.job_of(rank))).collect()
    }

    /// The elements that all ranks together should send: those of docs/algorithms.md, or of the uneven blocks.
    fn elements(&self) -> usize {
        let Job { collective, ranks, root, count, .. } = self.setup.job;
        let Some(uneven) = self.setup.uneven else {
            return papers::elements(self.algorithm, collective, ranks, count);
        };
        let without = |lengths: &[usize], own: usize| lengths.iter().sum::<usize>() - lengths[own];
        match collective {
            Collective::AllToAll => (0..ranks).map(|rank| without(uneven[rank].input, rank)).sum(),
            Collective::Scatter => without(uneven[root].input, root),
            Collective::Gather => without(uneven[root].output, root),
            Collective::ReduceScatter => (ranks - 1) * uneven[0].input.iter().sum::<usize>(),
            _ => (ranks - 1) * uneven[0].output.iter().sum::<usize>(),
        }
    }

    fn run(&self) -> Result<Report, Violation> {
        let report = check(self.schedules(), &self.setup)?;
        let elements: usize = report.traffic.iter().map(|sent| sent.elements).sum();
        assert_eq!(elements, self.elements(), "elements: {self}");
        Ok(report)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {:?}", self.algorithm.name, self.plan.collective.name(), self.setup)
    }
}

/// Every plan of every algorithm that does not distinguish hosts.
fn plans() -> impl Iterator<Item = (&'static Algorithm, &'static Plan)> {
    let all = ALGORITHMS.iter().flat_map(|it| it.plans.iter().map(move |plan| (it, plan)));
    all.filter(|(_, plan)| plan.flat.is_none())
}

/// What a schedule sends.
fn sent(mut schedule: Box<dyn Schedule>) -> Traffic {
    let mut sent = Traffic::default();
    for lane in 0..schedule.lanes() {
        while let Some(step) = schedule.next(lane) {
            if let Step::Put { from, .. } | Step::Write { from, .. } = step {
                sent.messages += 1;
                sent.elements += from.len;
            }
        }
    }
    sent
}

fn job(collective: Collective, ranks: usize, count: usize, chunk: usize, lanes: usize) -> Job<'static> {
    Job { chunk, lanes, direct: true, ..Job::new(collective, 0, ranks, count) }
}

/// Random choices that are determined by a case's numbers and independent of each other: SplitMix64, as in the adversary.
pub(crate) struct Draw(u64);

impl Draw {
    pub(crate) fn of(numbers: &[usize]) -> Self {
        numbers.iter().fold(Self(0), |draw, &number| Self(Self(draw.0 ^ number as u64).bits()))
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below this one.
    pub(crate) fn below(&mut self, number: usize) -> usize {
        usize::try_from(self.bits() % number as u64).unwrap()
    }

    pub(crate) fn flip(&mut self) -> bool {
        self.below(2) == 1
    }

    /// One of this many ranks, but not this one.
    pub(crate) fn other(&mut self, rank: usize, ranks: usize) -> usize {
        (rank + 1 + self.below(ranks - 1)) % ranks
    }

    pub(crate) fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// Lengths of blocks, the longest of which has `count` elements, as every rank knows them: a block that it neither sends nor receives
/// has length 0. In place, any two ranks have equally long blocks for each other. The lengths are never freed.
pub(crate) fn uneven(job: &Job<'_>, in_place: bool, seed: u64) -> &'static [Uneven<'static>] {
    let Job { collective, ranks, root, count, .. } = *job;
    // The length of the block from one rank to another; if all get the same block, `from` and `to` are the same.
    let length = |from: usize, to: usize| {
        let (from, to) = if in_place { (from.min(to), from.max(to)) } else { (from, to) };
        let mut draw = Draw(seed ^ Draw::of(&[from, to]).bits());
        let longest = from == to && to as u64 == seed % ranks as u64;
        if longest || draw.below(4) == 3 { count } else { draw.below(count + 1) }
    };
    let leak = |lengths: Vec<usize>| -> &'static [usize] { Vec::leak(lengths) };
    let known = |rank| match collective {
        Collective::AllToAll => Uneven {
            input: leak((0..ranks).map(|to| length(rank, to)).collect()),
            output: leak((0..ranks).map(|from| length(from, rank)).collect()),
        },
        Collective::Scatter => {
            let mine = |to: usize| if rank == root || rank == to { length(to, to) } else { 0 };
            Uneven { input: leak((0..ranks).map(mine).collect()), output: &[] }
        }
        Collective::ReduceScatter => {
            Uneven { input: leak((0..ranks).map(|to| length(to, to)).collect()), output: &[] }
        }
        _ => Uneven { input: &[], output: leak((0..ranks).map(|from| length(from, from)).collect()) },
    };
    Vec::leak((0..ranks).map(known).collect())
}

/// Counts that straddle every boundary: none, fewer than ranks, primes, several rounds of chunks, a great many.
fn counts(collective: Collective, ranks: usize, chunk: usize) -> Vec<usize> {
    if collective == Collective::Barrier {
        return vec![0];
    }
    let several = if collective == Collective::AllReduce { 5 * ranks * chunk + 3 } else { 5 * chunk + 2 };
    // All blocks of all ranks are to fit in memory.
    let most = if collective.has_blocks() { 1_000_000 / (ranks * ranks) } else { LARGE };
    let mut counts = vec![0, 1, ranks - 1, ranks, ranks + 1, 7, 61, 257, several.min(most)];
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// A prime.
const LARGE: usize = 20_011;

pub(crate) fn policy(draw: &mut Draw, ranks: usize) -> Policy {
    let starved = Policy::StarveRank(draw.below(ranks));
    let lane = Policy::StarveLane(draw.below(3));
    match draw.below(3) {
        0 => Policy::Random,
        _ => draw.one(&[
            Policy::Prompt,
            Policy::LatestFirst,
            Policy::LateArrival,
            Policy::LateSent,
            starved,
            lane,
        ]),
    }
}

/// The most work, in messages, of a case that is always checked.
const LIGHT: usize = 600;

/// A case of this job with random other properties. A case with more work is drawn more seldom.
fn drawn(
    algorithm: &'static Algorithm,
    plan: &'static Plan,
    job: Job<'static>,
    draw: &mut Draw,
) -> Option<Case> {
    let ranks = job.ranks;
    let job = Job { root: if plan.collective.has_root() { draw.below(ranks) } else { 0 }, ..job };
    // The root, or another, has most to send.
    let work = [job.root, (job.root + 1) % ranks].map(|rank| {
        let sent = sent(plan.make(&Job { rank, ..job }));
        sent.messages.max(sent.elements / 16) * ranks
    });
    if draw.below((work[0].max(work[1]) / LIGHT).max(1)) > 0 {
        return None;
    }
    let in_place = draw.flip();
    // Into everyone's output, nobody's, or some ranks'.
    let some = draw.bits();
    let writable = draw.one(&[u64::MAX, u64::MAX, 0, some]);
    // Long writes need all ranks to be writable. Where inputs are put aside for them, only plans that write whole blocks get them.
    let long = draw.flip() && writable == u64::MAX && (plan.whole || !aside(plan, in_place));
    let (direct, ordered) = (long || draw.below(4) > 0, draw.flip() && plan.ordered);
    let seed = draw.bits();
    let is_uneven = draw.flip() && plan.uneven;
    let pairwise = is_uneven && plan.pairwise && draw.flip();
    let job = Job { direct, long, ordered, pairwise, ..job };
    let uneven = is_uneven.then(|| uneven(&job, in_place, seed));
    let depth = draw.one(&[plan.depth, 2, 8]);
    let policy = policy(draw, ranks);
    Some(Case { algorithm, plan, setup: Setup { job, uneven, depth, in_place, writable, policy, seed } })
}

/// True if long writes need inputs to be put aside.
fn aside(plan: &Plan, in_place: bool) -> bool {
    in_place && plan.collective.exchanges()
}

/// The cases of one plan in one world, at every boundary.
fn cases(algorithm: &'static Algorithm, plan: &'static Plan, ranks: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    let collective = plan.collective;
    let turns = [6, 3, 2][(ranks / 9).min(2)] * if collective == Collective::Barrier { 4 } else { 1 };
    for chunk in [1, 3, 16, 1000] {
        for count in counts(collective, ranks, chunk) {
            for lanes in [1, 3] {
                let job = job(collective, ranks, count, chunk, lanes);
                for turn in 0..turns {
                    let numbers =
                        [algorithm.code.into(), collective as usize, ranks, chunk, count, lanes, turn];
                    cases.extend(drawn(algorithm, plan, job, &mut Draw::of(&numbers)));
                }
            }
        }
    }
    cases
}

/// True where few cases of each kind shall run, as in `make test`.
fn brief() -> bool {
    std::env::var_os("UNISONO_TEST_BRIEF").is_some()
}

/// Checks that any two choices occur together in some case.
fn judge_variety(algorithm: &Algorithm, plan: &Plan, cases: &[Case]) {
    let some = |what: String, is: &dyn Fn(&Setup<'_>, &Job<'_>) -> bool| {
        let some = cases.iter().any(|case| is(&case.setup, &case.setup.job));
        assert!(some, "{} {}: no case {what}", algorithm.name, plan.collective.name());
    };
    let kind = |policy: &Policy| match policy {
        Policy::Random => 0,
        Policy::Prompt => 1,
        Policy::LatestFirst => 2,
        Policy::LateArrival => 3,
        Policy::LateSent => 4,
        Policy::StarveRank(_) => 5,
        Policy::StarveLane(_) => 6,
        Policy::Death { .. } => 7,
    };
    let orders = if plan.ordered { &[false, true][..] } else { &[false] };
    let lengths = if plan.uneven { &[false, true][..] } else { &[false] };
    for place in [false, true] {
        let name = |what: &str, which: usize| format!("{what} {which}, in place: {place}");
        for ranks in 1..=33 {
            some(name("of ranks", ranks), &|it, job| it.in_place == place && job.ranks == ranks);
        }
        for policy in 0..7 {
            some(name("of policy", policy), &|it, _| it.in_place == place && kind(&it.policy) == policy);
        }
        for depth in [plan.depth, 2, 8] {
            for &ordered in orders {
                some(name("ordered and of depth", depth), &|it, job| {
                    it.in_place == place && it.depth == depth && job.ordered == ordered
                });
            }
            for &uneven in lengths {
                some(name("uneven and of depth", depth), &|it, _| {
                    it.in_place == place && it.depth == depth && it.uneven.is_some() == uneven
                });
            }
        }
        for lanes in [1, 3] {
            if plan.pairwise {
                some(name("by pairs on lanes", lanes), &|it, job| {
                    it.in_place == place && job.pairwise && job.lanes == lanes
                });
            }
            some(name("of lanes", lanes), &|it, job| it.in_place == place && job.lanes == lanes);
            some(name("with long writes on lanes", lanes), &|it, job| {
                (it.in_place == place || aside(plan, true) && !plan.whole)
                    && (job.lanes, job.long, it.uneven) == (lanes, true, None)
            });
        }
    }
    some("through slots".to_owned(), &|_, job| !job.direct);
    // A schedule that would write and may not holds its slots longer than one without writes.
    let writes = |it: &Setup<'_>| plan.make(&it.job_of(0)).direct();
    if cases.iter().any(|case| writes(&case.setup)) {
        some("that may not write, and has no slot to spare".to_owned(), &|it, job| {
            it.writable == 0 && it.depth == plan.depth && job.ranks > 2 && writes(it)
        });
    }
    if plan.collective != Collective::Barrier {
        let pieces = |job: &Job<'_>| if job.collective == Collective::AllReduce { job.ranks } else { 1 };
        some("of a large count".to_owned(), &|_, job| job.count > 1000);
        some("of many chunks in a large world".to_owned(), &|_, job| {
            job.ranks > 17 && !job.long && job.count > 2 * job.chunk * pieces(job)
        });
    }
}

/// Checks all cases on all cores; fails with the first few violations.
fn run_all(cases: &[Case]) -> usize {
    run_with(cases, |case| case.run().map(|_| ()).map_err(|violation| format!("{case}: {violation}")))
}

/// Checks all cases with this check on all cores; fails with the first few violations.
fn run_with<C: Sync>(cases: &[C], check: impl Fn(&C) -> Result<(), String> + Sync) -> usize {
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(message) = check(case) {
                        failures.lock().unwrap().push(message);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    let message = failures.iter().take(5).cloned().collect::<Vec<_>>().join("\n");
    assert!(failures.is_empty(), "{} of {} cases fail, among them:\n{message}", failures.len(), cases.len());
    cases.len()
}

#[test]
fn every_algorithm_keeps_its_promises() {
    let started = std::time::Instant::now();
    let worlds = if brief() { (1..=12).chain([16, 17, 33]).collect() } else { (1..=33).collect::<Vec<_>>() };
    let of = |(algorithm, plan)| -> Vec<Case> {
        worlds.iter().flat_map(|&ranks| cases(algorithm, plan, ranks)).collect()
    };
    let all: Vec<Vec<Case>> = plans().map(of).collect();
    println!("{} cases in {:.1?}", run_all(&all.concat()), started.elapsed());
    if !brief() {
        for ((algorithm, plan), cases) in plans().zip(&all) {
            judge_variety(algorithm, plan, cases);
        }
    }
}

#[test]
fn the_largest_world() {
    let ranks = 64;
    let mut all = Vec::new();
    for (algorithm, plan) in plans() {
        let root = if plan.collective.has_root() { ranks / 3 } else { 0 };
        let count = if plan.collective == Collective::Barrier { 0 } else { ranks + 1 };
        let job = Job { root, ..job(plan.collective, ranks, count, 16, 2) };
        let mut draw = Draw::of(&[algorithm.code.into(), plan.collective as usize]);
        for in_place in [false, true] {
            let (depth, policy, seed) = (plan.depth, policy(&mut draw, ranks), draw.bits());
            let setup = Setup { job, uneven: None, depth, in_place, writable: u64::MAX, policy, seed };
            all.push(Case { algorithm, plan, setup });
        }
    }
    run_all(&all);
}

#[test]
fn hops_are_those_of_the_formula() {
    for (algorithm, plan) in plans() {
        for ranks in 1..=33 {
            let count = if plan.collective == Collective::Barrier { 0 } else { ranks };
            let setup = Setup {
                job: job(plan.collective, ranks, count, 1000, 1),
                uneven: None,
                depth: plan.depth,
                in_place: false,
                writable: u64::MAX,
                policy: Policy::Random,
                seed: 1,
            };
            let report = Case { algorithm, plan, setup }.run().unwrap();
            assert_eq!(report.hops, plan.hops(ranks), "{} {ranks} ranks", algorithm.name);
        }
    }
}

#[test]
fn the_stated_depth_is_needed() {
    for (algorithm, plan) in plans() {
        let count = if plan.collective == Collective::Barrier { 0 } else { 40 };
        let setup = Setup {
            job: job(plan.collective, 4, count, 8, 1),
            uneven: None,
            depth: plan.depth - 1,
            in_place: false,
            writable: u64::MAX,
            policy: Policy::Random,
            seed: 1,
        };
        let case = Case { algorithm, plan, setup };
        let violation = case.run().expect_err("comes to a standstill");
        assert!(matches!(violation.fault, Fault::Stuck(_)), "{case}: {violation}");
    }
}

#[test]
fn first_messages_do_not_depend_on_the_count() {
    for (_, plan) in plans() {
        for ranks in (1..=9).chain([16, 17]) {
            let roots = if plan.collective.has_root() { &[0, 1, ranks - 1][..] } else { &[0] };
            for root in roots.iter().map(|root| root % ranks) {
                for (count, chunk) in [(1, 4), (ranks - 1, 4), (61, 4), (61, 1000)] {
                    for kind in 0..8 {
                        let (lanes, ordered, long) = ([1, 3][kind % 2], kind / 2 % 2 > 0, kind / 4 > 0);
                        let job = job(plan.collective, ranks, count, chunk, lanes);
                        let job = Job { root, ordered: ordered && plan.ordered, long, ..job };
                        first_messages(plan, &job, None);
                        if plan.uneven && !long {
                            first_messages(plan, &job, Some((ranks + count) as u64));
                        }
                    }
                }
            }
        }
    }
}

/// Compares with a job of no elements. Lengths of blocks follow from a seed, if they are uneven.
fn first_messages(plan: &Plan, job: &Job<'static>, seed: Option<u64>) {
    let none = Job { count: 0, ..*job };
    let [some, nothing] = [job, &none].map(|job| seed.map(|seed| uneven(job, false, seed)));
    for rank in 0..job.ranks {
        let mut found = plan.make(&Job { rank, uneven: some.map(|it| it[rank]), ..*job });
        let mut wanted = plan.make(&Job { rank, uneven: nothing.map(|it| it[rank]), ..none });
        let [found, wanted] = [openings(&mut *found), openings(&mut *wanted)];
        assert_eq!(found, wanted, "rank {rank}, {job:?}, uneven: {seed:?}");
    }
}
