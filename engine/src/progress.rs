//! Drives all operations of a process: one loop advances lanes and messages, polls the transport, and sleeps when nothing
//! can be done. One thread at a time runs it, the driver.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use unisono_schedule::Rank;
use unisono_transport::{Error, RemoteRegion, Transport, Wake};

use crate::{
    collective::{LaneProgress, OperationRun, Pass},
    comm::{Comm, Core, Handshakes, Leaving, Net, QueuedCollective, ShutdownState},
    completion::{Completion, Done, WorkRequest},
    endpoint::{Contact, Contacts, Port},
    messages::{LONG, MessageWait, Messages},
    request::RequestKind,
    settings::Settings,
    stop::{Halt, Result, StalledOperation, Stop},
    supervisor::{SubmissionEntry, Supervisor, WaitingCall},
    wait::{IdleAction, Patience, Wait},
    wire::{CommId, MAX_COMMS},
};

/// A bit for each communicator id.
pub type CommIds = [u64; MAX_COMMS / 64];

/// The communicator of all ranks.
pub const WORLD: CommId = 0;

/// The engine checks stalled operations after this many rounds, and then also deadlines and the failure latch if the round moved something.
pub(super) const OFTEN: u32 = 1024;

/// Says whether [`DrivenEngine::progress`] is to return. It is called before every round, with true if the latest round moved anything
/// or there was none.
pub(super) type IsDone<'d> = &'d mut dyn FnMut(&mut Engine, bool) -> Result<bool>;

/// A collective that has begun.
pub(crate) struct RunningOperation {
    pub(super) comm_id: CommId,
    pub(super) run: OperationRun,
    pub(super) completion: Completion,
    /// The time when a check first found it stalled, if nothing of it has moved since.
    pub(super) stalled: Option<Instant>,
}

/// Runs operations: the collectives of one communicator one after the other, those of different communicators side by side.
pub struct Engine {
    pub(super) net: Net,
    /// The collectives that have begun: at most one of each communicator.
    pub(super) running: Vec<RunningOperation>,
    /// The collective that its caller [runs directly](DrivenEngine::call), until it moves to `running`.
    pub(super) alone: Option<(CommId, OperationRun)>,
    /// The communicators whose sends and receives are to be advanced.
    pub(super) messaging: Vec<CommId>,
    pub(super) wait: Wait,
    /// The completions of operations that failed to begin.
    pub(super) lost: Vec<Completion>,
    /// The allocations of lanes of operations that have ended, for the next ones.
    pub(super) lanes: Vec<Vec<LaneProgress>>,
    /// True if the latest round moved nothing.
    pub(super) idle: bool,
    /// The number of rounds; it wraps.
    pub(super) rounds: u32,
    /// True if ranks join or leave. Then every round also sends handshakes and all control messages, no operation has a deadline,
    /// and no other thread may drive.
    pub(super) joins_or_leaves: bool,
    /// The handshakes of the world, until all have arrived.
    pub(super) handshakes: Handshakes,
}

/// The engine and its owner, to which it reports, for the thread that drives it.
pub struct DrivenEngine<'e> {
    pub(super) engine: &'e mut Engine,
    pub(super) supervisor: &'e dyn Supervisor,
}

impl Engine {
    /// The engine of rank `me` of `ranks`. It knows no other rank before [`meet`](Self::set_contacts).
    pub fn new(
        transport: Box<dyn Transport>,
        me: Rank,
        ranks: usize,
        settings: Settings,
    ) -> Result<Self, Error> {
        let mut port = Port::new(transport, me, &settings)?;
        let world = Comm::new(&mut *port.transport, WORLD, (me, ranks), settings)?;
        let comms = vec![Some(Box::new(world))];
        let net = Net { port, comms, leaving: Leaving::default(), leaves_all: false, unpolled: 0 };
        Ok(Self {
            net,
            running: Vec::new(),
            alone: None,
            messaging: Vec::new(),
            lost: Vec::new(),
            lanes: Vec::new(),
            wait: Wait::new(Patience::default()),
            idle: false,
            rounds: 0,
            joins_or_leaves: false,
            handshakes: Handshakes::default(),
        })
    }

