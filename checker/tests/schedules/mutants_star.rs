//! The star, broken on purpose: the checker must report the right fault.

use unisono_checker::Fault;
use unisono_schedule::{
    Collective::{self, AllGather, AllReduce, AllToAll, Barrier},
    Job, Place, Step,
};

use crate::mutants::{RANKS, Script, caught_at, is_copy, is_put, is_take};

const HUB: usize = 0;

/// Blocks of 3 elements, two of which fit into a message.
fn bundles(collective: Collective) -> Job<'static> {
    let count = if collective == Barrier { 0 } else { 3 };
    Job { chunk: 6, lanes: 2, ..Job::new(collective, 0, RANKS, count) }
}

/// Blocks that need two messages each.
fn pieces(collective: Collective) -> Job<'static> {
    Job { chunk: 4, count: 7, ..bundles(collective) }
}

const BOTH: [fn(Collective) -> Job<'static>; 2] = [bundles, pieces];

#[test]
fn a_block_sorted_to_the_wrong_place() {
    let shift = |script: &mut Script| {
        let sorted = |step: &Step| matches!(step, Step::Copy { from, .. } if from.place == Place::Landed(2));
        if let Step::Copy { into, .. } = script.nth(1, sorted) {
            into.offset += 1;
        }
    };
    let is = |fault: &Fault| matches!(fault, Fault::Output { .. } | Fault::Undefined { .. });
    for job in BOTH {
        caught_at(HUB, "star", &job(AllToAll), false, shift, is);
    }
}

#[test]
fn a_block_out_of_the_wrong_place_of_its_message() {
    let shift = |script: &mut Script| {
        let second = |step: &Step| matches!(step, Step::Copy { from, .. } if from.offset == 3 && from.place == Place::Landed(1));
        if let Step::Copy { from, .. } = script.nth(0, second) {
            from.offset = 0;
        }
    };
    caught_at(HUB, "star", &bundles(AllToAll), false, shift, |it| matches!(it, Fault::Output { .. }));
}

#[test]
fn freed_before_it_is_kept() {
    let early = |script: &mut Script| script.swap(0, is_copy);
    caught_at(2, "star", &bundles(AllReduce), false, early, |it| matches!(it, Fault::NotHeld(HUB)));
    caught_at(HUB, "star", &pieces(AllGather), false, early, |it| matches!(it, Fault::NotHeld(1)));
}

#[test]
fn a_hub_that_answers_before_it_has_heard_all() {
    let hasty = |script: &mut Script| {
        let lane = &mut script.lanes[0];
        let last = lane.iter().rposition(is_take).expect("it takes");
        let put = lane.iter().position(is_put).expect("it puts");
        let put = lane.remove(put).expect("it is there");
        lane.insert(last, put);
    };
    let is = |fault: &Fault| {
        matches!(fault, Fault::Elements { .. } | Fault::Output { .. } | Fault::InFlight { .. })
    };
    caught_at(HUB, "star", &bundles(AllReduce), false, hasty, is);
    caught_at(HUB, "star", &bundles(AllGather), false, hasty, |it| {
        matches!(it, Fault::Output { .. } | Fault::InFlight { .. } | Fault::Undefined { .. })
    });
}
