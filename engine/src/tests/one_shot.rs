//! Collectives in one shot and in place, by engines that one thread steps in random orders: ranks that are late anywhere, one that stops
//! for ever, ranks whose memory is plain, and one that cannot map that of the others.

use unisono_schedule::{Recorded, algorithm::find, select::shown::PlainWays};
use unisono_transport::Region;

use super::*;
use crate::{
    comm::layout,
    memory::Operand,
    observed::{Observed, Withheld},
    random::Random,
    request::ShownPlan,
};

/// The operations of a program.
pub(super) const LEN: usize = 6;

/// What all ranks call: the collective, its elements, the root, and how it is done.
pub(super) type Planned = (Collective, usize, Rank, FlowWay);

#[derive(Clone, Copy, Debug)]
pub(super) enum FlowWay {
    OneShot,
    /// In place. The memory of these ranks, a bit for each, is plain: this many bytes of it are copied to slots at once, or all run
    /// the schedule.
    InPlace {
        plain: usize,
        staged: usize,
    },
    /// In two levels, by this algorithm: ranks of these hosts read each other's scratch.
    Inside(&'static str, &'static [u32]),
}

/// The collectives that can be done in place.
const IN_PLACE: [Collective; 5] = [
    Collective::AllReduce,
    Collective::ReduceScatter,
    Collective::AllGather,
    Collective::Broadcast,
    Collective::AllToAll,
];

/// The memory of operations in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    /// There is no such operation.
    None,
    Mapped,
    /// That of some ranks is plain in some operations.
    Plain,
    /// The same, and it is copied to slots.
    Staged,
    /// A rank cannot map it.
    Unmapped,
}

impl Memory {
    const ALL: [Self; 5] = [Self::None, Self::Mapped, Self::Plain, Self::Staged, Self::Unmapped];
}

/// A rank in its program.
pub(super) struct Player {
    pub(super) engine: Engine,
    pub(super) rank: Rank,
    begun: usize,
    /// The operation under way, with its output; without an outcome if it has ended.
    current: Option<(Region, Option<Arc<Outcome>>)>,
    /// Memory of earlier operations in place, for later ones.
    mapped: Vec<Region>,
    /// Memory of the operation under way.
    spent: Vec<Region>,
}

impl Player {
    /// Begins an operation. Its memory is never freed, for the engine may stop at any step.
    fn begin(&mut self, call: Planned, ranks: usize) {
        self.begin_on(call, ranks, false);
    }

    /// The same on memory that is `fixed`, or not.
    fn begin_on(&mut self, (collective, count, root, way): Planned, ranks: usize, fixed: bool) {
        let job = Job { root, chunk: 16, lanes: 3, ..Job::new(collective, self.rank, ranks, count) };
        let (algorithm, spread) = match way {
            FlowWay::Inside(algorithm, hosts) => (algorithm, Spread::Of(hosts)),
            _ => ("direct", Spread::Unknown),
        };
        let job = Job { spread, ..job };
        let call = WaitingCall { job, op: ReduceOp::Sum, algorithm };
        let (inputs, outputs) = job.lengths().unwrap();
        let input: Vec<i64> = (0..inputs).map(|at| value(self.rank, at)).collect();
        let within = collective == Collective::Broadcast;
        let borrowed = if within {
            Borrowed::within(input.clone().leak(), 0..count, 0..count).unwrap()
        } else {
            Borrowed::apart(input.clone().leak(), vec![-1_i64; outputs].leak())
        };
        let (mut task, outcome) = task::<i64>(call, &borrowed);
        let RequestKind::Collective(operation) = &mut task.what else { panic!("another task") };
        if fixed {
            operation.access = OutputAccess::Nobody;
        }
        let plan = |algorithm: &str| find(algorithm).unwrap().plan(collective).unwrap();
        match way {
            FlowWay::Inside(algorithm, _) => {
                // However few elements there are.
                let inside = CallSchedule::inside(plan(algorithm), &job, 1 << 20, true);
                operation.schedule = inside.unwrap_or_else(|| CallSchedule::Made(plan(algorithm).make(&job)));
            }
            FlowWay::OneShot => {
                operation.schedule = CallSchedule::Recorded(Recorded::shown(plan("direct"), &job));
            }
            FlowWay::InPlace { plain, staged } => {
                let plan = plan(if collective == Collective::AllReduce { "two_shot" } else { "direct" });
                Arc::get_mut(&mut operation.plan).unwrap().shown =
                    Some(Arc::new(ShownPlan::new(plan, &job, 8, PlainWays { reads: false, copies: staged })));
                if plain >> self.rank & 1 == 0 {
                    // With every other number of elements, an all_reduce is in place in the other sense too.
                    let one = within || collective == Collective::AllReduce && count % 2 == 1;
                    operation.input = self.registered(inputs);
                    operation.output = if one { operation.input.clone() } else { self.registered(outputs) };
                    for (at, number) in input.iter().enumerate() {
                        access::store(&operation.input.memory.region, at * 8, number).unwrap();
                    }
                }
            }
        }
        let output = operation.output.memory.region.clone();
        // Every other operation of a rank is called: a small one then takes its recorded steps as far as it gets.
        let outcome = match (task.what, (self.begun + self.rank) % 2) {
            (RequestKind::Collective(operation), 1) => {
                let completion = &mut || Completion::new(LIMIT, CompletionAction::Return(None));
                let called = self.engine.driven_by(&Nobody).call(WORLD, &mut Some(*operation), completion);
                match called.map_err(|halt| halt.stop).unwrap() {
                    Called::Ended(_) => None,
                    Called::UnderWay(outcome) => Some(outcome),
                }
            }
            (what, _) => {
                let task = WorkRequest { what, ..task };
                self.engine.driven_by(&Nobody).take(WORLD, task).map_err(|halt| halt.stop).unwrap();
                Some(outcome)
            }
        };
        (self.begun, self.current) = (self.begun + 1, Some((output, outcome)));
    }

