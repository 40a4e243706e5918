//! The world in which schedules run: lanes, flows with their slots, puts on their way.

use std::{collections::BTreeSet, ops::Range};

use super::{
    Fault, Report, Setup, Violation,
    memory::{Area, Cell, Memory, everyone, overlap},
    policy::{Action, Agenda},
    writes::Writes,
};
use crate::{Collective, Place, Rank, Schedule, Span, Step, Traffic};

pub(super) struct Checker<'a> {
    pub(super) setup: &'a Setup<'a>,
    ranks: usize,
    pub(super) width: usize,
    limit: usize,
    /// Whether the schedules say that they write straight into outputs.
    pub(super) direct: bool,
    pub(super) schedules: Vec<Box<dyn Schedule>>,
    /// Indexed by rank and lane.
    pub(super) lanes: Vec<Lane>,
    /// Indexed by sender, receiver and lane.
    pub(super) flows: Vec<Flow>,
    /// Indexed alike.
    pub(super) writes: Vec<Writes>,
    /// Where in each rank's output writes land that were not awaited, and whose.
    pub(super) exposed: Vec<Vec<(Rank, Range<usize>)>>,
    pub(super) memories: Vec<Memory>,
    pub(super) puts: Vec<Put>,
    /// The puts of each rank that have not arrived.
    pub(super) under_way: Vec<Vec<usize>>,
    /// Of whom each rank has heard.
    pub(super) heard: Vec<u64>,
    traffic: Vec<Traffic>,
    pub(super) taken: Vec<BTreeSet<Rank>>,
    agenda: Agenda,
    hops: usize,
    /// Room for the operands of a step.
    left: Vec<Cell>,
    right: Vec<Cell>,
}

#[derive(Default)]
pub(super) struct Lane {
    /// The step that waits for something.
    waits: Option<Step>,
    /// Steps that come before the schedule's next, the last one first.
    pub(super) before: Vec<Step>,
    /// Whether it is on the agenda.
    listed: bool,
    ended: bool,
    pub(super) steps: usize,
    /// Puts of which it does not know that they have left.
    unsent: usize,
    /// The longest chain of messages that ends here.
    pub(super) chain: usize,
}

/// Message numbers; message `m` lies in slot `m % depth`.
#[derive(Default)]
pub(super) struct Flow {
    sent: usize,
    pub(super) taken: usize,
    freed: usize,
    /// Freed, and no longer the source of a put: the sender may use the slots again.
    released: usize,
    /// Made when the first message is put; most flows carry none.
    slots: Vec<Slot>,
}

#[derive(Default)]
pub(super) struct Slot {
    /// The number of the message that lies here.
    arrived: Option<usize>,
    cells: Vec<Cell>,
    /// Puts that read from here and have not left.
    readers: usize,
    heard: u64,
    chain: usize,
}

pub(super) struct Put {
    pub(super) from: Rank,
    pub(super) to: Rank,
    pub(super) lane: usize,
    pub(super) number: usize,
    pub(super) area: Area,
    pub(super) range: Range<usize>,
    pub(super) step: usize,
    pub(super) heard: u64,
    pub(super) chain: usize,
    /// Where it lands in the receiver's output, unless in a slot.
    pub(super) lands: Option<Range<usize>>,
}

/// Whether a step was done or must wait.
pub(super) type Outcome = Result<bool, Fault>;

