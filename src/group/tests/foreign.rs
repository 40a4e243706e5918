//! Erased calls on memory from outside: which are refused, how ranks disagree, messages, timeouts, and when the owners are dropped.

use std::time::Duration;

use super::{erased::encode, hear, small, world};
use crate::{
    Direction, Error, Failure, Foreign, MessageRequest, ProcessGroup, ReduceOp, Request, Result, Source,
    buffer::tests::{TestMemory, nowhere},
    dtype::Dtype,
    schedule::{Collective, Uneven},
};

fn memory(dtype: Dtype, numbers: &[i64]) -> TestMemory {
    TestMemory::new(&encode(dtype, numbers), [])
}

#[test]
fn registered_memory_is_recognized() {
    world(
        2,
        |_| {},
        |group| {
            let mut buffer = group.buffer::<u8>(1 << 20).unwrap();
            assert_eq!(buffer.base(), buffer.as_mut_ptr());
            let registry = &group.handle.shared.runtime.registry;
            let inside = nowhere(buffer.base().addr() + 4096, 8192);
            let found = inside.operand().clone().found_in(registry).memory;
            assert!(found.registered);
            assert_eq!((found.region.base(), found.offset), (buffer.base(), 4096));
            let beyond = nowhere(buffer.base().addr() + 4096, 1 << 20);
            assert!(!beyond.operand().clone().found_in(registry).memory.registered);
            drop(buffer);
            assert!(!inside.operand().clone().found_in(registry).memory.registered);
        },
    );
}

#[test]
fn wrong_arguments_are_the_callers_error() {
    world(2, small, |group| {
        let error = |result: Result<()>| match result.unwrap_err() {
            Error::Argument { call, problem } => format!("{call}: {problem}"),
            other => panic!("{other}"),
        };
        let all_reduce = Request::new(Collective::AllReduce, Dtype::F32);
        let good = memory(Dtype::F32, &[1, 2, 3]);
        let call = |request: &Request<'_>, input: &Foreign, output: &Foreign| {
            error(group.erased().collective(request, input, output))
        };
        let report = call(&all_reduce, &nowhere(0x1001, 12), &good.all());
        assert_eq!(
            report,
            "all_reduce: the input has memory at 0x1001; elements of f32 lie at multiples of 4"
        );
        let report = call(&all_reduce, &good.all(), &nowhere(0, 12));
        assert_eq!(report, "all_reduce: the output has 12 bytes at a null address");
        let report = call(&all_reduce, &good.all(), &nowhere(0x1000, 10));
        assert_eq!(report, "all_reduce: the output has a piece of 10 bytes; elements of f32 have 4 each");
        let report = call(&all_reduce, &good.all(), &nowhere(usize::MAX - 3, 8));
        assert!(report.contains("more than can be addressed"), "{report}");
        let pieces = TestMemory::new(&[0; 12], [4]);
        let report = call(&all_reduce, &pieces.all(), &good.all());
        assert!(report.contains("a block of the input lies in several pieces"), "{report}");
        let gather = Request::new(Collective::AllGather, Dtype::U8);
        let report = call(&gather, &memory(Dtype::U8, &[1, 2]).all(), &TestMemory::new(&[0; 4], [1]).all());
        assert!(report.contains("a block of the output lies in several pieces"), "{report}");
        let uneven = |input, output| Some(Uneven { input, output });
        let with = |lengths| Request { lengths, ..gather };
        let report = call(&with(uneven(&[], &[1])), &memory(Dtype::U8, &[1]).all(), &good.all());
        assert_eq!(report, "all_gather: 1 lengths of the output's blocks were given; there are 2 ranks");
        let report = call(&with(uneven(&[], &[usize::MAX, 2])), &memory(Dtype::U8, &[1]).all(), &good.all());
        assert!(report.contains("more than can be addressed"), "{report}");
        let report = call(&with(uneven(&[], &[6, 6])), &memory(Dtype::U8, &[1]).all(), &good.all());
        assert_eq!(report, "all_gather: the input has 1 elements; this rank's block has 6");
        let report = call(&Request { lengths: uneven(&[], &[]), ..all_reduce }, &good.all(), &good.all());
        assert_eq!(report, "all_reduce: it has no blocks whose lengths could differ");
        let report = call(&Request { timeout: Some(Duration::ZERO), ..all_reduce }, &good.all(), &good.all());
        assert!(report.contains("the timeout is 0ns"), "{report}");
        assert!(group.with_timeout(Duration::from_secs(1 << 30)).is_err());
        let report =
            error(group.erased().message(&MessageRequest::send(Dtype::U8, 7, 0), &good.all()).map(drop));
        assert_eq!(report, "send: there is no rank 7; there are ranks 0 to 1");
        let report =
            error(group.erased().message(&MessageRequest::send(Dtype::F32, 1, 0), &pieces.all()).map(drop));
        assert!(report.contains("one piece"), "{report}");
        let both = [pieces.part(0..4), pieces.part(0..4)];
        assert_eq!(good.owners().0, 0, "what was refused is dropped");
        drop(both);
        // The group still works.
        group.erased().collective(&all_reduce, &good.all(), &good.all()).unwrap();
        assert_eq!(good.bytes(), encode(Dtype::F32, &[2, 4, 6]));
    });
}

