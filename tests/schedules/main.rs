//! Every algorithm against the checker: many worlds, counts, chunks, lanes, depths and adversaries; and
//! schedules broken on purpose, each of which the checker must catch.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod mutants;
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
        Collective, Job, Schedule, Traffic,
        check::{Fault, Policy, Report, Setup, Violation, check, check_openings},
    },
};

/// One run of one plan.
#[derive(Clone, Copy)]
struct Case {
    algorithm: &'static Algorithm,
    plan: &'static Plan,
    setup: Setup,
}

impl Case {
    fn schedules(&self) -> Vec<Box<dyn Schedule>> {
        let job = self.setup.job;
        (0..job.ranks).map(|rank| self.plan.make(&Job { rank, ..job })).collect()
    }

    fn traffic(&self) -> Vec<Traffic> {
        let job = self.setup.job;
        (0..job.ranks).map(|rank| self.plan.traffic(&Job { rank, ..job })).collect()
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

fn job(collective: Collective, ranks: usize, count: usize, chunk: usize, lanes: usize) -> Job {
    Job { collective, rank: 0, ranks, count, root: 0, chunk, lanes, direct: true }
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

/// All cases of one plan in one world. The adversary's seed, and the root of a broadcast, follow from the
/// case's number.
fn cases(algorithm: &'static Algorithm, plan: &'static Plan, ranks: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut depths = vec![plan.depth, 2, 8];
    depths.dedup();
    for chunk in [1, 3, 16, 1000] {
        for count in counts(plan.collective, ranks, chunk) {
            for lanes in [1, 3] {
                for &depth in &depths {
                    for in_place in [false, true] {
                        let number = cases.len();
                        let root =
                            if plan.collective == Collective::Broadcast { number / 3 % ranks } else { 0 };
                        let job = Job { root, ..job(plan.collective, ranks, count, chunk, lanes) };
                        // Into everyone's output, nobody's, or some ranks'; without regard to the loops.
                        let mixed = (number * ranks) as u64;
                        let mixed = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
                        let granted = [u64::MAX, 0, mixed][(mixed % 3) as usize];
                        for policy in policies(ranks, number + ranks) {
                            let setup = Setup { job, depth, in_place, granted, policy, seed: number as u64 };
                            cases.push(Case { algorithm, plan, setup });
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
        for ranks in 1..=17 {
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
            let job = Job { root: ranks / 3 % ranks, ..job(plan.collective, ranks, ranks + 1, 16, 2) };
            let job = if plan.collective == Collective::Broadcast { job } else { Job { root: 0, ..job } };
            let count = if plan.collective == Collective::Barrier { 0 } else { job.count };
            for policy in policies(ranks, ranks) {
                let setup = Setup {
                    job: Job { count, ..job },
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
