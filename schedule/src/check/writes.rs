//! The checker's rules of writes into the outputs of other ranks.

use std::ops::Range;

use super::{
    Fault, Violation,
    memory::{Area, Cell, overlap},
    run::Checker,
    state::Open,
};
use crate::{Place, Rank, Span};

impl Checker<'_> {
    /// Begins a write to element `at` of the output of `to`.
    pub(super) fn write_direct(
        &mut self,
        rank: Rank,
        lane: usize,
        (to, at): (Rank, usize),
        from: Span,
    ) -> Result<(), Fault> {
        if !self.direct {
            return Err(Fault::NotDirect(to));
        }
        if from.len == 0 {
            return Err(Fault::EmptyWrite(to));
        }
        let place = Span::output(at, from.len);
        let found = self.memories[to].find(Place::Output, at, from.len);
        let (_, lands) = found.map_err(|room| Fault::Bounds { span: place, room })?;
        if !self.setup.writable(to) {
            return self.put(rank, lane, to, from, None);
        }
        self.untouched(to, Area::Main, &lands, &place)?;
        self.unread(to, &lands)?;
        let (heard, chain) = (self.heard[rank], self.lane(rank, lane).chain + 1);
        self.put(rank, lane, to, from, Some(lands.clone()))?;
        let index = self.flow(rank, to, lane);
        self.exposed[to].push((rank, lands.clone()));
        self.writes[index].open.push_back(Open { lands, landed: false, heard, chain });
        Ok(())
    }

    /// Checks that no put of `to` that has not arrived reads the elements that are written.
    fn unread(&self, to: Rank, lands: &Range<usize>) -> Result<(), Fault> {
        let reader = self.under_way[to]
            .iter()
            .map(|&put| &self.puts[put])
            .find(|other| other.area == Area::Main && overlap(&other.range, lands));
        reader.map_or(Ok(()), |reader| Err(Fault::LandsInFlight { to, reader: reader.to }))
    }

    /// Delivers a write.
    pub(super) fn land(&mut self, put: usize, lands: Range<usize>, cells: &[Cell]) -> Result<(), Violation> {
        let put = &self.puts[put];
        let (from, to, lane, number) = (put.from, put.to, put.lane, put.number);
        self.unread(to, &lands).map_err(|fault| self.violation(from, lane, fault))?;
        self.memories[to].cells_mut(Area::Main)[lands].copy_from_slice(cells);
        let index = self.flow(from, to, lane);
        self.writes[index].land(number);
        Ok(())
    }

    /// Ends the await of the next write, which has landed.
    pub(super) fn await_direct(
        &mut self,
        rank: Rank,
        lane: usize,
        from: Rank,
        into: Span,
    ) -> Result<(), Fault> {
        let index = self.flow(from, rank, lane);
        let alone = self.setup.job.long && lane == 0 && self.writes[index].sent == 1;
        if self.flows[index].taken == 0 && !alone {
            return Err(Fault::WriteFirst(from));
        }
        let place = self.find(rank, lane, &into)?;
        let Some(open) = self.writes[index].open.pop_front() else { return Ok(()) };
        if into.place != Place::Output || place != (Area::Main, open.lands.clone()) {
            return Err(Fault::Elsewhere { from, span: into, to: open.lands });
        }
        self.writes[index].awaited += 1;
        let exposed = self.exposed[rank].iter().position(|it| *it == (from, open.lands.clone()));
        exposed.map(|at| self.exposed[rank].swap_remove(at));
        self.heard[rank] |= open.heard;
        let state = self.lane(rank, lane);
        state.chain = state.chain.max(open.chain);
        self.taken[rank].insert(from);
        self.wake(from, lane);
        Ok(())
    }

    /// Checks that these cells are not being written by a write that was not awaited.
    pub(super) fn untouched(
        &self,
        rank: Rank,
        area: Area,
        range: &Range<usize>,
        span: &Span,
    ) -> Result<(), Fault> {
        let exposed = self.exposed[rank].iter().find(|(_, lands)| overlap(lands, range));
        match exposed.filter(|_| area == Area::Main && !range.is_empty()) {
            Some(&(from, _)) => Err(Fault::Landing { span: *span, from }),
            None => Ok(()),
        }
    }

    /// Checks the writes when no event is possible any more.
    pub(super) fn judge_writes(&self) -> Result<(), Violation> {
        for (index, writes) in self.writes.iter().enumerate() {
            let (from, to, lane) = self.ends(index);
            if writes.sent > writes.awaited {
                let count = writes.sent - writes.awaited;
                return Err(self.violation(to, lane, Fault::NeverTaken { from, count }));
            }
        }
        if !self.direct {
            return Ok(());
        }
        for to in (0..self.setup.job.ranks).filter(|&to| self.setup.writable(to)) {
            for &from in &self.taken[to] {
                let first = self.flow(from, to, 0);
                if self.writes[first..first + self.width].iter().all(|writes| writes.sent == 0) {
                    return Err(self.violation(to, 0, Fault::NoWrite(from)));
                }
            }
        }
        Ok(())
    }
}
