//! The number of control messages of credit: none if messages or clears to send in the opposite direction take the credit along.

use std::sync::{Arc, atomic::AtomicUsize};

use unisono_transport::Posted;

use super::*;
use crate::observed::{self, Observed};

const COUNT: usize = 1000;
const ROUNDS: usize = 50;

/// The number of control messages of credit that two ranks send in `ROUNDS` rounds of these calls, which are in place and in chunks
/// of a whole slot.
fn credits(of: impl Fn(usize, Rank) -> WaitingCall + Sync) -> usize {
    let (hub, credits) = (Hub::new(), Arc::new(AtomicUsize::new(0)));
    let open = || -> Box<dyn Transport> {
        let credits = Arc::clone(&credits);
        Box::new(Observed::new(Box::new(hub.open()), move |call| {
            // No other put here is as short: no other control message, and no last write.
            let credit =
                matches!(call, observed::Call::Put(put, Posted::Yes) if put.len() == size_of::<u64>());
            credits.fetch_add(usize::from(credit), Ordering::Relaxed);
        }))
    };
    world(2, Settings { lanes: 2, ..SMALL }, open, |rank, engine| {
        for round in 0..ROUNDS {
            let called = of(round, rank);
            let job = called.job;
            let (inputs, outputs) = job.lengths().unwrap();
            let reduces = job.collective.reduces();
            let mut data = vec![value(if reduces { rank } else { job.root }, round); inputs.max(outputs)];
            if !reduces && rank != job.root {
                data.fill(-1);
            }
            let borrowed = Borrowed::within(&mut data, 0..inputs, 0..outputs).unwrap();
            call::<i64>(engine, called, &borrowed).unwrap();
            drop(borrowed);
            let sum = (0..2).map(|from| value(from, round)).sum();
            let wanted = if reduces { sum } else { value(job.root, round) };
            assert!(data[..outputs].iter().all(|&it| it == wanted), "round {round} of rank {rank}: {data:?}");
        }
    });
    credits.load(Ordering::Relaxed)
}

fn job(collective: Collective, rank: Rank) -> Job<'static> {
    Job { chunk: 16, lanes: 2, ..Job::new(collective, rank, 2, COUNT) }
}

const fn summed(job: Job<'static>, algorithm: &'static str) -> WaitingCall {
    WaitingCall { job, op: ReduceOp::Sum, algorithm }
}

#[test]
fn messages_in_the_opposite_direction_take_credit_along() {
    for (collective, algorithm) in [
        (Collective::AllReduce, "two_shot"),
        (Collective::AllReduce, "ring"),
        (Collective::ReduceScatter, "ring"),
    ] {
        let control = credits(|_, rank| summed(job(collective, rank), algorithm));
        assert_eq!(control, 0, "of {algorithm}");
    }
}

#[test]
fn a_clear_to_send_takes_along_the_credit_for_a_first_message() {
    let heads = |_, rank| {
        let job = Job { direct: true, long: true, lanes: 1, ..job(Collective::Broadcast, rank) };
        summed(job, "direct")
    };
    assert_eq!(credits(heads), 0);
}

#[test]
fn without_messages_in_the_opposite_direction_credit_takes_control_messages() {
    let chunks = COUNT.div_ceil(16);
    let broadcast = |rank| summed(job(Collective::Broadcast, rank), "binomial");
    let control = credits(|_, rank| broadcast(rank));
    // Credit is sent for one of the two slots as soon as it is free, or for both if there was no time before.
    assert!((ROUNDS * chunks / 2..=ROUNDS * chunks).contains(&control), "{control} control messages");
}

/// After credit was sent in a header the receiver waits for the next one, but not for ever.
#[test]
fn credit_is_sent_when_messages_in_the_opposite_direction_end() {
    let rounds = |round, rank| match round % 5 {
        0 => summed(job(Collective::AllReduce, rank), "two_shot"),
        1 => summed(Job { direct: true, long: true, ..job(Collective::Broadcast, rank) }, "direct"),
        _ => summed(Job { root: round % 2, ..job(Collective::Broadcast, rank) }, "binomial"),
    };
    assert!(credits(rounds) > 0);
}
