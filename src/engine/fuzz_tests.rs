//! An engine that gets arrivals made of arbitrary bytes: it may return an error, but must not panic or hang.

use std::time::Duration;

use unisono_schedule::{CallSchedule, Collective, Job, Rank};
use unisono_transport::{Notify, Put, Region, RemoteRegion, Source, Target, Transport, inproc::Hub};

use super::{wire::Entry, *};
use crate::{
    buffer::Operand,
    call::{Form, Kind, Signature},
    dtype::Dtype,
    reduce::{Kernel, ReduceOp},
};

const SETTINGS: Settings = Settings {
    eager_bytes: 128,
    eager_slots: 4,
    chunk_bytes: 256,
    bulk_slots: 2,
    lanes: 2,
    huge_pages: false,
    bounds: Bounds { comms: 1 << 10, unexpected_bytes: 1 << 20, fresh_piece: 6 },
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

    fn waits_longest(&self, _: Call, _: Option<Rank>) {}
}

/// The first byte chooses the operation of the engine, which is rank 0 of 2; the rest are records of the puts of rank 1.
pub(super) fn arrivals(bytes: &[u8]) {
    let Some((&what, records)) = bytes.split_first() else { return };
    // An error is no finding.
    drop(play(what, records));
}

fn play(what: u8, mut records: &[u8]) -> Result<(), Halt> {
    let hub = Hub::new();
    let mut peer = hub.open();
    let mut engine = Engine::new(Box::new(hub.open()), 0, 2, SETTINGS).map_err(Stop::from)?;
    let registered = |transport: &mut dyn Transport| transport.allocate(MEMORY, false).map_err(Stop::from);
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
            area: RemoteRegion::default(),
        },
    ];
    let to = peer.connect(&contacts[0].address).map_err(Stop::from)?;
    let none = Duration::ZERO;
    engine.meet(contacts, 256, Patience { spin: none, give_way: none, alone: none })?;
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
        // The target: the peer's entry of the mailbox, any place of the mailbox, or a window that the engine has described.
        let (region, at) = match place % 5 {
            0 => (mailbox, size_of::<Entry>() + at % size_of::<Entry>()),
            1 => (mailbox, at % (2 * size_of::<Entry>())),
            class => {
                let entry: Entry = access::load(&own, 0).map_err(Stop::from)?;
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
        };
        // If there is no window yet, the transport refuses the put.
        drop(access::put(&mut peer, &put));
        for _ in 0..2 {
            engine.round(&Nobody)?;
            engine.send_control()?;
        }
        peer.poll(&mut events).map_err(Stop::from)?;
        events.clear();
    }
    engine.check_stalled()?;
    engine.abandon();
    Ok(())
}

/// Begins an operation: a collective, a send, a receive, or nothing.
fn begin(engine: &mut Engine, what: u8, input: &Region, output: &Region) -> Result<(), Halt> {
    let completion = Completion::new(Duration::from_secs(600), Action::Return(None)).0;
    let kind = |count| Kind { form: Form::Plain, dtype: Dtype::F32, count };
    let (collective, algorithm, count) = match what % 8 {
        0 => return Ok(()),
        1 => {
            let place = Place::There { output: output.clone(), count: 100, registered: None };
            let inbound = Inbound { from: Some(1), tag: 0, form: Form::Plain, dtype: Dtype::F32, place };
            return engine.take(WORLD, Task { what: What::Receive(inbound), completion }, &Nobody);
        }
        2 => {
            let place = Place::Fresh { most: 1 << 16 };
            let inbound = Inbound { from: None, tag: 0, form: Form::Object, dtype: Dtype::U8, place };
            return engine.take(WORLD, Task { what: What::Receive(inbound), completion }, &Nobody);
        }
        3 => {
            let outbound =
                Outbound { to: 1, tag: 0, kind: kind(1000), source: input.clone(), registered: None };
            return engine.take(WORLD, Task { what: What::Send(outbound), completion }, &Nobody);
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
    let operation = Operation {
        number: 0,
        group: None,
        group_id: 0,
        signature: Signature::new(&job, Dtype::F32, ReduceOp::Sum, algorithm.code),
        ranks: 2,
        kernel,
        average: false,
        one_shot: false,
        size: 4,
        input: Operand { registered: Some((input.clone(), 0)), ..input.clone().into() },
        output: Operand { registered: Some((output.clone(), 0)), ..output.clone().into() },
        pairs: None,
        long: job.long,
        fixed: false,
        writable: true,
        aside: false,
    };
    let what = What::Collective(Box::new(operation), CallSchedule::Made(schedule));
    engine.take(WORLD, Task { what, completion }, &Nobody)
}
