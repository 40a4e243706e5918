//! An arrival that no rank can have sent ends the group with an error that blames no rank.

use bytemuck::Zeroable;

use super::{
    wire::{
        ClearToSend, Close, ControlKind, FlowWay, HEADER, Immediate, MAX_RANKS, MailboxEntry, WindowClass,
        low,
    },
    *,
};

/// Immediates that mean nothing, each with the length of its message, if the transport tells it, and a part of the error.
fn strange() -> Vec<(Immediate, Option<usize>, &'static str)> {
    let (slots, direct) = (FlowWay::Slots, FlowWay::Direct);
    let message = |comm_id, from| Immediate::ControlMessage { comm_id, from, about: ControlKind::Handshake };
    vec![
        (Immediate::Data { flow: 100, way: slots, number: 0 }, None, "a message on flow 100"),
        (Immediate::Data { flow: 100, way: direct, number: 0 }, None, "a message on flow 100"),
        (Immediate::Data { flow: 0, way: slots, number: 0x7fff }, None, "it had credit for those below"),
        (
            Immediate::Data { flow: 0, way: slots, number: 0 },
            Some(HEADER + SMALL.chunk_bytes + 1),
            "bytes, in a slot",
        ),
        (Immediate::Data { flow: 0, way: slots, number: 0 }, Some(1), "bytes, in a slot"),
        (Immediate::Data { flow: 0, way: direct, number: 0 }, None, "nobody was allowed to write"),
        (Immediate::Credit { flow: 100, way: slots, freed: 0 }, None, "credit for flow 100"),
        (Immediate::Credit { flow: 0, way: slots, freed: 0x7000 }, None, "a credit for 28672 messages"),
        (Immediate::Credit { flow: 0, way: direct, freed: 1 }, None, "a credit for 1 messages"),
        (message(0, 2), None, "a control message of rank 2 for communicator 0"),
        (message(0, MAX_RANKS - 1), None, "a control message of rank 524287"),
        (message(1, 0), None, "a control message of rank 0 for communicator 1"),
        (message(255, 1), None, "for communicator 255"),
        (
            Immediate::ControlMessage {
                comm_id: 0,
                from: 1,
                about: ControlKind::Answer(WindowClass::Message),
            },
            None,
            "that was not to be closed",
        ),
    ]
}

/// A peer cannot make a rank keep more than a bounded number of control messages.
#[test]
fn what_is_told_more_often_than_a_rank_can_blames_nobody() {
    for (about, times, words) in [
        (ControlKind::ClearToSend, 3, "a third clear to send of rank 0 for one operation"),
        (
            ControlKind::MismatchProbe(WindowClass::Eager),
            2,
            "a mismatch probe of op 1000 after one of a later or the same",
        ),
        (ControlKind::Read, 1, "word that a mismatch probe was read"),
    ] {
        let hub = Hub::new();
        world(
            1,
            SMALL,
            || Box::new(hub.open()),
            |rank, engine| {
                let net = &mut engine.net;
                let mailbox = net.core(WORLD).unwrap().comm.mailbox.entries.clone();
                let info = Signature { number: 1000, ..Signature::default() };
                access::store(&mailbox, about.part().start, &info).unwrap();
                let bits =
                    Immediate::ControlMessage { comm_id: 0, from: rank, about }.encode() ^ net.port.mask;
                for _ in 1..times {
                    net.arrived(bits, None).unwrap();
                }
                forged(net.arrived(bits, None), rank, words);
                let comm = net.core(WORLD).unwrap().comm;
                assert!(comm.mailbox.clear_to_sends.len() + comm.mailbox.mismatch_probes.len() <= times);
            },
        );
    }
}

fn forged(stop: Result<(), Stop>, me: Rank, words: &str) {
    match stop {
        Err(Stop::Failure(failure)) => {
            assert!(matches!(*failure, Failure::Forged { rank, .. } if rank == me), "{words}: {failure}");
            let said = failure.to_string();
            assert!(said.contains("a message that no rank sent") && said.contains(words), "{words}: {said}");
        }
        other => panic!("{words}: {other:?}"),
    }
}

