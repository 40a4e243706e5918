//! Executes the schedules of all ranks step by step, in the order that the adversary chooses, and checks each step and the final
//! state.
//!
//! From the time when a write into an output is put until it is awaited, the elements that it writes belong to the sender: a step of
//! the receiver that reads or writes them is a violation, whether the write has landed or not.

use std::{collections::BTreeSet, ops::Range};

use super::{
    Fault, Report, Setup, Traffic, Violation,
    memory::{Area, Cell, RankMemory, SpanLocation, everyone},
    policy::{Action, PendingEvents, Policy},
    shown::Shows,
    state::{CheckedFlow, CheckedPut, Lane, LaneId, Past},
};
use unisono_schedule::{Collective, Place, Rank, Schedule, Span, Step};

pub(super) struct Checker<'a> {
    pub(super) setup: &'a Setup<'a>,
    pub(super) ranks: usize,
    pub(super) width: usize,
    limit: usize,
    /// If true, the schedules say that they write into outputs.
    pub(super) direct: bool,
    schedules: Vec<Box<dyn Schedule>>,
    /// Indexed by rank and lane.
    pub(super) lanes: Vec<Lane>,
    /// Indexed by sender, receiver and lane.
    pub(super) flows: Vec<CheckedFlow>,
    /// For each rank, the elements of its output that are being written and were not awaited, and the writer.
    pub(super) exposed: Vec<Vec<(Rank, Range<usize>)>>,
    pub(super) memories: Vec<RankMemory>,
    pub(super) puts: Vec<CheckedPut>,
    /// The puts of each rank that have not arrived.
    pub(super) under_way: Vec<Vec<usize>>,
    /// The ranks that each rank has heard of, as bits.
    pub(super) heard: Vec<u64>,
    traffic: Vec<Traffic>,
    pub(super) taken: Vec<BTreeSet<Rank>>,
    agenda: PendingEvents,
    hops: usize,
    /// What ranks show, if they do.
    pub(super) shows: Option<Shows>,
}

/// True if a step was executed; false if it must wait.
type Outcome = Result<bool, Fault>;

impl<'a> Checker<'a> {
    pub(super) fn new(schedules: Vec<Box<dyn Schedule>>, setup: &'a Setup<'a>) -> Result<Self, Violation> {
        let ranks = setup.job.ranks;
        let (width, limit, direct) = super::shape(&schedules, setup)?;
        let too_long = |rank| {
            let (what, found, wanted) = ("the count", setup.job.count, usize::MAX / ranks);
            Violation { rank, lane: 0, step: 0, fault: Fault::Shape { what, found, wanted } }
        };
        let memory = |(rank, schedule): (Rank, &dyn Schedule)| {
            RankMemory::new(setup, rank, schedule.scratch()).ok_or_else(|| too_long(rank))
        };
        let memories = schedules.iter().map(|it| &**it).enumerate().map(memory).collect::<Result<_, _>>()?;
        let mut agenda = PendingEvents::new(setup.policy, setup.seed);
        for index in 0..ranks * width {
            agenda.add(Action::Step { rank: index / width, lane: index % width });
        }
        Ok(Self {
            setup,
            ranks,
            width,
            limit,
            direct,
            schedules,
            lanes: (0..ranks * width).map(|_| Lane { listed: true, ..Lane::default() }).collect(),
            flows: (0..ranks * ranks * width).map(|_| CheckedFlow::default()).collect(),
            exposed: vec![Vec::new(); ranks],
            memories,
            puts: Vec::new(),
            under_way: vec![Vec::new(); ranks],
            heard: (0..ranks).map(|rank| 1 << rank).collect(),
            traffic: vec![Traffic::default(); ranks],
            taken: vec![BTreeSet::new(); ranks],
            agenda,
            hops: 0,
            shows: setup.job.shown.map(|_| Shows::new(setup)),
        })
    }

    pub(super) fn run(mut self) -> Result<Report, Violation> {
        while let Some(action) = self.agenda.next() {
            match action {
                Action::Step { rank, lane } => self.advance(LaneId { rank, lane })?,
                Action::Arrive { put, .. } => self.arrive(put)?,
                Action::Sent { put, .. } => self.sent(put),
            }
        }
        self.judge()?;
        Ok(Report { traffic: self.traffic, hops: self.hops })
    }

    pub(super) fn violation(&self, rank: Rank, lane: usize, fault: Fault) -> Violation {
        Violation { rank, lane, step: self.lanes[rank * self.width + lane].steps, fault }
    }

