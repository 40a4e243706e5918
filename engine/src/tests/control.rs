//! Control messages that are sent faster than they are read: each part of a mailbox has one writer, which does not write again
//! before the reader has read it.

use super::*;

/// Two ranks that one thread drives, so that the test decides which one polls when.
fn two(fabric: &Fabric) -> [Engine; 2] {
    let mut engines = [0, 1].map(|rank| Engine::new(Box::new(fabric.open()), rank, 2, SMALL).unwrap());
    let contacts: Vec<_> = engines.iter().map(Engine::contact).collect();
    let none = Duration::ZERO;
    let patience = Patience { spin: none, give_way: none, alone: none };
    for engine in &mut engines {
        engine.set_contacts(Arc::new(contacts.clone()), SMALL.chunk_bytes, patience).unwrap();
    }
    engines
}

fn fine<T>(result: Result<T, Halt>) -> T {
    result.map_err(|halt| halt.stop).unwrap()
}

/// One round of a rank.
fn go_on(engine: &mut Engine) {
    fine(engine.driven_by(&Nobody).round());
    fine(engine.check_stalled());
    engine.send_control().unwrap();
}

/// Drives these ranks until `done` is true.
fn until(engines: &mut [&mut Engine], mut done: impl FnMut(&mut [&mut Engine]) -> bool) {
    for _ in 0..10_000 {
        engines.iter_mut().for_each(|engine| go_on(engine));
        if done(engines) {
            return;
        }
    }
    panic!("the ranks do not reach that state");
}

/// Whether all control messages of a rank have landed.
fn landed(engine: &mut Engine) -> bool {
    engine.net.core(WORLD).unwrap().comm.mailbox.is_completed()
}

/// The operations of the mismatch probes that a rank keeps.
fn probes(engine: &mut Engine) -> Vec<u32> {
    engine
        .net
        .core(WORLD)
        .unwrap()
        .comm
        .mailbox
        .mismatch_probes
        .iter()
        .map(|(.., info)| info.number)
        .collect()
}

#[test]
fn a_probe_waits_until_the_one_before_was_read() {
    for seed in 0..8 {
        println!("seed {seed}");
        let jitter = Duration::from_micros(10 * seed);
        let config =
            sim::Config { seed, jitter, max_inject: 0, cheap_registration: true, ..Default::default() };
        let [mut root, mut other] = two(&Fabric::new(config));
        // One message through a slot, and then a write that waits for its clear to send.
        let calls = [(16, false, "binomial"), (64, true, "direct")];
        let mut data = [0, 1].map(|rank| [value(rank, 0); 80]);
        let [ours, theirs] = &mut data;
        let borrowed: Vec<_> = [ours, theirs]
            .into_iter()
            .map(|data| data.split_at_mut(16))
            .map(|(first, second)| {
                let second = Borrowed::within(second, 0..64, 0..64).unwrap();
                [Borrowed::within(first, 0..16, 0..16).unwrap(), second]
            })
            .collect();
        let begin = |engine: &mut Engine, rank: Rank, round: usize| {
            let (count, direct, algorithm) = calls[round];
            let job =
                Job { chunk: 16, direct, long: direct, ..Job::new(Collective::Broadcast, rank, 2, count) };
            let (task, outcome) =
                task::<i64>(WaitingCall { job, op: ReduceOp::Sum, algorithm }, &borrowed[rank][round]);
            fine(engine.driven_by(&Nobody).take(WORLD, task));
            outcome
        };
        // The description of the window is in flight when the root wants to put, so the root sends a probe. It continues when the
        // description has arrived. The other rank does not poll.
        let received = begin(&mut other, 1, 0);
        fine(other.driven_by(&Nobody).round());
        let sent = begin(&mut root, 0, 0);
        fine(root.driven_by(&Nobody).round());
        assert!(!landed(&mut root), "a probe is on its way");
        until(&mut [&mut root], |_| sent.ended());
        // The root enters a later operation, of which it would send a probe too.
        let wrote = begin(&mut root, 0, 1);
        (0..1000).for_each(|_| go_on(&mut root));
        assert!(landed(&mut root));
        // The other rank reads the first probe.
        assert!(other.net.poll().unwrap());
        assert_eq!(probes(&mut other), [0], "overwritten before it was read");
        // Then it gets the second one.
        until(&mut [&mut root, &mut other], |engines| probes(engines[1]) == [1] && received.ended());
        let read = begin(&mut other, 1, 1);
        until(&mut [&mut root, &mut other], |_| wrote.ended() && read.ended());
        drop((root, other, borrowed));
        assert_eq!(data[1], [value(0, 0); 80]);
    }
}