    /// The information that other ranks need of this one.
    pub fn contact(&self) -> Contact {
        let mailbox = self.net.comm(WORLD).map(|world| world.mailbox.remote()).unwrap_or_default();
        let port = &self.net.port;
        let address = port.transport.address().clone();
        Contact { address, host: String::new(), mailbox, mask: port.mask }
    }

    /// The engine for the thread that drives it, which reports to this supervisor.
    pub fn driven_by<'e>(&'e mut self, supervisor: &'e dyn Supervisor) -> DrivenEngine<'e> {
        DrivenEngine { engine: self, supervisor }
    }

    /// The transport, to register memory.
    pub fn transport(&mut self) -> &mut dyn Transport {
        &mut *self.net.port.transport
    }

    /// Wakes the engine when it sleeps.
    pub fn waker(&self) -> Arc<dyn Wake> {
        self.net.port.transport.waker()
    }

    /// The communicator ids that are free on this rank, a bit for each.
    pub fn free_comm_ids(&self) -> CommIds {
        let comms = &self.net.comms;
        let most = comms.iter().flatten().map(|comm| comm.settings.bounds.comms).next().unwrap_or(0);
        let below = |end: usize| if end >= 64 { u64::MAX } else { (1 << end) - 1 };
        let mut free = std::array::from_fn(|word| below(most.saturating_sub(64 * word)));
        for (comm_id, comm) in comms.iter().enumerate() {
            if comm.as_ref().is_some_and(|comm| comm.shutdown.state != ShutdownState::Vacant) {
                free[comm_id / 64] &= !(1 << (comm_id % 64));
            }
        }
        free
    }

    /// Makes a communicator of these ranks of the world, in which this one is rank `me`, and returns its mailbox; `None` if another one
    /// has that id. Nothing is sent to its members before they are [introduced](Self::introduce).
    pub fn open(
        &mut self,
        comm_id: CommId,
        me: Rank,
        members: &[Rank],
        settings: Settings,
    ) -> Result<Option<RemoteRegion>, Error> {
        let Self { net, .. } = self;
        if let Some(old) = net.comm_mut(comm_id) {
            // All members of the new group have said that they have left the old one.
            if !old.shutdown.is_vacant() {
                return Ok(None);
            }
            if !old.identity.members.iter().all(|member| members.contains(&member.world)) {
                old.shutdown.state = ShutdownState::Kept;
                return Ok(None);
            }
            net.free(comm_id);
        }
        let mut comm = Comm::new(&mut *net.port.transport, comm_id, (me, members.len()), settings)?;
        comm.set_members(members.iter().copied());
        let (mailbox, place) = (comm.mailbox.remote(), usize::from(comm_id));
        if net.comms.len() <= place {
            net.comms.resize_with(place + 1, || None);
        }
        net.comms[place] = Some(Box::new(comm));
        Ok(Some(mailbox))
    }

    /// Gives an open communicator its name in messages, and the mailboxes of its members.
    pub fn introduce(
        &mut self,
        comm_id: CommId,
        id: u64,
        label: Arc<str>,
        mailboxes: impl Iterator<Item = RemoteRegion>,
    ) -> Result<()> {
        let core = self.net.core(comm_id)?;
        (core.comm.identity.id, core.comm.identity.label) = (id, Some(label));
        core.comm.mailbox.introduce(mailboxes);
        Ok(())
    }

    /// The limits of the transport.
    pub fn limits(&self) -> &unisono_transport::Limits {
        &self.net.port.limits
    }

    /// The number of collectives of a communicator that have begun.
    pub fn begun(&mut self, comm_id: CommId) -> u64 {
        self.net.core(comm_id).map_or(0, |core| core.comm.collectives.begun)
    }