    /// Sender, receiver and lane of a flow.
    pub(super) fn ends(&self, flow: usize) -> (Rank, Rank, usize) {
        let (pair, lane) = (flow / self.width, flow % self.width);
        (pair / self.ranks, pair % self.ranks, lane)
    }

    pub(super) fn flow(&self, from: Rank, to: Rank, lane: usize) -> usize {
        (from * self.ranks + to) * self.width + lane
    }

    /// The state of a lane.
    pub(super) fn lane(&mut self, at: LaneId) -> &mut Lane {
        &mut self.lanes[at.rank * self.width + at.lane]
    }

    /// Executes a lane's next step, or keeps it until it need not wait.
    fn advance(&mut self, at: LaneId) -> Result<(), Violation> {
        let LaneId { rank, lane } = at;
        let (policy, state) = (self.setup.policy, self.lane(at));
        state.listed = false;
        if matches!(policy, Policy::Death { rank: dies, after } if dies == rank && state.steps >= after) {
            return Ok(());
        }
        let Some(step) = state.waits.take().or_else(|| self.next(at)) else {
            self.lane(at).ended = true;
            return match self.schedules[rank].next(lane) {
                Some(step) => Err(self.violation(rank, lane, Fault::NotOver(Box::new(step)))),
                None => Ok(()),
            };
        };
        let done = self.execute(at, step).map_err(|fault| self.violation(rank, lane, fault))?;
        let state = self.lane(at);
        if done {
            state.steps += 1;
            state.listed = true;
            self.agenda.add(Action::Step { rank, lane });
        } else {
            state.waits = Some(step);
        }
        Ok(())
    }

    /// Puts a waiting lane on the agenda, because something happened for which it may wait.
    pub(super) fn wake(&mut self, rank: Rank, lane: usize) {
        let state = self.lane(LaneId { rank, lane });
        if state.waits.is_some() && !state.listed {
            state.listed = true;
            self.agenda.add(Action::Step { rank, lane });
        }
    }

    /// True if a step need not wait.
    fn ready(&self, LaneId { rank, lane }: LaneId, step: &Step) -> bool {
        let shows = self.shows.as_ref();
        match *step {
            Step::Write { to, .. } if self.setup.writable(to) => {
                self.flows[self.flow(rank, to, lane)].writes.open.len() < self.setup.depth
            }
            Step::Await { from, .. } => {
                let next = self.flows[self.flow(from, rank, lane)].writes.open.front();
                next.is_some_and(|open| open.landed)
            }
            Step::Put { to, .. } | Step::Write { to, .. } => {
                let flow = &self.flows[self.flow(rank, to, lane)];
                flow.sent < flow.released + self.setup.depth
            }
            Step::Take { from, .. } => {
                let flow = &self.flows[self.flow(from, rank, lane)];
                flow.slots.iter().any(|slot| slot.arrived == Some(flow.taken))
            }
            Step::Settle => {
                shows.is_none_or(Shows::all_settled) && self.lanes[rank * self.width + lane].unsent == 0
            }
            Step::Show { .. } => shows.is_none_or(|shows| shows.may_show(rank)),
            Step::View { from, .. } => shows.is_none_or(|shows| shows.has_shown(rank, from)),
            _ => true,
        }
    }

    fn execute(&mut self, at: LaneId, step: Step) -> Outcome {
        if let Some(peer) = step.peer().filter(|&peer| peer >= self.ranks || peer == at.rank) {
            return Err(Fault::Peer(peer));
        }
        if step == Step::Settle {
            self.settles(at.rank);
        }
        if !self.ready(at, &step) {
            return Ok(false);
        }
        match step {
            Step::Put { to, from } => self.put(at, to, from, None)?,
            Step::Write { to, from, at: first } => self.write_direct(at, to, first, from)?,
            Step::Await { from, into } => self.await_direct(at, from, into)?,
            Step::Take { from, len } => self.take(at, from, len)?,
            Step::Reduce { a, b, into, last } => self.reduce(at, [a, b, into], last)?,
            Step::Fold { own, at: first, into } => self.fold(at, own, first, into)?,
            Step::Copy { from, into } => self.copy(at, from, into)?,
            Step::Free { from } => self.free(at, from)?,
            Step::Show { shown } => self.show(at, shown)?,
            Step::View { from, shown } => self.view(at, from, shown)?,
            Step::Settle => self.settled(at.rank),
        }
        Ok(true)
    }

