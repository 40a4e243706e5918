//! Bruck, and the binomial tree's gather, scatter and reduce, broken on purpose where they differ from other algorithms.

use unisono_checker::Fault;
use unisono_schedule::{
    Collective::{self, AllGather, AllToAll, Gather, Reduce, Scatter},
    Job, Place, Rank, Span, Step,
};

use crate::mutants::{
    RANKS, Script, caught_at, caught_in, is_copy, is_free, is_put, is_settle, is_take, judge, scripts,
};

/// Blocks of 3 elements, of which a message holds a hop's; the root is rank 3, so that subtrees go round the end.
fn whole(collective: Collective) -> Job<'static> {
    Job { chunk: 100, lanes: 2, root: root(collective), ..Job::new(collective, 0, RANKS, 3) }
}

/// The same in several chunks.
fn cut(collective: Collective) -> Job<'static> {
    Job { chunk: 4, lanes: 2, root: root(collective), ..Job::new(collective, 0, RANKS, 17) }
}

fn root(collective: Collective) -> Rank {
    if collective.has_root() { 3 } else { 0 }
}

#[test]
fn another_block_where_it_goes_round() {
    // Of rank 0 the third hop has block 4 and block 0, in two messages.
    let shift = |script: &mut Script| {
        if let Step::Put { from, .. } = script.nth(3, is_put) {
            assert_eq!(*from, Span::output(0, 3), "what goes round");
            from.offset += 3;
        }
    };
    let is = |fault: &Fault| {
        matches!(fault, Fault::Undefined { .. } | Fault::Output { .. } | Fault::InFlight { .. })
    };
    caught_at(0, "bruck", &whole(AllGather), false, shift, is);
}

#[test]
fn a_hop_before_its_blocks_are_there() {
    // The second hop's message is sent before the first hop's blocks are in it.
    let early = |script: &mut Script| {
        let lane = &mut script.lanes[0];
        let puts: Vec<_> = (0..lane.len()).filter(|&place| is_put(&lane[place])).collect();
        let put = lane.remove(puts[1]).expect("a second hop");
        lane.insert(puts[0] + 1, put);
    };
    let is = |fault: &Fault| {
        matches!(fault, Fault::InFlight { .. } | Fault::Output { .. } | Fault::Undefined { .. })
    };
    caught_in("bruck", &whole(AllToAll), false, early, is);
    caught_in("bruck", &whole(AllGather), false, early, is);
}

#[test]
fn blocks_packed_too_late() {
    // In place, an own block is packed after an arriving block has overwritten it.
    let late = |script: &mut Script| {
        let lane = &mut script.lanes[0];
        let packs = |step: &Step| matches!(step, Step::Copy { from: Span { place: Place::Input, .. }, .. });
        let last = lane.iter().rposition(packs).expect("blocks are packed");
        let keeps = |step: &Step| matches!(step, Step::Copy { into: Span { place: Place::Output, .. }, .. });
        let first = lane.iter().skip(last + 1).position(keeps).expect("a block comes") + last + 1;
        let pack = lane.remove(last).expect("it is there");
        lane.insert(first, pack);
    };
    // Out of place the order does not matter, as long as the block leaves later.
    let job = Job { ranks: 3, ..whole(AllToAll) };
    let mut broken = scripts("bruck", &job);
    late(&mut broken[1]);
    judge(&broken, &job, false).expect("the input is still there");
    judge(&broken, &job, true).expect_err("the input is gone");
}

#[test]
fn a_missing_settle() {
    // The first chunk of a lane may still be leaving from scratch when the next one is packed.
    let flight = |fault: &Fault| matches!(fault, Fault::InFlight { .. });
    caught_in("bruck", &cut(AllToAll), false, |script| script.drop(0, is_settle), flight);
}

#[test]
fn a_bundle_passed_on_after_its_slot_was_freed() {
    let early = |script: &mut Script| {
        let lane = &mut script.lanes[0];
        let passes =
            |step: &Step| matches!(step, Step::Put { from: Span { place: Place::Landed(_), .. }, .. });
        let put = lane.iter().position(passes).expect("something is passed on");
        let free = lane.iter().skip(put).position(is_free).expect("and freed") + put;
        let free = lane.remove(free).expect("it is there");
        lane.insert(put, free);
    };
    let is = |fault: &Fault| matches!(fault, Fault::NotHeld(_));
    for collective in [Reduce, Gather, Scatter] {
        caught_at(0, "binomial", &cut(collective), false, early, is);
    }
    caught_at(0, "binomial", &whole(Scatter), false, early, is);
}

#[test]
fn a_bundle_without_the_own_block() {
    let forget = |script: &mut Script| {
        let own = |step: &Step| matches!(step, Step::Copy { from: Span { place: Place::Input, .. }, .. });
        script.drop(0, own);
    };
    let is = |fault: &Fault| matches!(fault, Fault::Output { .. } | Fault::Undefined { .. });
    caught_at(0, "binomial", &whole(Gather), false, forget, is);
    caught_at(3, "binomial", &whole(Gather), false, forget, is);
}

#[test]
fn a_part_of_another_subtree() {
    // The blocks that rank 0, the second from the root, gets for its child begin after its own block.
    let shift = |script: &mut Script| {
        if let Step::Put { from, .. } = script.nth(0, is_put) {
            from.offset = 0;
        }
    };
    let is = |fault: &Fault| matches!(fault, Fault::Output { .. });
    caught_at(0, "binomial", &whole(Scatter), false, shift, is);
    let exchange = |script: &mut Script| {
        let offsets: Vec<_> =
            (0..script.lanes[0].len()).filter(|&at| is_copy(&script.lanes[0][at])).collect();
        let lane = &mut script.lanes[0];
        if let [Step::Copy { into: one, .. }, Step::Copy { into: other, .. }] =
            [lane[offsets[0]], lane[offsets[1]]]
        {
            for (at, new) in [(offsets[0], other), (offsets[1], one)] {
                if let Step::Copy { into, .. } = &mut lane[at] {
                    into.offset = new.offset;
                }
            }
        }
    };
    caught_at(3, "binomial", &cut(Gather), false, exchange, is);
}

#[test]
fn a_bundle_sent_too_early() {
    // An inner rank sends its bundle before all its blocks have arrived.
    let early = |script: &mut Script| {
        let lane = &mut script.lanes[0];
        let (take, put) = (
            lane.iter().position(is_take).expect("it takes"),
            lane.iter().position(is_put).expect("it puts"),
        );
        let put = lane.remove(put).expect("it is there");
        lane.insert(take, put);
    };
    let is = |fault: &Fault| {
        matches!(fault, Fault::InFlight { .. } | Fault::Output { .. } | Fault::Undefined { .. })
    };
    caught_at(0, "binomial", &whole(Gather), false, early, is);
}
