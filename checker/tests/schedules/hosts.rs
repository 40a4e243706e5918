//! Checks the plans of two levels with ranks spread over hosts in every way: 1 to 4 hosts of 1 to 8 ranks, consecutive, in turn and
//! mixed, and hosts of different sizes.

use unisono_checker::{Policy, Setup, check};
use unisono_schedule::{
    Collective, Job, Schedule, Spread,
    algorithm::{ALGORITHMS, Algorithm, Plan},
};

use crate::{Draw, brief, openings::openings, policy, run_with, sent};

/// The plans of two levels.
fn plans() -> impl Iterator<Item = (&'static Algorithm, &'static Plan)> {
    let all =
        ALGORITHMS.iter().flat_map(|algorithm| algorithm.plans.iter().map(move |plan| (algorithm, plan)));
    all.filter(|(_, plan)| plan.flat.is_some())
}

fn leak(hosts: Vec<u32>) -> &'static [u32] {
    Vec::leak(hosts)
}

/// Consecutive ranks on hosts of these sizes.
fn blocks(sizes: &[usize]) -> Vec<u32> {
    (0..).zip(sizes).flat_map(|(host, &size)| std::iter::repeat_n(host, size)).collect()
}

/// Ranks on hosts in turn.
fn in_turn(sizes: &[usize]) -> Vec<u32> {
    let most = sizes.iter().copied().max().unwrap_or(0);
    let turn = |turn| (0..).zip(sizes).filter(move |&(_, &size)| turn < size).map(|(host, _)| host);
    (0..most).flat_map(turn).collect()
}

/// The same, in any order.
fn mixed(sizes: &[usize]) -> Vec<u32> {
    let (mut hosts, mut draw) = (blocks(sizes), Draw::of(sizes));
    for last in (1..hosts.len()).rev() {
        hosts.swap(last, draw.below(last + 1));
    }
    hosts
}

/// The hosts of all ranks, in all the ways that are checked.
fn spreads() -> Vec<&'static [u32]> {
    let mut sizes: Vec<Vec<usize>> = Vec::new();
    for hosts in 1..=4 {
        for each in 1..=8 {
            sizes.push(vec![each; hosts]);
            if hosts > 1 && each > 1 {
                let mut last = vec![each; hosts];
                last[hosts - 1] = 1;
                sizes.push(last);
            }
        }
    }
    for more in [
        &[3, 2][..],
        &[1, 4],
        &[5, 8],
        &[2, 3, 4],
        &[8, 1, 1],
        &[1, 1, 2],
        &[9, 10],
        &[4, 2, 7, 1],
        &[2, 2, 2, 3],
        &[12, 3, 9],
        &[2; 10],
        &[3; 11],
        &[1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 3],
    ] {
        sizes.push(more.to_vec());
    }
    let all = sizes.iter().flat_map(|sizes| [blocks(sizes), in_turn(sizes), mixed(sizes)]);
    let mut all: Vec<_> = all.collect();
    all.sort();
    all.dedup();
    all.into_iter().map(leak).collect()
}

fn schedules(plan: &Plan, setup: &Setup<'static>) -> Vec<Box<dyn Schedule>> {
    (0..setup.job.ranks).map(|rank| plan.make(&setup.job_of(rank))).collect()
}

