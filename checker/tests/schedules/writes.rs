//! Writes into outputs, broken on purpose. For each, the checker must report the right fault.

use unisono_checker::{Fault, Policy, Setup, check};
use unisono_schedule::{
    Collective::{self, AllGather, AllReduce, ReduceScatter},
    Job, Schedule, Span, Step,
};

use crate::mutants::{RANKS, Script, caught_in, is_put, judge, scripts};

fn is_write(step: &Step) -> bool {
    matches!(step, Step::Write { .. })
}

fn is_await(step: &Step) -> bool {
    matches!(step, Step::Await { .. })
}

fn job(collective: Collective) -> Job<'static> {
    Job { chunk: 4, lanes: 2, direct: true, ..Job::new(collective, 0, RANKS, 7 * RANKS + 2) }
}

/// Breaks rank 1's schedule, in place, and expects this fault.
#[track_caller]
fn caught(
    algorithm: &str,
    collective: Collective,
    breaks: impl Fn(&mut Script),
    wanted: impl Fn(&Fault) -> bool,
) {
    caught_in(algorithm, &job(collective), true, breaks, wanted);
}

#[test]
fn a_write_to_the_wrong_place() {
    let shift = |script: &mut Script| {
        if let Step::Write { at, .. } = script.nth(0, is_write) {
            *at += 1;
        }
    };
    for (algorithm, collective) in [("two_shot", AllReduce), ("ring", AllGather)] {
        caught(algorithm, collective, shift, |fault| {
            matches!(fault, Fault::Elsewhere { .. } | Fault::Landing { .. } | Fault::LandsInFlight { .. })
        });
    }
    let beyond = |script: &mut Script| {
        if let Step::Write { at, .. } = script.nth(0, is_write) {
            *at = usize::MAX;
        }
    };
    caught("ring", AllReduce, beyond, |fault| matches!(fault, Fault::Bounds { .. }));
}

#[test]
fn a_write_awaited_in_the_wrong_place() {
    let shift = |script: &mut Script| {
        if let Step::Await { into, .. } = script.nth(0, is_await) {
            into.offset += 1;
        }
    };
    caught("ring", AllReduce, shift, |fault| matches!(fault, Fault::Elsewhere { .. }));
}

#[test]
fn a_place_used_before_its_write_is_awaited() {
    // Forwarded before it has arrived.
    caught("ring", AllGather, |script| script.swap(0, is_await), |it| matches!(it, Fault::Landing { .. }));
}

#[test]
fn a_write_over_what_its_receiver_still_sends() {
    // In place, rank 1's reduced piece overwrites the memory from which rank 2 sends its contribution.
    let hasty = |script: &mut Script| {
        let write = *script.nth(0, is_write);
        script.drop(0, is_write);
        script.lanes[0].push_front(write);
    };
    caught("two_shot", AllReduce, hasty, |fault| {
        matches!(fault, Fault::LandsInFlight { to: 2, reader: 1 } | Fault::Landing { from: 1, .. })
    });
}

#[test]
fn a_write_of_nothing() {
    let empty = |script: &mut Script| {
        if let Step::Write { from, .. } = script.nth(0, is_write) {
            from.len = 0;
        }
    };
    caught("two_shot", AllReduce, empty, |fault| matches!(fault, Fault::EmptyWrite(2)));
}

#[test]
fn a_schedule_that_hides_or_feigns_its_writes() {
    caught(
        "ring",
        AllGather,
        |script| script.direct = false,
        |fault| matches!(fault, Fault::Shape { what: "direct", .. }),
    );
    for (collective, direct) in [(AllGather, false), (ReduceScatter, true)] {
        let job = job(collective);
        let mut scripts = scripts("ring", &job);
        scripts.iter_mut().for_each(|script| script.direct = direct);
        let fault = judge(&scripts, &job, false).expect_err("broken").fault;
        assert!(matches!(fault, Fault::NotDirect(_) | Fault::NoWrite(_)), "{fault}");
    }
}

/// There is one place for a rank's clear to send, and the rank overwrites it in its next operation. A write proves that it was read; a
/// message in a slot does not.
#[test]
fn a_source_that_only_puts_need_not_have_read_its_clear_to_send() {
    let job = job(AllReduce);
    let mut scripts = scripts("two_shot", &job);
    for step in scripts[0].lanes.iter_mut().flatten() {
        if let Step::Write { to: 1, from, .. } = *step {
            *step = Step::Put { to: 1, from };
        }
    }
    for lane in &mut scripts[1].lanes {
        let through_slots = |step: Step| match step {
            Step::Await { from: 0, into } => {
                let copy = Step::Copy { from: Span::landed(0, into.len), into };
                vec![Step::Take { from: 0, len: into.len }, copy, Step::Free { from: 0 }]
            }
            step => vec![step],
        };
        *lane = std::mem::take(lane).into_iter().flat_map(through_slots).collect();
    }
    let broken = judge(&scripts, &job, false).expect_err("broken");
    assert!(matches!(broken.fault, Fault::NoWrite(0)), "{}", broken.fault);
}

