//! Runs schedules over a transport: lanes, flows, credits, waiting. It has never heard of an algorithm.
//!
//! One thread drives it at a time, for all operations under way. Everything between ranks is a put:
//! messages into slots of windows, and letters (windows, credits, greetings) into mailboxes. All groups of a process
//! share one endpoint (`port`); each has windows and a mailbox of its own (`circle`).

mod begin;
mod circle;
mod core;
mod flow;
mod lane;
mod letters;
mod net;
mod operation;
mod port;
mod post;
#[doc(hidden)]
pub mod probe;
mod routes;
mod send;
#[cfg(test)]
mod tests;
mod ticket;
mod wait;
mod wire;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use unisono_transport::{Address, Error, RemoteRegion, Transport, Wake};

pub use self::lane::Traced;
use self::{
    circle::Circle,
    lane::{Pass, Run},
    net::Net,
    port::Port,
    wait::{Next, Wait},
    wire::Class,
};
pub(crate) use self::{
    net::Channels,
    operation::{Cargo, FAREWELL, NEW_GROUP, Operation, SPLIT, Signature},
    ticket::{Held, Ticket},
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

/// Who watches over the engine from outside.
pub(crate) trait Overseer {
    /// Whether to stop: a failure elsewhere was reported.
    fn stopped(&self) -> bool;

    /// This operation has waited longest: it has finished `steps` steps and waits for the rank of the world on the
    /// lane, if it waits for one.
    fn stand(&self, operation: Option<&Operation>, steps: u64, waits: Option<(usize, Rank)>);

    /// An operation begins.
    fn began(&self, _: &Operation) {}

    /// An operation has ended.
    fn ended(&self, _: &Operation) {}

    /// An operation that somebody has asked for meanwhile, and the channel of its group.
    fn asked(&self) -> Option<(u8, Task)> {
        None
    }

    /// Whether somebody else wants to drive.
    fn wanted(&self) -> bool {
        false
    }

    /// The engine will sleep, or has slept.
    fn sleeps(&self, _: bool) {}
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

/// An operation that somebody asks for.
pub(crate) struct Task {
    pub operation: Operation,
    pub schedule: Box<dyn Schedule>,
    pub deadline: Instant,
    pub asked: Instant,
    pub ticket: Arc<Ticket>,
    /// What the operation's memory is a part of, unless it is lent.
    pub held: Held,
}

/// A task whose turn has come.
struct UnderWay {
    channel: u8,
    run: Run,
    deadline: Instant,
    asked: Instant,
    ticket: Arc<Ticket>,
    held: Held,
}

/// Why the engine stopped, and at which operation.
pub(crate) struct Halt {
    pub stop: Stop,
    /// Its number and its call, and how long it has taken.
    pub operation: Option<Box<(u64, String, Duration)>>,
}

impl From<Stop> for Halt {
    fn from(stop: Stop) -> Self {
        Self { stop, operation: None }
    }
}

/// Runs schedules: those of one group one after the other, those of different groups side by side.
pub(crate) struct Engine {
    net: Net,
    /// At most one of each group.
    running: Vec<UnderWay>,
    wait: Wait,
    /// Whether the latest poll brought nothing.
    idle: bool,
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
        let net = Net { port, circles: vec![Some(Box::new(world))], leaving: Vec::new() };
        Ok(Self { net, running: Vec::new(), wait: Wait::new(patience), idle: false, trace: None })
    }

    /// What others must know of this rank.
    pub(crate) fn contact(&self) -> Contact {
        let world = self.net.circles.iter().flatten().next();
        let mailbox = world.map(|world| world.mailbox()).unwrap_or_default();
        Contact { address: self.net.port.transport.address().clone(), mailbox }
    }

    /// The transport, to register memory.
    pub(crate) fn transport(&mut self) -> &mut dyn Transport {
        &mut *self.net.port.transport
    }

    /// What ends its sleep.
    pub(crate) fn waker(&self) -> Arc<dyn Wake> {
        self.net.port.transport.waker()
    }

    /// The groups, to make one and to leave one.
    pub(crate) fn net(&mut self) -> &mut Net {
        &mut self.net
    }

    /// What the transport can do.
    pub(crate) fn limits(&self) -> &unisono_transport::Limits {
        &self.net.port.limits
    }

    /// Bytes of registered memory of its own.
    pub(crate) fn memory(&self) -> usize {
        let circles = self.net.circles.iter().flatten();
        self.net.port.posts.memory() + circles.map(|circle| circle.memory()).sum::<usize>()
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
        self.net.port.meet(addresses);
        let world = self.net.core(WORLD)?.circle;
        world.settings.chunk_bytes = chunk_bytes;
        world.meet(mailboxes.into_iter().enumerate());
        Ok(())
    }

    /// Greets neighbours and waits for their greetings: the self-test of the path both ways.
    pub(crate) fn greet(
        &mut self,
        neighbours: &[Rank],
        overseer: &dyn Overseer,
        deadline: Instant,
    ) -> Result<(), Stop> {
        for &rank in neighbours {
            self.net.core(WORLD)?.greet(rank)?;
        }
        loop {
            let mut core = self.net.core(WORLD)?;
            let Some(&missing) = neighbours.iter().find(|&&rank| !core.circle.greeted(rank)) else {
                return Ok(());
            };
            let sent = core.send_letters()?;
            if self.net.poll()? || sent {
                self.wait.reset();
                continue;
            }
            if overseer.stopped() {
                return Err(Stop::Alarm);
            }
            if Instant::now() >= deadline {
                return Err(Stop::Deadline);
            }
            if let Some(nap) = self.pause(deadline) {
                overseer.stand(None, 0, Some((0, missing)));
                self.net.port.transport.park(nap)?;
            }
        }
    }

    /// Takes on an operation of a group. Its turn comes when those that were asked for before have ended.
    pub(crate) fn take(&mut self, channel: u8, task: Task, overseer: &dyn Overseer) -> Result<(), Halt> {
        let circle = self.net.core(channel)?.circle;
        if circle.busy {
            circle.tasks.push_back(task);
            return Ok(());
        }
        circle.busy = true;
        self.begin(channel, task, overseer)
    }

    fn begin(&mut self, channel: u8, task: Task, overseer: &dyn Overseer) -> Result<(), Halt> {
        overseer.began(&task.operation);
        let Task { operation, schedule, deadline, asked, ticket, held } = task;
        let (number, signature) = (operation.number, operation.signature);
        let begun = self.net.core(channel).and_then(|mut core| Run::begin(&mut core, operation, schedule));
        let operation = || Some(Box::new((number, signature.call(), asked.elapsed())));
        match begun {
            Ok(mut run) => {
                run.trace = self.trace.as_ref().map(|_| Vec::new());
                self.running.push(UnderWay { channel, run, deadline, asked, ticket, held });
                Ok(())
            }
            Err(stop) => Err(Halt { stop, operation: operation() }),
        }
    }

    /// Goes on with all operations until `until` says so, none is left, or somebody else wants to drive. After an
    /// error the engine must be [abandoned](Self::abandon).
    pub(crate) fn drive(&mut self, until: &dyn Fn() -> bool, overseer: &dyn Overseer) -> Result<(), Halt> {
        self.rounds(until, overseer).map_err(|halt| match self.running.iter().min_by_key(|it| it.asked) {
            // What stops all stops the oldest.
            Some(oldest) if halt.operation.is_none() => oldest.halt(halt.stop),
            _ => halt,
        })
    }

    fn rounds(&mut self, until: &dyn Fn() -> bool, overseer: &dyn Overseer) -> Result<(), Halt> {
        let mut fruitless = 0_u32;
        loop {
            while let Some((channel, task)) = overseer.asked() {
                self.take(channel, task, overseer)?;
            }
            if self.running.is_empty() || until() {
                return Ok(());
            }
            if self.round(overseer)? {
                self.wait.reset();
                fruitless = 0;
                continue;
            }
            if overseer.wanted() {
                return Ok(());
            }
            // Also where patience is so long that nobody ever sleeps.
            fruitless = fruitless.wrapping_add(1);
            if fruitless.is_multiple_of(1024) {
                self.doubt()?;
            }
            if overseer.stopped() {
                return Err(Stop::Alarm.into());
            }
            let now = Instant::now();
            let Some(oldest) = self.running.iter().min_by_key(|it| it.deadline) else { continue };
            let deadline = oldest.deadline;
            if now >= deadline {
                return Err(oldest.halt(Stop::Deadline));
            }
            if let Some(nap) = self.pause_at(now, deadline) {
                self.stand(overseer)?;
                self.doubt()?;
                if !self.send_letters()? {
                    overseer.sleeps(true);
                    // What was asked for just before may not have known that this would sleep.
                    let asked = overseer.asked();
                    let parked = match (&asked, overseer.wanted()) {
                        (None, false) => self.net.port.transport.park(nap),
                        _ => Ok(()),
                    };
                    overseer.sleeps(false);
                    parked.map_err(Stop::Transport)?;
                    if let Some((channel, task)) = asked {
                        self.take(channel, task, overseer)?;
                    }
                }
            }
        }
    }

    /// Does once what can be done, for every operation under way: puts and takes on every lane, a slice of work,
    /// letters; and polls. False if that brought nothing.
    fn round(&mut self, overseer: &dyn Overseer) -> Result<bool, Halt> {
        let (mut moved, mut worked) = (false, false);
        let mut index = 0;
        while let Some(task) = self.running.get_mut(index) {
            let passed = self.net.core(task.channel).and_then(|mut core| task.run.pass(&mut core, self.idle));
            match passed {
                Ok(Pass::Ended) => {
                    self.end(index, overseer)?;
                    moved = true;
                    continue;
                }
                Ok(Pass::Worked) => (moved, worked) = (true, true),
                Ok(Pass::Moved) => moved = true,
                Ok(Pass::Idle) => {}
                Err(stop) => return Err(task.halt(stop)),
            }
            index += 1;
        }
        if moved && !worked {
            return Ok(true);
        }
        self.idle = !(self.net.poll()? || moved);
        Ok(!self.idle)
    }

    /// The operation has ended; the next of its group begins.
    fn end(&mut self, index: usize, overseer: &dyn Overseer) -> Result<(), Halt> {
        let UnderWay { channel, mut run, ticket, held, .. } = self.running.swap_remove(index);
        if let Some(steps) = run.trace.take() {
            self.trace = Some(steps);
        }
        overseer.ended(&run.operation);
        // Before anyone learns of its end: it refers to memory that is given back.
        drop(run);
        let circle = self.net.core(channel)?.circle;
        circle.exposed = false;
        let next = circle.tasks.pop_front();
        circle.busy = next.is_some();
        ticket.end(Ok(held));
        next.map_or(Ok(()), |task| self.begin(channel, task, overseer))
    }

    /// What to do where nothing comes.
    fn doubt(&mut self) -> Result<(), Halt> {
        for task in &self.running {
            let doubted = self.net.core(task.channel).and_then(|mut core| task.run.doubt(&mut core));
            doubted.map_err(|stop| task.halt(stop))?;
        }
        Ok(())
    }

    fn send_letters(&mut self) -> Result<bool, Halt> {
        let mut any = self.net.sweep()?;
        for task in &self.running {
            any |= self.net.core(task.channel)?.send_letters()?;
        }
        Ok(any)
    }

    /// Tells where the operation stands that was asked for first.
    fn stand(&mut self, overseer: &dyn Overseer) -> Result<(), Halt> {
        if let Some(task) = self.running.iter().min_by_key(|it| it.asked) {
            let core = self.net.core(task.channel)?;
            let (steps, waits) = task.run.stand();
            let waits = waits.map(|(lane, rank)| (lane, core.circle.world(rank)));
            overseer.stand(Some(&task.run.operation), steps, waits);
        }
        Ok(())
    }

    /// How long to sleep, once patience has run out.
    fn pause(&mut self, deadline: Instant) -> Option<Duration> {
        self.pause_at(Instant::now(), deadline)
    }

    fn pause_at(&mut self, now: Instant, deadline: Instant) -> Option<Duration> {
        match self.wait.next(now, deadline) {
            Next::Poll => std::hint::spin_loop(),
            Next::Yield => rustix::thread::sched_yield(),
            Next::Park(nap) => return Some(nap),
        }
        None
    }

    /// Closes the endpoint, after which nothing touches the memory of operations any more. Gives back what belongs to
    /// those who asked for them: they are still to be told.
    pub(crate) fn abandon(mut self) -> Vec<(Arc<Ticket>, Held)> {
        let mut left = Vec::new();
        let mut runs = Vec::new();
        for UnderWay { run, ticket, held, .. } in self.running.drain(..) {
            runs.push(run);
            left.push((ticket, held));
        }
        for circle in self.net.circles.iter_mut().flatten() {
            left.extend(circle.tasks.drain(..).map(|task| (task.ticket, task.held)));
        }
        drop((self, runs));
        left
    }
}

impl UnderWay {
    fn halt(&self, stop: Stop) -> Halt {
        let operation = &self.run.operation;
        let told = (operation.number, operation.signature.call(), self.asked.elapsed());
        Halt { stop, operation: Some(Box::new(told)) }
    }
}
