//! The simulation against textbook formulas, one rank that stands for all against all of them, and both against the
//! lower bound.

use super::*;
use crate::{
    Collective, Job, Kind, Step,
    algorithm::{ALGORITHMS, Algorithm, Plan, find},
};

/// α = 1 µs, β = 10 GB/s; processors take no time.
const PATH: Path = Path {
    latency: 1e-6,
    send_overhead: 0.0,
    receive_overhead: 0.0,
    bandwidth: 10e9,
    send_per_byte: 0.0,
    receive_per_byte: 0.0,
};

/// Hosts have one rank.
const PLAIN: Fabric = Fabric {
    name: "plain",
    summary: "for formulas",
    kind: Kind::Rdma,
    between: PATH,
    inside: None,
    ports: 64,
    queue: f64::INFINITY,
    reduction: f64::INFINITY,
    copy: f64::INFINITY,
    cheap_registration: false,
    ranks_per_host: 1,
    cores: 1,
    switch: 0.0,
};

fn job(collective: Collective, ranks: usize, count: usize) -> Job<'static> {
    let count = if collective == Collective::Barrier { 0 } else { count };
    Job { chunk: 1 << 40, ..Job::new(collective, 0, ranks, count) }
}

fn setup(fabric: &Fabric) -> SimulationSetup<'_> {
    SimulationSetup {
        fabric,
        hosts: None,
        element: 4,
        slots: 2,
        window: 1 << 20,
        showing: None,
        writes: 8,
        limit: 10_000_000,
    }
}

fn all(plan: &Plan, job: &Job<'_>, setup: &SimulationSetup<'_>) -> Cost {
    Simulation::all(job.ranks, &mut |rank| plan.make(&Job { rank, ..*job }), setup).run().unwrap()
}

fn one(plan: &Plan, job: &Job<'_>, setup: &SimulationSetup<'_>) -> Option<Cost> {
    let schedule = plan.make(&Job { rank: 0, ..*job });
    let alike = plan.alike(job.ranks).filter(|_| setup.fabric.is_even(job.ranks));
    alike.map(|alike| Simulation::one(job.ranks, alike, schedule, setup).run().unwrap())
}

fn plans() -> impl Iterator<Item = (&'static Algorithm, &'static Plan)> {
    ALGORITHMS.iter().flat_map(|algorithm| algorithm.plans.iter().map(move |plan| (algorithm, plan)))
}

/// Seconds for one chunk on one lane, with all ranks simulated; where ranks are alike, one gives the same.
fn seconds(algorithm: &str, collective: Collective, ranks: usize, count: usize, fabric: &Fabric) -> f64 {
    let plan = find(algorithm).and_then(|algorithm| algorithm.plan(collective)).unwrap();
    let job = job(collective, ranks, count);
    let cost = all(plan, &job, &setup(fabric));
    if let Some(one) = one(plan, &job, &setup(fabric)) {
        assert!(near(one.seconds, cost.seconds), "{algorithm}, {ranks} ranks: {one:?} and {cost:?}");
    }
    cost.seconds
}

fn near(got: f64, wanted: f64) -> bool {
    (got - wanted).abs() <= 1e-9 * wanted
}

