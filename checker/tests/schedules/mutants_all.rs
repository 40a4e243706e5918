//! Every plan, broken on purpose in one step: the step is left out, done twice, or done with another rank. For any order of events,
//! each of these must be caught.
//!
//! Not broken are steps of no elements; copies and reductions whose result is no operand, which have no effect the second time; copies
//! in place, which may copy what is there (the star's hub sends every rank its own block, too); and `Settle`, whose absence shows
//! only in some orders of events.

use unisono_checker::{Fault, Policy, Setup, Violation, check};
use unisono_schedule::{
    Collective, Job, Place, Rank, Schedule, Span, Step, Uneven,
    algorithm::{Algorithm, Plan},
};

use crate::{Draw, job, mutants::Script, plans, policy, uneven};

/// How a step is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Break {
    Drop,
    Double,
    /// With this rank instead.
    Redirect(Rank),
}

/// A few chunks on each of two lanes: of even blocks, of uneven ones, and reduced in order.
fn setups(algorithm: &Algorithm, plan: &Plan) -> Vec<Setup<'static>> {
    let mut setups = Vec::new();
    for ranks in [4, 5, 6] {
        let numbers = [algorithm.code.into(), plan.collective as usize, ranks];
        let draw = &mut Draw::of(&numbers);
        let count = match plan.collective {
            Collective::Barrier => 0,
            Collective::AllReduce => 3 * 4 * ranks + 1,
            _ => 13,
        };
        let root = if plan.collective.has_root() { draw.below(ranks) } else { 0 };
        let even = Job { root, ..job(plan.collective, ranks, count, 4, 2) };
        let jobs = [(even, false), (even, true), (Job { ordered: true, ..even }, false)];
        for (job, is_uneven) in jobs {
            if is_uneven && !plan.uneven || job.ordered && !plan.ordered {
                continue;
            }
            let (in_place, seed) = (draw.flip(), draw.bits());
            let uneven = is_uneven.then(|| uneven(&job, in_place, seed));
            let writable = draw.one(&[u64::MAX, 0]);
            setups.push(Setup { job, uneven, depth: 4, in_place, writable, policy: Policy::Random, seed });
        }
    }
    setups
}

fn scripts(plan: &Plan, setup: &Setup<'_>) -> Vec<Script> {
    (0..setup.job.ranks).map(|rank| Script::of(plan.make(&setup.job_of(rank)))).collect()
}

fn judge(scripts: &[Script], setup: &Setup<'_>) -> Result<(), Violation> {
    let schedules = scripts.iter().map(|it| Box::new(it.clone()) as Box<dyn Schedule>).collect();
    check(schedules, setup).map(|_| ())
}

