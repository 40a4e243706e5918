//! Schedules that are broken on purpose. For each, the checker must report the right fault.

use std::collections::VecDeque;

use unisono_checker::{Fault, Policy, Setup, Violation, check};
use unisono_schedule::{
    Collective::{self, AllGather, AllReduce, Barrier, Broadcast, ReduceScatter},
    Job, Place, Rank, Schedule, Span, Step,
    algorithm::find,
};

use crate::openings::openings;

/// A schedule written out, so that it can be changed.
#[derive(Clone)]
pub(crate) struct Script {
    pub(crate) lanes: Vec<VecDeque<Step>>,
    max_message: usize,
    pub(crate) direct: bool,
    pub(crate) scratch: usize,
    shows: Option<usize>,
    sources: Vec<Rank>,
    /// The step that a lane returns after its end.
    encore: Option<Step>,
}

impl Script {
    pub(crate) fn of(mut schedule: Box<dyn Schedule>) -> Self {
        let mut sources = Vec::new();
        schedule.sources(&mut |rank| sources.push(rank));
        let lanes =
            (0..schedule.lanes()).map(|lane| std::iter::from_fn(|| schedule.next(lane)).collect()).collect();
        Self {
            lanes,
            max_message: schedule.max_message(),
            direct: schedule.direct(),
            scratch: schedule.scratch(),
            shows: schedule.shows(),
            sources,
            encore: None,
        }
    }

    /// The place of the `nth` step of lane 0 that `is` picks.
    pub(crate) fn place(&self, nth: usize, is: impl Fn(&Step) -> bool) -> usize {
        let mut places = (0..self.lanes[0].len()).filter(|&place| is(&self.lanes[0][place]));
        places.nth(nth).expect("the schedule has such a step")
    }

    pub(crate) fn nth(&mut self, nth: usize, is: impl Fn(&Step) -> bool) -> &mut Step {
        let place = self.place(nth, is);
        &mut self.lanes[0][place]
    }

    pub(crate) fn drop(&mut self, nth: usize, is: impl Fn(&Step) -> bool) {
        let place = self.place(nth, is);
        self.lanes[0].remove(place);
    }

    pub(crate) fn double(&mut self, nth: usize, is: impl Fn(&Step) -> bool) {
        let place = self.place(nth, is);
        let step = self.lanes[0][place];
        self.lanes[0].insert(place, step);
    }

    /// Swaps a step with the one after it.
    pub(crate) fn swap(&mut self, nth: usize, is: impl Fn(&Step) -> bool) {
        let place = self.place(nth, is);
        self.lanes[0].swap(place, place + 1);
    }
}

impl Schedule for Script {
    fn lanes(&self) -> usize {
        self.lanes.len()
    }

    fn max_message(&self) -> usize {
        self.max_message
    }

    fn direct(&self) -> bool {
        self.direct
    }

    fn scratch(&self) -> usize {
        self.scratch
    }

    fn shows(&self) -> Option<usize> {
        self.shows
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        self.sources.iter().copied().for_each(visit);
    }

    fn next(&mut self, lane: usize) -> Option<Step> {
        let step = self.lanes[lane].pop_front();
        if step.is_none() {
            self.lanes[lane].extend(self.encore.take());
        }
        step
    }
}

pub(crate) fn is_put(step: &Step) -> bool {
    matches!(step, Step::Put { .. })
}

pub(crate) fn is_take(step: &Step) -> bool {
    matches!(step, Step::Take { .. })
}

pub(crate) fn is_reduce(step: &Step) -> bool {
    matches!(step, Step::Reduce { .. })
}

pub(crate) fn is_copy(step: &Step) -> bool {
    matches!(step, Step::Copy { .. })
}

pub(crate) fn is_free(step: &Step) -> bool {
    matches!(step, Step::Free { .. })
}

pub(crate) fn is_settle(step: &Step) -> bool {
    matches!(step, Step::Settle)
}

pub(crate) const RANKS: usize = 5;

fn job(collective: Collective) -> Job<'static> {
    let count = if collective == Barrier { 0 } else { 3 * RANKS + 2 };
    Job { chunk: 4, lanes: 2, ..Job::new(collective, 0, RANKS, count) }
}