    fn free(&mut self, at: LaneId, from: Rank) -> Result<(), Fault> {
        let index = self.flow(from, at.rank, at.lane);
        if self.flows[index].freed == self.flows[index].taken {
            return Err(Fault::FreeNothing(from));
        }
        self.flows[index].freed += 1;
        self.release(index);
        Ok(())
    }

    /// What the next message of a lane tells.
    pub(super) fn past(&mut self, at: LaneId) -> Past {
        Past { heard: self.heard[at.rank], chain: self.lane(at).chain + 1 }
    }

    /// A lane learns what a message tells.
    pub(super) fn hear(&mut self, at: LaneId, past: Past) {
        self.heard[at.rank] |= past.heard;
        self.hops = self.hops.max(past.chain);
        let state = self.lane(at);
        state.chain = state.chain.max(past.chain);
    }

    /// Begins a message to a slot, or to the elements `lands` of the receiver's output.
    pub(super) fn put(
        &mut self,
        by: LaneId,
        to: Rank,
        from: Span,
        lands: Option<Range<usize>>,
    ) -> Result<(), Fault> {
        let LaneId { rank, lane } = by;
        if from.len > self.limit && !(self.setup.job.long && lands.is_some()) {
            return Err(Fault::TooLong { len: from.len, limit: self.limit });
        }
        let source = self.find(by, &from)?;
        self.untouched(rank, &source, &from)?;
        if let Area::Slot { flow, slot } = source.area {
            self.flows[flow].slots[slot].readers += 1;
        }
        let index = self.flow(rank, to, lane);
        let flow = &mut self.flows[index];
        let number = if lands.is_some() { flow.writes.sent } else { flow.send(self.setup.depth) };
        self.traffic[rank].messages += 1;
        self.traffic[rank].elements += from.len;
        let past = self.past(by);
        let state = self.lane(by);
        state.unsent += 1;
        let step = state.steps;
        let put = self.puts.len();
        self.puts.push(CheckedPut { by, step, to, number, source, past, lands });
        self.under_way[rank].push(put);
        self.agenda.add(Action::Arrive { put, to, lane });
        Ok(())
    }

    /// Reads the source of a put and delivers its message.
    fn arrive(&mut self, put: usize) -> Result<(), Violation> {
        let CheckedPut { by: LaneId { rank: from, lane }, to, number, ref source, past, ref lands, .. } =
            self.puts[put];
        let (lands, cells) = (lands.clone(), self.cells(from, source).to_vec());
        self.under_way[from].retain(|&it| it != put);
        let flow = self.flow(from, to, lane);
        if let Some(lands) = lands {
            self.land(flow, number, lands, &cells)?;
        } else {
            let slot = &mut self.flows[flow].slots[number % self.setup.depth];
            slot.cells = cells;
            slot.arrived = Some(number);
            slot.past = past;
        }
        self.agenda.add(Action::Sent { put, lane });
        self.wake(to, lane);
        Ok(())
    }

    fn sent(&mut self, put: usize) {
        let CheckedPut { by, ref source, .. } = self.puts[put];
        if let Area::Slot { flow, slot } = source.area {
            self.flows[flow].slots[slot].readers -= 1;
            self.release(flow);
        }
        self.lane(by).unsent -= 1;
        self.wake(by.rank, by.lane);
    }

    /// Gives freed slots back to the sender, unless a put still reads them.
    fn release(&mut self, flow: usize) {
        self.flows[flow].release(self.setup.depth);
        let (sender, _, lane) = self.ends(flow);
        self.wake(sender, lane);
    }

    fn take(&mut self, at: LaneId, from: Rank, len: usize) -> Result<(), Fault> {
        let index = self.flow(from, at.rank, at.lane);
        let flow = &mut self.flows[index];
        let slot = &flow.slots[flow.taken % self.setup.depth];
        if slot.cells.len() != len {
            return Err(Fault::Length { from, sent: slot.cells.len(), wanted: len });
        }
        flow.taken += 1;
        let past = slot.past;
        self.hear(at, past);
        self.taken[at.rank].insert(from);
        Ok(())
    }

    fn reduce(&mut self, at: LaneId, [a, b, into]: [Span; 3], last: bool) -> Result<(), Fault> {
        let (mut sum, right) = (self.read(at, &a)?, self.read(at, &b)?);
        for (span, other) in [(&a, &b), (&a, &into), (&b, &into)] {
            self.apart_or_same(at, span, other)?;
        }
        for (left, right) in sum.iter_mut().zip(&right) {
            left.take_in(right)?;
            left.done = left.ranks == everyone(self.ranks);
            if left.done != last {
                let present = left.ranks.count_ones() as usize;
                return Err(Fault::Last { element: left.element, present, ranks: self.ranks, last });
            }
        }
        self.write(at, &into, &sum)
    }