/// The failure of all ranks if they disagree on a call.
fn failure_of(ranks: usize, call: impl Fn(&ProcessGroup) -> Result<()> + Sync) -> String {
    let all = world(ranks, small, |group| {
        // A rank that has not joined yet would get the failure from joining.
        let failed = group.barrier().and_then(|()| call(&group)).and_then(|()| group.barrier());
        let failed = failed.unwrap_err();
        match failed {
            Error::Failed(failure @ Failure::Mismatch { .. }) => failure.to_string(),
            other => panic!("{other}"),
        }
    });
    assert!(all.iter().all(|message| *message == all[0]), "{all:?}");
    all[0].clone()
}

#[test]
fn lengths_that_differ_are_a_mismatch_for_all() {
    let run = |group: &ProcessGroup, collective, lengths: Uneven<'_>, root, op| {
        let count = |own: bool, whole: &[usize]| if own { whole[group.rank()] } else { whole.iter().sum() };
        let at_root = group.rank() == root;
        let (gives, gets) = match collective {
            Collective::AllGather => (count(true, lengths.output), count(false, lengths.output)),
            Collective::ReduceScatter => (count(false, lengths.input), count(true, lengths.input)),
            Collective::AllToAll => (count(false, lengths.input), count(false, lengths.output)),
            Collective::Gather => {
                (lengths.output[group.rank()], if at_root { count(false, lengths.output) } else { 0 })
            }
            _ => (if at_root { count(false, lengths.input) } else { 0 }, lengths.input[group.rank()]),
        };
        let (input, output) = (TestMemory::new(&vec![0; gives], []), TestMemory::new(&vec![0; gets], []));
        let request = Request { lengths: Some(lengths), root, op, ..Request::new(collective, Dtype::U8) };
        group.erased().collective(&request, &input.all(), &output.all())
    };
    let sum = ReduceOp::Sum;
    for collective in [Collective::AllGather, Collective::ReduceScatter] {
        for last in [[3, 5], [2, 1]] {
            let message = failure_of(3, |group| {
                let own = if group.rank() == 0 { last[0] } else { last[1] };
                let all = [2, own, 4];
                run(group, collective, Uneven { input: &all, output: &all }, 0, sum)
            });
            assert!(
                message.contains(collective.name()) && message.contains("lengths of blocks that hash to"),
                "{message}"
            );
        }
    }
    let all_to_all = failure_of(3, |group| {
        let mut gets = [2; 3];
        if group.rank() == 2 {
            gets[0] = 3;
        }
        run(group, Collective::AllToAll, Uneven { input: &[2; 3], output: &gets }, 0, sum)
    });
    let wanted =
        "op 1 all_to_all_v(u8): rank 0 has 2 elements for rank 2, rank 2 expects 3 elements of rank 0";
    assert_eq!(all_to_all, wanted);
    let gather = failure_of(3, |group| {
        let lengths = if group.rank() == 0 { [1, 2, 3] } else { [1, 2, 4] };
        run(group, Collective::Gather, Uneven { input: &[], output: &lengths }, 0, sum)
    });
    let wanted =
        "op 1 gather_v(u8, root 0): rank 0 expects 3 elements of rank 2, rank 2 has 4 elements for rank 0";
    assert_eq!(gather, wanted);
    let scatter = failure_of(2, |group| {
        let lengths = if group.rank() == 1 { [1000, 2] } else { [1, 2] };
        run(group, Collective::Scatter, Uneven { input: &lengths, output: &[] }, 1, sum)
    });
    let wanted = "op 1 scatter_v(u8, root 1): rank 0 expects 1 elements of rank 1, rank 1 has 1000 elements for rank 0";
    assert_eq!(scatter, wanted);
    // One rank asks for the lengths, and the other gives them.
    for collective in [Collective::AllGather, Collective::AllToAll] {
        let message = failure_of(2, |group| match (group.rank(), collective) {
            (0, _) => run(group, collective, Uneven { input: &[2, 2], output: &[2, 2] }, 0, sum),
            (_, Collective::AllGather) => group.all_gather_v(&[1_u8, 2]).map(drop),
            _ => group.all_to_all_v(&[1_u8, 2, 3, 4], &[2, 2]).map(drop),
        });
        assert!(message.contains("rank 1 asks for the lengths of the other ranks' blocks"), "{message}");
    }
}