    /// True if the ranks of a communicator share slots, and have found that each can read all memory of the others.
    pub fn reads_peers(&mut self, comm_id: CommId) -> bool {
        self.net.core(comm_id).is_ok_and(|core| core.comm.shared.reads)
    }

    /// Bytes of registered memory that the engine has allocated.
    pub fn memory(&self) -> usize {
        let comms = self.net.comms.iter().flatten();
        self.net.port.posts.memory() + comms.map(|comm| comm.memory()).sum::<usize>()
    }

    /// Makes the other ranks known, with the values that all have agreed on: the bytes of a chunk, and how long to poll before sleeping.
    pub fn set_contacts(
        &mut self,
        contacts: Arc<dyn Contacts>,
        chunk_bytes: usize,
        patience: Patience,
    ) -> Result<()> {
        let ranks = contacts.ranks();
        let Core { port, comm: world } = self.net.core(WORLD)?;
        port.set_ranks(ranks, world.settings.arrivals_among(1));
        world.settings.chunk_bytes = chunk_bytes;
        world.set_members(0..ranks);
        self.update_contacts(contacts, patience)
    }

    /// Replaces the contacts, once more ranks are known, and says how long to poll before sleeping.
    pub fn update_contacts(&mut self, contacts: Arc<dyn Contacts>, patience: Patience) -> Result<()> {
        self.wait = Wait::new(patience);
        let world = self.net.core(WORLD)?.comm;
        let mailbox = |rank| contacts.mailbox(rank).unwrap_or_default();
        world.mailbox.introduce((0..contacts.ranks()).map(mailbox));
        self.net.port.contacts = Some(contacts);
        Ok(())
    }

    /// Forgets the collectives of the world that ranks have run while they joined: the next one is their first.
    pub fn forget_calls(&mut self) -> Result<()> {
        let world = self.net.core(WORLD)?.comm;
        world.collectives.forget();
        world.mailbox.forget_probes();
        Ok(())
    }
}

