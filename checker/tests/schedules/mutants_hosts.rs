//! The plans of two levels, broken on purpose: the checker must report the right fault.

use unisono_checker::Fault;
use unisono_schedule::{
    Collective::{self, AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Reduce},
    Job, Place, Span, Spread, Step,
};

use crate::mutants::{RANKS, Script, caught_at, is_copy, is_put, is_reduce, is_settle};

/// Hosts of three ranks and two, whose ranks are not consecutive.
const HOSTS: &[u32] = &[0, 0, 1, 0, 1];

/// A few chunks.
fn job(collective: Collective) -> Job<'static> {
    let count = if collective == Barrier { 0 } else { 30 };
    Job { chunk: 4, spread: Spread::Of(HOSTS), ..Job::new(collective, 0, RANKS, count) }
}

#[test]
fn a_sum_of_a_host_is_not_that_of_all() {
    let early = |script: &mut Script| {
        if let Step::Reduce { last, .. } = script.nth(0, is_reduce) {
            *last = true;
        }
    };
    for name in ["leader", "lanes"] {
        let is = |fault: &Fault| matches!(fault, Fault::Last { last: true, .. });
        caught_at(0, name, &job(AllReduce), false, early, is);
    }
}

#[test]
fn scratch_that_is_overwritten_before_the_sum_in_it_has_left() {
    let hasty = |script: &mut Script| script.drop(0, is_settle);
    for name in ["leader", "lanes"] {
        // The root's host is reached late by one of the adversaries.
        let job = Job { root: 2, ..job(Reduce) };
        caught_at(0, name, &job, false, hasty, |it| matches!(it, Fault::InFlight { .. }));
    }
}

#[test]
fn a_piece_that_goes_between_hosts_from_another_place() {
    let shift = |script: &mut Script| {
        let across = |step: &Step| matches!(step, Step::Put { to, from } if HOSTS[*to] != HOSTS[0] && from.place == Place::Output);
        if let Step::Put { from, .. } = script.nth(0, across) {
            from.offset += 1;
        }
    };
    let is = |fault: &Fault| {
        matches!(
            fault,
            Fault::InFlight { .. }
                | Fault::Elements { .. }
                | Fault::Output { .. }
                | Fault::Undefined { .. }
                | Fault::Last { .. }
        )
    };
    caught_at(0, "lanes", &job(AllReduce), false, shift, is);
    caught_at(0, "lanes", &job(Broadcast), false, shift, is);
    caught_at(0, "leader", &job(AllReduce), false, shift, is);
}

#[test]
fn a_leader_that_lets_its_host_go_before_it_has_heard_of_the_others() {
    let hasty = |script: &mut Script| {
        let lane = &mut script.lanes[0];
        let last = lane.iter().rposition(is_put).expect("it puts");
        let put = lane.remove(last).expect("it is there");
        let across = |step: &Step| matches!(step, Step::Take { from, .. } if HOSTS[*from] != HOSTS[0]);
        let before = lane.iter().position(across).expect("it takes from another host");
        lane.insert(before, put);
    };
    caught_at(0, "leader", &job(Barrier), false, hasty, |it| matches!(it, Fault::Unheard(_)));
}

/// Blocks of three elements.
fn blocks(collective: Collective) -> Job<'static> {
    Job { count: 3, chunk: 100, ..job(collective) }
}

#[test]
fn an_own_block_that_is_overwritten_while_it_leaves() {
    // In place it is where it belongs, and goes from there to another host.
    let again = |script: &mut Script| {
        let own = |step: &Step| matches!(step, Step::Copy { from, into } if from.place == Place::Input && into.place == Place::Output);
        if let Step::Copy { from, .. } = script.nth(0, own) {
            *from = Span::scratch(9, 3);
        }
    };
    caught_at(1, "lanes", &blocks(AllGather), true, again, |it| matches!(it, Fault::InFlight { .. }));
}

#[test]
fn a_block_sorted_to_the_place_of_another_rank() {
    let shift = |nth: usize| {
        move |script: &mut Script| {
            if let Step::Copy { into, .. } = script.nth(nth, is_copy) {
                into.offset += 3;
            }
        }
    };
    let is = |fault: &Fault| matches!(fault, Fault::Output { .. } | Fault::Undefined { .. });
    caught_at(0, "leader", &blocks(AllGather), false, shift(1), is);
    caught_at(0, "leader", &blocks(Gather), false, shift(1), is);
    for nth in 0..6 {
        caught_at(0, "leader", &blocks(AllToAll), false, shift(nth), is);
        caught_at(1, "lanes", &blocks(AllToAll), false, shift(nth), is);
    }
}