#[test]
fn pieces_that_differ_are_a_mismatch_of_coalesced_calls() {
    let coalesced = Request { coalesced: true, ..Request::new(Collective::Broadcast, Dtype::U8) };
    let call = |group: &ProcessGroup, cut, coalesced: &Request<'_>| {
        let data = TestMemory::new(&[group.rank() as u8; 8], [cut]);
        let result = group.erased().collective(coalesced, &Foreign::none(), &data.all());
        result.map(|()| assert_eq!(data.bytes(), [0; 8]))
    };
    world(3, small, |group| call(&group, 3, &coalesced).unwrap());
    let message = failure_of(2, |group| call(group, 3 + group.rank(), &coalesced));
    assert!(message.contains("broadcast_coalesced(u8, root 0)") && message.contains("hash to"), "{message}");
}

#[test]
fn messages_from_foreign_memory() {
    world(3, small, |group| {
        let (rank, ranks) = (group.rank(), group.size());
        let (right, left) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
        for (len, dtype) in [(0, Dtype::F16), (5, Dtype::I64), (3000, Dtype::U8)] {
            let numbers =
                |rank: usize| (0..len).map(|at| ((rank * 31 + at) % 100) as i64).collect::<Vec<_>>();
            let (sent, got) = (memory(dtype, &numbers(rank)), memory(dtype, &vec![0; len]));
            let batch = [
                (MessageRequest::recv(dtype, if len == 5 { Source::Any } else { left.into() }, 3), got.all()),
                (MessageRequest::send(dtype, right, 3), sent.all()),
            ];
            let peers =
                group.erased().begin_messages(batch).unwrap().into_iter().map(|work| work.wait().unwrap().1);
            assert_eq!(peers.collect::<Vec<_>>(), [left, right]);
            assert_eq!(got.bytes(), encode(dtype, &numbers(left)));
            group.barrier().unwrap();
            // This is blocking, with a typed call on the other rank.
            let got = memory(Dtype::I64, &[0; 2]);
            let from = MessageRequest {
                direction: Direction::Recv(Source::Any),
                ..MessageRequest::recv(Dtype::I64, Source::Any, 4)
            };
            let work = group
                .erased()
                .begin_message(&MessageRequest::send(Dtype::I64, right, 4), memory(Dtype::I64, &[7, 8]).all())
                .unwrap();
            assert_eq!(group.erased().message(&from, &got.all()).unwrap(), left);
            assert_eq!((got.bytes(), work.wait().unwrap().1), (encode(Dtype::I64, &[7, 8]), right));
            assert_eq!(got.owners(), (0, 1));
            group.barrier().unwrap();
        }
    });
}