impl DrivenEngine<'_> {
    fn serve(&mut self, comm_id: CommId, request: SubmissionEntry) -> Result<(), Halt> {
        let net = &mut self.engine.net;
        match request {
            SubmissionEntry::Do(task) => return self.take(comm_id, task),
            SubmissionEntry::Leave => {
                // A poll completes copies of messages that are still in flight.
                net.poll()?;
                net.leave(comm_id)?;
            }
            // If no thread waits for it any more, it is not needed.
            SubmissionEntry::Position(answer) => _ = answer.try_send(self.engine.position()),
        }
        Ok(())
    }

    /// Takes on a task of a communicator. A collective begins when those that were submitted before it have ended.
    pub fn take(&mut self, comm_id: CommId, task: WorkRequest) -> Result<(), Halt> {
        let WorkRequest { what, completion } = task;
        let mut core = self.engine.net.core(comm_id)?;
        match what {
            RequestKind::Collective(operation) => {
                return self.turn(comm_id, QueuedCollective { operation, completion });
            }
            RequestKind::Send(outbound) => core.send(outbound, completion),
            RequestKind::Receive(inbound) => core.receive(inbound, completion)?,
            RequestKind::Several(all) => return self.take_several(comm_id, all, completion),
        }
        if !self.engine.messaging.contains(&comm_id) {
            self.engine.messaging.push(comm_id);
        }
        Ok(())
    }

    /// Advances all operations until `until` is true, none is left, or another thread wants to drive. `until` may become true by
    /// itself at the time `at`: the engine does not wait longer. After an error the engine must be [abandoned](Engine::abandon).
    pub fn drive(&mut self, until: &dyn Fn() -> bool, at: Option<Instant>) -> Result<(), Halt> {
        let mut done =
            |engine: &mut Engine, _| Ok(engine.running.is_empty() && engine.messaging.is_empty() || until());
        self.engine.joins_or_leaves = false;
        self.progress(&mut done, at).map_err(|halt| match halt.stalled {
            Some(_) => halt,
            // A failure of the whole engine is reported for the oldest operation.
            None => self.engine.halt(halt.stop),
        })
    }

    /// Runs the loop while ranks join or leave; arguments as for [`progress`](Self::progress).
    pub(super) fn join_or_leave(&mut self, done: IsDone<'_>, at: Option<Instant>) -> Result<(), Halt> {
        self.engine.joins_or_leaves = true;
        self.progress(done, at)
    }

    /// The one loop: does rounds until `done`, and polls, yields or sleeps after a round that moved nothing. It does not sleep
    /// beyond `at`.
    fn progress(&mut self, done: IsDone<'_>, at: Option<Instant>) -> Result<(), Halt> {
        let Self { supervisor, .. } = *self;
        let exclusive = self.engine.joins_or_leaves;
        let wanted = || !exclusive && supervisor.wanted();
        let mut moved = true;
        loop {
            while let Some((comm_id, request)) = supervisor.asked() {
                self.serve(comm_id, request)?;
            }
            if done(self.engine, moved)? {
                return Ok(());
            }
            moved = self.round()?;
            let engine = &mut *self.engine;
            if moved {
                engine.wait.reset();
            }
            // An operation may stall while others move, and an engine with long patience polls and never sleeps.
            engine.rounds = engine.rounds.wrapping_add(1);
            if engine.rounds.is_multiple_of(OFTEN) {
                engine.check_stalled()?;
                if !moved {
                    engine.report_stall(supervisor);
                }
            } else if moved {
                continue;
            }
            if wanted() {
                return Ok(());
            }
            if supervisor.stopped() {
                return Err(Stop::Failed.into());
            }
            let now = Instant::now();
            let deadline = at.into_iter().fold(engine.deadline(now)?, Instant::min);
            if moved {
                continue;
            }
            if !exclusive && at.is_some_and(|at| at <= now) {
                return Ok(());
            }
            if let Some(nap) = engine.pause(now, deadline) {
                engine.report_longest_wait(supervisor);
                // The check may queue control messages, which must go out before this thread sleeps.
                let received = engine.check_stalled()?;
                engine.report_stall(supervisor);
                if !engine.send_control()? && !received {
                    supervisor.sleeps(true);
                    // A thread that submitted a request just before did not know that it has to wake this one.
                    let parked = if supervisor.asks() || wanted() { Ok(()) } else { engine.park(nap) };
                    supervisor.sleeps(false);
                    parked.map_err(Stop::from)?;
                }
            }
        }
    }

    /// One round: for every operation puts and takes on every lane, a slice of work, and control messages; then a poll. False if
    /// nothing moved.
    pub(super) fn round(&mut self) -> Result<bool, Halt> {
        let (mut moved, mut ended) = (false, false);
        let mut index = 0;
        while let Some(task) = self.engine.running.get_mut(index) {
            let core = self.engine.net.core(task.comm_id);
            match core.and_then(|mut core| task.run.pass(&mut core, self.engine.idle)) {
                Ok(Pass::Ended) => {
                    self.end(index)?;
                    ended = true;
                    continue;
                }
                Ok(Pass::Moved) => (moved, task.stalled) = (true, None),
                Ok(Pass::Idle) => {}
                Err(stop) => return Err(task.halt(&self.engine.net, stop)),
            }
            index += 1;
        }
        let engine = &mut *self.engine;
        if !engine.messaging.is_empty() || !engine.net.port.active_comms.is_empty() {
            ended |= self.advance_messages()?;
        }
        let engine = &mut *self.engine;
        if engine.joins_or_leaves {
            moved |= engine.send_control()? | engine.send_large_handshakes()?;
        }
        // The caller's operation may have ended, and another may have begun: both before the next poll.
        if ended {
            return Ok(true);
        }
        engine.idle = !(engine.net.poll()? || moved);
        Ok(!engine.idle)
    }

    /// Advances sends and receives. True if anything moved.
    fn advance_messages(&mut self) -> Result<bool, Halt> {
        let mut moved = false;
        let mut index = 0;
        let Engine { messaging, net, .. } = &mut *self.engine;
        // This includes communicators in which no call of this rank waits: their senders may wait for this rank.
        for comm_id in net.port.active_comms.drain(..) {
            if !messaging.contains(&comm_id) {
                messaging.push(comm_id);
            }
        }
        while let Some(&comm_id) = self.engine.messaging.get(index) {
            // The communicator may have ended meanwhile.
            let Ok(mut core) = self.engine.net.core(comm_id) else {
                self.engine.messaging.swap_remove(index);
                continue;
            };
            moved |= core.advance_messages()?;
            while let Some((completion, received)) =
                self.engine.net.core(comm_id)?.comm.messages.ended.pop_front()
            {
                moved = true;
                let done = Done { received: received.into_iter().collect(), ..Done::default() };
                self.message_ended(comm_id, completion, done)?;
            }
            let Engine { messaging, net, .. } = &mut *self.engine;
            let Core { port, comm } = net.core(comm_id)?;
            if comm.messages.open() {
                index += 1;
                continue;
            }
            // Messages and control messages that found no room are tried again.
            if comm.messages.has_more() || !comm.mailbox.queue.is_empty() {
                port.mark_active(comm_id);
            }
            messaging.swap_remove(index);
            net.mark_changed(comm_id);
            net.continue_leaving()?;
        }
        Ok(moved)
    }
}

