//! The two trees, broken on purpose. For each, the checker must report the right fault.

use unisono_checker::Fault;
use unisono_schedule::{
    Collective::{self, AllReduce, Broadcast, Reduce},
    Job, Rank, Step,
};

use crate::mutants::{RANKS, Script, caught_in, is_copy, is_put, is_reduce};

/// Two lanes; on lane 0 two rounds go up, and then come down. With root 0, rank 1 is a leaf below rank 2 in the first
/// tree, and between rank 0 and rank 3 in the second. With root 4 it has two children in the first.
fn job(collective: Collective, root: Rank) -> Job<'static> {
    Job { root, chunk: 4, lanes: 2, direct: true, ..Job::new(collective, 0, RANKS, 3 * RANKS + 2) }
}

/// Breaks rank 1's schedule and expects this fault.
#[track_caller]
fn caught(
    (collective, root): (Collective, Rank),
    breaks: impl Fn(&mut Script),
    wanted: impl Fn(&Fault) -> bool,
) {
    caught_in("tree", &job(collective, root), false, breaks, wanted);
}

#[test]
fn a_wrong_last() {
    let change = |script: &mut Script| {
        if let Step::Reduce { last, .. } = script.nth(0, is_reduce) {
            *last = !*last;
        }
    };
    caught((AllReduce, 0), change, |fault| matches!(fault, Fault::Last { last: true, present: 4, .. }));
    caught((Reduce, 1), change, |fault| matches!(fault, Fault::Last { last: false, present: RANKS, .. }));
}

#[test]
fn halves_up_the_other_tree() {
    let exchange = |script: &mut Script| {
        for nth in [0, 1] {
            if let Step::Put { to, .. } = script.nth(nth, is_put) {
                *to = if *to == 0 { 2 } else { 0 };
            }
        }
    };
    let is = |fault: &Fault| matches!(fault, Fault::Elements { .. } | Fault::Length { .. } | Fault::Stuck(_));
    caught((AllReduce, 0), exchange, is);
    caught((Reduce, 0), exchange, is);
}

#[test]
fn sent_up_before_the_own_contribution_is_in() {
    let flight = |fault: &Fault| matches!(fault, Fault::InFlight { .. });
    caught((AllReduce, 0), |script| script.swap(0, is_reduce), flight);
}

#[test]
fn freed_before_it_is_copied() {
    caught((AllReduce, 0), |script| script.swap(0, is_copy), |fault| matches!(fault, Fault::NotHeld(0)));
}

#[test]
fn a_round_awaited_from_above_before_the_next_is_sent_up() {
    // All other ranks send up two rounds first.
    let (up, down) = (5, 7);
    let hasty = |script: &mut Script| {
        let steps = script.lanes[0].make_contiguous();
        assert_eq!(steps.len(), 2 * (up + down));
        steps[up..2 * up + down].rotate_left(up);
    };
    caught((AllReduce, 0), hasty, |fault| matches!(fault, Fault::Stuck(_)));
}

#[test]
fn halves_of_two_ranks_in_another_order() {
    // Both trees share their flows.
    let job = Job { ranks: 2, ..job(AllReduce, 0) };
    let is = |fault: &Fault| matches!(fault, Fault::Elements { .. } | Fault::Length { .. });
    caught_in("tree", &job, true, |script| script.swap(0, is_put), is);
}

#[test]
fn written_on_before_it_is_awaited() {
    let is_await = |step: &Step| matches!(step, Step::Await { .. });
    caught(
        (Broadcast, 0),
        |script| script.swap(0, is_await),
        |it| matches!(it, Fault::Landing { from: 0, .. }),
    );
}
