//! Runs schedules over a transport: lanes, flows, credits, waiting. It has never heard of an algorithm.
//!
//! One thread drives it at a time, the one that waits for the operation. Everything between ranks is a put:
//! messages into slots of windows, and letters (windows, credits, greetings) into mailboxes. All groups of a process
//! share one endpoint (`port`); each has windows and a mailbox of its own (`circle`).

mod begin;
mod circle;
mod core;
mod flow;
mod lane;
mod letters;
mod operation;
mod port;
mod post;
#[doc(hidden)]
pub mod probe;
mod routes;
mod send;
#[cfg(test)]
mod tests;
mod wait;
mod wire;

use std::time::{Duration, Instant};

use unisono_transport::{Address, Error, Event, RemoteRegion, Transport};

pub use self::lane::Traced;
use self::{
    circle::Circle,
    core::Core,
    lane::Run,
    port::Port,
    wait::{Next, Wait},
    wire::{Class, Immediate, Way},
};
pub(crate) use self::{
    operation::{FAREWELL, Operation, Signature},
    wait::Patience,
    wire::{MAX_RANKS, VERSION},
};
use crate::{
    error::Failure,
    schedule::{Rank, Schedule},
};

/// The sizes of windows, alike on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Bytes of elements in a slot for small messages.
    pub eager_bytes: usize,
    /// How many of those slots a flow has.
    pub eager_slots: usize,
    /// Bytes of elements in a slot for chunks.
    pub chunk_bytes: usize,
    /// How many of those slots a lane's flow has.
    pub bulk_slots: usize,
    /// How many lanes pipelines may use.
    pub lanes: usize,
    /// Whether windows ask for huge pages.
    pub huge_pages: bool,
}

impl Settings {
    /// Lanes, slots and bytes in a slot of a window.
    fn window(&self, class: Class) -> (usize, usize, usize) {
        match class {
            Class::Eager => (1, self.eager_slots, self.eager_bytes),
            Class::Bulk => (self.lanes, self.bulk_slots, self.chunk_bytes),
        }
    }
}

impl Settings {
    /// Bytes to register for windows from so many ranks of each class, and for staging.
    pub(crate) fn estimate(&self, eager: usize, bulk: usize) -> usize {
        let windows = |class, sources: usize| {
            let (lanes, slots, bytes) = self.window(class);
            sources * lanes * slots * wire::stride(bytes)
        };
        windows(Class::Eager, eager)
            + windows(Class::Bulk, bulk)
            + self.staging() * self.chunk_bytes.max(self.eager_bytes)
    }

    /// How many puts of one peer may be under way at once because of a window of this class: messages; at most two
    /// credits for each flow the other way; the announcement of its window. In bulk also writes, their credits, a grant,
    /// and a knock for one.
    fn arrivals(&self, class: Class) -> usize {
        let (lanes, slots, _) = self.window(class);
        let writes = if class == Class::Bulk { lanes * self.writes() + 2 * lanes + 2 } else { 0 };
        lanes * slots + 2 * lanes + 1 + writes
    }

    /// How many puts of one peer may be under way at once: messages of its flows, credits for ours (at most
    /// two each before the second is owed), and its other letters.
    pub(crate) fn arrivals_per_peer(&self) -> usize {
        let messages = self.eager_slots + self.lanes * (self.bulk_slots + self.writes());
        messages + 2 * (1 + 2 * self.lanes) + 3 * Class::ALL.len() + 2
    }

    /// How many writes straight into an output may be under way on a lane: they take no memory, so there may be
    /// enough to make credit rare, but they do take room in completion queues.
    pub(crate) fn writes(&self) -> usize {
        (16 / self.lanes.max(1)).clamp(2, 8)
    }

    /// How many staging slots there are: two for each lane keep one filling while the other leaves.
    fn staging(&self) -> usize {
        2 * self.lanes.max(2)
    }
}

/// Why an operation did not end well.
#[derive(Debug)]
pub(crate) enum Stop {
    /// This rank found the reason.
    Failure(Failure),
    /// The transport broke.
    Transport(Error),
    /// Someone else raised the alarm.
    Alarm,
    /// The deadline has passed.
    Deadline,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Transport(error)
    }
}

/// Who watches over an operation from outside the engine.
pub(crate) trait Overseer {
    /// Whether to stop: a failure elsewhere was reported.
    fn stopped(&self) -> bool;

    /// The operation has finished `steps` steps and waits for the rank on the lane, if it waits for one.
    fn stand(&self, steps: u64, waits: Option<(usize, Rank)>);
}

/// What came of one pass over an operation.
enum Pass {
    Ended,
    /// There may be more to do.
    Moved,
    /// Nothing can be done until something comes.
    Idle,
}

