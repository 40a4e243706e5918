//! Point-to-point messages: they arrive, in order, whatever the order of the calls; and ranks find mismatches.

use std::sync::{
    atomic::{AtomicU32, Ordering},
    mpsc,
};

use proptest::{
    prelude::*,
    test_runner::{Config as Cases, TestRunner},
};

use super::{work::block_on, *};
use crate::{Message, Source, Work, sim};

/// Eager messages have at most 128 bytes with `small`.
const SIZES: [usize; 7] = [0, 1, 15, 16, 17, 100, 5000];

/// The contents of a message of rank `from`, different for each number.
fn message(from: Rank, number: usize, len: usize) -> Vec<u64> {
    (0..len).map(|i| (from as u64) << 48 | (number as u64) << 32 | i as u64).collect()
}

/// Runs over three transports. On the first one large messages are written into place. The second must register the memory that it reads,
/// so large messages arrive in parts unless they are in registered buffers. The third is like it, and its puts have one source.
pub(super) fn worlds(ranks: usize, each: impl Fn(ProcessGroup) + Sync) {
    let tweak = |config: &mut Config| {
        small(config);
        config.timeout = Duration::from_secs(20);
    };
    world(ranks, tweak, &each);
    for max_sources in [2, 1] {
        let fabric = sim::Fabric::new(sim::Config { max_sources, ..sim::Config::default() });
        world_over(ranks, || Box::new(fabric.open()), tweak, &each);
    }
}

#[test]
fn what_is_sent_is_received() {
    for ranks in [1, 2, 3] {
        worlds(ranks, |group| {
            let (rank, next, before) =
                (group.rank(), (group.rank() + 1) % ranks, (group.rank() + ranks - 1) % ranks);
            for (number, len) in SIZES.into_iter().enumerate() {
                let mine = message(rank, number, len);
                let theirs = message(before, number, len);
                // All ranks send first.
                group.send(&mine, (next, 3)).unwrap();
                let mut got = vec![7; len];
                assert_eq!(group.recv(&mut got, (before, 3)).unwrap(), before);
                assert_eq!(got, theirs);
                got.fill(7);
                assert_eq!(group.send_recv((&mine, &mut got), (next, 4), (before, 4)).unwrap(), before);
                assert_eq!(got, theirs);
                // The receiver need not know the length or the sender.
                group.send(&mine, (next, u32::MAX)).unwrap();
                assert_eq!(group.recv_vec::<u64>((Source::Any, u32::MAX)).unwrap(), (theirs.clone(), before));
                // A rank need not wait before all have begun.
                let come = group.begin().recv_vec::<u64>((before, 5)).unwrap();
                let turned = group
                    .begin()
                    .send_recv((mine.clone(), vec![7; len]), (next, 6), (Source::Any, 6))
                    .unwrap();
                drop(group.begin().send_recv((mine.clone(), vec![7; len]), (next, 7), (before, 7)).unwrap());
                std::mem::forget(
                    group.begin().send_recv((mine.clone(), vec![7; len]), (next, 8), (before, 8)).unwrap(),
                );
                let sent = group.begin().send(mine.clone(), (next, 5)).unwrap();
                assert_eq!(block_on(turned).unwrap(), ((mine.clone(), theirs.clone()), before));
                assert_eq!(come.wait().unwrap(), (theirs.clone(), before));
                assert_eq!(sent.wait().unwrap(), mine);
                // Buffers are registered on both sides, or on one.
                let mut buffer = group.buffer::<u64>(len + 3).unwrap();
                buffer[3..].copy_from_slice(&mine);
                let mut other = group.buffer::<u64>(len).unwrap();
                group.send_recv((&buffer[3..], &mut other), (next, 4), (before, 4)).unwrap();
                assert_eq!(&*other, theirs);
                other.fill(7);
                group.send_recv((&mine, &mut other), (next, 4), (before, 4)).unwrap();
                assert_eq!(&*other, theirs);
                other.fill(7);
                let work = group.begin().send_recv((mine.clone(), other), (next, 4), (before, 4)).unwrap();
                assert_eq!(&*work.wait().unwrap().0.1, theirs);
                got.fill(7);
                group.send_recv((&buffer[3..], &mut got), (next, 4), (before, 4)).unwrap();
                assert_eq!(got, theirs);
            }
        });
    }
}

