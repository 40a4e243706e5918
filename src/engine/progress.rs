//! Drives all operations of a process: one loop advances lanes and messages, polls the transport, and sleeps when nothing
//! can be done. One thread at a time runs it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::engine::{
    collective::{Pass, Run, Traced},
    comm::{Comm, Core, Greetings, Net},
    completion::{Completion, Done},
    endpoint::Port,
    p2p::{LONG, Talk},
    request::What,
    settings::Settings,
    stop::{Halt, Stop, halt},
    supervisor::{Call, Request, Supervisor, Task},
    wait::{Next, Patience, Wait},
    wire::CommId,
};
use unisono_schedule::Rank;
use unisono_transport::{Address, Error, RemoteRegion, Transport, Wake};

/// What a rank must know of another before it can put to it; exchanged at join.
#[derive(Clone, Debug)]
pub(crate) struct Contact {
    pub address: Address,
    /// What people call its host.
    pub host: String,
    /// The mailbox of the world's group: one entry for every rank.
    pub mailbox: RemoteRegion,
    /// With what immediates to it are masked.
    pub mask: u32,
    /// Where it takes large greetings; of no length where it takes none.
    pub area: RemoteRegion,
}

/// The group of all ranks.
pub(crate) const WORLD: CommId = 0;

/// After so many rounds of one kind, fruitful or not, it is looked at what waits.
pub(super) const OFTEN: u32 = 1024;

/// When [`Engine::progress`] is to return.
pub(super) struct Until<'u> {
    /// Whether all is done, asked before every round; told whether the latest round brought anything, at first that it did.
    pub over: &'u mut dyn FnMut(&mut Engine, bool) -> Result<bool, Stop>,
    /// When that may become true by itself, so that nobody sleeps longer.
    pub at: Option<Instant>,
    /// Whether ranks meet or leave. Then no operation has a deadline, and nobody else may drive.
    pub attends: bool,
}

/// A collective whose turn has come.
pub(crate) struct UnderWay {
    pub(super) comm_id: CommId,
    pub(super) run: Run,
    pub(super) completion: Completion,
    /// Since when nothing of it has moved, if that was looked at.
    pub(super) doubted: Option<Instant>,
}

