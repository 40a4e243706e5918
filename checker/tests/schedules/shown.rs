//! Checks the schedules of ranks that show elements, with many sizes and adversaries and with a rank that dies; and those that are broken
//! on purpose.

use std::fmt;

use unisono_checker::{Fault, Policy, Setup, Violation, check};
use unisono_schedule::{
    Collective::{self, AllGather, AllReduce, AllToAll, Broadcast, ReduceScatter},
    Job, Own, Place, Schedule, Showing, Shown, Span, Spread, Step,
    algorithm::{ALGORITHMS, Algorithm, Plan, find},
    cost::Fabric,
    price::{Effort, price},
};

use crate::{Draw, mutants::Script, policy, run_with};

struct Case {
    algorithm: &'static Algorithm,
    plan: &'static Plan,
    setup: Setup<'static>,
}

impl Case {
    fn scripts(&self) -> Vec<Script> {
        let made = |rank| Script::of(self.plan.make(&self.setup.job_of(rank)));
        (0..self.setup.job.ranks).map(made).collect()
    }

    fn check(&self, scripts: Vec<Script>) -> Result<(), Violation> {
        check(scripts.into_iter().map(|it| Box::new(it) as Box<dyn Schedule>).collect(), &self.setup)?;
        Ok(())
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {:?}", self.algorithm.name, self.plan.collective.name(), self.setup)
    }
}

/// Every plan that can show.
fn plans() -> impl Iterator<Item = (&'static Algorithm, &'static Plan)> {
    let all = ALGORITHMS.iter().flat_map(|it| it.plans.iter().map(move |plan| (it, plan)));
    all.filter(|(_, plan)| !plan.shows.is_empty())
}

/// A case with random other properties.
fn case(
    (algorithm, plan): (&'static Algorithm, &'static Plan),
    (ranks, count, chunk): (usize, usize, usize),
    draw: &mut Draw,
) -> Case {
    let collective = plan.collective;
    let in_place = draw.flip();
    let shown = draw.one(plan.shows);
    // In an all_to_all in place, the block from another rank replaces the block for it.
    let replaces = in_place && collective == AllToAll;
    let some = draw.bits();
    let writable = if replaces { 0 } else { draw.one(&[u64::MAX, 0, some]) };
    let policy = match draw.flip() {
        true => policy(draw, ranks),
        false => Policy::Death { rank: draw.below(ranks), after: draw.below(2 * ranks) },
    };
    let root = if collective.has_root() { draw.below(ranks) } else { 0 };
    let count = if collective == Collective::Barrier { 0 } else { count };
    let ordered = plan.ordered && draw.flip();
    let job = Job { shown: Some(shown), root, chunk, ordered, ..Job::new(collective, 0, ranks, count) };
    let setup = Setup { job, uneven: None, depth: 1, in_place, writable, policy, seed: draw.bits() };
    Case { algorithm, plan, setup }
}

#[test]
fn what_is_shown_is_read_in_time() {
    let mut all = Vec::new();
    for (index, plan) in plans().enumerate() {
        for ranks in (1..=9).chain([16, 17, 33, 64]) {
            let turns = if ranks > 9 { 2 } else { 6 };
            for (count, chunk) in
                [(0, 8), (1, 1), (5, 1), (61, 16), (61, usize::MAX), (257, 100), (1000, 640), (999, 64)]
            {
                // As many rounds as there are chunks.
                let count = if ranks > 9 { count.min(257) } else { count };
                for turn in 0..turns {
                    let mut draw = Draw::of(&[index, ranks, count, chunk, turn]);
                    all.push(case(plan, (ranks, count, chunk), &mut draw));
                }
            }
        }
    }
    let all = run_with(&all, |case| case.check(case.scripts()).map_err(|it| format!("{case}: {it}")));
    println!("{all} cases");
}

