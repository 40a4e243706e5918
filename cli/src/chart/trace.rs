//! Runs the schedules of all ranks on symbols instead of numbers and records what a picture shows: messages, what arrives and what is
//! reduced, in columns of time.
//!
//! In a column a rank puts at most one message, and takes one or reduces. A message may be taken in the column in which it is put. A copy
//! within a rank takes no time, and slots are always free.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    iter,
};

use unisono_schedule::{Collective, Job, Place, Rank, Span, Step, algorithm::Plan};

/// An element of memory: its number, and the ranks whose contributions are in it, as bits; none before it is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Symbol {
    pub element: usize,
    pub ranks: u64,
}

/// What a rank has in a column: a message that arrived, or a reduced result.
pub(super) struct Boxed {
    pub rank: Rank,
    pub column: usize,
    pub symbols: Vec<Symbol>,
    pub reduced: bool,
}

/// A message: the ranks and columns of its put and of its arrival.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Arrow {
    pub from: (Rank, usize),
    pub to: (Rank, usize),
}

/// What all ranks do, and the inputs and outputs of each.
#[derive(Default)]
pub(super) struct Trace {
    pub before: Vec<Vec<Symbol>>,
    pub after: Vec<Vec<Symbol>>,
    pub boxes: Vec<Boxed>,
    pub arrows: Vec<Arrow>,
}

/// The sender, the receiver, the lane, and whether messages are written into the output.
type Flow = (Rank, Rank, usize, bool);

#[derive(Default)]
struct Ranks {
    /// The steps to come, by rank and lane.
    steps: BTreeMap<(Rank, usize), VecDeque<Step>>,
    /// The memory of each rank, in lane 0; what has landed, in the lane that took it.
    memory: HashMap<(Rank, usize, Place), Vec<Symbol>>,
    /// Messages that were not taken, with the column of their put.
    flows: HashMap<Flow, VecDeque<(usize, Vec<Symbol>)>>,
    /// The next columns in which each rank may hold something, and put.
    columns: Vec<[usize; 2]>,
    trace: Trace,
}

/// Runs the schedules of at most 64 ranks.
pub(super) fn trace(plan: &Plan, job: &Job<'_>) -> Trace {
    let mut ranks = Ranks::default();
    (0..job.ranks).for_each(|rank| ranks.add(plan, &Job { rank, ..*job }));
    let lanes: Vec<_> = ranks.steps.keys().copied().collect();
    while lanes.iter().any(|&(rank, lane)| ranks.advance(rank, lane)) {}
    let after = (0..job.ranks).map(|rank| std::mem::take(ranks.area(rank, 0, Place::Output))).collect();
    Trace { after, ..ranks.trace }
}

impl Ranks {
    /// Adds a rank with its steps and its memory.
    fn add(&mut self, plan: &Plan, job: &Job<'_>) {
        let mut schedule = plan.make(job);
        let (input, output) = job.lengths().unwrap_or_default();
        // Numbers are those of the whole vector.
        let gathers = matches!(job.collective, Collective::AllGather | Collective::Gather);
        let first = if gathers { job.rank * job.count } else { 0 };
        let broadcast = job.collective == Collective::Broadcast;
        let has = u64::from(!broadcast || job.rank == job.root);
        let symbol = |at| Symbol { element: first + at, ranks: has << job.rank };
        let input: Vec<_> = (0..input).map(symbol).collect();
        let nothing = |len| vec![Symbol::default(); len];
        let output = if broadcast { input.clone() } else { nothing(output) };
        self.trace.before.push(input.clone());
        self.columns.push([0; 2]);
        let scratch = nothing(schedule.scratch());
        let memory = [(Place::Input, input), (Place::Output, output), (Place::Scratch, scratch)];
        self.memory.extend(memory.map(|(place, symbols)| ((job.rank, 0, place), symbols)));
        for lane in 0..schedule.lanes() {
            self.steps.insert((job.rank, lane), iter::from_fn(|| schedule.next(lane)).collect());
        }
    }

    /// Takes the next step of a lane; false if it must wait, or there is none.
    fn advance(&mut self, rank: Rank, lane: usize) -> bool {
        let Some(step) = self.ahead(rank, lane).pop_front() else { return false };
        match step {
            Step::Put { to, from } => self.put((rank, to, lane, false), from),
            Step::Write { to, from, .. } => self.put((rank, to, lane, true), from),
            Step::Take { from, .. } | Step::Await { from, .. } => {
                let flow = (from, rank, lane, matches!(step, Step::Await { .. }));
                let Some(message) = self.flows.get_mut(&flow).and_then(VecDeque::pop_front) else {
                    self.ahead(rank, lane).push_front(step);
                    return false;
                };
                self.arrive(flow, step, message);
            }
            Step::Reduce { a, b, into, .. } => self.reduce(rank, lane, &[a, b], into),
            Step::Fold { own, at, into } => {
                let landed = |from| Span { offset: at, ..Span::landed(from, into.len) };
                let others = (0..self.columns.len()).filter(|&from| from != rank).map(landed);
                let spans: Vec<_> = others.chain([own]).collect();
                self.reduce(rank, lane, &spans, into);
            }
            Step::Copy { from, into } => {
                let symbols = self.read(rank, lane, from);
                self.write(rank, lane, into, &symbols);
            }
            Step::Free { .. } | Step::Settle | Step::Show { .. } | Step::View { .. } => {}
        }
        true
    }

    /// The steps of a lane that are to come.
    fn ahead(&mut self, rank: Rank, lane: usize) -> &mut VecDeque<Step> {
        self.steps.entry((rank, lane)).or_default()
    }