#[test]
fn messages_in_overlapping_memory_arrive_as_if_apart() {
    const ROOM: usize = 40_000;
    world(3, small, |group| {
        let (rank, ranks) = (group.rank(), group.size());
        let (right, left) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
        let contents = |rank: usize| (0..ROOM).map(move |at| (at % 251) as u8 ^ (rank as u8 * 85));
        for (len, from, into) in
            [(1, 0, 0), (9, 0, 8), (3000, 2999, 0), (30_000, 0, 0), (30_000, 7, 3), (10, 0, 50)]
        {
            let data = TestMemory::new(&contents(rank).collect::<Vec<_>>(), []);
            let batch = [
                (MessageRequest::recv(Dtype::U8, left.into(), 3), data.part(into..into + len)),
                (MessageRequest::send(Dtype::U8, right, 3), data.part(from..from + len)),
            ];
            for work in group.erased().begin_messages(batch).unwrap() {
                assert_eq!(work.wait().unwrap().0.bytes(), len);
            }
            let sent: Vec<_> = contents(left).skip(from).take(len).collect();
            let mut wanted: Vec<_> = contents(rank).collect();
            wanted[into..into + len].copy_from_slice(&sent);
            assert_eq!(data.bytes(), wanted, "{len} bytes from {from} on into {into} on");
            assert_eq!(data.owners(), (0, 2));
        }
        // Calls that are refused have begun nothing.
        let data = TestMemory::new(&[7; 8], []);
        let recv = || MessageRequest::recv(Dtype::U8, left.into(), 4);
        let twice = [(recv(), data.part(0..5)), (recv(), data.part(4..8))];
        let nobody = MessageRequest::send(Dtype::U8, 9, 4);
        let beyond = [(recv(), data.part(0..4)), (nobody, data.part(0..4))];
        for batch in [twice, beyond] {
            assert!(matches!(group.erased().begin_messages(batch), Err(Error::Argument { .. })));
        }
        group.send(&[rank as u8; 4], (right, 4)).unwrap();
        let mut got = [0; 4];
        group.recv(&mut got, (left, 4)).unwrap();
        assert_eq!((got, data.bytes()), ([left as u8; 4], vec![7; 8]));
    });
}

#[test]
fn the_shortest_timeout_counts() {
    let short = Duration::from_millis(80);
    // The world has a timeout of five minutes; a handle and a call have shorter ones.
    let ways: [fn(&ProcessGroup, Duration) -> Result<()>; 5] = [
        |group, short| group.with_timeout(short)?.barrier(),
        |group, short| group.with_timeout(short)?.begin().barrier()?.wait(),
        |group, short| {
            let request = Request { timeout: Some(short), ..Request::new(Collective::Barrier, Dtype::U8) };
            group.with_timeout(short * 1000)?.erased().collective(
                &request,
                &Foreign::none(),
                &Foreign::none(),
            )
        },
        |group, short| group.with_timeout(short)?.recv(&mut [0_u8], 1).map(drop),
        |group, short| {
            let data = memory(Dtype::U8, &[1]);
            let request =
                MessageRequest { timeout: Some(short), ..MessageRequest::recv(Dtype::U8, Source::Any, 0) };
            group.erased().begin_message(&request, data.all())?.wait().map(drop)
        },
    ];
    for way in ways {
        world(
            2,
            |_| {},
            |group| {
                if group.rank() == 1 {
                    let failed = hear(&group).unwrap_err();
                    assert!(matches!(
                        failed,
                        Error::Failed(Failure::Deadline { .. } | Failure::Undelivered { .. })
                    ));
                    return;
                }
                let started = std::time::Instant::now();
                let waited = match way(&group, short).unwrap_err() {
                    Error::Failed(
                        Failure::Deadline { waited, rank: 0, .. }
                        | Failure::Undelivered { waited, rank: 0, .. },
                    ) => waited,
                    other => panic!("{other}"),
                };
                assert!(waited >= short && waited <= started.elapsed(), "{waited:?}");
            },
        );
    }
}

