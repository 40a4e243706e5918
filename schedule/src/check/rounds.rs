//! The checker's rules of what ranks show: when they may show and view, and that two ranks use an element at the same time only if
//! both read it.

use std::ops::Range;

use super::{
    Fault, Violation,
    memory::{Area, Part},
    run::Checker,
    shown::{Round, SLOTS, Shows, Use},
};
use crate::{Place, Rank, Shown, Span, Step};

impl Checker<'_> {
    /// True if others read a rank's elements in place. Scratch is always read in place.
    fn in_place(&self, rank: Rank) -> bool {
        let inside = self.shows.as_ref().is_some_and(|shows| shows.inside);
        inside
            || self.setup.job.shown == Some(crate::Showing::InPlace) && self.setup.writable >> rank & 1 == 1
    }

    /// True if a rank may show these elements.
    fn may_be_shown(&self, span: &Span) -> bool {
        match self.shows.as_ref().is_some_and(|shows| shows.inside) {
            true => span.place == Place::Scratch || span.len == 0,
            false => matches!(span.place, Place::Input | Place::Output),
        }
    }

    /// The time of a rank's next step.
    fn tick(&mut self, rank: Rank) -> u64 {
        self.shows.as_mut().map_or(0, |shows| {
            shows.clocks[rank][rank] += 1;
            shows.clocks[rank][rank]
        })
    }

    /// The elements of another rank's memory that a span of what it shows stands for.
    pub(super) fn find_shown(
        &self,
        shows: &Shows,
        rank: Rank,
        from: Rank,
        span: &Span,
    ) -> Result<(Area, Range<usize>), Fault> {
        let round = shows.rounds[rank].len();
        let viewed = shows.viewed[rank].contains(&from) && round > 0;
        let Some(Round { shown, .. }) = shows.rounds[from].get(round.wrapping_sub(1)).filter(|_| viewed)
        else {
            return Err(Fault::NotHeld(from));
        };
        let bounds = Fault::Bounds { span: *span, room: shown.len() };
        let Some(there) = shown.within(span.offset, span.len) else { return Err(bounds) };
        if !self.in_place(from) {
            return Ok((
                Area::Copied { owner: from, slot: round % SLOTS },
                span.offset..span.offset + span.len,
            ));
        }
        let found = self.memories[from].find(there.place, there.offset, there.len);
        let (area, range) = found.map_err(|_| bounds.clone())?;
        Ok((Area::Theirs { owner: from, part: Part::of(area).ok_or(bounds)? }, range))
    }

    /// Begins a rank's next round.
    pub(super) fn show(&mut self, rank: Rank, lane: usize, shown: Shown) -> Result<(), Fault> {
        let now = self.tick(rank);
        let Some(shows) = &mut self.shows else { return Err(Fault::Kind(Box::new(Step::Show { shown }))) };
        let round = shows.rounds[rank].len() + 1;
        for other in shows.sharers(rank) {
            if let Some(before) = round.checked_sub(2).map(|at| shows.rounds[other][at].clock.clone()) {
                shows.learn(rank, &before);
            }
        }
        shows.viewed[rank].clear();
        let mut cells = Vec::new();
        let mut copy = std::mem::take(&mut shows.slots[rank][round % SLOTS]);
        copy.clear();
        for block in 0..shown.blocks {
            let span = shown.block(block);
            if !self.may_be_shown(&span) {
                return Err(Fault::Kind(Box::new(Step::Show { shown })));
            }
            if self.in_place(rank) {
                self.find(rank, lane, &span)?;
            } else {
                self.read(rank, lane, &span, &mut cells)?;
                copy.extend_from_slice(&cells);
            }
        }
        let (area, range) = (Area::Copied { owner: rank, slot: round % SLOTS }, 0..copy.len());
        let (heard, chain) = (self.heard[rank], self.lane(rank, lane).chain + 1);
        let Some(shows) = &mut self.shows else { return Ok(()) };
        shows.slots[rank][round % SLOTS] = copy;
        if let Some(reader) = shows.uses(rank, Use { by: rank, at: now, area, range, writes: true }) {
            return Err(Fault::StillRead { span: shown.first, reader });
        }
        let clock = shows.clocks[rank].clone();
        shows.rounds[rank].push(Round { shown, clock, heard, chain });
        let others = shows.sharers(rank);
        (0..self.ranks).for_each(|owner| shows.forget(owner));
        others.filter(|&other| other != rank).for_each(|other| self.wake(other, lane));
        Ok(())
    }

    /// Learns that a rank has begun this round.
    pub(super) fn view(&mut self, rank: Rank, lane: usize, from: Rank, wanted: Shown) -> Result<(), Fault> {
        self.tick(rank);
        let Some(shows) = &mut self.shows else {
            return Err(Fault::Kind(Box::new(Step::View { from, shown: wanted })));
        };
        let round = shows.rounds[rank].len();
        let Some(Round { shown, clock, heard, chain }) = shows.rounds[from].get(round.wrapping_sub(1)) else {
            return Err(Fault::NotHeld(from));
        };
        if *shown != wanted {
            return Err(Fault::Views { from, wanted: Box::new(wanted), found: Box::new(*shown) });
        }
        let (clock, heard, chain) = (clock.clone(), *heard, *chain);
        shows.learn(rank, &clock);
        shows.viewed[rank].push(from);
        self.heard[rank] |= heard;
        self.hops = self.hops.max(chain);
        let state = self.lane(rank, lane);
        state.chain = state.chain.max(chain);
        if !self.shows.as_ref().is_some_and(|shows| shows.inside) {
            self.taken[rank].insert(from);
        }
        Ok(())
    }

    /// A rank comes to its [`Step::Settle`].
    pub(super) fn settles(&mut self, rank: Rank) {
        let Some(shows) = self.shows.as_mut().filter(|shows| !shows.inside) else { return };
        if shows.settled[rank].is_none() {
            shows.settled[rank] = Some(shows.clocks[rank].clone());
            (0..self.ranks).filter(|&other| other != rank).for_each(|other| self.wake(other, 0));
        }
    }

    /// All ranks have come to their [`Step::Settle`].
    pub(super) fn settled(&mut self, rank: Rank) {
        let Some(shows) = self.shows.as_mut().filter(|shows| !shows.inside) else { return };
        for other in 0..self.ranks {
            if let Some(clock) = shows.settled[other].clone() {
                shows.learn(rank, &clock);
            }
        }
    }

    /// Notes a use of a rank's memory. Returns the rank of another use that may happen at the same time, if one of the two writes.
    fn used(
        &mut self,
        owner: Rank,
        by: Rank,
        (area, range): (Area, &Range<usize>),
        writes: bool,
    ) -> Option<Rank> {
        let this = Use { by, at: self.tick(by), area, range: range.clone(), writes };
        self.shows.as_mut()?.uses(owner, this)
    }

    /// Notes that a rank reads these elements, and checks that their rank does not write them.
    pub(super) fn reads(
        &mut self,
        rank: Rank,
        area: Area,
        range: &Range<usize>,
        span: &Span,
    ) -> Result<(), Fault> {
        let (Area::Theirs { owner, .. } | Area::Copied { owner, .. }) = area else { return Ok(()) };
        match self.used(owner, rank, (area, range), false) {
            Some(_) => Err(Fault::ReadsEarly { span: *span, owner }),
            None => Ok(()),
        }
    }

    /// Notes that a rank writes its own elements, and checks that no other reads them.
    pub(super) fn writes_own(
        &mut self,
        rank: Rank,
        area: Area,
        range: &Range<usize>,
        span: &Span,
    ) -> Result<(), Fault> {
        let Some(part) = Part::of(area).filter(|_| self.in_place(rank)) else { return Ok(()) };
        let area = Area::Theirs { owner: rank, part };
        match self.used(rank, rank, (area, range), true) {
            Some(reader) => Err(Fault::StillRead { span: *span, reader }),
            None => Ok(()),
        }
    }

    /// Checks that all ranks have had the same number of rounds, and that no rank reads the elements of one that has ended.
    pub(super) fn judge_shows(&self) -> Result<(), Violation> {
        let Some(shows) = &self.shows else { return Ok(()) };
        for rank in 0..self.ranks {
            let first = shows.sharers(rank).next().unwrap_or(rank);
            let (found, wanted) = (shows.rounds[rank].len(), shows.rounds[first].len());
            if found != wanted {
                let fault = Fault::Shape { what: "the number of rounds", found, wanted };
                return Err(self.violation(rank, 0, fault));
            }
            let known = &shows.clocks[rank];
            let reads = |it: &&Use| matches!(it.area, Area::Theirs { .. }) && known[it.by] < it.at;
            if let Some(reads) = shows.uses[rank].iter().find(reads) {
                return Err(self.violation(rank, 0, Fault::EndsEarly(reads.by)));
            }
        }
        Ok(())
    }
}