#[test]
fn textbook_formulas_are_exact() {
    use Collective::{AllGather, AllReduce, Barrier, Broadcast, ReduceScatter};
    let (reducing, count) = (Fabric { reduction: 5e9, ..PLAIN }, 16 * 9 * 5 * 7 * 100);
    let m = 4.0 * count as f64;
    let (alpha, beta, gamma) = (PATH.latency, 1.0 / PATH.bandwidth, 1.0 / reducing.reduction);
    for ranks in [2_usize, 3, 4, 5, 7, 8, 16] {
        let n = ranks as f64;
        let hops = f64::from(ranks.next_power_of_two().ilog2());
        let check = |name, collective, fabric: &Fabric, wanted: f64| {
            let got = seconds(name, collective, ranks, count, fabric);
            assert!(near(got, wanted), "{name} {collective:?} {ranks} ranks: {got} and {wanted}");
        };
        let piece = m / n;
        let ring = 2.0 * (n - 1.0) * (alpha + piece * beta) + (n - 1.0) * piece * gamma;
        check("ring", AllReduce, &reducing, ring);
        check("ring", ReduceScatter, &reducing, (n - 1.0) * (alpha + m * beta + m * gamma));
        check("ring", AllGather, &PLAIN, (n - 1.0) * (alpha + m * beta));
        check("ring", Broadcast, &PLAIN, (n - 1.0) * (alpha + m * beta));
        check("two_shot", AllReduce, &PLAIN, 2.0 * (alpha + (n - 1.0) * piece * beta));
        check("direct", AllReduce, &PLAIN, alpha + (n - 1.0) * m * beta);
        check("direct", AllGather, &PLAIN, alpha + (n - 1.0) * m * beta);
        check("direct", Broadcast, &PLAIN, alpha + (n - 1.0) * m * beta);
        check("direct", Barrier, &PLAIN, alpha);
        check("dissemination", Barrier, &PLAIN, hops * alpha);
        if ranks.is_power_of_two() {
            check("recursive_doubling", AllReduce, &reducing, hops * (alpha + m * beta + m * gamma));
            check("binomial", Broadcast, &PLAIN, hops * (alpha + m * beta));
        }
    }
}

#[test]
fn overheads_are_the_processors() {
    // Nine messages are posted one after the other; then nine are taken.
    let path = Path { send_overhead: 0.5e-6, receive_overhead: 0.25e-6, ..PATH };
    let fabric = Fabric { between: path, ..PLAIN };
    let got = seconds("direct", Collective::Barrier, 10, 0, &fabric);
    assert!(near(got, 9.0 * (0.5e-6 + 0.25e-6)), "{got}");
    // A byte that the processor sends and takes costs its time too, and the wire's.
    let path = Path { send_per_byte: 1e-9, receive_per_byte: 2e-9, ..PATH };
    let fabric = Fabric { between: path, ..PLAIN };
    let got = seconds("direct", Collective::Broadcast, 2, 250, &fabric);
    assert!(near(got, 1e-6 + 1e-6 + 0.1e-6 + 2e-6), "{got}");
}

#[test]
fn pipelines_overlap() {
    // 100 chunks around a ring of 5: four hops, and 99 chunks behind the first.
    let plan = find("ring").and_then(|it| it.plan(Collective::Broadcast)).unwrap();
    let job = Job { chunk: 10_000, lanes: 4, ..job(Collective::Broadcast, 5, 1_000_000) };
    let chunk = 40_000.0 / PATH.bandwidth;
    let got = all(plan, &job, &setup(&PLAIN));
    assert!(near(got.seconds, 4.0 * PATH.latency + (4.0 + 99.0) * chunk), "{got:?}");
    // With one lane and one slot, every chunk waits until the one before has left the next rank's slot.
    let few = SimulationSetup { slots: 1, ..setup(&PLAIN) };
    let slow = all(plan, &Job { lanes: 1, ..job }, &few);
    assert!(slow.seconds > 1.3 * got.seconds, "{slow:?}");
}

#[test]
fn ranks_share_cores() {
    let work = Fabric { reduction: 1e6, cores: 2, ..PLAIN };
    let alone = seconds("ring", Collective::ReduceScatter, 8, 1000, &work);
    let plan = find("ring").and_then(|it| it.plan(Collective::ReduceScatter)).unwrap();
    let job = job(Collective::ReduceScatter, 8, 1000);
    let crowded = Fabric { ranks_per_host: 8, ..work };
    let got = all(plan, &job, &setup(&crowded)).seconds;
    assert!((got / alone - 4.0).abs() < 0.05, "eight ranks on two cores: {got} and {alone}");
    let stands = one(plan, &job, &setup(&crowded)).unwrap().seconds;
    assert!((stands / got - 1.0).abs() < 0.05, "{stands} and {got}");
    // Being woken costs time on a shared core only.
    let slow = Fabric { switch: 1e-3, ..work };
    assert!(near(seconds("ring", Collective::ReduceScatter, 8, 1000, &slow), alone));
    let slow = Fabric { switch: 1e-3, ..crowded };
    assert!(all(plan, &job, &setup(&slow)).seconds > got + 7e-3);
}