/// What a rank must know of another before it can put to it; exchanged at join.
#[derive(Clone, Debug)]
pub(crate) struct Contact {
    pub address: Address,
    /// The mailbox of the world's group: one entry for every rank.
    pub mailbox: RemoteRegion,
}

/// The group of all ranks.
pub(crate) const WORLD: u8 = 0;

/// Runs schedules.
pub(crate) struct Engine {
    port: Port,
    /// The groups, by channel.
    circles: Vec<Option<Box<Circle>>>,
    wait: Wait,
    /// Steps of the latest operation, if they are to be kept.
    pub(crate) trace: Option<Vec<Traced>>,
}

impl Engine {
    /// An engine of rank `me` of `ranks`, which has met nobody yet.
    pub(crate) fn new(
        transport: Box<dyn Transport>,
        me: Rank,
        ranks: usize,
        settings: Settings,
    ) -> Result<Self, Error> {
        let patience = Patience { spin: Duration::ZERO, give_way: Duration::ZERO };
        let mut port = Port::new(transport, me, &settings)?;
        let world = Circle::new(&mut *port.transport, me, ranks, settings)?;
        Ok(Self { port, circles: vec![Some(Box::new(world))], wait: Wait::new(patience), trace: None })
    }

    /// What others must know of this rank.
    pub(crate) fn contact(&self) -> Contact {
        let mailbox = self.circles.iter().flatten().next().map(|world| world.mailbox()).unwrap_or_default();
        Contact { address: self.port.transport.address().clone(), mailbox }
    }

    /// The transport, to register memory.
    pub(crate) fn transport(&mut self) -> &mut dyn Transport {
        &mut *self.port.transport
    }

    /// What the transport can do.
    pub(crate) fn limits(&self) -> &unisono_transport::Limits {
        &self.port.limits
    }

    /// Bytes of registered memory of its own.
    pub(crate) fn memory(&self) -> usize {
        self.port.posts.memory() + self.circles.iter().flatten().map(|circle| circle.memory()).sum::<usize>()
    }

    /// Makes the other ranks known, and settles what depends on them: the smallest chunk that all can
    /// register, and how to wait.
    pub(crate) fn meet(
        &mut self,
        contacts: Vec<Contact>,
        chunk_bytes: usize,
        patience: Patience,
    ) -> Result<(), Stop> {
        self.wait = Wait::new(patience);
        let (addresses, mailboxes): (Vec<_>, Vec<_>) =
            contacts.into_iter().map(|contact| (contact.address, contact.mailbox)).unzip();
        self.port.meet(addresses);
        let world = self.core(WORLD)?.circle;
        world.settings.chunk_bytes = chunk_bytes;
        world.meet(mailboxes.into_iter().enumerate());
        Ok(())
    }

