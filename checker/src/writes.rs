//! The checker's rules of writes into the outputs of other ranks.

use std::ops::Range;

use super::{
    Fault, Violation,
    memory::{Area, Cell, OwnMemory, SpanLocation, overlap},
    run::Checker,
    state::{LaneId, OpenWrite},
};
use unisono_schedule::{Place, Rank, Span};

impl Checker<'_> {
    /// Begins a write to element `first` of the output of `to`.
    pub(super) fn write_direct(
        &mut self,
        by: LaneId,
        to: Rank,
        first: usize,
        from: Span,
    ) -> Result<(), Fault> {
        if !self.direct {
            return Err(Fault::NotDirect(to));
        }
        if from.len == 0 {
            return Err(Fault::EmptyWrite(to));
        }
        let span = Span::output(first, from.len);
        let found = self.memories[to].find(Place::Output, first, from.len);
        let (part, lands) = found.map_err(|room| Fault::Bounds { span, room })?;
        if !self.setup.writable(to) {
            return self.put(by, to, from, None);
        }
        self.untouched(to, &SpanLocation { area: Area::Own(part), range: lands.clone() }, &span)?;
        self.unread(to, &lands)?;
        let (past, flow) = (self.past(by), self.flow(by.rank, to, by.lane));
        self.put(by, to, from, Some(lands.clone()))?;
        self.exposed[to].push((by.rank, lands.clone()));
        let writes = &mut self.flows[flow].writes;
        writes.sent += 1;
        writes.open.push_back(OpenWrite { lands, landed: false, past });
        Ok(())
    }

    /// Checks that no put of `to` that has not arrived reads the elements that are written.
    fn unread(&self, to: Rank, lands: &Range<usize>) -> Result<(), Fault> {
        let lands = SpanLocation { area: Area::Own(OwnMemory::Main), range: lands.clone() };
        let mut puts = self.under_way[to].iter().map(|&put| &self.puts[put]);
        let reader = puts.find(|other| other.source.overlaps(&lands));
        reader.map_or(Ok(()), |reader| Err(Fault::LandsInFlight { to, reader: reader.to }))
    }

    /// Delivers the write of this number.
    pub(super) fn land(
        &mut self,
        flow: usize,
        number: usize,
        lands: Range<usize>,
        cells: &[Cell],
    ) -> Result<(), Violation> {
        let (from, to, lane) = self.ends(flow);
        self.unread(to, &lands).map_err(|fault| self.violation(from, lane, fault))?;
        self.memories[to].cells_mut(OwnMemory::Main)[lands].copy_from_slice(cells);
        let writes = &mut self.flows[flow].writes;
        let awaited = writes.sent - writes.open.len();
        writes.open[number - awaited].landed = true;
        Ok(())
    }

    /// Ends the await of the next write, which has landed.
    pub(super) fn await_direct(&mut self, at: LaneId, from: Rank, into: Span) -> Result<(), Fault> {
        let index = self.flow(from, at.rank, at.lane);
        let flow = &self.flows[index];
        let alone = self.setup.job.long && at.lane == 0 && flow.writes.sent == 1;
        if flow.taken == 0 && !alone {
            return Err(Fault::WriteFirst(from));
        }
        let found = self.find(at, &into)?;
        let Some(open) = self.flows[index].writes.open.pop_front() else { return Ok(()) };
        let there = SpanLocation { area: Area::Own(OwnMemory::Main), range: open.lands.clone() };
        if into.place != Place::Output || found != there {
            return Err(Fault::Elsewhere { from, span: into, to: open.lands });
        }
        let exposed = self.exposed[at.rank].iter().position(|it| *it == (from, open.lands.clone()));
        exposed.map(|index| self.exposed[at.rank].swap_remove(index));
        self.hear(at, open.past);
        self.taken[at.rank].insert(from);
        self.wake(from, at.lane);
        Ok(())
    }

    /// Checks that these cells are not being written by a write that was not awaited.
    pub(super) fn untouched(&self, rank: Rank, found: &SpanLocation, span: &Span) -> Result<(), Fault> {
        let mut exposed = self.exposed[rank]
            .iter()
            .filter(|_| found.area == Area::Own(OwnMemory::Main) && !found.range.is_empty());
        match exposed.find(|(_, lands)| overlap(lands, &found.range)) {
            Some(&(from, _)) => Err(Fault::Landing { span: *span, from }),
            None => Ok(()),
        }
    }

    /// Checks the writes when no event is possible any more.
    pub(super) fn judge_writes(&self) -> Result<(), Violation> {
        for (index, flow) in self.flows.iter().enumerate() {
            let (from, to, lane) = self.ends(index);
            let count = flow.writes.open.len();
            if count > 0 {
                return Err(self.violation(to, lane, Fault::NeverTaken { from, count }));
            }
        }
        for to in (0..self.ranks).filter(|&to| self.direct && self.setup.writable(to)) {
            for &from in &self.taken[to] {
                let first = self.flow(from, to, 0);
                if self.flows[first..first + self.width].iter().all(|flow| flow.writes.sent == 0) {
                    return Err(self.violation(to, 0, Fault::NoWrite(from)));
                }
            }
        }
        Ok(())
    }
}
