//! The simulation: ranks, the cores that they share, ports, and the agenda of events.

use std::collections::{HashMap, VecDeque};

use super::{
    Alike, Cost, Load, SimulationSetup, Unpriced,
    event_queue::{EventQueue, SimulationEvent},
    flow::{FlowKind, Mixed, SimulatedFlow},
    memory,
    ports::Ports,
};
use crate::{Place, Rank, SLICE, Schedule, Span, Step};

/// The most slices of a step.
const SLICES: f64 = 256.0;

/// Which ranks are simulated.
#[derive(Clone, Copy)]
enum View {
    All,
    /// Rank 0, which stands for all.
    One(Alike),
}

pub(crate) struct Simulation<'a> {
    pub(super) setup: &'a SimulationSetup<'a>,
    view: View,
    ranks: usize,
    actors: Vec<Actor>,
    hosts: Vec<Host>,
    pub(super) ports: Ports<'a>,
    flows: Vec<SimulatedFlow>,
    /// The rounds of each rank that is simulated.
    pub(super) rounds: Vec<Rounds>,
    /// The index of a flow by sender, receiver, lane and way.
    index: HashMap<u64, usize, Mixed>,
    agenda: EventQueue,
    steps: u64,
    /// The factor by which processor work takes longer because ranks that are not simulated share the core.
    pub(super) share: f64,
    /// The longest time of a rank that has ended (s).
    longest: f64,
}

/// A rank that is simulated.
struct Actor {
    schedule: Box<dyn Schedule>,
    /// Its host, if cores are shared.
    host: Option<usize>,
    lanes: Vec<Lane>,
    /// The lane that is next to put and take, and the lane that is next to work.
    turn: usize,
    working: usize,
    state: State,
    /// The time at which it first had a core (s).
    begun: Option<f64>,
    /// The time at which it is woken next; infinite if none is known (s).
    wake_at: f64,
    /// The time at which its last put has left (s).
    out: f64,
    messages: u64,
    bytes: u64,
    reduced: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Waits until it is woken.
    Waits,
    /// Can continue, but has no core.
    Queued,
    Runs,
    Ended,
}

struct Lane {
    step: Option<Step>,
    ended: bool,
    /// The bytes of that step that are already reduced or copied.
    done: f64,
    /// The time at which its last put has left (s).
    left: f64,
    /// The flow it used last at each [`End`], and with which peer.
    last: [Option<(Rank, FlowKind, usize)>; 2],
}

/// The rounds of a rank that is simulated.
#[derive(Default)]
pub(super) struct Rounds {
    /// For each round, the time at which others see that it has begun (s).
    pub(super) seen: Vec<f64>,
    /// The time at which others see that it has come to its end, if it has (s).
    pub(super) settled: Option<f64>,
}

/// Which end of a flow a rank has.
#[derive(Clone, Copy)]
enum End {
    Sender,
    Receiver,
}

/// The cores of a host, and the ranks that wait for one. Exists only if ranks share cores.
struct Host {
    free: usize,
    queue: VecDeque<usize>,
}

impl<'a> Simulation<'a> {
    /// The schedules of all ranks, which `make` gives. A message takes about a microsecond of real time.
    pub(crate) fn all(
        ranks: usize,
        make: &mut dyn FnMut(Rank) -> Box<dyn Schedule>,
        setup: &'a SimulationSetup<'a>,
    ) -> Self {
        let (per_host, cores) = (setup.fabric.ranks_per_host.max(1), setup.fabric.cores.max(1));
        let of = |rank: Rank| match setup.hosts {
            Some(hosts) => hosts.get(rank).map_or(0, |&host| host as usize),
            None => rank / per_host,
        };
        let host_of: Vec<_> = (0..ranks).map(of).collect();
        let count = host_of.iter().max().map_or(0, |last| last + 1);
        let mut here = vec![0; count];
        host_of.iter().for_each(|&host| here[host] += 1);
        let crowded = here.iter().any(|&ranks| ranks > cores);
        let host = || Host { free: cores, queue: VecDeque::new() };
        let hosts = if crowded { (0..count).map(|_| host()).collect() } else { Vec::new() };
        let ports = Ports::new(setup.fabric, host_of.clone(), false);
        let schedules = (0..ranks).map(|rank| (make(rank), crowded.then(|| host_of[rank]))).collect();
        Self::new(View::All, ranks, schedules, (hosts, ports), 1.0, setup)
    }