    /// A group and the port.
    fn core(&mut self, channel: u8) -> Result<Core<'_>, Stop> {
        match self.circles.get_mut(usize::from(channel)) {
            Some(Some(circle)) => Ok(Core { port: &mut self.port, circle }),
            _ => Err(self.port.stop(format!("there is no group on channel {channel}"))),
        }
    }

    /// Greets neighbours and waits for their greetings: the self-test of the path both ways.
    pub(crate) fn greet(
        &mut self,
        neighbours: &[Rank],
        overseer: &dyn Overseer,
        deadline: Instant,
    ) -> Result<(), Stop> {
        for &rank in neighbours {
            self.core(WORLD)?.greet(rank)?;
        }
        loop {
            let mut core = self.core(WORLD)?;
            let Some(&rank) = neighbours.iter().find(|&&rank| !core.circle.greeted(rank)) else {
                return Ok(());
            };
            let sent = core.send_letters()?;
            if self.poll()? || sent {
                self.wait.reset();
            } else if let Some(nap) = self.pause(overseer, deadline)? {
                overseer.stand(0, Some((0, rank)));
                self.port.transport.park(nap)?;
            }
        }
    }

    /// Takes in what has happened, whichever group it concerns; true if anything did.
    fn poll(&mut self) -> Result<bool, Stop> {
        let (events, result) = self.port.poll();
        let any = !events.is_empty();
        for event in &events {
            match *event {
                Event::Arrived { immediate, .. } => self.arrived(immediate)?,
                Event::Sent { token } => self.sent(token)?,
            }
        }
        self.port.seen(events);
        result?;
        Ok(any)
    }

    fn sent(&mut self, token: u64) -> Result<(), Stop> {
        if let Some(channel) = post::letter_of(token) {
            let circle = self.core(channel)?.circle;
            circle.letters_under_way = circle.letters_under_way.saturating_sub(1);
            return Ok(());
        }
        let Some(record) = self.port.posts.end(token) else {
            let what = format!("the transport ended a put that was never begun (token {token})");
            return Err(self.port.stop(what));
        };
        self.core(record.channel)?.sent(&record);
        Ok(())
    }

    fn arrived(&mut self, bits: u32) -> Result<(), Stop> {
        let lost = |port: &Port, what: String| Err(port.stop(what));
        match Immediate::decode(bits) {
            Some(Immediate::Data { flow, way, number }) => {
                let Some((channel, receiver)) = self.port.incoming.find(flow) else {
                    return lost(&self.port, format!("a message on flow {flow}, which does not exist"));
                };
                let mut core = self.core(channel)?;
                match way {
                    Way::Slots => core.message_arrived(receiver, number),
                    Way::Direct => core.write_arrived(receiver, number),
                }
            }
            Some(Immediate::Credit { flow, way, freed }) => {
                let Some((channel, sender)) = self.port.outgoing.find(flow) else {
                    return lost(&self.port, format!("a credit for flow {flow}, which does not exist"));
                };
                self.core(channel)?.credit_arrived(sender, way, freed)
            }
            Some(Immediate::Letter { channel, from, about }) => {
                self.core(channel)?.letter_arrived(from, about)
            }
            None => lost(&self.port, format!("an arrival that says nothing known: {bits:#x}")),
        }
    }

    /// Runs an operation of a group to its end: every lane has ended and everything it put has left.
    /// After an error the engine must be dropped before that memory is given back.
    pub(crate) fn run(
        &mut self,
        channel: u8,
        operation: Operation,
        schedule: Box<dyn Schedule>,
        overseer: &dyn Overseer,
        deadline: Instant,
    ) -> Result<(), Stop> {
        let trace = self.trace.take();
        let mut core = self.core(channel)?;
        let mut run = Run::begin(&mut core, operation, schedule)?;
        run.trace = trace.map(|mut steps| {
            steps.clear();
            steps
        });
        let result = self.drive(channel, &mut run, overseer, deadline);
        self.core(channel)?.circle.exposed = false;
        self.trace = run.trace.take();
        result
    }

    /// Passes until the operation has ended; where a pass brings nothing, waits.
    fn drive(
        &mut self,
        channel: u8,
        run: &mut Run,
        overseer: &dyn Overseer,
        deadline: Instant,
    ) -> Result<(), Stop> {
        let mut fruitless = 0_u32;
        loop {
            match self.pass(channel, run)? {
                Pass::Ended => return Ok(()),
                Pass::Moved => {
                    self.wait.reset();
                    fruitless = 0;
                    continue;
                }
                Pass::Idle => {}
            }
            // Also where patience is so long that nobody ever sleeps.
            fruitless = fruitless.wrapping_add(1);
            if fruitless.is_multiple_of(1024) {
                run.doubt(&mut self.core(channel)?)?;
            }
            if let Some(nap) = self.pause(overseer, deadline)? {
                let mut core = self.core(channel)?;
                let (steps, waits) = run.stand();
                overseer.stand(steps, waits.map(|(lane, rank)| (lane, core.circle.world(rank))));
                run.doubt(&mut core)?;
                if !core.send_letters()? {
                    self.port.transport.park(nap)?;
                }
            }
        }
    }

    /// Does once what can be done: puts and takes on every lane, a slice of work, letters; and polls.
    fn pass(&mut self, channel: u8, run: &mut Run) -> Result<Pass, Stop> {
        let mut core = self.core(channel)?;
        let mut moved = false;
        for lane in 0..run.lanes() {
            moved |= run.advance(&mut core, lane)?;
        }
        moved |= run.work(&core)?;
        if core.circle.has_debts() && (run.idle || run.ended()) {
            core.circle.settle_debts();
        }
        if core.circle.has_letters() {
            moved |= core.send_letters()?;
        }
        // Nothing of ours may wait for a poll that comes only with the next call.
        if run.ended() && core.circle.under_way == 0 && core.circle.letters_left() {
            run.close(&mut core)?;
            return Ok(Pass::Ended);
        }
        if moved && run.worked < lane::SLICE {
            return Ok(Pass::Moved);
        }
        run.worked = 0;
        run.idle = !(self.poll()? || moved);
        Ok(if run.idle { Pass::Idle } else { Pass::Moved })
    }

    /// What to do after a poll that brought nothing: tells how long to sleep once patience has run out.
    fn pause(&mut self, overseer: &dyn Overseer, deadline: Instant) -> Result<Option<Duration>, Stop> {
        if overseer.stopped() {
            return Err(Stop::Alarm);
        }
        let now = Instant::now();
        if now >= deadline {
            return Err(Stop::Deadline);
        }
        match self.wait.next(now, deadline) {
            Next::Poll => std::hint::spin_loop(),
            Next::Yield => rustix::thread::sched_yield(),
            Next::Park(nap) => return Ok(Some(nap)),
        }
        Ok(None)
    }
}