    /// Registered memory for this many elements, which may have served before.
    fn registered(&mut self, count: usize) -> Operand {
        let fits = |region: &Region| region.len() == (count * 8).max(1);
        let old = self.mapped.iter().position(fits).filter(|at| at % 3 != self.begun % 3);
        let region = match old {
            Some(old) => self.mapped.swap_remove(old),
            None => self.engine.transport().allocate((count * 8).max(1)).unwrap(),
        };
        self.spent.push(region.clone());
        Operand::registered(region)
    }

    /// Begins the next operation, or does a round. Checks what has ended. True if anything changed.
    pub(super) fn step(&mut self, program: &[Planned], ranks: usize) -> bool {
        let Some((output, outcome)) = &self.current else {
            let Some(&next) = program.get(self.begun) else { return false };
            self.begin(next, ranks);
            return true;
        };
        if let Some(outcome) = outcome {
            let moved = self.engine.driven_by(&Nobody).round().map_err(|halt| halt.stop).unwrap();
            if !outcome.ended() {
                return moved;
            }
        }
        let (collective, count, root, way) = program[self.begun - 1];
        let got: Vec<i64> = (0..output.len() / 8).map(|at| access::load(output, at * 8).unwrap()).collect();
        assert_eq!(
            got,
            wanted(collective, (self.rank, ranks), count, root),
            "{collective:?} of {count}, {way:?}, rank {}",
            self.rank
        );
        self.current = None;
        self.mapped.append(&mut self.spent);
        true
    }

    pub(super) fn has_ended(&self, program: &[Planned]) -> bool {
        self.current.is_none() && self.begun == program.len()
    }
}

/// Ranks, of which one may map no memory of others but their shared slots.
pub(super) fn players(ranks: usize, blind: Option<Rank>) -> Vec<Player> {
    let hub = Hub::new();
    let open = |rank| -> Box<dyn Transport> {
        let inner = Box::new(hub.open());
        let withheld = Withheld::Views { but: layout::LEN as u64 };
        if blind == Some(rank) { Box::new(Observed::withholding(inner, withheld)) } else { inner }
    };
    let mut engines: Vec<_> =
        (0..ranks).map(|rank| Engine::new(open(rank), rank, ranks, SMALL).unwrap()).collect();
    let contacts: Vec<_> = engines.iter().map(Engine::contact).collect();
    let none = Duration::ZERO;
    for engine in &mut engines {
        let patience = Patience { spin: none, give_way: none, alone: none };
        engine.set_contacts(Arc::new(contacts.clone()), SMALL.chunk_bytes, patience).unwrap();
    }
    let player = |(rank, engine)| Player {
        engine,
        rank,
        begun: 0,
        current: None,
        mapped: Vec::new(),
        spent: Vec::new(),
    };
    engines.into_iter().enumerate().map(player).collect()
}

