//! Halving and doubling broken on purpose, in what is peculiar to them: the order of messages that go around the
//! end, sums in scratch, the block that is left of an odd number, and where the second half begins.

use unisono_checker::Fault;
use unisono_schedule::{
    Collective::{AllGather, AllReduce, ReduceScatter},
    Job, Place, Span, Step,
};

use crate::mutants::{RANKS, Script, caught_in, is_copy, is_put, is_settle, is_take, judge, scripts};

const NAME: &str = "rabenseifner";

/// Some chunks, through slots.
const SMALL: Job<'static> = Job { chunk: 4, lanes: 2, ..Job::new(AllReduce, 0, RANKS, 7 * RANKS + 2) };

/// Blocks cut into chunks that follow each other on one lane.
const SCATTER: Job<'static> = Job { chunk: 4, lanes: 1, ..Job::new(ReduceScatter, 0, RANKS, 11) };

/// Runs of whole blocks.
const RUNS: Job<'static> = Job::new(ReduceScatter, 0, RANKS, 3);

/// Breaks rank 1's schedule and expects this fault, both in place and not.
#[track_caller]
fn caught(job: &Job<'_>, breaks: impl Fn(&mut Script), wanted: impl Fn(&Fault) -> bool) {
    for in_place in [false, true] {
        caught_in(NAME, job, in_place, &breaks, &wanted);
    }
}

#[test]
fn pairs_in_another_order() {
    let is = |fault: &Fault| matches!(fault, Fault::Stuck(_) | Fault::Elements { .. } | Fault::Length { .. });
    // As if blocks went on as from the farthest pair, and not from a neighbour.
    let far = |script: &mut Script| {
        for step in script.lanes.iter_mut().flatten() {
            if let Step::Put { to: peer, .. } | Step::Take { from: peer, .. } | Step::Free { from: peer } =
                step
            {
                *peer ^= 3;
            }
        }
    };
    caught(&Job { ranks: 4, ..SMALL }, far, |fault| is(fault) || matches!(fault, Fault::NotHeld(_)));
}

#[test]
fn the_other_half_given() {
    let keep = |script: &mut Script| {
        if let Step::Put { from, .. } = script.nth(0, is_put) {
            from.offset = 0;
        }
    };
    let job = Job { chunk: 100, ..Job::new(AllReduce, 0, 4, 16) };
    let mut whole = scripts(NAME, &job);
    let (first, second) = (*whole[1].nth(0, is_put), *whole[1].nth(1, is_put));
    assert_eq!(first, Step::Put { to: 0, from: Span::input(0, 8) }, "half of all goes to a neighbour");
    assert_eq!(second, Step::Put { to: 3, from: Span::output(12, 4) }, "a quarter goes two ranks away");
    let mut scripts = scripts(NAME, &job);
    keep(&mut scripts[0]);
    let fault = judge(&scripts, &job, false).expect_err("rank 1 wants the other half").fault;
    assert!(matches!(fault, Fault::Elements { left: 8, right: 0 }), "{fault}");
}

#[test]
fn spans_of_a_run_in_the_wrong_order() {
    // Rank 1 gives rank 4 the last block and the first.
    let exchange = |script: &mut Script| script.swap(0, is_put);
    caught(&RUNS, exchange, |fault| matches!(fault, Fault::Elements { .. }));
}

#[test]
fn a_level_before_its_time() {
    // The next level's message is sent before the last contribution to it was reduced.
    let hurry = |script: &mut Script| {
        let first = |step: &Step| matches!(step, Step::Put { from: Span { place: Place::Scratch, .. }, .. });
        let put = *script.nth(0, first);
        script.drop(0, first);
        let at = script.lanes[0].iter().position(is_take).expect("takes something");
        script.lanes[0].insert(at, put);
    };
    let wanted = |fault: &Fault| {
        matches!(fault, Fault::InFlight { .. } | Fault::Undefined { .. } | Fault::Length { .. })
    };
    caught(&Job { ranks: 6, ..RUNS }, hurry, wanted);
}

#[test]
fn scratch_used_again_too_early() {
    // A chunk's sums overwrite those of the chunk before, which may still be on their way.
    let flight =
        |fault: &Fault| matches!(fault, Fault::InFlight { span: Span { place: Place::Scratch, .. }, .. });
    caught(&SCATTER, |script| script.drop(0, is_settle), flight);
}

#[test]
fn too_little_scratch() {
    let less = |script: &mut Script| script.scratch -= 1;
    for job in [SCATTER, Job { lanes: 2, ..SCATTER }, RUNS] {
        caught(&job, less, |fault| matches!(fault, Fault::Bounds { .. }));
    }
}

#[test]
fn the_block_that_is_left_of_an_odd_number() {
    // Nothing is added to it at the first level, and it is sent at the second.
    let undefined = |fault: &Fault| matches!(fault, Fault::Undefined { .. } | Fault::Elements { .. });
    for job in [RUNS, SCATTER] {
        caught(&job, |script| script.drop(0, is_copy), undefined);
    }
    caught_in(NAME, &SMALL, false, |script| script.drop(0, is_copy), undefined);
    let mut scripts = scripts(NAME, &SMALL);
    scripts[1].drop(0, is_copy);
    judge(&scripts, &SMALL, true).expect("in place it is there already");
}

#[test]
fn a_doubling_that_goes_on_with_too_little() {
    let is_output = |step: &Step| matches!(step, Step::Put { from: Span { place: Place::Output, .. }, .. });
    let job = Job { collective: AllGather, ..RUNS };
    let missing = |fault: &Fault| matches!(fault, Fault::Undefined { .. } | Fault::Output { .. });
    caught(&job, |script| script.drop(1, is_copy), missing);
    let short = |script: &mut Script| {
        if let Step::Put { from, .. } = script.nth(0, is_output) {
            from.len -= 3;
        }
    };
    caught(&job, short, |fault| matches!(fault, Fault::Length { .. }));
}