/// Opens windows of two ranks for each other, and uses them.
fn sums_with_another(rank: Rank, engine: &mut Engine) {
    let job = Job { chunk: 16, lanes: 3, ..Job::new(Collective::AllReduce, rank, 2, 100) };
    let mut data = vec![1_i64; 100];
    let borrowed = Borrowed::within(&mut data, 0..100, 0..100).unwrap();
    call::<i64>(engine, WaitingCall { job, op: ReduceOp::Sum, algorithm: "ring" }, &borrowed).unwrap();
}

#[test]
fn an_arrival_that_names_nothing_blames_nobody() {
    let hub = Hub::new();
    let masks = world(
        2,
        SMALL,
        || Box::new(hub.open()),
        |rank, engine| {
            sums_with_another(rank, engine);
            let net = &mut engine.net;
            let mask = net.port.mask;
            for (immediate, len, words) in strange() {
                forged(net.arrived(immediate.encode() ^ mask, len), rank, words);
            }
            mask
        },
    );
    assert_ne!(masks[0], masks[1], "every process has its own mask");
}

/// A message that takes credit along may arrive after the window that the credit is for was closed and opened again.
#[test]
fn credit_that_arrives_after_its_window_was_opened_again_is_no_news() {
    let (hub, called) = (Hub::new(), Barrier::new(2));
    let class = WindowClass::Bulk;
    world(
        2,
        SMALL,
        || Box::new(hub.open()),
        |rank, engine| {
            sums_with_another(rank, engine);
            // The other one must not poll what this one sends next.
            called.wait();
            let (net, from) = (&mut engine.net, 1 - rank);
            let mask = net.port.mask;
            let comm = net.core(WORLD).unwrap().comm;
            let (mailbox, first) = (comm.mailbox.entries.clone(), comm.flows.sender(from, class, 0).unwrap());
            let ends = &comm.flows.senders[first..first + SMALL.lanes];
            let sent = ends[0].flow.sent;
            let arrived: u64 = ends.iter().map(|end| end.flow.sent + end.writes.sent).sum();
            let credits = ends.iter().map(|end| end.credits).sum();
            let mut tells = |about: ControlKind| {
                let bits = Immediate::ControlMessage { comm_id: 0, from, about }.encode() ^ mask;
                net.arrived(bits, None)
            };
            let entry = from * size_of::<MailboxEntry>();
            let close = Close { arrived: low(arrived), credits };
            access::store(&mailbox, entry + ControlKind::Close(class).part().start, &close).unwrap();
            tells(ControlKind::Close(class)).unwrap();
            // The description of the window is still there.
            tells(ControlKind::Window(class)).unwrap();
            let late = ClearToSend { freed: low(sent), ..ClearToSend::zeroed() };
            access::store(&mailbox, entry + ControlKind::ClearToSend.part().start, &late).unwrap();
            tells(ControlKind::ClearToSend).unwrap();
            let end = &net.core(WORLD).unwrap().comm.flows.senders[first];
            assert!(sent > 0 && end.flow.sent == sent && end.flow.pending() == 0, "{end:?}");
        },
    );
}

#[test]
fn late_credit_of_a_group_that_has_ended_is_no_news() {
    let hub = Hub::new();
    world(
        1,
        SMALL,
        || Box::new(hub.open()),
        |rank, engine| {
            let net = &mut engine.net;
            let (mask, number) = (net.port.mask, net.port.outgoing.take(1, 0, 1).unwrap());
            net.port.outgoing.give_back(number, 1);
            let credit = |flow: usize| {
                let flow = u32::try_from(flow).unwrap();
                Immediate::Credit { flow, way: FlowWay::Slots, freed: 1 }.encode() ^ mask
            };
            net.arrived(credit(number), None).unwrap();
            forged(net.arrived(credit(number + 1), None), rank, "on which nothing was sent");
        },
    );
}
