//! An engine that gets arrivals made of arbitrary bytes: it may return an error, but must not panic or hang.

use std::{sync::Arc, time::Duration};

use unisono_core::{
    dtype::Dtype,
    reduce::{Kernel, ReduceOp},
};
use unisono_schedule::{CallSchedule, Collective, Job, Recorded};
use unisono_transport::{Notify, Put, Region, Source, Target, Transport, inproc::Hub};

use super::{
    comm::layout,
    wire::{ControlKind, Handshake, Immediate, MailboxEntry},
    *,
};
use crate::{
    call::{Form, MessageKind, Signature},
    memory::Operand,
};

const SETTINGS: Settings = Settings {
    eager_bytes: 128,
    eager_slots: 4,
    chunk_bytes: 256,
    bulk_slots: 2,
    lanes: 2,
    bounds: Bounds { comms: 1 << 10, unexpected_bytes: 1 << 20, fresh_piece: 6, listed: 0 },
};
/// The bytes of the memory that operations work on, and of that which the peer puts from.
const MEMORY: usize = 8 << 10;
/// The bytes of a record's head: the target region, the offset there, the number of bytes, and the immediate.
const RECORD: usize = 8;

struct Nobody;

impl Supervisor for Nobody {
    fn stopped(&self) -> bool {
        false
    }
}

/// The bit of the first byte that says that the operation is done in one shot, and is called again when it has ended.
const ONE_SHOT: u8 = 0x80;
/// The bit of a record's place that says that its bytes are written to the shared slots of rank 1, if it has them.
const SHARED: u8 = 0x80;

/// The first byte chooses the operation of the engine, which is rank 0 of 2; the rest are records of the puts of rank 1, and of what it
/// writes to its shared slots.
pub(super) fn arrivals(bytes: &[u8]) {
    let Some((&what, records)) = bytes.split_first() else { return };
    // An error is no finding.
    drop(play(what, records));
}

/// Returns how many operations the engine has begun.
fn play(what: u8, mut records: &[u8]) -> Result<u64, Halt> {
    let hub = Hub::new();
    let mut peer = hub.open();
    let mut engine = Engine::new(Box::new(hub.open()), 0, 2, SETTINGS).map_err(Stop::from)?;
    let registered = |transport: &mut dyn Transport| transport.allocate(MEMORY).map_err(Stop::from);
    // The peer's mailbox lies at the beginning of what it puts from.
    let own = registered(&mut peer)?;
    let (input, output) = (registered(engine.transport())?, registered(engine.transport())?);
    let mailbox = engine.contact().mailbox;
    let contacts = vec![
        engine.contact(),
        Contact {
            address: peer.address().clone(),
            mailbox: own.remote().unwrap_or_default(),
            host: "peer".to_owned(),
            mask: 0,
        },
    ];
    let to = peer.connect(&contacts[0].address).map_err(Stop::from)?;
    let none = Duration::ZERO;
    let all = Arc::new(contacts.clone());
    engine.set_contacts(all, 256, Patience { spin: none, give_way: none, alone: none })?;
    let shared = if what & ONE_SHOT == 0 { None } else { Some(share(&mut peer, &contacts[0], &own)?) };
    begin(&mut engine, what, &input, &output)?;

    let mut events = Vec::new();
    while let Some((head, rest)) = records.split_first_chunk::<RECORD>() {
        let [place, low, high, len, immediate @ ..] = *head;
        let (data, rest) = rest.split_at(rest.len().min(usize::from(len)));
        records = rest;
        for (at, byte) in data.iter().enumerate() {
            access::store(&own, MEMORY / 2 + at, byte).map_err(Stop::from)?;
        }
        let at = usize::from(u16::from_le_bytes([low, high]));
        if let Some(shared) = shared.as_ref().filter(|_| place & SHARED != 0) {
            write_shared(shared, (place, at), data)?;
            step(&mut engine)?;
            if engine.running.is_empty() {
                begin(&mut engine, what, &input, &output)?;
            }
            continue;
        }
        // The target: the peer's entry of the mailbox, any place of the mailbox, or a window that the engine has described.
        let (region, at) = match place % 5 {
            0 => (mailbox, size_of::<MailboxEntry>() + at % size_of::<MailboxEntry>()),
            1 => (mailbox, at % (2 * size_of::<MailboxEntry>())),
            class => {
                let entry: MailboxEntry = access::load(&own, 0).map_err(Stop::from)?;
                (entry.windows[usize::from(class - 2)].remote(), at)
            }
        };
        let source = Source::new(&own, MEMORY / 2, data.len()).map_err(Stop::from)?;
        let put = Put {
            to,
            sources: &[source],
            target: Target { region, offset: at as u64 },
            immediate: u32::from_le_bytes(immediate),
            token: 0,
            notify: Notify::IfNotInjected,
            fetch: false,
        };
        // If there is no window yet, the transport refuses the put.
        drop(access::put(&mut peer, &put));
        step(&mut engine)?;
        peer.poll(&mut events).map_err(Stop::from)?;
        events.clear();
    }
    engine.check_stalled()?;
    let begun = engine.begun(WORLD);
    engine.abandon();
    Ok(begun)
}