    /// Reduces all contributions in the order of ranks.
    fn fold(&mut self, at: LaneId, own: Span, first: usize, into: Span) -> Result<(), Fault> {
        let mut sum = Vec::new();
        for from in 0..self.ranks {
            let landed = Span { offset: first, ..Span::landed(from, into.len) };
            let span = if from == at.rank { own } else { landed };
            self.apart_or_same(at, &span, &into)?;
            let next = self.read(at, &span)?;
            sum.iter_mut().zip(&next).try_for_each(|(left, right): (&mut Cell, _)| left.take_in(right))?;
            if from == 0 {
                sum = next;
            }
        }
        sum.iter_mut().for_each(|cell| cell.done = true);
        self.write(at, &into, &sum)
    }

    fn copy(&mut self, at: LaneId, from: Span, into: Span) -> Result<(), Fault> {
        self.apart_or_same(at, &from, &into)?;
        let stays = self.setup.puts_aside() && from == Span { place: Place::Input, ..into };
        if stays || self.find(at, &from)? == self.find(at, &into)? {
            return Ok(());
        }
        let cells = self.read(at, &from)?;
        self.write(at, &into, &cells)
    }

    /// Where the elements of a span lie.
    pub(super) fn find(&self, at: LaneId, span: &Span) -> Result<SpanLocation, Fault> {
        let bounds = |room| Fault::Bounds { span: *span, room };
        let Place::Landed(from) = span.place else {
            let found = self.memories[at.rank].find(span.place, span.offset, span.len);
            return found.map(|(part, range)| SpanLocation { area: Area::Own(part), range }).map_err(bounds);
        };
        if from >= self.ranks || from == at.rank {
            return Err(Fault::Peer(from));
        }
        if let Some(shows) = self.shows.as_ref().filter(|shows| shows.share(at.rank, from)) {
            return self.find_shown(shows, at.rank, from, span);
        }
        let index = self.flow(from, at.rank, at.lane);
        let flow = &self.flows[index];
        if flow.taken == flow.freed {
            return Err(Fault::NotHeld(from));
        }
        let slot = (flow.taken - 1) % self.setup.depth;
        let room = flow.slots[slot].cells.len();
        let end = span.offset.checked_add(span.len).filter(|&end| end <= room).ok_or_else(|| bounds(room))?;
        Ok(SpanLocation { area: Area::Slot { flow: index, slot }, range: span.offset..end })
    }

    fn cells(&self, rank: Rank, found: &SpanLocation) -> &[Cell] {
        let whole = match found.area {
            Area::Slot { flow, slot } => &self.flows[flow].slots[slot].cells,
            Area::Theirs { owner, part } => self.memories[owner].cells(part),
            Area::Copied { owner, slot } => self.shows.as_ref().map_or(&[][..], |it| &it.slots[owner][slot]),
            Area::Own(part) => self.memories[rank].cells(part),
        };
        &whole[found.range.clone()]
    }

    pub(super) fn read(&mut self, at: LaneId, span: &Span) -> Result<Vec<Cell>, Fault> {
        let found = self.find(at, span)?;
        self.untouched(at.rank, &found, span)?;
        self.reads(at.rank, &found, span)?;
        let cells = self.cells(at.rank, &found).to_vec();
        match cells.iter().position(|cell| !cell.is_defined()) {
            Some(at) => Err(Fault::Undefined { span: *span, at }),
            None => Ok(cells),
        }
    }

    fn write(&mut self, at: LaneId, span: &Span, cells: &[Cell]) -> Result<(), Fault> {
        if span.place == Place::Input {
            return Err(Fault::WritesInput(*span));
        }
        let found = self.find(at, span)?;
        self.untouched(at.rank, &found, span)?;
        self.writes_own(at.rank, &found, span)?;
        for put in self.under_way[at.rank].iter().map(|&put| &self.puts[put]) {
            if put.source.overlaps(&found) {
                return Err(Fault::InFlight { span: *span, to: put.to, put: put.step });
            }
        }
        let memory = match found.area {
            Area::Slot { flow, slot } => &mut self.flows[flow].slots[slot].cells[..],
            Area::Own(part) => self.memories[at.rank].cells_mut(part),
            Area::Theirs { owner, .. } | Area::Copied { owner, .. } => {
                return Err(Fault::WritesTheirs { span: *span, owner });
            }
        };
        memory[found.range].copy_from_slice(cells);
        Ok(())
    }