    /// The schedule of rank 0 of `ranks` ranks that all do the same at the same time: it takes the messages that it has put itself. If
    /// ranks share cores, its work takes longer by the number of ranks on a core.
    pub(crate) fn one(
        ranks: usize,
        alike: Alike,
        schedule: Box<dyn Schedule>,
        setup: &'a SimulationSetup<'a>,
    ) -> Self {
        let share = setup.fabric.crowd(ranks);
        // A host with one core, so that waking costs time.
        let hosts = if share > 1.0 { vec![Host { free: 1, queue: VecDeque::new() }] } else { Vec::new() };
        let ports = Ports::new(setup.fabric, vec![0], setup.fabric.hosts(ranks) == 1);
        let schedules = vec![(schedule, (share > 1.0).then_some(0))];
        Self::new(View::One(alike), ranks, schedules, (hosts, ports), share, setup)
    }

    fn new(
        view: View,
        ranks: usize,
        schedules: Vec<(Box<dyn Schedule>, Option<usize>)>,
        (hosts, ports): (Vec<Host>, Ports<'a>),
        share: f64,
        setup: &'a SimulationSetup<'a>,
    ) -> Self {
        let lane = || Lane { step: None, ended: false, done: 0.0, left: 0.0, last: [None; 2] };
        let actor = |(schedule, host): (Box<dyn Schedule>, Option<usize>)| Actor {
            lanes: (0..schedule.lanes()).map(|_| lane()).collect(),
            schedule,
            host,
            turn: 0,
            working: 0,
            state: State::Waits,
            begun: None,
            wake_at: f64::INFINITY,
            out: 0.0,
            messages: 0,
            bytes: 0,
            reduced: 0,
        };
        Self {
            rounds: schedules.iter().map(|_| Rounds::default()).collect(),
            setup,
            view,
            ranks,
            actors: schedules.into_iter().map(actor).collect(),
            hosts,
            ports,
            flows: Vec::new(),
            index: HashMap::default(),
            agenda: EventQueue::default(),
            steps: 0,
            share,
            longest: 0.0,
        }
    }

    pub(crate) fn run(mut self) -> Result<Cost, Unpriced> {
        for index in 0..self.actors.len() {
            // At the beginning a rank gets its core without the cost of waking.
            match self.actors[index].host {
                Some(host) if self.hosts[host].free == 0 => self.queue(host, index),
                host => {
                    if let Some(host) = host {
                        self.hosts[host].free -= 1;
                    }
                    self.actors[index].state = State::Runs;
                    self.agenda.add(0.0, SimulationEvent::Resume(index));
                }
            }
        }
        while let Some((time, what)) = self.agenda.next() {
            match what {
                SimulationEvent::Resume(actor) => self.resume(actor, time)?,
                SimulationEvent::Wake(actor) => self.wake(actor, time)?,
                SimulationEvent::Head { flow, len, last } => {
                    self.land(flow, self.bytes(len), f64::from_bits(last), time)
                }
            }
        }
        if self.actors.iter().any(|actor| actor.state != State::Ended) {
            return Err(Unpriced::Stuck { slots: self.setup.slots });
        }
        Ok(self.cost())
    }

    fn cost(&self) -> Cost {
        let stand_for = match self.view {
            View::All => 1,
            View::One(..) => self.ranks as u64,
        };
        let load = |of: fn(&Actor) -> u64| {
            let each = self.actors.iter().map(of);
            let total = each.clone().fold(0, u64::saturating_add);
            Load { most: each.max().unwrap_or(0), total: total.saturating_mul(stand_for) }
        };
        let memory = self.actors.iter().map(|actor| memory(&*actor.schedule, self.ranks, self.setup));
        Cost {
            seconds: self.longest,
            messages: load(|actor| actor.messages),
            bytes: load(|actor| actor.bytes),
            reduced: load(|actor| actor.reduced),
            memory: memory.max().unwrap_or(0),
            steps: self.steps,
            extrapolated: false,
        }
    }

    fn queue(&mut self, host: usize, actor: usize) {
        self.actors[actor].state = State::Queued;
        self.hosts[host].queue.push_back(actor);
    }

    /// Wakes a rank at this time, unless it is woken before: then it finds out itself when to wake next.
    pub(super) fn wake_by(&mut self, actor: usize, time: f64) {
        if time < self.actors[actor].wake_at {
            self.actors[actor].wake_at = time;
            self.agenda.add(time, SimulationEvent::Wake(actor));
        }
    }

    /// Wakes a rank that may be able to continue.
    fn wake(&mut self, actor: usize, now: f64) -> Result<(), Unpriced> {
        let state = &mut self.actors[actor];
        // Otherwise an earlier time was set after this one, and has woken the rank.
        if now < state.wake_at {
            return Ok(());
        }
        state.wake_at = f64::INFINITY;
        if state.state != State::Waits {
            return Ok(());
        }
        let Some(host) = self.actors[actor].host else {
            self.actors[actor].state = State::Runs;
            return self.resume(actor, now);
        };
        if self.hosts[host].free == 0 {
            self.queue(host, actor);
        } else {
            self.hosts[host].free -= 1;
            self.switch_to(actor, now);
        }
        Ok(())
    }

    /// Gives a rank a core, which takes [`Fabric::switch`](super::Fabric::switch).
    fn switch_to(&mut self, actor: usize, now: f64) {
        self.actors[actor].state = State::Runs;
        self.agenda.add(now + self.setup.fabric.switch * self.share, SimulationEvent::Resume(actor));
    }

    /// Executes the steps of a rank that has a core, until it waits or another event is due.
    fn resume(&mut self, actor: usize, mut now: f64) -> Result<(), Unpriced> {
        self.actors[actor].begun.get_or_insert(now);
        loop {
            let Some(spent) = self.advance(actor, now)? else {
                return self.park(actor, now);
            };
            if spent > 0.0 {
                now += spent * self.share;
                if self.agenda.due().is_some_and(|next| next <= now) {
                    self.agenda.add(now, SimulationEvent::Resume(actor));
                    return Ok(());
                }
            }
        }
    }

    /// Takes the core from a rank that waits, and wakes it when it can continue, if that time is known.
    fn park(&mut self, actor: usize, now: f64) -> Result<(), Unpriced> {
        let mut soonest = f64::INFINITY;
        let mut ended = true;
        for lane in 0..self.actors[actor].lanes.len() {
            let Some(step) = self.actors[actor].lanes[lane].step else { continue };
            ended = false;
            soonest = soonest.min(self.due(actor, lane, &step)?);
        }
        let state = &mut self.actors[actor];
        state.state = if ended { State::Ended } else { State::Waits };
        if ended {
            // On one core, a rank that begins late finds all messages there, and its time says nothing of the algorithm.
            let begun = if self.setup.fabric.cores > 1 { state.begun.unwrap_or_default() } else { 0.0 };
            let took = now.max(state.out) - begun;
            self.longest = self.longest.max(took);
        } else if soonest.is_finite() {
            self.wake_by(actor, soonest);
        }
        if let Some(host) = self.actors[actor].host {
            match self.hosts[host].queue.pop_front() {
                Some(next) => self.switch_to(next, now),
                None => self.hosts[host].free += 1,
            }
        }
        Ok(())
    }

    /// The time at which a lane's step need not wait any more, if it is known. `flow` is the step's.
    fn known(&self, actor: usize, lane: usize, step: &Step, flow: Option<(usize, End)>) -> Option<f64> {
        match (*step, flow) {
            (Step::Settle, _) if self.setup.showing.is_some() => self.may_end(actor),
            (Step::Settle, _) => Some(self.actors[actor].lanes[lane].left),
            (Step::Show { .. }, _) => self.may_show(actor),
            (Step::View { from, .. }, _) => self.may_view(actor, from),
            (Step::Free { .. }, _) | (_, None) => Some(0.0),
            (_, Some((flow, End::Sender))) => self.flows[flow].room(),
            (_, Some((flow, End::Receiver))) => self.flows[flow].arrival(),
        }
    }

    /// As [`Self::known`], but infinite if it is not known; then the rank is woken when it is known.
    fn due(&mut self, actor: usize, lane: usize, step: &Step) -> Result<f64, Unpriced> {
        let flow = self.flow_of(actor, lane, step)?;
        let known = self.known(actor, lane, step, flow);
        if let Some((flow, end)) = flow.filter(|_| known.is_none()) {
            self.flows[flow].waits[end as usize] = true;
        }
        Ok(known.unwrap_or(f64::INFINITY))
    }

    /// Executes steps until one takes time; returns that time. `None` if all lanes wait or have ended.
    fn advance(&mut self, actor: usize, now: f64) -> Result<Option<f64>, Unpriced> {
        let lanes = self.actors[actor].lanes.len();
        let first = self.actors[actor].turn;
        for lane in (first..lanes).chain(0..first) {
            while let Some(step) = self.step(actor, lane)? {
                let Some(spent) = self.try_step(actor, lane, step, now)? else { break };
                self.actors[actor].lanes[lane].step = None;
                if spent > 0.0 {
                    self.actors[actor].turn = lane;
                    return Ok(Some(spent));
                }
            }
        }
        let first = self.actors[actor].working;
        for lane in (first..lanes).chain(0..first) {
            if let Some(spent) = self.work(actor, lane) {
                self.actors[actor].working = lane;
                self.actors[actor].turn = 0;
                return Ok(Some(spent));
            }
        }
        Ok(None)
    }

    /// The current step of a lane.
    fn step(&mut self, actor: usize, lane: usize) -> Result<Option<Step>, Unpriced> {
        let Actor { schedule, lanes, .. } = &mut self.actors[actor];
        let state = &mut lanes[lane];
        if state.step.is_none() && !state.ended {
            state.step = schedule.next(lane);
            state.ended = state.step.is_none();
            state.done = 0.0;
            self.steps += 1;
            if self.steps > self.setup.limit {
                return Err(Unpriced::TooLong { limit: self.setup.limit });
            }
        }
        Ok(state.step)
    }

    /// Executes a step, unless it must wait or is work; returns its processor time.
    fn try_step(&mut self, actor: usize, lane: usize, step: Step, now: f64) -> Result<Option<f64>, Unpriced> {
        if step == Step::Settle && self.setup.showing.is_some() {
            self.settle(actor, now);
        }
        let works = matches!(step, Step::Reduce { .. } | Step::Fold { .. } | Step::Copy { .. });
        let flow = self.flow_of(actor, lane, &step)?;
        if works || self.known(actor, lane, &step, flow).is_none_or(|time| time > now) {
            return Ok(None);
        }
        let flow = flow.map_or(0, |(flow, _)| flow);
        Ok(Some(match step {
            Step::Put { from, .. } | Step::Write { from, .. } => self.put(actor, lane, flow, from, now)?,
            Step::Take { len, .. } => {
                self.flows[flow].take();
                self.taken(flow, len)
            }
            Step::Await { into, .. } => {
                self.flows[flow].take();
                self.free(flow, now);
                self.taken(flow, into.len)
            }
            Step::Free { .. } => {
                self.free(flow, now);
                0.0
            }
            Step::Show { shown } => self.show(actor, &shown, now),
            Step::View { .. } => self.viewed(),
            _ => 0.0,
        }))
    }

    /// Bytes of this many elements.
    pub(super) fn bytes(&self, len: usize) -> f64 {
        len as f64 * self.setup.element as f64
    }

    /// The processor time for taking a message.
    fn taken(&self, flow: usize, len: usize) -> f64 {
        let SimulatedFlow { sender, receiver, .. } = self.flows[flow];
        let path = self.ports.path(sender, receiver);
        path.receive_overhead + self.bytes(len) * path.receive_per_byte
    }

    fn free(&mut self, flow: usize, now: f64) {
        let SimulatedFlow { sender, receiver, .. } = self.flows[flow];
        let time = self.flows[flow].free(now, self.ports.path(sender, receiver).latency);
        if std::mem::take(&mut self.flows[flow].waits[End::Sender as usize]) {
            self.wake_by(sender, time);
        }
    }

    /// Sends a message; returns the processor time for it.
    fn put(&mut self, actor: usize, lane: usize, flow: usize, from: Span, now: f64) -> Result<f64, Unpriced> {
        let bytes = self.bytes(from.len);
        self.flows[flow].put(now);
        let SimulatedFlow { sender, receiver, .. } = self.flows[flow];
        let departure = self.ports.send(sender, receiver, bytes, self.share, now);
        let state = &mut self.actors[actor];
        state.out = state.out.max(departure.left);
        state.messages += 1;
        let count = (from.len as u64).saturating_mul(self.setup.element as u64);
        state.bytes = state.bytes.saturating_add(count);
        state.lanes[lane].left = departure.left;
        if let Place::Landed(source) = from.place {
            let source = self.flow(actor, lane, End::Receiver, source, FlowKind::Slots)?;
            self.flows[source].read(departure.left);
        }
        let head = SimulationEvent::Head { flow, len: from.len, last: departure.last.to_bits() };
        self.agenda.add(departure.head, head);
        Ok(departure.spent)
    }

    /// A message enters its receiver's port.
    fn land(&mut self, flow: usize, bytes: f64, last: f64, now: f64) {
        let SimulatedFlow { sender, receiver, .. } = self.flows[flow];
        let time = self.ports.receive(sender, receiver, bytes, last, self.share, now);
        let flow = &mut self.flows[flow];
        let time = flow.arrive(time);
        if std::mem::take(&mut flow.waits[End::Receiver as usize]) {
            self.wake_by(receiver, time);
        }
    }

    /// Reduces or copies a slice, if that is the lane's step; returns the processor time for it.
    fn work(&mut self, actor: usize, lane: usize) -> Option<f64> {
        let fabric = self.setup.fabric;
        let step = self.actors[actor].lanes[lane].step?;
        let (len, rate, reduces) = match step {
            Step::Reduce { into, .. } => (into.len, fabric.reduction, true),
            // There are as many reductions as other ranks.
            Step::Fold { into, .. } => {
                (into.len, fabric.reduction / self.ranks.saturating_sub(1).max(1) as f64, true)
            }
            Step::Copy { from, into } => (if from == into { 0 } else { into.len }, fabric.copy, false),
            _ => return None,
        };
        let all = self.bytes(len);
        let count = (len as u64).saturating_mul(self.setup.element as u64);
        let state = &mut self.actors[actor];
        let begun = state.lanes[lane].done;
        let slice = (SLICE as f64).max(all / SLICES).min(all - begun);
        state.lanes[lane].done = begun + slice;
        if begun + slice >= all {
            state.lanes[lane].step = None;
            if reduces {
                state.reduced = state.reduced.saturating_add(count);
            }
        }
        Some(slice / rate)
    }

    /// The flow of a step, and the end of it that the rank has; `None` if the step has none.
    fn flow_of(&mut self, actor: usize, lane: usize, step: &Step) -> Result<Option<(usize, End)>, Unpriced> {
        let (end, peer, way) = match *step {
            Step::Put { to, .. } => (End::Sender, to, FlowKind::Slots),
            Step::Write { to, .. } => (End::Sender, to, FlowKind::Direct),
            Step::Take { from, .. } | Step::Free { from } => (End::Receiver, from, FlowKind::Slots),
            Step::Await { from, .. } => (End::Receiver, from, FlowKind::Direct),
            _ => return Ok(None),
        };
        Ok(Some((self.flow(actor, lane, end, peer, way)?, end)))
    }

    /// The flow between a rank, which has this end of it, and a peer. If one rank stands for all, the flow from a peer to it is its
    /// flow to the rank whose peer it is in the same way.
    fn flow(
        &mut self,
        actor: usize,
        lane: usize,
        end: End,
        peer: Rank,
        way: FlowKind,
    ) -> Result<usize, Unpriced> {
        if let Some((last, last_way, flow)) = self.actors[actor].lanes[lane].last[end as usize]
            && (last, last_way) == (peer, way)
        {
            return Ok(flow);
        }
        if peer >= self.ranks || peer == actor {
            return Err(Unpriced::Peer { rank: actor, peer });
        }
        let flow = match (self.view, end) {
            (View::All, End::Sender) => self.flow_named((actor, peer), (actor, peer), lane, way),
            (View::All, End::Receiver) => self.flow_named((peer, actor), (peer, actor), lane, way),
            (View::One(alike), _) => {
                let distance = match (alike, end) {
                    (Alike::Turned, End::Receiver) => self.ranks - peer,
                    _ => peer,
                };
                self.flow_named((0, distance), (0, 0), lane, way)
            }
        };
        self.actors[actor].lanes[lane].last[end as usize] = Some((peer, way, flow));
        Ok(flow)
    }

    /// The flow of this name between two simulated ranks, which is created when it is first used.
    fn flow_named(
        &mut self,
        name: (usize, usize),
        ends: (usize, usize),
        lane: usize,
        way: FlowKind,
    ) -> usize {
        let pair = (name.0 as u64).wrapping_mul(self.ranks as u64).wrapping_add(name.1 as u64);
        let lanes = self.actors[ends.0].lanes.len().max(1) as u64;
        let key = pair.wrapping_mul(lanes).wrapping_add(lane as u64).wrapping_mul(2) + way as u64;
        let (flows, setup) = (&mut self.flows, self.setup);
        *self.index.entry(key).or_insert_with(|| {
            let slots = if way == FlowKind::Slots { setup.slots } else { setup.writes };
            flows.push(SimulatedFlow::new(ends.0, ends.1, slots));
            flows.len() - 1
        })
    }
}