/// Steps the ranks in an order of this seed. The rank that stops does so after a number of steps.
fn play(ranks: usize, seed: u64, stops: bool, memory: Memory) {
    let mut random = Random(seed);
    let mut program = || {
        if memory != Memory::None && random.below(4) > 0 {
            let collective = IN_PLACE[random.below(IN_PLACE.len())];
            let count = [1, 2, 9, 64, 501][random.below(5)];
            let some = matches!(memory, Memory::Plain | Memory::Staged) && random.below(2) == 0;
            let plain = if some { random.below(1 << ranks) } else { 0 };
            // One round, or several.
            let staged = if memory == Memory::Staged { [64 * ranks, usize::MAX][random.below(2)] } else { 0 };
            let root = if collective.has_root() { random.below(ranks) } else { 0 };
            return (collective, count, root, FlowWay::InPlace { plain, staged });
        }
        let collective = Collective::ALL[random.below(Collective::ALL.len())];
        // Bytes in the cache line of their description, and apart from it.
        let count = if collective == Collective::Barrier { 0 } else { [0, 1, 3, 4, 100][random.below(5)] };
        (collective, count, if collective.has_root() { random.below(ranks) } else { 0 }, FlowWay::OneShot)
    };
    let program: Vec<Planned> = (0..LEN).map(|_| program()).collect();
    let blind = (memory == Memory::Unmapped).then(|| random.below(ranks));
    let mut players = players(ranks, blind);
    let (stopped, steps) = (random.below(ranks), random.below(200));
    step_in_any_order(&mut players, &program, &mut random, stops.then_some((stopped, steps)));
    for player in &mut players {
        assert!(stops || player.has_ended(&program), "seed {seed}: rank {} has not ended", player.rank);
        let comm = player.engine.net.core(WORLD).unwrap().comm;
        let messages = matches!(memory, Memory::Plain | Memory::Unmapped);
        assert!(messages || comm.flows.open_windows().next().is_none(), "a window for messages was opened");
    }
    if stops && !players[stopped].has_ended(&program) {
        assert_waits(&players, stopped, ranks, seed);
    }
    players.into_iter().for_each(|player| drop(player.engine.abandon()));
}

/// Steps the ranks in a random order until none goes on. One rank at a time is late; the rank that stops does so after a number of steps.
pub(super) fn step_in_any_order(
    players: &mut [Player],
    program: &[Planned],
    random: &mut Random,
    stops: Option<(Rank, usize)>,
) {
    let ranks = players.len();
    let (mut late, mut fruitless, mut step) = (0, 0, 0);
    // Longer than a late rank is.
    while fruitless < 400 * ranks {
        if step % 40 == 0 {
            late = random.below(2 * ranks);
        }
        step += 1;
        let rank = random.below(ranks);
        if rank == late || stops.is_some_and(|(stopped, steps)| rank == stopped && step > steps) {
            fruitless += 1;
            continue;
        }
        fruitless = if players[rank].step(program, ranks) { 0 } else { fruitless + 1 };
    }
}

/// A rank that has not ended waits, directly or not, for the one that has stopped.
pub(super) fn assert_waits(players: &[Player], stopped: Rank, ranks: usize, seed: u64) {
    let waits = |player: &Player| {
        let running = player.engine.position().groups[0].running.clone();
        running.map_or_else(Vec::new, |running| running.waits)
    };
    let waits: Vec<Vec<usize>> = players.iter().map(waits).collect();
    let mut held = vec![stopped];
    for _ in 0..ranks {
        let more = (0..ranks).filter(|&rank| waits[rank].iter().any(|it| held.contains(it)));
        held = more.chain([stopped]).collect();
    }
    for player in players.iter().filter(|player| player.current.is_some()) {
        assert!(held.contains(&player.rank), "seed {seed}: rank {} waits for {waits:?}", player.rank);
    }
}

#[test]
fn results_are_right_in_every_order_of_steps() {
    for (ranks, memory) in [2, 3, 4, 6].into_iter().flat_map(|ranks| Memory::ALL.map(|it| (ranks, it))) {
        (0..60).for_each(|seed| play(ranks, seed << 8 | ranks as u64, false, memory));
    }
}

#[test]
fn a_rank_that_stops_is_waited_for_and_no_result_is_wrong() {
    for (ranks, memory) in [2, 3, 4].into_iter().flat_map(|ranks| Memory::ALL.map(|it| (ranks, it))) {
        (0..60).for_each(|seed| play(ranks, seed << 8 | ranks as u64, true, memory));
    }
}

#[test]
fn what_was_borrowed_to_be_read_is_not_written() {
    let in_place = |plain| FlowWay::InPlace { plain, staged: 64 };
    for way in [FlowWay::OneShot, in_place(0), in_place(3)] {
        let mut players = players(2, None);
        let call = (Collective::Broadcast, 4, 0, way);
        players[0].begin(call, 2);
        players[1].begin_on(call, 2, true);
        let output = players[1].current.as_ref().unwrap().0.clone();
        let stop = (0..100).find_map(|_| {
            players[0].step(&[call], 2);
            players[1].engine.driven_by(&Nobody).round().err()
        });
        let stop = format!("{:?}", stop.map(|halt| halt.stop));
        assert!(stop.contains("only read"), "{way:?}: {stop}");
        let seen: Vec<i64> = (0..4).map(|at| access::load(&output, at * 8).unwrap()).collect();
        assert_eq!(seen, [0, 1, 2, 3].map(|at| value(1, at)), "{way:?}");
    }
}