#[test]
fn no_time_is_counted_before_a_rank_has_a_core() {
    let plan = find("direct").and_then(|it| it.plan(Collective::Barrier)).unwrap();
    let path = Path { latency: 0.0, send_overhead: 5e-6, receive_overhead: 2e-6, ..PATH };
    let busy = Fabric { between: path, ..PLAIN };
    let took = |cores| {
        let fabric = Fabric { ranks_per_host: 3, cores, ..busy };
        all(plan, &job(Collective::Barrier, 3, 0), &setup(&fabric)).seconds
    };
    assert!(near(took(3), 14e-6), "{}", took(3));
    // The third gets a core after 10 us, when it has 14 to go, and others wait for it.
    assert!((14e-6..24e-6).contains(&took(2)), "{}", took(2));
    // With one core the clock is that of the first.
    assert!(near(took(1), 3.0 * 14e-6), "{}", took(1));
}

/// Fabrics with one rank on a host.
fn fabrics() -> [Fabric; 5] {
    let alone = |fabric| Fabric { ranks_per_host: 1, ..fabric };
    [PLAIN, alone(Fabric::NDR400), alone(Fabric::HDR), alone(Fabric::EFA), alone(Fabric::TCP)]
}

#[test]
fn one_rank_stands_for_all() {
    let mut worst: (f64, String) = (0.0, String::new());
    let mut number = 0;
    for (algorithm, plan) in plans() {
        for ranks in [2, 3, 4, 5, 7, 8, 9, 16, 17, 32, 33, 64] {
            let jobs = [(2, 1000, 1), (5000, 1 << 20, 1), (9000, 1000, 1), (18_000, 2000, 3)];
            // An exchange among all ranks in many chunks takes long to simulate.
            for (count, chunk, lanes) in jobs.into_iter().take(if ranks > 33 { 2 } else { 4 }) {
                // Two of the fabrics, in turn.
                for fabric in [fabrics()[number % 5], fabrics()[(number + 2) % 5]] {
                    number += 1;
                    let job =
                        Job { chunk, lanes, direct: number % 2 == 0, ..job(plan.collective, ranks, count) };
                    let setup = setup(&fabric);
                    let Some(one) = one(plan, &job, &setup) else { continue };
                    let all = all(plan, &job, &setup);
                    let off = (one.seconds / all.seconds - 1.0).abs();
                    if off > worst.0 {
                        let what = format!("{} {job:?} {}: {one:?} and {all:?}", algorithm.name, fabric.name);
                        worst = (off, what);
                    }
                    assert_eq!(one.messages, all.messages, "{} {job:?}", algorithm.name);
                    assert_eq!(one.memory, all.memory, "{} {job:?}", algorithm.name);
                }
            }
        }
    }
    println!("{:.2} % off at most", worst.0 * 100.0);
    assert!(worst.0 < 0.04, "{:.2} % off: {}", worst.0 * 100.0, worst.1);
}