/// One message of a random program.
#[derive(Clone, Copy, Debug)]
struct Step {
    from: Rank,
    to: Rank,
    tag: u32,
    len: usize,
    /// The call that sends it, and the place of its receive among those of the receiver.
    blocking: bool,
    place: u64,
    any: bool,
}

fn steps(ranks: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = (0..ranks, 0..ranks, 0_u32..3, prop::sample::select(&SIZES[..]), any::<bool>(), any::<u64>())
        .prop_map(|(from, to, tag, len, blocking, place)| Step {
            // These messages have separate tags, so a receive from any rank gets the right one.
            any: tag == 2,
            tag: if tag == 2 { 2 + u32::try_from(from).unwrap() } else { tag },
            ..Step { from, to, tag, len, blocking, place, any: false }
        });
    prop::collection::vec(step, 1..60)
}

/// The messages of one sender and tag arrive in the order in which they were sent, however sends and receives are mixed.
#[test]
fn messages_keep_their_order_whatever_the_program() {
    let mut runner = TestRunner::new(Cases {
        cases: 16,
        max_shrink_iters: 0,
        failure_persistence: None,
        ..Cases::default()
    });
    runner
        .run(&(2_usize..5).prop_flat_map(|ranks| (Just(ranks), steps(ranks))), |(ranks, steps)| {
            worlds(ranks, |group| program(&group, &steps));
            Ok(())
        })
        .unwrap();
}

fn program(group: &ProcessGroup, steps: &[Step]) {
    let rank = group.rank();
    // Receives of one sender and tag must stay in order, because that decides which message each gets.
    let mut receives: Vec<(usize, &Step)> =
        steps.iter().enumerate().filter(|(_, it)| it.to == rank).collect();
    receives.sort_by_key(|(_, it)| it.place);
    let mut queues: Vec<((Rank, u32), Vec<usize>)> = Vec::new();
    for (number, step) in steps.iter().enumerate().filter(|(_, it)| it.to == rank) {
        match queues.iter_mut().find(|(key, _)| *key == (step.from, step.tag)) {
            Some((_, queue)) => queue.push(number),
            None => queues.push(((step.from, step.tag), vec![number])),
        }
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut works: Vec<Work<_>> = Vec::new();
            for (number, step) in steps.iter().enumerate().filter(|(_, it)| it.from == rank) {
                let data = message(rank, number, step.len);
                match step.blocking {
                    true => group.send(&data, (step.to, step.tag)).unwrap(),
                    false => works.push(group.begin().send(data, (step.to, step.tag)).unwrap()),
                }
            }
            works.into_iter().for_each(|work| drop(work.wait().unwrap()));
        });
        let works = receives.into_iter().map(|(_, step)| {
            let (_, queue) = queues.iter_mut().find(|(key, _)| *key == (step.from, step.tag)).unwrap();
            let number = queue.remove(0);
            let step = steps[number];
            let source = if step.any { Source::Any } else { Source::Rank(step.from) };
            let wanted = (message(step.from, number, step.len), step.from);
            (group.begin().recv(vec![0; step.len], (source, step.tag)).unwrap(), wanted)
        });
        for (work, wanted) in works.collect::<Vec<_>>() {
            assert_eq!(work.wait().unwrap(), wanted);
        }
    });
}

#[test]
fn a_batch_is_begun_at_once() {
    worlds(3, |group| {
        let (rank, len) = (group.rank(), 400);
        // Every rank sends to every rank, itself too; receives come last.
        let sends = (0..3).map(|to| Message::send(message(rank, to, len), (to, 1)));
        let recvs = (0..3).map(|from| Message::recv(vec![0; len], (Source::Rank(from), 1)));
        let works = group.begin().batch(sends.chain(recvs)).unwrap();
        let ends: Vec<_> = works.into_iter().map(|work| work.wait().unwrap()).collect();
        for other in 0..3 {
            assert_eq!(ends[other], (message(rank, other, len), other));
            assert_eq!(ends[3 + other], (message(other, rank, len), other));
        }
        let bad = [Message::send(vec![1_u8], (0, 9)), Message::send(vec![1], (3, 9))];
        let error = group.begin().batch(bad).unwrap_err();
        assert!(error.to_string().contains("there is no rank 3; there are ranks 0 to 2"), "{error}");
    });
}

