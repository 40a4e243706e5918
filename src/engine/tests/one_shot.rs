//! Collectives in one shot, by engines that one thread steps in random orders: ranks that are late anywhere, and one that stops for ever.

use super::*;
use crate::random::Random;

/// The operations of a program.
const LEN: usize = 6;

/// What all ranks call: the collective, its elements, and the root.
type Planned = (Collective, usize, Rank);

/// A rank in its program.
struct Player {
    engine: Engine,
    rank: Rank,
    begun: usize,
    /// The operation under way, with its output.
    current: Option<(Borrowed<'static>, Arc<Outcome>)>,
}

impl Player {
    /// Begins an operation. Its memory is never freed, for the engine may stop at any step.
    fn begin(&mut self, (collective, count, root): Planned, ranks: usize) {
        let job = Job { root, ..Job::new(collective, self.rank, ranks, count) };
        let call = Call { job, op: ReduceOp::Sum, algorithm: "direct" };
        let (inputs, outputs) = job.lengths().unwrap();
        let input: Vec<i64> = (0..inputs).map(|at| value(self.rank, at)).collect();
        let borrowed = if collective == Collective::Broadcast {
            Borrowed::within(input.leak(), 0..count, 0..count).unwrap()
        } else {
            Borrowed::apart(input.leak(), vec![-1_i64; outputs].leak())
        };
        let (mut task, outcome) = task::<i64>(call, &borrowed);
        if let What::Collective(operation, _) = &mut task.what {
            operation.one_shot = true;
        }
        self.engine.take(WORLD, task, &Nobody).map_err(|halt| halt.stop).unwrap();
        (self.begun, self.current) = (self.begun + 1, Some((borrowed, outcome)));
    }

    /// Begins the next operation, or does a round. Checks what has ended. True if anything changed.
    fn step(&mut self, program: &[Planned], ranks: usize) -> bool {
        let Some((borrowed, outcome)) = &self.current else {
            let Some(&next) = program.get(self.begun) else { return false };
            self.begin(next, ranks);
            return true;
        };
        let moved = self.engine.round(&Nobody).map_err(|halt| halt.stop).unwrap();
        if !outcome.ended() {
            return moved;
        }
        let (collective, count, root) = program[self.begun - 1];
        let output = &borrowed.output.region;
        let got: Vec<i64> = (0..output.len() / 8).map(|at| access::load(output, at * 8).unwrap()).collect();
        assert_eq!(
            got,
            wanted(collective, (self.rank, ranks), count, root),
            "{collective:?} of {count}, rank {}",
            self.rank
        );
        self.current = None;
        true
    }

    fn has_ended(&self, program: &[Planned]) -> bool {
        self.current.is_none() && self.begun == program.len()
    }
}

fn players(ranks: usize) -> Vec<Player> {
    let hub = Hub::new();
    let mut engines: Vec<_> =
        (0..ranks).map(|rank| Engine::new(Box::new(hub.open()), rank, ranks, SMALL).unwrap()).collect();
    let contacts: Vec<_> = engines.iter().map(Engine::contact).collect();
    let none = Duration::ZERO;
    for engine in &mut engines {
        let patience = Patience { spin: none, give_way: none, alone: none };
        engine.meet(Arc::new(contacts.clone()), SMALL.chunk_bytes, patience).unwrap();
    }
    let player = |(rank, engine)| Player { engine, rank, begun: 0, current: None };
    engines.into_iter().enumerate().map(player).collect()
}

/// Steps the ranks in an order of this seed. The rank that stops does so after a number of steps.
fn play(ranks: usize, seed: u64, stops: bool) {
    let mut random = Random(seed);
    let mut program = || {
        let collective = Collective::ALL[random.below(Collective::ALL.len())];
        // Bytes in the cache line of their description, and apart from it.
        let count = if collective == Collective::Barrier { 0 } else { [0, 1, 3, 4, 100][random.below(5)] };
        (collective, count, if collective.has_root() { random.below(ranks) } else { 0 })
    };
    let program: Vec<Planned> = (0..LEN).map(|_| program()).collect();
    let mut players = players(ranks);
    let (stopped, steps) = (random.below(ranks), random.below(200));
    let (mut late, mut fruitless, mut step) = (0, 0, 0);
    // Longer than a late rank is.
    while fruitless < 400 * ranks {
        if step % 40 == 0 {
            late = random.below(2 * ranks);
        }
        step += 1;
        let rank = random.below(ranks);
        if rank == late || stops && rank == stopped && step > steps {
            fruitless += 1;
            continue;
        }
        fruitless = if players[rank].step(&program, ranks) { 0 } else { fruitless + 1 };
    }
    for player in &mut players {
        assert!(stops || player.has_ended(&program), "seed {seed}: rank {} has not ended", player.rank);
        let comm = player.engine.net().core(WORLD).unwrap().comm;
        assert_eq!(comm.listens().count(), 0, "a window for messages was opened");
    }
    if stops && !players[stopped].has_ended(&program) {
        assert_waits(&players, stopped, ranks, seed);
    }
    players.into_iter().for_each(|player| drop(player.engine.abandon()));
}

/// Whoever has not ended waits, directly or not, for the one that has stopped.
fn assert_waits(players: &[Player], stopped: Rank, ranks: usize, seed: u64) {
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
    for ranks in [2, 3, 4, 6] {
        (0..60).for_each(|seed| play(ranks, seed << 8 | ranks as u64, false));
    }
}

#[test]
fn whoever_stops_is_waited_for_and_no_result_is_wrong() {
    for ranks in [2, 3, 4] {
        (0..60).for_each(|seed| play(ranks, seed << 8 | ranks as u64, true));
    }
}

#[test]
fn what_was_borrowed_to_be_read_is_not_written_in_one_shot() {
    let mut players = players(2);
    let call = (Collective::Broadcast, 4, 0);
    players[0].begin(call, 2);
    let data = Borrowed::given(vec![value(1, 3); 4].leak());
    let job = Job::new(Collective::Broadcast, 1, 2, 4);
    let (mut task, _outcome) = task::<i64>(Call { job, op: ReduceOp::Sum, algorithm: "direct" }, &data);
    if let What::Collective(operation, _) = &mut task.what {
        operation.one_shot = true;
    }
    players[1].engine.take(WORLD, task, &Nobody).map_err(|halt| halt.stop).unwrap();
    let stop = (0..100).find_map(|_| {
        players[0].step(&[call], 2);
        players[1].engine.round(&Nobody).err()
    });
    let stop = format!("{:?}", stop.map(|halt| halt.stop));
    assert!(stop.contains("only read"), "{stop}");
    let seen: Vec<i64> = (0..4).map(|at| access::load(&data.output.region, at * 8).unwrap()).collect();
    assert_eq!(seen, [value(1, 3); 4]);
}