/// Runs schedules: those of one group one after the other, those of different groups side by side.
pub(crate) struct Engine {
    pub(super) net: Net,
    /// At most one of each group.
    pub(super) running: Vec<UnderWay>,
    /// The group's that is [called](Self::call) while no other is under way, until it becomes one of those.
    pub(super) alone: Option<(CommId, Run)>,
    /// The groups with messages that somebody waits for.
    pub(super) talking: Vec<CommId>,
    pub(super) wait: Wait,
    /// Who has asked for what could not even begin.
    pub(super) lost: Vec<Completion>,
    /// Whether the latest poll brought nothing.
    pub(super) idle: bool,
    /// Rounds that brought something.
    pub(super) fruitful: u32,
    /// Whether ranks meet or leave: every round also sends greetings and all control messages.
    pub(super) attends: bool,
    /// Those of the world, until all have come.
    pub(super) greetings: Greetings,
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
        let none = Duration::ZERO;
        let patience = Patience { spin: none, give_way: none, alone: none };
        let mut port = Port::new(transport, me, &settings)?;
        let world = Comm::new(&mut *port.transport, me, ranks, settings)?;
        let net = Net { port, comms: vec![Some(Box::new(world))], leaving: Vec::new(), leaves_all: false };
        Ok(Self {
            net,
            running: Vec::new(),
            alone: None,
            talking: Vec::new(),
            lost: Vec::new(),
            wait: Wait::new(patience),
            idle: false,
            fruitful: 0,
            attends: false,
            greetings: Greetings::default(),
            trace: None,
        })
    }

    /// What others must know of this rank.
    pub(crate) fn contact(&self) -> Contact {
        let world = self.net.comms.iter().flatten().next();
        let mailbox = world.map(|world| world.mailbox()).unwrap_or_default();
        let port = &self.net.port;
        let address = port.transport.address().clone();
        Contact { address, host: String::new(), mailbox, mask: port.mask, area: self.greetings.remote() }
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

    /// How many operations of a group have begun.
    pub(crate) fn begun(&mut self, comm_id: CommId) -> u64 {
        self.net.core(comm_id).map_or(0, |core| core.comm.begun)
    }

    /// Bytes of registered memory of its own.
    pub(crate) fn memory(&self) -> usize {
        let comms = self.net.comms.iter().flatten();
        self.net.port.posts.memory() + comms.map(|comm| comm.memory()).sum::<usize>()
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
        self.greetings.meet(contacts.iter().map(|contact| contact.area).collect());
        let (processes, mailboxes): (Vec<_>, Vec<_>) =
            contacts.into_iter().map(|it| ((it.address, it.host, it.mask), it.mailbox)).unzip();
        self.net.port.meet(processes);
        let world = self.net.core(WORLD)?.comm;
        world.settings.chunk_bytes = chunk_bytes;
        world.meet(0..mailboxes.len());
        world.introduce(mailboxes);
        Ok(())
    }

    pub(super) fn serve(
        &mut self,
        comm_id: CommId,
        request: Request,
        supervisor: &dyn Supervisor,
    ) -> Result<(), Halt> {
        match request {
            Request::Do(task) => self.take(comm_id, task, supervisor),
            Request::Leave => {
                // Copies of messages may still be under way: with a poll they are not.
                self.net.poll()?;
                Ok(self.net.leave(comm_id)?)
            }
            Request::Position(question) => {
                question.answer(self.position());
                Ok(())
            }
        }
    }

    /// Takes on something of a group. A collective's turn comes when those that were asked for before have ended.
    pub(crate) fn take(
        &mut self,
        comm_id: CommId,
        task: Task,
        supervisor: &dyn Supervisor,
    ) -> Result<(), Halt> {
        let Task { what, completion } = task;
        let mut core = self.net.core(comm_id)?;
        match what {
            What::Collective(operation, schedule) => {
                return self.turn(comm_id, (operation, schedule, completion), supervisor);
            }
            What::Send(outbound) => core.send(outbound, completion),
            What::Receive(inbound) => core.receive(inbound, completion)?,
            What::Several(all) => return self.take_several(comm_id, all, completion, supervisor),
        }
        if !self.talking.contains(&comm_id) {
            self.talking.push(comm_id);
        }
        Ok(())
    }

    /// Goes on with all operations until the first of `until` says so, none is left, or somebody else wants to drive. The
    /// second is a moment at which the first may come true by itself, so that nobody sleeps beyond it. After an error the
    /// engine must be [abandoned](Self::abandon).
    pub(crate) fn drive(
        &mut self,
        (until, at): (&dyn Fn() -> bool, Option<Instant>),
        supervisor: &dyn Supervisor,
    ) -> Result<(), Halt> {
        let mut over =
            |engine: &mut Self, _| Ok(engine.running.is_empty() && engine.talking.is_empty() || until());
        let until = Until { over: &mut over, at, attends: false };
        let Err(Halt { stop, stalled }) = self.progress(until, supervisor) else { return Ok(()) };
        if stalled.is_some() {
            return Err(Halt { stop, stalled });
        }
        // What stops all stops the oldest.
        if let Some(oldest) = self.running.iter().min_by_key(|it| it.completion.submitted) {
            return Err(oldest.halt(stop));
        }
        let messages = self.talking.iter().filter_map(|&comm_id| {
            let comm = self.net.comms.get(usize::from(comm_id))?.as_ref()?;
            comm.longest_wait()
        });
        Err(match messages.min_by_key(|(at, ..)| *at) {
            Some((at, signature, _)) => halt(stop, (None, None, 0), signature, at),
            None => stop.into(),
        })
    }

    /// The one loop: does rounds, and polls, yields or sleeps after a round that brought nothing.
    pub(super) fn progress(&mut self, until: Until<'_>, supervisor: &dyn Supervisor) -> Result<(), Halt> {
        let Until { over, at, attends } = until;
        self.attends = attends;
        let wanted = || !attends && supervisor.wanted();
        let (mut moved, mut fruitless) = (true, 0_u32);
        loop {
            while let Some((comm_id, request)) = supervisor.asked() {
                self.serve(comm_id, request, supervisor)?;
            }
            if over(self, moved)? {
                return Ok(());
            }
            moved = self.round(supervisor)?;
            if moved {
                self.wait.reset();
                fruitless = 0;
                // Other operations may go on and on beside those that wait.
                self.fruitful = self.fruitful.wrapping_add(1);
                if !self.fruitful.is_multiple_of(OFTEN) {
                    continue;
                }
                self.doubt()?;
            } else {
                // Also where patience is so long that nobody ever sleeps.
                fruitless = fruitless.wrapping_add(1);
                if fruitless.is_multiple_of(OFTEN) {
                    self.doubt()?;
                    self.tell_wait(supervisor);
                }
            }
            if wanted() {
                return Ok(());
            }
            if supervisor.stopped() {
                return Err(Stop::Failed.into());
            }
            let now = Instant::now();
            let deadline = at.into_iter().fold(self.deadline(now)?, Instant::min);
            if moved {
                continue;
            }
            if let Some(nap) = self.pause(now, deadline) {
                self.report_longest_wait(supervisor)?;
                // Control messages go out before this thread sleeps: `doubt` may have made some.
                let relieved = self.doubt()?;
                self.tell_wait(supervisor);
                if !self.send_control()? && !relieved {
                    supervisor.sleeps(true);
                    // What was asked for just before may not have known that this would sleep.
                    let asked = supervisor.asked();
                    let parked = match (&asked, wanted()) {
                        (None, false) => self.net.port.transport.park(nap),
                        _ => Ok(()),
                    };
                    supervisor.sleeps(false);
                    parked.map_err(Stop::from)?;
                    if let Some((comm_id, request)) = asked {
                        self.serve(comm_id, request, supervisor)?;
                    }
                }
            }
        }
    }

    /// Does once what can be done, for every operation under way: puts and takes on every lane, a slice of work,
    /// control messages; and polls. False if that brought nothing.
    pub(super) fn round(&mut self, supervisor: &dyn Supervisor) -> Result<bool, Halt> {
        let (mut moved, mut ended) = (false, false);
        let mut index = 0;
        while let Some(task) = self.running.get_mut(index) {
            let passed = self.net.core(task.comm_id).and_then(|mut core| task.run.pass(&mut core, self.idle));
            match passed {
                Ok(Pass::Ended) => {
                    self.end(index, supervisor)?;
                    ended = true;
                    continue;
                }
                Ok(Pass::Moved) => {
                    (moved, task.doubted) = (true, None);
                }
                Ok(Pass::Idle) => {}
                Err(stop) => return Err(task.halt(stop)),
            }
            index += 1;
        }
        if !self.talking.is_empty() || !self.net.port.active_comms.is_empty() {
            ended |= self.talk(supervisor)?;
        }
        if self.attends {
            moved |= self.send_control()? | self.send_greetings()?;
        }
        // What was waited for may have ended, and another may have begun.
        if ended {
            return Ok(true);
        }
        self.idle = !(self.net.poll()? || moved);
        Ok(!self.idle)
    }

    /// Goes on with messages. True if anything moved.
    pub(super) fn talk(&mut self, supervisor: &dyn Supervisor) -> Result<bool, Halt> {
        let mut moved = false;
        let mut index = 0;
        // Those that nobody here waits for are served too: their senders may wait for that.
        for &comm_id in &self.net.port.active_comms {
            if !self.talking.contains(&comm_id) {
                self.talking.push(comm_id);
            }
        }
        self.net.port.active_comms.clear();
        while let Some(&comm_id) = self.talking.get(index) {
            // A group that has ended meanwhile needs nothing any more.
            let Ok(mut core) = self.net.core(comm_id) else {
                self.talking.swap_remove(index);
                continue;
            };
            moved |= core.talk()?;
            let latest = core.comm.latest();
            while let Some((completion, received)) = self.net.core(comm_id)?.comm.talk.ended.pop_front() {
                moved = true;
                let done = Done { received: received.into_iter().collect(), ..Done::default() };
                if let Some(task) = self.conclude(completion, done, latest, supervisor)? {
                    self.take(comm_id, task, supervisor)?;
                }
            }
            let Core { port, comm } = self.net.core(comm_id)?;
            if comm.talk.open() {
                index += 1;
                continue;
            }
            // What waits for room is tried again.
            if comm.talk.has_more() || !comm.control_queue.is_empty() {
                port.mark_active(comm_id);
            }
            self.talking.swap_remove(index);
            self.net.sweep()?;
        }
        Ok(moved)
    }

    /// The earliest deadline, unless it has passed.
    pub(super) fn deadline(&mut self, now: Instant) -> Result<Instant, Halt> {
        let mut soonest = now + Duration::from_secs(1);
        // When all leave, receives may wait until all has come that was sent.
        if self.attends {
            return Ok(soonest);
        }
        if let Some(first) = self.running.iter().min_by_key(|it| it.completion.deadline) {
            if now >= first.completion.deadline {
                return Err(first.halt(Stop::Deadline));
            }
            soonest = soonest.min(first.completion.deadline);
        }
        for &comm_id in &self.talking {
            let comm = self.net.core(comm_id)?.comm;
            if let Some((at, signature)) = comm.talk.late(now) {
                let signature = signature.worldwide(|rank| comm.world(rank));
                return Err(halt(Stop::Deadline, (None, None, 0), signature, at));
            }
            let talk = &mut comm.talk;
            let next = [talk.deadline(), talk.patience().filter(|&patience| patience > now)];
            soonest = next.into_iter().flatten().fold(soonest, Instant::min);
        }
        Ok(soonest)
    }

    /// What to do where nothing comes. True if that brought something.
    pub(super) fn doubt(&mut self) -> Result<bool, Halt> {
        let now = Instant::now();
        let mut waits = false;
        for task in &mut self.running {
            let doubted = self.net.core(task.comm_id).and_then(|mut core| task.run.doubt(&mut core));
            doubted.map_err(|stop| task.halt(stop))?;
            waits |= now >= *task.doubted.get_or_insert(now) + LONG;
        }
        let mut relieved = false;
        for comm in self.net.comms.iter_mut().flatten() {
            relieved |= Core { port: &mut self.net.port, comm }.relieve(now, waits)?;
        }
        Ok(relieved)
    }

    pub(super) fn send_control(&mut self) -> Result<bool, Halt> {
        let mut any = self.net.sweep()?;
        any |= self.net.send_control()?;
        Ok(any)
    }

    /// Tells where that stands which was asked for first.
    pub(super) fn report_longest_wait(&mut self, supervisor: &dyn Supervisor) -> Result<(), Halt> {
        if self.attends {
            if let (Some(deadline), Some(first)) = (self.greetings.deadline, self.awaited().first()) {
                supervisor.waits_longest(Call::Greeting, Some(first.rank));
                supervisor.until(deadline);
            }
            return Ok(());
        }
        let oldest = self.running.iter().min_by_key(|it| it.completion.submitted);
        let since = oldest.map(|oldest| oldest.completion.submitted);
        for &comm_id in &self.talking {
            let comm = self.net.core(comm_id)?.comm;
            if let Some((at, signature, peer)) = comm.longest_wait()
                && since.is_none_or(|since| at < since)
            {
                supervisor.waits_longest(Call::Message(comm.latest(), signature), peer);
                comm.talk.deadline().into_iter().for_each(|deadline| supervisor.until(deadline));
                return Ok(());
            }
        }
        if let Some(oldest) = oldest {
            let core = self.net.core(oldest.comm_id)?;
            let (_, waits) = oldest.run.progress();
            let waits = waits.first().map(|&rank| core.comm.world(rank));
            let operation = &oldest.run.operation;
            supervisor.waits_longest(Call::Operation(operation.number, operation.signature), waits);
            supervisor.until(oldest.completion.deadline);
        }
        Ok(())
    }

    /// How long to sleep, once patience has run out.
    fn pause(&mut self, now: Instant, deadline: Instant) -> Option<Duration> {
        match self.wait.next(now, deadline) {
            Next::Poll => std::hint::spin_loop(),
            Next::Yield => {
                let yielded = Instant::now();
                rustix::thread::sched_yield();
                self.wait.back_after(yielded.elapsed());
            }
            Next::Park(nap) => return Some(nap),
        }
        None
    }

    /// Closes the endpoint, after which nothing touches the memory of operations any more. Gives back what belongs to
    /// those who asked for them: they are still to be told.
    pub(crate) fn abandon(mut self) -> Vec<Completion> {
        let mut left = Vec::new();
        let (mut runs, mut talks) = (Vec::new(), Vec::new());
        runs.extend(self.alone.take().map(|(_, run)| run));
        for UnderWay { run, completion, .. } in self.running.drain(..) {
            runs.push(run);
            left.push(completion);
        }
        left.append(&mut self.lost);
        for comm in self.net.comms.iter_mut().flatten() {
            left.extend(comm.tasks.drain(..).map(|(.., completion)| completion));
            talks.push(std::mem::take(&mut comm.talk));
        }
        // The endpoint goes before the memory that its puts read and that peers write to.
        drop((self, runs));
        left.extend(talks.iter_mut().flat_map(Talk::abandon));
        left
    }
}

impl UnderWay {
    pub(super) fn halt(&self, stop: Stop) -> Halt {
        let operation = &self.run.operation;
        let which = (Some(operation.number), operation.group.clone(), operation.group_id);
        halt(stop, which, operation.signature, self.completion.submitted)
    }
}