/// An all_reduce of two_shot, an all_to_all or a broadcast among three ranks, all of whose elements are read in place unless `copied`.
fn wanted(collective: Collective, copied: bool, in_place: bool) -> Case {
    let name = if collective == AllReduce { "two_shot" } else { "direct" };
    let algorithm = find(name).unwrap();
    let plan = algorithm.plan(collective).unwrap();
    let shown = Some(if copied { Showing::Copied } else { Showing::InPlace });
    let job = Job { shown, chunk: 96, ..Job::new(collective, 0, 3, 90) };
    let writable = if copied { 0 } else { u64::MAX };
    Case {
        algorithm,
        plan,
        setup: Setup { job, uneven: None, depth: 1, in_place, writable, policy: Policy::Random, seed: 1 },
    }
}

fn is_show(step: &Step) -> bool {
    matches!(step, Step::Show { .. })
}

fn is_view(step: &Step) -> bool {
    matches!(step, Step::View { .. })
}

fn is_settle(step: &Step) -> bool {
    *step == Step::Settle
}

/// Breaks a schedule, and returns the fault under every adversary.
fn broken(case: &Case, harm: impl Fn(&mut [Script])) -> Vec<Fault> {
    let mut policies = vec![Policy::Prompt, Policy::LatestFirst, Policy::LateArrival, Policy::LateSent];
    policies.extend((0..case.setup.job.ranks).map(Policy::StarveRank));
    policies.extend([Policy::Random; 8]);
    let faults = policies.into_iter().enumerate().map(|(seed, policy)| {
        let setup = Setup { policy, seed: seed as u64, ..case.setup };
        let mut scripts = case.scripts();
        harm(&mut scripts);
        let found = Case { setup, ..*case }.check(scripts);
        found.expect_err(&format!("{policy:?} finds nothing")).fault
    });
    faults.collect()
}

#[test]
fn what_is_not_viewed_is_not_read() {
    for (collective, copied) in
        [AllReduce, AllToAll, Broadcast].into_iter().flat_map(|it| [(it, true), (it, false)])
    {
        let case = wanted(collective, copied, false);
        for fault in broken(&case, |all| all[1].drop(0, is_view)) {
            assert!(matches!(fault, Fault::NotHeld(_)), "{collective:?}: {fault}");
        }
    }
}

#[test]
fn what_is_viewed_is_what_was_shown() {
    let case = wanted(AllToAll, true, false);
    for fault in broken(&case, |all| {
        if let Step::View { shown, .. } = all[2].nth(1, is_view) {
            shown.stride += 1;
        }
    }) {
        assert!(matches!(fault, Fault::Views { .. }), "{fault}");
    }
}

#[test]
fn nothing_is_read_before_it_is_shown() {
    // The results are shown before they are reduced.
    let case = wanted(AllReduce, false, false);
    let faults = broken(&case, |all| {
        for script in all {
            let place = script.place(1, is_show);
            script.lanes[0].swap(place - 1, place);
        }
    });
    for fault in faults {
        // The round in which the inputs are viewed has ended.
        assert!(matches!(fault, Fault::NotHeld(_)), "{fault}");
    }
}

#[test]
fn nothing_is_shown_before_it_is_written() {
    // A rank writes its result once more after it has shown it.
    let case = wanted(AllReduce, false, false);
    let faults = broken(&case, |all| {
        let place = all[1].place(1, is_show);
        let fold = all[1].lanes[0][place - 1];
        let Step::Fold { into, .. } = fold else { panic!("{fold:?}") };
        let (from, into) = (Span { len: 1, ..into }, Span { len: 1, offset: into.offset + 1, ..into });
        all[1].lanes[0].insert(place + 1, Step::Copy { from, into });
    });
    for fault in faults {
        assert!(matches!(fault, Fault::ReadsEarly { .. } | Fault::StillRead { .. }), "{fault}");
    }
}