fn step(engine: &mut Engine) -> Result<(), Halt> {
    for _ in 0..2 {
        engine.driven_by(&Nobody).round()?;
        engine.send_control()?;
    }
    Ok(())
}

/// Makes the shared slots of rank 1, and tells the engine of them, as a rank does. `own` is what it puts from.
fn share(peer: &mut dyn Transport, to: &Contact, own: &Region) -> Result<Region, Halt> {
    let shared = peer.allocate(layout::LEN).map_err(Stop::from)?;
    let slots = shared.remote().unwrap_or_default().words();
    let handshake = Handshake::new(1, 0, [0; 3], slots);
    access::store(own, MEMORY / 2, &handshake).map_err(Stop::from)?;
    let about = ControlKind::Handshake;
    let put = Put {
        to: peer.connect(&to.address).map_err(Stop::from)?,
        sources: &[Source::new(own, MEMORY / 2, size_of::<Handshake>()).map_err(Stop::from)?],
        target: Target {
            region: to.mailbox,
            offset: (size_of::<MailboxEntry>() + about.part().start) as u64,
        },
        immediate: Immediate::ControlMessage { comm_id: WORLD, from: 1, about }.encode() ^ to.mask,
        token: 0,
        notify: Notify::IfNotInjected,
        fetch: false,
    };
    let _ = access::put(peer, &put).map_err(Stop::from)?;
    Ok(shared)
}

/// Writes to shared slots: to the word of the verdict, to the front of either slot, or anywhere; the first eight bytes last, as a
/// number is published.
fn write_shared(shared: &Region, (place, at): (u8, usize), data: &[u8]) -> Result<(), Halt> {
    let at = match place % 4 {
        0 => layout::VERDICT,
        1 => layout::slot(1),
        2 => layout::slot(2),
        _ => at % (layout::LEN - usize::from(u8::MAX)),
    };
    for (index, byte) in data.iter().enumerate().rev() {
        access::store(shared, at + index, byte).map_err(Stop::from)?;
    }
    Ok(())
}