/// Waits until the owners of all operands are dropped.
fn until_dropped(memory: &TestMemory, owners: usize) {
    for _ in 0..20_000 {
        if memory.owners() == (0, owners) {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("the owners: {:?}", memory.owners());
}

#[test]
fn owners_are_dropped_once_and_not_before_the_end() {
    let request = Request::new(Collective::AllReduce, Dtype::I32);
    world(2, small, |group| {
        // The work is dropped before the operation has ended, because it waits for rank 1.
        let data = memory(Dtype::I32, &[1; 500]);
        if group.rank() == 0 {
            drop(group.erased().begin_collective(&request, data.all(), data.all()).unwrap());
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(data.owners(), (2, 0));
            group.send(&[1_u8], 1).unwrap();
        } else {
            group.recv(&mut [0_u8], 0).unwrap();
            group.erased().collective(&request, &data.all(), &data.all()).unwrap();
        }
        until_dropped(&data, 2);
        assert_eq!(data.bytes(), encode(Dtype::I32, &[2; 500]));
        // The caller that takes a result gets the owners.
        let work = group.erased().begin_collective(&request, data.all(), data.all()).unwrap();
        work.wait_done().unwrap();
        assert_eq!(data.owners(), (2, 2));
        let kept = work.wait().unwrap();
        assert_eq!(data.owners(), (2, 2));
        drop(kept);
        assert_eq!(data.owners(), (0, 4));
    });
    // The group fails while operations wait.
    world(2, small, |group| {
        if group.rank() == 1 {
            group.recv(&mut [0_u8], 0).unwrap();
            group.abort("enough");
            return;
        }
        let [data, other] = [memory(Dtype::I32, &[1; 500]), memory(Dtype::I32, &[1; 500])];
        let work = group.erased().begin_collective(&request, data.all(), data.all()).unwrap();
        drop(group.erased().begin_collective(&request, other.all(), other.all()).unwrap());
        let late = memory(Dtype::I32, &[1; 500]);
        drop(
            group.erased().begin_message(&MessageRequest::recv(Dtype::I32, 1.into(), 0), late.all()).unwrap(),
        );
        assert_eq!((data.owners(), other.owners(), late.owners()), ((2, 0), (2, 0), (1, 0)));
        group.send(&[1_u8], 1).unwrap();
        assert!(matches!(work.wait(), Err(Error::Failed(Failure::Aborted { rank: 1, .. }))));
        until_dropped(&data, 2);
        until_dropped(&other, 2);
        until_dropped(&late, 1);
        // A call that cannot begin drops its operands too.
        assert!(group.erased().begin_collective(&request, data.all(), data.all()).is_err());
        assert_eq!(data.owners(), (0, 4));
    });
}

#[test]
fn work_is_awaited_by_reference() {
    world(2, small, |group| {
        if group.rank() == 1 {
            group.recv(&mut [0_u8], 0).unwrap();
            return group.barrier().unwrap();
        }
        let work = group.begin().barrier().unwrap();
        let short = Duration::from_millis(5);
        assert!(!work.wait_done_timeout(short).unwrap() && !work.is_done());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(work.poll_done(&mut context).is_pending());
        std::thread::scope(|scope| {
            let waits: Vec<_> = (0..3).map(|_| scope.spawn(|| work.wait_done().unwrap())).collect();
            let polls = scope
                .spawn(|| super::work::block_on(std::future::poll_fn(|context| work.poll_done(context))));
            group.send(&[1_u8], 1).unwrap();
            waits.into_iter().for_each(|wait| wait.join().unwrap());
            polls.join().unwrap();
        });
        assert!(work.is_done() && work.wait_done_timeout(short).unwrap());
        assert!(work.poll_done(&mut context).is_ready());
        let mut work = work;
        super::work::block_on(&mut work).unwrap();
        assert!(matches!(work.wait(), Err(Error::Argument { call: "Work", .. })), "the result was taken");
    });
}

#[test]
fn a_call_that_is_given_up_goes_on_as_a_work() {
    world(2, small, |group| {
        let request = Request::new(Collective::AllReduce, Dtype::F32);
        let every = Duration::from_millis(1);
        let (one, two) = (memory(Dtype::F32, &[1, 2]), encode(Dtype::F32, &[2, 4]));
        let call = |go_on: fn() -> bool| {
            group.erased().collective_while(&request, one.all(), one.all(), every, go_on)
        };
        if group.rank() == 0 {
            // Rank 1 waits for a message before it calls, so the call of rank 0 asks whether to wait longer.
            let work = call(|| false).unwrap().unwrap_err();
            assert_eq!(one.owners(), (2, 0), "the operation goes on");
            group.send(&[0_u8], (1, 7)).unwrap();
            drop(work.wait().unwrap());
        } else {
            group.recv(&mut [0_u8], (0, 7)).unwrap();
            drop(call(|| true).unwrap().unwrap());
        }
        assert_eq!(one.bytes(), two);
        // A call that ends returns the operands.
        let both = call(|| true).unwrap().unwrap();
        assert_eq!(one.owners(), (2, 2));
        drop(both);
        // A call waits as long as `go_on` says; its failure is that of the blocking call, and drops the memory.
        let mut asked = 0;
        let late = Request { timeout: Some(Duration::from_millis(200)), ..request };
        if group.rank() == 0 {
            let failed = group.erased().collective_while(&late, one.all(), one.all(), every, || {
                asked += 1;
                true
            });
            assert!(matches!(failed, Err(Error::Failed(Failure::Deadline { .. }))), "{failed:?}");
            assert!(asked > 1);
        } else {
            hear(&group).unwrap_err();
        }
        until_dropped(&one, if group.rank() == 0 { 6 } else { 4 });
    });
}
