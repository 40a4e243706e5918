//! Every algorithm against the checker: many worlds, counts, chunks, lanes, depths and adversaries; and
//! schedules broken on purpose, each of which the checker must catch.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod mutants;
mod mutants_bruck;
mod mutants_rabenseifner;
mod mutants_star;
mod mutants_tree;
mod papers;
mod writes;

use std::{
    fmt,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use unisono::{
    algorithm::{ALGORITHMS, Algorithm, Plan},
    schedule::{
        Collective, Job, Schedule, Traffic, Uneven,
        check::{Fault, Policy, Report, Setup, Violation, check, check_openings},
    },
};

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

    fn traffic(&self) -> Vec<Traffic> {
        (0..self.setup.job.ranks).map(|rank| self.plan.traffic(&self.setup.job_of(rank))).collect()
    }

    fn run(&self) -> Result<Report, Violation> {
        check(self.schedules(), &self.setup, Some(&self.traffic()))
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {:?}", self.algorithm.name, self.plan.collective.name(), self.setup)
    }
}

/// Every plan of every algorithm.
fn plans() -> impl Iterator<Item = (&'static Algorithm, &'static Plan)> {
    ALGORITHMS.iter().flat_map(|algorithm| algorithm.plans.iter().map(move |plan| (algorithm, plan)))
}

fn job(collective: Collective, ranks: usize, count: usize, chunk: usize, lanes: usize) -> Job<'static> {
    Job { chunk, lanes, direct: true, ..Job::new(collective, 0, ranks, count) }
}

/// Lengths of blocks of which the longest has `count` elements, as every rank knows them: what it neither sends nor
/// receives is 0. Kept for the rest of the test.
fn uneven(
    collective: Collective,
    ranks: usize,
    root: usize,
    count: usize,
    seed: usize,
) -> &'static [Uneven<'static>] {
    // What one rank has for another, whoever they are; the same for all where everyone gets the same.
    let length = |from: usize, to: usize| {
        let mix = (from * 31 + to * 17 + seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        let longest = from == to && to == seed % ranks;
        if longest { count } else { mix % 4 / 3 * count + (1 - mix % 4 / 3) * (mix / 4 % (count + 1)) }
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

/// Counts that straddle every boundary: none, fewer than ranks, primes, several rounds of chunks.
fn counts(collective: Collective, ranks: usize, chunk: usize) -> Vec<usize> {
    if collective == Collective::Barrier {
        return vec![0];
    }
    let several = if collective == Collective::AllReduce { 5 * ranks * chunk + 3 } else { 5 * chunk + 2 };
    let mut counts = vec![0, 1, ranks - 1, ranks, ranks + 1, 61, several.min(300)];
    counts.sort_unstable();
    counts.dedup();
    counts
}

fn policies(ranks: usize, number: usize) -> [Policy; 2] {
    let special = [
        Policy::Prompt,
        Policy::LatestFirst,
        Policy::LateArrival,
        Policy::LateSent,
        Policy::StarveRank(number / 7 % ranks),
        Policy::StarveLane(number / 7 % 3),
    ];
    [Policy::Random, special[number % special.len()]]
}

/// All cases of one plan in one world; of larger worlds, which take long, only some of each kind, others in each.
/// The adversary's seed, and the root, follow from the case's number.
fn cases(algorithm: &'static Algorithm, plan: &'static Plan, ranks: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut depths = vec![plan.depth, 2, 8];
    depths.dedup();
    let mut number = 0;
    for chunk in [1, 3, 16, 1000] {
        for count in counts(plan.collective, ranks, chunk) {
            for lanes in [1, 3] {
                for &depth in &depths {
                    for in_place in [false, true] {
                        number += 1;
                        let few = [1, 5, 20][(ranks / 9).min(2)];
                        if !(number * 7 + ranks).is_multiple_of(few) {
                            continue;
                        }
                        let root = if plan.collective.has_root() { number / 3 % ranks } else { 0 };
                        // What takes long shows no more than what does not.
                        let one =
                            plan.traffic(&Job { root, ..job(plan.collective, ranks, count, chunk, lanes) });
                        if ranks > 9 && one.messages.max(one.elements / 16) * ranks > 4000 {
                            continue;
                        }
                        let job = Job { root, ..job(plan.collective, ranks, count, chunk, lanes) };
                        // Into everyone's output, nobody's, or some ranks'; without regard to the loops.
                        let mixed = (number * ranks) as u64;
                        let mixed = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
                        let granted = [u64::MAX, 0, mixed][(mixed % 3) as usize];
                        let seed = number as u64;
                        let job = Job { ordered: plan.ordered && seed.is_multiple_of(3), ..job };
                        // Long writes are for worlds in which everyone may be written to.
                        let swapped = in_place && plan.collective.exchanges();
                        let job =
                            Job { long: granted == u64::MAX && !swapped && seed.is_multiple_of(2), ..job };
                        for policy in policies(ranks, number + ranks) {
                            let setup = Setup { job, uneven: None, depth, in_place, granted, policy, seed };
                            cases.push(Case { algorithm, plan, setup });
                            // In place, an all_to_all gets what it gave.
                            if plan.uneven && !(in_place && plan.collective == Collective::AllToAll) {
                                let uneven = Some(uneven(plan.collective, ranks, root, count, number));
                                cases.push(Case { algorithm, plan, setup: Setup { uneven, ..setup } });
                            }
                        }
                    }
                }
            }
        }
    }
    cases
}

/// Runs all cases on all cores; tells of the first few that fail.
fn run_all(cases: &[Case]) -> usize {
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(violation) = case.run() {
                        failures.lock().unwrap().push(format!("{case}: {violation}"));
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    let told = failures.iter().take(5).cloned().collect::<Vec<_>>().join("\n");
    assert!(failures.is_empty(), "{} of {} cases fail, among them:\n{told}", failures.len(), cases.len());
    cases.len()
}

#[test]
fn every_algorithm_keeps_its_promises() {
    let started = std::time::Instant::now();
    let mut all = Vec::new();
    for (algorithm, plan) in plans() {
        for ranks in 1..=33 {
            all.extend(cases(algorithm, plan, ranks));
        }
    }
    println!("{} cases in {:.1?}", run_all(&all), started.elapsed());
}

#[test]
fn larger_worlds() {
    let mut all = Vec::new();
    for (algorithm, plan) in plans() {
        for ranks in [31, 32, 33, 64] {
            let root = if plan.collective.has_root() { ranks / 3 % ranks } else { 0 };
            let job = Job { root, ..job(plan.collective, ranks, ranks + 1, 16, 2) };
            let count = if plan.collective == Collective::Barrier { 0 } else { job.count };
            for policy in policies(ranks, ranks) {
                let setup = Setup {
                    job: Job { count, ..job },
                    uneven: None,
                    depth: plan.depth,
                    in_place: true,
                    granted: u64::MAX,
                    policy,
                    seed: 64,
                };
                all.push(Case { algorithm, plan, setup });
            }
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
                granted: u64::MAX,
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
            granted: u64::MAX,
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
        for ranks in 1..=17 {
            for rank in 0..ranks {
                for (count, chunk) in [(1, 4), (ranks - 1, 4), (61, 4), (61, 1000)] {
                    for lanes in [1, 3] {
                        let job = Job { rank, ..job(plan.collective, ranks, count, chunk, lanes) };
                        let mut found = plan.make(&job);
                        let mut wanted = plan.make(&Job { count: 0, ..job });
                        check_openings(rank, &mut *found, &mut *wanted).unwrap();
                    }
                }
            }
        }
    }
}