    /// Checks that two spans of one step have the same length, and are the same memory or do not overlap.
    fn apart_or_same(&self, at: LaneId, one: &Span, other: &Span) -> Result<(), Fault> {
        let (here, there) = (self.find(at, one)?, self.find(at, other)?);
        if one.len != other.len || (here.overlaps(&there) && here != there) {
            return Err(Fault::Operands(*one, *other));
        }
        Ok(())
    }

    /// Checks the state in which no event is possible any more.
    fn judge(&self) -> Result<(), Violation> {
        if let Policy::Death { .. } = self.setup.policy {
            return self.judge_survivors();
        }
        self.stuck()?;
        self.judge_shows()?;
        self.judge_writes()?;
        let left = self.flows.iter().enumerate().find(|(_, flow)| flow.freed < flow.sent);
        if let Some((index, flow)) = left {
            let (from, to, lane) = self.ends(index);
            let fault = match flow.sent - flow.taken {
                0 => Fault::NeverFreed { from, count: flow.taken - flow.freed },
                count => Fault::NeverTaken { from, count },
            };
            return Err(self.violation(to, lane, fault));
        }
        (0..self.ranks)
            .try_for_each(|rank| self.judge_rank(rank).map_err(|fault| self.violation(rank, 0, fault)))
    }

    /// Checks the output of a rank that has ended, and what it has heard.
    fn judge_rank(&self, rank: Rank) -> Result<(), Fault> {
        self.memories[rank].judge(self.setup, rank)?;
        if self.setup.job.collective == Collective::AllReduce
            && let Some(at) = self.memories[rank].differs(&self.memories[0])
        {
            return Err(Fault::Order { at });
        }
        let missing = everyone(self.ranks) & !self.heard[rank];
        if self.setup.job.collective == Collective::Barrier && missing != 0 {
            return Err(Fault::Unheard((0..self.ranks).filter(|rank| missing >> rank & 1 == 1).collect()));
        }
        let mut named = Vec::new();
        self.schedules[rank].sources(&mut |source| named.push(source));
        let taken = &self.taken[rank];
        if named.len() != taken.len() || !named.iter().all(|source| taken.contains(source)) {
            return Err(Fault::Sources { taken: taken.clone(), named });
        }
        Ok(())
    }

    /// Checks the outputs of the ranks that have ended although another has died.
    fn judge_survivors(&self) -> Result<(), Violation> {
        let ended =
            |&rank: &Rank| self.lanes[rank * self.width..][..self.width].iter().all(|lane| lane.ended);
        (0..self.ranks).filter(ended).try_for_each(|rank| {
            self.memories[rank].judge(self.setup, rank).map_err(|fault| self.violation(rank, 0, fault))
        })
    }

    /// Checks that no lane waits.
    fn stuck(&self) -> Result<(), Violation> {
        let waiting = self.lanes.iter().enumerate().filter_map(|(index, lane)| {
            let (rank, lane, what) = (index / self.width, index % self.width, lane.waits_for()?);
            Some((rank, lane, format!("rank {rank} lane {lane} waits {what}")))
        });
        let waiting: Vec<_> = waiting.collect();
        let Some(&(rank, lane, _)) = waiting.first() else {
            debug_assert!(self.lanes.iter().all(|lane| lane.ended));
            return Ok(());
        };
        let waits: Vec<_> = waiting.into_iter().map(|(_, _, waits)| waits).collect();
        Err(self.violation(rank, lane, Fault::Stuck(waits.join(", "))))
    }

    /// A lane's next step. If others may not write into this rank's output, the engine takes the awaited elements from a slot. What
    /// is forwarded leaves from that slot before it is copied, so that the slot is held until the next rank has room.
    fn next(&mut self, at: LaneId) -> Option<Step> {
        let laid_aside = self.lane(at).before.pop();
        let step = laid_aside.or_else(|| self.schedules[at.rank].next(at.lane))?;
        let Step::Await { from, into } = step else { return Some(step) };
        if self.setup.writable(at.rank) {
            return Some(step);
        }
        let after = self.schedules[at.rank].next(at.lane);
        self.lane(at).take_from_slot(from, into, after);
        Some(Step::Take { from, len: into.len })
    }
}