impl Engine {
    /// The send or receive that was submitted first of those that have not ended, and its communicator.
    pub(super) fn oldest_message(&self) -> Option<(&Comm, MessageWait)> {
        let comms = self.messaging.iter().filter_map(|&comm_id| self.net.comm(comm_id));
        let oldest = comms.filter_map(|comm| {
            let wait = comm.messages.longest_wait()?.worldwide(|rank| comm.identity.world(rank));
            Some((comm, wait))
        });
        oldest.min_by_key(|(_, wait)| wait.since)
    }

    /// Why the engine stops: at the oldest operation, or else at the oldest message.
    fn halt(&self, stop: Stop) -> Halt {
        if let Some(oldest) = self.running.iter().min_by_key(|it| it.completion.submitted) {
            return oldest.halt(&self.net, stop);
        }
        match self.oldest_message() {
            Some((_, wait)) => Halt::at(stop, StalledOperation::new(wait.signature, wait.since)),
            None => stop.into(),
        }
    }

    /// The earliest deadline, at most a second from `now`; an error if one has passed.
    fn deadline(&mut self, now: Instant) -> Result<Instant, Halt> {
        let mut soonest = now + Duration::from_secs(1);
        // Receives may wait until all ranks have left.
        if self.joins_or_leaves {
            return Ok(soonest);
        }
        if let Some(first) = self.running.iter().min_by_key(|it| it.completion.deadline) {
            if now >= first.completion.deadline {
                return Err(first.halt(&self.net, Stop::Deadline));
            }
            soonest = soonest.min(first.completion.deadline);
        }
        for &comm_id in &self.messaging {
            let comm = self.net.core(comm_id)?.comm;
            if let Some(wait) = comm.messages.late(now) {
                let wait = wait.worldwide(|rank| comm.identity.world(rank));
                return Err(Halt::at(Stop::Deadline, StalledOperation::new(wait.signature, wait.since)));
            }
            let messages = &mut comm.messages;
            let next = [messages.soonest, messages.patience().filter(|&patience| patience > now)];
            soonest = next.into_iter().flatten().fold(soonest, Instant::min);
        }
        Ok(soonest)
    }

    /// Checks operations that may be stalled: compares the messages that arrived with the calls, sends mismatch probes, and receives large
    /// messages unexpected. True if it received one.
    pub(super) fn check_stalled(&mut self) -> Result<bool, Halt> {
        let now = Instant::now();
        let mut waits = false;
        for task in &mut self.running {
            let checked = self.net.core(task.comm_id).and_then(|mut core| task.run.check_stalled(&mut core));
            checked.map_err(|stop| task.halt(&self.net, stop))?;
            waits |= now >= *task.stalled.get_or_insert(now) + LONG;
        }
        let mut received = false;
        for comm in self.net.comms.iter_mut().flatten() {
            received |= Core { port: &mut self.net.port, comm }.receive_unexpected(now, waits)?;
        }
        Ok(received)
    }