pub(crate) fn scripts(algorithm: &str, job: &Job<'_>) -> Vec<Script> {
    let algorithm = find(algorithm).expect("in the table");
    let script = |rank| Script::of(algorithm.make(&Job { rank, ..*job }).expect("it can do that"));
    (0..job.ranks).map(script).collect()
}

/// Checks the schedules with every adversary, and returns the first violation.
pub(crate) fn judge(scripts: &[Script], job: &Job<'_>, in_place: bool) -> Result<(), Violation> {
    let policies = [
        Policy::LateArrival,
        Policy::Random,
        Policy::Prompt,
        Policy::LatestFirst,
        Policy::LateSent,
        Policy::StarveRank(2),
        Policy::StarveLane(0),
    ];
    for policy in policies {
        for seed in 0..8 {
            let schedules = scripts.iter().map(|it| Box::new(it.clone()) as Box<dyn Schedule>).collect();
            let setup =
                Setup { job: *job, uneven: None, depth: 4, in_place, writable: u64::MAX, policy, seed };
            check(schedules, &setup)?;
        }
    }
    Ok(())
}

/// Breaks rank 1's schedule, after checking that it was right, and expects this fault.
#[track_caller]
fn caught(
    algorithm: &str,
    collective: Collective,
    in_place: bool,
    breaks: impl Fn(&mut Script),
    wanted: impl Fn(&Fault) -> bool,
) {
    caught_in(algorithm, &job(collective), in_place, breaks, wanted);
}

/// As [`caught`], for this job.
#[track_caller]
pub(crate) fn caught_in(
    algorithm: &str,
    job: &Job<'_>,
    in_place: bool,
    breaks: impl Fn(&mut Script),
    wanted: impl Fn(&Fault) -> bool,
) {
    caught_at(1, algorithm, job, in_place, breaks, wanted);
}

/// As [`caught`], for this job and rank.
#[track_caller]
pub(crate) fn caught_at(
    rank: Rank,
    algorithm: &str,
    job: &Job<'_>,
    in_place: bool,
    breaks: impl Fn(&mut Script),
    wanted: impl Fn(&Fault) -> bool,
) {
    let mut scripts = scripts(algorithm, job);
    judge(&scripts, job, in_place).expect("whole before it is broken");
    breaks(&mut scripts[rank]);
    let violation = judge(&scripts, job, in_place).expect_err("broken");
    assert!(wanted(&violation.fault), "another fault than expected: {violation}");
}

#[test]
fn a_doubled_free() {
    let is = |fault: &Fault| matches!(fault, Fault::FreeNothing(_) | Fault::NotHeld(_));
    caught("ring", AllGather, false, |script| script.double(0, is_free), is);
    caught("recursive_doubling", AllReduce, false, |script| script.double(1, is_free), is);
}

#[test]
fn a_free_before_the_last_use() {
    let early = |script: &mut Script| script.swap(0, is_copy);
    caught("ring", AllGather, false, |script| script.swap(1, is_copy), |it| matches!(it, Fault::NotHeld(0)));
    caught("binomial", Broadcast, false, early, |fault| matches!(fault, Fault::NotHeld(0)));
}

#[test]
fn a_wrong_last() {
    let change = |script: &mut Script, nth| {
        if let Step::Reduce { last, .. } = script.nth(nth, is_reduce) {
            *last = !*last;
        }
    };
    let early = |fault: &Fault| matches!(fault, Fault::Last { last: true, present: 3, .. });
    caught("ring", AllReduce, false, |script| change(script, 1), early);
    let late = |fault: &Fault| matches!(fault, Fault::Last { last: false, present: RANKS, .. });
    caught("ring", AllReduce, false, |script| change(script, 3), late);
}

#[test]
fn a_message_to_nobody() {
    let own = |script: &mut Script| {
        if let Step::Put { to, .. } = script.nth(0, is_put) {
            *to = 1;
        }
    };
    caught("direct", AllReduce, false, own, |fault| matches!(fault, Fault::Peer(1)));
    let nobody = |script: &mut Script| {
        if let Step::Take { from, .. } = script.nth(0, is_take) {
            *from = RANKS;
        }
    };
    caught("direct", AllReduce, false, nobody, |fault| matches!(fault, Fault::Peer(RANKS)));
}