#[test]
fn nothing_is_written_over_before_all_have_read_it() {
    // In place, a part of the result replaces what its rank reduces, and may not before that rank has shown its result.
    let case = wanted(AllReduce, false, true);
    let faults = broken(&case, |all| {
        let place = all[0].place(1, is_show);
        let (from, into) = (Span::output(0, 1), Span::output(40, 1));
        all[0].lanes[0].insert(place, Step::Copy { from, into });
    });
    for fault in faults {
        assert!(matches!(fault, Fault::StillRead { .. } | Fault::ReadsEarly { .. }), "{fault}");
    }
    // The root of a broadcast changes its elements before it knows that they have been read.
    let case = wanted(Broadcast, false, false);
    let faults = broken(&case, |all| {
        let place = all[0].place(0, is_settle);
        let step = Step::Copy { from: Span::output(0, 1), into: Span::output(1, 1) };
        all[0].lanes[0].insert(place, step);
    });
    for fault in faults {
        assert!(matches!(fault, Fault::StillRead { .. } | Fault::ReadsEarly { .. }), "{fault}");
    }
}

#[test]
fn nobody_ends_while_others_read() {
    for collective in [AllReduce, AllToAll, Broadcast] {
        let case = wanted(collective, false, false);
        for fault in broken(&case, |all| all.iter_mut().for_each(|script| script.drop(0, is_settle))) {
            assert!(matches!(fault, Fault::EndsEarly(_)), "{collective:?}: {fault}");
        }
        for fault in broken(&case, |all| all[1].drop(0, is_settle)) {
            assert!(matches!(fault, Fault::Stuck(_)), "{collective:?}: {fault}");
        }
        // What is copied to slots needs none.
        let copied = wanted(collective, true, false);
        assert!(copied.scripts().iter().all(|it| !it.lanes[0].iter().any(is_settle)));
    }
}

/// A collective by lanes among hosts of three ranks and two, whose ranks read each other's scratch.
fn inside(collective: Collective) -> Case {
    let algorithm = find("lanes").unwrap();
    let plan = algorithm.plan(collective).unwrap();
    let job = Job { spread: Spread::Of(&[0, 0, 1, 0, 1]), ..Job::new(collective, 0, 5, 6) };
    let job = Job { shown: plan.inside(&job, 1 << 20, true), chunk: 40, ..job };
    let (policy, writable) = (Policy::Random, u64::MAX);
    let setup = Setup { job, uneven: None, depth: 2, in_place: false, writable, policy, seed: 1 };
    Case { algorithm, plan, setup }
}

#[test]
fn ranks_of_a_host_read_what_they_view() {
    for collective in [AllGather, ReduceScatter, AllToAll] {
        let case = inside(collective);
        for fault in broken(&case, |all| all[1].drop(0, is_view)) {
            assert!(matches!(fault, Fault::NotHeld(_)), "{collective:?}: {fault}");
        }
        for fault in broken(&case, |all| {
            if let Step::View { shown, .. } = all[1].nth(0, is_view) {
                shown.first.offset += 1;
            }
        }) {
            assert!(matches!(fault, Fault::Views { .. }), "{collective:?}: {fault}");
        }
    }
}

#[test]
fn scratch_is_shown_when_it_is_written() {
    for collective in [ReduceScatter, AllToAll] {
        // A rank shows its blocks before it has copied the last of them there.
        for fault in broken(&inside(collective), |all| {
            let place = all[3].place(0, is_show);
            all[3].lanes[0].swap(place - 1, place);
        }) {
            let early =
                matches!(fault, Fault::ReadsEarly { .. } | Fault::StillRead { .. } | Fault::Undefined { .. });
            assert!(early, "{collective:?}: {fault}");
        }
    }
}

#[test]
fn scratch_is_not_written_over_while_a_rank_of_the_host_reads_it() {
    for collective in [ReduceScatter, AllToAll] {
        for fault in broken(&inside(collective), |all| {
            let place = all[1].place(0, is_show);
            let step = Step::Copy { from: Span::input(0, 1), into: Span::scratch(0, 1) };
            all[1].lanes[0].insert(place + 1, step);
        }) {
            let read = matches!(fault, Fault::ReadsEarly { .. } | Fault::StillRead { .. });
            assert!(read, "{collective:?}: {fault}");
        }
    }
}

