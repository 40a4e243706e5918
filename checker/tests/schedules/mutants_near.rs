//! Bine and PAT broken on purpose, where they differ from other algorithms: the order of blocks in scratch, sums that are sent on, and runs
//! around a rank.

use unisono_checker::Fault;
use unisono_schedule::{
    Collective::{AllGather, ReduceScatter},
    Job, Place, Span, Step,
};

use crate::mutants::{RANKS, Script, caught_in, is_copy, is_put, is_settle};

/// A message holds all blocks of a hop.
const GATHER: Job<'static> = Job::new(AllGather, 0, RANKS, 3);
const SCATTER: Job<'static> = Job::new(ReduceScatter, 0, RANKS, 3);

/// Blocks cut into chunks that follow each other on one lane.
const CUT: Job<'static> = Job { chunk: 4, lanes: 1, ..Job::new(ReduceScatter, 0, RANKS, 11) };

fn wrong(fault: &Fault) -> bool {
    matches!(fault, Fault::Undefined { .. } | Fault::Output { .. } | Fault::InFlight { .. })
        || matches!(fault, Fault::Elements { .. } | Fault::Bounds { .. })
}

fn from_scratch(step: &Step) -> bool {
    matches!(step, Step::Put { from: Span { place: Place::Scratch, .. }, .. })
}

#[test]
fn the_next_block_in_scratch_sent() {
    let shift = |script: &mut Script| {
        if let Step::Put { from, .. } = script.nth(0, from_scratch) {
            from.offset += 3;
        }
    };
    for (job, in_place) in [(&GATHER, false), (&GATHER, true), (&SCATTER, false), (&SCATTER, true)] {
        caught_in("pat", job, in_place, shift, wrong);
    }
}

#[test]
fn a_hop_before_its_blocks_are_there() {
    // What goes on is sent before what came was put beside it.
    let early = |script: &mut Script| {
        let lane = &mut script.lanes[0];
        let put = lane.iter().rposition(from_scratch).expect("sends from scratch");
        let put = lane.remove(put).expect("stands there");
        lane.insert(1, put);
    };
    caught_in("pat", &GATHER, false, early, wrong);
    caught_in("pat", &SCATTER, false, early, wrong);
}

#[test]
fn a_block_left_in_scratch_or_not_packed() {
    caught_in("pat", &GATHER, false, |script| script.drop(3, is_copy), wrong);
    caught_in("pat", &SCATTER, false, |script| script.drop(0, is_copy), wrong);
}

#[test]
fn scratch_used_again_while_it_is_read() {
    let flight =
        |fault: &Fault| matches!(fault, Fault::InFlight { span: Span { place: Place::Scratch, .. }, .. });
    caught_in("pat", &CUT, false, |script| script.drop(0, is_settle), flight);
}

#[test]
fn a_block_beyond_the_run_sent() {
    // In its second hop rank 1 of 6 hands rank 2 the nearest block of its run, its own; here the one beyond the run.
    let job = Job { ranks: 6, ..GATHER };
    let other = |script: &mut Script| {
        if let Step::Put { from, .. } = script.nth(1, is_put) {
            assert_eq!(from.place, Place::Output);
            from.offset += 3;
        }
    };
    caught_in("bine", &job, false, other, wrong);
}