#[test]
fn many_small_ones_go_before_they_are_asked_for() {
    worlds(2, |group| {
        // There are far more messages than slots, and the last one has the tag that is wanted first.
        if group.rank() == 0 {
            for number in 0..300 {
                group.send(&message(0, number, 9), (1, u32::from(number >= 299))).unwrap();
            }
        } else {
            let mut got = vec![0; 9];
            group.recv(&mut got, (0, 1)).unwrap();
            assert_eq!(got, message(0, 299, 9));
            for number in 0..299 {
                group.recv(&mut got, 0).unwrap();
                assert_eq!(got, message(0, number, 9));
            }
        }
        group.barrier().unwrap();
    });
}

#[test]
fn they_go_on_beside_collectives_and_in_groups() {
    worlds(4, |group| {
        let pair = group.split(Some(group.rank() as u64 % 2), 0).unwrap().unwrap();
        let other = 1 - pair.rank();
        for round in 0..20 {
            let len = round * 37;
            let sent = pair.begin().send(message(group.rank(), round, len), other).unwrap();
            let got = pair.begin().recv(vec![0; len], other).unwrap();
            let world = group.begin().send(message(group.rank(), 1, len), (group.rank() + 1) % 4).unwrap();
            let mut data = vec![group.rank() as i32; len];
            group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
            assert_eq!(data, vec![6; len]);
            let before = (group.rank() + 3) % 4;
            assert_eq!(group.recv_vec::<u64>(before).unwrap(), (message(before, 1, len), before));
            assert_eq!(got.wait().unwrap(), (message(pair.members()[other], round, len), other));
            drop((sent, world));
        }
    });
}

#[test]
fn a_large_one_comes_in_pieces() {
    world(
        2,
        |_| (),
        |group| {
            let len = (130 << 20) / 8 + 1;
            let data = message(0, 1, len);
            if group.rank() == 0 {
                group.send(&data, 1).unwrap();
            } else {
                let mut got = vec![0; len];
                group.recv(&mut got, 0).unwrap();
                assert!(got == data);
            }
        },
    );
}

/// Ranks 0 and 1 make calls that do not match. Returns the failure of both.
fn disagree(
    zero: impl Fn(&ProcessGroup) -> Result<()> + Sync,
    one: impl Fn(&ProcessGroup) -> Result<()> + Sync,
) -> String {
    let messages = world(2, small, |group| {
        let done = if group.rank() == 0 { zero(&group) } else { one(&group) };
        // A rank that sent a small message may get the failure from its next call.
        let error = done.and_then(|()| group.barrier()).unwrap_err();
        error.to_string()
    });
    assert_eq!(messages[0], messages[1]);
    messages[0].clone()
}

#[test]
fn lengths_and_types_that_differ_are_errors_on_both_sides() {
    for len in [3, 3000] {
        let longer = move |group: &ProcessGroup| group.recv(&mut vec![0_f32; len + 1], (0, 7)).map(drop);
        let message = disagree(move |group| group.send(&vec![0_f32; len], (1, 7)), longer);
        let more = len + 1;
        assert_eq!(
            message,
            format!(
                "message 0 from rank 0 to rank 1, tag 7: rank 0 sends {len} f32 elements, \
                 rank 1 receives {more} f32 elements"
            )
        );
        let message = disagree(
            move |group| group.send(&vec![0_i32; len], (1, 7)),
            move |group| group.recv(&mut vec![0_f32; len], (Source::Any, 7)).map(drop),
        );
        assert!(
            message.ends_with(&format!("sends {len} i32 elements, rank 1 receives {len} f32 elements")),
            "{message}"
        );
        let message = disagree(
            move |group| group.send(&vec![0_i32; len], (1, 7)),
            |group| group.recv_vec::<f32>((0, 7)).map(drop),
        );
        assert!(message.ends_with("i32 elements, rank 1 receives f32 elements"), "{message}");
        let begun = disagree(
            move |group| group.send(&vec![0_i32; len], (1, 7)),
            |group| group.begin().recv_vec::<f32>((0, 7))?.wait().map(drop),
        );
        assert_eq!(begun, message);
        let shorter = move |group: &ProcessGroup| {
            group.begin().send_recv((Vec::new(), vec![0_f32; len - 1]), (0, 7), (0, 7))?.wait().map(drop)
        };
        let message = disagree(move |group| group.send(&vec![0_f32; len], (1, 7)), shorter);
        let less = len - 1;
        assert!(
            message.ends_with(&format!("sends {len} f32 elements, rank 1 receives {less} f32 elements")),
            "{message}"
        );
    }
}