    fn put(&mut self, flow: Flow, from: Span) {
        let (rank, _, lane, _) = flow;
        let symbols = self.read(rank, lane, from);
        let [now, free] = self.columns[rank];
        let column = now.max(free);
        self.columns[rank][1] = column + 1;
        self.flows.entry(flow).or_default().push_back((column, symbols));
    }

    /// A message is taken. If the next step reduces it, the result alone is shown.
    fn arrive(&mut self, (from, rank, lane, _): Flow, step: Step, (put, symbols): (usize, Vec<Symbol>)) {
        let column = self.columns[rank][0].max(put);
        self.columns[rank][0] = column;
        self.trace.arrows.push(Arrow { from: (from, put), to: (rank, column) });
        if let Step::Await { into, .. } = step {
            self.write(rank, lane, into, &symbols);
            return self.hold(rank, symbols, false);
        }
        self.memory.insert((rank, lane, Place::Landed(from)), symbols.clone());
        let landed = |span: &Span| span.place == Place::Landed(from);
        match self.ahead(rank, lane).front() {
            Some(Step::Reduce { a, b, .. }) if landed(a) || landed(b) => {
                self.advance(rank, lane);
            }
            _ => self.hold(rank, symbols, false),
        }
    }

    fn reduce(&mut self, rank: Rank, lane: usize, spans: &[Span], into: Span) {
        let mut sum = vec![Symbol::default(); into.len];
        for span in spans {
            for (sum, symbol) in sum.iter_mut().zip(self.read(rank, lane, *span)) {
                *sum = Symbol { element: symbol.element, ranks: sum.ranks | symbol.ranks };
            }
        }
        self.write(rank, lane, into, &sum);
        self.hold(rank, sum, true);
    }

    fn hold(&mut self, rank: Rank, symbols: Vec<Symbol>, reduced: bool) {
        let column = self.columns[rank][0];
        self.columns[rank][0] += 1;
        self.trace.boxes.push(Boxed { rank, column, symbols, reduced });
    }

    /// The memory of a place; nothing if no message has landed there.
    fn area(&mut self, rank: Rank, lane: usize, place: Place) -> &mut Vec<Symbol> {
        let lane = if matches!(place, Place::Landed(_)) { lane } else { 0 };
        self.memory.entry((rank, lane, place)).or_default()
    }

    fn read(&mut self, rank: Rank, lane: usize, span: Span) -> Vec<Symbol> {
        let area = self.area(rank, lane, span.place);
        area.iter().skip(span.offset).take(span.len).copied().collect()
    }

    fn write(&mut self, rank: Rank, lane: usize, span: Span, symbols: &[Symbol]) {
        let area = self.area(rank, lane, span.place).iter_mut().skip(span.offset).take(span.len);
        area.zip(symbols).for_each(|(to, from)| *to = *from);
    }
}

#[cfg(test)]
mod tests {
    use unisono_schedule::algorithm::ALGORITHMS;

    use super::*;

    /// The elements of a block, or of a vector.
    const COUNT: usize = 2;

    /// What a rank has after a collective with root 0 in element `at` of its output.
    fn wanted(collective: Collective, ranks: usize, rank: Rank, at: usize) -> Symbol {
        let everyone = (1 << ranks) - 1;
        let (element, ranks) = match collective {
            Collective::AllReduce | Collective::Reduce => (at, everyone),
            Collective::ReduceScatter => (rank * COUNT + at, everyone),
            Collective::AllGather | Collective::Gather => (at, 1 << (at / COUNT)),
            Collective::Scatter => (rank * COUNT + at, 1),
            Collective::AllToAll => (rank * COUNT + at % COUNT, 1 << (at / COUNT)),
            Collective::Broadcast | Collective::Barrier => (at, 1),
        };
        Symbol { element, ranks }
    }

    #[test]
    fn every_schedule_ends_with_what_the_collective_gives() {
        let plans = ALGORITHMS.iter().flat_map(|it| it.plans.iter().map(move |plan| (it.name, plan)));
        let cases = plans.flat_map(|it| [(it, 4, 64, false), (it, 3, 1, true), (it, 5, 2, true)]);
        for ((name, plan), ranks, chunk, direct) in cases {
            let collective = plan.collective;
            let count = if collective == Collective::Barrier { 0 } else { COUNT };
            let job = Job { chunk, direct, ..Job::new(collective, 0, ranks, count) };
            let trace = trace(plan, &job);
            for (rank, after) in trace.after.iter().enumerate() {
                let wanted: Vec<_> = (0..after.len()).map(|at| wanted(collective, ranks, rank, at)).collect();
                assert_eq!(*after, wanted, "{} by {name}, rank {rank} of {ranks}", collective.name());
            }
            let ends = |rank| trace.arrows.iter().any(|it| it.from.0 == rank || it.to.0 == rank);
            assert!((0..ranks).all(ends), "{} by {name}", collective.name());
            assert!(trace.arrows.iter().all(|it| it.from.1 <= it.to.1));
        }
    }

    #[test]
    fn messages_of_a_small_broadcast_are_where_they_should_be() {
        let plan =
            unisono_schedule::algorithm::find("binomial").unwrap().plan(Collective::Broadcast).unwrap();
        let trace = trace(plan, &Job::new(Collective::Broadcast, 0, 4, 2));
        let mut arrows: Vec<_> = trace.arrows.iter().map(|it| (it.from, it.to)).collect();
        arrows.sort_unstable();
        assert_eq!(arrows, [((0, 0), (2, 0)), ((0, 1), (1, 1)), ((2, 1), (3, 1))]);
        assert_eq!(trace.boxes.len(), 3);
        assert!(trace.boxes.iter().all(|it| !it.reduced && it.symbols == trace.before[0]));
    }
}
