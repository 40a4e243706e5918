//! Handshakes that do not arrive, completely or in part, and handshakes that overtake each other.

use std::cell::Cell;

use super::*;
use crate::wire::{ControlKind, Handshake};

/// Two engines that know each other and have sent no handshakes.
fn pair(open: impl Fn() -> Box<dyn Transport>) -> [Engine; 2] {
    let mut engines = [0, 1].map(|rank| {
        let mut engine = Engine::new(open(), rank, 2, SMALL).unwrap();
        engine.allocate_large_handshakes(SMALL.chunk_bytes).unwrap();
        engine
    });
    let contacts = engines.each_ref().map(Engine::contact);
    let none = Duration::ZERO;
    for engine in &mut engines {
        let patience = Patience { spin: none, give_way: none, alone: none };
        engine.set_contacts(Arc::new(contacts.to_vec()), SMALL.chunk_bytes, patience).unwrap();
    }
    engines
}

/// The handshakes that an engine waits for after none has arrived for a while.
fn awaited(engine: &mut Engine) -> Vec<PendingHandshake> {
    match engine.driven_by(&Nobody).finish_handshakes(Duration::from_millis(20), soon()) {
        Ok(()) => Vec::new(),
        Err(Stop::Deadline) => engine.pending_handshakes().collect(),
        Err(stop) => panic!("{stop:?}"),
    }
}

/// Lets an engine send what its peers may be waiting for.
fn serve(engine: &mut Engine) {
    let rounds = Cell::new(0);
    let over = || rounds.replace(rounds.get() + 1) > 20;
    engine.driven_by(&Nobody).progress_until(&over).unwrap();
}

#[test]
fn what_is_missing_of_a_greeting_is_told() {
    let (hub, fabric) = (Hub::new(), Fabric::new(sim::Config::default()));
    let transports: [&dyn Fn() -> Box<dyn Transport>; 2] =
        [&|| Box::new(hub.open()), &|| Box::new(fabric.open())];
    for open in transports {
        let [mut first, mut second] = pair(open);
        first.begin_handshakes(&[1], &[1]).unwrap();
        assert_eq!(
            awaited(&mut first),
            [PendingHandshake { rank: 1, small_arrived: false }],
            "the other is late"
        );
        second.begin_handshakes(&[0], &[0]).unwrap();
        // As if the network lost large packets.
        let lost = std::mem::take(&mut second.handshakes.unsent);
        assert_eq!(
            awaited(&mut second),
            [PendingHandshake { rank: 0, small_arrived: true }],
            "the first has not heard of it"
        );
        assert_eq!(awaited(&mut first), [PendingHandshake { rank: 1, small_arrived: true }]);
        assert_eq!(awaited(&mut second), []);
        second.handshakes.unsent = lost;
        serve(&mut second);
        assert_eq!(awaited(&mut first), []);
        // A second handshake is an error.
        second.begin_handshakes(&[0], &[]).unwrap();
        serve(&mut second);
        let more = first.driven_by(&Nobody).progress_until(&|| false);
        assert!(
            matches!(&more, Err(Stop::Failure(it)) if it.to_string().contains("a handshake of rank 1 that was not due")),
            "{more:?}"
        );
    }
}

#[test]
fn the_greetings_of_a_rank_come_in_any_order() {
    for seed in 0..20 {
        let jitter = Duration::from_millis(1);
        let fabric = Fabric::new(sim::Config { seed, jitter, ..sim::Config::default() });
        let mut engines = pair(|| Box::new(fabric.open()));
        for (rank, engine) in engines.iter_mut().enumerate() {
            engine.begin_handshakes(&[1 - rank], &[1 - rank]).unwrap();
        }
        // In turn, since each engine waits for what the other has yet to send.
        let mut awaited = || engines.each_mut().map(awaited);
        let awaited = (0..20).map(|_| awaited()).find(|it| it.iter().all(Vec::is_empty));
        assert!(awaited.is_some(), "seed {seed}");
    }
}

#[test]
fn a_greeting_is_read_with_the_shared_slots_that_overwrite_it() {
    let hub = Hub::new();
    let mut engines = pair(|| Box::new(hub.open()));
    let areas = engines.each_ref().map(|engine| engine.handshakes.remote());
    for (rank, engine) in engines.iter_mut().enumerate() {
        engine.begin_handshakes(&[1 - rank], &[]).unwrap();
        engine.net.core(WORLD).unwrap().open_shared().unwrap();
    }
    for _ in 0..2 {
        engines.iter_mut().for_each(serve);
    }
    for (rank, engine) in engines.iter_mut().enumerate() {
        assert_eq!(awaited(engine), []);
        let comm = engine.net.core(WORLD).unwrap().comm;
        let handshake: Handshake = comm.mailbox.received_part(1 - rank, ControlKind::Handshake).unwrap();
        assert_eq!(handshake.area, areas[1 - rank].words());
        assert_eq!(comm.identity.members[1 - rank].slots, handshake.remote());
        assert!(handshake.remote().is_some());
    }
}