    pub(super) fn send_control(&mut self) -> Result<bool> {
        Ok(self.net.continue_leaving_all()? | self.net.send_control()?)
    }

    /// Reports the call that was submitted first of those that have not ended, the rank that it waits for, and its deadline.
    fn report_longest_wait(&self, supervisor: &dyn Supervisor) {
        let operation = self.running.iter().min_by_key(|it| it.completion.submitted);
        let older = |at: Instant| operation.is_none_or(|operation| at < operation.completion.submitted);
        let message = self.oldest_message().filter(|(_, wait)| older(wait.since));
        let (call, waits, deadline) = match (message, operation) {
            _ if self.joins_or_leaves => {
                let Some(first) = self.pending_handshakes().next() else { return };
                (WaitingCall::Handshake, Some(first.rank), self.handshakes.deadline)
            }
            (Some((comm, wait)), _) => {
                let call = WaitingCall::Message(comm.collectives.latest(), wait.signature);
                (call, wait.peer, comm.messages.soonest)
            }
            (None, Some(RunningOperation { comm_id, run, completion, .. })) => {
                let Some(comm) = self.net.comm(*comm_id) else { return };
                let world = |rank| comm.identity.world(rank);
                let (_, waits) = run.progress(comm);
                let call = WaitingCall::Operation(run.operation.number, run.operation.plan.signature);
                (call, waits.first().copied().map(world), Some(completion.deadline))
            }
            (None, None) => return,
        };
        supervisor.waits_longest(call, waits, deadline);
    }

    /// Sleeps on the transport, unless peers have published a word that an operation waits for.
    fn park(&mut self, nap: Duration) -> Result<(), Error> {
        let Self { net: Net { port, comms, .. }, running, .. } = self;
        let mut ready = || {
            running.iter().any(|task| {
                let comm = comms.get(usize::from(task.comm_id)).and_then(Option::as_deref);
                comm.is_some_and(|comm| task.run.is_ready(comm))
            })
        };
        port.transport.park(nap, &[], &mut ready)
    }

    /// Polls or yields as patience says; once it has run out, the time to sleep.
    fn pause(&mut self, now: Instant, deadline: Instant) -> Option<Duration> {
        match self.wait.next(now, deadline) {
            IdleAction::Poll => std::hint::spin_loop(),
            IdleAction::Yield => {
                let yielded = Instant::now();
                rustix::thread::sched_yield();
                self.wait.back_after(yielded.elapsed());
            }
            IdleAction::Park(nap) => return Some(nap),
        }
        None
    }

    /// Closes the endpoint, after which nothing touches the memory of operations any more. Returns the completions of all
    /// operations, whose callers do not know of the end yet.
    pub fn abandon(mut self) -> Vec<Completion> {
        let mut left = Vec::new();
        let (mut runs, mut talks) = (Vec::new(), Vec::new());
        runs.extend(self.alone.take().map(|(_, run)| run));
        for RunningOperation { run, completion, .. } in self.running.drain(..) {
            runs.push(run);
            left.push(completion);
        }
        left.append(&mut self.lost);
        for comm in self.net.comms.iter_mut().flatten() {
            left.extend(comm.collectives.tasks.drain(..).map(|task| task.completion));
            talks.push(std::mem::take(&mut comm.messages));
        }
        // The endpoint closes before the memory that its puts read and that peers write to is freed.
        drop((self, runs));
        left.extend(talks.iter_mut().flat_map(Messages::abandon));
        left
    }
}

impl RunningOperation {
    /// Why the engine stops at this operation.
    pub(super) fn halt(&self, net: &Net, stop: Stop) -> Halt {
        net.halt(self.comm_id, &self.run.operation, stop, self.completion.submitted)
    }
}
