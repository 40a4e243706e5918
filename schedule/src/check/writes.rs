//! Writes straight into outputs: what may go wrong when memory changes under the feet of its owner.
//!
//! From the moment a write is put until it is awaited its place belongs to the sender: a step of the receiver
//! that reads or writes there is a violation, whether the write has landed or not.

use std::{collections::VecDeque, ops::Range};

use super::{
    Fault, Violation,
    memory::{Area, Cell, overlap},
    run::Checker,
};
use crate::{Place, Rank, Span, Step};

/// The writes of one rank to another on one lane.
#[derive(Default)]
pub(super) struct Writes {
    sent: usize,
    awaited: usize,
    /// Those that were sent and not awaited, in order.
    open: VecDeque<Open>,
}

struct Open {
    lands: Range<usize>,
    landed: bool,
    heard: u64,
    chain: usize,
}

impl Writes {
    /// Whether another may be sent when at most so many may be open.
    pub(super) fn has_room(&self, depth: usize) -> bool {
        self.open.len() < depth
    }

    pub(super) fn next_has_landed(&self) -> bool {
        self.open.front().is_some_and(|open| open.landed)
    }

    /// The number of the next write.
    pub(super) fn send(&mut self) -> usize {
        self.sent += 1;
        self.sent - 1
    }
}

impl Checker<'_> {
    /// Whether others may write into this rank's output.
    pub(super) fn granted(&self, rank: Rank) -> bool {
        let super::Setup { job, in_place, granted, .. } = self.setup;
        granted >> rank & 1 == 1 && !(*in_place && job.collective.exchanges())
    }

    /// A lane's next step. Where nobody may write into this rank's output, the engine takes what is awaited from a slot,
    /// and what is to be passed on leaves from there before it is copied: the slot is held until the next rank has room.
    pub(super) fn next(&mut self, rank: Rank, lane: usize) -> Option<Step> {
        let exposed = self.granted(rank);
        let laid_aside = self.lane(rank, lane).before.pop();
        let step = laid_aside.or_else(|| self.schedules[rank].next(lane))?;
        let Step::Await { from, into } = step else { return Some(step) };
        if exposed {
            return Some(step);
        }
        let landed = Span::landed(from, into.len);
        let (copy, free) = (Step::Copy { from: landed, into }, Step::Free { from });
        let before = match self.schedules[rank].next(lane) {
            Some(Step::Write { to, from, at }) if from == into => {
                vec![free, copy, Step::Write { to, from: landed, at }]
            }
            after => after.into_iter().chain([free, copy]).collect(),
        };
        self.lane(rank, lane).before = before;
        Some(Step::Take { from, len: into.len })
    }

    /// A write begins its way to element `at` of the output of `to`.
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
        if !self.granted(to) {
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

    /// No put of `to` that has not arrived reads what is written there.
    fn unread(&self, to: Rank, lands: &Range<usize>) -> Result<(), Fault> {
        let reader = self.under_way[to]
            .iter()
            .map(|&put| &self.puts[put])
            .find(|other| other.area == Area::Main && overlap(&other.range, lands));
        reader.map_or(Ok(()), |reader| Err(Fault::LandsInFlight { to, reader: reader.to }))
    }

    /// A write has come.
    pub(super) fn land(&mut self, put: usize, lands: Range<usize>, cells: &[Cell]) -> Result<(), Violation> {
        let put = &self.puts[put];
        let (from, to, lane, number) = (put.from, put.to, put.lane, put.number);
        self.unread(to, &lands).map_err(|fault| self.violation(from, lane, fault))?;
        self.memories[to].cells_mut(Area::Main)[lands].copy_from_slice(cells);
        let index = self.flow(from, to, lane);
        let writes = &mut self.writes[index];
        if let Some(open) = writes.open.get_mut(number - writes.awaited) {
            open.landed = true;
        }
        Ok(())
    }

    /// The next write was awaited, and has landed.
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

    /// No write that was not awaited lands in these cells.
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

    /// What holds of writes when nothing can happen any more.
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
        for to in (0..self.setup.job.ranks).filter(|&to| self.granted(to)) {
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