impl<'a> Checker<'a> {
    pub(super) fn new(schedules: Vec<Box<dyn Schedule>>, setup: &'a Setup<'a>) -> Result<Self, Violation> {
        let ranks = setup.job.ranks;
        let at = |rank, fault| Violation { rank, lane: 0, step: 0, fault };
        let shape = |rank, what, found, wanted| Err(at(rank, Fault::Shape { what, found, wanted }));
        if schedules.len() != ranks || ranks == 0 || ranks > 64 {
            return shape(0, "the number of schedules", schedules.len(), ranks.min(64));
        }
        let width = schedules.first().map_or(1, |schedule| schedule.lanes());
        let limit = schedules.first().map_or(0, |schedule| schedule.max_message());
        if limit > setup.job.chunk {
            return shape(0, "max_message", limit, setup.job.chunk);
        }
        if width == 0 || width > setup.job.lanes {
            return shape(0, "lanes", width, setup.job.lanes);
        }
        let direct = schedules.first().is_some_and(|schedule| schedule.direct());
        for (rank, schedule) in schedules.iter().enumerate() {
            if schedule.direct() != direct {
                return shape(rank, "direct", usize::from(!direct), usize::from(direct));
            }
            if schedule.lanes() != width {
                return shape(rank, "lanes", schedule.lanes(), width);
            }
            if schedule.max_message() != limit {
                return shape(rank, "max_message", schedule.max_message(), limit);
            }
        }
        let mut memories = Vec::new();
        for (rank, schedule) in schedules.iter().enumerate() {
            let Some(memory) = Memory::new(setup, rank, schedule.scratch()) else {
                return shape(rank, "the count", setup.job.count, usize::MAX / ranks);
            };
            memories.push(memory);
        }
        let mut agenda = Agenda::new(setup.policy, setup.seed);
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
            flows: (0..ranks * ranks * width).map(|_| Flow::default()).collect(),
            writes: (0..ranks * ranks * width).map(|_| Writes::default()).collect(),
            exposed: vec![Vec::new(); ranks],
            memories,
            puts: Vec::new(),
            under_way: vec![Vec::new(); ranks],
            heard: (0..ranks).map(|rank| 1 << rank).collect(),
            traffic: vec![Traffic::NONE; ranks],
            taken: vec![BTreeSet::new(); ranks],
            agenda,
            hops: 0,
            left: Vec::new(),
            right: Vec::new(),
        })
    }

    pub(super) fn run(mut self, formula: Option<&[Traffic]>) -> Result<Report, Violation> {
        while let Some(action) = self.agenda.next() {
            match action {
                Action::Step { rank, lane } => self.advance(rank, lane)?,
                Action::Arrive { put, .. } => self.arrive(put)?,
                Action::Sent { put, .. } => self.sent(put),
            }
        }
        self.judge(formula)?;
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

    /// Lets a lane take one step, or lay it aside until something happens.
    fn advance(&mut self, rank: Rank, lane: usize) -> Result<(), Violation> {
        let index = rank * self.width + lane;
        self.lanes[index].listed = false;
        let Some(step) = self.lanes[index].waits.take().or_else(|| self.next(rank, lane)) else {
            self.lanes[index].ended = true;
            return match self.schedules[rank].next(lane) {
                Some(step) => Err(self.violation(rank, lane, Fault::NotOver(Box::new(step)))),
                None => Ok(()),
            };
        };
        if self.execute(rank, lane, step).map_err(|fault| self.violation(rank, lane, fault))? {
            self.lanes[index].steps += 1;
            self.lanes[index].listed = true;
            self.agenda.add(Action::Step { rank, lane });
        } else {
            self.lanes[index].waits = Some(step);
        }
        Ok(())
    }

    /// The state of a lane.
    pub(super) fn lane(&mut self, rank: Rank, lane: usize) -> &mut Lane {
        &mut self.lanes[rank * self.width + lane]
    }

    /// Something happened for which this lane may have waited.
    pub(super) fn wake(&mut self, rank: Rank, lane: usize) {
        let state = &mut self.lanes[rank * self.width + lane];
        if state.waits.is_some() && !state.listed {
            state.listed = true;
            self.agenda.add(Action::Step { rank, lane });
        }
    }

    /// Whether a step need not wait.
    fn ready(&self, rank: Rank, lane: usize, step: &Step) -> bool {
        match *step {
            Step::Write { to, .. } if self.granted(to) => {
                self.writes[self.flow(rank, to, lane)].has_room(self.setup.depth)
            }
            Step::Await { from, .. } => self.writes[self.flow(from, rank, lane)].next_has_landed(),
            Step::Put { to, .. } | Step::Write { to, .. } => {
                let flow = &self.flows[self.flow(rank, to, lane)];
                flow.sent < flow.released + self.setup.depth
            }
            Step::Take { from, .. } => {
                let flow = &self.flows[self.flow(from, rank, lane)];
                flow.slots.iter().any(|slot| slot.arrived == Some(flow.taken))
            }
            Step::Settle => self.lanes[rank * self.width + lane].unsent == 0,
            _ => true,
        }
    }

    fn execute(&mut self, rank: Rank, lane: usize, step: Step) -> Outcome {
        if let Step::Put { to: peer, .. }
        | Step::Write { to: peer, .. }
        | Step::Await { from: peer, .. }
        | Step::Take { from: peer, .. }
        | Step::Free { from: peer } = step
            && (peer >= self.ranks || peer == rank)
        {
            return Err(Fault::Peer(peer));
        }
        if !self.ready(rank, lane, &step) {
            return Ok(false);
        }
        match step {
            Step::Put { to, from } => self.put(rank, lane, to, from, None)?,
            Step::Write { to, from, at } => self.write_direct(rank, lane, (to, at), from)?,
            Step::Await { from, into } => self.await_direct(rank, lane, from, into)?,
            Step::Take { from, len } => self.take(rank, lane, from, len)?,
            Step::Reduce { a, b, into, last } => self.reduce(rank, lane, [a, b, into], last)?,
            Step::Fold { own, into } => self.fold(rank, lane, own, into)?,
            Step::Copy { from, into } => self.copy(rank, lane, from, into)?,
            Step::Free { from } => self.free(rank, lane, from)?,
            Step::Settle => {}
        }
        Ok(true)
    }

    fn free(&mut self, rank: Rank, lane: usize, from: Rank) -> Result<(), Fault> {
        let index = self.flow(from, rank, lane);
        if self.flows[index].freed == self.flows[index].taken {
            return Err(Fault::FreeNothing(from));
        }
        self.flows[index].freed += 1;
        self.release(index);
        Ok(())
    }

    /// A message begins its way, to a slot or to where it `lands` in the receiver's output.
    pub(super) fn put(
        &mut self,
        rank: Rank,
        lane: usize,
        to: Rank,
        from: Span,
        lands: Option<Range<usize>>,
    ) -> Result<(), Fault> {
        if from.len > self.limit && !(self.setup.job.long && lands.is_some()) {
            return Err(Fault::TooLong { len: from.len, limit: self.limit });
        }
        let (area, range) = self.find(rank, lane, &from)?;
        self.untouched(rank, area, &range, &from)?;
        if let Area::Slot { flow, slot } = area {
            self.flows[flow].slots[slot].readers += 1;
        }
        let index = self.flow(rank, to, lane);
        let number = if lands.is_some() {
            self.writes[index].send()
        } else {
            let flow = &mut self.flows[index];
            if flow.slots.is_empty() {
                flow.slots.resize_with(self.setup.depth, Slot::default);
            }
            flow.sent += 1;
            flow.sent - 1
        };
        self.traffic[rank].messages += 1;
        self.traffic[rank].elements += from.len;
        let state = &mut self.lanes[rank * self.width + lane];
        state.unsent += 1;
        let (step, chain) = (state.steps, state.chain + 1);
        self.hops = self.hops.max(chain);
        let put = self.puts.len();
        let heard = self.heard[rank];
        self.puts.push(Put { from: rank, to, lane, number, area, range, step, heard, chain, lands });
        self.under_way[rank].push(put);
        self.agenda.add(Action::Arrive { put, to, lane });
        Ok(())
    }

    /// A put's source is read, and its message is there.
    fn arrive(&mut self, index: usize) -> Result<(), Violation> {
        let Put { from, to, lane, number, area, ref range, heard, chain, ref lands, .. } = self.puts[index];
        let lands = lands.clone();
        let mut cells = std::mem::take(&mut self.left);
        cells.clear();
        cells.extend_from_slice(&self.cells(from, area)[range.clone()]);
        self.under_way[from].retain(|&put| put != index);
        if let Some(lands) = lands {
            self.land(index, lands, &cells)?;
        } else {
            let flow = self.flow(from, to, lane);
            let slot = &mut self.flows[flow].slots[number % self.setup.depth];
            std::mem::swap(&mut slot.cells, &mut cells);
            slot.arrived = Some(number);
            slot.heard = heard;
            slot.chain = chain;
        }
        self.left = cells;
        self.agenda.add(Action::Sent { put: index, lane });
        self.wake(to, lane);
        Ok(())
    }

    fn sent(&mut self, index: usize) {
        let Put { from, lane, area, .. } = self.puts[index];
        if let Area::Slot { flow, slot } = area {
            self.flows[flow].slots[slot].readers -= 1;
            self.release(flow);
        }
        self.lanes[from * self.width + lane].unsent -= 1;
        self.wake(from, lane);
    }

    /// Gives freed slots back to the sender, as far as nothing is sent from them any more.
    fn release(&mut self, index: usize) {
        let flow = &mut self.flows[index];
        while flow.released < flow.freed {
            let slot = &mut flow.slots[flow.released % self.setup.depth];
            if slot.readers > 0 {
                break;
            }
            slot.arrived = None;
            flow.released += 1;
        }
        let (sender, lane) = (index / self.width / self.ranks, index % self.width);
        self.wake(sender, lane);
    }

    fn take(&mut self, rank: Rank, lane: usize, from: Rank, len: usize) -> Result<(), Fault> {
        let index = self.flow(from, rank, lane);
        let flow = &mut self.flows[index];
        let slot = &flow.slots[flow.taken % self.setup.depth];
        if slot.cells.len() != len {
            return Err(Fault::Length { from, sent: slot.cells.len(), wanted: len });
        }
        flow.taken += 1;
        self.heard[rank] |= slot.heard;
        let state = &mut self.lanes[rank * self.width + lane];
        state.chain = state.chain.max(slot.chain);
        self.taken[rank].insert(from);
        Ok(())
    }

    fn reduce(&mut self, rank: Rank, lane: usize, [a, b, into]: [Span; 3], last: bool) -> Result<(), Fault> {
        let mut left = std::mem::take(&mut self.left);
        let mut right = std::mem::take(&mut self.right);
        self.read(rank, lane, &a, &mut left)?;
        self.read(rank, lane, &b, &mut right)?;
        for (span, other) in [(&a, &b), (&a, &into), (&b, &into)] {
            self.apart_or_same(rank, lane, span, other)?;
        }
        for (left, right) in left.iter_mut().zip(&right) {
            left.take_in(right)?;
            left.done = left.ranks == everyone(self.ranks);
            if left.done != last {
                let present = left.ranks.count_ones() as usize;
                return Err(Fault::Last { element: left.element, present, ranks: self.ranks, last });
            }
        }
        self.write(rank, lane, &into, &left)?;
        self.left = left;
        self.right = right;
        Ok(())
    }

    /// Everyone's contribution in the order of ranks.
    fn fold(&mut self, rank: Rank, lane: usize, own: Span, into: Span) -> Result<(), Fault> {
        let spans: Vec<Span> = (0..self.ranks)
            .map(|from| if from == rank { own } else { Span::landed(from, into.len) })
            .collect();
        let mut sum = std::mem::take(&mut self.left);
        let mut next = std::mem::take(&mut self.right);
        for (from, span) in spans.iter().enumerate() {
            self.apart_or_same(rank, lane, span, &into)?;
            self.read(rank, lane, span, if from == 0 { &mut sum } else { &mut next })?;
            let pairs = if from == 0 { &mut [][..] } else { &mut sum[..] };
            for (left, right) in pairs.iter_mut().zip(&next) {
                left.take_in(right)?;
            }
        }
        for cell in &mut sum {
            cell.done = true;
        }
        self.write(rank, lane, &into, &sum)?;
        self.left = sum;
        self.right = next;
        Ok(())
    }

    fn copy(&mut self, rank: Rank, lane: usize, from: Span, into: Span) -> Result<(), Fault> {
        self.apart_or_same(rank, lane, &from, &into)?;
        if self.find(rank, lane, &from)? == self.find(rank, lane, &into)? {
            return Ok(());
        }
        let mut cells = std::mem::take(&mut self.left);
        self.read(rank, lane, &from, &mut cells)?;
        self.write(rank, lane, &into, &cells)?;
        self.left = cells;
        Ok(())
    }

    /// Where a span really lies.
    pub(super) fn find(&self, rank: Rank, lane: usize, span: &Span) -> Result<(Area, Range<usize>), Fault> {
        let bounds = |room| Fault::Bounds { span: *span, room };
        let Place::Landed(from) = span.place else {
            let found = self.memories[rank].find(span.place, span.offset, span.len);
            return found.map_err(bounds);
        };
        if from >= self.ranks || from == rank {
            return Err(Fault::Peer(from));
        }
        let index = self.flow(from, rank, lane);
        let flow = &self.flows[index];
        if flow.taken == flow.freed {
            return Err(Fault::NotHeld(from));
        }
        let slot = (flow.taken - 1) % self.setup.depth;
        let room = flow.slots[slot].cells.len();
        let end = span.offset.checked_add(span.len).filter(|&end| end <= room).ok_or_else(|| bounds(room))?;
        Ok((Area::Slot { flow: index, slot }, span.offset..end))
    }

    fn cells(&self, rank: Rank, area: Area) -> &[Cell] {
        match area {
            Area::Slot { flow, slot } => &self.flows[flow].slots[slot].cells,
            own => self.memories[rank].cells(own),
        }
    }

    fn read(&self, rank: Rank, lane: usize, span: &Span, into: &mut Vec<Cell>) -> Result<(), Fault> {
        let (area, range) = self.find(rank, lane, span)?;
        self.untouched(rank, area, &range, span)?;
        into.clear();
        into.extend_from_slice(&self.cells(rank, area)[range]);
        match into.iter().position(|cell| !cell.is_defined()) {
            Some(at) => Err(Fault::Undefined { span: *span, at }),
            None => Ok(()),
        }
    }

    fn write(&mut self, rank: Rank, lane: usize, span: &Span, cells: &[Cell]) -> Result<(), Fault> {
        if span.place == Place::Input {
            return Err(Fault::WritesInput(*span));
        }
        let (area, range) = self.find(rank, lane, span)?;
        self.untouched(rank, area, &range, span)?;
        for put in self.under_way[rank].iter().map(|&put| &self.puts[put]) {
            if put.area == area && overlap(&put.range, &range) {
                return Err(Fault::InFlight { span: *span, to: put.to, put: put.step });
            }
        }
        let memory = match area {
            Area::Slot { flow, slot } => &mut self.flows[flow].slots[slot].cells[..],
            own => self.memories[rank].cells_mut(own),
        };
        memory[range].copy_from_slice(cells);
        Ok(())
    }

    /// Two spans of one step have the same length, and are the same memory or have none in common.
    fn apart_or_same(&self, rank: Rank, lane: usize, one: &Span, other: &Span) -> Result<(), Fault> {
        let ((area, range), (there, theirs)) = (self.find(rank, lane, one)?, self.find(rank, lane, other)?);
        let shared = area == there && overlap(&range, &theirs);
        if one.len != other.len || (shared && range != theirs) {
            return Err(Fault::Operands(*one, *other));
        }
        Ok(())
    }

    /// What holds when nothing can happen any more.
    fn judge(&self, formula: Option<&[Traffic]>) -> Result<(), Violation> {
        self.stuck()?;
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
        for rank in 0..self.ranks {
            let fail = |fault| self.violation(rank, 0, fault);
            self.memories[rank].judge(self.setup, rank).map_err(fail)?;
            if self.setup.job.collective == Collective::AllReduce
                && let Some(at) = self.memories[rank].differs(&self.memories[0])
            {
                return Err(fail(Fault::Order { at }));
            }
            let missing = everyone(self.ranks) & !self.heard[rank];
            if self.setup.job.collective == Collective::Barrier && missing != 0 {
                let missing = (0..self.ranks).filter(|rank| missing >> rank & 1 == 1).collect();
                return Err(fail(Fault::Unheard(missing)));
            }
            let mut named = Vec::new();
            self.schedules[rank].sources(&mut |source| named.push(source));
            let taken = &self.taken[rank];
            if named.len() != taken.len() || !named.iter().all(|source| taken.contains(source)) {
                return Err(fail(Fault::Sources { taken: taken.clone(), named }));
            }
            if let Some(wanted) = formula.and_then(|formula| formula.get(rank).copied()) {
                let sent = self.traffic[rank];
                if sent != wanted {
                    return Err(fail(Fault::Traffic { sent, wanted }));
                }
            }
        }
        Ok(())
    }

    fn stuck(&self) -> Result<(), Violation> {
        let waiting: Vec<(usize, Step)> =
            self.lanes.iter().enumerate().filter_map(|(index, lane)| Some((index, lane.waits?))).collect();
        let Some(&(first, _)) = waiting.first() else {
            debug_assert!(self.lanes.iter().all(|lane| lane.ended));
            return Ok(());
        };
        let told = waiting.iter().map(|&(index, step)| {
            let (rank, lane) = (index / self.width, index % self.width);
            let what = match step {
                Step::Put { to, .. } | Step::Write { to, .. } => format!("for room at rank {to}"),
                Step::Take { from, .. } | Step::Await { from, .. } => {
                    format!("for a message from rank {from}")
                }
                _ => "for its puts to leave".to_owned(),
            };
            format!("rank {rank} lane {lane} waits {what}")
        });
        let told = told.collect::<Vec<_>>().join(", ");
        Err(self.violation(first / self.width, first % self.width, Fault::Stuck(told)))
    }
}
