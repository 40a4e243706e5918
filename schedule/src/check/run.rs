//! Executes the schedules of all ranks step by step, in the order that the adversary chooses, and checks each step and the final
//! state.
//!
//! From the time when a write into an output is put until it is awaited, the elements that it writes belong to the sender: a step of
//! the receiver that reads or writes them is a violation, whether the write has landed or not.

use std::{collections::BTreeSet, ops::Range};

use super::{
    Fault, Report, Setup, Traffic, Violation,
    memory::{Area, Cell, Memory, everyone, overlap},
    policy::{Action, Agenda, Policy},
    shown::Shows,
    state::{Flow, Lane, Put, Writes},
};
use crate::{Collective, Place, Rank, Schedule, Span, Step};

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
    pub(super) flows: Vec<Flow>,
    /// Indexed by sender, receiver and lane.
    pub(super) writes: Vec<Writes>,
    /// For each rank, the elements of its output that are being written and were not awaited, and the writer.
    pub(super) exposed: Vec<Vec<(Rank, Range<usize>)>>,
    pub(super) memories: Vec<Memory>,
    pub(super) puts: Vec<Put>,
    /// The puts of each rank that have not arrived.
    pub(super) under_way: Vec<Vec<usize>>,
    /// The ranks that each rank has heard of, as bits.
    pub(super) heard: Vec<u64>,
    traffic: Vec<Traffic>,
    pub(super) taken: Vec<BTreeSet<Rank>>,
    agenda: Agenda,
    pub(super) hops: usize,
    /// What ranks show, if they do.
    pub(super) shows: Option<Shows>,
    /// Buffers for the operands of a step.
    left: Vec<Cell>,
    right: Vec<Cell>,
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
            Memory::new(setup, rank, schedule.scratch()).ok_or_else(|| too_long(rank))
        };
        let memories = schedules.iter().map(|it| &**it).enumerate().map(memory).collect::<Result<_, _>>()?;
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
            traffic: vec![Traffic::default(); ranks],
            taken: vec![BTreeSet::new(); ranks],
            agenda,
            hops: 0,
            shows: setup.job.shown.map(|_| Shows::new(setup)),
            left: Vec::new(),
            right: Vec::new(),
        })
    }

    pub(super) fn run(mut self) -> Result<Report, Violation> {
        while let Some(action) = self.agenda.next() {
            match action {
                Action::Step { rank, lane } => self.advance(rank, lane)?,
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

    /// Executes a lane's next step, or keeps it until it need not wait.
    fn advance(&mut self, rank: Rank, lane: usize) -> Result<(), Violation> {
        let index = rank * self.width + lane;
        self.lanes[index].listed = false;
        if matches!(self.setup.policy, Policy::Death { rank: dies, after } if dies == rank && self.lanes[index].steps >= after)
        {
            return Ok(());
        }
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

    /// Puts a waiting lane on the agenda, because something happened for which it may wait.
    pub(super) fn wake(&mut self, rank: Rank, lane: usize) {
        let state = &mut self.lanes[rank * self.width + lane];
        if state.waits.is_some() && !state.listed {
            state.listed = true;
            self.agenda.add(Action::Step { rank, lane });
        }
    }

    /// True if a step need not wait.
    fn ready(&self, rank: Rank, lane: usize, step: &Step) -> bool {
        match *step {
            Step::Write { to, .. } if self.setup.writable(to) => {
                self.writes[self.flow(rank, to, lane)].has_room(self.setup.depth)
            }
            Step::Await { from, .. } => self.writes[self.flow(from, rank, lane)].next_has_landed(),
            Step::Put { to, .. } | Step::Write { to, .. } => {
                let flow = &self.flows[self.flow(rank, to, lane)];
                flow.sent < flow.released + self.setup.depth
            }
            Step::Take { from, .. } => self.flows[self.flow(from, rank, lane)].next_has_arrived(),
            Step::Settle => {
                let all_settled = self.shows.as_ref().is_none_or(Shows::all_settled);
                all_settled && self.lanes[rank * self.width + lane].unsent == 0
            }
            Step::Show { .. } => self.shows.as_ref().is_none_or(|shows| shows.may_show(rank)),
            Step::View { from, .. } => self.shows.as_ref().is_none_or(|shows| shows.has_shown(rank, from)),
            _ => true,
        }
    }

    fn execute(&mut self, rank: Rank, lane: usize, step: Step) -> Outcome {
        if let Some(peer) = step.peer().filter(|&peer| peer >= self.ranks || peer == rank) {
            return Err(Fault::Peer(peer));
        }
        if step == Step::Settle {
            self.settles(rank);
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
            Step::Fold { own, at, into } => self.fold(rank, lane, (own, at), into)?,
            Step::Copy { from, into } => self.copy(rank, lane, from, into)?,
            Step::Free { from } => self.free(rank, lane, from)?,
            Step::Show { shown } => self.show(rank, lane, shown)?,
            Step::View { from, shown } => self.view(rank, lane, from, shown)?,
            Step::Settle => self.settled(rank),
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

    /// Begins a message to a slot, or to the elements `lands` of the receiver's output.
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
            self.flows[index].send(self.setup.depth)
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

    /// Reads the source of a put and delivers its message.
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

    /// Gives freed slots back to the sender, unless a put still reads them.
    fn release(&mut self, index: usize) {
        self.flows[index].release(self.setup.depth);
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

    /// Reduces all contributions in the order of ranks.
    fn fold(&mut self, rank: Rank, lane: usize, (own, at): (Span, usize), into: Span) -> Result<(), Fault> {
        let landed = |from| Span { offset: at, ..Span::landed(from, into.len) };
        let spans: Vec<Span> =
            (0..self.ranks).map(|from| if from == rank { own } else { landed(from) }).collect();
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
        let stays = self.setup.puts_aside() && from == Span { place: Place::Input, ..into };
        if stays || self.find(rank, lane, &from)? == self.find(rank, lane, &into)? {
            return Ok(());
        }
        let mut cells = std::mem::take(&mut self.left);
        self.read(rank, lane, &from, &mut cells)?;
        self.write(rank, lane, &into, &cells)?;
        self.left = cells;
        Ok(())
    }

    /// The area and the range of a span.
    pub(super) fn find(&self, rank: Rank, lane: usize, span: &Span) -> Result<(Area, Range<usize>), Fault> {
        let bounds = |room| Fault::Bounds { span: *span, room };
        let Place::Landed(from) = span.place else {
            let found = self.memories[rank].find(span.place, span.offset, span.len);
            return found.map_err(bounds);
        };
        if from >= self.ranks || from == rank {
            return Err(Fault::Peer(from));
        }
        if let Some(shows) = self.shows.as_ref().filter(|shows| shows.share(rank, from)) {
            return self.find_shown(shows, rank, from, span);
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
            Area::Theirs { owner, part } => self.memories[owner].cells(part.area()),
            Area::Copied { owner, slot } => {
                self.shows.as_ref().map_or(&[], |shows| shows.copied(owner, slot))
            }
            own => self.memories[rank].cells(own),
        }
    }

    pub(super) fn read(
        &mut self,
        rank: Rank,
        lane: usize,
        span: &Span,
        into: &mut Vec<Cell>,
    ) -> Result<(), Fault> {
        let (area, range) = self.find(rank, lane, span)?;
        self.untouched(rank, area, &range, span)?;
        self.reads(rank, area, &range, span)?;
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
        if let Area::Theirs { owner, .. } | Area::Copied { owner, .. } = area {
            return Err(Fault::WritesTheirs { span: *span, owner });
        }
        self.untouched(rank, area, &range, span)?;
        self.writes_own(rank, area, &range, span)?;
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

    /// Checks that two spans of one step have the same length, and are the same memory or do not overlap.
    fn apart_or_same(&self, rank: Rank, lane: usize, one: &Span, other: &Span) -> Result<(), Fault> {
        let ((area, range), (there, theirs)) = (self.find(rank, lane, one)?, self.find(rank, lane, other)?);
        let shared = area == there && overlap(&range, &theirs);
        if one.len != other.len || (shared && range != theirs) {
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
        let waiting =
            self.lanes.iter().enumerate().filter_map(|(index, lane)| Some((index, lane.waits_for()?)));
        let waiting: Vec<_> = waiting.collect();
        let Some(&(first, _)) = waiting.first() else {
            debug_assert!(self.lanes.iter().all(|lane| lane.ended));
            return Ok(());
        };
        let waits: Vec<_> = waiting
            .iter()
            .map(|(index, what)| {
                format!("rank {} lane {} waits {what}", index / self.width, index % self.width)
            })
            .collect();
        let fault = Fault::Stuck(waits.join(", "));
        Err(self.violation(first / self.width, first % self.width, fault))
    }

    /// A lane's next step. If others may not write into this rank's output, the engine takes the awaited elements from a slot. What
    /// is forwarded leaves from that slot before it is copied, so that the slot is held until the next rank has room.
    fn next(&mut self, rank: Rank, lane: usize) -> Option<Step> {
        let exposed = self.setup.writable(rank);
        let laid_aside = self.lane(rank, lane).before.pop();
        let step = laid_aside.or_else(|| self.schedules[rank].next(lane))?;
        let Step::Await { from, into } = step else { return Some(step) };
        if exposed {
            return Some(step);
        }
        let after = self.schedules[rank].next(lane);
        self.lane(rank, lane).take_from_slot(from, into, after);
        Some(Step::Take { from, len: into.len })
    }
}
