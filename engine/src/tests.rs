//! Engines of several ranks as threads, over the in-process and the simulated transport: every algorithm against a naive oracle,
//! with windows so small that little data takes every path.

use std::{
    sync::{
        Arc, Barrier, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use unisono_core::{
    dtype::{Dtype, Scalar},
    error::Failure,
    reduce::{Kernel, ReduceOp},
};
use unisono_schedule::{
    CallSchedule, Collective, Job, Rank, Spread, Step, algorithm::ALGORITHMS, windows::stride,
};
use unisono_transport::{Transport, inproc::Hub};

use super::*;
use crate::{
    call::{Form, MessageKind, Signature},
    memory::{Borrowed, Registry},
    sim::{self, Fabric},
};

mod control;
mod credit;
mod forged;
mod handshake;
mod inside;
mod many;
mod one_shot;

impl Contacts for Vec<Contact> {
    fn ranks(&self) -> usize {
        self.len()
    }

    fn contact(&self, rank: Rank) -> Option<Contact> {
        self.get(rank).cloned()
    }
}

/// A supervisor that asks for nothing.
struct Nobody;

impl Supervisor for Nobody {
    fn stopped(&self) -> bool {
        false
    }
}

/// Stops all ranks once one has failed.
#[derive(Default)]
struct Somebody(AtomicBool);

impl Supervisor for Somebody {
    fn stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

const SMALL: Settings = Settings {
    eager_bytes: 64,
    eager_slots: 4,
    chunk_bytes: 128,
    bulk_slots: 2,
    lanes: 3,
    bounds: Bounds { comms: 1 << 10, unexpected_bytes: 1 << 20, fresh_piece: 6, listed: 0 },
};

/// The timeout of an operation.
const LIMIT: Duration = Duration::from_secs(30);

fn soon() -> Instant {
    Instant::now() + LIMIT
}

/// Runs `each` on the engine of every rank, in threads, after the exchange of handshakes.
fn world<R: Send>(
    ranks: usize,
    settings: Settings,
    open: impl Fn() -> Box<dyn Transport>,
    each: impl Fn(Rank, &mut Engine) -> R + Sync,
) -> Vec<R> {
    let results: Vec<Mutex<Option<R>>> = (0..ranks).map(|_| Mutex::default()).collect();
    in_threads(ranks, settings, &open, &|rank, engine| {
        let result = each(rank, engine);
        *results[rank].lock().unwrap() = Some(result);
    });
    results.into_iter().map(|result| result.into_inner().unwrap().unwrap()).collect()
}

/// The same without results. It is not generic, because every test has its own closure, and threads are much to compile.
fn in_threads(
    ranks: usize,
    settings: Settings,
    open: &dyn Fn() -> Box<dyn Transport>,
    each: &(dyn Fn(Rank, &mut Engine) + Sync),
) {
    let contacts = Mutex::new(Vec::new());
    let met = Barrier::new(ranks);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks)
            .map(|rank| {
                let transport = open();
                let (contacts, met) = (&contacts, &met);
                scope.spawn(move || {
                    let mut engine = Engine::new(transport, rank, ranks, settings).unwrap();
                    contacts.lock().unwrap().push((rank, engine.contact()));
                    met.wait();
                    let mut all = contacts.lock().unwrap().clone();
                    all.sort_by_key(|(rank, _)| *rank);
                    let all: Vec<_> = all.into_iter().map(|(_, contact)| contact).collect();
                    let give_way = Duration::from_micros(50);
                    let patience = Patience { spin: Duration::ZERO, give_way, alone: give_way };
                    engine.set_contacts(Arc::new(all), settings.chunk_bytes, patience).unwrap();
                    let neighbours: Vec<_> = (0..ranks).filter(|&other| other != rank).collect();
                    engine.begin_handshakes(&neighbours, &[]).unwrap();
                    engine.driven_by(&Nobody).finish_handshakes(Duration::from_secs(60), soon()).unwrap();
                    each(rank, &mut engine);
                    // No rank leaves before all are done: others may still send control messages.
                    met.wait();
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// An operation without its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitingCall {
    job: Job<'static>,
    op: ReduceOp,
    algorithm: &'static str,
}

fn call<T: Scalar>(engine: &mut Engine, call: WaitingCall, borrowed: &Borrowed<'_>) -> Result<(), Stop> {
    call_under::<T>(engine, call, borrowed, &Nobody)
}

fn call_under<T: Scalar>(
    engine: &mut Engine,
    call: WaitingCall,
    borrowed: &Borrowed<'_>,
    supervisor: &dyn Supervisor,
) -> Result<(), Stop> {
    let (task, outcome) = task::<T>(call, borrowed);
    let taken = engine.driven_by(supervisor).take(WORLD, task);
    let driven = taken.and_then(|()| engine.driven_by(supervisor).drive(&|| outcome.ended(), None));
    driven.map_err(|halt| halt.stop)
}

/// The task of a call.
fn task<T: Scalar>(call: WaitingCall, borrowed: &Borrowed<'_>) -> (WorkRequest, Arc<Outcome>) {
    let algorithm = unisono_schedule::algorithm::find(call.algorithm).unwrap();
    let schedule = CallSchedule::Made(algorithm.make(&call.job).unwrap());
    let registry = Registry::default();
    let signature = Signature::new(&call.job, T::DTYPE, call.op, algorithm.code);
    let kernel = Kernel::new(T::DTYPE, call.op).unwrap();
    let plan = Arc::new(CallPlan::new(call.job.collective, signature, kernel, call.job.long));
    let access = OutputAccess::of(&plan, borrowed);
    let operands = [&borrowed.input, &borrowed.output].map(|operand| operand.clone().found_in(&registry));
    let [input, output] = operands;
    let operation =
        Operation { number: 0, ranks: call.job.ranks, plan, schedule, input, output, access, pairs: None };
    let (completion, outcome) = Completion::new(LIMIT, CompletionAction::Return(None));
    (WorkRequest { what: RequestKind::Collective(Box::new(operation)), completion }, outcome)
}

fn value(rank: Rank, index: usize) -> i64 {
    (rank * 1000 + index * 7 % 101) as i64
}

#[test]
fn every_algorithm_gives_what_the_oracle_gives() {
    for ranks in [1, 2, 3, 4, 5, 8] {
        let hub = Hub::new();
        world(ranks, SMALL, || Box::new(hub.open()), |rank, engine| oracle(rank, ranks, engine));
        // This transport keeps no order, reads sources at delivery, and injects nothing. With odd seeds peers cannot write into
        // outputs. With the last two seeds a put takes one source, which need not be registered with the last.
        for seed in 0..4 {
            println!("seed {seed}");
            let config = sim::Config {
                seed,
                max_inject: 0,
                cheap_registration: seed % 2 == 0,
                max_sources: if seed < 2 { 2 } else { 1 },
                local_registration: seed != 3,
                ..sim::Config::default()
            };
            let fabric = Fabric::new(config);
            world(ranks, SMALL, || Box::new(fabric.open()), |rank, engine| oracle(rank, ranks, engine));
        }
    }
}

#[test]
fn what_was_borrowed_to_be_read_is_not_written() {
    for (algorithm, direct) in [("binomial", false), ("direct", true)] {
        let hub = Hub::new();
        let stops = world(
            2,
            SMALL,
            || Box::new(hub.open()),
            |rank, engine| {
                // Rank 1 is to receive into memory that it has borrowed to be read.
                let data = [value(rank, 3); 4];
                let job = Job { direct, ..Job::new(Collective::Broadcast, rank, 2, 4) };
                let stop = call::<i64>(
                    engine,
                    WaitingCall { job, op: ReduceOp::Sum, algorithm },
                    &Borrowed::given(&data),
                );
                assert_eq!(data, [value(rank, 3); 4]);
                stop.err().map(|stop| format!("{stop:?}"))
            },
        );
        assert_eq!(stops[0], None, "{algorithm}");
        assert!(stops[1].as_ref().is_some_and(|stop| stop.contains("only read")), "{algorithm}: {stops:?}");
    }
}

/// The result of a collective of `count` elements on a rank.
fn wanted(collective: Collective, (rank, ranks): (Rank, usize), count: usize, root: Rank) -> Vec<i64> {
    let sum = |i: usize| (0..ranks).map(|rank| value(rank, i)).sum::<i64>();
    let of = |from: Rank, start: usize| (0..count).map(move |i| value(from, start + i));
    match collective {
        Collective::AllReduce => (0..count).map(sum).collect(),
        Collective::ReduceScatter => (0..count).map(|i| sum(rank * count + i)).collect(),
        Collective::AllGather => (0..ranks).flat_map(|from| of(from, 0)).collect(),
        Collective::Broadcast => of(root, 0).collect(),
        Collective::Scatter => of(root, rank * count).collect(),
        Collective::AllToAll => (0..ranks).flat_map(|from| of(from, rank * count)).collect(),
        Collective::Reduce if rank == root => (0..count).map(sum).collect(),
        Collective::Gather if rank == root => (0..ranks).flat_map(|from| of(from, 0)).collect(),
        Collective::Barrier | Collective::Reduce | Collective::Gather => Vec::new(),
    }
}

/// Runs every algorithm, collective and count on one rank.
fn oracle(rank: Rank, ranks: usize, engine: &mut Engine) {
    // With the last counts writes must wait for credit.
    let counts = [0, 1, 2, 7, 16, 61, 200, 900];
    let spread = Spread::Of(&[0, 1, 0, 0, 2, 1, 1, 0]);
    {
        {
            for algorithm in ALGORITHMS {
                for collective in Collective::ALL.into_iter().filter(|&c| algorithm.supports(c)) {
                    for (count, direct) in counts.into_iter().flat_map(|it| [(it, false), (it, true)]) {
                        if count > 61 && (!direct || algorithm.name == "direct") {
                            continue;
                        }
                        let root = if collective.has_root() { count % ranks } else { 0 };
                        let job = Job::new(collective, rank, ranks, count);
                        let job = Job { root, chunk: 16, lanes: 3, direct, spread, ..job };
                        let call_of = WaitingCall { job, op: ReduceOp::Sum, algorithm: algorithm.name };
                        let (inputs, outputs) = job.lengths().unwrap();
                        let input: Vec<i64> = (0..inputs).map(|i| value(rank, i)).collect();
                        let mut output = vec![-1_i64; outputs];
                        if collective == Collective::Broadcast {
                            output.copy_from_slice(&input);
                            let borrowed = Borrowed::within(&mut output, 0..count, 0..count).unwrap();
                            call::<i64>(engine, call_of, &borrowed).unwrap();
                        } else {
                            let borrowed = Borrowed::apart(&input, &mut output);
                            call::<i64>(engine, call_of, &borrowed).unwrap();
                        }
                        assert_eq!(output, wanted(collective, (rank, ranks), count, root), "{call_of:?}");
                    }
                }
            }
        }
    }
}

/// Exchanges blocks in one piece each, on ranks whose bit is set in place.
fn exchange(rank: Rank, ranks: usize, engine: &mut Engine) {
    for (count, in_place) in [(1, 0), (9, !0), (40, 0b101), (40, 0b10), (3, !0)] {
        let job = Job { direct: true, long: true, ..Job::new(Collective::AllToAll, rank, ranks, count) };
        let call_of = WaitingCall { job, op: ReduceOp::Sum, algorithm: "direct" };
        let len = ranks * count;
        let input: Vec<i64> = (0..len).map(|at| value(rank, at)).collect();
        let mut output = input.clone();
        let borrowed = match in_place >> rank & 1 {
            1 => Borrowed::within(&mut output, 0..len, 0..len).unwrap(),
            _ => Borrowed::apart(&input, &mut output),
        };
        call::<i64>(engine, call_of, &borrowed).unwrap();
        let from = |from: Rank| (0..count).map(move |at| value(from, rank * count + at));
        assert_eq!(output, (0..ranks).flat_map(from).collect::<Vec<_>>(), "{call_of:?}, {in_place:b}");
    }
}

#[test]
fn an_input_is_put_aside_before_peers_write_there() {
    for ranks in [1, 2, 3, 5] {
        let hub = Hub::new();
        world(ranks, SMALL, || Box::new(hub.open()), |rank, engine| exchange(rank, ranks, engine));
        for seed in 0..4 {
            println!("seed {seed}");
            let fabric = Fabric::new(sim::Config {
                seed,
                max_inject: 0,
                cheap_registration: true,
                local_registration: false,
                ..sim::Config::default()
            });
            world(ranks, SMALL, || Box::new(fabric.open()), |rank, engine| exchange(rank, ranks, engine));
        }
    }
}

#[test]
fn ranks_that_disagree_find_out_on_the_first_message() {
    let hub = Hub::new();
    let stopper = Somebody::default();
    let stops = world(
        3,
        SMALL,
        || Box::new(hub.open()),
        |rank, engine| {
            let count = if rank == 2 { 40 } else { 41 };
            let job =
                Job { chunk: 16, lanes: 3, direct: true, ..Job::new(Collective::AllReduce, rank, 3, count) };
            let mut data = vec![1.0_f32; count];
            let before = data.clone();
            let borrowed = Borrowed::within(&mut data, 0..count, 0..count).unwrap();
            let call = WaitingCall { job, op: ReduceOp::Sum, algorithm: "ring" };
            let stop = call_under::<f32>(engine, call, &borrowed, &stopper);
            // A rank that gets messages only of ranks that agree with it waits until it is stopped.
            stopper.0.store(true, Ordering::Relaxed);
            let found =
                matches!(&stop, Err(Stop::Failure(failure)) if matches!(**failure, Failure::Mismatch { .. }));
            if found {
                drop(borrowed);
                assert_eq!(data, before, "not a byte was touched");
            }
            stop.err()
        },
    );
    let words: Vec<_> = stops
        .into_iter()
        .flatten()
        .filter_map(|stop| match stop {
            Stop::Failure(failure) if matches!(*failure, Failure::Mismatch { .. }) => {
                Some(failure.to_string())
            }
            _ => None,
        })
        .collect();
    assert!(
        words.contains(&"op 0 all_reduce(f32, sum): rank 1 has 41 elements, rank 2 has 40 elements".into())
            || words.contains(
                &"op 0 all_reduce(f32, sum): rank 0 has 41 elements, rank 2 has 40 elements".into()
            ),
        "{words:?}"
    );
}

#[test]
fn chunk_k_is_reduced_while_chunk_k_plus_1_is_in_flight() {
    const CHUNKS: usize = 64;
    let fabric = Fabric::new(sim::Config {
        max_inject: 0,
        local_registration: false,
        cheap_registration: true,
        ..sim::Config::default()
    });
    let settings = Settings { chunk_bytes: 4096, lanes: 4, ..SMALL };
    let traces = world(
        2,
        settings,
        || Box::new(fabric.open()),
        |rank, engine| {
            let count = CHUNKS * 2 * 1024;
            let job = Job {
                chunk: 1024,
                lanes: 4,
                direct: true,
                ..Job::new(Collective::AllReduce, rank, 2, count)
            };
            engine.keep_trace();
            let mut data = vec![1.0_f32; count];
            let borrowed = Borrowed::within(&mut data, 0..count, 0..count).unwrap();
            call::<f32>(engine, WaitingCall { job, op: ReduceOp::Sum, algorithm: "ring" }, &borrowed)
                .unwrap();
            drop(borrowed);
            assert!(data.iter().all(|&x| x == 2.0));
            engine.keep_trace()
        },
    );
    for trace in traces {
        let reduces: Vec<_> =
            trace.iter().filter(|traced| matches!(traced.step, Step::Reduce { .. })).collect();
        let overlapped = reduces.iter().filter(|traced| traced.in_flight > 0).count();
        assert_eq!(reduces.len(), CHUNKS);
        assert!(
            overlapped * 4 >= CHUNKS * 3,
            "{overlapped} of {CHUNKS} chunks were reduced with others in flight"
        );
        // And reductions run while other lanes wait for their messages: how many, depends on when the other rank's thread runs.
        let mut waiting = [false; 4];
        let mut beside = 0;
        for Traced { lane, step, .. } in &trace {
            match step {
                Step::Put { .. } | Step::Write { .. } => waiting[*lane] = true,
                Step::Take { .. } | Step::Await { .. } => waiting[*lane] = false,
                Step::Reduce { .. } => {
                    beside += usize::from((0..4).any(|other| other != *lane && waiting[other]))
                }
                _ => {}
            }
        }
        assert!(beside * 2 >= CHUNKS, "{beside} of {CHUNKS} chunks were reduced while others were awaited");
    }
}

#[test]
fn sources_that_are_not_registered_are_staged() {
    let fabric =
        Fabric::new(sim::Config { max_inject: 0, local_registration: true, ..sim::Config::default() });
    let settings = Settings { chunk_bytes: 256, lanes: 2, ..SMALL };
    let memory = world(
        3,
        settings,
        || Box::new(fabric.open()),
        |rank, engine| {
            let count = 5000;
            let before = engine.memory();
            let job =
                Job { chunk: 32, lanes: 2, direct: true, ..Job::new(Collective::AllReduce, rank, 3, count) };
            let mut data: Vec<i64> = (0..count).map(|i| value(rank, i)).collect();
            let borrowed = Borrowed::within(&mut data, 0..count, 0..count).unwrap();
            call::<i64>(engine, WaitingCall { job, op: ReduceOp::Sum, algorithm: "ring" }, &borrowed)
                .unwrap();
            drop(borrowed);
            let wanted: Vec<i64> = (0..count).map(|i| (0..3).map(|rank| value(rank, i)).sum()).collect();
            assert_eq!(data, wanted);
            engine.memory() - before
        },
    );
    // The staging, one bulk window, and nothing more.
    let window = settings.window(wire::WindowClass::Bulk);
    let staging = settings.staging() * stride(window.slot_bytes.max(64));
    assert_eq!(memory, [staging + window.lanes * window.lane_bytes; 3]);
}

#[test]
fn a_message_ends_when_it_has_left() {
    for local_registration in [false, true] {
        let config = sim::Config { max_inject: 0, max_copied: 0, local_registration, ..Default::default() };
        let fabric = Fabric::new(config);
        let ends = |rank: Rank, engine: &mut Engine| {
            for len in [0, 1, 64] {
                let mut data = vec![3_u8; len];
                let borrowed = Borrowed::within(&mut data, 0..len, 0..len).unwrap();
                let kind = MessageKind::new(Form::Plain, Dtype::U8, len);
                let what = if rank == 0 {
                    let source = borrowed.input.memory.clone();
                    RequestKind::Send(Outbound { to: 1, tag: 0, kind, source })
                } else {
                    let place = Place::There(borrowed.output.memory.clone());
                    RequestKind::Receive(Inbound { from: Some(0), tag: 0, kind, place })
                };
                let (completion, outcome) = Completion::new(LIMIT, CompletionAction::Return(None));
                engine
                    .driven_by(&Nobody)
                    .take(WORLD, WorkRequest { what, completion })
                    .map_err(|halt| halt.stop)
                    .unwrap();
                engine.driven_by(&Nobody).drive(&|| outcome.ended(), None).map_err(|halt| halt.stop).unwrap();
                assert_eq!(
                    engine.net.core(WORLD).unwrap().comm.messages.under_way,
                    0,
                    "{len} bytes of {rank}"
                );
            }
        };
        world(2, SMALL, || Box::new(fabric.open()), ends);
    }
}

/// Otherwise the rank might be judged to wait for a sender that has left.
#[test]
fn a_receive_whose_message_was_not_looked_at_waits_for_nobody() {
    let (hub, came) = (Hub::new(), AtomicBool::new(false));
    let each = |rank: Rank, engine: &mut Engine| {
        let mut data = [3_u8; 8];
        let borrowed = Borrowed::within(&mut data, 0..8, 0..8).unwrap();
        let kind = MessageKind::new(Form::Plain, Dtype::U8, 8);
        let what = if rank == 0 {
            let source = borrowed.input.memory.clone();
            RequestKind::Send(Outbound { to: 1, tag: 0, kind, source })
        } else {
            let place = Place::There(borrowed.output.memory.clone());
            RequestKind::Receive(Inbound { from: Some(0), tag: 0, kind, place })
        };
        let (completion, outcome) = Completion::new(LIMIT, CompletionAction::Return(None));
        engine
            .driven_by(&Nobody)
            .take(WORLD, WorkRequest { what, completion })
            .map_err(|halt| halt.stop)
            .unwrap();
        let waits = |engine: &Engine| engine.position().groups[0].messages[0].waits.clone();
        if rank == 1 {
            assert_eq!(waits(engine), [0]);
            while engine.net.core(WORLD).unwrap().comm.messages.arrived.is_empty() {
                engine.net.poll().unwrap();
                engine.net.send_control().unwrap();
            }
            assert_eq!(waits(engine), [0; 0]);
            came.store(true, Ordering::Release);
        }
        let over = || outcome.ended() && came.load(Ordering::Acquire);
        let until = soon();
        while !over() {
            assert!(Instant::now() < until, "rank {rank} waits for the other");
            engine.driven_by(&Nobody).drive(&over, None).map_err(|halt| halt.stop).unwrap();
        }
    };
    world(2, SMALL, || Box::new(hub.open()), each);
}

#[test]
fn a_broken_connection_names_rank_and_host() {
    let hub = Hub::new();
    let mut engines: Vec<_> =
        (0..3).map(|rank| Engine::new(Box::new(hub.open()), rank, 3, SMALL).unwrap()).collect();
    let hosts = ["alpha", "beta", "gamma"];
    let contacts: Vec<_> = engines
        .iter()
        .zip(hosts)
        .map(|(engine, host)| Contact { host: host.into(), ..engine.contact() })
        .collect();
    drop(engines.pop());
    let (mut first, none) = (engines.swap_remove(0), Duration::ZERO);
    let patience = Patience { spin: none, give_way: none, alone: none };
    first.set_contacts(Arc::new(contacts), SMALL.chunk_bytes, patience).unwrap();
    // To the transport rank 2 is peer 0, because it is connected first.
    let greeted = first
        .begin_handshakes(&[2], &[])
        .and_then(|()| first.driven_by(&Nobody).finish_handshakes(Duration::from_secs(60), soon()));
    match greeted {
        Err(Stop::Transport(broken)) => {
            assert_eq!(broken.error.peer(), Some(unisono_transport::Peer(0)));
            let message = broken.to_string();
            assert!(
                message.starts_with("the connection to rank 2 on gamma: ") && !message.contains("peer 0"),
                "{message}"
            );
        }
        other => panic!("{other:?}"),
    }
}