#[test]
fn no_rank_of_a_host_ends_while_another_reads_its_scratch() {
    for collective in [AllGather, ReduceScatter, AllToAll] {
        let case = inside(collective);
        let rounds = case.scripts()[0].lanes[0].iter().filter(|step| is_show(step)).count();
        for fault in broken(&case, |all| {
            for rank in [0, 1, 3] {
                let last = all[rank].place(rounds - 1, is_show);
                all[rank].lanes[0].truncate(last);
            }
        }) {
            assert!(matches!(fault, Fault::EndsEarly(_)), "{collective:?}: {fault}");
        }
        for fault in broken(&case, |all| all[1].drop(rounds - 1, is_show)) {
            assert!(
                matches!(fault, Fault::Stuck(_) | Fault::Views { .. } | Fault::NotHeld(_)),
                "{collective:?}: {fault}"
            );
        }
    }
}

#[test]
fn scratch_alone_is_shown_where_messages_go_between_hosts() {
    for fault in broken(&inside(ReduceScatter), |all| {
        if let Step::Show { shown } = all[0].nth(0, is_show) {
            shown.first.place = Place::Input;
        }
    }) {
        assert!(matches!(fault, Fault::Kind(_)), "{fault}");
    }
}

#[test]
fn all_have_as_many_rounds() {
    let case = wanted(Broadcast, true, false);
    for fault in broken(&case, |all| all[2].double(0, is_show)) {
        assert!(
            matches!(
                fault,
                Fault::Shape { what: "the number of rounds", .. } | Fault::Stuck(_) | Fault::NotHeld(_)
            ),
            "{fault}"
        );
    }
    let case = wanted(AllReduce, true, false);
    for fault in broken(&case, |all| all[1].drop(1, is_show)) {
        assert!(matches!(fault, Fault::Stuck(_) | Fault::Views { .. } | Fault::NotHeld(_)), "{fault}");
    }
}

#[test]
fn a_rank_writes_to_its_own_memory_alone() {
    for copied in [true, false] {
        let case = wanted(AllToAll, copied, false);
        for fault in broken(&case, |all| {
            let copy =
                |step: &Step| matches!(step, Step::Copy { from: Span { place: Place::Landed(_), .. }, .. });
            if let Step::Copy { from, into } = all[1].nth(0, copy) {
                std::mem::swap(from, into);
            }
        }) {
            let own = matches!(fault, Fault::WritesTheirs { .. } | Fault::Undefined { .. });
            assert!(own, "{fault}");
        }
    }
}

#[test]
fn messages_and_shows_do_not_mix() {
    let case = wanted(Broadcast, true, false);
    let setup = Setup { job: Job { shown: None, ..case.setup.job }, ..case.setup };
    let fault = Case { setup, ..case }.check(case.scripts()).expect_err("a show in a job of messages").fault;
    assert!(matches!(fault, Fault::Kind(_)), "{fault}");
}

#[test]
fn no_chunk_is_longer_than_a_slot() {
    for (algorithm, plan) in plans() {
        for ranks in [2, 3, 7] {
            for (count, chunk) in [(0, 64), (1000, 64), (1000, 640), (5, 1), (100_000, 4096)] {
                let count = if plan.collective == Collective::Barrier { 0 } else { count };
                let job =
                    Job { shown: Some(Showing::Copied), chunk, ..Job::new(plan.collective, 0, ranks, count) };
                let mut schedule = plan.make(&job);
                let most = schedule.shows().unwrap();
                assert!(most <= chunk.max(ranks), "{} {job:?}: {most}", algorithm.name);
                let longest = std::iter::from_fn(|| schedule.next(0)).filter_map(|step| match step {
                    Step::Show { shown } | Step::View { shown, .. } => Some(shown.len()),
                    _ => None,
                });
                assert!(longest.max().unwrap_or(0) <= most, "{} {job:?}", algorithm.name);
            }
        }
    }
}