/// True if two spans are the same memory. In place, input and output are, from where one lies in the other.
fn same<'a>(setup: &Setup<'a>, rank: Rank, one: Span, other: Span) -> bool {
    let job = setup.job_of(rank);
    let before = |lengths: fn(Uneven<'a>) -> &'a [usize]| {
        job.uneven.map_or(rank * job.count, |uneven| lengths(uneven)[..rank].iter().sum())
    };
    let main = |span: Span| {
        let base = match (span.place, job.collective) {
            (Place::Input, Collective::AllGather) => before(|uneven| uneven.output),
            (Place::Input, Collective::Gather) if rank == job.root => before(|uneven| uneven.output),
            (Place::Output, Collective::ReduceScatter) => before(|uneven| uneven.input),
            (Place::Output, Collective::Scatter) if rank == job.root => before(|uneven| uneven.input),
            (Place::Input | Place::Output, _) => 0,
            _ => return span,
        };
        Span::output(base + span.offset, span.len)
    };
    one == other || setup.in_place && main(one) == main(other)
}

/// True if a step that is broken in this way must be caught.
fn matters(setup: &Setup<'_>, rank: Rank, step: &Step, how: Break) -> bool {
    match (*step, how) {
        (Step::Settle, _) => false,
        (Step::Copy { into, .. }, _) => how == Break::Drop && into.len > 0 && !setup.in_place,
        (Step::Reduce { into, .. } | Step::Fold { into, .. }, Break::Drop) => into.len > 0,
        (Step::Reduce { a, b, into, .. }, Break::Double) => {
            into.len > 0 && (same(setup, rank, a, into) || same(setup, rank, b, into))
        }
        (Step::Fold { own, into, .. }, Break::Double) => into.len > 0 && same(setup, rank, own, into),
        (Step::Reduce { .. } | Step::Fold { .. }, Break::Redirect(_)) => false,
        (
            Step::Put { to: peer, .. }
            | Step::Write { to: peer, .. }
            | Step::Await { from: peer, .. }
            | Step::Take { from: peer, .. }
            | Step::Free { from: peer },
            Break::Redirect(other),
        ) => other != peer,
        _ => true,
    }
}

/// The expected fault, if it is known.
fn fits(step: &Step, how: Break, fault: &Fault) -> bool {
    match (step, how) {
        (Step::Free { .. }, Break::Drop) => matches!(fault, Fault::NeverFreed { .. } | Fault::Stuck(_)),
        (Step::Reduce { .. } | Step::Fold { .. }, Break::Double) => matches!(fault, Fault::Twice { .. }),
        _ => true,
    }
}

fn broken(script: &mut Script, lane: usize, place: usize, how: Break) {
    let lane = &mut script.lanes[lane];
    match how {
        Break::Drop => drop(lane.remove(place)),
        Break::Double => lane.insert(place, lane[place]),
        Break::Redirect(other) => match &mut lane[place] {
            Step::Put { to: peer, .. }
            | Step::Write { to: peer, .. }
            | Step::Await { from: peer, .. }
            | Step::Take { from: peer, .. }
            | Step::Free { from: peer } => *peer = other,
            _ => unreachable!("only these have a peer"),
        },
    }
}

/// All but `Settle`.
const KINDS: [fn(&Step) -> bool; 8] = [
    |step| matches!(step, Step::Put { .. }),
    |step| matches!(step, Step::Write { .. }),
    |step| matches!(step, Step::Await { .. }),
    |step| matches!(step, Step::Take { .. }),
    |step| matches!(step, Step::Reduce { .. }),
    |step| matches!(step, Step::Fold { .. }),
    |step| matches!(step, Step::Copy { .. }),
    |step| matches!(step, Step::Free { .. }),
];

/// How many mutants of a kind there are of a setup.
const EACH: usize = 16;

#[test]
fn a_step_left_out_or_done_twice_or_with_another_rank() {
    let mut counts = [[0; 3]; KINDS.len()];
    for (algorithm, plan) in plans() {
        let draw = &mut Draw::of(&[algorithm.code.into(), plan.collective as usize]);
        for setup in setups(algorithm, plan) {
            let whole = scripts(plan, &setup);
            judge(&whole, &setup).expect("whole before it is broken");
            for (kind, way) in (0..KINDS.len()).flat_map(|kind| [0, 1, 2].map(|way| (kind, way))) {
                let is = KINDS[kind];
                // With which rank is drawn below.
                let how = [Break::Drop, Break::Double, Break::Redirect(usize::MAX)][way];
                let mut places = Vec::new();
                for (rank, script) in whole.iter().enumerate() {
                    for (lane, steps) in script.lanes.iter().enumerate() {
                        let steps = steps.iter().enumerate();
                        let steps = steps.filter(|(_, it)| is(it) && matters(&setup, rank, it, how));
                        places.extend(steps.map(|(place, step)| (rank, lane, place, *step)));
                    }
                }
                for _ in 0..EACH.min(places.len()) {
                    let (rank, lane, place, step) = places.swap_remove(draw.below(places.len()));
                    let how = match how {
                        Break::Redirect(_) => Break::Redirect(draw.other(rank, setup.job.ranks)),
                        how => how,
                    };
                    if !matters(&setup, rank, &step, how) {
                        continue;
                    }
                    let policy = policy(draw, setup.job.ranks);
                    let setup = Setup { policy, seed: draw.bits(), ..setup };
                    let mut scripts = whole.clone();
                    broken(&mut scripts[rank], lane, place, how);
                    let found = judge(&scripts, &setup);
                    let caught = found.as_ref().is_err_and(|found| fits(&step, how, &found.fault));
                    let name = algorithm.name;
                    assert!(
                        caught,
                        "{name} {setup:?}: {how:?} of {step:?} of rank {rank}, lane {lane}: {found:?}"
                    );
                    counts[kind][way] += 1;
                }
            }
        }
    }
    println!("left out, twice, with another rank, of each kind: {counts:?}");
    let none = counts.iter().flatten().filter(|&&count| count == 0).count();
    assert_eq!(none, 4, "reductions have no peer, and copies may be done twice: {counts:?}");
}

/// The same sum, one contribution after the other.
fn one_by_one(script: &mut Script, rank: Rank, order: &[Rank]) {
    for lane in &mut script.lanes {
        let steps = lane.iter().flat_map(|step| {
            let Step::Fold { own, into, .. } = *step else { return vec![*step] };
            let span = |from: Rank| if from == rank { own } else { Span::landed(from, into.len) };
            let sum = span(if order[0] == rank { order[1] } else { order[0] });
            let adds = (1..order.len()).map(|nth| {
                let (a, last) = (if nth == 1 { span(order[0]) } else { sum }, nth + 1 == order.len());
                Step::Reduce { a, b: span(order[nth]), into: if last { into } else { sum }, last }
            });
            adds.collect()
        });
        *lane = steps.collect();
    }
}

#[test]
fn two_contributions_in_each_others_place() {
    for (algorithm, plan) in plans().filter(|(_, plan)| plan.ordered) {
        for setup in setups(algorithm, plan).into_iter().filter(|setup| setup.job.ordered) {
            let ranks = setup.job.ranks;
            let whole = scripts(plan, &setup);
            let folds = |rank: &Rank| whole[*rank].lanes.iter().flatten().any(KINDS[5]);
            let rank = (0..ranks).find(folds).expect("somebody reduces");
            // The first two may change places: ⊕ commutes.
            for (one, other) in (0..ranks).flat_map(|one| (one..ranks).map(move |other| (one, other))) {
                let mut order: Vec<Rank> = (0..ranks).collect();
                order.swap(one, other);
                let mut scripts = whole.clone();
                one_by_one(&mut scripts[rank], rank, &order);
                let found = judge(&scripts, &setup);
                if one == other || other == 1 {
                    found.unwrap_or_else(|found| panic!("{} {setup:?}: {found}", algorithm.name));
                } else {
                    let fault = found.expect_err("another order").fault;
                    assert!(
                        matches!(fault, Fault::Unordered { .. }),
                        "{} {setup:?}: {fault}",
                        algorithm.name
                    );
                }
            }
        }
    }
}

#[test]
fn two_blocks_with_each_others_lengths() {
    for (algorithm, plan) in plans().filter(|(_, plan)| plan.uneven) {
        let mut count = 0;
        for setup in setups(algorithm, plan) {
            let Some(known) = setup.uneven else { continue };
            let whole = scripts(plan, &setup);
            for rank in 0..setup.job.ranks {
                // Of all others: at a leaf, only the own one and the root's matter.
                for other in (0..setup.job.ranks).filter(|&other| other != rank) {
                    let Uneven { input, output } = known[rank];
                    let [(input, differ), (output, differs)] = [input, output].map(|lengths| {
                        let mut lengths = lengths.to_vec();
                        let differ = !lengths.is_empty() && lengths[rank] != lengths[other];
                        if differ {
                            lengths.swap(rank, other);
                        }
                        (lengths, differ)
                    });
                    if !differ && !differs {
                        continue;
                    }
                    let uneven = Some(Uneven { input: &input, output: &output });
                    let mut scripts = whole.clone();
                    scripts[rank] = Script::of(plan.make(&Job { rank, uneven, ..setup.job }));
                    let found = judge(&scripts, &setup);
                    assert!(found.is_err(), "{} {setup:?}: rank {rank}, {other}", algorithm.name);
                    count += 1;
                }
            }
        }
        assert!(count > 0, "{} {:?}", algorithm.name, plan.collective);
    }
}