#[test]
fn awaiting_what_does_not_fit_ends() {
    let messages = world(2, small, |group| match group.rank() {
        0 => group.send(&[1_u8; 3], 1).and_then(|()| group.barrier()).unwrap_err().to_string(),
        _ => block_on(group.begin().recv(vec![0_u8; 4], 0).unwrap()).unwrap_err().to_string(),
    });
    assert_eq!(messages[0], messages[1]);
}

#[test]
fn what_nobody_sends_is_said_at_the_deadline() {
    let impatient = |config: &mut Config| {
        small(config);
        config.timeout = Duration::from_millis(300);
    };
    let (go, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let messages = world(2, impatient, |group| {
        if group.rank() == 0 {
            let error = group.recv(&mut [0_f32; 4], (1, 9)).unwrap_err().to_string();
            go.send(()).unwrap();
            return error;
        }
        wait.lock().unwrap().recv().unwrap();
        group.barrier().unwrap_err().to_string()
    });
    assert_eq!(messages[0], messages[1]);
    let wanted = ["recv(f32, from 1, tag 9) did not finish within", "on rank 0", "rank 1 called nothing yet"];
    wanted.iter().for_each(|words| assert!(messages[0].contains(words), "{}", messages[0]));
    // No rank receives a large message, in a group; errors name ranks of the world.
    let messages = world(3, impatient, |group| {
        let part = group.new_group(&[2, 0]).unwrap();
        match (group.rank(), part) {
            (2, Some(part)) => part.send(&[0_u8; 4000], (1, 9)).unwrap_err().to_string(),
            _ => hear(&group).unwrap_err().to_string(),
        }
    });
    assert!(messages.iter().all(|it| it == &messages[0]), "{messages:?}");
    let wanted = ["send(u8, to 0, tag 9) did not finish within", "on rank 2", "waits for rank 0"];
    wanted.iter().for_each(|words| assert!(messages[0].contains(words), "{}", messages[0]));
}

#[test]
fn a_message_that_no_rank_received_is_reported_at_the_end() {
    let message = world(2, small, |group| {
        if group.rank() == 0 {
            group.send(&[1_u16, 2], (1, 5)).unwrap();
        }
        group.barrier().unwrap();
        group.leave().map_err(|error| error.to_string())
    });
    let wanted = "message 0 from rank 0 to rank 1, tag 5: rank 0 sends 2 u16 elements, rank 1 receives nothing, and leaves";
    assert_eq!(message, [Err(wanted.to_owned()), Err(wanted.to_owned())]);
}

#[test]
fn dropped_messages_arrive_all_the_same() {
    worlds(2, |group| {
        let other = 1 - group.rank();
        for len in SIZES {
            drop(group.begin().send(message(group.rank(), 2, len), (other, 1)).unwrap());
            // The message is lost, but the send ends.
            drop(group.begin().recv(vec![0_u64; len], (other, 1)).unwrap());
            drop(
                group
                    .begin()
                    .send_recv((message(group.rank(), 2, len), vec![0; len]), (other, 1), (other, 1))
                    .unwrap(),
            );
            drop(group.begin().send(message(group.rank(), 2, len), (other, 1)).unwrap());
            drop(group.begin().recv_vec::<u64>((other, 1)).unwrap());
        }
        drop(group.begin().send(message(group.rank(), 3, 5000), (other, 1)).unwrap());
        assert_eq!(group.recv_vec::<u64>((other, 1)).unwrap().0, message(other, 3, 5000));
        group.leave().unwrap();
    });
}

#[test]
fn there_is_no_rank_but_those_of_the_group() {
    world(1, small, |group| {
        let error = group.send(&[1_u8], 1).unwrap_err();
        assert_eq!(error.to_string(), "send: there is no rank 1; there are ranks 0 to 0");
        let error = group.recv(&mut [1_u8], 9).unwrap_err();
        assert_eq!(error.to_string(), "recv: there is no rank 9; there are ranks 0 to 0");
        let error = group.begin().recv_vec::<u8>(9).unwrap_err();
        assert_eq!(error.to_string(), "recv_vec: there is no rank 9; there are ranks 0 to 0");
        let error = group.begin().send_recv((vec![1_u8], vec![0]), 1, Source::Any).unwrap_err();
        assert_eq!(error.to_string(), "send: there is no rank 1; there are ranks 0 to 0");
        let error = group.begin().send_recv((vec![1_u8], vec![0]), 0, 9).unwrap_err();
        assert_eq!(error.to_string(), "recv: there is no rank 9; there are ranks 0 to 0");
    });
}

#[test]
fn what_comes_for_a_group_that_was_left_is_an_error_of_all() {
    worlds(2, |group| {
        let part = group.new_group(&[0, 1]).unwrap().unwrap();
        let done = if group.rank() == 0 {
            part.send(&[1_u8], 1).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            // No call receives these.
            (0..7).try_for_each(|_| part.send(&[2_u8], 1))
        } else {
            part.recv(&mut [0_u8], 0).map(drop)
        };
        drop(part);
        if group.rank() == 1 {
            std::thread::sleep(Duration::from_millis(60));
        }
        let message = done.and_then(|()| group.barrier()).and_then(|()| group.leave()).unwrap_err();
        let wanted = "message 1 from rank 0 to rank 1, tag 0: rank 0 sends 1 u8 elements, rank 1 receives nothing, and leaves";
        assert_eq!(message.to_string(), wanted);
    });
}

#[test]
fn a_rank_that_waits_in_a_collective_takes_in_what_comes() {
    for elsewhere in [false, true] {
        worlds(2, |group| {
            let part = group.new_group(&[0, 1]).unwrap().unwrap();
            let talk = if elsewhere { &part } else { &group };
            let other = 1 - group.rank();
            let messages: Vec<_> = (0..40).map(|number| message(0, number, number % 17)).collect();
            if group.rank() == 0 {
                // There are more messages than slots.
                messages.iter().for_each(|it| talk.send(it, (1, 3)).unwrap());
                group.barrier().unwrap();
            } else {
                group.barrier().unwrap();
                for it in &messages {
                    assert_eq!(&talk.recv_vec::<u64>((0, 3)).unwrap().0, it);
                }
            }
            // Both send first, and then both wait in a collective: one rank's send ends before the other's.
            let long = |rank: Rank| message(rank, 7, if rank == 0 { 6000 } else { 90_000 });
            talk.send(&long(group.rank()), (other, 4)).unwrap();
            group.barrier().unwrap();
            assert_eq!(talk.recv_vec::<u64>((other, 4)).unwrap().0, long(other));
        });
    }
}

#[test]
fn sends_that_wait_for_each_other_end_beside_fast_collectives() {
    worlds(2, |group| {
        let twin = group.new_group(&[0, 1]).unwrap().unwrap();
        let sent = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut all = [0];
                while all[0] == 0 {
                    all = [sent.load(Ordering::Relaxed)];
                    twin.all_reduce(&mut all, ReduceOp::Min).unwrap();
                }
            });
            let other = 1 - group.rank();
            for number in 0..5 {
                group.send(&message(group.rank(), number, 5000), (other, 4)).unwrap();
                assert_eq!(group.recv_vec::<u64>((other, 4)).unwrap().0, message(other, number, 5000));
            }
            sent.store(1, Ordering::Relaxed);
        });
    });
}

#[test]
fn a_large_message_gets_past_small_ones_that_nobody_receives() {
    // There are more messages than a rank keeps unexpected.
    const SMALL: usize = 4000;
    worlds(2, |group| {
        if group.rank() == 0 {
            let large = group.begin().send(message(0, 0, 5000), (1, 1)).unwrap();
            let small: Vec<_> = (1..=SMALL)
                .map(|number| group.begin().send(message(0, number, 16), (1, 2)).unwrap())
                .collect();
            assert_eq!(large.wait().unwrap(), message(0, 0, 5000));
            small.into_iter().for_each(|small| drop(small.wait().unwrap()));
        } else {
            // By then the rank takes no more messages.
            std::thread::sleep(Duration::from_millis(200));
            assert_eq!(group.recv_vec::<u64>((0, 1)).unwrap().0, message(0, 0, 5000));
            for number in 1..=SMALL {
                assert_eq!(group.recv_vec::<u64>((0, 2)).unwrap().0, message(0, number, 16));
            }
        }
    });
}