#[test]
fn a_part_of_what_is_shown_lies_in_one_block() {
    let shown = Shown { first: Span::input(5, 10), blocks: 3, stride: 100, own: Own::default() };
    assert_eq!(shown.within(0, 10), Some(Span::input(5, 10)));
    assert_eq!(shown.within(13, 4), Some(Span::input(108, 4)));
    assert_eq!((shown.within(8, 3), shown.within(30, 1), shown.len()), (None, None, 30));
    assert_eq!(Shown::one(Span::output(7, 0)).within(0, 0), Some(Span::output(7, 0)));
    // Blocks without a gap are one.
    assert_eq!(Shown::several(Span::input(5, 10), 3, 10), Shown::one(Span::input(5, 30)));
    assert_eq!(Shown::several(Span::input(5, 10), 3, 100), shown);
}

/// Others do not read the block that a rank has for itself, so it is not copied.
#[test]
fn what_a_rank_shows_is_copied_without_its_own_block() {
    let stretches = |shown: Shown, from: usize, end: usize| {
        let stretch = |at| {
            let (at, there) = shown.stretch(at, end)?;
            assert_eq!(shown.within(at, there.len), Some(there));
            Some((at, there.len))
        };
        let next = |&(at, len): &(usize, usize)| stretch(at + len);
        std::iter::successors(stretch(from), next).collect::<Vec<_>>()
    };
    let apart = Shown::several(Span::input(5, 10), 4, 100).but(Own { at: 20, len: 10 });
    assert_eq!(stretches(apart, 0, 40), [(0, 10), (10, 10), (30, 10)]);
    assert_eq!(stretches(apart, 15, 35), [(15, 5), (30, 5)]);
    assert_eq!(stretches(apart, 22, 28), []);
    let whole = Shown::several(Span::input(0, 10), 3, 10);
    assert_eq!(stretches(whole, 0, 30), [(0, 30)]);
    assert_eq!(stretches(whole.but(Own { at: 10, len: 10 }), 4, 30), [(4, 6), (20, 10)]);
    assert_eq!(stretches(whole.but(Own { at: 20, len: 10 }), 0, 30), [(0, 20)]);
    assert_eq!(stretches(Shown::NOTHING, 0, 0), []);
    let other = |at, len| apart.within(at, len).is_some();
    assert_eq!(
        [other(10, 10), other(19, 1), other(20, 1), other(29, 1), other(30, 10)],
        [true, true, false, false, true]
    );
}

#[test]
fn the_model_prices_what_is_shown() {
    let fabric = Fabric { ranks_per_host: 8, cores: 8, ..Fabric::SHM };
    for (algorithm, plan) in plans() {
        let count = if plan.collective == Collective::Barrier { 0 } else { 2 };
        let sent = Job { chunk: 1 << 14, ..Job::new(plan.collective, 0, 4, count) };
        let cost =
            |shown, job: &Job<'_>| price(plan, &Job { shown, ..*job }, 4, &fabric, Effort::EXACT).unwrap();
        let messages = cost(None, &sent);
        for &shown in plan.shows {
            let shown = cost(Some(shown), &sent);
            let name = (algorithm.name, plan.collective);
            assert!(
                shown.seconds > 0.0 && shown.seconds < messages.seconds,
                "{name:?}: {shown:?} {messages:?}"
            );
            assert_eq!(shown.messages.total, 0);
        }
        // Large elements are copied once less.
        let large = Job { count: count << 17, chunk: 1 << 18, ..sent };
        if plan.shows.contains(&Showing::InPlace) {
            let [copied, in_place] =
                [Showing::Copied, Showing::InPlace].map(|shown| cost(Some(shown), &large).seconds);
            assert!(in_place < copied, "{}: {in_place} {copied}", algorithm.name);
        }
    }
}