#[test]
fn passed_on_from_the_slot_where_it_landed() {
    // If no rank may be written to, the engine keeps a slot until its message was forwarded: with one slot, all wait for each other.
    let job = Job { ranks: 3, lanes: 1, count: 4, ..job(AllGather) };
    let mut scripts = scripts("ring", &job);
    for (rank, script) in scripts.iter_mut().enumerate() {
        let (to, from) = ((rank + 1) % 3, (rank + 2) % 3);
        let block = |owner| Span::output(4 * owner, 4);
        script.direct = true;
        script.lanes[0] = [
            Step::Write { to, from: Span::input(0, 4), at: 4 * rank },
            Step::Copy { from: Span::input(0, 4), into: block(rank) },
            Step::Await { from, into: block(from) },
            Step::Write { to, from: block(from), at: 4 * from },
            Step::Await { from, into: block(to) },
        ]
        .into();
    }
    let judge = |depth| {
        let (policy, writable) = (Policy::Random, 0);
        let setup = Setup { job, uneven: None, depth, in_place: false, writable, policy, seed: 1 };
        let schedules = scripts.iter().map(|it| Box::new(it.clone()) as Box<dyn Schedule>).collect();
        check(schedules, &setup)
    };
    judge(2).expect("one slot to take from and one to fill");
    let fault = judge(1).expect_err("held by all").fault;
    assert!(matches!(fault, Fault::Stuck(_)), "{fault}");
}

#[test]
fn a_flow_that_begins_with_a_write() {
    let job = Job { ranks: 2, ..job(AllGather) };
    let mut scripts = scripts("ring", &job);
    let Step::Put { to, from } = *scripts[0].nth(0, is_put) else {
        unreachable!("that is what is asked for")
    };
    *scripts[0].nth(0, is_put) = Step::Write { to, from, at: from.offset };
    let take = scripts[1].lanes[0].iter().position(|step| matches!(step, Step::Take { .. })).unwrap();
    let Step::Copy { into, .. } = scripts[1].lanes[0][take + 1] else { unreachable!("take, copy, free") };
    scripts[1].lanes[0][take] = Step::Await { from: 0, into };
    scripts[1].lanes[0].drain(take + 1..take + 3);
    let fault = judge(&scripts, &job, false).expect_err("broken").fault;
    assert_eq!(fault, Fault::WriteFirst(0));
}

#[test]
fn one_long_write_each_where_everyone_may_be_written_to() {
    for collective in [AllGather, Collective::AllToAll, Collective::Broadcast, Collective::Scatter] {
        let job = Job { long: true, ..job(collective) };
        let long = scripts("direct", &job);
        let writes: Vec<Step> = long[0].lanes[0].iter().copied().filter(is_write).collect();
        assert_eq!((long[0].lanes.len(), writes.len()), (1, RANKS - 1), "{collective:?}");
        judge(&long, &job, false).expect("whole");
        assert!(!long[0].lanes[0].iter().any(is_put));
        assert!(writes.iter().all(|step| matches!(step, Step::Write { from, .. } if from.len == job.count)));
        let fault = judge(&long, &Job { long: false, ..job }, false).expect_err("too long").fault;
        assert!(matches!(fault, Fault::TooLong { limit: 0, .. }), "{fault}");
    }
}

#[test]
fn a_second_write_where_only_one_is_long() {
    // The receiver would not know which rank to credit.
    let job = Job { long: true, ranks: 2, ..job(AllGather) };
    let mut scripts = scripts("direct", &job);
    for script in &mut scripts {
        let lane = &mut script.lanes[0];
        let at = lane.iter().position(is_write).unwrap();
        let Step::Write { to, from, at: place } = lane[at] else { unreachable!("that is what it is") };
        let half = from.len / 2;
        lane[at] = Step::Write { to, from: Span { len: half, ..from }, at: place };
        let rest = Span { offset: from.offset + half, len: from.len - half, ..from };
        lane.insert(at + 1, Step::Write { to, from: rest, at: place + half });
        let at = lane.iter().position(is_await).unwrap();
        let Step::Await { from, into } = lane[at] else { unreachable!("that is what it is") };
        lane[at] = Step::Await { from, into: Span { len: half, ..into } };
        let rest = Span { offset: into.offset + half, len: into.len - half, ..into };
        lane.insert(at + 1, Step::Await { from, into: rest });
    }
    let fault = judge(&scripts, &job, false).expect_err("broken").fault;
    assert!(matches!(fault, Fault::WriteFirst(_)), "{fault}");
}
