//! Runs schedules over a transport: lanes, flows, credits, waiting. It has never heard of an algorithm.
//!
//! One thread drives it at a time, the one that waits for the operation. Everything between ranks is a put:
//! messages into slots of windows, and letters (windows, credits, greetings) into mailboxes.

mod core;
mod flow;
mod lane;
mod letters;
mod operation;
mod post;
#[doc(hidden)]
pub mod probe;
mod send;
#[cfg(test)]
mod tests;
mod wait;
mod wire;

use std::time::{Duration, Instant};

use unisono_transport::{Error, Region, RemoteRegion, Transport};

pub use self::lane::Traced;
pub(crate) use self::{
    core::Contact,
    operation::{FAREWELL, Operation, Signature},
    wait::Patience,
    wire::{MAX_RANKS, VERSION},
};
use self::{core::Core, lane::Run, wait::Next, wait::Wait, wire::Class};
use crate::{
    buffer,
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

/// Runs schedules.
pub(crate) struct Engine {
    core: Core,
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
        Ok(Self { core: Core::new(transport, me, ranks, settings)?, wait: Wait::new(patience), trace: None })
    }

    /// What others must know of this rank.
    pub(crate) fn contact(&self) -> Contact {
        self.core.contact()
    }

    /// The transport, to register memory.
    pub(crate) fn transport(&mut self) -> &mut dyn Transport {
        &mut *self.core.transport
    }

    /// What the transport can do.
    pub(crate) fn limits(&self) -> &unisono_transport::Limits {
        &self.core.limits
    }

    /// The sizes in force.
    pub(crate) fn settings(&self) -> &Settings {
        &self.core.settings
    }

    /// Bytes of registered memory of its own.
    pub(crate) fn memory(&self) -> usize {
        self.core.memory()
    }

    /// Makes the other ranks known, and settles what depends on them: the smallest chunk that all can
    /// register, and how to wait.
    pub(crate) fn meet(&mut self, contacts: Vec<Contact>, chunk_bytes: usize, patience: Patience) {
        self.wait = Wait::new(patience);
        self.core.settings.chunk_bytes = chunk_bytes;
        self.core.meet(contacts);
    }

    /// Greets neighbours and waits for their greetings: the self-test of the path both ways.
    pub(crate) fn greet(
        &mut self,
        neighbours: &[Rank],
        overseer: &dyn Overseer,
        deadline: Instant,
    ) -> Result<(), Stop> {
        for &rank in neighbours {
            self.core.greet(rank)?;
        }
        while let Some(&rank) = neighbours.iter().find(|&&rank| !self.core.greeted(rank)) {
            let sent = self.core.send_letters()?;
            if self.core.poll()? || sent {
                self.wait.reset();
            } else if let Some(nap) = self.pause(overseer, deadline)? {
                overseer.stand(0, Some((0, rank)));
                self.core.transport.park(nap)?;
            }
        }
        Ok(())
    }

    /// Runs an operation to its end: every lane has ended and everything it put has left.
    /// After an error the engine must be dropped before that memory is given back.
    pub(crate) fn run(
        &mut self,
        operation: Operation,
        schedule: Box<dyn Schedule>,
        overseer: &dyn Overseer,
        deadline: Instant,
    ) -> Result<(), Stop> {
        let mut run = self.begin(operation, schedule)?;
        let result = self.drive(&mut run, overseer, deadline);
        self.core.exposed = false;
        self.trace = run.trace.take();
        result
    }

    /// Opens the windows that an operation needs, and tells its sources where they may write.
    fn begin(&mut self, operation: Operation, schedule: Box<dyn Schedule>) -> Result<Run, Stop> {
        let bytes = schedule.max_message() * operation.size;
        let settings = &self.core.settings;
        let small = schedule.lanes() == 1 && bytes <= settings.eager_bytes && !schedule.direct();
        let class = if small { Class::Eager } else { Class::Bulk };
        let (lanes, _, slot_bytes) = settings.window(class);
        if schedule.lanes() > lanes || bytes > slot_bytes {
            return Err(self.core.stop(format!(
                "{} lanes with messages of {bytes} bytes where {lanes} lanes of {slot_bytes} are to be had",
                schedule.lanes()
            )));
        }
        let mut opened = Ok(());
        let core = &mut self.core;
        core.provide_scratch(schedule.scratch().saturating_mul(operation.size))?;
        schedule.sources(&mut |from| {
            if opened.is_ok() {
                opened = core.listen(from, class);
            }
        });
        opened?;
        // Told to all sources, and taken back when the operation ends.
        let mut exposed = None;
        if schedule.direct() {
            exposed = self.expose(&operation)?;
            self.grant(&operation, &*schedule, exposed.as_ref().map(|(remote, _)| *remote))?;
        }
        self.core.exposed = exposed.is_some();
        let mut run = Run::new(operation, schedule, class, exposed.map(|(_, region)| region));
        run.trace = self.trace.take();
        if let Some(trace) = &mut run.trace {
            trace.clear();
        }
        Ok(run)
    }

    /// What others need to write into an operation's output; registered for its time alone where that costs next to
    /// nothing, if it does not lie in a registered buffer. `None` where it is not to be had.
    fn expose(&mut self, operation: &Operation) -> Result<Option<(RemoteRegion, Region)>, Stop> {
        if !operation.writable {
            return Ok(None);
        }
        let core = &mut self.core;
        let len = operation.output.len() as u64;
        if let Some((region, at)) = &operation.registered_output {
            return Ok(region.remote().map(|remote| {
                (RemoteRegion { base: remote.base + *at as u64, len, ..remote }, region.clone())
            }));
        }
        if !core.limits.cheap_registration {
            return Ok(None);
        }
        match core.transport.register(buffer::expose(&operation.output)) {
            Ok(region) => Ok(region.remote().map(|remote| (remote, region))),
            Err(error) if operation.long => Err(error.into()),
            Err(error) => {
                tracing::debug!(%error, len, "an output that cannot be registered comes through slots");
                Ok(None)
            }
        }
    }

    /// Tells every source whether and where it may write into this rank's output.
    fn grant(
        &mut self,
        operation: &Operation,
        schedule: &dyn Schedule,
        output: Option<RemoteRegion>,
    ) -> Result<(), Stop> {
        let header = operation.header(0, 0, 0);
        let mut told = Ok(());
        schedule.sources(&mut |source| {
            if told.is_ok() {
                told = self.core.grant(source, header, output);
            }
        });
        told
    }

    /// Passes until the operation has ended; where a pass brings nothing, waits.
    fn drive(&mut self, run: &mut Run, overseer: &dyn Overseer, deadline: Instant) -> Result<(), Stop> {
        let mut fruitless = 0_u32;
        loop {
            match self.pass(run)? {
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
                run.compare(&mut self.core)?;
                run.ask(&mut self.core)?;
            }
            if let Some(nap) = self.pause(overseer, deadline)? {
                let (steps, waits) = run.stand();
                overseer.stand(steps, waits);
                run.compare(&mut self.core)?;
                run.ask(&mut self.core)?;
                if !self.core.send_letters()? {
                    self.core.transport.park(nap)?;
                }
            }
        }
    }

    /// Does once what can be done: puts and takes on every lane, a slice of work, letters; and polls.
    fn pass(&mut self, run: &mut Run) -> Result<Pass, Stop> {
        let core = &mut self.core;
        let mut moved = false;
        for lane in 0..run.lanes() {
            moved |= run.advance(core, lane)?;
        }
        moved |= run.work(core)?;
        if core.has_debts() && (run.idle || run.ended()) {
            core.settle_debts();
        }
        if core.has_letters() {
            moved |= core.send_letters()?;
        }
        // Nothing of ours may wait for a poll that comes only with the next call.
        if run.ended() && core.posts.under_way() == 0 && core.letters_left() {
            run.close(core)?;
            return Ok(Pass::Ended);
        }
        if moved && run.worked < lane::SLICE {
            return Ok(Pass::Moved);
        }
        run.worked = 0;
        run.idle = !(core.poll()? || moved);
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