#[test]
fn a_missing_settle() {
    let flight = |fault: &Fault| matches!(fault, Fault::InFlight { .. });
    caught("direct", AllReduce, true, |script| script.drop(0, is_settle), flight);
    caught("recursive_doubling", AllReduce, true, |script| script.drop(0, is_settle), flight);
}

#[test]
fn a_source_overwritten_in_flight() {
    // Forwards a landed block before the own contribution is in it: right, unless the put is slow.
    let flight = |fault: &Fault| matches!(fault, Fault::InFlight { .. });
    caught("ring", AllReduce, false, |script| script.swap(0, is_reduce), flight);
    caught("ring", ReduceScatter, true, |script| script.swap(1, is_reduce), flight);
}

#[test]
fn a_wrong_length() {
    let long = |script: &mut Script| {
        if let Step::Take { len, .. } = script.nth(1, is_take) {
            *len += 1;
        }
    };
    caught("ring", AllReduce, false, long, |fault| matches!(fault, Fault::Length { .. }));
    let short = |script: &mut Script| {
        if let Step::Put { from, .. } = script.nth(0, is_put) {
            from.len -= 1;
        }
    };
    caught("direct", AllGather, false, short, |fault| matches!(fault, Fault::Length { .. }));
    let uneven = |script: &mut Script| {
        if let Step::Reduce { b, .. } = script.nth(0, is_reduce) {
            b.len -= 1;
        }
    };
    caught("ring", ReduceScatter, false, uneven, |fault| matches!(fault, Fault::Operands(..)));
}

#[test]
fn a_message_beyond_the_limit() {
    let long = |script: &mut Script| {
        if let Step::Put { from, .. } = script.nth(0, is_put) {
            from.len = 5;
        }
    };
    caught("direct", AllReduce, false, long, |it| matches!(it, Fault::TooLong { len: 5, limit: 4 }));
}

#[test]
fn a_span_out_of_bounds() {
    let far = |script: &mut Script| {
        if let Step::Copy { into, .. } = script.nth(1, is_copy) {
            into.offset = usize::MAX;
        }
    };
    caught("ring", AllGather, false, far, |fault| matches!(fault, Fault::Bounds { .. }));
    let landed = |script: &mut Script| {
        if let Step::Reduce { a, .. } = script.nth(0, is_reduce) {
            a.offset = 1;
        }
    };
    caught("ring", AllReduce, false, landed, |fault| matches!(fault, Fault::Bounds { .. }));
}

#[test]
fn a_put_too_many() {
    caught(
        "dissemination",
        Barrier,
        false,
        |script| script.double(0, is_put),
        |fault| matches!(fault, Fault::NeverTaken { count: 1, .. }),
    );
}

#[test]
fn a_use_before_the_take() {
    let early = |script: &mut Script| script.swap(0, is_take);
    caught("ring", AllReduce, false, early, |fault| matches!(fault, Fault::NotHeld(0)));
}

#[test]
fn a_dropped_copy() {
    let missing = |fault: &Fault| matches!(fault, Fault::Output { .. });
    caught("ring", AllGather, false, |script| script.drop(1, is_copy), missing);
    // In place, the own block is there already.
    let job = job(AllGather);
    let mut scripts = scripts("ring", &job);
    scripts[1].drop(0, is_copy);
    judge(&scripts, &job, true).expect("the copy does nothing in place");
    judge(&scripts, &job, false).expect_err("out of place it does");
}

#[test]
fn a_copy_to_the_wrong_place() {
    let shift = |script: &mut Script| {
        if let Step::Copy { into, .. } = script.nth(1, is_copy) {
            into.offset += 1;
        }
    };
    caught("direct", AllGather, false, shift, |fault| matches!(fault, Fault::Output { .. }));
}

#[test]
fn other_elements_reduced() {
    let shift = |script: &mut Script| {
        if let Step::Reduce { b, .. } = script.nth(0, is_reduce) {
            b.offset -= 1;
        }
    };
    caught("ring", AllReduce, false, shift, |fault| matches!(fault, Fault::Elements { .. }));
}