#[test]
fn nothing_is_below_the_lower_bound() {
    let shared = [
        Fabric::TCP,
        Fabric { cores: 3, ..Fabric::NDR400 },
        Fabric { cores: 1, ..Fabric::TCP },
        Fabric { ranks_per_host: 4, ..Fabric::TCP_1G },
        Fabric { ranks_per_host: 3, cores: 2, ..Fabric::TCP_100G },
        Fabric { ranks_per_host: 4, ports: 2, ..Fabric::HDR },
    ];
    for (algorithm, plan) in plans() {
        for ranks in [1, 2, 3, 4, 5, 8, 13, 16] {
            for (count, lanes) in [(0, 1), (1, 3), (1000, 1), (30_000, 3)] {
                for (number, fabric) in fabrics().into_iter().chain(shared).enumerate() {
                    let direct = number % 2 == 0;
                    let long = direct && number % 4 == 0;
                    let job = Job { chunk: 4096, lanes, direct, long, ..job(plan.collective, ranks, count) };
                    let bound = lower_bound(plan.collective, ranks, job.count * 4, &fabric);
                    let setup = setup(&fabric);
                    let message =
                        |cost| format!("{} {job:?} {}: {cost:?}, bound {bound}", algorithm.name, fabric.name);
                    let all = all(plan, &job, &setup);
                    assert!(all.seconds >= bound * (1.0 - 1e-9), "{}", message(all));
                    // Its pieces may be an element shorter than others'.
                    if let Some(one) = one(plan, &job, &setup) {
                        assert!(one.seconds >= bound * 0.999, "{}", message(one));
                    }
                }
            }
        }
    }
}

#[test]
fn traffic_is_that_of_the_schedules() {
    for (algorithm, plan) in plans() {
        for ranks in [1, 2, 3, 8, 13] {
            let job = Job { chunk: 100, lanes: 3, ..job(plan.collective, ranks, 1001) };
            let cost = all(plan, &job, &setup(&PLAIN));
            // The bytes of each message that a rank sends.
            let sent = |rank| {
                let mut schedule = plan.make(&Job { rank, ..job });
                let steps = (0..schedule.lanes())
                    .flat_map(|lane| std::iter::from_fn(|| schedule.next(lane)).collect::<Vec<_>>());
                let sent = steps.filter_map(|step| match step {
                    Step::Put { from, .. } | Step::Write { from, .. } => Some(4 * from.len as u64),
                    _ => None,
                });
                sent.collect::<Vec<_>>()
            };
            let sent: Vec<Vec<u64>> = (0..ranks).map(sent).collect();
            let bytes = || sent.iter().map(|of_rank| of_rank.iter().sum::<u64>());
            assert_eq!(cost.messages.total, sent.concat().len() as u64, "{}", algorithm.name);
            assert_eq!(cost.bytes.total, bytes().sum::<u64>(), "{}", algorithm.name);
            assert_eq!(cost.bytes.most, bytes().max().unwrap_or_default(), "{}", algorithm.name);
        }
    }
}

/// Rank r's puts are rank 0's with the ranks renamed, and so are those from which it takes.
#[test]
fn plans_that_are_alike_are() {
    let mut seen = 0;
    for (algorithm, plan) in plans() {
        for ranks in 2..=33 {
            let Some(alike) = plan.alike(ranks) else { continue };
            seen += 1;
            let of = |rank| {
                let job = Job { rank, chunk: 7, lanes: 2, ..job(plan.collective, ranks, 40) };
                let mut schedule = plan.make(&job);
                (0..schedule.lanes())
                    .map(|lane| {
                        let steps = std::iter::from_fn(|| schedule.next(lane));
                        let renamed = |peer: Rank| match alike {
                            Alike::Turned => (peer + ranks - rank) % ranks,
                            Alike::Swapped => peer ^ rank,
                        };
                        let (mut puts, mut takes) = (Vec::new(), Vec::new());
                        for step in steps {
                            match step {
                                Step::Put { to, .. } | Step::Write { to, .. } => puts.push(renamed(to)),
                                Step::Take { from, .. } | Step::Await { from, .. } => {
                                    takes.push(renamed(from))
                                }
                                _ => {}
                            }
                        }
                        takes.sort_unstable();
                        (puts, takes)
                    })
                    .collect::<Vec<_>>()
            };
            let first = of(0);
            for rank in 1..ranks {
                assert_eq!(
                    of(rank),
                    first,
                    "{} {:?} {ranks} ranks, rank {rank}",
                    algorithm.name,
                    plan.collective
                );
            }
        }
    }
    assert!(seen > 200, "{seen} plans and worlds");
}