/// Begins an operation: a collective, a send, a receive, or nothing.
fn begin(engine: &mut Engine, what: u8, input: &Region, output: &Region) -> Result<(), Halt> {
    let completion = Completion::new(Duration::from_secs(600), CompletionAction::Return(None)).0;
    let one_shot = what & ONE_SHOT != 0;
    let (collective, algorithm, count) = match what % 8 {
        0 if one_shot => (Collective::Broadcast, "direct", 10),
        1 if one_shot => (Collective::Reduce, "direct", 10),
        2 if one_shot => (Collective::Scatter, "direct", 100),
        3 if one_shot => (Collective::Gather, "direct", 5),
        4 if one_shot => (Collective::AllReduce, "direct", 6),
        5 if one_shot => (Collective::AllReduce, "direct", 1000),
        6 if one_shot => (Collective::AllToAll, "direct", 100),
        7 if one_shot => (Collective::Barrier, "direct", 0),
        0 => return Ok(()),
        1 => {
            let place = Place::There(output.clone().into());
            let kind = MessageKind::new(Form::Plain, Dtype::F32, 100);
            let inbound = Inbound { from: Some(1), tag: 0, kind, place };
            return engine
                .driven_by(&Nobody)
                .take(WORLD, WorkRequest { what: RequestKind::Receive(inbound), completion });
        }
        2 => {
            let kind = MessageKind::new(Form::Object, Dtype::U8, 1 << 16);
            let inbound = Inbound { from: None, tag: 0, kind, place: Place::Fresh };
            return engine
                .driven_by(&Nobody)
                .take(WORLD, WorkRequest { what: RequestKind::Receive(inbound), completion });
        }
        3 => {
            let outbound = Outbound {
                to: 1,
                tag: 0,
                kind: MessageKind::new(Form::Plain, Dtype::F32, 1000),
                source: input.clone().into(),
            };
            return engine
                .driven_by(&Nobody)
                .take(WORLD, WorkRequest { what: RequestKind::Send(outbound), completion });
        }
        4 => (Collective::AllReduce, "recursive_doubling", 10),
        5 => (Collective::AllReduce, "ring", 1000),
        6 => (Collective::AllGather, "direct", 500),
        _ => (Collective::Barrier, "dissemination", 0),
    };
    let job = Job { chunk: 64, lanes: 2, direct: true, ..Job::new(collective, 0, 2, count) };
    let Some(algorithm) = unisono_schedule::algorithm::find(algorithm) else { return Ok(()) };
    let (Some(schedule), Ok(kernel)) = (algorithm.make(&job), Kernel::new(Dtype::F32, ReduceOp::Sum)) else {
        return Ok(());
    };
    let signature = Signature::new(&job, Dtype::F32, ReduceOp::Sum, algorithm.code);
    let plan = Arc::new(CallPlan::new(collective, signature, kernel, job.long));
    let operand = |region: &Region| Operand::registered(region.clone());
    let schedule = match algorithm.plan(collective).filter(|_| one_shot) {
        Some(plan) => CallSchedule::Recorded(Recorded::shown(plan, &job)),
        None => CallSchedule::Made(schedule),
    };
    let (input, output, access) = (operand(input), operand(output), OutputAccess::All);
    let operation = Operation { number: 0, ranks: 2, plan, schedule, input, output, access, pairs: None };
    let what = RequestKind::Collective(Box::new(operation));
    engine.driven_by(&Nobody).take(WORLD, WorkRequest { what, completion })
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::{comm::layout::Front, *};

    /// What a rank writes to its shared slots that ends two all_reduces of six elements.
    fn honest() -> Vec<u8> {
        let write = |place: u8, data: &[u8]| {
            [&[SHARED | place, 0, 0, u8::try_from(data.len()).unwrap(), 0, 0, 0, 0], data].concat()
        };
        let job = Job { chunk: 64, lanes: 2, direct: true, ..Job::new(Collective::AllReduce, 0, 2, 6) };
        let direct = unisono_schedule::algorithm::find("direct").unwrap();
        let signature = Signature::new(&job, Dtype::F32, ReduceOp::Sum, direct.code);
        let enter = |place, number: u32| {
            let operation = Signature { number: number - 1, ..signature };
            let front = Front { number: number.into(), operation };
            write(place, &[bytemuck::bytes_of(&front), &[0; 24]].concat())
        };
        let mapped = write(0, &layout::MAPPED.to_ne_bytes());
        [vec![ONE_SHOT | 4], mapped, enter(1, 1), enter(2, 2)].concat()
    }

    /// Otherwise the fuzzer would seldom get beyond the first comparison.
    #[test]
    fn an_honest_peer_ends_operations_in_one_shot() {
        let bytes = honest();
        let (what, records) = bytes.split_first().unwrap();
        assert_eq!(play(*what, records).map_err(|halt| halt.stop).unwrap(), 3);
        let seed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/arrivals/one-shot");
        assert!(fs::read(seed).unwrap() == bytes, "fuzz/corpus/arrivals/one-shot is to be {bytes:02x?}");
    }
}