#[test]
fn another_order_than_elsewhere() {
    let exchange = |rank: &mut Rank| {
        *rank = match *rank {
            2 => 3,
            3 => 2,
            other => other,
        }
    };
    let reorder = |script: &mut Script| {
        for step in script.lanes.iter_mut().flatten() {
            match step {
                Step::Take { from, .. } | Step::Free { from } => exchange(from),
                Step::Reduce { b: Span { place: Place::Landed(from), .. }, .. } => exchange(from),
                _ => {}
            }
        }
    };
    caught("direct", AllReduce, false, reorder, |fault| matches!(fault, Fault::Order { at: 0 }));
}

#[test]
fn an_overlap_that_is_not_the_same() {
    let shift = |script: &mut Script| {
        if let Step::Reduce { b, into, .. } = script.nth(0, is_reduce) {
            *into = Span::output(b.offset - 1, b.len);
        }
    };
    caught("ring", AllReduce, true, shift, |fault| matches!(fault, Fault::Operands(..)));
}

#[test]
fn a_written_input() {
    let write = |script: &mut Script| {
        if let Step::Reduce { b, into, .. } = script.nth(0, is_reduce) {
            *into = *b;
        }
    };
    caught("ring", AllReduce, false, write, |it| {
        matches!(it, Fault::WritesInput(Span { place: Place::Input, .. }))
    });
}

#[test]
fn what_was_never_written() {
    let early = |script: &mut Script| {
        let len = script.max_message;
        let copy = Step::Reduce {
            a: Span::output(0, len),
            b: Span::input(0, len),
            into: Span::output(0, len),
            last: false,
        };
        script.lanes[0].push_front(copy);
    };
    caught("direct", AllReduce, false, early, |fault| matches!(fault, Fault::Undefined { at: 0, .. }));
}

#[test]
fn every_rank_takes_before_it_puts() {
    let job = job(AllReduce);
    let mut scripts = scripts("ring", &job);
    for script in &mut scripts {
        script.swap(0, is_put);
    }
    let fault = judge(&scripts, &job, false).expect_err("nobody begins").fault;
    assert!(matches!(&fault, Fault::Stuck(who) if who.contains("rank 4 lane 0 waits for")), "{fault}");
}

#[test]
fn a_barrier_a_hop_short() {
    let job = job(Barrier);
    let mut scripts = scripts("dissemination", &job);
    for script in &mut scripts {
        script.lanes[0].truncate(6);
        script.sources.truncate(2);
    }
    let fault = judge(&scripts, &job, false).expect_err("too early").fault;
    assert_eq!(fault, Fault::Unheard(vec![1]), "after two hops rank 0 has heard of 4, 3 and 2");
}

#[test]
fn wrong_sources() {
    let is = |fault: &Fault| matches!(fault, Fault::Sources { .. });
    caught("ring", AllReduce, false, |script| script.sources.push(3), is);
    caught("ring", AllReduce, false, |script| script.sources.clear(), is);
    caught("ring", AllReduce, false, |script| script.sources = vec![0, 0], is);
}

#[test]
fn different_shapes() {
    let limit = |script: &mut Script| script.max_message += 1;
    caught("direct", AllReduce, false, limit, |it| matches!(it, Fault::Shape { what: "max_message", .. }));
    let lanes = |script: &mut Script| script.lanes.push(VecDeque::new());
    caught("direct", AllReduce, false, lanes, |it| matches!(it, Fault::Shape { what: "lanes", .. }));
}

#[test]
fn a_step_after_the_end() {
    let encore = |script: &mut Script| script.encore = Some(Step::Settle);
    caught(
        "direct",
        Barrier,
        false,
        encore,
        |fault| matches!(fault, Fault::NotOver(step) if **step == Step::Settle),
    );
}

#[test]
fn silence_where_there_is_nothing_to_send() {
    let job = Job { count: 0, ..job(AllReduce) };
    let empty = |step: &Step| match step {
        Step::Put { from, .. } => from.len == 0,
        Step::Take { len, .. } => *len == 0,
        _ => true,
    };
    let mut silent = scripts("ring", &job)[1].clone();
    silent.lanes[0].retain(|step| !empty(step));
    let mut wanted = scripts("ring", &job)[1].clone();
    assert_ne!(openings(&mut silent), openings(&mut wanted), "says nothing");
}