#[test]
fn memory_is_that_of_the_windows() {
    let plan = find("two_shot").and_then(|it| it.plan(Collective::AllReduce)).unwrap();
    let job = Job { chunk: 1000, lanes: 3, ..job(Collective::AllReduce, 8, 1_000_000) };
    let cost = all(plan, &job, &setup(&PLAIN));
    assert_eq!(cost.memory, 7 * setup(&PLAIN).window + 8 * 880 + 10_240);
    let halves = find("rabenseifner").and_then(|it| it.plan(Collective::ReduceScatter)).unwrap();
    let schedule = halves.make(&Job::new(Collective::ReduceScatter, 0, 8, 1000));
    let scratch = (schedule.scratch() * 4).next_power_of_two();
    assert!(
        scratch > 0 && memory(&*schedule, 8, &setup(&PLAIN)) == 3 * (1 << 20) + 8 * 880 + 10_240 + scratch
    );
}

/// Two ranks that wait for each other.
struct Waits(Rank, bool);

impl Schedule for Waits {
    fn lanes(&self) -> usize {
        1
    }

    fn max_message(&self) -> usize {
        1
    }

    fn direct(&self) -> bool {
        false
    }

    fn scratch(&self) -> usize {
        0
    }

    fn sources(&self, visit: &mut dyn FnMut(Rank)) {
        visit(self.0);
    }

    fn next(&mut self, _: usize) -> Option<Step> {
        (!std::mem::replace(&mut self.1, true)).then_some(Step::Take { from: self.0, len: 1 })
    }
}

#[test]
fn what_has_no_end_has_no_price() {
    let stuck = Simulation::all(2, &mut |rank| Box::new(Waits(1 - rank, false)), &setup(&PLAIN)).run();
    assert_eq!(stuck, Err(Unpriced::Stuck { slots: 2 }));
    let nobody = Simulation::all(2, &mut |_| Box::new(Waits(7, false)), &setup(&PLAIN)).run();
    assert_eq!(nobody, Err(Unpriced::Peer { rank: 0, peer: 7 }));
    let plan = find("ring").and_then(|it| it.plan(Collective::AllReduce)).unwrap();
    let job = job(Collective::AllReduce, 8, 1000);
    let limited = SimulationSetup { limit: 50, ..setup(&PLAIN) };
    let long = Simulation::all(8, &mut |rank| plan.make(&Job { rank, ..job }), &limited).run();
    assert_eq!(long, Err(Unpriced::TooLong { limit: 50 }));
    // An empty job takes no time.
    let alone = plan.make(&Job { ranks: 1, count: 0, ..job });
    assert_eq!(Simulation::one(1, Alike::Turned, alone, &setup(&PLAIN)).run().unwrap().seconds, 0.0);
}

#[test]
fn presets_have_sense_and_names() {
    for fabric in Fabric::ALL {
        assert_eq!(Fabric::parse(fabric.name), Some(fabric));
        let path = fabric.between;
        let all = [path.latency, path.send_overhead, path.receive_overhead, fabric.switch];
        assert!(all.iter().all(|time| (1e-8..1e-4).contains(time)), "{fabric:?}");
        let all = [path.bandwidth, fabric.reduction, fabric.copy];
        assert!(all.iter().all(|rate| (1e8..1e12).contains(rate)), "{fabric:?}");
    }
    assert_eq!(Fabric::parse("token ring"), None);
    assert_eq!(Fabric::TCP.crowd(4), 2.0);
    assert_eq!(Fabric::TCP.crowd(2), 1.0);
    assert_eq!(Fabric::TCP.crowd(100), 4.0);
    let (per_host, cores) = (Fabric::TCP.ranks_per_host, Fabric::TCP.cores);
    assert_eq!(Fabric::TCP.at_once(1), 1);
    assert_eq!(Fabric::TCP.at_once(per_host + 1), cores + 1);
    assert_eq!(Fabric::TCP.at_once(2 * per_host), 2 * cores);
    assert_eq!(Fabric::NDR400.at_once(1000), 1000);
}