/// Random cases of a plan with ranks on these hosts.
fn cases(
    plan: &'static Plan,
    code: u8,
    hosts: &'static [u32],
    cases: &mut Vec<(&'static Plan, Setup<'static>)>,
) {
    let ranks = hosts.len();
    let mut draw = Draw::of(&[
        code.into(),
        plan.collective as usize,
        ranks,
        Draw::of(&hosts.iter().map(|&it| it as usize).collect::<Vec<_>>()).below(1 << 30),
    ]);
    let turns = if brief() { 6 } else { 12 };
    for turn in 0..turns {
        let chunk = draw.one(&[1, 3, 16, 1000]);
        let small = [0, 1, ranks - 1, ranks, ranks + 1, 7, 61][draw.below(7)];
        let count = if turn % 2 == 0 {
            small
        } else {
            draw.below(if plan.collective.has_blocks() { 6 * chunk.min(40) } else { 40 * chunk } + 2)
        };
        let count = if plan.collective == Collective::Barrier { 0 } else { count };
        let spread = Job { spread: Spread::Of(hosts), ..Job::new(plan.collective, 0, ranks, count) };
        let job = Job {
            chunk,
            lanes: draw.one(&[1, 3]),
            direct: draw.flip(),
            root: if plan.collective.has_root() { draw.below(ranks) } else { 0 },
            shown: plan.inside(&spread, 1 << 20, draw.flip()),
            spread: Spread::Of(hosts),
            ..Job::new(plan.collective, 0, ranks, count)
        };
        let work = sent(plan.make(&Job { rank: job.root, ..job }));
        if work.messages.max(work.elements / 16) * ranks > 20_000 {
            continue;
        }
        let some = draw.bits();
        let setup = Setup {
            job,
            uneven: None,
            depth: draw.one(&[plan.depth, plan.depth, 2, 8]),
            in_place: draw.flip(),
            writable: if job.shown.is_some() {
                draw.one(&[u64::MAX, some])
            } else {
                draw.one(&[u64::MAX, 0])
            },
            policy: policy(&mut draw, ranks),
            seed: draw.bits(),
        };
        cases.push((plan, setup));
    }
}

#[test]
fn two_levels_keep_their_promises_on_any_hosts() {
    let spreads = spreads();
    let mut all = Vec::new();
    for (algorithm, plan) in plans() {
        let before = all.len();
        spreads.iter().for_each(|hosts| cases(plan, algorithm.code, hosts, &mut all));
        let here = &all[before..];
        for in_place in [false, true] {
            let some = |what: &str, is: &dyn Fn(&Setup<'_>) -> bool| {
                let name = (algorithm.name, plan.collective.name());
                assert!(
                    here.iter().any(|(_, it)| it.in_place == in_place && is(it)),
                    "{name:?}: none {what}"
                );
            };
            some("of the least depth", &|it| it.depth == plan.depth);
            some("that shows elements", &|it| it.job.shown.is_some() == plan.shows_inside);
            some("where sent is late", &|it| matches!(it.policy, Policy::LateSent));
            some("of two lanes", &|it| {
                plan.collective == Collective::Barrier
                    || plan.collective.has_blocks()
                    || plan.make(&it.job).lanes() > 1
            });
        }
    }
    run_with(&all, |(plan, setup)| {
        check(schedules(plan, setup), setup)
            .map(|_| ())
            .map_err(|violation| format!("{setup:?}: {violation}"))
    });
}

#[test]
fn where_there_is_one_level_they_are_flat() {
    for (_, plan) in plans() {
        for spread in [
            Spread::Unknown,
            Spread::Even(1),
            Spread::Even(6),
            Spread::Of(&[3; 6]),
            Spread::Of(&[1, 0, 2, 3, 5, 4]),
        ] {
            let count = if plan.collective == Collective::Barrier { 0 } else { 100 };
            let job = Job { chunk: 7, lanes: 2, spread, ..Job::new(plan.collective, 2, 6, count) };
            let (mut found, mut flat) = (plan.make(&job), plan.flat.unwrap().make(&job));
            assert_eq!(found.lanes(), flat.lanes());
            for lane in 0..flat.lanes() {
                while let Some(step) = flat.next(lane) {
                    assert_eq!(found.next(lane), Some(step));
                }
            }
        }
    }
}

#[test]
fn first_messages_between_hosts_do_not_depend_on_the_count() {
    for (_, plan) in plans().filter(|(_, plan)| plan.collective != Collective::Barrier) {
        for hosts in spreads() {
            let ranks = hosts.len();
            let root = if plan.collective.has_root() { ranks - 1 } else { 0 };
            let job = |rank, count| Job {
                root,
                chunk: 4,
                lanes: 3,
                spread: Spread::Of(hosts),
                ..Job::new(plan.collective, rank, ranks, count)
            };
            for (rank, count) in (0..ranks).flat_map(|rank| [1, ranks - 1, 61].map(|count| (rank, count))) {
                let of = |count| openings(&mut *plan.make(&job(rank, count)));
                assert_eq!(of(count), of(0), "{:?}", job(rank, count));
            }
        }
    }
}
